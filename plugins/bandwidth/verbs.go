package main

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
)

func add(r *skel.Request) (*types.Result, error) {
	conf, err := parse(r)
	if err != nil {
		return nil, err
	}
	prev, err := r.MustPrev()
	if err != nil || !conf.limits() {
		return prev, err
	}
	p, err := locate(r, conf)
	if err != nil {
		return nil, err
	}
	if err := p.possible(); err != nil {
		return nil, err
	}
	if s := p.sent(); s.rate != 0 {
		if err := s.apply(p.conn, &r.Undo); err != nil {
			return nil, err
		}
	}
	if p.received(p.dev).rate == 0 {
		return prev, nil
	}
	ifb, err := p.shapeReceived(&r.Undo)
	if err != nil {
		return nil, err
	}
	result := *prev
	result.Interfaces = append(slices.Clone(prev.Interfaces), types.Interface{Name: ifb.Name, MAC: ifb.MAC, MTU: ifb.MTU, Sandbox: p.sandbox})
	return &result, nil
}

// possible looks at both directions before anything is done; the ifb will have the
// MTU of the device.
func (p place) possible() error {
	var errs []error
	for _, s := range []shaper{p.ingress(p.dev), p.egress(p.dev)} {
		if s.rate != 0 {
			errs = append(errs, s.possible())
		}
	}
	return errors.Join(errs...)
}

// shapeReceived redirects once the ifb shapes, so that nothing is lost. The ifb comes up
// with its qdisc in place: to change that of a link which is up, the kernel waits until
// nobody sends by the former one (dev_deactivate_many in net/sched/sch_generic.c).
func (p place) shapeReceived(u *undo.Stack) (nl.Link, error) {
	ifb, err := p.addIFB(u)
	if err != nil {
		return nl.Link{}, err
	}
	if err := p.received(ifb).apply(p.conn, u); err != nil {
		return nl.Link{}, err
	}
	if err := p.conn.Apply(ifb.SetAlias(attach.Alias(p.owner)), ifb.ClearGroup(), ifb.SetUp()); err != nil {
		return nl.Link{}, err
	}
	if err := addQdisc(p.conn, u, p.dev, ingressQdisc()); err != nil {
		return nl.Link{}, err
	}
	return ifb, p.conn.Apply(p.dev.AddFilter(redirect(ifb)))
}

// del removes what ADD made, by the identity of the attachment: with or without the
// container, prevResult and limits. Nothing of the configuration is read. Every step
// is tried.
func del(r *skel.Request) error {
	node, pod, err := nl.OpenBoth(r.Node, r.Pod)
	if err != nil {
		return err
	}
	prev, _ := r.Prev() // one that cannot be read is as good as none
	return errors.Join(unshapeDevice(node, pod, r.Attachment(), prev), delIFBs(node, r.Attachment()))
}

// unshapeDevice finds the device on which the attachment is shaped: the host end of
// its pair, by name, prevResult or the container's end, or the container's interface.
func unshapeDevice(node, pod *nl.Conn, owner types.Attachment, prev *types.Result) error {
	host, err := attach.HostEnd(node, owner, prev)
	if err == nil {
		return unshape(node, host)
	}
	if !errors.Is(err, fs.ErrNotExist) || pod == nil {
		return ignoreNotExist(err)
	}
	eth, err := pod.Link(owner.IfName)
	if err != nil {
		return errors.Join(ignoreNotExist(err), delIFBs(pod, owner))
	}
	if newcomers, err := attach.Newcomers(pod, eth, owner, prev); newcomers || err != nil {
		return errors.Join(ignoreNotExist(err), delIFBs(pod, owner))
	}
	if eth.Kind != "veth" {
		return errors.Join(unshape(pod, eth), delIFBs(pod, owner))
	}
	if host, err = pod.VethPeer(eth, node); err != nil || servesAnother(host, owner) {
		return ignoreNotExist(err)
	}
	return unshape(node, host)
}

// servesAnother: the namespace at that path is a newcomer's.
func servesAnother(l nl.Link, owner types.Attachment) bool {
	return attach.Ours(l) && l.Alias != attach.Alias(owner)
}

func delIFBs(c *nl.Conn, owner types.Attachment) error {
	links, err := ifbs(c, owner)
	errs := []error{err}
	for _, l := range links {
		errs = append(errs, c.Apply(l.Del()))
	}
	return errors.Join(errs...)
}

// codeChanged is the code of a CHECK that found a difference.
const codeChanged = 100

// check compares what ADD made with what is there, and names every difference.
func check(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return err
	}
	if _, err := r.MustPrev(); err != nil || !conf.limits() {
		return err
	}
	p, err := locate(r, conf)
	if err != nil {
		return err
	}
	var errs []error
	if s := p.sent(); s.rate != 0 {
		errs = append(errs, s.diff(p.conn))
	}
	if p.received(p.dev).rate != 0 {
		errs = append(errs, p.diffReceived())
	}
	return types.Coded(codeChanged, errors.Join(errs...))
}

func (p place) diffReceived() error {
	links, err := ifbs(p.conn, p.owner)
	if err != nil {
		return err
	}
	if len(links) == 0 {
		return fmt.Errorf("find ifb %s of %s: %w", ifbNames(p.owner)[0], p.owner, fs.ErrNotExist)
	}
	ifb := links[0]
	errs := []error{p.received(ifb).diff(p.conn)}
	if !ifb.Up {
		errs = append(errs, fmt.Errorf("interface %s is down", ifb.Name))
	}
	q, err := p.conn.Qdisc(p.dev, nl.Ingress)
	if err != nil || q != ingressQdisc() {
		return errors.Join(append(errs, err, missing(p.dev.Name, "ingress qdisc"))...)
	}
	filters, err := p.conn.Filters(p.dev, q.Handle)
	if err == nil && !slices.ContainsFunc(filters, redirect(ifb).Same) {
		err = missing(p.dev.Name, "filter that redirects what it receives to "+ifb.Name)
	}
	return errors.Join(append(errs, err)...)
}

// status says whether the configuration can work. What the kernel has cannot be told
// without making something.
func status(r *skel.Request) error {
	if _, err := parse(r); err != nil {
		return types.Errorf(types.CodeNotAvailable, "%w", err)
	}
	return nil
}

// gc removes the ifbs, and what shapes the host ends of pairs that the plugins of this
// project made: with those of others nothing says whose they are. In the life of a
// node the pairs are gone by then, or go by the GC of the plugin that made them.
func gc(r *skel.Request) error {
	node, err := nl.Open(r.Node)
	if err != nil {
		return err
	}
	keep := r.Valid()
	hosts, err := attach.Veths(node, r.Conf.Name).Stale(keep)
	errs := []error{err}
	for _, host := range hosts {
		errs = append(errs, unshape(node, host))
	}
	return errors.Join(append(errs, attach.GC{Node: node, Kind: kindIFB, Network: r.Conf.Name, Names: ifbNames}.Run(keep))...)
}
