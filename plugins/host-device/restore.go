package main

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// returnLimit limits how long DEL waits for the kernel to return hardware to the host after the
// container's namespace has ended. The kernel does so in the background.
const returnLimit = 5 * time.Second

// A mover moves the device of one attachment into the container, and back to the host.
type mover struct {
	machine
	r         *skel.Request
	host      *nl.Conn
	container *nl.Conn // in the container's namespace, or nil if that no longer exists
	state     *state
	// imitated reports whether another interface in the container has the device's names.
	imitated bool
}

// restore returns the device to the host and restores its settings. It keeps the state file if it
// returns an error, or if it finds only an imitation of the device. It also keeps the file if the
// device is hardware and is not found, because the kernel may still return such a device to the
// host, where GC, or an ADD that selects the device, restores it.
func (m *mover) restore() error {
	if m.state.Adopted != nil && m.container != nil {
		if err := m.container.DeleteRules(m.state.IfName, m.state.Adopted); err != nil {
			return err
		}
	}
	l, from, err := m.find()
	if errors.Is(err, fs.ErrNotExist) {
		return m.giveUp()
	}
	if err != nil {
		return err
	}
	if err := m.clean(from, l); err != nil {
		return err
	}
	if l, err = m.returnToHost(from, l); err != nil {
		return err
	}
	errs := []error{m.restoreSettings(l), m.restoreNames(l), m.restoreAdopted(l)}
	for _, a := range m.state.Addresses {
		err := m.host.AddAddr(l, nl.Addr{Prefix: a.Prefix, Broadcast: a.Broadcast, NoDAD: a.NoDAD, Optimistic: a.Optimistic, NoPrefixRoute: a.NoPrefixRoute})
		if !errors.Is(err, fs.ErrExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if attach.HasAltName(l, m.state.Attachment) {
		if err := m.host.DeleteAltName(l, attach.AltName(m.state.Attachment)); types.IgnoreNotExist(err) != nil {
			return err
		}
	}
	return m.removeState()
}

// restoreAdopted adds the configuration that the container adopted to l. It only warns of what the kernel rejects, for example
// because a gateway is not reachable through l while the device is not in its former bridge, as a retry would not help.
func (m *mover) restoreAdopted(l nl.Link) error {
	if m.state.Adopted == nil {
		return nil
	}
	var failed []error
	for _, err := range m.host.AddLinkConfig(l, m.state.Adopted) {
		if nl.IsInvalidRoute(err) || errors.Is(err, syscall.ENETDOWN) || errors.Is(err, nl.ErrDuplicate) {
			m.r.Warn("restore interface %s: %v", m.state.Name, err)
			continue
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// clean undoes changes of the container to l, which is in the namespace of c, that would have an effect as soon as l is on
// the host. It deletes names, and restores the flags, because the kernel disables duplicate address detection on an
// interface that it moves without ARP (ipv6_add_dev).
func (m *mover) clean(c *nl.Conn, l nl.Link) error {
	if set := m.state.Settings; set != nil && c != m.host && l.Flags != set.Flags {
		if err := c.SetFlags(l, set.Flags); err != nil {
			m.r.Warn("restore interface %s: %v", m.state.Name, err)
		}
	}
	return m.deleteForeignNames(c, l)
}

// deleteForeignNames deletes the alternative names that the container gave to l, which is in the namespace of c. On the
// host, they would block these names, or another program could find the device by them.
func (m *mover) deleteForeignNames(c *nl.Conn, l nl.Link) error {
	if m.state.Settings == nil {
		return nil
	}
	for _, name := range l.AltNames {
		if slices.Contains(m.state.Settings.AltNames, name) || name == attach.AltName(m.state.Attachment) {
			continue
		}
		if err := c.DeleteAltName(l, name); types.IgnoreNotExist(err) != nil {
			return err
		}
	}
	return nil
}

// restoreNames restores the device's alternative names on the host. It deletes names that the container added after
// deleteForeignNames had read them, and adds the names that it deleted.
func (m *mover) restoreNames(l nl.Link) error {
	if m.state.Settings == nil {
		return nil
	}
	if err := m.deleteForeignNames(m.host, l); err != nil {
		return err
	}
	for _, name := range m.state.Settings.AltNames {
		if slices.Contains(l.AltNames, name) {
			continue
		}
		err := m.host.AddAltName(l, name)
		if errors.Is(err, fs.ErrExist) {
			m.r.Warn("restore interface %s: %v", m.state.Name, err)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// restoreSettings attaches l to the device's former master, and restores the MTU, the MAC, the length of the transmit
// queue, the flags and the state (up or down).
// Unless it cannot look up the master, it tries every setting. The master comes first, because a bond accepts no port that
// is up. restoreSettings only warns of a setting that the kernel or the driver rejects, because a retry would not help.
func (m *mover) restoreSettings(l nl.Link) error {
	master, err := m.master()
	if err != nil {
		return err
	}
	var errs []error
	setIf := func(differs bool, refusals []error, set func() error) {
		if !differs {
			return
		}
		err := set()
		if slices.ContainsFunc(refusals, func(errno error) bool { return errors.Is(err, errno) }) {
			m.r.Warn("restore interface %s: %v", m.state.Name, err)
			return
		}
		errs = append(errs, err)
	}
	s := m.state
	setIf(l.Master != master.Index && master.Index != 0, valueRefusals(), func() error { return m.host.SetMaster(l, master) })
	setIf(l.MTU != s.MTU, valueRefusals(), func() error { return m.host.SetMTU(l, s.MTU) })
	setIf(l.MAC != s.MAC, valueRefusals(), func() error { return m.host.SetMAC(l, s.MAC) })
	if set := s.Settings; set != nil {
		setIf(l.TxQueue != set.TxQueue, valueRefusals(), func() error { return m.host.SetTxQueue(l, set.TxQueue) })
		setIf(l.Flags != set.Flags, valueRefusals(), func() error { return m.host.SetFlags(l, set.Flags) })
	}
	setIf(l.Up && !s.Up, nil, func() error { return m.host.SetDown(l) })
	setIf(!l.Up && s.Up, upRefusals(), func() error { return m.host.SetUp(l) })
	return errors.Join(errs...)
}

// upRefusals returns the errors with which the kernel or a driver rejects setting a link up.
func upRefusals() []error {
	return []error{syscall.EINVAL, syscall.ERANGE, syscall.EOPNOTSUPP, syscall.EADDRINUSE, syscall.EADDRNOTAVAIL, syscall.EIO}
}

// valueRefusals returns the errors with which the kernel or a driver rejects an MTU, a MAC or a master. Some drivers do not
// permit another MAC, and the host of a virtual function can fix the function's MAC (EBUSY, EPERM).
func valueRefusals() []error { return append(upRefusals(), syscall.EBUSY, syscall.EPERM) }

// master returns the bridge, bond or other link whose port the device was, or the zero Link. If that
// link no longer exists, master warns.
func (m *mover) master() (nl.Link, error) {
	if m.state.Master == "" {
		return nl.Link{}, nil
	}
	master, err := m.host.Link(m.state.Master)
	if errors.Is(err, fs.ErrNotExist) {
		m.r.Warn("interface %s was a port of %s, which no longer exists", m.state.Name, m.state.Master)
		return nl.Link{}, nil
	}
	return master, err
}

// giveUp warns that the device is not found. A virtual device that is neither in the container nor on
// the host cannot come back, because the kernel deletes it when its namespace ends.
func (m *mover) giveUp() error {
	device := fmt.Sprintf("interface %s of the host (%s)", m.state.Name, m.state.Selector)
	if m.state.isHardware() {
		m.r.Warn("%s is not found; GC, or the next ADD that selects it, restores it when it is back on the host", device)
		return nil
	}
	if m.imitated {
		return nil
	}
	m.r.Warn("%s is neither in the container nor on the host: it was deleted, or moved to another network namespace; plumb cannot restore it", device)
	return m.removeState()
}

func (m *mover) removeState() error { return m.file(m.r.Trace, m.state.Attachment).Remove() }

// find returns the device, and the connection in its namespace. If the device is neither in the
// container nor on the host, the error matches fs.ErrNotExist.
func (m *mover) find() (l nl.Link, from *nl.Conn, err error) {
	if m.container != nil {
		l, err = m.findInContainer()
		if !errors.Is(err, fs.ErrNotExist) {
			return l, m.container, err
		}
	}
	findOnHost := func() (nl.Link, error) { return m.state.findIn(m.host) }
	if m.container == nil && m.state.isHardware() && m.r.Command == "DEL" {
		l, err = m.host.AwaitLink(m.state.Name+" on the host", returnLimit, findOnHost)
	} else {
		l, err = findOnHost()
	}
	return l, m.host, err
}

// findInContainer returns the candidate in the container that is the device, and warns of each candidate that is not. If
// none is the device, the error matches fs.ErrNotExist.
func (m *mover) findInContainer() (nl.Link, error) {
	candidates, err := m.state.candidates(m.container)
	if err != nil {
		return nl.Link{}, err
	}
	for _, l := range candidates {
		if same, err := m.isDevice(l); same || err != nil {
			return l, err
		}
		m.imitated = true
		m.r.Warn("interface %s of the container has the names of interface %s, but is another interface: its kind, permanent MAC, parent or peer differs; it is left there", l.Name, m.state.Name)
	}
	return nl.Link{}, types.NotExist("interface " + m.state.Name + " is not in the container")
}

// isDevice reports whether l, a candidate in the container, is the device. The names do not prove that, because a
// container with CAP_NET_ADMIN can set them on any of its interfaces. The kind, the hardware and the other end must be
// the same as on the host. A container cannot create a veth whose other end is in another container's namespace.
func (m *mover) isDevice(l nl.Link) (bool, error) {
	s := m.state
	if l.Kind != s.Kind || l.PermMAC != s.PermMAC || l.Parent != s.Parent {
		return false, nil
	}
	if s.Peer == 0 {
		return true, nil
	}
	seen, err := m.host.LinkIn(m.container, l.Index)
	switch {
	case err != nil:
		return false, types.IgnoreNotExist(err)
	case seen.PeerNS == s.PeerNS || l.Kind != "veth":
		return seen.Peer == s.Peer && seen.PeerNS == s.PeerNS, nil
	case seen.PeerNS == 0:
		return m.isFormerPeer(seen.Peer)
	}
	return m.hasPeerInOtherContainer(l)
}

// isFormerPeer reports whether the link with the index on the host can be the other end of the device. That end was in
// another namespace when ADD moved the device, and its own DEL has returned it since. A link that plumb created, or a
// port, cannot be that end, because it is the host end of another interface in the container.
func (m *mover) isFormerPeer(index int) (bool, error) {
	peer, err := m.host.LinkByIndex(index)
	return err == nil && !attach.CreatedByPlumb(peer) && peer.Master == 0, types.IgnoreNotExist(err)
}

// hasPeerInOtherContainer reports whether the other end of l, a veth, is in the container to which a later ADD moved
// the other end of the device.
func (m *mover) hasPeerInOtherContainer(l nl.Link) (bool, error) {
	states, err := m.loadAll(m.r.Trace)
	for _, s := range states {
		if m.state.PeerNS != 0 || s.Index != m.state.Peer || s.Kind != "veth" {
			continue
		}
		if found, err := s.hasPeerOf(m.container, l); found || err != nil {
			return found, err
		}
	}
	return false, err
}

// hasPeerOf reports whether the other end of l, a veth in the namespace of c, is in the state's container.
func (s *state) hasPeerOf(c *nl.Conn, l nl.Link) (bool, error) {
	h := s.savedNS(c.NS().Trace())
	if h == nil {
		return false, nil
	}
	other, err := nl.Open(h)
	if err == nil {
		_, err = c.VethPeer(l, other)
	}
	found := err == nil
	return found, errors.Join(types.IgnoreNotExist(err), h.Close())
}

// returnToHost moves the device to the host, unless it is there, and sets the name and the alias that
// nameOnHost returns, and the former group. GC of other plugins may delete a link with a certain group.
func (m *mover) returnToHost(from *nl.Conn, l nl.Link) (nl.Link, error) {
	name, alias, err := m.nameOnHost(from, l)
	if err != nil {
		return nl.Link{}, err
	}
	move := nl.Move{To: m.host, Name: name, Alias: alias, Group: l.Group}
	if m.state.Settings != nil {
		move.Group = m.state.Settings.Group
	}
	if from == m.host && l.Name == name && l.Alias == alias && l.Group == move.Group {
		return l, nil
	}
	if from == m.host && l.Up { // before Linux 6.2, the kernel does not rename a link that is up
		if err := m.host.SetDown(l); err != nil {
			return nl.Link{}, err
		}
	}
	moved, err := from.MoveLink(l, move)
	if !errors.Is(err, fs.ErrExist) || from == m.host {
		return moved, err
	}
	// An interface of the host may have one of the former alternative names now. restoreNames adds the others again.
	for _, name := range attach.UserAltNames(l) {
		if err := from.DeleteAltName(l, name); types.IgnoreNotExist(err) != nil {
			return nl.Link{}, err
		}
	}
	return from.MoveLink(l, move)
}

// nameOnHost returns the name and the alias that the device gets on the host. They are the former name and
// alias, unless another interface has the former name now. In that case the name contains a hash of the
// attachment, and the alias is the former name.
func (m *mover) nameOnHost(from *nl.Conn, l nl.Link) (name, alias string, err error) {
	other, err := m.host.LinkByAnyName(m.state.Name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && from == m.host && other.Index == l.Index {
		return m.state.Name, m.state.Alias, nil
	}
	name = attach.ReturnName(m.state.Attachment)
	former := ""
	if m.state.Alias != "" {
		former = fmt.Sprintf("; its former alias was %q", m.state.Alias)
	}
	m.r.Warn("interface %s of the host returns as %s, because another interface has its name now%s", m.state.Name, name, former)
	return name, m.state.Name, err
}

// restoreReturned restores the device if the kernel has returned it to the host because its container
// ended without a DEL. Such a device still has the name and the settings that it had in the container.
func (m *mover) restoreReturned() error {
	l, err := m.state.findIn(m.host)
	if errors.Is(err, fs.ErrNotExist) || err == nil && l.Name == m.state.Name {
		return nil
	}
	if err != nil {
		return err
	}
	return m.restore()
}

// restoreSaved returns the device of a state to the host. It looks for the device in the namespace at
// CNI_NETNS. If CNI_NETNS is missing or is the path of another namespace, restoreSaved uses the path
// that ADD saved, because a runtime may call DEL without CNI_NETNS while the container still runs.
func (h machine) restoreSaved(r *skel.Request, host *nl.Conn, s *state) (err error) {
	container := r.ContainerNS
	if container == nil || !container.CanHaveCookie(s.NetNS) {
		container = s.savedNS(r.Trace)
		defer func() { err = errors.Join(err, container.Close()) }()
	}
	m := &mover{machine: h, r: r, host: host, state: s}
	if container != nil {
		if m.container, err = nl.Open(container); err != nil {
			return err
		}
	}
	return m.restore()
}

// restoreUnsaved returns the device of an attachment without a state. Either the reference plugin
// moved the device, or the state was lost. The interface's alias is the device's name on the host.
// As with the reference plugin, the device is down afterwards. restoreUnsaved does not move the
// interface of another attachment, to which the path of the namespace may belong now.
func (h machine) restoreUnsaved(r *skel.Request, host *nl.Conn) error {
	if r.ContainerNS == nil {
		return nil
	}
	container, l, err := nl.OpenLink(r.ContainerNS, r.IfName)
	if err != nil || types.CheckIfName(l.Alias) != nil {
		return types.IgnoreNotExist(err)
	}
	s := newState(r.Attachment(), l)
	s.Name, s.Alias, s.Up = l.Alias, "", false
	s.Settings.AltNames, s.Settings.Group = nil, 0 // the container may have set them
	s.Peer, s.PeerNS = 0, 0                        // the values that the host would see are not known
	l.Alias = ""                                   // the alias does not name the attachment
	if other, err := attach.BelongsToOther(r, container, l); other || err != nil {
		return err
	}
	return (&mover{machine: h, r: r, host: host, container: container, state: s}).restore()
}
