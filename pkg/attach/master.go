package attach

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A Master is the configured interface on which a plugin creates the container's interface.
type Master struct {
	Name        string // name of the master; if it is "", the device of the first default route, IPv4 before IPv6
	InContainer bool   // whether the master is in the container instead of on the host
}

// Validate returns an error if no interface with the configured name can be a master.
func (m Master) Validate() error {
	if m.Name == "" {
		return nil
	}
	if m.Name == "lo" {
		return errors.New("master lo is the loopback interface, which is on no network segment")
	}
	if err := types.CheckIfName(m.Name); err != nil {
		return fmt.Errorf("master %q is not an interface name: %w", m.Name, err)
	}
	return nil
}

// UsePrev completes the master in an ADD that follows another plugin. If m.Name is "", the master is the only interface of
// prevResult. If there is no "ipam", UsePrev returns the addresses, routes and DNS of prevResult, which apply to the new
// interface. Otherwise, and without prevResult, it returns nil.
func (m *Master) UsePrev(r *skel.Request) (*ipam.Lease, error) {
	prev, err := r.Prev()
	if err != nil || prev == nil {
		return nil, err
	}
	if m.Name == "" {
		if len(prev.Interfaces) != 1 || prev.Interfaces[0].Name == "" {
			return nil, types.Errorf(types.CodeConfig, "chained master failure. PrevResult lacks a single named interface; name the master by the key \"master\"")
		}
		m.Name = prev.Interfaces[0].Name
		if err := m.Validate(); err != nil {
			return nil, types.Coded(types.CodeConfig, fmt.Errorf("prevResult: %w", err))
		}
	}
	if r.Conf.IPAM.Type != "" || len(prev.IPs) == 0 {
		return nil, nil
	}
	strict, err := types.ParseResult(r.Version, r.Conf.PrevResult) // accepts only what ADD can apply
	if err != nil {
		return nil, types.Errorf(types.CodeDecode, "prevResult: %w", err)
	}
	return &ipam.Lease{IPs: strict.IPs, Routes: strict.Routes, DNS: strict.DNS}, nil
}

// Open connects to the namespaces of the master and of the container, which share one connection if the
// master is in the container. The connections are closed with the namespaces of r.
func (m Master) Open(r *skel.Request) (masterConn, container *nl.Conn, err error) {
	if m.InContainer {
		container, err = nl.Open(r.ContainerNS)
		return container, container, err
	}
	return nl.OpenBoth(r.HostNS, r.ContainerNS)
}

// Find returns the master. c is the connection to the master's namespace. Find returns an error if mtu, the
// configured MTU of the container's interface in bytes, is larger than the master's MTU.
func (m Master) Find(c *nl.Conn, mtu int) (nl.Link, error) {
	master, err := m.link(c)
	if err != nil {
		return nl.Link{}, types.Errorf(types.CodeConfig, "master: %w", err)
	}
	if mtu > master.MTU {
		return nl.Link{}, types.Errorf(types.CodeConfig, "mtu: invalid MTU %d, must be [0, master MTU(%d)]: the master is %s", mtu, master.MTU, master.Name)
	}
	return master, nil
}

func (m Master) link(c *nl.Conn) (nl.Link, error) {
	where := "on the host"
	if m.InContainer {
		where = "in the container"
	}
	if m.Name != "" {
		l, err := c.LinkByAnyName(m.Name)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w; set the key \"master\" to an interface %s (ip link)", err, where)
		}
		return l, err
	}
	index, err := c.DefaultDevice()
	if err != nil {
		return nl.Link{}, err
	}
	if index == 0 {
		return nl.Link{}, fmt.Errorf("no default route interface found %s; name one by the key \"master\"", where)
	}
	return c.LinkByIndex(index)
}

// A MasterSetup is the return value of Prepare, with which an ADD creates the container's interface on a
// master.
type MasterSetup struct {
	MasterConn *nl.Conn // connection to the master's namespace, which is the container's with InContainer
	Container  *nl.Conn
	Master     nl.Link
	// AnyGateway is passed on as ContainerLink.AnyGateway.
	AnyGateway bool

	pending *ipam.Pending
}

// Prepare starts the IPAM plugin, finds the master, checks that the container has no interface with the
// wanted name, and lets the IPAM plugin allocate addresses. The plugin creates the interface afterwards. mtu
// is the configured MTU in bytes (see Find).
func (m Master) Prepare(r *skel.Request, mtu int) (*MasterSetup, error) {
	pending, err := ipam.Start(r)
	if err != nil {
		return nil, err
	}
	masterConn, container, err := m.Open(r)
	if err != nil {
		return nil, err
	}
	master, err := m.Find(masterConn, mtu)
	if err != nil {
		return nil, err
	}
	if err := EnsureNameFree(container, r.IfName); err != nil {
		return nil, err
	}
	pending.AllowAllocation()
	return &MasterSetup{MasterConn: masterConn, Container: container, Master: master, pending: pending}, nil
}

// Configure calls ContainerLink.Configure for the interface l and the lease. If the master has no carrier,
// Configure warns, and ADD does not wait for one.
func (s *MasterSetup) Configure(r *skel.Request, l nl.Link, dad DADMode) (*types.Result, error) {
	if !s.Master.Carrier {
		r.Warn("master %s is down or has no carrier; until it has a carrier, the container reaches no other host, and IPv6 addresses are not checked for duplicates", s.Master.Name)
	}
	return ContainerLink{
		Container: s.Container, Link: l, DAD: dad, NoCarrier: !s.Master.Carrier, FixedMAC: l.Kind == "ipvlan", AnyGateway: s.AnyGateway,
	}.Configure(r, s.pending)
}

// UseLease makes Configure use l instead of a lease from an IPAM plugin. It is for an interface that takes
// over the addresses of prevResult.
func (s *MasterSetup) UseLease(l *ipam.Lease) { s.pending = ipam.NewPending(l) }

// Status returns the error that Find would return. It does not look for a master in the container, because
// STATUS is not called for a container.
func (m Master) Status(r *skel.Request, mtu int) error {
	if m.InContainer {
		return nil
	}
	host, err := nl.Open(r.HostNS)
	if err != nil {
		return err
	}
	_, err = m.Find(host, mtu)
	return err
}

// Check executes CHECK for an interface of the given kind on the master (see CheckContainerLink). diff
// compares what only the plugin knows, over the connection to the container.
func (m Master) Check(r *skel.Request, kind string, diff func(container *nl.Conn, l nl.Link) error) error {
	return CheckContainerLink(r, kind, func(container *nl.Conn, l nl.Link) (err error) {
		masterConn := container
		if !m.InContainer {
			masterConn, err = nl.Open(r.HostNS)
		}
		if err != nil {
			return err
		}
		return errors.Join(diff(container, l), types.WithRepair(types.RepairNever, m.Diff(masterConn, l)))
	})
}

// Diff returns an error if l, an interface of the container, is not on the configured master. c is the
// connection to the master's namespace. Without a configured master, Diff returns nil, because the default
// route may have changed since ADD.
func (m Master) Diff(c *nl.Conn, l nl.Link) error {
	if m.Name == "" {
		return nil
	}
	master, err := c.LinkByAnyName(m.Name)
	if err != nil {
		return fmt.Errorf("master: %w; rename the master back, or set the key \"master\" to its new name", err)
	}
	parent := master.Index
	if master.Kind == l.Kind && (l.Kind == "macvlan" || l.Kind == "ipvlan") {
		// The kernel uses the parent of the master (macvlan_common_newlink, ipvlan_link_new).
		parent = master.Peer
	}
	if l.Peer != parent {
		return fmt.Errorf("interface %s is on link %d, not on master %s, which is %d", l.Name, l.Peer, master.Name, parent)
	}
	return nil
}
