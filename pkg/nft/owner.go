package nft

import (
	"crypto/sha512"
	"encoding/hex"
	"strings"

	"github.com/plumb-cni/plumb/pkg/types"
)

// The maximum lengths of the parts of an owner's comment, in bytes. With two slashes they add
// up to maxComment.
const (
	maxComment   = 128 // the longest that nft can list (NFTNL_UDATA_COMMENT_MAXLEN; the kernel accepts 255)
	maxNetwork   = 47
	maxContainer = 64
	maxIfName    = 15
)

// Owner returns the comment for elements that the attachment owns:
// "<network>/<container>/<ifname>".
//
// A part that is too long (more than 47, 64 and 15 bytes), or has a character that cannot be in
// a comment, is replaced by its beginning, a tilde and a hash. A tilde in a name is such a
// character, too. So two attachments never have the same comment, and the comment alone tells
// the network.
func Owner(a types.Attachment) string {
	return NetworkPrefix(a.Network) + shorten(a.ContainerID, maxContainer) + "/" + shorten(a.IfName, maxIfName)
}

// NetworkPrefix returns what the comments of all owners in the network begin with.
func NetworkPrefix(network string) string { return shorten(network, maxNetwork) + "/" }

// NetworkChain returns the name of a chain that the attachments of a network share. It contains neither a colon nor a
// tilde, which a name in a script of nft cannot contain.
func NetworkChain(kind, network, name string) string {
	return kind + "/" + strings.NewReplacer(":", "_", "~", "_").Replace(NetworkPrefix(network)+name)
}

// shorten returns s or, if s is longer than limit bytes or has a character that cannot be in a
// comment, a unique text of at most limit bytes for it.
func shorten(s string, limit int) string {
	if len(s) <= limit && strings.Map(replaceForbidden, s) == s {
		return s
	}
	digits := min(limit-5, 32) // of the hash
	sum := sha512.Sum512([]byte(s))
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
