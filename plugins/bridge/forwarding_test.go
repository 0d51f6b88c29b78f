package main

import (
	"bytes"
	"encoding/binary"
	"net"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// A packetSocket sends and receives the frames of eth0 in a namespace.
type packetSocket struct{ fd int }

func newPacketSocket(n *nstest.NS) packetSocket {
	GinkgoHelper()
	var s packetSocket
	Expect(n.Do(func() (err error) {
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		if s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		eth, err := net.InterfaceByName("eth0")
		if err == nil {
			err = unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: eth.Index})
		}
		return err
	})).To(Succeed())
	DeferCleanup(unix.Close, s.fd)
	minute := unix.NsecToTimeval(time.Minute.Nanoseconds())
	Expect(unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &minute)).To(Succeed())
	return s
}

// send sends a frame with the EtherType for experiments (IEEE 802, 9.2.4), whose payload is text.
func (s packetSocket) send(to, text string) {
	GinkgoHelper()
	mac, err := types.ParseMAC(to)
	Expect(err).NotTo(HaveOccurred())
	frame := append(mac.Bytes(), 2, 0, 0, 0, 0, 9, 0x88, 0xb5)
	_, err = unix.Write(s.fd, append(append(frame, text...), make([]byte, 60)...))
	Expect(err).NotTo(HaveOccurred())
}

// receives reports whether a frame with text arrives before a frame with the text "last".
func (s packetSocket) receives(text string) (found bool) {
	GinkgoHelper()
	for frame := make([]byte, 2000); ; {
		n, err := unix.Read(s.fd, frame)
		Expect(err).NotTo(HaveOccurred())
		if bytes.Contains(frame[:n], []byte("last")) {
			return found
		}
		found = found || bytes.Contains(frame[:n], []byte(text))
	}
}

var _ = Describe("bridge forwarding", func() {
	const lldp, last = "01:80:c2:00:00:0e", "ff:ff:ff:ff:ff:ff"
	var b *testbed
	BeforeEach(func() { b = newTestbed() })
	state := func() string { return b.Host.IP("-d link show cni0") }

	It("sends LLDP frames from one container to another only with groupFwdMask", func() {
		one, two := newContainer(), newContainer()
		for i, n := range []*nstest.NS{one, two} {
			b.Add(b.Call([]string{"one", "two"}[i], n, b.conf("1.1.0", "")))
		}
		from, to := newPacketSocket(one), newPacketSocket(two)
		from.send(lldp, "LLDP")
		from.send(last, "last")
		Expect(to.receives("LLDP")).To(BeFalse())

		By("changing a bridge whose ports plumb created")
		conf := b.conf("1.1.0", `"groupFwdMask":16384,`)
		b.Add(b.Call("three", newContainer(), conf))
		from.send(lldp, "LLDP")
		from.send(last, "last")
		Expect(to.receives("LLDP")).To(BeTrue())

		By("keeping the mask if the configuration does not contain the key")
		b.Add(b.Call("four", newContainer(), b.conf("1.1.0", "")))
		Expect(state()).To(ContainSubstring("group_fwd_mask 0x4000"))
	})

	It("sets both settings on a new bridge, and CHECK and REPAIR compare them", func() {
		conf := b.conf("1.1.0", `"groupFwdMask":16384,"mcastSnooping":false,`)
		container := newContainer()
		reply := b.OK("ADD", b.Call("one", container, conf))
		Expect(state()).To(And(ContainSubstring("group_fwd_mask 0x4000"), ContainSubstring("mcast_snooping 0")))
		c := b.Call("one", container, nstest.WithPrevResult(conf, reply.Stdout))
		b.OK("CHECK", c)
		b.Host.IP("link set cni0 type bridge group_fwd_mask 0 mcast_snooping 1")
		b.Fails("CHECK", c, types.CodeChanged, "bridge cni0 does not have group_fwd_mask 16384 mcast_snooping 0")
		b.OK("REPAIR", c)
		b.OK("CHECK", c)
		Expect(state()).To(And(ContainSubstring("group_fwd_mask 0x4000"), ContainSubstring("mcast_snooping 0")))
	})

	It("does not change a bridge with a port of another program, and names the port and the command", func() {
		b.Host.Batch(GinkgoTB(), "link add cni0 type bridge", "link set uplink0 master cni0", "link set cni0 up")
		for keys, text := range map[string]string{`"groupFwdMask":16384,`: "group_fwd_mask 16384", `"mcastSnooping":false,`: "mcast_snooping 0"} {
			c := b.NewCall(b.conf("1.1.0", keys))
			b.Refuse(c, types.CodeConfig, "has the port uplink0 of another program", `ip link set cni0 type bridge `+text)
		}
		Expect(state()).To(And(ContainSubstring("group_fwd_mask 0 "), ContainSubstring("mcast_snooping 1")))
		b.Host.IP("link set cni0 type bridge group_fwd_mask 16384")
		b.Add(b.Call("one", newContainer(), b.conf("1.1.0", `"groupFwdMask":16384,"mcastSnooping":true,`)))
	})

	DescribeTable("answers ARP requests for other hosts with proxyArp:", func(keys, gateway string) {
		if keys != "" {
			nstest.RequireFeature(GinkgoTB(), "bridge VLAN filtering", vlanFiltering())
		}
		b.Host.Batch(GinkgoTB(), "addr add 10.8.0.1/24 dev uplink0", "link set uplink0 up")
		b.Outside.Batch(GinkgoTB(), "addr add 10.8.0.2/24 dev uplink0", "link set uplink0 up", "route add 10.9.0.0/24 via 10.8.0.1")
		nstest.ServeTCP(GinkgoTB(), b.Outside, "10.8.0.2:80")
		conf := func(keys string) string { return b.conf("1.1.0", keys+`"isGateway":true,`, v4range) }
		container := newContainer()
		reply := b.OK("ADD", b.Call("one", container, conf(keys+`"proxyArp":true,`)))
		// The container believes that the other host is on its segment.
		container.IP("route add 10.8.0.2/32 dev eth0")
		nstest.MustDial(GinkgoTB(), container, "10.8.0.2:80", "10.9.0.2")
		c := b.Call("one", container, nstest.WithPrevResult(conf(keys+`"proxyArp":true,`), reply.Stdout))
		b.OK("CHECK", c)
		b.Host.SetSysctl(GinkgoTB(), "net/ipv4/conf/"+gateway+"/proxy_arp", "0")
		b.Fails("CHECK", c, types.CodeChanged, "proxy_arp")
		b.OK("REPAIR", c)
		b.OK("CHECK", c)
	},
		Entry("the bridge", "", "cni0"),
		Entry("the interface of a VLAN", Label(nstest.Kernel), `"vlan":100,`, "cni0.100"),
	)
})
