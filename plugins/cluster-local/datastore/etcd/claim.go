package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore/server"
)

// claim assigns the requested addresses to the node, or else at most Want free addresses. It succeeds if the
// node gets at least one.
func (s *session) claim(ctx context.Context, answer *datastore.Answer) error {
	got := map[netip.Addr]string{}
	err := s.claimInto(ctx, got, answer)
	var e *datastore.Error
	if len(got) > 0 && !(errors.As(err, &e) && e.Reason == datastore.ReasonUnknown) {
		err = nil
	}
	if err == nil {
		answer.Addresses = got
		answer.Free -= min(answer.Free, uint64(s.Pool.Count(got)))
	}
	return err
}

func (s *session) claimInto(ctx context.Context, got map[netip.Addr]string, answer *datastore.Answer) error {
	if len(s.Requested) > 0 {
		return s.claimRequested(ctx, got, answer)
	}
	look := s.look
	for w := range s.Pool.Windows(rand.Uint64()) {
		for {
			v, free, err := s.lookForClaim(ctx, look, w)
			if err != nil {
				return err
			}
			if answer.Free = max(answer.Free, v.free); answer.Free == 0 {
				return s.fullError(got)
			}
			look = s.lookUncounted // counting once is enough
			if free = free[:min(len(free), claimBatch, s.Want-len(got))]; len(free) == 0 {
				break // the next window
			}
			if err := s.claimSome(ctx, free, got); err != nil {
				return err
			}
			if len(got) == s.Want {
				return nil
			}
		}
	}
	answer.Free = uint64(s.Pool.Count(got))
	return s.fullError(got)
}

// fullError returns an error if the call got no address.
func (s *session) fullError(got map[netip.Addr]string) error {
	if len(got) > 0 {
		return nil
	}
	return s.FullError()
}

// A looker is session.look or session.lookUncounted.
type looker func(ctx context.Context, extra ...clientv3.Op) (view, error)

// lookForClaim reads a window, and checks that the node may claim. It returns the free addresses of the
// window in random order.
func (s *session) lookForClaim(ctx context.Context, look looker, window server.Block) (view, []netip.Addr, error) {
	key, end := s.rangeOf(window)
	v, err := look(ctx, clientv3.OpGet(key, clientv3.WithRange(end), clientv3.WithKeysOnly()))
	if err == nil {
		err = errors.Join(s.checkStore(), s.check(v))
	}
	if err != nil {
		return v, nil, err
	}
	taken := map[netip.Addr]bool{}
	for _, kv := range v.extra[0].Kvs {
		a, err := addrOf(kv.Key)
		if err != nil {
			return v, nil, err
		}
		taken[a] = true
	}
	return v, s.Pool.Candidates(window, taken), nil
}

// claimSome claims the addresses that are still free, and adds them to got. If the node may not claim, it does nothing,
// and the next read returns the error.
func (s *session) claimSome(ctx context.Context, free []netip.Addr, got map[netip.Addr]string) error {
	ops, claims, since := []clientv3.Op{}, make([]string, len(free)), server.Now()
	for i, a := range free {
		claims[i] = server.NewClaim()
		ops = append(ops, nested(absent(s.owner(a)), s.give(a, claims[i], since)))
	}
	resp, err := s.change(ctx, []clientv3.Cmp{s.unfrozen(), s.registered()}, append(ops, s.touch()), nil)
	if err != nil || !resp.Succeeded {
		return err
	}
	for i, a := range free {
		if resp.Responses[i].GetResponseTxn().Succeeded {
			got[a] = claims[i]
		}
	}
	return nil
}

// claimRequested claims all requested addresses, or none.
func (s *session) claimRequested(ctx context.Context, got map[netip.Addr]string, answer *datastore.Answer) error {
	var owners []clientv3.Op
	conditions, ops, since := []clientv3.Cmp{s.unfrozen()}, []clientv3.Op{s.touch()}, server.Now()
	claims := map[netip.Addr]string{}
	for _, a := range s.Requested {
		claims[a] = server.NewClaim()
		owners = append(owners, clientv3.OpGet(s.owner(a)))
		conditions = append(conditions, absent(s.owner(a)))
		ops = append(ops, s.give(a, claims[a], since)...)
	}
	for range server.MaxRounds {
		v, err := s.look(ctx, owners...)
		if err == nil {
			err = errors.Join(s.checkStore(), s.check(v))
		}
		if err == nil {
			err = s.checkTaken(ctx, v)
		}
		if err != nil {
			return err
		}
		answer.Free = v.free
		resp, err := s.change(ctx, append(conditions, s.registered()), ops, nil)
		if err != nil {
			return err
		}
		if resp.Succeeded {
			for a, claim := range claims {
				got[a] = claim
			}
			return nil
		}
	}
	return s.ChangingError()
}

// checkTaken returns an error if a requested address has an owner. v.extra contains the owners.
func (s *session) checkTaken(ctx context.Context, v view) error {
	for i, a := range s.Requested {
		node, _, _ := strings.Cut(valueOf(v.extra[i]), " ")
		if node == "" {
			continue
		}
		more, err := s.look(ctx, clientv3.OpGet(s.own(node, a)))
		if err != nil {
			return err
		}
		_, since, _ := strings.Cut(valueOf(more.extra[0]), " ")
		return s.OwnedError(a, node, since)
	}
	return nil
}
