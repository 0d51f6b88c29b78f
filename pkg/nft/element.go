package nft

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// An Element is one element of a set or map.
type Element struct {
	Key     Key
	Data    Key    // the value of the key in a map; empty in a set and in a verdict map
	Jump    string // in a verdict map: the chain to jump to
	Comment string // names the owner; at most MaxComment bytes
}

// A Key holds the bytes of an element's key or of its value, in the form that the kernel
// compares. A Key can be the key of a Go map.
type Key string

// Families returns the families that an address can have, IPv4 first.
func Families() []Family { return []Family{IPv4, IPv6} }

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// AddrKey returns an address as a key of type ipv4_addr or ipv6_addr.
func AddrKey(a netip.Addr) Key { return Key(a.Unmap().AsSlice()) }

// Addr returns the address in a key of type ipv4_addr or ipv6_addr.
func (k Key) Addr() netip.Addr {
	a, _ := netip.AddrFromSlice([]byte(k))
	return a
}

// MACKey returns a MAC address as a key of type ether_addr.
func MACKey(m types.MAC) Key { return Key(m.Bytes()) }

// IfNameKey returns an interface name as a key of type ifname.
func IfNameKey(name string) Key {
	var b [unix.IFNAMSIZ]byte
	copy(b[:unix.IFNAMSIZ-1], name)
	return Key(b[:])
}

// ProtoKey returns the number of an IP protocol as a key of type inet_proto.
func ProtoKey(proto uint8) Key { return Key([]byte{proto}) }

// PortKey returns a port as a key of type inet_service.
func PortKey(port uint16) Key { return Key([]byte{byte(port >> 8), byte(port)}) }

// Concat returns the concatenation of keys, "a . b" in nft: each part begins at a multiple of
// four bytes.
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

// An ElementRef says where an element is or would be: the name of the set or map, and the key.
type ElementRef struct {
	Set string
	Key Key
}

// A SetElement is an element with the set or map that it is in.
type SetElement struct {
	Set string
	Element
}

// Ref returns where the element is.
func (e SetElement) Ref() ElementRef { return ElementRef{e.Set, e.Key} }

// Lookup returns the elements at refs, in the same order. If an element, its set or the table
// does not exist, the result has the zero Element in its place. The cost does not depend on the
// number of other elements.
//
// nftables.Conn.FindSetElements needs one round trip for each element that may be missing,
// which takes 6 ms for a hundred port mappings, and does not distinguish a verdict from a value.
func (c *Conn) Lookup(t Table, refs []ElementRef) ([]Element, error) {
	elements := make([]Element, len(refs))
	if len(refs) == 0 {
		return elements, nil
	}
	err := c.step("nft get elements of "+t.String(), func() error { return c.lookup(t, refs, elements) })
	if err != nil {
		return nil, fmt.Errorf("get elements of table %s: %w", t, err)
	}
	return elements, nil
}

// lookup writes the elements at refs into elements. The kernel ends a request for many elements
// at the first that is missing. The elements after that one are requested again, each on its
// own.
func (c *Conn) lookup(t Table, refs []ElementRef, elements []Element) error {
	const chunkSize = 32 // the answers for that many elements fit into the socket's default receive buffer
	indexes := make([]int, len(refs))
	for i := range indexes {
		indexes[i] = i
	}
	for _, keysPerRequest := range []int{chunkSize, 1} {
		var unanswered []int
		for chunk := range slices.Chunk(indexes, chunkSize) {
			skipped, err := c.getElements(t, newElementQueries(refs, chunk, keysPerRequest), elements)
			if err != nil {
				return err
			}
			unanswered = append(unanswered, skipped...)
		}
		indexes = unanswered
	}
	return nil
}

// An elementQuery is one request for elements of one set.
type elementQuery struct {
	set      string
	keys     []Key
	indexes  []int // for each key: the index of the element in the result of Lookup
	answered int   // the number of elements that were received
}

// newElementQueries returns queries for refs at these indexes, with at most maxKeys keys each.
func newElementQueries(refs []ElementRef, indexes []int, maxKeys int) []*elementQuery {
	var queries []*elementQuery
	for _, i := range indexes {
		at := slices.IndexFunc(queries, func(q *elementQuery) bool { return q.set == refs[i].Set && len(q.keys) < maxKeys })
		if at < 0 {
			at = len(queries)
			queries = append(queries, &elementQuery{set: refs[i].Set})
		}
		queries[at].keys = append(queries[at].keys, refs[i].Key)
		queries[at].indexes = append(queries[at].indexes, i)
	}
	return queries
}

// getElements sends the queries and writes the answers into elements. It
// returns the indexes of the elements that the kernel did not look up, because an element
// before them in the same query is missing.
func (c *Conn) getElements(t Table, queries []*elementQuery, elements []Element) (unanswered []int, err error) {
	pending, err := c.sendQueries(t, queries)
	if err != nil {
		return nil, err
	}
	err = c.receive(func(answer netlink.Message, refusal error) (more bool, err error) {
		q := pending[answer.Header.Sequence]
		switch {
		case q == nil: // the answer to an earlier request
			return true, nil
		case isMissing(refusal):
			unanswered = append(unanswered, q.indexes[q.answered+1:]...)
			delete(pending, answer.Header.Sequence)
			return len(pending) > 0, nil
		case refusal != nil:
			return false, refusal
		}
		err = q.storeAnswer(answer, elements)
		if q.answered == len(q.indexes) {
			delete(pending, answer.Header.Sequence)
		}
		return len(pending) > 0, err
	})
	return unanswered, err
}

// sendQueries sends the queries in one system call. It returns a map from the sequence number of each
// request to its query.
func (c *Conn) sendQueries(t Table, queries []*elementQuery) (map[uint32]*elementQuery, error) {
	requests := make([]netlink.Message, len(queries))
	for i, q := range queries {
		attributes, err := q.encode(t)
		if err != nil {
			return nil, err
		}
		requests[i] = newRequest(t, netlink.Header{Type: unix.NFT_MSG_GETSETELEM}, attributes)
	}
	requests, err := c.socket.SendMessages(requests)
	if err != nil {
		return nil, err
	}
	sent := make(map[uint32]*elementQuery, len(requests))
	for i, request := range requests {
		sent[request.Header.Sequence] = queries[i]
	}
	return sent, nil
}

// isMissing reports whether err says that an element, its set or its table does not exist. The
// kernel returns EINVAL if the keys of the set have another type. Such a set was made by another
// program, so plumb has no element in it.
func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) }

// encode returns the attributes of the request. A query without keys is for all elements.
func (q *elementQuery) encode(t Table) ([]byte, error) {
	attributes := []netlink.Attribute{
		{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: []byte(t.Name + "\x00")},
		{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: []byte(q.set + "\x00")},
	}
	var keys []netlink.Attribute
	for _, k := range q.keys {
		key, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_DATA_VALUE, Data: []byte(k)}})
		if err != nil {
			return nil, err
		}
		element, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_SET_ELEM_KEY | unix.NLA_F_NESTED, Data: key}})
		if err != nil {
			return nil, err
		}
		keys = append(keys, netlink.Attribute{Type: unix.NFTA_LIST_ELEM | unix.NLA_F_NESTED, Data: element})
	}
	if keys == nil {
		return netlink.MarshalAttributes(attributes)
	}
	list, err := netlink.MarshalAttributes(keys)
	if err != nil {
		return nil, err
	}
	return netlink.MarshalAttributes(append(attributes, netlink.Attribute{Type: unix.NFTA_SET_ELEM_LIST_ELEMENTS | unix.NLA_F_NESTED, Data: list}))
}

// storeAnswer writes the elements of an answer to their indexes in elements.
func (q *elementQuery) storeAnswer(answer netlink.Message, elements []Element) error {
	received, err := decodeElements(answer)
	for _, e := range received {
		if q.answered < len(q.indexes) {
			elements[q.indexes[q.answered]] = e
			q.answered++
		}
	}
	return err
}

// Elements returns all elements of a set or map. If the set or the table does not exist, the
// error matches fs.ErrNotExist.
func (c *Conn) Elements(t Table, set string) ([]Element, error) { return c.elements(t, set, "") }

// ElementsOf returns the elements of a set or map that have the comment. It decodes only the kernel's messages that contain
// the comment, which takes a third of the time of Elements.
func (c *Conn) ElementsOf(t Table, set, comment string) ([]Element, error) {
	elements, err := c.elements(t, set, comment)
	return slices.DeleteFunc(elements, func(e Element) bool { return e.Comment != comment }), err
}

// elements returns the elements in the messages of the kernel that contain text.
func (c *Conn) elements(t Table, set, text string) (elements []Element, err error) {
	err = c.step("nft list "+set+" of "+t.String(), func() error {
		return c.listConsistently(func() (err error) {
			elements, err = c.listElements(t, set, []byte(text))
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list %s of table %s: %w", set, t, err)
	}
	return elements, nil
}

func (c *Conn) listElements(t Table, set string, text []byte) (elements []Element, err error) {
	attributes, err := (&elementQuery{set: set}).encode(t)
	if err != nil {
		return nil, err
	}
	answers, err := c.socket.Execute(newRequest(t, netlink.Header{Type: unix.NFT_MSG_GETSETELEM, Flags: netlink.Dump}, attributes))
	for _, answer := range answers {
		if !bytes.Contains(answer.Data, text) {
			continue
		}
		received, decodeErr := decodeElements(answer)
		elements, err = append(elements, received...), errors.Join(err, decodeErr)
	}
	return elements, err
}

// decodeElements returns the elements in an answer.
func decodeElements(answer netlink.Message) (elements []Element, err error) {
	err = eachAttribute(answer, func(ad *netlink.AttributeDecoder) {
		if ad.Type() != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return
		}
		ad.Nested(func(ad *netlink.AttributeDecoder) error {
			for ad.Next() {
				var e Element
				ad.Nested(e.decode)
				elements = append(elements, e)
			}
			return nil
		})
	})
	return elements, err
}

// decode sets e from the attributes of an element.
func (e *Element) decode(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_SET_ELEM_KEY:
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					e.Key = Key(ad.Bytes())
				}
				return nil
			})
		case unix.NFTA_SET_ELEM_DATA:
			ad.Nested(e.decodeData)
		case unix.NFTA_SET_ELEM_USERDATA:
			e.Comment = parseComment(ad.Bytes())
		}
	}
	return nil
}

// decodeData sets e.Data if the attributes are a value, and e.Jump if they are a verdict.
func (e *Element) decodeData(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_DATA_VALUE:
			e.Data = Key(ad.Bytes())
		case unix.NFTA_DATA_VERDICT:
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					if ad.Type() == unix.NFTA_VERDICT_CHAIN {
						e.Jump = ad.String()
					}
				}
				return nil
			})
		}
	}
	return nil
}
