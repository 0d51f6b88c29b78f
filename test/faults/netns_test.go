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

// leased is the IPAM of the networks below; macvlans share the segment of the uplink.
const leased = `"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`

const (
	mapped = `{"type": "portmap", "capabilities": {"portMappings": true}}`
	shaped = `{"type": "bandwidth", "capabilities": {"bandwidth": true}}`
	set    = `{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}`
)

// networks are every plugin that has to do with a container's namespace, alone and in
// chains.
var networks = map[string]string{
	"loopback":                           `{"type": "loopback"}`,
	"bridge":                             `{"type": "bridge", "isDefaultGateway": true, "ipMasq": true, "macspoofchk": true, ` + leased + `}`,
	"bridge, portmap, bandwidth, tuning": `{"type": "bridge", "isDefaultGateway": true, "ipMasq": true, ` + leased + `}, ` + mapped + `, ` + shaped + `, ` + set,
	"ptp":                                `{"type": "ptp", "ipMasq": true, ` + leased + `}`,
	"ptp, bandwidth, portmap":            `{"type": "ptp", ` + leased + `}, ` + shaped + `, ` + mapped,
	"macvlan": `{"type": "macvlan", "master": "uplink0",
		"ipam": {"type": "host-local", "dataDir": "DIR/leases", "subnet": "198.18.0.0/24", "rangeStart": "198.18.0.100"}}`,
	"macvlan, bandwidth, tuning": `{"type": "macvlan", "master": "uplink0",
		"ipam": {"type": "host-local", "dataDir": "DIR/leases", "subnet": "198.18.0.0/24", "rangeStart": "198.18.0.100"}}, ` + shaped + `, ` + set,
}

// A newcomer is a namespace that comes to the path of another.
var newcomers = map[string]func(l *lab) *guest{
	"of other means, with a veth": func(l *lab) *guest {
		g := l.guest("newcomer", 9000)
		l.Node.Must(GinkgoTB(), "ip", "link", "add", "vethother", "type", "veth", "peer", "name", "eth0", "netns", g.Path())
		l.Node.Batch(GinkgoTB(), "link set vethother up", "addr add 192.0.2.1/24 dev vethother")
		l.Node.Must(GinkgoTB(), "tc", "qdisc", "add", "dev", "vethother", "root", "handle", "1:", "tbf", "rate", "1mbit", "burst", "10kb", "latency", "25ms")
		g.Batch(GinkgoTB(), "link set lo up", "link set eth0 up mtu 1300", "addr add 192.0.2.7/24 dev eth0", "route add default via 192.0.2.1")
		g.SetSysctl(GinkgoTB(), "net/ipv4/conf/eth0/arp_filter", "1")
		return g
	},
	"of other means, with a macvlan": func(l *lab) *guest {
		g := l.guest("newcomer", 9000)
		l.Node.Must(GinkgoTB(), "ip", "link", "add", "link", "uplink0", "name", "eth0", "netns", g.Path(), "type", "macvlan", "mode", "bridge")
		g.Batch(GinkgoTB(), "link set lo up", "link set eth0 up mtu 1300", "addr add 192.0.2.7/24 dev eth0")
		g.Must(GinkgoTB(), "tc", "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "tbf", "rate", "1mbit", "burst", "10kb", "latency", "25ms")
		return g
	},
	"of the same network": func(l *lab) *guest { return l.attached("newcomer", 9000) },
}

// replaced brings a namespace to the path of a guest's, which is gone.
func (g *guest) replaced(by *guest) {
	GinkgoHelper()
	path := g.Path()
	g.Remove(GinkgoTB())
	Expect(unix.Mount(by.Path(), path, "", unix.MS_BIND, "")).To(Succeed())
	DeferCleanup(func() { Expect(unix.Unmount(path, unix.MNT_DETACH)).To(Succeed()) })
}

// warm has a network make on the node what all containers share.
func (l *lab) warm() {
	GinkgoHelper()
	Expect(l.del(l.attached("warm", 7000))).To(Succeed())
}

var _ = Describe("the container's namespace", func() {
	for _, name := range byName(networks) {
		if inPart := strings.Contains(name, "tuning") || name == "loopback"; !inPart && !all() {
			continue
		}
		plugins := networks[name]
		Describe("of "+name, func() {
			var l *lab
			BeforeEach(func() {
				l = newLab(plugins)
				l.warm()
			})

			It("is gone: DEL ends, and the node is as before", func() {
				before := nstest.WaitStable(l.attachments)
				for _, with := range []string{"with", "without"} {
					g := l.attached("gone", 8000)
					g.Remove(GinkgoTB()) // a plain file is left
					if with == "without" {
						l.forget()
						Expect(os.Remove(g.Path())).To(Succeed()) // and nothing at all
					}
					survives(name+": netns gone: DEL, twice", func() error {
						return errors.Join(l.del(g), l.del(g), asBefore(before, l.attachments))
					})
				}
			})

			It("is another's: DEL does not touch it, and the node is as before", func() {
				for kind, newcomer := range newcomers {
					n := newcomer(l)
					both := func() string { return nstest.Snapshot(GinkgoTB(), n.NS) + "\n" + l.attachments() }
					before := nstest.WaitStable(both)
					g := l.attached("replaced", 8000)
					g.replaced(n)
					survives(name+": netns replaced: DEL", func() error {
						return why(kind, l.del(g), asBefore(before, both))
					})
					// Without prevResult, what has no alias might be the reference plugin's.
					if kind == "of the same network" {
						survives(name+": netns replaced: DEL without prevResult", func() error {
							return errors.Join(l.del(g), asBefore(before, both), l.check(n), l.del(n))
						})
					} else {
						n.Remove(GinkgoTB())
					}
				}
			})

			It("is none, or the node's own: refused before anything is done", func() {
				l.Node.Batch(GinkgoTB(), "link add eth0 type veth peer name eth0peer", "link set eth0 up", "link set eth0peer up")
				before := nstest.WaitStable(l.attachments)
				lives := l.attached("lives", 8000)
				among := nstest.WaitStable(l.attachments)
				for what, path := range noNamespaces(l) {
					g, at := &guest{rt: with(lives.rt, "fresh", path)}, &guest{rt: with(lives.rt, "lives", path)}
					survives(name+": netns is no container's: ADD, DEL", func() error {
						return why(what, refused(l.add(g), types.CodeNamespace), l.del(g))
					})
					survives(name+": netns is no container's: CHECK of the living", func() error {
						return why(what, refused(l.check(at), types.CodeNamespace))
					})
				}
				survives(name+": netns is no container's: node and files as before", func() error { return asBefore(among, l.attachments) })
				lives.Remove(GinkgoTB())
				for what, path := range noNamespaces(l) {
					at := &guest{rt: with(lives.rt, "lives", path)}
					survives(name+": netns is no container's: DEL of one that lived", func() error { return why(what, l.del(at)) })
				}
				survives(name+": netns is no container's: node and files as before", func() error { return asBefore(before, l.attachments) })
			})
		})
	}
})

// why names the case in the error of what was tried.
func why(what string, errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// attachments is the state of node and files, but for what
// host-local keeps for itself.
func (l *lab) attachments() string {
	var lines []string
	for line := range strings.SplitSeq(l.state(), "\n") {
		if !strings.Contains(line, "last_reserved_ip.") && !strings.Contains(line, "/.plumb/") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// noNamespaces are paths at which there is no namespace for a container.
func noNamespaces(l *lab) map[string]string {
	GinkgoHelper()
	file := filepath.Join(GinkgoTB().TempDir(), "file")
	Expect(os.WriteFile(file, nil, 0o444)).To(Succeed())
	return map[string]string{
		"a plain file": file, "the node's own": l.Node.Path(), "its own": "/proc/self/ns/net",
		"one of another kind": "/proc/self/ns/uts", "a folder": filepath.Dir(file), "nothing": file + "none",
	}
}

// with is the runtime's call for another container at another path.
func with(rt *libcni.RuntimeConf, id, path string) *libcni.RuntimeConf {
	other := *rt
	other.ContainerID, other.NetNS = id, path
	return &other
}

var _ = Describe("the node's own namespace", func() {
	// In a chain nobody comes so far.
	It("is refused by each plugin by itself", func() {
		l := newLab(networks["loopback"])
		l.Node.Batch(GinkgoTB(), "link add eth0 type veth peer name eth0peer", "link set eth0 up", "link set eth0peer up")
		before := nstest.WaitStable(l.attachments)
		for _, plugins := range []string{networks["loopback"], networks["bridge"], networks["ptp"], networks["macvlan"], mapped, shaped, set} {
			for _, verb := range []string{"ADD", "CHECK"} {
				conf := map[string]any{}
				Expect(json.Unmarshal([]byte(strings.ReplaceAll(plugins, "DIR", l.dir)), &conf)).To(Succeed())
				conf["cniVersion"], conf["name"] = "1.1.0", "lab"
				conf["runtimeConfig"] = l.guest("own", 8000).rt.CapabilityArgs
				conf["prevResult"] = json.RawMessage(fmt.Sprintf(`{"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": %q}], "ips": [{"address": "10.1.0.9/16", "interface": 0}]}`, l.Node.Path()))
				text, err := json.Marshal(conf)
				Expect(err).NotTo(HaveOccurred())
				survives(fmt.Sprint("netns is the node's own: ", conf["type"], " alone: ", verb), func() error {
					bin := nstest.Build(GinkgoTB(), fmt.Sprint(conf["type"]))
					r := nstest.Exec(GinkgoTB(), filepath.Join(bin, fmt.Sprint(conf["type"])), nstest.Call{
						Command: verb, ContainerID: "own", NetNS: l.Node.Path(), Path: bin, Config: string(text), Node: l.Node,
					})
					return errors.Join(refused(answered(r), types.CodeNamespace), asBefore(before, l.attachments))
				})
			}
		}
	})
})
