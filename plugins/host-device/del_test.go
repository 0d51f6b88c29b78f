package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/statefile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("DEL", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	DescribeTable("restores the device and releases the addresses, even if it is repeated",
		func(change func(c *nstest.Call)) {
			b.Host.Batch(GinkgoTB(), "link set hd0 alias uplink")
			container := b.NewContainer()
			restored := b.Restored(b.Host, container)
			c := b.Attach(b.Call("one", container, conf("1.0.0", byDevice, b.HostLocal())))
			change(&c)
			b.OK("DEL", c)
			restored()
			b.OK("DEL", c)
			restored()
		},
		Entry("with prevResult", func(*nstest.Call) {}),
		Entry("without CNI_NETNS, while the container still runs", func(c *nstest.Call) { c.Container = nil }),
		Entry("with nothing at CNI_NETNS, while the container still runs", func(c *nstest.Call) { c.Container, c.NetNS = nil, "/run/netns/none" }),
		Entry("with another namespace at CNI_NETNS", func(c *nstest.Call) { c.Container = b.NewContainer() }),
		Entry("with a configuration that ADD rejects", func(c *nstest.Call) {
			c.Config = strings.Replace(conf("1.0.0", `"device":"a/b","hwaddr":"y"`, nstest.StaticV4), nstest.StaticV4, b.HostLocal(), 1)
			c.Args = "X=1;;Y"
		}),
		Entry("with a prevResult that cannot be read", func(c *nstest.Call) {
			c.Config = nstest.WithPrevResult(conf("1.0.0", byDevice, b.HostLocal()), `{"cniVersion":"9.9.9"}`)
		}),
		Entry("after the container renamed it", func(c *nstest.Call) {
			c.Container.Batch(GinkgoTB(), "link set eth0 down", "link set eth0 name other0", "link set other0 up")
		}),
		Entry("after the container changed its MAC, MTU and alias, and set it down", func(c *nstest.Call) {
			c.Container.Batch(GinkgoTB(), "link set eth0 down", "link set eth0 address 02:00:00:00:00:99 mtu 1300 alias mine")
		}),
		Entry("after an alternative name was removed", func(c *nstest.Call) {
			c.Container.IP("link property del dev eth0 altname " + attach.AltName(types.Attachment{Network: "net1", ContainerID: "one", IfName: "eth0"}))
		}),
	)

	It("returns the device without CNI_NETNS, while the container has only a process", func() {
		restored := b.Restored(b.Host)
		c := b.Attach(b.NewCall(conf("1.0.0", byDevice, b.HostLocal())))
		process := exec.Command("sleep", "infinity")
		Expect(c.Container.Start(process)).To(Succeed())
		DeferCleanup(func() { _ = errors.Join(process.Process.Kill(), process.Wait()) })
		c.Container.Remove(GinkgoTB())
		c.Container = nil
		Expect(b.OK("DEL", c).Stderr).To(BeEmpty())
		restored()
	})

	It("leaves a device down that was down", func() {
		b.Host.IP("link set hd0 down")
		c := b.NewCall(conf("1.0.0", byDevice, nstest.StaticV4))
		b.Add(c)
		b.OK("DEL", c)
		Expect(b.Host.IP("link show hd0")).NotTo(ContainSubstring("UP"))
	})

	It("attaches a forced port to its bridge again", func() {
		b.Host.Batch(GinkgoTB(), "link add br0 type bridge", "link set hd0 master br0")
		restored := b.Restored(b.Host)
		c := b.NewCall(conf("1.0.0", byDevice+`,"force":true`, nstest.StaticV4))
		b.Add(c)
		Expect(b.OK("DEL", c).Stderr).To(BeEmpty())
		restored()
	})

	DescribeTable("warns if a forced port cannot be attached again",
		func(warning string, changes ...string) {
			b.Host.Batch(GinkgoTB(), "link add br0 type bridge", "link set hd0 master br0")
			c := b.NewCall(conf("1.0.0", byDevice+`,"force":true`, nstest.StaticV4))
			b.Add(c)
			b.Host.Batch(GinkgoTB(), changes...)
			Expect(b.OK("DEL", c).Stderr).To(ContainSubstring(warning))
			Expect(b.stateFiles()).To(BeEmpty())
			Expect(b.Host.IP("link show hd0")).To(ContainSubstring(",UP"))
		},
		Entry("because the bridge no longer exists", "interface hd0 was a port of br0, which no longer exists", "link del br0"),
		Entry("because another interface has the name of the bridge", "restore interface hd0: set link hd0 master br0", "link del br0", "link add br0 type veth peer name br1"),
	)

	Describe("restores what a container can change on the device", func() {
		names := func(n int) (lines []string) {
			for i := range n { // the kernel accepts at most 64 KiB (rtnl_alt_ifname)
				lines = append(lines, fmt.Sprintf("link property add dev eth0 altname %0127d", i))
			}
			return lines
		}
		DescribeTable("and nothing that it added reaches the host",
			func(onHost []string, inContainer []string, warning OmegaMatcher) {
				b.Host.Batch(GinkgoTB(), "link property add dev hd0 altname lan0", "link property add dev hd0 altname lan1", "link set hd0 group 7 allmulticast on")
				restored := b.Restored(b.Host)
				c := b.NewCall(conf("1.0.0", byDevice, nstest.StaticV4))
				b.Add(c)
				b.Host.Batch(GinkgoTB(), onHost...)
				c.Container.Batch(GinkgoTB(), inContainer...)
				Expect(b.OK("DEL", c).Stderr).To(warning)
				for i := len(onHost) - 1; i >= 0; i-- {
					b.Host.IP("link del " + strings.Fields(onHost[i])[2])
				}
				if len(onHost) > 0 && strings.HasSuffix(onHost[0], "lan1 type bridge") {
					b.Host.IP("link property add dev hd0 altname lan1")
				}
				restored()
			},
			Entry("an alternative name", nil, []string{"link property add dev eth0 altname cni0"}, BeEmpty()),
			Entry("an alternative name that an interface of the host has", []string{"link add cni0 type bridge"}, []string{"link property add dev eth0 altname cni0"}, BeEmpty()),
			Entry("its name on the host as an alternative name", nil, []string{"link property add dev eth0 altname hd0"}, BeEmpty()),
			Entry("64 KiB of alternative names", nil, names(490), BeEmpty()),
			Entry("64 KiB of alternative names of another interface", nil,
				append([]string{"link add other0 type bridge"}, strings.Split(strings.ReplaceAll(strings.Join(names(494), ";"), "eth0", "other0"), ";")...), BeEmpty()),
			Entry("no alternative name", nil, []string{"link property del dev eth0 altname lan1"}, BeEmpty()),
			Entry("an alternative name of the device that an interface of the host has now", []string{"link add lan1 type bridge"}, nil,
				ContainSubstring("restore interface hd0: add altname lan1 to hd0: file exists")),
			Entry("group, queue length and flags", nil, []string{"link set eth0 group 99 txqueuelen 5 promisc on allmulticast off arp off multicast off"}, BeEmpty()),
			Entry("a bridge, an interface on it, a qdisc and addresses", nil, []string{"link add br0 type bridge", "link set eth0 master br0",
				"link set eth0 nomaster", "link add mv0 link eth0 type macvlan", "addr add 198.18.0.99/24 dev eth0"}, BeEmpty()),
		)
	})

	It("restores addresses only with restoreAddresses", func() {
		for _, keys := range []string{byDevice + `,"restoreAddresses":true`, byDevice} {
			b.Host.Batch(GinkgoTB(), "addr replace 192.0.2.1/24 brd + dev hd0", "addr replace 2001:db8::1/64 dev hd0 nodad")
			c := b.NewCall(conf("1.0.0", keys, nstest.StaticV4))
			b.Add(c)
			b.OK("DEL", c)
			got := b.Host.IP("-br addr show hd0")
			if keys == byDevice {
				Expect(got).NotTo(Or(ContainSubstring("192.0.2.1"), ContainSubstring("2001:db8::1")))
			} else {
				Expect(got).To(And(ContainSubstring("192.0.2.1/24"), ContainSubstring("2001:db8::1/64")))
			}
		}
	})

	It("does not add a broadcast address to a restored address that had none", func() {
		b.Host.Batch(GinkgoTB(), "addr add 192.0.2.1/24 dev hd0", "addr add 192.0.3.1/24 brd 192.0.3.0 dev hd0")
		restored := b.Restored(b.Host)
		c := b.NewCall(conf("1.0.0", byDevice+`,"restoreAddresses":true`, nstest.StaticV4))
		b.Add(c)
		b.OK("DEL", c)
		restored()
		Expect(b.Host.IP("-4 addr show hd0")).To(And(ContainSubstring("brd 192.0.3.0"), Not(ContainSubstring("192.0.2.255"))))
	})

	It("warns and succeeds if the container moved the device into another namespace, or deleted it", func() {
		nested := nstest.New(GinkgoTB()).Named("nested")
		for _, change := range []string{"link set eth0 netns " + nested.Path(), "link del eth0"} {
			b.addDevice("dev0", "02:00:00:00:00:1d")
			c := b.NewCall(conf("1.0.0", `"device":"dev0"`, b.HostLocal()))
			b.Add(c)
			c.Container.IP("" + change)
			Expect(b.OK("DEL", c).Stderr).To(ContainSubstring("interface dev0 of the host (device dev0) is neither in the container nor on the host: it was deleted, or moved to another network namespace; plumb cannot restore it"))
			Expect(append(b.stateFiles(), b.Reservations()...)).To(BeEmpty())
			Expect(b.OK("DEL", c).Stderr).To(BeEmpty())
			if change != "link del eth0" {
				nested.IP("link del eth0")
			}
		}
	})

	It("returns both ends of a veth pair that connects two containers", func() {
		b.Host.Batch(GinkgoTB(), "link add cable0 type veth peer name cable1")
		restored := b.Restored(b.Host)
		one := b.NewCall(conf("1.0.0", `"device":"cable0"`, ""))
		two := b.Call("two", b.NewContainer(), conf("1.0.0", `"device":"cable1"`, ""))
		b.Add(one)
		b.Add(two)
		Expect(b.OK("DEL", one).Stderr).To(BeEmpty())
		Expect(b.OK("DEL", two).Stderr).To(BeEmpty())
		restored()
	})

	It("returns a device that the reference plugin moved, whose peer is on the host", func() {
		container := b.NewContainer()
		b.Host.Batch(GinkgoTB(), "link add cable0 type veth peer name cable1", "link set cable0 netns "+container.Path())
		container.Batch(GinkgoTB(), "link set cable0 name eth0", "link set eth0 alias cable0")
		Expect(b.OK("DEL", b.Call("one", container, conf("1.0.0", `"device":"cable0"`, ""))).Stderr).To(BeEmpty())
		Expect(b.Host.IP("-br link")).To(ContainSubstring("cable0@cable1"))
	})

	DescribeTable("does not move another interface that has the device's names",
		func(returned bool, changes ...string) {
			c := b.NewCall(conf("1.0.0", byDevice, b.HostLocal()))
			peer := strings.Split(b.Outside.IP("-o link show hd0"), ":")[0]
			mark := attach.AltName(types.Attachment{Network: "net1", ContainerID: "one", IfName: "eth0"})
			restored := b.Restored(b.Host)
			b.Add(c)
			nested := nstest.New(GinkgoTB()).Named("nested")
			c.Container.Batch(GinkgoTB(), "link property del dev eth0 altname "+mark)
			c.Container.Batch(GinkgoTB(), strings.Split(strings.NewReplacer("NESTED", nested.Path(), "MARK", mark, "PEER", peer).Replace(strings.Join(changes, ";")), ";")...)
			Expect(b.OK("DEL", c).Stderr).To(ContainSubstring("interface evil0 of the container has the names of interface hd0, but is another interface: its kind, permanent MAC, parent or peer differs; it is left there"))
			Expect(c.Container.IP("-br link")).To(ContainSubstring("evil0"))
			Expect(b.Reservations()).To(BeEmpty())
			if returned {
				restored()
				return
			}
			Expect(b.Host.IP("-br link")).NotTo(Or(ContainSubstring("hd0"), ContainSubstring("evil0")))
			Expect(b.stateFiles()).To(HaveLen(1))
			c.Container.Remove(GinkgoTB())
			b.OK("DEL", c)
			Expect(b.stateFiles()).To(BeEmpty())
		},
		Entry("a veth with its peer in the container", true, "link add evil0 index 900 type veth peer name evil1 index PEER", "link property add dev evil0 altname MARK"),
		Entry("a veth with its peer in a third namespace, where the device is", false, "link set eth0 netns NESTED",
			"link add evil0 address "+deviceMAC+" index 900 type veth peer name evil1 index PEER netns NESTED", "link property add dev evil0 altname MARK", "link set evil0 alias hd0"),
		Entry("an interface of another kind", false, "link del eth0", "link add evil0 type bridge", "link property add dev evil0 altname MARK"),
	)

	It("restores a device whose state an earlier version of plumb saved", func() {
		c := b.NewCall(conf("1.0.0", byDevice, nstest.StaticV4))
		b.Add(c)
		file := filepath.Join(b.states, b.stateFiles()[0])
		Expect(os.WriteFile(file, []byte(`{"network": "net1", "containerID": "one", "ifname": "eth0", "selector": "device hd0", "sandbox": "", "netns": 0, "kind": "veth",
			"name": "hd0", "alias": "uplink", "mac": "02:00:00:00:00:99", "mtu": 1300, "up": true, "addresses": [{"prefix": "192.0.2.1/24"}, {"prefix": "2001:db8::1/64", "nodad": true}]}`), 0o600)).To(Succeed())
		b.OK("DEL", c)
		Expect(b.Host.IP("addr show hd0")).To(And(ContainSubstring("mtu 1300"), ContainSubstring("UP"), ContainSubstring("02:00:00:00:00:99"),
			ContainSubstring("inet 192.0.2.1/24 brd 192.0.2.255"), ContainSubstring("inet6 2001:db8::1/64")))
		Expect(b.Host.IP("link show hd0")).To(ContainSubstring("alias uplink"))
		Expect(b.stateFiles()).To(BeEmpty())
	})

	It("returns the device under another name with a warning if its own name is taken", func() {
		b.Host.IP("link set hd0 alias uplink")
		c := b.NewCall(conf("1.0.0", byDevice, nstest.StaticV4))
		b.Add(c)
		b.Host.Batch(GinkgoTB(), "link add hd0 type veth peer name other0")
		reply := b.OK("DEL", c)
		Expect(reply.Stderr).To(MatchRegexp(`interface hd0 of the host returns as hd-[0-9a-f]{12}, because another interface has its name now; its former alias was "uplink"`))
		Expect(b.Host.IP("link")).To(And(ContainSubstring(deviceMAC), ContainSubstring("alias hd0"), Not(ContainSubstring("plumb-"))))
		b.OK("DEL", c)
		Expect(b.stateFiles()).To(BeEmpty())
	})

	It("warns and succeeds if the container, and with it a virtual device, no longer exists", func() {
		c := b.NewCall(conf("1.0.0", byDevice, b.HostLocal()))
		b.Add(c)
		c.Container.Remove(GinkgoTB())
		Eventually(func() string { return b.Outside.IP("-br link") }).ShouldNot(ContainSubstring("hd0"))
		for _, warning := range []OmegaMatcher{ContainSubstring("interface hd0 of the host (device hd0) is neither in the container nor on the host"), BeEmpty()} {
			Expect(b.OK("DEL", c).Stderr).To(warning)
			Expect(b.Reservations()).To(BeEmpty())
			Expect(b.stateFiles()).To(BeEmpty())
		}
	})

	It("does not move the device of another attachment whose namespace has the same path", func() {
		b.addDevice("hd1", "02:00:00:00:00:1d")
		c := b.NewCall(conf("1.0.0", byDevice, b.HostLocal()))
		b.Add(c)
		c.Container.IP("link del eth0")
		other := b.Call("two", c.Container, conf("1.0.0", `"device":"hd1"`, nstest.StaticV4))
		b.Add(other)
		before := nstest.Snapshot(GinkgoTB(), c.Container)
		for range 2 {
			b.OK("DEL", c)
			Expect(nstest.Snapshot(GinkgoTB(), c.Container)).To(Equal(before))
		}
		By("even if the state was lost")
		Expect(os.RemoveAll(b.states)).To(Succeed())
		b.OK("DEL", c)
		Expect(nstest.Snapshot(GinkgoTB(), c.Container)).To(Equal(before))
		b.OK("DEL", other)
		Expect(b.Host.IP("-br link")).To(ContainSubstring("hd1"))
	})

	It("does not touch an interface that host-device did not move", func() {
		container := b.NewContainer()
		container.Batch(GinkgoTB(), "link add eth0 type veth peer name eth1", "link set eth1 alias plumb:net1/one/eth1")
		for _, ifName := range []string{"eth0", "eth1"} {
			c := b.Call("one", container, conf("1.0.0", byDevice, nstest.StaticV4))
			c.IfName = ifName
			b.OK("DEL", c)
		}
		Expect(container.IP("-br link")).To(And(ContainSubstring("eth0"), ContainSubstring("eth1")))
	})

	It("returns the device with its alias as its name if the state cannot be read", func() {
		c := b.NewCall(conf("1.0.0", byDevice, nstest.StaticV4))
		b.Add(c)
		file := filepath.Join(b.states, b.stateFiles()[0])
		Expect(os.WriteFile(file, []byte("{"), 0o600)).To(Succeed())
		Expect(b.OK("DEL", c).Stderr).To(ContainSubstring("no saved state can be read from it"))
		Expect(b.Host.IP("link show hd0")).NotTo(Or(ContainSubstring("alias"), ContainSubstring("altname")))
		Expect(b.stateFiles()).To(BeEmpty())
	})

	It("warns of a setting that the kernel rejects, and restores the others", func() {
		b.Host.IP("link set hd0 alias uplink")
		c := b.NewCall(conf("1.0.0", byDevice, nstest.StaticV4))
		b.Add(c)
		file := filepath.Join(b.states, b.stateFiles()[0])
		text := nstest.ReadFile(GinkgoTB(), file)
		Expect(os.WriteFile(file, []byte(strings.Replace(text, `"mtu": 1400`, `"mtu": 1`, 1)), 0o600)).To(Succeed())
		Expect(b.OK("DEL", c).Stderr).To(ContainSubstring("restore interface hd0: set link hd0 mtu 1"))
		Expect(b.Host.IP("link show hd0")).To(And(ContainSubstring("alias uplink"), ContainSubstring("UP")))
	})

	It("does not release the addresses while the device cannot be moved", func() {
		c := b.NewCall(conf("1.0.0", byDevice, b.HostLocal()))
		b.Add(c)
		c = c.FailAt("move link", errors.New("not now"))
		Expect(b.Run("DEL", c).Failure(GinkgoTB()).Msg).To(ContainSubstring("not now"))
		Expect(b.Reservations()).To(HaveLen(2))
	})
})

var _ = Describe("CHECK", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	It("passes after ADD, and after a later plugin changed MAC and MTU", func() {
		for _, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
			for _, ipam := range []string{nstest.StaticDual, noIPAM} {
				c := b.Attach(b.NewCall(conf(version, byDevice, ipam)))
				b.OK("CHECK", c)
				c.Container.Batch(GinkgoTB(), "link set eth0 address 02:00:00:00:00:99 mtu 1300")
				b.OK("CHECK", c)
				b.OK("DEL", c)
			}
		}
	})

	It("and REPAIR on the container's side restores the device's addresses and routes", func() {
		c := b.Attach(b.NewCall(conf("1.0.0", byDevice, nstest.StaticDual)))
		b.RequireContainerRepair(c, func() {
			c.Container.Batch(GinkgoTB(), "link set eth0 down", "address del 198.18.0.50/24 dev eth0")
		}, "interface eth0 is down")
	})

	It("fails without a prevResult, and without a reservation of the IPAM plugin", func() {
		c := b.NewCall(conf("1.0.0", byDevice, b.HostLocal(nstest.RangeV4)))
		added := b.OK("ADD", c)
		b.Fails("CHECK", c, types.CodeConfig)
		Expect(nstest.Exec(GinkgoTB(), b.Path+"/host-local", c.With("DEL")).Exit).To(BeZero())
		c.Config = nstest.WithPrevResult(c.Config, added.Stdout)
		Expect(b.Run("CHECK", c).Failure(GinkgoTB()).Msg).To(ContainSubstring(`IPAM plugin "host-local"`))
	})
})

var _ = Describe("GC", func() {
	It("returns the devices of the network's attachments that are not valid, and releases their addresses", func() {
		b := newTestbed()
		var containers []*nstest.NS
		for i, id := range []string{"one", "two", "three"} {
			name := fmt.Sprint("dev", i)
			b.addDevice(name, fmt.Sprint("02:00:00:00:01:0", i))
			containers = append(containers, b.NewContainer())
			c := b.Call(id, containers[i], conf("1.1.0", `"device":"`+name+`"`, b.HostLocal(nstest.RangeV4)))
			if id == "three" {
				c.Config = strings.Replace(c.Config, "net1", "net2", 1)
			}
			b.Add(c)
		}
		temp := filepath.Join(b.states, tempOf("net1"))
		Expect(os.WriteFile(temp, nil, 0o600)).To(Succeed())
		Expect(os.WriteFile(filepath.Join(b.states, "other.json"), []byte("{"), 0o600)).To(Succeed())
		gc := b.Call("", nil, conf("1.1.0", byDevice+`,"cni.dev/valid-attachments":[{"containerID":"two","ifname":"eth0"}]`, b.HostLocal(nstest.RangeV4)))
		b.OK("GC", gc)
		Expect(b.Host.IP("-br link")).To(And(ContainSubstring("dev0"), Not(ContainSubstring("dev1")), Not(ContainSubstring("dev2"))))
		Expect(containers[0].IP("-br link")).NotTo(ContainSubstring("eth0"))
		Expect(b.Reservations()).To(Equal([]string{"198.18.0.101"}))
		Expect(b.stateFiles()).To(HaveLen(3))
		Expect(temp).NotTo(BeAnExistingFile())
	})
})

// tempOf returns the name of a temporary file that a killed ADD of the network left.
func tempOf(network string) string {
	return statefile.TempName(types.Attachment{Network: network, ContainerID: "killed", IfName: "eth0"})
}

var _ = DescribeTable("STATUS fails if an ADD would fail",
	func(config func(b *testbed) string, text string) {
		b := newTestbed()
		b.RequireStatus(config(b), text)
	},
	Entry("success", func(b *testbed) string { return conf("1.1.0", byDevice, b.HostLocal(nstest.RangeV4)) }, ""),
	Entry("success without IPAM", func(*testbed) string { return conf("1.1.0", byDevice, noIPAM) }, ""),
	Entry("success without a selector, which the runtime sets in ADD", func(*testbed) string { return conf("1.1.0", "", noIPAM) }, ""),
	Entry("success while the device is in use", func(b *testbed) string {
		config := conf("1.1.0", byDevice, nstest.StaticV4)
		b.Add(b.NewCall(config))
		return config
	}, ""),
	Entry("the device is a port", func(b *testbed) string {
		b.Host.Batch(GinkgoTB(), "link add br0 type bridge", "link set hd0 master br0")
		return conf("1.1.0", byDevice, nstest.StaticV4)
	}, "is a port of br0"),
	Entry("the kernel does not move the device", func(b *testbed) string {
		b.Host.IP("link add br0 type bridge")
		return conf("1.1.0", `"device":"br0","force":true`, nstest.StaticV4)
	}, `the kernel does not move interface br0, which is of kind "bridge"`),
	Entry("the states cannot be saved", func(b *testbed) string {
		Expect(os.WriteFile(b.states, nil, 0o600)).To(Succeed())
		return conf("1.1.0", byDevice, nstest.StaticV4)
	}, "write to"),
)

var _ = DescribeTable("any step of ADD or DEL that fails leaves nothing",
	func(version, keys string, ipam func(b *testbed) string, lines ...string) {
		b := newTestbedOn(nil, sysfs(GinkgoTB().TempDir()))
		b.Plugin = twoDevices(b.machine)
		b.FaultSweep(nstest.Sweep{
			Config: conf(version, `"device":"DEVICE"`+keys, ipam(b)),
			Prepare: func(host, container *nstest.NS) {
				outside := nstest.NewHost(GinkgoTB()).Named("outside")
				for i, device := range []string{"hd0", "hd1"} {
					addDevice(GinkgoTB(), host, outside, fmt.Sprintf("%s address 02:00:00:00:00:0%d index %d", device, i, 101+i))
				}
				host.Batch(GinkgoTB(), lines...)
				container.SkipDAD(GinkgoTB())
			},
		})
	},
	Entry("dual stack", "1.1.0", "", func(b *testbed) string { return b.HostLocal() }),
	Entry("addresses", "1.1.0", `,"restoreAddresses":true`, func(b *testbed) string { return b.HostLocal(nstest.RangeV4) },
		"addr add 192.0.2.1/24 brd + dev hd0", "addr add 2001:db8::1/64 dev hd0 nodad", "link set hd0 alias uplink"),
	Entry("useInterfaceNetwork", "1.1.0", `,"useInterfaceNetwork":true`, func(*testbed) string { return noIPAM },
		"addr add 192.0.2.1/24 brd + dev hd0", "addr add 2001:db8::1/64 dev hd0 nodad", "route add 203.0.113.0/24 via 192.0.2.2 table 100", "rule add from 192.0.2.1 iif hd0 lookup 100"),
	Entry("layer 2", "1.1.0", "", func(*testbed) string { return noIPAM }),
	Entry("static IPv4", "0.2.0", "", func(*testbed) string { return nstest.StaticV4 }),
)

// twoDevices returns the plugin for a fault sweep, which adds two containers with the same configuration.
// The plugin replaces DEVICE in the configuration by a different device for each container.
func twoDevices(h machine) skel.Plugin {
	p := h.plugin()
	p.Add = func(r *skel.Request) (*types.Result, error) {
		device := "hd0"
		if r.ContainerID == "warm" {
			device = "hd1"
		}
		r.Stdin = bytes.ReplaceAll(r.Stdin, []byte("DEVICE"), []byte(device))
		return h.plugin().Add(r)
	}
	return p
}
