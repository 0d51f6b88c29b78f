package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

func TestBandwidth(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/bandwidth")
}

const (
	network = "bwn"
	cid     = "cidX"
	ifbX    = "bwp365d6baf39d2" // the reference plugin's name for the two
	hostV4  = "10.77.0.1"
	podV4   = "10.77.0.2"
	hostV6  = "fd77::1"
	podV6   = "fd77::2"
)

// A world is a node and a pod with an interface as another plugin made it.
type world struct {
	node, pod *nstest.NS
	call      nstest.Call // without Command and Config
	prev      string      // that plugin's result
}

func newWorld() *world {
	GinkgoHelper()
	node, pod := nstest.NewNodeAndPod(GinkgoTB())
	w := &world{node: node, pod: pod, call: nstest.Call{ContainerID: cid, Node: node, Pod: pod}}
	pod.Must(GinkgoTB(), "ip", "link", "set", "lo", "up")
	return w
}

// ptp: a pair of which the node's end has the gateway address.
func ptp() *world {
	GinkgoHelper()
	w := newWorld()
	nstest.Join(GinkgoTB(), nstest.End{In: w.node, Name: "veth0", Addrs: []string{hostV4 + "/24", hostV6 + "/64"}},
		nstest.End{In: w.pod, Name: "eth0", Addrs: []string{podV4 + "/24", podV6 + "/64"}})
	w.prev = w.result(`{"name": "veth0", "mac": "02:00:00:00:00:01"}, `)
	return w
}

// bridge: the same, but that the node's end is a port.
func bridge() *world {
	GinkgoHelper()
	w := newWorld()
	nstest.Join(GinkgoTB(), nstest.End{In: w.node, Name: "veth0"}, nstest.End{In: w.pod, Name: "eth0", Addrs: []string{podV4 + "/24"}})
	w.node.Batch(GinkgoTB(), "link add br0 type bridge", "link set veth0 master br0", "link set br0 up", "addr add "+hostV4+"/24 dev br0")
	w.prev = w.result(`{"name": "br0"}, {"name": "veth0"}, `)
	return w
}

// macvlan: the node has no end; the other side is another host.
func macvlan() *world {
	GinkgoHelper()
	w := newWorld()
	outside := nstest.NewNode(GinkgoTB()).Named("outside")
	nstest.Join(GinkgoTB(), nstest.End{In: w.node, Name: "up0"}, nstest.End{In: outside, Name: "up0", Addrs: []string{hostV4 + "/24"}})
	w.node.Must(GinkgoTB(), "ip", "link", "add", "link", "up0", "name", "mv0", "type", "macvlan", "mode", "bridge")
	w.node.Must(GinkgoTB(), "ip", "link", "set", "mv0", "netns", w.pod.Path(), "name", "eth0")
	w.pod.Batch(GinkgoTB(), "link set eth0 up", "addr add "+podV4+"/24 dev eth0")
	w.prev = w.result("")
	w.node = outside // who is on the other side
	return w
}

// result is a result with the container's interface after others.
func (w *world) result(others string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "interfaces": [%s{"name": "eth0", "mac": "02:00:00:00:00:02", "sandbox": %q}],
		"ips": [{"address": "%s/24", "interface": %d}], "dns": {}}`, others, w.pod.Path(), podV4, strings.Count(others, "name"))
}

// config is a configuration with these keys ("\"ingressRate\": 8").
func (w *world) config(keys string) string { return configOf(network, keys, w.prev) }

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

func (w *world) run(command, keys string) nstest.Reply {
	c := w.call.With(command)
	c.Config = w.config(keys)
	return nstest.Run(plugin(), c)
}

// shape returns the links with their qdiscs, classes and filters as text.
func (w *world) shape() string {
	GinkgoHelper()
	names := regexp.MustCompile(`(?m)^\d+: \S+`)
	var all []string
	for _, n := range []*nstest.NS{w.call.Node, w.pod} {
		all = append(all, names.FindAllString(n.Must(GinkgoTB(), "ip", "-o", "link"), -1)...)
		all = append(all, tcText(n))
	}
	return strings.Join(all, "\n")
}

func rates(ingress, egress, burst uint64) string {
	return fmt.Sprintf(`"ingressRate": %d, "ingressBurst": %d, "egressRate": %d, "egressBurst": %d`, ingress, burst, egress, burst)
}

// tcText is all that tc knows of the namespace's qdiscs, classes and filters, but for
// numbers that count something else.
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
