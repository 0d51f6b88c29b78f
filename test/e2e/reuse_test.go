package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// A reuseBed is a host with a network of these plugins, which are called one by one. The namespace path of a dead
// container refers to the namespace of a live container of the network.
type reuseBed struct {
	host    *nstest.NS
	live    *nstest.NS
	bin     string
	dir     string
	plugins []string // JSON objects
}

const (
	reuseIPAM = `"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "198.18.0.0/24", "rangeStart": "198.18.0.100"}],
		[{"subnet": "2001:db8:18::/64", "rangeStart": "2001:db8:18::100"}]], "routes": [{"dst": "10.66.0.0/16"}]}`
	bridgeNet    = `{"type": "bridge", "isGateway": true, "ipMasq": true, "macspoofchk": true, ` + reuseIPAM + `}`
	ptpNet       = `{"type": "ptp", ` + reuseIPAM + `}`
	macvlanNet   = `{"type": "macvlan", "master": "uplink0", ` + reuseIPAM + `}`
	tapNet       = `{"type": "tap", ` + reuseIPAM + `}`
	deviceNet    = `{"type": "host-device", "device": "dev-ID", ` + reuseIPAM + `}`
	limitConf    = `{"type": "bandwidth", "ingressRate": RATE, "ingressBurst": 800000, "egressRate": RATE, "egressBurst": 800000}`
	tuningConf   = `{"type": "tuning", "dataDir": "DIR/tuning", "mtu": MTU, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}`
	routeConf    = `{"type": "route-override", "delroutes": [{"dst": "10.66.0.0/16"}], "addroutes": [{"dst": "10.77.0.0/16"}]}`
	redirectConf = `{"type": "tc-redirect-tap"}`
	portsConf    = `{"type": "portmap", "runtimeConfig": {"portMappings": [{"hostPort": PORT, "containerPort": 80, "protocol": "tcp"}]}}`
	firewallConf = `{"type": "firewall", "ingressPolicy": "same-bridge"}`
	sbrConf      = `{"type": "sbr"}`
	accessConf   = `{"type": "host-access"}`
)

func newReuseBed(plugins []string) *reuseBed {
	GinkgoHelper()
	b := &reuseBed{host: nstest.NewSite(GinkgoTB()).Host, live: nstest.New(GinkgoTB()).Named("live"), dir: GinkgoTB().TempDir(), plugins: plugins}
	names := []string{"host-local"}
	for i := range plugins {
		names = append(names, b.typeOf(i))
	}
	b.bin = nstest.Build(GinkgoTB(), names...)
	return b
}

// typeOf returns the type of plugin i, which is the first value of its configuration.
func (b *reuseBed) typeOf(i int) string { return strings.Split(b.plugins[i], `"`)[3] }

// call calls one plugin. The two containers have different limits, MTUs, host ports and devices.
func (b *reuseBed) call(i int, id string, container *nstest.NS, c nstest.Call, keys string) nstest.Reply {
	GinkgoHelper()
	values := []string{"DIR", b.dir, "ID", id, "RATE", "8000000", "MTU", "1400", "PORT", "8001"}
	if id == "live" {
		values = []string{"DIR", b.dir, "ID", id, "RATE", "80000000", "MTU", "1300", "PORT", "8002"}
	}
	c.ContainerID, c.Container, c.Host, c.Path = id, container, b.host, b.bin
	c.Config = strings.TrimSuffix(strings.NewReplacer(values...).Replace(b.plugins[i]), "}") + `, "cniVersion": "1.1.0", "name": "reuse"` + keys + "}"
	return nstest.Exec(GinkgoTB(), filepath.Join(b.bin, b.typeOf(i)), c)
}

func withPrev(result string) string { return `, "prevResult": ` + result }

// add calls ADD of all plugins and returns the result.
func (b *reuseBed) add(id string, container *nstest.NS) string {
	GinkgoHelper()
	container.SkipDAD(GinkgoTB())
	if b.typeOf(0) == "host-device" {
		b.host.Batch(GinkgoTB(), "link add dev-"+id+" type veth peer name peer-"+id, "link set peer-"+id+" up")
	}
	result, prev := "", ""
	for i := range b.plugins {
		result = b.call(i, id, container, nstest.Call{Command: "ADD"}, prev).OK(GinkgoTB()).Stdout
		prev = withPrev(result)
	}
	return result
}

// addDead adds a container whose namespace path refers to the namespace of the live container afterwards, and returns the result.
func (b *reuseBed) addDead() string {
	GinkgoHelper()
	dead := nstest.New(GinkgoTB()).Named("dead")
	result := b.add("dead", dead)
	dead.Remove(GinkgoTB())
	return strings.ReplaceAll(result, dead.Path(), b.live.Path())
}

// dropAliases removes the aliases, which the reference plugins do not set.
func (b *reuseBed) dropAliases() {
	for _, n := range []*nstest.NS{b.host, b.live} {
		for _, line := range strings.Split(n.Must(GinkgoTB(), "ip", "-o", "link"), "\n") {
			if name, _, _ := strings.Cut(strings.TrimLeft(line, "0123456789: "), ":"); strings.Contains(line, "alias plumb:") {
				name, _, _ = strings.Cut(name, "@")
				n.Must(GinkgoTB(), "ip", "link", "set", name, "alias", "")
			}
		}
	}
}

func (b *reuseBed) state() string {
	return nstest.Snapshot(GinkgoTB(), b.host, b.live) + "\n" + nstest.SnapshotDir(GinkgoTB(), filepath.Join(b.dir, "tuning")) + "\n" +
		strings.Join(nstest.Reservations(GinkgoTB(), filepath.Join(b.dir, "leases"), "reuse"), "\n")
}

// requireRefusals calls the verbs that must fail, for each plugin, and requires that they change nothing, and that their
// errors contain the texts.
func (b *reuseBed) requireRefusals(prev string, texts ...string) {
	GinkgoHelper()
	before := nstest.WaitStable(b.state)
	var checks []nstest.Reply
	for i := range b.plugins {
		name := b.typeOf(i)
		for _, c := range []nstest.Call{{Command: "CHECK"}, {Command: "REPAIR"}, nstest.Call{Command: "REPAIR"}.OnContainerSide()} {
			if reply := b.call(i, "dead", b.live, c, prev); name != "tuning" { // which compares the namespace with the one of the ADD
				checks = append(checks, reply)
			}
		}
	}
	Expect(nstest.WaitEqual(before, b.state)).To(BeEmpty())
	for _, reply := range checks {
		reply.RequireFailure(GinkgoTB(), types.CodeChanged, texts...)
	}
}

// remove calls DEL or GC of all plugins for the dead container.
func (b *reuseBed) remove(verb, keys string) {
	GinkgoHelper()
	for i := range slices.Backward(b.plugins) {
		b.call(i, "dead", b.live, nstest.Call{Command: verb}, keys).OK(GinkgoTB())
	}
}

var _ = Describe("if the namespace path of a dead container refers to another container of the network", func() {
	const valid = `, "cni.dev/valid-attachments": [{"containerID": "live", "ifname": "eth0"}]`
	DescribeTable("no verb changes that container, and DEL and GC remove what is left of the dead one", func(plugins ...string) {
		b := newReuseBed(plugins)
		b.add("live", b.live)
		before := nstest.WaitStable(b.state)
		for what, remove := range map[string]func(prev string){
			"DEL":                     func(prev string) { b.remove("DEL", prev) },
			"DEL, without prevResult": func(string) { b.remove("DEL", "") },
			"GC":                      func(string) { b.remove("GC", valid) },
		} {
			prev := withPrev(b.addDead())
			if what == "DEL" {
				b.requireRefusals(prev, "the namespace path now belongs to", "and not to reuse/dead/eth0")
			}
			remove(prev)
			Expect(nstest.WaitEqual(before, b.state)).To(BeEmpty(), what)
		}
	},
		func(plugins ...string) string {
			var names []string
			for i := range plugins {
				names = append(names, (&reuseBed{plugins: plugins}).typeOf(i))
			}
			return fmt.Sprint(names)
		},
		Entry(nil, bridgeNet, limitConf, tuningConf, firewallConf, portsConf), Entry(nil, bridgeNet, routeConf, sbrConf),
		Entry(nil, ptpNet, limitConf, redirectConf), Entry(nil, macvlanNet, limitConf, sbrConf, tuningConf, accessConf), Entry(nil, tapNet, tuningConf),
		Entry(nil, deviceNet, routeConf))

	DescribeTable("no verb with prevResult changes that container, even if its interface names no attachment", func(plugins ...string) {
		b := newReuseBed(plugins)
		b.add("live", b.live)
		b.dropAliases()
		before := nstest.WaitStable(b.state)
		prev := withPrev(b.addDead())
		b.requireRefusals(prev)
		b.remove("DEL", prev)
		Expect(nstest.WaitEqual(before, b.state)).To(BeEmpty())
	},
		Entry("bridge", bridgeNet, limitConf, sbrConf, tuningConf), Entry("macvlan", macvlanNet, limitConf, sbrConf, tuningConf, accessConf))
})
