package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/plumb-cni/plumb/pkg/netlink"
	"golang.org/x/sys/unix"
)

// nfnlBatchGenID is NFNL_BATCH_GENID of linux/netfilter/nfnetlink.h: a batch with
// it is refused with ERESTART when the ruleset is of another generation (kernel
// 4.11).
const nfnlBatchGenID = 1

// A Tx is a list of changes of which the kernel makes all or none. The zero Tx is
// ready.
type Tx struct {
	ops        []op
	generation uint32 // zero: any
	dry        bool   // the kernel is to check the changes and not to make them
	err        error
}

// An op is one change and its name for people, or the same change of many elements.
type op struct {
	what     string
	msg      netlink.Message
	elements *list // instead of msg
}

// A verb is the type of a message and its flags.
type verb struct {
	kind  uint16
	flags uint16
}

func (t *Tx) add(what string, v verb, f Family, encode func(*netlink.Encoder)) {
	m, err := request(v, f, encode)
	if err != nil {
		t.err = errors.Join(t.err, fmt.Errorf("%s: %w", what, err))
	}
	t.ops = append(t.ops, op{what: what, msg: m})
}

// Commit makes the changes of tx, all or none. what names the whole for people;
// the error names each change that the kernel refused.
func (c *Conn) Commit(what string, tx *Tx) error {
	if tx.err != nil {
		return fmt.Errorf("%s: %w", what, tx.err)
	}
	begun := false
	err := c.h.Step(what, func() error {
		begun = true
		return c.commit(tx)
	})
	var no *refusal
	switch {
	case err == nil:
		return nil
	case begun && !errors.As(err, &no):
		err = &unknownOutcome{err}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// A refusal is the kernel's answer that it did not make a change.
type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

// An unknownOutcome is an error of a commit that the kernel may have made.
type unknownOutcome struct{ error }

func (u *unknownOutcome) Unwrap() error { return u.error }

// outcomeUnknown reports whether the error is that of a commit which the kernel may have
// made.
func outcomeUnknown(err error) bool {
	var u *unknownOutcome
	return errors.As(err, &u)
}

// commit sends the batch and then a request that has exactly one answer. nf_tables
// does its work within sendmsg, so all that the batch had to say, one error a
// refused change and nothing on success, is queued before that answer.
func (c *Conn) commit(tx *Tx) error {
	batch, err := tx.batch()
	if err != nil {
		return err
	}
	if err := c.makeRoom(batch); err != nil {
		return err
	}
	if err := c.nl.Send(batch); err != nil {
		return err
	}
	fence, err := c.fence()
	if err != nil {
		return err
	}
	var errs []error
	for {
		answers, err := c.nl.Receive()
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		for _, m := range answers {
			if m.Sequence == fence {
				return errors.Join(append(errs, errno(m.Err()))...)
			}
			errs = append(errs, tx.refusal(m, batch))
		}
	}
}

// fence sends a request that has exactly one answer, and gives its sequence number. What
// it follows is done by then, and an error would make the caller think that it is not:
// the kernel may be short of memory for a moment.
func (c *Conn) fence() (sequence uint32, err error) {
	const attempts = 3
	sent := []netlink.Message{message(verb{unix.NFT_MSG_GETGEN, 0}, nfgenmsg(0, 0))}
	for range attempts {
		if err = c.nl.Send(sent); err == nil {
			break
		}
	}
	return sent[0].Sequence, err
}

// batch is the messages with what stands around them.
func (t *Tx) batch() ([]netlink.Message, error) {
	begin, err := netlink.Encode(nfgenmsg(0, unix.NFNL_SUBSYS_NFTABLES), binary.BigEndian, func(ae *netlink.Encoder) {
		if t.generation != 0 {
			ae.Uint32(nfnlBatchGenID, t.generation)
		}
	})
	if err != nil {
		return nil, err
	}
	edge := func(kind uint16, body []byte) netlink.Message {
		return netlink.Message{Kind: kind, Flags: unix.NLM_F_REQUEST, Body: body}
	}
	batch := make([]netlink.Message, 0, len(t.ops)+2)
	batch = append(batch, edge(unix.NFNL_MSG_BATCH_BEGIN, begin))
	for _, op := range t.ops {
		if op.elements != nil {
			op.msg = op.elements.message()
		}
		batch = append(batch, op.msg)
	}
	if t.dry { // the kernel undoes a batch that does not end
		return batch, nil
	}
	return append(batch, edge(unix.NFNL_MSG_BATCH_END, nfgenmsg(0, unix.NFNL_SUBSYS_NFTABLES))), nil
}

// makeRoom lets a batch through that is larger than the socket's usual buffer (the
// GC of a node with thousands of dead containers), and what the kernel has to say to
// one of many changes (a hundred ports that another container has).
func (c *Conn) makeRoom(batch []netlink.Message) error {
	const (
		usual   = 96 << 10
		answers = 64       // that fit into the usual buffer
		answer  = 4 << 10  // more than one takes
		most    = 64 << 20 // a limit, not what is taken
	)
	size := 0
	for _, m := range batch {
		size += unix.NLMSG_HDRLEN + len(m.Body) + unix.NLMSG_ALIGNTO
	}
	receive, send := 0, 0
	if len(batch) > answers {
		receive = min(len(batch)*answer, most)
	}
	if size >= usual {
		send = 2 * size
	}
	return c.nl.MakeRoom(receive, send)
}

// refusal names the change that an answer of the kernel is about; nil: it is no refusal.
func (t *Tx) refusal(answer netlink.Message, sent []netlink.Message) error {
	err := errno(answer.Err())
	if err == nil {
		return nil
	}
	for i, op := range t.ops {
		if sent[i+1].Sequence == answer.Sequence {
			return &refusal{fmt.Errorf("%s: %w", op.what, err)}
		}
	}
	return &refusal{err} // the batch as a whole
}

// addTable adds a table that must not exist.
func (t *Tx) addTable(tab Table) {
	t.add("add table "+tab.String(), verb{unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE | unix.NLM_F_EXCL}, tab.Family,
		func(ae *netlink.Encoder) { ae.String(unix.NFTA_TABLE_NAME, tab.Name) })
}

// EnsureSet adds a set or map; the same one may exist.
func (t *Tx) EnsureSet(tab Table, s Set) { t.addSet(tab, s) }

// EnsureChain adds a chain without rules; the same one may exist.
func (t *Tx) EnsureChain(tab Table, chain string) { t.addChain(tab, Chain{Name: chain}) }

// addSet adds a set or map; one of the same name and types may exist.
func (t *Tx) addSet(tab Table, s Set) {
	id := uint32(len(t.ops) + 1) // any number that is unique in the batch
	t.add("add set "+s.Name+" to table "+tab.String(), verb{unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE}, tab.Family,
		func(ae *netlink.Encoder) {
			ae.String(unix.NFTA_SET_TABLE, tab.Name)
			ae.String(unix.NFTA_SET_NAME, s.Name)
			ae.Uint32(unix.NFTA_SET_ID, id)
			ae.Uint32(unix.NFTA_SET_KEY_TYPE, magic(s.Key))
			ae.Uint32(unix.NFTA_SET_KEY_LEN, length(s.Key))
			if s.isMap() {
				ae.Uint32(unix.NFTA_SET_FLAGS, unix.NFT_SET_MAP)
				ae.Uint32(unix.NFTA_SET_DATA_TYPE, magic(s.Data))
				ae.Uint32(unix.NFTA_SET_DATA_LEN, length(s.Data))
			}
			if len(s.Key) == 1 && s.Key[0] == IfName {
				ae.Bytes(unix.NFTA_SET_USERDATA, textKey())
			}
		})
}

// textKey tells nft to print keys as texts: the byte order of the key
// (NFTNL_UDATA_SET_KEYBYTEORDER of libnftnl/udata.h) is the host's (1).
func textKey() []byte { return append([]byte{0, 4}, nativeUint32(1)...) }

// addChain adds a chain; the same one may exist.
func (t *Tx) addChain(tab Table, ch Chain) {
	t.add("add chain "+ch.Name+" to table "+tab.String(), verb{unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE}, tab.Family,
		func(ae *netlink.Encoder) {
			ae.String(unix.NFTA_CHAIN_TABLE, tab.Name)
			ae.String(unix.NFTA_CHAIN_NAME, ch.Name)
			if ch.Hook == (Hook{}) {
				return
			}
			ae.Nested(unix.NFTA_CHAIN_HOOK, func(ae *netlink.Encoder) {
				ae.Uint32(unix.NFTA_HOOK_HOOKNUM, uint32(ch.Hook.At))
				ae.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(ch.Hook.Priority))
			})
			ae.Uint32(unix.NFTA_CHAIN_POLICY, policyAccept)
			ae.String(unix.NFTA_CHAIN_TYPE, string(ch.Hook.Type))
		})
}

// policyAccept is NF_ACCEPT of linux/netfilter.h.
const policyAccept = 1

// addRule appends a rule to a chain.
func (t *Tx) addRule(tab Table, chain string, r Rule, comment string) {
	t.add("add rule to chain "+chain+" of table "+tab.String(), verb{unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE | unix.NLM_F_APPEND}, tab.Family,
		func(ae *netlink.Encoder) {
			ae.String(unix.NFTA_RULE_TABLE, tab.Name)
			ae.String(unix.NFTA_RULE_CHAIN, chain)
			ae.Nested(unix.NFTA_RULE_EXPRESSIONS, func(ae *netlink.Encoder) {
				for _, e := range r.expressions(tab.Family) {
					ae.Nested(unix.NFTA_LIST_ELEM, e.encode)
				}
			})
			ae.Bytes(unix.NFTA_RULE_USERDATA, commentData(comment))
		})
}

// Flush deletes the rules of a chain.
func (t *Tx) Flush(tab Table, chain string) {
	t.add("flush chain "+chain+" of table "+tab.String(), verb{unix.NFT_MSG_DELRULE, 0}, tab.Family,
		func(ae *netlink.Encoder) {
			ae.String(unix.NFTA_RULE_TABLE, tab.Name)
			ae.String(unix.NFTA_RULE_CHAIN, chain)
		})
}

// DelRule deletes a rule that Conn.Rules gave.
func (t *Tx) DelRule(tab Table, r Found) {
	t.add("delete rule from chain "+r.Chain+" of table "+tab.String(), verb{unix.NFT_MSG_DELRULE, 0}, tab.Family,
		func(ae *netlink.Encoder) {
			ae.String(unix.NFTA_RULE_TABLE, tab.Name)
			ae.String(unix.NFTA_RULE_CHAIN, r.Chain)
			ae.Uint64(unix.NFTA_RULE_HANDLE, r.handle)
		})
}

// DelChain deletes a chain with its rules. The kernel refuses with EBUSY while
// something jumps to it.
func (t *Tx) DelChain(tab Table, chain string) {
	t.add("delete chain "+chain+" of table "+tab.String(), verb{unix.NFT_MSG_DELCHAIN, 0}, tab.Family,
		func(ae *netlink.Encoder) {
			ae.String(unix.NFTA_CHAIN_TABLE, tab.Name)
			ae.String(unix.NFTA_CHAIN_NAME, chain)
		})
}

// AddElement adds an element that must not exist: one of the same key is
// fs.ErrExist; a missing set, or a missing chain to jump to, is fs.ErrNotExist.
func (t *Tx) AddElement(tab Table, set string, e Element) {
	t.element("add element to ", list{verb: verb{unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE | unix.NLM_F_EXCL}, tab: tab, set: set}, e)
}

// DelElement deletes the element of that key, whoever owns it.
func (t *Tx) DelElement(tab Table, set string, k Key) {
	t.element("delete element from ", list{verb: verb{unix.NFT_MSG_DELSETELEM, 0}, tab: tab, set: set}, Element{Key: k})
}

// element puts the change into the last message about the set, where that says the same
// of other elements, or else into one of its own.
func (t *Tx) element(what string, l list, e Element) {
	open := t.lastAbout(l)
	if open == nil || open.verb != l.verb || len(open.elements) > maxList {
		open = &l
		t.ops = append(t.ops, op{what: what + l.set + " of table " + l.tab.String(), elements: open})
	}
	open.put(e)
}

// lastAbout is the last list of elements of the same set. What is no list may be what an
// element needs (the chain that it jumps to), so no element goes before it.
func (t *Tx) lastAbout(l list) *list {
	for i := len(t.ops) - 1; i >= 0 && t.ops[i].elements != nil; i-- {
		if o := t.ops[i].elements; o.set == l.set && o.tab == l.tab {
			return o
		}
	}
	return nil
}

// commentData is a comment in the form of libnftnl: type, length, text, NUL.
func commentData(s string) []byte {
	b := append(make([]byte, 0, len(s)+3), commentType, byte(len(s)+1))
	return append(append(b, s...), 0)
}

// commentType is NFTNL_UDATA_RULE_COMMENT and NFTNL_UDATA_SET_ELEM_COMMENT of
// libnftnl/udata.h.
const commentType = 0

// commentOf finds the comment in userdata.
func commentOf(data []byte) string {
	for len(data) >= 2 {
		end := 2 + int(data[1])
		if end > len(data) {
			return ""
		}
		if data[0] == commentType {
			return netlink.Text(data[2:end])
		}
		data = data[end:]
	}
	return ""
}

// nativeUint32 is how the kernel keeps numbers that never were on the wire.
func nativeUint32(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
