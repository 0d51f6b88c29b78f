package masq

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/pkg/iptables"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
)

// multicast returns the multicast prefix of a family. No rule masquerades packets to it.
func multicast(f nft.Family) string {
	if f == nft.IPv6 {
		return "ff00::/8"
	}
	return "224.0.0.0/4"
}

// addIPTables adds the masquerade rules for the addresses and pushes their removal to u. It
// runs iptables-restore once per family.
func addIPTables(u *undo.Stack, m Masq, ips []netip.Prefix) error {
	for _, f := range nft.Families() {
		var familyIPs []netip.Prefix
		for _, ip := range ips {
			if nft.FamilyOf(ip.Addr()) == f {
				familyIPs = append(familyIPs, ip)
			}
		}
		if len(familyIPs) == 0 {
			continue
		}
		if err := addFamily(iptables.Tool{HostNS: m.HostNS, Family: f}, m.Owner, familyIPs); err != nil {
			return err
		}
		u.Push("delete "+m.String(), func() error { return Del(m, familyIPs) })
	}
	return nil
}

// addFamily adds the masquerade rules for addresses of one family. The first script assumes that
// the container's chain does not exist. It exists if the container has another interface in the
// network, or if an earlier DEL failed. In that case iptables-restore refuses the script, and addFamily
// reads the table and runs a script that fits the existing rules.
func addFamily(tool iptables.Tool, owner types.Attachment, ips []netip.Prefix) error {
	description := fmt.Sprintf("add masquerade of %v", ips)
	err := tool.Restore(description, iptables.Script(iptables.NAT, addition(owner, ips, iptables.Table{})...))
	if !errors.Is(err, iptables.ErrRefused) {
		return err
	}
	return tool.Change(iptables.NAT, description, func(t iptables.Table) (string, error) {
		return iptables.Script(iptables.NAT, addition(owner, ips, t)...), nil
	})
}

// addition returns the lines that add the owner's rules to the table. They insert the ACCEPT rules at
// the head of the chain, before MASQUERADE. Otherwise, for a second subnet, packets that stay within
// that subnet would be masqueraded.
func addition(owner types.Attachment, ips []netip.Prefix, table iptables.Table) []string {
	name := chain(owner.Network, owner.ContainerID)
	text := iptables.Quote(comment(owner.Network, owner.ContainerID))
	var lines []string
	for _, r := range ownRules(table.Rules, owner, ips).Rules {
		lines = append(lines, r.Deletion())
	}
	if !table.HasChain(name) {
		lines = append(lines, "-N "+name)
	}
	for _, ip := range ips {
		lines = append(lines, fmt.Sprintf("-I %s 1 -s %s -d %s -m comment --comment %s -j ACCEPT",
			name, ip.Addr(), ip.Masked(), iptables.Quote(ownComment(owner))))
	}
	if !slices.ContainsFunc(table.Rules, func(r iptables.Rule) bool { return r.Chain == name && r.Jump == "MASQUERADE" }) {
		lines = append(lines, fmt.Sprintf("-A %s ! -d %s -m comment --comment %s -j MASQUERADE",
			name, multicast(nft.FamilyOf(ips[0].Addr())), text))
	}
	for _, ip := range ips {
		lines = append(lines, fmt.Sprintf("-A %s -s %s -m comment --comment %s -j %s", postrouting, ip.Addr(), text, name))
	}
	return lines
}

// uncovered returns the addresses that neither iptables rules nor the nftables rules of the
// reference plugin masquerade. Such rules exist on a host that was upgraded to plumb while
// containers ran. c is nil if the kernel lacks nf_tables.
func uncovered(c *nft.Conn, m Masq, ips []netip.Prefix) ([]netip.Prefix, error) {
	legacy, err := legacyRules(m.HostNS)
	var missing []netip.Prefix
	for _, ip := range ips {
		f := nft.FamilyOf(ip.Addr())
		covered := covers(legacy[f], m.Owner, ip)
		if !covered && c != nil {
			rules, rulesErr := iptables.ReadNFT(c, nft.Table{Family: f, Name: iptables.NAT}, ownChains(m.Owner)...)
			byReference, referenceErr := referenceCovers(c, m, ip)
			covered = byReference || covers(rules, m.Owner, ip)
			err = errors.Join(err, rulesErr, referenceErr)
		}
		if !covered {
			missing = append(missing, ip)
		}
	}
	return missing, err
}

// legacyRules returns the rules of the legacy tables nat.
func legacyRules(host *ns.Handle) (map[nft.Family][]iptables.Rule, error) {
	rules := map[nft.Family][]iptables.Rule{}
	var errs []error
	for _, f := range nft.Families() {
		tool, found, err := iptables.LegacyTool(host, f, iptables.NAT)
		if found {
			var saved string
			saved, err = tool.Save(iptables.NAT)
			rules[f] = iptables.Parse(saved).Rules
		}
		errs = append(errs, err)
	}
	return rules, errors.Join(errs...)
}

// missingRules returns the error of Check for an address that the iptables backend does not
// masquerade.
func missingRules(m Masq, ip netip.Prefix) error {
	return fmt.Errorf("%s for %s is missing: chain %s of table %s of %s, its rules, or the jump to it from %s do not exist",
		m, ip.Addr(), chain(m.Owner.Network, m.Owner.ContainerID), iptables.NAT, iptables.Name(nft.FamilyOf(ip.Addr())), postrouting)
}
