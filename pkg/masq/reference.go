package masq

import (
	"crypto/sha512"
	"encoding/hex"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// referenceTable returns the table of the reference plugins' nftables backend, which adds one rule
// per address to one chain:
//
//	ip saddr 10.88.0.2 ip daddr != 10.88.0.0/16 masquerade comment "<network>-<attachment>, net: …"
//
// Network and attachment are hashes of 16 hexadecimal digits.
func referenceTable() nft.Table {
	return nft.Table{Family: nft.Inet, Name: "cni_plugins_masquerade"}
}

const referenceChain = "masq_checks"

func digest(s string) string {
	sum := sha512.Sum512([]byte(s))
	return hex.EncodeToString(sum[:8])
}

// referenceNetwork returns the prefix of the comments of the network's rules.
func referenceNetwork(network string) string { return digest(network) + "-" }

// referenceOwner returns the prefix of the comments of the attachment's rules.
func referenceOwner(a types.Attachment) string {
	return referenceNetwork(a.Network) + digest(a.IfName+":"+a.ContainerID)
}

// ownReference returns the Cleanup for the reference plugin's rules for the owner.
func ownReference(owner types.Attachment) iptables.Cleanup {
	prefix := referenceOwner(owner)
	return referenceCleanup(func(r iptables.Rule) bool { return strings.HasPrefix(r.Comment, prefix) })
}

// staleReference returns the Cleanup for the reference plugin's rules for attachments of the
// network that are not in keep.
func staleReference(network string, keep types.Set) iptables.Cleanup {
	prefix := referenceNetwork(network)
	kept := map[string]bool{}
	for a := range keep {
		kept[referenceOwner(a)] = true
	}
	return referenceCleanup(func(r iptables.Rule) bool {
		owner, _, _ := strings.Cut(r.Comment, ",")
		return strings.HasPrefix(owner, prefix) && !kept[owner]
	})
}

func referenceCleanup(match func(r iptables.Rule) bool) iptables.Cleanup {
	return iptables.Cleanup{
		Tables: []nft.Table{referenceTable()},
		Chains: []string{referenceChain},
		Select: func(rules []iptables.Rule) iptables.Selection {
			return iptables.Selection{Rules: iptables.Where(rules, match)}
		},
	}
}
