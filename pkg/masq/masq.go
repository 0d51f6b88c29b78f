// Package masq masquerades packets from containers to addresses outside their network (ipMasq).
//
// The nftables backend adds one map element per address, in table inet plumb, which the plugins
// share. The comment names the owner:
//
//	map masq4 { 10.88.0.2 comment "net1/cid1/eth0" : jump masq/net1/10.88.0.0/16 }
//
// The iptables backend uses the chain names and comments of the reference plugins. It is used if
// the configuration asks for it, or if the kernel lacks nftables.
//
// An upgrade or another configuration can change the backend while containers run. Therefore Del and
// GC delete the rules of both backends and of the reference plugins, and Check accepts any of them.
// Del and GC run a program only if a legacy table nat exists.
package masq

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
)

// Masq is the masquerade of one attachment.
type Masq struct {
	HostNS  *ns.Handle
	Owner   types.Attachment
	Backend string         // see iptables.ByBackend; only Add, Check and Status use it
	Except  []netip.Prefix // destinations to which no packet is masqueraded; only Add and Check use it
	// OnlyFree limits Add to the addresses that no other attachment owns. Only the nftables backend has owners.
	OnlyFree bool
	// Warn prints a warning for each address that Add takes from another attachment. It may be nil.
	Warn func(format string, args ...any)
}

// String describes m in steps and errors.
func (m Masq) String() string { return "masquerade of " + m.Owner.String() }

// Add masquerades packets from the addresses to destinations outside their prefixes, except
// multicast and m.Except, and pushes the undo.
//
// If another attachment owns the nftables element for the address, for example because that attachment
// was never deleted, Add takes the address over and warns. Del gives the address back.
func Add(u *undo.Stack, m Masq, ips []netip.Prefix) error {
	err := iptables.ByBackend(m.HostNS, m.Backend,
		func(c *nft.Conn) error { return m.store(c, ips).Add(u) },
		func() error { return addIPTables(u, m, ips) })
	if err != nil {
		return fmt.Errorf("masquerade: %w", err)
	}
	return nil
}

// Restore calls Add if Check finds that something is missing, for REPAIR.
func Restore(u *undo.Stack, m Masq, ips []netip.Prefix) error {
	if Check(m, ips) == nil {
		return nil
	}
	return Add(u, m, ips)
}

// Del deletes the masquerade of the addresses in all backends, and applies the caller's changes in the
// same transaction. If ips is empty, Del reads all elements and deletes the owner's. It returns no error
// if there is nothing to delete. If another attachment has taken an address over, Del keeps the element
// of that attachment.
func Del(m Masq, ips []netip.Prefix, changes ...nft.Change) error {
	return iptables.Delete(m.HostNS, "delete "+m.String(), []iptables.Cleanup{ownReference(m.Owner), ownCleanup(m.Owner, ips)},
		append([]nft.Change{func(c *nft.Conn, tx *nft.Tx) error {
			s := m.store(c, ips)
			deleted, err := s.Delete(tx)
			if err == nil && len(deleted) == 0 && len(ips) == 0 { // an ADD that was killed returned no addresses
				err = s.DeleteUnusedChains(tx)
			}
			return err
		}}, changes...)...)
}

// Check returns an error that lists the elements, chains or rules that are missing for the addresses.
func Check(m Masq, ips []netip.Prefix) error {
	c, err := nft.OpenIfSupported(m.HostNS)
	if err != nil {
		return err
	}
	nftErr := nft.ErrUnavailable
	if c != nil {
		store := m.store(c, ips)
		if nftErr = errors.Join(store.Check(), c.CheckChains(store.Layout)); nftErr == nil {
			return nil
		}
	}
	var errs, uncovered []error
	for _, f := range nft.Families() {
		familyIPs := filterFamily(f, ips)
		if len(familyIPs) == 0 {
			continue
		}
		uncoveredIPs, err := m.uncovered(c, f, familyIPs)
		errs = append(errs, err)
		for _, ip := range uncoveredIPs {
			uncovered = append(uncovered, missingRules(m, ip))
		}
	}
	if len(uncovered) > 0 && m.Backend != iptables.BackendIPTables {
		uncovered = []error{fmt.Errorf("%s is missing: %w", m, nftErr)}
	}
	return errors.Join(append(uncovered, errs...)...)
}

// GC deletes the masquerade of the network's attachments that are not in keep, and the network's chains
// to which nothing jumps anymore. It applies the changes of the caller in the same transaction.
func GC(host *ns.Handle, network string, keep types.Set, changes ...nft.Change) error {
	m := Masq{HostNS: host, Owner: types.Attachment{Network: network}}
	cleanups := []iptables.Cleanup{staleReference(network, keep), staleChains(network, keep)}
	return iptables.Delete(host, "delete stale masquerade of network "+network, cleanups,
		append([]nft.Change{func(c *nft.Conn, tx *nft.Tx) error {
			_, err := m.store(c, nil).GC(tx, network, keep)
			return err
		}}, changes...)...)
}

// Status returns an error with types.CodeNotAvailable if the kernel lacks a feature, or the host lacks a
// program, that the backend needs. It changes nothing.
func Status(host *ns.Handle, backend string) error {
	err := iptables.ByBackend(host, backend,
		func(c *nft.Conn) error {
			return c.CheckSupport(baseLayout().WithChains(subnetChain("status", netip.MustParsePrefix("192.0.2.0/24"), nil)))
		},
		iptables.Tool{HostNS: host, Family: nft.IPv4}.Find)
	if err != nil {
		return types.Errorf(types.CodeNotAvailable, "masquerade: %w", err)
	}
	return nil
}
