package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// add makes the VRF, unless it exists, and puts the interface into it. If the interface is in it already,
// add changes nothing.
func add(r *skel.Request) (*types.Result, error) {
	conf, err := parse(r)
	if err != nil {
		return nil, err
	}
	prev, err := r.MustPrev()
	if err != nil {
		return nil, err
	}
	if err := r.LockPod(); err != nil {
		return nil, err
	}
	pod, err := nl.Open(r.Pod)
	if err != nil {
		return nil, err
	}
	link, err := pod.Link(r.IfName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, types.Coded(types.CodeConfig, err)
	}
	if err != nil {
		return nil, err
	}
	vrf, err := findVRF(pod, conf)
	switch {
	case err != nil:
		return nil, types.Coded(types.CodeConfig, err)
	case link.Master != 0 && link.Master == vrf.Index:
		return prev, pod.SetUp(vrf)
	case link.Master != 0:
		return nil, types.Errorf(types.CodeConfig, "interface %s has already a master set: link %d; an interface can be in one VRF or bridge only", link.Name, link.Master)
	case vrf.Index == 0:
		vrf, err = makeVRF(r, pod, conf)
	}
	if err != nil {
		return nil, err
	}
	if err := pod.SetUp(vrf); err != nil {
		return nil, err
	}
	m := &member{pod: pod, link: link, vrf: vrf}
	return prev, m.enter(&r.Undo)
}

// findVRF returns the configured VRF, or the zero Link if there is none. It returns an error if the
// interface of that name is no VRF, or a VRF with another table.
func findVRF(pod *nl.Conn, conf *config) (nl.Link, error) {
	vrf, err := pod.Link(conf.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nl.Link{}, nil
	case err != nil:
		return nl.Link{}, err
	case vrf.Kind != kind:
		return nl.Link{}, fmt.Errorf("interface %s is not a VRF, but of kind %q; choose another vrfname", conf.name, vrf.Kind)
	case conf.table != 0 && conf.table != vrf.VRFTable:
		return nl.Link{}, fmt.Errorf("VRF %s already exists with a different routing table: %d, not %d", conf.name, vrf.VRFTable, conf.table)
	}
	return vrf, nil
}

// makeVRF makes the VRF. Its alias tells DEL that plumb made it.
func makeVRF(r *skel.Request, pod *nl.Conn, conf *config) (nl.Link, error) {
	table := conf.table
	if table == 0 {
		free, err := pod.FreeTables(1, firstTable)
		if err != nil {
			return nl.Link{}, err
		}
		table = free[0]
	}
	others, err := pod.LinksOfKind(kind)
	if err != nil {
		return nl.Link{}, err
	}
	for _, other := range others {
		if other.VRFTable == table {
			return nl.Link{}, types.Errorf(types.CodeConfig, "table %d is that of VRF %s; choose another table, or leave \"table\" out", table, other.Name)
		}
	}
	vrf, err := pod.AddVRF(&r.Undo, conf.name, table)
	if errors.Is(err, errors.ErrUnsupported) {
		return nl.Link{}, types.Errorf(types.CodeConfig, "this kernel has no VRFs (CONFIG_NET_VRF): %w", err)
	}
	if err != nil {
		return nl.Link{}, err
	}
	return vrf, pod.SetAlias(vrf, attach.LinkAlias(r.Attachment()))
}

// del takes the interface out of the VRF, and deletes the VRF if it is empty then. It needs neither
// prevResult nor a valid configuration. It leaves an interface in another VRF alone.
func del(r *skel.Request) error {
	if r.Pod == nil {
		return nil
	}
	if err := r.LockPod(); err != nil {
		return err
	}
	pod, err := nl.Open(r.Pod)
	if err != nil {
		return err
	}
	link, err := pod.Link(r.IfName)
	if types.IgnoreNotExist(err) != nil {
		return err
	}
	vrf, err := vrfOf(pod, configuredName(r), link)
	if err != nil || vrf.Kind != kind {
		return types.IgnoreNotExist(err)
	}
	if link.Master == vrf.Index && !attach.NamesOther(link, r.Attachment()) {
		if err := (&member{pod: pod, link: link, vrf: vrf}).leave(); err != nil {
			return err
		}
	}
	ports, err := pod.Ports(vrf)
	// A VRF without an alias is taken for one of the reference plugin, and deleted as well.
	if err != nil || len(ports) > 0 || vrf.Alias != "" && !attach.MadeByPlumb(vrf) {
		return err
	}
	return pod.DeleteLink(vrf)
}

// vrfOf returns the VRF of that name. If the name is empty, because the configuration cannot be read, it
// returns the master of the interface, if plumb made it.
func vrfOf(pod *nl.Conn, name string, link nl.Link) (nl.Link, error) {
	if name != "" {
		return pod.Link(name)
	}
	if link.Master == 0 {
		return nl.Link{}, nil
	}
	master, err := pod.LinkByIndex(link.Master)
	if err != nil || !attach.MadeByPlumb(master) {
		return nl.Link{}, err
	}
	return master, nil
}

// check looks whether the interface is in the VRF, and the VRF is up.
func check(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return err
	}
	if _, err := r.MustPrev(); err != nil {
		return err
	}
	pod, err := nl.Open(r.Pod)
	if err != nil {
		return err
	}
	link, err := pod.Link(r.IfName)
	if err != nil {
		return types.Coded(types.CodeChanged, err)
	}
	vrf, err := findVRF(pod, conf)
	var errs []error
	switch {
	case err != nil:
		errs = append(errs, err)
	case vrf.Index == 0:
		errs = append(errs, fmt.Errorf("VRF %s does not exist", conf.name))
	case link.Master != vrf.Index:
		errs = append(errs, fmt.Errorf("interface %s is not in VRF %s", link.Name, conf.name))
	}
	if vrf.Index != 0 && !vrf.Up {
		errs = append(errs, fmt.Errorf("VRF %s is down", conf.name))
	}
	return types.Coded(types.CodeChanged, errors.Join(errs...))
}
