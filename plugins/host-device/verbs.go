package main

import (
	"errors"
	"io/fs"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/statefile"
	"github.com/plumb-cni/plumb/pkg/types"
)

// del does not read the configuration of the plugin: the device and the configuration may have
// changed since ADD.
func (h host) del(r *skel.Request) error {
	return ipam.DelWithLink(r, func() (wait func() error, err error) {
		return func() error { return nil }, h.release(r)
	})
}

// release returns the device of the attachment to the node.
func (h host) release(r *skel.Request) error {
	node, err := nl.Open(r.Node)
	if err != nil {
		return err
	}
	s, err := h.load(r.Trace, r.Attachment())
	switch {
	case errors.Is(err, statefile.ErrUnreadable):
		r.Warn("%v; the device returns to the node with its alias as its name", err)
		fallthrough
	case errors.Is(err, fs.ErrNotExist):
		err := h.restoreUnsaved(r, node)
		if err == nil {
			err = h.file(r.Trace, r.Attachment()).Remove()
		}
		return err
	case err != nil:
		return types.Coded(types.CodeIO, err)
	}
	return h.restoreSaved(r, node, s)
}

// restoreSaved returns the device of a state to the node.
func (h host) restoreSaved(r *skel.Request, node *nl.Conn, s *state) error {
	d, closeAll, err := h.restorer(r, node, s)
	if err == nil {
		err = d.restore()
	}
	return errors.Join(err, closeAll())
}

// isOfOther reports whether an interface of the container is known to belong to another
// attachment: the path of the namespace was reused.
func isOfOther(pod *nl.Conn, l nl.Link, r *skel.Request) (bool, error) {
	if hasMarkOfOther(l, r.Attachment()) {
		return true, nil
	}
	prev, _ := r.Prev() // nil if it cannot be read: DEL does not depend on it
	l.Alias = ""        // the alias does not name the attachment
	return attach.BelongsToOther(pod, l, r.Attachment(), prev)
}

// check compares the interface with prevResult. It does not compare the MAC, which a later
// plugin of the chain may have changed.
func (h host) check(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return err
	}
	if _, err := r.MustPrev(); err != nil {
		return err
	}
	dpdk, err := h.sys.usesDPDK(r.Trace, conf)
	if err != nil {
		return types.Coded(types.CodeChanged, err)
	}
	if dpdk {
		return ipam.StartCheck(r)()
	}
	pod, err := nl.Open(r.Pod)
	if err != nil {
		return err
	}
	return attach.CheckPodLink(r, pod, "", func(nl.Link) error { return nil })
}

// gc restores the devices of the attachments of this network that GC need not keep, and then calls the
// IPAM plugin.
func (h host) gc(r *skel.Request) error {
	return errors.Join(h.gcDevices(r), ipam.GC(r))
}

func (h host) gcDevices(r *skel.Request) error {
	node, err := nl.Open(r.Node)
	if err != nil {
		return err
	}
	states, err := h.loadAll(r.Trace)
	valid := r.Valid()
	errs := []error{err, statefile.RemoveTemp(r.Trace, h.states, r.Conf.Name, valid)}
	for _, s := range states {
		if s.Network == r.Conf.Name && !valid[s.owner()] {
			errs = append(errs, h.restoreSaved(r, node, s))
		}
	}
	return errors.Join(errs...)
}

// status returns an error if an ADD would fail. A device that is in use is no error.
func (h host) status(r *skel.Request) error {
	conf, err := parse(r)
	if err == nil {
		err = statefile.CheckWritable(h.states)
	}
	if err == nil && conf.selector != (selector{}) {
		err = h.checkDevice(r, conf)
	}
	if err != nil {
		return types.NotAvailable(err)
	}
	return ipam.Status(r)
}

// checkDevice returns an error if the selected device does not exist, or cannot be moved.
func (h host) checkDevice(r *skel.Request, conf *config) error {
	dpdk, err := h.sys.usesDPDK(r.Trace, conf)
	if dpdk || err != nil {
		return err
	}
	node, err := nl.Open(r.Node)
	if err != nil {
		return err
	}
	states, err := h.loadAll(r.Trace)
	if err != nil {
		return err
	}
	l, err := h.find(node, conf.selector)
	if errors.Is(err, fs.ErrNotExist) && holder(states, conf.selector) != nil {
		return nil
	}
	if err != nil {
		return err
	}
	return checkDispensable(node, l, conf)
}
