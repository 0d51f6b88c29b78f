package nft

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
)

// A Tx is a list of changes of which the kernel makes all or none. The zero Tx is
// ready.
type Tx struct {
	ops        []op
	generation uint32 // zero: any
}

// An op is one change, and its name for people: a message of the library's.
type op struct {
	what string
	put  func(*nftables.Conn)
	list *elementList // instead of put
}

func (t *Tx) add(what string, put func(*nftables.Conn)) {
	t.ops = append(t.ops, op{what: what, put: put})
}

// Commit makes the changes of tx, all or none. what names the whole for people;
// the error names the first change that the kernel refused.
func (c *Conn) Commit(what string, tx *Tx) error {
	begun := false
	err := c.step(what, func() error {
		begun = true
		return c.commit(tx)
	})
	var unsent *unsentError
	switch {
	case err == nil:
		return nil
	case begun && !refused(err) && !errors.As(err, &unsent):
		err = &unknownOutcome{err}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// An unsentError is an error of a commit of which the kernel was told nothing.
type unsentError struct{ error }

func (u *unsentError) Unwrap() error { return u.error }

// An unknownOutcome is an error of a commit that the kernel may have made.
type unknownOutcome struct{ error }

func (u *unknownOutcome) Unwrap() error { return u.error }

// outcomeUnknown reports whether the error is that of a commit which the kernel may have
// made.
func outcomeUnknown(err error) bool {
	var u *unknownOutcome
	return errors.As(err, &u)
}

func (c *Conn) commit(tx *Tx) error {
	for _, o := range tx.ops {
		if o.list == nil {
			o.put(c.lib)
		} else if err := o.list.put(c.lib); err != nil {
			return &unsentError{fmt.Errorf("%s: %w", o.what, err)}
		}
	}
	if err := c.makeRoom(tx); err != nil {
		return &unsentError{err}
	}
	err := c.lib.FlushWithGenID(tx.generation)
	var answer *netlink.OpError
	if !errors.As(err, &answer) || answer.Sequence == 0 {
		return err
	}
	return c.nameRefused(tx, answer)
}

// nameRefused names the change that an answer of the kernel is about. The library tells
// its sequence number only. The messages of a batch are numbered one after the other: its
// begin, one for each change, its end, and then the next request.
func (c *Conn) nameRefused(tx *Tx, answer *netlink.OpError) error {
	next, err := c.sequence()
	if err != nil {
		c.lib = nil
		return answer
	}
	begin := next - uint32(len(tx.ops)) - 2
	if i := answer.Sequence - begin - 1; i < uint32(len(tx.ops)) {
		return fmt.Errorf("%s: %w", tx.ops[i].what, answer)
	}
	return answer // the batch as a whole
}

// addTable adds a table that must not exist.
func (t *Tx) addTable(tab Table) {
	t.add("add table "+tab.String(), func(c *nftables.Conn) { c.CreateTable(tab.lib()) })
}

// EnsureSet adds a set or map; the same one may exist.
func (t *Tx) EnsureSet(tab Table, s Set) {
	t.add("add set "+s.Name+" to table "+tab.String(), func(c *nftables.Conn) {
		_ = c.AddSet(s.lib(tab), nil) // fails for anonymous sets only
	})
}

// EnsureChain adds a chain without rules; the same one may exist.
func (t *Tx) EnsureChain(tab Table, chain string) { t.addChain(tab, Chain{Name: chain}) }

// addChain adds a chain; the same one may exist.
func (t *Tx) addChain(tab Table, ch Chain) {
	t.add("add chain "+ch.Name+" to table "+tab.String(), func(c *nftables.Conn) { c.AddChain(ch.lib(tab)) })
}

// addRule appends a rule to a chain.
func (t *Tx) addRule(tab Table, chain string, r Rule, comment string) {
	t.add("add rule to chain "+chain+" of table "+tab.String(), func(c *nftables.Conn) {
		c.AddRule(&nftables.Rule{
			Table:    tab.lib(),
			Chain:    &nftables.Chain{Name: chain},
			Exprs:    r.expressions(tab.Family),
			UserData: userdata.AppendString(nil, userdata.TypeComment, comment),
		})
	})
}

// Flush deletes the rules of a chain.
func (t *Tx) Flush(tab Table, chain string) {
	t.add("flush chain "+chain+" of table "+tab.String(), func(c *nftables.Conn) {
		c.FlushChain(Chain{Name: chain}.lib(tab))
	})
}

// DelRule deletes a rule that Conn.Rules gave.
func (t *Tx) DelRule(tab Table, r Found) {
	t.add("delete rule from chain "+r.Chain+" of table "+tab.String(), func(c *nftables.Conn) {
		_ = c.DelRule(&nftables.Rule{Table: tab.lib(), Chain: &nftables.Chain{Name: r.Chain}, Handle: r.handle}) // fails without a handle only
	})
}

// DelChain deletes a chain with its rules. The kernel refuses with EBUSY while
// something jumps to it.
func (t *Tx) DelChain(tab Table, chain string) {
	t.add("delete chain "+chain+" of table "+tab.String(), func(c *nftables.Conn) {
		c.DelChain(Chain{Name: chain}.lib(tab))
	})
}

// AddElement adds an element. None of that key may exist, which the caller makes sure of
// with Conn.Atomically and Conn.Lookup: one with the same data stays as it is, and one
// with other data is an error. A missing set, or a missing chain to jump to, is
// fs.ErrNotExist.
func (t *Tx) AddElement(tab Table, set string, e Element) {
	l := elementList{tab: tab, set: set}
	t.element("add element to ", l, e.lib())
}

// DelElement deletes the element of that key, whoever owns it.
func (t *Tx) DelElement(tab Table, set string, k Key) {
	l := elementList{tab: tab, set: set, deletes: true}
	t.element("delete element from ", l, nftables.SetElement{Key: []byte(k)})
}

// element puts the change into the last message about the set, where that says the same
// of other elements, or else into one of its own.
func (t *Tx) element(what string, l elementList, e nftables.SetElement) {
	open := t.lastAbout(l)
	if open == nil || open.deletes != l.deletes || len(open.elements) == maxElements {
		open = &l
		t.ops = append(t.ops, op{what: what + l.set + " of table " + l.tab.String(), list: open})
	}
	open.elements = append(open.elements, e)
}

// lastAbout returns the last list of elements of the same set. Another change may be what
// an element needs (the chain that it jumps to), so no element goes before it.
func (t *Tx) lastAbout(l elementList) *elementList {
	for i := len(t.ops) - 1; i >= 0 && t.ops[i].list != nil; i-- {
		if o := t.ops[i].list; o.set == l.set && o.tab == l.tab {
			return o
		}
	}
	return nil
}

// An elementList is elements of one set that are added, or deleted, by one message.
type elementList struct {
	tab      Table
	set      string
	deletes  bool
	elements []nftables.SetElement
}

// maxElements is how many elements fit into one message: the length of the attribute that
// holds them has 16 bits, and an element has less than 400 bytes.
const maxElements = 128

func (l *elementList) put(c *nftables.Conn) error {
	set := &nftables.Set{Table: l.tab.lib(), Name: l.set}
	if l.deletes {
		return c.SetDeleteElements(set, l.elements)
	}
	return c.SetAddElements(set, l.elements)
}

func (t Table) lib() *nftables.Table {
	return &nftables.Table{Name: t.Name, Family: nftables.TableFamily(t.Family)}
}

func (ch Chain) lib(t Table) *nftables.Chain {
	c := &nftables.Chain{Name: ch.Name, Table: t.lib()}
	if ch.Hook != (Hook{}) {
		policy := nftables.ChainPolicyAccept
		c.Type, c.Policy = nftables.ChainType(ch.Hook.Type), &policy
		c.Hooknum = nftables.ChainHookRef(nftables.ChainHook(ch.Hook.At))
		c.Priority = nftables.ChainPriorityRef(nftables.ChainPriority(ch.Hook.Priority))
	}
	return c
}

func (e Element) lib() nftables.SetElement {
	l := nftables.SetElement{Key: []byte(e.Key), Val: []byte(e.Data), Comment: e.Comment}
	if e.Jump != "" {
		l.VerdictData = &expr.Verdict{Kind: expr.VerdictJump, Chain: e.Jump}
	}
	return l
}
