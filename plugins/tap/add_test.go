package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("ADD", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	It("creates a tap that is up and has the configured settings", func() {
		result := b.Add(b.call(conf("1.1.0", `"mtu":1400,"mac":"02:00:00:00:00:05","multiQueue":true,"owner":0,"group":4321`, static)))
		Expect(b.container.IP("-d link show eth0")).To(And(ContainSubstring("<NO-CARRIER,BROADCAST,MULTICAST,UP>"), ContainSubstring("mtu 1400"),
			ContainSubstring("02:00:00:00:00:05"), ContainSubstring("alias plumb:net1/one/eth0"),
			ContainSubstring("tun type tap pi off vnet_hdr off multi_queue numqueues 0 numdisabled 0 persist on user root group 4321")))
		Expect(result.Interfaces).To(ConsistOf(And(HaveField("Name", "eth0"), HaveField("MTU", 1400), HaveField("Sandbox", b.container.Path()))))
		Expect(result.IPs).To(HaveEach(HaveField("Interface", 0)))
		Expect(b.container.IP("-4 route")).To(ContainSubstring("default via 10.1.0.1 dev eth0"))
		Expect(b.container.IP("-6 route")).To(ContainSubstring("default via fd00:1::1 dev eth0"))
		for key, want := range map[string]string{"net/ipv4/conf/eth0/arp_notify": "1", "net/ipv6/conf/eth0/accept_ra": "0"} {
			Expect(b.container.Sysctl(GinkgoTB(), key)).To(Equal(want), key)
		}
	})

	It("returns the result in the form of each version", func() {
		b.RequireResults(func(version string) string { return conf(version, `"mac":"02:00:00:00:00:01"`, static) })
	})

	It("connects the container with a virtual machine at the tap", func() {
		b.Add(b.call(conf("1.1.0", "", static)))
		guest := nstest.NewGuest(GinkgoTB(), b.container, "eth0", "address add 10.1.0.1/24 dev eth0", "address add fd00:1::1/64 dev eth0")
		for _, c := range []struct{ container, guest string }{{"10.1.0.2", "10.1.0.1"}, {"fd00:1::2", "fd00:1::1"}} {
			// The kernel notices the carrier of the tap with a delay.
			Eventually(func() error { _, err := guest.Exec("ping", "-c", "1", "-W", "1", c.container); return err }).Should(Succeed())
			nstest.RequireTraffic(GinkgoTB(), guest, b.container, c.guest, c.container)
		}
	})

	It("does not wait for duplicate address detection, which starts when a program attaches", func() {
		b.container.SetSysctl(GinkgoTB(), "net/ipv6/conf/default/dad_transmits", "1")
		b.Add(b.call(conf("1.1.0", "", static)))
		Expect(b.container.IP("-6 address show dev eth0 tentative")).To(ContainSubstring("fd00:1::2"))
		mustAttach(b.container, 0)
		Eventually(func() string { return b.container.IP("-6 address show dev eth0 tentative") }).Should(BeEmpty())
	})

	Describe("a program that attaches to the tap", func() {
		It("chooses the format of the packets", func() {
			b.Add(b.call(conf("1.1.0", "", noIPAM)))
			mustAttach(b.container, unix.IFF_VNET_HDR)
			Expect(b.container.IP("-d link show eth0")).To(And(ContainSubstring("LOWER_UP"), ContainSubstring("vnet_hdr on")))
		})
		It("attaches once without multiQueue", func() {
			b.Add(b.call(conf("1.1.0", "", noIPAM)))
			mustAttach(b.container, 0)
			_, err := nstest.AttachTap(GinkgoTB(), b.container, "eth0", 0)
			Expect(err).To(MatchError(unix.EBUSY))
		})
		It("attaches several times with multiQueue", func() {
			b.Add(b.call(conf("1.1.0", `"multiQueue":true`, noIPAM)))
			mustAttach(b.container, unix.IFF_MULTI_QUEUE)
			mustAttach(b.container, unix.IFF_MULTI_QUEUE)
			Expect(b.container.IP("-d link show eth0")).To(ContainSubstring("numqueues 2"))
		})
		DescribeTable("must run as the owner and as a member of the group",
			func(keys string, othersUser, othersGroup error) {
				b.Add(b.call(conf("1.1.0", keys, noIPAM)))
				Expect([]error{attachAs(b.container, 1235, 4321), attachAs(b.container, 1234, 4322), attachAs(b.container, 1234, 4321)}).
					To(Equal([]error{othersUser, othersGroup, nil}))
			},
			Entry("no owner and no group", "", nil, nil),
			Entry("an owner", `"owner":1234`, unix.EPERM, nil),
			Entry("a group", `"group":4321`, nil, unix.EPERM),
			Entry("both", `"owner":1234,"group":4321`, unix.EPERM, unix.EPERM),
		)
	})

	Describe("with bridge", func() {
		BeforeEach(func() { b.container.Batch(GinkgoTB(), "link add br0 type bridge", "link set br0 up") })

		It("connects the virtual machine with the network of the bridge", func() {
			outside := nstest.NewHost(GinkgoTB()).Named("outside")
			outside.SkipDAD(GinkgoTB())
			nstest.Join(GinkgoTB(), nstest.End{In: b.container, Name: "net0"}, nstest.End{In: outside, Name: "up0", Addrs: []string{"10.1.0.1/24"}})
			b.container.Batch(GinkgoTB(), "link set net0 master br0")
			b.Add(b.call(conf("1.1.0", `"bridge":"br0"`, noIPAM)))
			Expect(b.container.IP("link show eth0")).To(ContainSubstring("master br0"))
			guest := nstest.NewGuest(GinkgoTB(), b.container, "eth0", "address add 10.1.0.7/24 dev eth0")
			Eventually(func() error { _, err := guest.Exec("ping", "-c", "1", "-W", "1", "10.1.0.1"); return err }).Should(Succeed())
			nstest.ServeTCP(GinkgoTB(), guest, "10.1.0.7:80")
			nstest.MustDial(GinkgoTB(), outside, "10.1.0.7:80", "10.1.0.1")
		})
		It("fails if the container has no such bridge, and reserves nothing", func() {
			b.Refuse(b.call(conf("1.1.0", `"bridge":"br1"`, b.HostLocal())), types.CodeConfig, "the container has no bridge br1: find link br1")
			b.container.Batch(GinkgoTB(), "link add br1 type veth peer name br2")
			b.Refuse(b.call(conf("1.1.0", `"bridge":"br1"`, b.HostLocal())), types.CodeConfig, `interface br1 in the container is of kind "veth", want "bridge"`)
		})
	})

	DescribeTable("fails if the container has an interface of that name, and does not change it",
		func(line string) {
			b.container.Batch(GinkgoTB(), line)
			b.Refuse(b.call(conf("1.1.0", "", b.HostLocal())), types.CodeConfig, `interface "eth0" already exists in container`)
		},
		Entry("a veth", "link add eth0 type veth peer name eth1"),
		Entry("a tap", "tuntap add mode tap eth0"),
	)

	It("creates a tap with the largest MTU", func() {
		b.Add(b.call(conf("1.1.0", `"mtu":65521`, noIPAM)))
		Expect(b.container.IP("link show eth0")).To(ContainSubstring("mtu 65521"))
	})

	It("names the missing /dev/net/tun in the error, and reserves nothing", func() {
		c := b.call(conf("1.1.0", "", b.HostLocal())).FailAt("open /dev/net/tun", &fs.PathError{Op: "open", Path: nl.TunPath, Err: syscall.ENOENT})
		b.Refuse(c, types.CodeIO, "open /dev/net/tun: no such file or directory; taps need this device file and the module tun")
	})
})

var _ = Describe("selinuxContext", func() {
	const label = "system_u:system_r:container_t:s0"
	// newIP puts a program ip in front of PATH that logs the content of the label file and its arguments, and
	// runs the real ip.
	newIP := func() (labelPath, log string) {
		GinkgoHelper()
		nstest.RequireTaps(GinkgoTB())
		dir := GinkgoTB().TempDir()
		labelPath, log = filepath.Join(dir, "label"), filepath.Join(dir, "log")
		script := "#!/bin/sh\necho \"$(cat " + labelPath + "): $*\" >>" + log + "\nPATH=${PATH#*:}\nexec ip \"$@\"\n"
		Expect(os.WriteFile(filepath.Join(dir, "ip"), []byte(script), 0o755)).To(Succeed())
		GinkgoTB().Setenv("PATH", dir+":"+os.Getenv("PATH"))
		Expect(os.WriteFile(labelPath, nil, 0o600)).To(Succeed())
		return labelPath, log
	}
	id := func(n uint32) *uint32 { return &n }

	It("is set for the program ip, which creates the same tap, and not for later programs", func() {
		labelPath, log := newIP()
		container := nstest.New(GinkgoTB())
		tap := nl.Tap{Name: "eth0", MultiQueue: true, Owner: id(1234), Group: id(0)}
		Expect(container.Do(func() error { return runInContext(labelPath, label, ipArgs(tap)) })).To(Succeed())
		Expect(nstest.ReadFile(GinkgoTB(), log)).To(Equal(label + ": tuntap add mode tap name eth0 multi_queue user 1234 group 0\n"))
		Expect(container.IP("-d link show eth0")).To(ContainSubstring("tun type tap pi off vnet_hdr off multi_queue numqueues 0 numdisabled 0 persist on user 1234 group root"))
		Expect(nstest.ReadFile(GinkgoTB(), labelPath)).To(BeEmpty())
	})

	It("is not set for later programs if ip fails, and the error contains the text of ip", func() {
		labelPath, _ := newIP()
		container := nstest.New(GinkgoTB())
		container.Batch(GinkgoTB(), "link add eth0 type bridge")
		err := container.Do(func() error { return runInContext(labelPath, label, ipArgs(nl.Tap{Name: "eth0"})) })
		Expect(err).To(MatchError(ContainSubstring("run ip: exit status 1: ioctl(TUNSETIFF): Device or resource busy")))
		Expect(nstest.ReadFile(GinkgoTB(), labelPath)).To(BeEmpty())
	})

	It("causes ADD to fail on a host without SELinux, and to leave nothing", func() {
		if _, err := os.Stat("/sys/fs/selinux/enforce"); err == nil {
			Skip("this host has SELinux")
		}
		b := newTestbed()
		b.Refuse(b.call(conf("1.1.0", `"selinuxContext":"`+label+`"`, b.HostLocal())), types.CodeConfig,
			`selinuxContext "`+label+`": this host has no SELinux, or its policy does not permit the context`)
		Expect(b.Reservations()).To(BeEmpty())
	})

	It("needs the program ip", func() {
		GinkgoTB().Setenv("PATH", GinkgoTB().TempDir())
		Expect(runInContext("/nonexistent", label, nil)).To(MatchError(ContainSubstring("selinuxContext needs the program ip (iproute2) in PATH")))
	})
})

// A refused call changes nothing, so that all calls can share a host.
var _ = Describe("an invalid configuration", Ordered, ContinueOnFailure, func() {
	var b *testbed
	BeforeAll(func() { b = newTestbed() })

	DescribeTable("rejects an invalid configuration and names all problems",
		func(version, keys, ipam string, texts ...string) {
			b.Refuse(b.call(conf(version, keys, ipam)), types.CodeConfig, texts...)
		},
		Entry("all values", "1.1.0", `"mtu":67,"mac":"x","owner":4294967295,"group":4294967295,"bridge":"a/b","selinuxContext":"a\nb"`, static,
			"mtu 67 must be between 68 and 65521", `invalid MAC address "x"`, "owner 4294967295 is not a user ID", "group 4294967295 is not a group ID",
			`bridge "a/b" is not an interface name`, `selinuxContext "a\nb" contains a line feed`),
		Entry("an MTU that no tap can have", "1.1.0", `"mtu":65535`, static, "mtu 65535 must be between 68 and 65521"),
		Entry("an MTU that is too small for IPv6", "1.1.0", `"mtu":1279`, static, "too small for address fd00:1::2/64"),
		Entry("no address before 0.3.0", "0.2.0", "", noIPAM, types.ErrNoAddress.Error()),
		Entry("dhcp", "1.1.0", `"mtu":67`, `{"type":"dhcp"}`,
			"ipam.type: a tap cannot reach a DHCP server during ADD, because no program is attached to it yet; use another IPAM plugin than dhcp", "mtu 67"),
	)
})
