package masq

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
)

// multicast returns the multicast prefix of a family. No rule masquerades packets to it.
func multicast(f nft.Family) string {
	if f == nft.IPv6 {
		return "ff00::/8"
	}
	return "224.0.0.0/4"
}

// addIPTables pushes the removal of the masquerade rules for the addresses to u, and then adds them, because a program
// that fails may have applied its changes. It runs iptables-restore once per family.
func addIPTables(u *undo.Stack, m Masq, ips []netip.Prefix) error {
	u.Push("delete "+m.String(), func() error { return Del(m, ips) })
	for _, f := range nft.Families() {
		familyIPs := filterFamily(f, ips)
		if len(familyIPs) == 0 {
			continue
		}
		if err := m.addFamily(iptables.Tool{HostNS: m.HostNS, Family: f}, familyIPs); err != nil {
			return err
		}
	}
	return nil
}

// addFamily adds the masquerade rules for addresses of one family. The first script assumes that
// the container's chain does not exist. It exists if the container has another interface in the
// network, or if an earlier DEL failed. In that case iptables-restore refuses the script, and addFamily
// reads the table and runs a script that fits the existing rules.
func (m Masq) addFamily(tool iptables.Tool, ips []netip.Prefix) error {
	description := fmt.Sprintf("add masquerade of %v", ips)
	err := tool.Restore(description, iptables.Script(iptables.NAT, m.addition(ips, iptables.Table{})...))
	if !errors.Is(err, iptables.ErrRefused) {
		return err
	}
	return tool.Change(iptables.Part{Table: iptables.NAT, Chains: ownChains(m.Owner)}, description, func(t iptables.Table) (string, error) {
		return iptables.Script(iptables.NAT, m.addition(ips, t)...), nil
	})
}

// addition returns the lines that add the owner's rules to the table. They insert the ACCEPT rules at
// the head of the chain, before MASQUERADE. Otherwise, for a second subnet, packets that stay within
// that subnet would be masqueraded.
func (m Masq) addition(ips []netip.Prefix, table iptables.Table) []string {
	name := chain(m.Owner)
	text := iptables.Quote(comment(m.Owner))
	f := nft.FamilyOf(ips[0].Addr())
	lines := append(iptables.Deletions(ownRules(table.Rules, m.Owner, ips).Rules), table.NewChains(name)...)
	for _, ip := range ips {
		for _, destination := range append(m.exceptOf(ip), ip.Masked()) {
			lines = append(lines, fmt.Sprintf("-I %s 1 -s %s -d %s -m comment --comment %s -j ACCEPT",
				name, ip.Addr(), destination, iptables.Quote(ownComment(m.Owner))))
		}
	}
	if !slices.ContainsFunc(table.Rules, func(r iptables.Rule) bool { return r.Chain == name && r.Jump == "MASQUERADE" }) {
		lines = append(lines, fmt.Sprintf("-A %s ! -d %s -m comment --comment %s -j MASQUERADE",
			name, multicast(f), text))
	}
	for _, ip := range ips {
		lines = append(lines, fmt.Sprintf("-A %s -s %s -m comment --comment %s -j %s", postrouting, ip.Addr(), text, name))
	}
	return lines
}

// uncovered returns the addresses that neither iptables rules nor the nftables rules of the reference plugin
// masquerade. Such rules exist on a host that was upgraded to plumb while containers ran. All addresses are in the
// family f. c is nil if the kernel lacks nftables.
func (m Masq) uncovered(c *nft.Conn, f nft.Family, ips []netip.Prefix) (missing []netip.Prefix, err error) {
	rules, legacy, err := iptables.ReadAll(m.HostNS, c, nft.Table{Family: f, Name: iptables.NAT}, ownChains(m.Owner)...)
	missing = slices.DeleteFunc(slices.Clone(ips), func(ip netip.Prefix) bool { return m.covers(rules, ip) || m.covers(legacy, ip) })
	if len(missing) == 0 || c == nil {
		return missing, err
	}
	reference, referenceErr := iptables.ReadNFT(c, referenceTable(), referenceChain)
	prefix := referenceOwner(m.Owner)
	missing = slices.DeleteFunc(missing, func(ip netip.Prefix) bool {
		return len(m.exceptOf(ip)) == 0 && slices.ContainsFunc(reference, func(r iptables.Rule) bool {
			return strings.HasPrefix(r.Comment, prefix) && r.Source.Contains(ip.Addr())
		})
	})
	return missing, errors.Join(err, referenceErr)
}

// exceptOf returns the prefixes of m.Except of the address's family, without the address's own subnet.
func (m Masq) exceptOf(ip netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(filterFamily(nft.FamilyOf(ip.Addr()), m.Except), func(p netip.Prefix) bool { return p == ip.Masked() })
}

func filterFamily(f nft.Family, ips []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(ips), func(ip netip.Prefix) bool { return nft.FamilyOf(ip.Addr()) != f })
}

// missingRules returns the error of Check for an address that the iptables backend does not
// masquerade.
func missingRules(m Masq, ip netip.Prefix) error {
	name, tool := chain(m.Owner), iptables.Tool{Family: nft.FamilyOf(ip.Addr())}
	return fmt.Errorf("%s for %s is missing: chain %s of table %s of %s, its rules, or the jump to it from %s do not exist",
		m, ip.Addr(), name, iptables.NAT, tool.Name(), postrouting)
}
