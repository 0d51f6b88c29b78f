package main

import (
	"errors"
	"fmt"

	xt "github.com/plumb-cni/plumb/pkg/iptables"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// check looks for each element or rule, and names what is missing or in other hands.
// Rules that the other backend or the reference made count as well: a node whose
// plugins were exchanged has them.
func check(r *skel.Request) error {
	conf, err := parse(r)
	if err != nil {
		return err
	}
	prev, err := r.MustPrev()
	if err != nil || len(conf.mappings) == 0 {
		return err
	}
	p := &portMap{r: r, conf: conf, ips: addresses(prev, r.IfName)}
	c, err := p.anyNFT()
	if err != nil {
		return err
	}
	if err := p.findLocalnet(); err != nil {
		return err
	}
	if err := errors.Join(p.checkRules(c), p.checkLocalnet()); err != nil {
		return types.Coded(types.CodeChanged, fmt.Errorf("check %s: %w", p, err))
	}
	return nil
}

// checkRules looks into the backend of the configuration first, then into the others.
// c is nil where the kernel has no nf_tables.
func (p *portMap) checkRules(c *nft.Conn) error {
	if c == nil {
		return p.checkIPTables()
	}
	first, second := p.checkNFT, p.checkXTables
	if p.conf.backend == iptables {
		first, second = second, first
	}
	missing := first(c)
	if missing == nil || second(c) == nil {
		return nil
	}
	if whole, err := p.hasReference(c); err == nil && whole {
		return nil
	}
	return missing
}

// checkXTables runs programs only when there is, or has to be, something for them to
// look at.
func (p *portMap) checkXTables(c *nft.Conn) error {
	name := chainName(p.owner().Network, p.owner().ContainerID)
	there := p.conf.backend == iptables
	for _, ip := range p.ips {
		f := familyOf(ip.Addr())
		there = there || c.HasChain(nft.Table{Family: f, Name: xt.NAT}, name) == nil
		used, err := xt.InUse(p.r.Node, p.tool(f).Family, xt.NAT)
		there = there || used && err == nil
	}
	if !there {
		return fmt.Errorf("no chain %s", name)
	}
	return p.checkIPTables()
}
