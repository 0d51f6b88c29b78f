package masq

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
)

// table returns the table with the elements.
func table() nft.Table { return Layout().Table }

// store returns the store of the owner's elements. ips are the addresses as far as they are
// known.
func (m Masq) store(c *nft.Conn, ips []netip.Prefix) *nft.Store {
	s := &nft.Store{
		Conn:        c,
		Layout:      m.layout(ips),
		Kinds:       []nft.ClaimKind{claimKind(nft.IPv4), claimKind(nft.IPv6)},
		Owner:       m.Owner,
		Description: m.String(),
		Warn:        m.Warn,
	}
	s.Ensure = func() error { return c.Ensure(s.Layout) }
	for _, ip := range ips {
		f, key := nft.FamilyOf(ip.Addr()), nft.AddrKey(ip.Addr())
		s.Claims = append(s.Claims, nft.Claim{
			Description: masqueradedAddr(ip.Addr()),
			OwnerMap:    ownerMap(f),
			OwnerEntry:  nft.Element{Data: key},
			Elements: []nft.SetElement{{Set: addressMap(f), Element: nft.Element{
				Key: key, Jump: subnetChain(m.Owner.Network, ip).Name, Comment: nft.Owner(m.Owner),
			}}},
		})
	}
	return s
}

// A masqueradedAddr is an address. Its String is for errors and warnings.
type masqueradedAddr netip.Addr

func (a masqueradedAddr) String() string { return "the masquerade of " + netip.Addr(a).String() }

// claimKind returns the kind of claims to the masquerade of an address.
func claimKind(f nft.Family) nft.ClaimKind {
	return nft.ClaimKind{
		OwnerMap:    ownerMap(f),
		PrimarySets: []string{addressMap(f)},
		ElementRefs: func(name nft.Key) []nft.ElementRef { return []nft.ElementRef{{Set: addressMap(f), Key: name}} },
	}
}

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
	store := m.store(c, ips)
	err := store.Add(u, func() error {
		return c.Atomically("nft delete "+m.String(), func(tx *nft.Tx) error {
			_, err := store.Delete(tx)
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("masquerade: %w", err)
	}
	return nil
}

// delNFT deletes everything of the owner in nf_tables in one transaction: elements, rules of the
// reference plugins' nftables backend, and rules of iptables-nft.
func delNFT(c *nft.Conn, m Masq, ips []netip.Prefix) error {
	return c.Atomically("nft delete "+m.String(), func(tx *nft.Tx) error {
		if _, err := m.store(c, ips).Delete(tx); err != nil {
			return err
		}
		return errors.Join(ownReference(m.Owner).NFT(c, tx), ownCleanup(m.Owner, ips).NFT(c, tx))
	})
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
func gcNFT(c *nft.Conn, network string, keep types.Set) error {
	return c.Atomically("nft delete stale masquerade of network "+network, func(tx *nft.Tx) error {
		if err := (Masq{}).store(c, nil).GC(tx, network, keep); err != nil {
			return err
		}
		return errors.Join(staleReference(network, keep).NFT(c, tx), staleCleanup(network, keep).NFT(c, tx))
	})
}
