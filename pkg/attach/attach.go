// Package attach provides what the interface plugins share. A Spec describes the state of a container's interface. ADD
// applies the Spec, and CHECK compares the interface with it.
//
// There are two kinds of attachments. The first kind is a veth pair with one end on the host, which AddVeth creates,
// HostEnd finds and DelVeth deletes. The second kind is an interface that exists only in the container. The plugin
// creates it, for example on a Master, and a ContainerLink, CheckContainerLink, RepairContainerLink and DelContainerLink
// do the rest of ADD, CHECK, REPAIR and DEL.
//
// Only AddVeth pushes an undo. Everything else that is added to an interface disappears with the interface.
package attach

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A Spec is the wanted state of an interface.
type Spec struct {
	Kind    string           // kind of the link, for example "macvlan"; "" means any kind
	Sysctls []sysctl.Setting // ADD writes them before it adds the addresses
	Addrs   []nl.Addr
	Routes  []nl.Route
	Adopted *nl.LinkConfig // what REPAIR adopts again, or nil
}

// ContainerSpec returns the Spec of the container's interface for the addresses and routes of an IPAM plugin. It does
// not contain the ContainerSysctls, which Prepare has written by then. A route without a gateway uses the first gateway
// of its family, as with the reference plugins. A route that is listed twice is added once.
func ContainerSpec(ifName string, dad DADMode, ips []types.IP, routes []types.Route) Spec {
	s := Spec{Sysctls: ipv6Sysctls(ifName, ips)}
	for _, ip := range ips {
		a := nl.Addr{Prefix: ip.Address}
		if is6(ip) {
			a.NoDAD, a.Optimistic = dad == DADOff, dad == DADOptimistic
		}
		s.Addrs = append(s.Addrs, a)
	}
	s.Routes = Routes(ips, routes)
	return s
}

// Prepare writes sysctls of an interface and sets it up. A plugin calls Prepare as soon as the link exists, while the
// IPAM plugin still runs, because setting a link up takes as long as adding all its addresses.
func Prepare(c *nl.Conn, l nl.Link, settings ...sysctl.Setting) error {
	if err := sysctl.Set(c.NS(), settings...); err != nil {
		return err
	}
	return c.SetUp(l)
}

// ContainerSysctls returns the sysctls of a container's interface that do not depend on its addresses. With them, the
// interface announces its addresses when Announce is called. Whether it configures itself by router advertisements is
// up to the kernel's default (see IgnoreRouters).
func ContainerSysctls(ifName string, dad DADMode) []sysctl.Setting {
	settings := []sysctl.Setting{
		{Key: sysctl.IPv4(ifName, "arp_notify"), Value: "1", Optional: true}, optional6(ifName, "ndisc_notify", "1"),
	}
	if dad == DADOff {
		return append(settings, NoDAD(ifName))
	}
	// The kernel delays the detection by a random time up to router_solicitation_delay (addrconf_dad_kick), so that hosts
	// that boot at the same time do not all send at once. Zero shortens ADD, which waits for the detection. The router
	// solicitation, which the kernel sends when the detection has ended, is also sent earlier.
	settings = append(settings, optional6(ifName, "accept_dad", "1"), optional6(ifName, "router_solicitation_delay", "0"))
	if dad == DADOptimistic {
		settings = append(settings, optional6(ifName, "optimistic_dad", "1"))
	}
	return settings
}

// NoDAD returns the sysctl that turns duplicate address detection off. On the host, it makes the link-local address of an
// interface usable at once, from which the host sends neighbor solicitations for containers. With the detection, it could
// send none for one or two seconds.
func NoDAD(ifName string) sysctl.Setting { return optional6(ifName, "accept_dad", "0") }

func optional6(ifName, name, value string) sysctl.Setting {
	return sysctl.Setting{Key: sysctl.IPv6(ifName, name), Value: value, Optional: true}
}

// ipv6Sysctls returns the sysctls of an interface with IPv6 addresses. They enable IPv6, even if the namespace disables
// it by default, and keep the addresses when the interface is set down. Without an IPv6 address, ipv6Sysctls returns
// nil.
func ipv6Sysctls(ifName string, ips []types.IP) []sysctl.Setting {
	if !slices.ContainsFunc(ips, is6) {
		return nil
	}
	return []sysctl.Setting{
		{Key: sysctl.IPv6("lo", "disable_ipv6"), Value: "0"},
		{Key: sysctl.IPv6(ifName, "disable_ipv6"), Value: "0"},
		optional6(ifName, "keep_addr_on_down", "1"),
	}
}

func is6(ip types.IP) bool { return ip.Address.Addr().Is6() }

// Routes converts the routes of a result. A route without a gateway gets the first gateway of its family among the IPs,
// unless its scope is ScopeLink or ScopeHost. If there is no such gateway, or if the route's gateway is unspecified
// (0.0.0.0, ::), the destination is on the link.
func Routes(ips []types.IP, routes []types.Route) []nl.Route {
	var out []nl.Route
	for _, r := range routes {
		gw := r.GW
		switch {
		case gw.IsUnspecified():
			gw = netip.Addr{}
		case !gw.IsValid() && r.Scope != nl.ScopeLink && r.Scope != nl.ScopeHost:
			gw = FirstGateway(ips, r.Dst)
		}
		route := nl.Route{
			Dst: r.Dst, GW: gw, GWs: r.GWs, MTU: r.MTU, AdvMSS: r.AdvMSS,
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

// FirstGateway returns the first gateway of the destination's family, or the zero Addr.
func FirstGateway(ips []types.IP, dst netip.Prefix) netip.Addr {
	for _, ip := range ips {
		if ip.HasGateway() && ip.Gateway.Is4() == dst.Addr().Is4() {
			return ip.Gateway
		}
	}
	return netip.Addr{}
}

// Interface returns the entry of a link in the result. sandbox is CNI_NETNS for a link in the container, and "" for a
// link on the host.
func Interface(l nl.Link, sandbox string) types.Interface {
	return types.Interface{Name: l.Name, MAC: l.MAC.String(), MTU: l.MTU, Sandbox: sandbox}
}

// IPsOf returns the IPs of the container's interface in prev, which may be nil.
func IPsOf(prev *types.Result, ifName string) []types.IP {
	if prev == nil {
		return nil
	}
	index, _ := prev.ContainerInterface(ifName)
	return prev.Of(index)
}

// Prefixes returns the addresses of IPs, with their prefix lengths.
func Prefixes(ips []types.IP) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(ips))
	for _, ip := range ips {
		out = append(out, ip.Address)
	}
	return out
}

// Apply writes the sysctls, adds the addresses and sets the interface up. It adds the routes last, because the kernel
// rejects routes over an interface that is down.
func Apply(c *nl.Conn, l nl.Link, s Spec) error {
	if err := checkMTUForIPv6(l, s.Addrs); err != nil {
		return err
	}
	if err := sysctl.Set(c.NS(), s.Sysctls...); err != nil {
		return explainNoIPv6(err)
	}
	return explainGateway(l, s, ExplainIPv6Off(c, l.Name, s.addTo(c, l)))
}

func (s Spec) addTo(c *nl.Conn, l nl.Link) error {
	for _, a := range s.Addrs {
		if err := c.AddAddr(l, a); err != nil {
			return err
		}
	}
	if err := c.SetUp(l); err != nil {
		return err
	}
	for _, r := range s.Routes {
		if err := c.AddRoute(l, r); err != nil {
			return err
		}
	}
	return nil
}

// Announce lets the interface announce its addresses to its neighbors by gratuitous ARP and unsolicited neighbor
// advertisements. With arp_notify and ndisc_notify the kernel sends them whenever the hardware address is set, even to
// the same value.
func Announce(c *nl.Conn, l nl.Link) error { return c.SetMAC(l, l.MAC) }

// DiffContainer compares the container's interface with the Spec with which ADD configured it, and returns the interface.
// hostEnd is the host end of a veth pair, or the zero Link for an interface that exists only in the container.
//
// DiffContainer does not compare the sysctls, which a later plugin of the chain may have set without changing the result.
// If plumb created neither link, it does not compare mtu and advmss of the routes, which the reference plugins do not set.
func DiffContainer(r *skel.Request, c *nl.Conn, s Spec, hostEnd nl.Link) (nl.Link, error) {
	if err := requireInPrev(r); err != nil {
		return nl.Link{}, err
	}
	l, err := c.RequireLink(r.IfName)
	if err != nil {
		return nl.Link{}, err
	}
	s.Sysctls = nil
	if !CreatedByPlumb(hostEnd) && !CreatedByPlumb(l) {
		for i := range s.Routes {
			s.Routes[i].MTU, s.Routes[i].AdvMSS = 0, 0
		}
	}
	return l, Diff(c, l, s)
}

// requireInPrev returns an error unless prevResult contains the interface CNI_IFNAME in CNI_NETNS.
func requireInPrev(r *skel.Request) error {
	prev, err := r.RequirePrev()
	if err != nil {
		return err
	}
	i, found := prev.ContainerInterface(r.IfName)
	if !found {
		return fmt.Errorf("prevResult has no interface %q in a sandbox", r.IfName)
	}
	if sandbox := prev.Interfaces[i].Sandbox; sandbox != r.NetNS {
		return fmt.Errorf("prevResult has interface %q in sandbox %s, CNI_NETNS is %s", r.IfName, sandbox, r.NetNS)
	}
	return nil
}

// Diff returns an error that names every difference between the interface and the Spec, or nil. Additional addresses
// and routes are not differences.
func Diff(c *nl.Conn, l nl.Link, s Spec) error {
	errs := []error{sysctl.Diff(c.NS(), s.Sysctls...)}
	reportIf := types.ProblemsInto(&errs)
	if s.Kind != "" && l.Kind != s.Kind {
		errs = append(errs, types.WithRepair(types.RepairNever, fmt.Errorf("interface %s is of kind %q, want %q", l.Name, l.Kind, s.Kind)))
	}
	reportIf(!l.Up, "%w", LinkProblem(c, l, "up", "down").Errorf("interface %s is down", l.Name))
	return errors.Join(append(errs, diffAddrs(c, l, s.Addrs), diffRoutes(c, l, s.Routes))...)
}

// LinkProblem returns the problem that a link has the state or setting got instead of want. want is text for ip link
// set.
func LinkProblem(c *nl.Conn, l nl.Link, want, got string) types.Problem {
	p := c.NS().Problem("interface "+l.Name, types.ProblemDiffers)
	p.Want, p.Got = want, got
	p.Fix = c.NS().Command(append([]string{"ip", "link", "set", "dev", l.Name}, strings.Fields(want)...)...)
	return p
}

// MissingAddr returns the problem that a link lacks an address.
func MissingAddr(c *nl.Conn, l nl.Link, a nl.Addr) types.Problem {
	words := []string{"ip", "address", "add", a.Prefix.String(), "dev", l.Name}
	if a.Prefix.Addr().Is6() {
		words = append(words, "nodad")
	}
	if a.NoPrefixRoute {
		words = append(words, "noprefixroute")
	}
	p := c.NS().Problem("interface "+l.Name, types.ProblemMissing)
	p.Want, p.Fix = "address "+a.Prefix.String(), c.NS().Command(words...)
	return p
}

// MissingRoute returns the problem that a link lacks a route. Like ADD, the command in Fix keeps another attachment's
// route to the same destination.
func MissingRoute(c *nl.Conn, l nl.Link, r nl.Route) types.Problem {
	p := c.NS().Problem("interface "+l.Name, types.ProblemMissing)
	p.Want = "route " + r.String()
	words := []string{"ip", "route", "prepend", r.Dst.String()}
	if r.GW.IsValid() {
		words = append(words, "via", r.GW.String())
	}
	if p.Want == "route "+strings.Join(words[3:], " ") { // the command expresses all attributes of the route
		p.Fix = c.NS().Command(append(words, "dev", l.Name)...)
	}
	return p
}

// DiffRoute returns an error if the namespace's packets for addr do not leave through l, which must have a route to dst. If l
// belongs to a VRF, whose routes are in another table, DiffRoute looks only for the route.
func DiffRoute(c *nl.Conn, l nl.Link, dst netip.Prefix, addr netip.Addr) error {
	through, err := c.LinkTo(addr)
	if types.IgnoreNotExist(err) != nil || err == nil && through.Index == l.Index {
		return err
	}
	routes, listErr := c.Routes(l)
	exists := slices.ContainsFunc(routes, func(r nl.Route) bool { return r.Dst == dst })
	if listErr != nil || exists && l.Master != 0 {
		return listErr
	}
	where := "have no other route"
	var errs []error
	var refusing *nl.RefusingRoute
	switch {
	case err == nil:
		where = "leave through " + through.Name
	case errors.As(err, &refusing):
		where = "meet the " + refusing.Error()
		if exists || refusing.Dst.Bits() >= dst.Bits() {
			errs = append(errs, refusalProblem(c, addr, refusing))
		}
	}
	switch {
	case !exists:
		missing := MissingRoute(c, l, nl.Route{Dst: dst})
		errs = append(errs, missing.Errorf("interface %s has no route %s: packets for %s %s", l.Name, dst, addr, where))
	case refusing == nil:
		errs = append(errs, fmt.Errorf("interface %s has the route %s, but packets for %s %s", l.Name, dst, addr, where))
	}
	return errors.Join(errs...)
}

// refusalProblem returns the problem that a route of an administrator or another program refuses packets for addr.
func refusalProblem(c *nl.Conn, addr netip.Addr, r *nl.RefusingRoute) error {
	p := types.Conflict("route to "+addr.String(), r.Error())
	p.Fix = c.NS().Command(r.Delete()...)
	return p.Errorf("the host has the %s, which refuses packets for %s", r, addr)
}

func diffAddrs(c *nl.Conn, l nl.Link, want []nl.Addr) error {
	if len(want) == 0 {
		return nil
	}
	got, err := c.Addrs(l)
	if err != nil {
		return err
	}
	var errs []error
	for _, w := range want {
		i := slices.IndexFunc(got, func(h nl.Addr) bool { return h.Prefix == w.Prefix })
		switch {
		case i < 0:
			errs = append(errs, MissingAddr(c, l, w).Errorf("interface %s has no address %s", l.Name, w.Prefix))
		case got[i].Duplicate:
			errs = append(errs, fmt.Errorf("address %s of interface %s: %w", w.Prefix, l.Name, nl.ErrDuplicate))
		}
	}
	return errors.Join(errs...)
}

func diffRoutes(c *nl.Conn, l nl.Link, want []nl.Route) error {
	if len(want) == 0 {
		return nil
	}
	got, err := c.Routes(l)
	if err != nil {
		return err
	}
	var errs []error
	for _, w := range want {
		if !slices.ContainsFunc(got, w.Matches) {
			errs = append(errs, MissingRoute(c, l, w).Errorf("interface %s has no route %s", l.Name, w))
		}
	}
	return errors.Join(errs...)
}
