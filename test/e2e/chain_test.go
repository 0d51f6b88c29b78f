package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

// kubelets is the chain of the list that containerd's documentation gives a node, and
// tuning.
const kubelets = `
	{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "BACKEND", "hairpinMode": true,
		"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]}},
	{"type": "portmap", "backend": "BACKEND", "snat": true, "capabilities": {"portMappings": true}},
	{"type": "bandwidth", "capabilities": {"bandwidth": true}},
	{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}`

// The capabilities as containerd passes them: its structs have no JSON tags, so that
// the keys are capitalised.
type (
	portMapping struct {
		HostPort, ContainerPort int32
		Protocol, HostIP        string
	}
	bandwidth struct{ IngressRate, IngressBurst, EgressRate, EgressBurst uint64 }
)

// A fullChain is a cluster whose pods have a host port each, and limits.
type fullChain struct {
	*cluster
	backend string
	ports   int32 // host ports given out
}

const firstPort = 8000

func newFullChain(cniVersion, backend string) *fullChain {
	GinkgoHelper()
	return &fullChain{cluster: newNetwork(cniVersion, strings.ReplaceAll(kubelets, "BACKEND", backend)), backend: backend}
}

// pod is one that is not attached yet, and its host port, which leads to port 80.
func (c *fullChain) pod(id string) (*pod, int32) {
	GinkgoHelper()
	p := newPod(id)
	c.ports++
	port := firstPort + c.ports
	p.rt.CapabilityArgs = map[string]any{
		"portMappings": []portMapping{{port, 80, "tcp", ""}, {port, 80, "udp", ""}},
		"bandwidth":    bandwidth{80_000_000, 4294967295, 40_000_000, 4294967295},
	}
	return p, port
}

func (c *fullChain) attached(id string) (*pod, int32) {
	GinkgoHelper()
	p, port := c.pod(id)
	Expect(c.add(p)).To(Succeed())
	return p, port
}

// state is the cluster's, and what tuning keeps.
func (c *fullChain) state() string {
	return c.cluster.state() + "\n" + nstest.SnapshotDir(GinkgoTB(), filepath.Join(filepath.Dir(c.leases), "tuning"))
}

// answers: the host port leads to p, over both protocols and families, from everywhere.
func (c *fullChain) answers(p, other *pod, port int32) {
	GinkgoHelper()
	const gateway4, gateway6 = "10.1.0.1", "fd00:1::1"
	for _, addr := range []string{p.v4.String() + ":80", "[" + p.v6.String() + "]:80"} {
		nstest.ServeTCP(GinkgoTB(), p.NS, addr)
		nstest.ServeUDP(GinkgoTB(), p.NS, addr)
	}
	for _, way := range []struct {
		what     string
		from     *nstest.NS
		at, seen string // seen empty: any address
	}{
		{"from outside", c.Outside, nstest.NodeV4, nstest.OutsideV4},
		{"from outside", c.Outside, nstest.NodeV6, nstest.OutsideV6},
		{"from another pod", other.NS, nstest.NodeV4, gateway4},
		{"from another pod", other.NS, nstest.NodeV6, gateway6},
		{"from another pod, at its gateway", other.NS, gateway4, gateway4},
		{"from another pod, at its gateway", other.NS, gateway6, gateway6},
		{"from the node", c.Node, nstest.NodeV4, ""},
		{"from the node", c.Node, nstest.NodeV6, ""},
		{"from the node's 127.0.0.1", c.Node, "127.0.0.1", gateway4},
		{"from the pod itself", p.NS, nstest.NodeV4, gateway4},
		{"from the pod itself", p.NS, nstest.NodeV6, gateway6},
	} {
		addr, local := fmt.Sprintf("%s:%d", way.at, port), p.v4
		if strings.Contains(way.at, ":") {
			addr, local = fmt.Sprintf("[%s]:%d", way.at, port), p.v6
		}
		for protocol, ask := range map[string]func(*nstest.NS, string) (string, error){"TCP": nstest.Dial, "UDP": nstest.DialUDP} {
			reply, err := ask(way.from, addr)
			Expect(err).NotTo(HaveOccurred(), "%s %s, %s", protocol, addr, way.what)
			Expect(reply).To(HaveSuffix(" local="+local.String()), "%s %s, %s", protocol, addr, way.what)
			Expect(reply).To(HavePrefix("peer="+way.seen), "%s %s, %s", protocol, addr, way.what)
		}
	}
}

// limited: bandwidth and tuning have done what the chain asks of them.
func (c *fullChain) limited(p *pod) {
	GinkgoHelper()
	qdiscs := c.Node.Must(GinkgoTB(), "tc", "qdisc", "show")
	Expect(qdiscs).To(ContainSubstring(" rate 80Mbit burst 500000b "), "50 ms of the rate, whatever containerd says")
	Expect(qdiscs).To(ContainSubstring(" rate 40Mbit burst 250000b "))
	Expect(p.Must(GinkgoTB(), "ip", "link", "show", "eth0")).To(ContainSubstring(" mtu 1400 "))
	Expect(p.Sysctl(GinkgoTB(), "net/ipv4/conf/eth0/arp_filter")).To(Equal("1"))
}

// tell is the life of the chain's pods.
func (c *fullChain) tell(cniVersion string) {
	GinkgoHelper()
	Expect(c.cni.GetStatusNetworkList(context.Background(), c.list)).To(Succeed())
	stays, _ := c.attached("stays")
	before := nstest.WaitStable(c.state)

	a, port := c.attached("a")
	withA := nstest.WaitStable(c.state)
	b, _ := c.attached("b")
	checked(c.cluster, cniVersion, a, b)
	c.limited(a)
	c.answers(a, b, port)
	trafficFlows(c.cluster, a, b)

	By("GC")
	Expect(c.gc(stays, a, b)).To(Succeed())
	checked(c.cluster, cniVersion, a, b)
	if cniVersion == "1.1.0" {
		b.Remove(GinkgoTB())
		Expect(c.forgetful(func() error { return c.gc(stays, a) })).To(Succeed())
		Expect(nstest.WaitEqual(withA, c.state)).To(BeEmpty(), "what a GC without b left of it")
		checked(c.cluster, cniVersion, a)
	}

	By("DEL")
	for _, p := range []*pod{a, b} {
		Expect(c.del(p.rt)).To(Succeed())
		Expect(c.forgetful(func() error { return c.del(bare(p)) })).To(Succeed())
	}
	Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty(), "what the two left")
	_, err := nstest.Dial(c.Outside, fmt.Sprintf("%s:%d", nstest.NodeV4, port))
	Expect(err).To(HaveOccurred(), "a port that is given back")

	By("DEL by a runtime that has lost all but the name")
	lost, _ := c.attached("lost")
	Expect(c.forgetful(func() error { return c.del(bare(lost)) })).To(Succeed())
	Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty(), "what the lost one left")
}

// stripped starts plugins where there is no iptables, no nft and no other program of
// /usr/sbin, in PATH or out of it.
type stripped struct {
	onNode
	script string
}

func (s *stripped) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	return s.onNode.ExecPlugin(ctx, s.script, stdin, append(environ, "PLUGIN="+path))
}

// strip takes the programs away from the plugins of the chain.
func (c *fullChain) strip() {
	GinkgoHelper()
	dir := GinkgoTB().TempDir()
	script := filepath.Join(dir, "stripped")
	Expect(os.WriteFile(script, []byte(`#!/bin/sh -e
exec unshare --mount sh -ec '
	for dir in /usr/sbin /usr/local/sbin; do mount -t tmpfs none $dir; done
	PATH=/nonexistent
	! command -v iptables-save nft
	exec "$PLUGIN"'
`), 0o755)).To(Succeed())
	c.cni = libcni.NewCNIConfigWithCacheDir(c.cni.Path, filepath.Join(dir, "cache"), &stripped{*c.exec(), script})
}

var _ = Describe("the chain that kubelet's list runs", func() {
	DescribeTable("from ADD to DEL", func(cniVersion, backend string) {
		nstest.LeakCheck(GinkgoTB())
		newFullChain(cniVersion, backend).tell(cniVersion)
	}, EntryDescription("version %s, %s"), func() (all []TableEntry) {
		for _, v := range types.VersionsSince(types.V031) {
			all = append(all, Entry(nil, v, "nftables"))
		}
		return append(all, Entry(nil, "0.4.0", "iptables"), Entry(nil, "1.1.0", "iptables"))
	}())

	It("needs no program", func() {
		nstest.LeakCheck(GinkgoTB())
		c := newFullChain("1.1.0", "nftables")
		c.strip()
		c.tell("1.1.0")
	})

	It("says which program the iptables backend needs", func() {
		c := newFullChain("1.1.0", "iptables")
		c.strip()
		p, _ := c.pod("p")
		err := c.add(p)
		Expect(err).To(MatchError(ContainSubstring("iptables")))
		Expect(code(err)).To(BeEquivalentTo(types.CodeConfig))
		Expect(c.reserved()).To(BeEmpty())
	})

	It("serves 60 pods, 16 at a time, and takes them all away", func() {
		nstest.LeakCheck(GinkgoTB())
		c := newFullChain("1.1.0", "nftables")
		c.attached("stays")
		before := nstest.WaitStable(c.state)
		pods := make([]*pod, 60)
		for i := range pods {
			pods[i], _ = c.pod(fmt.Sprintf("pod%d", i))
		}
		Expect(atOnce(16, pods, c.add)).To(BeEmpty())
		Expect(nstest.Compare(shared(before), shared(c.state()))).To(BeEmpty(), "what the node shares, once")
		Expect(c.reserved()).To(HaveLen(2 * 61))
		Expect(atOnce(16, pods, c.check)).To(BeEmpty())
		for i, p := range pods {
			nstest.ServeTCP(GinkgoTB(), p.NS, p.v4.String()+":80")
			reply, err := nstest.Dial(c.Outside, fmt.Sprintf("%s:%d", nstest.NodeV4, firstPort+2+i)) // "stays" has the first
			Expect(err).NotTo(HaveOccurred())
			Expect(reply).To(Equal("peer=" + nstest.OutsideV4 + " local=" + p.v4.String()))
		}
		Expect(atOnce(16, pods, func(p *pod) error { return c.del(p.rt) })).To(BeEmpty())
		Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty())
	})
})

// shared are the lines of a state that do not tell of one attachment: tables, chains
// and rules, and the bridge.
func shared(state string) string {
	var lines []string
	for line := range strings.SplitSeq(state, "\n") {
		if strings.HasPrefix(line, "node: nft ") && !strings.HasPrefix(line, "node: nft element ") || strings.HasPrefix(line, "node: link cni0 ") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}
