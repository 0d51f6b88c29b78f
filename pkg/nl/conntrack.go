package nl

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/mdlayher/netlink"
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
	ctDelete         = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2 // IPCTNL_MSG_CT_DELETE
	ctaTupleOrig     = 1
	ctaTupleReply    = 2
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

// FlushFlows makes the kernel forget the connections, each flow by a filter in the
// kernel (CTA_FILTER, kernel 5.8, commit cb8aa9a3affb): nothing is dumped. Nothing to
// forget is no error, and neither is a kernel without connection tracking.
func FlushFlows(h *ns.Handle, flows ...Flow) error {
	if len(flows) == 0 {
		return nil
	}
	config := &netlink.Config{}
	if !h.Self() {
		config.NetNS = h.FD()
	}
	var errs []error
	err := h.Step("open conntrack socket", func() error {
		c, err := netlink.Dial(unix.NETLINK_NETFILTER, config)
		if err != nil {
			return err
		}
		for _, f := range flows {
			step := "flush conntrack " + f.String()
			errs = append(errs, wrap(step, h.Step(step, func() error { return f.flush(c) })))
		}
		return c.Close()
	})
	return errors.Join(append(errs, wrap("open conntrack socket", err))...)
}

func (f Flow) flush(c *netlink.Conn) error {
	body, err := f.request()
	if err != nil {
		return err
	}
	_, err = c.Execute(netlink.Message{
		Header: netlink.Header{Type: ctDelete, Flags: netlink.Request | netlink.Acknowledge},
		Data:   body,
	})
	if e, ok := wrap("", err).(*Error); ok && (e.Is(fs.ErrNotExist) || errors.Is(err, unix.EPROTONOSUPPORT)) {
		return nil
	}
	return err
}

func (f Flow) request() ([]byte, error) {
	fam := family(f.OrigSrc)
	for _, a := range []netip.Addr{f.OrigDst, f.ReplySrc} {
		fam = max(fam, family(a))
	}
	orig, reply := uint32(0), uint32(0)
	return linkBody([]byte{fam, unix.NFNETLINK_V0, 0, 0}, func(ae *netlink.AttributeEncoder) {
		nest(ae, ctaTupleOrig, func(ae *netlink.AttributeEncoder) {
			orig = tuple{src: f.OrigSrc, dst: f.OrigDst, proto: f.Proto, dport: f.OrigPort}.encode(ae)
		})
		nest(ae, ctaTupleReply, func(ae *netlink.AttributeEncoder) {
			reply = tuple{src: f.ReplySrc, proto: f.Proto, sport: f.ReplyPort}.encode(ae)
		})
		nest(ae, ctaFilter, func(ae *netlink.AttributeEncoder) {
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
func (t tuple) encode(ae *netlink.AttributeEncoder) (flags uint32) {
	if t.src.IsValid() || t.dst.IsValid() {
		nest(ae, ctaTupleIP, func(ae *netlink.AttributeEncoder) {
			flags |= address(ae, t.src, [2]uint16{ctaIPv4Src, ctaIPv6Src}, filterIPSrc)
			flags |= address(ae, t.dst, [2]uint16{ctaIPv4Dst, ctaIPv6Dst}, filterIPDst)
		})
	}
	if t.proto == 0 {
		return flags
	}
	nest(ae, ctaTupleProto, func(ae *netlink.AttributeEncoder) {
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

func address(ae *netlink.AttributeEncoder, a netip.Addr, kinds [2]uint16, flag uint32) uint32 {
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
