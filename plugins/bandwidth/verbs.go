package main

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
)

// add shapes the packets that the attachment's device sends, and then the packets that it receives.
func add(r *skel.Request, conf *config) (*types.Result, error) {
	prev, err := r.RequirePrev()
	if err != nil || !conf.hasLimit() {
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

// shapeReceived creates the ifb, and redirects the packets that the device receives to it. The redirection
// comes last, because packets would be lost while the ifb is not ready. The qdisc is added before the ifb is
// set up, because on a link that is up the kernel would wait until the former qdisc is no longer in use
// (dev_deactivate_many in net/sched/sch_generic.c).
func (d device) shapeReceived(u *undo.Stack) (nl.Link, error) {
	ifb, err := d.addIFB(u)
	if err != nil {
		return nl.Link{}, err
	}
	if err := d.receive.withDevice(ifb).apply(d.conn, u); err != nil {
		return nl.Link{}, err
	}
	if err := attach.SetOwner(d.conn, ifb, d.owner); err != nil {
		return nl.Link{}, err
	}
	if err := d.conn.SetUp(ifb); err != nil {
		return nl.Link{}, err
	}
	return ifb, attach.AddRedirect(d.conn, u, d.link, ifb)
}

// del removes what ADD created. It needs neither the container nor prevResult nor the configured limits. It
// runs every step, even if one fails, and joins the errors.
func del(r *skel.Request) error {
	host, container, err := nl.OpenBoth(r.HostNS, r.ContainerNS)
	if err != nil {
		return err
	}
	errs := []error{unshapeDevice(r, host, container), delIFBs(host, r.Attachment())}
	if container != nil {
		errs = append(errs, delIFBs(container, r.Attachment()))
	}
	return errors.Join(errs...)
}

// unshapeDevice removes the qdiscs of an attachment's device. It looks for the host end by its names and in
// prevResult. If that fails, it looks for the container's interface and its peer. container may be nil.
func unshapeDevice(r *skel.Request, host, container *nl.Conn) error {
	prev, _ := r.Prev() // in DEL, Prev returns no error
	hostEnd, err := attach.HostEnd(host, r.Attachment(), prev)
	if err == nil {
		return removeQdiscs(host, hostEnd)
	}
	if !errors.Is(err, fs.ErrNotExist) || container == nil {
		return types.IgnoreNotExist(err)
	}
	eth, err := container.Link(r.IfName)
	if err != nil {
		return types.IgnoreNotExist(err)
	}
	if other, err := attach.BelongsToOther(r, container, eth); other || err != nil {
		return types.IgnoreNotExist(err)
	}
	if eth.Kind != "veth" {
		return removeQdiscs(container, eth)
	}
	if hostEnd, err = container.VethPeer(eth, host); err != nil {
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

// check compares the current state with what ADD creates. The error names every difference.
func check(r *skel.Request, conf *config) error {
	if _, err := r.RequirePrev(); err != nil || !conf.hasLimit() {
		return err
	}
	d, err := findDevice(r, conf)
	if err != nil {
		return err
	}
	changed := errors.Join(d.send.diff(d.conn), d.diffReceived())
	if d.sandbox != "" {
		changed = types.WithRepair(types.RepairNever, changed) // see repair
	}
	return types.Coded(types.CodeChanged, changed)
}

// diffReceived compares the ifb, its shaper, and the redirection to the ifb. If the packets that the
// device receives are not limited, it compares nothing.
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
	return errors.Join(d.receive.withDevice(ifb).diff(d.conn), attach.Diff(d.conn, ifb, attach.Spec{}), attach.DiffRedirect(d.conn, d.link, ifb))
}

// repair restores the qdiscs on the host end of a veth pair, and the ifb. It does not change devices in the container.
func repair(r *skel.Request, conf *config) error {
	d, err := findDevice(r, conf)
	if err != nil || d.sandbox != "" {
		return err
	}
	err = d.send.restore(d.conn, &r.Undo)
	if d.diffReceived() != nil {
		err = errors.Join(err, d.restoreReceived(&r.Undo))
	}
	return err
}

// restoreReceived restores the ifb, its shaper, and the redirection to the ifb. It creates an ifb anew that a failed
// REPAIR has not finished. A filter that redirects to a deleted ifb is deleted with its qdisc, unless another program's
// filters are attached to the qdisc.
func (d device) restoreReceived(u *undo.Stack) error {
	links, err := ifbs(d.conn, d.owner)
	if err == nil && len(links) > 0 && links[0].Group == attach.UnfinishedGroup(d.owner.Network) {
		err, links = d.conn.DeleteLink(links[0]), nil
	}
	if err != nil {
		return err
	}
	if len(links) == 0 {
		if err := attach.DeleteRedirect(d.conn, d.link, attach.IsRedirect); err != nil {
			return err
		}
		_, err := d.shapeReceived(u)
		return err
	}
	ifb := links[0]
	if err := errors.Join(d.receive.withDevice(ifb).restore(d.conn, u), d.conn.SetUp(ifb)); err != nil || d.diffReceived() == nil {
		return err
	}
	if err := attach.DeleteRedirect(d.conn, d.link, attach.IsRedirect); err != nil {
		return err
	}
	return attach.AddRedirect(d.conn, u, d.link, ifb)
}

// gc removes the ifbs of attachments that are no longer valid. It also removes the qdiscs on the host ends
// of their veth pairs if plumb created the pairs, because other plugins' pairs have no alias that names an
// attachment. Usually the pairs are gone already, or the GC of the plugin that created them removes them.
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
