package nl

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	rawnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A message is a message of the kernel that describes an address, a route or a rule, without its netlink header. The header
// is a struct ifaddrmsg, rtmsg or fib_rule_hdr, whose first byte is the address family.
type message struct {
	header []byte
	attrs  []syscall.NetlinkRouteAttr
}

// sizeofHeader returns the size of the header of a message of the type.
func sizeofHeader(messageType uint16) int {
	if messageType < unix.RTM_NEWROUTE {
		return unix.SizeofIfAddrmsg
	}
	return unix.SizeofRtMsg // struct fib_rule_hdr has the same size
}

func parseMessage(messageType uint16, b []byte) (message, error) {
	size := sizeofHeader(messageType)
	if len(b) < size {
		return message{}, errors.New("incomplete netlink message")
	}
	attrs, err := rawnl.ParseRouteAttr(b[size:])
	return message{slices.Clone(b[:size]), attrs}, err
}

func (m message) bytes() []byte {
	b := slices.Clone(m.header)
	for _, a := range m.attrs {
		b = append(b, rawnl.NewRtAttr(int(a.Attr.Type), a.Value).Serialize()...)
	}
	return b
}

func (m message) is4() bool { return m.header[0] == unix.AF_INET }

// get returns the value of an attribute, or nil.
func (m message) get(attr uint16) []byte {
	for _, a := range m.attrs {
		if a.Attr.Type&^unix.NLA_F_NESTED == attr {
			return a.Value
		}
	}
	return nil
}

// with returns the message with another value of an attribute that it contains.
func (m message) with(attr uint16, value []byte) message {
	m.attrs = slices.Clone(m.attrs)
	for i := range m.attrs {
		if m.attrs[i].Attr.Type == attr {
			m.attrs[i].Value = value
		}
	}
	return m
}

// without returns the message without some attributes.
func (m message) without(attrs ...uint16) message {
	m.attrs = slices.DeleteFunc(slices.Clone(m.attrs), func(a syscall.NetlinkRouteAttr) bool { return slices.Contains(attrs, a.Attr.Type) })
	return m
}

// text returns the value of an attribute that is a text, or "".
func (m message) text(attr uint16) string { return strings.TrimRight(string(m.get(attr)), "\x00") }

// number returns the value of an attribute that is a number of four bytes, or zero.
func (m message) number(attr uint16) int { return number(m.get(attr)) }

// number returns the number in the first four bytes of a value, or zero if it is shorter.
func number(b []byte) int {
	if len(b) < 4 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(b))
}

// prefix returns the value of an attribute that is an address, or the unspecified address, with a number of bits.
func (m message) prefix(attr uint16, bits byte) netip.Prefix {
	a := ipAddr(m.get(attr))
	if !a.IsValid() {
		a = netip.IPv6Unspecified()
		if m.is4() {
			a = netip.IPv4Unspecified()
		}
	}
	return netip.PrefixFrom(a, int(bits))
}

// table returns the table of a route or a rule.
func (m message) table() int {
	if table := m.number(unix.RTA_TABLE); table != 0 { // FRA_TABLE has the same number
		return table
	}
	return int(m.header[4])
}

// listMessages sends a request for a list of addresses, routes or rules.
func (c *Conn) listMessages(what string, req *rawnl.NetlinkRequest) ([]message, error) {
	return query(c, "list "+what, func() (list []message, err error) {
		answer := req.Type - unix.RTM_GETLINK + unix.RTM_NEWLINK
		answers, err := c.execute(req, answer)
		for _, b := range answers {
			m, parseErr := parseMessage(answer, b)
			if err = errors.Join(err, parseErr); parseErr == nil {
				list = append(list, m)
			}
		}
		return list, err
	})
}

func listAddrsRequest(l Link) *rawnl.NetlinkRequest {
	req := rawnl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	req.AddData(&rawnl.IfAddrmsg{IfAddrmsg: unix.IfAddrmsg{Index: uint32(l.Index)}})
	return req
}

func listRoutesRequest(l Link, family int) *rawnl.NetlinkRequest {
	req := rawnl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
	req.AddData(&rawnl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family)}})
	req.AddData(rawnl.NewRtAttr(unix.RTA_OIF, rawnl.Uint32Attr(uint32(l.Index))))
	return req
}

func listRulesRequest(family int) *rawnl.NetlinkRequest {
	req := rawnl.NewNetlinkRequest(unix.RTM_GETRULE, unix.NLM_F_DUMP)
	req.AddData(&rawnl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family)}}) // struct fib_rule_hdr has the same size
	return req
}

// sendMessage sends a message as a request to add or delete what it describes.
func (c *Conn) sendMessage(step string, messageType uint16, flags int, m message) error {
	return c.step(step, func() error {
		req := rawnl.NewNetlinkRequest(int(messageType), flags|unix.NLM_F_ACK)
		req.AddRawData(m.bytes())
		_, err := c.execute(req, 0)
		return err
	})
}
