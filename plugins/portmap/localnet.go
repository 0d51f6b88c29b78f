package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// Connections of the host to 127.0.0.1 reach the container only if route_localnet is set for the
// interface to the container, so that the kernel accepts packets from 127/8 there. portmap never sets
// route_localnet for all interfaces, and sets it only if a rule drops packets from outside to 127/8
// (tables.WithGuard, guardRule). No DEL resets it, because the attachments of a host share it. IPv6 has
// no such sysctl.

// mapsLocalhost reports whether a mapping is for an address in 127/8.
func (p *portMap) mapsLocalhost() bool {
	if !p.conf.snat || len(p.ips) == 0 || !p.ips[0].Addr().Is4() {
		return false
	}
	for _, m := range p.conf.mappings {
		if !m.hostIP.IsValid() || m.hostIP.Is4() && (m.isAnyAddress() || m.hostIP.IsLoopback()) {
			return true
		}
	}
	return false
}

// findLocalnetDevice sets localnetDevice to the virtual interface of the route to the container. It
// leaves localnetDevice empty, and returns the reason, without a route, or if the route uses an interface to other hosts,
// because the sysctl would stay there, and the container behind it (macvlan) cannot answer the host. It is also empty for a
// network card, which the guard in nftables does not cover.
func (p *portMap) findLocalnetDevice(prev *types.Result) (reason string, err error) {
	if !p.mapsLocalhost() {
		return "", nil
	}
	conn, err := p.hostConn()
	if err != nil {
		return "", err
	}
	addr := p.ips[0].Addr()
	l, gateway, err := conn.RouteTo(addr)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Sprintf("the host has no route to %s", addr), nil
	}
	if err != nil {
		return "", err
	}
	isShared := l.Kind == "" || l.Kind == "vrf"
	if !isShared && !isHostInterface(prev, l.Name) && !attach.CreatedByPlumb(l) { // of host-access
		var index int
		index, err = conn.DefaultDevice()
		isShared = gateway.IsValid() || index == l.Index
	}
	if isShared || err != nil {
		return fmt.Sprintf("packets of the host for %s leave through %s, which is not the container's interface on the host", addr, l.Name), err
	}
	p.localnetDevice = l.Name
	return "", nil
}

// isHostInterface reports whether prev lists the host's interface, or the bridge of which it is the gateway of a VLAN
// (<bridge>.<ID>), which is not in the result.
func isHostInterface(prev *types.Result, name string) bool {
	return slices.ContainsFunc(prev.Interfaces, func(i types.Interface) bool {
		return i.Sandbox == "" && (name == i.Name || strings.HasPrefix(name, i.Name+"."))
	})
}

func routeLocalnet(device, value string) sysctl.Setting {
	return sysctl.Setting{Key: sysctl.IPv4(device, "route_localnet"), Value: value}
}

func (p *portMap) ensureLocalnet() error {
	if p.localnetDevice == "" {
		return nil
	}
	return sysctl.Ensure(p.r.HostNS, routeLocalnet(p.localnetDevice, "1"))
}

// checkLocalnet returns an error if route_localnet is not 1. If the route to the container uses an
// interface that is not in prev, the error names that interface, because setting its route_localnet
// would not help.
func (p *portMap) checkLocalnet(prev *types.Result) error {
	if p.localnetDevice == "" {
		return nil
	}
	err := sysctl.Diff(p.r.HostNS, routeLocalnet(p.localnetDevice, "1"))
	if isHostInterface(prev, p.localnetDevice) {
		return err
	}
	var behind []string
	for _, i := range prev.Interfaces {
		if i.Sandbox == "" {
			behind = append(behind, i.Name)
		}
	}
	if err == nil || len(behind) == 0 {
		return err
	}
	return &otherRouteError{p.ips[0].Addr(), p.localnetDevice, behind}
}

// An otherRouteError means that the route to the container uses another interface than the container's.
type otherRouteError struct {
	addr   netip.Addr
	device string
	behind []string // the container's interfaces on the host
}

func (e *otherRouteError) Error() string {
	return fmt.Sprintf("packets of the host for %s leave through %s, and the container is behind %s", e.addr, e.device, strings.Join(e.behind, ", "))
}

// restoreGuard adds the guard of 127/8 if it is missing and route_localnet is set for an interface of the
// host in prev. An ADD or REPAIR without mappings calls it, because another program may have flushed the ruleset.
func (p *portMap) restoreGuard(prev *types.Result) error {
	for _, i := range prev.Interfaces {
		if i.Sandbox != "" {
			continue
		}
		value, err := sysctl.Get(p.r.HostNS, routeLocalnet(i.Name, "").Key)
		switch {
		case errors.Is(err, fs.ErrNotExist) || err == nil && value != "1":
			continue
		case err != nil:
			return err
		}
		p.localnetDevice = i.Name
		return p.ensureGuard()
	}
	return nil
}

// ensureGuard adds the guard of 127/8 if it is missing.
func (p *portMap) ensureGuard() error {
	return p.useBackend(
		func(c *nft.Conn) error { return c.Ensure(tables.WithGuard(tables.Inet())) },
		func() error { return p.addGuard(p.tool(nft.IPv4)) },
	)
}

// findUnguarded returns a warning that lists the virtual interfaces with route_localnet for which neither
// the guard in nftables nor guardRule exists, or nil. It runs no program, and therefore assumes that a
// legacy table raw contains guardRule.
func (p *portMap) findUnguarded(c *nft.Conn) (warning *types.Problem, err error) {
	damaged, err := c.DamagedChains(tables.WithGuard(tables.Inet()))
	if err != nil || len(damaged) == 0 {
		return nil, err
	}
	if _, legacy, err := iptables.LegacyTool(p.r.HostNS, nft.IPv4, "raw"); legacy || err != nil {
		return nil, err
	}
	rules, err := c.Rules(nft.Table{Family: nft.IPv4, Name: "raw"}, "PREROUTING")
	if err != nil {
		return nil, err
	}
	conn, err := p.hostConn()
	if err != nil {
		return nil, err
	}
	links, err := conn.Links()
	bridges := map[int]bool{} // no route uses their ports, which can be many
	for _, l := range links {
		bridges[l.Index] = l.Kind == "bridge"
	}
	var unguarded []string
	for _, l := range links {
		isGuard := func(r nft.ListedRule) bool {
			return r.Comment == tables.GuardComment && (r.Iif == l.Name || r.Iif == "veth" && strings.HasPrefix(l.Name, r.Iif))
		}
		if l.Kind == "" || l.Kind == "vrf" || bridges[l.Master] || slices.ContainsFunc(rules, isGuard) {
			continue
		}
		value, valueErr := sysctl.Get(p.r.HostNS, routeLocalnet(l.Name, "").Key)
		if err = errors.Join(err, types.IgnoreNotExist(valueErr)); value == "1" {
			unguarded = append(unguarded, l.Name)
		}
	}
	if err != nil || len(unguarded) == 0 {
		return nil, err
	}
	words := []string{"sysctl", "-w"}
	for _, name := range unguarded {
		words = append(words, routeLocalnet(name, "").Key+"=0")
	}
	effect := "other hosts and containers can reach 127.0.0.1 of the host through " + strings.Join(unguarded, ", ")
	warning = types.Problem{
		Object: "chain " + damaged[0].Name, Kind: types.ProblemMissing, Table: tables.Inet().Table.String(), Effect: effect, Fix: types.Command(words...),
		Advice: "the next ADD with a host port adds the chain; after the command, host ports do not work at 127.0.0.1 until then",
	}.Errorf("chain %s of table %s is missing or lacks rules: %s", damaged[0].Name, tables.Inet().Table, effect)
	return warning, nil
}
