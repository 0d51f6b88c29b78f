package main

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore/server"
)

const (
	// claimBatch is how many addresses one transaction claims, at most. With larger batches, the transactions of nodes that
	// fill a pool conflict more often.
	claimBatch = 8
	// changeBatch is how many addresses one transaction releases or rewrites, at most. By default (--max-txn-ops) etcd accepts
	// 128 operations in a transaction.
	changeBatch = 32
)

// check returns an error if the node may not claim, because of its registration or because the segment is frozen.
func (s *session) check(v view) error {
	if err := errors.Join(s.checkMachine(v), s.checkFrozen(v)); err != nil {
		return err
	}
	if err := errors.Join(s.CheckRegistered(v.node.value), s.checkBoot(v)); err != nil {
		return err
	}
	if v.node.revision != s.registration {
		return s.BusyError()
	}
	return nil
}

// checkBoot returns an error if the node is registered with another boot, unless the segment is frozen.
func (s *session) checkBoot(v view) error {
	if v.frozen.value != "" {
		return nil
	}
	return s.CheckBoot(v.node.value)
}

func (s *session) checkMachine(v view) error { return s.CheckMachine(v.node.value) }

func (s *session) checkFrozen(v view) error { return s.CheckFrozen(frozenText(v)) }

// frozenText returns when the segment was frozen and by which node, or "" if it is not frozen.
func frozenText(v view) string {
	since, node, _ := strings.Cut(v.frozen.value, " ")
	return server.FrozenText(since, node)
}

func (s *session) checkStore() error { return s.CheckStore("etcd", s.revision, s.storeID) }

// unfrozen returns the condition that the segment is not frozen.
func (s *session) unfrozen() clientv3.Cmp { return absent(s.frozen()) }

// registered returns the condition that the registration has not been written since this call read it.
func (s *session) registered() clientv3.Cmp { return unchangedSince(s.node(s.Node), s.registration) }

// owns returns the condition that the node owns the address with this claim.
func (s *session) owns(node string, a netip.Addr, claim string) clientv3.Cmp {
	return clientv3.Compare(clientv3.Value(s.owner(a)), "=", node+" "+claim)
}

func absent(key string) clientv3.Cmp { return clientv3.Compare(clientv3.CreateRevision(key), "=", 0) }

// give assigns an address to the node.
func (s *session) give(a netip.Addr, claim, since string) []clientv3.Op {
	return []clientv3.Op{
		clientv3.OpPut(s.owner(a), s.Node+" "+claim), clientv3.OpPut(s.own(s.Node, a), claim+" "+since),
	}
}

// take removes the owner of an address.
func (s *session) take(node string, a netip.Addr) []clientv3.Op {
	return []clientv3.Op{clientv3.OpDelete(s.owner(a)), clientv3.OpDelete(s.own(node, a))}
}

// touch records the time of the call.
func (s *session) touch() clientv3.Op { return clientv3.OpPut(s.last(s.Node), server.Now()) }

// nested returns a nested transaction, which runs the operations in then if the condition holds, and the operations in
// otherwise if it does not.
func nested(condition clientv3.Cmp, then []clientv3.Op, otherwise ...clientv3.Op) clientv3.Op {
	return clientv3.OpTxn([]clientv3.Cmp{condition}, then, otherwise)
}

// An ownership contains the claim to an address that a node owns, and the time since which the node owns it.
type ownership struct{ claim, since string }

// ownedBy reads the addresses that a node owns, at the revision of the view.
func (s *session) ownedBy(ctx context.Context, node string) (view, map[netip.Addr]ownership, error) {
	v, err := s.look(ctx, clientv3.OpGet(s.owned(node), clientv3.WithPrefix()))
	if err != nil {
		return v, nil, err
	}
	all := map[netip.Addr]ownership{}
	for _, kv := range v.extra[0].Kvs {
		a, err := addrOf(kv.Key)
		if err != nil {
			return v, nil, err
		}
		claim, since, _ := strings.Cut(string(kv.Value), " ")
		all[a] = ownership{claim, since}
	}
	return v, all, nil
}

// batches yields the keys of a map, at most changeBatch at a time, in order.
func batches[V any](m map[netip.Addr]V) [][]netip.Addr {
	return slices.Collect(slices.Chunk(server.Sorted(m), changeBatch))
}

// release frees the addresses that the node owns with the claims of the request, and answers with them. The node no
// longer owns the other addresses of the request, or owns them with another claim.
func (s *session) release(ctx context.Context, answer *datastore.Answer) error {
	v, err := s.look(ctx)
	if err == nil {
		err = errors.Join(s.checkStore(), s.checkBoot(v))
	}
	if err != nil {
		return err
	}
	released := map[netip.Addr]string{}
	for _, batch := range batches(s.Addresses) {
		var ops []clientv3.Op
		for _, a := range batch {
			ops = append(ops, nested(s.owns(s.Node, a, s.Addresses[a]), s.take(s.Node, a)))
		}
		resp, err := s.change(ctx, nil, ops, nil)
		if err != nil {
			return err
		}
		for i, a := range batch {
			if resp.Responses[i].GetResponseTxn().Succeeded {
				released[a] = s.Addresses[a]
			}
		}
	}
	answer.Addresses, answer.Free = released, v.free+uint64(s.Pool.Count(released))
	return nil
}

// status answers with the number of free addresses, and whether the segment is frozen.
func (s *session) status(ctx context.Context, answer *datastore.Answer) error {
	v, err := s.look(ctx)
	if err != nil {
		return err
	}
	answer.Free, answer.Frozen = v.free, frozenText(v)
	return s.checkStore()
}

// list answers with the nodes of the segment and the owners of addresses, or only with the target and its addresses.
func (s *session) list(ctx context.Context, answer *datastore.Answer) error {
	owned, node, last := s.root+"n/", s.node(s.Target), s.last(s.Target)
	option := clientv3.WithPrefix()
	if s.Target != "" {
		owned, option = s.owned(s.Target), func(*clientv3.Op) {}
	}
	v, err := s.look(ctx, clientv3.OpGet(owned, clientv3.WithPrefix()), clientv3.OpGet(node, option), clientv3.OpGet(last, option))
	if err != nil {
		return err
	}
	answer.Free, answer.Frozen = v.free, frozenText(v)
	answer.Nodes, answer.Owners = map[string]datastore.Node{}, map[netip.Addr]datastore.Owner{}
	eachValue(v.extra[1].Kvs, func(name, machine, boot string) { answer.Nodes[name] = datastore.Node{Machine: machine, Boot: boot} })
	eachValue(v.extra[2].Kvs, func(name, at, _ string) {
		if n, ok := answer.Nodes[name]; ok {
			n.LastCall = at
			answer.Nodes[name] = n
		}
	})
	for _, kv := range v.extra[0].Kvs {
		a, err := addrOf(kv.Key)
		if err != nil {
			return err
		}
		_, since, _ := strings.Cut(string(kv.Value), " ")
		name, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), s.root+"n/"), "/")
		answer.Owners[a] = datastore.Owner{Node: name, Since: since}
	}
	return s.checkStore()
}

// freeze blocks claim and register until thaw.
func (s *session) freeze(ctx context.Context, answer *datastore.Answer) error {
	return s.setFrozen(ctx, answer, func(v view) []clientv3.Op {
		if v.frozen.value != "" {
			return []clientv3.Op{clientv3.OpPut(s.frozen(), v.frozen.value)}
		}
		return []clientv3.Op{s.putFrozen()}
	})
}

func (s *session) putFrozen() clientv3.Op { return clientv3.OpPut(s.frozen(), server.Now()+" "+s.Node) }

// thaw lets claim and register succeed again after freeze.
func (s *session) thaw(ctx context.Context, answer *datastore.Answer) error {
	return s.setFrozen(ctx, answer, func(v view) []clientv3.Op {
		return []clientv3.Op{clientv3.OpDelete(s.frozen()), s.putStore(v)}
	})
}

// putStore writes the ID of the store, and creates it if there is none.
func (s *session) putStore(v view) clientv3.Op {
	s.storeID = v.store.value
	if s.storeID == "" {
		s.storeID = server.NewClaim()
	}
	return clientv3.OpPut(s.store(), s.storeID)
}

// setFrozen runs the change, and answers with the state after it. freeze and thaw always write a key, and compare the
// revisions of both keys, so that a change that arrives late has no effect after a later freeze or thaw.
func (s *session) setFrozen(ctx context.Context, answer *datastore.Answer, change func(view) []clientv3.Op) error {
	for range server.MaxRounds {
		v, err := s.look(ctx)
		if err != nil {
			return err
		}
		resp, err := s.change(ctx, []clientv3.Cmp{v.frozen.unchanged(), v.store.unchanged()}, change(v), nil)
		if err != nil {
			return err
		}
		if resp.Succeeded {
			v, err := s.look(ctx)
			answer.Free, answer.Frozen = v.free, frozenText(v)
			return err
		}
	}
	return s.BusyError()
}
