package main

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore/server"
)

// register registers the node, and answers with all addresses that it owns, each with a new claim. Merely
// reading would be unsafe, because an earlier release with an unknown outcome may still be applied. That
// release compares the old claim, and therefore fails after the node has got a new claim.
func (s *session) register(ctx context.Context, answer *datastore.Answer) error {
	for range server.MaxRounds {
		v, owned, err := s.ownedBy(ctx, s.Node)
		if err == nil {
			err = errors.Join(s.checkStore(), s.checkMachine(v), s.checkFrozen(v))
		}
		if err == nil && s.Registered {
			err = s.checkBoot(v)
		}
		if err != nil {
			return err
		}
		registered, err := s.commitRegistration(ctx, v)
		if err != nil {
			return err
		}
		if !registered {
			continue
		}
		renewed, err := s.renew(ctx, owned)
		if err != nil {
			return err
		}
		if len(renewed) == len(owned) {
			answer.Addresses, answer.Free = renewed, v.free
			return nil
		}
	}
	return s.BusyError()
}

// commitRegistration writes the node's registration and runs the operations in more, and reports whether its
// conditions held. They do not hold if the registration was written after this call first read it, or if the
// keys frozen or store were written after the view was read. They also do not hold if the node owns a newer
// address, which a claim of the previous registration can add.
func (s *session) commitRegistration(ctx context.Context, v view, more ...clientv3.Op) (bool, error) {
	if v.node.revision != s.registration {
		return false, s.BusyError()
	}
	if v.store.value == "" {
		more = append(more, s.putStore(v))
	}
	more = append(more, clientv3.OpPut(v.node.key, s.Identity()), s.touch())
	nothingNew := clientv3.Compare(clientv3.ModRevision(s.owned(s.Node)), "<", s.revision+1).WithPrefix()
	resp, err := s.change(ctx, []clientv3.Cmp{v.node.unchanged(), v.frozen.unchanged(), v.store.unchanged(), nothingNew}, more, nil)
	if err != nil || !resp.Succeeded {
		return false, err
	}
	s.registration = resp.Header.Revision
	return true, nil
}

// renew gives the addresses new claims, and returns these. It skips addresses whose claim has changed since it was read.
func (s *session) renew(ctx context.Context, owned map[netip.Addr]ownership) (map[netip.Addr]string, error) {
	renewed := map[netip.Addr]string{}
	for _, batch := range batches(owned) {
		var ops []clientv3.Op
		claims := make([]string, len(batch))
		for i, a := range batch {
			claims[i] = server.NewClaim()
			ops = append(ops, nested(s.owns(s.Node, a, owned[a].claim), s.give(a, claims[i], owned[a].since)))
		}
		resp, err := s.change(ctx, []clientv3.Cmp{s.unfrozen(), s.registered()}, ops, nil)
		if err != nil || !resp.Succeeded {
			return nil, err
		}
		for i, a := range batch {
			if resp.Responses[i].GetResponseTxn().Succeeded {
				renewed[a] = claims[i]
			}
		}
	}
	return renewed, nil
}

// resync brings etcd into agreement with the addresses of the request, which are all addresses that the node
// owns. It assigns them to the node with new claims, and removes the node as the owner of all others. It
// freezes the segment if etcd is behind what the node has seen. An address that another node owns stays with
// that node, and resync answers with a conflict, because that node may really use the address, or may not
// have resynced yet.
func (s *session) resync(ctx context.Context, answer *datastore.Answer) error {
	for range server.MaxRounds {
		v, owned, err := s.ownedBy(ctx, s.Node)
		if err == nil {
			err = s.checkMachine(v)
		}
		if err != nil {
			return err
		}
		var freeze []clientv3.Op
		if s.IsBehind(s.revision, s.storeID) && v.frozen.value == "" {
			freeze = []clientv3.Op{s.putFrozen()}
		}
		registered, err := s.commitRegistration(ctx, v, freeze...)
		if err != nil {
			return err
		}
		if !registered {
			continue
		}
		r := resync{owned: owned, given: map[netip.Addr]string{}, conflicts: map[netip.Addr]string{}}
		if err := s.apply(ctx, &r); err != nil {
			return err
		}
		if !r.changed {
			return s.resynced(ctx, answer, r)
		}
	}
	return s.BusyError()
}

func (s *session) resynced(ctx context.Context, answer *datastore.Answer, r resync) error {
	v, err := s.look(ctx)
	answer.Addresses, answer.Conflicts, answer.Free, answer.Frozen = r.given, r.conflicts, v.free, frozenText(v)
	return err
}

// A resync contains the addresses that the node owned in etcd, and the outcome of the call.
type resync struct {
	owned     map[netip.Addr]ownership
	given     map[netip.Addr]string // the addresses that now belong to the node, with their new claims
	conflicts map[netip.Addr]string // the addresses that other nodes own, with the names of these nodes
	changed   bool                  // another call has changed an owner since owned was read
}

// apply writes and removes the owners of the addresses of a resync.
func (s *session) apply(ctx context.Context, r *resync) error {
	all := map[netip.Addr]bool{}
	for a := range r.owned {
		all[a] = true
	}
	for a := range s.Addresses {
		all[a] = true
	}
	for _, batch := range batches(all) {
		var ops []clientv3.Op
		claims, since := make([]string, len(batch)), server.Now()
		for i, a := range batch {
			claims[i] = server.NewClaim()
			ops = append(ops, s.resyncOne(r.owned, a, claims[i], since))
		}
		resp, err := s.change(ctx, []clientv3.Cmp{s.registered()}, ops, nil)
		if err != nil {
			return err
		}
		if !resp.Succeeded {
			r.changed = true
			return nil
		}
		for i, a := range batch {
			s.note(r, a, claims[i], (*clientv3.TxnResponse)(resp.Responses[i].GetResponseTxn()))
		}
	}
	return nil
}

// resyncOne returns the part of the transaction for one address. If its condition does not hold, it reads the owner.
func (s *session) resyncOne(owned map[netip.Addr]ownership, a netip.Addr, claim, since string) clientv3.Op {
	o, isOwned := owned[a]
	_, mine := s.Addresses[a]
	owner := clientv3.OpGet(s.owner(a))
	switch {
	case !mine:
		return nested(s.owns(s.Node, a, o.claim), s.take(s.Node, a), owner)
	case isOwned:
		return nested(s.owns(s.Node, a, o.claim), s.give(a, claim, o.since), owner)
	}
	return nested(absent(s.owner(a)), s.give(a, claim, since), owner)
}

// note adds the outcome of one address to the resync.
func (s *session) note(r *resync, a netip.Addr, claim string, resp *clientv3.TxnResponse) {
	_, mine := s.Addresses[a]
	if resp.Succeeded {
		if mine {
			r.given[a] = claim
		}
		return
	}
	owner := (*clientv3.GetResponse)(resp.Responses[0].GetResponseRange())
	node, _, _ := strings.Cut(valueOf(owner), " ")
	switch {
	case node == s.Node || node == "":
		r.changed = true
	case mine:
		r.conflicts[a] = node
	}
}

// removeNode removes the registration of the target if it has the machine and boot of the request, and then frees the
// target's addresses. Without a registration, claims of the target that arrive late do nothing. If the target registers
// again meanwhile, the remaining addresses belong to the new registration, which removeNode answers with.
func (s *session) removeNode(ctx context.Context, answer *datastore.Answer) error {
	s.Node = s.Target
	for removed := false; ; {
		v, owned, err := s.ownedBy(ctx, s.Target)
		switch {
		case err != nil:
			return err
		case v.node.value == "":
			return s.takeAll(ctx, owned, v, answer)
		case removed:
			s.AddRegistration(answer, v.node.value)
			return nil
		case v.node.value != s.Identity():
			return s.CheckRemoval(v.node.value)
		}
		resp, err := s.change(ctx, []clientv3.Cmp{v.node.unchanged()}, []clientv3.Op{clientv3.OpDelete(s.node(s.Target)), clientv3.OpDelete(s.last(s.Target))}, nil)
		if err != nil {
			return err
		}
		removed = resp.Succeeded
	}
}

// takeAll frees the addresses of the target, while it is not registered.
func (s *session) takeAll(ctx context.Context, owned map[netip.Addr]ownership, v view, answer *datastore.Answer) error {
	answer.Addresses, answer.Frozen = map[netip.Addr]string{}, frozenText(v)
	for _, batch := range batches(owned) {
		var ops []clientv3.Op
		for _, a := range batch {
			ops = append(ops, nested(s.owns(s.Target, a, owned[a].claim), s.take(s.Target, a)))
		}
		resp, err := s.change(ctx, []clientv3.Cmp{absent(v.node.key)}, ops, []clientv3.Op{clientv3.OpGet(v.node.key)})
		if err != nil {
			return err
		}
		if !resp.Succeeded {
			s.AddRegistration(answer, valueOf((*clientv3.GetResponse)(resp.Responses[0].GetResponseRange())))
			break
		}
		for i, a := range batch {
			if resp.Responses[i].GetResponseTxn().Succeeded {
				answer.Addresses[a] = owned[a].claim
			}
		}
	}
	answer.Free = v.free + uint64(s.Pool.Count(answer.Addresses))
	return nil
}
