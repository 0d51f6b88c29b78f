package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/statefile"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("DEL", func() {
	var b *testbed
	BeforeEach(func() {
		b = newTestbed()
		nstest.LeakCheck(GinkgoTB())
		Expect(os.MkdirAll(b.states, 0o700)).To(Succeed()) // ADD leaves the folder
	})

	DescribeTable("returns the device as it was, and releases the addresses, also when it is repeated",
		func(change func(c *nstest.Call)) {
			b.node.Batch(GinkgoTB(), "link set hd0 alias uplink")
			pod := newPod()
			state := func() string { return b.state(pod) }
			before := nstest.WaitStable(state)
			c := b.call("one", pod, conf("1.0.0", byDevice, b.hostLocal(hostLocalAll)))
			c.Config = nstest.WithPrevResult(c.Config, b.run(c, "ADD").OK(GinkgoTB()).Stdout)
			change(&c)
			b.mustDel(c)
			Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
			b.mustDel(c)
			Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
		},
		Entry("with prevResult", func(*nstest.Call) {}),
		Entry("without CNI_NETNS, while the container still runs", func(c *nstest.Call) { c.Pod = nil }),
		Entry("with nothing at CNI_NETNS, while the container still runs", func(c *nstest.Call) { c.Pod, c.NetNS = nil, "/run/netns/none" }),
		Entry("with another namespace at CNI_NETNS", func(c *nstest.Call) { c.Pod = newPod() }),
		Entry("with a configuration that ADD refuses", func(c *nstest.Call) {
			c.Config = strings.Replace(conf("1.0.0", `"device":"a/b","hwaddr":"y"`, static4), static4, b.hostLocal(hostLocalAll), 1)
			c.Args = "X=1;;Y"
		}),
		Entry("with a prevResult that cannot be read", func(c *nstest.Call) {
			c.Config = nstest.WithPrevResult(conf("1.0.0", byDevice, b.hostLocal(hostLocalAll)), `{"cniVersion":"9.9.9"}`)
		}),
		Entry("after the container renamed it", func(c *nstest.Call) {
			c.Pod.Batch(GinkgoTB(), "link set eth0 down", "link set eth0 name other0", "link set other0 up")
		}),
		Entry("after the container changed its MAC, MTU and alias, and set it down", func(c *nstest.Call) {
			c.Pod.Batch(GinkgoTB(), "link set eth0 down", "link set eth0 address 02:00:00:00:00:99 mtu 1300 alias mine")
		}),
		Entry("after an alternative name was removed", func(c *nstest.Call) {
			in(c.Pod, "ip link property del dev eth0 altname "+attach.AltName(types.Attachment{Network: "net1", ContainerID: "one", IfName: "eth0"}))
		}),
	)

	It("leaves a device down that was down", func() {
		in(b.node, "ip link set hd0 down")
		c := b.call("one", newPod(), conf("1.0.0", byDevice, static4))
		b.mustAdd(c)
		b.mustDel(c)
		Expect(in(b.node, "ip link show hd0")).NotTo(ContainSubstring("UP"))
	})

	It("makes a forced port a port again", func() {
		b.node.Batch(GinkgoTB(), "link add br0 type bridge", "link set hd0 master br0")
		before := nstest.WaitStable(func() string { return nstest.Snapshot(GinkgoTB(), b.node) })
		c := b.call("one", newPod(), conf("1.0.0", byDevice+`,"force":true`, static4))
		b.mustAdd(c)
		Expect(b.mustDel(c).Stderr).To(BeEmpty())
		Expect(nstest.WaitEqual(before, func() string { return nstest.Snapshot(GinkgoTB(), b.node) })).To(BeEmpty())
	})

	DescribeTable("warns if a forced port cannot be a port again",
		func(warning string, changes ...string) {
			b.node.Batch(GinkgoTB(), "link add br0 type bridge", "link set hd0 master br0")
			c := b.call("one", newPod(), conf("1.0.0", byDevice+`,"force":true`, static4))
			b.mustAdd(c)
			b.node.Batch(GinkgoTB(), changes...)
			Expect(b.mustDel(c).Stderr).To(ContainSubstring(warning))
			Expect(b.stateFiles()).To(BeEmpty())
			Expect(in(b.node, "ip link show hd0")).To(ContainSubstring(",UP"))
		},
		Entry("because the bridge is gone", "interface hd0 was a port of br0, which no longer exists", "link del br0"),
		Entry("because another interface has the name of the bridge", "restore interface hd0: set link hd0 master br0", "link del br0", "link add br0 type veth peer name br1"),
	)

	It("restores addresses with restoreAddresses only", func() {
		for _, keys := range []string{byDevice + `,"restoreAddresses":true`, byDevice} {
			b.node.Batch(GinkgoTB(), "addr replace 192.0.2.1/24 brd + dev hd0", "addr replace 2001:db8::1/64 dev hd0 nodad")
			c := b.call("one", newPod(), conf("1.0.0", keys, static4))
			b.mustAdd(c)
			b.mustDel(c)
			have := in(b.node, "ip -br addr show hd0")
			if keys == byDevice {
				Expect(have).NotTo(Or(ContainSubstring("192.0.2.1"), ContainSubstring("2001:db8::1")))
			} else {
				Expect(have).To(And(ContainSubstring("192.0.2.1/24"), ContainSubstring("2001:db8::1/64")))
			}
		}
	})

	It("restores an address without the broadcast address that it did not have", func() {
		b.node.Batch(GinkgoTB(), "addr add 192.0.2.1/24 dev hd0", "addr add 192.0.3.1/24 brd 192.0.3.0 dev hd0")
		before := nstest.WaitStable(func() string { return nstest.Snapshot(GinkgoTB(), b.node) })
		c := b.call("one", newPod(), conf("1.0.0", byDevice+`,"restoreAddresses":true`, static4))
		b.mustAdd(c)
		b.mustDel(c)
		Expect(nstest.WaitEqual(before, func() string { return nstest.Snapshot(GinkgoTB(), b.node) })).To(BeEmpty())
		Expect(in(b.node, "ip -4 addr show hd0")).To(And(ContainSubstring("brd 192.0.3.0"), Not(ContainSubstring("192.0.2.255"))))
	})

	It("warns and succeeds if the container moved the device into another namespace, or deleted it", func() {
		nested := nstest.New(GinkgoTB()).Named("nested")
		for _, change := range []string{"link set eth0 netns " + nested.Path(), "link del eth0"} {
			b.addDevice("dev0", "02:00:00:00:00:1d")
			c := b.call("one", newPod(), conf("1.0.0", `"device":"dev0"`, b.hostLocal(hostLocalAll)))
			b.mustAdd(c)
			in(c.Pod, "ip "+change)
			Expect(b.mustDel(c).Stderr).To(ContainSubstring("interface dev0 of the node (device dev0) is neither in the container nor on the node: it was deleted there, or moved to another network namespace; it is not restored"))
			Expect(append(b.stateFiles(), b.reservations()...)).To(BeEmpty())
			Expect(b.mustDel(c).Stderr).To(BeEmpty())
			if change != "link del eth0" {
				in(nested, "ip link del eth0")
			}
		}
	})

	It("returns both ends of a veth pair that connects two containers", func() {
		b.node.Batch(GinkgoTB(), "link add cable0 type veth peer name cable1")
		before := nstest.WaitStable(func() string { return nstest.Snapshot(GinkgoTB(), b.node) })
		one := b.call("one", newPod(), conf("1.0.0", `"device":"cable0"`, ""))
		two := b.call("two", newPod(), conf("1.0.0", `"device":"cable1"`, ""))
		b.mustAdd(one)
		b.mustAdd(two)
		Expect(b.mustDel(one).Stderr).To(BeEmpty())
		Expect(b.mustDel(two).Stderr).To(BeEmpty())
		Expect(nstest.WaitEqual(before, func() string { return nstest.Snapshot(GinkgoTB(), b.node) })).To(BeEmpty())
		Expect(b.stateFiles()).To(BeEmpty())
	})

	It("returns a device that the reference plugin moved, whose peer is on the node", func() {
		pod := newPod()
		b.node.Batch(GinkgoTB(), "link add cable0 type veth peer name cable1", "link set cable0 netns "+pod.Path())
		pod.Batch(GinkgoTB(), "link set cable0 name eth0", "link set eth0 alias cable0")
		Expect(b.mustDel(b.call("one", pod, conf("1.0.0", `"device":"cable0"`, ""))).Stderr).To(BeEmpty())
		Expect(in(b.node, "ip -br link")).To(ContainSubstring("cable0@cable1"))
	})

	DescribeTable("leaves an interface that has the device's names, but is another one",
		func(returned bool, changes ...string) {
			c := b.call("one", newPod(), conf("1.0.0", byDevice, b.hostLocal(hostLocalAll)))
			peer := strings.Split(in(b.outside, "ip -o link show hd0"), ":")[0]
			mark := attach.AltName(types.Attachment{Network: "net1", ContainerID: "one", IfName: "eth0"})
			before := nstest.WaitStable(func() string { return nstest.Snapshot(GinkgoTB(), b.node) })
			b.mustAdd(c)
			nested := nstest.New(GinkgoTB()).Named("nested")
			c.Pod.Batch(GinkgoTB(), "link property del dev eth0 altname "+mark)
			c.Pod.Batch(GinkgoTB(), strings.Split(strings.NewReplacer("NESTED", nested.Path(), "MARK", mark, "PEER", peer).Replace(strings.Join(changes, ";")), ";")...)
			Expect(b.mustDel(c).Stderr).To(ContainSubstring("interface evil0 of the container has the names of interface hd0, but is another interface: its kind, permanent MAC, parent or peer differs; it is left there"))
			Expect(in(c.Pod, "ip -br link")).To(ContainSubstring("evil0"))
			Expect(b.reservations()).To(BeEmpty())
			if returned {
				Expect(nstest.WaitEqual(before, func() string { return nstest.Snapshot(GinkgoTB(), b.node) })).To(BeEmpty())
				Expect(b.stateFiles()).To(BeEmpty())
				return
			}
			Expect(in(b.node, "ip -br link")).NotTo(Or(ContainSubstring("hd0"), ContainSubstring("evil0")))
			Expect(b.stateFiles()).To(HaveLen(1))
			c.Pod.Remove(GinkgoTB())
			b.mustDel(c)
			Expect(b.stateFiles()).To(BeEmpty())
		},
		Entry("a veth with its peer in the container", true, "link add evil0 index 900 type veth peer name evil1 index PEER", "link property add dev evil0 altname MARK"),
		Entry("a veth with its peer in a third namespace, where the device is", false, "link set eth0 netns NESTED",
			"link add evil0 address "+deviceMAC+" index 900 type veth peer name evil1 index PEER netns NESTED", "link property add dev evil0 altname MARK", "link set evil0 alias hd0"),
		Entry("an interface of another kind", false, "link del eth0", "link add evil0 type bridge", "link property add dev evil0 altname MARK"),
	)

	It("restores a device whose state an earlier version of plumb saved", func() {
		c := b.call("one", newPod(), conf("1.0.0", byDevice, static4))
		b.mustAdd(c)
		file := filepath.Join(b.states, b.stateFiles()[0])
		Expect(os.WriteFile(file, []byte(`{"network": "net1", "containerID": "one", "ifname": "eth0", "selector": "device hd0", "sandbox": "", "netns": 0, "kind": "veth",
			"name": "hd0", "alias": "uplink", "mac": "02:00:00:00:00:99", "mtu": 1300, "up": true, "addresses": [{"prefix": "192.0.2.1/24"}, {"prefix": "2001:db8::1/64", "nodad": true}]}`), 0o600)).To(Succeed())
		b.mustDel(c)
		Expect(in(b.node, "ip addr show hd0")).To(And(ContainSubstring("mtu 1300"), ContainSubstring("UP"), ContainSubstring("02:00:00:00:00:99"),
			ContainSubstring("inet 192.0.2.1/24 brd 192.0.2.255"), ContainSubstring("inet6 2001:db8::1/64")))
		Expect(in(b.node, "ip link show hd0")).To(ContainSubstring("alias uplink"))
		Expect(b.stateFiles()).To(BeEmpty())
	})

	It("returns the device under another name if its own is taken, and says so", func() {
		in(b.node, "ip link set hd0 alias uplink")
		c := b.call("one", newPod(), conf("1.0.0", byDevice, static4))
		b.mustAdd(c)
		b.node.Batch(GinkgoTB(), "link add hd0 type veth peer name other0")
		reply := b.mustDel(c)
		Expect(reply.Stderr).To(MatchRegexp(`interface hd0 of the node returns as hd-[0-9a-f]{12}, because another interface has its name now; its former alias was "uplink"`))
		Expect(in(b.node, "ip link")).To(And(ContainSubstring(deviceMAC), ContainSubstring("alias hd0"), Not(ContainSubstring("plumb-"))))
		b.mustDel(c)
		Expect(b.stateFiles()).To(BeEmpty())
	})

	It("succeeds if the container, and with it a virtual device, no longer exists", func() {
		c := b.call("one", newPod(), conf("1.0.0", byDevice, b.hostLocal(hostLocalAll)))
		b.mustAdd(c)
		c.Pod.Remove(GinkgoTB())
		Eventually(func() string { return in(b.outside, "ip -br link") }).ShouldNot(ContainSubstring("hd0"))
		for range 2 {
			b.mustDel(c)
			Expect(b.reservations()).To(BeEmpty())
			Expect(b.stateFiles()).To(BeEmpty())
		}
	})

	It("leaves the device of another attachment whose namespace has the same path", func() {
		b.addDevice("hd1", "02:00:00:00:00:1d")
		c := b.call("one", newPod(), conf("1.0.0", byDevice, b.hostLocal(hostLocalAll)))
		b.mustAdd(c)
		in(c.Pod, "ip link del eth0")
		other := b.call("two", c.Pod, conf("1.0.0", `"device":"hd1"`, static4))
		b.mustAdd(other)
		before := nstest.Snapshot(GinkgoTB(), c.Pod)
		for range 2 {
			b.mustDel(c)
			Expect(nstest.Snapshot(GinkgoTB(), c.Pod)).To(Equal(before))
		}
		By("also if the state was lost")
		Expect(os.RemoveAll(b.states)).To(Succeed())
		b.mustDel(c)
		Expect(nstest.Snapshot(GinkgoTB(), c.Pod)).To(Equal(before))
		b.mustDel(other)
		Expect(in(b.node, "ip -br link")).To(ContainSubstring("hd1"))
	})

	It("leaves an interface that host-device did not move", func() {
		pod := newPod()
		pod.Batch(GinkgoTB(), "link add eth0 type veth peer name eth1", "link set eth1 alias plumb:net1/one/eth1")
		for _, ifName := range []string{"eth0", "eth1"} {
			c := b.call("one", pod, conf("1.0.0", byDevice, static4))
			c.IfName = ifName
			b.mustDel(c)
		}
		Expect(in(pod, "ip -br link")).To(And(ContainSubstring("eth0"), ContainSubstring("eth1")))
	})

	It("returns the device as its alias says if the state cannot be read", func() {
		c := b.call("one", newPod(), conf("1.0.0", byDevice, static4))
		b.mustAdd(c)
		file := filepath.Join(b.states, b.stateFiles()[0])
		Expect(os.WriteFile(file, []byte("{"), 0o600)).To(Succeed())
		Expect(b.mustDel(c).Stderr).To(ContainSubstring("no saved state can be read from it"))
		Expect(in(b.node, "ip link show hd0")).NotTo(Or(ContainSubstring("alias"), ContainSubstring("altname")))
		Expect(b.stateFiles()).To(BeEmpty())
	})

	It("warns of a setting that the kernel refuses, and restores the others", func() {
		in(b.node, "ip link set hd0 alias uplink")
		c := b.call("one", newPod(), conf("1.0.0", byDevice, static4))
		b.mustAdd(c)
		file := filepath.Join(b.states, b.stateFiles()[0])
		text, err := os.ReadFile(file)
		Expect(err).NotTo(HaveOccurred())
		Expect(os.WriteFile(file, []byte(strings.Replace(string(text), `"MTU": 1400`, `"MTU": 1`, 1)), 0o600)).To(Succeed())
		Expect(b.mustDel(c).Stderr).To(ContainSubstring("restore interface hd0: set link hd0 mtu 1"))
		Expect(in(b.node, "ip link show hd0")).To(And(ContainSubstring("alias uplink"), ContainSubstring("UP")))
	})

	It("does not release the addresses while the device cannot be moved", func() {
		c := b.call("one", newPod(), conf("1.0.0", byDevice, b.hostLocal(hostLocalAll)))
		b.mustAdd(c)
		c.Before = func(step string) error {
			if strings.HasPrefix(step, "move link") {
				return fmt.Errorf("not now")
			}
			return nil
		}
		Expect(b.run(c, "DEL").Failure(GinkgoTB()).Msg).To(ContainSubstring("not now"))
		Expect(b.reservations()).To(HaveLen(2))
	})
})

var _ = Describe("CHECK", func() {
	var b *testbed
	BeforeEach(func() {
		b = newTestbed()
		nstest.LeakCheck(GinkgoTB())
	})

	attached := func(version, keys, ipam string) nstest.Call {
		GinkgoHelper()
		c := b.call("one", newPod(), conf(version, keys, ipam))
		c.Config = nstest.WithPrevResult(c.Config, b.run(c, "ADD").OK(GinkgoTB()).Stdout)
		return c
	}

	It("passes after ADD, and after a later plugin changed MAC and MTU", func() {
		for _, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
			for _, ipam := range []string{staticDual, noIPAM} {
				c := attached(version, byDevice, ipam)
				b.run(c, "CHECK").OK(GinkgoTB())
				c.Pod.Batch(GinkgoTB(), "link set eth0 address 02:00:00:00:00:99 mtu 1300")
				b.run(c, "CHECK").OK(GinkgoTB())
				b.mustDel(c)
			}
		}
	})

	DescribeTable("names every difference",
		func(change []string, texts ...string) {
			c := attached("1.0.0", byDevice, staticDual)
			c.Pod.Batch(GinkgoTB(), change...)
			f := b.run(c, "CHECK").Failure(GinkgoTB())
			Expect(f.Code).To(BeEquivalentTo(types.CodeChanged), f.String())
			for _, text := range texts {
				Expect(f.Msg).To(ContainSubstring(text))
			}
		},
		Entry("no link", []string{"link del eth0"}, "find link eth0"),
		Entry("down", []string{"link set eth0 down"}, "eth0 is down"),
		Entry("addresses gone", []string{"address del 198.18.0.50/24 dev eth0", "address del 2001:db8:18::50/64 dev eth0"},
			"no address 198.18.0.50/24", "no address 2001:db8:18::50/64"),
		Entry("another default gateway", []string{"route replace default via 198.18.0.3"}, "no route 0.0.0.0/0 via 198.18.0.2"),
	)

	It("fails without a prevResult, and if the IPAM plugin has no reservation", func() {
		c := b.call("one", newPod(), conf("1.0.0", byDevice, b.hostLocal(hostLocal4)))
		added := b.run(c, "ADD").OK(GinkgoTB())
		Expect(b.run(c, "CHECK").Failure(GinkgoTB()).Code).To(BeEquivalentTo(types.CodeConfig))
		Expect(nstest.Exec(GinkgoTB(), b.path+"/host-local", c.With("DEL")).Exit).To(BeZero())
		c.Config = nstest.WithPrevResult(c.Config, added.Stdout)
		Expect(b.run(c, "CHECK").Failure(GinkgoTB()).Msg).To(ContainSubstring(`IPAM plugin "host-local"`))
	})
})

var _ = Describe("GC", func() {
	It("returns the devices of attachments of the network that are not listed, and releases their addresses", func() {
		b := newTestbed()
		nstest.LeakCheck(GinkgoTB())
		var pods []*nstest.NS
		for i, id := range []string{"one", "two", "three"} {
			name := fmt.Sprint("dev", i)
			b.addDevice(name, fmt.Sprint("02:00:00:00:01:0", i))
			pods = append(pods, newPod())
			c := b.call(id, pods[i], conf("1.1.0", `"device":"`+name+`"`, b.hostLocal(hostLocal4)))
			if id == "three" {
				c.Config = strings.Replace(c.Config, "net1", "net2", 1)
			}
			b.mustAdd(c)
		}
		temp := filepath.Join(b.states, tempOf("net1"))
		Expect(os.WriteFile(temp, nil, 0o600)).To(Succeed())
		Expect(os.WriteFile(filepath.Join(b.states, "other.json"), []byte("{"), 0o600)).To(Succeed())
		gc := b.call("", nil, conf("1.1.0", byDevice+`,"cni.dev/valid-attachments":[{"containerID":"two","ifname":"eth0"}]`, b.hostLocal(hostLocal4)))
		b.run(gc, "GC").OK(GinkgoTB())
		Expect(in(b.node, "ip -br link")).To(And(ContainSubstring("dev0"), Not(ContainSubstring("dev1")), Not(ContainSubstring("dev2"))))
		Expect(in(pods[0], "ip -br link")).NotTo(ContainSubstring("eth0"))
		Expect(b.reservations()).To(Equal([]string{"198.18.0.101"}))
		Expect(b.stateFiles()).To(HaveLen(3))
		Expect(temp).NotTo(BeAnExistingFile())
	})
})

// tempOf returns the name of a temporary file of the network.
func tempOf(network string) string {
	return statefile.TempName(types.Attachment{Network: network, ContainerID: "killed", IfName: "eth0"})
}

var _ = DescribeTable("STATUS fails if an ADD would fail",
	func(config func(b *testbed) string, code int, texts ...string) {
		b := newTestbed()
		nstest.LeakCheck(GinkgoTB())
		r := b.run(b.call("", nil, config(b)), "STATUS")
		if code == 0 {
			r.OK(GinkgoTB())
			return
		}
		f := r.Failure(GinkgoTB())
		Expect(f.Code).To(BeEquivalentTo(code), f.String())
		for _, text := range texts {
			Expect(f.String()).To(ContainSubstring(text))
		}
	},
	Entry("success", func(b *testbed) string { return conf("1.1.0", byDevice, b.hostLocal(hostLocal4)) }, 0),
	Entry("success without IPAM", func(*testbed) string { return conf("1.1.0", byDevice, noIPAM) }, 0),
	Entry("success without a selector, which the runtime gives in ADD", func(*testbed) string { return conf("1.1.0", "", noIPAM) }, 0),
	Entry("success while the device is in use", func(b *testbed) string {
		config := conf("1.1.0", byDevice, static4)
		b.mustAdd(b.call("one", newPod(), config))
		return config
	}, 0),
	Entry("the device does not exist", func(*testbed) string { return conf("1.1.0", `"device":"nope0"`, static4) }, types.CodeNotAvailable, "find link nope0"),
	Entry("the device is a port", func(b *testbed) string {
		b.node.Batch(GinkgoTB(), "link add br0 type bridge", "link set hd0 master br0")
		return conf("1.1.0", byDevice, static4)
	}, types.CodeNotAvailable, "is a port of br0"),
	Entry("the configuration is invalid", func(*testbed) string { return conf("1.1.0", `"pciBusID":"x"`, static4) }, types.CodeNotAvailable, "pciBusID"),
	Entry("the states cannot be saved", func(b *testbed) string {
		Expect(os.WriteFile(b.states, nil, 0o600)).To(Succeed())
		return conf("1.1.0", byDevice, static4)
	}, types.CodeNotAvailable, "write to"),
	Entry("the IPAM plugin does not exist", func(*testbed) string { return conf("1.1.0", byDevice, `{"type":"nope"}`) }, types.CodeNotAvailable, `failed to find plugin "nope"`),
)

// TestFaults checks that ADD and DEL leave nothing if any single step fails. In the container,
// duplicate address detection ends at once.
func TestFaults(t *testing.T) {
	leases := t.TempDir()
	b := &testbed{leases: leases}
	for name, config := range map[string]string{
		"dual stack":  conf("1.1.0", `"device":"DEVICE"`, b.hostLocal(hostLocalAll)),
		"addresses":   conf("1.1.0", `"device":"DEVICE","restoreAddresses":true`, b.hostLocal(hostLocal4)),
		"layer 2":     conf("1.1.0", `"device":"DEVICE"`, noIPAM),
		"static IPv4": conf("0.2.0", `"device":"DEVICE"`, static4),
	} {
		t.Run(name, func(t *testing.T) {
			nstest.LeakCheck(t)
			h := host{sys: sysfs(t.TempDir()), states: filepath.Join(t.TempDir(), "states")}
			nstest.FaultSweep(t, nstest.Sweep{
				Plugin: twoDevices(h), Config: config, Path: nstest.Build(t, "host-local", "static"), Dirs: []string{leases, h.states},
				Prepare: func(node, pod *nstest.NS) {
					outside := nstest.NewNode(t).Named("outside")
					for i, device := range []string{"hd0", "hd1"} {
						addDevice(t, node, outside, fmt.Sprintf("%s address 02:00:00:00:00:0%d index %d", device, i, 101+i))
					}
					if name == "addresses" {
						node.Batch(t, "addr add 192.0.2.1/24 brd + dev hd0", "addr add 2001:db8::1/64 dev hd0 nodad", "link set hd0 alias uplink")
					}
					pod.SkipDAD(t)
				},
				Ignore: nstest.KeptByHostLocal,
			})
		})
	}
}

// twoDevices returns the plugin for a fault sweep, which adds two containers with one configuration:
// DEVICE in it stands for a device of each.
func twoDevices(h host) skel.Plugin {
	p := h.plugin()
	p.Add = func(r *skel.Request) (*types.Result, error) {
		device := "hd0"
		if r.ContainerID == "warm" {
			device = "hd1"
		}
		r.Stdin = bytes.ReplaceAll(r.Stdin, []byte("DEVICE"), []byte(device))
		return h.add(r)
	}
	return p
}
