package nl

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Rule is a policy rule that selects packets with one source address and looks up their route in
// a table.
type Rule struct {
	Source   netip.Addr
	Table    int
	Priority int // the kernel evaluates the rules in the order of their priorities
	// Protocol identifies the program that created the rule (FRA_PROTOCOL, Linux 4.17). It is zero
	// if the program is unknown. The kernel ignores Protocol.
	Protocol int
}

func (r Rule) String() string { return fmt.Sprintf("from %s lookup %d", r.Source, r.Table) }

// EnsureRule adds a rule, and pushes its removal to u, unless the same rule exists. The kernel does
// not compare the protocol.
func (c *Conn) EnsureRule(u *undo.Stack, r Rule) error {
	return c.ensure(u, "rule "+r.String(), func() error { return c.lib.RuleAdd(r.lib()) }, func() error { return c.DeleteRule(r) })
}

// DeleteRule deletes a rule. If the rule does not exist, DeleteRule returns nil.
func (c *Conn) DeleteRule(r Rule) error {
	return types.IgnoreNotExist(c.step("delete rule "+r.String(), func() error { return c.lib.RuleDel(r.lib()) }))
}

func (r Rule) lib() *netlink.Rule {
	rule := netlink.NewRule()
	rule.Src, rule.Family = ipNet(netip.PrefixFrom(r.Source, r.Source.BitLen())), familyOf(r.Source)
	rule.Table, rule.Priority, rule.Protocol = r.Table, r.Priority, uint8(r.Protocol)
	return rule
}

// SourceRules returns the rules of both families that select packets by one source address and
// nothing else, IPv4 first.
func (c *Conn) SourceRules() ([]Rule, error) {
	list, err := c.rules()
	var rules []Rule
	for _, r := range list {
		if source := prefix(r.Src); source.IsSingleIP() && !selectsMore(r) {
			rules = append(rules, Rule{Source: source.Addr(), Table: r.Table, Priority: r.Priority, Protocol: int(r.Protocol)})
		}
	}
	return rules, err
}

// An InputRule is a policy rule that selects the packets of one family that arrive through an interface. Packets that the
// namespace itself sends arrive through lo.
type InputRule struct {
	Interface string
	Source    netip.Addr // source address of the packets, or zero for any address
	IPv6      bool
	Table     int // table in which the kernel looks up the route
	Priority  int
}

func (r InputRule) String() string {
	family := familyOption(r.IPv6)
	if r.Source.IsValid() {
		family += " from " + r.Source.String()
	}
	return fmt.Sprintf("%s iif %s lookup %d", family, r.Interface, r.Table)
}

// EnsureInputRule adds a rule, and pushes its removal to u, unless the same rule exists.
func (c *Conn) EnsureInputRule(u *undo.Stack, r InputRule) error {
	return c.ensure(u, "rule "+r.String(), func() error { return c.lib.RuleAdd(r.lib()) }, func() error { return c.DeleteInputRule(r) })
}

// DeleteInputRule deletes a rule. If the rule does not exist, DeleteInputRule returns nil.
func (c *Conn) DeleteInputRule(r InputRule) error {
	return types.IgnoreNotExist(c.step("delete rule "+r.String(), func() error { return c.lib.RuleDel(r.lib()) }))
}

func (r InputRule) lib() *netlink.Rule {
	rule := netlink.NewRule()
	rule.IifName, rule.Table, rule.Priority, rule.Family = r.Interface, r.Table, r.Priority, unix.AF_INET
	if r.IPv6 {
		rule.Family = unix.AF_INET6
	}
	if r.Source.IsValid() {
		rule.Src = ipNet(netip.PrefixFrom(r.Source, r.Source.BitLen()))
	}
	return rule
}

// InputRules returns the rules of both families that select packets by an interface and perhaps by one source address.
func (c *Conn) InputRules() ([]InputRule, error) {
	list, err := c.rules()
	var rules []InputRule
	for _, r := range list {
		source := prefix(r.Src)
		if r.IifName != "" && (source.IsSingleIP() || !source.IsValid()) {
			rules = append(rules, InputRule{Interface: r.IifName, Source: source.Addr(), IPv6: r.Family == unix.AF_INET6, Table: r.Table, Priority: r.Priority})
		}
	}
	return rules, err
}

// A RefusingRule is a policy rule of type blackhole, unreachable or prohibit. It selects packets by one of Source, Destination
// and Interface; the others are zero.
type RefusingRule struct {
	Source      netip.Prefix
	Destination netip.Prefix
	Interface   string // interface through which the packets arrive
	IPv6        bool
	Priority    int
}

// String returns what the rule selects, for example "from 10.88.0.0/16".
func (r RefusingRule) String() string {
	switch {
	case r.Source.IsValid():
		return "from " + r.Source.String()
	case r.Destination.IsValid():
		return "to " + r.Destination.String()
	}
	return "iif " + r.Interface
}

// Delete returns the words of the command that deletes the rule.
func (r RefusingRule) Delete() []string {
	words := []string{"ip", familyOption(r.IPv6), "rule", "delete", "priority", strconv.Itoa(r.Priority)}
	return append(words, strings.Fields(r.String())...)
}

// RefusingRules returns the rules of both families that refuse packets by their source, destination or interface alone. Package
// netlink does not decode the type of a rule, but the table of these types is 0, as that of the type nop, which nobody
// uses, and of the rule for VRFs, which selects all packets.
func (c *Conn) RefusingRules() ([]RefusingRule, error) {
	list, err := c.rules()
	var rules []RefusingRule
	for _, r := range list {
		found := RefusingRule{Source: prefix(r.Src), Destination: prefix(r.Dst), Interface: r.IifName, IPv6: r.Family == unix.AF_INET6, Priority: r.Priority}
		switch { // selectsMore ignores the source
		case r.Src != nil:
		case r.Dst != nil:
			r.Dst = nil
		case r.IifName != "":
			r.IifName = ""
		default:
			continue
		}
		if r.Table == 0 && !selectsMore(r) {
			rules = append(rules, found)
		}
	}
	return rules, err
}

// AddRuleToMain returns the words of the command that adds a rule for packets to dst with the main table. The kernel evaluates it
// before all other rules, except those with priority 0.
func (c *Conn) AddRuleToMain(dst netip.Prefix) ([]string, error) {
	list, err := c.rules()
	first := mainPriority
	for _, r := range list {
		if r.Priority > 0 {
			first = min(first, r.Priority)
		}
	}
	return []string{"ip", familyOption(dst.Addr().Is6()), "rule", "add", "to", dst.String(), "lookup", "main", "priority", strconv.Itoa(first - 1)}, err
}

// familyOption returns the option of the program ip for an IP version.
func familyOption(is6 bool) string {
	if is6 {
		return "-6"
	}
	return "-4"
}

// mainPriority is the priority of the rule for the main table (fib_default_rules_init).
const mainPriority = 0x7ffe

// selectsMore reports whether a rule selects packets by more than the source address, or does more
// than look up a route in a table.
func selectsMore(r netlink.Rule) bool {
	return r.Dst != nil || r.Mark != 0 || r.Mask != nil || r.Tos != 0 || r.TunID != 0 || r.IifName != "" || r.OifName != "" ||
		r.Invert || r.Dport != nil || r.Sport != nil || r.IPProto != 0 || r.UIDRange != nil || r.Goto >= 0 ||
		r.SuppressPrefixlen >= 0 || r.SuppressIfgroup >= 0
}

func (c *Conn) rules() ([]netlink.Rule, error) {
	var all []netlink.Rule
	for _, family := range families {
		list, err := query(c, "list rules", func() ([]netlink.Rule, error) {
			// Package netlink's request contains a header of another type, which is four bytes too
			// long. The kernel rejects it under strict checks (fib_valid_dumprule_req).
			_ = c.lib.SetStrictCheck(false)
			defer func() { _ = c.lib.SetStrictCheck(true) }()
			return c.lib.RuleList(family)
		})
		if err != nil && !errors.Is(err, errors.ErrUnsupported) { // a kernel may lack IPv6
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

// FreeTables returns the n smallest numbers of routing tables that are at least lowest and that no
// rule, route or VRF of the namespace uses.
func (c *Conn) FreeTables(n, lowest int) ([]int, error) {
	used, err := c.usedTables()
	var free []int
	for table := lowest; err == nil && len(free) < n; table++ {
		if !used[table] {
			free = append(free, table)
		}
	}
	return free, err
}

// usedTables returns the tables of all rules, routes and VRFs, and the tables that Linux reserves.
func (c *Conn) usedTables() (map[int]bool, error) {
	used := map[int]bool{unix.RT_TABLE_DEFAULT: true, unix.RT_TABLE_MAIN: true, unix.RT_TABLE_LOCAL: true}
	rules, err := c.rules()
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		used[r.Table] = true
	}
	for _, family := range families {
		routes, err := c.routes("list routes", family, &netlink.Route{})
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			used[r.Table] = true
		}
	}
	vrfs, err := c.LinksOfKind("vrf")
	for _, l := range vrfs {
		used[l.VRFTable] = true
	}
	return used, err
}

// A FullRoute is a Route with all other attributes that package netlink decodes, so that it can be
// moved to another table and back without change.
type FullRoute struct {
	Route
	Protocol int // the creator of the route: 2 is the kernel, 3 a program that does not identify itself, …
	// Advertised means that the kernel created the route because of a router advertisement, and
	// maintains it.
	Advertised bool

	lib netlink.Route
}

// ProtocolKernel is the Protocol of the routes that the kernel adds with an address.
const ProtocolKernel = unix.RTPROT_KERNEL

// NewFullRoute returns the route through the link with the protocol. Like `ip route add`, it sets
// the scope link for an IPv4 route without a gateway.
func NewFullRoute(l Link, r Route, protocol int) FullRoute {
	if !r.GW.IsValid() && r.Dst.Addr().Is4() {
		r.Scope = ScopeLink
	}
	lib := *newLibRoute(l, r)
	lib.Protocol = netlink.RouteProtocol(protocol)
	r.Table = r.table()
	return FullRoute{Route: r, Protocol: protocol, lib: lib}
}

// WithTable returns the same route in another table.
func (r FullRoute) WithTable(table int) FullRoute {
	r.Table, r.lib.Table = table, table
	return r
}

// WithoutSource returns the same route without a preferred source.
func (r FullRoute) WithoutSource() FullRoute {
	r.Src, r.lib.Src = netip.Addr{}, nil
	return r
}

// FullRoutes returns the unicast routes through a link in all tables except the local table. Routes
// without a gateway come first, because their destinations may contain the gateways of other
// routes. An IPv6 route with several next hops becomes one route for each next hop through the
// link, because the kernel adds and deletes these one by one. FullRoutes omits an IPv4 route with a
// next hop through another link, because the kernel changes such a route only as a whole.
func (c *Conn) FullRoutes(l Link) ([]FullRoute, error) {
	list, err := c.unicastRoutes(l)
	var direct, others []FullRoute
	for _, found := range list {
		for _, r := range fullRoutes(l, found) {
			if r.GW.IsValid() || len(r.lib.MultiPath) > 0 {
				others = append(others, r)
			} else {
				direct = append(direct, r)
			}
		}
	}
	return append(direct, others...), err
}

// fullRoutes converts one netlink.Route for FullRoutes.
func fullRoutes(l Link, found netlink.Route) []FullRoute {
	found.NHID = 0 // the route also contains the next hop's attributes, and the kernel rejects both together
	hops := nextHops(found)
	if found.Family == unix.AF_INET && len(hops) > 1 {
		for _, hop := range hops {
			if hop.LinkIndex != l.Index {
				return nil
			}
			hop.Flags &= int(netlink.FLAG_ONLINK)
		}
		return []FullRoute{newFullRoute(found, hops[0])}
	}
	var routes []FullRoute
	for _, hop := range hops {
		if hop.LinkIndex != l.Index {
			continue
		}
		single := found
		if len(found.MultiPath) > 0 {
			single.LinkIndex, single.Gw, single.Flags, single.MultiPath = hop.LinkIndex, hop.Gw, hop.Flags, nil
		}
		routes = append(routes, newFullRoute(single, hop))
	}
	return routes
}

// newFullRoute converts a netlink.Route. hop is its next hop.
func newFullRoute(r netlink.Route, hop *netlink.NexthopInfo) FullRoute {
	full := FullRoute{Route: newRoute(r, hop), Protocol: int(r.Protocol)}
	full.Advertised = r.Protocol == unix.RTPROT_RA || r.CacheInfo != nil && r.CacheInfo.Expires != 0
	r.Flags &= int(netlink.FLAG_ONLINK) // the other flags are states, which the kernel rejects
	full.lib = r
	return full
}

// EnsureFullRoute adds a route after the routes with the same destination and metric, and pushes
// its removal to u, unless the same route exists.
func (c *Conn) EnsureFullRoute(u *undo.Stack, r FullRoute) error {
	return c.ensure(u, "route "+r.String(), func() error { return c.lib.RouteAppend(&r.lib) }, func() error { return c.DeleteFullRoute(r) })
}

// AddNewRoute adds a route like AddOnlyRoute, and pushes its removal to u.
func (c *Conn) AddNewRoute(u *undo.Stack, l Link, r Route) error {
	err := c.AddOnlyRoute(l, r)
	if !isRefusal(err) {
		u.Push("delete route "+r.String(), func() error { return c.DeleteFullRoute(FullRoute{Route: r, lib: *newLibRoute(l, r)}) })
	}
	return err
}

// DeleteFullRoute deletes a route. If it does not exist, DeleteFullRoute returns nil.
func (c *Conn) DeleteFullRoute(r FullRoute) error {
	return types.IgnoreNotExist(c.step("delete route "+r.String(), func() error { return c.lib.RouteDel(&r.lib) }))
}
