package main

import (
	"errors"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/lock"
	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/owned"
)

// A session is a network whose lock "datastore" this process holds. Only a session asks the datastore for changes
// and writes the state file. It also holds the pool's lock while it reads or writes the state, but not while the
// datastore runs.
type session struct {
	*network
	key   *lock.Key
	st    *owned.State
	valid bool // st was valid when it was read (see network.read)
	// wasUnsettled is the value of st.Unsettled before begin set it, and true if the state was not valid.
	wasUnsettled bool
	recovered    bool  // refill has settled what an earlier call of this boot left, which may be a surplus
	foreign      error // names the reservations whose addresses other nodes own
	registered   bool  // this session has registered the node
	confirmed    bool  // an operator has confirmed that no other machine has the identity of this one
}

// open locks the datastore, and returns an error with types.CodeTryAgain if another process holds the lock for longer
// than the limit. The caller must close the session.
func (n *network) open(limit time.Duration) (*session, error) {
	key, err := lock.NewKey(n.PrivatePath("datastore"), "datastore")
	if err == nil {
		err = n.request.Trace.Do("lock "+n.PrivatePath("datastore"), func() error { return key.Lock(limit) })
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = types.Errorf(types.CodeTryAgain, "another process has used %s for over %s: %w", n.program, limit, err)
	}
	if err != nil {
		return nil, types.Coded(types.CodeIO, errors.Join(err, key.Close()))
	}
	return &session{network: n, key: key}, nil
}

func (s *session) close() { _ = s.key.Close() }

func (s *session) load() error {
	return s.Lock(func(se *pool.Session) (err error) {
		s.st, s.valid, err = s.read(se)
		return err
	})
}

// begin reads the state, calls edit to change it, and writes it with unsettled set. edit may be nil. If this process
// is killed afterwards, the next session registers.
func (s *session) begin(edit func(*pool.Session) error) error {
	return s.Lock(func(se *pool.Session) (err error) {
		if s.st, s.valid, err = s.read(se); err != nil {
			return err
		}
		if s.st.Second && !s.confirmed {
			return s.secondMachine()
		}
		s.wasUnsettled = s.st.Unsettled || !s.valid
		if edit != nil {
			err = edit(se)
		}
		if err != nil {
			return err
		}
		s.st.Unsettled = true
		return s.write(s.st)
	})
}

// A change is a request to the datastore that changes which addresses the node owns.
type change struct {
	request datastore.Request
	apply   func(*datastore.Answer) // changes the state according to the answer
}

// run sends the request of a change to the datastore, and writes the new state. The caller has called begin.
// The state stays unsettled unless the datastore has applied the whole change, or none of it.
func (s *session) run(c change) error {
	c.request.LastRevision, c.request.Store, c.request.Boot = s.st.LastRevision, s.st.Store, s.st.BootID()
	answer, err := s.call(c.request, s.timeout+killAfter)
	s.st.Calls.Total++
	if err != nil {
		s.st.Calls.Failed++
	}
	switch {
	case err == nil:
		s.st.Calls.LastSuccess = time.Now().Unix()
		s.st.Unsettled, s.st.Failed, s.st.LastRevision, s.st.Store = s.wasUnsettled, 0, max(s.st.LastRevision, answer.Revision), answer.Store
		c.apply(answer)
		return s.save()
	case reasonOf(err) == datastore.ReasonBoot: // only a node that has registered before sends a request that can fail for this reason
		s.st.Second = true
		err = s.secondMachine()
	case c.request.Verb == datastore.Claim && reasonOf(err) != datastore.ReasonUnknown:
		s.st.Unsettled = s.wasUnsettled
	case c.request.Verb == datastore.Release: // the datastore may have released some of the addresses
		s.st.Failed = s.host.Now()
	}
	return errors.Join(err, s.save())
}

func (s *session) save() error {
	return s.Lock(func(*pool.Session) error { return s.write(s.st) })
}

// secondMachine returns the error for a node that another boot has registered after this one.
func (n *network) secondMachine() error {
	machine, _ := n.machine() // the next call of the datastore returns the error
	return types.Errorf(types.CodeConfig, "node %s of segment %s has been registered by another boot of machine %s, while this one runs: a second machine has its identity and name, "+
		"or the store of %s was restored from a backup; give the second machine its own identity and name, or run cluster-local resync on all other nodes; "+
		"then run cluster-local resync here; until then, this node allocates no address",
		n.node, n.segment, machine, n.program)
}

// checkNoSecondMachine returns an error if a second machine has the identity of this one.
func (n *network) checkNoSecondMachine() error {
	return types.IgnoreNotExist(n.Lock(func(se *pool.Session) error {
		st, _, err := n.read(se)
		if err == nil && st.Second {
			err = n.secondMachine()
		}
		return err
	}))
}

// maxAttempts is how often an ADD claims addresses from the datastore before it fails. It needs more than one attempt per range
// set only if other calls allocate the claimed addresses first, or if the node has to register.
const maxAttempts = 20

// allocateWithDatastore allocates as Allocate does. While no owned address is free, it claims addresses from the
// datastore and tries again.
func (n *network) allocateWithDatastore(r *skel.Request) (*types.Result, error) {
	if err := n.rollback(r); err != nil {
		return nil, err
	}
	s, err := n.open(n.host.Wait)
	if err != nil {
		return nil, err
	}
	defer s.close()
	for range maxAttempts {
		lease, err := n.Allocate(r, n.choose)
		var none *pool.NoneFreeError
		if !errors.As(err, &none) {
			if err == nil && s.recovered {
				warnOfSurplus(r, s.release(nil))
			}
			return lease, err
		}
		if err := errors.Join(n.rollback(r), s.refill(none)); err != nil {
			return nil, err
		}
	}
	return nil, types.Errorf(types.CodeTryAgain, "other calls allocated the addresses of this node %d times; try again", maxAttempts)
}

// rollback releases the addresses that Allocate reserved before it found a set without a free address. If that fails,
// the undo of the failed ADD tries again.
func (n *network) rollback(r *skel.Request) error {
	err := r.Undo.Rollback()
	if err != nil {
		r.Undo.Push("release addresses", func() error { _, err := n.Release(r); return err })
	}
	return err
}

// refill claims addresses of the range set none.Set or, if none.Addr is valid, that address. If the state is not valid
// or is unsettled, refill only settles.
func (s *session) refill(none *pool.NoneFreeError) error {
	if err := s.load(); err != nil {
		return err
	}
	if !s.valid {
		err := s.settle(none.Set)
		if err != nil && types.AsError(err).Code == types.CodeTryAgain {
			err = types.Errorf(types.CodeTryAgain, "%w; until it answers, the node does not know which addresses it owns, and allocates none of its warm pool", err)
		}
		return err
	}
	if s.st.Unsettled {
		s.recovered = true
		return s.settle(none.Set)
	}
	req := s.newRequest(datastore.Claim, none.Set)
	if none.Addr.IsValid() {
		req.Requested = []netip.Addr{none.Addr}
	} else if want, err := s.want(none.Set); err == nil {
		req.Want = want
	} else {
		return err
	}
	err := s.claimMissing()
	if err == nil {
		err = s.claim(req, none.Set)
	}
	switch reasonOf(err) {
	case datastore.ReasonOwn, datastore.ReasonBehind:
		return s.settle(none.Set)
	case datastore.ReasonUnregistered:
		return s.settleRemoved(none.Set)
	case datastore.ReasonFrozen:
		return errors.Join(err, s.settle(none.Set))
	case datastore.ReasonFull:
		if !s.registered { // the node may own addresses that it does not know
			return s.settle(none.Set)
		}
		return types.Errorf(types.AsError(err).Code, "%w: %w", none, err)
	case datastore.ReasonTaken:
		return types.Errorf(types.AsError(err).Code, "%w: %w; delete the container that uses it there; "+
			"if there is none, the address is in the warm pool of that node; add addresses that containers request to \"onRequestOnly\" on all nodes", none, err)
	}
	return err
}

// claim asks the datastore for addresses, and adds them to the state.
func (s *session) claim(req datastore.Request, set int) error {
	if err := s.begin(nil); err != nil {
		return err
	}
	return s.run(change{request: req, apply: func(a *datastore.Answer) {
		maps.Copy(s.st.Claims, a.Addresses)
		s.setFree(s.st, set, a.Free)
	}})
}

// settleRemoved settles a node that was removed. Other nodes may own its addresses.
func (s *session) settleRemoved(set int) error {
	s.request.Warn("node %s is no longer registered in segment %s, because remove-node removed it; it registers again", s.node, s.segment)
	err := s.begin(func(*pool.Session) error {
		clear(s.st.Claims)
		return nil
	})
	if err == nil {
		err = s.settle(set)
	}
	return err
}

// settle brings the state and the store into agreement. It registers the node, which replaces the claims of
// all its addresses, so that earlier changes that arrive late have no effect. Then it claims the addresses
// that are reserved although the node does not own them. While the segment is frozen, or if the store
// contains an older state than the node has seen, settle resyncs instead.
func (s *session) settle(set int) error {
	err := s.register(set)
	switch reasonOf(err) {
	case datastore.ReasonBehind, datastore.ReasonFrozen:
		err = s.resync()
	case "":
		if err == nil {
			err = s.claimMissing()
		}
	}
	if err != nil {
		return err
	}
	s.st.Unsettled = false
	return s.save()
}

// claimMissing claims the addresses that are reserved although the node does not own them, because it was removed, the
// containers are older than this configuration, or the directory is a copy. If another node owns one of these, it
// only warns and sets s.foreign, because the node can still use all other addresses. Each session tries again, because
// the other node may release the address or be removed.
func (s *session) claimMissing() error {
	if s.foreign != nil {
		return nil
	}
	containers, err := s.reserved()
	if err != nil {
		return err
	}
	for _, ip := range slices.SortedFunc(maps.Keys(containers), netip.Addr.Compare) {
		if s.st.Claims[ip] != "" {
			continue
		}
		req := s.newRequest(datastore.Claim, noSet)
		req.Requested = []netip.Addr{ip}
		err := s.claim(req, noSet)
		switch {
		case reasonOf(err) == datastore.ReasonTaken:
			err = types.Errorf(types.CodeTryAgain, "reservation %s of container %s: %w; delete the container; if it does not exist, run plumb gc or remove the file",
				s.Path(ip), containers[ip], err)
			s.request.Warn("%v", err)
			s.foreign = errors.Join(s.foreign, err)
		case err != nil:
			return err
		}
	}
	return nil
}

// register registers the node, and replaces the addresses of the state with the addresses in the answer.
func (s *session) register(set int) error {
	if err := s.begin(nil); err != nil {
		return err
	}
	s.wasUnsettled = true
	req := s.newRequest(datastore.Register, set)
	req.Registered = s.st.Registered && !s.confirmed
	return s.run(change{request: req, apply: func(a *datastore.Answer) {
		s.replaceClaims(a)
		s.setFree(s.st, set, a.Free)
	}})
}

// resync sends the datastore all addresses of the state and all reserved ones, for a store that was restored from a
// backup. No node can claim addresses until an operator thaws the segment.
func (s *session) resync() error {
	if err := s.begin(nil); err != nil {
		return err
	}
	containers, err := s.reserved()
	if err != nil {
		return err
	}
	s.wasUnsettled = true
	req := s.newRequest(datastore.Resync, noSet)
	req.Addresses = maps.Clone(s.st.Claims)
	if s.st.Second {
		clear(req.Addresses)
	}
	for ip := range containers {
		req.Addresses[ip] = s.st.Claims[ip]
	}
	var taken []error
	err = s.run(change{request: req, apply: func(a *datastore.Answer) {
		s.replaceClaims(a)
		s.st.LastRevision = a.Revision
		for ip, node := range a.Conflicts {
			if id, used := containers[ip]; used {
				taken = append(taken, types.Errorf(types.CodeTryAgain,
					"address %s of container %s also belongs to node %s; run cluster-local resync there, or remove that node with remove-node if it is off; "+
						"if that does not help, delete one of the containers", ip, id, node))
			}
		}
	}})
	return errors.Join(append(taken, err)...)
}

// replaceClaims replaces the addresses of the state with the addresses of an answer to register or resync.
func (s *session) replaceClaims(a *datastore.Answer) {
	s.registered, s.st.Registered, s.st.Second = true, true, false
	s.st.Claims = map[netip.Addr]string{}
	maps.Copy(s.st.Claims, a.Addresses)
}

// reserved returns all reserved addresses with the IDs of their containers.
func (s *session) reserved() (map[netip.Addr]string, error) {
	containers := map[netip.Addr]string{}
	err := s.Lock(func(se *pool.Session) error {
		reserved, err := se.Reserved()
		for _, ip := range reserved {
			containers[ip] = se.ContainerID(ip)
		}
		return err
	})
	return containers, err
}

// retryReturn is how long a node waits after a failed return before it returns addresses again. Without this pause,
// every DEL would wait for a datastore that does not answer.
const retryReturn = 30 * time.Second

// returnSurplus returns the addresses that the node does not need to the datastore. If possible, the node keeps the
// addresses in last, which have just been released.
func (n *network) returnSurplus(last []netip.Addr) error {
	due, err := n.isReturnDue(last)
	if err != nil || !due {
		return err
	}
	s, err := n.open(n.timeout)
	if err != nil {
		return err
	}
	defer s.close()
	if due, err := n.isReturnDue(last); err != nil || !due { // another process has returned the surplus meanwhile, or has failed to
		return err
	}
	return s.release(last)
}

// warnOfSurplus warns if the node could not return its surplus.
func warnOfSurplus(r *skel.Request, err error) {
	if err != nil {
		r.Warn("the node keeps addresses that it does not need: %v", err)
	}
}

// isReturnDue reports whether the node has a surplus, or may have one that it does not know. It is false for retryReturn
// after a failed return.
func (n *network) isReturnDue(last []netip.Addr) (due bool, err error) {
	err = n.Lock(func(se *pool.Session) error {
		st, valid, err := n.read(se)
		if err != nil || !valid || st.Failed != 0 && n.host.Now() < st.Failed+retryReturn {
			return err
		}
		surplus, err := n.surplus(se, st, last)
		due = len(surplus) > 0 || st.Unsettled
		return err
	})
	return due, types.IgnoreNotExist(err)
}

// release returns the addresses that the node does not need to the datastore. If the state is unsettled, release
// settles first.
func (s *session) release(last []netip.Addr) error {
	if err := s.load(); err != nil || !s.valid {
		return err
	}
	if s.st.Unsettled {
		if err := s.settle(s.firstSet()); err != nil {
			s.st.Failed = s.host.Now()
			return errors.Join(err, s.save())
		}
	}
	var surplus map[int][]netip.Addr
	err := s.Lock(func(se *pool.Session) (err error) {
		surplus, err = s.surplus(se, s.st, last)
		return err
	})
	for _, set := range slices.Sorted(maps.Keys(surplus)) {
		if err != nil {
			return err
		}
		err = s.releaseOf(set, last)
	}
	return err
}

// releaseOf returns the surplus of one set to the datastore. It first removes the addresses from the state, so that
// no ADD can allocate them. If the datastore then fails, the next session registers, and learns which of the
// addresses the node still owns.
func (s *session) releaseOf(set int, last []netip.Addr) error {
	req := s.newRequest(datastore.Release, set)
	req.Addresses = map[netip.Addr]string{}
	err := s.begin(func(se *pool.Session) error {
		surplus, err := s.surplus(se, s.st, last)
		for _, ip := range surplus[set] {
			req.Addresses[ip] = s.st.Claims[ip]
			delete(s.st.Claims, ip)
		}
		return err
	})
	if err != nil {
		return err
	}
	if len(req.Addresses) == 0 {
		s.st.Unsettled = s.wasUnsettled
		return s.save()
	}
	return s.run(change{
		request: req,
		apply: func(a *datastore.Answer) {
			// The store contains other claims for the other addresses of the request. The node must register before the
			// next change.
			s.st.Unsettled = s.st.Unsettled || len(a.Addresses) < len(req.Addresses)
			s.setFree(s.st, set, a.Free)
		},
	})
}

// synchronize settles with the datastore, and then returns the addresses that the node does not need. It does nothing
// before the first ADD. If confirmed is true, an operator has confirmed that no other machine has the identity of this one.
func (n *network) synchronize(confirmed bool) error {
	if err := n.Lock(func(*pool.Session) error { return nil }); err != nil {
		return types.IgnoreNotExist(err)
	}
	s, err := n.open(n.host.Wait)
	if err != nil {
		return err
	}
	defer s.close()
	s.confirmed = confirmed
	err = s.settle(n.firstSet())
	if err == nil && len(n.sets) > 0 { // otherwise the runtime passes the ranges, and only to ADD and DEL
		err = s.release(nil)
	}
	return errors.Join(err, s.foreign)
}
