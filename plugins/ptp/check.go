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
	spec.Kind, spec.Routes = "veth", podRoutes(attach.IPsOf(prev, r.IfName), prev.Routes)
	reserved := ipam.CheckAside(r)
	changed := errors.Join(attach.Diff(pod, r.IfName, spec), checkNode(r, conf, node, prev))
	return types.Coded(codeChanged, errors.Join(reserved(), changed))
}

// checkNode looks at the node's end and at what serves the addresses.
func checkNode(r *skel.Request, conf *config, node *nl.Conn, prev *types.Result) error {
	host, err := attach.HostEnd(node, r.Attachment(), prev)
	if err != nil {
		return err
	}
	ips := attach.IPsOf(prev, r.IfName)
	spec := nodeSide(host.Name, ips)
	spec.Sysctls = nil // the reference plugin sets none before the link is up
	if attach.Ours(host) {
		spec.Sysctls = attach.HostSysctls(host.Name)
	}
	errs := []error{attach.Diff(node, host.Name, spec), attach.DiffForwarding(node, ips)}
	if attach.Ours(host) && conf.masquerade {
		errs = append(errs, masq.Check(conf.masq(r), attach.Prefixes(ips)))
	}
	return errors.Join(errs...)
}
