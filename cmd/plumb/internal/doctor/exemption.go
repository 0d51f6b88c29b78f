package doctor

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// An exemption is a rule of an administrator or another program that ends table nat of iptables for packets, so that no later
// rule of the table masquerades them. The nftables rules of ipMasq are in another table, which the rule does not end.
type exemption struct {
	family nft.Family
	rule   iptables.Rule
}

func (e exemption) String() string {
	text := "-A " + e.rule.Chain
	if e.rule.Source.IsValid() {
		text += " -s " + e.rule.Source.String()
	}
	if e.rule.Destination.IsValid() {
		text += " -d " + e.rule.Destination.String()
	}
	return fmt.Sprintf("%s … -j %s of %s", text, e.rule.Jump, iptables.Tool{Family: e.family}.Name())
}

// findExemptions finds exemptions from masquerading that have no effect on networks whose ipMasq uses nftables.
func (h host) findExemptions(files []*file, add addFunc) {
	if !slices.ContainsFunc(pluginsOf(usable(files)), plugin.masqueradesByNFT) {
		return
	}
	all, err := exemptions(h.ns)
	h.report.failed("rules of iptables", err)
	for _, e := range all {
		for _, p := range pluginsOf(usable(files)) {
			if i := slices.IndexFunc(p.subnets(), func(s netip.Prefix) bool { return p.masqueradesByNFT() && e.exempts(s, p.IPMasqExcept) }); i >= 0 {
				add(p.where("ipMasq"), withAdvice(p.file.edit(`set "ipMasqBackend": "iptables", or list the destinations in "ipMasqExcept"`), replaceContainers),
					"the rule %s exempts packets of %s in network %q from rules of iptables only, and ipMasq masquerades them with nftables",
					e, p.subnets()[i], p.file.name())
			}
		}
	}
}

// masqueradesByNFT reports whether the plugin masquerades with nftables.
func (p plugin) masqueradesByNFT() bool {
	return (p.Type == "bridge" || p.Type == "ptp") && p.IPMasq && p.IPMasqBackend != iptables.BackendIPTables
}

// exempts reports whether the rule exempts packets from the subnet that ipMasq masquerades: to a destination outside of the
// subnet, of the excepted prefixes and of multicast.
func (e exemption) exempts(subnet netip.Prefix, except []string) bool {
	from, to := e.rule.Source, e.rule.Destination
	isIn := func(text string) bool {
		p, err := types.ParseCIDR(text)
		return err == nil && p.Bits() <= to.Bits() && p.Contains(to.Addr())
	}
	return nft.FamilyOf(subnet.Addr()) == e.family && (!from.IsValid() || from.Overlaps(subnet)) &&
		(!to.IsValid() || !to.Addr().IsMulticast() && !isIn(subnet.String()) && !slices.ContainsFunc(except, isIn))
}

// exemptions returns the exemptions of the host. It runs a program only for a legacy table. Without nftables, ipMasq uses
// iptables, and there are none.
func exemptions(host *ns.Handle) (all []exemption, err error) {
	c, err := nft.OpenIfSupported(host)
	if c == nil || err != nil {
		return nil, err
	}
	for _, f := range nft.Families() {
		rules := func(chain string) ([]iptables.Rule, error) {
			return iptables.ReadNFT(c, nft.Table{Family: f, Name: iptables.NAT}, chain)
		}
		tool, found, legacyErr := iptables.LegacyTool(host, f, iptables.NAT)
		var legacy iptables.Table
		if found {
			legacy, legacyErr = tool.Read(iptables.Part{Table: iptables.NAT, Chains: []string{"POSTROUTING"}, Follow: leadsOn})
		}
		legacyRules := func(chain string) ([]iptables.Rule, error) {
			return iptables.Where(legacy.Rules, func(r iptables.Rule) bool { return r.Chain == chain }), nil
		}
		err = errors.Join(err, legacyErr)
		for _, read := range []func(string) ([]iptables.Rule, error){rules, legacyRules} {
			found, readErr := exemptionsIn(read)
			err = errors.Join(err, readErr)
			for _, r := range found {
				all = append(all, exemption{f, r})
			}
		}
	}
	return all, err
}

// exemptionsIn returns the rules in POSTROUTING, and in the chains to which it jumps, that end the table for packets. A RETURN
// ends it only in POSTROUTING. The chains of the CNI project's plugins belong to single containers.
func exemptionsIn(rulesOf func(chain string) ([]iptables.Rule, error)) (found []iptables.Rule, err error) {
	chains := []string{"POSTROUTING"}
	for i := 0; i < len(chains); i++ {
		rules, err := rulesOf(chains[i])
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			switch {
			case r.Jump == "ACCEPT" || r.Jump == "RETURN" && i == 0:
				found = append(found, r)
			case leadsOn(r) && !slices.Contains(chains, r.Jump):
				chains = append(chains, r.Jump)
			}
		}
	}
	return found, nil
}

// leadsOn reports whether the rule can jump to a chain of an administrator or another program.
func leadsOn(r iptables.Rule) bool { return r.Jump != "" && !strings.HasPrefix(r.Jump, "CNI-") }

// MasqueradeExemptions returns the findings of the check masq-exemption for the configurations in the directories.
func MasqueradeExemptions(confDirs []string) (found []Finding, err error) {
	self, err := ns.Self(nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = self.Close() }()
	o := Options{Places: node.Places{ConfDirs: confDirs}}
	files, err := o.readFiles()
	if err != nil {
		return nil, types.IgnoreNotExist(err)
	}
	r := &Report{}
	host{ns: self, report: r}.findExemptions(files, addTo(&found, "masq-exemption"))
	if len(r.Errors) > 0 {
		err = errors.New(strings.Join(r.Errors, "; "))
	}
	return found, err
}
