package nl

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	rawnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A LinkConfig contains addresses, routes and policy rules that programs have configured for a link. Each is the message
// with which the kernel lists it, so that it keeps every attribute, as with `ip address save` and `ip route save`.
type LinkConfig struct {
	Link   string    `json:"link"` // name of the link, which labels of addresses and rules can contain
	Time   time.Time `json:"time"` // when the kernel listed the addresses with their remaining lifetimes
	Addrs  [][]byte  `json:"addresses,omitempty"`
	Routes [][]byte  `json:"routes,omitempty"` // the narrowest scope first
	Rules  [][]byte  `json:"rules,omitempty"`
}

// LinkConfig returns the configuration of a link:
//
//   - the addresses of global scope, except IPv6 addresses with a limited lifetime
//   - the unicast routes with one next hop, which uses the link, in all tables except the local table. Routes that the kernel
//     or a router advertisement added, and IPv6 routes to link-local addresses are not included
//   - the rules that look up the table of such a route for packets from such an address
func (c *Conn) LinkConfig(l Link) (*LinkConfig, error) {
	conf := &LinkConfig{Link: l.Name, Time: time.Now().Round(0).UTC()}
	addrs, err := c.listMessages("configured addresses of "+l.Name, listAddrsRequest(l))
	for _, a := range addrs {
		isPermanent := a.number(unix.IFA_FLAGS)&unix.IFA_F_PERMANENT != 0
		if number(a.header[4:]) == l.Index && a.header[3] == unix.RT_SCOPE_UNIVERSE && (a.is4() || isPermanent) {
			conf.Addrs = append(conf.Addrs, a.bytes())
		}
	}
	first6 := slices.IndexFunc(conf.Addrs, func(a []byte) bool { return a[0] == unix.AF_INET6 })
	if first6 >= 0 { // the kernel puts a new IPv6 address before the others (ipv6_link_dev_addr)
		slices.Reverse(conf.Addrs[first6:])
	}
	if err != nil {
		return nil, err
	}
	tables := map[int]bool{}
	for _, family := range families {
		routes, err := c.listMessages("configured routes of "+l.Name, listRoutesRequest(l, family))
		for _, r := range routes {
			if int(r.header[0]) == family && r.isConfigured(l) {
				conf.Routes, tables[r.table()] = append(conf.Routes, r.bytes()), true
			}
		}
		if err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(conf.Routes, func(a, b []byte) int { return int(b[6]) - int(a[6]) })
	return conf, c.addRulesTo(conf, tables)
}

// isConfigured reports whether LinkConfig contains the route m. A route with several next hops has no attribute RTA_OIF.
func (m message) isConfigured(l Link) bool {
	protocol := m.header[5]
	return m.header[7] == unix.RTN_UNICAST && m.number(unix.RTA_OIF) == l.Index &&
		number(m.header[8:])&unix.RTM_F_CLONED == 0 && m.table() != unix.RT_TABLE_LOCAL &&
		protocol != unix.RTPROT_KERNEL && protocol != unix.RTPROT_RA && !m.dst().Addr().IsLinkLocalUnicast()
}

// addRulesTo adds the rules that look up one of the tables for packets from the addresses of conf.
func (c *Conn) addRulesTo(conf *LinkConfig, tables map[int]bool) error {
	all, err := c.listRules()
	for _, r := range parseAll(all, unix.RTM_NEWRULE) {
		covers := func(a netip.Prefix) bool { return r.ruleSource().Contains(a.Addr()) }
		if r.header[2] > 0 && r.header[7] == rawnl.FR_ACT_TO_TBL && tables[r.table()] && slices.ContainsFunc(conf.Prefixes(), covers) {
			conf.Rules = append(conf.Rules, r.bytes())
		}
	}
	return err
}

func (c *Conn) listRules() (all [][]byte, err error) {
	for _, family := range families {
		rules, err := c.listMessages("rules", listRulesRequest(family))
		for _, r := range rules {
			all = append(all, r.bytes())
		}
		if err != nil && !errors.Is(err, errors.ErrUnsupported) { // a kernel may lack IPv6
			return nil, err
		}
	}
	return all, nil
}

// Validate returns an error if a message is malformed. conf may be nil.
func (conf *LinkConfig) Validate() error {
	if conf == nil {
		return nil
	}
	return errors.Join(parseErr(conf.Addrs, unix.RTM_NEWADDR), parseErr(conf.Routes, unix.RTM_NEWROUTE), parseErr(conf.Rules, unix.RTM_NEWRULE))
}

func parseErr(list [][]byte, messageType uint16) error {
	for _, b := range list {
		if _, err := parseMessage(messageType, b); err != nil {
			return err
		}
	}
	return nil
}

// parseAll parses messages that Validate has checked.
func parseAll(list [][]byte, messageType uint16) (all []message) {
	for _, b := range list {
		if m, err := parseMessage(messageType, b); err == nil {
			all = append(all, m)
		}
	}
	return all
}

func (conf *LinkConfig) addrs() []message  { return parseAll(conf.Addrs, unix.RTM_NEWADDR) }
func (conf *LinkConfig) routes() []message { return parseAll(conf.Routes, unix.RTM_NEWROUTE) }

// rules returns the rules with another name of the link.
func (conf *LinkConfig) rules(link string) []message {
	rules := parseAll(conf.Rules, unix.RTM_NEWRULE)
	for i, r := range rules {
		for _, attr := range []uint16{rawnl.FRA_IIFNAME, rawnl.FRA_OIFNAME} {
			if r.text(attr) == conf.Link {
				r = r.with(attr, rawnl.ZeroTerminated(link))
			}
		}
		binary.NativeEndian.PutUint32(r.header[8:], uint32(number(r.header[8:]))&invertRule)
		rules[i] = r
	}
	return rules
}

// invertRule is the flag of a rule for packets that do not match (FIB_RULE_INVERT). The other flags are states.
const invertRule = 2

// Prefixes returns the addresses with their prefix lengths.
func (conf *LinkConfig) Prefixes() (all []netip.Prefix) {
	for _, a := range conf.addrs() {
		all = append(all, a.local())
	}
	return all
}

// Permanent returns the configuration with unlimited lifetimes.
func (conf *LinkConfig) Permanent() *LinkConfig {
	permanent := *conf
	permanent.Addrs = nil
	for _, a := range conf.addrs() {
		if a.expires() {
			a = a.without(unix.IFA_CACHEINFO)
		}
		permanent.Addrs = append(permanent.Addrs, a.bytes())
	}
	return &permanent
}

// Expiring returns the addresses with a limited lifetime.
func (conf *LinkConfig) Expiring() (all []netip.Prefix) {
	for _, a := range conf.addrs() {
		if a.expires() {
			all = append(all, a.local())
		}
	}
	return all
}

// expires reports whether the lifetime of an address is limited.
func (m message) expires() bool {
	lifetimes := m.get(unix.IFA_CACHEINFO) // preferred and valid
	return len(lifetimes) >= 8 && uint32(number(lifetimes[4:])) != forever
}

// local returns the address of a message, with its prefix length.
func (m message) local() netip.Prefix {
	if m.get(unix.IFA_LOCAL) == nil { // an IPv6 address without a peer
		return m.prefix(unix.IFA_ADDRESS, m.header[1])
	}
	return m.prefix(unix.IFA_LOCAL, m.header[1])
}

func (m message) dst() netip.Prefix        { return m.prefix(unix.RTA_DST, m.header[1]) }
func (m message) ruleSource() netip.Prefix { return m.prefix(unix.RTA_SRC, m.header[2]) } // FRA_SRC has the same number

// route returns the route of a message without its metrics, its source, and an IPv6 gateway of an IPv4 route (RTA_VIA).
func (m message) route() Route {
	return Route{Dst: m.dst(), GW: ipAddr(m.get(unix.RTA_GATEWAY)), Priority: m.number(unix.RTA_PRIORITY), Table: m.table(), Scope: int(m.header[6])}
}

// DecodedRoutes returns the routes without their metrics, their sources, and the IPv6 gateways of IPv4 routes.
func (conf *LinkConfig) DecodedRoutes() (all []Route) {
	for _, r := range conf.routes() {
		all = append(all, r.route())
	}
	return all
}

func (m message) ruleText() string {
	return fmt.Sprintf("%d from %s lookup %d", m.number(rawnl.FRA_PRIORITY), m.ruleSource(), m.table())
}

// String lists the addresses and routes.
func (conf *LinkConfig) String() string {
	var words []string
	for _, a := range conf.addrs() {
		words = append(words, "address "+a.local().String())
	}
	for _, r := range conf.routes() {
		words = append(words, "route "+r.route().String())
	}
	return strings.Join(words, ", ")
}

// AddLinkConfig adds a configuration to a link that is up, in this or in another namespace. The name of the link replaces
// the former name. AddLinkConfig keeps what exists, and omits addresses whose lifetime has ended. It tries everything, and
// returns all errors.
func (c *Conn) AddLinkConfig(l Link, conf *LinkConfig) (errs []error) {
	add := func(what string, messageType uint16, m message) {
		err := c.sendMessage("add "+what, messageType, unix.NLM_F_CREATE|unix.NLM_F_EXCL, m)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			errs = append(errs, err)
		}
	}
	for _, a := range conf.addrs() {
		if a, alive := a.addrFor(l, conf); alive {
			add(fmt.Sprintf("address %s to %s", a.local(), l.Name), unix.RTM_NEWADDR, a)
		}
	}
	// The kernel refuses a tentative address as the source of a route (ip6_route_info_create).
	if slices.ContainsFunc(conf.routes(), func(r message) bool { return !r.is4() && r.get(unix.RTA_PREFSRC) != nil }) {
		if err := c.AwaitUsable(l, sourceLimit); errors.Is(err, ErrDuplicate) || isRefusal(err) {
			return append(errs, err)
		}
	}
	errs = append(errs, c.addRoutes(l, conf)...)
	for _, r := range conf.rules(l.Name) {
		add("rule "+r.ruleText(), unix.RTM_NEWRULE, r)
	}
	return errs
}

// sourceLimit limits how long AddLinkConfig waits for duplicate address detection, which takes one second.
const sourceLimit = 5 * time.Second

// addrFor returns the message that adds the address a of conf to l, and reports whether its lifetime has not ended.
func (m message) addrFor(l Link, conf *LinkConfig) (a message, alive bool) {
	binary.NativeEndian.PutUint32(m.header[4:], uint32(l.Index))
	if label, isLabel := strings.CutPrefix(m.text(unix.IFA_LABEL), conf.Link); isLabel {
		if label = l.Name + label; len(label) > types.MaxIfName {
			label = l.Name
		}
		m = m.with(unix.IFA_LABEL, rawnl.ZeroTerminated(label))
	}
	lifetimes := slices.Clone(m.get(unix.IFA_CACHEINFO))
	elapsed := uint32(max(0, time.Since(conf.Time).Seconds()))
	for i := 0; i+4 <= len(lifetimes) && i < 8; i += 4 { // preferred and valid, in seconds
		if left := uint32(number(lifetimes[i:])); left != forever {
			binary.NativeEndian.PutUint32(lifetimes[i:], left-min(left, elapsed))
		}
	}
	return m.with(unix.IFA_CACHEINFO, lifetimes), len(lifetimes) < 8 || number(lifetimes[4:]) != 0
}

// forever is a lifetime that is not limited (INFINITY_LIFE_TIME).
const forever = 1<<32 - 1

// nextHopID is the attribute RTA_NH_ID. The route also contains the next hop's attributes, and the kernel rejects both
// together.
const nextHopID = 30

// addRoutes adds the routes of conf. A gateway can be reachable only by a later route, in particular for IPv6, whose routes
// the kernel lists in the order of their destinations. Therefore addRoutes tries refused routes again after the others.
func (c *Conn) addRoutes(l Link, conf *LinkConfig) (errs []error) {
	for routes := conf.routes(); len(routes) > 0; {
		var refused []message
		var refusals []error
		for _, r := range routes {
			r = r.with(unix.RTA_OIF, rawnl.Uint32Attr(uint32(l.Index))).without(nextHopID, unix.RTA_CACHEINFO)
			binary.NativeEndian.PutUint32(r.header[8:], uint32(number(r.header[8:]))&unix.RTNH_F_ONLINK)
			err := c.sendMessage(fmt.Sprintf("add route %s to %s", r.route(), l.Name), unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, r)
			switch {
			case IsInvalidRoute(err):
				refused, refusals = append(refused, r), append(refusals, err)
			case err != nil && !errors.Is(err, fs.ErrExist):
				errs = append(errs, err)
			}
		}
		if len(refused) == len(routes) {
			return append(errs, refusals...)
		}
		routes = refused
	}
	return errs
}

// DeleteRules deletes the rules of a configuration that AddLinkConfig added for a link with the name.
func (c *Conn) DeleteRules(link string, conf *LinkConfig) error {
	var errs []error
	for _, r := range conf.rules(link) {
		err := c.sendMessage("delete rule "+r.ruleText(), unix.RTM_DELRULE, 0, r)
		errs = append(errs, types.IgnoreNotExist(err))
	}
	return errors.Join(errs...)
}

// MissingRules returns the text of each rule of a configuration that does not exist. link is the present name of the link.
func (c *Conn) MissingRules(link string, conf *LinkConfig) (missing []string, err error) {
	all, err := c.listRules()
	got := (&LinkConfig{Rules: all}).rules("")
	for _, want := range conf.rules(link) {
		if !slices.ContainsFunc(got, func(r message) bool { return bytes.Equal(r.bytes(), want.bytes()) }) {
			missing = append(missing, want.ruleText())
		}
	}
	return missing, err
}
