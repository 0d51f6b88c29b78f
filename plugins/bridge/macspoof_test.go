package main

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// referenceSpoofRules contains the reference plugin's rules for cid1/eth0 behind veth1.
const referenceSpoofRules = `
table bridge nat {
	chain PREROUTING {
		type filter hook prerouting priority -300; policy accept;
	}
	chain cni-br-iface-cid1-eth0-mac {
		ether saddr 02:00:00:00:00:01 return comment "macspoofchk-cid1-eth0"
		drop comment "macspoofchk-cid1-eth0"
	}
	chain cni-br-iface-cid1-eth0 {
		jump cni-br-iface-cid1-eth0-mac comment "macspoofchk-cid1-eth0"
	}
}
add rule bridge nat PREROUTING iifname "veth1" jump cni-br-iface-cid1-eth0 comment "macspoofchk-cid1-eth0"
`

var _ = Describe("macspoofchk", func() {
	var host *nstest.NS
	var u undo.Stack

	BeforeEach(func() {
		host = nstest.NewHost(GinkgoTB())
		u = undo.Stack{}
	})

	// checkOf returns the check of the container behind veth<n>.
	checkOf := func(n int) macSpoofCheck {
		mac, err := types.ParseMAC(fmt.Sprintf("02:00:00:00:00:%02x", n))
		Expect(err).NotTo(HaveOccurred())
		return macSpoofCheck{
			host: host.Open(GinkgoTB(), nil), port: fmt.Sprintf("veth%d", n), mac: mac,
			owner: types.Attachment{Network: "net1", ContainerID: fmt.Sprintf("cid%d", n), IfName: "eth0"},
		}
	}
	ruleset := func() string {
		GinkgoHelper()
		return host.Must(GinkgoTB(), "nft", "list", "ruleset")
	}
	delCheck := func(s macSpoofCheck) error {
		c, err := openSpoofTable(s)
		Expect(err).NotTo(HaveOccurred())
		return c.Atomically("delete", func(tx *nft.Tx) error { return s.delete(c, tx) })
	}
	gcChecks := func(keep types.Set) error {
		h := host.Open(GinkgoTB(), nil)
		links, err := nl.Open(h)
		Expect(err).NotTo(HaveOccurred())
		c, err := openSpoofTable(macSpoofCheck{host: h})
		Expect(err).NotTo(HaveOccurred())
		return c.Atomically("GC", func(tx *nft.Tx) error { return gcMACSpoofChecks(links, "net1", keep)(c, tx) })
	}
	// withoutPort returns the check without port and MAC.
	withoutPort := func(s macSpoofCheck) macSpoofCheck { return macSpoofCheck{host: s.host, owner: s.owner} }

	It("adds elements, and deletes them by port, or only by owner", func() {
		s := checkOf(1)
		Expect(addMACSpoofCheck(&u, s)).To(Succeed())
		nstest.Golden(GinkgoTB(), "macspoof", ruleset())
		Expect(checkMACSpoofCheck(s)).To(Succeed())
		Expect(delCheck(s)).To(Succeed())
		nstest.Golden(GinkgoTB(), "macspoof-cleaned", ruleset())
		Expect(checkMACSpoofCheck(s)).To(MatchError(ContainSubstring("no element for the MAC spoof check of veth1")))
		Expect(delCheck(s)).To(Succeed(), "the check was deleted already")
		Expect(addMACSpoofCheck(&u, s)).To(Succeed())
		Expect(delCheck(withoutPort(s))).To(Succeed())
		nstest.Golden(GinkgoTB(), "macspoof-cleaned", ruleset())
		Expect(addMACSpoofCheck(&u, s)).To(Succeed())
		s.mac = checkOf(2).mac // the MAC in prevResult after tuning changed it
		Expect(delCheck(s)).To(Succeed())
		nstest.Golden(GinkgoTB(), "macspoof-cleaned", ruleset())
	})

	It("drops frames with another source MAC on checked ports, and nothing else", func() {
		site := nstest.NewSite(GinkgoTB())
		host = site.Host
		host.Batch(GinkgoTB(), "link add br0 type bridge", "link set br0 up", "addr add 10.9.0.254/24 dev br0")
		server := nstest.ServeTCP(GinkgoTB(), host, "10.9.0.254:0").String()
		containers := map[int]*nstest.NS{}
		for n := 1; n <= 2; n++ {
			containers[n] = nstest.New(GinkgoTB())
			nstest.Join(GinkgoTB(), nstest.End{In: host, Name: fmt.Sprintf("veth%d", n)},
				nstest.End{In: containers[n], Name: "eth0", Addrs: []string{fmt.Sprintf("10.9.0.%d/24", n)}})
			host.Batch(GinkgoTB(), fmt.Sprintf("link set veth%d master br0", n))
			containers[n].Batch(GinkgoTB(), fmt.Sprintf("link set eth0 address 02:00:00:00:00:%02x", n))
		}
		Expect(addMACSpoofCheck(&u, checkOf(1))).To(Succeed())
		nstest.MustDial(GinkgoTB(), containers[1], server, "")
		for n := range containers {
			containers[n].Batch(GinkgoTB(), fmt.Sprintf("link set eth0 address 02:00:00:00:01:%02x", n))
		}
		nstest.MustNotAnswer(GinkgoTB(), containers[1], server)
		nstest.MustDial(GinkgoTB(), containers[2], server, "")
		Expect(u.Rollback()).To(Succeed())
		nstest.MustDial(GinkgoTB(), containers[1], server, "")
	})

	It("returns the port to the former attachment when the ADD of the newer one is undone", func() {
		first, second := checkOf(1), checkOf(2)
		second.port = first.port
		Expect(addMACSpoofCheck(&u, first)).To(Succeed())
		u.Commit()
		before := ruleset()
		var warnings []string
		second.warn = func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
		Expect(addMACSpoofCheck(&u, second)).To(Succeed())
		Expect(warnings).To(Equal([]string{"the MAC spoof check of veth1 was held by net1/cid1/eth0, and is taken over"}))
		Expect(checkMACSpoofCheck(second)).To(Succeed())
		Expect(checkMACSpoofCheck(first)).To(MatchError(ContainSubstring("the MAC spoof check of veth1 belongs to net1/cid2/eth0 now")))
		allowed := host.Must(GinkgoTB(), "nft", "list", "set", "bridge", "plumb", "allowed")
		Expect(allowed).NotTo(ContainSubstring("02:00:00:00:00:01"), "the MAC of the former attachment is not allowed")
		Expect(u.Rollback()).To(Succeed())
		Expect(checkMACSpoofCheck(first)).To(Succeed())
		Expect(delCheck(first)).To(Succeed())
		Expect(ruleset()).NotTo(ContainSubstring("elements"))
		Expect(before).To(ContainSubstring("net1/cid1/eth0"))
	})

	It("accepts and deletes the reference plugin's check", func() {
		s := checkOf(1)
		_, err := host.ExecInput(referenceSpoofRules, "nft", "-f", "-")
		Expect(err).NotTo(HaveOccurred())
		Expect(checkMACSpoofCheck(s)).To(Succeed(), "the reference plugin's check is sufficient")
		Expect(delCheck(macSpoofCheck{host: s.host, owner: types.Attachment{Network: "net1", ContainerID: "cid1", IfName: "eth1"}})).To(Succeed())
		Expect(ruleset()).To(ContainSubstring("cni-br-iface-cid1-eth0"))
		Expect(delCheck(withoutPort(s))).To(Succeed())
		Expect(ruleset()).NotTo(ContainSubstring("cid1"))
	})

	It("GC deletes checks that are not kept, and the reference plugin's checks whose port does not exist", func() {
		kept, stale, other := checkOf(1), checkOf(2), checkOf(3)
		other.owner.Network = "net10"
		for _, s := range []macSpoofCheck{kept, stale, other} {
			Expect(addMACSpoofCheck(&u, s)).To(Succeed())
		}
		_, err := host.ExecInput(referenceSpoofRules, "nft", "-f", "-")
		Expect(err).NotTo(HaveOccurred())
		host.Batch(GinkgoTB(), "link add veth1 type bridge")
		gc := func() { Expect(gcChecks(types.Set{kept.owner: true})).To(Succeed()) }
		gc()
		Expect(ruleset()).To(ContainSubstring("cni-br-iface-cid1-eth0"), "the port of the check exists")
		host.Batch(GinkgoTB(), "link del veth1")
		gc()
		Expect(ruleset()).To(And(Not(ContainSubstring("cni-br-iface")), Not(ContainSubstring("cid2"))))
		Expect(checkMACSpoofCheck(kept)).To(Succeed())
		Expect(checkMACSpoofCheck(other)).To(Succeed())
	})
})
