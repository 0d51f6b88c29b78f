package main

import (
	"errors"
	"fmt"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// In a chain, with linkInContainer and without master, the master is the container's interface CNI_IFNAME,
// which an earlier plugin created. The VLAN interface gets another name, and no addresses, because an IPAM
// plugin would reserve them for CNI_IFNAME.

// isInChain reports whether CNI_IFNAME is the master.
func (raw *rawConfig) isInChain() bool { return raw.LinkInContainer && raw.Master == "" }

func (raw *rawConfig) linkName(r *skel.Request) string {
	switch {
	case !raw.isInChain():
		return r.IfName
	case raw.IfName != "" || raw.VLANID == nil:
		return raw.IfName
	}
	return fmt.Sprintf("%s.%d", r.IfName, *raw.VLANID)
}

// validateChain returns an error for each key that is not allowed in a chain or, outside of a chain, is
// allowed only there.
func (raw *rawConfig) validateChain(r *skel.Request) error {
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	if !raw.isInChain() {
		reportIf(raw.Master == "", `master: "master" field is required; name the interface that carries the VLAN`)
		reportIf(raw.IfName != "", `ifName: only allowed in a chain, with "linkInContainer" and without "master"`)
		return errors.Join(errs...)
	}
	reportIf(r.Conf.IPAM.Type != "", `ipam: a VLAN interface in a chain gets no addresses; remove "ipam", or configure a network with "master"`)
	if name := raw.linkName(r); raw.IfName != "" || r.Command == "ADD" && raw.VLANID != nil {
		err := types.CheckIfName(name)
		reportIf(err != nil, `ifName %q is not an interface name: %w`, name, err)
	}
	return errors.Join(errs...)
}

// linkOwner returns the attachment that the alias of the VLAN interface names.
func linkOwner(r *skel.Request, name string) types.Attachment {
	return types.Attachment{Network: r.Conf.Name, ContainerID: r.ContainerID, IfName: name}
}

// addInChain creates the VLAN interface, and appends it to prevResult.
func addInChain(r *skel.Request, conf *config) (*types.Result, error) {
	result, err := r.RequirePrev()
	if err != nil {
		return nil, err
	}
	if _, found := result.ContainerInterface(r.IfName); !found {
		return nil, types.Errorf(types.CodeConfig, "prevResult lacks the interface %s in the container, which would be the master; set \"master\"", r.IfName)
	}
	container, err := nl.Open(r.ContainerNS)
	if err != nil {
		return nil, err
	}
	master, err := conf.master.Find(container, conf.mtu)
	if err != nil {
		return nil, err
	}
	if err := attach.EnsureNameFree(container, conf.name); err != nil {
		return nil, err
	}
	eth, err := conf.addLink(r, &attach.MasterSetup{MasterConn: container, Master: master, ContainerLink: attach.ContainerLink{Container: container}})
	if err != nil {
		return nil, err
	}
	if err := container.SetAlias(eth, attach.LinkAlias(linkOwner(r, conf.name))); err != nil {
		return nil, err
	}
	result.Interfaces = append(result.Interfaces, attach.Interface(eth, r.NetNS))
	return result, container.SetUp(eth)
}

// checkInChain compares the VLAN interface with the configuration and with prevResult.
func checkInChain(r *skel.Request, conf *config) error {
	prev, err := r.RequirePrev()
	if err != nil {
		return err
	}
	container, err := nl.Open(r.ContainerNS)
	if err != nil {
		return err
	}
	l, changed := container.RequireLink(conf.name)
	if changed == nil {
		changed = attach.Diff(container, l, attach.Spec{Kind: kind})
	}
	if l.Kind == kind {
		changed = errors.Join(changed, conf.diff(l), conf.master.Diff(container, l))
	}
	if _, found := prev.ContainerInterface(conf.name); !found {
		changed = errors.Join(changed, fmt.Errorf("prevResult has no interface %q in a sandbox", conf.name))
	}
	return types.Coded(types.CodeChanged, types.WithRepair(types.RepairNever, changed)) // see repair
}

// delInChain deletes the VLAN interface if it exists and belongs to the attachment.
func delInChain(r *skel.Request, name string) error {
	if r.ContainerNS == nil {
		return nil
	}
	container, l, err := nl.OpenLink(r.ContainerNS, name)
	if err != nil || l.Kind != kind || l.Alias != attach.LinkAlias(linkOwner(r, name)) {
		return types.IgnoreNotExist(err)
	}
	return container.DeleteLink(l)
}
