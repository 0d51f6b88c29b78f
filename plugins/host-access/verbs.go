package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// add creates the pair, and returns prevResult. The pair is not in the result, because other plugins would take its host end
// for the host end of the container's interface.
func add(r *skel.Request, conf *config) (*types.Result, error) {
	prev, err := r.RequirePrev()
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(prev.Interfaces, func(in types.Interface) bool { return in.Sandbox == r.ContainerID }) {
		return nil, types.Errorf(types.CodeConfig, "prevResult contains an interface of a virtual machine, which the pair would not reach; remove host-access or tc-redirect-tap from the list")
	}
	p, err := open(r, conf)
	if err != nil {
		return nil, types.Coded(types.CodeConfig, err)
	}
	ips, err := p.ips()
	if err == nil {
		err = p.setFamilies(ips)
	}
	if err != nil {
		return nil, err
	}
	return prev, p.create(r)
}

// create creates the pair. It adds the filter before it sets the host end up, so that no other packet passes.
func (p *pair) create(r *skel.Request) error {
	c, err := openFilter(r)
	if err != nil {
		return err
	}
	p.hostEnd, p.link, err = attach.AddVeth(&r.Undo, attach.Pair{
		Host: p.host, Container: p.container, Owner: p.owner, Name: attach.AccessName(r.IfName), MTU: p.eth.MTU,
	})
	if err == nil {
		err = p.filter(c).Add(&r.Undo)
	}
	if err != nil {
		return err
	}
	host, container := p.ends()
	for _, e := range []end{host, container} {
		if err := e.apply(&r.Undo, e.routes); err != nil {
			return attach.ExplainRemoved(p.host, p.hostEnd, p.hostEnd.Name, explain(e, err))
		}
	}
	return nil
}

// explain explains why the kernel did not add a route to the end.
func explain(e end, err error) error {
	if errors.Is(err, fs.ErrExist) {
		return types.Errorf(types.CodeConfig, "another attachment has the same address: %w; use addresses that differ in all networks with host-access", err)
	}
	if nl.IsInvalidRoute(err) {
		return types.Errorf(types.CodeConfig, "the kernel rejects a route of %s: %w; %s must not be an address of the host or of the container", e.link.Name, err, gateways[false])
	}
	return err
}

// check returns an error that names every difference of the pair.
func check(r *skel.Request, conf *config) error {
	p, others, err := find(r, conf, false)
	if err != nil {
		return types.Errorf(types.CodeChanged, "%w", types.WithRepair(types.RepairNever, err))
	}
	var errs []error
	for _, ip := range others {
		errs = append(errs, types.WithRepair(types.RepairContainerSide, fmt.Errorf("address %s of interface %s is not connected to the host", ip, p.eth.Name)))
	}
	if len(p.families) > 0 {
		c, err := openFilter(r)
		if err != nil {
			return err
		}
		host, container := p.ends()
		errs = append(errs, diffFilter(p.filter(c)), host.diff(), types.WithRepair(types.RepairContainerSide, container.diff()))
	}
	return types.Coded(types.CodeChanged, errors.Join(errs...))
}

// repair restores the filter and the host end and, if Request.RepairsContainer, the container end. It restores no pair that
// was deleted.
func repair(r *skel.Request, conf *config) error {
	p, _, findErr := find(r, conf, r.RepairsContainer())
	c, err := openFilter(r)
	if err != nil {
		return err
	}
	if findErr != nil || len(p.families) == 0 {
		return closeHostEnd(r, c) // CHECK reports findErr
	}
	host, container := p.ends()
	err = errors.Join(p.filter(c).Add(&r.Undo), host.restore(&r.Undo))
	if r.RepairsContainer() {
		err = errors.Join(err, container.restore(&r.Undo))
	}
	return err
}

// closeHostEnd restores the filter without addresses, so that the host accepts only answers from the host end. A container can
// cause that REPAIR cannot find out which addresses the pair connects, for example by renaming its interface.
func closeHostEnd(r *skel.Request, c *nft.Conn) error {
	host, container, err := nl.OpenBoth(r.HostNS, r.ContainerNS)
	if err != nil {
		return err
	}
	p := &pair{owner: r.Attachment(), host: host, container: container}
	if p.hostEnd, err = attach.AccessHostEnd(host, p.owner, func(l nl.Link) bool { return p.isOwn(c, l) }); err != nil {
		return types.IgnoreNotExist(err)
	}
	return p.filter(c).Add(&r.Undo)
}

// isOwn reports whether l, a link of the host whose alias another program has cleared, is the attachment's host end. This is
// the case if l is the other end of the attachment's container end, or if nftables contains the attachment's element for l. c
// may be nil.
func (p *pair) isOwn(c *nft.Conn, l nl.Link) bool {
	if p.container != nil {
		end, err := p.container.Link(attach.AccessName(p.owner.IfName))
		if err == nil {
			end, err = p.container.VethPeer(end, p.host)
		}
		if err == nil && end.Index == l.Index {
			return true
		}
	}
	if c == nil {
		return false
	}
	elements, _ := c.ElementsOf(filterLayout().Table, tables.HostAccessEnds, nft.Owner(p.owner)) // without them, nothing proves the owner
	return slices.ContainsFunc(elements, func(e nft.Element) bool { return e.Key == nft.IfNameKey(l.Name) })
}

// del deletes the pair, its filter, and its rules in the container. It needs neither prevResult nor a valid configuration.
func del(r *skel.Request) error {
	host, container, err := nl.OpenBoth(r.HostNS, r.ContainerNS)
	if err != nil {
		return err
	}
	p := &pair{owner: r.Attachment(), host: host, container: container}
	c, filterErr := nft.OpenIfSupported(r.HostNS)
	hostEnd, err := attach.AccessHostEnd(host, p.owner, func(l nl.Link) bool { return p.isOwn(c, l) })
	if err == nil {
		err = host.DeleteLink(hostEnd)
	}
	if c != nil {
		filterErr = filterOf(c, p.owner).Remove()
	}
	errs := []error{types.IgnoreNotExist(err), r.IgnoreForbidden(filterErr)}
	if container == nil {
		return errors.Join(errs...)
	}
	rules, err := container.InputRules()
	for _, rule := range rules {
		if rule.Table == containerTable(r.Attachment()) {
			errs = append(errs, container.DeleteInputRule(rule))
		}
	}
	return errors.Join(append(errs, err)...)
}

// gc deletes the pairs of the network's attachments that are not valid, and their filters.
func gc(r *skel.Request) error {
	host, err := nl.Open(r.HostNS)
	if err != nil {
		return err
	}
	keep := r.ValidAttachments()
	linksErr := attach.AccessGC(host, r.Conf.Name).Run(keep)
	c, err := nft.OpenIfSupported(r.HostNS)
	if c != nil {
		err = c.Atomically("nft delete stale host access of network "+r.Conf.Name, func(tx *nft.Tx) error {
			_, err := filterOf(c, types.Attachment{}).GC(tx, r.Conf.Name, keep)
			return err
		})
	}
	return errors.Join(linksErr, r.IgnoreForbidden(err))
}

// status returns an error if an ADD would fail.
func status(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return types.NotAvailable(err)
	}
	host, err := nl.Open(r.HostNS)
	if err != nil {
		return types.NotAvailable(err)
	}
	local, err := host.LocalAddrs(netip.Addr{})
	if err == nil {
		err = conf.requireLocal(local)
	}
	c, filterErr := openFilter(r)
	if filterErr == nil {
		filterErr = c.CheckSupport(filterLayout())
	}
	return types.NotAvailable(errors.Join(err, filterErr))
}
