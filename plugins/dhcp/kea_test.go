package main

import (
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = It("gets a lease from Kea with a configured client identifier, renews it, keeps it over a restart, and releases it", func() {
	b := newSegment()
	kea := nstest.StartKea(GinkgoTB(), b.end(), "10.50.0.10-10.50.0.19", 2)
	kill := b.startDaemon()
	c := b.call(`,"provide":[{"option":"dhcp-client-identifier","value":"web-0"}]`)
	cidr := b.address(c)
	addr, _, _ := strings.Cut(cidr, "/")
	const id = "cid=[77:65:62:2d:30]" // web-0
	kea.AwaitLog(GinkgoTB(), "DHCP4_LEASE_ALLOC", id, addr)
	b.container.MustLine(GinkgoTB(), "ip addr add "+cidr+" dev eth0")
	kea.AwaitLog(GinkgoTB(), "DHCP4_PACKET_RECEIVED", id, "DHCPREQUEST", "from "+addr+" to "+serverAddr)
	kea.AwaitLog(GinkgoTB(), "DHCP4_LEASE_ALLOC", id, addr)

	other := b.call("") // same MAC, but the default identifier
	other.ContainerID = "m2"
	Expect(b.address(other)).NotTo(Equal(cidr))
	b.OK("DEL", other)
	kea.AwaitLog(GinkgoTB(), "DHCP4_RELEASE ", "cid=[00:6d:32:2f:64:2f:65:74:68:30]")

	_ = kill(syscall.SIGKILL)
	b.startDaemon()
	kea.AwaitLog(GinkgoTB(), "DHCP4_INIT_REBOOT", id, addr)
	kea.AwaitLog(GinkgoTB(), "DHCP4_LEASE_ALLOC", id, addr)
	b.OK("CHECK", c)
	b.OK("DEL", c)
	kea.AwaitLog(GinkgoTB(), "DHCP4_RELEASE ", id, addr)
	Expect(b.files()).To(BeEmpty())
})
