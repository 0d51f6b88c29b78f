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
	lease       *ipam.Lease
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
// prevResult. If there is no "ipam", the new interface takes over the addresses, routes and DNS of prevResult.
func (m *Master) UsePrev(r *skel.Request) error {
	prev, err := r.Prev()
	if err != nil || prev == nil {
		return err
	}
	if m.Name == "" {
		if len(prev.Interfaces) != 1 || prev.Interfaces[0].Name == "" {
			return types.Errorf(types.CodeConfig, "chained master failure. PrevResult lacks a single named interface; name the master by the key \"master\"")
		}
		m.Name = prev.Interfaces[0].Name
		if err := m.Validate(); err != nil {
			return types.Coded(types.CodeConfig, fmt.Errorf("prevResult: %w", err))
		}
	}
	if r.Conf.IPAM.Type != "" || len(prev.IPs) == 0 {
		return nil
	}
	strict, err := types.ParseResult(r.Version, r.Conf.PrevResult) // accepts only what ADD can apply
	if err != nil {
		return types.Errorf(types.CodeDecode, "prevResult: %w", err)
	}
	m.lease = &ipam.Lease{IPs: strict.IPs, Routes: strict.Routes, DNS: strict.DNS}
	return nil
}

// open returns a connection to the master's namespace, which is container if the master is in the container.
func (m Master) open(r *skel.Request, container *nl.Conn) (*nl.Conn, error) {
	if m.InContainer {
		return container, nil
	}
	return nl.Open(r.HostNS)
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

// A MasterSetup is the return value of Prepare, with which an ADD creates the container's interface on a master.
type MasterSetup struct {
	MasterConn *nl.Conn // connection to the master's namespace, which is the container's with InContainer
	Master     nl.Link
	ContainerLink
}

// Prepare calls Begin, finds the master, and lets the IPAM plugin allocate addresses. The plugin creates the interface
// afterwards. mtu is the configured MTU in bytes (see Find).
func (m Master) Prepare(r *skel.Request, mtu int) (*MasterSetup, error) {
	s := &MasterSetup{}
	var err error
	if s.ContainerLink, err = Begin(r); err != nil {
		return nil, err
	}
	if s.MasterConn, err = m.open(r, s.Container); err != nil {
		return nil, err
	}
	if s.Master, err = m.Find(s.MasterConn, mtu); err != nil {
		return nil, err
	}
	s.Pending.AllowAllocation()
	if m.lease != nil {
		s.Pending = ipam.NewPending(m.lease)
	}
	return s, nil
}

// Configure calls ContainerLink.Configure for the interface l and the lease. If the master has no carrier,
// Configure warns, and ADD does not wait for one.
func (s *MasterSetup) Configure(r *skel.Request, l nl.Link, dad DADMode) (*types.Result, error) {
	if !s.Master.Carrier {
		r.Warn("master %s is down or has no carrier; until it has a carrier, the container reaches no other host, and IPv6 addresses are not checked for duplicates", s.Master.Name)
	}
	s.Link, s.DAD, s.NoCarrier = l, dad, !s.Master.Carrier
	return s.ContainerLink.Configure(r)
}

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
	return CheckContainerLink(r, kind, func(container *nl.Conn, l nl.Link) error {
		masterConn, err := m.open(r, container)
		if err != nil {
			return err
		}
		return errors.Join(diff(container, l), m.Diff(masterConn, l))
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
