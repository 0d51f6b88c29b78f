package nft

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
)

// A Change adds changes to tx.
type Change func(c *Conn, tx *Tx) error

// A Tx is a transaction, which is a list of changes that the kernel applies together or not at all. The
// zero Tx is empty and ready to use.
type Tx struct {
	changes    []change
	generation uint32 // the generation ID that the ruleset must have; if it is zero, any ID is accepted
}

// A change is one netlink message. Either batch or queue is set.
type change struct {
	description string               // describes the change in errors
	batch       *elementBatch        // elements to add or delete
	queue       func(*nftables.Conn) // queues any other message in package nftables
}

func (t *Tx) add(description string, queue func(*nftables.Conn)) {
	t.changes = append(t.changes, change{description: description, queue: queue})
}

// Commit applies all changes of tx. If the kernel refuses one of them, Commit applies none, and the error describes the
// first refused change. After an error that is not the kernel's answer, the changes may have been applied (see
// OutcomeUnknown). The parameter what names the transaction in the error and for the tracer.
func (c *Conn) Commit(what string, tx *Tx) error {
	started := false
	err := c.step(what, func() error {
		started = true
		return c.commit(tx)
	})
	switch {
	case err == nil:
		return nil
	case started && !refused(err):
		err = &unknownOutcomeError{err}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// An unknownOutcomeError is the error of a commit whose changes the kernel may have applied.
type unknownOutcomeError struct{ error }

func (e *unknownOutcomeError) Unwrap() error { return e.error }

// OutcomeUnknown reports whether err is the error of a commit whose changes the kernel may have
// applied.
func OutcomeUnknown(err error) bool {
	var unknown *unknownOutcomeError
	return errors.As(err, &unknown)
}

func (c *Conn) commit(tx *Tx) error {
	for _, change := range tx.changes {
		if change.batch == nil {
			change.queue(c.nft)
		} else if err := change.batch.queue(c.nft); err != nil {
			return fmt.Errorf("%s: %w", change.description, err)
		}
	}
	if err := c.enlargeBuffers(len(tx.changes)); err != nil {
		return err
	}
	err := c.nft.FlushWithGenID(tx.generation)
	var answer *netlink.OpError
	if !errors.As(err, &answer) || answer.Sequence == 0 {
		return err
	}
	return c.nameRefusedChange(tx, answer)
}

// nameRefusedChange adds the description of the change that the kernel refused. The error from package nftables
// contains only the sequence number of the refused message. A transaction consists of a first message, one message for
// each change, and a last message, with consecutive numbers. The next request gets the next number.
func (c *Conn) nameRefusedChange(tx *Tx, answer *netlink.OpError) error {
	next, err := c.nextSequence()
	if err != nil {
		c.nft = nil
		return answer
	}
	first := next - uint32(len(tx.changes)) - 2
	if i := answer.Sequence - first - 1; i < uint32(len(tx.changes)) {
		return &refusedError{index: int(i), description: tx.changes[i].description, error: answer}
	}
	return answer // the kernel refused the transaction as a whole
}

// A refusedError is the error of a commit in which the kernel refused one change.
type refusedError struct {
	index       int    // the index of the first refused change in the transaction
	description string // the description of that change
	error
}

func (e *refusedError) Error() string { return e.description + ": " + e.error.Error() }

func (e *refusedError) Unwrap() error { return e.error }

// ensureTable adds a table unless it exists.
func (t *Tx) ensureTable(tab Table) {
	t.add("add table "+tab.String(), func(c *nftables.Conn) { c.AddTable(tab.library()) })
}

// createTable adds a table. If the table exists, the commit fails with fs.ErrExist.
func (t *Tx) createTable(tab Table) {
	t.add("add table "+tab.String(), func(c *nftables.Conn) { c.CreateTable(tab.library()) })
}

// EnsureSet adds a set or map unless the same set or map exists.
func (t *Tx) EnsureSet(tab Table, s Set) {
	t.add("add set "+s.Name+" to table "+tab.String(), func(c *nftables.Conn) {
		_ = c.AddSet(s.library(tab), nil) // fails only for anonymous sets
	})
}

// ensureChain adds a chain without its rules unless the same chain exists.
func (t *Tx) ensureChain(tab Table, ch Chain) {
	t.add("add chain "+ch.Name+" to table "+tab.String(), func(c *nftables.Conn) { c.AddChain(ch.library(tab)) })
}

func (t *Tx) addRule(tab Table, chain string, r Rule, comment string) {
	t.add("add rule to chain "+chain+" of table "+tab.String(), func(c *nftables.Conn) {
		c.AddRule(&nftables.Rule{
			Table:    tab.library(),
			Chain:    &nftables.Chain{Name: chain},
			Exprs:    r.expressions(tab.Family),
			UserData: userdata.AppendString(nil, userdata.TypeComment, comment),
		})
	})
}

func (t *Tx) flushChain(tab Table, chain string) {
	t.add("flush chain "+chain+" of table "+tab.String(), func(c *nftables.Conn) {
		c.FlushChain(Chain{Name: chain}.library(tab))
	})
}

// DelRule deletes a rule that Conn.Rules returned.
func (t *Tx) DelRule(tab Table, r ListedRule) {
	t.add("delete rule from chain "+r.Chain+" of table "+tab.String(), func(c *nftables.Conn) {
		// DelRule fails only for a rule without a handle.
		_ = c.DelRule(&nftables.Rule{Table: tab.library(), Chain: &nftables.Chain{Name: r.Chain}, Handle: r.Handle})
	})
}

// DeleteTable deletes a table with everything in it.
func (c *Conn) DeleteTable(tab Table) error {
	tx := new(Tx)
	tx.add("delete table "+tab.String(), func(c *nftables.Conn) { c.DelTable(tab.library()) })
	return c.Commit("delete table "+tab.String(), tx)
}

// DelChain deletes a chain with its rules. If a rule or an element jumps to the chain, the
// commit fails with EBUSY.
func (t *Tx) DelChain(tab Table, chain string) {
	t.add("delete chain "+chain+" of table "+tab.String(), func(c *nftables.Conn) {
		c.DelChain(Chain{Name: chain}.library(tab))
	})
}

// AddElement adds an element. If the set, or the chain to jump to, does not exist, the commit
// fails with fs.ErrNotExist.
//
// The caller must use Conn.Atomically and Conn.Lookup to ensure that the set contains no element with
// this key. Otherwise, an element with the same data would keep its comment, and the commit would fail
// for an element with other data.
func (t *Tx) AddElement(tab Table, set string, e Element) {
	t.addToBatch(elementBatch{table: tab, set: set}, e.library())
}

// DelElement deletes the element with the key, whoever owns it. If it does not exist, the
// commit fails with fs.ErrNotExist.
func (t *Tx) DelElement(tab Table, set string, k Key) {
	t.addToBatch(elementBatch{table: tab, set: set, deletes: true}, nftables.SetElement{Key: []byte(k)})
}

// addToBatch adds the element to the last change if that is a batch of the same kind and not full.
// Otherwise, it starts a new batch.
func (t *Tx) addToBatch(kind elementBatch, e nftables.SetElement) {
	var batch *elementBatch
	if n := len(t.changes); n > 0 {
		batch = t.changes[n-1].batch
	}
	if batch == nil || batch.table != kind.table || batch.set != kind.set || batch.deletes != kind.deletes || len(batch.elements) == maxBatchElements {
		batch = &kind
		t.changes = append(t.changes, change{description: kind.String(), batch: batch})
	}
	batch.elements = append(batch.elements, e)
}

// An elementBatch lists the elements of one set that one message adds or deletes.
type elementBatch struct {
	table    Table
	set      string
	deletes  bool
	elements []nftables.SetElement
}

// maxBatchElements is how many elements fit into one message. The length of the attribute that contains
// them is a number of 16 bits, and an element is smaller than 400 bytes.
const maxBatchElements = 128

func (b elementBatch) String() string {
	if b.deletes {
		return "delete element from " + b.set + " of table " + b.table.String()
	}
	return "add element to " + b.set + " of table " + b.table.String()
}

func (b *elementBatch) queue(c *nftables.Conn) error {
	set := &nftables.Set{Table: b.table.library(), Name: b.set}
	if b.deletes {
		return c.SetDeleteElements(set, b.elements)
	}
	return c.SetAddElements(set, b.elements)
}

// library converts t for package nftables.
func (t Table) library() *nftables.Table {
	return &nftables.Table{Name: t.Name, Family: nftables.TableFamily(t.Family)}
}

// library converts ch, without its rules, for package nftables.
func (ch Chain) library(t Table) *nftables.Chain {
	c := &nftables.Chain{Name: ch.Name, Table: t.library()}
	if ch.Hook != (Hook{}) {
		policy := nftables.ChainPolicyAccept
		c.Type, c.Policy = nftables.ChainType(ch.Hook.Type), &policy
		c.Hooknum = nftables.ChainHookRef(nftables.ChainHook(ch.Hook.At))
		c.Priority = nftables.ChainPriorityRef(nftables.ChainPriority(ch.Hook.Priority))
	}
	return c
}

// library converts e for package nftables.
func (e Element) library() nftables.SetElement {
	element := nftables.SetElement{Key: []byte(e.Key), Val: []byte(e.Data), Comment: e.Comment}
	if e.Jump != "" {
		element.VerdictData = &expr.Verdict{Kind: expr.VerdictJump, Chain: e.Jump}
	}
	return element
}
