package main

import (
	"net/netip"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// kernelDeadline limits how long ADD waits for an event of the kernel.
const kernelDeadline = 10 * time.Second

// addNeighbors waits until both ends are running and receive packets for their addresses, and adds a neighbor
// entry for the other end to each, because the first packet should need no neighbor solicitation. The host
// end would send the solicitation from its link-local address, which the kernel adds later.
func (a *attachment) addNeighbors(ips []types.IP) error {
	host, container := end{c: a.host, link: a.hostEnd}, end{c: a.container, link: a.eth}
	for _, ip := range ips {
		host.addrs, container.addrs = append(host.addrs, ip.Gateway), append(container.addrs, ip.Address.Addr())
	}
	if err := host.addNeighbor(container); err != nil {
		return err
	}
	return container.addNeighbor(host)
}

// An end is one end of the pair, with its addresses.
type end struct {
	c     *nl.Conn
	link  nl.Link
	addrs []netip.Addr
}

// addNeighbor waits until e receives packets, and adds neighbor entries for the other end's addresses to it.
func (e end) addNeighbor(other end) error {
	if err := e.c.AwaitRunning(e.link, kernelDeadline); err != nil {
		return err
	}
	if err := e.c.AwaitDelivery(e.link, e.addrs, kernelDeadline); err != nil {
		return err
	}
	for _, addr := range other.addrs {
		if err := e.c.AddNeighbor(e.link, addr, other.link.MAC); err != nil {
			return err
		}
	}
	return nil
}
