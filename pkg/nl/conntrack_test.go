package nl

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// TestDeleteFlowsDeletesOnlySelectedConnections checks that the kernel's filter and the list, which
// kernels before 6.11 always need, select the same connections by each field of a flow.
func TestDeleteFlowsDeletesOnlySelectedConnections(t *testing.T) {
	site := nstest.NewSite(t)
	site.Host.Must(t, "nft", "add table inet t; add chain inet t c { type nat hook prerouting priority -100; }; "+
		"add rule inet t c udp dport 8053 redirect to :53")
	for _, addr := range []string{nstest.HostV4, "[" + nstest.HostV6 + "]"} {
		for _, port := range []string{":53", ":80"} {
			nstest.ServeUDP(t, site.Host, addr+port)
		}
	}
	h := site.Host.Open(t, nil)

	for _, way := range []struct {
		name   string
		delete func(Flow) error
	}{
		{"a single flow", func(f Flow) error { return DeleteFlows(h, f) }},
		// Too many flows for a filtered deletion per flow.
		{"from a list", func(f Flow) error { return DeleteFlows(h, slices.Repeat([]Flow{f}, maxFilteredFlows+1)...) }},
	} {
		for _, tc := range []struct {
			flow Flow
			gone []string
		}{
			{Flow{Proto: unix.IPPROTO_UDP, OrigPort: 53}, []string{"4:53", "6:53"}},
			{Flow{Proto: unix.IPPROTO_UDP, OrigDst: addr(nstest.HostV4), OrigPort: 8053}, []string{"4:8053"}},
			{Flow{Proto: unix.IPPROTO_UDP, ReplySrc: addr(nstest.HostV6), ReplyPort: 53}, []string{"6:53", "6:8053"}},
			{Flow{Proto: unix.IPPROTO_UDP, OrigPort: 8053, ReplySrc: addr(nstest.HostV4), ReplyPort: 53}, []string{"4:8053"}},
			{Flow{Proto: unix.IPPROTO_UDP, OrigPort: 53, ReplySrc: addr(nstest.HostV4), ReplyPort: 8053}, nil},
			{Flow{Proto: unix.IPPROTO_TCP, OrigPort: 53}, nil},
			{Flow{OrigSrc: addr(nstest.OutsideV4)}, []string{"4:53", "4:80", "4:8053"}},
			{Flow{OrigDst: addr(nstest.OutsideV4)}, nil}, {Flow{OrigDst: addr("2001:db8:99::1")}, nil},
			{Flow{OrigDst: addr(nstest.HostV6)}, []string{"6:53", "6:80", "6:8053"}},
		} {
			for _, port := range []string{":53", ":80", ":8053"} {
				for _, a := range []string{nstest.HostV4, "[" + nstest.HostV6 + "]"} {
					if _, err := nstest.DialUDP(site.Outside, a+port); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := way.delete(tc.flow); err != nil {
				t.Errorf("%s, %s: %v", way.name, tc.flow.text(), err)
			}
			left := tracked(t, site.Host)
			for _, name := range []string{"4:53", "4:80", "4:8053", "6:53", "6:80", "6:8053"} {
				want := true
				for _, gone := range tc.gone {
					want = want && gone != name
				}
				if left[name] != want {
					t.Errorf("%s, %s: %s is there: %t, want %t", way.name, tc.flow.text(), name, left[name], want)
				}
			}
		}
	}
}

// TestDeleteFlowsWithManyFlows checks that DeleteFlows deletes the connections of each of many flows
// and no others, and that the number of its requests does not grow with the number of flows.
func TestDeleteFlowsWithManyFlows(t *testing.T) {
	host := nstest.NewHost(t)
	var steps []string
	h := host.Open(t, &trace.Tracer{Before: func(step string) error { steps = append(steps, step); return nil }})
	const ports = 12
	var v4, v6 []Flow // flows with every other port: v4 by the first packet, v6 by the reply
	for i := range ports {
		asked := Flow{Proto: unix.IPPROTO_UDP, OrigDst: addr(nstest.HostV4), OrigPort: uint16(9000 + i)}
		answered := Flow{Proto: unix.IPPROTO_UDP, ReplySrc: addr(nstest.HostV6), ReplyPort: uint16(9000 + i)}
		if i%4 == 0 {
			v4, v6 = append(v4, asked), append(v6, answered)
		}
		if i%4 == 2 {
			v4, v6 = append(v4, Flow{Proto: asked.Proto, OrigPort: asked.OrigPort, ReplySrc: asked.OrigDst}), append(v6, Flow{OrigDst: answered.ReplySrc, OrigPort: answered.ReplyPort})
		}
	}
	const list, filter = "list conntrack and delete", "delete conntrack "
	for _, tc := range []struct {
		name            string
		flows           []Flow
		lists, filtered int
	}{
		{"few of IPv4", v4[:maxFilteredFlows], 0, maxFilteredFlows},
		{"many of IPv4", v4, 1, 0},
		{"one of IPv6", v6[:1], 1, 0},
		{"many of both", slices.Concat(v6, v4), 2, 0},
		{"a few of IPv4 and many of IPv6", slices.Concat(v6, v4[:2]), 1, 2},
		{"no existing connection", slices.Repeat([]Flow{{OrigDst: addr("192.0.2.99")}}, 9), 1, 0},
	} {
		for i := range ports {
			for _, a := range []string{nstest.HostV4, nstest.HostV6} {
				_, _ = host.Exec("conntrack", "-I", "-p", "udp", "-t", "600", "-s", a, "-d", a, "--sport", "7", "--dport", fmt.Sprint(9000+i))
			}
		}
		if n := len(tracked(t, host)); n != 2*ports {
			t.Fatalf("%d connections, want %d", n, 2*ports)
		}
		steps = nil
		if err := DeleteFlows(h, tc.flows...); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		lists, filtered := count(steps, list), count(steps, filter)
		old := tc.filtered > 0 && filtered == 1 && lists == tc.lists+1 // before Linux 6.11: one failed filter, and then a list
		if !old && (filtered != tc.filtered || lists != tc.lists) {
			t.Errorf("%s: %d lists and %d filters, want %d and %d: %q", tc.name, lists, filtered, tc.lists, tc.filtered, steps)
		}
		left := tracked(t, host)
		for i := range ports {
			for digit, a := range map[string]netip.Addr{"4": addr(nstest.HostV4), "6": addr(nstest.HostV6)} {
				port := uint16(9000 + i)
				conn := Flow{Proto: unix.IPPROTO_UDP, OrigSrc: a, OrigDst: a, OrigPort: port, ReplySrc: a, ReplyPort: port}
				gone := slices.ContainsFunc(tc.flows, func(f Flow) bool { return f.matches(conn) })
				if name := fmt.Sprintf("%s:%d", digit, port); left[name] == gone {
					t.Errorf("%s: %s is there: %t", tc.name, name, left[name])
				}
			}
		}
	}
}

// TestDeleteFlowsWithoutConnectionTracking simulates a kernel without nfnetlink, which has no
// connections to delete.
func TestDeleteFlowsWithoutConnectionTracking(t *testing.T) {
	h := nstest.NewHost(t).Open(t, &trace.Tracer{Before: func(step string) error {
		if step == "open netlink socket" {
			return unix.EPROTONOSUPPORT
		}
		return nil
	}})
	if err := DeleteFlows(h, Flow{OrigSrc: addr("192.0.2.1")}); err != nil {
		t.Error(err)
	}
}

func count(steps []string, prefix string) (n int) {
	for _, step := range steps {
		if strings.HasPrefix(step, prefix) {
			n++
		}
	}
	return n
}

// tracked returns the tracked UDP connections by family and port, such as "4:53".
func tracked(t *testing.T, host *nstest.NS) map[string]bool {
	found := map[string]bool{}
	for family, digit := range map[string]string{"ipv4": "4", "ipv6": "6"} {
		for line := range strings.Lines(host.Must(t, "conntrack", "-L", "-p", "udp", "-f", family)) {
			_, rest, _ := strings.Cut(line, " dport=")
			port, _, _ := strings.Cut(rest, " ")
			found[digit+":"+port] = true
		}
	}
	return found
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }
