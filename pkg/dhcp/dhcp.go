// Package dhcp is a DHCPv4 client for one interface in one network namespace (RFC 2131). Each
// exchange of messages is a method of Client, which ends with its context. The package keeps no
// state between exchanges: the caller keeps the Lease, and decides when to renew it.
//
// A socket is open only during an exchange, and no thread stays in the namespace. The interface
// must be up, and Renew and Release by UDP need the address of the lease on it.
package dhcp

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
)

// ErrNAK is the error for a server's refusal (DHCPNAK). The client must not use the address.
var ErrNAK = errors.New("the DHCP server refused the request (DHCPNAK)")

// ErrInUse is the error for an address that another host in the network segment uses.
var ErrInUse = errors.New("the address is in use on the segment")

// ErrNoAnswer is the error for an exchange whose context ended before a usable answer came.
var ErrNoAnswer = errors.New("no usable answer")

// A Client exchanges DHCPv4 messages for one interface. Its methods do not change it, so that
// they may be called concurrently.
type Client struct {
	NS        *ns.Handle
	Link      int       // index of the interface in NS
	MAC       types.MAC // hardware address of the interface
	ID        []byte    // client identifier: the content of option 61; empty: not sent
	Options   []Option  // further options of DISCOVER and REQUEST; an option 61 replaces ID in all messages
	Request   []uint8   // options to ask for (option 55), in order; an option 55 in Options replaces them
	Broadcast bool      // asks servers to broadcast their answers, as an interface needs that shares its MAC (ipvlan)
	Retry     Retry
}

// An Option is a DHCP option. Value has any length: what is longer than 255 bytes is sent in
// parts (RFC 3396).
type Option struct {
	Code  uint8  `json:"code"`
	Value []byte `json:"value"`
}

// Retry has the times between retransmissions. A time that is zero is the default.
type Retry struct {
	First time.Duration // until the first retransmission; the time doubles with each one; default 2 s
	Max   time.Duration // the longest time; default 64 s
}

// An Offer is a server's answer to DISCOVER. Its Lease is what the server would acknowledge.
type Offer struct {
	Lease
	xid [4]byte // REQUEST has the transaction ID of the offer
}

// Discover sends DISCOVER until a server offers an address.
func (c *Client) Discover(ctx context.Context) (Offer, error) {
	return Offer{}, errors.ErrUnsupported
}

// Accept requests the offered address until the server acknowledges it. The error matches
// ErrNAK if the server refuses.
func (c *Client) Accept(ctx context.Context, o Offer) (Lease, error) {
	return Lease{}, errors.ErrUnsupported
}

// Reboot asks for an address that the client had before (INIT-REBOOT) until a server
// acknowledges it. The error matches ErrNAK if a server refuses.
func (c *Client) Reboot(ctx context.Context, addr netip.Addr) (Lease, error) {
	return Lease{}, errors.ErrUnsupported
}

// Renew asks the server of the lease, by unicast, to extend the lease. The interface must have
// the address. The error matches ErrNAK if the server refuses.
func (c *Client) Renew(ctx context.Context, l Lease) (Lease, error) {
	return Lease{}, errors.ErrUnsupported
}

// Rebind asks any server, by broadcast, to extend the lease. The error matches ErrNAK if a
// server refuses.
func (c *Client) Rebind(ctx context.Context, l Lease) (Lease, error) {
	return Lease{}, errors.ErrUnsupported
}

// Release gives the address back. It sends one message to the server, by UDP if the interface
// has the address, and else by a raw socket. A server does not answer it.
func (c *Client) Release(ctx context.Context, l Lease) error { return errors.ErrUnsupported }

// Decline tells the servers that another host uses the address. It sends one message, by
// broadcast. A server does not answer it.
func (c *Client) Decline(ctx context.Context, l Lease) error { return errors.ErrUnsupported }

// Probe asks the hosts of the segment, by ARP, whether one of them uses the address (RFC 5227,
// section 2.1.1). It takes four to seven seconds if nobody answers. The error matches ErrInUse
// if a host uses the address.
func (c *Client) Probe(ctx context.Context, addr netip.Addr) error { return errors.ErrUnsupported }
