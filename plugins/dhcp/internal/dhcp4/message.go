package dhcp4

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// maxSize is the largest size of messages that the client accepts. Larger messages could be fragmented on networks whose MTU
// is a little smaller than Ethernet's.
const maxSize = 1400

// etherBroadcast is the hardware address of all hosts.
const etherBroadcast = types.MAC("\xff\xff\xff\xff\xff\xff")

// broadcastAddr is the address of all hosts of the segment.
var broadcastAddr = netip.MustParseAddr("255.255.255.255")

// A request is a message of the client, with its destination and the server that may answer it.
type request struct {
	msg    *dhcpv4.DHCPv4
	from   netip.Addr // address of the client, or zero if it has none
	to     netip.Addr
	mac    types.MAC  // destination of the frame, if the message does not go through the IP stack
	server netip.Addr // the only server that can answer; if it is zero, any server can
	err    error      // why the message cannot be sent
}

// newMessage returns a message with the options of all messages.
func (c *Client) newMessage(t dhcpv4.MessageType) *request {
	msg := &dhcpv4.DHCPv4{
		OpCode: dhcpv4.OpcodeBootRequest, HWType: etherHardware, ClientHWAddr: c.MAC.Bytes(),
		Options: dhcpv4.Options{dhcpv4.OptionDHCPMessageType.Code(): {byte(t)}},
	}
	_, _ = rand.Read(msg.TransactionID[:]) // never returns an error
	if len(c.ID) > 0 {
		msg.Options[dhcpv4.OptionClientIdentifier.Code()] = c.ID
	}
	for _, o := range c.Options {
		if o.Code == dhcpv4.OptionClientIdentifier.Code() {
			msg.Options[dhcpv4.OptionClientIdentifier.Code()] = o.Value
		}
	}
	q := &request{msg: msg, to: broadcastAddr, mac: etherBroadcast}
	if len(c.MAC) != 6 {
		q.err = fmt.Errorf("interface %d is not an Ethernet interface: its hardware address is %q", c.Link, c.MAC)
	}
	return q
}

// newRequest returns a message with the options of all messages, and the options of DISCOVER and REQUEST.
func (c *Client) newRequest(t dhcpv4.MessageType) *request {
	q := c.newMessage(t)
	q.msg.Options[dhcpv4.OptionParameterRequestList.Code()] = c.Request
	if c.Request == nil {
		q.msg.Options[dhcpv4.OptionParameterRequestList.Code()] = DefaultRequest
	}
	for _, o := range c.Options {
		if o.Code != dhcpv4.OptionDHCPMessageType.Code() {
			q.msg.Options[o.Code] = o.Value
		}
	}
	q.msg.Options[dhcpv4.OptionMaximumDHCPMessageSize.Code()] = binary.BigEndian.AppendUint16(nil, maxSize)
	if len(q.msg.Options.Get(dhcpv4.OptionParameterRequestList)) == 0 {
		delete(q.msg.Options, dhcpv4.OptionParameterRequestList.Code())
	}
	if c.Broadcast {
		q.msg.SetBroadcast()
	}
	return q
}

// set sets an option whose value is an address.
func (q *request) set(option dhcpv4.OptionCode, addr netip.Addr) {
	q.require(addr)
	q.msg.Options[option.Code()] = addr.AsSlice()
}

// setFrom sets addr as the client's address and as the source of the packet.
func (q *request) setFrom(addr netip.Addr) {
	q.require(addr)
	q.from = addr
	q.msg.ClientIPAddr = addr.AsSlice()
}

// require marks the request as invalid if addr is not the IPv4 address of a host.
func (q *request) require(addr netip.Addr) {
	if !isHost(addr) {
		q.err = fmt.Errorf("invalid address of a client or server: %s", addr)
	}
}

// sendTo addresses a message to the server of the lease.
func (q *request) sendTo(l Lease) {
	q.setFrom(l.Address.Addr())
	q.require(l.Server)
	q.to = l.Server
	if len(l.ServerMAC) == 6 {
		q.mac = l.ServerMAC
	}
}

// unicast reports whether the message goes to one server.
func (q *request) unicast() bool { return q.to != broadcastAddr }

func (q *request) name() string { return "DHCP" + q.msg.MessageType().String() }

// isAnsweredBy reports whether m is an answer to q from a server that may answer.
func (q *request) isAnsweredBy(m *dhcpv4.DHCPv4) bool {
	isRequest := q.msg.MessageType() == dhcpv4.MessageTypeRequest
	switch m.MessageType() {
	case dhcpv4.MessageTypeOffer:
		if isRequest {
			return false
		}
	case dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak:
		if !isRequest {
			return false
		}
	default:
		return false
	}
	// A server may repeat the client's identifier (RFC 6842), which distinguishes interfaces with the same MAC.
	sent, repeated := q.msg.Options.Get(dhcpv4.OptionClientIdentifier), m.Options.Get(dhcpv4.OptionClientIdentifier)
	server, _ := netip.AddrFromSlice(m.Options.Get(dhcpv4.OptionServerIdentifier))
	return m.OpCode == dhcpv4.OpcodeBootReply && m.TransactionID == q.msg.TransactionID &&
		bytes.Equal(m.ClientHWAddr, q.msg.ClientHWAddr) &&
		(len(sent) == 0 || len(repeated) == 0 || bytes.Equal(sent, repeated)) &&
		(!q.server.IsValid() || server == q.server)
}

// parse decodes a message. A server may put options into the fields for names (option overload, RFC 2132, section 9.3).
func parse(data []byte) (*dhcpv4.DHCPv4, error) {
	m, err := dhcpv4.FromBytes(data)
	if err != nil {
		return nil, err
	}
	const names, file, end = 44, 108, 236
	overload := m.Options.Get(dhcpv4.OptionOptionOverload)
	if len(overload) == 1 && overload[0]&1 != 0 {
		err = m.Options.FromBytes(data[file:end])
	}
	if len(overload) == 1 && overload[0]&2 != 0 && err == nil {
		err = m.Options.FromBytes(data[names:file])
	}
	return m, err
}
