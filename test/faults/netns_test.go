package faults

import (
	"errors"
	"fmt"
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

const (
	portmapConfig   = `{"type": "portmap", "capabilities": {"portMappings": true}}`
	bandwidthConfig = `{"type": "bandwidth", "capabilities": {"bandwidth": true}}`
	tuningConfig    = `{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}`
)

// networks maps names to plugin lists, which are single interface plugins and chains.
var networks = map[string]string{
	"loopback":                           `{"type": "loopback"}`,
	"bridge":                             `{"type": "bridge", "isDefaultGateway": true, "ipMasq": true, "macspoofchk": true, ` + dualStackIPAM + `}`,
	"bridge, portmap, bandwidth, tuning": `{"type": "bridge", "isDefaultGateway": true, "ipMasq": true, ` + dualStackIPAM + `}, ` + portmapConfig + `, ` + bandwidthConfig + `, ` + tuningConfig,
	"ptp":                                `{"type": "ptp", "ipMasq": true, ` + dualStackIPAM + `}`,
	"ptp, bandwidth, portmap":            `{"type": "ptp", ` + dualStackIPAM + `}, ` + bandwidthConfig + `, ` + portmapConfig,
	"tap":                                `{"type": "tap", ` + dualStackIPAM + `}`,
	"ptp, tc-redirect-tap":               `{"type": "ptp", ` + dualStackIPAM + `}, {"type": "tc-redirect-tap"}`,
	"macvlan": `{"type": "macvlan", "master": "uplink0",
		"ipam": {"type": "host-local", "dataDir": "DIR/leases", "subnet": "198.18.0.0/24", "rangeStart": "198.18.0.100"}}`,
	"macvlan, bandwidth, tuning": `{"type": "macvlan", "master": "uplink0",
		"ipam": {"type": "host-local", "dataDir": "DIR/leases", "subnet": "198.18.0.0/24", "rangeStart": "198.18.0.100"}}, ` + bandwidthConfig + `, ` + tuningConfig,
}

// replacements contains functions that return a container. The test mounts the container's
// namespace at the path of a deleted namespace. plumb attaches only the last one of these
// containers.
var replacements = map[string]func(network *testNetwork) *cnitest.Container{
	"a namespace with a veth that plumb did not create": func(network *testNetwork) *cnitest.Container {
		c := newContainer("replacement", 9000)
		network.Host.Must(GinkgoTB(), "ip", "link", "add", "vethother", "type", "veth", "peer", "name", "eth0", "netns", c.Path())
		network.Host.Batch(GinkgoTB(), "link set vethother up", "addr add 192.0.2.1/24 dev vethother")
		network.Host.Must(GinkgoTB(), "tc", "qdisc", "add", "dev", "vethother", "root", "handle", "1:", "tbf", "rate", "1mbit", "burst", "10kb", "latency", "25ms")
		c.Batch(GinkgoTB(), "link set lo up", "link set eth0 up mtu 1300", "addr add 192.0.2.7/24 dev eth0", "route add default via 192.0.2.1")
		c.SetSysctl(GinkgoTB(), "net/ipv4/conf/eth0/arp_filter", "1")
		return c
	},
	"a namespace with a macvlan that plumb did not create": func(network *testNetwork) *cnitest.Container {
		c := newContainer("replacement", 9000)
		network.Host.Must(GinkgoTB(), "ip", "link", "add", "link", "uplink0", "name", "eth0", "netns", c.Path(), "type", "macvlan", "mode", "bridge")
		c.Batch(GinkgoTB(), "link set lo up", "link set eth0 up mtu 1300", "addr add 192.0.2.7/24 dev eth0")
		c.Must(GinkgoTB(), "tc", "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "tbf", "rate", "1mbit", "burst", "10kb", "latency", "25ms")
		return c
	},
	"a container of the same network": func(network *testNetwork) *cnitest.Container { return network.addContainer("replacement", 9000) },
}

// replaceNetns deletes the namespace of c, and mounts other's namespace at its path.
func replaceNetns(c, other *cnitest.Container) {
	GinkgoHelper()
	path := c.Path()
	c.Remove(GinkgoTB())
	Expect(unix.Mount(other.Path(), path, "", unix.MS_BIND, "")).To(Succeed())
	DeferCleanup(func() { Expect(unix.Unmount(path, unix.MNT_DETACH)).To(Succeed()) })
}

// createSharedObjects adds and deletes a container, to create the objects that all containers
// share.
func (network *testNetwork) createSharedObjects() {
	GinkgoHelper()
	Expect(network.Del(network.addContainer("first", 7000))).To(Succeed())
}

var _ = Describe("with the plugins", func() {
	for _, name := range sortedKeys(networks) {
		if inPart := strings.Contains(name, "tuning") || name == "loopback"; !inPart && !nstest.AllFaults() {
			continue
		}
		plugins := networks[name]
		Describe(name, func() {
			var network *testNetwork
			BeforeEach(func() {
				network = newTestNetwork(plugins)
				network.createSharedObjects()
			})

			It("DEL succeeds and restores the host if CNI_NETNS names a deleted namespace", func() {
				before := nstest.WaitStable(network.stableState)
				for _, with := range []string{"with", "without"} {
					c := network.addContainer("deleted", 8000)
					c.Remove(GinkgoTB()) // leaves a regular file at the path
					if with == "without" {
						network.ClearCache()
						Expect(os.Remove(c.Path())).To(Succeed())
					}
					expectOK(name+": netns deleted: DEL, twice", func() error {
						return errors.Join(network.Del(c), network.Del(c), waitUnchanged(before, network.stableState))
					})
				}
			})

			It("DEL restores the host without a change of the container if CNI_NETNS names another container's namespace", func() {
				for kind, newReplacement := range replacements {
					n := newReplacement(network)
					both := func() string { return nstest.Snapshot(GinkgoTB(), n.NS) + "\n" + network.stableState() }
					before := nstest.WaitStable(both)
					c := network.addContainer("replaced", 8000)
					replaceNetns(c, n)
					expectOK(name+": netns replaced: DEL", func() error {
						return inCase(kind, network.Del(c), waitUnchanged(before, both))
					})
					// Without prevResult, DEL may delete an interface without an alias, because the
					// reference plugin may have created it.
					if kind == "a container of the same network" {
						expectOK(name+": netns replaced: DEL without prevResult", func() error {
							return errors.Join(network.Del(c), waitUnchanged(before, both), network.Check(n), network.Del(n))
						})
					} else {
						n.Remove(GinkgoTB())
					}
				}
			})

		})
	}
})

// inCase joins the errors and adds the case's name.
func inCase(name string, errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
