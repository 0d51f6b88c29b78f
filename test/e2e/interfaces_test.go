package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

// A story is a network, how a pod comes by its addresses there, and what reaches what.
type story struct {
	plugins string                         // of the list; VERSION and DIR are filled in
	ask     func(p *pod, nth int) []string // the addresses to be had; nil: any
	traffic func(c *cluster, a, b *pod)
}

// hostLocal is the pools of trafficFlows.
const hostLocal = `"ipam": {"type": "host-local", "dataDir": "DIR/leases",
	"ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]],
	"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`

var stories = map[string]story{
	"ptp with host-local": {
		plugins: `{"type": "ptp", "ipMasq": true, ` + hostLocal + `}`,
		ask:     pooled, traffic: trafficFlows,
	},
	"bridge with static": {
		plugins: `{"type": "bridge", "isDefaultGateway": true, "ipMasq": true, "capabilities": {"ips": true}, "ipam": {"type": "static"}}`,
		ask:     named("10.1.7.%d/16", "fd00:1::7:%d/64"), traffic: trafficFlows,
	},
	"macvlan with host-local": {
		plugins: `{"type": "macvlan", "master": "uplink0", "optimisticDAD": OPTIMISTIC, "ipam": {"type": "host-local", "dataDir": "DIR/leases",
			"ranges": [[{"subnet": "198.18.0.0/24", "rangeStart": "198.18.0.100"}], [{"subnet": "2001:db8:18::/64", "rangeStart": "2001:db8:18::100"}]]}}`,
		ask: pooled, traffic: onSegment,
	},
	"macvlan with static": {
		plugins: `{"type": "macvlan", "master": "uplink0", "optimisticDAD": true, "capabilities": {"ips": true}, "ipam": {"type": "static"}}`,
		ask:     named("198.18.0.7%d/24", "2001:db8:18::7:%d/64"), traffic: onSegment,
	},
}

// pooled leaves the addresses to host-local.
func pooled(*pod, int) []string { return nil }

// named gives pods by turns their addresses by the capability, as nerdctl --ip does,
// and by CNI_ARGS.
func named(v4, v6 string) func(p *pod, nth int) []string {
	return func(p *pod, nth int) []string {
		ips := []string{fmt.Sprintf(v4, nth), fmt.Sprintf(v6, nth)}
		if nth%2 == 1 {
			p.rt.CapabilityArgs = map[string]any{"ips": ips}
			return ips
		}
		p.rt.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", p.rt.ContainerID}, {"IP", strings.Join(ips, ",")}}
		return ips
	}
}

// onSegment: macvlans of one master reach each other and a neighbour of the master,
// and are reached, each under its own address. An optimistic IPv6 address asks for
// nobody while the detection goes on (RFC 4429, 3.3): it answers first, and that it
// reaches whom it does not know yet is left to one version.
func onSegment(c *cluster, a, b *pod) {
	GinkgoHelper()
	tb := GinkgoTB()
	for _, f := range []struct {
		a, b, outside string
		each          bool
	}{
		{a.v4.String(), b.v4.String(), nstest.OutsideV4, true},
		{a.v6.String(), b.v6.String(), nstest.OutsideV6, c.list.CNIVersion == "1.1.0"},
	} {
		for _, way := range []struct {
			from, to *nstest.NS
			at, seen string
			done     bool
		}{
			{c.Outside, a.NS, f.a, f.outside, true}, {c.Outside, b.NS, f.b, f.outside, true},
			{a.NS, c.Outside, f.outside, f.a, true}, {a.NS, b.NS, f.b, f.a, f.each},
		} {
			if way.done {
				nstest.MustDial(tb, way.from, nstest.ServeTCP(tb, way.to, hostPort(way.at)).String(), way.seen)
			}
		}
	}
}

// newNetwork makes a node with a network of these plugins, which may keep their files
// in DIR.
func newNetwork(cniVersion, plugins string) *cluster {
	GinkgoHelper()
	tb := GinkgoTB()
	dir := tb.TempDir()
	c := &cluster{Site: nstest.NewSite(tb), leases: filepath.Join(dir, "leases")}
	bin := nstest.Build(tb, "bridge", "ptp", "macvlan", "host-local", "static", "portmap", "bandwidth", "tuning")
	c.cni = libcni.NewCNIConfigWithCacheDir([]string{bin}, filepath.Join(dir, "cache"), c.exec())
	c.list = list(fmt.Sprintf(`{"cniVersion": %q, "name": "e2e", "plugins": [%s]}`,
		cniVersion, strings.ReplaceAll(plugins, "DIR", dir)))
	return c
}

func (c *cluster) exec() *onNode {
	return &onNode{RawExec: invoke.RawExec{Stderr: GinkgoWriter}, node: c.Node}
}

// forgetful does f with a runtime that has lost its cache: what libcni cannot delete
// from there is left to the plugins.
func (c *cluster) forgetful(f func() error) error {
	knowing := c.cni
	defer func() { c.cni = knowing }()
	c.cni = libcni.NewCNIConfigWithCacheDir(c.cni.Path, GinkgoTB().TempDir(), c.exec())
	return f()
}

// bare is all that a runtime knows that has lost the rest.
func bare(p *pod) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: p.rt.ContainerID, IfName: p.rt.IfName}
}

// checked: CHECK passes where the version has it.
func checked(c *cluster, cniVersion string, pods ...*pod) {
	GinkgoHelper()
	v, err := types.ParseVersion(cniVersion)
	Expect(err).NotTo(HaveOccurred())
	for _, p := range pods {
		if err := c.check(p); v >= types.V040 {
			Expect(err).NotTo(HaveOccurred())
		} else {
			Expect(err).To(MatchError(ContainSubstring("does not support the CHECK")))
		}
	}
}

func inEachVersion(since types.Version) []TableEntry {
	var all []TableEntry
	for _, v := range types.VersionsSince(since) {
		all = append(all, Entry(nil, v))
	}
	return all
}

var _ = Describe("interfaces", func() {
	for name, s := range stories {
		DescribeTable(name+" from ADD to DEL", func(cniVersion string) { s.tell(cniVersion) },
			EntryDescription("version %s"), inEachVersion(types.V010))
	}
})

func (s story) tell(cniVersion string) {
	GinkgoHelper()
	nstest.LeakCheck(GinkgoTB())
	// The detection of duplicates takes a second, and is the same in all versions.
	c := newNetwork(cniVersion, strings.ReplaceAll(s.plugins, "OPTIMISTIC", fmt.Sprint(cniVersion != "1.1.0")))
	pods := 0
	attached := func(id string) *pod {
		GinkgoHelper()
		p := newPod(id)
		pods++
		asked := s.ask(p, pods)
		Expect(c.add(p)).To(Succeed())
		if asked != nil {
			Expect(asked).To(HaveExactElements(HavePrefix(p.v4.String()+"/"), HavePrefix(p.v6.String()+"/")))
		}
		return p
	}
	Expect(c.cni.GetStatusNetworkList(context.Background(), c.list)).To(Succeed())
	stays := attached("stays") // what the node shares stands from here on
	before := nstest.WaitStable(c.state)

	a := attached("a")
	withA := nstest.WaitStable(c.state)
	b := attached("b")
	checked(c, cniVersion, a, b)
	s.traffic(c, a, b)

	By("GC")
	Expect(c.gc(stays, a, b)).To(Succeed())
	checked(c, cniVersion, a, b)
	s.traffic(c, a, b)
	if cniVersion == "1.1.0" {
		Expect(c.forgetful(func() error { return c.gc(stays, a) })).To(Succeed())
		Expect(nstest.WaitEqual(withA, c.state)).To(BeEmpty(), "what a GC without b left of it")
		checked(c, cniVersion, a)
	}

	By("DEL")
	for _, p := range []*pod{a, b} {
		Expect(c.del(p.rt)).To(Succeed())
		Expect(p.Exec("ip", "link", "show", "eth0")).Error().To(HaveOccurred())
		Expect(c.forgetful(func() error { return c.del(bare(p)) })).To(Succeed())
	}
	Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty(), "what the two left")

	By("DEL of a container that is gone, by a runtime that has lost all but its name")
	gone := attached("gone")
	gone.Remove(GinkgoTB())
	Expect(c.forgetful(func() error { return c.del(bare(gone)) })).To(Succeed())
	Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty(), "what the one that is gone left")
}
