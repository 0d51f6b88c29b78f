package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

// dualStackHostLocal is the IPAM of the networks, except of those with macvlan.
const dualStackHostLocal = `"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`

const (
	portmapConfig   = `{"type": "portmap", "capabilities": {"portMappings": true}}`
	bandwidthConfig = `{"type": "bandwidth", "capabilities": {"bandwidth": true}}`
	tuningConfig    = `{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}`
)

// networks are the plugin lists: each interface plugin alone, and chains.
var networks = map[string]string{
	"loopback":                           `{"type": "loopback"}`,
	"bridge":                             `{"type": "bridge", "isDefaultGateway": true, "ipMasq": true, "macspoofchk": true, ` + dualStackHostLocal + `}`,
	"bridge, portmap, bandwidth, tuning": `{"type": "bridge", "isDefaultGateway": true, "ipMasq": true, ` + dualStackHostLocal + `}, ` + portmapConfig + `, ` + bandwidthConfig + `, ` + tuningConfig,
	"ptp":                                `{"type": "ptp", "ipMasq": true, ` + dualStackHostLocal + `}`,
	"ptp, bandwidth, portmap":            `{"type": "ptp", ` + dualStackHostLocal + `}, ` + bandwidthConfig + `, ` + portmapConfig,
	"tap":                                `{"type": "tap", ` + dualStackHostLocal + `}`,
	"macvlan": `{"type": "macvlan", "master": "uplink0",
		"ipam": {"type": "host-local", "dataDir": "DIR/leases", "subnet": "198.18.0.0/24", "rangeStart": "198.18.0.100"}}`,
	"macvlan, bandwidth, tuning": `{"type": "macvlan", "master": "uplink0",
		"ipam": {"type": "host-local", "dataDir": "DIR/leases", "subnet": "198.18.0.0/24", "rangeStart": "198.18.0.100"}}, ` + bandwidthConfig + `, ` + tuningConfig,
}

// replacements return a container with another namespace, which the test mounts at the path of
// a deleted one. The first two are not attached by plumb.
var replacements = map[string]func(network *testNetwork) *container{
	"a namespace with a veth that plumb did not make": func(network *testNetwork) *container {
		c := network.newContainer("replacement", 9000)
		network.Node.Must(GinkgoTB(), "ip", "link", "add", "vethother", "type", "veth", "peer", "name", "eth0", "netns", c.Path())
		network.Node.Batch(GinkgoTB(), "link set vethother up", "addr add 192.0.2.1/24 dev vethother")
		network.Node.Must(GinkgoTB(), "tc", "qdisc", "add", "dev", "vethother", "root", "handle", "1:", "tbf", "rate", "1mbit", "burst", "10kb", "latency", "25ms")
		c.Batch(GinkgoTB(), "link set lo up", "link set eth0 up mtu 1300", "addr add 192.0.2.7/24 dev eth0", "route add default via 192.0.2.1")
		c.SetSysctl(GinkgoTB(), "net/ipv4/conf/eth0/arp_filter", "1")
		return c
	},
	"a namespace with a macvlan that plumb did not make": func(network *testNetwork) *container {
		c := network.newContainer("replacement", 9000)
		network.Node.Must(GinkgoTB(), "ip", "link", "add", "link", "uplink0", "name", "eth0", "netns", c.Path(), "type", "macvlan", "mode", "bridge")
		c.Batch(GinkgoTB(), "link set lo up", "link set eth0 up mtu 1300", "addr add 192.0.2.7/24 dev eth0")
		c.Must(GinkgoTB(), "tc", "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "tbf", "rate", "1mbit", "burst", "10kb", "latency", "25ms")
		return c
	},
	"a container of the same network": func(network *testNetwork) *container { return network.addContainer("replacement", 9000) },
}

// replaceNetns deletes the namespace of c, and mounts that of other at its path.
func (c *container) replaceNetns(other *container) {
	GinkgoHelper()
	path := c.Path()
	c.Remove(GinkgoTB())
	Expect(unix.Mount(other.Path(), path, "", unix.MS_BIND, "")).To(Succeed())
	DeferCleanup(func() { Expect(unix.Unmount(path, unix.MNT_DETACH)).To(Succeed()) })
}

// createSharedObjects makes the objects that all containers share: it adds and deletes one.
func (network *testNetwork) createSharedObjects() {
	GinkgoHelper()
	Expect(network.del(network.addContainer("first", 7000))).To(Succeed())
}

var _ = Describe("CNI_NETNS", func() {
	for _, name := range sortedKeys(networks) {
		if inPart := strings.Contains(name, "tuning") || name == "loopback"; !inPart && !allFaults() {
			continue
		}
		plugins := networks[name]
		Describe(name, func() {
			var network *testNetwork
			BeforeEach(func() {
				network = newTestNetwork(plugins)
				network.createSharedObjects()
			})

			It("of a deleted namespace: DEL succeeds, and the node is as before", func() {
				before := nstest.WaitStable(network.stableState)
				for _, with := range []string{"with", "without"} {
					c := network.addContainer("deleted", 8000)
					c.Remove(GinkgoTB()) // leaves a regular file
					if with == "without" {
						network.clearCache()
						Expect(os.Remove(c.Path())).To(Succeed())
					}
					expectOK(name+": netns deleted: DEL, twice", func() error {
						return errors.Join(network.del(c), network.del(c), waitUnchanged(before, network.stableState))
					})
				}
			})

			It("of another container's namespace: DEL does not change that container, and the node is as before", func() {
				for kind, newReplacement := range replacements {
					n := newReplacement(network)
					both := func() string { return nstest.Snapshot(GinkgoTB(), n.NS) + "\n" + network.stableState() }
					before := nstest.WaitStable(both)
					c := network.addContainer("replaced", 8000)
					c.replaceNetns(n)
					expectOK(name+": netns replaced: DEL", func() error {
						return inCase(kind, network.del(c), waitUnchanged(before, both))
					})
					// Without prevResult, DEL may delete an interface without alias: the reference
					// plugin might have made it.
					if kind == "a container of the same network" {
						expectOK(name+": netns replaced: DEL without prevResult", func() error {
							return errors.Join(network.del(c), waitUnchanged(before, both), network.check(n), network.del(n))
						})
					} else {
						n.Remove(GinkgoTB())
					}
				}
			})

			It("that is no container's namespace: ADD and CHECK fail without a change, DEL succeeds", func() {
				network.Node.Batch(GinkgoTB(), "link property del dev "+nstest.Uplink+" altname eth0", "link add eth0 type veth peer name eth0peer", "link set eth0 up", "link set eth0peer up")
				before := nstest.WaitStable(network.stableState)
				existing := network.addContainer("existing", 8000)
				withExisting := nstest.WaitStable(network.stableState)
				for what, path := range invalidNetnsPaths(network) {
					c, at := &container{rt: withNetns(existing.rt, "new", path)}, &container{rt: withNetns(existing.rt, "existing", path)}
					expectOK(name+": netns is no container's: ADD, DEL", func() error {
						return inCase(what, checkError(network.add(c), types.CodeNamespace), network.del(c))
					})
					expectOK(name+": netns is no container's: CHECK of an attached container", func() error {
						return inCase(what, checkError(network.check(at), types.CodeNamespace))
					})
				}
				expectOK(name+": netns is no container's: node and files as before", func() error { return waitUnchanged(withExisting, network.stableState) })
				existing.Remove(GinkgoTB())
				for what, path := range invalidNetnsPaths(network) {
					at := &container{rt: withNetns(existing.rt, "existing", path)}
					expectOK(name+": netns is no container's: DEL of an attached container", func() error { return inCase(what, network.del(at)) })
				}
				expectOK(name+": netns is no container's: node and files as before", func() error { return waitUnchanged(before, network.stableState) })
			})
		})
	}
})

// inCase joins the errors and adds the name of the case.
func inCase(name string, errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// invalidNetnsPaths returns paths at which there is no network namespace of a container.
func invalidNetnsPaths(network *testNetwork) map[string]string {
	GinkgoHelper()
	file := filepath.Join(GinkgoTB().TempDir(), "file")
	Expect(os.WriteFile(file, nil, 0o444)).To(Succeed())
	return map[string]string{
		"a regular file": file, "the node's namespace": network.Node.Path(), "the plugin's namespace": "/proc/self/ns/net",
		"a UTS namespace": "/proc/self/ns/uts", "a folder": filepath.Dir(file), "no file": file + "none",
	}
}

// withNetns returns a copy of rt with another container ID and namespace path.
func withNetns(rt *libcni.RuntimeConf, id, path string) *libcni.RuntimeConf {
	other := *rt
	other.ContainerID, other.NetNS = id, path
	return &other
}

var _ = Describe("the node's namespace as CNI_NETNS", func() {
	// In a chain, the first plugin refuses it, so that the others are not called.
	It("is refused by each plugin", func() {
		network := newTestNetwork(networks["loopback"])
		network.Node.Batch(GinkgoTB(), "link property del dev "+nstest.Uplink+" altname eth0", "link add eth0 type veth peer name eth0peer", "link set eth0 up", "link set eth0peer up")
		before := nstest.WaitStable(network.stableState)
		for _, plugins := range []string{networks["loopback"], networks["bridge"], networks["ptp"], networks["macvlan"], portmapConfig, bandwidthConfig, tuningConfig} {
			for _, verb := range []string{"ADD", "CHECK"} {
				conf := map[string]any{}
				Expect(json.Unmarshal([]byte(strings.ReplaceAll(plugins, "DIR", network.dir)), &conf)).To(Succeed())
				conf["cniVersion"], conf["name"] = "1.1.0", "net1"
				conf["runtimeConfig"] = network.newContainer("own", 8000).rt.CapabilityArgs
				conf["prevResult"] = json.RawMessage(fmt.Sprintf(`{"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": %q}], "ips": [{"address": "10.1.0.9/16", "interface": 0}]}`, network.Node.Path()))
				text, err := json.Marshal(conf)
				Expect(err).NotTo(HaveOccurred())
				expectOK(fmt.Sprint("netns is the node's: ", conf["type"], ": ", verb), func() error {
					bin := nstest.Build(GinkgoTB(), fmt.Sprint(conf["type"]))
					r := nstest.Exec(GinkgoTB(), filepath.Join(bin, fmt.Sprint(conf["type"])), nstest.Call{
						Command: verb, ContainerID: "own", NetNS: network.Node.Path(), Path: bin, Config: string(text), Node: network.Node,
					})
					return errors.Join(checkError(errorOf(r), types.CodeNamespace), waitUnchanged(before, network.stableState))
				})
			}
		}
	})
})
