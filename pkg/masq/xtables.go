package masq

import (
	"cmp"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/types"
)

// This file knows the form that iptables rules for masquerade have, the reference's
// and ours, wherever they are: in nf_tables, read by netlink, or in the older
// tables, read by iptables-legacy-save (iptables.go). The reference's (v4):
//
//	-A POSTROUTING -s 10.88.0.2/32 <comment> -j CNI-<hash>
//	-A CNI-<hash> -d 10.88.0.0/16 <comment> -j ACCEPT
//	-A CNI-<hash> ! -d 224.0.0.0/4 <comment> -j MASQUERADE
//
// Hash and comment are of network and container alone: the interfaces of a container
// share the chain. Ours differ in that all ACCEPT come before MASQUERADE, and in that
// an ACCEPT names the address (-s), and in its comment the interface. So an interface
// is deleted without its sisters, and the reference can still delete all of it.

const (
	natTable    = "nat"
	postrouting = "POSTROUTING"
)

func digest(s string) string {
	sum := sha512.Sum512([]byte(s))
	return hex.EncodeToString(sum[:])
}

// chain is the name of the container's chain.
func chain(network, containerID string) string {
	return "CNI-" + digest(network + containerID)[:24]
}

// comment is the text on the rules of a container.
func comment(network, containerID string) string {
	return fit(fmt.Sprintf("name: %q id: %q", network, containerID))
}

// ownComment is the text on our rules that are for one interface of it.
func ownComment(a types.Attachment) string {
	return fit(comment(a.Network, a.ContainerID) + fmt.Sprintf(" if: %q", a.IfName))
}

// fit cuts a comment to what iptables takes (XT_MAX_COMMENT_LEN less its NUL).
func fit(s string) string { return s[:min(len(s), 255)] }

// A rule is what matters of a rule, and where it came from: exactly one of found and
// line is set.
type rule struct {
	chain   string
	comment string
	jump    string // the chain it leads to, or its target
	saddr   netip.Prefix
	found   nft.ListedRule
	line    string
}

// stale picks, of a container's jumps and the rules of its chain, those of the
// owner; all tells that nothing is left for others and the chain is to go too.
//
// A jump is the owner's when its source is one of the addresses or is in a rule of
// ours for the interface. A jump that nobody claims, which only the reference makes,
// is the owner's when no addresses are known.
func stale(rules []rule, owner types.Attachment, ips []netip.Prefix) (own []rule, all bool) {
	name := chain(owner.Network, owner.ContainerID)
	mine, others := map[netip.Prefix]bool{}, map[netip.Prefix]bool{}
	for _, ip := range ips {
		mine[netip.PrefixFrom(ip.Addr(), ip.Addr().BitLen())] = true
		mine[ip.Masked()] = true // the form of the reference's early releases
	}
	prefix := comment(owner.Network, owner.ContainerID) + " if: "
	for _, r := range rules {
		switch {
		case r.chain != name || !r.saddr.IsValid():
		case r.comment == ownComment(owner):
			mine[r.saddr] = true
			own = append(own, r)
		case strings.HasPrefix(r.comment, prefix):
			others[r.saddr] = true
		}
	}
	jumps := 0
	for _, r := range rules {
		if r.jump != name {
			continue
		}
		jumps++
		if mine[r.saddr] && !others[r.saddr] || len(ips) == 0 && !others[r.saddr] {
			own = append(own, r)
			jumps--
		}
	}
	return own, jumps == 0
}

// covers reports whether the container's rules masquerade the address, but for what
// it sends to its own subnet.
func covers(rules []rule, owner types.Attachment, ip netip.Prefix) bool {
	name := chain(owner.Network, owner.ContainerID)
	meets := func(chain, jump string) bool {
		return slices.ContainsFunc(rules, func(r rule) bool {
			return r.chain == chain && r.jump == jump && (!r.saddr.IsValid() || r.saddr.Contains(ip.Addr()))
		})
	}
	return meets(postrouting, name) && meets(name, "ACCEPT") && meets(name, "MASQUERADE")
}

// staleChains names the chains of containers in the network of which nothing is to be
// kept, by the comments of the rules in them and of the jumps to them.
func staleChains(rules []rule, network string, keep types.Set) map[string]bool {
	kept, names := map[string]bool{}, map[string]bool{}
	for a := range keep {
		kept[chain(a.Network, a.ContainerID)] = true
	}
	for _, r := range rules {
		id, ok := containerOf(r.comment, network)
		if name := chain(network, id); ok && !kept[name] && (r.chain == name || r.jump == name) {
			names[name] = true
		}
	}
	return names
}

// containerOf reads the container ID out of a comment of the network.
func containerOf(text, network string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(text, fmt.Sprintf("name: %q id: \"", network))
	if !ok {
		return "", false
	}
	id, _, ok = strings.Cut(rest, `"`)
	return id, ok
}

// delXTables deletes what an iptables left in nf_tables for the owner. That there is
// nothing costs one look by the chain's name.
func delXTables(c *nft.Conn, tx *nft.Tx, m Masq, ips []netip.Prefix) error {
	for _, f := range families() {
		tab := nft.Table{Family: f, Name: natTable}
		rules, err := containerRules(c, tab, m.Owner)
		if err != nil {
			return err
		}
		if rules == nil {
			continue
		}
		own, all := stale(rules, m.Owner, ips)
		for _, r := range own {
			tx.DelRule(tab, r.found)
		}
		if all {
			tx.DelChain(tab, chain(m.Owner.Network, m.Owner.ContainerID))
		}
	}
	return nil
}

// containerRules reads a container's jumps and chain; nil: it has no chain.
func containerRules(c *nft.Conn, tab nft.Table, owner types.Attachment) ([]rule, error) {
	name := chain(owner.Network, owner.ContainerID)
	if err := c.HasChain(tab, name); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	rules := []rule{}
	for _, at := range []string{postrouting, name} {
		found, err := c.Rules(tab, at)
		if err != nil {
			return nil, err
		}
		for _, r := range found {
			rules = append(rules, rule{chain: r.Chain, comment: r.Comment, jump: cmp.Or(r.Jump, r.Target), saddr: r.Saddr, found: r})
		}
	}
	return rules, nil
}

// gcXTables is delXTables for all of a network that is not to be kept.
func gcXTables(c *nft.Conn, tx *nft.Tx, network string, keep types.Set) error {
	for _, f := range families() {
		tab := nft.Table{Family: f, Name: natTable}
		found, err := c.Rules(tab, "")
		if err != nil {
			return err
		}
		rules := make([]rule, 0, len(found))
		for _, r := range found {
			rules = append(rules, rule{chain: r.Chain, comment: r.Comment, jump: r.Jump, found: r})
		}
		names := staleChains(rules, network, keep)
		for _, r := range rules {
			if names[r.jump] {
				tx.DelRule(tab, r.found)
			}
		}
		for name := range names {
			tx.DelChain(tab, name)
		}
	}
	return nil
}
