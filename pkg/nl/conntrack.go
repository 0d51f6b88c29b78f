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

// FlushFlows makes the kernel forget the connections. Where a filter in the kernel can
// be relied on, nothing is listed (exactly); other flows are looked for in one list a
// family. Nothing to forget is no error, and neither is a kernel without connection
// tracking.
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
	listed := map[byte][]Flow{}
	for _, f := range flows {
		flushed := false
		if f.exactly() {
			step := "flush conntrack " + f.String()
			errs = append(errs, wrap(step, h.Step(step, func() (err error) {
				flushed, err = f.flush(c)
				return err
			})))
		}
		if !flushed {
			for _, fam := range f.families() {
				listed[fam] = append(listed[fam], f)
			}
		}
	}
	for fam, flows := range listed {
		const step = "list conntrack and delete"
		errs = append(errs, wrap(step, h.Step(step, func() error { return flushListed(c, fam, flows) })))
	}
	return errors.Join(append(errs, c.Close())...)
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
	msgs, err := c.Execute(netlink.Message{
		Kind: ctGet, Flags: unix.NLM_F_REQUEST | unix.NLM_F_DUMP, Body: []byte{fam, unix.NFNETLINK_V0, 0, 0},
	})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil
	}
	errs := []error{err}
	for _, m := range msgs {
		if len(m.Body) < nfgenmsgLen {
			continue
		}
		body, err := deletion(m.Body, flows)
		if err == nil && body != nil {
			err = deleteFlow(c, body)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// deletion makes a request of a listed connection that names it alone; nil: it is none
// of the flows'.
func deletion(listed []byte, flows []Flow) ([]byte, error) {
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
	wanted := slices.ContainsFunc(flows, func(f Flow) bool { return f.matches(have) })
	if err := ad.Err(); err != nil || !wanted {
		return nil, err
	}
	return linkBody(listed[:nfgenmsgLen:nfgenmsgLen], func(ae *netlink.Encoder) {
		ae.Bytes(ctaTupleOrig|unix.NLA_F_NESTED, raw)
		ae.Bytes(ctaID, id)
	})
}

// matches reports whether a connection is one of the flow.
func (f Flow) matches(c Flow) bool {
	return (f.Proto == 0 || f.Proto == c.Proto) &&
		(!f.OrigSrc.IsValid() || f.OrigSrc == c.OrigSrc) && (!f.OrigDst.IsValid() || f.OrigDst == c.OrigDst) &&
		(!f.ReplySrc.IsValid() || f.ReplySrc == c.ReplySrc) &&
		(f.OrigPort == 0 || f.OrigPort == c.OrigPort) && (f.ReplyPort == 0 || f.ReplyPort == c.ReplyPort)
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
