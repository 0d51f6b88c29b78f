package main

import (
	"errors"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/ipam"
	"github.com/plumb-cni/plumb/pkg/masq"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// check compares the present state with what ADD made, and names every difference in one
// error. It does not compare what a later plugin of the chain may change: MAC, MTU and the
// sysctls of the container. If the reference plugin made the pair, it does not compare what
// only plumb makes.
func check(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return err
	}
	prev, err := r.RequirePrev()
	if err != nil {
		return err
	}
	node, pod, err := nl.OpenBoth(r.Node, r.Pod)
	if err != nil {
		return err
	}
	host, changed := attach.HostEnd(node, r.Attachment(), prev)
	spec, err := attach.SpecFromResult(r, prev, host)
	if err != nil {
		return types.Coded(types.CodeChanged, err)
	}
	ips := attach.IPsOf(prev, r.IfName)
	spec.Kind, spec.Routes = "veth", podRoutes(ips, attach.PrevRoutes(prev, host))
	for i := range spec.Addrs {
		spec.Addrs[i].NoPrefixRoute = true // as podSpec, for the command of a missing address
	}
	reserved := ipam.StartCheck(r)
	if changed == nil {
		changed = (&hostEnd{r: r, conf: conf, node: node, host: host}).diff(ips)
	}
	return types.Coded(types.CodeChanged, errors.Join(reserved(), attach.Diff(pod, r.IfName, spec), changed))
}

// A hostEnd is the host end that CHECK compares.
type hostEnd struct {
	r    *skel.Request
	conf *config
	node *nl.Conn
	host nl.Link
}

// diff compares the host end, the forwarding and the masquerade.
func (e *hostEnd) diff(ips []types.IP) error {
	host := e.host
	spec := hostSpec(host.Name, ips)
	spec.Sysctls = nil // the reference plugin does not write them
	if attach.MadeByPlumb(host) {
		spec.Sysctls = attach.HostSysctls(host.Name)
	}
	errs := []error{attach.Diff(e.node, host.Name, spec), attach.DiffForwarding(e.node, ips)}
	if attach.MadeByPlumb(host) && e.conf.masquerade {
		errs = append(errs, masq.Check(e.conf.masq(e.r), attach.Prefixes(ips)))
	}
	return errors.Join(errs...)
}
