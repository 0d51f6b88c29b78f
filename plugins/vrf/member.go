package main

import (
	"errors"
	"os"
	"slices"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
)

// A member is an interface that enters or leaves a VRF. The kernel sets such an interface down and up again
// (cycle_netdev in drivers/net/vrf.c). This deletes the routes of the interface in all tables, and the kernel
// adds back only the routes that it adds with each address. It also deletes the IPv6 addresses of the
// interface, unless the sysctl keep_addr_on_down is 1.
type member struct {
	conf      *config // nil in DEL
	container *nl.Conn
	link, vrf nl.Link
}

// A state contains what an interface loses when it enters or leaves a VRF.
type state struct {
	table   int       // the VRF's table or main, to which the kernel adds a route with each address
	addrs   []nl.Addr // the IPv6 addresses, except link-local addresses
	routes  []nl.FullRoute
	sysctls []sysctl.Setting // the sysctls of keepAddrsSysctls, with their original values
}

// usableLimit limits how long ADD waits for IPv6 addresses.
const usableLimit = 10 * time.Second

// keepAddrsSysctls returns the sysctls that let the interface keep its IPv6 addresses. accept_dad is 0
// because duplicate address detection has already checked the addresses, and they would be unusable for one
// second during another check.
func (m *member) keepAddrsSysctls() []sysctl.Setting {
	return []sysctl.Setting{
		{Key: sysctl.IPv6(m.link.Name, "keep_addr_on_down"), Value: "1", Optional: true},
		{Key: sysctl.IPv6(m.link.Name, "accept_dad"), Value: "0", Optional: true},
	}
}

// state reads the state of the interface. table is the table of the interface's VRF, or the main table. The
// state does not contain the routes that the kernel adds again by itself.
func (m *member) state(table int) (*state, error) {
	addrs, err := m.container.Addrs(m.link)
	if err != nil {
		return nil, err
	}
	s := &state{table: table, addrs: slices.DeleteFunc(addrs, func(a nl.Addr) bool {
		return a.Prefix.Addr().Is4() || a.Prefix.Addr().IsLinkLocalUnicast()
	})}
	routes, err := m.container.FullRoutes(m.link)
	if err != nil {
		return nil, err
	}
	s.routes = slices.DeleteFunc(routes, func(r nl.FullRoute) bool {
		return r.Advertised || r.Protocol == nl.ProtocolKernel && r.Table == table
	})
	if len(s.addrs) == 0 {
		return s, nil
	}
	s.sysctls = m.keepAddrsSysctls()
	return s, m.container.NS().Do(func() (err error) {
		for i, setting := range s.sysctls {
			value, getErr := sysctl.Get(m.container.NS(), setting.Key)
			s.sysctls[i].Value, err = value, errors.Join(err, getErr)
		}
		return err
	})
}

// enter puts the interface into the VRF. It moves the routes of the interface from the main table to the
// table of the VRF.
func (m *member) enter(u *undo.Stack) error {
	s, err := m.state(nl.MainTable)
	if err != nil {
		return err
	}
	u.Push("take "+m.link.Name+" out of VRF "+m.vrf.Name, func() error { return m.takeOut(s) })
	if err := m.keepAddrs(s); err != nil {
		return err
	}
	if err := m.container.SetMaster(m.link, m.vrf); err != nil {
		return err
	}
	return m.restore(s.moved(m.vrf.VRFTable), nl.MainTable)
}

// leave takes the interface out of the VRF. It moves the routes of the interface from the table of the VRF
// to the main table.
func (m *member) leave() error {
	s, err := m.state(m.vrf.VRFTable)
	if err != nil {
		return err
	}
	return m.takeOut(s.moved(nl.MainTable))
}

// takeOut takes the interface out of the VRF, unless it is no longer a port of the VRF, and then restores s. It tries
// twice to restore s, because a later DEL would not know the addresses and routes that the interface had.
func (m *member) takeOut(s *state) error {
	if err := m.keepAddrs(s); err != nil {
		return err
	}
	inVRF, err := m.isInVRF()
	if err == nil && inVRF {
		err = m.container.ClearMaster(m.link)
	}
	if err != nil { // the interface can be out of the VRF nevertheless
		if inVRF, lookupErr := m.isInVRF(); inVRF || lookupErr != nil {
			return errors.Join(err, lookupErr, sysctl.Ensure(m.container.NS(), s.sysctls...))
		}
	}
	if m.restore(s, m.vrf.VRFTable) == nil {
		return err
	}
	return errors.Join(err, m.restore(s, m.vrf.VRFTable))
}

func (m *member) isInVRF() (bool, error) {
	link, err := m.container.LinkByIndex(m.link.Index)
	return link.Master == m.vrf.Index, err
}

// moved returns a copy of the state, in which the routes of s.table are in table.
func (s *state) moved(table int) *state {
	moved := &state{table: table, addrs: s.addrs, sysctls: s.sysctls}
	for _, r := range s.routes {
		if r.Table == s.table {
			r = r.WithTable(table)
		}
		moved.routes = append(moved.routes, r)
	}
	return moved
}

// keepAddrs lets the interface keep its IPv6 addresses, if there are any.
func (m *member) keepAddrs(s *state) error {
	if len(s.addrs) == 0 {
		return nil
	}
	return sysctl.Ensure(m.container.NS(), m.keepAddrsSysctls()...)
}

// restore adds the addresses and routes that are missing, waits until the addresses are usable, and then
// restores the sysctls. It runs every step even if one fails.
//
// The routes were in the table former until now. restore deletes them there, because the kernel does not
// always do so. If an IPv6 route has several next hops, the kernel keeps a next hop whose interface is set
// down until the interfaces of all next hops are down (fib6_ifdown in net/ipv6/route.c). It uses the next hop
// again when its interface is up.
func (m *member) restore(s *state, former int) error {
	errs := []error{m.restoreAddrs(s)}
	for _, r := range s.routes {
		if r.Table == s.table {
			errs = append(errs, m.container.DeleteFullRoute(r.WithTable(former)))
		}
	}
	for _, r := range s.routes { // without an undo, because the undo of enter deletes them
		errs = append(errs, m.container.EnsureFullRoute(&undo.Stack{}, r))
	}
	return errors.Join(append(errs, sysctl.Ensure(m.container.NS(), s.sysctls...))...)
}

// restoreAddrs adds the addresses that are missing, and waits until all addresses are usable. Addresses are
// missing if the sysctls of keepAddrsSysctls could not be written.
func (m *member) restoreAddrs(s *state) error {
	if len(s.addrs) == 0 {
		return nil
	}
	present, err := m.container.Addrs(m.link)
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range s.addrs {
		if !slices.ContainsFunc(present, func(p nl.Addr) bool { return p.Prefix == a.Prefix }) {
			a.NoDAD = true
			errs = append(errs, m.container.AddAddr(m.link, a))
		}
	}
	if m.link.Carrier { // without a carrier, the kernel does not start duplicate address detection
		err = m.container.AwaitUsable(m.link, usableLimit)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = types.Errorf(types.CodeTryAgain, "%w", err)
	}
	return errors.Join(append(errs, err)...)
}
