package node

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A SharedChain is a chain in a table of plumb that the attachments of a network share.
type SharedChain struct {
	Name, Table string
	InUse       bool   // whether a rule or an element jumps to the chain
	Remove      string // the command that deletes the chain, which fails while it is in use
}

// IsOf reports whether the attachments of the network share the chain.
func (s SharedChain) IsOf(network string) bool {
	_, name, _ := strings.Cut(s.Name, "/")
	return strings.HasPrefix("/"+name, nft.NetworkChain("", network, ""))
}

// SharedChains returns the shared chains of all networks. A rule of a chain jumps only to a later one. There are none if the
// kernel lacks nftables.
func SharedChains() (all []SharedChain, err error) {
	h, err := ns.Self(nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	c, err := nft.OpenIfSupported(h)
	if c == nil || err != nil {
		return nil, err
	}
	for _, l := range tables.All() {
		chains, err := c.Chains(l.Table)
		if types.IgnoreNotExist(err) != nil {
			return nil, err
		}
		for _, ch := range chains {
			if !strings.Contains(ch.Name, "/") { // see nft.NetworkChain
				continue
			}
			rules, err := c.Rules(l.Table, ch.Name)
			uses, useErr := c.ChainUse(l.Table, ch.Name)
			if err := types.IgnoreNotExist(errors.Join(err, useErr)); err != nil {
				return nil, err
			}
			all = append(all, SharedChain{
				Name: ch.Name, Table: l.Table.String(), InUse: uses > len(rules),
				Remove: "nft " + types.Command("delete", "chain", l.Table.Family.String(), l.Table.Name, ch.Name),
			})
		}
	}
	slices.SortFunc(all, func(x, y SharedChain) int { return cmp.Compare(x.Name, y.Name) }) // conditions/… jumps to setmark/…
	return all, nil
}
