package main

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// The uplink belongs to all containers on the bridge, like the bridge itself. ADD adds it to the bridge, and DEL does not
// remove it.

// ensureUplink adds the uplink that findUplink returned to the bridge as a port in the VLANs of the containers, and sets it
// up.
func ensureUplink(host *nl.Conn, br, uplink nl.Link, conf *config) error {
	if conf.uplink == "" {
		return nil
	}
	if uplink.Master == 0 {
		if err := pinMAC(host, uplink, br); err != nil {
			return err
		}
		if err := host.SetMaster(uplink, br); err != nil {
			return explainUplink(err, uplink)
		}
	}
	if vlans := uplinkVLANs(conf); len(vlans) > 0 {
		if err := host.AddVLANs(uplink, vlans...); err != nil {
			return explainUnsupported(err, conf)
		}
	}
	if uplink.Up {
		return nil
	}
	return host.SetUp(uplink)
}

// hasUplink reports whether hosts that are not containers can be on the bridge. This is the case with a configured uplink,
// or if another program added a port. hasUplink recognizes the ports of containers and of gateways by the form of their
// names, which the reference plugin uses as well, because a complete list of 100 ports would take milliseconds.
func hasUplink(host *nl.Conn, br nl.Link, conf *config) (bool, error) {
	if conf.uplink != "" {
		return true, nil
	}
	names, err := host.PortNames(br)
	return slices.ContainsFunc(names, func(name string) bool { return !attach.HasHostEndForm(name) }), err
}

// findUplink returns the configured uplink, or the zero Link if none is configured. It returns an error if the uplink is a
// port of another interface than the bridge, which need not exist, or if the host uses the uplink itself: a port of a bridge
// receives no packets for its addresses.
func findUplink(host *nl.Conn, conf *config) (nl.Link, error) {
	if conf.uplink == "" {
		return nl.Link{}, nil
	}
	br, err := host.LinkByAnyName(conf.bridge)
	if types.IgnoreNotExist(err) != nil {
		return nl.Link{}, err
	}
	uplink, err := host.LinkByAnyName(conf.uplink)
	if errors.Is(err, fs.ErrNotExist) {
		return nl.Link{}, types.Errorf(types.CodeConfig, "uplinkInterface: %w", err)
	}
	if err != nil || uplink.Master == br.Index && br.Index != 0 {
		return uplink, err
	}
	if uplink.Master != 0 {
		return nl.Link{}, types.Errorf(types.CodeConfig, "uplinkInterface %s is already a port of another interface; remove it there", uplink.Name)
	}
	addrs, err := host.Addrs(uplink)
	if err != nil {
		return nl.Link{}, err
	}
	for _, a := range addrs {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			return nl.Link{}, types.Errorf(types.CodeConfig, "uplinkInterface %s has the address %s, for which a port of a bridge receives no packets; "+
				"move the address to bridge %s, or use another interface", uplink.Name, a.Prefix, conf.bridge)
		}
	}
	routes, err := host.Routes(uplink)
	if err != nil {
		return nl.Link{}, err
	}
	if i := slices.IndexFunc(routes, func(r nl.Route) bool { return r.GW.IsValid() || r.Dst.Bits() == 0 }); i >= 0 {
		return nl.Link{}, types.Errorf(types.CodeConfig, "uplinkInterface %s has the route %s, which does not work through a port of a bridge; move the route to bridge %s, or use another interface",
			uplink.Name, routes[i], conf.bridge)
	}
	return uplink, nil
}

// explainUplink explains why the kernel did not add a port (br_add_if): it accepts neither bridges nor the loopback nor a
// device that must not be bridged, such as an ipvlan, and no device whose packets another device receives.
func explainUplink(err error, uplink nl.Link) error {
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EBUSY) {
		return types.Errorf(types.CodeConfig, "uplinkInterface %s cannot be a port of a bridge: %w; use another interface", uplink.Name, err)
	}
	return err
}

// uplinkVLANs returns the VLANs of the containers' ports, all of them tagged.
func uplinkVLANs(conf *config) []nl.VLAN {
	var vlans []nl.VLAN
	for _, v := range portVLANs(conf) {
		if v.ID != defaultUntagged { // the uplink is in this VLAN, untagged
			vlans = append(vlans, nl.VLAN{ID: v.ID})
		}
	}
	return vlans
}

// diffUplink compares the uplink with what ensureUplink configured.
func (a *attachment) diffUplink() error {
	if a.conf.uplink == "" {
		return nil
	}
	uplink, err := a.host.RequireLink(a.conf.uplink)
	if err != nil {
		return fmt.Errorf("uplinkInterface: %w", err)
	}
	if err := a.diffMaster(uplink); err != nil {
		return err
	}
	var errs []error
	reportIf := types.ProblemsInto(&errs)
	reportIf(!uplink.Up, "%w", attach.LinkProblem(a.host, uplink, "up", "down").Errorf("port %s is down", uplink.Name))
	if want := uplinkVLANs(a.conf); len(want) > 0 {
		got, err := a.host.VLANs(uplink)
		errs = append(errs, err, missingVLANs(uplink, want, got))
	}
	return errors.Join(errs...)
}
