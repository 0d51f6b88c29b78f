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

// SharedChains returns the commands that delete the chains that the attachments of a network share in plumb's tables. They work
// in this order, when no element jumps to the chains any more. There are none if the kernel lacks nftables.
func SharedChains(network string) (commands []string, err error) {
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
		slices.SortFunc(chains, func(x, y nft.ListedChain) int { return cmp.Compare(x.Name, y.Name) }) // conditions/… jumps to setmark/…
		for _, ch := range chains {
			_, name, _ := strings.Cut(ch.Name, "/") // after the kind
			if strings.HasPrefix("/"+name, nft.NetworkChain("", network, "")) {
				commands = append(commands, types.Command("nft", "delete", "chain", l.Table.Family.String(), l.Table.Name, ch.Name))
			}
		}
	}
	return commands, nil
}
