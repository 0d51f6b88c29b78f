package main

import (
	"errors"
	"fmt"
	"io/fs"
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
	// protocolOurs is the protocol of routes that the plugin created, and of rules to the configured table.
	protocolOurs = 112
	// protocolTable is the protocol of rules to a table of our own, and of the record in this table: a route to
	// the IP. The record has no effect, because the kernel looks its own addresses up in the table
	// "local" first. DEL finds the table by it if the rule or the address is gone.
	protocolTable = 113
)

const (
	// firstTable is the lowest table that the plugin uses, as with the reference plugin.
	firstTable = 100
	// rulePriority is the priority of our rules. The kernel looks them up after its rule for VRFs (priority
	// 1000), and just before its rule for the main table (32766).
	rulePriority = 32765
)

// A target is the interface of an attachment, with the state that its container had when the call
// began.
type target struct {
	conf *config
	prev *types.Result
	ips  []types.IP // of the interface in prevResult

	container *nl.Conn
	link      nl.Link // zero in DEL if the interface is gone
	// baseTable has the routes of the interface without sbr: the main table, or the table of its VRF.
	baseTable int
	addrs     []nl.Addr
	routes    []nl.FullRoute // through the interface, of all tables
	rules     []nl.Rule      // of the interface
	missing   []nl.Rule      // those whose table has a record, but which somebody deleted
	orphaned  []nl.Rule      // that plumb created for addresses that no interface has any more
}

// newTarget reads the configuration and the state for ADD and CHECK. If the interface is not as prevResult
// says, the error has the code.
func newTarget(r *skel.Request, code uint) (*target, error) {
	conf, err := parse(r)
	if err != nil {
		return nil, err
	}
	prev, err := r.RequirePrev()
	if err != nil {
		return nil, err
	}
	t := &target{conf: conf, prev: prev, ips: attach.IPsOf(prev, r.IfName)}
	if len(t.ips) == 0 {
		return nil, types.Errorf(types.CodeConfig, "no IP addresses supplied on interface: %s; list sbr after the plugin that assigns addresses", r.IfName)
	}
	if err := t.read(r); err != nil {
		return nil, err
	}
	return t, types.Coded(code, t.requireAddrs(r.IfName))
}

// requireAddrs returns an error that names the IPs of prevResult that the interface does not have.
func (t *target) requireAddrs(ifName string) error {
	if t.link.Index == 0 {
		return fmt.Errorf("the container has no interface %s; list sbr after the plugin that makes it", ifName)
	}
	var errs []error
	for _, ip := range t.ips {
		if !t.hasAddr(ip.Address.Addr()) {
			errs = append(errs, fmt.Errorf("prevResult has %s, which %s does not have; list sbr after the plugin that assigns addresses, and correct the plugin that changed prevResult or the addresses",
				ip.Address, ifName))
		}
	}
	return errors.Join(errs...)
}

// hasAddr reports whether the interface has an address.
func (t *target) hasAddr(a netip.Addr) bool {
	return slices.ContainsFunc(t.addrs, func(has nl.Addr) bool { return has.Prefix.Addr() == a })
}

// read locks the container and reads its state. It is no error if the container has no such interface.
func (t *target) read(r *skel.Request) error {
	if err := r.LockContainer(); err != nil {
		return err
	}
	var err error
	if t.container, err = nl.Open(r.ContainerNS); err != nil {
		return err
	}
	t.link, err = t.container.Link(r.IfName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return t.readRules()
	case err != nil:
		return err
	}
	if t.baseTable, err = t.container.TableOf(t.link); err != nil {
		return err
	}
	if t.addrs, err = t.container.Addrs(t.link); err != nil {
		return err
	}
	if t.routes, err = t.container.FullRoutes(t.link); err != nil {
		return err
	}
	return t.readRules()
}

// readRules finds the rules of the interface, and the orphaned ones.
func (t *target) readRules() error {
	local, err := t.container.LocalAddrs(netip.Addr{})
	if err != nil {
		return err
	}
	var recorded []nl.Rule
	for _, r := range t.routes {
		if r.Protocol == protocolTable {
			recorded = append(recorded, newRule(r.Dst.Addr(), r.Table, protocolTable))
		}
	}
	rules, err := t.container.SourceRules()
	for _, rule := range rules {
		switch {
		case slices.Contains(recorded, rule), t.hasAddr(rule.Source) && (isMarked(rule.Protocol) || t.isReferenceMade(rule)):
			t.rules = append(t.rules, rule)
		case isMarked(rule.Protocol) && !slices.Contains(local, rule.Source):
			t.orphaned = append(t.orphaned, rule)
		}
	}
	t.missing = slices.DeleteFunc(recorded, func(rule nl.Rule) bool { return slices.Contains(t.rules, rule) })
	return err
}

func newRule(source netip.Addr, table, protocol int) nl.Rule {
	return nl.Rule{Source: source, Table: table, Priority: rulePriority, Protocol: protocol}
}

// isMarked reports whether a rule or route with this protocol was created by plumb.
func isMarked(protocol int) bool { return protocol == protocolOurs || protocol == protocolTable }

// isReferenceMade reports whether the rule of an address looks like one of the reference plugin, which
// sets no protocol: it leads to the configured table or, if none is configured, to one with routes through
// the interface.
func (t *target) isReferenceMade(rule nl.Rule) bool {
	if rule.Protocol != 0 || t.conf.table != 0 {
		return rule.Protocol == 0 && rule.Table == t.conf.table
	}
	return rule.Table >= firstTable && rule.Table != nl.MainTable && len(t.routesIn(rule.Table)) > 0
}

// hasOwnTable reports whether a rule of the attachment leads to a table that sbr has chosen.
func (t *target) hasOwnTable(rule nl.Rule) bool {
	return rule.Protocol == protocolTable || rule.Protocol == 0 && t.conf.table == 0
}

// routesIn returns the routes through the interface in a table.
func (t *target) routesIn(table int) []nl.FullRoute {
	return slices.DeleteFunc(slices.Clone(t.routes), func(r nl.FullRoute) bool { return r.Table != table })
}
