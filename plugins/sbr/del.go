package main

import (
	"errors"
	"io/fs"
	"slices"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
)

// del deletes the rules of the attachment, and moves the routes back. It needs neither prevResult
// nor a valid configuration.
func del(r *skel.Request) error {
	if r.Pod == nil {
		return nil
	}
	if err := r.LockPod(); err != nil {
		return err
	}
	pod, err := nl.Open(r.Pod)
	if err != nil {
		return err
	}
	t, err := newTarget(r, pod)
	if errors.Is(err, fs.ErrNotExist) {
		return deleteOrphans(pod)
	}
	if err != nil {
		return err
	}
	if attach.NamesOther(t.link, r.Attachment()) {
		return nil
	}
	prev, _ := r.Prev() // in DEL, Prev returns no error
	ips := attach.IPsOf(prev, r.IfName)
	table := configuredTable(r)
	var errs []error
	for _, rule := range t.rules {
		if hasSourceIn(ips, rule) && (isMarked(rule) || table == 0 || rule.Table == table) {
			errs = append(errs, t.release(rule, table))
		}
	}
	return errors.Join(append(errs, t.deleteOwn(t.baseTable), deleteOrphans(pod))...)
}

// hasSourceIn reports whether the source of a rule is one of ips, the IPs of prevResult. A rule with
// another source belongs to another container, whose namespace is now at the path. If ips is empty,
// the owner is not known, and hasSourceIn returns true.
func hasSourceIn(ips []types.IP, rule nl.Rule) bool {
	return len(ips) == 0 || slices.ContainsFunc(ips, func(ip types.IP) bool { return ip.Address.Addr() == rule.Source.Addr() })
}

// release deletes a rule. If the rule leads to a table of our own, release first moves the routes of that
// table back: a later DEL could not find them without the rule. If the interface is in a VRF, release
// only deletes them, because the table of the VRF still has them. tableKey is the key "table". If the
// key is set, a rule of the reference plugin does not lead to a table of our own.
func (t *target) release(rule nl.Rule, tableKey int) error {
	if rule.Protocol == protocolMoved || rule.Protocol == 0 && tableKey == 0 {
		routes := t.routesIn(rule.Table)
		moved := slices.DeleteFunc(slices.Clone(routes), func(r nl.FullRoute) bool { return r.Protocol == protocolOurs })
		for i := range moved {
			moved[i] = moved[i].In(t.baseTable)
		}
		if t.baseTable == mainTable {
			if err := t.restore(moved); err != nil {
				return err
			}
		}
		for _, r := range routes {
			if err := t.pod.DeleteFullRoute(r); err != nil {
				return err
			}
		}
	}
	return t.pod.DeleteRule(rule)
}

// restore adds routes that are missing.
func (t *target) restore(routes []nl.FullRoute) error {
	var errs []error
	var notUndone undo.Stack // dropped, because restored routes stay
	for _, r := range routes {
		errs = append(errs, t.pod.EnsureFullRoute(&notUndone, r))
	}
	return errors.Join(errs...)
}

// deleteOwn deletes the routes that the plugin made in a table.
func (t *target) deleteOwn(table int) error {
	var errs []error
	for _, r := range t.routesIn(table) {
		if r.Protocol == protocolOurs {
			errs = append(errs, t.pod.DeleteFullRoute(r))
		}
	}
	return errors.Join(errs...)
}

// deleteOrphans deletes the rules that plumb made for addresses that the container no longer has,
// because their interface was removed. The kernel has deleted the routes of that interface.
func deleteOrphans(pod *nl.Conn) error {
	rules, err := pod.SourceRules()
	errs := []error{err}
	for _, rule := range rules {
		if !isMarked(rule) {
			continue
		}
		addrs, err := pod.LocalAddrs(rule.Source.Addr())
		if err == nil && !slices.Contains(addrs, rule.Source.Addr()) {
			err = pod.DeleteRule(rule)
		}
		errs = append(errs, types.IgnoreNotExist(err))
	}
	return errors.Join(errs...)
}
