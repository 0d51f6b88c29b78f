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

func TestPortmap(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/portmap")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// TestListings checks that the lines of each listing in the explanation are lines of its golden file, in the same order.
func TestListings(t *testing.T) {
	nstest.Listings(t, "../../docs/explanation/host-ports.md", nil, "nftables-example", "iptables-example")
}

// A testbed is a host with a bridge, two containers on the bridge, and a host outside.
type testbed struct {
	*nstest.Bed
	containers []*nstest.NS // 10.9.0.2 and fd00:9::2, then .3 and ::3
}

const (
	gateway4, gateway6 = "10.9.0.1", "fd00:9::1"
	addr4, addr6       = "10.9.0.2", "fd00:9::2"
	peer4, peer6       = "10.9.0.3", "fd00:9::3"
)

// addBridge adds a bridge with addresses to the host, and switches forwarding on. Like the plugin bridge, it disables
// duplicate address detection on the bridge. During the detection, the host sends no neighbor solicitations for packets that
// it forwards, because they come from the bridge's link-local address (ndisc_send_ns), and drops the packets after three
// seconds.
func addBridge(tb nstest.TB, host *nstest.NS) {
	host.SetForwarding(tb, "1")
	host.Batch(tb, "link add cni0 type bridge")
	host.SetSysctl(tb, "net/ipv6/conf/cni0/accept_dad", "0")
	host.Batch(tb, "addr add "+gateway4+"/24 dev cni0", "addr add "+gateway6+"/64 dev cni0 nodad", "link set cni0 up")
}

func newTestbed() *testbed {
	b := &testbed{Bed: nstest.NewBed(GinkgoTB(), plugin())}
	addBridge(GinkgoTB(), b.Host)
	for i, addrs := range [][]string{{addr4 + "/24", addr6 + "/64"}, {peer4 + "/24", peer6 + "/64"}} {
		container, port := nstest.New(GinkgoTB()).Named(fmt.Sprint("container", i)), fmt.Sprint("port", i)
		nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: port}, nstest.End{In: container, Name: "eth0", Addrs: addrs})
		b.Host.Batch(GinkgoTB(), "link set "+port+" master cni0", "link set "+port+" type bridge_slave hairpin on")
		container.Batch(GinkgoTB(), "link set lo up", "route add default via "+gateway4, "route add default via "+gateway6)
		b.containers = append(b.containers, container)
	}
	_ = b.Host.SetBridgeNetfilter(GinkgoTB(), "0")
	nstest.End{In: b.Host, Name: "cni0"}.AwaitAddresses(GinkgoTB())
	return b
}

// reset removes all rules, and the setting that the plugin makes on the bridge.
func (b *testbed) reset() {
	GinkgoHelper()
	b.Host.Must(GinkgoTB(), "nft", "flush ruleset")
	b.Host.SetSysctl(GinkgoTB(), "net/ipv4/conf/cni0/route_localnet", "0")
}

// portMapping returns an element of portMappings.
func portMapping(host, container int, rest string) string {
	return fmt.Sprintf(`{"hostPort":%d,"containerPort":%d,%s}`, host, container, rest)
}

const (
	overTCP = `"protocol":"tcp"`
	overUDP = `"protocol":"udp"`
)

// conf returns a configuration of network net1 whose container has the addresses of the first container. keys
// is JSON text that ends with a comma, or empty.
func conf(keys string, mappings ...string) string {
	return confFor(fmt.Sprintf(`%s"name":"net1",`, keys), []string{addr4 + "/24", addr6 + "/64"}, mappings...)
}

// confFor returns a configuration whose container has these addresses. keys must contain the name of the
// network.
func confFor(keys string, ips []string, mappings ...string) string {
	texts := make([]string, len(ips))
	for i, ip := range ips {
		texts[i] = fmt.Sprintf(`{"address":%q,"interface":1}`, ip)
	}
	return fmt.Sprintf(`{"cniVersion":"1.1.0",%s"type":"portmap","runtimeConfig":{"portMappings":[%s]},"prevResult":%s}`,
		keys, strings.Join(mappings, ","), fmt.Sprintf(
			`{"cniVersion":"1.1.0","interfaces":[{"name":"cni0"},{"name":"eth0","sandbox":"/container"},{"name":"eth1","sandbox":"/container"}],"ips":[%s]}`, strings.Join(texts, ",")))
}

// call returns a call for the first container with that container ID.
func (b *testbed) call(id, conf string) nstest.Call { return b.Call(id, b.containers[0], conf) }

func (b *testbed) ruleset() string {
	GinkgoHelper()
	return b.Host.Must(GinkgoTB(), "nft", "list", "ruleset")
}

// sorted returns the sorted lines of the ruleset without counters, and route_localnet of the bridge.
func (b *testbed) sorted() string {
	GinkgoHelper()
	ruleset := regexp.MustCompile(`packets \d+ bytes \d+`).ReplaceAllString(b.ruleset(), "")
	lines := append(strings.Split(ruleset, "\n"), b.Host.Sysctl(GinkgoTB(), "net/ipv4/conf/cni0/route_localnet"))
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// elements returns the lines of the ruleset with elements.
func (b *testbed) elements() string {
	GinkgoHelper()
	return nstest.ElementLines(b.ruleset())
}

// saved returns the rules and chains of table nat in both families, as the programs print them, without
// counters.
func (b *testbed) saved(programs ...string) string {
	GinkgoHelper()
	if len(programs) == 0 {
		programs = []string{"iptables-save", "ip6tables-save"}
	}
	var lines []string
	for _, program := range programs {
		for line := range strings.Lines(b.Host.Must(GinkgoTB(), program, "-t", "nat")) {
			if strings.HasPrefix(line, "-") || strings.HasPrefix(line, ":CNI") {
				line, _, _ = strings.Cut(line, " - [") // counters
				lines = append(lines, strings.TrimSpace(line)+"\n")
			}
		}
	}
	return strings.Join(lines, "")
}

// load loads the rules with nft or iptables-restore.
func (b *testbed) load(program, rules string) {
	GinkgoHelper()
	args := []string{"--noflush"}
	if program == "nft" {
		args = []string{"-f", "-"}
	}
	_, err := b.Host.ExecInput(rules, program, args...)
	Expect(err).NotTo(HaveOccurred())
}
