package masq

import (
	"net/netip"
	"strings"

	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/types"
)

// The reference's nftables backend keeps a rule an address in one chain:
//
//	ip saddr 10.88.0.2 ip daddr != 10.88.0.0/16 masquerade comment "<network>-<attachment>, net: …"
//
// with 16 hex digits for each of the two.
func referenceTable() nft.Table {
	return nft.Table{Family: nft.Inet, Name: "cni_plugins_masquerade"}
}

const referenceChain = "masq_checks"

// referenceNetwork is what the comments of the network's rules begin with.
func referenceNetwork(network string) string { return digest(network)[:16] + "-" }

// referenceOwner is what the comments of the attachment's rules begin with.
func referenceOwner(a types.Attachment) string {
	return referenceNetwork(a.Network) + digest(a.IfName + ":" + a.ContainerID)[:16]
}

func delReference(c *nft.Conn, tx *nft.Tx, m Masq) error {
	owner := referenceOwner(m.Owner)
	return delReferenceWhere(c, tx, func(comment string) bool { return strings.HasPrefix(comment, owner) })
}

func gcReference(c *nft.Conn, tx *nft.Tx, network string, keep types.Set) error {
	prefix := referenceNetwork(network)
	kept := map[string]bool{}
	for a := range keep {
		kept[referenceOwner(a)] = true
	}
	return delReferenceWhere(c, tx, func(comment string) bool {
		owner, _, _ := strings.Cut(comment, ",")
		return strings.HasPrefix(comment, prefix) && !kept[owner]
	})
}

func delReferenceWhere(c *nft.Conn, tx *nft.Tx, stale func(comment string) bool) error {
	rules, err := c.Rules(referenceTable(), referenceChain)
	for _, r := range rules {
		if stale(r.Comment) {
			tx.DelRule(referenceTable(), r)
		}
	}
	return err
}

// referenceCovers reports whether the reference masquerades the address.
func referenceCovers(c *nft.Conn, m Masq, ip netip.Prefix) (bool, error) {
	rules, err := c.Rules(referenceTable(), referenceChain)
	for _, r := range rules {
		if strings.HasPrefix(r.Comment, referenceOwner(m.Owner)) && r.Saddr.IsValid() && r.Saddr.Contains(ip.Addr()) {
			return true, nil
		}
	}
	return false, err
}
