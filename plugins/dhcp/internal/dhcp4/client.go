// Package dhcp4 is a DHCPv4 client for one interface in one network namespace (RFC 2131). Each exchange of messages is a
// method of Client, and ends when its context ends. The package keeps no state between exchanges. The caller stores the
// Lease, and decides when to renew it.
//
// A socket is open only during an exchange, and no thread stays in the namespace. The interface must be up, and must be
// an Ethernet interface. If it does not exist, the error of an exchange matches fs.ErrNotExist.
package dhcp4

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// ErrNAK is the error for a server's refusal (DHCPNAK). The client must not use the address.
var ErrNAK = errors.New("the server refused the request (DHCPNAK)")

// ErrInUse is the error for an address that another host in the network segment uses.
var ErrInUse = errors.New("another host in the network segment uses the address")

// errNoAnswer is the error for an exchange whose context ended before a usable answer came.
var errNoAnswer = errors.New("no usable answer")

// DefaultRequest lists the options that a Client requests if its Request is nil. Classless routes come before static routes
// and routers, as RFC 3442 demands.
var DefaultRequest = []uint8{
	dhcpv4.OptionSubnetMask.Code(), dhcpv4.OptionClasslessStaticRoute.Code(), dhcpv4.OptionStaticRoutingTable.Code(),
	dhcpv4.OptionRouter.Code(), dhcpv4.OptionDomainNameServer.Code(), dhcpv4.OptionDomainName.Code(),
	dhcpv4.OptionDNSDomainSearchList.Code(), dhcpv4.OptionInterfaceMTU.Code(), dhcpv4.OptionIPAddressLeaseTime.Code(),
	dhcpv4.OptionRenewTimeValue.Code(), dhcpv4.OptionRebindingTimeValue.Code(),
}

// A Client exchanges DHCPv4 messages for one interface. Its methods do not change it and may be called concurrently. If
// the context of an exchange ends before a usable answer comes, the exchange returns an error.
type Client struct {
	NS        *ns.Handle
	Link      int       // index of the interface in NS
	MAC       types.MAC // hardware address of the interface
	ID        []byte    // client identifier, which is the content of option 61; if it is empty, the client sends none
	Options   []Option  // further options of DISCOVER and REQUEST; an option 61 replaces ID in all messages
	Request   []uint8   // options to request (option 55), in order; if it is nil, the client requests DefaultRequest
	Broadcast bool      // asks servers to broadcast their answers, for an interface that shares its MAC (ipvlan)
	Retry     Retry
}

// An Option is a DHCP option. A value of more than 255 bytes is sent in parts (RFC 3396).
type Option struct {
	Code  uint8  `json:"code"`
	Value []byte `json:"value"`
}

// Retry contains the times of retransmissions. A zero time means the default.
type Retry struct {
	// First is the time before each of the first four retransmissions. Before each later one, the time doubles. Each
	// time varies at random by an eighth. The default is 2 s.
	First time.Duration
	// Max is the longest time between retransmissions. The default is 64 s. Renew and Rebind may wait longer, for half
	// of the time until the deadline of their context (RFC 2131, section 4.4.5).
	Max time.Duration
}

// An Offer is a server's answer to DISCOVER. It contains the lease that the server would acknowledge.
type Offer struct {
	Lease
	// REQUEST repeats the transaction ID and the seconds of DISCOVER (RFC 2131, section 3.1.3). They are zero in an Offer that
	// Discover has not returned.
	xid  dhcpv4.TransactionID
	secs uint16
}

// Discover sends DISCOVER until a server offers an address.
func (c *Client) Discover(ctx context.Context) (Offer, error) {
	q := c.newRequest(dhcpv4.MessageTypeDiscover)
	l, err := c.ask(ctx, q)
	return Offer{Lease: l, xid: q.msg.TransactionID, secs: q.msg.NumSeconds}, err
}

// Accept requests the offered address until the server acknowledges it. The error matches ErrNAK if the server refuses.
// If the server repeatedly does not answer, the caller should discover again, because servers keep an offer for a short
// time only.
func (c *Client) Accept(ctx context.Context, o Offer) (Lease, error) {
	q := c.newRequest(dhcpv4.MessageTypeRequest)
	if o.xid != (dhcpv4.TransactionID{}) {
		q.msg.TransactionID, q.msg.NumSeconds = o.xid, o.secs
	}
	q.server = o.Server
	q.set(dhcpv4.OptionRequestedIPAddress, o.Address.Addr())
	q.set(dhcpv4.OptionServerIdentifier, o.Server)
	return c.ask(ctx, q)
}

// Reboot asks for an address that the client had before (INIT-REBOOT) until a server
// acknowledges it. The error matches ErrNAK if a server refuses.
func (c *Client) Reboot(ctx context.Context, addr netip.Addr) (Lease, error) {
	q := c.newRequest(dhcpv4.MessageTypeRequest)
	q.set(dhcpv4.OptionRequestedIPAddress, addr)
	return c.ask(ctx, q)
}

// Renew asks the server of the lease, by unicast, to extend the lease. The error matches ErrNAK
// if the server refuses.
func (c *Client) Renew(ctx context.Context, l Lease) (Lease, error) {
	q := c.newRequest(dhcpv4.MessageTypeRequest)
	q.sendTo(l)
	return c.ask(ctx, q)
}

// Rebind asks any server, by broadcast, to extend the lease. The error matches ErrNAK if a
// server refuses.
func (c *Client) Rebind(ctx context.Context, l Lease) (Lease, error) {
	q := c.newRequest(dhcpv4.MessageTypeRequest)
	q.setFrom(l.Address.Addr())
	return c.ask(ctx, q)
}

// Release returns the address to the server. It sends RELEASE, which the server does not answer, and returns when the
// message has left the interface. The message passes through the IP stack or, if the address is no longer assigned to
// the interface, goes directly to the hardware address from which the lease came.
func (c *Client) Release(ctx context.Context, l Lease) error {
	q := c.newMessage(dhcpv4.MessageTypeRelease)
	q.sendTo(l)
	q.set(dhcpv4.OptionServerIdentifier, l.Server)
	return c.tell(ctx, q)
}

// Decline tells the server, which does not answer, that another host uses the leased address.
func (c *Client) Decline(ctx context.Context, l Lease) error {
	q := c.newMessage(dhcpv4.MessageTypeDecline)
	q.set(dhcpv4.OptionRequestedIPAddress, l.Address.Addr())
	q.set(dhcpv4.OptionServerIdentifier, l.Server)
	return c.tell(ctx, q)
}
