package main

import (
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

// The protocol numbers of the rules and routes that sbr creates. iproute2's list of protocols (rt_protos)
// assigns them to no other program.
const (
	// protocolSBR is the protocol of added routes, and of rules that look up the configured table.
	protocolSBR = 112
	// protocolTable is the protocol of rules that look up a table that sbr chose, and of the record in this
	// table. The record is a route to the IP, which lets DEL find the table if the rule or the address is
	// gone. It has no effect on packets, because the kernel finds local addresses in the table "local" first.
	protocolTable = 113
)

const (
	// firstTable is the lowest table that sbr chooses, as in the reference plugin.
	firstTable = 100
	// rulePriority is the priority of the rules. The kernel evaluates them after its rule for VRFs (priority
	// 1000), and just before its rule for the main table (32766).
	rulePriority = 32765
)

// A target is the interface of an attachment, with its container's state at the start of the call.
type target struct {
	conf *config
	prev *types.Result
	ips  []types.IP // the interface's IPs in prevResult

	container *nl.Conn
	link      nl.Link // zero in DEL if the interface is gone
	// baseTable is the table that contains the interface's routes without sbr, which is the main table or the
	// table of its VRF.
	baseTable     int
	addrs         []nl.Addr
	routes        []nl.FullRoute // routes through the interface, in all tables
	rules         []nl.Rule      // the existing rules for the interface
	missingRules  []nl.Rule      // deleted rules whose tables still contain a record
	orphanedRules []nl.Rule      // plumb's rules for addresses that are no longer assigned to an interface
}

// newTarget reads the state for ADD and CHECK. The code applies to the errors for an interface that differs
// from prevResult.
func newTarget(r *skel.Request, conf *config, code uint) (*target, error) {
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
	if t.link.Index != 0 {
		if err := attach.RequireOwnLink(r, t.container, t.link); err != nil {
			return nil, err
		}
	}
	return t, types.Coded(code, t.requireAddrs(r.IfName))
}

// requireAddrs returns an error that names the IPs of prevResult that the interface lacks.
func (t *target) requireAddrs(ifName string) error {
	if t.link.Index == 0 {
		return types.MissingLink(ifName).Errorf("the container has no interface %s; list sbr after the plugin that creates it", ifName)
	}
	var errs []error
	for _, ip := range t.ips {
		if !t.hasAddr(ip.Address.Addr()) {
			errs = append(errs, fmt.Errorf("%s from prevResult is not an address of %s; list sbr after the plugin that assigns addresses, and correct the plugin that changed prevResult or the addresses",
				ip.Address, ifName))
		}
	}
	return errors.Join(errs...)
}

func (t *target) hasAddr(a netip.Addr) bool {
	return slices.ContainsFunc(t.addrs, func(assigned nl.Addr) bool { return assigned.Prefix.Addr() == a })
}

// read locks the container and reads its state. The interface may be missing.
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

// readRules sets t.rules, t.missingRules and t.orphanedRules.
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
		case slices.Contains(recorded, rule), t.hasAddr(rule.Source) && (isMarked(rule.Protocol) || t.isReferenceRule(rule)):
			t.rules = append(t.rules, rule)
		case isMarked(rule.Protocol) && !slices.Contains(local, rule.Source):
			t.orphanedRules = append(t.orphanedRules, rule)
		}
	}
	t.missingRules = slices.DeleteFunc(recorded, func(rule nl.Rule) bool { return slices.Contains(t.rules, rule) })
	return err
}

func newRule(source netip.Addr, table, protocol int) nl.Rule {
	return nl.Rule{Source: source, Table: table, Priority: rulePriority, Protocol: protocol}
}

// isMarked reports whether plumb created a rule or route with this protocol.
func isMarked(protocol int) bool { return protocol == protocolSBR || protocol == protocolTable }

// isReferenceRule reports whether the reference plugin may have created the rule of an address. It sets no protocol,
// and its rules look up the configured table or, if none is configured, a table with routes through the interface.
func (t *target) isReferenceRule(rule nl.Rule) bool {
	if rule.Protocol != 0 || t.conf.table != 0 {
		return rule.Protocol == 0 && rule.Table == t.conf.table
	}
	return rule.Table >= firstTable && rule.Table != nl.MainTable && len(t.routesIn(rule.Table)) > 0
}

// hasOwnTable reports whether a rule of the attachment looks up a table that sbr chose.
func (t *target) hasOwnTable(rule nl.Rule) bool {
	return rule.Protocol == protocolTable || rule.Protocol == 0 && t.conf.table == 0
}

// routesIn returns the routes through the interface in a table.
func (t *target) routesIn(table int) []nl.FullRoute {
	return slices.DeleteFunc(slices.Clone(t.routes), func(r nl.FullRoute) bool { return r.Table != table })
}
