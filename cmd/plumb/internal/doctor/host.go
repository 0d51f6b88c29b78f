package doctor

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/plugins"
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A host compares configurations with each other and with the interfaces, routes and chains of the host, because a plugin sees
// only its own network.
type host struct {
	ns     *ns.Handle
	conn   *nl.Conn
	links  []nl.Link
	report *Report

	ruleset func() *ruleset // readRuleset, which it calls once
}

func openHost(h *ns.Handle, r *Report) (host, error) {
	c, err := nl.Open(h)
	if err != nil {
		return host{}, err
	}
	links, err := c.Links()
	opened := host{ns: h, conn: c, links: links, report: r}
	opened.ruleset = sync.OnceValue(opened.readRuleset)
	return opened, err
}

// sets returns the range sets of the plugin if its IPAM plugin is host-local or cluster-local. It ignores errors,
// because STATUS reports them.
func (p plugin) sets() []pool.Set {
	if p.IPAMType != "host-local" && p.IPAMType != "cluster-local" {
		return nil
	}
	_, sets, _ := pool.ParseIPAM(p.IPAM)
	return sets
}

// subnets returns the valid subnets of the range sets.
func (p plugin) subnets() (all []netip.Prefix) {
	var keys pool.Keys
	if p.sets() == nil || json.Unmarshal(p.IPAM, &keys) != nil {
		return nil
	}
	for _, s := range append(slices.Concat(keys.Ranges...), keys.RangeKeys) {
		if prefix, err := types.ParseCIDR(s.Subnet); err == nil {
			all = append(all, prefix.Masked())
		}
	}
	return all
}

func (f *file) subnets() (all []netip.Prefix) {
	for _, p := range f.plugins {
		all = append(all, p.subnets()...)
	}
	return all
}

// isRouted reports whether the host routes to the containers of a plugin.
func (p plugin) isRouted() bool {
	return p.Type == "ptp" || p.Type == "bridge" && (p.IsGateway || p.IsDefaultGateway)
}

// segment returns a name for the L2 segment of the plugin's containers.
func (p plugin) segment() string {
	if p.Type == "bridge" {
		return fmt.Sprintf("bridge %s vlan %d", p.BridgeName(), p.VLAN)
	}
	return fmt.Sprintf("master %s vlan %d", p.Master, p.VLANID)
}

// meets reports whether an address may exist only once in the networks of both plugins, because the host routes to both
// or they are on one L2 segment.
func (p plugin) meets(o plugin) bool {
	return p.isRouted() && o.isRouted() || p.segment() == o.segment()
}

// findOverlaps finds networks with overlapping ranges, if the host routes to both networks or both are on one L2 segment.
func findOverlaps(files []*file, add addFunc) {
	type span struct {
		pool.Range
		plugin
	}
	var all []span
	for _, p := range pluginsOf(usable(files)) {
		for _, set := range p.sets() {
			for _, r := range set.Ranges {
				i := slices.IndexFunc(all, func(o span) bool {
					return o.file != p.file && o.Overlaps(r) && p.meets(o.plugin)
				})
				if i >= 0 {
					o := all[i]
					add(p.where("ipam"), p.file.edit("change the range, or the range in %s", o.file.path),
						"the range %s to %s of the network %q overlaps with %s to %s of %q (%s), so that two containers can get the same address",
						r.First, r.Last, p.file.name(), o.First, o.Last, o.file.name(), o.file.path)
				}
				all = append(all, span{r, p})
			}
		}
	}
}

// findRoutes finds routes of the main table through foreign interfaces to addresses to which the host routes through bridge or ptp.
func (h host) findRoutes(files []*file, add addFunc) {
	for _, l := range h.links {
		routes, err := h.conn.Routes(l)
		h.report.failed("routes of "+l.Name, types.IgnoreNotExist(err))
		addrs, err := h.conn.Addrs(l)
		h.report.failed("addresses of "+l.Name, types.IgnoreNotExist(err))
		for _, r := range routes {
			for _, p := range pluginsOf(usable(files)) {
				i := slices.IndexFunc(p.subnets(), func(s netip.Prefix) bool { return contains(s, r.Dst) })
				if i < 0 || r.Table != 0 && r.Table != unix.RT_TABLE_MAIN || !p.isRouted() || h.forwardsTo(p, l) {
					continue
				}
				fix, remove := p.file.edit("choose another subnet"), run("ip", "route", "delete", r.Dst.String(), "dev", l.Name)
				switch {
				case slices.ContainsFunc(pluginsOf(files), func(other plugin) bool { return h.forwardsTo(other, l) }):
				case slices.ContainsFunc(addrs, func(a nl.Addr) bool { return a.Prefix.Masked() == r.Dst }): // it is the host's own network
					fix = withAdvice(fix, replaceContainers)
				case slices.ContainsFunc(h.links, func(l nl.Link) bool { _, owned := attach.OwnerOf(l, p.file.name()); return owned }):
					fix = withAdvice(remove, "If another program needs the route, choose another subnet in %s instead, and replace the containers.", p.file.path)
				default:
					fix = withAdvice(fix, "If nothing needs the route, run this instead: %s", remove.Fix)
				}
				p.file.explained = true // without the route, CHECK may find nothing
				add(p.where("ipam"), fix, "the host has a route to %s on %s, and sends packets for containers in %s there",
					r.Dst, l.Name, p.subnets()[i])
			}
		}
	}
}

// findRefusals finds policy rules that refuse all packets from or to containers of bridge and ptp.
func (h host) findRefusals(files []*file, add addFunc) {
	rules, err := h.conn.RefusingRules()
	h.report.failed("policy rules", err)
	for _, r := range rules {
		for _, p := range pluginsOf(usable(files)) {
			refuses := func(s netip.Prefix) bool { return contains(r.Source, s) || contains(r.Destination, s) }
			if !p.isRouted() || !slices.ContainsFunc(p.subnets(), refuses) && (r.Interface == "" || r.Interface != p.BridgeName()) {
				continue
			}
			p.file.explained = true // CHECK reports what the host cannot reach
			add(onHost, run(r.Delete()...), "the policy rule \"%s\" (priority %d) refuses the packets of containers of network %q", r, r.Priority, p.file.name())
		}
	}
	h.findOtherTables(files, add)
}

// findOtherTables finds networks of bridge for whose packets a policy rule selects another table than main, in which they are
// refused or, for example by a VPN, sent through another interface. findRoutes has found routes of the main table that do so.
func (h host) findOtherTables(files []*file, add addFunc) {
	for _, p := range pluginsOf(usable(files)) {
		l, found := h.link(p.BridgeName())
		if !found || !l.Up || !p.isRouted() || p.VLAN != 0 {
			continue
		}
		for _, set := range p.sets() {
			addr := set.Ranges[0].Last
			if r := h.conn.DefaultRefusal(l, addr); r != nil && r.Table != nl.MainTable {
				add(onHost, run(r.Delete()...), "the %s refuses the packets of containers of network %q", r, p.file.name())
			}
			h.findDiverted(p, l, addr, add)
		}
	}
}

// findDiverted finds that packets for an address, to which the main table has a route through the bridge, leave through another
// interface.
func (h host) findDiverted(p plugin, bridge nl.Link, addr netip.Addr, add addFunc) {
	routes, err := h.conn.Routes(bridge)
	h.report.failed("routes of "+bridge.Name, err)
	i := slices.IndexFunc(routes, func(r nl.Route) bool { return r.Dst.Contains(addr) && r.Dst.Bits() > 0 && r.Table == nl.MainTable })
	through, err := h.conn.LinkTo(addr)
	if i < 0 || err != nil || through.Index == bridge.Index {
		return
	}
	command, err := h.conn.AddRuleToMain(routes[i].Dst)
	h.report.failed("policy rules", err)
	p.file.explained = true
	add(onHost, withAdvice(run(command...), "Run it again after each restart of the host."),
		"a policy rule selects another table than main for packets to containers of network %q, so that they leave through %s", p.file.name(), through.Name)
}

// link returns the link with this name.
func (h host) link(name string) (l nl.Link, found bool) {
	i := slices.IndexFunc(h.links, func(l nl.Link) bool { return l.Name == name })
	if i < 0 {
		return nl.Link{}, false
	}
	return h.links[i], true
}

// forwardsTo reports whether a link forwards packets to containers of the network. This is the case for host ends, the
// bridge, VLAN interfaces of the bridge, and a renamed bridge.
func (h host) forwardsTo(p plugin, l nl.Link) bool {
	bridge := p.BridgeName()
	return attach.CreatedByPlumb(l) || l.Name == h.bridgeOf(p.file.name(), bridge) ||
		bridge != "" && (l.Name == bridge || strings.HasPrefix(l.Name, bridge+"."))
}

// bridgeOf returns the name of the bridge whose ports are host ends of the network, or "". It prefers the bridge of the
// configuration, because another program may have moved single host ends.
func (h host) bridgeOf(network, configured string) (name string) {
	for _, l := range h.links {
		if _, owned := attach.OwnerOf(l, network); !owned || l.Master == 0 {
			continue
		}
		i := slices.IndexFunc(h.links, func(b nl.Link) bool { return b.Index == l.Master && b.Kind == "bridge" })
		if i < 0 {
			continue
		}
		if name = h.links[i].Name; name == configured {
			break
		}
	}
	return name
}

// findRenamed finds host ends that another program has renamed, because no plugin finds them.
func (h host) findRenamed(files []*file, add addFunc) {
	for _, l := range h.links {
		owner, created, complete := attach.ParseAlias(l)
		if !created || !complete || l.Kind != "veth" || attach.HasHostEndForm(l.Name) || attach.IsAccessEnd(l.Name) {
			continue
		}
		for _, f := range files {
			f.explained = f.explained || f.name() == owner.Network // CHECK does not find the host end
		}
		name := attach.NameOfHostEnd(owner)
		add(onHost, withAdvice(rename(l, name), "Then run plumb repair, because the kernel deletes the routes through an interface that is set down."), "the host end of container %s, interface %s, has the name %s in place of %s", owner.ContainerID, owner.IfName, l.Name, name)
	}
}

// rename returns the command that renames a link, and changes more of it. Before Linux 6.2, the kernel does not rename a link
// that is up.
func rename(l nl.Link, name string, more ...string) plugins.Solution {
	fix := run(append([]string{"ip", "link", "set", "dev", l.Name, "name", name}, more...)...)
	if l.Up {
		fix.Fix = types.Command("ip", "link", "set", "dev", l.Name, "down") + " && " + fix.Fix + " && " + types.Command("ip", "link", "set", "dev", name, "up")
	}
	return fix
}

// findBridges finds networks whose containers are not on the bridge that the configuration names.
func (h host) findBridges(files []*file, add addFunc) {
	for _, p := range pluginsOf(usable(files)) {
		name, other := p.BridgeName(), h.bridgeOf(p.file.name(), p.BridgeName())
		if name == "" || other == "" || other == name {
			continue
		}
		p.file.explained = true
		fix := withAdvice(p.file.edit("write \"bridge\": %q", other), "If the bridge was renamed and not the file edited, rename %s to %s instead.", other, name)
		add(p.file.where(p.at), fix, "the bridge of network %q is %s, but its containers are on %s, so that new containers do not reach them",
			p.file.name(), name, other)
	}
}

// findGateways finds bridges on which ADD cannot add the gateway of a range, because they have another address.
func (h host) findGateways(files []*file, add addFunc) {
	for _, p := range pluginsOf(usable(files)) {
		l, found := h.link(p.BridgeName())
		if !found || !p.isRouted() || p.ForceAddress || p.VLAN != 0 {
			continue
		}
		addrs, err := h.conn.Addrs(l)
		h.report.failed("addresses of "+l.Name, err)
		var all []netip.Prefix
		for _, set := range p.sets() {
			all = append(all, set.Gateways...)
		}
		for _, set := range p.sets() {
			together := slices.DeleteFunc(slices.Clone(all), func(gw netip.Prefix) bool { return slices.Contains(set.Gateways, gw) })
			for _, gw := range set.Gateways {
				if i := slices.IndexFunc(addrs, func(a nl.Addr) bool { return conflicts(a.Prefix, gw) && !slices.Contains(together, a.Prefix) }); i >= 0 {
					p.addGateway(addrs[i].Prefix, gw, add)
				}
			}
		}
	}
}

// conflicts reports whether ADD of bridge must replace an address of the bridge by the gateway. An IPv6 address in another subnet
// can stay.
func conflicts(address, gateway netip.Prefix) bool {
	isV4 := gateway.Addr().Is4()
	return address.Addr().Is4() == isV4 && address != gateway && (isV4 || address.Overlaps(gateway))
}

// addGateway adds the finding for an address of the bridge that conflicts with a gateway.
func (p plugin) addGateway(has, gateway netip.Prefix, add addFunc) {
	fix := p.file.edit("set \"forceAddress\": true in bridge")
	if has.Addr() != gateway.Addr() {
		fix = withAdvice(p.file.edit("use a subnet with the gateway %s", has.Addr()),
			"With \"forceAddress\": true, ADD would replace %s, and containers with this gateway would lose it.", has)
	}
	add(p.where("ipam"), fix, "%s has the address %s, so that ADD cannot add the gateway %s of %s", p.BridgeName(), has, gateway, gateway.Masked())
}

// findMasters finds masters that are down. STATUS reports masters that do not exist.
func (h host) findMasters(files []*file, add addFunc) {
	for _, p := range pluginsOf(files) {
		i := slices.IndexFunc(h.links, func(l nl.Link) bool { return l.Name == p.Master || slices.Contains(l.AltNames, p.Master) })
		if i >= 0 && !h.links[i].Up && p.HasMaster() {
			add(p.where("master"), run("ip", "link", "set", "dev", h.links[i].Name, "up"),
				"master %s is down, so that containers send and receive nothing", p.Master)
		}
	}
}

// findUplink finds that the interface of the default route does not forward IPv4 packets, although the host forwards others. An
// administrator or systemd-networkd can have set this. For IPv6, the kernel has no such setting (ip6_forward).
func (h host) findUplink(files []*file, add addFunc) {
	isRouted := func(p plugin) bool { // and its containers send packets to other hosts
		return p.isRouted() && (p.IPMasq || p.IsDefaultGateway || bytes.Contains(p.IPAM, []byte(`"0.0.0.0/0"`))) &&
			slices.ContainsFunc(p.subnets(), func(s netip.Prefix) bool { return s.Addr().Is4() })
	}
	index, err := h.conn.DefaultDevice()
	h.report.failed("default route", err)
	i := slices.IndexFunc(h.links, func(l nl.Link) bool { return l.Index == index })
	if i < 0 || !slices.ContainsFunc(pluginsOf(usable(files)), isRouted) {
		return
	}
	setting := sysctl.Setting{Key: sysctl.IPv4(h.links[i].Name, "forwarding"), Value: "1"}
	if sysctl.Diff(h.ns, sysctl.Setting{Key: "net/ipv4/ip_forward", Value: "1"}) == nil && sysctl.Diff(h.ns, setting) != nil {
		add(onHost, withAdvice(run("sysctl", "-w", setting.Key+"="+setting.Value), "Look in /etc/sysctl.d and in the configuration of the network for what sets it to 0."),
			"the default route goes through %s, and %s is 0, so that containers get no packets from other hosts", h.links[i].Name, setting.Key)
	}
}

// findMTUs finds containers whose interface has a larger MTU than its host end, which then drops large packets (__dev_forward_skb).
func (h host) findMTUs(s *state, add addFunc) {
	for _, a := range s.live() {
		h.report.failed("interface of container "+a.ContainerID, types.IgnoreNotExist(h.compareMTUs(a, add)))
	}
}

// compareMTUs adds the finding for one attachment. If it has no pair, the error matches fs.ErrNotExist.
func (h host) compareMTUs(a *node.Attachment, add addFunc) error {
	outer, err := attach.HostEnd(h.conn, a.ID(), nil)
	if err != nil {
		return err
	}
	container, err := ns.Open(a.NetNS, nil)
	if err != nil {
		return err
	}
	defer func() { _ = container.Close() }()
	c, err := nl.Open(container)
	if err != nil {
		return err
	}
	inner, err := c.Link(a.IfName)
	if err == nil && inner.MTU > outer.MTU {
		fix := plugins.Solution{Fix: container.Command("ip", "link", "set", "dev", a.IfName, "mtu", fmt.Sprint(outer.MTU))}
		add(onHost, withAdvice(fix, "If the list sets the MTU in tuning, set it in the plugin that creates the interface as well."),
			"container %s, interface %s, network %s has MTU %d, and its host end %s has %d and drops larger packets", a.ContainerID, a.IfName, a.Network, inner.MTU, outer.Name, outer.MTU)
	}
	return err
}

// linkKinds lists the kinds of links that each plugin creates.
var linkKinds = map[string][]string{
	"bridge": {"bridge", "veth"}, "ptp": {"veth"}, "macvlan": {"macvlan"}, "ipvlan": {"ipvlan"}, "vlan": {"vlan"},
	"dummy": {"dummy"}, "vrf": {"vrf"}, "bandwidth": {"ifb"},
}

// findLinkKinds finds plugins that create links of a kind that the kernel lacks. It tries to create such links on lo without their
// parameters, which fails with EOPNOTSUPP if the kernel does not know the kind.
func (h host) findLinkKinds(files []*file, add addFunc) {
	users := map[string]string{} // from each kind to its first user
	for _, p := range pluginsOf(files) {
		for _, kind := range linkKinds[p.Type] {
			users[kind] = cmp.Or(users[kind], fmt.Sprintf("%s needs it (%s)", p.Type, p.file.where(p.at)))
		}
	}
	h.report.failed("kinds of links", inNewNamespace(func() {
		for _, kind := range slices.Sorted(maps.Keys(users)) {
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.ParentIndex = "probe-"+kind, 1 // netlink rejects an ipvlan without a parent
			if errors.Is(netlink.LinkAdd(&netlink.GenericLink{LinkAttrs: attrs, LinkType: kind}), unix.EOPNOTSUPP) {
				module := cmp.Or(map[string]string{"vlan": "8021q"}[kind], kind)
				add(inKernel, withAdvice(run("modprobe", module), "If there is no such module, install a kernel that contains it."), "the kernel has no links of kind %s: %s", kind, users[kind])
			}
		}
	}))
}

// inNewNamespace calls f in a new network namespace, which ends with the thread.
func inNewNamespace(f func()) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			f()
		}
	}()
	<-done
	return err
}

// findSysctls finds sysctls of the plugin tuning that do not exist in a new network namespace, where its ADD fails. For
// a key that names an interface, it looks at lo.
func (h host) findSysctls(files []*file, add addFunc) {
	for _, p := range pluginsOf(files) {
		keys := p.at.Get("sysctl").Members()
		if p.Type != "tuning" || len(keys) == 0 {
			continue
		}
		h.report.failed("sysctls", inNewNamespace(func() {
			for _, key := range keys {
				parts := strings.FieldsFunc(key.Key, func(r rune) bool { return r == '.' || r == '/' })
				if last := len(parts) - 1; last > 3 && (parts[2] == "conf" || parts[2] == "neigh") && parts[3] != "all" && parts[3] != "default" {
					parts = []string{parts[0], parts[1], parts[2], "lo", parts[last]}
				}
				if _, err := os.Stat(filepath.Join(append([]string{"/proc/sys"}, parts...)...)); errors.Is(err, os.ErrNotExist) {
					add(p.file.where(key), withAdvice(p.file.edit("correct or delete %s", key.Path), "Or load the kernel module that it needs."),
						"%s: no such sysctl in a container", key.Path)
				}
			}
		}))
	}
}

// findUnreachablePorts finds lists with portmap after a plugin whose interfaces are not connected to the host.
func findUnreachablePorts(files []*file, add addFunc) {
	for _, f := range usable(files) {
		i := slices.IndexFunc(f.plugins, func(p plugin) bool {
			return slices.Contains([]string{"macvlan", "ipvlan", "vlan", "host-device", "dummy"}, p.Type)
		})
		j := slices.IndexFunc(f.plugins, func(p plugin) bool { return p.Type == "portmap" })
		if i >= 0 && j > i && !slices.ContainsFunc(f.plugins, func(p plugin) bool { return p.Type == "bridge" || p.Type == "ptp" }) {
			add(f.plugins[j].where("type"), withAdvice(f.edit("remove portmap"), "Clients can connect to the address of the container. Host ports need bridge or ptp."),
				"portmap: no other host can connect to host ports of network %q, because interfaces of %s are not connected to the host",
				f.name(), f.plugins[i].Type)
		}
	}
}

// findIPv6 finds IPv6 subnets although IPv6 is disabled on the host or on a bridge. CHECK would find that all IPv6 addresses are
// missing, which no REPAIR can restore before.
func findIPv6(files []*file, add addFunc) {
	var with6 []plugin
	for _, p := range pluginsOf(files) {
		if slices.ContainsFunc(p.subnets(), func(s netip.Prefix) bool { return s.Addr().Is6() }) {
			with6 = append(with6, p)
		}
	}
	if len(with6) == 0 {
		return
	}
	first := with6[0].file
	value, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6")
	switch {
	case err != nil:
		add(inKernel, withAdvice(first.edit("remove the IPv6 subnet"), "Or boot without ipv6.disable=1."), "no IPv6, and %s contains an IPv6 subnet", first.path)
	case strings.TrimSpace(string(value)) == "1":
		add(inKernel, withAdvice(run("sysctl", "-w", "net.ipv6.conf.all.disable_ipv6=0"), "The kernel has deleted all IPv6 addresses. Configure those of the host again, and run plumb repair."),
			"IPv6 is disabled, and %s contains an IPv6 subnet", first.path)
	default:
		with6 = slices.DeleteFunc(with6, func(p plugin) bool {
			value, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + p.BridgeName() + "/disable_ipv6")
			return p.file.list == nil || p.file.explained || p.file.incomplete || err != nil || strings.TrimSpace(string(value)) != "1"
		})
		for _, p := range with6 {
			add(inKernel, run("sysctl", "-w", "net/ipv6/conf/"+p.BridgeName()+"/disable_ipv6=0"), "IPv6 is disabled on %s, and %s contains an IPv6 subnet", p.BridgeName(), p.file.path)
		}
	}
	for _, p := range with6 {
		p.file.explained = true
	}
}

// findForeignRules finds rules in plumb's tables that plumb did not add, because packets pass them before or after plumb's rules.
// A chain that contains only such rules, or that has none and drops packets by its policy, is not plumb's.
func (h host) findForeignRules(_ []*file, add addFunc) {
	c, err := nft.Open(h.ns)
	if errors.Is(err, nft.ErrUnavailable) {
		return
	}
	for _, l := range tables.All() {
		var chains []nft.ListedChain
		if err == nil {
			chains, err = c.Chains(l.Table)
		}
		h.report.failed("nftables", types.IgnoreNotExist(err))
		for _, ch := range chains {
			rules, err := c.Rules(l.Table, ch.Name)
			h.report.failed("rules of nftables", err)
			foreign := slices.DeleteFunc(slices.Clone(rules), nft.ListedRule.IsOfLayout)
			if len(foreign) == len(rules) {
				if len(rules) > 0 || ch.Discards {
					add(onHost, run("nft", fmt.Sprintf("flush chain %s %s; delete chain %[1]s %[2]s", l.Table, ch.Name)),
						"table %s contains the chain %s, which plumb did not add", l.Table, ch.Name)
				}
				continue
			}
			for _, r := range foreign {
				add(onHost, run("nft", "delete", "rule", l.Table.Family.String(), l.Table.Name, ch.Name, "handle", fmt.Sprint(r.Handle)),
					"table %s, chain %s contains a rule that plumb did not add (handle %d)", l.Table, ch.Name, r.Handle)
			}
		}
	}
}
