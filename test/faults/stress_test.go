package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// stressNetworks lists the networks of a stressHost. The first two share a bridge and a dataDir.
// The pool of "ptp" is small, so that addresses are reused.
var stressNetworks = []struct{ name, plugins string }{
	{"bridge", `{"type": "bridge", "bridge": "shared0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables", "macspoofchk": true,
		"ipam": {"type": "host-local", "dataDir": "DIR/shared", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]],
			"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}`},
	{"layer2", `{"type": "bridge", "bridge": "shared0", "ipam": {"type": "host-local", "dataDir": "DIR/shared", "ranges": [[{"subnet": "10.2.0.0/16"}]]}}`},
	{"macvlan", `{"type": "macvlan", "master": "` + nstest.Uplink + `", "optimisticDAD": true,
		"ipam": {"type": "host-local", "dataDir": "DIR/macvlan", "ranges": [[{"subnet": "198.18.0.0/24", "rangeStart": "198.18.0.10"}], [{"subnet": "2001:db8:18::/64", "rangeStart": "2001:db8:18::10"}]]}}`},
	{"chain", `{"type": "bridge", "bridge": "chain0", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
		"ipam": {"type": "host-local", "dataDir": "DIR/chain", "ranges": [[{"subnet": "10.3.0.0/16"}], [{"subnet": "fd00:3::/64"}]]}},
		{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
		{"type": "bandwidth", "capabilities": {"bandwidth": true}},
		{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}`},
	{"ptp", `{"type": "ptp", "ipMasq": true, "ipam": {"type": "host-local", "dataDir": "DIR/ptp",
		"ranges": [[{"subnet": "10.4.0.0/25"}], [{"subnet": "fd00:4::/120"}]], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}`},
	{"iptables", `{"type": "bridge", "bridge": "tables0", "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "iptables",
		"ipam": {"type": "host-local", "dataDir": "DIR/iptables", "ranges": [[{"subnet": "10.5.0.0/16"}], [{"subnet": "fd00:5::/64"}]]}},
		{"type": "portmap", "backend": "iptables", "snat": true, "capabilities": {"portMappings": true}}`},
}

// networksWithoutRoutes is the number of networks without a default route. These networks follow
// the first one. Only they can be a container's second network, because two default routes
// conflict.
const networksWithoutRoutes = 2

// A stressContainer is a container with all random decisions about it.
type stressContainer struct {
	id              string
	port            int
	attachments     []*stressAttachment
	check           bool
	removeNetns     bool // remove the namespace before DEL
	delWithoutNetns bool // call DEL without CNI_NETNS and capability arguments
	container       *nstest.NS
}

// A stressAttachment is an attachment of a stressContainer.
type stressAttachment struct {
	network  int // the index into stressHost.lists
	ifName   string
	killADD  *plannedKill // nil for no kill
	killDEL  *plannedKill
	delTwice bool
	failed   bool
}

// A plannedKill kills one plugin of a network's list during ADD or DEL.
type plannedKill struct {
	plugin          int           // the index of the plugin among the plugins that the call starts
	after           time.Duration // the time from the start of the plugin
	waitForChildren bool          // wait for the plugin's children before the next call for the container
	happened        bool
}

// An extraCall is STATUS or GC, which are not calls for one container.
type extraCall int

const (
	statusCall     extraCall = iota
	gcExclusive              // GC while no other call runs, as SPEC 1.1.0 section 3 (Lifecycle & Ordering) demands
	gcConcurrent             // GC while other calls run, as some runtimes allow
	extraCallKinds           // the number of kinds
)

// newStressContainer returns a container with random decisions.
func newStressContainer(r *rand.Rand, n int) *stressContainer {
	c := &stressContainer{id: fmt.Sprintf("container%d", n), port: 20000 + n, check: r.IntN(3) == 0, removeNetns: r.IntN(5) == 0, delWithoutNetns: r.IntN(5) == 0}
	c.attachments = append(c.attachments, newStressAttachment(r, r.IntN(len(stressNetworks)), "eth0"))
	if r.IntN(4) == 0 {
		c.attachments = append(c.attachments, newStressAttachment(r, 1+r.IntN(networksWithoutRoutes), "eth1"))
	}
	// DEL without CNI_NETNS cannot delete a macvlan interface, which exists until its namespace
	// ends.
	c.removeNetns = c.removeNetns || c.delWithoutNetns && slices.ContainsFunc(c.attachments, func(a *stressAttachment) bool { return stressNetworks[a.network].name == "macvlan" })
	return c
}

// newStressAttachment returns an attachment with random decisions.
func newStressAttachment(r *rand.Rand, network int, ifName string) *stressAttachment {
	return &stressAttachment{network: network, ifName: ifName, killADD: newPlannedKill(r, 3), killDEL: newPlannedKill(r, 4), delTwice: r.IntN(5) == 0}
}

// newPlannedKill returns a kill for one in oneIn calls, and nil for the other calls. The logarithm
// of the time is evenly distributed, because calls take from two to some hundred milliseconds.
func newPlannedKill(r *rand.Rand, oneIn int) *plannedKill {
	after := time.Duration(float64(300*time.Microsecond) * math.Exp(r.Float64()*math.Log(1000)))
	kill := &plannedKill{plugin: r.IntN(4), after: after, waitForChildren: r.IntN(2) == 0}
	if kill.plugin == 3 { // most lists contain only one plugin, so the first one is chosen more often
		kill.plugin = 0
	}
	if r.IntN(oneIn) != 0 {
		return nil
	}
	return kill
}

// A stressHost is a host with many networks, for which a runtime makes many concurrent calls.
type stressHost struct {
	nstest.Site
	dir, bin, cache string
	lists           []*libcni.NetworkConfigList

	// A GC that must run alone locks calls for writing, and all other calls lock it for reading.
	calls sync.RWMutex

	mu         sync.Mutex
	owners     map[string]string // from a network and address to the key of the attachment
	live       map[string]bool   // the keys of the attachments between ADD and DEL
	unfinished map[string]bool   // the keys of the attachments whose DEL has not ended
	errs       []error
}

// newStressHost returns a new host with stressNetworks.
func newStressHost() *stressHost {
	GinkgoHelper()
	tb := GinkgoTB()
	s := &stressHost{
		Site: nstest.NewSite(tb), dir: tb.TempDir(), cache: tb.TempDir(),
		bin:    nstest.Build(tb, "bridge", "ptp", "macvlan", "host-local", "portmap", "bandwidth", "tuning"),
		owners: map[string]string{}, live: map[string]bool{}, unfinished: map[string]bool{},
	}
	for _, network := range stressNetworks {
		s.addNetwork(network.name, network.plugins)
	}
	return s
}

func (s *stressHost) addNetwork(name, plugins string) {
	GinkgoHelper()
	s.lists = append(s.lists, cnitest.ParseList(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "plugins": [%s]}`,
		name, strings.ReplaceAll(plugins, "DIR", s.dir))))
}

// runtime returns a libcni that kills one plugin as planned, or no plugin if kill is nil.
func (s *stressHost) runtime(kill *plannedKill) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir([]string{s.bin}, s.cache, &execWithKill{host: s.Host, kill: kill})
}

// execWithKill starts libcni's plugins on the host, and kills one of them as planned.
type execWithKill struct {
	invoke.RawExec
	version.PluginDecoder
	host    *nstest.NS
	kill    *plannedKill
	started int
}

func (e *execWithKill) ExecPlugin(_ context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(path)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environ, bytes.NewReader(stdin), &stdout, &stderr
	if err := e.host.Start(cmd); err != nil {
		return nil, err
	}
	if e.kill != nil && e.started == e.kill.plugin {
		defer time.AfterFunc(e.kill.after, func() { _ = cmd.Process.Kill() }).Stop()
	}
	e.started++
	err := cmd.Wait()
	if err == nil {
		return stdout.Bytes(), nil
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && e.kill != nil {
		e.kill.happened = true
	}
	return nil, fmt.Errorf("%s: %w: %s%s", filepath.Base(path), err, &stdout, &stderr)
}

func (s *stressHost) runtimeConf(c *stressContainer, a *stressAttachment) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: c.id, NetNS: c.container.Path(), IfName: a.ifName, CapabilityArgs: capabilityArgs(c.port)}
}

func (s *stressHost) attachmentKey(c *stressContainer, a *stressAttachment) string {
	return s.lists[a.network].Name + "/" + c.id + "/" + a.ifName
}

// runContainer runs all calls for a container, from its first ADD to its last DEL.
func (s *stressHost) runContainer(c *stressContainer) {
	for _, a := range c.attachments {
		ok := s.add(c, a)
		if ok && c.check {
			s.check(c, a)
		}
	}
	if c.removeNetns {
		c.container.Remove(GinkgoTB())
	}
	for _, a := range slices.Backward(c.attachments) {
		s.del(c, a)
	}
}

// add calls ADD and reports whether it succeeded.
func (s *stressHost) add(c *stressContainer, a *stressAttachment) bool {
	s.calls.RLock()
	defer s.calls.RUnlock()
	result, err := s.runtime(a.killADD).AddNetworkList(context.Background(), s.lists[a.network], s.runtimeConf(c, a))
	if a.killADD != nil && a.killADD.happened {
		s.waitForChildren(c, a.killADD)
		return false
	}
	if err != nil {
		s.addError(a, "ADD %s: %w", s.attachmentKey(c, a), err)
		return false
	}
	return s.recordAddresses(c, a, result)
}

// recordAddresses records the addresses of an attachment. It adds an error if another attachment
// uses one of them.
func (s *stressHost) recordAddresses(c *stressContainer, a *stressAttachment, result cnitypes.Result) bool {
	r, err := current.NewResultFromResult(result)
	if err != nil || len(r.IPs) == 0 {
		s.addError(a, "ADD %s: %d addresses, %w", s.attachmentKey(c, a), len(r.IPs), err)
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live[s.attachmentKey(c, a)] = true
	for _, ip := range r.IPs {
		addr := s.lists[a.network].Name + " " + ip.Address.IP.String()
		if other := s.owners[addr]; other != "" {
			s.errs = append(s.errs, fmt.Errorf("%s was allocated to %s, but still belongs to %s", addr, s.attachmentKey(c, a), other))
			a.failed = true
		}
		s.owners[addr] = s.attachmentKey(c, a)
	}
	return true
}

// forgetAddresses deletes the records of an attachment before its DEL.
func (s *stressHost) forgetAddresses(c *stressContainer, a *stressAttachment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, s.attachmentKey(c, a))
	for addr, holder := range s.owners {
		if holder == s.attachmentKey(c, a) {
			delete(s.owners, addr)
		}
	}
}

func (s *stressHost) check(c *stressContainer, a *stressAttachment) {
	s.calls.RLock()
	defer s.calls.RUnlock()
	err := s.runtime(nil).CheckNetworkList(context.Background(), s.lists[a.network], s.runtimeConf(c, a))
	record("stress: CHECK of a live attachment", err == nil)
	if err != nil {
		s.addError(a, "CHECK %s: %w", s.attachmentKey(c, a), err)
	}
}

// del calls DEL, whether or not ADD succeeded.
func (s *stressHost) del(c *stressContainer, a *stressAttachment) {
	s.forgetAddresses(c, a)
	conf := s.runtimeConf(c, a)
	if c.delWithoutNetns {
		conf.NetNS, conf.CapabilityArgs = "", nil
	}
	s.calls.RLock()
	defer s.calls.RUnlock()
	err := s.runtime(a.killDEL).DelNetworkList(context.Background(), s.lists[a.network], conf)
	if a.killDEL != nil && a.killDEL.happened {
		s.waitForChildren(c, a.killDEL)
		err = s.runtime(nil).DelNetworkList(context.Background(), s.lists[a.network], conf)
		record("stress: killed in DEL, then DEL", err == nil)
	}
	if a.killADD != nil && a.killADD.happened {
		record("stress: killed in ADD, then DEL", err == nil)
	}
	if err == nil && a.delTwice {
		err = s.runtime(nil).DelNetworkList(context.Background(), s.lists[a.network], conf)
	}
	if err != nil {
		s.addError(a, "DEL %s: %w", s.attachmentKey(c, a), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.unfinished, s.attachmentKey(c, a))
}

// If planned, waitForChildren waits until all processes have ended that a killed plugin of the
// container started. No other plugin of the container runs at this time.
func (s *stressHost) waitForChildren(c *stressContainer, kill *plannedKill) {
	if !kill.waitForChildren {
		return
	}
	for _, pid := range childPIDs() {
		environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if bytes.Contains(environ, []byte("\x00CNI_CONTAINERID="+c.id+"\x00")) {
			waitPID(pid)
		}
	}
}

// addError records an error. a is nil if the error is not about an attachment.
func (s *stressHost) addError(a *stressAttachment, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a != nil {
		a.failed = true
	}
	s.errs = append(s.errs, fmt.Errorf(format, args...))
}

// errorText returns the recorded errors, one per line.
func (s *stressHost) errorText() string {
	var text strings.Builder
	for _, err := range s.errs {
		fmt.Fprintln(&text, strings.Join(strings.Fields(err.Error()), " "))
	}
	return text.String()
}

func (s *stressHost) makeCall(extra extraCall, network int) {
	var err error
	switch extra {
	case statusCall:
		s.calls.RLock()
		defer s.calls.RUnlock()
		err = s.runtime(nil).GetStatusNetworkList(context.Background(), s.lists[network])
		record("stress: STATUS", err == nil)
	case gcExclusive:
		s.calls.Lock()
		defer s.calls.Unlock()
		err = s.gc(network, s.live)
		record("stress: GC without concurrent calls", err == nil)
	case gcConcurrent:
		s.calls.RLock()
		defer s.calls.RUnlock()
		err = s.gc(network, s.unfinished)
		record("stress: GC during ADD and DEL", err == nil)
	}
	if err != nil {
		s.addError(nil, "%s of network %s: %w", []string{"STATUS", "GC", "concurrent GC"}[extra], s.lists[network].Name, err)
	}
}

func (s *stressHost) gc(network int, keep map[string]bool) error {
	args := &libcni.GCArgs{}
	s.mu.Lock()
	for key := range keep {
		part := strings.Split(key, "/")
		if part[0] == s.lists[network].Name {
			args.ValidAttachments = append(args.ValidAttachments, cnitypes.GCAttachment{ContainerID: part[1], IfName: part[2]})
		}
	}
	s.mu.Unlock()
	return s.runtime(nil).GCNetworkList(context.Background(), s.lists[network], args)
}

// run adds and deletes about pairs attachments, with atOnce containers at a time. The seed
// determines all random decisions.
func (s *stressHost) run(seed uint64, pairs, atOnce int) {
	GinkgoHelper()
	r := rand.New(rand.NewPCG(seed, 0))
	var tasks []func()
	var attachments []*stressAttachment
	for len(attachments) < pairs {
		c := newStressContainer(r, len(attachments))
		c.container = nstest.New(GinkgoTB()).Named(c.id)
		for _, a := range c.attachments {
			s.unfinished[s.attachmentKey(c, a)] = true
		}
		attachments = append(attachments, c.attachments...)
		tasks = append(tasks, func() { s.runContainer(c) })
		if r.IntN(4) == 0 {
			extra, network := extraCall(r.IntN(int(extraCallKinds))), r.IntN(len(stressNetworks))
			if len(attachments) > pairs/2 { // no GC may delete what the later DELs leave
				extra = statusCall
			}
			tasks = append(tasks, func() { s.makeCall(extra, network) })
		}
	}
	slot := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for _, task := range tasks {
		slot <- struct{}{}
		all.Go(func() {
			defer GinkgoRecover()
			defer func() { <-slot }()
			task()
		})
	}
	all.Wait()
	for _, pid := range childPIDs() {
		waitPID(pid)
	}
	for _, a := range attachments {
		record("stress: ADD and DEL", !a.failed)
	}
}

// runOnePerNetwork adds, checks and deletes one attachment of each network.
func (s *stressHost) runOnePerNetwork() {
	GinkgoHelper()
	for n := range stressNetworks {
		s.runContainer(s.newContainer("last", n))
	}
}

// newContainer returns a container in one network, without kills.
func (s *stressHost) newContainer(id string, network int) *stressContainer {
	GinkgoHelper()
	return &stressContainer{id: id, port: 20000, container: nstest.New(GinkgoTB()), check: true, attachments: []*stressAttachment{{network: network, ifName: "eth0"}}}
}

func (s *stressHost) networkIndex(name string) int {
	return slices.IndexFunc(s.lists, func(l *libcni.NetworkConfigList) bool { return l.Name == name })
}

func (s *stressHost) firstPluginConfig(network int) io.Reader {
	GinkgoHelper()
	list := s.lists[network]
	conf, err := libcni.InjectConf(list.Plugins[0], map[string]any{"name": list.Name, "cniVersion": list.CNIVersion})
	Expect(err).NotTo(HaveOccurred())
	return bytes.NewReader(conf.Bytes)
}

// state returns the state of the host, and the modes and paths of the plugins' files. It omits the
// contents, because host-local's cursor and attachment files may differ.
func (s *stressHost) state() string {
	return nstest.Snapshot(GinkgoTB(), s.Host) + "\n" + withoutContents(nstest.SnapshotDir(GinkgoTB(), s.dir))
}

// comparableState returns the state without random values and without values that depend on
// the order of calls.
func (s *stressHost) comparableState() string {
	state := s.state()
	for _, variable := range []struct{ pattern, with string }{
		{`\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b`, "MAC"},
		{`\bfe80::[0-9a-f:]+`, "fe80::EUI"},
		{`\b(ifindex|link_index|link_netnsid|bridge_id|root_id)=\S+`, "$1"},
	} {
		state = regexp.MustCompile(variable.pattern).ReplaceAllString(state, variable.with)
	}
	lines := strings.Split(state, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// withoutContents reduces the lines of SnapshotDir to mode and path.
func withoutContents(files string) string {
	lines := strings.Split(files, "\n")
	for i, line := range lines {
		lines[i] = "file " + strings.Join(strings.Fields(line)[:min(2, len(strings.Fields(line)))], " ")
	}
	return strings.Join(lines, "\n")
}

// childPIDs returns the child processes of this process, including adopted ones.
func childPIDs() []int {
	var pids []int
	tasks, _ := filepath.Glob("/proc/self/task/*/children")
	for _, task := range tasks {
		list, _ := os.ReadFile(task)
		for _, field := range strings.Fields(string(list)) {
			var pid int
			if _, err := fmt.Sscan(field, &pid); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func waitPID(pid int) {
	for {
		if _, err := syscall.Wait4(pid, nil, 0, nil); !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

var _ = Describe("under stress, concurrent calls and kills", func() {
	seeds := []int64{0}
	pairs, atOnce := 60, 16
	if nstest.AllFaults() {
		seeds, pairs, atOnce = []int64{0, 1, 2}, 500, 64
	}
	for _, n := range seeds {
		It(fmt.Sprintf("leave the same state as sequential calls without kills: %d attachments, %d at a time (%d)", pairs, atOnce, n), func() {
			nstest.LeakCheck(GinkgoTB())
			adoptOrphans()
			sequential := newStressHost()
			sequential.runOnePerNetwork()
			want := nstest.WaitStable(sequential.comparableState)
			Expect(sequential.errorText()).To(BeEmpty(), "sequential calls")

			s := newStressHost()
			s.run(uint64(GinkgoRandomSeed()+n), pairs, atOnce)
			s.runOnePerNetwork() // recreates the nftables chains that a GC may have deleted
			Expect(s.errorText()).To(BeEmpty())
			left := nstest.WaitEqual(want, s.comparableState)
			record("stress: nothing left at the end", left == "")
			Expect(left).To(BeEmpty(), "left")
		})
	}
})
