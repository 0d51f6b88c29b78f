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
	prev, err := r.RequirePrev()
	if err != nil {
		return err
	}
	host, container, err := nl.OpenBoth(r.HostNS, r.ContainerNS)
	if err != nil {
		return err
	}
	hostEnd, changed := attach.HostEnd(host, r.Attachment(), prev)
	spec, err := attach.SpecFromResult(r, prev, hostEnd)
	if err != nil {
		return types.Coded(types.CodeChanged, err)
	}
	ips := attach.IPsOf(prev, r.IfName)
	spec.Kind, spec.Routes = "veth", containerRoutes(ips, attach.PrevRoutes(prev, hostEnd))
	for i := range spec.Addrs {
		spec.Addrs[i].NoPrefixRoute = true // as in containerSpec, for the command in the error for a missing address
	}
	reserved := ipam.StartCheck(r)
	if changed == nil {
		changed = (&endCheck{r: r, conf: conf, host: host, hostEnd: hostEnd}).diff(ips)
	}
	return types.Coded(types.CodeChanged, errors.Join(reserved(), attach.Diff(container, r.IfName, spec), changed))
}

// An endCheck compares the host end with what ADD configured.
type endCheck struct {
	r       *skel.Request
	conf    *config
	host    *nl.Conn
	hostEnd nl.Link
}

// diff compares the host end, the forwarding and the masquerade.
func (e *endCheck) diff(ips []types.IP) error {
	hostEnd, spec := e.hostEnd, checkedSpec(e.hostEnd, ips)
	routes := spec.Routes
	spec.Routes = nil // DiffRoute compares them
	errs := []error{attach.Diff(e.host, hostEnd.Name, spec)}
	for _, route := range routes {
		errs = append(errs, attach.DiffRoute(e.host, hostEnd, route.Dst, route.Dst.Addr()))
	}
	errs = append(errs, attach.DiffForwarding(e.host, hostEnd, ips))
	if e.conf.masquerade.Enabled {
		errs = append(errs, masq.Check(e.conf.masq(e.r), attach.Prefixes(ips)))
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
	spec.Sysctls = append(spec.Sysctls, attach.HostSysctls(hostEnd.Name)...)
	return spec
}
