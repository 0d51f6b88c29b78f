package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/engine"
)

// An executable is cluster-local with cluster-local-etcd on one node, which has a boot ID, a machine ID and
// files of its own.
type executable struct {
	*nemesis
	name, dir string
	running   sync.RWMutex // locked while the node boots
	processes sync.Map     // *os.Process: of the calls that run
}

// pluginPath returns the path of cluster-local, beside which is cluster-local-etcd.
func pluginPath() string {
	GinkgoHelper()
	path := filepath.Join(filepath.Dir(enginePath), "cluster-local")
	if _, err := os.Stat(path); os.Getenv("PLUMB_BIN") == "" && err != nil {
		build("../..", path, "-trimpath", "./plugins/cluster-local")
	}
	return path
}

// newExecutable returns a node that has not been up yet. Its program runs with the boot ID and the machine ID of
// the node, which are mounted in a namespace of its own.
func newExecutable(n *nemesis, name string) *executable {
	GinkgoHelper()
	x := &executable{nemesis: n, name: name, dir: GinkgoT().TempDir()}
	x.write("boot_id", name+"-boot-0\n")
	x.write("machine-id", "machine-of-"+name+"\n")
	x.write("run", fmt.Sprintf("#!/bin/sh\nexec unshare --mount sh -c 'mount --bind %[1]s/boot_id /proc/sys/kernel/random/boot_id && mount --bind %[1]s/machine-id /etc/machine-id && exec %[2]s \"$@\"' sh \"$@\"\n",
		x.dir, pluginPath()))
	Expect(os.Chmod(filepath.Join(x.dir, "run"), 0o700)).To(Succeed())
	return x
}

func (x *executable) write(file, text string) {
	GinkgoHelper()
	Expect(os.WriteFile(filepath.Join(x.dir, file), []byte(text), 0o600)).To(Succeed())
}

// config returns the network configuration. The gateway is outside of the range, so that all of it is the pool.
func (x *executable) config() string {
	return fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "type": "macvlan", "ipam": {"type": "cluster-local", "node": %q, "dataDir": %q,
		"subnet": "10.7.0.0/24", "rangeStart": "10.7.0.1", "rangeEnd": %q, "gateway": "10.7.0.254", "engine": %s}}`,
		segment, x.name, filepath.Join(x.dir, "networks"), poolAddr(poolSize-1), x.caller.base.Engine)
}

// exec runs the program, and kills it now and then. It returns what the program printed to stdout.
func (x *executable) exec(env []string, args ...string) (string, error) {
	x.running.RLock()
	defer x.running.RUnlock()
	cmd := exec.Command(filepath.Join(x.dir, "run"), args...)
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(x.config()), &out, &errOut
	cmd.Env = append(env, "PATH="+os.Getenv("PATH"), "CNI_PATH="+filepath.Dir(enginePath))
	if err := x.clients.Start(cmd); err != nil {
		return "", err
	}
	x.processes.Store(cmd.Process, true)
	defer x.processes.Delete(cmd.Process)
	if rand.Float64() < 2*x.killRate.Load().(float64) {
		x.kills.Add(1)
		time.AfterFunc(time.Duration(rand.IntN(150))*time.Millisecond, func() { _ = cmd.Process.Kill() })
	}
	err := cmd.Wait()
	switch {
	case err != nil && !cmd.ProcessState.Exited():
		return "", errKilled
	case err != nil:
		return "", errors.New(out.String() + errOut.String())
	}
	return out.String(), nil
}

func (x *executable) call(command, container string) (string, error) {
	return x.exec([]string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + container, "CNI_IFNAME=eth0", "CNI_NETNS=/dev/null"})
}

func (x *executable) add(container string) (netip.Addr, error) {
	out, err := x.call("ADD", container)
	if err != nil {
		return netip.Addr{}, err
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil || len(result.IPs) != 1 {
		return netip.Addr{}, fmt.Errorf("result %s: %w", out, err)
	}
	return result.IPs[0].Address.Addr(), nil
}

// del calls DEL, which only a kill may fail.
func (x *executable) del(container string) error {
	_, err := x.call("DEL", container)
	if err != nil && !errors.Is(err, errKilled) {
		x.fail("DEL of %s: %v", container, err)
	}
	return err
}

func (x *executable) reassert() error {
	_, err := x.exec(nil, "reassert")
	return err
}

func (x *executable) adopt() error { return x.reassert() }

// reboot kills all calls of the node. The file of the owned addresses may be lost.
func (x *executable) reboot() {
	x.processes.Range(func(p, _ any) bool {
		_ = p.(*os.Process).Kill()
		return true
	})
	x.running.Lock()
	defer x.running.Unlock()
	x.write("boot_id", fmt.Sprintf("%s-boot-%d\n", x.name, rand.Uint64()))
	if rand.IntN(2) == 0 {
		_ = os.Remove(x.ownedFile())
	}
}

func (x *executable) ownedFile() string {
	return filepath.Join(x.dir, "networks", ".plumb", ".owned", segment)
}

func (x *executable) owned() map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	text, err := os.ReadFile(x.ownedFile())
	if err != nil {
		return all
	}
	for line := range strings.Lines(string(text)) {
		word, _, _ := strings.Cut(line, " ")
		if a, err := netip.ParseAddr(word); err == nil {
			all[a] = true
		}
	}
	return all
}

// newPluginNemesis is newNemesis with the executables of cluster-local.
func newPluginNemesis() *nemesis {
	GinkgoHelper()
	n := newNemesis(none)
	for _, m := range n.nodes {
		m.plugin = newExecutable(n, m.name)
	}
	return n
}

var _ = Describe("cluster-local with etcd", func() {
	It("in the nemesis gives no address twice on the wire", func() {
		n := newPluginNemesis()
		limit := *duration
		if testing.Short() {
			limit = 8 * time.Second
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		n.runFor(ctx)
		Expect(n.wire.duplicates).To(BeEmpty())
		Expect(n.wire.adds).NotTo(BeZero())
		n.settle()
		Expect(n.failures).To(BeEmpty())
	})

	It("allocates, releases and adopts; names a clone, a forgotten node and the owner of an address", func() {
		n := newPluginNemesis()
		n.killRate.Store(0.0)
		n.caller.base.Engine = n.operatorEngine
		n1, n2 := n.nodes[0].plugin.(*executable), n.nodes[1].plugin.(*executable)
		a, err := n1.add("c1")
		Expect(err).NotTo(HaveOccurred())
		Expect(n1.owned()).To(HaveLen(8))
		b, err := n2.add("c1")
		Expect(err).NotTo(HaveOccurred())
		Expect(b).NotTo(Equal(a))

		n2.write("machine-id", "another\n")
		Expect(n2.adopt()).To(MatchError(SatisfyAll(ContainSubstring("machine-of-n2"), ContainSubstring("another"))))
		n2.write("machine-id", "machine-of-n2\n")

		By("forgetting n1, whose address n2 then claims")
		operator := n.caller.request(engine.Forget, target("n1"))
		operator.Node = "operator"
		Expect(call(n.operator, operator).Error).To(BeNil())
		_, err = n2.exec([]string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c2", "CNI_IFNAME=eth0", "CNI_NETNS=/dev/null", "CNI_ARGS=IP=" + a.String()})
		Expect(err).NotTo(HaveOccurred())
		Expect(n1.adopt()).To(MatchError(ContainSubstring("delete container c1, because another node owns its address: cluster-local-etcd: " + a.String() + " belongs to node n2 since ")))
		Expect(n1.del("c1")).To(Succeed())
		Expect(n1.adopt()).To(Succeed())
		_, err = n1.add("c3")
		Expect(err).NotTo(HaveOccurred())

		By("stopping etcd: the node gives its stock")
		for _, m := range n.members {
			m.signal(syscall.SIGSTOP)
		}
		n.caller.base.Engine = n.engineConfig("node", map[string]any{"timeout": 1})
		given := 0
		for i := range 9 {
			if _, err = n1.add(fmt.Sprint("d", i)); err != nil {
				break
			}
			given++
		}
		Expect(err).To(MatchError(SatisfyAll(ContainSubstring(`"code": 11`), ContainSubstring("etcd did not answer within 1s"))))
		Expect(given).To(BeNumerically(">=", 7))
		Expect(n1.del("d0")).To(Succeed())
		for _, m := range n.members {
			m.signal(syscall.SIGCONT)
		}
	})
})

var _ plugin = (*executable)(nil)
