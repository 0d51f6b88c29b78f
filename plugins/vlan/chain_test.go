package main

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("in a chain, without a master", Label(nstest.Kernel), func() {
	const prev = `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"192.0.2.5/24","interface":0}]}`
	var b *testbed
	BeforeEach(func() { b = newTaggedTestbed() })
	// newContainerWithEth0 creates a container whose interface eth0 is on the segment of a host outside.
	newContainerWithEth0 := func() *nstest.NS {
		GinkgoHelper()
		container := b.NewContainer()
		b.Outside.IP("link del uplink0")
		nstest.Join(GinkgoTB(), nstest.End{In: container, Name: "eth0"}, nstest.End{In: b.Outside, Name: "uplink0"})
		b.tagOutside("tagged", "id 100", outside4+"/24")
		return container
	}

	It("ADD creates VLAN interfaces on CNI_IFNAME and appends them to the result, and CHECK and DEL find them", func() {
		container := newContainerWithEth0()
		restored := b.Restored(container)
		first := b.Call("one", container, nstest.WithPrevResult(conf("1.1.0", inChain+`,"mac":"02:00:00:00:00:64"`, noIPAM), prev))
		added := b.OK("ADD", first)
		Expect(added.Result(GinkgoTB()).Interfaces).To(HaveExactElements(HaveField("Name", "eth0"),
			And(HaveField("Name", "eth0.100"), HaveField("Sandbox", container.Path()), HaveField("MAC", "02:00:00:00:00:64"))))
		second := b.Call("one", container, nstest.WithPrevResult(conf("1.1.0", `"linkInContainer":true,"vlanId":200,"protocol":"802.1ad","ifName":"storage"`, noIPAM), added.Stdout))
		added = b.OK("ADD", second)
		result := added.Result(GinkgoTB())
		Expect(result.Interfaces).To(HaveLen(3))
		Expect(result.IPs).To(HaveExactElements(HaveField("Interface", 0)))
		Expect(container.IP("-d link show eth0.100")).To(And(ContainSubstring("vlan protocol 802.1Q id 100"), ContainSubstring("UP,LOWER_UP"), ContainSubstring("alias plumb:net1/one/eth0.100")))
		Expect(container.IP("-d link show storage")).To(ContainSubstring("vlan protocol 802.1ad id 200"))

		By("passing frames with the tag")
		container.Batch(GinkgoTB(), "address add "+container4+"/24 dev eth0.100")
		nstest.ServeTCP(GinkgoTB(), b.Outside, outside4+":80")
		nstest.MustDial(GinkgoTB(), container, outside4+":80", container4)
		container.Batch(GinkgoTB(), "address del "+container4+"/24 dev eth0.100")

		By("rejecting a VLAN that exists")
		b.Refuse(b.Call("one", container, nstest.WithPrevResult(conf("1.1.0", inChain+`,"ifName":"other"`, noIPAM), added.Stdout)), types.CodeConfig,
			"VLAN 100 (802.1Q) of master eth0 already has an interface, eth0.100 with the alias")
		b.Refuse(b.Call("one", container, nstest.WithPrevResult(conf("1.1.0", `"linkInContainer":true,"vlanId":5,"ifName":"storage"`, noIPAM), added.Stdout)), types.CodeConfig,
			`interface "storage" already exists`)

		By("checking and deleting each")
		for _, c := range []*nstest.Call{&first, &second} {
			c.Config = nstest.WithPrevResult(c.Config, added.Stdout)
			b.OK("CHECK", *c)
		}
		container.IP("link set storage down")
		b.Fails("CHECK", second, types.CodeChanged, "interface storage is down")
		b.Fails("REPAIR", second.OnContainerSide(), types.CodeChanged, "interface storage is down")
		for range 2 {
			b.OK("DEL", second)
			b.OK("DEL", first)
			restored()
		}
		b.Fails("CHECK", first, types.CodeChanged, "find link eth0.100")
	})

	It("DEL does not delete interfaces that the plugin did not create, and succeeds without the container", func() {
		container := newContainerWithEth0()
		container.IP("link add link eth0 name eth0.100 type vlan id 100")
		c := b.Call("one", container, nstest.WithPrevResult(conf("1.1.0", inChain, noIPAM), prev))
		b.OK("DEL", c)
		container.IP("link show eth0.100")
		c.Container = nil
		b.OK("DEL", c)
	})

	It("leaves nothing if any step of ADD or DEL fails", func() {
		b.FaultSweep(nstest.Sweep{
			Config: nstest.WithPrevResult(conf("1.1.0", inChain, noIPAM), prev),
			PrepareContainer: func(container *nstest.NS) {
				container.Batch(GinkgoTB(), "link add eth0 type veth peer name peer0", "link set eth0 up", "link set peer0 up")
			},
		})
	})
})
