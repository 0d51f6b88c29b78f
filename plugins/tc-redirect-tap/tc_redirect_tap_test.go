package main

import (
	"io/fs"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("ADD", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	It("connects the host with a virtual machine that has the MAC and the addresses of the interface", func() {
		b.Host.Batch(GinkgoTB(), "link set veth0 mtu 1400")
		b.container.Batch(GinkgoTB(), "link set eth0 mtu 1400")
		vm := b.Add(b.call("")).Interfaces[3]
		guest := nstest.NewGuest(GinkgoTB(), b.container, vm.Name, "link set eth0 mtu 1400 address "+vm.MAC,
			"address add 10.1.0.2/24 dev eth0", "address add fd00:1::2/64 dev eth0")
		for _, c := range []struct{ host, guest, largest string }{{"10.1.0.1", "10.1.0.2", "1372"}, {"fd00:1::1", "fd00:1::2", "1352"}} {
			// The kernel notices the carrier of the tap with a delay.
			Eventually(func() error { _, err := b.Host.Exec("ping", "-c", "1", "-W", "1", c.guest); return err }).Should(Succeed())
			nstest.RequireTraffic(GinkgoTB(), b.Host, guest, c.host, c.guest)
			b.Host.Must(GinkgoTB(), "ping", "-M", "do", "-s", c.largest, "-c", "1", c.guest)
			guest.Must(GinkgoTB(), "ping", "-M", "do", "-s", c.largest, "-c", "1", c.host)
		}
		By("bypassing the container")
		nstest.ServeTCP(GinkgoTB(), b.container, "10.1.0.2:81")
		_, err := nstest.Dial(b.Host, "10.1.0.2:81")
		Expect(err).To(MatchError(syscall.ECONNREFUSED))
	})

	It("connects an outside host with a virtual machine at a macvlan", func() {
		outside := nstest.NewHost(GinkgoTB()).Named("outside")
		nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: "up0"}, nstest.End{In: outside, Name: "up0", Addrs: []string{"10.2.0.1/24"}})
		b.Host.MustLine(GinkgoTB(), "ip link add link up0 name mv0 type macvlan mode bridge")
		b.Host.Must(GinkgoTB(), "ip", "link", "set", "mv0", "netns", b.container.Path(), "name", "eth1")
		b.container.Batch(GinkgoTB(), "link set eth1 up")
		c := b.call("")
		c.IfName = "eth1"
		vm := b.Add(c).Interfaces[3]
		guest := nstest.NewGuest(GinkgoTB(), b.container, vm.Name, "link set eth0 address "+vm.MAC, "address add 10.2.0.2/24 dev eth0")
		Eventually(func() error { _, err := outside.Exec("ping", "-c", "1", "-W", "1", "10.2.0.2"); return err }).Should(Succeed())
		nstest.RequireTraffic(GinkgoTB(), outside, guest, "10.2.0.1", "10.2.0.2")
	})

	It("creates a tap with the MTU of the interface and without addresses, for the user of the plugin", func() {
		b.container.Batch(GinkgoTB(), "link set eth0 mtu 1400")
		b.Add(b.call(""))
		Expect(b.container.IP("-d address show tap0")).To(And(ContainSubstring("<NO-CARRIER,BROADCAST,MULTICAST,UP>"), ContainSubstring("mtu 1400"),
			ContainSubstring("alias plumb:net1/vm1/eth0"), ContainSubstring("tun type tap pi off vnet_hdr off persist on user root group root"), Not(ContainSubstring("inet"))))
		Expect(b.container.Sysctl(GinkgoTB(), "net/ipv6/conf/tap0/disable_ipv6")).To(Equal("1"))
		Expect(b.container.IP("address show eth0")).To(And(ContainSubstring("inet 10.1.0.2/24"), ContainSubstring("inet6 fd00:1::2/64")))
	})

	It("reads the name, the user and the group of the tap from CNI_ARGS", func() {
		b.Add(b.call("TC_REDIRECT_TAP_NAME=vm0;TC_REDIRECT_TAP_UID=1234;TC_REDIRECT_TAP_GID=4321"))
		Expect(b.container.IP("-d link show vm0")).To(ContainSubstring("user 1234 group 4321"))
	})

	It("uses the first free name", func() {
		b.container.Batch(GinkgoTB(), "tuntap add mode tap tap0", "link add tap1 type veth peer name peer1")
		Expect(b.Add(b.call("K8S_POD_NAME=p;IgnoreUnknown=1")).Interfaces[3].Name).To(Equal("tap2"))
	})

	DescribeTable("returns the tap, and the interface of the virtual machine with its addresses",
		func(version, v4, v6, mtu string) {
			c := b.call("")
			c.Config = b.conf(version)
			text := b.OK("ADD", c).Stdout
			tap := strings.Fields(b.container.IP("-br link show tap0"))[2]
			Expect(text).To(MatchJSON(strings.NewReplacer("VERSION", version, "SANDBOX", b.container.Path(), "TAP", tap, "V4", v4, "V6", v6, "MTU", mtu).Replace(`{
				"cniVersion": "VERSION", "routes": [{"dst": "0.0.0.0/0"}], "dns": {}, "interfaces": [
				{"name": "veth0"}, {"name": "eth0", "mac": "02:00:00:00:00:02", "sandbox": "SANDBOX"},
				{MTU "name": "tap0", "mac": "TAP", "sandbox": "SANDBOX"}, {MTU "name": "tap0", "mac": "02:00:00:00:00:02", "sandbox": "vm1"}],
				"ips": [{V4 "interface": 1, "address": "10.1.0.2/24", "gateway": "10.1.0.1"}, {V6 "address": "fd00:1::2/64", "gateway": "fd00:1::1"},
				{V4 "interface": 3, "address": "10.1.0.2/24", "gateway": "10.1.0.1"}, {V6 "interface": 3, "address": "fd00:1::2/64", "gateway": "fd00:1::1"}]}`)))
		},
		func(version, _, _, _ string) string { return "in the form of version " + version },
		Entry(nil, "0.3.0", `"version": "4",`, `"version": "6",`, ""),
		Entry(nil, "1.0.0", "", "", ""),
		Entry(nil, "1.1.0", "", "", `"mtu": 1500,`),
	)

	It("names the missing /dev/net/tun in the error", func() {
		c := b.call("").FailAt("open /dev/net/tun", &fs.PathError{Op: "open", Path: nl.TunPath, Err: syscall.ENOENT})
		b.Refuse(c, types.CodeIO, "open /dev/net/tun: no such file or directory; taps need this device file and the module tun")
	})

	DescribeTable("rejects an interface or a name that it cannot use, and changes nothing",
		func(ifName, args string, prepare []string, texts ...string) {
			c := b.call(args)
			c.IfName = ifName
			for _, line := range prepare {
				b.container.MustLine(GinkgoTB(), line)
			}
			b.Refuse(c, types.CodeConfig, texts...)
		},
		Entry("no interface", "eth1", "", nil, `no interface "eth1" in container`, "list tc-redirect-tap after the plugin that creates the interface"),
		Entry("lo", "lo", "", nil, `interface lo is not an Ethernet interface, because its MAC is "00:00:00:00:00:00"`),
		Entry("an interface without Ethernet frames", "tun0", "", []string{"ip tuntap add mode tun tun0"}, "interface tun0 is not an Ethernet interface"),
		Entry("an MTU that no tap can have", "eth0", "", []string{"ip link set eth0 mtu 65535"}, "interface eth0 has MTU 65535, and a tap supports at most 65521"),
		Entry("a name that exists", "eth0", "TC_REDIRECT_TAP_NAME=vm0", []string{"ip link add vm0 type bridge"}, `interface "vm0" already exists in container`, "choose another TC_REDIRECT_TAP_NAME"),
		Entry("an ingress qdisc", "eth0", "", []string{"tc qdisc add dev eth0 ingress"}, "interface eth0 already has a qdisc (ingress)"),
		Entry("a pair of host-access", "eth0", "", []string{"ip link add h-eth0 type veth peer name host0"}, "interface eth0 has a veth pair of host-access"),
		Entry("a clsact qdisc", "eth0", "", []string{"tc qdisc add dev eth0 clsact"}, "interface eth0 already has a qdisc (clsact)"),
	)

	It("rejects a second ADD, and keeps the first tap", func() {
		c := b.call("")
		b.Add(c)
		b.Refuse(c, types.CodeConfig, "interface eth0 already has a qdisc (ingress): an earlier ADD was not followed by a DEL")
		b.OK("DEL", c)
	})
})

// A rejected call changes nothing, so that all calls can share a host.
var _ = Describe("an invalid call", Ordered, ContinueOnFailure, func() {
	var b *testbed
	BeforeAll(func() { b = newTestbed() })

	DescribeTable("ADD names all problems", func(args string, code int, texts ...string) { b.Refuse(b.call(args), code, texts...) },
		Entry("all values", "TC_REDIRECT_TAP_NAME=tap%d;TC_REDIRECT_TAP_UID=root;TC_REDIRECT_TAP_GID=4294967295", types.CodeConfig,
			`TC_REDIRECT_TAP_NAME "tap%d" cannot be the name of the tap: '/', ':' and '%' are not allowed`,
			`TC_REDIRECT_TAP_UID must be a number between 0 and 4294967294, got "root"`, `TC_REDIRECT_TAP_GID must be a number between 0 and 4294967294, got "4294967295"`),
		Entry("the name of the interface", "TC_REDIRECT_TAP_NAME=eth0", types.CodeConfig, "another interface of the container has that name"),
		Entry("a misspelled key", "TC_REDIRECT_TAP_USER=5", types.CodeEnvironment, "unknown args", "TC_REDIRECT_TAP_USER=5"),
	)

	It("ADD needs prevResult", func() {
		c := b.call("")
		c.Config = nstest.Conf("tc-redirect-tap", "1.1.0", "", "")
		b.Refuse(c, types.CodeConfig, "must be called as chained plugin")
	})

	It("STATUS fails without /dev/net/tun", func() {
		c := b.Call("", nil, nstest.Conf("tc-redirect-tap", "1.1.0", "", ""))
		b.OK("STATUS", c)
		c = c.FailAt("open /dev/net/tun", &fs.PathError{Op: "open", Path: nl.TunPath, Err: syscall.ENOENT})
		b.Fails("STATUS", c, types.CodeNotAvailable, "open /dev/net/tun: no such file or directory")
	})
})

var _ = Describe("CHECK", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	It("passes while a program is attached", func() {
		c := b.Attach(b.call("TC_REDIRECT_TAP_UID=1;TC_REDIRECT_TAP_GID=2"))
		b.OK("CHECK", c)
		nstest.MustAttachTap(GinkgoTB(), b.container, "tap0", 0)
		b.OK("CHECK", c)
	})

	DescribeTable("names differences that the spec of REPAIR and test/faults/check_test.go do not test",
		func(line string, texts ...string) {
			c := b.Attach(b.call(""))
			b.container.MustLine(GinkgoTB(), line)
			b.Fails("CHECK", c, types.CodeChanged, texts...)
		},
		Entry("another tap", "ip link set tap0 alias other", "the container has no tap tap0 of net1/vm1/eth0"),
		Entry("another MAC", "ip link set eth0 address 02:00:00:00:00:99", "interface eth0 has MAC 02:00:00:00:00:99, and the virtual machine has "+mac),
	)

	It("compares the name, the user and the group with CNI_ARGS, and prevResult", func() {
		c := b.Attach(b.call(""))
		c.Args = "TC_REDIRECT_TAP_NAME=vm0;TC_REDIRECT_TAP_UID=1;TC_REDIRECT_TAP_GID=2"
		b.Fails("CHECK", c, types.CodeChanged, "the tap is called tap0, want vm0", "tap0 has owner 0, want 1", "tap0 has group 0, want 2")
		b.Fails("CHECK", b.call(""), types.CodeChanged, "prevResult contains no interface of the virtual machine (sandbox vm1)")
	})
})

var _ = Describe("REPAIR", func() {
	DescribeTable("restores on the container side", func(line, text string) {
		b := newTestbed()
		c := b.Attach(b.call(""))
		b.RequireContainerRepair(c, func() { b.container.MustLine(GinkgoTB(), line) }, text)
	},
		Entry("the MTU", "ip link set tap0 mtu 1400", "interface tap0 has MTU 1400, want 1500 as eth0"),
		Entry("the state", "ip link set tap0 down", "interface tap0 is down"),
		Entry("the qdisc of the interface", "tc qdisc del dev eth0 ingress", "no ingress qdisc"),
		Entry("the filter of the tap", "tc filter del dev tap0 ingress", "interface tap0 has no filter that redirects what it receives to eth0"),
	)

	It("keeps the qdisc of another program, and names it", func() {
		b := newTestbed()
		c := b.Attach(b.call(""))
		b.container.MustLine(GinkgoTB(), "tc qdisc del dev eth0 ingress")
		b.container.MustLine(GinkgoTB(), "tc qdisc add dev eth0 clsact")
		unchanged := b.Restored(b.Host, b.container)
		b.Fails("REPAIR", c.OnContainerSide(), types.CodeConfig, "interface eth0 already has a qdisc (clsact)")
		unchanged()
	})
})

var _ = Describe("DEL", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	It("restores the container, whatever has changed since ADD", func() {
		restored := b.Restored(b.Host, b.container)
		c := b.call("")
		reference := func(c *nstest.Call) { // as after the ADD of awslabs/tc-redirect-tap
			b.container.Must(GinkgoTB(), "ip", "link", "set", "tap0", "alias", "")
			b.container.MustLine(GinkgoTB(), "tc filter replace dev eth0 parent ffff: protocol all prio 7 u32 match u8 0 0 action mirred egress redirect dev tap0")
			b.container.MustLine(GinkgoTB(), "tc filter del dev eth0 parent ffff: prio 1")
		}
		for name, change := range map[string]func(del *nstest.Call){
			"with prevResult":               func(*nstest.Call) {},
			"without prevResult":            func(del *nstest.Call) { del.Config = nstest.Conf("tc-redirect-tap", "1.1.0", "", "") },
			"with an invalid name":          func(del *nstest.Call) { del.Args = "TC_REDIRECT_TAP_NAME=a/b;;x" },
			"after another ADD that failed": func(*nstest.Call) { b.Fails("ADD", c, types.CodeConfig, "already has a qdisc") },
			"without the qdisc":             func(*nstest.Call) { b.container.MustLine(GinkgoTB(), "tc qdisc del dev eth0 ingress") },
			"of the reference":              reference,
		} {
			By(name)
			del := b.Attach(c)
			file, err := nstest.AttachTap(GinkgoTB(), b.container, "tap0", 0)
			Expect(err).NotTo(HaveOccurred())
			change(&del)
			b.OK("DEL", del)
			Expect(file.Close()).To(Succeed())
			restored()
			b.OK("DEL", del)
		}
	})

	It("succeeds without the namespace, and without the interface", func() {
		c := b.Attach(b.call(""))
		gone := c
		gone.Container, gone.NetNS = nil, "/nonexistent"
		b.OK("DEL", gone)
		b.container.Batch(GinkgoTB(), "link del eth0")
		b.OK("DEL", c)
		Expect(b.container.IP("link")).NotTo(ContainSubstring("tap0"))
	})

	It("keeps the taps and qdiscs of others", func() {
		b.container.MustLine(GinkgoTB(), "ip tuntap add mode tap tap0")
		b.container.MustLine(GinkgoTB(), "tc qdisc add dev eth0 ingress")
		unchanged := b.Restored(b.container)
		b.OK("DEL", b.call(""))
		other := b.call("")
		other.ContainerID = "vm2"
		b.OK("DEL", other)
		unchanged()
	})

	It("keeps another attachment of the container, and the interface that the plugin tap created", func() {
		b.container.Batch(GinkgoTB(), "tuntap add mode tap eth1", "link set eth1 alias plumb:net1/vm1/eth1")
		first, second := b.call(""), b.call("")
		second.IfName = "eth1"
		restored := b.Restored(b.container)
		b.Add(second)
		both := b.Restored(b.container)
		first = b.Attach(first)
		Expect(b.container.IP("-br link")).To(And(ContainSubstring("tap0"), ContainSubstring("tap1")))
		b.OK("CHECK", first)
		b.OK("DEL", first)
		both()
		b.OK("DEL", second)
		restored()
	})
})

var _ = It("leaves nothing if any step of ADD or DEL fails", func() {
	newTestbed().FaultSweep(nstest.Sweep{
		Config: nstest.WithPrevResult(nstest.Conf("tc-redirect-tap", "1.1.0", "", ""), `{"cniVersion":"1.0.0"}`),
		PrepareContainer: func(container *nstest.NS) {
			container.Batch(GinkgoTB(), "link add eth0 type veth peer name peer0", "link set eth0 mtu 1400 up", "link set peer0 up")
		},
	})
})
