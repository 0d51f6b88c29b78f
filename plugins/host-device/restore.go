package main

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/statefile"
	"github.com/plumb-cni/plumb/pkg/types"
)

// returnLimit limits how long DEL waits for the kernel to return hardware to the node after the
// container's namespace has ended. The kernel does so in the background.
const returnLimit = 5 * time.Second

// A restorer returns the device of one attachment to the node, as its state says.
type restorer struct {
	r     *skel.Request
	node  *nl.Conn
	pod   *nl.Conn // the namespace with the device; nil: it no longer exists
	file  statefile.File
	state *state
}

// restorer returns the restorer of a state, and a function that closes what the restorer has opened. The
// restorer uses the namespace of CNI_NETNS. If CNI_NETNS is missing or leads to another namespace, it
// uses the path that ADD saved: DEL may be called without CNI_NETNS while the container still runs.
func (h host) restorer(r *skel.Request, node *nl.Conn, s *state) (d *restorer, closeAll func() error, err error) {
	closeAll = func() error { return nil }
	d = &restorer{r: r, node: node, state: s, file: h.file(r.Trace, s.owner())}
	if r.Pod != nil && s.isIn(r.Pod) {
		d.pod, err = nl.Open(r.Pod)
		return d, closeAll, err
	}
	saved, openErr := ns.Open(s.Sandbox, r.Trace)
	if openErr != nil || s.NetNS == 0 || saved.Cookie() != s.NetNS {
		return d, saved.Close, nil
	}
	d.pod, err = nl.Open(saved)
	return d, saved.Close, err
}

// restore returns the device to the node and restores its settings. It keeps the state file if it
// returns an error, or if the device is hardware that is not found: the kernel may still return it to
// the node, and then GC, or an ADD that selects it, restores it.
func (d *restorer) restore() error {
	l, from, err := d.find()
	switch {
	case errors.Is(err, fs.ErrNotExist) && d.state.isHardware():
		d.r.Warn("interface %s of the node (%s) is not found; it is restored when it is back on the node", d.state.Name, d.state.Selector)
		return nil
	case errors.Is(err, fs.ErrNotExist): // the kernel has deleted it with the namespace
		return d.file.Remove()
	case err != nil:
		return err
	}
	if l, err = d.returnToNode(from, l); err != nil {
		return err
	}
	if err := errors.Join(d.restoreSettings(l), d.restoreAddresses(l)); err != nil {
		return err
	}
	if mark := altName(d.state.owner()); slices.Contains(l.AltNames, mark) {
		if err := d.node.DeleteAltName(l, mark); types.IgnoreNotExist(err) != nil {
			return err
		}
	}
	return d.file.Remove()
}

// find returns the device, and the connection to the namespace that has it. If no namespace has it,
// the error matches fs.ErrNotExist.
func (d *restorer) find() (l nl.Link, from *nl.Conn, err error) {
	if d.pod != nil {
		l, err = d.findInPod()
		if !errors.Is(err, fs.ErrNotExist) {
			return l, d.pod, err
		}
	}
	if d.pod != nil || !d.state.isHardware() || d.r.Command != "DEL" {
		l, err = d.findOnNode()
		return l, d.node, err
	}
	l, err = d.node.AwaitLink(d.state.Name+" on the node", returnLimit, d.findOnNode)
	return l, d.node, err
}

// findInPod returns the device if it is in the container. It finds the device by its mark, even if
// another program renamed the device. On a kernel that finds no interfaces by an alternative name, it
// looks for the name and the alias that ADD set, and for the name on the node, which the device still
// has if ADD was killed.
func (d *restorer) findInPod() (nl.Link, error) {
	l, err := d.pod.Link(altName(d.state.owner()))
	if !errors.Is(err, fs.ErrNotExist) {
		return l, err
	}
	for _, name := range []string{d.state.IfName, d.state.Name} {
		l, err = d.pod.Link(name)
		if err == nil && d.state.canBe(l) && (l.Alias == d.state.Name || l.Name == d.state.Name && l.MAC == d.state.MAC) {
			return l, nil
		}
		if types.IgnoreNotExist(err) != nil {
			return nl.Link{}, err
		}
	}
	return nl.Link{}, fs.ErrNotExist
}

// findOnNode returns the device if it is on the node: ADD has not moved it, it was restored, or the
// kernel has returned it, under its name in the container or a new one.
func (d *restorer) findOnNode() (nl.Link, error) {
	l, err := d.node.Link(altName(d.state.owner()))
	if err == nil { // kernels before 6.6 find a link that has left the namespace, too (see nl.MoveLink)
		l, err = d.node.LinkByIndex(l.Index)
	}
	if err == nil && d.state.canBe(l) || types.IgnoreNotExist(err) != nil {
		return l, err
	}
	if !d.state.isHardware() {
		return nl.Link{}, fs.ErrNotExist
	}
	links, err := d.node.Links()
	if err != nil {
		return nl.Link{}, err
	}
	i := slices.IndexFunc(links, func(l nl.Link) bool {
		return d.state.canBe(l) && (l.Alias == d.state.Name || l.Name == d.state.Name)
	})
	if i < 0 {
		return nl.Link{}, fs.ErrNotExist
	}
	return links[i], nil
}

// returnToNode moves the device to the node, unless it is there, and gives it the name and the alias of
// nameOnNode.
func (d *restorer) returnToNode(from *nl.Conn, l nl.Link) (nl.Link, error) {
	name, alias, err := d.nameOnNode(from, l)
	if err != nil {
		return nl.Link{}, err
	}
	if from == d.node && l.Name == name && l.Alias == alias {
		return l, nil
	}
	if from == d.node && l.Up { // before Linux 6.2 the kernel renames no link that is up
		if err := d.node.SetDown(l); err != nil {
			return nl.Link{}, err
		}
	}
	return from.MoveLink(l, nl.Move{To: d.node, Name: name, Alias: alias})
}

// nameOnNode returns the name and the alias that the device gets on the node. They are the former ones,
// unless another interface has the former name now. In that case the name is made from the mark, and
// the alias is the former name.
func (d *restorer) nameOnNode(from *nl.Conn, l nl.Link) (name, alias string, err error) {
	other, err := d.node.Link(d.state.Name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && from == d.node && other.Index == l.Index {
		return d.state.Name, d.state.Alias, nil
	}
	name = "hd-" + altName(d.state.owner())[len(altNamePrefix):][:types.MaxIfName-len("hd-")]
	d.r.Warn("interface %s of the node returns as %s, because another interface has its name now", d.state.Name, name)
	return name, d.state.Name, err
}

// restoreSettings restores the MTU, the MAC, and whether the device is up. It tries all of them, and joins
// the errors. If the kernel or the driver refuses a setting, it only warns, because a retry would not
// help.
func (d *restorer) restoreSettings(l nl.Link) error {
	var errs []error
	restoreIf := func(differs bool, set func() error) {
		if !differs {
			return
		}
		err := set()
		if slices.ContainsFunc(refusals, func(errno error) bool { return errors.Is(err, errno) }) {
			d.r.Warn("restore interface %s: %v", d.state.Name, err)
			err = nil
		}
		errs = append(errs, err)
	}
	restoreIf(l.MTU != d.state.MTU, func() error { return d.node.SetMTU(l, d.state.MTU) })
	restoreIf(l.MAC != d.state.MAC, func() error { return d.node.SetMAC(l, d.state.MAC) })
	restoreIf(l.Up && !d.state.Up, func() error { return d.node.SetDown(l) })
	restoreIf(!l.Up && d.state.Up, func() error { return d.node.SetUp(l) })
	return errors.Join(errs...)
}

// refusals are the errors with which the kernel or a driver refuses a setting.
var refusals = []error{syscall.EINVAL, syscall.ERANGE, syscall.EOPNOTSUPP, syscall.EADDRINUSE, syscall.EADDRNOTAVAIL, syscall.EBUSY, syscall.EPERM, syscall.EIO}

// restoreAddresses adds the saved addresses.
func (d *restorer) restoreAddresses(l nl.Link) error {
	var errs []error
	for _, a := range d.state.Addresses {
		err := d.node.AddAddr(l, nl.Addr{Prefix: a.Prefix, NoDAD: a.NoDAD, NoPrefixRoute: a.NoPrefixRoute})
		if !errors.Is(err, fs.ErrExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// restoreReturned restores the devices that the kernel has returned to the node because their containers
// ended without a DEL. Such a device still has the name and the settings that it had in the container.
func (h host) restoreReturned(r *skel.Request, node *nl.Conn, states []*state) error {
	for _, s := range states {
		d := &restorer{r: r, node: node, state: s, file: h.file(r.Trace, s.owner())}
		l, err := d.findOnNode()
		if errors.Is(err, fs.ErrNotExist) || err == nil && l.Name == s.Name {
			continue
		}
		if err == nil {
			err = d.restore()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// restoreUnsaved returns the device of an attachment that has no state: the reference plugin moved
// it, or the state was lost. The alias of the interface is the device's name on the node. As
// with the reference plugin, the device is then down.
func (h host) restoreUnsaved(r *skel.Request, node *nl.Conn) error {
	if r.Pod == nil {
		return nil
	}
	pod, err := nl.Open(r.Pod)
	if err != nil {
		return err
	}
	l, err := pod.Link(r.IfName)
	if err != nil || types.CheckIfName(l.Alias) != nil {
		return types.IgnoreNotExist(err)
	}
	if other, err := isOfOther(pod, l, r); other || err != nil {
		return err
	}
	s := &state{
		Network: r.Conf.Name, ContainerID: r.ContainerID, IfName: r.IfName,
		Kind: l.Kind, PermMAC: l.PermMAC, Parent: l.Parent, Name: l.Alias, MAC: l.MAC, MTU: l.MTU,
	}
	d := &restorer{r: r, node: node, pod: pod, state: s, file: h.file(r.Trace, s.owner())}
	return d.restore()
}

// hasMarkOfOther reports whether the interface has the mark of another attachment.
func hasMarkOfOther(l nl.Link, own types.Attachment) bool {
	return slices.ContainsFunc(l.AltNames, func(name string) bool {
		return strings.HasPrefix(name, altNamePrefix) && name != altName(own)
	})
}
