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

// add shapes the packets that the device of the attachment sends, and then those that it receives.
func add(r *skel.Request) (*types.Result, error) {
	conf, err := parse(r)
	if err != nil {
		return nil, err
	}
	prev, err := r.RequirePrev()
	if err != nil || !conf.limits() {
		return prev, err
	}
	d, err := findDevice(r, conf)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(d.send.checkRate(), d.receive.checkRate()); err != nil {
		return nil, err
	}
	if err := d.send.apply(d.conn, &r.Undo); err != nil || d.receive.rate == 0 {
		return prev, err
	}
	ifb, err := d.shapeReceived(&r.Undo)
	if err != nil {
		return nil, err
	}
	result := *prev
	result.Interfaces = append(slices.Clone(prev.Interfaces), attach.Interface(ifb, d.sandbox))
	return &result, nil
}

// shapeReceived creates the ifb, and then redirects what the device receives to it, so that no packet is
// lost. It adds the qdisc to the ifb before it sets the ifb up: if the link is up, the kernel waits
// until the former qdisc is not in use any more (dev_deactivate_many in net/sched/sch_generic.c).
func (d device) shapeReceived(u *undo.Stack) (nl.Link, error) {
	ifb, err := d.addIFB(u)
	if err != nil {
		return nl.Link{}, err
	}
	if err := d.receive.on(ifb).apply(d.conn, u); err != nil {
		return nl.Link{}, err
	}
	if err := attach.SetOwner(d.conn, ifb, d.owner); err != nil {
		return nl.Link{}, err
	}
	if err := d.conn.SetUp(ifb); err != nil {
		return nl.Link{}, err
	}
	if err := addQdisc(d.conn, u, d.link, ingressQdisc()); err != nil {
		return nl.Link{}, err
	}
	return ifb, d.conn.AddFilter(d.link, redirectFilter(ifb))
}

// del removes what ADD created. It needs neither the container nor prevResult nor the limits of the
// configuration. It tries every step and joins the errors.
func del(r *skel.Request) error {
	host, container, err := nl.OpenBoth(r.HostNS, r.ContainerNS)
	if err != nil {
		return err
	}
	prev, _ := r.Prev() // in DEL, Prev returns no error
	errs := []error{unshapeDevice(host, container, r.Attachment(), prev), delIFBs(host, r.Attachment())}
	if container != nil {
		errs = append(errs, delIFBs(container, r.Attachment()))
	}
	return errors.Join(errs...)
}

// unshapeDevice removes the qdiscs of the device of an attachment. It looks for the host end by its
// names and by prevResult, and then for the container's interface and the other end of that. container and
// prev may be nil.
func unshapeDevice(host, container *nl.Conn, owner types.Attachment, prev *types.Result) error {
	hostEnd, err := attach.HostEnd(host, owner, prev)
	if err == nil {
		return removeQdiscs(host, hostEnd)
	}
	if !errors.Is(err, fs.ErrNotExist) || container == nil {
		return types.IgnoreNotExist(err)
	}
	eth, err := container.Link(owner.IfName)
	if err != nil {
		return types.IgnoreNotExist(err)
	}
	if other, err := attach.BelongsToOther(container, eth, owner, prev); other || err != nil {
		return types.IgnoreNotExist(err)
	}
	if eth.Kind != "veth" {
		return removeQdiscs(container, eth)
	}
	hostEnd, err = container.VethPeer(eth, host)
	ofOther := attach.CreatedByPlumb(hostEnd) && hostEnd.Alias != attach.LinkAlias(owner) // the namespace path was reused
	if err != nil || ofOther {
		return types.IgnoreNotExist(err)
	}
	return removeQdiscs(host, hostEnd)
}

// delIFBs deletes the ifbs of an attachment.
func delIFBs(c *nl.Conn, owner types.Attachment) error {
	links, err := ifbs(c, owner)
	errs := []error{err}
	for _, l := range links {
		errs = append(errs, c.DeleteLink(l))
	}
	return errors.Join(errs...)
}

// check compares what ADD makes with the present state. The error names every difference.
func check(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return err
	}
	if _, err := r.RequirePrev(); err != nil || !conf.limits() {
		return err
	}
	d, err := findDevice(r, conf)
	if err != nil {
		return err
	}
	return types.Coded(types.CodeChanged, errors.Join(d.send.diff(d.conn), d.diffReceived()))
}

// diffReceived compares the ifb, its shaper, and the redirection to it. If the packets that the
// device receives have no limit, it compares nothing.
func (d device) diffReceived() error {
	if d.receive.rate == 0 {
		return nil
	}
	links, err := ifbs(d.conn, d.owner)
	if err != nil {
		return err
	}
	if len(links) == 0 {
		return fmt.Errorf("interface %s of %s does not exist", ifbNames(d.owner)[0], d.owner)
	}
	ifb := links[0]
	errs := []error{d.receive.on(ifb).diff(d.conn)}
	if !ifb.Up {
		errs = append(errs, attach.LinkProblem(d.conn, ifb, "up", "down").Errorf("interface %s is down", ifb.Name))
	}
	q, err := d.conn.Qdisc(d.link, nl.Ingress)
	if err == nil && q != ingressQdisc() {
		err = fmt.Errorf("interface %s has no ingress qdisc", d.link.Name)
	}
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	filters, err := d.conn.Filters(d.link, q.Handle)
	if err == nil && !slices.ContainsFunc(filters, redirectFilter(ifb).Same) {
		err = fmt.Errorf("interface %s has no filter that redirects what it receives to %s", d.link.Name, ifb.Name)
	}
	return errors.Join(append(errs, err)...)
}

// status returns an error if the configuration is invalid. It does not test what the kernel supports,
// because that needs a device.
func status(r *skel.Request) error {
	_, err := parse(r)
	return types.NotAvailable(err)
}

// gc removes the ifbs of attachments that are not to be kept, and the qdiscs on the host ends of their
// veth pairs, if plumb created the pairs: the pairs of other plugins have no alias with an owner. Usually
// the pairs are gone, or the GC of the plugin that created them removes them.
func gc(r *skel.Request) error {
	host, err := nl.Open(r.HostNS)
	if err != nil {
		return err
	}
	keep := r.ValidAttachments()
	hosts, err := attach.VethGC(host, r.Conf.Name).Stale(keep)
	errs := []error{err}
	for _, hostEnd := range hosts {
		errs = append(errs, removeQdiscs(host, hostEnd))
	}
	return errors.Join(append(errs, attach.LinkGC{Host: host, Kind: kindIFB, Network: r.Conf.Name, Names: ifbNames}.Run(keep))...)
}
