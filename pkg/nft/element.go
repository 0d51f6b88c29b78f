package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/pkg/netlink"
	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// An Element is one element of a set or map.
type Element struct {
	Key     Key
	Data    Key    // what a map gives for the key; empty in a set and in a verdict map
	Jump    string // in a verdict map: the chain to jump to
	Comment string // who owns it; at most MaxComment bytes
}

// A Key is a value in the form that the kernel compares, usable as the key of a Go
// map.
type Key string

// AddrKey is an ipv4_addr or ipv6_addr.
func AddrKey(a netip.Addr) Key { return Key(a.Unmap().AsSlice()) }

// Addr is the address that AddrKey made a key of.
func (k Key) Addr() netip.Addr {
	a, _ := netip.AddrFromSlice([]byte(k))
	return a
}

// MACKey is an ether_addr.
func MACKey(m types.MAC) Key { return Key(m.Bytes()) }

// IfNameKey is an ifname.
func IfNameKey(name string) Key {
	var b [unix.IFNAMSIZ]byte
	copy(b[:unix.IFNAMSIZ-1], name)
	return Key(b[:])
}

// ProtoKey is an inet_proto.
func ProtoKey(proto uint8) Key { return Key([]byte{proto}) }

// PortKey is an inet_service.
func PortKey(port uint16) Key { return Key([]byte{byte(port >> 8), byte(port)}) }

// Concat is a concatenation, "a . b" in nft.
func Concat(parts ...Key) Key {
	size := 0
	for _, p := range parts {
		size += (len(p) + 3) &^ 3
	}
	var b strings.Builder
	b.Grow(size)
	for _, p := range parts {
		b.WriteString(string(p))
		for b.Len()%4 != 0 {
			b.WriteByte(0)
		}
	}
	return Key(b.String())
}

// A list is elements of one set in the form of a message: the kernel takes as many in
// one as there is room for, makes of them what the message says in their order, and
// stops at the first that it refuses.
type list struct {
	verb     verb
	tab      Table
	set      string
	elements []byte // attributes NFTA_LIST_ELEM
}

// maxList is at how many bytes a list is full: the length of the attribute that holds it
// has 16 bits, and an element less than half of that.
const maxList = 32 << 10

func (l *list) put(e Element) {
	l.elements, _ = netlink.Encode(l.elements, binary.BigEndian, func(w *netlink.Encoder) { // too short to fail
		w.Nested(unix.NFTA_LIST_ELEM, e.encode)
	})
}

func (l *list) message() netlink.Message {
	body, _ := netlink.Encode(nfgenmsg(l.tab.Family, 0), binary.BigEndian, func(w *netlink.Encoder) { // too short to fail
		w.String(unix.NFTA_SET_ELEM_LIST_TABLE, l.tab.Name)
		w.String(unix.NFTA_SET_ELEM_LIST_SET, l.set)
		w.Bytes(unix.NFTA_SET_ELEM_LIST_ELEMENTS|unix.NLA_F_NESTED, l.elements)
	})
	return message(l.verb, body)
}

func (e Element) encode(w *netlink.Encoder) {
	w.Nested(unix.NFTA_SET_ELEM_KEY, value(e.Key).encode)
	switch {
	case e.Jump != "":
		w.Nested(unix.NFTA_SET_ELEM_DATA, verdict{unix.NFT_JUMP, e.Jump}.encode)
	case e.Data != "":
		w.Nested(unix.NFTA_SET_ELEM_DATA, value(e.Data).encode)
	}
	if e.Comment != "" {
		w.Bytes(unix.NFTA_SET_ELEM_USERDATA, commentData(e.Comment))
	}
}

// decode reads the attributes of an element.
func (e *Element) decode(b []byte) error {
	d := netlink.Decode(b, binary.BigEndian)
	for d.Next() {
		switch d.Kind() {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key = Key(within(d.Bytes(), unix.NFTA_DATA_VALUE))
		case unix.NFTA_SET_ELEM_DATA:
			e.Data = Key(within(d.Bytes(), unix.NFTA_DATA_VALUE))
			e.Jump = netlink.Text(within(within(d.Bytes(), unix.NFTA_DATA_VERDICT), unix.NFTA_VERDICT_CHAIN))
		case unix.NFTA_SET_ELEM_USERDATA:
			e.Comment = commentOf(d.Bytes())
		}
	}
	return d.Err()
}

// within is the value of the first attribute of that kind; nil: there is none.
func within(b []byte, kind uint16) []byte {
	for d := netlink.Decode(b, binary.BigEndian); d.Next(); {
		if d.Kind() == kind {
			return d.Bytes()
		}
	}
	return nil
}

// Element reads the element of that key; its cost does not depend on how many
// others there are. A missing one, or a missing set or table, is fs.ErrNotExist.
func (c *Conn) Element(t Table, set string, k Key) (Element, error) {
	found, err := c.elements(t, set, "nft get element of "+set+" of "+t.String(), func() ([]netlink.Message, error) {
		asked := list{verb: getElements, tab: t, set: set}
		asked.put(Element{Key: k})
		return c.execute(asked.message(), nil)
	})
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("asked for one element, got %d", len(found))
	}
	if err != nil {
		return Element{}, fmt.Errorf("get element of %s of table %s: %w", set, t, err)
	}
	return found[0], nil
}

// A Ref is where an element is, if it is.
type Ref struct {
	Set string
	Key Key
}

// Lookup reads the elements, in the order of refs; one that does not exist, as in a set
// or table that is missing, has no key. Its cost does not depend on how many others
// there are.
func (c *Conn) Lookup(t Table, refs []Ref) ([]Element, error) {
	found := make([]Element, len(refs))
	if len(refs) == 0 {
		return found, nil
	}
	err := c.h.Step("nft get elements of "+t.String(), func() error {
		asked := make([]int, len(refs))
		for i := range asked {
			asked[i] = i
		}
		// One request for many elements ends with the first that is missing. Those behind
		// it are asked for one by one.
		const together = 32 // answers of so many fit into the socket's usual buffer
		for _, most := range []int{together, 1} {
			var behind []int
			for some := range slices.Chunk(asked, together) {
				more, err := c.ask(questions(t, refs, some, most), found)
				if err != nil {
					return err
				}
				behind = append(behind, more...)
			}
			asked = behind
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("get elements of table %s: %w", t, err)
	}
	return found, nil
}

// A question asks for elements of one set in one request.
type question struct {
	list
	asked []int // where in the answer of Lookup each element goes
	read  int   // how many came
}

// questions ask for the elements that asked has the places of, at most so many each.
func questions(t Table, refs []Ref, asked []int, most int) []*question {
	var all []*question
	for _, i := range asked {
		at := slices.IndexFunc(all, func(q *question) bool { return q.set == refs[i].Set && len(q.asked) < most })
		if at < 0 {
			at = len(all)
			all = append(all, &question{list: list{verb: getElements, tab: t, set: refs[i].Set}})
		}
		all[at].put(Element{Key: refs[i].Key})
		all[at].asked = append(all[at].asked, i)
	}
	return all
}

// getElements has one answer an element, until one is missing: fs.ErrNotExist.
var getElements = verb{unix.NFT_MSG_GETSETELEM, 0}

// ask sends the questions in one write, and gives the places of what was asked for
// behind a missing element.
func (c *Conn) ask(questions []*question, found []Element) (behind []int, err error) {
	batch := make([]netlink.Message, len(questions))
	for i, q := range questions {
		batch[i] = q.message()
	}
	if err := c.nl.Send(batch); err != nil {
		return nil, err
	}
	open := make(map[uint32]*question, len(batch))
	for i, m := range batch {
		open[m.Sequence] = questions[i]
	}
	var errs []error
	for len(open) > 0 {
		answers, err := c.nl.Receive()
		if err != nil {
			return nil, err
		}
		for _, m := range answers {
			q, done := open[m.Sequence], true
			err := errno(m.Err())
			switch {
			case q == nil: // an answer to nothing
			case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EINVAL): // of keys of another type: a foreign set
				behind = append(behind, q.behind()...)
			case err != nil:
				errs = append(errs, err)
			default:
				done, err = q.take(m, found)
				errs = append(errs, err)
			}
			if done {
				delete(open, m.Sequence)
			}
		}
	}
	return behind, errors.Join(errs...)
}

// take puts an answer in its place; done: it was the last.
func (q *question) take(m netlink.Message, found []Element) (done bool, err error) {
	elements, err := elementsIn(m)
	if len(elements) == 1 {
		found[q.asked[q.read]] = elements[0]
	}
	q.read++
	return q.read == len(q.asked), err
}

// behind are the places of what was asked for behind the element that is missing.
func (q *question) behind() []int { return q.asked[q.read+1:] }

// Elements lists a set or map. A missing set or table is fs.ErrNotExist.
func (c *Conn) Elements(t Table, set string) ([]Element, error) {
	found, err := c.elements(t, set, "nft list "+set+" of "+t.String(), func() ([]netlink.Message, error) {
		return c.dump(request(verb{unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP}, t.Family, func(ae *netlink.Encoder) {
			ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
			ae.String(unix.NFTA_SET_ELEM_LIST_SET, set)
		}))
	})
	if err != nil {
		return nil, fmt.Errorf("list %s of table %s: %w", set, t, err)
	}
	return found, nil
}

func (c *Conn) elements(t Table, set, step string, ask func() ([]netlink.Message, error)) ([]Element, error) {
	var found []Element
	err := c.h.Step(step, func() error {
		answers, err := ask()
		for _, m := range answers {
			elements, derr := elementsIn(m)
			found, err = append(found, elements...), errors.Join(err, derr)
		}
		return err
	})
	return found, err
}

// elementsIn reads the elements that an answer lists.
func elementsIn(m netlink.Message) (found []Element, err error) {
	var errs []error
	d := netlink.Decode(within(body(m), unix.NFTA_SET_ELEM_LIST_ELEMENTS), binary.BigEndian)
	for d.Next() {
		var e Element
		errs = append(errs, e.decode(d.Bytes()))
		found = append(found, e)
	}
	return found, errors.Join(append(errs, d.Err())...)
}
