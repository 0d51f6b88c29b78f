package main

import (
	"errors"
	"fmt"

	"github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// check returns an error that lists the elements and rules that are missing or belong to another
// container. It also accepts rules of the other backend or the reference plugin, because the backend may
// have been changed, or the reference plugin replaced by plumb, while the container ran.
func check(r *skel.Request, conf *config) error {
	p := &portMap{r: r, conf: conf}
	rulesErr, localnetErr, err := p.findDamage()
	if err != nil {
		return err
	}
	if err := errors.Join(rulesErr, localnetErr); err != nil {
		return types.Coded(types.CodeChanged, fmt.Errorf("check %s: %w", p, err))
	}
	return nil
}

// repair restores what check reports, except host ports that another container owns now.
func repair(r *skel.Request, conf *config) error {
	p := &portMap{r: r, conf: conf}
	rulesErr, localnetErr, err := p.findDamage()
	if err == nil && rulesErr != nil {
		err = p.useBackend(p.addNFT, p.addIPTables)
	}
	if _, other := errors.AsType[*otherRouteError](localnetErr); err == nil && localnetErr != nil && !other {
		if err = p.ensureGuard(); err == nil { // the rules of the reference plugin lack it
			err = p.ensureLocalnet()
		}
	}
	if err != nil {
		return err
	}
	return errors.Join(p.withheld, p.deleteStaleFlows())
}

// findDamage compares the rules and route_localnet of the host with those of ADD, and sets ips and localnetDevice.
// Without mappings, CHECK compares nothing, and REPAIR only restores the guard.
func (p *portMap) findDamage() (rulesErr, localnetErr, err error) {
	prev, err := p.r.RequirePrev()
	if err == nil && len(p.conf.mappings) == 0 && p.r.IsRepair() {
		err = p.restoreGuard(prev)
	}
	if err != nil || len(p.conf.mappings) == 0 {
		return nil, nil, err
	}
	p.ips = addresses(prev, p.r.IfName)
	c, err := nft.OpenIfSupported(p.r.HostNS)
	if err != nil {
		return nil, nil, err
	}
	if _, err := p.findLocalnetDevice(prev); err != nil {
		return nil, nil, err
	}
	return p.checkRules(c), p.checkLocalnet(prev), nil
}

// checkRules returns nil if all rules of one of the backends or of the reference plugin exist.
// Otherwise it lists what is missing for the backend of the configuration. c is nil if the kernel lacks
// nftables.
func (p *portMap) checkRules(c *nft.Conn) error {
	if c == nil {
		return p.checkIPTables()
	}
	first, second := p.checkNFT, p.checkIPTablesIfUsed
	backend, err := p.backend()
	if err != nil {
		return err
	}
	if backend == backendIPTables {
		first, second = second, first
	}
	firstErr := first(c)
	if firstErr == nil || second(c) == nil {
		return nil
	}
	if complete, err := p.hasReferenceRules(c); err == nil && complete {
		return nil
	}
	return firstErr
}

// checkIPTablesIfUsed calls checkIPTables if iptables is the backend of the configuration, or if the
// container's chain or a legacy table nat exists. Otherwise the rules cannot exist, and it returns an
// error without running a program.
func (p *portMap) checkIPTablesIfUsed(c *nft.Conn) error {
	name := chainName(p.owner())
	mayExist := p.conf.backend == backendIPTables
	for _, ip := range p.ips {
		f := nft.FamilyOf(ip.Addr())
		mayExist = mayExist || c.CheckChain(nft.Table{Family: f, Name: iptables.NAT}, name) == nil
		_, exists, err := iptables.LegacyTool(p.r.HostNS, f, iptables.NAT)
		mayExist = mayExist || err == nil && exists
	}
	if !mayExist {
		return fmt.Errorf("table %s lacks the chain %s", iptables.NAT, name)
	}
	return p.checkIPTables()
}
