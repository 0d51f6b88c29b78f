package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A redirection consists of the container's interface and the attachment's tap.
type redirection struct {
	container *nl.Conn
	eth, tap  nl.Link
	vm        types.Interface // the virtual machine's interface in prevResult
}

// find returns the attachment's redirection, as CHECK and REPAIR expect it.
func find(r *skel.Request) (*redirection, error) {
	prev, err := r.RequirePrev()
	if err != nil {
		return nil, err
	}
	vm, found := vmInterface(prev, r.ContainerID)
	if !found {
		return nil, fmt.Errorf("prevResult contains no interface of the virtual machine (sandbox %s)", r.ContainerID)
	}
	container, eth, err := nl.OpenLink(r.ContainerNS, r.IfName)
	if err != nil {
		return nil, err
	}
	taps, err := ownTaps(container, r, prev)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(taps, func(l nl.Link) bool { return l.Name == vm.Name })
	if i < 0 {
		return nil, types.MissingLink(vm.Name).Errorf("the container has no tap %s of %s", vm.Name, r.Attachment())
	}
	return &redirection{container, eth, taps[i], vm}, nil
}

// vmInterface returns the virtual machine's interface in prev, which may be nil.
func vmInterface(prev *types.Result, containerID string) (vm types.Interface, found bool) {
	if prev == nil {
		return vm, false
	}
	i := slices.IndexFunc(prev.Interfaces, func(in types.Interface) bool { return in.Sandbox == containerID })
	if i < 0 {
		return vm, false
	}
	return prev.Interfaces[i], true
}

// ownTaps returns the attachment's taps. These are the taps with its alias and, if prev lists a tap of
// awslabs/tc-redirect-tap, the tap without an alias that has the same name and MAC. prev may be nil.
func ownTaps(container *nl.Conn, r *skel.Request, prev *types.Result) ([]nl.Link, error) {
	links, err := container.LinksOfKind("tun")
	vm, found := vmInterface(prev, r.ContainerID)
	return slices.DeleteFunc(links, func(l nl.Link) bool {
		inPrev := found && l.Name == vm.Name && slices.ContainsFunc(prev.Interfaces, func(in types.Interface) bool {
			return in.Name == l.Name && in.MAC == l.MAC.String()
		})
		// The plugin tap sets the alias on the interface CNI_IFNAME.
		return !l.Tun.Tap || l.Name == r.IfName || l.Alias != attach.LinkAlias(r.Attachment()) && !(l.Alias == "" && inPrev)
	}), err
}

// check compares the tap and the redirections with what ADD created, and returns an error that names every difference.
func check(r *skel.Request, conf *config) error {
	d, err := find(r)
	if err == nil {
		err = d.diff(conf)
	}
	return types.Coded(types.CodeChanged, err)
}

func (d *redirection) diff(conf *config) error {
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	tap := d.tap
	reportIf(conf.name != "" && tap.Name != conf.name, "the tap is called %s, want %s", tap.Name, conf.name)
	reportIf(tap.Tun.Owner != conf.owner, "interface %s has owner %d, want %d", tap.Name, tap.Tun.Owner, conf.owner)
	reportIf(tap.Tun.Group != conf.group, "interface %s has group %d, want %d", tap.Name, tap.Tun.Group, conf.group)
	reportIf(d.eth.MAC.String() != d.vm.MAC, "interface %s has MAC %s, and the virtual machine has %s", d.eth.Name, d.eth.MAC, d.vm.MAC)
	errs = []error{types.WithRepair(types.RepairNever, errors.Join(errs...))}
	if tap.MTU != d.eth.MTU {
		p := attach.LinkProblem(d.container, tap, fmt.Sprintf("mtu %d", d.eth.MTU), fmt.Sprintf("mtu %d", tap.MTU))
		errs = append(errs, p.Errorf("interface %s has MTU %d, want %d as %s", tap.Name, tap.MTU, d.eth.MTU, d.eth.Name))
	}
	errs = append(errs, attach.Diff(d.container, tap, attach.Spec{}))
	redirects := errors.Join(attach.DiffRedirect(d.container, tap, d.eth), attach.DiffRedirect(d.container, d.eth, tap))
	return errors.Join(append(errs, types.WithRepair(types.RepairContainerSide, redirects))...)
}

// repair restores the MTU and the state of the tap, and the redirections, if Request.RepairsContainer. It does not create
// a tap, because the virtual machine would not attach to it.
func repair(r *skel.Request, _ *config) error {
	if !r.RepairsContainer() {
		return nil
	}
	d, err := find(r)
	if err != nil {
		return err
	}
	return errors.Join(
		d.container.SetMTU(d.tap, d.eth.MTU), d.container.SetUp(d.tap),
		attach.RestoreRedirect(d.container, &r.Undo, d.tap, d.eth), attach.RestoreRedirect(d.container, &r.Undo, d.eth, d.tap))
}

// del deletes the attachment's taps, and the qdisc that redirects the interface to them. It needs neither prevResult nor
// a valid configuration.
func del(r *skel.Request) error {
	if r.ContainerNS == nil {
		return nil
	}
	container, err := nl.Open(r.ContainerNS)
	if err != nil {
		return err
	}
	prev, _ := r.Prev() // in DEL, Prev returns no error
	taps, err := ownTaps(container, r, prev)
	if err != nil || len(taps) == 0 {
		return err
	}
	if err := deleteRedirectTo(container, r.IfName, taps); err != nil {
		return err // the next DEL finds the qdisc by the taps
	}
	var errs []error
	for _, tap := range taps {
		errs = append(errs, container.DeleteLink(tap))
	}
	return errors.Join(errs...)
}

// deleteRedirectTo deletes the qdisc that redirects the interface to one of the taps.
func deleteRedirectTo(container *nl.Conn, ifName string, taps []nl.Link) error {
	eth, err := container.Link(ifName)
	if err != nil {
		return types.IgnoreNotExist(err)
	}
	return attach.DeleteRedirect(container, eth, func(f nl.Filter) bool {
		return slices.ContainsFunc(taps, func(tap nl.Link) bool { return f.Redirect == tap.Index })
	})
}

// status returns an error if an ADD would fail.
func status(r *skel.Request) error {
	_, err := parse(r)
	if err == nil {
		err = nl.CheckTun(r.HostNS)
	}
	return types.NotAvailable(err)
}
