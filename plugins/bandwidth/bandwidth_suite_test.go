package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestBandwidth(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/bandwidth")
}

const (
	network     = "bwn"
	cid         = "cidX"
	ifbX        = "bwp365d6baf39d2" // name of the ifb for network and cid
	hostV4      = "10.77.0.1"
	containerV4 = "10.77.0.2"
	hostV6      = "fd77::1"
	containerV6 = "fd77::2"
)

// A testbed consists of a host, and a container with an interface that another plugin created.
type testbed struct {
	*nstest.Bed
	host      *nstest.NS // the host or an outside host, with which the container exchanges packets
	container *nstest.NS
	call      nstest.Call // without Command and Config
	prev      string      // result of the plugin that created the interface
}

// newTestbed returns a testbed without an interface.
func newTestbed() *testbed {
	GinkgoHelper()
	host, container := nstest.NewHostAndContainer(GinkgoTB())
	b := nstest.NewBedOn(GinkgoTB(), plugin(), host)
	container.IP("link set lo up")
	return &testbed{Bed: b, host: host, container: container, call: b.Call(cid, container, "")}
}

// ptp returns a testbed with a veth pair whose host end has the gateway address.
func ptp() *testbed {
	GinkgoHelper()
	bed := newTestbed()
	nstest.Join(GinkgoTB(), nstest.End{In: bed.host, Name: "veth0", Addrs: []string{hostV4 + "/24", hostV6 + "/64"}},
		nstest.End{In: bed.container, Name: "eth0", Addrs: []string{containerV4 + "/24", containerV6 + "/64"}})
	bed.prev = bed.result(`{"name": "veth0", "mac": "02:00:00:00:00:01"}, `)
	return bed
}

// bridge returns a testbed with a veth pair whose host end is a port of a bridge.
func bridge() *testbed {
	GinkgoHelper()
	bed := newTestbed()
	nstest.Join(GinkgoTB(), nstest.End{In: bed.host, Name: "veth0"}, nstest.End{In: bed.container, Name: "eth0", Addrs: []string{containerV4 + "/24"}})
	bed.host.Batch(GinkgoTB(), "link add br0 type bridge", "link set veth0 master br0", "link set br0 up", "addr add "+hostV4+"/24 dev br0")
	bed.prev = bed.result(`{"name": "br0"}, {"name": "veth0"}, `)
	return bed
}

// macvlan returns a testbed with a macvlan.
func macvlan() *testbed {
	GinkgoHelper()
	bed := newTestbed()
	outside := nstest.NewHost(GinkgoTB()).Named("outside")
	nstest.Join(GinkgoTB(), nstest.End{In: bed.host, Name: "up0"}, nstest.End{In: outside, Name: "up0", Addrs: []string{hostV4 + "/24"}})
	bed.host.Must(GinkgoTB(), "ip", "link", "add", "link", "up0", "name", "mv0", "type", "macvlan", "mode", "bridge")
	bed.host.Must(GinkgoTB(), "ip", "link", "set", "mv0", "netns", bed.container.Path(), "name", "eth0")
	bed.container.Batch(GinkgoTB(), "link set eth0 up", "addr add "+containerV4+"/24 dev eth0")
	bed.prev = bed.result("")
	bed.host = outside
	return bed
}

// result returns a result that lists the other interfaces before the container's interface.
func (bed *testbed) result(others string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "interfaces": [%s{"name": "eth0", "mac": "02:00:00:00:00:02", "sandbox": %q}],
		"ips": [{"address": "%s/24", "interface": %d}], "dns": {}}`, others, bed.container.Path(), containerV4, strings.Count(others, "name"))
}

// config returns a configuration with these keys, such as `"ingressRate": 8`.
func (bed *testbed) config(keys string) string { return configOf(network, keys, bed.prev) }

// configOf returns a configuration. keys and prev may be empty.
func configOf(network, keys, prev string) string {
	c := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "type": "bandwidth"`, network)
	if keys != "" {
		c += ", " + keys
	}
	if prev != "" {
		c += `, "prevResult": ` + prev
	}
	return c + "}"
}

// run calls the plugin with a configuration with these keys.
func (bed *testbed) run(command, keys string) nstest.Reply {
	c := bed.call
	c.Config = bed.config(keys)
	return bed.Run(command, c)
}

// gc calls GC with these valid attachments.
func (bed *testbed) gc(valid string) {
	GinkgoHelper()
	bed.OK("GC", bed.Call("", nil, `{"cniVersion": "1.1.0", "name": "bwn", "type": "bandwidth", "cni.dev/valid-attachments": `+valid+`}`))
}

// shape returns the names of the links, and their qdiscs, classes and filters.
func (bed *testbed) shape() string {
	GinkgoHelper()
	names := regexp.MustCompile(`(?m)^\d+: \S+`)
	var all []string
	for _, n := range []*nstest.NS{bed.call.Host, bed.container} {
		all = append(all, names.FindAllString(n.Must(GinkgoTB(), "ip", "-o", "link"), -1)...)
		all = append(all, tcText(n))
	}
	return strings.Join(all, "\n")
}

// rates returns the keys for two rates and one burst, in bits.
func rates(ingress, egress, burst uint64) string {
	return fmt.Sprintf(`"ingressRate": %d, "ingressBurst": %d, "egressRate": %d, "egressBurst": %d`, ingress, burst, egress, burst)
}

// tcText returns the qdiscs, classes and filters of the namespace as tc prints them, without
// counters.
func tcText(n *nstest.NS) string {
	GinkgoHelper()
	var links []struct{ Ifname string }
	Expect(json.Unmarshal([]byte(n.Must(GinkgoTB(), "ip", "-j", "link")), &links)).To(Succeed())
	var all strings.Builder
	for _, l := range links {
		for _, args := range [][]string{
			{"-d", "qdisc", "show", "dev", l.Ifname}, {"-d", "class", "show", "dev", l.Ifname},
			{"-d", "filter", "show", "dev", l.Ifname, "parent", "1:"}, {"-d", "filter", "show", "dev", l.Ifname, "parent", "ffff:"},
		} {
			if text := n.Must(GinkgoTB(), "tc", args...); text != "" && !strings.HasPrefix(text, "qdisc noqueue") {
				fmt.Fprintf(&all, "# tc %s\n%s\n", strings.Join(args, " "), strings.TrimSpace(text))
			}
		}
	}
	return regexp.MustCompile(` (refcnt|direct_packets_stat) \d+| *(?m:$)`).ReplaceAllString(all.String(), "")
}
