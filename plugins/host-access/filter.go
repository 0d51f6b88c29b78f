package main

import (
	"errors"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/claims"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// filterLayout returns the part of table inet plumb that this plugin creates. From a host end, the host accepts only packets
// from the attachment's addresses to the addresses that the container may reach, and answers to connections of the host. It
// forwards no packets from a host end or to one.
//
//	set host_access  { "veth1" comment "net1/cid1/eth0" }
//	set host_access4 { "veth1" . 192.0.2.100 . 192.0.2.1 comment "net1/cid1/eth0" }
//
// The container answers from the address of another interface if the host connects to that address, and routes the answer
// through the pair.
func filterLayout() nft.Layout {
	isHostEnd := nft.InSet(tables.HostAccessEnds, nft.IifName())
	input := nft.Chain{
		Name:  "host_access_input",
		Hook:  nft.Hook{Type: nft.Filter, At: nft.Input, Priority: -1}, // before the rules of iptables
		Rules: []nft.Rule{{nft.NotInSet(tables.HostAccessEnds, nft.IifName()), nft.Return()}},
	}
	for _, f := range nft.Families() {
		input.Rules = append(input.Rules, nft.Rule{nft.InSet(tables.HostAccess(f), nft.IifName(), nft.Saddr(f), nft.Daddr(f)), nft.Return()})
	}
	input.Rules = append(input.Rules, nft.Rule{nft.Reply(), nft.Return()}, nft.Rule{nft.Drop()})
	return tables.Inet(tables.HostAccessSets()...).WithChains(input, nft.Chain{
		Name:  "host_access_forward",
		Hook:  nft.Hook{Type: nft.Filter, At: nft.Forward, Priority: -1},
		Rules: []nft.Rule{{isHostEnd, nft.Drop()}, {nft.InSet(tables.HostAccessEnds, nft.OifName()), nft.Drop()}},
	})
}

// filterSets returns the sets of filterLayout.
func filterSets() claims.Group {
	return claims.Group{tables.HostAccessEnds, tables.HostAccess(nft.IPv4), tables.HostAccess(nft.IPv6)}
}

// openFilter connects to nf_tables. It returns an error with types.CodeConfig if the kernel lacks nf_tables.
func openFilter(r *skel.Request) (*nft.Conn, error) {
	c, err := nft.Open(r.HostNS)
	if errors.Is(err, nft.ErrUnavailable) {
		return nil, types.Errorf(types.CodeConfig, "host-access needs nf_tables to limit what the container reaches: %w; load the kernel module nf_tables", err)
	}
	return c, err
}

// filterOf returns the store of the attachment's elements without claims.
func filterOf(c *nft.Conn, owner types.Attachment) *claims.Store {
	return &claims.Store{
		Conn: c, Layout: filterLayout(), Groups: []claims.Group{filterSets()}, Owner: owner, Description: "host access of " + owner.String(),
	}
}

// filter returns the store of the pair's elements.
func (p *pair) filter(c *nft.Conn) *claims.Store {
	s, hostEnd := filterOf(c, p.owner), nft.IfNameKey(p.hostEnd.Name)
	claim := claims.Claim{Description: "the host access of " + p.hostEnd.Name, Elements: []nft.SetElement{{Set: tables.HostAccessEnds, Element: nft.Element{Key: hostEnd}}}}
	for _, f := range p.families {
		for _, ip := range f.ips {
			for _, a := range f.host {
				key := nft.Concat(hostEnd, nft.AddrKey(ip), nft.AddrKey(a))
				claim.Elements = append(claim.Elements, nft.SetElement{Set: tables.HostAccess(nft.FamilyOf(ip)), Element: nft.Element{Key: key}})
			}
		}
	}
	s.Claims = []claims.Claim{claim}
	return s
}

// diffFilter returns an error that names every difference of the elements and chains.
func diffFilter(s *claims.Store) error {
	errs := []error{s.Check(), s.Conn.CheckChains(s.Layout)}
	for _, set := range filterSets() {
		elements, err := s.Conn.ElementsOf(s.Layout.Table, set, nft.Owner(s.Owner))
		errs = append(errs, types.IgnoreNotExist(err))
		for _, e := range elements {
			isClaimed := func(c nft.SetElement) bool { return c.Set == set && c.Key == e.Key }
			if !slices.ContainsFunc(s.Claims[0].Elements, isClaimed) {
				p := types.Problem{Object: "set " + set, Kind: types.ProblemDiffers, Table: s.Layout.Table.String()}
				errs = append(errs, p.Errorf("set %s of table %s lets packets pass that are not wanted", set, s.Layout.Table))
			}
		}
	}
	return errors.Join(errs...)
}
