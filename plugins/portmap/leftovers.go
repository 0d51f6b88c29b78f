package main

import (
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// This file finds the rules that the iptables backend or the reference plugin added for an
// attachment.

// ownCleanup returns the Cleanup for the chain of the owner's container and the jumps to it. It keeps the
// chain if addresses are known and no rule in the chain mentions one of them, because the chain belongs
// to another interface of the container.
func ownCleanup(owner types.Attachment, ips []netip.Prefix) iptables.Cleanup {
	name := chainName(owner)
	return iptables.Cleanup{Tables: iptables.Tables(iptables.NAT), Chains: []string{dnatChain, name}, Select: func(rules []iptables.Rule) (own iptables.Selection) {
		inChain := iptables.Where(rules, func(r iptables.Rule) bool { return r.Chain == name })
		if len(ips) > 0 && len(inChain) > 0 && !slices.ContainsFunc(inChain, mentions(ips)) {
			return own
		}
		return iptables.Selection{Rules: iptables.Where(rules, func(r iptables.Rule) bool { return r.Jump == name }), Chains: []string{name}}
	}}
}

// mentions returns a function that reports whether a rule mentions one of the addresses.
func mentions(ips []netip.Prefix) func(r iptables.Rule) bool {
	return func(r iptables.Rule) bool {
		return slices.ContainsFunc(ips, func(ip netip.Prefix) bool { return r.Mentions(ip.Addr()) })
	}
}

// ownsReference reports whether a rule of the reference plugin's nftables backend belongs to this
// attachment. The comment of such a rule is the container ID alone, and only the addresses distinguish the
// rules for different networks. If no addresses are known, all rules with the container ID match. GC does
// not know the network of these rules, and keeps them.
func (p *portMap) ownsReference(r iptables.Rule) bool {
	return r.Comment == p.owner().ContainerID && (len(p.ips) == 0 || mentions(p.ips)(r))
}

// ownReference returns the Cleanup for the reference plugin's rules for the owner.
func (p *portMap) ownReference() iptables.Cleanup {
	return iptables.Cleanup{
		Tables: iptables.Tables(referenceTable),
		Select: func(rules []iptables.Rule) iptables.Selection {
			return iptables.Selection{Rules: iptables.Where(rules, p.ownsReference)}
		},
	}
}

// hasReferenceRules reports whether rules of the reference plugin's nftables backend translate to
// each address of the container, at least as many as the address has mappings.
func (p *portMap) hasReferenceRules(c *nft.Conn) (bool, error) {
	for _, ip := range p.ips {
		f := nft.FamilyOf(ip.Addr())
		rules, err := iptables.ReadNFT(c, nft.Table{Family: f, Name: referenceTable}, referenceHostports)
		if err != nil {
			return false, err
		}
		own := iptables.Where(rules, func(r iptables.Rule) bool { return p.ownsReference(r) && r.Mentions(ip.Addr()) })
		if len(own) < len(p.conf.mappingsOf(f)) {
			return false, nil
		}
	}
	return true, nil
}

// The table of the reference plugin's nftables backend, and its chain with the rules that translate the destination.
const (
	referenceTable     = "cni_hostport"
	referenceHostports = "hostports"
)
