package nl

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/pkg/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/trace"
	"github.com/plumb-cni/plumb/test/nstest"
)

// TestFlowsAreForgottenExactly: both ways of it, the kernel's filter and the list, which
// kernels before 6.11 need always, take the connections that each field says and no others.
func TestFlowsAreForgottenExactly(t *testing.T) {
	site := nstest.NewSite(t)
	site.Node.Must(t, "nft", "add table inet t; add chain inet t c { type nat hook prerouting priority -100; }; "+
		"add rule inet t c udp dport 8053 redirect to :53")
	for _, addr := range []string{nstest.NodeV4, "[" + nstest.NodeV6 + "]"} {
		for _, port := range []string{":53", ":80"} {
			nstest.ServeUDP(t, site.Node, addr+port)
		}
	}
	h, err := ns.Open(site.Node.Path(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	var c *netlink.Conn
	err = h.Do(func() (err error) {
		c, err = netlink.Dial(unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	for _, way := range []struct {
		name  string
		flush func(Flow) error
	}{
		{"as FlushFlows chooses", func(f Flow) error { return FlushFlows(h, f) }},
		{"from a list", func(f Flow) error {
			for _, fam := range f.families() {
				if err := flushListed(c, fam, []Flow{f}); err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		for _, tc := range []struct {
			flow Flow
			gone []string
		}{
			{Flow{Proto: unix.IPPROTO_UDP, OrigPort: 53}, []string{"4:53", "6:53"}},
			{Flow{Proto: unix.IPPROTO_UDP, OrigDst: addr(nstest.NodeV4), OrigPort: 8053}, []string{"4:8053"}},
			{Flow{Proto: unix.IPPROTO_UDP, ReplySrc: addr(nstest.NodeV6), ReplyPort: 53}, []string{"6:53", "6:8053"}},
			{Flow{Proto: unix.IPPROTO_UDP, OrigPort: 8053, ReplySrc: addr(nstest.NodeV4), ReplyPort: 53}, []string{"4:8053"}},
			{Flow{Proto: unix.IPPROTO_UDP, OrigPort: 53, ReplySrc: addr(nstest.NodeV4), ReplyPort: 8053}, nil},
			{Flow{Proto: unix.IPPROTO_TCP, OrigPort: 53}, nil},
			{Flow{OrigSrc: addr(nstest.OutsideV4)}, []string{"4:53", "4:80", "4:8053"}},
			{Flow{OrigDst: addr(nstest.OutsideV4)}, nil}, {Flow{OrigDst: addr("2001:db8:99::1")}, nil}, {Flow{OrigDst: addr(nstest.NodeV6)}, []string{"6:53", "6:80", "6:8053"}},
		} {
			for _, port := range []string{":53", ":80", ":8053"} {
				for _, a := range []string{nstest.NodeV4, "[" + nstest.NodeV6 + "]"} {
					if _, err := nstest.DialUDP(site.Outside, a+port); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := way.flush(tc.flow); err != nil {
				t.Errorf("%s, %s: %v", way.name, tc.flow, err)
			}
			left := tracked(t, site.Node)
			for _, name := range []string{"4:53", "4:80", "4:8053", "6:53", "6:80", "6:8053"} {
				want := true
				for _, gone := range tc.gone {
					want = want && gone != name
				}
				if left[name] != want {
					t.Errorf("%s, %s: %s is there: %t, want %t", way.name, tc.flow, name, left[name], want)
				}
			}
		}
	}
}

// TestManyFlowsAreForgotten: of many flows each is found among other connections, by
// filters or in a list, and what is asked of the kernel does not grow with the flows.
func TestManyFlowsAreForgotten(t *testing.T) {
	node := nstest.NewNode(t)
	var steps []string
	h, err := ns.Open(node.Path(), &trace.Tracer{Before: func(step string) error { steps = append(steps, step); return nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	const ports = 12
	var v4, v6 []Flow // every other port, by what begins it and by what answers
	for i := range ports {
		of := Flow{Proto: unix.IPPROTO_UDP, OrigDst: addr(nstest.NodeV4), OrigPort: uint16(9000 + i)}
		answered := Flow{Proto: unix.IPPROTO_UDP, ReplySrc: addr(nstest.NodeV6), ReplyPort: uint16(9000 + i)}
		if i%4 == 0 {
			v4, v6 = append(v4, of), append(v6, answered)
		}
		if i%4 == 2 {
			v4, v6 = append(v4, Flow{Proto: of.Proto, OrigPort: of.OrigPort, ReplySrc: of.OrigDst}), append(v6, Flow{OrigDst: answered.ReplySrc, OrigPort: answered.ReplyPort})
		}
	}
	const listing, filter = "list conntrack and delete", "flush conntrack "
	for _, tc := range []struct {
		name            string
		flush           func(...Flow) error
		flows           []Flow
		lists, filtered int
	}{
		{"few of IPv4", func(f ...Flow) error { return FlushFlows(h, f...) }, v4[:fewFlows], 0, fewFlows},
		{"many of IPv4", func(f ...Flow) error { return FlushFlows(h, f...) }, v4, 1, 0},
		{"one of IPv6", func(f ...Flow) error { return FlushFlows(h, f...) }, v6[:1], 1, 0},
		{"many of both", func(f ...Flow) error { return FlushFlows(h, f...) }, slices.Concat(v6, v4), 2, 0},
		{"many, one by one", func(flows ...Flow) (err error) {
			for _, f := range flows {
				err = errors.Join(err, FlushFlows(h, f))
			}
			return err
		}, v4, 0, len(v4)},
		{"none that there is", func(f ...Flow) error { return FlushFlows(h, f...) }, slices.Repeat([]Flow{{OrigDst: addr("192.0.2.99")}}, 9), 1, 0},
	} {
		for i := range ports {
			for _, a := range []string{nstest.NodeV4, nstest.NodeV6} {
				_, _ = node.Exec("conntrack", "-I", "-p", "udp", "-t", "600", "-s", a, "-d", a, "--sport", "7", "--dport", fmt.Sprint(9000+i))
			}
		}
		if n := len(tracked(t, node)); n != 2*ports {
			t.Fatalf("%d connections, want %d", n, 2*ports)
		}
		steps = nil
		if err := tc.flush(tc.flows...); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		lists, filtered := count(steps, listing), count(steps, filter)
		old := tc.filtered > 0 && filtered > 0 && filtered == lists // before 6.11 a filter is tried, then comes the list
		if !old && (filtered != tc.filtered || lists != tc.lists) {
			t.Errorf("%s: %d lists and %d filters, want %d and %d: %q", tc.name, lists, filtered, tc.lists, tc.filtered, steps)
		}
		left := tracked(t, node)
		for i := range ports {
			for digit, a := range map[string]netip.Addr{"4": addr(nstest.NodeV4), "6": addr(nstest.NodeV6)} {
				port := uint16(9000 + i)
				conn := Flow{Proto: unix.IPPROTO_UDP, OrigSrc: a, OrigDst: a, OrigPort: port, ReplySrc: a, ReplyPort: port}
				gone := slices.ContainsFunc(tc.flows, func(f Flow) bool { return oneOf(f, conn) })
				if name := fmt.Sprintf("%s:%d", digit, port); left[name] == gone {
					t.Errorf("%s: %s is there: %t", tc.name, name, left[name])
				}
			}
		}
	}
}

// count is how many of the steps begin so.
func count(steps []string, prefix string) (n int) {
	for _, step := range steps {
		if strings.HasPrefix(step, prefix) {
			n++
		}
	}
	return n
}

// oneOf is what Flow says of itself: fields that are not zero are the connection's.
func oneOf(f, c Flow) bool {
	return (f.Proto == 0 || f.Proto == c.Proto) && (f.OrigPort == 0 || f.OrigPort == c.OrigPort) && (f.ReplyPort == 0 || f.ReplyPort == c.ReplyPort) &&
		(f.OrigSrc == netip.Addr{} || f.OrigSrc == c.OrigSrc) && (f.OrigDst == netip.Addr{} || f.OrigDst == c.OrigDst) && (f.ReplySrc == netip.Addr{} || f.ReplySrc == c.ReplySrc)
}

// TestFlowSet: with whichever fields set, a flow is found by these and by no others.
func TestFlowSet(t *testing.T) {
	whole := Flow{Proto: 17, OrigSrc: addr("192.0.2.1"), OrigDst: addr("192.0.2.2"), OrigPort: 80, ReplySrc: addr("192.0.2.3"), ReplyPort: 81}
	differing := map[shape]func(*Flow){
		hasProto:     func(f *Flow) { f.Proto = 6 },
		hasOrigSrc:   func(f *Flow) { f.OrigSrc = addr("192.0.2.9") },
		hasOrigDst:   func(f *Flow) { f.OrigDst = addr("::ffff:192.0.2.2") },
		hasOrigPort:  func(f *Flow) { f.OrigPort = 0 }, // as of ICMP
		hasReplySrc:  func(f *Flow) { f.ReplySrc = addr("2001:db8::3") },
		hasReplyPort: func(f *Flow) { f.ReplyPort = 82 },
	}
	for s := range shape(1 << len(differing)) {
		f := whole.in(s)
		if f.shape() != s {
			t.Errorf("shape %06b: its flow has %06b", s, f.shape())
		}
		// Others of each shape that lead elsewhere are in the way.
		flows := []Flow{f}
		for other := range shape(1 << len(differing)) {
			if other&hasOrigDst != 0 {
				g := whole.in(other)
				g.OrigDst = addr("192.0.2.77")
				flows = append(flows, g)
			}
		}
		for _, set := range []flowSet{newFlowSet([]Flow{f}), newFlowSet(flows)} {
			if !set.has(whole) {
				t.Errorf("shape %06b: not found", s)
			}
			for field, change := range differing {
				c := whole
				change(&c)
				if got, want := set.has(c), s&field == 0; got != want || want != oneOf(f, c) {
					t.Errorf("shape %06b, another field %06b: found %t, want %t", s, field, got, want)
				}
			}
		}
	}
	if newFlowSet(nil).has(whole) {
		t.Error("found in an empty set")
	}
}

// tracked are the UDP connections by family and port, as "4:53".
func tracked(t *testing.T, node *nstest.NS) map[string]bool {
	found := map[string]bool{}
	for family, digit := range map[string]string{"ipv4": "4", "ipv6": "6"} {
		for line := range strings.Lines(node.Must(t, "conntrack", "-L", "-p", "udp", "-f", family)) {
			_, rest, _ := strings.Cut(line, " dport=")
			port, _, _ := strings.Cut(rest, " ")
			found[digit+":"+port] = true
		}
	}
	return found
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }
