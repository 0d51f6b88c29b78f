package nft

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Forward is the hook of packets that the node passes from one interface to another. In the
// bridge family it is the hook of frames that a bridge passes from one port to another; the
// number is the same (NF_BR_FORWARD).
const Forward HookPoint = unix.NF_INET_FORWARD

// OifName is the name of the interface that the packet leaves by.
func OifName() Field {
	return Field{dataType: IfName, load: func(r uint32) expr.Any { return meta(expr.MetaKeyOIFNAME, r) }}
}

// Reply matches packets of the direction that answers the first packet of a connection.
func Reply() Part {
	const reply = 1 // IP_CT_DIR_REPLY of linux/netfilter/nf_conntrack_tuple_common.h
	return partOf(&expr.Ct{Register: unix.NFT_REG_1, Key: expr.CtKeyDIRECTION}, equal([]byte{reply}))
}

// A ListedChain is a chain that somebody made, and what it does with forwarded packets.
type ListedChain struct {
	Table   Table
	Name    string
	Forward bool // a base chain at the hook Forward
	Drops   bool // its policy is drop
}

// AllChains lists the chains of all tables that see IPv4 or IPv6 packets.
func (c *Conn) AllChains() (all []ListedChain, err error) {
	err = c.step("nft list chains", func() error {
		return c.listConsistently(func() error {
			chains, err := c.nft.ListChains()
			all = nil
			for _, ch := range chains {
				if f := Family(ch.Table.Family); f == Inet || f == IPv4 || f == IPv6 {
					all = append(all, listed(ch))
				}
			}
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	return all, nil
}

func listed(ch *nftables.Chain) ListedChain {
	return ListedChain{
		Table:   Table{Family(ch.Table.Family), ch.Table.Name},
		Name:    ch.Name,
		Forward: ch.Hooknum != nil && *ch.Hooknum == *nftables.ChainHookForward,
		Drops:   ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop,
	}
}
