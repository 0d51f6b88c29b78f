package nft

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/mdlayher/netlink"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/sys/unix"
)

// An Element is one element of a set or map.
type Element struct {
	Key     Key
	Data    Key    // the value in a map; it is empty in a set and in a verdict map
	Jump    string // the chain to jump to, in a verdict map
	Comment string // names the owner in at most 128 bytes
}

// A Key holds the bytes of an element's key or of its value, in the form that the kernel
// compares. A Key can be the key of a Go map.
type Key string

// Families returns the families of IP addresses, IPv4 first.
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

// Addr returns the address in a key of type ipv4_addr or ipv6_addr. It returns the zero netip.Addr for a key of another
// length.
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

// Concat returns the concatenation of keys, which nft writes as "a . b". Each part starts at a
// multiple of four bytes.
func Concat(parts ...Key) Key {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(string(p))
		b.WriteString("\x00\x00\x00"[:-len(p)&3])
	}
	return Key(b.String())
}

// Text returns the key as nft prints it. It prints bytes of a type that this package does not use, and
// names with characters that cannot be printed, as hexadecimal digits.
func (k Key) Text(keyTypes []Type) string {
	var parts []string
	rest := string(k)
	for i, t := range keyTypes {
		size := int(t.size())
		if size == 0 || size > len(rest) {
			return "0x" + hex.EncodeToString([]byte(k))
		}
		parts = append(parts, t.text(rest[:size]))
		if i < len(keyTypes)-1 {
			size = (size + 3) &^ 3
		}
		rest = rest[min(size, len(rest)):]
	}
	return strings.Join(parts, " . ")
}

// text returns one value of the type.
func (t Type) text(b string) string {
	switch t {
	case IPv4Addr, IPv6Addr:
		ip, _ := netip.AddrFromSlice([]byte(b))
		return ip.String()
	case EtherAddr:
		return types.MAC(b).String()
	case InetProto:
		return protoText(b[0])
	case InetService:
		return strconv.Itoa(int(b[0])<<8 | int(b[1]))
	case IfName:
		if name := strings.TrimRight(b, "\x00"); name == strings.Map(replaceForbidden, name) {
			return strconv.Quote(name)
		}
	}
	return "0x" + hex.EncodeToString([]byte(b))
}

// protoText returns the name of an IP protocol that host ports support, or the number of another
// protocol.
func protoText(n byte) string {
	switch n {
	case 6:
		return "tcp"
	case 17:
		return "udp"
	case 132:
		return "sctp"
	}
	return strconv.Itoa(int(n))
}

// An ElementRef refers to an element, which need not exist, by the name of the set or map and the key.
type ElementRef struct {
	Set string
	Key Key
}

// A SetElement is an element with the name of its set or map.
type SetElement struct {
	Set string
	Element
}

// Ref returns the reference to the element.
func (e SetElement) Ref() ElementRef { return ElementRef{e.Set, e.Key} }

// Lookup returns the elements at refs, in the same order. If an element, its set or the table
// does not exist, the result contains the zero Element in its place. The cost does not depend on the
// number of other elements.
//
// Lookup does not use nftables.Conn.FindSetElements, which does not distinguish a verdict from a value, and needs one
// round trip for each element that may be missing. The round trips for a hundred port mappings take 6 ms.
func (c *Conn) Lookup(t Table, refs []ElementRef) ([]Element, error) {
	const batchSize = 32 // the answers to this number of requests fit into the socket's default receive buffer
	elements := make([]Element, len(refs))
	if len(refs) == 0 {
		return elements, nil
	}
	err := c.step("nft get elements of "+t.String(), func() error {
		for start := 0; start < len(refs); start += batchSize {
			end := min(start+batchSize, len(refs))
			if err := c.getElements(t, refs[start:end], elements[start:end]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("get elements of table %s: %w", t, err)
	}
	return elements, nil
}

// getElements writes the elements at refs into elements. It sends one request per element, because the kernel ends a
// request for several elements at the first missing element. One system call sends all requests.
func (c *Conn) getElements(t Table, refs []ElementRef, elements []Element) error {
	requests := make([]netlink.Message, len(refs))
	for i, r := range refs {
		attributes, err := r.encode(t)
		if err != nil {
			return err
		}
		requests[i] = newRequest(t, netlink.Header{Type: unix.NFT_MSG_GETSETELEM}, attributes)
	}
	sent, err := c.socket.SendMessages(requests)
	if err != nil {
		return err
	}
	first, unanswered := sent[0].Header.Sequence, len(sent)
	return c.receive(func(answer netlink.Message, refusal error) (more bool, err error) {
		i := answer.Header.Sequence - first
		if i >= uint32(len(refs)) { // the answer to an earlier request
			return true, nil
		}
		unanswered--
		switch {
		case isMissing(refusal):
		case refusal != nil:
			err = refusal
		default:
			var found []Element
			if found, err = decodeElements(answer); len(found) == 1 {
				elements[i] = found[0]
			}
		}
		return unanswered > 0, err
	})
}

// isMissing reports whether err means that an element, its set or its table does not exist. The kernel returns
// EINVAL if the keys of the set are of another type. Such a set contains none of plumb's elements, because
// another program created it.
func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) }

// encode returns the attributes of the request for the element or, without a key, for all elements of the set.
func (r ElementRef) encode(t Table) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
	ae.String(unix.NFTA_SET_ELEM_LIST_SET, r.Set)
	if r.Key != "" {
		attribute := []byte(r.Key)
		for _, kind := range []uint16{unix.NFTA_DATA_VALUE, unix.NLA_F_NESTED | unix.NFTA_SET_ELEM_KEY, unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM} {
			var err error
			if attribute, err = netlink.MarshalAttributes([]netlink.Attribute{{Type: kind, Data: attribute}}); err != nil {
				return nil, err
			}
		}
		ae.Bytes(unix.NLA_F_NESTED|unix.NFTA_SET_ELEM_LIST_ELEMENTS, attribute)
	}
	return ae.Encode()
}

// Elements returns all elements of a set or map. If the set or the table does not exist, the
// error matches fs.ErrNotExist.
func (c *Conn) Elements(t Table, set string) ([]Element, error) { return c.elements(t, set, "") }

// ElementsOf returns the elements of a set or map with this comment. It decodes only the kernel's
// messages that contain the comment, which takes a third of the time of Elements.
func (c *Conn) ElementsOf(t Table, set, comment string) ([]Element, error) {
	elements, err := c.elements(t, set, comment)
	return slices.DeleteFunc(elements, func(e Element) bool { return e.Comment != comment }), err
}

// elements returns the elements in those kernel messages that contain text.
func (c *Conn) elements(t Table, set, text string) ([]Element, error) {
	return list(c, "list "+set+" of table "+t.String(), func() ([]Element, error) { return c.listElements(t, set, []byte(text)) })
}

func (c *Conn) listElements(t Table, set string, text []byte) (elements []Element, err error) {
	attributes, err := ElementRef{Set: set}.encode(t)
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

func decodeElements(answer netlink.Message) (elements []Element, err error) {
	err = eachAttribute(answer, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			eachNested(ad, func(ad *netlink.AttributeDecoder) {
				var e Element
				eachNested(ad, e.decode)
				elements = append(elements, e)
			})
		}
	})
	return elements, err
}

// decode sets the field of e that an attribute of the element contains.
func (e *Element) decode(ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.NFTA_SET_ELEM_KEY:
		eachNested(ad, func(ad *netlink.AttributeDecoder) { e.Key = Key(ad.Bytes()) })
	case unix.NFTA_SET_ELEM_DATA:
		eachNested(ad, e.decodeData)
	case unix.NFTA_SET_ELEM_USERDATA:
		e.Comment = parseComment(ad.Bytes())
	}
}

// decodeData sets e.Data if the attribute is a value, and e.Jump if it is a verdict.
func (e *Element) decodeData(ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.NFTA_DATA_VALUE:
		e.Data = Key(ad.Bytes())
	case unix.NFTA_DATA_VERDICT:
		eachNested(ad, func(ad *netlink.AttributeDecoder) {
			if ad.Type() == unix.NFTA_VERDICT_CHAIN {
				e.Jump = ad.String()
			}
		})
	}
}
