package main

import (
	"errors"
	"io/fs"
	"slices"
	"syscall"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// add moves the device into the container and configures it for the lease. It waits for the lease before
// it moves the device, so that an ADD that gets no address leaves the device as it is. An IPAM plugin
// that needs the link, such as dhcp, gets the link first.
func (h host) add(r *skel.Request) (*types.Result, error) {
	conf, err := parse(r)
	if err != nil {
		return nil, err
	}
	pending, err := ipam.Start(r)
	if err != nil {
		return nil, err
	}
	dpdk, err := h.sys.usesDPDK(r.Trace, conf)
	if err != nil {
		return nil, types.Coded(types.CodeConfig, err)
	}
	if dpdk {
		return addDPDK(r, conf, pending)
	}
	node, pod, err := nl.OpenBoth(r.Node, r.Pod)
	if err != nil {
		return nil, err
	}
	device, err := h.findFree(r, node, conf)
	if err != nil {
		return nil, err
	}
	if err := checkPod(pod, r.Attachment()); err != nil {
		return nil, err
	}
	pending.AllowAllocation()
	if pending != nil && !ipam.OverLink(r) {
		if _, err := pending.Wait(); err != nil {
			return nil, err
		}
	}
	eth, err := h.take(r, conf, connections{node, pod}, device)
	if err != nil {
		return nil, err
	}
	result, err := attach.PodLink{Pod: pod, Link: eth, DAD: conf.dad}.ConfigureMarked(r, pending)
	if err == nil {
		result.Interfaces[0].PciID = conf.selector.pciID()
	}
	return result, err
}

// addDPDK returns the result for a device that the container uses without its network interface. It
// reports the lease and sets no address.
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

// findFree returns the selected interface of the node, if it may be moved. If the kernel has
// returned it from a container that ended without a DEL, findFree first restores it.
func (h host) findFree(r *skel.Request, node *nl.Conn, conf *config) (nl.Link, error) {
	states, err := h.loadAll(r.Trace)
	if err != nil {
		return nl.Link{}, err
	}
	l, err := h.find(node, conf.selector)
	if types.IgnoreNotExist(err) != nil {
		return nl.Link{}, err
	}
	returned := slices.DeleteFunc(slices.Clone(states), func(s *state) bool { return !s.isHardware() || !s.isSelectedBy(conf.selector, l) })
	if err := h.restoreReturned(r, node, returned); err != nil {
		return nl.Link{}, err
	}
	l, err = h.find(node, conf.selector)
	if user := holder(states, conf.selector); errors.Is(err, fs.ErrNotExist) && user != nil {
		return nl.Link{}, types.Errorf(types.CodeTryAgain, "%s is in use by %s: %w; if the attachment %[2]s no longer exists, GC releases the device", conf.selector, user.owner(), err)
	}
	if err != nil {
		return nl.Link{}, types.Coded(types.CodeConfig, err)
	}
	return l, checkDispensable(node, l, conf)
}

// checkPod returns an error if the container has an interface named CNI_IFNAME. It also returns an error
// if an earlier ADD of the attachment moved a device there, whatever its name is now.
func checkPod(pod *nl.Conn, own types.Attachment) error {
	if err := attach.EnsureNameFree(pod, own.IfName); err != nil {
		return err
	}
	l, err := pod.Link(altName(own))
	if err == nil {
		return types.Errorf(types.CodeConfig, "interface %s in the container already serves %s: an earlier ADD was not followed by a DEL", l.Name, own)
	}
	return types.IgnoreNotExist(err)
}

// connections has the connections to the node and to the container.
type connections struct{ node, pod *nl.Conn }

// take saves the state of the device, marks it with the attachment, and moves it into the
// container, as CNI_IFNAME. The undo, which is pushed before the first change, also restores the
// device's addresses, which DEL does only if the configuration says so.
func (h host) take(r *skel.Request, conf *config, conns connections, device nl.Link) (nl.Link, error) {
	addrs, err := addressesOf(conns.node, device)
	if err != nil {
		return nl.Link{}, err
	}
	before := newState(r, conf.selector, device)
	before.Addresses = addrs
	r.Undo.Push("return interface "+device.Name, func() error {
		return (&restorer{r: r, node: conns.node, pod: conns.pod, state: before, file: h.file(r.Trace, r.Attachment())}).restore()
	})
	saved := *before
	if !conf.restoreAddresses {
		saved.Addresses = nil
	}
	if err := h.save(r.Trace, &saved); err != nil {
		return nl.Link{}, err
	}
	err = conns.node.AddAltName(device, altName(r.Attachment()))
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return nl.Link{}, explainTake(err, device)
	}
	eth, err := conns.node.MoveLink(device, nl.Move{To: conns.pod, Name: r.IfName, Alias: device.Name})
	return eth, explainTake(err, device)
}

// explainTake explains the error of a kernel that does not mark or move the device.
func explainTake(err error, device nl.Link) error {
	switch {
	case errors.Is(err, syscall.EINVAL):
		return types.Errorf(types.CodeConfig, "the kernel does not move interface %s, which is of kind %q, to another namespace: %w", device.Name, device.Kind, err)
	case errors.Is(err, fs.ErrNotExist):
		return types.Errorf(types.CodeTryAgain, "interface %s has left the node during ADD, probably for another container: %w", device.Name, err)
	case errors.Is(err, fs.ErrExist):
		return types.Errorf(types.CodeConfig, "the name or an alternative name of interface %s exists already: %w", device.Name, err)
	}
	return err
}
