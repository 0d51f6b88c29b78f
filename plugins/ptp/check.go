package main

import (
	"errors"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/masq"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// check compares both ends with what ADD configured, and returns an error that names every difference. It
// ignores the MAC, the MTU and the container's sysctls, which a later plugin of the chain may change. If the
// reference plugin created the pair, check also ignores what only plumb configures.
func check(r *skel.Request, conf *config) error {
	a, prev, err := open(r, conf)
	if err != nil {
		return err
	}
	ips := attach.IPsOf(prev, r.IfName)
	reserved := ipam.StartCheck(r)
	var hostErr error
	if a.hostEnd, hostErr = attach.HostEnd(a.host, r.Attachment(), prev); hostErr == nil {
		hostErr = a.diffHost(ips)
	}
	_, err = attach.DiffContainer(r, a.container, containerSpec(r.IfName, ips, prev.Routes), a.hostEnd)
	return types.Coded(types.CodeChanged, errors.Join(reserved(), err, hostErr))
}

// open returns an attachment for CHECK and REPAIR, without the links, and prevResult.
func open(r *skel.Request, conf *config) (*attachment, *types.Result, error) {
	prev, err := r.RequirePrev()
	if err != nil {
		return nil, nil, err
	}
	host, container, err := nl.OpenBoth(r.HostNS, r.ContainerNS)
	return &attachment{r: r, conf: conf, host: host, container: container}, prev, err
}

// diffHost compares the host end, the forwarding and the masquerade.
func (a *attachment) diffHost(ips []types.IP) error {
	spec := checkedSpec(a.hostEnd, ips)
	routes := spec.Routes
	spec.Routes = nil // DiffRoute compares them
	errs := []error{attach.Diff(a.host, a.hostEnd, spec)}
	for _, route := range routes {
		errs = append(errs, attach.DiffRoute(a.host, a.hostEnd, route.Dst, route.Dst.Addr()))
	}
	errs = append(errs, attach.DiffForwarding(a.host, a.hostEnd, ips))
	if a.conf.masquerade.Enabled {
		errs = append(errs, masq.Check(a.conf.masq(a.r), attach.Prefixes(ips)))
	}
	return errors.Join(errs...)
}

// checkedSpec returns the Spec of the host end for CHECK and REPAIR.
func checkedSpec(hostEnd nl.Link, ips []types.IP) attach.Spec {
	spec := hostSpec(hostEnd.Name, ips)
	if !attach.CreatedByPlumb(hostEnd) {
		spec.Sysctls = nil // the reference plugin does not write them
		return spec
	}
	spec.Sysctls = append(spec.Sysctls, attach.IgnoreRouters(hostEnd.Name))
	return spec
}

// repair restores the host end, forwarding, the masquerade, the reservations and, with --container-side, the container
// end. If the host end was deleted, the kernel has deleted the container end as well, and repair restores only the
// reservations.
func repair(r *skel.Request, conf *config) error {
	a, prev, err := open(r, conf)
	if err != nil {
		return err
	}
	ipamErr := ipam.Repair(r)
	hostEnd, err := attach.HostEnd(a.host, r.Attachment(), prev)
	if err != nil {
		return ipamErr // CHECK reports err
	}
	ips := attach.IPsOf(prev, r.IfName)
	errs := []error{ipamErr, attach.Restore(a.host, hostEnd, checkedSpec(hostEnd, ips)), attach.RestoreForwarding(a.host, hostEnd, ips)}
	if conf.masquerade.Enabled {
		errs = append(errs, masq.Restore(&r.Undo, conf.masq(r), attach.Prefixes(ips)))
	}
	return errors.Join(append(errs, attach.RestoreContainer(r, containerSpec(r.IfName, ips, prev.Routes)))...)
}
