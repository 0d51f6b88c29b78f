package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/test/nstest"
)

func TestPortmap(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/portmap")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// TestREADMERules: each listing in the page is what its golden says, with lines left
// out.
func TestREADMERules(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```text\n")[1:]
	for i, golden := range []string{"nftables-example", "iptables-example"} {
		rules, err := os.ReadFile("testdata/" + golden + ".golden")
		if err != nil {
			t.Fatal(err)
		}
		rest := string(rules)
		listing, _, _ := strings.Cut(blocks[i], "```")
		for line := range strings.Lines(listing) {
			_, after, found := strings.Cut(rest, line)
			if !found {
				t.Errorf("%s has no line, in this order, that says %s", golden, line)
				break
			}
			rest = after
		}
	}
}

// A bed is a node with a bridge and two pods on it, and a host outside.
type bed struct {
	node, outside *nstest.NS
	pods          []*nstest.NS // 10.9.0.2 and fd00:9::2, then .3 and ::3
}

const (
	gateway4, gateway6 = "10.9.0.1", "fd00:9::1"
	pod4, pod6         = "10.9.0.2", "fd00:9::2"
	peer4, peer6       = "10.9.0.3", "fd00:9::3"
)

// addBridge gives a node what the port maps of its pods stand on.
func addBridge(tb nstest.TB, node *nstest.NS) {
	node.SetSysctl(tb, "net/ipv4/ip_forward", "1")
	node.SetSysctl(tb, "net/ipv6/conf/all/forwarding", "1")
	node.Batch(tb, "link add cni0 type bridge", "addr add "+gateway4+"/24 dev cni0", "addr add "+gateway6+"/64 dev cni0 nodad", "link set cni0 up")
}

func newBed() *bed {
	site := nstest.NewSite(GinkgoTB())
	b := &bed{node: site.Node, outside: site.Outside}
	addBridge(GinkgoTB(), b.node)
	for i, addrs := range [][]string{{pod4 + "/24", pod6 + "/64"}, {peer4 + "/24", peer6 + "/64"}} {
		pod, port := nstest.New(GinkgoTB()).Named(fmt.Sprint("pod", i)), fmt.Sprint("port", i)
		nstest.Join(GinkgoTB(), nstest.End{In: b.node, Name: port}, nstest.End{In: pod, Name: "eth0", Addrs: addrs})
		b.node.Batch(GinkgoTB(), "link set "+port+" master cni0", "link set "+port+" type bridge_slave hairpin on")
		pod.Batch(GinkgoTB(), "link set lo up", "route add default via "+gateway4, "route add default via "+gateway6)
		b.pods = append(b.pods, pod)
	}
	_ = b.bridgeNetfilter("0")
	return b
}

// bridgeNetfilter tells whether netfilter sees what the bridge passes between its
// ports. Without br_netfilter it does not.
func (b *bed) bridgeNetfilter(value string) error {
	for _, key := range []string{"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"} {
		if _, err := os.Stat("/proc/sys/" + key); err != nil {
			return err
		}
		b.node.SetSysctl(GinkgoTB(), key, value)
	}
	return nil
}

// mapped is a mapping as a runtime writes it.
func mapped(host, container int, rest string) string {
	return fmt.Sprintf(`{"hostPort":%d,"containerPort":%d,%s}`, host, container, rest)
}

const (
	overTCP = `"protocol":"tcp"`
	overUDP = `"protocol":"udp"`
)

// conf writes a configuration. keys is JSON text that ends in a comma, or nothing;
// the container's addresses are those of the first pod.
func conf(keys string, mappings ...string) string {
	return confFor(fmt.Sprintf(`%s"name":"net1",`, keys), []string{pod4 + "/24", pod6 + "/64"}, mappings...)
}

func confFor(keys string, ips []string, mappings ...string) string {
	texts := make([]string, len(ips))
	for i, ip := range ips {
		texts[i] = fmt.Sprintf(`{"address":%q,"interface":1}`, ip)
	}
	return fmt.Sprintf(`{"cniVersion":"1.1.0",%s"type":"portmap","runtimeConfig":{"portMappings":[%s]},"prevResult":%s}`,
		keys, strings.Join(mappings, ","), fmt.Sprintf(
			`{"cniVersion":"1.1.0","interfaces":[{"name":"cni0"},{"name":"eth0","sandbox":"/pod"},{"name":"eth1","sandbox":"/pod"}],"ips":[%s]}`, strings.Join(texts, ",")))
}

// call is a call for the container of that ID.
func (b *bed) call(id, conf string) nstest.Call {
	return nstest.Call{ContainerID: id, Node: b.node, Pod: b.pods[0], Config: conf}
}

func run(c nstest.Call, command string) nstest.Reply { return nstest.Run(plugin(), c.With(command)) }

func ok(c nstest.Call, command string) nstest.Reply {
	GinkgoHelper()
	return run(c, command).OK(GinkgoTB())
}

func failure(c nstest.Call, command string) nstest.Failure {
	GinkgoHelper()
	return run(c, command).Failure(GinkgoTB())
}

// ruleset is what nft lists of the node.
func (b *bed) ruleset() string {
	GinkgoHelper()
	return b.node.Must(GinkgoTB(), "nft", "list", "ruleset")
}

// elements is the lines with elements.
func (b *bed) elements() string {
	GinkgoHelper()
	var lines []string
	for line := range strings.Lines(b.ruleset()) {
		if strings.Contains(line, `comment "`) && !strings.Contains(line, "plumb layout") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, "\n")
}

// saved is a table of both families without counters, dates and policies.
func (b *bed) saved(programs ...string) string {
	GinkgoHelper()
	if len(programs) == 0 {
		programs = []string{"iptables-save", "ip6tables-save"}
	}
	var lines []string
	for _, program := range programs {
		for line := range strings.Lines(b.node.Must(GinkgoTB(), program, "-t", "nat")) {
			if strings.HasPrefix(line, "-") || strings.HasPrefix(line, ":CNI") {
				line, _, _ = strings.Cut(line, " - [") // counters
				lines = append(lines, strings.TrimSpace(line)+"\n")
			}
		}
	}
	return strings.Join(lines, "")
}

func (b *bed) load(program, rules string) {
	GinkgoHelper()
	args := []string{"--noflush"}
	if program == "nft" {
		args = []string{"-f", "-"}
	}
	_, err := b.node.ExecInput(rules, program, args...)
	Expect(err).NotTo(HaveOccurred())
}
