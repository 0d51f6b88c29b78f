package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/schema"
	"github.com/plumb-cni/plumb/pkg/pool"
	"github.com/plumb-cni/plumb/pkg/types"
)

// A span is a range of addresses of an IPAM configuration.
type span struct {
	file    *file
	plugin  plugin
	value   *schema.Value // the object with the key subnet
	subnet  netip.Prefix
	first   netip.Addr
	last    netip.Addr
	gateway netip.Addr // invalid: the configuration has none, and the plugin uses its default
}

// findValues finds names of bridges and ranges of addresses that are not possible.
func (e *examination) findValues(f *file) (found []Finding) {
	add := func(v *schema.Value, format string, args ...any) {
		e.broken[f] = true
		found = append(found, Finding{Where: f.at(v), What: v.Path + ": " + fmt.Sprintf(format, args...),
			Mend: fmt.Sprintf("%scorrect the value in line %d of %s", edit, v.Line, f.path)})
	}
	for _, p := range f.plugins {
		if bridge := p.Get("bridge"); p.typ == "bridge" && bridge.Text() != "" {
			if err := types.CheckIfName(bridge.Text()); err != nil {
				add(bridge, "%q: %v", bridge.Text(), err)
			}
		}
		for _, o := range p.ranges() {
			if subnet := o.Get("subnet"); subnet.Text() != "" {
				if _, err := types.ParseCIDR(subnet.Text()); err != nil {
					add(subnet, "%v", err)
				}
			}
			end := o.Get("rangeEnd")
			first, err := types.ParseAddr(o.Get("rangeStart").Text())
			last, endErr := types.ParseAddr(end.Text())
			if err == nil && endErr == nil && last.Less(first) {
				add(end, "%s is before rangeStart %s", last, first)
			}
		}
	}
	return found
}

// ranges returns the objects with the key subnet, if the IPAM plugin is host-local or cluster-local.
func (p plugin) ranges() []*schema.Value {
	if typ := p.ipam.Get("type").Text(); typ != "host-local" && typ != "cluster-local" {
		return nil
	}
	objects := []*schema.Value{p.ipam}
	for _, set := range p.ipam.Get("ranges").Items() {
		objects = append(objects, set.Items()...)
	}
	return objects
}

// spans returns the ranges of the plugins host-local and cluster-local in a file.
func (f *file) spans() (all []span) {
	for _, p := range f.plugins {
		for _, o := range p.ranges() {
			if s, ok := newSpan(o); ok {
				s.file, s.plugin = f, p
				all = append(all, s)
			}
		}
	}
	return all
}

// newSpan returns the range of an object, or false if its subnet is not valid. It uses the default for any other invalid
// address: the check "status" reports such an address.
func newSpan(o *schema.Value) (span, bool) {
	subnet, err := types.ParseCIDR(o.Get("subnet").Text())
	if err != nil {
		return span{}, false
	}
	s := span{value: o, subnet: subnet.Masked(), first: subnet.Masked().Addr().Next(), last: pool.RangeOf(subnet).Last}
	if a, err := types.ParseAddr(o.Get("rangeStart").Text()); err == nil {
		s.first = a
	}
	if a, err := types.ParseAddr(o.Get("rangeEnd").Text()); err == nil {
		s.last = a
	}
	if a, err := types.ParseAddr(o.Get("gateway").Text()); err == nil {
		s.gateway = a
	}
	return s, true
}

// overlaps reports whether the ranges have an address in common.
func (s span) overlaps(o span) bool {
	return s.first.Is4() == o.first.Is4() && s.first.Compare(o.last) <= 0 && o.first.Compare(s.last) <= 0
}

func (s span) String() string { return s.first.String() + " to " + s.last.String() }

// findRanges finds gateways that conflict with the addresses that a range gives away.
func findRanges(e *examination) (found []Finding) {
	for _, f := range e.good() {
		for _, s := range f.spans() {
			found = append(found, s.check()...)
		}
	}
	return found
}

// check finds what is wrong with the gateway of a range.
func (s span) check() (found []Finding) {
	gateway := s.value.Get("gateway")
	if !s.gateway.IsValid() {
		return nil
	}
	add := func(v *schema.Value, mend, format string, args ...any) {
		found = append(found, Finding{Where: s.file.at(v), What: v.Path + ": " + fmt.Sprintf(format, args...), Mend: mend})
	}
	start := s.value.Get("rangeStart")
	switch {
	case start.Text() != "" && s.first == s.gateway:
		add(start, s.file.replace(start.Line, start.Key, fmt.Sprintf("%q", start.Text()), fmt.Sprintf("%q", s.first.Next())),
			"%s is the gateway, which no container gets", s.first)
	case s.gateway == s.subnet.Addr() && s.subnet.Bits() < s.gateway.BitLen()-1:
		add(gateway, s.file.replace(gateway.Line, gateway.Key, fmt.Sprintf("%q", gateway.Text()), fmt.Sprintf("%q", s.gateway.Next())),
			"%s is the address of the network %s itself", s.gateway, s.subnet)
	}
	for _, item := range s.plugin.ipam.Get("exclude").Items() {
		if excludes(item.Text(), s.gateway) {
			add(item, fmt.Sprintf("%sdelete %q from exclude in line %d of %s, or choose another gateway", edit, item.Text(), item.Line, s.file.path),
				"%s has the gateway %s, which no container gets anyway: one of the two is probably wrong", item.Text(), s.gateway)
		}
	}
	return found
}

// excludes reports whether an item of exclude, an address or a prefix, has the address.
func excludes(item string, a netip.Addr) bool {
	if p, err := types.ParseCIDR(item); err == nil {
		return p.Contains(a)
	}
	one, err := types.ParseAddr(item)
	return err == nil && one == a
}

// findOverlaps finds networks that give away the same addresses, if the node routes to both or both are on one wire.
func findOverlaps(e *examination) (found []Finding) {
	var all []span
	for _, f := range e.good() {
		for _, s := range f.spans() {
			i := slices.IndexFunc(all, func(o span) bool {
				return o.file != f && s.overlaps(o) && (s.plugin.isRouted() && o.plugin.isRouted() || s.plugin.wire() == o.plugin.wire())
			})
			if i >= 0 {
				o := all[i]
				found = append(found, Finding{
					Where: f.at(s.value.Get("subnet")),
					What: fmt.Sprintf("the range %s of the network %q overlaps with %s of %q (%s): two containers can get the same address",
						s, f.name(), o, o.file.name(), o.file.path),
					Mend: edit + "give one of the networks another range",
				})
			}
			all = append(all, s)
		}
	}
	return found
}

// isRouted reports whether the node routes to the containers of a plugin.
func (p plugin) isRouted() bool {
	return p.typ == "ptp" || p.typ == "bridge" && (p.Get("isGateway").Bool() || p.Get("isDefaultGateway").Bool())
}

// wire returns a text that plugins have in common if their containers are on one wire.
func (p plugin) wire() string {
	if p.typ == "bridge" {
		return fmt.Sprintf("bridge %s vlan %s", bridgeName(p), p.Get("vlan").Literal())
	}
	return fmt.Sprintf("master %s vlan %s", p.Get("master").Text(), p.Get("vlanId").Literal())
}

// findRoutes finds subnets of bridge and ptp to which the node already has a route that leads elsewhere.
func findRoutes(e *examination) (found []Finding) {
	routes := e.routes()
	for _, f := range e.good() {
		for _, s := range f.spans() {
			if s.plugin.typ != "bridge" && s.plugin.typ != "ptp" {
				continue // the subnet is that of a wire, which the node may be on
			}
			for _, r := range routes {
				if s.subnet.Overlaps(r.dst) && r.dst.Bits() >= s.subnet.Bits() && !e.isOwn(s, r.link) {
					found = append(found, Finding{
						Where: f.at(s.value.Get("subnet")),
						What:  fmt.Sprintf("the node has a route to %s on %s: it sends packets for containers in %s there", r.dst, r.link, s.subnet),
						Mend:  edit + "choose a subnet that the node does not know or, if nobody needs the route, delete it: ip route delete " + r.dst.String() + " dev " + r.link,
					})
				}
			}
		}
	}
	return found
}

// isOwn reports whether the node's routes on a link are those of the network: the link is a host end, or the bridge, also
// if that was renamed.
func (e *examination) isOwn(s span, link string) bool {
	bridge := bridgeName(s.plugin)
	return e.isHostEnd(link) || link == e.bridgeOf(s.file.name()) ||
		s.plugin.typ == "bridge" && (link == bridge || strings.HasPrefix(link, bridge+"."))
}

// A nodeRoute is a route of the node.
type nodeRoute struct {
	dst  netip.Prefix
	link string
}

// routes returns the routes of the node in the main table.
func (e *examination) routes() (all []nodeRoute) {
	for _, l := range e.links {
		routes, err := e.conn.Routes(l)
		e.unread("routes of "+l.Name, types.IgnoreNotExist(err))
		for _, r := range routes {
			if r.Table == 0 || r.Table == 254 {
				all = append(all, nodeRoute{r.Dst, l.Name})
			}
		}
	}
	return all
}
