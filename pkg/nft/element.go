package nft

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

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
	var b []byte
	for _, p := range parts {
		b = append(b, p...)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
	}
	return Key(b)
}

func (e Element) encode(ae *netlink.AttributeEncoder) {
	nested(ae, unix.NFTA_SET_ELEM_KEY, value(e.Key).encode)
	switch {
	case e.Jump != "":
		nested(ae, unix.NFTA_SET_ELEM_DATA, verdict{unix.NFT_JUMP, e.Jump}.encode)
	case e.Data != "":
		nested(ae, unix.NFTA_SET_ELEM_DATA, value(e.Data).encode)
	}
	if e.Comment != "" {
		ae.Bytes(unix.NFTA_SET_ELEM_USERDATA, commentData(e.Comment))
	}
}

func (e *Element) decode(ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.NFTA_SET_ELEM_KEY:
		inside(ad, func(ad *netlink.AttributeDecoder) { e.Key = Key(ad.Bytes()) })
	case unix.NFTA_SET_ELEM_DATA:
		inside(ad, func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.NFTA_DATA_VALUE:
				e.Data = Key(ad.Bytes())
			case unix.NFTA_DATA_VERDICT:
				inside(ad, func(ad *netlink.AttributeDecoder) {
					if ad.Type() == unix.NFTA_VERDICT_CHAIN {
						e.Jump = ad.String()
					}
				})
			}
		})
	case unix.NFTA_SET_ELEM_USERDATA:
		e.Comment = commentOf(ad.Bytes())
	}
}

// Element reads the element of that key; its cost does not depend on how many
// others there are. A missing one, or a missing set or table, is fs.ErrNotExist.
func (c *Conn) Element(t Table, set string, k Key) (Element, error) {
	found, err := c.elements(t, set, "nft get element of "+set+" of "+t.String(), func() ([]netlink.Message, error) {
		return c.execute(request(verb{unix.NFT_MSG_GETSETELEM, 0}, t.Family, address{t, set, Element{Key: k}}.encode))
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

// Lookup reads those of the elements that exist. Its cost does not depend on how many
// others there are. A missing set or table has none.
func (c *Conn) Lookup(t Table, refs []Ref) (map[Ref]Element, error) {
	found := map[Ref]Element{}
	if len(refs) == 0 {
		return found, nil
	}
	err := c.h.Step("nft get elements of "+t.String(), func() error {
		const together = 32 // answers of so many requests fit into the socket's usual buffer
		for part := range slices.Chunk(refs, together) {
			if err := c.lookup(t, part, found); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("get elements of table %s: %w", t, err)
	}
	return found, nil
}

// lookup sends the requests in one write. Each has exactly one answer: the element,
// or that there is none.
func (c *Conn) lookup(t Table, refs []Ref, found map[Ref]Element) error {
	batch := make([]netlink.Message, len(refs))
	for i, ref := range refs {
		var err error
		batch[i], err = request(verb{unix.NFT_MSG_GETSETELEM, 0}, t.Family, address{t, ref.Set, Element{Key: ref.Key}}.encode)
		if err != nil {
			return err
		}
	}
	sent, err := c.nl.SendMessages(batch)
	if err != nil {
		return errno(err)
	}
	asked := map[uint32]Ref{}
	for i, m := range sent {
		asked[m.Header.Sequence] = refs[i]
	}
	var errs []error
	for len(asked) > 0 {
		answers, err := c.nl.Receive()
		var refused *netlink.OpError
		switch {
		case err != nil && (!errors.As(err, &refused) || refused.Sequence == 0):
			return errno(err)
		case err != nil:
			delete(asked, refused.Sequence)
			if !errors.Is(refused.Err, fs.ErrNotExist) {
				errs = append(errs, refused.Err)
			}
			continue
		}
		for _, m := range answers {
			elements, err := elementsIn(m)
			if ref, ok := asked[m.Header.Sequence]; ok && len(elements) == 1 {
				found[ref] = elements[0]
			}
			delete(asked, m.Header.Sequence)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Elements lists a set or map. A missing set or table is fs.ErrNotExist.
func (c *Conn) Elements(t Table, set string) ([]Element, error) {
	found, err := c.elements(t, set, "nft list "+set+" of "+t.String(), func() ([]netlink.Message, error) {
		return c.dump(request(verb{unix.NFT_MSG_GETSETELEM, netlink.Dump}, t.Family, func(ae *netlink.AttributeEncoder) {
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
	err = decode(body(m), func(ad *netlink.AttributeDecoder) {
		if ad.Type() != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return
		}
		inside(ad, func(ad *netlink.AttributeDecoder) {
			var e Element
			inside(ad, e.decode)
			found = append(found, e)
		})
	})
	return found, err
}
