package main

import (
	"errors"
	"io/fs"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/ipam"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// containerIndex is the index of the container end in the result, which lists the bridge and the
// host end first.
const containerIndex = 2

func add(r *skel.Request, conf *config) (*types.Result, error) {
	prev, err := r.Prev()
	if err != nil {
		return nil, err
	}
	pending, err := ipam.Start(r)
	if err != nil {
		return nil, err
	}
	host, container, err := nl.OpenBoth(r.HostNS, r.ContainerNS)
	if err != nil {
		return nil, err
	}
	a := &attachment{r: r, conf: conf, host: host, container: container, prev: prev, pending: pending}
	if name, found := hostInterface(prev, conf.bridge); found {
		return a.connectExisting(name)
	}
	result, err := a.connectNewPair()
	return result, a.explainDeleted(attach.ExplainRemoved(host, a.hostEnd, r.IfName, err))
}

// explainDeleted explains the error of an ADD during which another program deleted the bridge. The kernel answers some
// requests with EINVAL or EOPNOTSUPP then, because the index of the master or the port is wrong.
func (a *attachment) explainDeleted(err error) error {
	var coded *types.Error
	if err == nil || errors.As(err, &coded) || a.bridge.Index == 0 {
		return err
	}
	if _, lost := a.host.LinkByIndex(a.bridge.Index); !errors.Is(lost, fs.ErrNotExist) {
		return err
	}
	return types.Errorf(types.CodeTryAgain, "bridge %s was deleted during ADD: %w; try again", a.bridge.Name, err)
}

// An attachment is the state of one ADD, CHECK or REPAIR.
type attachment struct {
	r               *skel.Request
	conf            *config
	host, container *nl.Conn
	prev            *types.Result // nil if there is none
	bridge          nl.Link
	hostEnd         nl.Link       // the container's port, for example the host end of the pair
	eth             nl.Link       // the container's interface in ADD
	pending         *ipam.Pending // nil without an IPAM plugin
	findErr         error         // why CHECK or REPAIR did not find hostEnd
}

// connectNewPair creates a veth pair while the IPAM plugin runs, and connects the container to
// the bridge with the pair.
func (a *attachment) connectNewPair() (*types.Result, error) {
	if err := attach.EnsureNameFree(a.container, a.r.IfName); err != nil {
		return nil, err
	}
	a.pending.AllowAllocation()
	if err := a.ensureBridge(); err != nil {
		return nil, err
	}
	var err error
	a.hostEnd, a.eth, err = attach.AddVeth(&a.r.Undo, attach.Pair{
		Host: a.host, Container: a.container, Owner: a.r.Attachment(), MAC: a.conf.mac, MTU: a.conf.mtu,
	})
	if err != nil {
		return nil, err
	}
	if err := a.addPort(); err != nil {
		return nil, err
	}
	if a.conf.macSpoofCheck {
		if err := addMACSpoofCheck(&a.r.Undo, a.spoofCheck(a.eth.MAC)); err != nil {
			return nil, err
		}
	}
	result := a.result()
	switch {
	case a.pending != nil:
		if err = a.configureContainer(result, containerIndex); err == nil {
			err = a.configureHost(result)
		}
	case !a.conf.containerDown:
		err = a.container.SetUp(a.eth)
	}
	if err != nil {
		return nil, err
	}
	return result, a.awaitReachable(result.IPs)
}

func (a *attachment) result() *types.Result {
	return &types.Result{
		Interfaces: []types.Interface{
			attach.Interface(a.bridge, ""),
			attach.Interface(a.hostEnd, ""),
			attach.Interface(a.eth, a.r.NetNS),
		},
		DNS: a.r.Conf.DNS,
	}
}
