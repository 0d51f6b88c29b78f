package attach

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
)

// The kernel passes no packets between a master and the interfaces on it. With the key hostAccess, the host and the
// container reach each other through a veth pair beside the container's interface:
//
//   - The host end has the name and the alias of a bridge's host end, so that AddVeth, HostEnd and VethGC serve it as well.
//   - Each end has routes to addresses of the other namespace. The routes are in a separate table, which rules select for
//     packets that the namespace itself sends (iif lo). Forwarded packets therefore never use the pair, and the rules of sbr
//     do not hide the routes. The kernel looks up the source of a received packet with iif lo as well, so that rp_filter
//     accepts the packets of the pair.
//   - If a container has several pairs, each address uses its own pair, by a rule with a higher precedence. Addresses of
//     other interfaces use the first pair, because their packets to the host would be lost on the interface on the master.
//   - The routes use a gateway whose permanent neighbor entry contains the other end's MAC, so that neither end resolves
//     neighbors. The gateway's address is assigned to no interface.
//   - Another rule rejects the packets from the host end that the host would forward. The kernel looks up the local table
//     before it. The sysctl "forwarding" of an interface does not stop IPv6, and ip_forward overwrites it for IPv4.

// HostAccessKeys contains the key that connects the host and the container. A plugin embeds it in its configuration struct.
type HostAccessKeys struct {
	HostAccess any `json:"hostAccess"`
}

// A HostAccess is the checked value of hostAccess. Without the key it is nil, and its methods do nothing.
type HostAccess struct {
	master Master
	addrs  []netip.Addr // what the container reaches on the host; if it is nil, the addresses of the master
}

const (
	accessPriority = 300   // of all rules, before the main table and after the local table, which Cilium moves to 100
	accessTable    = 11300 // of the host
)

// accessGateways contains the gateway of each family.
var accessGateways = map[bool]netip.Addr{false: netip.MustParseAddr("169.254.113.1"), true: netip.MustParseAddr("fe80::1")}

// Parse returns the checked value, or nil if hostAccess is missing or false.
func (k HostAccessKeys) Parse(r *skel.Request, m Master) (*HostAccess, error) {
	h := &HostAccess{master: m}
	switch value := k.HostAccess.(type) {
	case nil:
		return nil, nil
	case bool:
		if !value {
			return nil, nil
		}
	case []any:
		for i, v := range value {
			a, err := parseAccessAddr(v)
			switch {
			case err != nil:
				return nil, fmt.Errorf("hostAccess[%d] %s %w", i, jsonOf(v), err)
			case slices.Contains(h.addrs, a):
				return nil, fmt.Errorf("hostAccess[%d] %s is listed twice; remove one of them", i, jsonOf(v))
			}
			h.addrs = append(h.addrs, a)
		}
	default:
		return nil, fmt.Errorf("hostAccess %s must be true, false or a list of addresses with /32 or /128", jsonOf(value))
	}
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	reportIf(k.HostAccess != true && len(h.addrs) == 0, "hostAccess must not be an empty list")
	reportIf(m.InContainer, "hostAccess needs a master on the host; remove linkInContainer")
	reportIf(r.Conf.IPAM.Type == "" && len(r.Conf.PrevResult) == 0, `hostAccess needs addresses of the container; set "ipam"`)
	return h, errors.Join(errs...)
}

// parseAccessAddr returns the address in an entry of hostAccess.
func parseAccessAddr(v any) (netip.Addr, error) {
	text, _ := v.(string)
	p, err := netip.ParsePrefix(text)
	a := p.Addr()
	switch {
	case err != nil || a.Is4In6():
		return netip.Addr{}, errors.New("must be an address of the host with /32 or /128, such as 10.0.0.1/32")
	case !p.IsSingleIP():
		return netip.Addr{}, errors.New("must be a single address: the container would reach no other host in the prefix; write it with /32 or /128, or set hostAccess to true")
	case a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified():
		return netip.Addr{}, errors.New("must not be a loopback, link-local, multicast or unspecified address, with which the container cannot reach the host")
	}
	return a, nil
}

// jsonOf returns the JSON of a value that was decoded from JSON.
func jsonOf(v any) []byte {
	text, _ := json.Marshal(v) // succeeds for every decoded value
	return text
}

// An accessFamily contains the addresses of one family that reach each other.
type accessFamily struct {
	is6    bool
	source netip.Addr     // source address of the host
	host   []netip.Prefix // what the container reaches
	ips    []netip.Addr   // addresses of the container
}

// families returns the families in which both the host and the container have addresses. It returns an error with
// types.CodeConfig if there are none.
func (h *HostAccess) families(host *nl.Conn, master nl.Link, ips []types.IP) (all []accessFamily, err error) {
	local, err := host.LocalAddrs(netip.Addr{})
	if err != nil {
		return nil, err
	}
	addrs, err := h.hostAddrs(host, master, local)
	if err != nil {
		return nil, err
	}
	for _, is6 := range []bool{false, true} {
		f := accessFamily{is6: is6}
		for _, a := range addrs {
			if a.Is6() == is6 {
				f.host = append(f.host, netip.PrefixFrom(a, a.BitLen()))
			}
		}
		for _, ip := range ips {
			a := ip.Address.Addr()
			if a.Is6() != is6 || slices.Contains(f.ips, a) {
				continue
			}
			if slices.Contains(local, a) {
				return nil, types.Errorf(types.CodeConfig, "hostAccess: %s, the container's address, is also an address of the host; use another address", a)
			}
			f.ips = append(f.ips, a)
		}
		if len(f.host) > 0 && len(f.ips) > 0 {
			f.source = f.host[0].Addr()
			all = append(all, f)
		}
	}
	if len(all) > 0 {
		return all, nil
	}
	if h.addrs != nil {
		return nil, types.Errorf(types.CodeConfig, "hostAccess: no address in %s has the family of an address of the container; list such an address", h.addrs)
	}
	return nil, types.Errorf(types.CodeConfig, "hostAccess: master %s has no address with the family of an address of the container; add one, or list addresses of the host", master.Name)
}

// hostAddrs returns the addresses of the host that the container reaches. It returns an error with types.CodeConfig if a
// listed address is not in local, the addresses of the host: the container would no longer reach the host that has it.
func (h *HostAccess) hostAddrs(host *nl.Conn, master nl.Link, local []netip.Addr) ([]netip.Addr, error) {
	if h.addrs == nil {
		return addressesOf(host, master)
	}
	for i, a := range h.addrs {
		if !slices.Contains(local, a) {
			return nil, types.Errorf(types.CodeConfig, "hostAccess[%d] %s is not an address of the host; list addresses of the host, or set hostAccess to true", i, a)
		}
	}
	return h.addrs, nil
}

// Status returns the error that Add would return because of the addresses of the host.
func (h *HostAccess) Status(r *skel.Request) error {
	if h == nil || h.addrs == nil {
		return nil
	}
	host, err := nl.Open(r.HostNS)
	if err != nil {
		return err
	}
	local, err := host.LocalAddrs(netip.Addr{})
	if err == nil {
		_, err = h.hostAddrs(host, nl.Link{}, local)
	}
	return err
}

// HasHostAccess reports whether the container has the container end of a pair beside the interface.
func HasHostAccess(container *nl.Conn, ifName string) (bool, error) {
	l, err := container.Link(accessName(ifName))
	return err == nil && l.Kind == "veth", types.IgnoreNotExist(err)
}

// addressesOf returns the addresses of the master that other hosts can use for some time.
func addressesOf(c *nl.Conn, l nl.Link) (out []netip.Addr, err error) {
	addrs, err := c.Addrs(l)
	for _, a := range addrs {
		// An interface can have one address with several prefix lengths.
		if ip := a.Prefix.Addr(); !ip.IsLinkLocalUnicast() && !a.Tentative && !a.Duplicate && !a.Temporary && !slices.Contains(out, ip) {
			out = append(out, ip)
		}
	}
	return out, err
}

// An accessEnd is the wanted state of one end of the pair.
type accessEnd struct {
	conn      *nl.Conn
	link      nl.Link
	routes    []nl.Route
	neighbors map[netip.Addr]types.MAC
	rules     []nl.InputRule // rules of this attachment
	shared    []nl.InputRule // rules of all attachments of the host, which ADD keeps if it fails
}

// An accessPair contains what the state of both ends depends on.
type accessPair struct {
	owner           types.Attachment
	host, container *nl.Conn
	hostEnd, link   nl.Link // the host end and the container end
	families        []accessFamily
}

// containerTable returns the number of the attachment's table in the container.
func containerTable(owner types.Attachment) int {
	sum := sha256.Sum256([]byte(owner.String()))
	return int(binary.BigEndian.Uint32(sum[16:])>>2 | 1<<30)
}

// accessName returns the name of the container end.
func accessName(ifName string) string {
	if name := "h-" + ifName; len(name) <= types.MaxIfName {
		return name
	}
	sum := sha256.Sum256([]byte(ifName))
	return "h-" + hex.EncodeToString(sum[:6])
}

// ends returns the wanted state of the host end and of the container end.
func (p accessPair) ends() []accessEnd {
	host := accessEnd{conn: p.host, link: p.hostEnd, neighbors: map[netip.Addr]types.MAC{}, rules: prohibit(p.hostEnd.Name)}
	container := accessEnd{conn: p.container, link: p.link, neighbors: map[netip.Addr]types.MAC{}}
	for _, f := range p.families {
		gw, table := accessGateways[f.is6], containerTable(p.owner)
		host.neighbors[gw], container.neighbors[gw] = p.link.MAC, p.hostEnd.MAC
		for _, ip := range f.ips {
			host.routes = append(host.routes, nl.Route{Dst: netip.PrefixFrom(ip, ip.BitLen()), GW: gw, Src: f.source, Table: accessTable, OnLink: !f.is6})
		}
		for _, dst := range f.host {
			container.routes = append(container.routes, nl.Route{Dst: dst, GW: gw, Src: f.ips[0], Table: table, OnLink: !f.is6})
		}
		host.shared = append(host.shared, nl.InputRule{Interface: "lo", IPv6: f.is6, Table: accessTable, Priority: accessPriority})
		for _, ip := range f.ips {
			container.rules = append(container.rules, nl.InputRule{Interface: "lo", Source: ip, IPv6: f.is6, Table: table, Priority: accessPriority})
		}
		container.rules = append(container.rules, nl.InputRule{Interface: "lo", IPv6: f.is6, Table: table, Priority: accessPriority + 1})
	}
	return []accessEnd{host, container}
}

// prohibit returns the rules that keep the host from forwarding packets from the host end.
func prohibit(hostEnd string) []nl.InputRule {
	return []nl.InputRule{
		{Interface: hostEnd, Priority: accessPriority},
		{Interface: hostEnd, IPv6: true, Priority: accessPriority},
	}
}

// sysctls returns the sysctls of the end. Without rp_filter, the end accepts packets from addresses of other interfaces of the
// container. The kernel uses the larger one of this value and the value for all interfaces. The values 1 and 2 reject these
// packets, because the end has no address (no_addr in __fib_validate_source).
func (e accessEnd) sysctls() []sysctl.Setting {
	settings := append(HostSysctls(e.link.Name), NoDAD(e.link.Name), sysctl.Setting{Key: sysctl.IPv4(e.link.Name, "rp_filter"), Value: "0", Optional: true})
	if e.neighbors[accessGateways[true]] != "" {
		settings = append(settings, sysctl.Setting{Key: sysctl.IPv6(e.link.Name, "disable_ipv6"), Value: "0"})
	}
	return settings
}

// apply adds the state to the end, and sets it up. It adds only the given routes. It pushes the removal of the attachment's
// rules to u.
func (e accessEnd) apply(u *undo.Stack, routes []nl.Route) error {
	if err := sysctl.Ensure(e.conn.NS(), e.sysctls()...); err != nil {
		return explainNoIPv6(err)
	}
	for _, rule := range e.rules { // before the end is up, so that no packet is forwarded
		if err := e.conn.EnsureInputRule(u, rule); err != nil && !errors.Is(err, errors.ErrUnsupported) { // a kernel may lack IPv6
			return err
		}
	}
	if err := e.conn.SetUp(e.link); err != nil {
		return err
	}
	for gw, mac := range e.neighbors {
		if err := e.conn.AddPermanentNeighbor(e.link, gw, mac); err != nil {
			return err
		}
	}
	for _, route := range routes {
		if err := e.addRoute(route); err != nil {
			return err
		}
	}
	for _, rule := range e.shared {
		if err := e.conn.EnsureInputRule(new(undo.Stack), rule); err != nil {
			return err
		}
	}
	return nil
}

// addRoute adds a route. Without a carrier of the master, the kernel has not checked the container's IPv6 address for
// duplicates, and rejects it as the source of a route. In that case, addRoute leaves the choice of the source to the kernel.
func (e accessEnd) addRoute(route nl.Route) error {
	err := e.conn.AddOnlyRoute(e.link, route)
	if route.Src.Is6() && nl.IsInvalidRoute(err) {
		route.Src = netip.Addr{}
		err = e.conn.AddOnlyRoute(e.link, route)
	}
	return err
}

// compare returns the routes that the end lacks, and the routes in the same table that are not wanted, for example after the
// address of the master has changed.
func (e accessEnd) compare() (missing, stale []nl.Route, err error) {
	got, err := e.conn.Routes(e.link)
	matches := func(w, g nl.Route) bool { return w.Matches(g) && (w.Src == g.Src || !g.Src.IsValid()) }
	for _, w := range e.routes {
		if !slices.ContainsFunc(got, func(g nl.Route) bool { return matches(w, g) }) {
			missing = append(missing, w)
		}
	}
	for _, g := range got {
		if g.Table == e.routes[0].Table && !slices.ContainsFunc(e.routes, func(w nl.Route) bool { return matches(w, g) }) {
			stale = append(stale, g)
		}
	}
	return missing, stale, err
}

// diff returns an error that names every difference of the end.
func (e accessEnd) diff() error {
	missing, _, routesErr := e.compare()
	neighbors, neighborsErr := e.conn.PermanentNeighbors(e.link)
	rules, rulesErr := e.conn.InputRules()
	errs := []error{sysctl.Diff(e.conn.NS(), e.sysctls()...), routesErr, neighborsErr, rulesErr}
	reportIf := types.ProblemsInto(&errs)
	reportIf(!e.link.Up, "%w", LinkProblem(e.conn, e.link, "up", "down").Errorf("hostAccess: interface %s is down", e.link.Name))
	for _, w := range missing {
		errs = append(errs, MissingRoute(e.conn, e.link, w).Errorf("hostAccess: interface %s has no route %s", e.link.Name, w))
	}
	for gw, mac := range e.neighbors {
		reportIf(neighborsErr == nil && neighbors[gw] != mac, "hostAccess: interface %s has no permanent neighbor entry %s with %s", e.link.Name, gw, mac)
	}
	for _, rule := range append(e.rules, e.shared...) {
		reportIf(rulesErr == nil && !slices.Contains(rules, rule), "hostAccess: no rule %s", rule)
	}
	return errors.Join(errs...)
}

// Add connects the host and the container, after MasterSetup.Configure, and adds the host end to the result. It pushes the
// removal of the pair and of its rules to r.Undo.
func (h *HostAccess) Add(r *skel.Request, s *MasterSetup, result *types.Result) error {
	if h == nil {
		return nil
	}
	ips := IPsOf(result, r.IfName)
	families, err := h.families(s.MasterConn, s.Master, ips)
	if err != nil {
		return err
	}
	p := accessPair{owner: r.Attachment(), host: s.MasterConn, container: s.Container, families: families}
	p.hostEnd, p.link, err = AddVeth(&r.Undo, Pair{Host: p.host, Container: p.container, Owner: p.owner, Name: accessName(r.IfName), MTU: result.Interfaces[0].MTU})
	if err != nil {
		return err
	}
	for _, e := range p.ends() {
		if err := e.apply(&r.Undo, e.routes); err != nil {
			return ExplainRemoved(p.host, p.hostEnd, p.hostEnd.Name, explainAccess(e, err))
		}
	}
	result.Interfaces = append(result.Interfaces, Interface(p.hostEnd, ""))
	return nil
}

// explainAccess explains why the kernel did not add a route to the end.
func explainAccess(e accessEnd, err error) error {
	if errors.Is(err, fs.ErrExist) {
		return types.Errorf(types.CodeConfig, "hostAccess: another attachment has the same address: %w; use addresses that differ in all networks with hostAccess", err)
	}
	if nl.IsInvalidRoute(err) {
		return types.Errorf(types.CodeConfig, "hostAccess: the kernel rejects a route of %s: %w; %s must not be an address of the host or of the container", e.link.Name, err, accessGateways[false])
	}
	return err
}

// find returns the ends of the existing pair with their wanted state. The error matches fs.ErrNotExist if the pair does not
// exist.
func (h *HostAccess) find(r *skel.Request, container *nl.Conn) ([]accessEnd, error) {
	prev, err := r.RequirePrev()
	if err != nil {
		return nil, err
	}
	host, err := nl.Open(r.HostNS)
	if err != nil {
		return nil, err
	}
	p := accessPair{owner: r.Attachment(), host: host, container: container}
	if p.hostEnd, err = HostEnd(host, p.owner, nil); err != nil {
		return nil, fmt.Errorf("hostAccess: %w", err)
	}
	if p.link, err = container.RequireLink(accessName(r.IfName)); err != nil {
		return nil, fmt.Errorf("hostAccess: %w", err)
	}
	if p.link.Peer != p.hostEnd.Index {
		return nil, fmt.Errorf("hostAccess: interface %s of the container is not the other end of %s", p.link.Name, p.hostEnd.Name)
	}
	ips, err := currentIPs(r, container, prev)
	if err != nil {
		return nil, err
	}
	master, err := h.master.Find(host, 0)
	if err == nil {
		p.families, err = h.families(host, master, ips)
	}
	if err != nil {
		return nil, errors.New(err.Error()) // without types.CodeConfig, because CHECK returns another code
	}
	return p.ends(), nil
}

// currentIPs returns the addresses of the container's interface in prev. If the IPAM plugin works over the interface, it
// may have changed them, and currentIPs returns the addresses that the interface has.
func currentIPs(r *skel.Request, container *nl.Conn, prev *types.Result) (ips []types.IP, err error) {
	if !ipam.NeedsLink(r) {
		return IPsOf(prev, r.IfName), nil
	}
	l, err := container.Link(r.IfName)
	if err != nil {
		return nil, err
	}
	addrs, err := addressesOf(container, l)
	for _, a := range addrs {
		ips = append(ips, types.IP{Address: netip.PrefixFrom(a, a.BitLen())})
	}
	return ips, err
}

// Diff returns an error that names every difference of the pair.
func (h *HostAccess) Diff(r *skel.Request, container *nl.Conn) error {
	if h == nil {
		return nil
	}
	ends, err := h.find(r, container)
	err = types.WithRepair(types.RepairNever, err)
	for i, e := range ends {
		changed := e.diff()
		if i == 1 {
			changed = types.WithRepair(types.RepairContainerSide, changed)
		}
		err = errors.Join(err, changed)
	}
	return err
}

// Repair restores the host end and, if Request.RepairsContainer, the container end. It restores no pair that was deleted.
func (h *HostAccess) Repair(r *skel.Request) error {
	if h == nil {
		return nil
	}
	container, err := nl.Open(r.ContainerNS)
	if err != nil {
		return err
	}
	ends, err := h.find(r, container)
	if err != nil {
		return nil // CHECK reports the error
	}
	for i, e := range ends {
		if i == 1 && !r.RepairsContainer() {
			break
		}
		err = errors.Join(err, e.apply(&r.Undo, nil), e.restoreRoutes())
	}
	return err
}

// restoreRoutes adds the missing routes and deletes the stale ones.
func (e accessEnd) restoreRoutes() error {
	missing, stale, err := e.compare()
	errs := []error{err}
	for _, route := range stale {
		errs = append(errs, e.conn.DeleteFullRoute(nl.NewFullRoute(e.link, route, 0)))
	}
	for _, route := range missing {
		if err := e.addRoute(route); !errors.Is(err, fs.ErrExist) { // another attachment may have the address
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// DelWithHostAccess is DelContainerLink for a plugin with the key hostAccess. It also deletes the pair and its rules.
func DelWithHostAccess(r *skel.Request, kind string) error {
	return ipam.DelWithLink(r, func() (wait func() error, err error) {
		waitPair, pairErr := deleteAccess(r)
		waitLink, linkErr := deleteContainerLink(r, kind)
		return func() error { return errors.Join(waitPair(), waitLink()) }, errors.Join(pairErr, linkErr)
	})
}

// deleteAccess deletes the pair and its rules. If neither the configuration nor prevResult mentions them, it looks only for
// a link with the name that the host end usually has.
func deleteAccess(r *skel.Request) (wait func() error, err error) {
	noWait := func() error { return nil }
	var keys HostAccessKeys
	_ = types.Decode(r.Stdin, &keys) // DEL must succeed with any configuration
	prev, _ := r.Prev()              // nil if prevResult cannot be read
	listed := hostEndNames(prev)
	unused := (keys.HostAccess == nil || keys.HostAccess == false) && len(listed) == 0
	if unused && prev != nil && r.Version >= types.V030 { // older results do not list interfaces
		return noWait, nil
	}
	host, err := nl.Open(r.HostNS)
	if err != nil {
		return noWait, err
	}
	names := append(hostNames(r.Attachment())[:1], listed...)
	if unused {
		l, err := host.Link(names[0])
		if err != nil || !createdFor(l, r.Attachment()) {
			return noWait, types.IgnoreNotExist(err)
		}
	}
	wait = noWait
	hostEnd, err := HostEnd(host, r.Attachment(), nil)
	if err == nil {
		names = append(names, hostEnd.Name)
		wait, err = host.DeleteLinkAsync(hostEnd)
	}
	return wait, errors.Join(types.IgnoreNotExist(err), deleteAccessRules(r, names))
}

// deleteAccessRules deletes the rules of the host ends with these names, and the rules of the attachment in the container. It
// uses new connections, because DeleteLinkAsync may still use the connection to the host.
func deleteAccessRules(r *skel.Request, hostEnds []string) error {
	host, container, err := nl.OpenBoth(r.HostNS, r.ContainerNS)
	if err != nil {
		return err
	}
	var errs []error
	remove := func(c *nl.Conn, rule nl.InputRule) {
		if err := c.DeleteInputRule(rule); !errors.Is(err, errors.ErrUnsupported) { // a kernel may lack IPv6
			errs = append(errs, err)
		}
	}
	slices.Sort(hostEnds)
	for _, name := range slices.Compact(hostEnds) {
		for _, rule := range prohibit(name) {
			remove(host, rule)
		}
	}
	if container == nil {
		return errors.Join(errs...)
	}
	rules, err := container.InputRules()
	for _, rule := range rules {
		if rule.Table == containerTable(r.Attachment()) {
			remove(container, rule)
		}
	}
	return errors.Join(append(errs, err)...)
}

// GCWithHostAccess executes GC for a plugin with the key hostAccess. It deletes the pairs of the network's attachments that
// are not valid, and the rules of all host ends that do not exist, and calls GC of the IPAM plugin.
func GCWithHostAccess(r *skel.Request) error {
	host, err := nl.Open(r.HostNS)
	if err != nil {
		return err
	}
	return ipam.GCWithLinks(r, func() error {
		errs := []error{VethGC(host, r.Conf.Name).Run(r.ValidAttachments())}
		rules, err := host.InputRules()
		for _, rule := range rules {
			if !slices.Contains(prohibit(rule.Interface), rule) || !IsHostEndName(rule.Interface) {
				continue
			}
			if _, lookupErr := host.Link(rule.Interface); errors.Is(lookupErr, fs.ErrNotExist) {
				errs = append(errs, host.DeleteInputRule(rule))
			}
		}
		return errors.Join(append(errs, err)...)
	})
}
