package nl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/pkg/netlink"
	"github.com/plumb-cni/plumb/pkg/ns"
	"golang.org/x/sys/unix"
)

// A Flow says which connections are meant. Zero fields match any.
type Flow struct {
	Proto     uint8      // unix.IPPROTO_UDP, …; ports need one
	OrigSrc   netip.Addr // who began it
	OrigDst   netip.Addr // whom it was addressed to, before any translation
	OrigPort  uint16     // the port it was addressed to
	ReplySrc  netip.Addr // who answers, after translation
	ReplyPort uint16     // the port that answers
}

func (f Flow) String() string {
	s := "proto " + fmt.Sprint(f.Proto)
	for _, side := range []struct {
		name string
		addr netip.Addr
		port uint16
	}{{"src", f.OrigSrc, 0}, {"dst", f.OrigDst, f.OrigPort}, {"answered by", f.ReplySrc, f.ReplyPort}} {
		if side.addr.IsValid() {
			s += " " + side.name + " " + side.addr.String()
		}
		if side.port != 0 {
			s += fmt.Sprintf(" %s port %d", side.name, side.port)
		}
	}
	return s
}

// Attributes and flags of linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGet            = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1 // IPCTNL_MSG_CT_GET
	ctDelete         = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2 // IPCTNL_MSG_CT_DELETE
	nfgenmsgLen      = 4
	ctaTupleOrig     = 1
	ctaTupleReply    = 2
	ctaID            = 12
	ctaFilter        = 25
	ctaFilterOrig    = 1
	ctaFilterReply   = 2
	ctaTupleIP       = 1
	ctaTupleProto    = 2
	ctaIPv4Src       = 1
	ctaIPv4Dst       = 2
	ctaIPv6Src       = 3
	ctaIPv6Dst       = 4
	ctaProtoNum      = 1
	ctaProtoSrcPort  = 2
	ctaProtoDstPort  = 3
	filterIPSrc      = 1 << 0
	filterIPDst      = 1 << 1
	filterProtoNum   = 1 << 3
	filterProtoSport = 1 << 4
	filterProtoDport = 1 << 5
)

// fewFlows is how many flows of a family are worth a filter in the kernel each. There
// every one is a walk through the whole table, of a millisecond where that is empty; a
// list is one walk for all of them.
const fewFlows = 4

// FlushFlows makes the kernel forget the connections. A few flows are left to filters in
// the kernel where those can be relied on (exactly), and nothing is listed; others are
// looked for in one list a family. Nothing to forget is no error, and neither is a kernel
// without connection tracking.
func FlushFlows(h *ns.Handle, flows ...Flow) error {
	if len(flows) == 0 {
		return nil
	}
	var c *netlink.Conn
	err := inside(h, "open conntrack socket", func() (err error) {
		c, err = netlink.Dial(unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil && c != nil {
		err = errors.Join(err, c.Close())
	}
	if err != nil {
		return wrap("open conntrack socket", err)
	}
	var errs []error
	for _, fam := range []byte{unix.AF_INET, unix.AF_INET6} {
		of := slices.DeleteFunc(slices.Clone(flows), func(f Flow) bool { return !slices.Contains(f.families(), fam) })
		flushed, err := flushFew(h, c, of)
		errs = append(errs, err)
		if !flushed {
			const step = "list conntrack and delete"
			errs = append(errs, wrap(step, h.Step(step, func() error { return flushListed(c, fam, of) })))
		}
	}
	return errors.Join(append(errs, c.Close())...)
}

// flushFew deletes the flows of one family by filters, if they are few and filters can
// do it for all of them: with a list for one, the others cost nothing.
func flushFew(h *ns.Handle, c *netlink.Conn, flows []Flow) (flushed bool, err error) {
	if len(flows) > fewFlows || slices.ContainsFunc(flows, func(f Flow) bool { return !f.exactly() }) {
		return false, nil
	}
	var errs []error
	for _, f := range flows {
		flushed := false
		step := "flush conntrack " + f.String()
		errs = append(errs, wrap(step, h.Step(step, func() (err error) {
			flushed, err = f.flush(c)
			return err
		})))
		if !flushed {
			return false, errors.Join(errs...)
		}
	}
	return true, errors.Join(errs...)
}

// exactly reports whether the filter of every kernel that has one does what it is
// asked. It does not for IPv6: there it takes the addresses that differ (in
// ctnetlink_filter_match_tuple, since cb8aa9a3affb, kernel 5.8; still in 6.18). It needs an
// address, and knows ports of TCP and UDP only.
func (f Flow) exactly() bool {
	families := f.families()
	return len(families) == 1 && families[0] == unix.AF_INET &&
		(f.Proto == 0 || f.Proto == unix.IPPROTO_TCP || f.Proto == unix.IPPROTO_UDP)
}

// families are those that connections of the flow can be of.
func (f Flow) families() []byte {
	for _, a := range []netip.Addr{f.OrigSrc, f.OrigDst, f.ReplySrc} {
		if a.IsValid() {
			return []byte{family(a)}
		}
	}
	return []byte{unix.AF_INET, unix.AF_INET6}
}

// flush deletes by a filter in the kernel (CTA_FILTER in a deletion, kernel 6.11). To an
// older one the filter's tuples are those of one connection, and not even whole.
func (f Flow) flush(c *netlink.Conn) (flushed bool, err error) {
	body, err := f.request()
	if err != nil {
		return true, err
	}
	err = deleteFlow(c, body)
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT):
		return true, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOENT):
		return false, nil
	}
	return true, err
}

func deleteFlow(c *netlink.Conn, body []byte) error {
	_, err := c.Execute(netlink.Message{Kind: ctDelete, Flags: unix.NLM_F_REQUEST | unix.NLM_F_ACK, Body: body})
	return err
}

// flushListed deletes the connections of the flows from a list of all of the family.
func flushListed(c *netlink.Conn, fam byte, flows []Flow) error {
	var errs []error
	var found [][]byte
	wanted := newFlowSet(flows)
	err := c.Each(netlink.Message{
		Kind: ctGet, Flags: unix.NLM_F_REQUEST | unix.NLM_F_DUMP, Body: []byte{fam, unix.NFNETLINK_V0, 0, 0},
	}, func(m netlink.Message) {
		body, err := deletion(m.Body, wanted)
		switch {
		case err != nil:
			errs = append(errs, err)
		case body != nil:
			found = append(found, body)
		}
	})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil
	}
	errs = append(errs, err)
	for _, body := range found {
		if err := deleteFlow(c, body); !errors.Is(err, unix.ENOENT) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// deletion makes a request of a listed connection that names it alone; nil: it is none
// that is wanted.
func deletion(listed []byte, wanted flowSet) ([]byte, error) {
	if len(listed) < nfgenmsgLen {
		return nil, fmt.Errorf("conntrack message of %d bytes", len(listed))
	}
	ad := netlink.Decode(listed[nfgenmsgLen:], binary.BigEndian)
	var orig, reply tuple
	var raw, id []byte
	for ad.Next() {
		switch ad.Kind() {
		case ctaTupleOrig:
			raw = ad.Bytes()
			ad.Nested(orig.decode)
		case ctaTupleReply:
			ad.Nested(reply.decode)
		case ctaID:
			id = ad.Bytes()
		}
	}
	have := Flow{Proto: orig.proto, OrigSrc: orig.src, OrigDst: orig.dst, OrigPort: orig.dport, ReplySrc: reply.src, ReplyPort: reply.sport}
	if err := ad.Err(); err != nil || !wanted.has(have) {
		return nil, err
	}
	return linkBody(listed[:nfgenmsgLen:nfgenmsgLen], func(ae *netlink.Encoder) {
		ae.Bytes(ctaTupleOrig|unix.NLA_F_NESTED, raw)
		ae.Bytes(ctaID, id)
	})
}

// A shape is which fields of a flow are set, a bit each.
type shape uint8

const (
	hasProto shape = 1 << iota
	hasOrigSrc
	hasOrigDst
	hasOrigPort
	hasReplySrc
	hasReplyPort
)

// flowFields copies each field of a flow by itself.
var flowFields = []struct {
	bit  shape
	copy func(to *Flow, from Flow)
}{
	{hasProto, func(to *Flow, from Flow) { to.Proto = from.Proto }},
	{hasOrigSrc, func(to *Flow, from Flow) { to.OrigSrc = from.OrigSrc }},
	{hasOrigDst, func(to *Flow, from Flow) { to.OrigDst = from.OrigDst }},
	{hasOrigPort, func(to *Flow, from Flow) { to.OrigPort = from.OrigPort }},
	{hasReplySrc, func(to *Flow, from Flow) { to.ReplySrc = from.ReplySrc }},
	{hasReplyPort, func(to *Flow, from Flow) { to.ReplyPort = from.ReplyPort }},
}

func (f Flow) shape() (s shape) {
	for _, field := range flowFields {
		var alone Flow
		if field.copy(&alone, f); alone != (Flow{}) {
			s |= field.bit
		}
	}
	return s
}

// in is the flow without the fields that are not in the shape.
func (f Flow) in(s shape) (part Flow) {
	for _, field := range flowFields {
		if s&field.bit != 0 {
			field.copy(&part, f)
		}
	}
	return part
}

// A flowSet finds out whether a connection is one of many flows at the cost of a look-up
// for each shape that they have, which are few: a caller fills in the same fields.
type flowSet struct {
	flows  map[Flow]bool
	shapes []shape
}

func newFlowSet(flows []Flow) flowSet {
	set := flowSet{flows: make(map[Flow]bool, len(flows))}
	for _, f := range flows {
		set.flows[f] = true
		if s := f.shape(); !slices.Contains(set.shapes, s) {
			set.shapes = append(set.shapes, s)
		}
	}
	return set
}

// has reports whether a connection is one of the flows. One that lacks a field of a shape
// (ICMP has no ports) can only be found as a flow without it, which it is.
func (set flowSet) has(c Flow) bool {
	return slices.ContainsFunc(set.shapes, func(s shape) bool { return set.flows[c.in(s)] })
}

func (f Flow) request() ([]byte, error) {
	fam := f.families()[0]
	orig, reply := uint32(0), uint32(0)
	return linkBody([]byte{fam, unix.NFNETLINK_V0, 0, 0}, func(ae *netlink.Encoder) {
		ae.Nested(ctaTupleOrig, func(ae *netlink.Encoder) {
			orig = tuple{src: f.OrigSrc, dst: f.OrigDst, proto: f.Proto, dport: f.OrigPort}.encode(ae)
		})
		ae.Nested(ctaTupleReply, func(ae *netlink.Encoder) {
			reply = tuple{src: f.ReplySrc, proto: f.Proto, sport: f.ReplyPort}.encode(ae)
		})
		ae.Nested(ctaFilter, func(ae *netlink.Encoder) {
			ae.Uint32(ctaFilterOrig, orig)
			ae.Uint32(ctaFilterReply, reply)
		})
	})
}

// A tuple is one direction of a connection.
type tuple struct {
	src, dst     netip.Addr
	proto        uint8
	sport, dport uint16
}

// encode writes the parts of the tuple that are set, and gives the filter's flags
// for them.
func (t tuple) encode(ae *netlink.Encoder) (flags uint32) {
	if t.src.IsValid() || t.dst.IsValid() {
		ae.Nested(ctaTupleIP, func(ae *netlink.Encoder) {
			flags |= address(ae, t.src, [2]uint16{ctaIPv4Src, ctaIPv6Src}, filterIPSrc)
			flags |= address(ae, t.dst, [2]uint16{ctaIPv4Dst, ctaIPv6Dst}, filterIPDst)
		})
	}
	if t.proto == 0 {
		return flags
	}
	ae.Nested(ctaTupleProto, func(ae *netlink.Encoder) {
		ae.Uint8(ctaProtoNum, t.proto)
		flags |= filterProtoNum
		if t.sport != 0 {
			ae.Bytes(ctaProtoSrcPort, []byte{byte(t.sport >> 8), byte(t.sport)})
			flags |= filterProtoSport
		}
		if t.dport != 0 {
			ae.Bytes(ctaProtoDstPort, []byte{byte(t.dport >> 8), byte(t.dport)})
			flags |= filterProtoDport
		}
	})
	return flags
}

func (t *tuple) decode(ad *netlink.Decoder) {
	for ad.Next() {
		switch ad.Kind() {
		case ctaTupleIP:
			ad.Nested(func(ad *netlink.Decoder) {
				for ad.Next() {
					switch ad.Kind() {
					case ctaIPv4Src, ctaIPv6Src:
						t.src, _ = netip.AddrFromSlice(ad.Bytes())
					case ctaIPv4Dst, ctaIPv6Dst:
						t.dst, _ = netip.AddrFromSlice(ad.Bytes())
					}
				}
			})
		case ctaTupleProto:
			ad.Nested(t.decodeProto)
		}
	}
}

func (t *tuple) decodeProto(ad *netlink.Decoder) {
	for ad.Next() {
		switch ad.Kind() {
		case ctaProtoNum:
			t.proto = ad.Uint8()
		case ctaProtoSrcPort:
			t.sport = ad.Uint16()
		case ctaProtoDstPort:
			t.dport = ad.Uint16()
		}
	}
}

func address(ae *netlink.Encoder, a netip.Addr, kinds [2]uint16, flag uint32) uint32 {
	if !a.IsValid() {
		return 0
	}
	kind := kinds[1]
	if a.Is4() {
		kind = kinds[0]
	}
	ae.Bytes(kind, a.AsSlice())
	return flag
}
