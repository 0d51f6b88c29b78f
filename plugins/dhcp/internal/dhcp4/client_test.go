package dhcp4

import (
	"bytes"
	"context"
	"io/fs"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

const (
	serverAddr = "10.8.0.1"
	clientAddr = "10.8.0.5"
	identifier = "\x00c1/net/eth0"
)

// A testbed consists of a client's namespace, container, and the namespace of a server on the same
// segment.
type testbed struct {
	server, container *nstest.NS
	client            *Client
	serverMAC         types.MAC
}

// newTestbed returns a testbed in which only the server has an address.
func newTestbed() testbed {
	nstest.LeakCheck(GinkgoTB())
	server, container := nstest.NewHostAndContainer(GinkgoTB())
	nstest.Join(GinkgoTB(), nstest.End{In: server, Name: "lan0", Addrs: []string{serverAddr + "/24"}}, nstest.End{In: container, Name: "eth0"})
	serverMAC, _ := linkOf(server, "lan0")
	mac, index := linkOf(container, "eth0")
	client := &Client{NS: container.Open(GinkgoTB(), nil), Link: index, MAC: mac, ID: []byte(identifier),
		Retry: Retry{First: 50 * time.Millisecond, Max: 200 * time.Millisecond}}
	return testbed{server: server, container: container, client: client, serverMAC: serverMAC}
}

func linkOf(n *nstest.NS, name string) (types.MAC, int) {
	c, err := nl.Open(n.Open(GinkgoTB(), nil))
	Expect(err).NotTo(HaveOccurred())
	l, err := c.Link(name)
	Expect(err).NotTo(HaveOccurred())
	return l.MAC, l.Index
}

func (b testbed) start(l nstest.DHCPLease) *nstest.DHCPServer {
	return nstest.StartDHCPServer(GinkgoTB(), nstest.End{In: b.server, Name: "lan0", Addrs: []string{serverAddr + "/24"}}, l)
}

func (b testbed) setAddress(l Lease) {
	b.container.MustLine(GinkgoTB(), "ip addr add "+l.Address.String()+" dev eth0")
}

// limit returns the context of an exchange that should succeed.
func limit() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	DeferCleanup(cancel)
	return ctx
}

func (b testbed) obtain() Lease {
	GinkgoHelper()
	offer, err := b.client.Discover(limit())
	Expect(err).NotTo(HaveOccurred())
	l, err := b.client.Accept(limit(), offer)
	Expect(err).NotTo(HaveOccurred())
	return l
}

var simple = nstest.DHCPLease{Address: clientAddr + "/24", Duration: 100 * time.Second}

var _ = Describe("an exchange", func() {
	It("obtains a lease with two messages that contain the right options", func() {
		b := newTestbed()
		s := b.start(simple)
		b.client.Options = []Option{{Code: 12, Value: []byte("host")}, {Code: 53, Value: []byte("?")}}
		l := b.obtain()
		Expect(l.Address).To(Equal(netip.MustParsePrefix(clientAddr + "/24")))
		Expect(l.Server).To(Equal(netip.MustParseAddr(serverAddr)))
		Expect(l.ServerMAC).To(Equal(b.serverMAC))
		Expect([]time.Duration{l.Duration, l.RenewAfter, l.RebindAfter}).To(Equal([]time.Duration{100 * time.Second, 50 * time.Second, 85 * time.Second}))
		discover := s.Await(GinkgoTB(), dhcpv4.MessageTypeDiscover)
		request := s.Await(GinkgoTB(), dhcpv4.MessageTypeRequest)
		for _, m := range []nstest.DHCPMessage{discover, request} {
			Expect(m.Source).To(Equal(netip.MustParseAddrPort("0.0.0.0:68")))
			Expect(m.Destination).To(Equal(netip.MustParseAddr("255.255.255.255")))
			Expect(m.Options[61]).To(Equal([]byte(identifier)))
			Expect(m.Options[12]).To(Equal([]byte("host")))
			Expect(m.Options[55]).To(Equal(DefaultRequest))
			Expect(m.IsBroadcast()).To(BeFalse())
			Expect(m.ClientIPAddr.IsUnspecified()).To(BeTrue())
		}
		Expect(request.TransactionID).To(Equal(discover.TransactionID))
		Expect(request.Options[50]).To(Equal([]byte{10, 8, 0, 5}))
		Expect(request.Options[54]).To(Equal([]byte{10, 8, 0, 1}))
		Expect(discover.Options).NotTo(Or(HaveKey(uint8(50)), HaveKey(uint8(54))))
	})

	It("requests broadcast answers and other options, and sends another identifier", func() {
		b := newTestbed()
		s := b.start(simple)
		b.client.Broadcast, b.client.Request = true, []uint8{121, 3, 6}
		b.client.Options = []Option{{Code: 61, Value: []byte("\x00other")}}
		l := b.obtain()
		Expect(b.client.Release(limit(), l)).To(Succeed())
		for _, t := range []dhcpv4.MessageType{dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest} {
			m := s.Await(GinkgoTB(), t)
			Expect(m.IsBroadcast()).To(BeTrue())
			Expect(m.Options[55]).To(Equal([]byte{121, 3, 6}))
			Expect(m.Options[61]).To(Equal([]byte("\x00other")))
		}
		m := s.Await(GinkgoTB(), dhcpv4.MessageTypeRelease)
		Expect(m.IsBroadcast()).To(BeFalse())
		Expect(m.Options[61]).To(Equal([]byte("\x00other")))
		Expect(m.Options).NotTo(HaveKey(uint8(55)))
	})

	It("sends the message again until the server answers", func() {
		b := newTestbed()
		s := b.start(simple)
		s.Next(nstest.DHCPSilence, nstest.DHCPSilence, nstest.DHCPSilence)
		offer, err := b.client.Discover(limit())
		Expect(err).NotTo(HaveOccurred())
		xids := map[dhcpv4.TransactionID]int{}
		for _, m := range s.Received() {
			xids[m.TransactionID]++
		}
		Expect(xids).To(HaveLen(1), "all transmissions have one transaction ID")
		for _, n := range xids {
			Expect(n).To(BeNumerically(">=", 4))
		}
		s.Next(nstest.DHCPSilence)
		_, err = b.client.Accept(limit(), offer)
		Expect(err).NotTo(HaveOccurred())
	})

	It("waits longer between later retransmissions", func() {
		b := newTestbed()
		s := b.start(simple)
		s.Always(nstest.DHCPSilence)
		b.client.Retry = Retry{First: 10 * time.Millisecond, Max: time.Hour}
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		_, err := b.client.Discover(ctx)
		Expect(err).To(MatchError(errNoAnswer))
		// 10 ms four times, then 20, 40, 80, 160, 320. If the time did not double, there would be
		// 50 transmissions.
		Expect(len(s.Received())).To(And(BeNumerically(">", 0), BeNumerically("<=", 10)))
	})

	It("ends at once when its context ends", func() {
		b := newTestbed()
		s := b.start(simple)
		s.Always(nstest.DHCPSilence)
		b.client.Retry = Retry{First: time.Hour, Max: time.Hour}
		l := Lease{Address: netip.MustParsePrefix(clientAddr + "/24"), Server: netip.MustParseAddr(serverAddr), ServerMAC: b.serverMAC}
		for name, exchange := range map[string]func(context.Context) error{
			"DISCOVER": func(ctx context.Context) error { _, err := b.client.Discover(ctx); return err },
			"accept":   func(ctx context.Context) error { _, err := b.client.Accept(ctx, Offer{Lease: l}); return err },
			"reboot":   func(ctx context.Context) error { _, err := b.client.Reboot(ctx, l.Address.Addr()); return err },
			"renew":    func(ctx context.Context) error { _, err := b.client.Renew(ctx, l); return err },
			"rebind":   func(ctx context.Context) error { _, err := b.client.Rebind(ctx, l); return err },
		} {
			By(name)
			kind := dhcpv4.MessageTypeRequest
			if name == "DISCOVER" {
				kind = dhcpv4.MessageTypeDiscover
			}
			var ctx context.Context
			for range 5 { // the context may end before the client waits for the answer, or later
				var cancel context.CancelFunc
				ctx, cancel = context.WithCancel(context.Background())
				done := make(chan error, 1)
				go func() { done <- exchange(ctx) }()
				s.Await(GinkgoTB(), kind)
				cancel()
				var err error
				Eventually(done).Should(Receive(&err))
				Expect(err).To(MatchError(errNoAnswer))
				Expect(err).To(MatchError(MatchRegexp(`^no usable answer to DHCP(DISCOVER|REQUEST) within [\d.]+m?s`)))
			}
			Expect(exchange(ctx)).To(MatchError(errNoAnswer), "with a context that has ended before")
		}
	})

	It("returns an error that matches fs.ErrNotExist when the interface is gone", func() {
		b := newTestbed()
		s := b.start(simple)
		s.Always(nstest.DHCPSilence)
		done := make(chan error, 1)
		go func() { _, err := b.client.Discover(limit()); done <- err }()
		s.Await(GinkgoTB(), dhcpv4.MessageTypeDiscover)
		b.container.MustLine(GinkgoTB(), "ip link del eth0")
		Eventually(done).Should(Receive(MatchError(fs.ErrNotExist)))
		l := Lease{Address: netip.MustParsePrefix(clientAddr + "/24"), Server: netip.MustParseAddr(serverAddr)}
		for _, err := range []error{
			b.client.Release(limit(), l), b.client.Decline(limit(), l), b.client.Probe(limit(), l.Address.Addr()),
			second(b.client.Renew(limit(), l)), second(b.client.Rebind(limit(), l)),
		} {
			Expect(err).To(MatchError(fs.ErrNotExist))
		}
	})

	It("continues after the interface was down for a time", func() {
		b := newTestbed()
		s := b.start(simple)
		s.Always(nstest.DHCPSilence)
		done := make(chan error, 1)
		go func() { _, err := b.client.Discover(limit()); done <- err }()
		s.Await(GinkgoTB(), dhcpv4.MessageTypeDiscover)
		b.container.MustLine(GinkgoTB(), "ip link set eth0 down")
		b.container.MustLine(GinkgoTB(), "ip link set eth0 up")
		s.Always(nil)
		Eventually(done).Should(Receive(Not(HaveOccurred())))
	})

	It("names the last problem when it ends", func() {
		b := newTestbed()
		b.container.MustLine(GinkgoTB(), "ip link set eth0 down")
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_, err := b.client.Discover(ctx)
		Expect(err).To(MatchError(And(ContainSubstring("no usable answer to DHCPDISCOVER within"), ContainSubstring("network is down"))))
	})
})

func second[T any](_ T, err error) error { return err }

var _ = Describe("a lease", func() {
	DescribeTable("is renewed by unicast from its address", func(prepare func(container *nstest.NS)) {
		b := newTestbed()
		s := b.start(simple)
		l := b.obtain()
		b.setAddress(l)
		prepare(b.container)
		s.Received()
		renewed, err := b.client.Renew(limit(), l)
		Expect(err).NotTo(HaveOccurred())
		Expect(renewed.ServerMAC).To(Equal(b.serverMAC))
		m := s.Await(GinkgoTB(), dhcpv4.MessageTypeRequest)
		Expect(m.Source).To(Equal(netip.MustParseAddrPort(clientAddr + ":68")))
		Expect(m.Destination).To(Equal(l.Server))
		Expect(m.ClientIPAddr.String()).To(Equal(clientAddr))
		Expect(m.Options).NotTo(Or(HaveKey(uint8(50)), HaveKey(uint8(54))))
		Expect(m.Options[61]).To(Equal([]byte(identifier)))
	},
		Entry("of the only interface", func(*nstest.NS) {}),
		Entry("on its interface, although the routes of the container lead to another one", func(container *nstest.NS) {
			container.Batch(GinkgoTB(), "link add eth1 up type veth peer name eth2", "link set eth2 up", "addr add 10.99.0.1/24 dev eth1", "route add "+serverAddr+" dev eth1")
		}),
		Entry("although a client of another interface uses the port", func(container *nstest.NS) { nstest.ServeUDP(GinkgoTB(), container, "0.0.0.0:68") }),
	)

	It("is not renewed when the server refuses", func() {
		b := newTestbed()
		s := b.start(simple)
		l := b.obtain()
		b.setAddress(l)
		s.Always(nstest.DHCPNAK)
		for _, err := range []error{
			second(b.client.Renew(limit(), l)), second(b.client.Rebind(limit(), l)), second(b.client.Reboot(limit(), l.Address.Addr())),
			second(b.client.Accept(limit(), Offer{Lease: l})),
		} {
			Expect(err).To(MatchError(ErrNAK))
			Expect(err).To(MatchError(`DHCPREQUEST: the server refused the request (DHCPNAK): "not in this network"`))
		}
	})

	It("is rebound by broadcast from its address, possibly to another address", func() {
		b := newTestbed()
		s := b.start(simple)
		l := b.obtain()
		b.setAddress(l)
		s.Received()
		s.Lease(nstest.DHCPLease{Address: "10.8.0.6/24"})
		rebound, err := b.client.Rebind(limit(), l)
		Expect(err).NotTo(HaveOccurred())
		Expect(rebound.Address.String()).To(Equal("10.8.0.6/24"))
		Expect(rebound.Duration).To(Equal(time.Hour))
		m := s.Await(GinkgoTB(), dhcpv4.MessageTypeRequest)
		Expect(m.Source).To(Equal(netip.MustParseAddrPort(clientAddr + ":68")))
		Expect(m.Destination.String()).To(Equal("255.255.255.255"))
		Expect(m.ClientIPAddr.String()).To(Equal(clientAddr))
		Expect(m.Options).NotTo(Or(HaveKey(uint8(50)), HaveKey(uint8(54))))
	})

	DescribeTable("is released by a message that reaches a socket of the server", func(hasAddress bool, prepare string) {
		b := newTestbed()
		if prepare != "" {
			b.container.MustLine(GinkgoTB(), prepare)
		}
		s := b.start(simple)
		l := b.obtain()
		if hasAddress {
			b.setAddress(l)
		}
		_, index := linkOf(b.server, "lan0")
		frames := capture(b.server, index)
		Expect(b.client.Release(limit(), l)).To(Succeed())
		if hasAddress {
			b.container.MustLine(GinkgoTB(), "ip addr flush dev eth0") // as DEL does next
		}
		m := s.Await(GinkgoTB(), dhcpv4.MessageTypeRelease)
		Expect(m.Source).To(Equal(netip.MustParseAddrPort(clientAddr + ":68")))
		Expect(m.Destination).To(Equal(l.Server))
		Expect(m.ClientIPAddr.String()).To(Equal(clientAddr))
		Expect(m.Options[54]).To(Equal([]byte{10, 8, 0, 1}))
		Expect(m.Options[61]).To(Equal([]byte(identifier)))
		Expect(m.Options).To(HaveLen(3))
		Eventually(frames).Should(Receive(And(WithTransform(func(frame []byte) string { return string(frame[:6]) }, Equal(string(b.serverMAC))), Satisfy(func(frame []byte) bool {
			return bytes.Equal(frame[etherLen+12:etherLen+20], []byte{10, 8, 0, 5, 10, 8, 0, 1}) && (hasAddress || validUDP(frame[etherLen:]))
		}))))
	},
		Entry("by UDP", true, ""),
		Entry("by a packet socket, when the interface no longer has the address", false, "ip link set lo up"),
		Entry("by a packet socket, when the namespace never had an address", false, ""),
	)

	It("is released by a packet socket when the server does not answer ARP requests", func() {
		b := newTestbed()
		s := b.start(simple)
		l := b.obtain()
		b.setAddress(l)
		b.server.MustLine(GinkgoTB(), "ip link set lan0 arp off")
		Expect(b.client.Release(limit(), l)).To(Succeed())
		s.Await(GinkgoTB(), dhcpv4.MessageTypeRelease)
	})

	It("is not released when it has no valid address", func() {
		b := newTestbed()
		for _, l := range []Lease{{}, {Address: netip.MustParsePrefix("fd00::1/64"), Server: netip.MustParseAddr(serverAddr)}} {
			Expect(b.client.Release(limit(), l)).To(MatchError(ContainSubstring("invalid address")))
			Expect(second(b.client.Renew(limit(), l))).To(MatchError(ContainSubstring("invalid address")))
		}
		b.client.MAC = "\x00\x01"
		Expect(second(b.client.Discover(limit()))).To(MatchError(ContainSubstring("not an Ethernet interface")))
	})
})

var _ = Describe("an answer", func() {
	It("of another exchange, client or server is ignored", func() {
		b := newTestbed()
		s := b.start(simple)
		change := nstest.DHCPChange
		ignored := []nstest.DHCPBehaviour{
			change(func(m *dhcpv4.DHCPv4) { m.TransactionID[0]++ }),
			change(func(m *dhcpv4.DHCPv4) { m.ClientHWAddr = []byte{2, 0, 0, 0, 0, 9} }),
			change(func(m *dhcpv4.DHCPv4) { m.ClientHWAddr = nil }),
			change(func(m *dhcpv4.DHCPv4) { m.OpCode = dhcpv4.OpcodeBootRequest }),
			change(func(m *dhcpv4.DHCPv4) { m.Options[53] = []byte{byte(dhcpv4.MessageTypeInform)} }),
			change(func(m *dhcpv4.DHCPv4) { m.Options[53] = []byte{2, 2} }),
			change(func(m *dhcpv4.DHCPv4) { delete(m.Options, 53) }),
			change(func(m *dhcpv4.DHCPv4) { m.Options[61] = []byte("\x00another client") }),
		}
		s.Next(append(ignored, change(func(m *dhcpv4.DHCPv4) { m.Options[53] = []byte{byte(dhcpv4.MessageTypeAck)} }))...)
		offer, err := b.client.Discover(limit())
		Expect(err).NotTo(HaveOccurred())
		Expect(len(s.Received())).To(BeNumerically(">", len(ignored)+1))
		s.Next(append(ignored,
			change(func(m *dhcpv4.DHCPv4) { m.Options[53] = []byte{byte(dhcpv4.MessageTypeOffer)} }),
			change(func(m *dhcpv4.DHCPv4) { m.Options[54] = []byte{10, 8, 0, 77} }),
			func(r nstest.DHCPMessage, m *dhcpv4.DHCPv4) [][]byte {
				m.Options[54] = []byte{10, 8, 0, 77}
				return nstest.DHCPNAK(r, m)
			})...)
		_, err = b.client.Accept(limit(), offer)
		Expect(err).NotTo(HaveOccurred())
		Expect(len(s.Received())).To(BeNumerically(">", len(ignored)+3))
	})

	It("that is short or malformed does not end the exchange", func() {
		b := newTestbed()
		s := b.start(simple)
		s.Next(nstest.DHCPSend(nil, []byte{2}, make([]byte, 239), make([]byte, 240), make([]byte, 1400)),
			func(_ nstest.DHCPMessage, m *dhcpv4.DHCPv4) [][]byte {
				whole := m.ToBytes()
				var all [][]byte
				for n := range whole {
					all = append(all, whole[:n])
				}
				return append(all, whole)
			})
		b.obtain()
	})

	It("without a usable lease is ignored, and the error names the reason", func() {
		b := newTestbed()
		s := b.start(simple)
		s.Always(nstest.DHCPChange(func(m *dhcpv4.DHCPv4) { delete(m.Options, 1) }))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { _, err := b.client.Discover(ctx); done <- err }()
		for range 3 {
			s.Await(GinkgoTB(), dhcpv4.MessageTypeDiscover)
		}
		cancel()
		var err error
		Eventually(done).Should(Receive(&err))
		Expect(err).To(MatchError(ContainSubstring("ignored DHCPOFFER from " + b.serverMAC.String() + ": it contains no subnet mask (option 1)")))
	})

	It("is received although the kernel has left the UDP checksum to the hardware", func() {
		b := newTestbed()
		b.start(simple)
		frames := capture(b.container, b.client.Link)
		b.obtain()
		Eventually(frames).Should(Receive(Satisfy(func(frame []byte) bool {
			return bytes.HasPrefix(frame[etherLen+20:], []byte{0, 67, 0, 68}) && !validUDP(frame[etherLen:])
		})))
	})
})

const etherLen = 14

// capture returns a channel of the IPv4 frames that an interface receives from now on.
func capture(n *nstest.NS, index int) <-chan []byte {
	var conn *packet.Conn
	Expect(n.Do(func() (err error) {
		conn, err = packet.Listen(&net.Interface{Index: index}, packet.Raw, unix.ETH_P_IP, nil)
		return err
	})).To(Succeed())
	frames, ended := make(chan []byte, 1000), make(chan struct{})
	go func() {
		defer close(ended)
		buf := make([]byte, 1<<16)
		for {
			n, _, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			frames <- bytes.Clone(buf[:n])
		}
	}()
	DeferCleanup(func() { _ = conn.Close(); <-ended })
	return frames
}

// validUDP reports whether the checksum of a UDP datagram is right.
func validUDP(ip []byte) bool {
	n := uint32(len(ip) - 20 + unix.IPPROTO_UDP)
	for i := 12; i+1 < len(ip); i += 2 {
		n += uint32(ip[i])<<8 + uint32(ip[i+1])
	}
	if len(ip)%2 == 1 {
		n += uint32(ip[len(ip)-1]) << 8
	}
	return n%0xffff == 0
}
