package main

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore/server"
)

const (
	// probes is how many chunks claim reads before it lists chunks that are not full.
	probes = 4
	// candidates is how many chunks that are not full claim lists, at most.
	candidates = 64
	// crowded is how many chunks without a free address claim reads before it estimates the number of free addresses again.
	crowded = 2
	// maxPause is the longest pause before a change is tried again after a conflict.
	maxPause = 50 * time.Millisecond
	// leastRounds is how often a call begins again, at least, because another node has changed the chunk.
	leastRounds = 3
)

// pause waits for a random time before all rounds but the first, so that callers that change the same object do not
// always meet again.
func pause(ctx context.Context, round int) {
	if round > 0 {
		sleep(ctx, time.Duration(rand.Int64N(int64(maxPause))))
	}
}

// mayTry pauses before all rounds but the first, and reports whether a call that other nodes disturb may begin again. In a
// segment that is almost full, all nodes claim in the few chunks that have free addresses. Therefore, the number of rounds is
// not limited until half of the time limit has passed.
func (s *session) mayTry(ctx context.Context, round int) bool {
	pause(ctx, round)
	deadline, limited := ctx.Deadline()
	return round < leastRounds || limited && time.Until(deadline) > s.config.Deadline()/2
}

// claim assigns the requested addresses to the node, or else at most Want free addresses. All addresses of one claim that
// are not requested lie in one chunk. The first chunk that it tries depends on a hash of the node's name, so that a node's
// addresses lie in few chunks, and few nodes share a chunk.
func (s *session) claim(ctx context.Context, answer *datastore.Answer) error {
	if len(s.Requested) > 0 {
		return s.claimRequested(ctx, answer)
	}
	tried := 0
	var previous netip.Addr
	for w := range s.Pool.Windows(s.home()) {
		first, _ := chunkOf(w.First())
		if first == previous { // two ranges in one chunk
			continue
		}
		switch tried {
		case crowded:
			some, err := s.sample(ctx)
			if err != nil {
				return err
			}
			s.counted = &some
		case probes:
			if done, err := s.claimListed(ctx, answer); done || err != nil {
				return err
			}
			return s.claimAnywhere(ctx, answer)
		}
		previous = first
		tried++
		if done, err := s.claimWant(ctx, first, answer); done || err != nil {
			return err
		}
	}
	return s.claimAnywhere(ctx, answer)
}

// home returns the number of the node's first chunk.
func (s *session) home() uint64 {
	b, _ := hex.DecodeString(hash(s.Node))
	return binary.BigEndian.Uint64(b)
}

// claimWant claims at most Want free addresses of one chunk, and reports whether it got any.
func (s *session) claimWant(ctx context.Context, first netip.Addr, answer *datastore.Answer) (bool, error) {
	left := 0
	c, got, err := s.claimIn(ctx, first, func(c *addressChunk) ([]netip.Addr, error) {
		free := s.freeIn(c, first)
		left = len(free)
		return free[:min(len(free), s.Want)], nil
	})
	if err != nil || len(got) == 0 {
		return false, err
	}
	answer.Addresses, answer.Free = got, max(s.free(atLeast(c)), uint64(left-len(got)))
	return true, nil
}

// freeIn returns the addresses of the pool in a chunk that have no owner, in random order. c is nil if the chunk does not
// exist. A chunk can have chunkSize owners only, even if some of them own no address of it.
func (s *session) freeIn(c *addressChunk, first netip.Addr) []netip.Addr {
	taken, room := map[netip.Addr]bool{}, chunkSize
	if c != nil {
		room = max(0, chunkSize-len(c.Spec.Owners))
		for offset := range chunkSize {
			a := addrAt(first, offset)
			_, taken[a] = ownerOf(c, a)
		}
	}
	free := s.Pool.In(first, addrAt(first, chunkSize-1), taken)
	return free[:min(len(free), room)]
}

// free estimates how many addresses of the pool have no owner. It returns at least 1, because only a LIST of all chunks
// can prove that the pool is full.
func (s *session) free(of sample) uint64 {
	size := s.Pool.Size()
	return max(size-min(size, of.Owners), min(size, 1))
}

// atLeast returns the sample in a chunk, or the number of owners in the chunk if that is larger.
func atLeast(c *addressChunk) sample {
	return sample{max(c.Spec.Sample.Owners, uint64(len(c.Spec.Owners)))}
}

// claimListed claims at most Want free addresses of a chunk that is not full, and reports whether it got any. It tries a few
// random ones of the first candidates.
func (s *session) claimListed(ctx context.Context, answer *datastore.Answer) (done bool, err error) {
	query := s.selector()
	query.Set("labelSelector", query.Get("labelSelector")+","+labelFull+"=false")
	query.Set("limit", strconv.Itoa(candidates))
	page, err := readList[metadataOnly](ctx, s, addressChunks().path(), query)
	if err != nil {
		return false, err
	}
	for _, i := range rand.Perm(len(page.Items))[:min(len(page.Items), probes)] {
		first, err := firstOf(page.Items[i].Metadata.Name)
		if err != nil {
			continue // it contains no address
		}
		if done, err := s.claimWant(ctx, first, answer); done || err != nil {
			return done, err
		}
	}
	return false, nil
}

// claimAnywhere claims after the chunks in which the node looks first were full. It lists all chunks without their
// owners, and tries the chunks that are not full or do not exist.
func (s *session) claimAnywhere(ctx context.Context, answer *datastore.Answer) error {
	full := map[string]bool{}
	total, err := s.listChunks(ctx, func(c metadataOnly) { full[c.Metadata.Name] = c.Metadata.Labels[labelFull] == "true" })
	if err != nil {
		return err
	}
	s.counted = &total
	for w := range s.Pool.Windows(rand.Uint64()) {
		first, _ := chunkOf(w.First())
		if full[chunkObject(s.Segment, first)] {
			continue
		}
		if done, err := s.claimWant(ctx, first, answer); done || err != nil {
			answer.Free = max(s.free(total), 1)
			return err
		}
	}
	answer.Free = 0
	return s.FullError()
}

// claimIn claims the addresses of one chunk that choose returns. choose is called with nil if the chunk does not exist.
// Before the update of the chunk, the name of the chunk is in the node's SegmentNode, so that register finds the chunk.
func (s *session) claimIn(ctx context.Context, first netip.Addr, choose func(*addressChunk) ([]netip.Addr, error)) (*addressChunk, map[netip.Addr]string, error) {
	for round := 0; s.mayTry(ctx, round); round++ {
		c, err := s.chunk(ctx, first)
		if err != nil {
			return nil, nil, err
		}
		chosen, err := choose(c)
		if err != nil || len(chosen) == 0 {
			return c, nil, err
		}
		c, err = s.admit(ctx, c, first)
		if err != nil {
			return nil, nil, err
		}
		if c == nil {
			continue // another call has changed the SegmentNode or created the chunk
		}
		got := map[netip.Addr]string{}
		for _, a := range chosen {
			got[a] = s.give(c, a, s.epoch, "")
		}
		c.Spec.Open, c.Spec.Store = true, s.storeID
		if s.counted != nil {
			c.Spec.Sample = *s.counted // so that the other nodes in the chunk learn it without a LIST
		}
		if ok, err := s.updateChunk(ctx, c); err != nil {
			return nil, nil, err
		} else if ok {
			return c, got, s.undoIfBehind(ctx, c, got)
		}
	}
	return nil, nil, s.BusyError()
}

// admit checks that the node may claim in a chunk, which is nil if it does not exist, and creates the chunk. It returns
// nil if the caller must read the chunk again.
func (s *session) admit(ctx context.Context, c *addressChunk, first netip.Addr) (*addressChunk, error) {
	if c != nil {
		if err := errors.Join(s.learnStore(ctx, c.Spec.Store), s.checkStoreID()); err != nil {
			return nil, err
		}
	}
	if !s.stands(c) {
		n, err := s.admitted(ctx, first)
		if err != nil || n == nil {
			return nil, err
		}
		if c == nil {
			c = s.newChunk(first, n)
			if created, err := s.createChunk(ctx, c); err != nil || !created {
				return nil, err
			}
		}
	}
	if c.Spec.Open {
		return c, nil
	}
	// A freeze writes the Segment before it closes the chunks. Because the Segment is read after the chunk, a claim that
	// does not see the freeze conflicts with it.
	o, err := s.segment(ctx)
	if err == nil {
		err = s.CheckFrozen(frozenText(o))
	}
	if err == nil && o == nil {
		err = s.CheckRegistered("") // the Segment was deleted
	}
	if err == nil {
		err = s.checkStoreID()
	}
	return c, err
}

// stands reports whether the chunk proves that the node's registration is current. A registration, and a removal of the
// node, rewrite the chunks in which the node owns addresses.
func (s *session) stands(c *addressChunk) bool {
	epoch := ""
	if c != nil {
		for _, o := range owned(c, s.Node) {
			if epoch != "" && o.Epoch != epoch {
				return false
			}
			epoch = o.Epoch
		}
	}
	if !strings.HasPrefix(epoch, s.bootHash()) || s.epoch != "" && s.epoch != epoch {
		return false
	}
	s.epoch = epoch
	return true
}

// admitted reads the node's registration, and adds the chunk to it. It returns nil if another call has changed the
// registration meanwhile.
func (s *session) admitted(ctx context.Context, first netip.Addr) (*segmentNode, error) {
	n, err := s.registration(ctx, s.Node)
	if err != nil {
		return nil, err
	}
	if err := s.checkRegistration(ctx, n); err != nil {
		return nil, err
	}
	if s.epoch != "" && s.epoch != n.Spec.Epoch {
		return nil, s.BusyError()
	}
	s.epoch = n.Spec.Epoch
	if err := errors.Join(s.learnStore(ctx, n.Spec.Store), s.checkStoreID()); err != nil {
		return nil, err
	}
	name := chunkObject(s.Segment, first)
	if slices.Contains(n.Spec.Chunks, name) {
		return n, nil
	}
	n.Spec.Chunks, n.Spec.LastCall = append(n.Spec.Chunks, name), server.Now()
	if ok, err := segmentNodes().update(ctx, s, n); err != nil || !ok {
		return nil, err
	}
	return n, nil
}

// checkRegistration returns an error if the node is not registered with this machine and boot. While the segment is
// frozen, the error is that the segment is frozen.
func (s *session) checkRegistration(ctx context.Context, n *segmentNode) error {
	id := identityOf(n)
	if err := s.CheckMachine(id); err != nil {
		return err
	}
	err := errors.Join(s.CheckRegistered(id), s.CheckBoot(id))
	if err == nil {
		return nil
	}
	o, readErr := s.segment(ctx)
	return errors.Join(readErr, s.CheckFrozen(frozenText(o)), err)
}

// checkStoreID returns an error if the ID of the store is not the one that the node has seen.
func (s *session) checkStoreID() error {
	return s.CheckStore("the Kubernetes cluster", s.LastRevision, s.storeID)
}

// checkStore returns an error if the store contains an older state than the node has seen. It must follow a change,
// because only the answer to a change, or to a LIST, contains a revision of the whole store.
func (s *session) checkStore() error {
	return s.CheckStore("the Kubernetes cluster", s.revision, s.storeID)
}

// undoIfBehind removes the new owners if the update shows that the store contains an older state than the node has seen.
func (s *session) undoIfBehind(ctx context.Context, c *addressChunk, got map[netip.Addr]string) error {
	err := s.checkStore()
	if err == nil {
		return nil
	}
	return errors.Join(s.giveBack(ctx, c, got), err)
}

// giveBack removes the owners that this call has just added to the chunk.
func (s *session) giveBack(ctx context.Context, c *addressChunk, got map[netip.Addr]string) error {
	first, _ := netip.ParseAddr(c.Spec.First)
	_, _, err := s.releaseIn(ctx, first, got)
	if err != nil {
		return server.Errorf(types.CodeTryAgain, datastore.ReasonUnknown, "return the addresses of a failed claim: %w; register before the next claim", err)
	}
	return nil
}

// claimRequested claims all requested addresses, or none.
func (s *session) claimRequested(ctx context.Context, answer *datastore.Answer) error {
	all := map[netip.Addr]string{}
	var undo []func() error
	for _, first := range chunksOf(s.Requested) {
		c, got, err := s.claimIn(ctx, first, func(c *addressChunk) ([]netip.Addr, error) { return s.requestedIn(c, first) })
		if err != nil {
			for _, f := range undo {
				err = errors.Join(f(), err)
			}
			return err
		}
		undo = append(undo, func() error { return s.giveBack(ctx, c, got) })
		maps.Copy(all, got)
		answer.Free = s.free(atLeast(c))
	}
	answer.Addresses = all
	return nil
}

// requestedIn returns the requested addresses in a chunk, which is nil if it does not exist.
func (s *session) requestedIn(c *addressChunk, first netip.Addr) (in []netip.Addr, err error) {
	for _, a := range s.Requested {
		if chunk, _ := chunkOf(a); chunk != first {
			continue
		}
		if c != nil {
			switch o, taken := ownerOf(c, a); {
			case taken && (c.Spec.unreadable || !isReadable(o)):
				return nil, server.Errorf(types.CodeTryAgain, datastore.ReasonTaken, "%v may belong to a node, but AddressChunk %s contains invalid values; correct the object", a, c.Metadata.Name)
			case taken:
				return nil, s.OwnedError(a, nodeName(o.Node, o.Network), o.Since)
			}
		}
		in = append(in, a)
	}
	return in, nil
}

// release frees the addresses that the node owns with the claims of the request, and answers with them. The node no
// longer owns the other addresses of the request, or owns them with another claim.
func (s *session) release(ctx context.Context, answer *datastore.Answer) error {
	answer.Addresses = map[netip.Addr]string{}
	for _, first := range chunksOf(server.Sorted(s.Addresses)) {
		c, released, err := s.releaseIn(ctx, first, s.Addresses)
		if err == nil && c != nil {
			err = errors.Join(s.learnStore(ctx, c.Spec.Store), s.checkStoreID())
		}
		if err == nil && len(released) > 0 {
			err = s.checkStore()
		}
		if err == nil && len(released) == 0 {
			err = s.checkReleaser(ctx)
		}
		if err != nil {
			return err
		}
		if c != nil {
			answer.Free = max(answer.Free, s.free(atLeast(c)))
		}
		maps.Copy(answer.Addresses, released)
	}
	answer.Free = max(answer.Free, uint64(s.Pool.Count(answer.Addresses)))
	return nil
}

// checkReleaser returns an error if the node is registered with another boot, and the segment is not frozen.
func (s *session) checkReleaser(ctx context.Context) error {
	n, err := s.registration(ctx, s.Node)
	if err != nil || s.CheckBoot(identityOf(n)) == nil {
		return err
	}
	if o, err := s.segment(ctx); err != nil || frozenText(o) != "" {
		return err
	}
	return s.CheckBoot(identityOf(n))
}

// releaseIn removes the owners of the addresses in one chunk that the node owns with these claims. It returns the chunk,
// or nil if it does not exist, and the addresses that it removed.
func (s *session) releaseIn(ctx context.Context, first netip.Addr, claims map[netip.Addr]string) (*addressChunk, map[netip.Addr]string, error) {
	for round := 0; s.mayTry(ctx, round); round++ {
		c, err := s.chunk(ctx, first)
		if err != nil || c == nil {
			return nil, nil, err
		}
		released := map[netip.Addr]string{}
		for a, o := range owned(c, s.Node) {
			if claims[a] == o.Claim {
				released[a] = o.Claim
				take(c, a)
			}
		}
		if len(released) == 0 {
			return c, nil, nil
		}
		if ok, err := s.updateChunk(ctx, c); err != nil || ok {
			return c, released, err
		}
	}
	return nil, nil, s.BusyError()
}
