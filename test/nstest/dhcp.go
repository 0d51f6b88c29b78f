package nstest

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"
)

// A DHCPLease contains what a DHCPServer assigns to its clients. The server does not send times that
// are zero. Options contains further options, which replace the options that the other fields set.
type DHCPLease struct {
	Address                 string // with a prefix length, for example "10.0.0.5/24"
	Duration, Renew, Rebind time.Duration
	Options                 map[uint8][]byte
}

// A DHCPMessage is a message that a DHCPServer has received.
type DHCPMessage struct {
	*dhcpv4.DHCPv4
	Source      netip.AddrPort
	Destination netip.Addr // the destination of the packet, which is the server's address or 255.255.255.255
}

// A DHCPBehaviour returns the datagrams that a DHCPServer sends to a client, instead of its usual
// answer. It may change answer.
type DHCPBehaviour func(request DHCPMessage, answer *dhcpv4.DHCPv4) [][]byte

// DHCPSilence is the behaviour of a server that does not answer.
func DHCPSilence(DHCPMessage, *dhcpv4.DHCPv4) [][]byte { return nil }

// DHCPNAK is the behaviour of a server that rejects a REQUEST, and ignores other messages.
func DHCPNAK(request DHCPMessage, answer *dhcpv4.DHCPv4) [][]byte {
	if request.MessageType() != dhcpv4.MessageTypeRequest {
		return nil
	}
	server := answer.Options[dhcpv4.OptionServerIdentifier.Code()]
	answer.YourIPAddr = nil
	answer.Options = dhcpv4.Options{dhcpv4.OptionServerIdentifier.Code(): server}
	answer.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeNak))
	answer.UpdateOption(dhcpv4.OptMessage("not in this network"))
	return [][]byte{answer.ToBytes()}
}

// DHCPSend returns the behaviour of a server that sends these datagrams, and then its answer.
func DHCPSend(datagrams ...[]byte) DHCPBehaviour {
	return func(_ DHCPMessage, answer *dhcpv4.DHCPv4) [][]byte { return append(datagrams, answer.ToBytes()) }
}

// DHCPChange returns the behaviour of a server that changes its answers.
func DHCPChange(change func(answer *dhcpv4.DHCPv4)) DHCPBehaviour {
	return func(_ DHCPMessage, answer *dhcpv4.DHCPv4) [][]byte {
		change(answer)
		return [][]byte{answer.ToBytes()}
	}
}

// A DHCPServer is a DHCP server for one interface. Unless Next or Always sets another behaviour, it
// answers every DISCOVER and REQUEST with the same lease. It keeps no record of leases. It sends its
// answers through the IP stack to the address in the client's message, or to all hosts.
type DHCPServer struct {
	address  netip.Addr
	conn     *net.UDPConn
	received chan DHCPMessage

	mu     sync.Mutex
	lease  DHCPLease
	next   []DHCPBehaviour
	always DHCPBehaviour
}

// StartDHCPServer starts a DHCP server on an interface, whose first address becomes the server's
// address. The server ends with the test.
func StartDHCPServer(tb TB, e End, lease DHCPLease) *DHCPServer {
	tb.Helper()
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		control := func(fd uintptr) {
			err = errors.Join(unix.BindToDevice(int(fd), e.Name), unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1))
		}
		return errors.Join(raw.Control(control), err)
	}}
	s := &DHCPServer{address: netip.MustParsePrefix(e.Addrs[0]).Addr(), lease: lease, received: make(chan DHCPMessage, 1<<12)}
	Must(tb, e.In.Do(func() error {
		conn, err := config.ListenPacket(context.Background(), "udp4", ":67")
		if err == nil {
			s.conn = conn.(*net.UDPConn)
		}
		return err
	}))
	var serving sync.WaitGroup
	serving.Go(s.serve)
	tb.Cleanup(func() { _ = s.conn.Close(); serving.Wait() })
	return s
}

// Lease replaces the lease that the server assigns.
func (s *DHCPServer) Lease(l DHCPLease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lease = l
}

// Next sets one behaviour for each of the next messages that need an answer. Later messages get the
// previous behaviour.
func (s *DHCPServer) Next(behaviours ...DHCPBehaviour) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = behaviours
}

// Always sets the behaviour for all messages after Next's messages. If it is nil, the server
// answers.
func (s *DHCPServer) Always(b DHCPBehaviour) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.always = b
}

// Await waits for a message of this type, and returns it. It returns each message once, and drops
// earlier messages of other types.
func (s *DHCPServer) Await(tb TB, t dhcpv4.MessageType) DHCPMessage {
	tb.Helper()
	limit := time.After(waitLimit)
	for {
		select {
		case m := <-s.received:
			if m.MessageType() == t {
				return m
			}
		case <-limit:
			tb.Fatalf("the DHCP server got no %s within %s", t, waitLimit)
		}
	}
}

// Received returns the messages that Await has not returned or dropped.
func (s *DHCPServer) Received() []DHCPMessage {
	var all []DHCPMessage
	for {
		select {
		case m := <-s.received:
			all = append(all, m)
		default:
			return all
		}
	}
}

func (s *DHCPServer) serve() {
	buf, control := make([]byte, 1<<16), make([]byte, 64)
	for {
		n, oob, _, from, err := s.conn.ReadMsgUDPAddrPort(buf, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		m, parseErr := dhcpv4.FromBytes(buf[:n])
		if err != nil || parseErr != nil {
			continue
		}
		request := DHCPMessage{DHCPv4: m, Source: from, Destination: destination(control[:oob])}
		datagrams := s.answer(request)
		s.received <- request
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), 68)
		if client, ok := netip.AddrFromSlice(m.ClientIPAddr.To4()); ok && !client.IsUnspecified() {
			to = netip.AddrPortFrom(client, 68)
		}
		for _, d := range datagrams {
			sendTo := to
			if a, err := dhcpv4.FromBytes(d); err == nil && a.MessageType() == dhcpv4.MessageTypeNak {
				sendTo = netip.AddrPortFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), 68) // RFC 2131, section 4.1
			}
			_, _ = s.conn.WriteToUDPAddrPort(d, sendTo)
		}
	}
}

// destination returns the destination address of a packet from its control message (IP_PKTINFO).
func destination(control []byte) netip.Addr {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(messages) == 0 || len(messages[0].Data) < unix.SizeofInet4Pktinfo {
		return netip.Addr{}
	}
	addr, _ := netip.AddrFromSlice(messages[0].Data[8:12]) // ipi_addr
	return addr
}

// answer returns the datagrams for a message.
func (s *DHCPServer) answer(m DHCPMessage) [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	var t dhcpv4.MessageType
	switch m.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		t = dhcpv4.MessageTypeOffer
	case dhcpv4.MessageTypeRequest:
		t = dhcpv4.MessageTypeAck
	default:
		return nil
	}
	answer, err := s.lease.message(m, t, s.address)
	if err != nil {
		return nil
	}
	behaviour := s.always
	if len(s.next) > 0 {
		behaviour, s.next = s.next[0], s.next[1:]
	}
	if behaviour == nil {
		return [][]byte{answer.ToBytes()}
	}
	return behaviour(m, answer)
}

func (l DHCPLease) message(request DHCPMessage, t dhcpv4.MessageType, server netip.Addr) (*dhcpv4.DHCPv4, error) {
	p := netip.MustParsePrefix(l.Address)
	m, err := dhcpv4.NewReplyFromRequest(request.DHCPv4, dhcpv4.WithMessageType(t),
		dhcpv4.WithYourIP(p.Addr().AsSlice()), dhcpv4.WithNetmask(net.CIDRMask(p.Bits(), 32)))
	if err != nil {
		return nil, err
	}
	m.Options[dhcpv4.OptionServerIdentifier.Code()] = server.AsSlice()
	for option, d := range map[dhcpv4.OptionCode]time.Duration{
		dhcpv4.OptionIPAddressLeaseTime: l.Duration, dhcpv4.OptionRenewTimeValue: l.Renew, dhcpv4.OptionRebindingTimeValue: l.Rebind,
	} {
		if d != 0 {
			m.Options[option.Code()] = binary.BigEndian.AppendUint32(nil, uint32(d/time.Second))
		}
	}
	for option, value := range l.Options {
		m.Options[option] = value
	}
	return m, nil
}
