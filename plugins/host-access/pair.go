package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// The kernel passes no packets between a master and the interfaces on it, and a moved device is not connected to the host.
// The host and the container therefore reach each other through a veth pair beside the container's interface:
//
//   - Each end has routes to addresses of the other namespace. The routes are in a separate table, which rules select for
//     packets that the namespace itself sends (iif lo). Forwarded packets therefore never use the pair, and the rules of sbr
//     do not hide the routes. The kernel looks up the source of a received packet with iif lo as well, so that rp_filter
//     accepts the packets of the pair.
//   - If a container has several pairs, each address uses its own pair, by a rule with a higher precedence. Addresses of
//     other interfaces use the first pair, because their packets to the host could be lost on the interface on the master.
//   - The routes use a gateway whose permanent neighbor entry contains the other end's MAC, so that neither end resolves
//     neighbors. The gateway's address is assigned to no interface.
//   - The host drops other packets from the host end (see filterLayout).
const (
	accessPriority = 300   // of all rules, before the main table and after the local table, which Cilium moves to 100
	hostTable      = 11300 // the routing table of the host with the routes to the containers
)

// gateways contains the gateway of each family.
var gateways = map[bool]netip.Addr{false: netip.MustParseAddr("169.254.113.1"), true: netip.MustParseAddr("fe80::1")}

// A family contains the addresses of one IP version that reach each other.
type family struct {
	is6  bool
	host []netip.Addr // what the container reaches; the first one is the source address of the host
	ips  []netip.Addr // addresses of the container
}

// A pair contains what the state of both ends depends on.
type pair struct {
	conf            *config
	owner           types.Attachment
	host, container *nl.Conn
	local           []netip.Addr // all addresses of the host
	eth             nl.Link      // the container's interface, beside which the pair is
	hostEnd, link   nl.Link      // the host end and the container end
	families        []family
}

// open connects to both namespaces, reads the addresses of the host, and finds the container's interface.
func open(r *skel.Request, conf *config) (*pair, error) {
	host, container, err := nl.OpenBoth(r.HostNS, r.ContainerNS)
	if err != nil {
		return nil, err
	}
	p := &pair{conf: conf, owner: r.Attachment(), host: host, container: container}
	if p.local, err = host.LocalAddrs(netip.Addr{}); err == nil {
		err = conf.requireLocal(p.local)
	}
	if err != nil {
		return nil, err
	}
	if p.eth, err = container.Link(r.IfName); errors.Is(err, fs.ErrNotExist) {
		return nil, types.MissingLink(r.IfName).Errorf("the container has no interface %s; list host-access after the plugin that creates it", r.IfName)
	}
	if err != nil {
		return nil, err
	}
	return p, attach.RequireOwnLink(r, container, p.eth)
}

// ips returns the addresses of the container's interface. It omits addresses of router advertisements, which come and go, and
// the kernel's link-local addresses.
func (p *pair) ips() (ips []netip.Addr, err error) {
	addrs, err := p.container.Addrs(p.eth)
	for _, a := range addrs {
		if ip := a.Prefix.Addr(); a.Permanent && !a.Duplicate && !ip.IsLinkLocalUnicast() && !slices.Contains(ips, ip) {
			ips = append(ips, ip)
		}
	}
	return ips, err
}

// setFamilies sets the families in which both the host and the container have addresses. It returns an error with
// types.CodeConfig if there are none.
func (p *pair) setFamilies(ips []netip.Addr) error {
	for _, ip := range ips {
		if slices.Contains(p.local, ip) {
			return types.Errorf(types.CodeConfig, "%s, the container's address, is also an address of the host; use another address", ip)
		}
	}
	addrs := p.conf.addrs
	if addrs == nil {
		var err error
		if addrs, err = p.parentAddrs(); err != nil {
			return err
		}
	}
	for _, is6 := range []bool{false, true} {
		others := func(a netip.Addr) bool { return a.Is6() != is6 }
		f := family{is6, slices.DeleteFunc(slices.Clone(addrs), others), slices.DeleteFunc(slices.Clone(ips), others)}
		if len(f.host) > 0 && len(f.ips) > 0 {
			p.families = append(p.families, f)
		}
	}
	switch {
	case len(p.families) > 0:
		return nil
	case len(ips) == 0:
		return types.Errorf(types.CodeConfig, "interface %s has no permanent address; list host-access after the plugin that assigns addresses", p.eth.Name)
	}
	return types.Errorf(types.CodeConfig, "no address of the host in %s has the family of an address of the container; list such an address in hostAddresses", addrs)
}

// parentAddrs returns the addresses of the parent of the container's interface that other hosts can use for some time.
func (p *pair) parentAddrs() (out []netip.Addr, err error) {
	parent, err := p.container.Parent(p.eth, p.host)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, types.Errorf(types.CodeConfig, "interface %s is not on an interface of the host, whose addresses would be the default; set hostAddresses", p.eth.Name)
	}
	if err != nil {
		return nil, err
	}
	addrs, err := p.host.Addrs(parent)
	for _, a := range addrs {
		// An interface can have one address with several prefix lengths.
		if ip := a.Prefix.Addr(); !ip.IsLinkLocalUnicast() && !a.Tentative && !a.Duplicate && !a.Temporary && !slices.Contains(out, ip) {
			out = append(out, ip)
		}
	}
	return out, err
}

// containerTable returns the number of the attachment's routing table in the container.
func containerTable(owner types.Attachment) int {
	sum := types.Hash(owner.String())
	return int(binary.BigEndian.Uint32(sum[16:])>>2 | 1<<30)
}

// ends returns the wanted state of the host end and of the container end.
func (p *pair) ends() (host, container end) {
	host = end{conn: p.host, link: p.hostEnd, table: hostTable, shared: true, neighbors: map[netip.Addr]types.MAC{}}
	container = end{conn: p.container, link: p.link, table: containerTable(p.owner), neighbors: map[netip.Addr]types.MAC{}}
	for _, f := range p.families {
		gw := gateways[f.is6]
		host.neighbors[gw], container.neighbors[gw] = p.link.MAC, p.hostEnd.MAC
		for _, ip := range f.ips {
			host.addRoute(ip, gw, f.host[0])
			container.rules = append(container.rules, nl.InputRule{Interface: "lo", Source: ip, IPv6: f.is6, Table: container.table, Priority: accessPriority})
		}
		for _, a := range f.host {
			container.addRoute(a, gw, f.ips[0])
		}
		host.rules = append(host.rules, nl.InputRule{Interface: "lo", IPv6: f.is6, Table: hostTable, Priority: accessPriority})
		container.rules = append(container.rules, nl.InputRule{Interface: "lo", IPv6: f.is6, Table: container.table, Priority: accessPriority + 1})
	}
	return host, container
}

// find returns the existing pair as CHECK and REPAIR expect it, and the addresses of the interface that it does not connect.
// The pair connects the addresses that prevResult contains or that it has connected before, and with all, every address of
// the interface. Otherwise, a container could take packets of the host by adding an address to the interface.
func find(r *skel.Request, conf *config, all bool) (p *pair, others []netip.Addr, err error) {
	prev, err := r.RequirePrev()
	if err != nil {
		return nil, nil, err
	}
	if p, err = open(r, conf); err != nil {
		return nil, nil, err
	}
	if p.link, err = p.container.RequireLink(attach.AccessName(r.IfName)); err != nil {
		return nil, nil, err
	}
	if p.hostEnd, err = attach.AccessHostEnd(p.host, p.owner, nil); err != nil {
		return nil, nil, err
	}
	if p.link.Peer != p.hostEnd.Index {
		return nil, nil, fmt.Errorf("interface %s of the container is not the other end of %s", p.link.Name, p.hostEnd.Name)
	}
	ips, err := p.ips()
	routes, routesErr := p.host.Routes(p.hostEnd)
	if err := errors.Join(err, routesErr); err != nil {
		return nil, nil, err
	}
	isKnown := func(ip netip.Addr) bool {
		return slices.ContainsFunc(attach.IPsOf(prev, r.IfName), func(i types.IP) bool { return i.Address.Addr() == ip }) ||
			slices.ContainsFunc(routes, func(route nl.Route) bool { return route.Table == hostTable && route.Dst.Addr() == ip })
	}
	var known []netip.Addr
	for _, ip := range ips {
		if all || isKnown(ip) {
			known = append(known, ip)
		} else {
			others = append(others, ip)
		}
	}
	if len(known) == 0 && len(others) > 0 {
		return p, others, nil
	}
	return p, others, p.setFamilies(known)
}
