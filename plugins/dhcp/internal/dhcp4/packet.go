package dhcp4

import (
	"encoding/binary"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	ipHeader  = 20 // size of an IPv4 header without options, in bytes
	udpHeader = 8  // size of a UDP header, in bytes
)

// answerFilter accepts IPv4 packets with a UDP datagram to the client's port. They begin with the IP header. Without the
// filter, the socket would receive all packets of the container.
var answerFilter = []bpf.Instruction{
	bpf.LoadAbsolute{Off: 9, Size: 1}, // protocol
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_UDP, SkipTrue: 5},
	bpf.LoadAbsolute{Off: 6, Size: 2}, // flags and fragment offset
	bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x1fff, SkipTrue: 3},
	bpf.LoadMemShift{Off: 0}, // length of the IP header
	bpf.LoadIndirect{Off: 2, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: dhcpv4.ClientPort, SkipTrue: 1},
	bpf.RetConstant{Val: 0},
	bpf.RetConstant{Val: 1 << 16},
}

// newPacket returns an IPv4 packet with a UDP datagram from the client's port to the server's.
func newPacket(from, to netip.Addr, payload []byte) []byte {
	length := ipHeader + udpHeader + len(payload)
	p := make([]byte, ipHeader+udpHeader, length)
	put16 := binary.BigEndian.PutUint16
	p[0] = 4<<4 | ipHeader/4
	put16(p[2:], uint16(length))
	p[8] = 64 // time to live
	p[9] = unix.IPPROTO_UDP
	if from.IsValid() {
		copy(p[12:], from.AsSlice())
	}
	copy(p[16:], to.AsSlice())
	put16(p[10:], ^sum(p[:ipHeader]))
	udp := p[ipHeader:]
	put16(udp[0:], dhcpv4.ClientPort)
	put16(udp[2:], dhcpv4.ServerPort)
	put16(udp[4:], uint16(udpHeader+len(payload)))
	p = append(p, payload...)
	// The sum also covers the addresses, the protocol and the length (RFC 768). Zero would mean that there is no checksum.
	pseudo := append(p[12:ipHeader:ipHeader], 0, unix.IPPROTO_UDP, udp[4], udp[5])
	check := ^sum(append(pseudo, p[ipHeader:]...))
	if check == 0 {
		check = 0xffff
	}
	put16(p[ipHeader+6:], check)
	return p
}

// sum returns the ones' complement sum of data, in words of 16 bits (RFC 1071).
func sum(data []byte) uint16 {
	var n uint32
	for len(data) > 1 {
		n += uint32(binary.BigEndian.Uint16(data))
		data = data[2:]
	}
	if len(data) == 1 {
		n += uint32(data[0]) << 8
	}
	for n > 0xffff {
		n = n>>16 + n&0xffff
	}
	return uint16(n)
}

// payload returns the content of an IPv4 packet with a UDP datagram to the client's port, or nil for any other packet.
// It does not verify the checksums, because a sender on the same machine leaves the UDP checksum to the network card,
// and the packet may never pass through a network card.
func payload(p []byte) []byte {
	if len(p) < ipHeader || p[0]>>4 != 4 || p[9] != unix.IPPROTO_UDP {
		return nil
	}
	header, length := int(p[0]&0xf)*4, int(binary.BigEndian.Uint16(p[2:]))
	fragment := binary.BigEndian.Uint16(p[6:])&0x3fff != 0
	if header < ipHeader || length < header+udpHeader || length > len(p) || fragment {
		return nil
	}
	udp := p[header:length]
	size := int(binary.BigEndian.Uint16(udp[4:]))
	if binary.BigEndian.Uint16(udp[2:]) != dhcpv4.ClientPort || size < udpHeader || size > len(udp) {
		return nil
	}
	return udp[udpHeader:size]
}
