package dhcp4

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	etherHardware = 1 // ARPHRD_ETHER
	// maxPacket is more than a server can send without fragments on Ethernet with jumbo frames.
	maxPacket = 9216
)

// listen opens a packet socket for packets of the protocol, without their link header. stop closes the socket. When ctx ends,
// a running receive ends, and the socket receives nothing more.
func (c *Client) listen(ctx context.Context, protocol int, filter []bpf.Instruction) (s *packet.Conn, stop func(), err error) {
	raw, err := bpf.Assemble(filter)
	if err != nil {
		return nil, nil, err
	}
	err = c.step("open packet socket", func() error {
		return c.NS.Do(func() error {
			s, err = packet.Listen(&net.Interface{Index: c.Link}, packet.Datagram, protocol, &packet.Config{Filter: raw})
			return err
		})
	})
	if err != nil {
		if s != nil {
			_ = s.Close()
		}
		return nil, nil, err
	}
	detach := context.AfterFunc(ctx, func() { _ = s.SetReadDeadline(time.Unix(1, 0)) })
	return s, func() { detach(); _ = s.Close() }, nil
}

// step runs f as a step. Its error matches fs.ErrNotExist if the interface does not exist.
func (c *Client) step(what string, f func() error) error {
	err := c.NS.Step(what, f)
	switch {
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return fmt.Errorf("%s: interface %d: %w", what, c.Link, fs.ErrNotExist)
	case err != nil:
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// listenUDP opens a UDP socket that is bound to the client's port of addr and to the interface. It fails if other
// addresses, but not addr, are assigned in the namespace.
func (c *Client) listenUDP(addr netip.Addr) (s *net.UDPConn, err error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			// Without these options, on an old kernel, the routes of the container decide where the packet goes, and Release
			// sends it a second time by a packet socket.
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, c.Link)
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPING,
				unix.SOF_TIMESTAMPING_TX_SCHED|unix.SOF_TIMESTAMPING_SOFTWARE|unix.SOF_TIMESTAMPING_OPT_TSONLY)
		})
	}}
	err = c.step("open UDP socket", func() error {
		return c.NS.Do(func() error {
			p, err := config.ListenPacket(context.Background(), "udp4", netip.AddrPortFrom(addr, dhcpv4.ClientPort).String())
			if err == nil {
				s = p.(*net.UDPConn)
			}
			return err
		})
	})
	return s, err
}

func (c *Client) sendPacket(s *packet.Conn, q *request) error {
	return c.step("send "+q.name(), func() error {
		_, err := s.WriteTo(newPacket(q.from, q.to, q.msg.ToBytes()), hardware(q.mac))
		return err
	})
}

// sendUDP sends q by a UDP socket. It fails if the source address is not assigned in the namespace. The message names
// its source, so that the kernel checks the address. In a namespace that never had an IPv4 address, the kernel binds to
// any address, and would otherwise send from 0.0.0.0 (__inet_dev_addr_type in net/ipv4/fib_frontend.c).
func (c *Client) sendUDP(s *net.UDPConn, q *request) error {
	source := unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: q.from.As4()})
	return c.step("send "+q.name(), func() error {
		_, _, err := s.WriteMsgUDPAddrPort(q.msg.ToBytes(), source, netip.AddrPortFrom(q.to, dhcpv4.ServerPort))
		return err
	})
}

// hardware returns the packet socket address of a hardware address.
func hardware(mac types.MAC) *packet.Addr { return &packet.Addr{HardwareAddr: mac.Bytes()} }

// awaitSent waits until the kernel has given the packet of s to the interface, or ctx ends. Until then, the packet waits for the
// hardware address of its receiver, and is lost if the interface is deleted. The kernel reports the time of the packet as an
// error of the socket.
func awaitSent(ctx context.Context, s *net.UDPConn) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = s.SetReadDeadline(time.Unix(1, 0)) })()
	report := make([]byte, 512)
	return raw.Read(func(fd uintptr) bool {
		_, _, _, _, err := unix.Recvmsg(int(fd), nil, report, unix.MSG_ERRQUEUE)
		return err != unix.EAGAIN
	})
}
