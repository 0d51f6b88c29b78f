package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"reflect"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/dhcp/internal/dhcp4"
)

// A link is the interface of a container with an open namespace. The daemon opens the namespace for each exchange,
// because an open namespace keeps the interface alive.
type link struct {
	dhcp4.Client
	record
	container *nl.Conn
	link      nl.Link
}

// findLink returns the record of an ADD's interface, and sets the interface up. wasDown is true if the interface was
// down.
func findLink(req Request, broadcast bool) (r record, wasDown bool, err error) {
	container, err := ns.Open(req.NetNS, nil)
	if err != nil {
		return r, false, types.Errorf(types.CodeNamespace, "container namespace: %w; it must also exist at this path for the DHCP daemon", err)
	}
	defer func() { _ = container.Close() }()
	conn, err := nl.Open(container)
	if err != nil {
		return r, false, err
	}
	l, err := conn.Link(req.IfName)
	if errors.Is(err, fs.ErrNotExist) || req.IfName == "lo" {
		return r, false, types.Errorf(types.CodeConfig, "interface %s of the container does not exist or cannot reach a DHCP server", req.IfName)
	}
	if err == nil && !l.Up {
		err = conn.SetUp(l)
	}
	if len(req.ID) == 0 {
		req.ID = append([]byte{1}, l.MAC.Bytes()...) // RFC 2132, section 9.14; 1 is Ethernet
	}
	return record{
		Attachment: req.Attachment, Settings: req.Settings, NetNS: req.NetNS, Cookie: container.Cookie(),
		Link: l.Index, MAC: l.MAC, Broadcast: broadcast || l.Kind == "ipvlan",
	}, !l.Up, err
}

func setDown(r record) error {
	i, err := openLink(r, dhcp4.Retry{})
	if err != nil {
		return err
	}
	defer i.close()
	l := i.(*link)
	return l.container.SetDown(l.link)
}

// openLink opens the interface of a record. If it no longer exists, the error matches errGone.
func openLink(r record, retry dhcp4.Retry) (iface, error) {
	container, err := ns.Open(r.NetNS, nil)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ns.ErrNotNamespace) {
		return nil, errGone
	}
	if err != nil {
		return nil, err
	}
	l, err := newLink(container, r)
	if err != nil {
		return nil, errors.Join(err, container.Close())
	}
	l.Retry = retry
	return l, nil
}

func newLink(container *ns.Handle, r record) (*link, error) {
	if container.Cookie() != r.Cookie {
		return nil, errGone
	}
	conn, err := nl.Open(container)
	if err != nil {
		return nil, err
	}
	found, err := conn.LinkByIndex(r.Link)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errGone
	}
	// A later plugin of the chain may have changed the MAC since ADD.
	return &link{record: r, container: conn, link: found, Client: dhcp4.Client{
		NS: container, Link: r.Link, MAC: found.MAC, ID: r.ID, Options: r.Options, Request: r.Ask, Broadcast: r.Broadcast,
	}}, err
}

func (l *link) close() { _ = l.NS.Close() }

// configure implements iface. Before ADD returns, it only sets the MTU, because the interface plugin configures the address.
func (l *link) configure(from, to *dhcp4.Lease) error {
	var errs []error
	if l.SetMTU && to != nil && to.MTU > 0 && to.MTU != l.link.MTU {
		if err := l.container.SetMTU(l.link, to.MTU); err != nil {
			errs = append(errs, fmt.Errorf("interface %s keeps the mtu %d, because setting the DHCP server's mtu %d failed: %w", l.link.Name, l.link.MTU, to.MTU, err))
		}
	}
	if !l.Added || from != nil && to != nil && from.Address == to.Address && reflect.DeepEqual(l.routes(from), l.routes(to)) {
		return errors.Join(errs...)
	}
	if from != nil {
		errs = append(errs, l.deleteRoutes(from))
	}
	if from != nil && (to == nil || from.Address != to.Address) {
		// Delete the address before adding another one of the same subnet. Otherwise the new address would be a
		// secondary address, which the kernel deletes together with the first one.
		errs = append(errs, types.IgnoreNotExist(l.container.DeleteAddr(l.link, from.Address)))
	}
	if to != nil && (from == nil || from.Address != to.Address) {
		errs = append(errs, ignoreExist(l.container.AddAddr(l.link, nl.Addr{Prefix: to.Address})))
	}
	if to != nil {
		for _, r := range l.routes(to) {
			errs = append(errs, ignoreExist(l.container.AddRoute(l.link, r)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("configure interface %s: %w", l.link.Name, err)
	}
	return nil
}

// restore implements iface.
func (l *link) restore(lease *dhcp4.Lease) (lost bool, err error) {
	addrs, err := l.container.Addrs(l.link)
	if err != nil || slices.ContainsFunc(addrs, func(a nl.Addr) bool { return a.Prefix.Addr() == lease.Address.Addr() }) {
		return false, err
	}
	return true, l.configure(nil, lease)
}

// routes returns the routes of a lease in the main table.
func (l *link) routes(lease *dhcp4.Lease) []nl.Route {
	var routes []nl.Route
	for _, r := range lease.Routes {
		route := nl.Route{Dst: r.Dst, GW: r.GW, Priority: cmp.Or(r.Priority, l.Priority), Scope: r.Scope}
		switch {
		case !r.GW.IsValid() && r.Scope == nl.ScopeGlobal:
			route.GW = lease.Router
		case r.GW.IsValid() && r.GW.IsUnspecified():
			route.GW, route.Scope = netip.Addr{}, nl.ScopeLink
		}
		routes = append(routes, route)
	}
	// Routes without a gateway come first, because their destinations may contain the gateways of other routes.
	slices.SortStableFunc(routes, func(a, b nl.Route) int { return a.GW.Compare(b.GW) })
	return routes
}

func (l *link) deleteRoutes(lease *dhcp4.Lease) error {
	routes, err := l.container.FullRoutes(l.link)
	errs := []error{err}
	for _, r := range slices.Backward(routes) {
		if slices.ContainsFunc(l.routes(lease), r.Same) {
			errs = append(errs, l.container.DeleteFullRoute(r))
		}
	}
	return errors.Join(errs...)
}

func ignoreExist(err error) error {
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}
