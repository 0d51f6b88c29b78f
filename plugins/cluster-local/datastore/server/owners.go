package server

import (
	"crypto/rand"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

// MaxRounds is how often a call begins again because another call changed what it has read.
const MaxRounds = 10

// NewClaim returns 128 random bits in hexadecimal digits. Each change of an address's owner writes a new claim, so that
// an earlier change that arrives late has no effect.
func NewClaim() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Now returns the time in the form of an answer (RFC 3339).
func Now() string { return time.Now().UTC().Format(time.RFC3339) }

// Sorted returns the addresses of a map in order.
func Sorted[V any](m map[netip.Addr]V) []netip.Addr {
	all := make([]netip.Addr, 0, len(m))
	for a := range m {
		all = append(all, a)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// AddRegistration adds the registration of the target to the answer of remove-node.
func (r *Request) AddRegistration(answer *datastore.Answer, registered string) {
	machine, boot, _ := strings.Cut(registered, " ")
	answer.Nodes = map[string]datastore.Node{r.Target: {Machine: machine, Boot: boot}}
}
