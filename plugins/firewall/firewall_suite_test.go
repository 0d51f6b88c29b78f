package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestFirewall(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/firewall")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// TestListings checks that the golden files contain the lines of the listings in the explanation, in the same order.
func TestListings(t *testing.T) {
	withoutProgram := func(golden string) string { return strings.ReplaceAll(golden, "\niptables -A", "\n-A") }
	nstest.Listings(t, "../../docs/explanation/firewall.md", withoutProgram, "open", "nftables")
}

// A testbed is a host with three bridges, cni0 with two containers, and cni1 and cni2 with one container each. An
// outside host has routes to all of them. Each bridge belongs to one network.
type testbed struct {
	*nstest.Bed
	containers []*nstest.NS // two on cni0, one on cni1, and one on cni2
}

// A place describes where one container is attached.
type place struct{ network, bridge, port, v4, v6, gateway4, gateway6 string }

func places() []place {
	var all []place
	for i, at := range [][2]int{{0, 2}, {0, 3}, {1, 2}, {2, 2}} {
		all = append(all, place{
			network: fmt.Sprint("net", 1+at[0]), bridge: fmt.Sprint("cni", at[0]), port: fmt.Sprint("veth", i),
			v4: fmt.Sprintf("10.9.%d.%d", at[0], at[1]), v6: fmt.Sprintf("fd00:%d::%d", 1+at[0], at[1]),
			gateway4: fmt.Sprintf("10.9.%d.1", at[0]), gateway6: fmt.Sprintf("fd00:%d::1", 1+at[0]),
		})
	}
	return all
}

// addBridges creates the bridges that the prevResults name.
func addBridges(tb nstest.TB, host *nstest.NS) {
	host.SetForwarding(tb, "1")
	for i := range 3 {
		bridge := fmt.Sprint("cni", i)
		host.Batch(tb, "link add "+bridge+" type bridge",
			fmt.Sprintf("addr add 10.9.%d.1/24 dev %s", i, bridge), fmt.Sprintf("addr add fd00:%d::1/64 dev %s nodad", 1+i, bridge), "link set "+bridge+" up")
	}
}

func newTestbed() *testbed {
	b := &testbed{Bed: nstest.NewBed(GinkgoTB(), plugin())}
	addBridges(GinkgoTB(), b.Host)
	b.Outside.Batch(GinkgoTB(), "route add 10.9.0.0/16 via "+nstest.HostV4, "route add fd00::/16 via "+nstest.HostV6)
	for i, p := range places() {
		container := nstest.New(GinkgoTB()).Named(fmt.Sprint("container", i))
		nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: p.port}, nstest.End{In: container, Name: "eth0", Addrs: []string{p.v4 + "/24", p.v6 + "/64"}})
		b.Host.Batch(GinkgoTB(), "link set "+p.port+" master "+p.bridge)
		container.Batch(GinkgoTB(), "link set lo up", "route add default via "+p.gateway4, "route add default via "+p.gateway6)
		b.containers = append(b.containers, container)
	}
	_ = b.Host.SetBridgeNetfilter(GinkgoTB(), "0")
	return b
}

// conf returns the configuration for the container with this index. keys is empty, or JSON text that ends in a comma.
func conf(keys string, container int) string {
	p := places()[container]
	text := confFor(keys, fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":%q},{"name":%q},{"name":"eth0","sandbox":"/container"}],`+
		`"ips":[{"address":"%s/24","interface":2},{"address":"%s/64","interface":2}]}`, p.bridge, p.port, p.v4, p.v6))
	return strings.Replace(text, "net1", p.network, 1)
}

func confFor(keys, prev string) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net1",%s"type":"firewall","prevResult":%s}`, keys, prev)
}

// bare returns a configuration without prevResult.
func bare(keys string) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net1",%s"type":"firewall"}`, keys)
}

// kept returns the configuration of a GC that keeps eth0 of these containers.
func kept(ids ...string) string {
	valid := make([]string, len(ids))
	for i, id := range ids {
		valid[i] = fmt.Sprintf(`{"containerID":%q,"ifname":"eth0"}`, id)
	}
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net1","type":"firewall","cni.dev/valid-attachments":[%s]}`, strings.Join(valid, ","))
}

func key(name, value string) string { return fmt.Sprintf("%q:%q,", name, value) }

// call returns a call for the container with this index, whose ID is c0, c1 and so on.
func (b *testbed) call(keys string, container int) nstest.Call {
	return b.Call(fmt.Sprint("c", container), b.containers[container], conf(keys, container))
}

// saved returns the rules and the CNI chains in table filter of both families, without counters.
func (b *testbed) saved(variant ...string) string {
	GinkgoHelper()
	var lines []string
	for _, program := range []string{"iptables", "ip6tables"} {
		for line := range strings.Lines(b.Host.Must(GinkgoTB(), program+strings.Join(variant, "")+"-save", "-t", "filter")) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " [")
			if strings.HasPrefix(line, "-") || strings.HasPrefix(line, ":CNI") {
				lines = append(lines, program+" "+line+"\n")
			}
		}
	}
	return strings.Join(lines, "")
}

// ruleset returns plumb's tables as nft lists them.
func (b *testbed) ruleset() string {
	GinkgoHelper()
	var all string
	for _, family := range []string{"inet", "bridge"} {
		listed, err := b.Host.Exec("nft", "list", "table", family, "plumb")
		if err == nil {
			all += listed
		}
	}
	return all
}

// sorted returns the sorted lines of all rulesets without counters.
func (b *testbed) sorted() string {
	GinkgoHelper()
	ruleset := regexp.MustCompile(`packets \d+ bytes \d+`).ReplaceAllString(b.Host.Must(GinkgoTB(), "nft", "list", "ruleset"), "")
	lines := strings.Split(ruleset, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// elements returns the lines of the ruleset that contain elements.
func (b *testbed) elements() string {
	GinkgoHelper()
	return nstest.ElementLines(b.ruleset())
}
