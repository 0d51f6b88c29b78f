package nft

import (
	"fmt"
	"io/fs"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/sys/unix"
)

// A ListedChain is a chain that any program may have created.
type ListedChain struct {
	Table    Table
	Name     string
	At       *HookPoint // the hook of a base chain, or nil
	Priority int32      // the priority of a base chain
	Drop     DropReason
	Discards bool // whether the chain is a base chain at any hook whose policy is drop
}

// IsAt reports whether the chain is a base chain at one of the hooks.
func (c ListedChain) IsAt(hooks ...HookPoint) bool {
	return c.At != nil && slices.Contains(hooks, *c.At)
}

// A DropReason says how a chain at the hook Forward drops all packets that it does not accept. It is empty if the chain does not.
type DropReason string

// The reasons.
const (
	PolicyDrop DropReason = "policy drop"
	RuleDrop   DropReason = "last rule" // a rule without conditions that drops or rejects packets; later rules have no effect
)

// Chains lists the chains of a table.
func (c *Conn) Chains(t Table) ([]ListedChain, error) {
	return list(c, "list chains", func() ([]ListedChain, error) { return c.listChains(t) })
}

// AllChains lists the chains of all tables that see IPv4 or IPv6 packets, or frames of bridges. Only AllChains finds a RuleDrop, for which it
// reads the rules of the chains at the hook Forward.
func (c *Conn) AllChains() ([]ListedChain, error) {
	return list(c, "list chains", func() ([]ListedChain, error) {
		chains, err := c.listChains(Table{})
		for i, ch := range chains {
			if err != nil || !ch.IsAt(Forward) || ch.Drop != "" {
				continue
			}
			var drops bool
			drops, err = DropsAll(ch.Name, func(chain string) ([]ListedRule, error) { return c.chainRules(ch.Table, chain) })
			if drops {
				chains[i].Drop = RuleDrop
			}
		}
		return chains, err
	})
}

// DropsAll reports whether a rule without conditions of the chain, or of a chain to which such a rule jumps, drops or rejects
// packets. It ignores rules after one that ends the chain for all packets.
func DropsAll(chain string, rulesOf func(chain string) ([]ListedRule, error)) (bool, error) {
	seen := map[string]bool{}
	var search func(chain string) (bool, error)
	search = func(chain string) (drops bool, err error) {
		seen[chain] = true
		rules, err := rulesOf(chain)
		if err != nil {
			return false, types.IgnoreNotExist(err)
		}
		for _, r := range rules {
			switch {
			case len(r.Matches) > 0:
			case r.Target == "DROP" || r.Target == "REJECT":
				return true, nil
			case r.Target == "ACCEPT" || r.Target == "RETURN":
				return false, nil
			case r.Jump != "" && !seen[r.Jump]:
				if drops, err = search(r.Jump); drops || err != nil {
					return drops, err
				}
			}
		}
		return false, nil
	}
	return search(chain)
}

// listChains lists chains like Chains, but is not a step of the tracer.
func (c *Conn) listChains(t Table) (chains []ListedChain, err error) {
	listed, err := c.nft.ListChainsOfTableFamily(nftables.TableFamily(t.Family))
	for _, ch := range listed { // the kernel lists the chains of all tables of the family
		table := Table{Family(ch.Table.Family), ch.Table.Name}
		if table != t && (t != Table{} || !slices.Contains([]Family{Inet, IPv4, IPv6, Bridge}, table.Family)) {
			continue
		}
		listed := ListedChain{Table: table, Name: ch.Name, At: (*HookPoint)(ch.Hooknum)}
		if ch.Priority != nil {
			listed.Priority = int32(*ch.Priority)
		}
		listed.Discards = ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop
		if listed.IsAt(Forward) && listed.Discards {
			listed.Drop = PolicyDrop
		}
		chains = append(chains, listed)
	}
	return chains, err
}

// CheckChain returns nil if the chain exists. If the chain does not exist, the error matches
// fs.ErrNotExist.
func (c *Conn) CheckChain(t Table, chain string) error {
	_, err := c.ChainUse(t, chain)
	return err
}

// ChainUse returns the kernel's use count of a chain, which is the number of its rules plus the number
// of rules and elements that jump to it. If the chain does not exist, the error matches fs.ErrNotExist.
func (c *Conn) ChainUse(t Table, chain string) (count int, err error) {
	what := "get chain " + chain + " of table " + t.String()
	if len(chain) >= unix.NFT_CHAIN_MAXNAMELEN {
		return 0, fmt.Errorf("%s: %w: the name is too long", what, fs.ErrNotExist)
	}
	// nftables.Conn.ListChain does not return the count.
	attributes, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_CHAIN_TABLE, Data: []byte(t.Name + "\x00")}, {Type: unix.NFTA_CHAIN_NAME, Data: []byte(chain + "\x00")},
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	err = c.step("nft "+what, func() error {
		answers, err := c.socket.Execute(newRequest(t, netlink.Header{Type: unix.NFT_MSG_GETCHAIN}, attributes))
		for _, answer := range answers {
			err = eachAttribute(answer, func(ad *netlink.AttributeDecoder) {
				if ad.Type() == unix.NFTA_CHAIN_USE {
					count = int(ad.Uint32())
				}
			})
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	return count, nil
}
