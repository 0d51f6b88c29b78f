package attach

import (
	"cmp"
	"errors"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// Restore adds to a link what it lacks of the Spec, and sets it up, for REPAIR. See RestoreRoute for the routes.
func Restore(c *nl.Conn, l nl.Link, s Spec) error {
	if err := sysctl.Ensure(c.NS(), s.Sysctls...); err != nil {
		return err
	}
	for _, a := range s.Addrs {
		if err := c.AddAddr(l, a); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if !l.Up {
		if err := c.SetUp(l); err != nil {
			return err
		}
	}
	var errs []error
	for _, r := range s.Routes {
		errs = append(errs, RestoreRoute(c, l, r, r.Dst.Addr()))
	}
	return errors.Join(errs...)
}

// RestoreRoute adds a route through l if DiffRoute misses it. addr is an address in its destination. If packets for addr
// leave through another interface by a route that is at least as specific, RestoreRoute does nothing, because the
// address may belong to another attachment now. It also keeps such a route that refuses the packets.
func RestoreRoute(c *nl.Conn, l nl.Link, r nl.Route, addr netip.Addr) error {
	if DiffRoute(c, l, r.Dst, addr) == nil {
		return nil
	}
	through, err := c.LinkTo(addr)
	var refusing *nl.RefusingRoute
	if types.IgnoreNotExist(err) != nil || errors.As(err, &refusing) && refusing.Dst.Bits() >= r.Dst.Bits() {
		return types.IgnoreNotExist(err)
	}
	if err == nil && through.Index != l.Index {
		others, err := c.Routes(through)
		overrides := func(o nl.Route) bool { return o.Dst.Contains(addr) && o.Dst.Bits() >= r.Dst.Bits() }
		if err != nil || slices.ContainsFunc(others, overrides) {
			return err
		}
	}
	if err := c.AddRoute(l, r); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// RepairContainerLink executes REPAIR for an interface that exists only in the container. It calls REPAIR of the IPAM
// plugin and RestoreContainer.
func RepairContainerLink(r *skel.Request, kind string, dad DADMode) error {
	prev, err := r.RequirePrev()
	if err != nil {
		return err
	}
	return errors.Join(ipam.Repair(r), RestoreContainer(r, prevSpec(r, prev, kind, dad)))
}

// prevSpec returns the Spec of an interface that exists only in the container, for the addresses and routes of prev.
func prevSpec(r *skel.Request, prev *types.Result, kind string, dad DADMode) Spec {
	s := ContainerSpec(r.IfName, dad, IPsOf(prev, r.IfName), prev.Routes)
	s.Kind = kind
	return s
}

// RestoreContainer adds to the container's interface what it lacks of the Spec, and sets it up, if
// Request.RepairsContainer. It waits for duplicate address detection like ADD (see AwaitDAD). It changes nothing if CHECK
// of the IPAM plugin fails, because another container may have the addresses, or if prevResult does not contain the
// interface in CNI_NETNS. It keeps the MAC and the MTU, which CHECK does not compare.
func RestoreContainer(r *skel.Request, s Spec) error {
	if !r.RepairsContainer() || ipam.StartCheck(r)() != nil || requireInPrev(r) != nil { // CHECK reports the error
		return nil
	}
	c, l, err := nl.OpenLink(r.ContainerNS, r.IfName)
	if err != nil || s.Kind != "" && l.Kind != s.Kind {
		return types.IgnoreNotExist(err)
	}
	if err := Restore(c, l, Spec{Sysctls: s.Sysctls, Addrs: s.Addrs}); err != nil {
		return ExplainIPv6Off(c, l.Name, err)
	}
	routesErr := errors.Join(adopt(c, l, s.Adopted), s.restoreRoutes(c, l))
	now, err := c.LinkByIndex(l.Index)
	if now.Carrier && slices.ContainsFunc(s.Addrs, func(a nl.Addr) bool { return a.Prefix.Addr().Is6() && !a.NoDAD && !a.Optimistic }) {
		err = AwaitDAD(c, l)
	}
	return errors.Join(routesErr, err)
}

// restoreRoutes adds the routes of the Spec that the link lacks, after the kernel's routes to the networks of its
// addresses, which contain the gateways. It keeps other routes with the same destination, table and metric. If a policy
// rule selects an address, it adds none, because sbr or the container has moved the routes.
func (s Spec) restoreRoutes(c *nl.Conn, l nl.Link) error {
	table, err := c.TableOf(l)
	rules, rulesErr := c.SourceRules()
	got, gotErr := c.Routes(l)
	if err := errors.Join(err, rulesErr, gotErr); err != nil {
		return err
	}
	var want []nl.Route
	for _, a := range s.Addrs {
		if slices.ContainsFunc(rules, func(r nl.Rule) bool { return r.Source == a.Prefix.Addr() }) {
			return nil
		}
		if !a.NoPrefixRoute && !a.Prefix.IsSingleIP() {
			want = append(want, nl.PrefixRoute(a.Prefix))
		}
	}
	var errs []error
	for _, w := range append(want, s.Routes...) {
		if slices.ContainsFunc(got, w.Matches) {
			continue
		}
		w.Table, w.OnLink = cmp.Or(w.Table, table), w.OnLink || s.unreachableGateway(w).IsValid()
		if err := c.AddOnlyRoute(l, w); !errors.Is(err, fs.ErrExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
