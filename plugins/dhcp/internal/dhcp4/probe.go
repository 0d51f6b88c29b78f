package dhcp4

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"github.com/mdlayher/packet"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/sys/unix"
)

// probes is the number of probes that Probe sends (PROBE_NUM in RFC 5227, section 1.1).
const probes = 3

// probeUnit is the unit of the times between probes (RFC 5227, section 1.1).
const probeUnit = time.Second

// Probe asks the hosts of the segment, by ARP, whether one of them uses the address (RFC 5227, section 2.1.1). Without an answer,
// it takes four to seven seconds. The error matches ErrInUse if a host uses the address.
func (c *Client) Probe(ctx context.Context, addr netip.Addr) error {
	if !isHost(addr) || len(c.MAC) != 6 {
		return fmt.Errorf("probe address %s from hardware address %q: not for IPv4 on Ethernet", addr, c.MAC)
	}
	s, stop, err := c.listen(ctx, unix.ETH_P_ARP, nil)
	if err != nil {
		return err
	}
	defer stop()
	if err := c.awaitConflict(ctx, s, addr, rand.N(probeUnit)); err != nil { // PROBE_WAIT
		return err
	}
	for n := 1; n <= probes; n++ {
		err := c.step("send ARP probe", func() error {
			_, err := s.WriteTo(arpProbe(c.MAC, addr), hardware(etherBroadcast))
			return err
		})
		if err != nil {
			return err
		}
		wait := probeUnit + rand.N(probeUnit) // PROBE_MIN to PROBE_MAX
		if n == probes {
			wait = 2 * probeUnit // ANNOUNCE_WAIT
		}
		if err := c.awaitConflict(ctx, s, addr, wait); err != nil {
			return err
		}
	}
	return nil
}

// awaitConflict waits for the time wait. It returns an error if another host uses or probes the address in that time,
// or if ctx ends.
func (c *Client) awaitConflict(ctx context.Context, s *packet.Conn, addr netip.Addr, wait time.Duration) error {
	until := time.Now().Add(wait)
	buf := make([]byte, maxPacket)
	for {
		if err := s.SetReadDeadline(until); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("probe address %s: %w", addr, ctx.Err())
		}
		n, _, err := s.ReadFrom(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case err != nil:
			return fmt.Errorf("probe address %s: %w", addr, err)
		}
		if other := conflict(buf[:n], addr); other != "" && other != c.MAC {
			return fmt.Errorf("probe address %s: %w: %s", addr, ErrInUse, other)
		}
	}
}

// arpHeader begins each ARP packet for IPv4 on Ethernet, before the operation.
var arpHeader = []byte{0, etherHardware, 0x08, 0x00, 6, 4}

// arpProbe returns an ARP request without the address of the sender (RFC 5227, section 2.1.1).
func arpProbe(from types.MAC, addr netip.Addr) []byte {
	p := binary.BigEndian.AppendUint16(bytes.Clone(arpHeader), 1)
	p = append(p, from...)
	p = append(p, make([]byte, 4+6)...) // address of the sender, hardware address of the target
	return append(p, addr.AsSlice()...)
}

// conflict returns the hardware address of the host that uses or probes the address, according to an ARP packet. It returns ""
// for any other packet.
func conflict(p []byte, addr netip.Addr) types.MAC {
	source, sender := arpSender(p)
	probed := sender != "" && binary.BigEndian.Uint16(p[6:]) == 1 && source.IsUnspecified() && [4]byte(p[24:28]) == addr.As4()
	if sender != "" && source == addr || probed {
		return sender
	}
	return ""
}

// arpSender returns the sender's address and hardware address in an ARP packet. A probe has the address 0.0.0.0.
// The hardware address is empty for any other packet.
func arpSender(p []byte) (netip.Addr, types.MAC) {
	if len(p) < 28 || !bytes.HasPrefix(p, arpHeader) {
		return netip.Addr{}, ""
	}
	return netip.AddrFrom4([4]byte(p[14:18])), types.MAC(p[8:14])
}
