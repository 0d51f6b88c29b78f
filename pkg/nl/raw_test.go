package nl

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	rawnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// nested is the flag of an attribute that contains attributes (NLA_F_NESTED).
const nested = 1 << 15

// bytesOf encodes numbers in the byte order of this machine, and copies texts and bytes.
func bytesOf(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch p := p.(type) {
		case uint8:
			b = append(b, p)
		case uint16:
			b = binary.NativeEndian.AppendUint16(b, p)
		case uint32:
			b = binary.NativeEndian.AppendUint32(b, p)
		case uint64:
			b = binary.NativeEndian.AppendUint64(b, p)
		case string:
			b = append(b, p...)
		case []byte:
			b = append(b, p...)
		default:
			panic(p)
		}
	}
	return b
}

// attr encodes an attribute: length, kind, value, and zeros up to a multiple of four bytes.
func attr(kind uint16, parts ...any) []byte {
	value := bytesOf(parts...)
	b := append(bytesOf(uint16(4+len(value)), kind), value...)
	return append(b, make([]byte, (4-len(b)%4)%4)...)
}

// TestRequests compares the bytes of the requests that package nl builds.
func TestRequests(t *testing.T) {
	l := Link{Index: 7}
	ifinfo := func(family uint8, index uint32) []byte {
		return bytesOf(family, uint8(0), uint16(0), index, uint32(0), uint32(0))
	}
	tcmsg := func(handle, parent uint32) []byte { return bytesOf(uint32(0), uint32(7), handle, parent, uint32(0)) }
	for name, c := range map[string]struct {
		req         *rawnl.NetlinkRequest
		kind, flags uint16
		body        []byte
	}{
		"links of a kind": {listLinksRequest(kindFilter("veth")), 18, 0x301, slices.Concat(ifinfo(0, 0),
			attr(29, uint32(8)), attr(18|nested, attr(1, "veth\x00")))},
		"ports of a bridge": {listLinksRequest(masterFilter(7)), 18, 0x301, slices.Concat(ifinfo(0, 0),
			attr(29, uint32(8)), attr(10, uint32(7)))},
		"link by index":       {getLinkRequest(7), 18, 0x1, slices.Concat(ifinfo(0, 7), attr(29, uint32(8)))},
		"VLANs":               {listVLANsRequest(), 18, 0x301, slices.Concat(ifinfo(7, 0), attr(29, uint32(4)))},
		"addresses of a link": {listAddrsRequest(l), 22, 0x301, bytesOf(uint32(0), uint32(7))},
		"routes of a link":    {listRoutesRequest(l, unix.AF_INET6), 26, 0x301, slices.Concat([]byte{10}, make([]byte, 11), attr(4, uint32(7)))},
		"rules":               {listRulesRequest(unix.AF_INET), 34, 0x301, append([]byte{2}, make([]byte, 11)...)},
		"qdisc at the root": {getQdiscRequest(l, Root), 38, 0xd,
			tcmsg(0, 0xffffffff)},
		"bfifo": {addBfifoRequest(l, Qdisc{Handle: 0x300000, Parent: 0x10030, Limit: 5000}), 36, 0x605, slices.Concat(
			tcmsg(0x300000, 0x10030), attr(1, "bfifo\x00"), attr(2, uint32(5000)))},
		"list of connections": {ctRequest(unix.AF_INET6, rawnl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP), 0x101, 0x301, []byte{10, 0, 0, 0}},
		"deletion of a flow": {Flow{Proto: 17, OrigDst: netip.MustParseAddr("192.0.2.2"), OrigPort: 8053, ReplyPort: 53}.deleteRequest(), 0x102, 0x5,
			slices.Concat([]byte{2, 0, 0, 0},
				attr(1|nested, attr(1|nested, attr(2, []byte{192, 0, 2, 2})), attr(2|nested, attr(1, uint8(17)), attr(3, []byte{0x1f, 0x75}))),
				attr(2|nested, attr(2|nested, attr(1, uint8(17)), attr(2, []byte{0, 53}))),
				attr(25|nested, attr(1, uint32(1<<1|1<<3|1<<5)), attr(2, uint32(1<<3|1<<4))))},
		"deletion of a connection": {ctRequest(unix.AF_INET, rawnl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK), 0x102, 0x5, []byte{2, 0, 0, 0}},
	} {
		msg := c.req.Serialize()
		want := append(bytesOf(uint32(16+len(c.body)), c.kind, c.flags), msg[8:16]...) // sequence number and port ID
		if want = append(want, c.body...); !bytes.Equal(msg, want) {
			t.Errorf("%s:\n%x, want\n%x", name, msg, want)
		}
	}
}

// TestAnswers decodes answers of the kernel to these requests.
func TestAnswers(t *testing.T) {
	ifinfo := make([]byte, 16)
	port := slices.Concat(ifinfo, attr(3, "veth0\x00"), attr(18, attr(1, "veth\x00"), attr(4, "bridge\x00"),
		attr(5, attr(1, uint8(3)), attr(4, uint8(1)), attr(33, uint8(1)))))
	if p, err := decodePort(port); err != nil || p != (Port{Hairpin: true, Isolated: true}) {
		t.Errorf("port: %+v, %v", p, err)
	}
	if p, err := decodePort(append(ifinfo[:16:16], attr(3, "lo\x00")...)); err != nil || p != (Port{}) {
		t.Errorf("no port: %+v, %v", p, err)
	}
	for state, want := range map[uint32]bool{0: false, 1: true, 2: true} {
		bridge := slices.Concat(ifinfo, attr(1, "\x02\x00\x00\x00\x00\x01"), attr(3, "br0\x00"), attr(4, uint32(1400)), attr(18, attr(1, "bridge\x00"), attr(2, attr(1, uint32(1500)), attr(5, state))))
		if got, err := decodeBridgeState(bridge); err != nil || got != (BridgeState{MAC: "\x02\x00\x00\x00\x00\x01", MTU: 1400, STP: want}) {
			t.Errorf("bridge with STP state %d: %+v, %v", state, got, err)
		}
	}
	ipvlan := slices.Concat(ifinfo, attr(18, attr(1, "ipvlan\x00"), attr(2, attr(1, uint16(2)), attr(2, uint16(1)))))
	if got, err := decodeIPVlanMode(ipvlan); err != nil || got != (IPVlanMode{Mode: "l3s", Flag: "private"}) {
		t.Errorf("ipvlan: %s, %v", got, err)
	}
	vlans := slices.Concat(ifinfo, attr(26, attr(2, uint16(6), uint16(1)),
		attr(2, uint16(8), uint16(20)), attr(2, uint16(16), uint16(22)), attr(2, uint16(4), uint16(30))))
	want := []VLAN{{ID: 1, PVID: true, Untagged: true}, {ID: 20}, {ID: 21}, {ID: 22}, {ID: 30, Untagged: true}}
	if got, err := decodeVLANs(vlans); err != nil || !slices.Equal(got, want) {
		t.Errorf("VLANs: %+v, %v, want %+v", got, err, want)
	}
	tcmsg := bytesOf(uint32(0), uint32(7), uint32(0x10000), uint32(0xffffffff), uint32(2))
	rate := bytesOf(uint32(0), uint32(0), uint32(125000))
	for _, c := range []struct {
		attrs []byte
		want  Qdisc
	}{
		{slices.Concat(attr(1, "tbf\x00"), attr(2, attr(1, rate, make([]byte, 12), uint32(103125), uint32(12500000), uint32(0)))),
			Qdisc{Kind: "tbf", TBF: TBF{Rate: 125000, Limit: 103125, Buffer: 12500000}}},
		{slices.Concat(attr(1, "tbf\x00"), attr(2, attr(1, rate, make([]byte, 12), uint32(1), uint32(2), uint32(0)), attr(4, uint64(1<<33)))),
			Qdisc{Kind: "tbf", TBF: TBF{Rate: 1 << 33, Limit: 1, Buffer: 2}}},
		{slices.Concat(attr(1, "htb\x00"), attr(2, attr(2, uint32(3), uint32(10), uint32(0x30), uint32(0), uint32(0)), attr(5, uint32(1000)))),
			Qdisc{Kind: "htb", HTB: HTB{Default: 0x30, Direct: 1000}}},
		{slices.Concat(attr(1, "bfifo\x00"), attr(2, uint32(5000))), Qdisc{Kind: "bfifo", Limit: 5000}},
		{attr(1, "ingress\x00"), Qdisc{Kind: "ingress"}},
	} {
		c.want.Handle, c.want.Parent = 0x10000, Root
		if got, err := decodeQdisc(append(tcmsg[:20:20], c.attrs...)); err != nil || got != c.want {
			t.Errorf("qdisc: %+v, %v, want %+v", got, err, c.want)
		}
	}
	for _, c := range []struct {
		proto  uint8
		v4, v6 uint16 // kinds of the source's address
		a, b   string
	}{{unix.IPPROTO_UDP, 1, 0, "192.0.2.1", "192.0.2.2"}, {unix.IPPROTO_SCTP, 0, 3, "2001:db8::1", "2001:db8::2"}} {
		a, b := netip.MustParseAddr(c.a), netip.MustParseAddr(c.b)
		tuple := func(kind uint16, src, dst netip.Addr, ports ...byte) []byte {
			return attr(kind|nested, attr(1|nested, attr(c.v4+c.v6, src.AsSlice()), attr(c.v4+c.v6+1, dst.AsSlice())),
				attr(2|nested, attr(1, c.proto), attr(2, ports[:2]), attr(3, ports[2:])))
		}
		m := slices.Concat(make([]byte, 4), tuple(1, a, b, 0x12, 0x34, 0x1f, 0x75), tuple(2, b, a, 0, 53, 0x12, 0x34), attr(12, uint32(9)))
		want := Flow{Proto: c.proto, OrigSrc: a, OrigDst: b, OrigPort: 8053, ReplySrc: b, ReplyPort: 53}
		if got, err := decodeFlow(m); err != nil || got != want {
			t.Errorf("connection: %+v, %v, want %+v", got, err, want)
		}
	}
}

// TestLinkConfig tests what AddLinkConfig changes in the messages of the kernel.
func TestLinkConfig(t *testing.T) {
	rule := func(name string, flags uint32) []byte {
		return slices.Concat([]byte{2, 0, 32, 0, 100, 0, 0, 1}, bytesOf(flags), attr(15, uint32(100)), attr(3, name), attr(2, []byte{192, 0, 2, 1}))
	}
	addr := func(index uint32, label string, preferred, valid uint32) []byte {
		return slices.Concat([]byte{2, 24, 0, 0}, bytesOf(index), attr(2, []byte{192, 0, 2, 1}), attr(3, label), attr(6, preferred, valid, uint64(0)))
	}
	conf := &LinkConfig{
		Link: "hd0", Time: time.Now().Add(-time.Hour), Rules: [][]byte{rule("hd0\x00", 2|8), rule("hd1\x00", 0)},
		Addrs: [][]byte{addr(7, "hd0:1\x00", 3000, 10000), addr(7, "hd0\x00", forever, forever), addr(7, "other\x00", 3000, 3500)},
	}
	if err := conf.Validate(); err != nil {
		t.Error(err)
	}
	var rules, addrs [][]byte
	for _, r := range conf.rules("eth0") {
		rules = append(rules, r.bytes())
	}
	if want := [][]byte{rule("eth0\x00", 2), rule("hd1\x00", 0)}; !reflect.DeepEqual(rules, want) {
		t.Errorf("rules: %x, want\n%x", rules, want)
	}
	for i, a := range conf.addrs() {
		a, alive := a.addrFor(Link{Index: 9, Name: "eth0"}, conf)
		addrs = append(addrs, a.bytes())
		if alive != (i < 2) {
			t.Errorf("address %d is alive: %v", i, alive)
		}
	}
	valid := uint32(number(conf.addrs()[0].get(unix.IFA_CACHEINFO)[4:])) - uint32(time.Since(conf.Time).Seconds())
	if want := [][]byte{addr(9, "eth0:1\x00", 0, valid), addr(9, "eth0\x00", forever, forever), addr(9, "other\x00", 0, 0)}; !reflect.DeepEqual(addrs, want) {
		t.Errorf("addresses: %x, want\n%x", addrs, want)
	}
	for _, malformed := range []*LinkConfig{{Addrs: [][]byte{{2}}}, {Routes: [][]byte{make([]byte, 11)}}, {Rules: [][]byte{append(make([]byte, 12), 200, 0, 0, 0)}}} {
		if malformed.Validate() == nil {
			t.Errorf("%+v is accepted", malformed)
		}
		_ = malformed.String()
	}
}
