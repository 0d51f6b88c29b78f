package nl

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"
)

// Uplinks returns the links that the default routes of the namespace need, for IPv4 and for IPv6. These
// are the links of the default routes, and the links below these, such as the parent of a VLAN and the
// ports of a bridge. The default routes are the first default route of the main table, and the route that
// the policy rules select for a packet with neither a source address nor a mark. The selected route may
// be in another table, and may be one of two routes that replace the default route together, such as
// 0.0.0.0/1 and 128.0.0.0/1.
func (c *Conn) Uplinks() ([]Link, error) {
	indexes, err := c.defaultDevices()
	if err != nil {
		return nil, err
	}
	var uplinks []Link
	for ; len(indexes) > 0; indexes = indexes[1:] {
		if slices.ContainsFunc(uplinks, func(l Link) bool { return l.Index == indexes[0] }) {
			continue
		}
		l, err := c.LinkByIndex(indexes[0])
		if errors.Is(err, fs.ErrNotExist) { // deleted in the meantime
			continue
		}
		if err != nil {
			return nil, err
		}
		lowerLinks, err := c.lowerLinks(l)
		if err != nil {
			return nil, err
		}
		uplinks, indexes = append(uplinks, l), append(indexes, lowerLinks...)
	}
	return uplinks, nil
}

// defaultDevices returns the link indexes of the default routes, including all next hops.
func (c *Conn) defaultDevices() ([]int, error) {
	var indexes []int
	for _, probe := range []netip.Addr{unrouted4, unrouted6} {
		selected, main, err := c.defaultRoutes(probe)
		if err != nil {
			return nil, err
		}
		hops := nextHops(main)
		if prefix(selected.Dst).Bits() <= 1 {
			hops = append(hops, nextHops(selected)...)
		}
		for _, hop := range hops {
			indexes = append(indexes, hop.LinkIndex)
		}
	}
	return slices.DeleteFunc(indexes, func(index int) bool { return index == 0 }), nil
}

// lowerLinks returns the indexes of the links through which l sends its packets. These are the parent of
// a VLAN or macvlan, and the ports of a bridge or bond.
func (c *Conn) lowerLinks(l Link) ([]int, error) {
	if l.Kind == "" || l.Kind == "veth" { // the Peer of a veth is its other end
		return nil, nil
	}
	var indexes []int
	if l.Peer != 0 && l.PeerNS == 0 {
		indexes = append(indexes, l.Peer)
	}
	ports, err := c.Ports(l)
	for _, port := range ports {
		indexes = append(indexes, port.Index)
	}
	return indexes, err
}
