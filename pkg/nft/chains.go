package nft

import (
	"fmt"
	"io/fs"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A ListedChain is a chain that any program may have created.
type ListedChain struct {
	Table Table
	Name  string
	Drops bool // whether the chain is a base chain at the hook Forward with the policy drop
}

// Chains lists the chains of a table or, if t is the zero Table, the chains of all tables that see IPv4
// or IPv6 packets.
func (c *Conn) Chains(t Table) ([]ListedChain, error) {
	return list(c, "list chains", func() ([]ListedChain, error) { return c.listChains(t) })
}

// listChains lists chains like Chains, but is not a step of the tracer.
func (c *Conn) listChains(t Table) (chains []ListedChain, err error) {
	listed, err := c.nft.ListChainsOfTableFamily(nftables.TableFamily(t.Family))
	for _, ch := range listed { // the kernel lists the chains of all tables of the family
		table := Table{Family(ch.Table.Family), ch.Table.Name}
		if table != t && (t != Table{} || !slices.Contains([]Family{Inet, IPv4, IPv6}, table.Family)) {
			continue
		}
		drops := ch.Hooknum != nil && HookPoint(*ch.Hooknum) == Forward && ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop
		chains = append(chains, ListedChain{table, ch.Name, drops})
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
