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

// codeChanged is the code of a CHECK that found a difference.
const codeChanged = 100

// check compares what ADD made with what is there, and names every difference. What
// a later plugin of the chain may change (MAC, MTU, the container's sysctls) is not
// compared; what only plumb makes is looked for only where plumb made the pair.
func check(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return err
	}
	prev, err := r.MustPrev()
	if err != nil {
		return err
	}
	node, pod, err := nl.OpenBoth(r.Node, r.Pod)
	if err != nil {
		return err
	}
	spec, err := attach.FromResult(prev, r.IfName, r.NetNS)
	if err != nil {
		return types.Coded(codeChanged, err)
	}
	ips := attach.IPsOf(prev, r.IfName)
	spec.Kind, spec.Routes = "veth", podRoutes(ips, prev.Routes)
	host, changed := attach.HostEnd(node, r.Attachment(), prev)
	if !attach.Ours(host) {
		spec = spec.ReferenceMade()
	}
	reserved := ipam.StartCheck(r)
	if changed == nil {
		changed = (&nodeEnd{r: r, conf: conf, node: node, host: host}).check(ips)
	}
	return types.Coded(codeChanged, errors.Join(reserved(), attach.Diff(pod, r.IfName, spec), changed))
}

// A nodeEnd is the node's end of the pair that CHECK is called for.
type nodeEnd struct {
	r    *skel.Request
	conf *config
	node *nl.Conn
	host nl.Link
}

// check looks at the node's end and at what serves the addresses.
func (e *nodeEnd) check(ips []types.IP) error {
	host := e.host
	spec := nodeSide(host.Name, ips)
	spec.Sysctls = nil // the reference plugin sets none before the link is up
	if attach.Ours(host) {
		spec.Sysctls = attach.HostSysctls(host.Name)
	}
	errs := []error{attach.Diff(e.node, host.Name, spec), attach.DiffForwarding(e.node, ips)}
	if attach.Ours(host) && e.conf.masquerade {
		errs = append(errs, masq.Check(e.conf.masq(e.r), attach.Prefixes(ips)))
	}
	return errors.Join(errs...)
}
