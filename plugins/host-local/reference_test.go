package main

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = It("the reference plugin allocates and releases remembered addresses", func() {
	host := newTestHost()
	pod := variant{IPAM: `"subnet": "10.1.2.0/29", "rangeEnd": "10.1.2.3", "sticky": "pod"`, Args: podArgs("web-0"), Version: "1.0.0"}
	other := pod
	other.Args = podArgs("web-1")
	runReference := func(command, id string, v variant) nstest.Reply {
		return nstest.ExecReference(GinkgoTB(), "host-local", host.Call(id, v).With(command)).OK(GinkgoTB())
	}

	Expect(host.Add("c1", pod)).To(Equal("10.1.2.2/29"))
	host.OK("DEL", "c1", pod)
	Expect(runReference("ADD", "c2", other).Stdout).To(ContainSubstring("10.1.2.3/29"))
	Expect(runReference("ADD", "c3", other).Stdout).To(ContainSubstring("10.1.2.2/29"), "remembered, but not reserved")
	runReference("CHECK", "c3", other)
	Expect(host.Fails("ADD", "c4", pod).Code).To(BeEquivalentTo(11))
	runReference("DEL", "c3", other)
	Expect(host.Add("c4", pod)).To(Equal("10.1.2.2/29"), "still remembered")
	runReference("DEL", "c4", pod)
	host.OK("DEL", "c2", other)
	Expect(host.Reserved()).To(BeEmpty())
	Expect(host.Add("c5", pod)).To(Equal("10.1.2.2/29"), "the record of c1")
})
