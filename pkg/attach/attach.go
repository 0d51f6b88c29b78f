// Package attach is what the interface plugins share: the state that a container's
// interface should be in, described once, applied by ADD and compared by CHECK; and
// the veth pair that is found again by the attachment it serves.
//
// Nothing here is undone: what is added to an interface goes with it.
package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/sysctl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// A Spec is the state that one interface should be in.
type Spec struct {
	Kind    string           // "veth", "macvlan"; empty: any
	Sysctls []sysctl.Setting // written before the addresses
	Addrs   []nl.Addr
	Routes  []nl.Route
}

// Segment says what else is on the segment that an interface is put on.
type Segment int

const (
	// Owned: the plugin hands out every address on it, so nobody looks for
	// duplicates and addresses are usable at once.
	Owned Segment = iota
	// Shared: others are there; the kernel looks for duplicates (RFC 4862).
	Shared
	// SharedOptimistic: the kernel looks for duplicates, and addresses are usable
	// meanwhile (RFC 4429).
	SharedOptimistic
)

// PodSpec describes the container's interface, beyond its Baseline, for what an IPAM
// plugin gave. Routes without a gateway go through the first gateway of their family,
// as with the reference plugins; the same route twice is one route.
func PodSpec(ifName string, segment Segment, ips []types.IP, routes []types.Route) Spec {
	s := Spec{Sysctls: forIPv6(ifName, ips)}
	for _, ip := range ips {
		a := nl.Addr{Prefix: ip.Address}
		if ip.Address.Addr().Is6() {
			a.NoDAD, a.Optimistic = segment == Owned, segment == SharedOptimistic
		}
		s.Addrs = append(s.Addrs, a)
	}
	s.Routes = Routes(ips, routes)
	return s
}

// Prepare writes what has to hold before the interface comes up, and sets it up. It
// comes as soon as the link is made, so that it is done while the IPAM plugin works:
// to set a link up takes as long as all that its addresses ask for.
func Prepare(c *nl.Conn, l nl.Link, settings ...sysctl.Setting) error {
	if err := sysctl.Set(c.NS(), settings...); err != nil {
		return err
	}
	return c.Apply(l.SetUp())
}

// Baseline is what Prepare writes for a container's interface, whatever its addresses
// will be: the container never configures itself by router advertisements
// (CVE-2020-10749 and its cousins), and tells its neighbours of its addresses
// (Announce).
func Baseline(ifName string, segment Segment) []sysctl.Setting {
	settings := []sysctl.Setting{{Key: sysctl.IPv4(ifName, "arp_notify"), Value: "1"}}
	add := func(name, value string) {
		settings = append(settings, sysctl.Setting{Key: sysctl.IPv6(ifName, name), Value: value, Optional: true})
	}
	add("accept_ra", "0")
	add("ndisc_notify", "1")
	if segment == Owned {
		add("accept_dad", "0")
		return settings
	}
	add("accept_dad", "1")
	// The kernel puts off the look for duplicates, too, by up to this time, which
	// spreads the hosts of a segment that boot together (addrconf_dad_kick). Somebody
	// waits for a container, and routers are not asked for.
	add("router_solicitation_delay", "0")
	if segment == SharedOptimistic {
		add("optimistic_dad", "1")
	}
	return settings
}

// forIPv6 turns IPv6 on for an interface that gets an address of it, whatever the
// namespace's default, and has it keep its addresses when it goes down.
func forIPv6(ifName string, ips []types.IP) []sysctl.Setting {
	if !slices.ContainsFunc(ips, is6) {
		return nil
	}
	return []sysctl.Setting{
		{Key: sysctl.IPv6("lo", "disable_ipv6"), Value: "0"},
		{Key: sysctl.IPv6(ifName, "disable_ipv6"), Value: "0"},
		{Key: sysctl.IPv6(ifName, "keep_addr_on_down"), Value: "1"},
	}
}

func is6(ip types.IP) bool { return ip.Address.Addr().Is6() }

// Routes resolves the gateways of the routes of a result: the given one, or the first of
// the same family among the IPs, or none. A route without a gateway is on the link, and
// so is one whose gateway is unspecified (0.0.0.0, ::).
func Routes(ips []types.IP, routes []types.Route) []nl.Route {
	var out []nl.Route
	for _, r := range routes {
		gw := r.GW
		switch {
		case !gw.IsValid():
			gw = FirstGateway(ips, r.Dst)
		case gw.IsUnspecified():
			gw = netip.Addr{}
		}
		route := nl.Route{
			Dst: r.Dst, GW: gw, MTU: r.MTU, AdvMSS: r.AdvMSS,
			Priority: r.Priority, Table: r.Table, Scope: r.Scope,
		}
		if !gw.IsValid() && r.Dst.Addr().Is4() && r.Scope == nl.ScopeGlobal {
			route.Scope = nl.ScopeLink
		}
		if !slices.ContainsFunc(out, route.Same) {
			out = append(out, route)
		}
	}
	return out
}

// FirstGateway is the first gateway of the destination's family; zero: there is none.
func FirstGateway(ips []types.IP, dst netip.Prefix) netip.Addr {
	for _, ip := range ips {
		if ip.Gateway.IsValid() && !ip.Gateway.IsUnspecified() && ip.Gateway.Is4() == dst.Addr().Is4() {
			return ip.Gateway
		}
	}
	return netip.Addr{}
}

// IPsOf lists the IPs of the container's interface, as far as prev tells, which may
// be nil.
func IPsOf(prev *types.Result, ifName string) []types.IP {
	if prev == nil {
		return nil
	}
	index, _ := prev.Container(ifName)
	return prev.Of(index)
}

// Prefixes lists the addresses of IPs.
func Prefixes(ips []types.IP) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(ips))
	for _, ip := range ips {
		out = append(out, ip.Address)
	}
	return out
}

// Apply brings the interface into the state. Routes need it up.
func Apply(c *nl.Conn, l nl.Link, s Spec) error {
	if err := roomForIPv6(l, s.Addrs); err != nil {
		return err
	}
	if err := sysctl.Set(c.NS(), s.Sysctls...); err != nil {
		return explainIPv6(err)
	}
	var changes []nl.Change
	for _, a := range s.Addrs {
		changes = append(changes, l.AddAddr(a))
	}
	changes = append(changes, l.SetUp())
	for _, r := range s.Routes {
		changes = append(changes, l.AddRoute(r))
	}
	return explainGateway(l, s, ExplainIPv6Off(c, l.Name, c.Apply(changes...)))
}

// minMTUv6 is the least MTU at which the kernel keeps IPv6 on an interface (RFC 8200,
// section 5).
const minMTUv6 = 1280

func roomForIPv6(l nl.Link, addrs []nl.Addr) error {
	if l.MTU == 0 || l.MTU >= minMTUv6 {
		return nil
	}
	for _, a := range addrs {
		if a.Prefix.Addr().Is6() {
			return types.Errorf(types.CodeConfig, "mtu %d of %s is too small for address %s: IPv6 needs %d (RFC 8200)", l.MTU, l.Name, a.Prefix, minMTUv6)
		}
	}
	return nil
}

func explainIPv6(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return types.Errorf(types.CodeConfig, "the network has IPv6 addresses, but IPv6 is disabled in this kernel: %w", err)
	}
	return err
}

// Announce makes the interface tell its neighbours of its addresses now, by
// gratuitous ARP and unsolicited neighbour advertisement. The kernel does so when a
// hardware address is set, be it to what it was, under arp_notify and ndisc_notify.
func Announce(c *nl.Conn, l nl.Link) error { return c.Apply(l.SetMAC(l.MAC)) }

// FromResult is what CHECK expects of the container's interface: the addresses and
// routes that the chain's result says. MAC and MTU are not compared: a later plugin
// of the chain may have set them without saying so.
func FromResult(r *types.Result, ifName, netns string) (Spec, error) {
	i, found := r.Container(ifName)
	if !found {
		return Spec{}, fmt.Errorf("prevResult has no interface %q in a sandbox", ifName)
	}
	if r.Interfaces[i].Sandbox != netns {
		return Spec{}, fmt.Errorf("prevResult has interface %q in sandbox %s, CNI_NETNS is %s", ifName, r.Interfaces[i].Sandbox, netns)
	}
	ips := r.Of(i)
	var s Spec
	for _, ip := range ips {
		s.Addrs = append(s.Addrs, nl.Addr{Prefix: ip.Address})
	}
	s.Routes = Routes(ips, r.Routes)
	return s, nil
}

// ReferenceMade returns the state as the reference plugins make it: they do not program
// mtu and advmss of a route.
func (s Spec) ReferenceMade() Spec {
	s.Routes = slices.Clone(s.Routes)
	for i := range s.Routes {
		s.Routes[i].MTU, s.Routes[i].AdvMSS = 0, 0
	}
	return s
}

// Diff is nil, or names everything in which the interface differs from the state.
func Diff(c *nl.Conn, ifName string, s Spec) error {
	l, err := c.Link(ifName)
	if err != nil {
		return err
	}
	errs := []error{sysctl.Diff(c.NS(), s.Sysctls...)}
	if s.Kind != "" && l.Kind != s.Kind {
		errs = append(errs, fmt.Errorf("interface %s is of kind %q, not %q", ifName, l.Kind, s.Kind))
	}
	if !l.Up {
		errs = append(errs, fmt.Errorf("interface %s is down", ifName))
	}
	return errors.Join(append(errs, diffAddrs(c, l, s.Addrs), diffRoutes(c, l, s.Routes))...)
}

func diffAddrs(c *nl.Conn, l nl.Link, want []nl.Addr) error {
	if len(want) == 0 {
		return nil
	}
	have, err := c.Addrs(l)
	if err != nil {
		return err
	}
	var errs []error
	for _, w := range want {
		i := slices.IndexFunc(have, func(h nl.Addr) bool { return h.Prefix == w.Prefix })
		switch {
		case i < 0:
			errs = append(errs, fmt.Errorf("interface %s has no address %s", l.Name, w.Prefix))
		case have[i].Duplicate:
			errs = append(errs, fmt.Errorf("address %s of interface %s: %w", w.Prefix, l.Name, nl.ErrDuplicate))
		}
	}
	return errors.Join(errs...)
}

func diffRoutes(c *nl.Conn, l nl.Link, want []nl.Route) error {
	if len(want) == 0 {
		return nil
	}
	have, err := c.Routes(l)
	if err != nil {
		return err
	}
	var errs []error
	for _, w := range want {
		if !slices.ContainsFunc(have, w.Matches) {
			errs = append(errs, fmt.Errorf("interface %s has no route %s%s", l.Name, w, metrics(w)))
		}
	}
	return errors.Join(errs...)
}

// metrics returns the attributes of a route that its text lacks.
func metrics(r nl.Route) string {
	s := ""
	if r.MTU != 0 {
		s += fmt.Sprintf(" mtu %d", r.MTU)
	}
	if r.AdvMSS != 0 {
		s += fmt.Sprintf(" advmss %d", r.AdvMSS)
	}
	return s
}
