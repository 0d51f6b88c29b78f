package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"syscall"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// add moves the device into the container and configures it for the lease. It waits for the lease before
// it moves the device, because an ADD that gets no address must not change the device. If the IPAM plugin
// needs the link, as dhcp does, add moves the device first.
func (h machine) add(r *skel.Request, conf *config) (*types.Result, error) {
	h.states = r.StateDir("", h.states)
	pending, err := ipam.Start(r)
	if err != nil {
		return nil, err
	}
	if conf.useNetwork {
		pending.AllowNoAddress()
	}
	dpdk, err := h.sys.usesDPDK(r.Trace, conf)
	if err != nil {
		return nil, types.Coded(types.CodeConfig, err)
	}
	if dpdk {
		return addDPDK(r, conf, pending)
	}
	host, container, err := nl.OpenBoth(r.HostNS, r.ContainerNS)
	if err != nil {
		return nil, err
	}
	device, err := h.findFree(r, host, conf)
	if err != nil {
		return nil, err
	}
	if err := checkContainer(container, r.Attachment()); err != nil {
		return nil, err
	}
	pending.AllowAllocation()
	if pending == nil && conf.useNetwork {
		pending = ipam.NewPending(&ipam.Lease{})
	}
	leased := ipam.NeedsLink(r)
	if pending != nil && !leased {
		lease, err := pending.Wait()
		if err != nil {
			return nil, err
		}
		leased = len(lease.IPs) > 0
	}
	m := &mover{machine: h, r: r, host: host, container: container}
	if m.state, err = m.describe(conf, device); err != nil {
		return nil, err
	}
	if conf.useNetwork && !leased && len(m.state.Adopted.Addrs) == 0 && r.Version < types.V030 {
		return nil, types.Errorf(types.CodeConfig, "interface %s has no addresses: %w", device.Name, types.ErrNoAddress)
	}
	eth, err := m.take(conf, device)
	if err != nil {
		return nil, err
	}
	result, err := attach.ContainerLink{Container: container, Link: eth, DAD: conf.dad, Adopted: m.state.Adopted, Pending: pending}.Configure(r)
	if err == nil {
		result.Interfaces[0].PciID = conf.selector.pciID()
	}
	return result, err
}

// addDPDK returns the result for a device that the container uses without its network interface. The
// result contains the lease, but addDPDK configures no address.
func addDPDK(r *skel.Request, conf *config, pending *ipam.Pending) (*types.Result, error) {
	result := &types.Result{
		Interfaces: []types.Interface{{Name: r.IfName, Sandbox: r.NetNS, PciID: conf.selector.pciID()}},
		DNS:        r.Conf.DNS,
	}
	if pending == nil {
		return result, nil
	}
	pending.AllowAllocation()
	lease, err := pending.Wait()
	if err != nil {
		return nil, err
	}
	lease.AddTo(result, 0)
	return result, nil
}

// findFree restores the selected device if the container of a former attachment ended without a DEL and
// the kernel has returned the device. Then it returns the interface that findAvailable finds.
func (h machine) findFree(r *skel.Request, host *nl.Conn, conf *config) (nl.Link, error) {
	states, err := h.loadAll(r.Trace)
	if err != nil {
		return nl.Link{}, err
	}
	l, err := h.find(host, conf.selector)
	if types.IgnoreNotExist(err) != nil {
		return nl.Link{}, err
	}
	for _, s := range states {
		if !s.isHardware() || !s.isSelectedBy(conf.selector, l) {
			continue
		}
		if err := (&mover{machine: h, r: r, host: host, state: s}).restoreReturned(); err != nil {
			return nl.Link{}, err
		}
	}
	return h.findAvailable(r, host, conf, states)
}

// findAvailable returns the selected interface of the host if the interface may be moved. If the interface is not on the
// host, and one of the states has the same selector, the error carries types.CodeTryAgain.
func (h machine) findAvailable(r *skel.Request, host *nl.Conn, conf *config, states []*state) (nl.Link, error) {
	l, err := h.find(host, conf.selector)
	i := slices.IndexFunc(states, func(s *state) bool { return s.Selector == conf.selector.String() })
	if i >= 0 && errors.Is(err, fs.ErrNotExist) {
		return nl.Link{}, types.Errorf(types.CodeTryAgain, "%s is in use by %s: %w; if the attachment %[2]s no longer exists, GC releases the device", conf.selector, states[i].Attachment, err)
	}
	if errors.Is(err, fs.ErrNotExist) && conf.selector.by == byName {
		err = fmt.Errorf("device: %w; set the key \"device\" to an interface of the host (ip link)", err)
	}
	if err != nil {
		return nl.Link{}, types.Coded(types.CodeConfig, err)
	}
	return l, checkDispensable(r, host, l, conf)
}

// checkContainer returns an error if an interface named CNI_IFNAME exists in the container. It also returns an
// error if the container contains a device that an earlier ADD of the attachment moved, even with another name.
func checkContainer(container *nl.Conn, own types.Attachment) error {
	if err := attach.EnsureNameFree(container, own.IfName); err != nil {
		return err
	}
	links, err := container.Links()
	for _, l := range links {
		if attach.HasAltName(l, own) {
			return types.Errorf(types.CodeConfig, "interface %s in the container already serves %s: an earlier ADD was not followed by a DEL", l.Name, own)
		}
	}
	return err
}

// describe returns the state of the device, with all addresses. With useInterfaceNetwork, it contains the configuration that
// the container adopts.
func (m *mover) describe(conf *config, device nl.Link) (*state, error) {
	addrs, err := m.host.Addrs(device)
	if err != nil {
		return nil, err
	}
	master, err := masterOf(m.host, device)
	if err != nil {
		return nil, err
	}
	s := newState(m.r.Attachment(), device)
	var adopted []netip.Prefix
	if conf.useNetwork {
		if s.Adopted, err = m.host.LinkConfig(device); err != nil {
			return nil, err
		}
		adopted = s.Adopted.Prefixes()
		for _, a := range s.Adopted.Expiring() {
			m.r.Warn("address %s of interface %s has a limited lifetime, which nothing renews while the container uses the address; configure it as a static address on the host", a, device.Name)
		}
	}
	s.Selector, s.Sandbox, s.NetNS, s.Master = conf.selector.String(), m.r.NetNS, m.r.ContainerNS.Cookie(), master
	for _, a := range addrs {
		isLinkLocal := a.Prefix.Addr().Is6() && a.Prefix.Addr().IsLinkLocalUnicast() // the kernel adds this address
		if a.Permanent && !isLinkLocal && !slices.Contains(adopted, a.Prefix) {
			s.Addresses = append(s.Addresses, address{a.Prefix, a.Broadcast, a.NoDAD, a.Optimistic, a.NoPrefixRoute})
		}
	}
	return s, nil
}

// take saves the state of the device, marks the device with the attachment, and moves it into the
// container as CNI_IFNAME. Before the first change, take pushes an undo. The undo always restores
// the device's addresses, but DEL restores them only if the key restoreAddresses or useInterfaceNetwork is true.
func (m *mover) take(conf *config, device nl.Link) (nl.Link, error) {
	m.r.Undo.Push("return interface "+device.Name, m.restore)
	saved := *m.state
	if !conf.restoreAddresses {
		saved.Addresses = nil
	}
	if err := m.file(m.r.Trace, saved.Attachment).Save(&saved); err != nil {
		return nl.Link{}, err
	}
	if err := m.mark(device); err != nil {
		return nl.Link{}, explainMove(device, err)
	}
	eth, err := m.host.MoveLink(device, nl.Move{To: m.container, Name: m.r.IfName, Alias: device.Name, Group: device.Group})
	return eth, explainMove(device, err)
}

// mark adds the attachment's alternative name to the device. An earlier ADD of the attachment may have added it to this
// device or to another one, which another program then returned to the host. mark deletes it from the other one.
func (m *mover) mark(device nl.Link) error {
	own := m.r.Attachment()
	if attach.HasAltName(device, own) {
		return nil
	}
	err := m.host.AddAltName(device, attach.AltName(own))
	if errors.Is(err, fs.ErrExist) {
		var former nl.Link
		if former, err = m.host.LinkByAnyName(attach.AltName(own)); err == nil {
			err = m.host.DeleteAltName(former, attach.AltName(own))
		}
		if types.IgnoreNotExist(err) == nil {
			err = m.host.AddAltName(device, attach.AltName(own))
		}
	}
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}

// explainMove explains the error of a kernel that cannot add an alternative name to a link of the
// host, or cannot move the link into the container.
func explainMove(l nl.Link, err error) error {
	switch {
	case errors.Is(err, syscall.EINVAL):
		return types.Errorf(types.CodeConfig, "the kernel does not move interface %s, which is of kind %q, to another namespace: %w", l.Name, l.Kind, err)
	case errors.Is(err, fs.ErrNotExist):
		return types.Errorf(types.CodeTryAgain, "interface %s has left the host during ADD, probably for another container: %w", l.Name, err)
	case errors.Is(err, fs.ErrExist):
		return types.Errorf(types.CodeConfig, "the name or an alternative name of interface %s exists already: %w", l.Name, err)
	}
	return err
}
