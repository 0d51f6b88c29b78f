package masq

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
)

// families are those that a node may have masquerade rules for.
func families() []nft.Family { return []nft.Family{nft.IPv4, nft.IPv6} }

// table is where the elements are.
func table() nft.Table { return Layout().Table }

// store is what nf_tables has of the owner. ips are the addresses as far as they are known.
func (m Masq) store(c *nft.Conn, ips []netip.Prefix) *nft.Store {
	s := &nft.Store{
		Conn:   c,
		Layout: m.layout(ips),
		Kinds:  []nft.Kind{kind(nft.IPv4), kind(nft.IPv6)},
		Owner:  m.Owner,
		What:   m.String(),
		Warn:   m.Warn,
	}
	s.Ensure = func() error { return c.Ensure(s.Layout) }
	for _, ip := range ips {
		f, key := family(ip.Addr()), nft.AddrKey(ip.Addr())
		s.Claims = append(s.Claims, nft.Claim{
			About:  masqueraded(ip.Addr()),
			Owners: ownerMap(f),
			Listed: nft.Element{Data: key},
			Elements: []nft.Entry{{Set: addressMap(f), Element: nft.Element{
				Key: key, Jump: subnetChain(m.Owner.Network, ip).Name, Comment: nft.Owner(m.Owner),
			}}},
		})
	}
	return s
}

// masqueraded is an address in what a person reads of its claim.
type masqueraded netip.Addr

func (m masqueraded) String() string { return "the masquerade of " + netip.Addr(m).String() }

// kind is a claim to the masquerade of one address.
func kind(f nft.Family) nft.Kind {
	return nft.Kind{
		Owners: ownerMap(f),
		Held:   []string{addressMap(f)},
		Refs:   func(name nft.Key) []nft.Ref { return []nft.Ref{{Set: addressMap(f), Key: name}} },
	}
}

// layout is the table with the chains of the addresses' subnets.
func (m Masq) layout(ips []netip.Prefix) nft.Layout {
	l := Layout()
	seen := map[netip.Prefix]bool{}
	for _, ip := range ips {
		if subnet := ip.Masked(); !seen[subnet] {
			seen[subnet] = true
			l = l.With(subnetChain(m.Owner.Network, subnet))
		}
	}
	return l
}

// addNFT adds all that the addresses need in one transaction.
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

// delNFT removes all of the owner that is in nf_tables, in one transaction: elements,
// rules of the reference, rules of an iptables that speaks to nf_tables.
func delNFT(c *nft.Conn, m Masq, ips []netip.Prefix) error {
	return c.Atomically("nft delete "+m.String(), func(tx *nft.Tx) error {
		if _, err := m.store(c, ips).Delete(tx); err != nil {
			return err
		}
		return errors.Join(ownReference(m.Owner).NFT(c, tx), ownCleanup(m.Owner, ips).NFT(c, tx))
	})
}

// checkNFT names what of all that the addresses need is missing.
func checkNFT(c *nft.Conn, m Masq, ips []netip.Prefix) error {
	if c == nil {
		return fmt.Errorf("%s is missing: %w", m, nft.ErrUnavailable)
	}
	store := m.store(c, ips)
	missing := store.Check()
	damaged, err := c.Damaged(store.Layout)
	for _, ch := range damaged {
		missing = errors.Join(missing, fmt.Errorf("chain %s of table %s is gone or lacks rules", ch.Name, table()))
	}
	if missing = errors.Join(missing, err); missing != nil {
		return fmt.Errorf("%s is missing: %w", m, missing)
	}
	return nil
}

// gcNFT is delNFT for all of a network that is not to be kept.
func gcNFT(c *nft.Conn, network string, keep types.Set) error {
	return c.Atomically("nft delete stale masquerade of network "+network, func(tx *nft.Tx) error {
		if err := (Masq{}).store(c, nil).GC(tx, network, keep); err != nil {
			return err
		}
		return errors.Join(staleReference(network, keep).NFT(c, tx), staleCleanup(network, keep).NFT(c, tx))
	})
}
