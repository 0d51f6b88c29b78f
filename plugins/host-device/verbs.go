package main

import (
	"errors"
	"io/fs"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/statefile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// del returns the device to the host, and releases its addresses. It does not read the plugin's
// configuration, which may have changed since ADD.
func (h machine) del(r *skel.Request) error {
	return ipam.DelWithLink(r, func() (wait func() error, err error) {
		return func() error { return nil }, h.release(r)
	})
}

// release returns the device of the attachment to the host.
func (h machine) release(r *skel.Request) error {
	h.states = r.StateDir("", h.states)
	host, err := nl.Open(r.HostNS)
	if err != nil {
		return err
	}
	file, s := h.file(r.Trace, r.Attachment()), &state{}
	err = file.Load(s)
	switch {
	case err == nil:
		return h.restoreSaved(r, host, s)
	case errors.Is(err, statefile.ErrUnreadable):
		r.Warn("%v; the device returns to the host with its alias as its name", err)
	case !errors.Is(err, fs.ErrNotExist):
		return types.Coded(types.CodeIO, err)
	}
	if err := h.restoreUnsaved(r, host); err != nil {
		return err
	}
	return file.Remove()
}

// check compares the interface with prevResult. It does not compare the MAC, because a later plugin
// in the chain may have changed it.
func (h machine) check(r *skel.Request, conf *config) error {
	if _, err := r.RequirePrev(); err != nil {
		return err
	}
	dpdk, err := h.sys.usesDPDK(r.Trace, conf)
	if err != nil {
		return types.Coded(types.CodeChanged, err)
	}
	if dpdk {
		return ipam.StartCheck(r)()
	}
	if !conf.useNetwork {
		return attach.CheckContainerLink(r, "", nil)
	}
	adopted, err := h.adopted(r, conf)
	return errors.Join(types.Coded(types.CodeIO, err), checkAdopted(r, adopted))
}

// adopted returns the configuration that the container adopted, or nil if there is none or if it is not known.
func (h machine) adopted(r *skel.Request, conf *config) (*nl.LinkConfig, error) {
	if !conf.useNetwork {
		return nil, nil
	}
	h.states = r.StateDir("", h.states)
	s := &state{}
	err := h.file(r.Trace, r.Attachment()).Load(s)
	if errors.Is(err, statefile.ErrUnreadable) {
		return nil, nil // DEL warns of it
	}
	return s.Adopted, types.IgnoreNotExist(err)
}

// repair restores the reservations and, with --container-side, the device's addresses, routes and rules.
func (h machine) repair(r *skel.Request, conf *config) error {
	if dpdk, err := h.sys.usesDPDK(r.Trace, conf); dpdk || err != nil {
		return errors.Join(ipam.Repair(r), err)
	}
	adopted, err := h.adopted(r, conf)
	if adopted == nil || err != nil {
		return errors.Join(types.Coded(types.CodeIO, err), attach.RepairContainerLink(r, "", conf.dad))
	}
	return repairAdopted(r, conf.dad, adopted)
}

// gc restores the devices of the network's attachments that are no longer valid, and calls the IPAM
// plugin.
func (h machine) gc(r *skel.Request) error {
	return ipam.GCWithLinks(r, func() error { return h.gcDevices(r) })
}

func (h machine) gcDevices(r *skel.Request) error {
	h.states = r.StateDir("", h.states)
	host, err := nl.Open(r.HostNS)
	if err != nil {
		return err
	}
	states, err := h.loadAll(r.Trace)
	valid := r.ValidAttachments()
	errs := []error{err, statefile.RemoveTemp(r.Trace, h.states, r.Conf.Name, valid)}
	for _, s := range states {
		if s.Network == r.Conf.Name && !valid[s.Attachment] {
			errs = append(errs, h.restoreSaved(r, host, s))
		}
	}
	return errors.Join(errs...)
}

// status returns an error if an ADD would fail. A device that is in use is not an error.
func (h machine) status(r *skel.Request) error {
	h.states = r.StateDir("", h.states)
	conf, err := parse(r)
	if err == nil {
		err = statefile.CheckWritable(h.states)
	}
	if err == nil && conf.selector != (selector{}) {
		err = h.checkDevice(r, conf)
	}
	return ipam.Status(r, err)
}

// checkDevice returns an error if the selected device does not exist, or cannot be moved.
func (h machine) checkDevice(r *skel.Request, conf *config) error {
	dpdk, err := h.sys.usesDPDK(r.Trace, conf)
	if dpdk || err != nil {
		return err
	}
	host, err := nl.Open(r.HostNS)
	if err != nil {
		return err
	}
	states, err := h.loadAll(r.Trace)
	if err != nil {
		return err
	}
	_, err = h.findAvailable(r, host, conf, states)
	if err != nil && types.AsError(err).Code == types.CodeTryAgain {
		return nil
	}
	return err
}
