package main

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore/server"
)

// fences contains the highest fence that the node has seen of each chunk, by the chunk's first address. The node keeps them in
// the store ID, which the datastore can extend because the node does not interpret it. If a chunk has a lower fence later, an
// older state of the store was restored. The revision alone does not show this for long, because all components of Kubernetes
// raise the revision of the same store.
type fences map[netip.Addr]int64

// splitStore returns the UID and the fences in a store ID, which join has returned.
func splitStore(id string) (uid string, f fences) {
	f = fences{}
	words := strings.Split(id, ",")
	for i, word := range words {
		if i == 0 {
			uid = word
			continue
		}
		first, fence, _ := strings.Cut(word, "=")
		a, addrErr := netip.ParseAddr(first)
		n, err := strconv.ParseInt(fence, 10, 64)
		if addrErr == nil && err == nil {
			f[a] = n
		}
	}
	return uid, f
}

// join returns the store ID with the UID and as many fences as a store ID can contain.
func (f fences) join(uid string) string {
	if uid == "" {
		return ""
	}
	id := uid
	for _, a := range slices.SortedFunc(maps.Keys(f), netip.Addr.Compare) {
		if word := fmt.Sprintf(",%v=%d", a, f[a]); len(id)+len(word) <= datastore.MaxName {
			id += word
		}
	}
	return id
}

// checkFence compares the fence of a chunk, or 0 if the chunk does not exist, with the fence that the node has seen. It
// returns an error with datastore.ReasonBehind if the fence is lower. In resync, it sets older instead.
func (s *session) checkFence(first netip.Addr, fence int64) error {
	seen := s.fences[first]
	if fence >= seen {
		if seen > 0 || fence > 0 {
			s.fences[first] = fence
		}
		return nil
	}
	if s.Verb == datastore.Resync {
		s.fences[first], s.older = fence, true
		return nil
	}
	return server.Errorf(types.CodeTryAgain, datastore.ReasonBehind,
		"want AddressChunk %s with the fence %d or later, as node %s has seen it, got %d: an older state was restored; resync on each node, then thaw",
		chunkObject(s.Segment, first), seen, s.Node, fence)
}

// checkFences reads the chunks that the node has seen and that are not in a list.
func (s *session) checkFences(read func(netip.Addr) error, except []string) error {
	for _, first := range slices.SortedFunc(maps.Keys(s.fences), netip.Addr.Compare) {
		if slices.Contains(except, chunkObject(s.Segment, first)) {
			continue
		}
		if err := read(first); err != nil {
			return err
		}
	}
	return nil
}

// keepFences forgets the fences of all chunks that are not in the list.
func (s *session) keepFences(chunks []string) {
	maps.DeleteFunc(s.fences, func(first netip.Addr, _ int64) bool { return !slices.Contains(chunks, chunkObject(s.Segment, first)) })
}
