package main

import (
	"context"
	"errors"
	"net/netip"
	"net/url"
	"strconv"
	"sync"

	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore/server"
)

const (
	// sampleSize is how many chunks sample reads, at most.
	sampleSize = 32
	// closers is how many chunks a freeze closes at the same time.
	closers = 16
)

// sample estimates the number of addresses of the segment that have owners, from the labels of sampleSize chunks. The
// nodes choose chunks by a hash, so that the first chunks in the order of names are a random sample.
func (s *session) sample(ctx context.Context) (sample, error) {
	query := s.selector()
	query.Set("limit", strconv.Itoa(sampleSize))
	some, err := readList[metadataOnly](ctx, s, addressChunks().path(), query)
	if err != nil {
		return sample{}, err
	}
	var owners uint64
	for _, c := range some.Items {
		owners += ownersOf(c)
	}
	if some.Metadata.Continue == "" {
		return sample{owners}, nil
	}
	// A LIST with a selector does not count the remaining items. All segments together have as many chunks or more.
	all, err := readList[metadataOnly](ctx, s, addressChunks().path(), url.Values{"limit": {"1"}})
	if err != nil {
		return sample{}, err
	}
	return sample{owners * uint64(all.Metadata.RemainingItemCount+1) / uint64(len(some.Items))}, nil
}

// ownersOf returns the number of owners in the label of a chunk.
func ownersOf(c metadataOnly) uint64 {
	n, _ := strconv.ParseUint(c.Metadata.Labels[labelOwned], 10, 64)
	return min(n, chunkSize)
}

// listChunks calls f for all chunks of the segment, without their owners, and returns the number of owners.
func (s *session) listChunks(ctx context.Context, f func(metadataOnly)) (all sample, err error) {
	err = each(ctx, s, addressChunks().path(), func(chunks []metadataOnly) error {
		for _, c := range chunks {
			all.Owners += ownersOf(c)
			f(c)
		}
		return nil
	})
	return all, err
}

// addState adds to the answer how many addresses are free, and whether the segment is frozen.
func (s *session) addState(ctx context.Context, answer *datastore.Answer) error {
	o, err := s.segment(ctx)
	if err != nil {
		return err
	}
	answer.Frozen = frozenText(o)
	answer.Free, err = s.countFree(ctx)
	return err
}

// countFree returns how many addresses of the pool have no owner. In a segment with many chunks it estimates the number,
// unless the pool is nearly full.
func (s *session) countFree(ctx context.Context) (uint64, error) {
	size := s.Pool.Size()
	if size == 0 {
		return 0, nil
	}
	estimated, err := s.sample(ctx)
	if err != nil {
		return 0, err
	}
	if free := s.free(estimated); free > size/8 && s.Pool.WindowCount() > sampleSize {
		return free, nil
	}
	var used uint64
	var read []netip.Addr
	_, err = s.listChunks(ctx, func(c metadataOnly) {
		first, err := firstOf(c.Metadata.Name)
		if err != nil {
			return
		}
		switch in := uint64(len(s.Pool.In(first, addrAt(first, chunkSize-1), nil))); {
		case in == chunkSize || c.Metadata.Labels[labelFull] == "true":
			used += min(in, ownersOf(c))
		case in > 0 && ownersOf(c) > 0:
			read = append(read, first)
		}
	})
	for _, first := range read {
		if err != nil {
			return 0, err
		}
		var c *addressChunk
		if c, err = s.chunk(ctx, first); c != nil {
			used += uint64(len(s.Pool.In(first, addrAt(first, chunkSize-1), nil)) - len(s.freeIn(c, first)))
		}
	}
	return size - min(size, used), err
}

// status answers with the number of free addresses, and whether the segment is frozen.
func (s *session) status(ctx context.Context, answer *datastore.Answer) error {
	if err := s.addState(ctx, answer); err != nil {
		return err
	}
	return s.checkStore()
}

// list answers with the nodes of the segment and the owners of addresses, or only with the target and its addresses.
func (s *session) list(ctx context.Context, answer *datastore.Answer) error {
	answer.Nodes, answer.Owners = map[string]datastore.Node{}, map[netip.Addr]datastore.Owner{}
	err := s.addState(ctx, answer)
	if err != nil {
		return err
	}
	if s.Target != "" {
		err = s.listTarget(ctx, answer)
	} else {
		err = s.listAll(ctx, answer)
	}
	return errors.Join(err, s.checkStore())
}

func (s *session) listTarget(ctx context.Context, answer *datastore.Answer) error {
	n, err := s.registration(ctx, s.Target)
	if err != nil || n == nil {
		return err
	}
	addNode(answer, n)
	for _, name := range n.Spec.Chunks {
		first, _ := firstOf(name)
		c, err := s.chunk(ctx, first)
		if err != nil {
			return err
		}
		if c != nil {
			addOwners(answer, owned(c, s.Target))
		}
	}
	return nil
}

func (s *session) listAll(ctx context.Context, answer *datastore.Answer) error {
	err := each(ctx, s, segmentNodes().path(), func(nodes []segmentNode) error {
		for i := range nodes {
			if err := s.checkNode(&nodes[i], ""); err != nil {
				s.warn(err.Error())
				continue
			}
			addNode(answer, &nodes[i])
		}
		return nil
	})
	if err != nil {
		return err
	}
	return each(ctx, s, addressChunks().path(), func(chunks []addressChunk) error {
		for i := range chunks {
			s.inspect(&chunks[i])
			addOwners(answer, owners(&chunks[i]))
		}
		return nil
	})
}

func addNode(answer *datastore.Answer, n *segmentNode) {
	answer.Nodes[nodeName(n.Spec.Node, n.Spec.Network)] = datastore.Node{Machine: n.Spec.Machine, Boot: n.Spec.Boot, LastCall: word(n.Spec.LastCall)}
}

func addOwners(answer *datastore.Answer, owners map[netip.Addr]owner) {
	for a, o := range owners {
		answer.Owners[a] = datastore.Owner{Node: nodeName(o.Node, o.Network), Since: word(o.Since)}
	}
}

// freeze blocks claim and register until thaw. It closes all chunks even if an earlier freeze is complete, because a node may
// have recorded this wrongly, or opened a chunk since.
func (s *session) freeze(ctx context.Context, answer *datastore.Answer) error {
	o, err := s.ensureSegment(ctx)
	if err == nil && (o.Spec.Frozen == nil || o.Spec.Frozen.Complete) {
		err = s.setFrozen(ctx, func(o *segment) {
			if o.Spec.Frozen == nil {
				o.Spec.Frozen = &frozen{Since: server.Now(), By: s.Node}
			}
			o.Spec.Frozen.Complete = false
		})
	}
	if err == nil {
		err = s.close(ctx)
	}
	return errors.Join(err, s.addState(ctx, answer))
}

// thaw lets claim and register succeed again after freeze. The next claim in a chunk opens it.
func (s *session) thaw(ctx context.Context, answer *datastore.Answer) error {
	err := s.setFrozen(ctx, func(o *segment) { o.Spec.Frozen = nil })
	return errors.Join(err, s.addState(ctx, answer))
}

// setFrozen edits the Segment. It always counts the fence up, so that a change that arrives late has no effect after a later
// freeze or thaw.
func (s *session) setFrozen(ctx context.Context, edit func(*segment)) error {
	for round := range server.MaxRounds {
		pause(ctx, round)
		o, err := s.ensureSegment(ctx)
		if err != nil {
			return err
		}
		edit(o)
		o.Spec.Fence++
		if ok, err := segments().update(ctx, s, o); err != nil || ok {
			return err
		}
	}
	return s.BusyError()
}

// close closes all chunks of the frozen segment, also those that are not readable, so that claims that are based on an earlier
// state conflict, and then marks the freeze as complete, unless it could not close a chunk. A chunk that was written after the Segment and is not open was closed by an earlier
// attempt, which was interrupted.
func (s *session) close(ctx context.Context) error {
	o, err := s.segment(ctx)
	if err != nil {
		return err
	}
	if o == nil || o.Spec.Frozen == nil {
		return s.BusyError() // thawed meanwhile
	}
	if o.Spec.Frozen.Complete {
		return nil
	}
	for {
		left := 0
		err := each(ctx, s, addressChunks().path(), func(chunks []addressChunk) error {
			var pending []string
			for i := range chunks {
				c := &chunks[i]
				s.inspect(c)
				if c.Spec.Open || c.Metadata.revision() < o.Metadata.revision() {
					pending = append(pending, c.Metadata.Name)
				}
			}
			left += len(pending)
			return inParallel(pending, func(name string) error { return s.closeChunk(ctx, name) })
		})
		if err != nil {
			return err
		}
		if left == 0 {
			break
		}
	}
	o.Spec.Frozen.Complete = true
	o.Spec.Fence++
	if ok, err := segments().update(ctx, s, o); err != nil || ok {
		return err
	}
	return s.BusyError()
}

// closeChunk closes one chunk.
func (s *session) closeChunk(ctx context.Context, name string) error {
	t := &session{config: s.config, Request: s.Request, client: s.client, fences: fences{}} // for this goroutine
	for round := range server.MaxRounds {
		pause(ctx, round)
		c, err := addressChunks().get(ctx, t, name)
		if err != nil || c == nil {
			return err
		}
		c.Spec.Open = false
		if ok, err := t.updateChunk(ctx, c); err != nil || ok {
			return err
		}
	}
	return s.BusyError()
}

// inParallel calls f for all names, closers at a time, and returns all errors.
func inParallel(names []string, f func(string) error) error {
	var wait sync.WaitGroup
	var mutex sync.Mutex
	var errs []error
	slots := make(chan struct{}, closers)
	for _, name := range names {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			if err := f(name); err != nil {
				mutex.Lock()
				defer mutex.Unlock()
				errs = append(errs, err)
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}
