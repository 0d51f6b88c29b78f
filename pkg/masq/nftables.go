package masq

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"

	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
)

// families are those that a node may have masquerade rules for.
func families() []nft.Family { return []nft.Family{nft.IPv4, nft.IPv6} }

// table is where the elements are.
func table() nft.Table { return nft.Plumb().Table }

// element is what makes an address masqueraded.
func (m Masq) element(ip netip.Prefix) nft.Element {
	return nft.Element{
		Key:     nft.AddrKey(ip.Addr()),
		Jump:    nft.MasqChain(m.Owner.Network, ip).Name,
		Comment: nft.Owner(m.Owner),
	}
}

// An entry is an element and the map it is in.
type entry struct {
	set string
	nft.Element
}

// entries is all that the addresses need: each its element, and one that leads to it
// from the owner.
func (m Masq) entries(ips []netip.Prefix) []entry {
	var all []entry
	count := map[nft.Family]int{}
	for _, ip := range ips {
		f, e := family(ip.Addr()), m.element(ip)
		from := nft.Element{Key: nft.OwnerKey(m.Owner, count[f]), Data: e.Key, Comment: e.Comment}
		all = append(all, entry{nft.MasqSet(f), e}, entry{nft.MasqOwners(f), from})
		count[f]++
	}
	return all
}

// layout is the table with the chains of the addresses' subnets.
func (m Masq) layout(ips []netip.Prefix) nft.Layout {
	l := nft.Plumb()
	seen := map[netip.Prefix]bool{}
	for _, ip := range ips {
		if subnet := ip.Masked(); !seen[subnet] {
			seen[subnet] = true
			l = l.With(nft.MasqChain(m.Owner.Network, subnet))
		}
	}
	return l
}

// addNFT ensures what is shared and adds the elements in one transaction. A chain may
// vanish in between, by a GC that found it unused: then once more.
func addNFT(u *undo.Stack, c *nft.Conn, m Masq, ips []netip.Prefix) error {
	const attempts = 10
	what := "nft add masquerade of " + list(ips)
	var err error
	for range attempts {
		if err := c.Ensure(m.layout(ips)); err != nil {
			return fmt.Errorf("masquerade: %w", err)
		}
		if err = addElements(c, what, m, ips); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return err
	}
	u.Push("delete "+m.String(), func() error { return delNFT(c, m, ips) })
	return nil
}

func addElements(c *nft.Conn, what string, m Masq, ips []netip.Prefix) error {
	var tx nft.Tx
	for _, e := range m.entries(ips) {
		tx.AddElement(table(), e.set, e.Element)
	}
	err := c.Commit(what, &tx)
	if errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
		return replaceElements(c, what, m.entries(ips))
	}
	return err
}

// replaceElements puts the elements in the place of those of former owners.
func replaceElements(c *nft.Conn, what string, entries []entry) error {
	return c.Atomically(what, func(tx *nft.Tx) error {
		for _, want := range entries {
			have, err := c.Element(table(), want.set, want.Key)
			switch {
			case err == nil && have == want.Element:
				continue
			case err == nil:
				tx.DelElement(table(), want.set, want.Key)
			case !errors.Is(err, fs.ErrNotExist):
				return err
			}
			tx.AddElement(table(), want.set, want.Element)
		}
		return nil
	})
}

// delNFT removes all of the owner that is in nf_tables, in one transaction: elements,
// rules of the reference, rules of an iptables that speaks to nf_tables. An element
// goes only while it is the owner's own: its address may have changed hands.
func delNFT(c *nft.Conn, m Masq, ips []netip.Prefix) error {
	return c.Atomically("nft delete "+m.String(), func(tx *nft.Tx) error {
		if err := delElements(c, tx, m, ips); err != nil {
			return err
		}
		if err := delReference(c, tx, m); err != nil {
			return err
		}
		return delXTables(c, tx, m, ips)
	})
}

// delElements looks for the owner's list of addresses, and under the addresses that
// are known.
func delElements(c *nft.Conn, tx *nft.Tx, m Masq, ips []netip.Prefix) error {
	owner := nft.Owner(m.Owner)
	keys := map[nft.Key]bool{}
	for _, ip := range ips {
		keys[nft.AddrKey(ip.Addr())] = true
	}
	for _, f := range families() {
		for n := 0; ; n++ {
			e, err := c.Element(table(), nft.MasqOwners(f), nft.OwnerKey(m.Owner, n))
			if errors.Is(err, fs.ErrNotExist) {
				break
			}
			if err != nil {
				return err
			}
			if e.Comment == owner {
				tx.DelElement(table(), nft.MasqOwners(f), e.Key)
				keys[e.Data] = true
			}
		}
	}
	for key := range keys {
		set := nft.MasqSet(family(key.Addr()))
		e, err := c.Element(table(), set, key)
		if err == nil && e.Comment == owner {
			tx.DelElement(table(), set, key)
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// delWhere deletes the elements whose comment says so.
func delWhere(c *nft.Conn, tx *nft.Tx, stale func(comment string) bool) error {
	for _, f := range families() {
		for _, set := range []string{nft.MasqSet(f), nft.MasqOwners(f)} {
			elements, err := c.Elements(table(), set)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			for _, e := range elements {
				if stale(e.Comment) {
					tx.DelElement(table(), set, e.Key)
				}
			}
		}
	}
	return nil
}

// checkNFT looks for one address's element and for all that it needs. c nil: the
// kernel has no nf_tables.
func checkNFT(c *nft.Conn, m Masq, ip netip.Prefix) error {
	if c == nil {
		return missing(m, ip, "no element: "+nft.ErrUnavailable.Error())
	}
	set, want := nft.MasqSet(family(ip.Addr())), m.element(ip)
	have, err := c.Element(table(), set, want.Key)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return missing(m, ip, fmt.Sprintf("no element in map %s of table %s", set, table()))
	case err != nil:
		return err
	case have.Comment != want.Comment:
		return missing(m, ip, fmt.Sprintf("the element in map %s of table %s belongs to %q", set, table(), have.Comment))
	case have.Jump != want.Jump:
		return missing(m, ip, fmt.Sprintf("the element in map %s of table %s jumps to chain %q instead of %q", set, table(), have.Jump, want.Jump))
	}
	damaged, err := c.Damaged(m.layout([]netip.Prefix{ip}))
	if err == nil && len(damaged) > 0 {
		return missing(m, ip, fmt.Sprintf("chain %s of table %s is gone or lacks rules", damaged[0].Name, table()))
	}
	return err
}

// checkOwned looks for what leads from the owner to its addresses: without it a DEL
// that does not know them would leave their elements.
func checkOwned(c *nft.Conn, m Masq, ips []netip.Prefix) error {
	listed := map[nft.Key]bool{}
	for _, e := range m.entries(ips) {
		if e.set != nft.MasqOwners(nft.IPv4) && e.set != nft.MasqOwners(nft.IPv6) {
			continue
		}
		have, err := c.Element(table(), e.set, e.Key)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		listed[have.Data] = have.Comment == e.Comment
	}
	var errs []error
	for _, ip := range ips {
		if !listed[nft.AddrKey(ip.Addr())] {
			errs = append(errs, missing(m, ip, fmt.Sprintf("no element in map %s of table %s leads to it from its owner", nft.MasqOwners(family(ip.Addr())), table())))
		}
	}
	return errors.Join(errs...)
}

// gcNFT is delNFT for all of a network that is not to be kept.
func gcNFT(c *nft.Conn, network string, keep types.Set) error {
	kept := map[string]bool{}
	for a := range keep {
		kept[nft.Owner(a)] = true
	}
	return c.Atomically("nft delete stale masquerade of network "+network, func(tx *nft.Tx) error {
		err := delWhere(c, tx, func(comment string) bool {
			return strings.HasPrefix(comment, nft.NetworkPrefix(network)) && !kept[comment]
		})
		if err != nil {
			return err
		}
		if err := gcReference(c, tx, network, keep); err != nil {
			return err
		}
		return gcXTables(c, tx, network, keep)
	})
}
