package nl

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/pkg/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/pkg/ns"
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
