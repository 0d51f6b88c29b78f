package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/owned"
	"github.com/plumb-cni/plumb/v2/test/nstest"
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
			nstest.Must(t, os.WriteFile(id, []byte("m"), 0o600))
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
			st, ok := owned.Parse(string(text))
			if err != nil || !ok {
				t.Fatalf("%v: %s", err, text)
			}
			for ip := range st.Claims {
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
