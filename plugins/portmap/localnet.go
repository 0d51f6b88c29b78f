package main

import (
	"errors"
	"io/fs"

	"github.com/plumb-cni/plumb/pkg/sysctl"
)

// The node's own connections to 127.0.0.1 reach the container only when the kernel lets
// packets of 127/8 through the interface that leads to it (route_localnet). It is
// never set for all interfaces, and only where the rules keep packets of others to
// 127/8 out (nft.PortMaps, guardRule). For IPv6 there is no such setting.

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

func (p *portMap) localnet() sysctl.Setting {
	return sysctl.Setting{Key: sysctl.IPv4(p.device, "route_localnet"), Value: "1"}
}

// ensureLocalnet is for what the node shares, and so is not undone.
func (p *portMap) ensureLocalnet() error {
	if p.device == "" {
		if p.wantsLocalnet() {
			p.r.Warn("host ports do not answer at 127.0.0.1: no virtual interface of the node leads to %s", p.ips[0].Addr())
		}
		return nil
	}
	return sysctl.Ensure(p.r.Node, p.localnet())
}

func (p *portMap) checkLocalnet() error {
	if p.device == "" {
		return nil
	}
	return sysctl.Diff(p.r.Node, p.localnet())
}
