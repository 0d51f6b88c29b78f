package datastore

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var (
	duration = flag.Duration("nemesis", 20*time.Second, "how long the nemesis runs the executables with the usual settings; 8 s with -short")
	settings = flag.Duration("settings", 5*time.Second, "how long the nemesis runs the executables with each of the other settings, and the reference client; 8 s with -short")
)

// With these values, the containers of the nemesis use nine tenths of the pool.
const (
	nodes         = 12
	maxContainers = 9 // the largest number of containers per node
	poolSize      = 120
	segment       = "nemesis"
)

func poolAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 7, 0, byte(i + 1)}) }

// keyAddr returns the IPv4 address at the end of a key.
func keyAddr(key string) netip.Addr {
	b, _ := hex.DecodeString(key[strings.LastIndexByte(key, '/')+1:])
	a, _ := netip.AddrFromSlice(b)
	return a
}

// runWithoutDuplicates runs the nemesis for a time, and until an ADD succeeds, which takes longer on a busy machine. It
// fails the spec if two containers used one address, or if nodes and store disagree.
func (n *nemesis) runWithoutDuplicates(d time.Duration) {
	GinkgoHelper()
	if testing.Short() {
		d = 8 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), d+10*time.Minute)
	defer cancel()
	limit := time.AfterFunc(d, func() {
		<-n.ledger.firstAdd
		cancel()
	})
	defer limit.Stop()
	n.runFor(ctx)
	Expect(n.ledger.duplicates).To(BeEmpty())
	Expect(n.ledger.adds).NotTo(BeZero())
	n.settle()
	Expect(n.failures).To(BeEmpty())
}

// A nemesis consists of nodes that continuously add and delete containers, and of disturbances of the members.
type nemesis struct {
	*cluster
	bed               bed
	disturbOnce       func(ctx context.Context, i int)  // breaks a part of the store for some seconds
	restoreStore      func(file string)                 // restores the store from a snapshot
	datastoreOf       func(node string) json.RawMessage // the datastore's configuration of a node
	caller            caller
	operator          *nstest.NS // a namespace that reaches the members even if the nodes do not
	operatorDatastore json.RawMessage
	farDatastore      json.RawMessage // operatorDatastore with long round trips
	direct            *clientv3.Client
	mutation          mutation
	ledger            *ledger
	nodes             []*machineNode

	killRate                                 atomic.Value // a float64, the share of killed calls of datastore and plugin
	calls, kills, unknown, reboots, replaced atomic.Int64
	replaces                                 bool // a node may be another machine after a boot
	sync.Mutex
	failures  []string
	claims    int
	lastClaim time.Time
	noClaim   time.Duration // the longest time without a claim
}

func (n *nemesis) fail(format string, args ...any) {
	n.Lock()
	defer n.Unlock()
	n.failures = append(n.failures, fmt.Sprintf(format, args...))
}

func (n *nemesis) claimed(addresses int) {
	n.Lock()
	defer n.Unlock()
	n.claims += addresses
	n.noClaim, n.lastClaim = max(n.noClaim, time.Since(n.lastClaim)), time.Now()
}

// A machineNode is a node, with the containers that its runtime knows.
type machineNode struct {
	*nemesis
	plugin
	name string
	sync.Mutex
	boots      int
	next       int
	containers map[string][]netip.Addr
	calls      sync.RWMutex // locked during GC, because a runtime does not call ADD then
}

// newNemesis starts a cluster without nodes.
func newNemesis(m mutation) *nemesis {
	GinkgoHelper()
	c := newCluster(3)
	n := &nemesis{cluster: c, mutation: m, ledger: newLedger(), operator: nstest.NewHost(GinkgoTB()).Named("operator"),
		direct: c.connect("root", c.members...), caller: c.newCaller(segment, "", "10.7.0.1-"+poolAddr(poolSize-1).String())}
	c.plug(n.operator, "operator", "10.9.0.101")
	lateReleases := 10
	if m == registerByReading { // this mutation matters only if etcd applies a release after the next register
		lateReleases = 2
	}
	endpoints, far := []string{c.members[0].fullEndpoint(8)}, []string{}
	for _, m := range c.members {
		endpoints = append(endpoints, m.slowEndpoint(randomDelay(lateReleases)))
		far = append(far, m.slowEndpoint(farAway))
	}
	n.caller.base.Datastore = c.datastoreConfig("node", map[string]any{"timeout": 1, "endpoints": endpoints})
	n.bed, n.restoreStore, n.disturbOnce = c, c.restore, n.disturbMember
	n.datastoreOf = func(string) json.RawMessage { return n.caller.base.Datastore }
	n.operatorDatastore, n.farDatastore = c.datastoreConfig("node", nil), c.datastoreConfig("node", map[string]any{"timeout": 5, "endpoints": far})
	n.killRate.Store(0.05)
	return n
}

// addNodes creates nodes without starting them.
func (n *nemesis) addNodes(count int, newPlugin func(name string) plugin) {
	for i := range count {
		name := fmt.Sprintf("n%d", i+1)
		n.nodes = append(n.nodes, &machineNode{nemesis: n, plugin: newPlugin(name), name: name, containers: map[string][]netip.Addr{}})
	}
}

// newReferenceNemesis returns a nemesis with reference clients.
func newReferenceNemesis(m mutation) *nemesis {
	GinkgoHelper()
	n := newNemesis(m)
	n.addNodes(nodes, func(name string) plugin { return newReference(n, name) })
	return n
}

func (m *machineNode) step() {
	m.Lock()
	boots, add := m.boots, len(m.containers) == 0 || len(m.containers) < maxContainers && rand.IntN(100) < 55
	var container string
	if add {
		m.next++
		container = fmt.Sprintf("%s-%d", m.name, m.next)
	} else {
		all := slices.Collect(maps.Keys(m.containers))
		container = all[rand.IntN(len(all))]
		m.ledger.removed(container, m.containers[container]...)
		delete(m.containers, container)
	}
	m.Unlock()
	if add && m.addContainer(container, boots) {
		return
	}
	_ = m.del(container) // a runtime also calls DEL after a failed ADD
}

// addContainer adds a container. It reports whether the container got an address and the node did not boot in the
// meantime.
func (m *machineNode) addContainer(container string, boots int) bool {
	m.calls.RLock()
	defer m.calls.RUnlock()
	addrs, err := m.add(container)
	m.Lock()
	defer m.Unlock()
	if err != nil || m.boots != boots {
		return false
	}
	m.ledger.added(container, addrs...)
	m.containers[container] = addrs
	return true
}

// collect calls GC, as the error of resync advises. The disk may be a copy of another node's disk, and contain
// reservations for containers that never ran on this node.
func (m *machineNode) collect() {
	m.calls.Lock()
	defer m.calls.Unlock()
	m.Lock()
	running := slices.Collect(maps.Keys(m.containers))
	m.Unlock()
	_ = m.plugin.settle(slices.Values(running))
}

// bootAgain ends all containers of the node.
func (m *machineNode) bootAgain() {
	m.Lock()
	defer m.Unlock()
	for container, addrs := range m.containers {
		m.ledger.removed(container, addrs...)
	}
	m.containers = map[string][]netip.Addr{}
	m.boots++
	m.reboot()
	m.reboots.Add(1)
}

// load runs the nodes until the context ends.
func (n *nemesis) load(ctx context.Context, group *sync.WaitGroup) {
	n.lastClaim = time.Now()
	for _, m := range n.nodes {
		for range 2 {
			group.Go(func() {
				for ctx.Err() == nil {
					m.step()
					pause(ctx, time.Duration(rand.IntN(60))*time.Millisecond)
				}
			})
		}
	}
	group.Go(func() {
		for ctx.Err() == nil {
			n.nodes[rand.IntN(len(n.nodes))].bootAgain()
			pause(ctx, time.Duration(rand.IntN(800))*time.Millisecond)
		}
	})
}

// removeReplaced calls remove-node for the replaced machines, as an operator does. Meanwhile, the last claim of
// each of these machines is still on its way.
func (n *nemesis) removeReplaced(from *nstest.NS, config json.RawMessage) {
	GinkgoHelper()
	ask := func(verb string, changes ...func(*datastore.Request)) datastore.Answer {
		request := n.caller.request(verb, changes...)
		request.Datastore = config
		return call(from, request)
	}
	registered := ask(datastore.List).Nodes
	for _, m := range n.nodes {
		old, is := registered[m.name]
		if !is || strings.Contains(old.Machine, m.plugin.(*executable).machineID()) {
			continue
		}
		_ = inParallel(2, func(i int) error {
			if i == 0 {
				ask(datastore.Claim, node(m.name), machine(old.Machine), boot(old.Boot), want(poolSize/2))
			} else {
				ask(datastore.RemoveNode, target(m.name), machine(old.Machine), boot(old.Boot))
			}
			return nil
		})
	}
}

// pause waits for a time, or until the context ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// A disturbance breaks a member, and repairs it.
type disturbance struct {
	name          string
	begin, repair func(*member)
}

var disturbances = []disturbance{
	{"stop", func(m *member) { m.signal(syscall.SIGSTOP) }, func(m *member) { m.signal(syscall.SIGCONT) }},
	{"kill -9", func(m *member) { m.kill() }, func(m *member) { m.start() }},
	{"cut off from peers", func(m *member) { m.setPeers("add") }, func(m *member) { m.setPeers("del") }},
	{"cut off from all", func(m *member) { m.setLink(m.name, "down") }, func(m *member) { m.setLink(m.name, "up") }},
}

// disturbMember breaks a member, mostly the leader.
func (n *nemesis) disturbMember(ctx context.Context, i int) {
	GinkgoHelper()
	d := disturbances[i%len(disturbances)]
	m := n.leader()
	if m == nil || rand.IntN(4) == 0 {
		m = n.members[rand.IntN(len(n.members))]
	}
	d.begin(m)
	pause(ctx, 3*time.Second)
	d.repair(m)
}

// Until the context ends, disturb breaks one part of the store after the other.
func (n *nemesis) disturb(ctx context.Context) {
	GinkgoHelper()
	for i := 0; ctx.Err() == nil; i++ {
		n.disturbOnce(ctx, i)
		pause(ctx, 2*time.Second)
		if i%8 == 7 && n.mutation == none {
			n.restoreSnapshot(ctx)
		}
	}
}

// restoreSnapshot restores an earlier state of the cluster, as datastore/README.md describes.
func (n *nemesis) restoreSnapshot(ctx context.Context) {
	GinkgoHelper()
	file := filepath.Join(GinkgoT().TempDir(), "snapshot")
	n.awaitReady()
	n.save(file)
	pause(ctx, 2*time.Second)
	n.setLink("clients", "down")
	n.restoreStore(file)
	operator := n.caller.request(datastore.Freeze)
	operator.Node, operator.Datastore = "operator", n.operatorDatastore
	Eventually(func() *datastore.Error { return call(n.operator, operator).Error }, "2m", "100ms").Should(BeNil())
	n.setLink("clients", "up")
	n.resyncAll()
	operator.Verb = datastore.Thaw
	Eventually(func() *datastore.Error { return call(n.operator, operator).Error }, "2m", "100ms").Should(BeNil())
	n.Lock()
	defer n.Unlock()
	n.lastClaim = time.Now() // no node could claim during the restore
}

// resyncAll calls resync on each node until the call succeeds. resync fails while a container uses another node's
// address, if the call is killed, and if etcd does not answer in time.
func (n *nemesis) resyncAll() {
	GinkgoHelper()
	Expect(inParallel(len(n.nodes), func(i int) error {
		Eventually(func() error {
			err := n.nodes[i].plugin.resync()
			if err != nil && n.replaces {
				n.nodes[i].collect()
			}
			return err
		}, "5m", "100ms").Should(Succeed(), n.nodes[i].name)
		return nil
	})).To(Succeed())
}

// settle compares the nodes' addresses with etcd before and after settleNodes.
func (n *nemesis) settle() {
	GinkgoHelper()
	n.killRate.Store(0.0)
	n.awaitReady()
	if n.replaces {
		n.removeReplaced(n.operator, n.operatorDatastore)
	}
	for _, m := range n.nodes {
		if m.plugin.isSettled() {
			Expect(m.plugin.owned()).To(Equal(owned(n.bed, segment, m.name)), "%s, which need not register", m.name)
		}
	}
	n.settleNodes()
}

// owners returns the node and claim of each owned address of a segment.
func (c *cluster) owners(segment string) map[netip.Addr]string {
	GinkgoHelper()
	owners, lists := map[netip.Addr]string{}, map[netip.Addr]string{}
	for key, value := range c.dump(segment) {
		switch parts := strings.Split(key, "/"); parts[0] {
		case "a":
			owners[keyAddr(key)] = value
		case "n":
			claim, _, _ := strings.Cut(value, " ")
			lists[keyAddr(key)] = parts[1] + " " + claim
		}
	}
	Expect(lists).To(Equal(owners), "the list by address and the lists by node")
	return owners
}

// settleNodes calls settle on each node until the node has registered, and then compares the addresses with etcd. A
// majority of the members must be ready.
func (n *nemesis) settleNodes() {
	GinkgoHelper()
	for _, m := range n.nodes {
		Eventually(func() error { return m.plugin.settle(maps.Keys(m.containers)) }, "2m", "100ms").Should(Succeed(), m.name)
	}
	owners := n.bed.owners(segment)
	for _, m := range n.nodes {
		for a := range m.plugin.owned() {
			node, _, _ := strings.Cut(owners[a], " ")
			Expect(node).To(Equal(m.name), "the owner of %v", a)
			delete(owners, a)
		}
		for container, addrs := range m.containers {
			for _, a := range addrs {
				Expect(m.plugin.owned()).To(HaveKey(a), "the address of %s", container)
			}
		}
	}
	Expect(owners).To(BeEmpty(), "no node knows these addresses")
}

// report prints the figures of a run.
func (n *nemesis) report(took time.Duration) {
	n.Lock()
	defer n.Unlock()
	datastoreCalls := "" // empty for the executables, which call the datastore themselves
	if n.calls.Load() > 0 {
		datastoreCalls = fmt.Sprintf("%d addresses claimed, %d calls of the datastore, %d unknown outcomes, longest time without a claim %v, ",
			n.claims, n.calls.Load(), n.unknown.Load(), n.noClaim.Round(10*time.Millisecond))
	}
	AddReportEntry("figures", fmt.Sprintf("%v: %d ADDs (%.0f per second), %s%d kills, %d reboots, %d replaced machines; longest time without an ADD %v; %d duplicates",
		took.Round(time.Second), n.ledger.adds, float64(n.ledger.adds)/took.Seconds(), datastoreCalls, n.kills.Load(), n.reboots.Load(), n.replaced.Load(),
		n.ledger.longest.Round(10*time.Millisecond), len(n.ledger.duplicates)))
}

func (n *nemesis) runFor(ctx context.Context) {
	GinkgoHelper()
	start := time.Now()
	var group sync.WaitGroup
	running, cancel := context.WithCancel(context.Background()) // ends with the disturbances
	ctx, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		cancel()
		group.Wait()
		n.report(time.Since(start))
	}()
	group.Go(func() {
		defer GinkgoRecover()
		for n.replaces && running.Err() == nil {
			n.removeReplaced(n.clients, n.farDatastore)
			pause(running, 200*time.Millisecond)
		}
	})
	n.load(ctx, &group)
	n.disturb(ctx)
}

// free returns the addresses that the node owns and no container uses.
func (m *machineNode) free() map[netip.Addr]string {
	all := m.plugin.owned()
	for _, addrs := range m.containers {
		for _, a := range addrs {
			delete(all, a)
		}
	}
	return all
}

var _ = Describe("the nemesis", func() {
	It("finds no address in use by two containers", func() {
		newReferenceNemesis(none).runWithoutDuplicates(*settings)
	})

	for _, m := range []mutation{registerByReading, etcdBeforeFile, timeoutIsClaim} {
		It("finds duplicates with the mutation "+string(m), func() {
			n := newReferenceNemesis(m)
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
			defer cancel()
			found := errors.New("found")
			ctx, stop := context.WithCancelCause(ctx)
			n.ledger.onDuplicate = func() { stop(found) }
			n.runFor(ctx)
			Expect(context.Cause(ctx)).To(MatchError(found))
			GinkgoWriter.Println(n.ledger.duplicates[0])
		})
	}
})
