package e2e

import (
	"net"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// served contains the addresses that both routers serve, with the container's address of the family.
var served = []struct{ addr, container string }{{"203.0.113.1", "10.1.0.100"}, {"2001:db8:113::1", "fd00:1::100"}}

// newRouters connects two routers to the bridge cni0 of the host. Each has its own addresses on the bridge, 10.1.0.N and
// fd00:1::N for N = 11 and 12, and both have the served addresses.
func newRouters(host *nstest.NS) (routers []*nstest.NS) {
	GinkgoHelper()
	tb := GinkgoTB()
	host.Batch(tb, "link add cni0 type bridge", "link set cni0 up")
	for _, n := range []string{"11", "12"} {
		router := nstest.NewHost(tb).Named("router" + n)
		nstest.Join(tb, nstest.End{In: router, Name: "uplink0", Addrs: []string{"10.1.0." + n + "/16", "fd00:1::" + n + "/64", served[0].addr + "/32", served[1].addr + "/128"}}, nstest.End{In: host, Name: "port" + n})
		host.Batch(tb, "link set port"+n+" master cni0")
		for _, s := range served {
			nstest.ServeTCP(tb, router, net.JoinHostPort(s.addr, "80"))
		}
		routers = append(routers, router)
	}
	return routers
}

// accepted returns how many TCP connections a router has accepted.
func accepted(router *nstest.NS) int {
	GinkgoHelper()
	var header []string
	for line := range strings.SplitSeq(router.Must(GinkgoTB(), "cat", "/proc/net/snmp"), "\n") {
		fields := strings.Fields(line)
		for i, name := range header {
			if name == "PassiveOpens" && fields[0] == "Tcp:" {
				n, err := strconv.Atoi(fields[i])
				Expect(err).NotTo(HaveOccurred())
				return n
			}
		}
		header = fields
	}
	Fail("/proc/net/snmp has no PassiveOpens")
	return 0
}

// expectRouters opens 64 connections to each served address, and compares the routers that accepted connections. With two
// routers, the probability that one of them gets no connection to an address is 2^-63.
func expectRouters(container *nstest.NS, routers []*nstest.NS, want ...bool) {
	GinkgoHelper()
	for _, s := range served {
		before := []int{accepted(routers[0]), accepted(routers[1])}
		for range 64 {
			nstest.MustDial(GinkgoTB(), container, net.JoinHostPort(s.addr, "80"), s.container)
		}
		for i, router := range routers {
			Expect(accepted(router) > before[i]).To(Equal(want[i]), "%s through router %d", s.addr, i)
		}
	}
}

const (
	withGWs    = `{"dst": "203.0.113.0/24", "gws": ["10.1.0.11", "10.1.0.12"]}, {"dst": "2001:db8:113::/48", "gws": ["fd00:1::11", "fd00:1::12"]}`
	withGW     = `{"dst": "203.0.113.0/24", "gw": "10.1.0.11"}, {"dst": "2001:db8:113::/48", "gw": "fd00:1::11"}`
	hashPolicy = `{"type": "tuning", "dataDir": "DIR/tuning", "sysctl": {"net.ipv4.fib_multipath_hash_policy": "1", "net.ipv6.fib_multipath_hash_policy": "1"}}`
)

// bridgeWith returns a bridge with an IPAM plugin and its routes.
func bridgeWith(ipam, routes string) string {
	return `{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": {"type": ` + ipam + `, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, ` + routes + `]}}, ` + hashPolicy
}

const (
	ofStatic    = `"static", "addresses": [{"address": "10.1.0.100/16", "gateway": "10.1.0.1"}, {"address": "fd00:1::100/64", "gateway": "fd00:1::1"}]`
	ofHostLocal = `"host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.1.0.0/16", "rangeStart": "10.1.0.100"}], [{"subnet": "fd00:1::/64", "rangeStart": "fd00:1::100"}]]`
)

var _ = DescribeTable("a container uses each gateway of its routes", func(cniVersion, plugins string, second, hasDefault bool) {
	nstest.LeakCheck(GinkgoTB())
	network := newNetwork(cniVersion, plugins)
	routers, container := newRouters(network.Host), cnitest.NewContainer("a")
	state := func() string { return nstest.Snapshot(GinkgoTB(), container.NS) }
	before := nstest.WaitStable(state)
	Expect(network.Add(container)).To(Succeed())
	expectRouters(container.NS, routers, true, second)
	Expect(network.Check(container)).To(Succeed(), "libcni's prevResult contains only gw")
	for _, family := range []string{"-4", "-6"} {
		Expect(container.IP(family+" route show default") != "").To(Equal(hasDefault), family)
	}
	container.IP("route del 203.0.113.0/24")
	Expect(network.Check(container)).To(MatchError(ContainSubstring("has no route 203.0.113.0/24 via 10.1.0.11")))
	Expect(network.Del(container)).To(Succeed())
	Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
},
	Entry("gws of static", "1.1.0", bridgeWith(ofStatic, withGWs), true, true),
	Entry("gws of host-local, with a version whose results lack them", "1.0.0", bridgeWith(ofHostLocal, withGWs), true, true),
	Entry("gw of host-local", "1.1.0", bridgeWith(ofHostLocal, withGW), false, true),
	Entry("gws of route-override", "1.1.0", bridgeWith(ofStatic, withGW)+`, {"type": "route-override", "flushroutes": true, "flushgateway": true, "addroutes": [`+withGWs+`]}`, true, false),
	Entry("gws of host-local, after route-override has deleted other routes", "0.4.0", bridgeWith(ofHostLocal, withGWs)+`, {"type": "route-override", "flushgateway": true}`, true, false),
	Entry("gw of route-override in place of gws of host-local", "1.1.0", bridgeWith(ofHostLocal, withGWs)+`, {"type": "route-override",
		"delroutes": [{"dst": "203.0.113.0/24"}, {"dst": "2001:db8:113::/48"}], "addroutes": [`+withGW+`]}`, false, true),
)

var _ = DescribeTable("CHECK of each plugin accepts what route-override changes", func(plugins string) {
	nstest.LeakCheck(GinkgoTB())
	network, container := newNetwork("1.1.0", plugins+`, {"type": "route-override", "flushroutes": true, "flushgateway": true}, {"type": "sbr", "keepMain": "all"}`), cnitest.NewContainer("a")
	before := nstest.WaitStable(func() string { return nstest.Snapshot(GinkgoTB(), container.NS) })
	Expect(network.Add(container)).To(Succeed())
	Expect(container.IP("-4 route show default") + container.IP("-6 route show default")).To(BeEmpty())
	Expect(network.Check(container)).To(Succeed())
	container.IP("address del 198.18.0.100/24 dev eth0")
	Expect(network.Check(container)).To(MatchError(ContainSubstring("198.18.0.100/24")))
	Expect(network.Del(container)).To(Succeed())
	Expect(nstest.WaitEqual(before, func() string { return nstest.Snapshot(GinkgoTB(), container.NS) })).To(BeEmpty())
},
	Entry("after macvlan with host-local", `{"type": "macvlan", "master": "uplink0", "optimisticDAD": true, "ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [
		[{"subnet": "198.18.0.0/24", "rangeStart": "198.18.0.100"}], [{"subnet": "2001:db8:18::/64", "rangeStart": "2001:db8:18::100"}]], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}`),
	Entry("after ptp with static", `{"type": "ptp", "ipam": {"type": "static", "addresses": [{"address": "198.18.0.100/24", "gateway": "169.254.1.1"}, {"address": "fd00:1::100/64", "gateway": "fe80::1"}],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}`),
)
