package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/owned"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// A cluster is a directory in which the fake datastore keeps the owners of addresses, and the script of its
// misbehavior. The fake datastore is this test binary (TestMain), so that it runs as a process of its own.
type cluster struct{ dir, segment string }

// newCluster creates a cluster without nodes. The directory is also the CNI_PATH with the datastore.
func newCluster(tb nstest.TB) cluster {
	tb.Helper()
	c := cluster{tb.TempDir(), "net"}
	binary, err := helper()
	if err == nil {
		err = os.WriteFile(filepath.Join(c.dir, "fake-datastore"), fmt.Appendf(nil, "#!/bin/sh\nFAKE_DATASTORE=%s exec %s\n", c.dir, binary), 0o755)
	}
	nstest.Must(tb, err)
	return c
}

// helper returns the path of a copy of this test binary without the race detector, because a process takes
// far longer to start with it.
var helper = sync.OnceValues(func() (string, error) {
	if !slices.Contains(buildSettings(), "-race=true") {
		return os.Executable()
	}
	path := filepath.Join(os.TempDir(), fmt.Sprintf("cluster-local-helper-%d", os.Getpid()))
	cmd := exec.Command("go", "test", "-c", "-o", path, ".")
	cmd.Env = append(os.Environ(), "GOFLAGS=", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// buildSettings returns the settings of the build of this binary.
func buildSettings() (all []string) {
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		all = append(all, s.Key+"="+s.Value)
	}
	return all
}

// A fakeState is the content of the fake store.
type fakeState struct {
	Revision int64
	Store    string
	Frozen   string
	Nodes    map[string]string // "machine boot" by node
	Owners   map[netip.Addr]fakeOwner
	Script   []fakeStep
	Late     []datastore.Request // releases that applyLate applies
	Calls    []datastore.Request
}

type fakeOwner struct{ Node, Claim string }

// A fakeStep is what the fake datastore does in the next call with the verb.
type fakeStep struct{ Verb, Does string }

// change changes the state under the lock.
func (c cluster) change(f func(*fakeState)) {
	lock, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		panic(err)
	}
	defer func() { _ = lock.Close() }()
	st := &fakeState{Revision: 1, Store: "the-first-store-of-all", Nodes: map[string]string{}, Owners: map[netip.Addr]fakeOwner{}}
	path := filepath.Join(c.dir, "segment."+c.segment)
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, st)
	}
	if err != nil && !os.IsNotExist(err) {
		panic(err)
	}
	f(st)
	if text, err = json.Marshal(st); err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		panic(err)
	}
}

// script sets how the next call with the verb misbehaves (see runFakeDatastore, misbehave and printAnswer).
func (c cluster) script(verb, does string) {
	c.change(func(st *fakeState) { st.Script = append(st.Script, fakeStep{verb, does}) })
}

// calls returns and removes the verbs of all recorded calls.
func (c cluster) calls() (verbs []string) {
	c.change(func(st *fakeState) {
		for _, r := range st.Calls {
			verbs = append(verbs, r.Verb)
		}
		st.Calls = nil
	})
	return verbs
}

// owned returns the addresses of a node with their claims.
func (c cluster) owned(node string) map[netip.Addr]string {
	all := map[netip.Addr]string{}
	c.change(func(st *fakeState) {
		for ip, o := range st.Owners {
			if o.Node == node {
				all[ip] = o.Claim
			}
		}
	})
	return all
}

// applyLate applies the releases that the datastore has delayed.
func (c cluster) applyLate() {
	c.change(func(st *fakeState) {
		for _, r := range st.Late {
			st.release(r, &datastore.Answer{})
		}
		st.Late = nil
	})
}

// give assigns the addresses to a node.
func (c cluster) give(node string, ips ...string) {
	c.change(func(st *fakeState) {
		for _, ip := range ips {
			st.give(node, netip.MustParseAddr(ip))
		}
	})
}

func (st *fakeState) give(node string, ip netip.Addr) string {
	claim := fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
	st.Owners[ip] = fakeOwner{node, claim}
	return claim
}

// runFakeDatastore serves the request in stdin, and returns the exit status.
func runFakeDatastore(dir string) int {
	var r datastore.Request
	text, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		panic(err)
	}
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "CNI_") && !strings.HasPrefix(v, "CNI_PATH=") {
			panic("the environment of the datastore contains " + v)
		}
	}
	var answer datastore.Answer
	var does string
	c := cluster{dir, r.Segment}
	c.change(func(st *fakeState) {
		st.Calls = append(st.Calls, r)
		i := slices.IndexFunc(st.Script, func(s fakeStep) bool { return s.Verb == r.Verb })
		if i >= 0 {
			does = st.Script[i].Does
			st.Script = slices.Delete(st.Script, i, i+1)
		}
	})
	switch does {
	case "die":
		return 3
	case "hang":
		time.Sleep(time.Hour)
	}
	c.change(func(st *fakeState) {
		if done := misbehave(st, r, does, &answer); !done {
			st.serve(r, &answer)
		}
	})
	return printAnswer(does, answer)
}

// misbehave runs the step of the script, and reports whether the step replaces the call.
func misbehave(st *fakeState, r datastore.Request, does string, answer *datastore.Answer) bool {
	switch {
	case does == "later":
		st.Late = append(st.Late, r)
		answer.Error = &datastore.Error{Code: 11, Reason: datastore.ReasonUnknown, Msg: "it may happen later"}
		return true
	case strings.HasPrefix(does, "refuse "):
		answer.Error = &datastore.Error{Code: 11, Reason: strings.TrimPrefix(does, "refuse "), Msg: "refused: " + does}
		return true
	}
	return false
}

// printAnswer prints the answer or, as the script says, something else, and returns the exit status.
func printAnswer(does string, answer datastore.Answer) int {
	switch does {
	case "done, die":
		return 3
	case "done, hang":
		time.Sleep(time.Hour)
	case "done, unknown":
		answer = datastore.Answer{Error: &datastore.Error{Code: 11, Reason: datastore.ReasonUnknown, Msg: "no confirmation"}}
	case "done, garbage":
		fmt.Print("panic: no JSON")
		return 0
	case "done, foreign":
		answer.Addresses = map[netip.Addr]string{netip.MustParseAddr("192.0.2.1"): strings.Repeat("0", 32)}
	}
	text, err := json.Marshal(answer)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
	if answer.Error != nil {
		return 1
	}
	return 0
}

// serve changes the state as datastore/README.md describes.
func (st *fakeState) serve(r datastore.Request, a *datastore.Answer) {
	verbs := map[string]func(datastore.Request, *datastore.Answer){
		datastore.Claim: st.claim, datastore.Release: st.release, datastore.Register: st.register, datastore.Resync: st.resync,
		datastore.Status: func(datastore.Request, *datastore.Answer) {},
	}
	switch {
	case r.Verb != datastore.Resync && (st.Revision < r.LastRevision || r.Store != "" && r.Store != st.Store):
		a.Error = &datastore.Error{Code: 11, Reason: datastore.ReasonBehind, Msg: "an older state was restored"}
	case r.Verb != datastore.Status && st.Nodes[r.Node] != "" && !strings.HasPrefix(st.Nodes[r.Node], r.Machine+" "):
		a.Error = &datastore.Error{Code: 7, Reason: datastore.ReasonMachine, Msg: "registered by machine " + st.Nodes[r.Node] + "; this is " + r.Machine}
	case st.Frozen == "" && st.Nodes[r.Node] != "" && st.Nodes[r.Node] != r.Machine+" "+r.Boot && (r.Verb == datastore.Claim || r.Verb == datastore.Release || r.Registered):
		a.Error = &datastore.Error{Code: 11, Reason: datastore.ReasonBoot, Msg: "another boot"}
	default:
		verbs[r.Verb](r, a)
	}
	a.Revision, a.Store, a.Frozen = st.Revision, st.Store, st.Frozen
	for _, rg := range r.Ranges {
		for ip := rg.First; !rg.Last.Less(ip) && a.Free < 1<<17; ip = ip.Next() {
			if _, taken := st.Owners[ip]; !taken && !containsAddr(r.Exclude, ip) {
				a.Free++
			}
		}
	}
}

func (st *fakeState) claim(r datastore.Request, a *datastore.Answer) {
	refuse := func(reason, format string, args ...any) {
		a.Error, a.Addresses = &datastore.Error{Code: 11, Reason: reason, Msg: fmt.Sprintf(format, args...)}, nil
	}
	switch {
	case st.Frozen != "":
		refuse(datastore.ReasonFrozen, "segment %s has been frozen since %s", r.Segment, st.Frozen)
		return
	case st.Nodes[r.Node] == "":
		refuse(datastore.ReasonUnregistered, "node %s is not registered", r.Node)
		return
	}
	a.Addresses = map[netip.Addr]string{}
	for _, ip := range r.Requested {
		if o, taken := st.Owners[ip]; taken && o.Node == r.Node {
			refuse(datastore.ReasonOwn, "%s belongs to this node", ip)
			return
		} else if taken {
			refuse(datastore.ReasonTaken, "%s belongs to node %s", ip, o.Node)
			return
		}
	}
	for _, ip := range r.Requested {
		a.Addresses[ip] = st.give(r.Node, ip)
	}
	for _, rg := range r.Ranges {
		for ip := rg.First; !rg.Last.Less(ip) && len(a.Addresses) < r.Want; ip = ip.Next() {
			if _, taken := st.Owners[ip]; !taken && !containsAddr(r.Exclude, ip) {
				a.Addresses[ip] = st.give(r.Node, ip)
			}
		}
	}
	if len(a.Addresses) == 0 {
		refuse(datastore.ReasonFull, "no address of segment %s is free", r.Segment)
	}
	st.Revision++
}

func (st *fakeState) release(r datastore.Request, a *datastore.Answer) {
	a.Addresses = map[netip.Addr]string{}
	for ip, claim := range r.Addresses {
		if st.Owners[ip] == (fakeOwner{r.Node, claim}) {
			a.Addresses[ip] = claim
			delete(st.Owners, ip)
		}
	}
	st.Revision++
}

func (st *fakeState) register(r datastore.Request, a *datastore.Answer) {
	if st.Frozen != "" {
		a.Error = &datastore.Error{Code: 11, Reason: datastore.ReasonFrozen, Msg: "the segment has been frozen since " + st.Frozen}
		return
	}
	st.Nodes[r.Node], a.Addresses = r.Machine+" "+r.Boot, map[netip.Addr]string{}
	for ip, o := range st.Owners {
		if o.Node == r.Node {
			a.Addresses[ip] = st.give(r.Node, ip)
		}
	}
	st.Revision++
}

func (st *fakeState) resync(r datastore.Request, a *datastore.Answer) {
	st.Nodes[r.Node] = r.Machine + " " + r.Boot
	a.Addresses, a.Conflicts = map[netip.Addr]string{}, map[netip.Addr]string{}
	if (st.Revision < r.LastRevision || r.Store != "" && r.Store != st.Store) && st.Frozen == "" {
		st.Frozen = "2026-01-01T00:00:00Z by " + r.Node
	}
	for ip, o := range st.Owners {
		if _, mine := r.Addresses[ip]; o.Node == r.Node && !mine {
			delete(st.Owners, ip)
		}
	}
	for ip := range r.Addresses {
		if o, taken := st.Owners[ip]; taken && o.Node != r.Node {
			a.Conflicts[ip] = o.Node
			continue
		}
		a.Addresses[ip] = st.give(r.Node, ip)
	}
	st.Revision++
}

// A testNode is a node of a cluster.
type testNode struct {
	*nstest.PoolHost
	cluster cluster
	name    string
	timeout int               // the key datastore.timeout
	inUse   map[string]string // the container of each address in use in the cluster, as node/container
	stderr  string            // the warnings of the last successful ADD
}

// newNode returns a node of the cluster with its own data directory, boot ID, clock and name.
func newNode(c cluster, name string) *testNode {
	GinkgoHelper()
	n := &testNode{nstest.NewPoolHost(GinkgoTB()), c, name, 60, map[string]string{}, ""}
	n.Boot("boot-1-of-" + name)
	Expect(os.WriteFile(n.identity(), []byte("machine-of-"+name+"\n"), 0o600)).To(Succeed())
	n.Plugin, n.Path = n.host().plugin, c.dir
	n.Keys = func() string { return fmt.Sprintf(`"datastore": {"type": "fake-datastore", "timeout": %d}`, n.timeout) }
	return n
}

func (n *testNode) peer(name string) *testNode {
	GinkgoHelper()
	other := newNode(n.cluster, name)
	other.inUse = n.inUse
	return other
}

func (n *testNode) identity() string { return filepath.Join(filepath.Dir(n.BootID), "machine-id") }
func (n *testNode) ownedFile() string {
	return filepath.Join(n.DataDir, ".plumb", ".owned", "net")
}

// add calls ADD, which must succeed, and returns the addresses as tryAdd does.
func (n *testNode) add(id string, v variant) string {
	GinkgoHelper()
	ips, reply := n.tryAdd(id, v)
	reply.OK(GinkgoTB())
	return ips
}

// tryAdd calls ADD. If it succeeds, tryAdd checks that no container uses one of the addresses, and returns them.
func (n *testNode) tryAdd(id string, v variant) (string, nstest.Reply) {
	GinkgoHelper()
	reply := n.Run("ADD", id, v)
	if reply.Exit != 0 {
		return "", reply
	}
	n.stderr = reply.Stderr
	var ips []string
	for _, ip := range reply.Result(GinkgoTB()).IPs {
		a := ip.Address.Addr().String()
		Expect(n.inUse[a]).To(BeEmpty(), "address %s of %s on node %s", a, id, n.name)
		n.inUse[a] = n.name + "/" + id
		ips = append(ips, a)
	}
	return strings.Join(ips, " "), reply
}

// del calls DEL. From then on, other containers may use the addresses.
func (n *testNode) del(id string, v variant) {
	GinkgoHelper()
	for a, user := range n.inUse {
		if user == n.name+"/"+id {
			delete(n.inUse, a)
		}
	}
	n.Run("DEL", id, v).OK(GinkgoTB())
}

// gc calls GC, for which these containers are valid.
func (n *testNode) gc(ids ...string) nstest.Reply { return n.gcWith(variant{}, ids...) }

func (n *testNode) gcWith(v variant, ids ...string) nstest.Reply {
	valid := []string{}
	for _, id := range ids {
		valid = append(valid, fmt.Sprintf(`{"containerID": %q, "ifname": "eth0"}`, id))
	}
	v.More = `"cni.dev/valid-attachments": [` + strings.Join(valid, ",") + `]`
	return n.Run("GC", "", v)
}

// resync calls the command resync, which must print nothing, and returns its exit status.
func (n *testNode) resync(args ...string) int {
	GinkgoHelper()
	var stdout bytes.Buffer
	call := n.Call("", variant{})
	defer func() { Expect(stdout.String()).To(BeEmpty()) }()
	return skel.Run(n.Plugin(), skel.Env{
		Environ: []string{"CNI_PATH=" + call.Path}, Args: append([]string{"resync"}, args...), Stdin: strings.NewReader(call.Config), Stdout: &stdout, Stderr: GinkgoWriter,
	})
}

// state returns the content of the file of owned addresses.
func (n *testNode) state() *owned.State {
	GinkgoHelper()
	text := nstest.ReadFile(GinkgoTB(), n.ownedFile())
	st, ok := owned.Parse(text)
	Expect(ok).To(BeTrue(), "%s", text)
	return st
}

// expectAgreement checks that the node and the datastore agree on the addresses that the node owns, and that these
// include all reserved addresses.
func (n *testNode) expectAgreement() {
	GinkgoHelper()
	Expect(n.state().Unsettled).To(BeFalse())
	Expect(n.state().Claims).To(Equal(n.cluster.owned(n.name)))
	n.expectNoForeign()
}

// expectNoForeign checks that the node owns all addresses that it may allocate or has reserved.
func (n *testNode) expectNoForeign() {
	GinkgoHelper()
	owned := n.cluster.owned(n.name)
	for _, line := range n.Reserved() {
		a, _, _ := strings.Cut(line, " ")
		Expect(owned).To(HaveKey(netip.MustParseAddr(a)), "reserved: %s", line)
	}
	if _, err := os.Stat(n.ownedFile()); err != nil {
		return
	}
	for ip := range n.state().Claims {
		Expect(owned).To(HaveKey(ip))
	}
}

func containsAddr(prefixes []netip.Prefix, ip netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(ip) })
}
