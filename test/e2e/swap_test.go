package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

// debian is where Debian 12's containernetworking-plugins are: the reference plugins
// in version 1.1.1 of July 2022, of CNI 1.0.0, without STATUS, GC and nftables.
const debian = "/usr/lib/cni"

// A bundle is one set of plugins.
type bundle string

const (
	reference bundle = "Debian's"
	plumb     bundle = "plumb's"
)

func (b bundle) folder() string {
	GinkgoHelper()
	if b == plumb {
		return nstest.Build(GinkgoTB(), "bridge", "ptp", "macvlan", "host-local", "portmap", "bandwidth", "tuning")
	}
	if _, err := os.Stat(filepath.Join(debian, "bridge")); err != nil {
		Fail(fmt.Sprintf("%v: scripts/test.sh installs the package containernetworking-plugins", err))
	}
	return debian
}

// A swap is a node whose plugins are swapped under its containers. Configuration,
// pool, runtime and the runtime's cache stay.
type swap struct {
	*cluster
	dir    string // of the configuration, and of what plugins keep
	text   string // the configuration
	mapped bool   // the network maps ports
	ports  int    // host ports given out
}

// newSwap makes a node with the network, in whose text DIR is the folder of the swap.
func newSwap(network string) *swap {
	GinkgoHelper()
	tb := GinkgoTB()
	s := &swap{cluster: &cluster{Site: nstest.NewSite(tb)}, dir: tb.TempDir(), mapped: strings.Contains(network, "portMappings")}
	s.leases = filepath.Join(s.dir, "leases")
	s.text = strings.ReplaceAll(network, "DIR", s.dir)
	s.list = list(s.text)
	return s
}

// under puts the plugins of the bundle in place.
func (s *swap) under(b bundle) {
	GinkgoHelper()
	s.from(b.folder())
}

func (s *swap) from(folder string) {
	s.cni = libcni.NewCNIConfigWithCacheDir([]string{folder}, filepath.Join(s.dir, "cache"),
		&onNode{RawExec: invoke.RawExec{Stderr: GinkgoWriter}, node: s.Node})
}

// attach attaches a container, with a host port of its own and limits for networks
// that take them.
func (s *swap) attach(id string) *pod {
	GinkgoHelper()
	p := newPod(id)
	s.ports++
	port := func(protocol string) map[string]any {
		return map[string]any{"hostPort": 8000 + s.ports, "containerPort": 80, "protocol": protocol}
	}
	p.rt.CapabilityArgs = map[string]any{
		"portMappings": []map[string]any{port("tcp"), port("udp")},
		"bandwidth":    map[string]any{"ingressRate": 80000000, "ingressBurst": 8000000, "egressRate": 80000000, "egressBurst": 8000000},
	}
	result, err := s.cni.AddNetworkList(context.Background(), s.list, p.rt)
	Expect(err).NotTo(HaveOccurred(), "ADD of %s", id)
	_, err = p.read(result)
	Expect(err).NotTo(HaveOccurred())
	return p
}

// populated attaches one container by each bundle, which stay throughout, after one
// that came and went: all that the node's containers share is there, of both makers.
func (s *swap) populated() []*pod {
	GinkgoHelper()
	var stay []*pod
	for _, b := range []bundle{reference, plumb} {
		s.under(b)
		Expect(s.gone(s.attach("came-and-went"), plain)).To(Succeed())
		stay = append(stay, s.attach("stays-"+strings.TrimSuffix(string(b), "'s")))
	}
	// The reference does not wait until its addresses can be used.
	for _, n := range []*nstest.NS{s.Node, stay[0].NS, stay[1].NS} {
		Eventually(func() string { return n.Must(GinkgoTB(), "ip", "-6", "address", "show", "tentative") }).Should(BeEmpty())
	}
	for i, p := range stay {
		for _, addr := range p.addrs() {
			s.reach(stay[1-i], nstest.ServeTCP(GinkgoTB(), p.NS, hostPort(addr)).String())
		}
		if s.mapped {
			s.serveMapped(p)
			s.reachMapped(p)
		}
	}
	return stay
}

func (s *swap) reach(from *pod, addr string) {
	GinkgoHelper()
	nstest.MustDial(GinkgoTB(), from.NS, addr, "")
}

// serveMapped serves where the host port leads.
func (s *swap) serveMapped(p *pod) {
	for _, addr := range p.addrs() {
		nstest.ServeTCP(GinkgoTB(), p.NS, strings.TrimSuffix(hostPort(addr), ":0")+":80")
	}
}

// reachMapped connects from outside to the pod's host port.
func (s *swap) reachMapped(p *pod) {
	GinkgoHelper()
	mapping := p.rt.CapabilityArgs["portMappings"].([]map[string]any)[0]
	nstest.MustDial(GinkgoTB(), s.Outside, fmt.Sprintf("%s:%d", nstest.NodeV4, mapping["hostPort"]), nstest.OutsideV4)
}

// addrs are the pod's addresses.
func (p *pod) addrs() []string {
	var all []string
	if p.v4.IsValid() {
		all = append(all, p.v4.String())
	}
	if p.v6.IsValid() {
		all = append(all, p.v6.String())
	}
	return all
}

// state is the cluster's, and what tuning keeps.
func (s *swap) state() string {
	return s.cluster.state() + "\n" + nstest.SnapshotDir(GinkgoTB(), filepath.Join(s.dir, "tuning"))
}

// gone deletes the attachment in one of the ways in which runtimes do.
func (s *swap) gone(p *pod, way string) error {
	GinkgoHelper()
	rt := *p.rt
	switch way {
	case late: // the sandbox is gone, as after a reboot of the container's runtime
		p.Remove(GinkgoTB())
		rt.NetNS = ""
	case forgotten: // the runtime has lost its cache: no prevResult
		Expect(os.RemoveAll(filepath.Join(s.dir, "cache"))).To(Succeed())
	}
	return s.del(&rt)
}

// The ways to lose a container.
const (
	plain     = "with all that is known"
	late      = "without a namespace"
	forgotten = "without prevResult"
)

var ways = []string{plain, late, forgotten}

const (
	pool4 = `"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.1.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}`
	pool  = `"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`
	port     = `{"type": "portmap", "capabilities": {"portMappings": true}}`
	portOld  = `{"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}}`
	tuned    = `{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}`
	limited  = `{"type": "bandwidth", "capabilities": {"bandwidth": true}}`
	gateway  = `"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true`
	bridged  = `{` + gateway + `, "ipMasq": true, ` + pool + `}`
	bridgeIP = `{` + gateway + `, "ipMasq": true, "ipMasqBackend": "iptables", ` + pool + `}`
	routed   = `{` + gateway + `, ` + pool + `}`
)

// chain is the list of the plugins. It is a 1.0.0 one, the newest that both know.
func chain(plugins ...string) string {
	return `{"cniVersion": "1.0.0", "name": "swap", "plugins": [` + strings.Join(plugins, ", ") + `]}`
}

// An exchange is a network, and what Debian's plugins do wrong with what plumb made.
type exchange struct {
	name     string
	network  string
	check    string   // the text with which their CHECK fails
	checkOwn string   // the same, of what they made themselves
	del      string   // the text with which their first DEL fails; the second succeeds
	left     []string // texts of the lines that they leave
	late     []string // those that they leave without a namespace
}

const (
	// Their DEL of an attachment without ipMasq's iptables chain.
	noChain = "Chain 'CNI-"
	// Of portmap 1.1.1: CHECK looks in ip6tables for the rules of IPv4.
	wrongFamily = "could not check ipv6 dnat"
	// Of tuning 1.1.1: CHECK does not replace IFNAME.
	noIfName = "conf/IFNAME/arp_filter"
	// Of bridge, to this day: CHECK asks for IPAM where there is none.
	noIPAM = "no plugin name provided"
)

var (
	// Elements of table inet plumb, which they do not know. They go with plumb's DEL or
	// GC, or with the table (README.md, "Swap a node").
	elements = []string{"nft element "}
	// The chains of ipMasq, which they find by the addresses in the container: without a
	// namespace they leave those of their own containers as well.
	chains = []string{"CNI-", "nft }", "nft \n", "nft ip saddr", "nft ip daddr", "nft ip6 saddr", "nft ip6 daddr"}
	// What tuning saved for DEL, as of their own containers.
	saved = []string{"_eth0.json"}
)

var exchanges = []exchange{
	{name: "bridge", network: chain(bridged), del: noChain, left: elements, late: elements},
	{name: "bridge, iptables", network: chain(bridgeIP), late: chains},
	{name: "bridge, no IPAM", network: chain(`{"type": "bridge", "bridge": "cni0"}`), check: noIPAM, checkOwn: noIPAM},
	{name: "ptp", network: chain(`{"type": "ptp", "ipMasq": true, ` + pool + `}`), del: noChain, left: elements, late: elements},
	{name: "macvlan", network: chain(`{"type": "macvlan", "master": "uplink0", ` + pool4 + `}`)},
	{name: "portmap", network: chain(routed, port), check: "chain CNI-DN-", checkOwn: wrongFamily, left: elements, late: elements},
	{name: "portmap, iptables", network: chain(bridgeIP, portOld), check: wrongFamily, checkOwn: wrongFamily, late: chains},
	{name: "portmap, IPv4", network: chain(`{`+gateway+`, `+pool4+`}`, portOld), check: wrongFamily, checkOwn: wrongFamily},
	{name: "bandwidth", network: chain(routed, limited)},
	{name: "tuning", network: chain(routed, tuned), check: noIfName, checkOwn: noIfName, late: saved},
	{name: "all of it", network: everything, check: wrongFamily, checkOwn: wrongFamily, late: slices.Concat(chains, saved)},
}

var everything = chain(bridgeIP, portOld, tuned, limited)

func entries() []TableEntry {
	var all []TableEntry
	for _, e := range exchanges {
		all = append(all, Entry(e.name, e))
	}
	return all
}

var _ = Describe("a node whose plugins are swapped", func() {
	DescribeTable("plumb serves what Debian's plugins made, to the end", func(e exchange) {
		s := newSwap(e.network)
		stay := s.populated()
		before := nstest.WaitStable(s.state)
		for id, way := range ways {
			By("a container to be deleted " + way)
			s.under(reference)
			p := s.attach(fmt.Sprint("p", id))
			s.under(plumb)
			Expect(s.check(p)).To(Succeed())
			Expect(s.gone(p, way)).To(Succeed())
			Expect(nstest.WaitEqual(before, s.state)).To(BeEmpty(), "left")
			Expect(s.del(p.rt)).To(Succeed(), "again")
		}
		for _, p := range stay {
			Expect(s.gone(p, plain)).To(Succeed())
		}
		Expect(s.reserved()).To(BeEmpty())
	}, entries())

	DescribeTable("Debian's plugins serve what plumb made, as far as they can", func(e exchange) {
		s := newSwap(e.network)
		stay := s.populated()
		before := nstest.WaitStable(s.state)
		s.under(reference)
		expectError(s.check(stay[0]), e.checkOwn)
		for id, way := range ways {
			By("a container to be deleted " + way)
			s.under(plumb)
			p := s.attach(fmt.Sprint("p", id))
			s.under(reference)
			expectError(s.check(p), e.check)
			if way == late {
				Expect(s.gone(p, way)).To(Succeed())
				s.expectLeft(before, e.late)
			} else {
				expectError(s.gone(p, way), e.del)
				Expect(s.del(p.rt)).To(Succeed(), "again, as every runtime tries it")
				s.expectLeft(before, e.left)
			}
			s.under(plumb)
			Expect(s.del(p.rt)).To(Succeed())
			Expect(nstest.WaitEqual(before, s.state)).To(BeEmpty(), "left after plumb's DEL")
		}
	}, entries())

	It("is served throughout while install.sh replaces the plugins, and puts them back", func() {
		s := newSwap(everything)
		bin, backup := filepath.Join(s.dir, "bin"), filepath.Join(s.dir, "backup")
		Expect(os.CopyFS(bin, os.DirFS(reference.folder()))).To(Succeed())
		stay := s.populated()
		before := nstest.WaitStable(s.state)
		s.from(bin)

		old := s.attach("old")
		installed := s.install(bin, "--from", plumb.folder(), "--backup", backup)
		Expect(installed).To(ContainSubstring("bridge       replaced"))
		Expect(s.check(old)).To(Succeed())
		young := s.attach("young")
		s.reach(young, nstest.ServeTCP(GinkgoTB(), old.NS, hostPort(old.v4.String())).String())

		s.install(bin, "--restore", backup)
		Expect(nstest.SnapshotDir(GinkgoTB(), bin)).To(Equal(nstest.SnapshotDir(GinkgoTB(), reference.folder())))
		s.reach(young, nstest.ServeTCP(GinkgoTB(), old.NS, hostPort(old.v6.String())).String())
		Expect(s.gone(young, plain)).To(Succeed())
		Expect(s.gone(old, plain)).To(Succeed())
		Expect(nstest.WaitEqual(before, s.state)).To(BeEmpty(), "left")
		for _, p := range stay {
			Expect(s.gone(p, plain)).To(Succeed())
		}
		Expect(s.reserved()).To(BeEmpty())
	})

	It("loses what only plumb knows with plumb's GC", func() {
		s := newSwap(chain(bridged, port))
		stay := s.populated()
		before := nstest.WaitStable(s.state)
		s.under(plumb)
		p := s.attach("p")
		s.under(reference)
		Expect(s.gone(p, late)).To(Succeed())
		s.expectLeft(before, elements)
		s.under(plumb)
		s.list = list(strings.Replace(s.text, `"1.0.0"`, `"1.1.0"`, 1)) // GC is of 1.1.0
		Expect(s.gc(stay...)).To(Succeed())
		Expect(nstest.WaitEqual(before, s.state)).To(BeEmpty(), "left")
	})
})

// install runs scripts/install.sh.
func (s *swap) install(args ...string) string {
	GinkgoHelper()
	out, err := exec.Command(filepath.Join(nstest.Root(GinkgoTB()), "scripts/install.sh"), args...).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	return string(out)
}

// expectError: err is nil if text is empty, else it has the text. A known bug that is
// gone is a failure too: the README tells people of it.
func expectError(err error, text string) {
	GinkgoHelper()
	if text == "" {
		Expect(err).NotTo(HaveOccurred())
		return
	}
	Expect(err).To(MatchError(ContainSubstring(text)))
}

// expectLeft: each line is new and one of those known to be left; and there are some.
func (s *swap) expectLeft(before string, known []string) {
	GinkgoHelper()
	if len(known) == 0 {
		Expect(nstest.WaitEqual(before, s.state)).To(BeEmpty(), "left")
		return
	}
	Eventually(func(g Gomega) { // what goes may go a little later
		diff := nstest.Compare(before, s.state())
		g.Expect(diff).NotTo(BeEmpty(), "nothing is left any more")
		for line := range strings.Lines(diff) {
			g.Expect(line).To(HavePrefix("+ "))
			g.Expect(slices.ContainsFunc(known, func(k string) bool { return strings.Contains(line, k) })).To(BeTrue(), "left: %s", line)
		}
	}).Should(Succeed())
}
