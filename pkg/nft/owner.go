package nft

import (
	"crypto/sha512"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/plumb-cni/plumb/pkg/types"
)

// MaxComment is how many bytes of a comment nft reads back from a listing
// (NFTNL_UDATA_COMMENT_MAXLEN; the kernel would take 255).
const MaxComment = 128

// The parts of an owner's text that may be longer than fits: MaxComment less the
// slashes and an interface name of 15.
const (
	maxNetwork   = 47
	maxContainer = 64
)

// Owner is the comment of what the attachment owns: "<network>/<container>/<ifname>".
// A network name over 47 bytes, or a container ID over 64, is cut and its hash put
// after a tilde, which no name has: two owners never have one text, and what
// belongs to a network can be told from the comment alone. So can a name with a
// character that would end the comment in a ruleset that nft prints.
func Owner(a types.Attachment) string {
	return NetworkPrefix(a.Network) + fit(a.ContainerID, maxContainer) + "/" + fit(a.IfName, 15)
}

// NetworkPrefix is what the comments of all owners in the network begin with.
func NetworkPrefix(network string) string { return fit(network, maxNetwork) + "/" }

// OwnerKey is the n-th key under which the owner's elements are listed in a map from
// owners to what they have: so that a DEL that knows nothing but the owner finds its
// elements among thousands without reading them all. The key is an ifname, the one
// type of nft's that holds a text; it is a hash, so the element's comment has the
// last word.
func OwnerKey(a types.Attachment, n int) Key { return OwnerKeys(a)(n) }

// OwnerKeys gives the OwnerKeys of one owner, for who wants many.
func OwnerKeys(a types.Attachment) func(n int) Key { return ownerKeys(Owner(a)) }

// ownerKeys is OwnerKeys for the comment that names the owner.
func ownerKeys(owner string) func(n int) Key {
	text := []byte(owner + "/")
	return func(n int) Key {
		sum := sha512.Sum512(strconv.AppendInt(text[:len(text):len(text)], int64(n), 10))
		return IfNameKey(hex.EncodeToString(sum[:8]))
	}
}

// fit gives s itself, or a text of at most limit bytes that stands for it.
func fit(s string, limit int) string {
	digest := min(limit-5, 32) // hex digits
	if len(s) <= limit && strings.Map(plain, s) == s {
		return s
	}
	sum := sha512.Sum512([]byte(s))
	head := strings.Map(plain, s[:min(len(s), limit-digest-1)])
	return head + "~" + hex.EncodeToString(sum[:digest/2])
}

// plain puts an underscore in the place of what cannot stand in a comment.
func plain(r rune) rune {
	if strings.ContainsRune(`"/~`, r) || r < ' ' || r > '~' {
		return '_'
	}
	return r
}
