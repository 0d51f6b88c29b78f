package doctor

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A ruleset is what other programs have in nftables. The checks read it once.
type ruleset struct {
	conn   *nft.Conn
	chains []nft.ListedChain
	rules  map[string][]nft.ListedRule // see rulesFrom
}

// readRuleset reads the chains of all tables. There are none if the kernel lacks nftables.
func (h host) readRuleset() *ruleset {
	c, err := nft.Open(h.ns)
	var chains []nft.ListedChain
	if err == nil {
		chains, err = c.AllChains()
	}
	if !errors.Is(err, nft.ErrUnavailable) {
		h.report.failed("nftables", err)
	}
	return &ruleset{c, chains, map[string][]nft.ListedRule{}}
}

// findForwardDrop finds chains of other programs that drop all forwarded packets of a network by a rule that names only it, or
// at the hook Forward all packets that they do not accept, by their policy or a rule without conditions. It reports the latter for
// each network:
//   - to which the host routes,
//   - whose list does not contain the plugin firewall, or did not when one of its containers was attached, and
//   - whose packets no rule of the chain, or of a chain to which it jumps, may accept.
//
// With the plugin firewall, it reports that no rule accepts what other hosts send to host ports.
func (h host) findForwardDrop(s *state, files []*file, add addFunc) {
	for _, chain := range h.ruleset().chains {
		if !chain.IsAt(nft.Prerouting, nft.Forward, nft.Postrouting) || chain.Table.Name == "plumb" {
			continue
		}
		rules := h.rulesFrom(chain)
		for _, f := range usable(files) {
			if !slices.ContainsFunc(f.plugins, plugin.isRouted) || !f.isList() || !f.sees(chain.Table.Family) {
				continue
			}
			if f.addDroppingRule(chain, rules, add) || chain.Drop == "" {
				continue
			}
			input, output := bridgeOptions(chain.Table)
			accepts := func(r nft.ListedRule) bool {
				return !drops(r) && f.isSelected(r.Saddr, input, r) || h.accepts(r, f, input, output)
			}
			var old []string
			helps := slices.Contains(f.types(), "firewall") && chain.Table.Family != nft.Bridge
			if helps {
				old = s.addedWithout(f.name(), "firewall")
			}
			switch {
			case helps && len(old) == 0:
				if slices.Contains(f.types(), "portmap") {
					h.findClosedPorts(f, chain, rules, add)
				}
			case slices.ContainsFunc(rules, accepts):
			case !helps:
				f.addDrop(chain, add)
			default:
				add(onHost, say("Delete these pods or containers, and let the runtime create them again: %s.", strings.Join(old, ", ")),
					"table %s, chain %s drops packets of containers of network %q that were attached before its list contained the plugin firewall",
					chain.Table, chain.Name, f.name())
			}
		}
	}
}

// accepts reports whether a rule accepts all packets of a network in one direction, although it names neither its subnet nor only its
// bridge. own and other are the options for the network's bridge and for the interface on the other side.
func (h host) accepts(r nft.ListedRule, f *file, own, other string) bool {
	isBridge := func(name string) bool {
		prefix, wild := strings.CutSuffix(name, "+")
		return slices.ContainsFunc(f.plugins, func(p plugin) bool {
			return p.BridgeName() == name || wild && p.Type == "bridge" && strings.HasPrefix(p.BridgeName(), prefix)
		})
	}
	narrows := func(match string) bool {
		inner, isOwn := strings.CutPrefix(match, own)
		outer, isOther := strings.CutPrefix(match, other)
		except, isExcept := strings.CutPrefix(match, "! "+own)
		switch {
		case isOwn:
			return !isBridge(inner)
		case isOther:
			return !h.isUplink(outer)
		case isExcept:
			return isBridge(except)
		}
		return match != "nfproto" && match != "-m conntrack" && !strings.HasPrefix(match, "! "+other)
	}
	return r.Target == "ACCEPT" && !slices.ContainsFunc(r.Matches, narrows)
}

// isUplink reports whether the host has an interface with this name, through which it may reach other hosts. Other hosts are not
// behind a bridge of containers.
func (h host) isUplink(name string) bool {
	l, found := h.link(name)
	return found && l.Kind != "bridge"
}

// findClosedPorts finds chains of iptables that drop what other hosts send to host ports of a network with the plugin firewall, which
// accepts only connections that a container opens. A rule that names the network as destination accepts such packets, and any
// rule in the administrator's chain means that someone has decided what other hosts may send.
func (h host) findClosedPorts(f *file, c nft.ListedChain, rules []nft.ListedRule, add addFunc) {
	input, output := bridgeOptions(c.Table)
	accepts := func(r nft.ListedRule) bool {
		isNew := !r.Saddr.IsValid() && !slices.Contains(r.Matches, "-m conntrack --ctstate RELATED,ESTABLISHED")
		return r.Target == "ACCEPT" && isNew && f.isSelected(r.Daddr, output, r) || h.accepts(r, f, output, input)
	}
	admin := slices.IndexFunc(rules, func(r nft.ListedRule) bool { return r.Chain == "CNI-FORWARD" && r.Jump != "" && len(r.Matches) == 0 })
	decided := func(r nft.ListedRule) bool { return r.Chain == rules[admin].Jump && r.Target == "ACCEPT" }
	if admin < 0 || slices.ContainsFunc(rules, accepts) || slices.ContainsFunc(rules, decided) { // without CNI-FORWARD, the network has no containers
		return
	}
	program := map[nft.Family]string{nft.IPv4: "iptables", nft.IPv6: "ip6tables"}[c.Table.Family]
	for _, s := range f.subnets() {
		if nft.FamilyOf(s.Addr()) == c.Table.Family {
			fix := run(program, "-A", rules[admin].Jump, "-d", s.String(), "-m", "conntrack", "--ctstate", "DNAT", "-j", "ACCEPT")
			add(onHost, withAdvice(fix, "Run it again after each restart of the host."), "table %s, chain %s drops what other hosts send to host ports of network %q, because firewall accepts only connections that a container opens",
				c.Table, c.Name, f.name())
		}
	}
}

// rulesFrom returns the rules of a chain and of all chains to which its rules jump.
func (h host) rulesFrom(chain nft.ListedChain) []nft.ListedRule {
	r, key := h.ruleset(), chain.Table.String()+" "+chain.Name
	if all, found := r.rules[key]; found {
		return all
	}
	var all []nft.ListedRule
	names := []string{chain.Name}
	for i := 0; i < len(names); i++ {
		rules, err := r.conn.Rules(chain.Table, names[i])
		h.report.failed("rules of nftables", types.IgnoreNotExist(err))
		for _, rule := range rules {
			if all = append(all, rule); rule.Jump != "" && !slices.Contains(names, rule.Jump) {
				names = append(names, rule.Jump)
			}
		}
	}
	r.rules[key] = all
	return all
}

// sees reports whether chains of the family process packets of the network. It is true if no subnet of the network is
// known.
func (f *file) sees(family nft.Family) bool {
	subnets := f.subnets()
	same := func(s netip.Prefix) bool { return nft.FamilyOf(s.Addr()) == family }
	return len(subnets) == 0 || family == nft.Inet || slices.ContainsFunc(subnets, same) ||
		family == nft.Bridge && slices.Contains(f.types(), "bridge")
}

// addDrop adds the finding for a chain that drops the packets of a network. The plugin firewall can accept packets only in
// the chain FORWARD of iptables.
func (f *file) addDrop(c nft.ListedChain, add addFunc) {
	where, lacks, fix := onHost, "", say("Let the program that owns the chain accept packets from the subnet or the bridge, "+
		"and packets to it with ct state established,related or, for host ports, ct status dnat.")
	if c.Table.Family == nft.Bridge {
		fix = say("Let the program that owns the chain accept all frames between ports of the bridge, including ARP and IPv6 neighbor discovery.")
	}
	if c.Name == "FORWARD" && c.Table.Name == "filter" && c.Table.Family != nft.Inet {
		where, lacks = f.path, ", whose list does not contain the plugin firewall"
		fix = withAdvice(f.edit(`add {"type": "firewall"} to plugins, after the plugin that creates the interface`), "%s", f.untilReplaced(c.Table.Family))
	}
	drop := "its policy is drop"
	if c.Drop == nft.RuleDrop {
		drop = "its last rule drops all packets"
	}
	add(where, fix, "table %s, chain %s: %s, and no rule of it names the subnet or the bridge of network %q%s",
		c.Table, c.Name, drop, f.name(), lacks)
}

// untilReplaced returns the advice for the running containers of a network to whose list the plugin firewall must be added.
func (f *file) untilReplaced(family nft.Family) string {
	program := map[nft.Family]string{nft.IPv4: "iptables", nft.IPv6: "ip6tables"}[family]
	var commands []string
	for _, s := range f.subnets() {
		if nft.FamilyOf(s.Addr()) == family {
			commands = append(commands, types.Command(program, "-I", "FORWARD", "-s", s.String(), "-j", "ACCEPT"),
				types.Command(program, "-I", "FORWARD", "-d", s.String(), "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED,DNAT", "-j", "ACCEPT"))
		}
	}
	if commands == nil {
		return replaceContainers
	}
	return "Then replace the running containers, or until then let them through: " + strings.Join(commands, " && ")
}

// addDroppingRule adds a finding if, of the rules that name the network as source or as destination, the first one drops packets
// without another condition. It considers only rules that all packets of the chain reach, because a policy of isolation is a
// jump with conditions to such a rule.
func (f *file) addDroppingRule(c nft.ListedChain, rules []nft.ListedRule, add addFunc) (found bool) {
	t, reached := c.Table, map[string]bool{c.Name: true}
	for _, r := range rules {
		if reached[r.Chain] && len(r.Matches) == 0 {
			reached[r.Jump] = true
		}
	}
	rules = slices.DeleteFunc(slices.Clone(rules), func(r nft.ListedRule) bool { return !reached[r.Chain] })
	input, output := bridgeOptions(t)
	isFrom := func(r nft.ListedRule) bool { return f.isSelected(r.Saddr, input, r) }
	isTo := func(r nft.ListedRule) bool { return f.isSelected(r.Daddr, output, r) }
	for _, names := range []func(nft.ListedRule) bool{isFrom, isTo} {
		i := slices.IndexFunc(rules, names)
		if i < 0 || !drops(rules[i]) || len(slices.DeleteFunc(slices.Clone(rules[i].Matches), func(m string) bool { return m == "nfproto" })) > 1 {
			continue
		}
		found = true
		add(onHost, withAdvice(run("nft", "delete", "rule", t.Family.String(), t.Name, rules[i].Chain, "handle", fmt.Sprint(rules[i].Handle)),
			"If a program added the rule, it may add it again."),
			"table %s, chain %s contains a rule that drops all packets of network %q: %s", t, rules[i].Chain, f.name(), strings.Join(rules[i].Matches, " "))
	}
	return found
}

func drops(r nft.ListedRule) bool { return r.Target == "DROP" || r.Target == "REJECT" }

// bridgeOptions returns how nft.ListedRule.Matches names the bridge of packets from and to containers, in chains of the table.
func bridgeOptions(t nft.Table) (input, output string) {
	if t.Family == nft.Bridge {
		return "ibrname ", "obrname "
	}
	return "-i ", "-o "
}

// isSelected reports whether a rule selects packets by this prefix, which may be zero, that contains a subnet of the network, or
// by the network's bridge with the option.
func (f *file) isSelected(p netip.Prefix, option string, r nft.ListedRule) bool {
	return slices.ContainsFunc(f.subnets(), func(s netip.Prefix) bool { return contains(p, s) }) ||
		slices.ContainsFunc(f.plugins, func(p plugin) bool { return slices.Contains(r.Matches, option+p.BridgeName()) })
}

// contains reports whether the prefix, which may be zero, contains a subnet.
func contains(p, subnet netip.Prefix) bool { return p.Bits() <= subnet.Bits() && p.Overlaps(subnet) }
