package datastore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

// A plugin is cluster-local on one node. As with a runtime, calls for different containers run at the same time. A call
// that is killed, which is possible at any time, returns errKilled.
type plugin interface {
	add(container string) ([]netip.Addr, error)
	del(container string) error
	reboot()                                  // boots the node, which ends its containers
	resync() error                            // the operator's call after a restore
	settle(containers iter.Seq[string]) error // makes the addresses of the node, which runs these containers, agree with the store
	owned() map[netip.Addr]string             // the owned addresses with their claims
	isSettled() bool                          // reports whether the node knows what it owns
}

// A mutation breaks one of the invariants of datastore/README.md, so that the test must find duplicates.
type mutation string

const (
	none              mutation = ""
	registerByReading mutation = "register by reading"
	etcdBeforeFile    mutation = "etcd before file"
	timeoutIsClaim    mutation = "time-out taken for success"
)

var errKilled = errors.New("killed")

// A reference is a second implementation of cluster-local, with the real datastore. It keeps a node's files in memory.
// A simulated kill does not lose what was written earlier.
type reference struct {
	*nemesis
	name string
	sync.Mutex
	boot    int
	files   files
	process atomic.Pointer[os.Process] // the running datastore's process, or nil
}

// files contains what a node keeps on disk.
type files struct {
	boot         int                   // the boot in which owned was written
	owned        map[netip.Addr]string // the owned addresses with their claims
	reservations map[netip.Addr]string // the reserved addresses with their containers
	mustRegister bool
	seen         int64
	free         uint64
}

func newReference(n *nemesis, name string) *reference {
	return &reference{nemesis: n, name: name, boot: 1, files: files{owned: map[netip.Addr]string{}, reservations: map[netip.Addr]string{}}}
}

// kill sometimes returns errKilled, as if the process were killed at this point.
func (r *reference) kill() error {
	if rand.Float64() < r.killRate.Load().(float64) {
		r.kills.Add(1)
		return errKilled
	}
	return nil
}

// warmPool returns the number of unused addresses that the node keeps.
func (r *reference) warmPool() int {
	switch {
	case r.files.free*100 >= 30*poolSize:
		return 8
	case r.files.free*100 >= 15*poolSize:
		return 4
	case r.files.free*100 >= 8*poolSize:
		return 1
	}
	return 0
}

// call runs the datastore, and sometimes kills it.
func (r *reference) call(verb string, changes ...func(*datastore.Request)) (datastore.Answer, error) {
	request := r.caller.request(verb, append(changes, boot(fmt.Sprintf("boot%d", r.boot)), seen(r.files.seen))...)
	request.Node, request.Machine = r.name, "machine-of-"+r.name
	text, err := json.Marshal(request)
	if err != nil {
		return datastore.Answer{}, err
	}
	r.calls.Add(1)
	rate := 4 * r.killRate.Load().(float64)
	stdout, _, err := run(r.clients, text, func(cmd *exec.Cmd) {
		r.process.Store(cmd.Process)
		if rand.Float64() < rate {
			r.kills.Add(1)
			time.AfterFunc(time.Duration(rand.IntN(150))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		}
	})
	r.process.Store(nil)
	if err != nil {
		return datastore.Answer{}, errKilled
	}
	answer, err := parse(stdout)
	if err != nil {
		return answer, fmt.Errorf("answer %q: %w", stdout, err)
	}
	if answer.Error != nil {
		if answer.Error.Reason == datastore.ReasonUnknown {
			r.unknown.Add(1)
		}
		return answer, answer.Error
	}
	r.files.seen, r.files.free = max(r.files.seen, answer.Revision), answer.Free
	return answer, nil
}

// available returns an owned address without a reservation.
func (r *reference) available() (netip.Addr, bool) {
	for a := range r.files.owned {
		if r.files.reservations[a] == "" {
			return a, true
		}
	}
	return netip.Addr{}, false
}

func (r *reference) add(container string) ([]netip.Addr, error) {
	r.Lock()
	defer r.Unlock()
	if err := r.fill(); err != nil {
		return nil, err
	}
	a, ok := r.available()
	if !ok {
		return nil, errors.New("no address")
	}
	if err := r.kill(); err != nil {
		return nil, err
	}
	r.files.reservations[a] = container
	return []netip.Addr{a}, r.kill()
}

// fill gets addresses until available returns one.
func (r *reference) fill() error {
	if r.files.boot != r.boot {
		if err := r.registerNow(); err != nil {
			return err
		}
	}
	if _, ok := r.available(); ok && !(r.files.mustRegister && r.mutation == registerByReading) {
		return nil
	}
	if r.files.mustRegister { // with the mutation, register at once to find a duplicate sooner
		if err := r.registerNow(); err != nil {
			return err
		}
		if _, ok := r.available(); ok {
			return nil
		}
	}
	return r.claim()
}

func (r *reference) claim() error {
	r.files.mustRegister = true // true until the outcome is known
	if r.mutation == timeoutIsClaim {
		return r.claimWithoutAnswer()
	}
	answer, err := r.call(datastore.Claim, want(max(1, r.warmPool())))
	if err != nil {
		r.note(err)
		return err
	}
	if err := r.kill(); err != nil {
		return err
	}
	maps.Copy(r.files.owned, answer.Addresses)
	r.files.mustRegister = false
	r.claimed(len(answer.Addresses))
	return nil
}

// note records whether the node must register after this error of a claim.
func (r *reference) note(err error) {
	var e *datastore.Error
	if errors.As(err, &e) && e.Reason != datastore.ReasonUnknown {
		r.files.mustRegister = e.Reason == datastore.ReasonUnregistered || e.Reason == datastore.ReasonBoot
	}
}

// claimWithoutAnswer claims an address and treats a missing answer as success, which is the mutation timeoutIsClaim.
func (r *reference) claimWithoutAnswer() error {
	a := poolAddr(rand.IntN(poolSize))
	answer, err := r.call(datastore.Claim, requested(a.String()))
	var e *datastore.Error
	if err == nil || errors.Is(err, errKilled) || errors.As(err, &e) && (e.Reason == datastore.ReasonUnknown || e.Reason == datastore.ReasonUnreachable) {
		r.files.owned[a], r.files.mustRegister = answer.Addresses[a], false
		return nil
	}
	return err
}

func (r *reference) settle(iter.Seq[string]) error {
	r.Lock()
	defer r.Unlock()
	return r.registerNow()
}

// registerNow registers, and replaces the owned addresses with the addresses in the answer.
func (r *reference) registerNow() error {
	answer, err := r.registered()
	if err != nil {
		return err
	}
	if err := r.kill(); err != nil {
		return err
	}
	return r.replace(answer)
}

func (r *reference) registered() (map[netip.Addr]string, error) {
	if r.mutation != registerByReading {
		answer, err := r.call(datastore.Register)
		return answer.Addresses, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	root := "/plumb/v1/nemesis/"
	if _, err := r.direct.Put(ctx, root+"node/"+r.name, fmt.Sprintf("machine-of-%s boot%d", r.name, r.boot)); err != nil {
		return nil, err
	}
	resp, err := r.direct.Get(ctx, root+"n/"+r.name+"/", clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	all := map[netip.Addr]string{}
	for _, kv := range resp.Kvs {
		claim, _, _ := strings.Cut(string(kv.Value), " ")
		all[keyAddr(string(kv.Key))] = claim
	}
	return all, nil
}

// replace writes the owned file. It reports reservations for addresses that the node has lost.
func (r *reference) replace(owned map[netip.Addr]string) error {
	if r.files.boot != r.boot {
		r.files.reservations = map[netip.Addr]string{}
	}
	for a, container := range r.files.reservations {
		if _, ok := owned[a]; !ok && r.mutation == none && r.ledger.uses(a, container) {
			r.fail("%s has lost %v, which container %s uses", r.name, a, container)
		}
	}
	r.files.owned, r.files.boot, r.files.mustRegister = maps.Clone(owned), r.boot, false
	if r.files.owned == nil {
		r.files.owned = map[netip.Addr]string{}
	}
	return nil
}

func (r *reference) resync() error {
	r.Lock()
	defer r.Unlock()
	owned := r.files.owned
	if r.files.boot != r.boot {
		owned = nil
	}
	answer, err := r.call(datastore.Resync, addresses(owned))
	if err != nil {
		return err
	}
	r.files.seen = answer.Revision
	if len(answer.Conflicts) > 0 {
		return fmt.Errorf("%s: conflicts %v", r.name, answer.Conflicts)
	}
	return r.replace(answer.Addresses)
}

func (r *reference) del(container string) error {
	r.Lock()
	defer r.Unlock()
	for a, c := range r.files.reservations {
		if c == container {
			delete(r.files.reservations, a)
		}
	}
	if err := r.kill(); err != nil {
		return err
	}
	return r.giveBack()
}

// giveBack releases unused addresses down to half of the warm pool, if there are more than the whole warm pool.
func (r *reference) giveBack() error {
	if r.files.boot != r.boot {
		return nil
	}
	var idle []netip.Addr
	for a := range r.files.owned {
		if r.files.reservations[a] == "" {
			idle = append(idle, a)
		}
	}
	if len(idle) <= r.warmPool() {
		return nil
	}
	surplus := map[netip.Addr]string{}
	for _, a := range idle[:len(idle)-r.warmPool()/2] {
		surplus[a] = r.files.owned[a]
	}
	unsure := r.files.mustRegister
	if r.mutation == etcdBeforeFile {
		if _, err := r.call(datastore.Release, addresses(surplus)); err != nil {
			return err
		}
		if err := r.kill(); err != nil {
			return err
		}
	}
	r.files.mustRegister = true
	for a := range surplus {
		delete(r.files.owned, a)
	}
	if err := r.kill(); err != nil {
		return err
	}
	if r.mutation != etcdBeforeFile {
		if _, err := r.call(datastore.Release, addresses(surplus)); err != nil {
			return err
		}
	}
	r.files.mustRegister = unsure
	return nil
}

func (r *reference) reboot() {
	if process := r.process.Load(); process != nil {
		_ = process.Kill()
	}
	r.Lock()
	defer r.Unlock()
	r.boot++
}

func (r *reference) owned() map[netip.Addr]string {
	r.Lock()
	defer r.Unlock()
	return maps.Clone(r.files.owned)
}

func (r *reference) isSettled() bool {
	r.Lock()
	defer r.Unlock()
	return !r.files.mustRegister && r.files.boot == r.boot
}
