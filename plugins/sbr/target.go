package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// The protocol numbers of our rules and routes. iproute2's list of protocols (rt_protos) assigns them to
// no other program.
const (
	// protocolOurs is that of routes that the plugin made, and of rules to the configured table.
	protocolOurs = 112
	// protocolMoved is that of rules to a table of our own. Each route in that table that is not
	// protocolOurs was moved or copied there.
	protocolMoved = 113
)

const (
	// mainTable is the number of the table "main".
	mainTable = 254
	// firstTable is the lowest table that the plugin uses, as with the reference plugin.
	firstTable = 100
	// rulePriority is the priority of our rules. The kernel looks them up after its rule for VRFs (priority
	// 1000), and just before its rule for the main table (32766).
	rulePriority = 32765
)

// A target is the interface of an attachment, with the state that its container had when the call
// began.
type target struct {
	r    *skel.Request
	pod  *nl.Conn
	link nl.Link
	// baseTable has the routes of the interface without sbr: it is the main table, or that of its VRF.
	baseTable int
	addrs     []nl.Addr
	routes    []nl.FullRoute // through the interface, of all tables
	rules     []nl.Rule      // of the attachment
}

// newTarget reads the state. The error matches fs.ErrNotExist if the container has no such interface.
func newTarget(r *skel.Request, pod *nl.Conn) (*target, error) {
	link, err := pod.Link(r.IfName)
	if err != nil {
		return nil, err
	}
	t := &target{r: r, pod: pod, link: link, baseTable: mainTable}
	if err := t.findBaseTable(); err != nil {
		return nil, err
	}
	if t.addrs, err = pod.Addrs(link); err != nil {
		return nil, err
	}
	if t.routes, err = pod.FullRoutes(link); err != nil {
		return nil, err
	}
	rules, err := pod.SourceRules()
	for _, rule := range rules {
		if t.owns(rule) {
			t.rules = append(t.rules, rule)
		}
	}
	return t, err
}

// findBaseTable sets baseTable to the table of the VRF, if the interface is in one.
func (t *target) findBaseTable() error {
	if t.link.Master == 0 {
		return nil
	}
	master, err := t.pod.LinkByIndex(t.link.Master)
	if err == nil && master.Kind == "vrf" {
		t.baseTable = master.VRFTable
	}
	return err
}

// owns reports whether a rule belongs to the attachment: the source is an address of the interface,
// and plumb or the reference plugin made the rule.
func (t *target) owns(rule nl.Rule) bool {
	return rule.Source.IsSingleIP() && (isMarked(rule) || t.isReferenceMade(rule)) &&
		t.hasAddr(rule.Source.Addr())
}

// isMarked reports whether plumb made the rule.
func isMarked(rule nl.Rule) bool {
	return rule.Protocol == protocolOurs || rule.Protocol == protocolMoved
}

// isReferenceMade reports whether the rule looks like one of the reference plugin, which sets no
// protocol: it leads to the configured table, or to one with routes through the interface.
func (t *target) isReferenceMade(rule nl.Rule) bool {
	if rule.Protocol != 0 {
		return false
	}
	ownTable := rule.Table >= firstTable && rule.Table != mainTable && len(t.routesIn(rule.Table)) > 0
	return ownTable || rule.Table != 0 && rule.Table == configuredTable(t.r)
}

// ruleOf returns the rule for an address, and whether there is one.
func (t *target) ruleOf(a netip.Addr) (nl.Rule, bool) {
	for _, rule := range t.rules {
		if rule.Source.Addr() == a {
			return rule, true
		}
	}
	return nl.Rule{}, false
}

// routesIn returns the routes through the interface in a table.
func (t *target) routesIn(table int) []nl.FullRoute {
	var routes []nl.FullRoute
	for _, r := range t.routes {
		if r.Table == table {
			routes = append(routes, r)
		}
	}
	return routes
}

// sources returns the IPs of the interface in prevResult. It is an error if there are none.
func sources(r *skel.Request) ([]types.IP, error) {
	prev, err := r.MustPrev()
	if err != nil {
		return nil, err
	}
	ips := attach.IPsOf(prev, r.IfName)
	if len(ips) == 0 {
		return nil, types.Errorf(types.CodeConfig, "no IP addresses supplied on interface: %s; list sbr after the plugin that assigns addresses", r.IfName)
	}
	return ips, nil
}

// requireAddrs returns an error that names the IPs of prevResult that the interface does not have.
func (t *target) requireAddrs(ips []types.IP) error {
	var errs []error
	for _, ip := range ips {
		if !t.hasAddr(ip.Address.Addr()) {
			errs = append(errs, fmt.Errorf("prevResult has %s, which %s does not have; list sbr after the plugin that assigns addresses, and correct the plugin that changed prevResult or the addresses",
				ip.Address, t.link.Name))
		}
	}
	return errors.Join(errs...)
}

// hasAddr reports whether the interface has an address.
func (t *target) hasAddr(a netip.Addr) bool {
	return slices.ContainsFunc(t.addrs, func(has nl.Addr) bool { return has.Prefix.Addr() == a })
}

// hostPrefix returns the prefix that has the address only.
func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
