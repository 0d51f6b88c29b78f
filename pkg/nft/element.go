package nft

import (
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

// A Ref is where an element is, if it is.
type Ref struct {
	Set string
	Key Key
}

// Lookup reads the elements, in the order of refs; one that does not exist, as in a set
// or table that is missing, has no key. Its cost does not depend on how many others
// there are.
//
// It does not use nftables.Conn.FindSetElements: that is one round trip for each element
// that may be missing, which costs a hundred port mappings 6 ms, and it does not tell a
// verdict from a value.
func (c *Conn) Lookup(t Table, refs []Ref) ([]Element, error) {
	found := make([]Element, len(refs))
	if len(refs) == 0 {
		return found, nil
	}
	err := c.step("nft get elements of "+t.String(), func() error {
		places := make([]int, len(refs))
		for i := range places {
			places[i] = i
		}
		// One request for many elements ends with the first that is missing. Those after it
		// are asked for one by one.
		const together = 32 // answers of so many fit into the socket's usual buffer
		for _, most := range []int{together, 1} {
			var unknown []int
			for some := range slices.Chunk(places, together) {
				more, err := c.ask(queries(refs, some, most), t, found)
				if err != nil {
					return err
				}
				unknown = append(unknown, more...)
			}
			places = unknown
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("get elements of table %s: %w", t, err)
	}
	return found, nil
}

// A query asks for elements of one set in one request.
type query struct {
	set    string
	keys   []Key
	places []int // where each element goes in the answer of Lookup
	read   int   // how many elements have come
}

// queries returns requests for the elements at these places of refs, with most elements at
// most in each.
func queries(refs []Ref, places []int, most int) []*query {
	var all []*query
	for _, i := range places {
		at := slices.IndexFunc(all, func(q *query) bool { return q.set == refs[i].Set && len(q.keys) < most })
		if at < 0 {
			at = len(all)
			all = append(all, &query{set: refs[i].Set})
		}
		all[at].keys = append(all[at].keys, refs[i].Key)
		all[at].places = append(all[at].places, i)
	}
	return all
}

// ask sends the queries in one write. It returns the places after a missing element.
func (c *Conn) ask(queries []*query, t Table, found []Element) (unknown []int, err error) {
	batch := make([]netlink.Message, len(queries))
	for i, q := range queries {
		attributes, err := q.encode(t)
		if err != nil {
			return nil, err
		}
		batch[i] = message(t, netlink.Header{Type: unix.NFT_MSG_GETSETELEM}, attributes)
	}
	if batch, err = c.raw.SendMessages(batch); err != nil {
		return nil, err
	}
	open := make(map[uint32]*query, len(batch))
	for i, m := range batch {
		open[m.Header.Sequence] = queries[i]
	}
	err = c.receive(func(m netlink.Message, no error) (more bool, err error) {
		q := open[m.Header.Sequence]
		switch {
		case q == nil: // the answer to an earlier request
			return true, nil
		case missing(no):
			unknown = append(unknown, q.places[q.read+1:]...)
			delete(open, m.Header.Sequence)
			return len(open) > 0, nil
		case no != nil:
			return false, no
		}
		err = q.take(m, found)
		if q.read == len(q.places) {
			delete(open, m.Header.Sequence)
		}
		return len(open) > 0, err
	})
	return unknown, err
}

// missing reports whether the error says that an element, or what it is in, does not
// exist. EINVAL is for keys of another type: a set that is not plumb's.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) }

// encode returns the attributes of the request.
func (q *query) encode(t Table) ([]byte, error) {
	all := []netlink.Attribute{
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
		return netlink.MarshalAttributes(all)
	}
	list, err := netlink.MarshalAttributes(keys)
	if err != nil {
		return nil, err
	}
	return netlink.MarshalAttributes(append(all, netlink.Attribute{Type: unix.NFTA_SET_ELEM_LIST_ELEMENTS | unix.NLA_F_NESTED, Data: list}))
}

// take puts the elements of an answer in their places.
func (q *query) take(m netlink.Message, found []Element) error {
	elements, err := elementsIn(m)
	for _, e := range elements {
		if q.read < len(q.places) {
			found[q.places[q.read]] = e
		}
		q.read++
	}
	return err
}

// Elements lists a set or map. A missing set or table is fs.ErrNotExist.
func (c *Conn) Elements(t Table, set string) (found []Element, err error) {
	err = c.step("nft list "+set+" of "+t.String(), func() error {
		return c.consistently(func() error {
			all, err := (&query{set: set}).encode(t)
			if err != nil {
				return err
			}
			answers, err := c.raw.Execute(message(t, netlink.Header{Type: unix.NFT_MSG_GETSETELEM, Flags: netlink.Dump}, all))
			found = nil
			for _, m := range answers {
				elements, derr := elementsIn(m)
				found, err = append(found, elements...), errors.Join(err, derr)
			}
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list %s of table %s: %w", set, t, err)
	}
	return found, nil
}

// elementsIn returns the elements that an answer lists.
func elementsIn(m netlink.Message) (found []Element, err error) {
	err = attributes(m.Data[min(len(m.Data), nfgenmsg):], func(ad *netlink.AttributeDecoder) {
		if ad.Type() != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return
		}
		ad.Nested(func(ad *netlink.AttributeDecoder) error {
			for ad.Next() {
				var e Element
				ad.Nested(e.decode)
				found = append(found, e)
			}
			return nil
		})
	})
	return found, err
}

// decode reads the attributes of an element.
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
			e.Comment = commentOf(ad.Bytes())
		}
	}
	return nil
}

// decodeData reads a value or a verdict.
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
