package main

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	xt "github.com/plumb-cni/plumb/pkg/iptables"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/sysctl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// The node's own connections to 127.0.0.1 reach the container only when the kernel lets
// packets of 127/8 through the interface that leads to it (route_localnet). It is
// never set for all interfaces, and only where the rules keep packets of others to
// 127/8 out (nft.Guard, guardRule). For IPv6 there is no such setting.
//
// Where an ADD of the nftables backend finds route_localnet at 0, it makes an empty chain,
// and each attachment that has a mapping for 127/8 behind the interface an element that
// jumps there:
//
//	map localnetuser { "5dd9d1c2b7989a8" comment "net1/one/eth0" : jump localnet/cni0 }
//
// The kernel counts what jumps to a chain. So the DEL of the last one knows, without
// reading the others, that it is the last, and sets route_localnet to 0 again. Where an
// ADD finds it at 1 and no such chain, somebody else has set it: it stays.
const localnetUsers = "localnetuser"

const localnetPrefix = "localnet/"

// localnetOf is an interface in what a person reads of a claim to its setting.
type localnetOf string

func (l localnetOf) String() string { return "route_localnet of " + string(l) }

func localnetChain(device string) string { return localnetPrefix + device }

// wantsLocalnet reports whether a mapping is for 127/8 too.
func (p *portMap) wantsLocalnet() bool {
	if !p.conf.snat || len(p.ips) == 0 || !p.ips[0].Addr().Is4() {
		return false
	}
	for _, m := range p.conf.mappings {
		if !m.hostIP.IsValid() || m.hostIP.Is4() && (m.everywhere() || m.hostIP.IsLoopback()) {
			return true
		}
	}
	return false
}

// findLocalnet notes the interface that leads to the container; none when no route
// does, and when a network card does: what guards 127/8 does not guard that, and a
// container behind one (macvlan) does not answer the node anyway.
func (p *portMap) findLocalnet() error {
	if !p.wantsLocalnet() || p.device != "" {
		return nil
	}
	node, err := p.node()
	if err != nil {
		return err
	}
	l, err := node.LinkTo(p.ips[0].Addr())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case l.Kind == "" || l.Kind == "vrf":
		return nil
	}
	p.device = l.Name
	return nil
}

// localnet is the setting of an interface.
func localnet(device, value string) sysctl.Setting {
	return sysctl.Setting{Key: sysctl.IPv4(device, "route_localnet"), Value: value}
}

// ensureLocalnet is not undone by itself: see leaveLocalnet.
func (p *portMap) ensureLocalnet() error {
	if p.device == "" {
		return nil
	}
	return sysctl.Ensure(p.r.Node, localnet(p.device, "1"))
}

// warnOfLocalnet says that 127.0.0.1 will not answer.
func (p *portMap) warnOfLocalnet() {
	if p.device == "" && p.wantsLocalnet() {
		p.r.Warn("host ports do not answer at 127.0.0.1: no virtual interface of the node leads to %s", p.ips[0].Addr())
	}
}

func (p *portMap) checkLocalnet() error {
	if p.device == "" {
		return nil
	}
	return sysctl.Diff(p.r.Node, localnet(p.device, "1"))
}

// countLocalnet notes whether this attachment is counted behind its interface.
func (p *portMap) countLocalnet(c *nft.Conn) error {
	err := c.HasChain(table(), localnetChain(p.device))
	if err == nil {
		p.counted = true
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	value, err := sysctl.Get(p.r.Node, localnet(p.device, "").Key)
	p.counted = err == nil && value != "1"
	return err
}

// makeLocalnet makes what counts, in the transaction that counts this attachment.
func (p *portMap) makeLocalnet(tx *nft.Tx) {
	if p.counted {
		tx.EnsureSet(table(), nft.Set{Name: localnetUsers, Key: []nft.Type{nft.IfName}, Data: []nft.Type{nft.Verdict}})
		tx.EnsureChain(table(), localnetChain(p.device))
	}
}

// countedChain is the chain that counts the attachment; empty: none does.
func (p *portMap) countedChain(c *nft.Conn) (string, error) {
	found, err := c.Lookup(table(), []nft.ElementRef{{Set: localnetUsers, Key: nft.OwnerKey(p.owner(), 0)}})
	if err != nil || found[0].Comment != nft.Owner(p.owner()) || !strings.HasPrefix(found[0].Jump, localnetPrefix) {
		return "", err
	}
	return found[0].Jump, nil
}

// leaveLocalnet puts the deletion of the chain that counts the attachment into the
// transaction which deletes the attachment, if that is the last, and resets
// route_localnet: a DEL that is killed after that is repeated.
func (p *portMap) leaveLocalnet(c *nft.Conn, tx *nft.Tx) error {
	chain, err := p.countedChain(c)
	if err != nil || chain == "" {
		return err
	}
	use, err := c.ChainUse(table(), chain)
	if err != nil || use.Count > 1 {
		return err
	}
	return p.resetLocalnet(c, tx, chain)
}

// resetLocalnet sets route_localnet to 0 and deletes the chain. Where host ports that are
// not counted may need it, the chain stays for a later DEL or GC.
func (p *portMap) resetLocalnet(c *nft.Conn, tx *nft.Tx, chain string) error {
	needed, err := p.foreignHostPorts(c)
	if err != nil || needed {
		return err
	}
	tx.DelChain(table(), chain)
	err = sysctl.Ensure(p.r.Node, localnet(strings.TrimPrefix(chain, localnetPrefix), "0"))
	if errors.Is(err, fs.ErrNotExist) { // with the interface
		return nil
	}
	return err
}

// foreignHostPorts reports whether the node has host ports of the iptables backend or of
// the reference plugin, which rely on route_localnet and are not counted.
func (p *portMap) foreignHostPorts(c *nft.Conn) (bool, error) {
	for _, at := range []struct {
		table nft.Table
		chain string
	}{
		{nft.Table{Family: nft.IPv4, Name: natTable}, dnatChain},
		{nft.Table{Family: nft.IPv4, Name: "cni_hostport"}, "hostports"},
	} {
		rules, err := c.Rules(at.table, at.chain)
		if err != nil || len(rules) > 0 {
			return len(rules) > 0, err
		}
	}
	return xt.InUse(p.r.Node, xt.V4, natTable)
}

// collectLocalnet resets route_localnet of the interfaces that nobody is counted behind
// any more.
func (p *portMap) collectLocalnet(c *nft.Conn) error {
	chains, err := c.Chains(table(), localnetPrefix)
	unused := func(u nft.ChainUse) bool { return u.Count == 0 }
	if err != nil || !slices.ContainsFunc(chains, unused) {
		return err
	}
	return xt.Exclusive(p.r.Node, lockWait, func() error {
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

// guardLocalnet is for an ADD without mappings: where the node's interfaces of the
// container have route_localnet, it ensures what keeps packets of others to 127/8 out. A
// ruleset that was flushed lacks that.
func (p *portMap) guardLocalnet(prev *types.Result) error {
	for _, i := range prev.Interfaces {
		if i.Sandbox != "" {
			continue
		}
		value, err := sysctl.Get(p.r.Node, localnet(i.Name, "").Key)
		switch {
		case errors.Is(err, fs.ErrNotExist) || err == nil && value != "1":
			continue
		case err != nil:
			return err
		}
		p.device = i.Name
		return p.ensureGuard()
	}
	return nil
}

func (p *portMap) ensureGuard() error {
	if p.conf.backend != iptables {
		c, err := nft.Open(p.r.Node)
		if err == nil {
			err = c.Ensure(nft.Guard())
		}
		if p.conf.backend == nftables || !errors.Is(err, nft.ErrUnavailable) {
			return err
		}
	}
	return p.addGuard(p.tool(nft.IPv4))
}
