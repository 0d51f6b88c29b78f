package nft

import (
	"encoding/hex"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// The maximum lengths of the parts of an owner's comment, in bytes. The parts and two slashes add up
// to maxComment.
const (
	maxComment   = 128 // the longest comment that nft can list (NFTNL_UDATA_COMMENT_MAXLEN), although the kernel accepts 255 bytes
	maxNetwork   = 47
	maxContainer = 64
	maxIfName    = 15
)

// Owner returns the comment for elements that the attachment owns:
// "<network>/<container>/<ifname>".
//
// Owner shortens a part that is longer than its limit (47, 64 or 15 bytes), or contains a character
// that cannot be in a comment, to its first characters, a tilde and a hash. A tilde in a name counts
// as such a character. Therefore the comments of two attachments differ, and the comment alone
// determines the network.
func Owner(a types.Attachment) string {
	return NetworkPrefix(a.Network) + shorten(a.ContainerID, maxContainer) + "/" + shorten(a.IfName, maxIfName)
}

// NetworkPrefix returns the prefix of the comments of all owners in the network.
func NetworkPrefix(network string) string { return shorten(network, maxNetwork) + "/" }

// StaleOwner returns a function that reports whether a comment names an owner in the network that is not in keep.
func StaleOwner(network string, keep types.Set) func(comment string) bool {
	kept := map[string]bool{}
	for a := range keep {
		kept[Owner(a)] = true
	}
	prefix := NetworkPrefix(network)
	return func(comment string) bool { return strings.HasPrefix(comment, prefix) && !kept[comment] }
}

// NetworkChain returns the name of a chain that the attachments of a network share. The name contains
// neither a colon nor a tilde, because names in an nft script must not.
func NetworkChain(kind, network, name string) string {
	return kind + "/" + strings.NewReplacer(":", "_", "~", "_").Replace(NetworkPrefix(network)+name)
}

// shorten returns s or, if s is longer than limit bytes or contains a character that cannot be in a
// comment, a text of at most limit bytes that is unique for s.
func shorten(s string, limit int) string {
	if len(s) <= limit && strings.Map(replaceForbidden, s) == s {
		return s
	}
	digits := min(limit-5, 32) // length of the hash
	sum := types.Hash(s)
	beginning := strings.Map(replaceForbidden, s[:min(len(s), limit-digits-1)])
	return beginning + "~" + hex.EncodeToString(sum[:digits/2])
}

// replaceForbidden returns an underscore for a character that cannot be in a comment.
func replaceForbidden(r rune) rune {
	if strings.ContainsRune(`"/~`, r) || r < ' ' || r > '~' {
		return '_'
	}
	return r
}
