package main

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/pkg/iptables"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/sysctl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// Connections of the node to 127.0.0.1 reach the container only if the kernel accepts packets from
// 127/8 at the interface that leads to the container (route_localnet). portmap never sets that for
// all interfaces. It sets it only if a rule drops the packets that others send to 127/8
// (masq.LocalnetGuard, guardRule). IPv6 has no such setting.
//
// If an ADD of the nftables backend finds route_localnet at 0, it makes an empty chain for the
// interface: the counter. Each attachment that needs the setting has an element that jumps to the
// counter:
//
//	map localnetuser { "5dd9d1c2b7989a8" comment "net1/one/eth0" : jump localnet/cni0 }
//
// The kernel counts the jumps to a chain. So the DEL of the last attachment finds that it is the
// last without reading the other elements, and sets route_localnet to 0. If an ADD finds
// route_localnet at 1 and no counter, plumb has not set it, and no DEL resets it.

// localnetOwnerMap is the map from the OwnerKey of an attachment to its counter.
const localnetOwnerMap = "localnetuser"

// localnetPrefix is what the names of all counters begin with.
const localnetPrefix = "localnet/"

// localnetChain returns the name of the counter of an interface.
func localnetChain(device string) string { return localnetPrefix + device }

// localnetName is the name of an interface. Its String is for error texts and warnings.
type localnetName string

func (l localnetName) String() string { return "route_localnet of " + string(l) }

// mapsLocalhost reports whether a mapping is for an address in 127/8.
func (p *portMap) mapsLocalhost() bool {
	if !p.conf.snat || len(p.ips) == 0 || !p.ips[0].Addr().Is4() {
		return false
	}
	for _, m := range p.conf.mappings {
		if !m.hostIP.IsValid() || m.hostIP.Is4() && (m.anyAddress() || m.hostIP.IsLoopback()) {
			return true
		}
	}
	return false
}

// findLocalnetDevice sets localnetDevice to the virtual interface that leads to the container. It
// leaves it empty if there is no route, or if a network card leads to the container: LocalnetGuard
// does not cover the card, and a container behind a card (macvlan) cannot answer the node.
func (p *portMap) findLocalnetDevice() error {
	if !p.mapsLocalhost() || p.localnetDevice != "" {
		return nil
	}
	conn, err := p.nodeConn()
	if err != nil {
		return err
	}
	l, err := conn.LinkTo(p.ips[0].Addr())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case l.Kind == "" || l.Kind == "vrf":
		return nil
	}
	p.localnetDevice = l.Name
	return nil
}

// routeLocalnet returns the sysctl of an interface.
func routeLocalnet(device, value string) sysctl.Setting {
	return sysctl.Setting{Key: sysctl.IPv4(device, "route_localnet"), Value: value}
}

// ensureLocalnet sets route_localnet to 1. It pushes no undo: the undo of the elements resets it (see
// releaseLocalnet).
func (p *portMap) ensureLocalnet() error {
	if p.localnetDevice == "" {
		return nil
	}
	return sysctl.Ensure(p.r.Node, routeLocalnet(p.localnetDevice, "1"))
}

// warnNoLocalnet writes a warning if host ports do not answer at 127.0.0.1 although a mapping is for
// that address.
func (p *portMap) warnNoLocalnet() {
	if p.localnetDevice == "" && p.mapsLocalhost() {
		p.r.Warn("host ports do not answer at 127.0.0.1: no virtual interface of the node leads to %s", p.ips[0].Addr())
	}
}

// checkLocalnet returns an error if route_localnet is not 1. If the route to the container leads through an interface
// that is not in prev, the error names the route: to set route_localnet of that interface would not help.
func (p *portMap) checkLocalnet(prev *types.Result) error {
	if p.localnetDevice == "" {
		return nil
	}
	err := sysctl.Diff(p.r.Node, routeLocalnet(p.localnetDevice, "1"))
	var behind []string
	for _, i := range prev.Interfaces {
		// The gateway of a VLAN on a bridge is <bridge>.<ID>, and not in the result.
		if i.Sandbox == "" && (p.localnetDevice == i.Name || strings.HasPrefix(p.localnetDevice, i.Name+".")) {
			return err
		}
		if i.Sandbox == "" {
			behind = append(behind, i.Name)
		}
	}
	if err == nil || len(behind) == 0 {
		return err
	}
	return fmt.Errorf("packets of the node for %s leave through %s, and the container is behind %s", p.ips[0].Addr(), p.localnetDevice, strings.Join(behind, ", "))
}

// findLocalnetCounter sets hasLocalnetElement. It is true if the interface has a counter, or gets one
// because route_localnet is 0.
func (p *portMap) findLocalnetCounter(c *nft.Conn) error {
	err := c.CheckChain(table(), localnetChain(p.localnetDevice))
	if err == nil {
		p.hasLocalnetElement = true
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	value, err := sysctl.Get(p.r.Node, routeLocalnet(p.localnetDevice, "").Key)
	p.hasLocalnetElement = err == nil && value != "1"
	return err
}

// addLocalnetCounter puts the counter of the interface into the transaction that adds the element of
// the attachment, unless the counter exists. An update of a chain that exists would do no harm, but after one the kernel
// lets the process end only after a grace period of RCU (nf_tables_commit), some 10 ms.
func (p *portMap) addLocalnetCounter(c *nft.Conn, tx *nft.Tx) error {
	if !p.hasLocalnetElement {
		return nil
	}
	err := c.CheckChain(table(), localnetChain(p.localnetDevice))
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	tx.EnsureSet(table(), nft.Set{Name: localnetOwnerMap, Key: []nft.Type{nft.IfName}, Data: []nft.Type{nft.Verdict}})
	tx.EnsureChain(table(), localnetChain(p.localnetDevice))
	return nil
}

// localnetCounter returns the name of the counter that the attachment's element jumps to. It is empty
// if there is no element.
func (p *portMap) localnetCounter(c *nft.Conn) (string, error) {
	found, err := c.Lookup(table(), []nft.ElementRef{{Set: localnetOwnerMap, Key: nft.OwnerKey(p.owner(), 0)}})
	if err != nil || found[0].Comment != nft.Owner(p.owner()) || !strings.HasPrefix(found[0].Jump, localnetPrefix) {
		return "", err
	}
	return found[0].Jump, nil
}

// releaseLocalnet calls resetLocalnet if the attachment, whose elements tx deletes, is the last that
// needs route_localnet. If DEL is killed after that and before tx is committed, the runtime repeats
// DEL.
func (p *portMap) releaseLocalnet(c *nft.Conn, tx *nft.Tx) error {
	counter, err := p.localnetCounter(c)
	if err != nil || counter == "" {
		return err
	}
	use, err := c.ChainUse(table(), counter)
	if err != nil || use.Count > 1 {
		return err
	}
	return p.resetLocalnet(c, tx, counter)
}

// resetLocalnet sets route_localnet to 0 and puts the deletion of the counter into tx. It does nothing
// if host ports without a counter may need the setting: a later DEL or GC resets it.
func (p *portMap) resetLocalnet(c *nft.Conn, tx *nft.Tx, counter string) error {
	needed, err := p.hasUncountedHostPorts(c)
	if err != nil || needed {
		return err
	}
	tx.DelChain(table(), counter)
	err = sysctl.Ensure(p.r.Node, routeLocalnet(strings.TrimPrefix(counter, localnetPrefix), "0"))
	if errors.Is(err, fs.ErrNotExist) { // the interface was deleted
		return nil
	}
	return err
}

// hasUncountedHostPorts reports whether the node has host ports of the iptables backend or of the
// reference plugin, or a legacy table nat, which can have such host ports. They need
// route_localnet, and the counters do not count them.
func (p *portMap) hasUncountedHostPorts(c *nft.Conn) (bool, error) {
	for _, hostPorts := range []struct {
		table nft.Table
		chain string
	}{
		{nft.Table{Family: nft.IPv4, Name: iptables.NAT}, dnatChain},
		{referenceTable(nft.IPv4), referenceHostports},
	} {
		rules, err := c.Rules(hostPorts.table, hostPorts.chain)
		if err != nil || len(rules) > 0 {
			return len(rules) > 0, err
		}
	}
	return iptables.HasLegacyTable(p.r.Node, iptables.V4, iptables.NAT)
}

// gcLocalnet resets route_localnet of the interfaces whose counters no element jumps to.
func (p *portMap) gcLocalnet(c *nft.Conn) error {
	chains, err := c.Chains(table(), localnetPrefix)
	unused := func(u nft.ChainUse) bool { return u.Count == 0 }
	if err != nil || !slices.ContainsFunc(chains, unused) {
		return err
	}
	return iptables.Exclusive(p.r.Node, iptables.LockWait, func() error {
		return c.Atomically("nft delete unused chains of "+localnetPrefix, func(tx *nft.Tx) error {
			chains, err := c.Chains(table(), localnetPrefix)
			for _, u := range chains {
				if unused(u) {
					err = errors.Join(err, p.resetLocalnet(c, tx, u.Chain))
				}
			}
			return err
		})
	})
}

// restoreGuard adds the guard of 127/8 if it is missing and an interface of the node in prev has
// route_localnet. An ADD without mappings calls it, because somebody may have flushed the ruleset.
func (p *portMap) restoreGuard(prev *types.Result) error {
	for _, i := range prev.Interfaces {
		if i.Sandbox != "" {
			continue
		}
		value, err := sysctl.Get(p.r.Node, routeLocalnet(i.Name, "").Key)
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

// ensureGuard adds the guard of 127/8.
func (p *portMap) ensureGuard() error {
	return p.useBackend(
		func(c *nft.Conn) error { return c.Ensure(guardLayout()) },
		func() error { return p.addGuard(p.tool(nft.IPv4)) },
	)
}
