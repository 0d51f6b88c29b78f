package nl

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/pkg/netlink"
	"golang.org/x/sys/unix"
)

// LinkTo finds the link that packets to the address leave by. The error matches
// fs.ErrNotExist when no route leads there.
func (c *Conn) LinkTo(a netip.Addr) (Link, error) {
	header := make([]byte, unix.SizeofRtMsg)
	header[0], header[1] = family(a), byte(a.BitLen())
	body, err := linkBody(header, func(ae *netlink.Encoder) { ae.Bytes(unix.RTA_DST, a.AsSlice()) })
	step := "find route to " + a.String()
	if err != nil {
		return Link{}, wrap(step, err)
	}
	reply, err := c.get(step, unix.RTM_GETROUTE, body)
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		return Link{}, wrap(step, fs.ErrNotExist)
	}
	if err != nil {
		return Link{}, err
	}
	_, hops, err := decodeRoute(reply.Body)
	if err != nil {
		return Link{}, wrap(step, err)
	}
	return c.LinkByIndex(hops[0].link)
}

// LocalAddrs lists the addresses of the namespace that are of the family of like,
// each once.
func (c *Conn) LocalAddrs(like netip.Addr) ([]netip.Addr, error) {
	header := make([]byte, unix.SizeofIfAddrmsg)
	header[0] = family(like)
	const step = "list own addresses"
	msgs, err := c.dump(step, unix.RTM_GETADDR, header)
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, m := range msgs {
		a, _, err := decodeAddr(m.Body)
		if err != nil {
			return nil, wrap(step, err)
		}
		if ip := a.Prefix.Addr(); !slices.Contains(addrs, ip) {
			addrs = append(addrs, ip)
		}
	}
	return addrs, nil
}
