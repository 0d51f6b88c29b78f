package masq

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/plumb-cni/plumb/pkg/claims"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
)

// table returns the table with the elements.
func table() nft.Table { return Layout().Table }

// store returns the store of the owner's elements. ips are the addresses as far as they are
// known.
func (m Masq) store(c *nft.Conn, ips []netip.Prefix) *claims.Store {
	s := &claims.Store{
		Conn:        c,
		Layout:      m.layout(ips),
		Groups:      []claims.Group{{addressMap(nft.IPv4)}, {addressMap(nft.IPv6)}},
		Owner:       m.Owner,
		Description: m.String(),
		Warn:        m.Warn,
	}
	s.Ensure = func() error { return c.Ensure(s.Layout) }
	for _, ip := range ips {
		set := addressMap(nft.FamilyOf(ip.Addr()))
		s.Claims = append(s.Claims, claims.Claim{
			Description: masqueradedAddr(ip.Addr()),
			Elements: []nft.SetElement{{Set: set, Element: nft.Element{
				Key: nft.AddrKey(ip.Addr()), Jump: subnetChain(m.Owner.Network, ip).Name,
			}}},
		})
	}
	return s
}

// A masqueradedAddr is an address. Its String is for errors and warnings.
type masqueradedAddr netip.Addr

func (a masqueradedAddr) String() string { return "the masquerade of " + netip.Addr(a).String() }

// layout returns the layout of the table with the chains for the subnets of the addresses.
func (m Masq) layout(ips []netip.Prefix) nft.Layout {
	l := Layout()
	seen := map[netip.Prefix]bool{}
	for _, ip := range ips {
		if subnet := ip.Masked(); !seen[subnet] {
			seen[subnet] = true
			l = l.WithChains(subnetChain(m.Owner.Network, subnet))
		}
	}
	return l
}

// addNFT adds the elements for the addresses in one transaction, and pushes their deletion.
func addNFT(u *undo.Stack, c *nft.Conn, m Masq, ips []netip.Prefix) error {
	if err := m.store(c, ips).Add(u); err != nil {
		return fmt.Errorf("masquerade: %w", err)
	}
	return nil
}

// delNFT deletes everything of the owner in nf_tables in one transaction: elements, rules of the
// reference plugins' nftables backend, rules of iptables-nft, and what the caller adds.
func delNFT(c *nft.Conn, m Masq, ips []netip.Prefix, also []Change) error {
	return c.Atomically("nft delete "+m.String(), func(tx *nft.Tx) error {
		if _, err := m.store(c, ips).Delete(tx); err != nil {
			return err
		}
		return errors.Join(ownReference(m.Owner).NFT(c, tx), ownCleanup(m.Owner, ips).NFT(c, tx), addChanges(c, tx, also))
	})
}

// addChanges adds the changes to tx.
func addChanges(c *nft.Conn, tx *nft.Tx, changes []Change) error {
	var errs []error
	for _, change := range changes {
		errs = append(errs, change(c, tx))
	}
	return errors.Join(errs...)
}

// checkNFT returns an error that names the elements and chains that are missing or damaged. c is
// nil if the kernel has no nf_tables.
func checkNFT(c *nft.Conn, m Masq, ips []netip.Prefix) error {
	if c == nil {
		return fmt.Errorf("%s is missing: %w", m, nft.ErrUnavailable)
	}
	store := m.store(c, ips)
	if missing := errors.Join(store.Check(), c.CheckChains(store.Layout)); missing != nil {
		return fmt.Errorf("%s is missing: %w", m, missing)
	}
	return nil
}

// gcNFT is delNFT for all attachments of the network that are not in keep.
func gcNFT(c *nft.Conn, network string, keep types.Set, also []Change) error {
	return c.Atomically("nft delete stale masquerade of network "+network, func(tx *nft.Tx) error {
		if _, err := (Masq{}).store(c, nil).GC(tx, network, keep); err != nil {
			return err
		}
		return errors.Join(staleReference(network, keep).NFT(c, tx), staleCleanup(network, keep).NFT(c, tx), addChanges(c, tx, also))
	})
}
