package masq

import (
	"errors"
	"net/netip"

	"github.com/plumb-cni/plumb/pkg/claims"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/tables"
)

// store returns the store of the owner's elements, with the chains for the subnets of the addresses.
// ips may be empty if the addresses are not known.
func (m Masq) store(c *nft.Conn, ips []netip.Prefix) *claims.Store {
	s := &claims.Store{
		Conn:        c,
		Layout:      baseLayout(),
		Groups:      []claims.Group{{tables.Masquerade(nft.IPv4)}, {tables.Masquerade(nft.IPv6)}},
		Chains:      []string{chainKind},
		Owner:       m.Owner,
		Description: m.String(),
		Warn:        m.Warn,
	}
	for _, ip := range ips {
		set, chain := tables.Masquerade(nft.FamilyOf(ip.Addr())), subnetChain(m.Owner.Network, ip)
		s.Layout = s.Layout.WithChains(chain)
		s.Claims = append(s.Claims, claims.Claim{
			Description: "the masquerade of " + ip.Addr().String(),
			Elements: []nft.SetElement{{Set: set, Element: nft.Element{
				Key: nft.AddrKey(ip.Addr()), Jump: chain.Name,
			}}},
		})
	}
	return s
}

// addChanges adds the changes to tx.
func addChanges(c *nft.Conn, tx *nft.Tx, changes []Change) error {
	var errs []error
	for _, change := range changes {
		errs = append(errs, change(c, tx))
	}
	return errors.Join(errs...)
}
