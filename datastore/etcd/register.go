package main

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/plumb-cni/plumb/pkg/datastore"
	"github.com/plumb-cni/plumb/pkg/types"
)

// register registers the node, and answers with all addresses that belong to it, each with a new claim. An
// answer with what etcd has, without new claims, would be wrong: a release of an earlier call, whose
// outcome is unknown, may be applied after the read. After the change it no longer fits.
func (s *session) register(ctx context.Context, answer *datastore.Answer) error {
	for range maxRounds {
		v, has, err := s.holdings(ctx, s.Node)
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
		renewed, err := s.renew(ctx, has)
		if err != nil {
			return err
		}
		if len(renewed) == len(has) {
			answer.Addresses, answer.Free = renewed, v.free
			return nil
		}
	}
	return s.busy()
}

// busy is the error of a call during which another call for the node has changed the registration.
func (s *session) busy() error {
	return failf(types.CodeTryAgain, datastore.ReasonUnreachable, "other calls for node %s run in segment %s at the same time; try again", s.Node, s.Segment)
}

// commitRegistration writes the node's registration, and runs the operations in more, if the registration is still what this
// call read first, frozen and store are still as in the view, and the node has got no address since the view was read:
// a claim of the previous registration may have arrived. It reports whether it did.
func (s *session) commitRegistration(ctx context.Context, v view, more ...clientv3.Op) (bool, error) {
	if v.node.revision != s.registration {
		return false, s.busy()
	}
	if v.store.value == "" {
		more = append(more, s.putStore(v))
	}
	more = append(more, clientv3.OpPut(v.node.key, s.identity()), s.touch())
	nothingNew := clientv3.Compare(clientv3.ModRevision(s.owned(s.Node)), "<", s.revision+1).WithPrefix()
	resp, err := s.change(ctx, []clientv3.Cmp{v.node.unchanged(), v.frozen.unchanged(), v.store.unchanged(), nothingNew}, more, nil)
	if err != nil || !resp.Succeeded {
		return false, err
	}
	s.registration = resp.Header.Revision
	return true, nil
}

// renew gives the addresses new claims, if they still have those that were read. It returns the new ones;
// those of other addresses are missing.
func (s *session) renew(ctx context.Context, has map[netip.Addr]holding) (map[netip.Addr]string, error) {
	renewed := map[netip.Addr]string{}
	for _, batch := range batches(has) {
		var ops []clientv3.Op
		claims := make([]string, len(batch))
		for i, a := range batch {
			claims[i] = newClaim()
			ops = append(ops, nested(s.owns(s.Node, a, has[a].claim), s.give(a, claims[i], has[a].since)))
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

// resync makes etcd agree with the addresses of the request, which are all that the node owns: it gives
// them to the node, with new claims, and removes the node as the owner of others. It freezes the segment
// if etcd is behind what the node has seen. An address that another node has stays with it, and is
// a conflict: that node has it in fact, or has yet to resync.
func (s *session) resync(ctx context.Context, answer *datastore.Answer) error {
	for range maxRounds {
		v, has, err := s.holdings(ctx, s.Node)
		if err == nil {
			err = s.checkMachine(v)
		}
		if err != nil {
			return err
		}
		var freeze []clientv3.Op
		if s.isBehind() && v.frozen.value == "" {
			freeze = []clientv3.Op{s.putFrozen()}
		}
		registered, err := s.commitRegistration(ctx, v, freeze...)
		if err != nil {
			return err
		}
		if !registered {
			continue
		}
		r := resync{has: has, given: map[netip.Addr]string{}, conflicts: map[netip.Addr]string{}}
		if err := s.apply(ctx, &r); err != nil {
			return err
		}
		if !r.changed {
			return s.resynced(ctx, answer, r)
		}
	}
	return s.busy()
}

func (s *session) resynced(ctx context.Context, answer *datastore.Answer, r resync) error {
	v, err := s.look(ctx)
	answer.Addresses, answer.Conflicts, answer.Free, answer.Frozen = r.given, r.conflicts, v.free, frozenText(v)
	return err
}

// A resync is what etcd has for the node, and what became of it.
type resync struct {
	has       map[netip.Addr]holding
	given     map[netip.Addr]string
	conflicts map[netip.Addr]string
	changed   bool // since has was read
}

// apply gives and takes the addresses of a resync.
func (s *session) apply(ctx context.Context, r *resync) error {
	all := map[netip.Addr]bool{}
	for a := range r.has {
		all[a] = true
	}
	for a := range s.Addresses {
		all[a] = true
	}
	for _, batch := range batches(all) {
		var ops []clientv3.Op
		claims, since := make([]string, len(batch)), now()
		for i, a := range batch {
			claims[i] = newClaim()
			ops = append(ops, s.resyncOne(r.has, a, claims[i], since))
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

// resyncOne is the part of the transaction for one address. Its alternative reads the owner.
func (s *session) resyncOne(has map[netip.Addr]holding, a netip.Addr, claim, since string) clientv3.Op {
	h, listed := has[a]
	_, mine := s.Addresses[a]
	owner := clientv3.OpGet(s.owner(a))
	switch {
	case !mine:
		return nested(s.owns(s.Node, a, h.claim), s.take(s.Node, a), owner)
	case listed:
		return nested(s.owns(s.Node, a, h.claim), s.give(a, claim, h.since), owner)
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

// removeNode removes the registration of the target, if it is what the request says, and then its addresses.
// Without a registration, claims of the target that are still on their way do nothing. If another one
// appears meanwhile, the rest of the addresses belongs to the new registration, which remove-node returns.
func (s *session) removeNode(ctx context.Context, answer *datastore.Answer) error {
	s.Node = s.Target
	for removed := false; ; {
		v, has, err := s.holdings(ctx, s.Target)
		switch {
		case err != nil:
			return err
		case v.node.value == "":
			return s.takeAll(ctx, has, v, answer)
		case removed:
			s.tellRegistration(answer, v.node.value)
			return nil
		case v.node.value != s.identity():
			return failf(types.CodeConfig, datastore.ReasonMachine,
				"node %s of segment %s is registered with machine and boot %q, and the request names %q: another machine or boot has taken its place; see verb list",
				s.Target, s.Segment, v.node.value, s.identity())
		}
		resp, err := s.change(ctx, []clientv3.Cmp{v.node.unchanged()}, []clientv3.Op{clientv3.OpDelete(s.node(s.Target)), clientv3.OpDelete(s.last(s.Target))}, nil)
		if err != nil {
			return err
		}
		removed = resp.Succeeded
	}
}

// takeAll removes the addresses of the target, while it is not registered.
func (s *session) takeAll(ctx context.Context, has map[netip.Addr]holding, v view, answer *datastore.Answer) error {
	answer.Addresses, answer.Frozen = map[netip.Addr]string{}, frozenText(v)
	for _, batch := range batches(has) {
		var ops []clientv3.Op
		for _, a := range batch {
			ops = append(ops, nested(s.owns(s.Target, a, has[a].claim), s.take(s.Target, a)))
		}
		resp, err := s.change(ctx, []clientv3.Cmp{absent(v.node.key)}, ops, []clientv3.Op{clientv3.OpGet(v.node.key)})
		if err != nil {
			return err
		}
		if !resp.Succeeded {
			s.tellRegistration(answer, valueOf((*clientv3.GetResponse)(resp.Responses[0].GetResponseRange())))
			break
		}
		for i, a := range batch {
			if resp.Responses[i].GetResponseTxn().Succeeded {
				answer.Addresses[a] = has[a].claim
			}
		}
	}
	answer.Free = v.free + uint64(s.pool.count(answer.Addresses))
	return nil
}

// tellRegistration adds the registration of the target to the answer.
func (s *session) tellRegistration(answer *datastore.Answer, identity string) {
	machine, boot, _ := strings.Cut(identity, " ")
	answer.Nodes = map[string]datastore.Node{s.Target: {Machine: machine, Boot: boot}}
}
