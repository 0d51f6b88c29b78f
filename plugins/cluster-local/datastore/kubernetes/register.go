package main

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore/server"
)

// register registers the node with a new epoch, and answers with all addresses that it owns, each with a new claim. A
// change of this node that is based on a chunk before register has rewritten it conflicts with the rewritten chunk.
func (s *session) register(ctx context.Context, answer *datastore.Answer) error {
	former := ""
	n, err := s.enroll(ctx, nil, func(o *segment, n *segmentNode) error {
		former = identityOf(n)
		err := errors.Join(s.checkStoreID(), s.CheckMachine(former), s.CheckFrozen(frozenText(o)))
		if err == nil && s.Registered {
			err = s.CheckBoot(former)
		}
		var chunks []string
		if n != nil {
			chunks = n.Spec.Chunks // rewrite reads them
		}
		if err == nil {
			err = s.checkFences(func(first netip.Addr) error { _, err := s.chunk(ctx, first); return err }, chunks)
		}
		return err
	})
	if err == nil {
		err = s.checkStore()
	}
	if err != nil {
		return err
	}
	renewed, unchanged, err := s.rewrite(ctx, n, func(c *addressChunk) (map[netip.Addr]string, error) {
		if !c.Spec.Open {
			o, err := s.segment(ctx)
			if err = errors.Join(err, s.CheckFrozen(frozenText(o))); err != nil {
				return nil, err
			}
		}
		claims := map[netip.Addr]string{}
		for a, o := range owned(c, s.Node) {
			claims[a] = s.give(c, a, n.Spec.Epoch, o.Since)
		}
		return claims, nil
	})
	if err == nil && !unchanged {
		err = s.BusyError()
	}
	if err == nil && former != s.Identity() {
		err = s.dropChunks(ctx, n, renewed)
	}
	if err == nil {
		s.keepFences(n.Spec.Chunks)
	}
	answer.Addresses, answer.Free = renewed, s.free(n.Spec.Sample)
	return err
}

// dropChunks removes chunks from the registration in which the node owns no address. The caller must have registered
// another boot than before. A call of the former boot that had read the registration conflicts with the rewritten chunks, and
// none of this boot can have read it before register answers.
func (s *session) dropChunks(ctx context.Context, n *segmentNode, owned map[netip.Addr]string) error {
	var used []string
	for _, first := range chunksOf(server.Sorted(owned)) {
		used = append(used, chunkObject(s.Segment, first))
	}
	if len(used) == len(n.Spec.Chunks) {
		return nil
	}
	n.Spec.Chunks = used
	if ok, err := segmentNodes().update(ctx, s, n); err != nil || ok {
		return err
	}
	return s.BusyError()
}

// enroll writes a registration with a new epoch, after check has returned nil for the Segment and the former
// registration, which is nil if there is none. It creates the Segment if there is none. The registration contains the
// chunks of the former one, and chunks.
func (s *session) enroll(ctx context.Context, chunks []string, check func(*segment, *segmentNode) error) (*segmentNode, error) {
	o, err := s.ensureSegment(ctx)
	if err != nil {
		return nil, err
	}
	n, err := s.registration(ctx, s.Node)
	if err == nil {
		err = check(o, n)
	}
	if err != nil {
		return nil, err
	}
	n, err = s.writeRegistration(ctx, n, chunks)
	if err == nil && n == nil {
		err = s.BusyError()
	}
	return n, err
}

// writeRegistration replaces the registration n, which is nil if there is none. It returns nil if n was changed since it
// was read.
func (s *session) writeRegistration(ctx context.Context, n *segmentNode, chunks []string) (*segmentNode, error) {
	sampled, err := s.sample(ctx)
	if err != nil {
		return nil, err
	}
	write := segmentNodes().update
	if n == nil {
		write = segmentNodes().create
		n = &segmentNode{Metadata: metadata{Name: segmentNodeObject(s.Segment, s.Node), Labels: map[string]string{}}}
	}
	if n.Metadata.Labels == nil {
		n.Metadata.Labels = map[string]string{}
	}
	n.Metadata.Labels[labelSegment] = s.Segment
	node, network, _ := strings.Cut(s.Node, ":")
	all := slices.Concat(n.Spec.Chunks, chunks)
	slices.Sort(all)
	n.Spec = segmentNodeSpec{
		Segment: s.Segment, Node: node, Network: network, Machine: s.Machine, Boot: s.Boot, Epoch: s.bootHash() + server.NewClaim(),
		Store: s.storeID, Chunks: slices.Compact(all), LastCall: server.Now(), Sample: sampled,
	}
	if ok, err := write(ctx, s, n); err != nil || !ok {
		return nil, err
	}
	return n, nil
}

// ensureSegment reads the Segment, and creates it if there is none.
func (s *session) ensureSegment(ctx context.Context) (*segment, error) {
	o, err := s.segment(ctx)
	if err != nil || o != nil {
		return o, err
	}
	o = &segment{Metadata: metadata{Name: s.Segment}, Spec: segmentSpec{Segment: s.Segment}}
	if _, err := segments().create(ctx, s, o); err != nil {
		return nil, err
	}
	if o, err = s.segment(ctx); err == nil && o == nil {
		err = s.BusyError()
	}
	return o, err
}

// rewrite calls edit for each chunk of a registration, updates the chunk, and returns the addresses that edit returned for
// the updated chunks. It creates chunks that do not exist, so that a call that has not created its chunk yet conflicts.
// Between the reads and the updates, it checks that the registration has not changed, so that a call that runs late does not
// change addresses of a later registration. If it has changed, unchanged is false.
func (s *session) rewrite(ctx context.Context, n *segmentNode, edit func(*addressChunk) (map[netip.Addr]string, error)) (all map[netip.Addr]string, unchanged bool, err error) {
	all = map[netip.Addr]string{}
	names := n.Spec.Chunks
	for round := range server.MaxRounds {
		pause(ctx, round)
		chunks, err := s.chunks(ctx, n, names)
		if err != nil || len(chunks) == 0 {
			return all, true, err
		}
		now, err := s.registration(ctx, nodeName(n.Spec.Node, n.Spec.Network))
		if err != nil {
			return all, false, err
		}
		if now == nil || now.Metadata.UID != n.Metadata.UID || now.Metadata.ResourceVersion != n.Metadata.ResourceVersion {
			return all, false, nil
		}
		names = nil
		for _, c := range chunks {
			edited, err := edit(c)
			if err != nil {
				return all, false, err
			}
			c.Spec.Store, c.Spec.Sample = cmp.Or(s.storeID, c.Spec.Store), n.Spec.Sample
			if ok, err := s.updateChunk(ctx, c); err != nil {
				return all, false, err
			} else if !ok {
				names = append(names, c.Metadata.Name)
				continue
			}
			maps.Copy(all, edited)
		}
	}
	return all, false, s.BusyError()
}

// chunks reads the chunks with these names, without those that are not readable, and creates those that do not exist.
func (s *session) chunks(ctx context.Context, n *segmentNode, names []string) (all []*addressChunk, err error) {
	for _, name := range names {
		first, _ := firstOf(name) // checkNode has checked the names
		c, err := s.chunk(ctx, first)
		if err == nil && c == nil {
			if _, err = s.createChunk(ctx, s.newChunk(first, n)); err == nil {
				c, err = s.chunk(ctx, first)
			}
		}
		if err == nil && c == nil {
			err = nonsense("AddressChunk", name, "it was deleted")
		}
		if err != nil {
			return nil, err
		}
		if !c.Spec.unreadable {
			all = append(all, c)
		}
	}
	return all, nil
}

// resync brings the store into agreement with the addresses of the request, which are all addresses that the node owns.
// It assigns them to the node with new claims, and removes the node as the owner of all others in the chunks of its
// registration. It freezes the segment if the store is behind what the node has seen. An address that another node owns
// stays with that node, and resync answers with a conflict, because that node may really use the address, or may not have
// resynced yet.
func (s *session) resync(ctx context.Context, answer *datastore.Answer) error {
	var chunks []string
	for _, first := range chunksOf(server.Sorted(s.Addresses)) {
		chunks = append(chunks, chunkObject(s.Segment, first))
	}
	n, err := s.enroll(ctx, chunks, func(_ *segment, n *segmentNode) error { return s.CheckMachine(identityOf(n)) })
	if err == nil {
		err = s.checkFences(func(first netip.Addr) error { _, err := s.chunk(ctx, first); return err }, nil)
	}
	if err == nil && (s.older || s.IsBehind(s.revision, s.storeID)) {
		err = s.freezeOnce(ctx)
	}
	if err != nil {
		return err
	}
	conflicts := map[netip.Addr]string{}
	given, unchanged, err := s.rewrite(ctx, n, func(c *addressChunk) (map[netip.Addr]string, error) {
		return s.resyncIn(c, n.Spec.Epoch, conflicts), nil
	})
	if err == nil && !unchanged {
		err = s.BusyError()
	}
	if err != nil {
		return err
	}
	o, err := s.segment(ctx)
	answer.Addresses, answer.Conflicts, answer.Free, answer.Frozen = given, conflicts, s.free(n.Spec.Sample), frozenText(o)
	return err
}

// freezeOnce freezes the segment, unless another call has.
func (s *session) freezeOnce(ctx context.Context) error {
	o, err := s.segment(ctx)
	if err != nil || o != nil && o.Spec.Frozen != nil && o.Spec.Frozen.Complete {
		return err
	}
	return s.freeze(ctx, &datastore.Answer{})
}

// resyncIn edits one chunk, and returns the addresses that it has assigned to the node. It adds the others to conflicts.
func (s *session) resyncIn(c *addressChunk, epoch string, conflicts map[netip.Addr]string) map[netip.Addr]string {
	mine, given := owned(c, s.Node), map[netip.Addr]string{}
	for a := range mine {
		if _, keep := s.Addresses[a]; !keep {
			take(c, a)
		}
	}
	for a := range s.Addresses {
		first, _ := chunkOf(a)
		if chunkObject(s.Segment, first) != c.Metadata.Name {
			continue
		}
		delete(conflicts, a)
		if o, taken := ownerOf(c, a); taken && nodeName(o.Node, o.Network) != s.Node {
			conflicts[a] = cmp.Or(word(nodeName(o.Node, o.Network)), "unknown")
			continue
		}
		given[a] = s.give(c, a, epoch, mine[a].Since)
	}
	return given
}

// removeNode removes the registration of the target if it has the machine and boot of the request, and frees the target's
// addresses. It first marks the registration as removed, so that the target's claims fail, then rewrites the chunks, and then
// deletes the registration. If the target registers again meanwhile, the remaining addresses belong to the new
// registration, which removeNode answers with.
func (s *session) removeNode(ctx context.Context, answer *datastore.Answer) error {
	s.Node = s.Target
	if _, err := s.segment(ctx); err != nil { // for the ID of the store in the chunks
		return err
	}
	n, err := s.markRemoved(ctx)
	if err != nil {
		return err
	}
	if n == nil {
		return s.freeStrays(ctx, answer)
	}
	freed, unchanged, err := s.rewrite(ctx, n, func(c *addressChunk) (map[netip.Addr]string, error) {
		claims := map[netip.Addr]string{}
		for a, o := range owned(c, s.Target) {
			claims[a] = o.Claim
			take(c, a)
		}
		return claims, nil
	})
	if err == nil && unchanged {
		unchanged, err = s.deleteRegistration(ctx, n)
	}
	if err == nil && !unchanged {
		if n, err = s.registration(ctx, s.Target); identityOf(n) != "" {
			s.AddRegistration(answer, identityOf(n))
		}
	}
	answer.Addresses = freed
	return errors.Join(err, s.addState(ctx, answer))
}

// markRemoved marks the registration of the target as removed, and returns it. It returns nil if there is none.
func (s *session) markRemoved(ctx context.Context) (*segmentNode, error) {
	for round := range server.MaxRounds {
		pause(ctx, round)
		n, err := s.registration(ctx, s.Target)
		if err != nil || n == nil {
			return nil, err
		}
		if err := s.CheckRemoval(n.Spec.Machine + " " + n.Spec.Boot); err != nil || n.Spec.Removed {
			return n, err
		}
		n.Spec.Removed = true
		if ok, err := segmentNodes().update(ctx, s, n); err != nil || ok {
			return n, err
		}
	}
	return nil, s.BusyError()
}

// deleteRegistration deletes a registration, and reports false if it has changed since it was read.
func (s *session) deleteRegistration(ctx context.Context, n *segmentNode) (bool, error) {
	type preconditions struct {
		UID             string `json:"uid"`
		ResourceVersion string `json:"resourceVersion"`
	}
	options := struct {
		Kind          string        `json:"kind"`
		APIVersion    string        `json:"apiVersion"`
		Preconditions preconditions `json:"preconditions"`
	}{"DeleteOptions", "v1", preconditions{n.Metadata.UID, n.Metadata.ResourceVersion}}
	conflict, err := s.change(ctx, request{method: http.MethodDelete, path: segmentNodes().path() + "/" + n.Metadata.Name, in: options})
	return !conflict, err
}

// freeStrays frees the addresses that the target owns without a registration, because its SegmentNode was deleted by
// hand. It frees only addresses that were claimed with the machine and boot of the request.
func (s *session) freeStrays(ctx context.Context, answer *datastore.Answer) error {
	strays := map[netip.Addr]string{}
	answer.Addresses = map[netip.Addr]string{}
	err := each(ctx, s, addressChunks().path(), func(chunks []addressChunk) error {
		for i := range chunks {
			s.inspect(&chunks[i])
			for a, o := range owned(&chunks[i], s.Target) {
				if strings.HasPrefix(o.Epoch, s.bootHash()) {
					strays[a] = o.Claim
				}
			}
		}
		return nil
	})
	for _, first := range chunksOf(server.Sorted(strays)) {
		if err != nil {
			return err
		}
		var released map[netip.Addr]string
		_, released, err = s.releaseIn(ctx, first, strays)
		maps.Copy(answer.Addresses, released)
	}
	return errors.Join(err, s.addState(ctx, answer))
}
