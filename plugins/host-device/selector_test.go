package main

import (
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("a selector by sysfs", func() {
	const pciID, lowerPCIID = "0000:3B:02.1", "0000:3b:02.1"
	const pciDirectory = "devices/pci0000:3a/0000:3b:02.1"
	var b *testbed
	BeforeEach(func() {
		b = newTestbed()
	})

	// add creates directories below the root of sysfs.
	add := func(directories ...string) {
		GinkgoHelper()
		for _, f := range directories {
			Expect(os.MkdirAll(filepath.Join(string(b.sys), f), 0o755)).To(Succeed())
		}
	}
	link := func(target, name string) {
		GinkgoHelper()
		path := filepath.Join(string(b.sys), name)
		Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
		Expect(os.Symlink(filepath.Join(string(b.sys), target), path)).To(Succeed())
	}
	// addPCI creates a PCI device with a driver and with interfaces in a directory of the device.
	addPCI := func(driver, directory string, interfaces ...string) {
		GinkgoHelper()
		add(pciDirectory, "bus/pci/drivers/"+driver)
		link("bus/pci/drivers/"+driver, pciDirectory+"/driver")
		link(pciDirectory, "bus/pci/devices/"+lowerPCIID)
		for _, i := range interfaces {
			add(pciDirectory + "/" + directory + "/" + i)
		}
	}
	const byPCIBusID, byDeviceID = `"pciBusID":"` + pciID + `"`, `"runtimeConfig":{"deviceID":"` + pciID + `"}`

	DescribeTable("finds the interface, and DEL returns it",
		func(prepare func(), keys, pci string) {
			prepare()
			container := b.NewContainer()
			c := b.Call("one", container, conf("1.1.0", keys, nstest.StaticV4))
			added := b.OK("ADD", c)
			eth := added.Result(GinkgoTB()).Interfaces[0]
			Expect([]string{eth.PciID, eth.MAC}).To(Equal([]string{pci, deviceMAC}))
			c.Config = nstest.WithPrevResult(c.Config, added.Stdout)
			b.OK("CHECK", c)
			By("even after the device has left sysfs")
			Expect(os.RemoveAll(string(b.sys))).To(Succeed())
			b.OK("DEL", c)
			b.Host.IP("link show hd0")
		},
		Entry("kernelpath", func() { add(pciDirectory + "/net/hd0") }, `"kernelpath":"/sys/`+pciDirectory+`"`, ""),
		Entry("kernelpath that is not clean", func() { add(pciDirectory + "/net/hd0") }, `"kernelpath":"/sys//devices/../`+pciDirectory+`/"`, ""),
		Entry("PCI ID", func() { addPCI("mlx5_core", "net", "hd0") }, byPCIBusID, pciID),
		Entry("PCI ID of a virtio device", func() { addPCI("virtio-pci", "virtio3/net", "hd0") }, byPCIBusID, pciID),
		Entry("PCI ID from the runtime, which replaces the configured PCI ID", func() { addPCI("mlx5_core", "net", "hd0") },
			`"pciBusID":"0000:00:00.0",`+byDeviceID, pciID),
		Entry("auxiliary device from the runtime, which replaces the PCI ID", func() {
			add(pciDirectory + "/mlx5_core.sf.4/net/hd0")
			link(pciDirectory+"/mlx5_core.sf.4", "bus/auxiliary/devices/mlx5_core.sf.4")
		}, `"pciBusID":"0000:00:00.0","runtimeConfig":{"deviceID":"mlx5_core.sf.4"}`, ""),
		Entry("device before all others", func() {}, byDevice+`,"hwaddr":"02:00:00:00:00:99",`+byDeviceID, ""),
	)

	DescribeTable("is an error that names a device without interfaces or with several",
		func(prepare func(), keys string, texts ...string) {
			prepare()
			b.Refuse(b.NewCall(conf("1.1.0", keys, nstest.StaticV4)), types.CodeConfig, texts...)
			b.RequireStatus(conf("1.1.0", keys, nstest.StaticV4), texts[0])
		},
		Entry("no PCI device", func() {}, byPCIBusID, "PCI device "+pciID+" does not exist on the host, or has no driver"),
		Entry("a PCI device without a driver", func() { add("bus/pci/devices/" + lowerPCIID) }, byPCIBusID, "has no driver"),
		Entry("a PCI device without an interface", func() { addPCI("ahci", "ata") }, byPCIBusID, "the host has no network interface with PCI device "+pciID),
		Entry("no auxiliary device", func() {}, `"runtimeConfig":{"deviceID":"mlx5_core.sf.4"}`, "the host has no network interface with auxiliary device mlx5_core.sf.4"),
		Entry("no kernelpath", func() {}, `"kernelpath":"/sys/`+pciDirectory+`"`, "the host has no network interface with kernelpath /sys/"+pciDirectory),
		Entry("a card with two ports", func() { addPCI("mlx4_core", "net", "hd0", "hd1") }, byPCIBusID, "the host has several network interfaces with PCI device "+pciID+": hd0, hd1; name one"),
	)

	It("is an error that names the attachment that uses the PCI device", func() {
		addPCI("mlx5_core", "net", "hd0")
		config := conf("1.1.0", byPCIBusID, nstest.StaticV4)
		b.Add(b.NewCall(config))
		Expect(os.RemoveAll(filepath.Join(string(b.sys), pciDirectory, "net/hd0"))).To(Succeed())
		b.Refuse(b.Call("two", b.NewContainer(), config), types.CodeTryAgain, "in use by net1/one/eth0")
		b.OK("STATUS", b.Call("", nil, config))
	})

	DescribeTable("of a device that a program uses moves nothing, and returns the addresses",
		func(driver, keys, pci string) {
			if driver != "" {
				addPCI(driver, "none")
			}
			container := b.NewContainer()
			state := func() string { return nstest.Snapshot(GinkgoTB(), b.Host, container) }
			before := nstest.WaitStable(state)
			c := b.Call("one", container, conf("1.1.0", keys+`,"dns":{"nameservers":["192.0.2.1"]}`, b.HostLocal(nstest.RangeV4)))
			added := b.OK("ADD", c)
			result := added.Result(GinkgoTB())
			Expect(result.Interfaces).To(Equal([]types.Interface{{Name: "eth0", Sandbox: container.Path(), PciID: pci}}))
			Expect(result.IPs).To(And(HaveLen(1), HaveEach(HaveField("Interface", 0))))
			Expect(result.DNS.Nameservers).To(Equal([]string{"192.0.2.1"}))
			c.Config = nstest.WithPrevResult(c.Config, added.Stdout)
			b.OK("CHECK", c)
			b.RequireStatus(conf("1.1.0", keys, b.HostLocal(nstest.RangeV4)), "")
			Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
			b.OK("DEL", c)
			Expect(b.Reservations()).To(BeEmpty())
			b.Run("CHECK", c).Failure(GinkgoTB())
			for _, ipam := range []string{noIPAM, b.HostLocal(nstest.RangeV4)} {
				c.Config = conf("1.1.0", keys+`,"useInterfaceNetwork":true`, ipam)
				b.Refuse(c, types.CodeConfig, "useInterfaceNetwork: ", "has no addresses, because the container uses it without the kernel (DPDK)")
				b.RequireStatus(c.Config, "without the kernel (DPDK)")
			}
		},
		Entry("vfio-pci", "vfio-pci", byPCIBusID, pciID),
		Entry("uio_pci_generic", "uio_pci_generic", byPCIBusID, pciID),
		Entry("igb_uio", "igb_uio", byDeviceID, pciID),
		Entry("DPDKMode, in any capitalisation", "", byDevice+`,"dpdkMode":true`, ""),
	)

	It("with a PCI ID ignores DPDKMode, because the driver decides", func() {
		addPCI("mlx5_core", "net", "hd0")
		container := b.NewContainer()
		b.Add(b.Call("one", container, conf("1.1.0", byPCIBusID+`,"DPDKMode":true`, noIPAM)))
		Expect(container.IP("-br link")).To(ContainSubstring("eth0"))
	})
})

var _ = DescribeTable("isPCIBusID", func(id string, want bool) {
	Expect(isPCIBusID(id)).To(Equal(want))
	Expect(isPCIBusID(strings.ToUpper(id))).To(Equal(want))
},
	EntryDescription("%q: %t"),
	Entry(nil, "0000:00:1f.6", true), Entry(nil, "10000:e1:00.0", true), Entry(nil, "a1b2c3d4:00:02.0", true),
	Entry(nil, "", false), Entry(nil, "00:1f.6", false), Entry(nil, "0000:00:1f", false), Entry(nil, "0000:00:1f.66", false),
	Entry(nil, "0000:00:1g.6", false), Entry(nil, "0000:00:1f.6/..", false), Entry(nil, "mlx5_core.sf.4", false), Entry(nil, "0000:00:1f.6:0", false),
)
