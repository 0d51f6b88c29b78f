package datastore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/test/faults/inject"
)

// A sweptNode is a node that calls cluster-local with an etcd of one member, and without a warm pool. The container
// "existing" is attached.
type sweptNode struct {
	*cluster
	dir, name string
	store     *clientv3.Client
	existing  netip.Addr
}

// sweptSegment is a segment with 13 addresses.
const sweptSegment = "swept"

// newNeighbor returns another node of the segment.
func (n *sweptNode) newNeighbor(name string) *sweptNode {
	GinkgoHelper()
	return &sweptNode{cluster: n.cluster, dir: GinkgoT().TempDir(), name: name, store: n.store}
}

// newSweptNode starts an etcd member and a node.
func newSweptNode() *sweptNode {
	GinkgoHelper()
	c := newCluster(1)
	n := (&sweptNode{cluster: c, store: c.connect("root", c.members...)}).newNeighbor("n1")
	n.existing = n.mustAdd("existing")
	return n
}

// command returns the command of a call, in which the datastore waits for etcd for timeout seconds.
func (n *sweptNode) command(verb, container string, timeout int) *exec.Cmd {
	cmd := exec.Command(pluginPath())
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "type": "macvlan", "cni.dev/valid-attachments": [{"containerID": "existing", "ifname": "eth0"}],
		"ipam": {"type": "cluster-local", "node": %q, "dataDir": %q, "subnet": "10.7.0.0/28", "warmPool": 0, "datastore": %s}}`,
		sweptSegment, n.name, n.dir, n.datastoreConfig("node", map[string]any{"timeout": timeout})))
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + container, "CNI_IFNAME=eth0", "CNI_NETNS=/dev/null", "CNI_PATH=" + filepath.Dir(datastorePath)}
	if verb == "GC" {
		cmd.Env = []string{"CNI_COMMAND=GC", "CNI_PATH=" + filepath.Dir(datastorePath)}
	}
	return cmd
}

// A reply contains what a call printed. exit is negative if the call was killed.
type reply struct {
	stdout, stderr string
	exit           int
}

func (r reply) String() string { return fmt.Sprintf("exit %d: %s%s", r.exit, r.stdout, r.stderr) }

// run starts cmd with start, waits for it, and returns its output.
func (n *sweptNode) run(cmd *exec.Cmd, start func(*exec.Cmd) error) reply {
	GinkgoHelper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	Expect(start(cmd)).To(Succeed())
	var status *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &status) {
		Fail(err.Error())
	}
	return reply{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// must runs a call, and fails the spec unless it succeeds.
func (n *sweptNode) must(verb, container string) reply {
	GinkgoHelper()
	r := n.run(n.command(verb, container, 60), n.clients.Start)
	Expect(r.exit).To(BeZero(), "%s of %s: %v", verb, container, r)
	return r
}

func (n *sweptNode) mustAdd(container string) netip.Addr {
	GinkgoHelper()
	addrs, err := addressesOf(n.must("ADD", container).stdout)
	Expect(err).NotTo(HaveOccurred())
	return addrs[0]
}

func (n *sweptNode) ownedFile() string { return filepath.Join(n.dir, ".plumb", ".owned", sweptSegment) }

// reservations returns the reserved addresses with their containers.
func (n *sweptNode) reservations() map[netip.Addr]string {
	GinkgoHelper()
	all := map[netip.Addr]string{}
	files, err := os.ReadDir(filepath.Join(n.dir, sweptSegment))
	Expect(err).NotTo(HaveOccurred())
	for _, f := range files {
		if a, err := netip.ParseAddr(f.Name()); err == nil {
			text, err := os.ReadFile(filepath.Join(n.dir, sweptSegment, f.Name()))
			Expect(err).NotTo(HaveOccurred())
			all[a], _, _ = strings.Cut(string(text), "\r\n")
		}
	}
	return all
}

// requireOnlyOwn fails the spec unless the only reservation belongs to "existing", and etcd names the node as the owner
// of every address in the node's file.
func (n *sweptNode) requireOnlyOwn(after string) {
	GinkgoHelper()
	Expect(n.reservations()).To(Equal(map[netip.Addr]string{n.existing: "existing"}), after)
	owners := n.owners()
	for a := range readOwned(n.ownedFile()) {
		Expect(owners[a]).To(HavePrefix(n.name+" "), "%s: owner of %v", after, a)
	}
}

// owners returns the node and claim of each owned address.
func (n *sweptNode) owners() map[netip.Addr]string {
	GinkgoHelper()
	all := map[netip.Addr]string{}
	for key, value := range dumpFrom(n.store, sweptSegment) {
		if strings.HasPrefix(key, "a/") {
			all[keyAddr(key)] = value
		}
	}
	return all
}

// requireNothingLeft fails the spec unless etcd names an owner only for the address of "existing", and the node's file
// contains this address with the same claim.
func (n *sweptNode) requireNothingLeft(after string) {
	GinkgoHelper()
	n.requireOnlyOwn(after)
	owned := readOwned(n.ownedFile())
	Expect(owned).To(HaveLen(1), after)
	Expect(n.owners()).To(Equal(map[netip.Addr]string{n.existing: n.name + " " + owned[n.existing]}), after)
}

// A sweep injects one fault at a time, at each of these system calls of a program during a call of the plugin.
type sweep struct {
	name    string
	verb    string // the verb of the plugin
	program string
	calls   []inject.Syscall
	verdict []inject.Verdict
	step    int // the sweep injects a fault at every step-th system call, or with CNI_TEST_FAULTS=all at each one
}

func sweeps() (all []sweep) {
	const plugin, datastore = "cluster-local", "cluster-local-etcd"
	killed := []inject.Verdict{inject.Kill()}
	broken := []inject.Verdict{inject.Refuse(unix.ENOSPC), inject.Refuse(unix.EIO), inject.Refuse(unix.EROFS)}
	reset := []inject.Verdict{inject.Refuse(unix.ECONNRESET)}
	for _, verb := range []string{"ADD", "DEL", "GC"} {
		all = append(all,
			sweep{verb + ", and the plugin is killed", verb, plugin, inject.Mutating(), killed, 7},
			sweep{verb + ", and the datastore is killed", verb, datastore, slices.Concat(inject.Mutating(), inject.TCPCalls()), killed, 7},
			sweep{verb + ", and a change of a file is refused", verb, plugin, inject.FileChanges(), broken, 9},
			sweep{verb + ", and a connection of the datastore is lost", verb, datastore, inject.TCPCalls(), reset, 7})
	}
	return all
}

// tryAt calls the verb with a fault at a system call, and then calls the verbs that a runtime calls after a fault. It
// reports whether the program reached that system call.
func (n *sweptNode) tryAt(s sweep, at int) bool {
	GinkgoHelper()
	switch s.verb {
	case "ADD": // ADD registers, as after a boot, and then claims
		Expect(os.RemoveAll(n.ownedFile())).To(Succeed())
	default:
		n.mustAdd("tested")
	}
	verdict, seen, faulty := s.verdict[at%len(s.verdict)], 0, ""
	var tree *inject.ProcessTree
	// etcd does not notice a lost connection, because only a system call of the datastore failed.
	r := n.run(n.command(s.verb, "tested", 2), func(cmd *exec.Cmd) (err error) {
		tree, err = inject.Session{Calls: s.calls, Start: n.clients.Start, Decide: func(c *inject.Call) inject.Verdict {
			if c.Program != s.program {
				return inject.Pass()
			}
			if seen++; seen != at {
				return inject.Pass()
			}
			faulty = c.String()
			return verdict
		}}.Run(cmd)
		return err
	})
	if at%2 == 0 { // otherwise, the next call may come while the datastore still runs
		Expect(tree.Wait(2 * time.Minute)).To(Succeed())
	}
	after := fmt.Sprintf("%s at %s (%v); the plugin printed: %v", s.name, faulty, verdict, r)
	n.requireReply(s, r, after)
	if s.verb != "GC" {
		n.must("DEL", "tested")
		n.requireOnlyOwn(after + "; after the DEL")
	}
	Expect(tree.Wait(2 * time.Minute)).To(Succeed())
	if s.verb == "ADD" && at%4 < 2 { // the next ADD registers as well, and DEL releases what the node does not need
		n.mustAdd("other")
		n.must("DEL", "other")
	} else {
		n.must("GC", "")
	}
	n.requireNothingLeft(after + "; in the end")
	if faulty == "" {
		GinkgoWriter.Printf("%s made %d calls, fewer than %d: %v\n", s.program, seen, at, r)
	}
	// On a busy machine, etcd can be too slow for the call, which then fails or warns before it reaches the fault.
	return faulty != "" || (r.exit > 0 || strings.Contains(r.stderr, "etcd did not")) && n.tryAt(s, at)
}

// reaches is tryAt, but reports false only if three runs in a row did not reach the system call. The number of system
// calls depends on the timing of earlier calls and of the etcd members.
func (n *sweptNode) reaches(s sweep, at int) bool {
	GinkgoHelper()
	for range 3 {
		if n.tryAt(s, at) {
			return true
		}
	}
	return false
}

// requireReply fails the spec unless the plugin was killed, printed an error with a code, or succeeded and returned an
// address that the node owns.
func (n *sweptNode) requireReply(s sweep, r reply, after string) {
	GinkgoHelper()
	switch {
	case r.exit > 0:
		var failure struct {
			Code uint
			Msg  string
		}
		Expect(json.Unmarshal([]byte(r.stdout), &failure)).To(Succeed(), after)
		Expect(failure.Code).NotTo(BeZero(), after)
		Expect(failure.Msg).NotTo(BeEmpty(), after)
	case r.exit == 0 && s.verb == "ADD":
		addrs, err := addressesOf(r.stdout)
		Expect(err).NotTo(HaveOccurred(), after)
		Expect(n.owners()[addrs[0]]).To(HavePrefix(n.name+" "), after)
		Expect(addrs[0]).NotTo(Equal(n.existing), after)
	}
}

var _ = Describe("cluster-local with cluster-local-etcd, during", func() {
	for i, s := range sweeps() {
		It(s.name+", leaves nothing behind", func() {
			n := newSweptNode()
			step := s.step
			if os.Getenv("CNI_TEST_FAULTS") == "all" {
				step = 1
			}
			faults := 0
			for at := 1 + i%step; n.reaches(s, at); at += step {
				faults++
			}
			AddReportEntry("faults", fmt.Sprint(faults))
			Expect(faults).To(BeNumerically(">", 1))
			n2 := n.newNeighbor("n2")
			addrs := map[netip.Addr]bool{n.existing: true}
			for i := range 12 {
				addrs[n2.mustAdd(fmt.Sprint("c", i))] = true
			}
			Expect(addrs).To(HaveLen(13))
		})
	}
})
