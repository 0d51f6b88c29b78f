package main

import (
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// A card is a network card of the virtual machine of test/vm.
type card struct{ pci, path, name, mac string }

// cards returns the two cards, which are connected to each other. The first card's interface is in the
// directory net of its PCI device. The second card's interface is below its virtio device.
func cards() []card {
	GinkgoHelper()
	var found []card
	for _, pattern := range []string{"/sys/bus/pci/drivers/e1000e/0000:*/net/*", "/sys/bus/pci/drivers/virtio-pci/0000:*/virtio*/net/*"} {
		files, err := filepath.Glob(pattern)
		Expect(err).NotTo(HaveOccurred())
		Expect(files).To(HaveLen(1), pattern)
		path, err := filepath.EvalSymlinks(files[0])
		Expect(err).NotTo(HaveOccurred())
		mac, err := os.ReadFile(files[0] + "/address")
		Expect(err).NotTo(HaveOccurred())
		pci := filepath.Dir(filepath.Dir(files[0]))
		if len(found) == 1 {
			pci = filepath.Dir(pci)
		}
		found = append(found, card{pci: filepath.Base(pci), path: filepath.Dir(filepath.Dir(path)), name: filepath.Base(path), mac: string(mac[:len(mac)-1])})
	}
	return found
}

var _ = Describe("a network card", Label(nstest.Kernel), func() {
	var b *testbed
	BeforeEach(func() {
		b = newTestbedOn(nstest.NewVMNode(GinkgoTB()), "/sys")
	})
	links := func() string { return b.Host.IP("-o link") }
	address := func(a string) string { return nstest.Static(a + "/24") }

	It("is moved and returned with each selector, and keeps its name, MAC, MTU and state", func() {
		both := cards()
		b.Host.IP("link set " + both[0].name + " mtu 1400 up")
		Eventually(links).ShouldNot(MatchRegexp(both[0].name + `: <NO-CARRIER`)) // the card needs seconds, before and after it is moved
		restored := b.Restored(b.Host)
		for _, selectors := range [][2]string{
			{`"pciBusID":"` + both[0].pci + `"`, `"runtimeConfig":{"deviceID":"` + both[1].pci + `"}`},
			{`"kernelpath":"` + both[0].path + `"`, `"hwaddr":"` + both[1].mac + `"`},
			{`"device":"` + both[0].name + `"`, `"kernelpath":"` + both[1].path + `"`},
		} {
			one := b.NewCall(conf("1.1.0", selectors[0], address("198.18.0.1")))
			two := b.Call("two", b.NewContainer(), conf("1.1.0", selectors[1], address("198.18.0.2")))
			first, second := b.Add(one).Interfaces[0], b.Add(two).Interfaces[0]
			Expect([]string{first.MAC, second.MAC}).To(Equal([]string{both[0].mac, both[1].mac}))
			if selectors[0] == `"pciBusID":"`+both[0].pci+`"` {
				Expect([]string{first.PciID, second.PciID}).To(Equal([]string{both[0].pci, both[1].pci}))
			}
			nstest.ServeTCP(GinkgoTB(), one.Container, "198.18.0.1:80")
			// The cards need seconds until they have a carrier, and lose frames after that.
			Eventually(func() error {
				_, err := nstest.Dial(two.Container, "198.18.0.1:80")
				return err
			}).Should(Succeed())
			nstest.MustDial(GinkgoTB(), two.Container, "198.18.0.1:80", "198.18.0.2")
			one.Container.Batch(GinkgoTB(), "link set eth0 down", "link set eth0 address 02:00:00:00:00:99 mtu 1300 name renamed0")
			for _, c := range []nstest.Call{one, two} {
				b.OK("DEL", c)
			}
			restored()
		}
		b.Host.IP("link set " + both[0].name + " mtu 1500 down")
	})

	// attachedThenEnded moves a card into a container, calls change, and removes the container's namespace.
	attachedThenEnded := func(selector string, change func(c nstest.Call)) nstest.Call {
		GinkgoHelper()
		c := b.Call("one", nstest.New(GinkgoTB()), conf("1.1.0", selector, b.HostLocal(nstest.RangeV4)))
		c.IfName = "net1"
		b.Add(c)
		change(c)
		c.Container.Remove(GinkgoTB())
		return c
	}
	none := func(nstest.Call) {}

	It("is restored by a DEL after the container has ended, but before the kernel has returned the card", func() {
		for _, k := range cards() {
			c := attachedThenEnded(`"device":"`+k.name+`"`, none)
			b.OK("DEL", c)
			Expect(links()).To(And(MatchRegexp(": "+k.name+": .*"+k.mac), Not(ContainSubstring("net1")), Not(ContainSubstring("plumb-")), Not(ContainSubstring("alias"))))
			Expect(b.stateFiles()).To(BeEmpty())
			Expect(b.Reservations()).To(BeEmpty())
		}
	})

	It("gets back the configuration that the container adopted, after the container has ended", func() {
		k := cards()[0]
		rule := "from 198.18.7.1 iif " + k.name + " lookup 100"
		b.Host.Batch(GinkgoTB(), "link set "+k.name+" up", "addr add 198.18.7.1/24 dev "+k.name, "route add 203.0.113.0/24 via 198.18.7.2 table 100", "rule add "+rule)
		c := attachedThenEnded(`"device":"`+k.name+`","useInterfaceNetwork":true`, func(c nstest.Call) {
			Expect(c.Container.IP("rule")).To(ContainSubstring("from 198.18.7.1 iif net1 lookup 100"))
			b.Host.IP("rule del " + rule)
		})
		b.OK("DEL", c)
		Expect(b.Host.IP("addr show " + k.name)).To(ContainSubstring("198.18.7.1/24"))
		Expect(b.Host.IP("route show table 100")).To(ContainSubstring("203.0.113.0/24 via 198.18.7.2 dev " + k.name))
		Expect(b.Host.IP("rule")).To(ContainSubstring(rule))
		b.Host.Batch(GinkgoTB(), "rule del "+rule, "addr flush dev "+k.name, "link set "+k.name+" down")
	})

	It("is restored without its mark, as on a kernel that does not keep it", func() {
		k := cards()[0]
		c := attachedThenEnded(`"device":"`+k.name+`"`, func(c nstest.Call) {
			c.Container.IP("link property del dev net1 altname " + attach.AltName(types.Attachment{Network: "net1", ContainerID: "one", IfName: "net1"}))
		})
		b.OK("DEL", c)
		Expect(links()).To(And(MatchRegexp(": "+k.name+": .*"+k.mac), Not(ContainSubstring("net1")), Not(ContainSubstring("alias"))))
	})

	It("is restored if its name in the container is taken on the host", func() {
		k := cards()[0]
		c := attachedThenEnded(`"device":"`+k.name+`"`, func(nstest.Call) { b.Host.IP("link add net1 type dummy") })
		b.OK("DEL", c)
		b.Host.IP("link del net1")
		Expect(links()).To(And(MatchRegexp(": "+k.name+": .*"+k.mac), Not(MatchRegexp(`: dev\d`)), Not(ContainSubstring("alias"))))
	})

	It("is restored by the next ADD that selects it, if there was no DEL", func() {
		k := cards()[0]
		for _, selector := range []string{`"device":"` + k.name + `"`, `"pciBusID":"` + k.pci + `"`} {
			ended := attachedThenEnded(selector, none)
			Eventually(links).Should(ContainSubstring("net1"))
			next := b.Call("two", b.NewContainer(), conf("1.1.0", selector, nstest.StaticV4))
			b.Add(next)
			Expect(next.Container.IP("link show eth0")).To(ContainSubstring("alias " + k.name))
			Expect(b.stateFiles()).To(HaveLen(1))
			b.OK("DEL", next)
			Expect(links()).To(MatchRegexp(": " + k.name + ": .*" + k.mac))
			b.OK("DEL", ended)
			Expect(links()).To(MatchRegexp(": " + k.name + ": .*" + k.mac))
		}
	})

	It("is restored by GC, if there was no DEL", func() {
		k := cards()[1]
		attachedThenEnded(`"device":"`+k.name+`"`, none)
		Eventually(links).Should(ContainSubstring("net1"))
		gc := b.Call("", nil, conf("1.1.0", `"device":"`+k.name+`","cni.dev/valid-attachments":[]`, b.HostLocal(nstest.RangeV4)))
		b.OK("GC", gc)
		Expect(links()).To(And(MatchRegexp(": "+k.name+": .*"+k.mac), Not(ContainSubstring("net1"))))
		Expect(b.stateFiles()).To(BeEmpty())
		Expect(b.Reservations()).To(BeEmpty())
	})
})
