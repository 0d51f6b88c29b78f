package dhcp4

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// ack returns an ACK for 10.0.0.5/24 from 10.0.0.1 with these options. A nil value removes an option.
func ack(options map[uint8][]byte) *dhcpv4.DHCPv4 {
	m := &dhcpv4.DHCPv4{OpCode: dhcpv4.OpcodeBootReply, HWType: etherHardware, ClientHWAddr: []byte{2, 0, 0, 0, 0, 5},
		TransactionID: dhcpv4.TransactionID{1, 2, 3, 4}, YourIPAddr: net.IP{10, 0, 0, 5},
		Options: dhcpv4.Options{53: {5}, 1: {255, 255, 255, 0}, 54: {10, 0, 0, 1}}}
	for code, value := range options {
		m.Options[code] = value
		if value == nil {
			delete(m.Options, code)
		}
	}
	return m
}

// onWire encodes the message, and decodes it as a client does.
func onWire(t testing.TB, m *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
	t.Helper()
	decoded, err := parse(m.ToBytes())
	nstest.Must(t, err)
	return decoded
}

func seconds(n byte) []byte { return []byte{0, 0, 0, n} }

func route(dst, gw string) types.Route {
	r := types.Route{Dst: netip.MustParsePrefix(dst), GW: netip.MustParseAddr(gw)}
	if r.GW.IsUnspecified() {
		r.Scope = 253
	}
	return r
}

// TestDecode decodes each option of an answer.
func TestDecode(t *testing.T) {
	router := []byte{10, 0, 0, 1}
	for name, c := range map[string]struct {
		options map[uint8][]byte
		want    Lease
		ignored int
	}{
		"no more options": {nil, Lease{}, 0},
		"times":           {map[uint8][]byte{51: seconds(100), 58: seconds(10), 59: seconds(20)}, Lease{Duration: 100 * time.Second, RenewAfter: 10 * time.Second, RebindAfter: 20 * time.Second}, 0},
		"a lease of a second": {map[uint8][]byte{51: seconds(1)},
			Lease{Duration: time.Second, RenewAfter: 500 * time.Millisecond, RebindAfter: 850 * time.Millisecond}, 0},
		"T1 after T2":             {map[uint8][]byte{51: seconds(100), 58: seconds(30), 59: seconds(20)}, Lease{Duration: 100 * time.Second, RenewAfter: 50 * time.Second, RebindAfter: 85 * time.Second}, 0},
		"T1 after the default T2": {map[uint8][]byte{51: seconds(100), 58: seconds(90)}, Lease{Duration: 100 * time.Second, RenewAfter: 50 * time.Second, RebindAfter: 85 * time.Second}, 0},
		"T2 after the end":        {map[uint8][]byte{51: seconds(100), 59: seconds(200)}, Lease{Duration: 100 * time.Second, RenewAfter: 50 * time.Second, RebindAfter: 85 * time.Second}, 0},
		"T1 is zero":              {map[uint8][]byte{51: seconds(100), 58: seconds(0)}, Lease{Duration: 100 * time.Second, RenewAfter: 50 * time.Second, RebindAfter: 85 * time.Second}, 0},
		"infinite":                {map[uint8][]byte{51: {255, 255, 255, 255}, 58: seconds(9)}, Lease{Duration: Infinite, RenewAfter: Infinite, RebindAfter: Infinite}, 0},
		"short times":             {map[uint8][]byte{51: {1}, 58: {1, 2, 3}}, Lease{}, 2},

		"router":           {map[uint8][]byte{3: router}, Lease{Router: netip.MustParseAddr("10.0.0.1"), Routes: []types.Route{route("0.0.0.0/0", "10.0.0.1")}}, 0},
		"the first router": {map[uint8][]byte{3: {0, 0, 0, 0, 10, 0, 0, 9, 10, 0, 0, 8, 7}}, Lease{Router: netip.MustParseAddr("10.0.0.9"), Routes: []types.Route{route("0.0.0.0/0", "10.0.0.9")}}, 0},
		"static routes of three classes, one invalid": {map[uint8][]byte{33: {10, 1, 0, 0, 10, 0, 0, 2, 172, 16, 1, 0, 10, 0, 0, 3, 192, 168, 1, 0, 10, 0, 0, 4, 0, 0, 0, 0, 10, 0, 0, 5}},
			Lease{Routes: []types.Route{route("10.0.0.0/8", "10.0.0.2"), route("172.16.0.0/16", "10.0.0.3"), route("192.168.1.0/24", "10.0.0.4")}}, 1},
		"classless routes replace static ones and the router": {map[uint8][]byte{3: router, 33: {10, 1, 0, 0, 10, 0, 0, 2}, 121: {8, 11, 10, 0, 0, 7}},
			Lease{Router: netip.MustParseAddr("10.0.0.1"), Routes: []types.Route{route("11.0.0.0/8", "10.0.0.7")}}, 0},
		"classless routes with host bits, on the link, twice, and with an invalid gateway": {map[uint8][]byte{121: {20, 10, 9, 255, 10, 0, 0, 7, 32, 1, 2, 3, 4, 0, 0, 0, 0, 0, 10, 0, 0, 7, 0, 10, 0, 0, 8, 8, 9, 224, 0, 0, 1}},
			Lease{Routes: []types.Route{route("10.9.240.0/20", "10.0.0.7"), route("1.2.3.4/32", "0.0.0.0"), route("0.0.0.0/0", "10.0.0.7")}}, 1},
		"malformed classless routes leave the router": {map[uint8][]byte{3: router, 121: {33, 10, 0, 0, 7}},
			Lease{Router: netip.MustParseAddr("10.0.0.1"), Routes: []types.Route{route("0.0.0.0/0", "10.0.0.1")}}, 1},
		"empty classless routes": {map[uint8][]byte{3: router, 121: {}}, Lease{Router: netip.MustParseAddr("10.0.0.1"), Routes: []types.Route{route("0.0.0.0/0", "10.0.0.1")}}, 0},

		"name servers":                {map[uint8][]byte{6: {8, 8, 8, 8, 0, 0, 0, 0, 127, 0, 0, 1, 9}}, Lease{DNS: types.DNS{Nameservers: []string{"8.8.8.8", "127.0.0.1"}}}, 1},
		"domain with a zero byte":     {map[uint8][]byte{15: []byte("a_b.Example.\x00")}, Lease{DNS: types.DNS{Domain: "a_b.Example"}}, 0},
		"domain with a line break":    {map[uint8][]byte{15: []byte("a.example\nnameserver 6.6.6.6")}, Lease{}, 1},
		"domain with a long label":    {map[uint8][]byte{15: []byte(strings.Repeat("a", 64))}, Lease{}, 1},
		"search list, one invalid":    {map[uint8][]byte{119: []byte("\x01a\x00\x01b\xc0\x00\x02a \x00\x01a\x00")}, Lease{DNS: types.DNS{Search: []string{"a", "b.a"}}}, 1},
		"search list with a loop":     {map[uint8][]byte{119: []byte("\x01a\xc0\x00")}, Lease{}, 1},
		"MTU":                         {map[uint8][]byte{26: {5, 220}}, Lease{MTU: 1500}, 0},
		"an MTU that is too small":    {map[uint8][]byte{26: {0, 67}}, Lease{}, 1},
		"an MTU of three bytes":       {map[uint8][]byte{26: {0, 5, 220}}, Lease{}, 1},
		"a mask with all bits":        {map[uint8][]byte{1: {255, 255, 255, 255}}, Lease{Address: netip.MustParsePrefix("10.0.0.5/32")}, 0},
		"options in the other fields": {map[uint8][]byte{52: {3}}, Lease{}, 0},
	} {
		l, err := newLease(onWire(t, ack(c.options)))
		if err != nil || len(l.Ignored) != c.ignored {
			t.Errorf("%s: %v, ignored %v", name, err, l.Ignored)
		}
		l.Ignored = nil
		want := c.want
		want.Server = netip.MustParseAddr("10.0.0.1")
		if !want.Address.IsValid() {
			want.Address = netip.MustParsePrefix("10.0.0.5/24")
		}
		if want.Duration == 0 {
			want.Duration, want.RenewAfter, want.RebindAfter = time.Hour, 30*time.Minute, 51*time.Minute
		}
		if !reflect.DeepEqual(l, want) {
			t.Errorf("%s:\n%+v, want\n%+v", name, l, want)
		}
	}
}

// TestDecodeOverload decodes options in the fields file and sname, which option 52 announces.
func TestDecodeOverload(t *testing.T) {
	for overload, want := range map[byte]types.DNS{1: {Domain: "file"}, 2: {Nameservers: []string{"1.2.3.4"}}, 3: {Domain: "file", Nameservers: []string{"1.2.3.4"}}, 4: {}} {
		data := ack(map[uint8][]byte{52: {overload}}).ToBytes()
		copy(data[108:], "\x0f\x04file\xff")
		copy(data[44:], "\x06\x04\x01\x02\x03\x04\xff")
		m, err := parse(data)
		nstest.Must(t, err)
		if l, err := newLease(m); err != nil || !reflect.DeepEqual(l.DNS, want) {
			t.Errorf("overload %d: %+v, %v", overload, l.DNS, err)
		}
	}
	data := ack(map[uint8][]byte{52: {1}}).ToBytes()
	copy(data[108:], bytes.Repeat([]byte{15, 255}, 64))
	if _, err := parse(data); err == nil {
		t.Error("an option that is longer than its field is accepted")
	}
}

func TestDecodeUseless(t *testing.T) {
	for want, m := range map[string]*dhcpv4.DHCPv4{
		"it contains no subnet mask (option 1)":                   ack(map[uint8][]byte{1: nil}),
		"its subnet mask (option 1) is [255 0 255 0]":             ack(map[uint8][]byte{1: {255, 0, 255, 0}}),
		"its subnet mask (option 1) is [0 0 0 0]":                 ack(map[uint8][]byte{1: {0, 0, 0, 0}}),
		"its subnet mask (option 1) is [255]":                     ack(map[uint8][]byte{1: {255}}),
		"its lease ends at once":                                  ack(map[uint8][]byte{51: seconds(0)}),
		"the server's identifier (option 54) is []":               ack(map[uint8][]byte{54: nil}),
		"the server's identifier (option 54) is [224 0 0 1]":      ack(map[uint8][]byte{54: {224, 0, 0, 1}}),
		"the server's identifier (option 54) is [1 2 3 4 5]":      ack(map[uint8][]byte{54: {1, 2, 3, 4, 5}}),
		"the server's identifier (option 54) is [0 0 0 0 0 0 0 0": ack(map[uint8][]byte{54: make([]byte, 16)}),
	} {
		if _, err := newLease(onWire(t, m)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	for _, addr := range []net.IP{{0, 0, 0, 0}, {127, 0, 0, 1}, {224, 0, 0, 1}, {255, 255, 255, 255}, {0, 0, 0, 1}} {
		m := ack(nil)
		m.YourIPAddr = addr
		if _, err := newLease(onWire(t, m)); err == nil || err.Error() != "it offers the address "+addr.String() {
			t.Errorf("address %s: %v", addr, err)
		}
	}
}

// TestEncode compares a packet and an ARP probe byte for byte.
func TestEncode(t *testing.T) {
	p := newPacket(netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("10.0.0.1"), []byte("abc"))
	if got, want := hex.EncodeToString(p), "4500001f00000000401166c90a0000050a000001"+"00440043000b26e9616263"; got != want {
		t.Errorf("packet:\n%s, want\n%s", got, want)
	}
	probe := arpProbe("\x02\x00\x00\x00\x00\x05", netip.MustParseAddr("10.0.0.9"))
	if got, want := hex.EncodeToString(probe), "0001080006040001"+"020000000005"+"00000000"+"000000000000"+"0a000009"; got != want {
		t.Errorf("probe:\n%s, want\n%s", got, want)
	}
}

// answerPacket returns a packet with an answer to the client's port.
func answerPacket(content []byte) []byte {
	p := newPacket(netip.MustParseAddr("10.0.0.1"), broadcastAddr, content)
	p[21], p[23] = dhcpv4.ServerPort, dhcpv4.ClientPort
	return p
}

// TestDecodePacket checks which packets the kernel's filter and payload accept. The filter leaves first fragments, other
// IP versions and wrong lengths to payload.
func TestDecodePacket(t *testing.T) {
	change := func(offset int, value byte) []byte {
		p := answerPacket([]byte("abc"))
		p[offset] = value
		return p
	}
	withOptions := append(append([]byte{0x46, 0, 0, 35}, answerPacket([]byte("abc"))[4:20]...), append(make([]byte, 4), answerPacket([]byte("abc"))[20:]...)...)
	vm, err := bpf.NewVM(answerFilter)
	nstest.Must(t, err)
	for name, c := range map[string]struct {
		packet           []byte
		filtered, passes bool
	}{
		"an answer":              {answerPacket([]byte("abc")), true, true},
		"with IP options":        {withOptions, true, true},
		"with padding":           {append(answerPacket([]byte("abc")), 0, 0, 0), true, true},
		"without a UDP checksum": {change(26, 0), true, true},
		"to another port":        {change(23, 69), false, false},
		"TCP":                    {change(9, 6), false, false},
		"a later fragment":       {change(7, 1), false, false},
		"the first fragment":     {change(6, 0x20), true, false},
		"IPv6":                   {change(0, 0x65), true, false},
		"a short header":         {change(0, 0x44), false, false},
		"total length too long":  {change(3, 40), true, false},
		"total length too short": {change(3, 27), true, false},
		"UDP too long":           {change(25, 12), true, false},
		"UDP too short":          {change(25, 7), true, false},
		"no UDP header":          {answerPacket(nil)[:20], false, false},
		"empty":                  {nil, false, false},
	} {
		n, err := vm.Run(c.packet)
		if err != nil || (n > 0) != c.filtered {
			t.Errorf("%s: the filter takes %d bytes, %v", name, n, err)
		}
		if got := payload(c.packet); (string(got) == "abc") != c.passes {
			t.Errorf("%s: payload %q", name, got)
		}
	}
}

// TestFilter checks that the kernel does not copy the container's other traffic to the socket.
func TestFilter(t *testing.T) {
	server, container := nstest.NewHostAndContainer(t)
	nstest.Join(t, nstest.End{In: server, Name: "lan0", Addrs: []string{"10.8.0.1/24"}}, nstest.End{In: container, Name: "eth0", Addrs: []string{"10.8.0.5/24"}})
	h := container.Open(t, nil)
	conn, err := nl.Open(h)
	nstest.Must(t, err)
	link, err := conn.Link("eth0")
	nstest.Must(t, err)
	c := &Client{NS: h, Link: link.Index, MAC: link.MAC}
	s, stop, err := c.listen(t.Context(), unix.ETH_P_IP, answerFilter)
	nstest.Must(t, err)
	defer stop()
	nstest.ServeUDP(t, container, "10.8.0.5:69")
	if _, err := nstest.DialUDP(server, "10.8.0.5:69"); err != nil {
		t.Fatal(err)
	}
	if stats, err := s.Stats(); err != nil || stats.Packets != 0 {
		t.Errorf("%+v, %v", stats, err)
	}
}

// TestDecodeARP decodes ARP packets, some of which show that another host has an address.
func TestDecodeARP(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.9")
	const mac = types.MAC("\x02\x00\x00\x00\x00\x07")
	packet := func(change func([]byte)) []byte {
		p := arpProbe(mac, addr)
		change(p)
		return p
	}
	for name, c := range map[string]struct {
		packet []byte
		want   types.MAC
	}{
		"a probe":                {packet(func([]byte) {}), mac},
		"a reply":                {packet(func(p []byte) { p[7] = 2; copy(p[14:], addr.AsSlice()) }), mac},
		"an announcement":        {packet(func(p []byte) { copy(p[14:], addr.AsSlice()) }), mac},
		"a request of others":    {packet(func(p []byte) { p[14] = 10 }), ""},
		"a reply to a probe":     {packet(func(p []byte) { p[7] = 2 }), ""},
		"a probe for another":    {packet(func(p []byte) { p[27]++ }), ""},
		"another kind of link":   {packet(func(p []byte) { p[1] = 6 }), ""},
		"a packet that is short": {packet(func([]byte) {})[:27], ""},
	} {
		if got := conflict(c.packet, addr); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// FuzzLease checks that no packet, and no message in a packet, causes a panic in the client. An accepted lease contains
// a valid address, times in order, valid routes, an MTU in range and clean domain names. The message that releases it
// can be decoded.
func FuzzLease(f *testing.F) {
	for _, options := range []map[uint8][]byte{
		nil, {3: {10, 0, 0, 1}, 33: {10, 1, 0, 0, 10, 0, 0, 2}, 6: {8, 8, 8, 8}, 15: []byte("a.example"), 26: {5, 220}},
		{121: {8, 11, 10, 0, 0, 7, 0, 0, 0, 0, 0}, 119: []byte("\x01a\x00\x01b\xc0\x00"), 51: seconds(9), 58: seconds(2), 59: seconds(3)}, {52: {3}, 61: {0, 1}},
	} {
		f.Add(answerPacket(ack(options).ToBytes()))
		f.Add(ack(options).ToBytes())
	}
	c := &Client{MAC: "\x02\x00\x00\x00\x00\x05", ID: []byte{0, 1}}
	f.Fuzz(func(t *testing.T, data []byte) {
		conflict(data, broadcastAddr)
		if content := payload(data); content != nil {
			data = content
		}
		m, err := parse(data)
		if err != nil {
			return
		}
		q := c.newRequest(dhcpv4.MessageTypeRequest)
		q.isAnsweredBy(m)
		_ = (&exchange{request: q}).refusal(m)
		l, err := newLease(m)
		if err != nil {
			return
		}
		if problem := l.problem(); problem != "" {
			t.Errorf("%s: %+v", problem, l)
		}
		q = c.newMessage(dhcpv4.MessageTypeRelease)
		q.sendTo(l)
		if _, err := parse(q.msg.ToBytes()); err != nil || q.err != nil {
			t.Errorf("RELEASE of %+v: %v, %v", l, err, q.err)
		}
	})
}

// problem describes what is wrong with an accepted lease.
func (l Lease) problem() string {
	switch {
	case !l.Address.IsValid() || !isHost(l.Address.Addr()) || l.Address.Bits() < 1:
		return "address"
	case !isHost(l.Server) || l.Router.IsValid() && !isHost(l.Router):
		return "server or router"
	case l.Duration < time.Second || l.Duration > Infinite:
		return "duration"
	case l.Duration == Infinite && (l.RenewAfter != Infinite || l.RebindAfter != Infinite):
		return "times of an infinite lease"
	case l.Duration != Infinite && !(0 < l.RenewAfter && l.RenewAfter < l.RebindAfter && l.RebindAfter < l.Duration):
		return "times"
	case l.MTU != 0 && (l.MTU < 68 || l.MTU > 65535):
		return "MTU"
	}
	seen := map[netip.Prefix]bool{}
	for _, r := range l.Routes {
		valid := r
		if err := valid.Normalize(); err != nil || !reflect.DeepEqual(valid, r) || seen[r.Dst] || r.GW.IsUnspecified() != (r.Scope == scopeLink) || !r.GW.IsUnspecified() && !isHost(r.GW) {
			return fmt.Sprintf("route %+v: %v", r, err)
		}
		seen[r.Dst] = true
	}
	names := l.DNS.Search
	if l.DNS.Domain != "" {
		names = append(slices.Clone(names), l.DNS.Domain)
	}
	for _, name := range names {
		if name == "" || len(name) > 253 || strings.ContainsAny(name, " \t\r\n\x00#;\"'\\/") || name[0] == '.' || name[0] == '-' {
			return fmt.Sprintf("name %q", name)
		}
	}
	for _, server := range l.DNS.Nameservers {
		if _, err := netip.ParseAddr(server); err != nil {
			return "name server " + server
		}
	}
	return ""
}
