package main

import (
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/masq"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// containerIndex is the index of the container end in the result, after the host end.
const containerIndex = 1

// An attachment is the state of one ADD.
type attachment struct {
	r               *skel.Request
	conf            *config
	host, container *nl.Conn
	hostEnd, eth    nl.Link // the host end and the container end of the pair
}

func add(r *skel.Request, conf *config) (*types.Result, error) {
	pending, err := ipam.Start(r)
	if err != nil {
		return nil, err
	}
	host, container, err := nl.OpenBoth(r.HostNS, r.ContainerNS)
	if err != nil {
		return nil, err
	}
	if err := attach.EnsureNameFree(container, r.IfName); err != nil {
		return nil, err
	}
	a := &attachment{r: r, conf: conf, host: host, container: container}
	result, err := a.connectPair(pending)
	return result, attach.ExplainRemoved(host, a.hostEnd, r.IfName, err)
}

// connectPair creates the pair and sets both ends up while the IPAM plugin runs. Then it waits for the lease,
// and configures both ends for it.
func (a *attachment) connectPair(pending *ipam.Pending) (*types.Result, error) {
	pending.AllowAllocation()
	var err error
	a.hostEnd, a.eth, err = attach.AddVeth(&a.r.Undo, attach.Pair{Host: a.host, Container: a.container, Owner: a.r.Attachment(), MTU: a.conf.mtu})
	if err != nil {
		return nil, err
	}
	if err := a.prepare(); err != nil {
		return nil, err
	}
	lease, err := pending.Wait()
	if err != nil {
		return nil, err
	}
	if lease.IPs, err = withGateways(lease); err != nil {
		return nil, err
	}
	result := a.result()
	lease.AddTo(result, containerIndex)
	return result, a.configure(result)
}

func (a *attachment) prepare() error {
	if err := attach.Prepare(a.host, a.hostEnd, attach.NoDAD(a.hostEnd.Name)); err != nil {
		return err
	}
	settings := append(attach.ContainerSysctls(a.eth.Name, attach.DADOff), attach.IgnoreRouters(a.eth.Name))
	return attach.Prepare(a.container, a.eth, settings...)
}

func (a *attachment) result() *types.Result {
	return &types.Result{
		Interfaces: []types.Interface{
			attach.Interface(a.hostEnd, ""),
			attach.Interface(a.eth, a.r.NetNS),
		},
		DNS: a.r.Conf.DNS,
	}
}

// configure adds the addresses, routes and neighbor entries to both ends, enables forwarding, and adds the masquerade.
func (a *attachment) configure(result *types.Result) error {
	if err := attach.Apply(a.container, a.eth, containerSpec(a.eth.Name, result.IPs, result.Routes)); err != nil {
		return err
	}
	if err := attach.Apply(a.host, a.hostEnd, hostSpec(a.hostEnd.Name, result.IPs)); err != nil {
		return err
	}
	if err := attach.EnsureForwarding(a.host, a.hostEnd, result.IPs); err != nil {
		return err
	}
	if a.conf.masquerade.Enabled {
		if err := masq.Add(&a.r.Undo, a.conf.masq(a.r), attach.Prefixes(result.IPs)); err != nil {
			return err
		}
	}
	return a.addNeighbors(result.IPs)
}
