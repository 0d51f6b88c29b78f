package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/test/nstest"
)

// kill runs a call in a process that kills itself at a step. It returns false if the call has fewer steps.
func (n *testNode) kill(at int, call nstest.Call) bool {
	GinkgoHelper()
	binary, err := helper()
	Expect(err).NotTo(HaveOccurred())
	cmd := call.Cmd(binary)
	cmd.Env = append(cmd.Env, "KILL_AT_STEP="+strconv.Itoa(at), "BOOT_ID="+n.BootID, "NODE="+n.name)
	err = cmd.Run()
	var status *exec.ExitError
	if err != nil && !errors.As(err, &status) {
		Fail(err.Error())
	}
	return cmd.ProcessState.ExitCode() == -1
}

var _ = Describe("a kill at each step", func() {
	none := variant{IPAM: `"subnet": "10.1.2.0/24", "warmPool": 0`}
	var n *testNode
	BeforeEach(func() { n = newNode(newCluster(GinkgoTB()), "n1") })

	// eachStep runs a call repeatedly, and kills it before or after the next step of a sample (nstest.SweepStride),
	// until the call has no more steps. It calls prepare before each call, and check after it.
	eachStep := func(command string, prepare, check func()) {
		GinkgoHelper()
		for _, sign := range []int{1, -1} {
			stride := nstest.SweepStride()
			for k := 1 + rand.IntN(stride); ; k += stride {
				prepare()
				By(fmt.Sprintf("step %d", k*sign))
				killed := n.kill(k*sign, n.Call("victim", variant{IPAM: none.IPAM, More: `"cni.dev/valid-attachments": []`}).With(command))
				n.expectNoForeign()
				check()
				if !killed {
					Expect(k).To(BeNumerically(">", 3))
					break
				}
			}
		}
	}
	collect := func() {
		GinkgoHelper()
		n.del("other", none)
		n.del("victim", none)
		n.gcWith(none).OK(GinkgoTB())
		n.expectAgreement()
		Expect(n.cluster.owned("n1")).To(BeEmpty())
	}

	It("of the first ADD after a boot leaves only what GC finds", func() {
		boot := 0
		eachStep("ADD", func() {
			boot++
			n.Boot(fmt.Sprint("boot-", boot))
			n.add("other", none)
			n.del("other", none)
			n.Boot(fmt.Sprint("next-", boot))
		}, collect)
	})
	It("of an ADD that calls the datastore leaves only what GC finds", func() {
		eachStep("ADD", func() { n.add("other", none) }, collect)
	})
	It("of an ADD leaves only what the next ADD registers", func() {
		eachStep("ADD", func() { n.add("other", none) }, func() {
			n.del("other", none)
			n.del("victim", none)
			for _, id := range []string{"x", "y"} {
				n.add(id, none)
			}
			n.expectAgreement()
			n.del("x", none)
			n.del("y", none)
			n.expectAgreement()
		})
	})
	It("of a DEL leaves only what the next DEL and GC return", func() {
		eachStep("DEL", func() { n.add("victim", none); clear(n.inUse) }, collect)
	})
	It("of a GC leaves only what the next GC returns", func() {
		eachStep("GC", func() { n.add("victim", none); clear(n.inUse) }, collect)
	})
})

// TestFaults sweeps over the steps of ADD and DEL. Without a warm pool, each of them calls the datastore.
func TestFaults(t *testing.T) {
	for name, keys := range map[string]string{"with a warm pool": ``, "without a warm pool": `, "warmPool": 0`} {
		t.Run(name, func(t *testing.T) {
			c, dir := newCluster(t), t.TempDir()
			id := filepath.Join(t.TempDir(), "id")
			if err := os.WriteFile(id, []byte("m"), 0o600); err != nil {
				t.Fatal(err)
			}
			h := thisHost()
			h.identity = []string{id}
			nstest.FaultSweep(t, nstest.Sweep{
				Plugin: h.plugin(), Path: c.dir, Dirs: []string{dir}, Ignore: nstest.KeptByHostLocal,
				// After a fault that left the outcome of a call unknown, ADD also returns a surplus, and only warns if that fails.
				MayFail: []string{"lock " + filepath.Join(dir, "net")},
				Config: fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "type": "bridge", "ipam": {"type": "cluster-local", "node": "n1", "dataDir": %q,
					"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/112"}]], "datastore": {"type": "fake-datastore", "timeout": 60}%s}}`, dir, keys),
			})
			text, err := os.ReadFile(filepath.Join(dir, ".plumb", ".owned", "net"))
			st, ok := parseState(string(text))
			if err != nil || !ok {
				t.Fatalf("%v: %s", err, text)
			}
			for ip := range st.claims {
				if _, owned := c.owned("n1")[ip]; !owned {
					t.Errorf("the node may allocate %s, which it does not own", ip)
				}
			}
		})
	}
}

var _ = Describe("many calls at a time", func() {
	It("on two nodes get different addresses, with fewer calls of the datastore than ADDs", func() {
		n1 := newNode(newCluster(GinkgoTB()), "n1")
		n2 := n1.peer("n2")
		var mu sync.Mutex
		var wg sync.WaitGroup
		count := nstest.FullOrShort(80, 20)
		for i := range count {
			for _, n := range []*testNode{n1, n2} {
				wg.Go(func() {
					defer GinkgoRecover()
					id := fmt.Sprint("c", i)
					r := nstest.Run(n.Plugin(), n.Call(id, variant{}).With("ADD"))
					ip := r.Result(GinkgoTB()).IPs[0].Address.Addr().String()
					mu.Lock()
					defer mu.Unlock()
					Expect(n.inUse[ip]).To(BeEmpty())
					n.inUse[ip] = n.name + "/" + id
				})
			}
		}
		wg.Wait()
		Expect(n1.inUse).To(HaveLen(2 * count))
		Expect(len(n1.cluster.calls())).To(BeNumerically("<", count))
		for _, n := range []*testNode{n1, n2} {
			for i := range count {
				wg.Go(func() {
					defer GinkgoRecover()
					nstest.Run(n.Plugin(), n.Call(fmt.Sprint("c", i), variant{}).With("DEL")).OK(GinkgoTB())
				})
			}
		}
		wg.Wait()
		for _, n := range []*testNode{n1, n2} {
			n.expectAgreement()
			Expect(len(n.cluster.owned(n.name))).To(BeNumerically("<=", 8))
		}
	})
})

// A storm calls nodes in random order, while the datastore misbehaves, and nodes reboot and are killed.
type storm struct {
	*rand.Rand
	nodes []*testNode
	live  map[string]*testNode // the node of each container, by "node/container"
	keys  variant
	n     int
}

var _ = Describe("with random faults", func() {
	It("no two containers of the segment use one address at the same time", func() {
		seed := uint64(GinkgoRandomSeed())
		n1 := newNode(newCluster(GinkgoTB()), "n1")
		s := &storm{
			Rand: rand.New(rand.NewPCG(seed, 1)), live: map[string]*testNode{},
			nodes: []*testNode{n1, n1.peer("n2"), n1.peer("n3")},
			keys:  variant{IPAM: `"subnet": "10.1.2.0/27", "warmPool": 4`},
		}
		for range nstest.FullOrShort(600, 80) {
			s.step()
		}
		n1.cluster.change(func(st *fakeState) { st.Script = nil })
		for _, n := range s.nodes {
			n.Clock += time.Hour
			n.gcWith(s.keys, s.idsOn(n)...).OK(GinkgoTB())
			n.cluster.applyLate()
			n.expectAgreement()
		}
	})
})

func (s *storm) idsOn(n *testNode) (ids []string) {
	for name, node := range s.live {
		if node == n {
			ids = append(ids, strings.TrimPrefix(name, n.name+"/"))
		}
	}
	return ids
}

// step runs one random operation on a random node.
func (s *storm) step() {
	GinkgoHelper()
	n := s.nodes[s.IntN(len(s.nodes))]
	n.Clock += time.Duration(s.IntN(20)) * time.Second
	switch p := s.IntN(100); {
	case p < 40:
		s.add(n)
	case p < 70:
		s.del(n)
	case p < 80:
		faults := []string{"die", "done, die", "done, unknown", "done, garbage", "refuse unreachable"}
		if verb := []string{"claim", "register", "release", "release"}[s.IntN(4)]; verb == "release" && s.IntN(2) == 0 {
			n.cluster.script(verb, "later")
		} else {
			n.cluster.script(verb, faults[s.IntN(len(faults))])
		}
	case p < 88:
		n.cluster.applyLate()
	case p < 91:
		n.gcWith(s.keys, s.idsOn(n)...)
	case p < 94:
		s.reboot(n)
	default:
		s.killed(n)
	}
	n.expectNoForeignIfAny()
}

// add starts a container. If ADD fails, the runtime calls DEL.
func (s *storm) add(n *testNode) {
	GinkgoHelper()
	s.n++
	id := fmt.Sprint("c", s.n)
	if r := n.Run("ADD", id, s.keys); r.Exit == 0 {
		ip := r.Result(GinkgoTB()).IPs[0].Address.Addr().String()
		Expect(n.inUse[ip]).To(BeEmpty(), "%s for %s/%s", ip, n.name, id)
		n.inUse[ip], s.live[n.name+"/"+id] = n.name+"/"+id, n
		return
	}
	n.Run("DEL", id, s.keys).OK(GinkgoTB())
}

// del ends a container of the node.
func (s *storm) del(n *testNode) {
	GinkgoHelper()
	for _, id := range s.idsOn(n) {
		delete(s.live, n.name+"/"+id)
		n.del(id, s.keys)
		return
	}
}

// reboot ends all containers of a node without DEL. The file of the owned addresses may be lost.
func (s *storm) reboot(n *testNode) {
	GinkgoHelper()
	for a, user := range n.inUse {
		if strings.HasPrefix(user, n.name+"/") {
			delete(n.inUse, a)
		}
	}
	for _, id := range s.idsOn(n) {
		delete(s.live, n.name+"/"+id)
	}
	s.n++
	n.Boot(fmt.Sprint("boot-", s.n))
	if s.IntN(2) == 0 {
		_ = os.Remove(n.ownedFile())
	}
}

// killed starts or ends a container with a process that is killed. The runtime then calls DEL, or GC later.
func (s *storm) killed(n *testNode) {
	GinkgoHelper()
	s.n++
	id, command := fmt.Sprint("c", s.n), "ADD"
	if ids := s.idsOn(n); len(ids) > 0 && s.IntN(2) == 0 {
		id, command = ids[0], "DEL"
		delete(s.live, n.name+"/"+id)
		for a, user := range n.inUse {
			if user == n.name+"/"+id {
				delete(n.inUse, a)
			}
		}
	}
	at := s.IntN(12) + 1
	n.kill(at*(1-2*s.IntN(2)), n.Call(id, s.keys).With(command))
	if s.IntN(2) == 0 {
		n.Run("DEL", id, s.keys).OK(GinkgoTB())
	}
}

// expectNoForeignIfAny is expectNoForeign for a node that may have run no ADD yet. It ignores a state of an earlier boot.
func (n *testNode) expectNoForeignIfAny() {
	GinkgoHelper()
	text, err := os.ReadFile(n.ownedFile())
	if err != nil {
		return
	}
	boot, err := os.ReadFile(n.BootID)
	Expect(err).NotTo(HaveOccurred())
	st, ok := parseState(string(text))
	Expect(ok).To(BeTrue(), "%s", text)
	if st.boot != strings.TrimSpace(string(boot)) {
		return
	}
	owned := n.cluster.owned(n.name)
	for ip := range st.claims {
		Expect(owned).To(HaveKey(ip))
	}
}

var _ = Describe("in a pool that is half full", func() {
	It("one ADD in five calls the datastore, at most", func() {
		nodes := []*testNode{newNode(newCluster(GinkgoTB()), "n1")}
		for i := range 7 {
			nodes = append(nodes, nodes[0].peer(fmt.Sprint("n", i+2)))
		}
		r := rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), 2))
		type container struct {
			node *testNode
			id   string
		}
		var live []container
		next := 0
		add := func() {
			next++
			c := container{nodes[r.IntN(len(nodes))], fmt.Sprint("c", next)}
			c.node.add(c.id, variant{})
			live = append(live, c)
		}
		for range 120 {
			add()
		}
		nodes[0].cluster.calls()
		pairs := nstest.FullOrShort(600, 100)
		for range pairs {
			i := r.IntN(len(live))
			live[i].node.del(live[i].id, variant{})
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
			add()
		}
		calls := len(nodes[0].cluster.calls())
		AddReportEntry("calls of the datastore for a pair of ADD and DEL", fmt.Sprintf("%.2f", float64(calls)/float64(pairs)))
		Expect(calls).To(BeNumerically("<=", pairs/5))
	})
})
