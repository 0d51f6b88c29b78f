package main

import (
	"errors"
	"os"
	"slices"
	"time"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/sysctl"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
)

// A member is an interface that enters or leaves a VRF. The kernel then sets the interface down and up
// again (cycle_netdev in drivers/net/vrf.c). That deletes its routes in all tables, except those that the
// kernel itself adds with an address, and its IPv6 addresses, unless the sysctl keep_addr_on_down is 1.
type member struct {
	pod       *nl.Conn
	link, vrf nl.Link
}

// A state is what an interface loses when it enters or leaves a VRF, as it was before.
type state struct {
	home    int       // the table with the routes that the kernel adds with an address
	addrs   []nl.Addr // IPv6, without link-local ones
	routes  []nl.FullRoute
	sysctls []sysctl.Setting // those that keptAddrs changes, with their values
}

const (
	mainTable = 254
	// usableLimit limits how long ADD waits for IPv6 addresses.
	usableLimit = 10 * time.Second
)

// keptAddrs are the sysctls with which the interface keeps its IPv6 addresses. Duplicate address
// detection has checked them before, and would make them unusable for a second.
func (m *member) keptAddrs() []sysctl.Setting {
	return []sysctl.Setting{
		{Key: sysctl.IPv6(m.link.Name, "keep_addr_on_down"), Value: "1", Optional: true},
		{Key: sysctl.IPv6(m.link.Name, "accept_dad"), Value: "0", Optional: true},
	}
}

// state reads the state of an interface with that home. It leaves out the routes that the kernel adds
// again by itself.
func (m *member) state(home int) (*state, error) {
	addrs, err := m.pod.Addrs(m.link)
	if err != nil {
		return nil, err
	}
	s := &state{home: home, addrs: slices.DeleteFunc(addrs, func(a nl.Addr) bool {
		return a.Prefix.Addr().Is4() || a.Prefix.Addr().IsLinkLocalUnicast()
	})}
	routes, err := m.pod.FullRoutes(m.link)
	if err != nil {
		return nil, err
	}
	s.routes = slices.DeleteFunc(routes, func(r nl.FullRoute) bool {
		return r.Advertised || r.Protocol == nl.ProtocolKernel && r.Table == home
	})
	if len(s.addrs) == 0 {
		return s, nil
	}
	for _, setting := range m.keptAddrs() {
		if setting.Value, err = sysctl.Get(m.pod.NS(), setting.Key); err != nil {
			return nil, err
		}
		s.sysctls = append(s.sysctls, setting)
	}
	return s, nil
}

// enter puts the interface into the VRF. Its routes of the main table get into the table of the VRF.
func (m *member) enter(u *undo.Stack) error {
	s, err := m.state(mainTable)
	if err != nil {
		return err
	}
	u.Push("take "+m.link.Name+" out of VRF "+m.vrf.Name, func() error { return m.takeOut(s, once) })
	if err := m.keepAddrs(s); err != nil {
		return err
	}
	if err := m.pod.SetMaster(m.link, m.vrf); err != nil {
		return err
	}
	return m.restore(s.moved(m.vrf.VRFTable), mainTable, once)
}

// leave takes the interface out of the VRF. Its routes of the VRF's table get into the main table.
func (m *member) leave() error {
	s, err := m.state(m.vrf.VRFTable)
	if err != nil {
		return err
	}
	return m.takeOut(s.moved(mainTable), twice)
}

// takeOut takes the interface out of the VRF, if it is in it, and restores its state.
func (m *member) takeOut(s *state, try attempts) error {
	if err := m.keepAddrs(s); err != nil {
		return err
	}
	inVRF, err := m.isInVRF()
	if err == nil && inVRF {
		err = m.pod.ClearMaster(m.link)
	}
	if err != nil { // the kernel may have done it: a later DEL would not know the routes
		if inVRF, again := m.isInVRF(); inVRF || again != nil {
			return errors.Join(err, again, m.restoreSysctls(s, try))
		}
	}
	return errors.Join(err, m.restore(s, m.vrf.VRFTable, try))
}

func (m *member) isInVRF() (bool, error) {
	link, err := m.pod.LinkByIndex(m.link.Index)
	return link.Master == m.vrf.Index, err
}

// moved returns the state with the routes of the home table in another one, which becomes the home.
func (s *state) moved(home int) *state {
	moved := &state{home: home, addrs: s.addrs, sysctls: s.sysctls}
	for _, r := range s.routes {
		if r.Table == s.home {
			r = r.In(home)
		}
		moved.routes = append(moved.routes, r)
	}
	return moved
}

// keepAddrs makes the interface keep its IPv6 addresses, if it has any.
func (m *member) keepAddrs(s *state) error {
	if len(s.addrs) == 0 {
		return nil
	}
	return sysctl.Ensure(m.pod.NS(), m.keptAddrs()...)
}

// restore adds the addresses and routes that are missing, waits until the addresses are usable, and
// then restores the sysctls. It tries every step.
//
// The table former was the home until now. restore deletes the routes there: of an
// IPv6 route with several next hops the kernel keeps a next hop whose interface is set down, until all of
// them are (fib6_ifdown in net/ipv6/route.c), and uses it when the interface is up again.
func (m *member) restore(s *state, former int, try attempts) error {
	errs := []error{m.restoreAddrs(s, try)}
	for _, r := range s.routes {
		if r.Table == s.home {
			errs = append(errs, try(func() error { return m.pod.DeleteFullRoute(r.In(former)) }))
		}
	}
	var kept undo.Stack // the undo of enter deletes the routes with the link's master
	for _, r := range s.routes {
		errs = append(errs, try(func() error { return m.pod.EnsureFullRoute(&kept, r) }))
	}
	return errors.Join(append(errs, m.restoreSysctls(s, try))...)
}

// restoreAddrs adds the addresses that the kernel did not keep, because the sysctls could not be written.
func (m *member) restoreAddrs(s *state, try attempts) error {
	if len(s.addrs) == 0 {
		return nil
	}
	var present []nl.Addr
	err := try(func() (err error) {
		present, err = m.pod.Addrs(m.link)
		return err
	})
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range s.addrs {
		if !slices.ContainsFunc(present, func(p nl.Addr) bool { return p.Prefix == a.Prefix }) {
			a.NoDAD = true
			errs = append(errs, try(func() error { return m.pod.AddAddr(m.link, a) }))
		}
	}
	if m.link.Carrier { // without a carrier the kernel does not begin to check addresses
		err = m.pod.AwaitUsable(m.link, usableLimit)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = types.Errorf(types.CodeTryAgain, "%w", err)
	}
	return errors.Join(append(errs, err)...)
}

func (m *member) restoreSysctls(s *state, try attempts) error {
	if len(s.sysctls) == 0 {
		return nil
	}
	return try(func() error { return sysctl.Ensure(m.pod.NS(), s.sysctls...) })
}

// attempts runs a step, and returns its error.
type attempts func(step func() error) error

// once runs a step of ADD, which is undone if it fails.
func once(step func() error) error { return step() }

// twice runs a step of DEL again if it fails: no later DEL could do it, as nothing tells any more what
// the interface had.
func twice(step func() error) error {
	if step() == nil {
		return nil
	}
	return step()
}
