package doctor_test

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/doctor"
	"github.com/plumb-cni/plumb/test/nstest"
)

// A fault is one way in which a node is broken.
type fault struct {
	check string
	what  string // the finding, or its place
	make  func()
	// byHand follows the advice, if that is no command.
	byHand func()
}

// faults returns more than twenty faults of one node. c1 and c2 are its containers, and c3 one that is gone.
func faults(n *usedNode, c1, c2 *nstest.NS) []fault {
	tb := GinkgoTB()
	file := func(name, plugin string) func() {
		return func() {
			network := strings.Split(name, ".")[0]
			n.write(name, fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "n%s", "plugins": [%s]}`, network, plugin))
		}
	}
	write := func(name, text string) func() { return func() { n.write(name, text) } }
	remove := func(name string) func() {
		return func() { Expect(os.Remove(filepath.Join(n.confDir(), name))).To(Succeed()) }
	}
	other := nstest.New(tb).Named("other")
	return []fault{
		{"syntax", "30.conflist:1: no valid JSON", write("30.conflist", `{"name": "x,}`), remove("30.conflist")},
		{"file-kind", "is a list of plugins", file("31.conf", `{"type": "bridge", "bridge": "b31"}`), nil},
		{"file-kind", "is the configuration of one plugin", write("32.conflist", `{"cniVersion": "1.1.0", "name": "n32", "type": "bridge", "bridge": "b32"}`), nil},
		{"order", "10-z.conflist: begins with 10", write("10-z.conflist", `{"cniVersion": "1.1.0", "name": "z", "plugins": [{"type": "bridge", "bridge": "z"}]}`), nil},
		{"duplicate-name", `the network "pods" has a file already`, write("33.conflist", masqueraded), nil},
		{"keys", "34.conflist:1: plugins[0].hairpinMod: unknown key; hairpinMode", file("34.conflist", `{"type": "bridge", "bridge": "b34", "hairpinMod": true}`), nil},
		{"keys", "35.conflist:1: plugins[0].colour: unknown key", file("35.conflist", `{"type": "bridge", "bridge": "b35", "colour": 1}`), remove("35.conflist")},
		{"keys", `plugins[0].mtu: want an integer, have "1400"`, file("36.conflist", `{"type": "bridge", "bridge": "b36", "mtu": "1400"}`), nil},
		{"keys", `want "nftables" or "iptables", have "nftable"`, file("37.conflist", `{"type": "bridge", "bridge": "b37", "ipMasqBackend": "nftable"}`), nil},
		{"executable", `plugins[0].type "loopback": no executable`, file("38.conflist", `{"type": "loopback"}`), nil},
		{"executable", "brigde\": no executable", file("39.conflist", `{"type": "brigde", "bridge": "b39"}`), nil},
		{"executable", "not executable (mode 0644)", func() {
			n.sh("chmod 0644 " + n.bin() + "/portmap")
			file("40.conflist", `{"type": "portmap"}`)()
		}, nil},
		{"executable", "for another processor", func() {
			f, err := os.OpenFile(filepath.Join(n.bin(), "firewall"), os.O_WRONLY, 0)
			Expect(err).NotTo(HaveOccurred())
			_, err = f.WriteAt([]byte{byte(elf.EM_S390)}, 18)
			Expect(errors.Join(err, f.Close())).To(Succeed())
			file("41.conflist", `{"type": "firewall"}`)()
		}, nil},
		{"versions", `cniVersion "1.1.0": not supported by vendor`, func() {
			n.writeVendor()
			file("42.conflist", `{"type": "vendor"}`)()
		}, nil},
		{"mixed-versions", "bin/static: has version v1.9.9", func() {
			n.buildOld("static", filepath.Join(n.bin(), "static"))
			file("43.conflist", `{"type": "bridge", "bridge": "b43", "ipam": {"type": "static"}}`)()
		}, nil},
		{"ranges", "rangeStart: 10.44.0.1 is the gateway", file("44.conflist",
			`{"type": "bridge", "bridge": "b44", "ipam": {"type": "host-local", "dataDir": "POOLS", "subnet": "10.44.0.0/16", "gateway": "10.44.0.1", "rangeStart": "10.44.0.1"}}`), nil},
		{"overlap", `overlaps with 10.88.0.1 to 10.88.255.255 of "pods"`, file("45.conflist",
			`{"type": "bridge", "bridge": "b45", "isGateway": true, "ipam": {"type": "host-local", "dataDir": "POOLS", "subnet": "10.88.77.0/24"}}`), remove("45.conflist")},
		{"route", "the node has a route to 10.88.3.0/24 on uplink0", func() {
			n.Batch(tb, "link add uplink0 type veth peer name x1", "link set uplink0 up", "route add 10.88.3.0/24 dev uplink0")
		}, func() { n.Batch(tb, "route delete 10.88.3.0/24 dev uplink0") }},
		{"master", `the node has no interface "uplink"`, file("46.conflist", `{"type": "macvlan", "master": "uplink"}`), remove("46.conflist")},
		{"leftover", "container c3", func() {
			n.add("c3").Remove(tb)
			n.age()
		}, nil},
		{"bridge", "the bridge of network \"pods\" is cni0, and its containers are on br9", func() { n.Batch(tb, "link set cni0 name br9") }, nil},
		{"reservation", "10.88.0.2 is reserved for c1, whose eth0 does not have it", func() { c1.Batch(tb, "address flush dev eth0") }, nil},
		{"reservation", "10.88.0.3, an address of c2, is not reserved", func() { Expect(os.Remove(filepath.Join(n.pools(), "pods", "10.88.0.3"))).To(Succeed()) }, nil},
		{"route-localnet", "has route_localnet", func() {
			n.sh("sysctl -q -w net.ipv4.conf.cni0.route_localnet=1 || sysctl -q -w net.ipv4.conf.br9.route_localnet=1")
		}, nil},
		{"forward-drop", "10-pods.conflist: table ip filter, chain FORWARD: its policy is drop", func() { n.Must(tb, "iptables", "-P", "FORWARD", "DROP") }, func() {
			n.change("10-pods.conflist", "        }\n    ]", "        },\n        {\"type\": \"firewall\"}\n    ]")
		}},
		{"elements", "table inet plumb lacks the elements for masquerade or host ports of c1, c2", func() { n.Must(tb, "nft", "delete", "table", "inet", "plumb") }, func() {
			n.del("c1", c1)
			n.del("c2", c2)
			n.add("c1")
			n.add("c2")
		}},
		{"wire", "10.88.0.3, an address of c2", func() {
			n.Must(tb, "ip", "link", "add", "v9", "type", "veth", "peer", "name", "eth9", "address", "02:00:00:00:00:99", "netns", other.Path())
			n.sh("ip link set v9 master cni0 2>/dev/null || ip link set v9 master br9")
			n.Batch(tb, "link set v9 up")
			other.Batch(tb, "link set eth9 up", "address add 10.88.0.3/16 dev eth9")
		}, func() { other.Batch(tb, "address flush dev eth9") }},
	}
}

var _ = It("finds all faults of a node that is broken in many ways, and its advice, followed literally, mends all", func() {
	n, c1 := newUsedNode()
	c2 := n.add("c2")
	n.sh(fmt.Sprintf("install -m 0755 %s/macvlan %s", nstest.Build(GinkgoTB(), "macvlan", "loopback", "static"), n.bin()))
	n.args = []string{"--wire"}
	all := faults(n, c1, c2)
	for _, f := range all {
		f.make()
	}
	// A finding can appear when another one is mended, as those of a file that could not be read before.
	left := all
	const rounds = 8
	for range rounds {
		findings := n.doctor().Findings
		if len(findings) == 0 {
			break
		}
		fmt.Fprintf(GinkgoWriter, "\n%d findings\n", len(findings))
		mended := map[string]bool{}
		for _, f := range findings {
			fmt.Fprintf(GinkgoWriter, "%s %s: %s\n    %s\n", f.Check, f.Where, f.What, f.Mend)
			left = n.follow(f, left, mended)
			if f.Check == "bridge" {
				break // the others name the former bridge
			}
		}
	}
	var missed []string
	for _, f := range left {
		missed = append(missed, f.check+" "+f.what)
	}
	Expect(missed).To(BeEmpty())
	Expect(n.doctor().Findings).To(BeEmpty())
	Expect(len(all)).To(BeNumerically(">=", 20))
})

// follow follows the advice of a finding, which must be one of the faults. Findings with the same command are mended
// once. It returns the faults that are left.
func (n *usedNode) follow(f doctor.Finding, left []fault, mended map[string]bool) []fault {
	GinkgoHelper()
	var byHand func()
	for i, known := range left {
		if known.check == f.Check && strings.Contains(f.Where+": "+f.What, known.what) {
			byHand = known.byHand
			left = append(append([]fault{}, left[:i]...), left[i+1:]...)
			break
		}
	}
	switch {
	case f.IsCommand() && !mended[f.Mend]:
		mended[f.Mend] = true
		n.sh(f.Mend)
	case !f.IsCommand() && byHand != nil:
		byHand()
	}
	return left
}
