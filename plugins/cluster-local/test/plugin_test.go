package datastore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// An executable runs cluster-local and cluster-local-etcd on one node with its own boot ID, machine ID and files.
type executable struct {
	*nemesis
	setting
	name, dir, machine string
	running            sync.RWMutex // locked while the node boots
	processes          sync.Map     // the *os.Process of each running call
}

// pluginPath returns the path of cluster-local. Its directory also contains cluster-local-etcd.
func pluginPath() string {
	GinkgoHelper()
	path := filepath.Join(filepath.Dir(datastorePath), "cluster-local")
	if _, err := os.Stat(path); os.Getenv("PLUMB_BIN") == "" && err != nil {
		build("../../..", path, "-trimpath", "./plugins/cluster-local")
	}
	return path
}

// A setting is a configuration of cluster-local.
type setting struct {
	name          string
	ipam          string // the keys of ipam, except type, node, dataDir and datastore
	onRequestOnly bool   // some ADDs request an address of requestOnlyPrefix
	empty         bool   // nodes keep no warm pool
}

// The gateways are outside of the ranges, so that the pool contains all addresses of the ranges.
var (
	rangeOf4          = fmt.Sprintf(`{"subnet": "10.7.0.0/24", "rangeStart": "10.7.0.1", "rangeEnd": %q, "gateway": "10.7.0.254"}`, poolAddr(poolSize-1))
	rangeOf6          = fmt.Sprintf(`{"subnet": "fd00:7::/64", "rangeStart": "fd00:7::1", "rangeEnd": "fd00:7::%x", "gateway": "fd00:7::ffff"}`, poolSize)
	requestOnlyPrefix = netip.MustParsePrefix("10.7.0.104/29")

	defaultSetting = setting{name: "the default warm pool", ipam: `"ranges": [[` + rangeOf4 + `]]`}
	otherSettings  = []setting{
		{name: "no warm pool", ipam: `"warmPool": 0, "ranges": [[` + rangeOf4 + `]]`, empty: true},
		{name: "addresses on request only", ipam: fmt.Sprintf(`"onRequestOnly": [%q], "ranges": [[%s]]`, requestOnlyPrefix, rangeOf4), onRequestOnly: true},
		{name: "two address families", ipam: `"ranges": [[` + rangeOf4 + `], [` + rangeOf6 + `]]`},
	}
)

// newExecutable returns a node that has not booted yet. The node's program runs in a mount namespace with the node's
// boot ID, machine ID and data directory.
func newExecutable(n *nemesis, name string, s setting) *executable {
	GinkgoHelper()
	x := &executable{nemesis: n, setting: s, name: name, dir: GinkgoT().TempDir()}
	x.setBoot(0)
	x.setMachine("machine-of-" + name)
	Expect(errors.Join(os.MkdirAll(x.networks(), 0o755), os.MkdirAll(dataDir(), 0o755))).To(Succeed())
	x.write("run", fmt.Sprintf("#!/bin/sh\nexec unshare --mount sh -c 'mount --bind %[1]s/boot_id /proc/sys/kernel/random/boot_id && mount --bind %[1]s/machine-id /etc/machine-id && mount --bind %[3]s %[4]s && exec %[2]s \"$@\"' sh \"$@\"\n",
		x.dir, pluginPath(), x.networks(), dataDir()))
	Expect(os.Chmod(filepath.Join(x.dir, "run"), 0o700)).To(Succeed())
	return x
}

// dataDir returns the path of the data directory on all nodes. networks returns the path on the host at which a node's
// data directory is stored.
func dataDir() string                  { return filepath.Join(filepath.Dir(datastorePath), "networks") }
func (x *executable) networks() string { return filepath.Join(x.dir, "networks") }

func (x *executable) setBoot(id uint64) { x.write("boot_id", fmt.Sprintf("%s-boot-%d\n", x.name, id)) }

func (x *executable) setMachine(id string) {
	x.machine = id
	x.write("machine-id", id+"\n")
}

// copyDisk replaces the data directory with a copy of another node's data directory.
func (x *executable) copyDisk(from *executable) {
	_ = os.RemoveAll(x.networks())
	_ = exec.Command("cp", "-a", from.networks(), x.networks()).Run() // cp fails if files appear or vanish while it runs
	_ = os.MkdirAll(x.networks(), 0o755)
}

func (x *executable) machineID() string {
	x.running.RLock()
	defer x.running.RUnlock()
	return x.machine
}

func (x *executable) write(file, text string) {
	GinkgoHelper()
	Expect(os.WriteFile(filepath.Join(x.dir, file), []byte(text), 0o600)).To(Succeed())
}

// config returns the network configuration with further keys.
func (x *executable) config(more string) string {
	return fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "type": "macvlan", "ipam": {"type": "cluster-local", "node": %q, "dataDir": %q, %s, "datastore": %s}%s}`,
		segment, x.name, dataDir(), x.ipam, x.datastoreOf(x.name), more)
}

// exec runs the program with a configuration, and sometimes kills it. It returns the program's stdout.
func (x *executable) exec(config string, env []string, args ...string) (string, error) {
	x.running.RLock()
	defer x.running.RUnlock()
	cmd := exec.Command(filepath.Join(x.dir, "run"), args...)
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(config), &out, &errOut
	cmd.Env = append(env, "PATH="+os.Getenv("PATH"), "CNI_PATH="+filepath.Dir(datastorePath), deadProxy)
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
		if strings.Contains(out.String()+errOut.String(), "a second machine") {
			x.fail("%s suspects a second machine: %s%s", x.name, &out, &errOut)
		}
		return "", errors.New(out.String() + errOut.String())
	}
	return out.String(), nil
}

func (x *executable) call(command, container, args string) (string, error) {
	return x.exec(x.config(""), []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + container, "CNI_IFNAME=eth0", "CNI_NETNS=/dev/null", "CNI_ARGS=" + args})
}

func (x *executable) add(container string) ([]netip.Addr, error) {
	args := ""
	if x.onRequestOnly && rand.IntN(3) == 0 {
		last := requestOnlyPrefix.Addr().As4()
		last[3] += byte(rand.IntN(8))
		args = "IP=" + netip.AddrFrom4(last).String()
	}
	out, err := x.call("ADD", container, args)
	if err != nil {
		return nil, err
	}
	return addressesOf(out)
}

func addressesOf(out string) (addrs []netip.Addr, err error) {
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	err = json.Unmarshal([]byte(out), &result)
	for _, ip := range result.IPs {
		addrs = append(addrs, ip.Address.Addr())
	}
	if len(addrs) == 0 {
		err = fmt.Errorf("result %s: %w", out, err)
	}
	return addrs, err
}

// del calls DEL, which may fail only if it is killed.
func (x *executable) del(container string) error {
	_, err := x.call("DEL", container, "")
	if err != nil && !errors.Is(err, errKilled) {
		x.fail("DEL of %s: %v", container, err)
	}
	return err
}

func (x *executable) resync() error {
	_, err := x.exec(x.config(""), nil, "resync")
	return err
}

// gc calls GC, for which these containers are valid.
func (x *executable) gc(containers iter.Seq[string]) error {
	var valid []string
	for c := range containers {
		valid = append(valid, fmt.Sprintf(`{"containerID": %q, "ifname": "eth0"}`, c))
	}
	_, err := x.exec(x.config(`, "cni.dev/valid-attachments": [`+strings.Join(valid, ", ")+"]"), []string{"CNI_COMMAND=GC"})
	return err
}

func (x *executable) settle(containers iter.Seq[string]) error { return x.gc(containers) }

// reboot kills all calls of the node, and boots it. Sometimes it deletes the file of owned addresses or replaces the
// machine.
func (x *executable) reboot() {
	x.processes.Range(func(p, _ any) bool {
		_ = p.(*os.Process).Kill()
		return true
	})
	x.running.Lock()
	defer x.running.Unlock()
	x.setBoot(rand.Uint64())
	switch {
	case x.replaces && rand.IntN(4) == 0:
		x.replaced.Add(1)
		x.setMachine(fmt.Sprintf("machine-%d-of-%s", x.replaced.Load(), x.name))
		x.copyDisk(x.nodes[rand.IntN(len(x.nodes))].plugin.(*executable)) // the machine has lost its own data directory
	case rand.IntN(2) == 0:
		_ = os.Remove(x.ownedFile())
	}
}

func (x *executable) ownedFile() string {
	return filepath.Join(x.networks(), ".plumb", ".owned", segment)
}

func (x *executable) owned() map[netip.Addr]string { return readOwned(x.ownedFile()) }

func (x *executable) isSettled() bool {
	boot, _ := os.ReadFile(filepath.Join(x.dir, "boot_id"))
	text, _ := os.ReadFile(x.ownedFile())
	return bytes.HasPrefix(text, boot) && !bytes.Contains(text, []byte("\nunsettled\n"))
}

// readOwned returns the addresses and claims in a file of owned addresses.
func readOwned(file string) map[netip.Addr]string {
	all := map[netip.Addr]string{}
	text, err := os.ReadFile(file)
	if err != nil {
		return all
	}
	for line := range strings.Lines(string(text)) {
		word, claim, _ := strings.Cut(strings.TrimSpace(line), " ")
		if a, err := netip.ParseAddr(word); err == nil {
			all[a] = claim
		}
	}
	return all
}

// newPluginNemesis returns a nemesis with nodes that run the executables of cluster-local.
func newPluginNemesis(count int, s setting) *nemesis {
	GinkgoHelper()
	n := newNemesis(none)
	n.addNodes(count, func(name string) plugin { return newExecutable(n, name, s) })
	return n
}

// runSetting runs the nemesis with the executables.
func runSetting(s setting, d time.Duration) {
	GinkgoHelper()
	runNemesis(newPluginNemesis(nodes, s), s, d)
}

// runNemesis runs a nemesis with the executables, in which machines are replaced.
func runNemesis(n *nemesis, s setting, d time.Duration) {
	GinkgoHelper()
	n.replaces = true
	n.runWithoutDuplicates(d)
	for _, m := range n.nodes {
		for a := range m.free() {
			Expect(s.empty || s.onRequestOnly && requestOnlyPrefix.Contains(a)).To(BeFalse(), "%s keeps %v, which no container uses", m.name, a)
		}
	}
}

var _ = Describe("cluster-local with etcd", func() {
	It("never assigns an address to two containers in the nemesis", func() { runSetting(defaultSetting, *duration) })
	for _, s := range otherSettings {
		It("never assigns an address to two containers in the nemesis with "+s.name, func() { runSetting(s, *settings) })
	}

	It("allocates, releases and registers, and names a clone, a removed node and the owner of an address", func() {
		n := newPluginNemesis(2, defaultSetting)
		n.killRate.Store(0.0)
		n.caller.base.Datastore = n.operatorDatastore
		n1, n2 := n.nodes[0].plugin.(*executable), n.nodes[1].plugin.(*executable)
		a, err := n1.add("c1")
		Expect(err).NotTo(HaveOccurred())
		Expect(n1.owned()).To(HaveLen(1))
		b, err := n2.add("c1")
		Expect(err).NotTo(HaveOccurred())
		Expect(b).NotTo(Equal(a))

		n2.setMachine("another")
		Expect(n2.resync()).To(MatchError(SatisfyAll(ContainSubstring("machine-of-n2"), ContainSubstring("another"))))
		n2.setMachine("machine-of-n2")

		By("removing n1, whose address n2 then claims")
		n.removeNode("n1")
		_, err = n2.call("ADD", "c2", "IP="+a[0].String())
		Expect(err).NotTo(HaveOccurred())
		Expect(n1.resync()).To(MatchError(ContainSubstring("/" + a[0].String() + " of container c1: cluster-local-etcd: " + a[0].String() + " belongs to node n2 since ")))
		Expect(n1.del("c1")).To(Succeed())
		Expect(n1.resync()).To(Succeed())
		_, err = n1.add("c3")
		Expect(err).NotTo(HaveOccurred())

		By("stopping etcd, after which the node allocates its warm pool")
		for _, m := range n.members {
			m.signal(syscall.SIGSTOP)
		}
		n.caller.base.Datastore = n.datastoreConfig("node", map[string]any{"timeout": 1})
		given := 0
		free := len(n1.owned()) - 1
		for i := range free + 1 {
			if _, err = n1.add(fmt.Sprint("d", i)); err != nil {
				break
			}
			given++
		}
		Expect(err).To(MatchError(SatisfyAll(ContainSubstring(`"code": 11`), ContainSubstring("etcd did not answer within 1s"))))
		Expect(given).To(Equal(free))
		Expect(n1.del("d0")).To(Succeed())
		for _, m := range n.members {
			m.signal(syscall.SIGCONT)
		}
	})
})

var _ plugin = (*executable)(nil)
