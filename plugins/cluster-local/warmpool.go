package main

import (
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/owned"
)

// target returns how many free addresses of a set the node keeps, at most. The fewer addresses of the
// segment are free, the fewer the node keeps, so that the nodes that need the last ones get them. If the
// number of free addresses is unknown, the target is the whole warm pool.
func (n *network) target(st *owned.State, set int) int {
	s := n.sets[set]
	free, known := st.Free[s.Ranges[0].First]
	size := s.Size()
	share := int(min(free/8, maxWarmPool)) // so that few nodes do not take all of a small pool
	switch {
	case !known:
		return n.warmPool
	case free*100 >= size*30:
		return min(n.warmPool, share)
	case free*100 >= size*15:
		return min(n.warmPool/2, share)
	case free*100 >= size*8:
		return min((n.warmPool+7)/8, share)
	}
	return 0
}

// want returns how many addresses of a set to claim. It is the target, but at most the number that the node's
// containers use, or a 64th of the free ones if that is more. Without this limit, the first of many nodes
// that boot at the same time would fill its warm pool with a small range, and return addresses only when
// containers end.
func (s *session) want(set int) (n int, err error) {
	err = s.Lock(func(se *pool.Session) error {
		reserved, err := se.Reserved()
		for _, ip := range reserved {
			if s.setIndex(ip) == set {
				n++
			}
		}
		return err
	})
	smallShare := int(min(s.st.Free[s.sets[set].Ranges[0].First]/64, maxWarmPool))
	return min(max(1, n, smallShare), max(1, s.target(s.st, set))), err
}

// setFree records the number of free addresses of a set.
func (n *network) setFree(st *owned.State, set int, free uint64) {
	if set != noSet {
		st.Free[n.sets[set].Ranges[0].First] = min(free, pool.MaxSize)
	}
}

// noSet is the index of the addresses that no set allocates, which are the addresses of onRequestOnly, and addresses
// that were in a range before the configuration changed.
const noSet = -1

// firstSet returns the index of the first set, or noSet if the runtime has passed no ranges.
func (n *network) firstSet() int { return min(0, len(n.sets)-1) }

// surplus returns the owned addresses that the node does not need, by range set. These are all free addresses that no
// set allocates. Of a set with more free addresses than its target, all but half of the target are surplus. The
// addresses in last, which have just been released, stay if possible.
func (n *network) surplus(se *pool.Session, st *owned.State, last []netip.Addr) (map[int][]netip.Addr, error) {
	free, err := se.Free(st.Addresses())
	if err != nil {
		return nil, err
	}
	bySet := map[int][]netip.Addr{}
	for _, ip := range free {
		set := n.setIndex(ip)
		bySet[set] = append(bySet[set], ip)
	}
	for set, addrs := range bySet {
		if set == noSet {
			continue
		}
		target := n.target(st, set)
		if len(addrs) <= target {
			delete(bySet, set)
			continue
		}
		slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return keepRank(last, a) - keepRank(last, b) })
		bySet[set] = addrs[:len(addrs)-target/2]
	}
	return bySet, nil
}

// keepRank returns 1 for an address in the list, which is released last, and 0 for any other address.
func keepRank(list []netip.Addr, ip netip.Addr) int {
	if slices.Contains(list, ip) {
		return 1
	}
	return 0
}
