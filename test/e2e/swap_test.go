package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// debianDir is the directory of Debian 12's package containernetworking-plugins.
const debianDir = "/usr/lib/cni"

// A bundle is a set of plugins.
type bundle string

const (
	debian bundle = "Debian's" // the reference plugins 1.1.1 of July 2022, for CNI 1.0.0, without STATUS, GC and nftables
	newest bundle = "newest"   // the reference plugins in the version of test/programs/reference/go.mod
	plumb  bundle = "plumb's"
)

func (b bundle) directory() string {
	GinkgoHelper()
	switch b {
	case plumb:
		return nstest.Build(GinkgoTB(), "bridge", "ptp", "macvlan", "host-local", "portmap", "bandwidth", "tuning", "firewall")
	case newest:
		return nstest.Reference(GinkgoTB())
	}
	if _, err := os.Stat(filepath.Join(debianDir, "bridge")); err != nil {
		Fail(fmt.Sprintf("%v; scripts/test.sh installs the package containernetworking-plugins", err))
	}
	return debianDir
}

// A swapHost is a host whose plugins are replaced while containers are attached. Configuration,
// reservations, libcni and its cache remain.
type swapHost struct {
	*testNetwork
	plugins      string // the plugins of the list
	hasHostPorts bool
	ports        int // the number of allocated host ports
}

// newSwapHost returns a new host with the network. Its version is 1.0.0, the newest version that both bundles
// support.
func newSwapHost(plugins string) *swapHost {
	GinkgoHelper()
	return &swapHost{testNetwork: newNetwork("1.0.0", plugins), plugins: plugins, hasHostPorts: strings.Contains(plugins, "portMappings")}
}

// use configures libcni to call the plugins of the bundle.
func (s *swapHost) use(b bundle) {
	GinkgoHelper()
	s.useDirectory(b.directory())
}

// useDirectory configures libcni to call the plugins in a directory, with a cache in Dir.
func (network *testNetwork) useDirectory(directory string) {
	network.Use(directory, filepath.Join(network.Dir, "cache"))
}

// addContainer calls ADD for a new container. The capability arguments contain a separate host port and
// bandwidth limits.
func (s *swapHost) addContainer(id string) *container {
	GinkgoHelper()
	p := cnitest.NewContainer(id)
	s.ports++
	port := func(protocol string) map[string]any {
		return map[string]any{"hostPort": 8000 + s.ports, "containerPort": 80, "protocol": protocol}
	}
	p.RT.CapabilityArgs = map[string]any{
		"portMappings": []map[string]any{port("tcp"), port("udp")},
		"bandwidth":    map[string]any{"ingressRate": 80000000, "ingressBurst": 8000000, "egressRate": 80000000, "egressBurst": 8000000},
	}
	Expect(s.Add(p)).To(Succeed())
	return p
}

// addContainerOfEachBundle adds a container with the reference plugins and one with plumb, after it has added and deleted a first one.
// This creates the objects that the containers of each bundle share.
func (s *swapHost) addContainerOfEachBundle(reference bundle) []*container {
	GinkgoHelper()
	var existing []*container
	for _, b := range []bundle{reference, plumb} {
		s.use(b)
		Expect(s.deleteContainer(s.addContainer("first"), withEverything)).To(Succeed())
		existing = append(existing, s.addContainer("existing-"+strings.TrimSuffix(string(b), "'s")))
	}
	// The reference plugins do not wait for duplicate address detection.
	for _, n := range []*nstest.NS{s.Host, existing[0].NS, existing[1].NS} {
		Eventually(func() string { return n.Must(GinkgoTB(), "ip", "-6", "address", "show", "tentative") }).Should(BeEmpty())
	}
	for i, p := range existing {
		for _, addr := range p.Addrs() {
			s.dial(existing[1-i], nstest.ServeTCP(GinkgoTB(), p.NS, withAnyPort(addr)).String())
		}
		if s.hasHostPorts {
			serveHostPort(p)
			s.dialHostPort(p)
		}
	}
	return existing
}

func (s *swapHost) dial(from *container, addr string) {
	GinkgoHelper()
	nstest.MustDial(GinkgoTB(), from.NS, addr, "")
}

// dialHostPort connects from outside to the container's host port.
func (s *swapHost) dialHostPort(p *container) {
	GinkgoHelper()
	mapping := p.RT.CapabilityArgs["portMappings"].([]map[string]any)[0]
	nstest.MustDial(GinkgoTB(), s.Outside, fmt.Sprintf("%s:%d", nstest.HostV4, mapping["hostPort"]), nstest.OutsideV4)
}

// deleteContainer calls DEL in one of the ways that runtimes use.
func (s *swapHost) deleteContainer(p *container, way string) error {
	GinkgoHelper()
	rt := *p.RT
	switch way {
	case withoutNetns: // without the namespace, as after a reboot
		p.Remove(GinkgoTB())
		rt.NetNS = ""
	case withoutPrevResult: // as if the runtime lost its cache
		Expect(os.RemoveAll(filepath.Join(s.Dir, "cache"))).To(Succeed())
	}
	return s.Del(&container{NS: p.NS, RT: &rt})
}

// These are the ways to call DEL.
const (
	withEverything    = "with namespace and prevResult"
	withoutNetns      = "without namespace"
	withoutPrevResult = "without prevResult"
)

// waysOf returns the ways that the test with this number tries, which are one of them or, with all faults, all of them. The
// tests together try each way with each set of plugins.
func waysOf(test int) []string {
	all := []string{withEverything, withoutNetns, withoutPrevResult}
	if nstest.AllFaults() {
		return all
	}
	return all[test%len(all):][:1]
}

const (
	ipamIPv4      = `"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.1.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}`
	ipamDualStack = `"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`
	portmap            = `{"type": "portmap", "capabilities": {"portMappings": true}}`
	portmapIPTables    = `{"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}}`
	tuning             = `{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}`
	firewallIPTables   = `{"type": "firewall", "backend": "iptables"}`
	bandwidthPlugin    = `{"type": "bandwidth", "capabilities": {"bandwidth": true}}`
	gatewayKeys        = `"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true`
	bridgeMasq         = `{` + gatewayKeys + `, "ipMasq": true, ` + ipamDualStack + `}`
	bridgeMasqIPTables = `{` + gatewayKeys + `, "ipMasq": true, "ipMasqBackend": "iptables", ` + ipamDualStack + `}`
	bridgeWithoutMasq  = `{` + gatewayKeys + `, ` + ipamDualStack + `}`
)

// listOf returns the plugins of a list.
func listOf(plugins ...string) string { return strings.Join(plugins, ", ") }

// A swapCase is a network, and what the reference plugins cannot do with attachments that plumb created.
type swapCase struct {
	name             string
	network          string
	check            string   // a text in the error of the newest CHECK; "" if CHECK succeeds
	old              *oldCase // not nil if the case is tested with Debian's plugins as well
	left             []string // texts in the lines of the state that the reference plugins' DEL leaves
	leftWithoutNetns []string // the same for a DEL without a namespace
	leftByPlumb      []string // the same for plumb's DEL without prevResult of attachments that the reference plugins created
}

// An oldCase lists errors of the reference plugins 1.1.1, each as a text in the error, or "" for none.
type oldCase struct {
	check    string // CHECK of an attachment that plumb created
	checkOwn string // CHECK of an attachment that these plugins created
	del      string // the first DEL; the second DEL succeeds
}

const (
	// noChain is the error of DEL for an attachment without ipMasq's iptables chain.
	noChain = "Chain 'CNI-"
	// noPortChain is the error of CHECK of portmap, which does not know plumb's nftables elements.
	noPortChain = "chain CNI-DN-"
	// wrongFamily is an error of CHECK of portmap, which looks for the IPv4 rules in ip6tables.
	wrongFamily = "could not check ipv6 dnat"
	// noIfName is an error of CHECK of tuning, which does not replace IFNAME.
	noIfName = "conf/IFNAME/arp_filter"
)

var (
	// nftElements matches elements of table inet plumb, which the reference plugins do not know. plumb's DEL or GC
	// deletes the elements. Another way is to delete the table (docs/how-to/migration.md, "Go back").
	nftElements = []string{"nft element "}
	// masqChains matches the iptables chains of ipMasq. The reference plugins find them by the addresses in
	// the container. Without a namespace, they leave even the chains that they created themselves.
	masqChains = []string{"CNI-", "nft }", "nft \n", "nft ip saddr", "nft ip daddr", "nft ip6 saddr", "nft ip6 daddr"}
	// firewallRules matches a container's rules. The reference plugin does not know the rule that names the
	// container, and finds the other rules only by prevResult, even the rules that it created itself.
	firewallRules = []string{"CNI-FORWARD", "nft ip saddr", "nft ip daddr", "nft ip6 saddr", "nft ip6 daddr"}
	// tuningFiles matches tuning's state files. The reference plugin leaves even the files that it created itself.
	tuningFiles = []string{"_eth0.json"}
)

var swapCases = []swapCase{
	{name: "bridge", network: listOf(bridgeMasq), old: &oldCase{del: noChain}, left: nftElements, leftWithoutNetns: nftElements},
	{name: "bridge, iptables", network: listOf(bridgeMasqIPTables), leftWithoutNetns: masqChains},
	{name: "bridge without IPAM", network: listOf(`{"type": "bridge", "bridge": "cni0"}`)},
	{name: "ptp", network: listOf(`{"type": "ptp", "ipMasq": true, ` + ipamDualStack + `}`), left: nftElements, leftWithoutNetns: nftElements},
	{name: "macvlan", network: listOf(`{"type": "macvlan", "master": "uplink0", ` + ipamIPv4 + `}`)},
	{name: "portmap", network: listOf(bridgeWithoutMasq, portmap), check: noPortChain, old: &oldCase{check: noPortChain, checkOwn: wrongFamily}, left: nftElements, leftWithoutNetns: nftElements},
	{name: "portmap, iptables", network: listOf(bridgeMasqIPTables, portmapIPTables), leftWithoutNetns: masqChains},
	{name: "portmap, IPv4", network: listOf(`{`+gatewayKeys+`, `+ipamIPv4+`}`, portmapIPTables)},
	{name: "bandwidth", network: listOf(bridgeWithoutMasq, bandwidthPlugin)},
	{name: "tuning", network: listOf(bridgeWithoutMasq, tuning), old: &oldCase{check: noIfName, checkOwn: noIfName}, leftWithoutNetns: tuningFiles},
	{name: "firewall, iptables", network: listOf(bridgeWithoutMasq, firewallIPTables), left: firewallRules, leftWithoutNetns: firewallRules, leftByPlumb: firewallRules},
	{name: "the whole chain", network: fullList, old: &oldCase{check: wrongFamily, checkOwn: wrongFamily}, leftWithoutNetns: slices.Concat(masqChains, tuningFiles)},
}

var fullList = listOf(bridgeMasqIPTables, portmapIPTables, tuning, bandwidthPlugin)

func swapEntries() []TableEntry {
	var all []TableEntry
	for i, e := range swapCases {
		all = append(all, Entry(e.name+", newest", newest, i, e, oldCase{check: e.check}))
		if e.old != nil {
			all = append(all, Entry(e.name+", Debian's", debian, i+1, e, *e.old))
		}
	}
	return all
}

var _ = Describe("on a host whose plugins are replaced", func() {
	DescribeTable("plumb restores what another program deletes of a container that the reference plugins attached", func(id, list string) {
		s := newSwapHost(list)
		s.use(newest)
		p := s.addContainer(id)
		s.use(plumb)
		Expect(s.Check(p)).To(Succeed())
		s.Host.Must(GinkgoTB(), "nft", "flush", "ruleset")
		Expect(s.Check(p)).To(MatchError(ContainSubstring("masquerade")))
		Expect(s.tool("repair")).To(ContainSubstring("repaired 1, left 0, "))
		Expect(s.Check(p)).To(Succeed())
		nstest.MustDial(GinkgoTB(), p.NS, nstest.ServeTCP(GinkgoTB(), s.Outside, withAnyPort(nstest.OutsideV4)).String(), nstest.HostV4)
		Expect(s.Del(p)).To(Succeed())
		Expect(nstest.Snapshot(GinkgoTB(), s.Host)).NotTo(ContainSubstring(id + "/"))
	},
		Entry("bridge", "on-bridge", listOf(bridgeMasq)),
		Entry("ptp", "on-ptp", listOf(`{"type": "ptp", "ipMasq": true, `+ipamDualStack+`}`)),
	)

	DescribeTable("plumb and the reference plugins check and delete each other's attachments, except for known errors", func(reference bundle, test int, e swapCase, known oldCase) {
		s := newSwapHost(e.network)
		existing := s.addContainerOfEachBundle(reference)
		before := nstest.WaitStable(s.state)
		s.use(reference)
		expectError(s.Check(existing[0]), known.checkOwn)
		for id, way := range waysOf(test) {
			By("the reference plugins delete a container " + way)
			s.use(plumb)
			p := s.addContainer(fmt.Sprint("plumbs", id))
			s.use(reference)
			expectError(s.Check(p), known.check)
			if way == withoutNetns {
				Expect(s.deleteContainer(p, way)).To(Succeed())
				s.expectLeft(before, e.leftWithoutNetns)
			} else {
				expectError(s.deleteContainer(p, way), known.del)
				Expect(s.Del(p)).To(Succeed(), "second DEL, which all runtimes call")
				s.expectLeft(before, e.left)
			}
			s.use(plumb)
			Expect(s.Del(p)).To(Succeed())
			Expect(nstest.WaitEqual(before, s.state)).To(BeEmpty(), "objects remain after plumb's DEL")
		}
		for id, way := range waysOf(test + 1) {
			By("plumb deletes a container " + way)
			s.use(reference)
			p := s.addContainer(fmt.Sprint("references", id))
			s.use(plumb)
			Expect(s.Check(p)).To(Succeed())
			Expect(s.deleteContainer(p, way)).To(Succeed())
			if way == withoutPrevResult {
				s.expectLeft(before, e.leftByPlumb)
			} else {
				s.expectLeft(before, nil)
			}
			Expect(s.Del(p)).To(Succeed(), "second DEL")
		}
		for _, p := range existing {
			Expect(s.deleteContainer(p, withEverything)).To(Succeed())
		}
		Expect(s.reservations()).To(BeEmpty())
	}, swapEntries())

	It("containers can be added and deleted while plumb install replaces and restores the plugins", func() {
		s := newSwapHost(fullList)
		bin, backup := filepath.Join(s.Dir, "bin"), filepath.Join(s.Dir, "backup")
		Expect(os.CopyFS(bin, os.DirFS(newest.directory()))).To(Succeed())
		existing := s.addContainerOfEachBundle(newest)
		before := nstest.WaitStable(s.state)
		s.useDirectory(bin)

		old := s.addContainer("old")
		installed := s.install("--to", bin, "--from", plumb.directory(), "--backup", backup)
		Expect(installed).To(MatchRegexp("bridge +replaced"))
		Expect(s.Check(old)).To(Succeed())
		added := s.addContainer("new")
		s.dial(added, nstest.ServeTCP(GinkgoTB(), old.NS, withAnyPort(old.V4.String())).String())

		restored := s.install("--to", bin, "--restore", backup)
		executables, err := os.ReadDir(bin)
		Expect(err).NotTo(HaveOccurred())
		for _, e := range executables {
			if _, err := os.Stat(filepath.Join(newest.directory(), e.Name())); errors.Is(err, fs.ErrNotExist) { // the reference plugins lack it
				Expect(restored).To(MatchRegexp(`(?m)^  %s +stays$`, e.Name()))
				Expect(os.Remove(filepath.Join(bin, e.Name()))).To(Succeed())
			}
		}
		references, err := os.ReadDir(newest.directory())
		Expect(err).NotTo(HaveOccurred())
		for _, e := range references {
			same := nstest.ReadFile(GinkgoTB(), filepath.Join(bin, e.Name())) == nstest.ReadFile(GinkgoTB(), filepath.Join(newest.directory(), e.Name()))
			Expect(same).To(BeTrue(), "%s differs from the reference plugin", e.Name()) // Equal would print the executables
		}
		s.dial(added, nstest.ServeTCP(GinkgoTB(), old.NS, withAnyPort(old.V6.String())).String())
		Expect(s.deleteContainer(added, withEverything)).To(Succeed())
		Expect(s.deleteContainer(old, withEverything)).To(Succeed())
		Expect(nstest.WaitEqual(before, s.state)).To(BeEmpty(), "left")
		for _, p := range existing {
			Expect(s.deleteContainer(p, withEverything)).To(Succeed())
		}
		Expect(s.reservations()).To(BeEmpty())
	})

	It("plumb's GC removes all of plumb's elements", func() {
		s := newSwapHost(listOf(bridgeMasq, portmap))
		existing := s.addContainerOfEachBundle(newest)
		before := nstest.WaitStable(s.state)
		s.use(plumb)
		p := s.addContainer("p")
		s.use(newest)
		Expect(s.deleteContainer(p, withoutNetns)).To(Succeed())
		s.expectLeft(before, nftElements)
		s.use(plumb)
		s.SetList("1.1.0", s.List.Name, s.plugins) // GC exists since 1.1.0
		Expect(s.GC(existing...)).To(Succeed())
		Expect(nstest.WaitEqual(before, s.state)).To(BeEmpty(), "left")
	})
})

func (s *swapHost) install(args ...string) string {
	GinkgoHelper()
	tool := filepath.Join(nstest.Build(GinkgoTB(), "plumb"), "plumb")
	out, err := exec.Command(tool, append([]string{"install"}, args...)...).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	return string(out)
}

// expectError expects an error with this text, or no error if text is empty. If a known error does not occur,
// the test fails, because a page describes the error.
func expectError(err error, text string) {
	GinkgoHelper()
	if text == "" {
		Expect(err).NotTo(HaveOccurred())
		return
	}
	Expect(err).To(MatchError(ContainSubstring(text)))
}

// expectLeft expects new lines in the state, each with one of the known texts.
func (s *swapHost) expectLeft(before string, known []string) {
	GinkgoHelper()
	if len(known) == 0 {
		Expect(nstest.WaitEqual(before, s.state)).To(BeEmpty(), "left")
		return
	}
	Eventually(func(g Gomega) { // the kernel deletes some objects asynchronously
		diff := nstest.Compare(before, s.state())
		g.Expect(diff).NotTo(BeEmpty(), "nothing is left")
		for line := range strings.Lines(diff) {
			g.Expect(line).To(HavePrefix("+ "))
			g.Expect(slices.ContainsFunc(known, func(k string) bool { return strings.Contains(line, k) })).To(BeTrue(), "left: %s", line)
		}
	}).Should(Succeed())
}
