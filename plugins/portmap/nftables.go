package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/plumb-cni/plumb/v2/pkg/claims"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
)

// store returns the store of the attachment with these claims.
func (p *portMap) store(c *nft.Conn, own []claims.Claim) *claims.Store {
	s := &claims.Store{
		Conn:        c,
		Layout:      tableLayout(),
		Groups:      groups(),
		Index:       tables.HostPortIndex,
		ClaimOf:     func(entry nft.Key) claims.Claim { return endpointOf(entry).claim() },
		Chains:      []string{conditionsKind, snatKind},
		Owner:       p.owner(),
		Claims:      own,
		Description: p.String(),
		Ensure:      func() error { return p.ensureChains(c) },
		Warn:        p.r.Warn,
		OnlyFree:    p.r.IsRepair(),
	}
	if p.conf.onConflict == failOnConflict {
		s.Allowed = func() ([]claims.Claim, error) { return p.allowedClaims(c) }
	}
	return s
}

// addNFT creates the missing parts of the table, adds the elements in one transaction, and pushes their
// deletion.
func (p *portMap) addNFT(c *nft.Conn) error {
	if err := p.checkConflicts(c, false); err != nil {
		return err
	}
	s := p.store(c, p.claims())
	if s.Allowed != nil { // a concurrent ADD can add a conflicting claim after checkConflicts
		p.r.Undo.Push("delete unused chains of "+p.String(), s.RemoveUnusedChains)
	}
	if err := s.Add(&p.r.Undo); err != nil {
		return err
	}
	p.warnOfServiceAddrs()
	return nil
}

// ensureChains creates the missing parts of the table and of the chains with conditions, and updates the addresses of
// Services.
func (p *portMap) ensureChains(c *nft.Conn) error {
	if err := c.Ensure(p.layout()); err != nil {
		return err
	}
	if err := p.updateServiceAddrs(c); err != nil {
		return err
	}
	for _, ip := range p.mappedIPs() {
		chain, ok := p.conditionsChain(ip)
		if !ok {
			continue
		}
		if err := chain.ensure(c, p.r.HostNS); err != nil {
			return fmt.Errorf("%s: %w", conditionsKey(nft.FamilyOf(ip.Addr())), err)
		}
		if err := c.Ensure(p.layout()); err != nil { // a DEL may just have deleted the next chain
			return err
		}
	}
	return nil
}

func (e endpoint) String() string {
	if e.hostIP.IsUnspecified() {
		return fmt.Sprintf("host port %d/%s of IP version %s", e.port, e.proto, e.family.Version())
	}
	return fmt.Sprintf("host port %s/%s", netip.AddrPortFrom(e.hostIP, e.port), e.proto)
}

// A translation is an endpoint with the address and port to which its packets are sent.
type translation struct {
	endpoint
	target netip.AddrPort
}

func (p *portMap) translations() (all []translation) {
	for _, ip := range p.ips {
		f := nft.FamilyOf(ip.Addr())
		for _, m := range p.conf.mappingsOf(f) {
			all = append(all, translation{m.endpoint(f), netip.AddrPortFrom(ip.Addr(), m.containerPort)})
		}
	}
	return all
}

// translationsOf returns the translations that the elements of the target maps describe.
func translationsOf(elements []nft.SetElement) []translation {
	var all []translation
	for _, e := range elements {
		for _, f := range nft.Families() {
			if e.Set == tables.HostPort(f) || e.Set == tables.HostPortIP(f) {
				all = append(all, translation{endpointAt(f, e.Set, e.Key), parseTarget(f, e.Data)})
			}
		}
	}
	return all
}

// parseTarget returns the address and port of the container in the data of a target, or the zero value
// if the data is too short.
func parseTarget(f nft.Family, k nft.Key) netip.AddrPort {
	size := len(nft.AddrKey(unspecified(f)))
	if len(k) < size+2 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(k[:size].Addr(), uint16(k[size])<<8|uint16(k[size+1]))
}

// checkNFT returns an error that lists the elements and chains that are missing, are damaged or belong to
// another attachment, and missing addresses of Services.
func (p *portMap) checkNFT(c *nft.Conn) error {
	l := p.layout()
	for _, ip := range p.mappedIPs() {
		if chain, ok := p.conditionsChain(ip); ok {
			l = l.WithChains(chain.layout().Chains...)
		}
	}
	return errors.Join(p.store(c, p.claims()).Check(), c.CheckChains(l), p.checkServiceAddrs(c))
}
