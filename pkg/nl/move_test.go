package nl_test

import (
	"fmt"
	"io/fs"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("MoveLink", func() {
	var hostNS, containerNS *nstest.NS
	var host, container *nl.Conn
	var device nl.Link

	BeforeEach(func() {
		hostNS, containerNS = nstest.NewHostAndContainer(GinkgoTB())
		host, container = connect(hostNS, &trace.Tracer{}), connect(containerNS, &trace.Tracer{})
		hostNS.Batch(GinkgoTB(), "link add hd0 address 02:00:00:00:00:01 mtu 1400 type veth peer name peer0", "link set hd0 up alias before",
			"addr add 192.0.2.1/24 dev hd0", "link property add dev hd0 altname alt0")
		var err error
		device, err = host.Link("hd0")
		Expect(err).NotTo(HaveOccurred())
		Expect(device.AltNames).To(Equal([]string{"alt0"}))
	})

	It("moves a link whose old name exists in the other namespace", func() {
		containerNS.Batch(GinkgoTB(), "link add hd0 type veth peer name other0")
		moved, err := host.MoveLink(device, nl.Move{To: container, Name: "eth0", Alias: "hd0"})
		Expect(err).NotTo(HaveOccurred())
		Expect(moved.MAC).To(Equal(device.MAC))
	})

	It("returns fs.ErrExist if the new name exists, although it has moved the link", func() {
		containerNS.Batch(GinkgoTB(), "link add eth0 type veth peer name other0")
		_, err := host.MoveLink(device, nl.Move{To: container, Name: "eth0", Alias: "hd0"})
		Expect(err).To(MatchError(fs.ErrExist))
		Expect(container.Link("hd0")).To(HaveField("Alias", "before"))
	})

	It("lists all links", func() {
		Expect(host.Links()).To(ConsistOf(HaveField("Name", "lo"), HaveField("Name", "hd0"), HaveField("Name", "peer0")))
	})

	It("does not return a link by an alternative name, unless the caller accepts these names", func() {
		_, err := host.Link("alt0")
		Expect(err).To(MatchError(fs.ErrNotExist))
		Expect(err).To(MatchError(ContainSubstring("hd0 has this alternative name")))
		Expect(host.LinkByAnyName("alt0")).To(HaveField("Name", "hd0"))
		Expect(host.LinkByAnyName("hd0")).To(HaveField("Name", "hd0"))
		_, err = host.LinkByAnyName("alt1")
		Expect(err).To(MatchError(fs.ErrNotExist))
	})

	It("finds, lists and moves links whose alternative names exceed the receive buffer of package netlink", func() {
		var names []string
		for i := range 494 { // the kernel accepts at most 64 KiB (rtnl_alt_ifname)
			names = append(names, fmt.Sprintf("link property add dev hd0 altname %0127d", i))
		}
		hostNS.Batch(GinkgoTB(), names...)
		for range 2 {
			Expect(host.Link("hd0")).To(HaveField("AltNames", HaveLen(495)))
			Expect(host.LinkByIndex(device.Index)).To(HaveField("AltNames", HaveLen(495)))
			Expect(host.Links()).To(ContainElement(HaveField("AltNames", HaveLen(495))))
			Expect(host.Addrs(device)).NotTo(BeEmpty())
			Expect(host.SetMTU(device, 1300)).To(Succeed())
		}
		Expect(host.MoveLink(device, nl.Move{To: container, Name: "eth0"})).To(HaveField("AltNames", HaveLen(495)))
		Expect(host.LinkIn(container, device.Index)).To(HaveField("Name", "eth0"))
	})
})
