package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// newMember returns the interface and the configured VRF. The Link of a VRF that does not exist is zero. The
// code applies to the errors for an interface or a VRF that cannot be used.
func newMember(r *skel.Request, conf *config, code uint) (*member, error) {
	if _, err := r.RequirePrev(); err != nil {
		return nil, err
	}
	if err := r.LockContainer(); err != nil {
		return nil, err
	}
	container, link, err := nl.OpenLink(r.ContainerNS, r.IfName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, types.Coded(code, err)
	}
	if err == nil {
		err = attach.RequireOwnLink(r, container, link)
	}
	if err != nil {
		return nil, err
	}
	vrf, err := findVRF(container, conf)
	return &member{conf: conf, container: container, link: link, vrf: vrf}, types.Coded(code, err)
}

// add creates the VRF, unless it exists, sets it up, and puts the interface into it.
func add(r *skel.Request, conf *config) (*types.Result, error) {
	m, err := newMember(r, conf, types.CodeConfig)
	if err != nil {
		return nil, err
	}
	isMember := m.link.Master != 0 && m.link.Master == m.vrf.Index
	if m.link.Master != 0 && !isMember {
		return nil, types.Errorf(types.CodeConfig, "interface %s has already a master set: link %d; an interface can be in one VRF or bridge only", m.link.Name, m.link.Master)
	}
	if m.vrf.Index == 0 {
		if m.vrf, err = createVRF(r, m.container, m.conf); err != nil {
			return nil, err
		}
	}
	if err := m.container.SetUp(m.vrf); err != nil {
		return nil, err
	}
	if !isMember {
		if err := m.enter(&r.Undo); err != nil {
			return nil, err
		}
	}
	return r.Prev()
}

// findVRF returns the configured VRF, or the zero Link if there is none. It returns an error if the interface
// with the name is not a VRF, or is a VRF with another table.
func findVRF(container *nl.Conn, conf *config) (nl.Link, error) {
	vrf, err := container.Link(conf.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nl.Link{}, nil
	case err != nil:
		return nl.Link{}, err
	case vrf.Kind != kind:
		return nl.Link{}, fmt.Errorf("interface %s is not a VRF, but of kind %q; choose another vrfname", conf.name, vrf.Kind)
	case conf.table != 0 && conf.table != vrf.VRFTable:
		return nl.Link{}, fmt.Errorf("VRF %s already exists with a different routing table: %d, want %d", conf.name, vrf.VRFTable, conf.table)
	}
	return vrf, nil
}

// createVRF creates the VRF. Its alias shows DEL that plumb created it.
func createVRF(r *skel.Request, container *nl.Conn, conf *config) (nl.Link, error) {
	table := conf.table
	if table == 0 {
		free, err := container.FreeTables(1, firstTable)
		if err != nil {
			return nl.Link{}, err
		}
		table = free[0]
	}
	others, err := container.LinksOfKind(kind)
	if err != nil {
		return nl.Link{}, err
	}
	for _, other := range others {
		if other.VRFTable == table {
			r.Warn("VRF %s: VRF %s uses table %d as well, and therefore the same routes; choose another table, or omit \"table\"", conf.name, other.Name, table)
		}
	}
	vrf, err := container.AddVRF(&r.Undo, nl.NewLink{Name: conf.name}, table)
	if errors.Is(err, errors.ErrUnsupported) {
		return nl.Link{}, types.Errorf(types.CodeConfig, "this kernel does not support VRFs (CONFIG_NET_VRF): %w", err)
	}
	if err != nil {
		return nl.Link{}, err
	}
	return vrf, container.SetAlias(vrf, attach.LinkAlias(r.Attachment()))
}

// del takes the interface out of the VRF, and deletes the VRF if it is empty afterwards. It needs neither
// prevResult nor a valid configuration. It does not change an interface in another VRF.
func del(r *skel.Request) error {
	if r.ContainerNS == nil {
		return nil
	}
	if err := r.LockContainer(); err != nil {
		return err
	}
	container, link, err := nl.OpenLink(r.ContainerNS, r.IfName)
	if err == nil {
		if other, err := attach.BelongsToOther(r, container, link); other || err != nil {
			return err
		}
	}
	if types.IgnoreNotExist(err) != nil {
		return err
	}
	var raw rawConfig
	_ = types.Decode(r.Stdin, &raw) // DEL must work with any configuration
	vrf, err := vrfOf(container, raw.VRFName, link)
	if err != nil || vrf.Kind != kind {
		return types.IgnoreNotExist(err)
	}
	if link.Master == vrf.Index {
		if err := (&member{container: container, link: link, vrf: vrf}).leave(); err != nil {
			return err
		}
	}
	ports, err := container.Ports(vrf)
	// Delete a VRF without an alias as well, because the reference plugin may have created it.
	if err != nil || len(ports) > 0 || vrf.Alias != "" && !attach.IsOfContainer(vrf, r.ContainerID) {
		return err
	}
	return container.DeleteLink(vrf)
}

// vrfOf returns the VRF with the name. If the name is empty, because the configuration cannot be read, it
// returns the master of the interface, if plumb created it.
func vrfOf(container *nl.Conn, name string, link nl.Link) (nl.Link, error) {
	if name != "" {
		return container.Link(name)
	}
	if link.Master == 0 {
		return nl.Link{}, nil
	}
	master, err := container.LinkByIndex(link.Master)
	if err != nil || !attach.CreatedByPlumb(master) {
		return nl.Link{}, err
	}
	return master, nil
}

// check returns an error if the interface is not in the VRF, or the VRF is down.
func check(r *skel.Request, conf *config) error {
	m, err := newMember(r, conf, types.CodeChanged)
	if err != nil {
		return err
	}
	switch {
	case m.vrf.Index == 0:
		return types.Errorf(types.CodeChanged, "VRF %s does not exist", m.conf.name)
	case m.link.Master != m.vrf.Index:
		return types.Errorf(types.CodeChanged, "interface %s is not in VRF %s", m.link.Name, m.conf.name)
	case !m.vrf.Up:
		return types.Errorf(types.CodeChanged, "VRF %s is down", m.conf.name)
	}
	return nil
}
