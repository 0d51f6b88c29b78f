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

	"github.com/plumb-cni/plumb/test/nstest"
)

// climate is the networks of a storm. The first two share a bridge and a dataDir;
// the pool of "routed" is so small that its addresses change hands.
var climate = []struct{ name, plugins string }{
	{"dual", `{"type": "bridge", "bridge": "shared0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables", "macspoofchk": true,
		"ipam": {"type": "host-local", "dataDir": "DIR/shared", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]],
			"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}`},
	{"guest", `{"type": "bridge", "bridge": "shared0", "ipam": {"type": "host-local", "dataDir": "DIR/shared", "ranges": [[{"subnet": "10.2.0.0/16"}]]}}`},
	{"segment", `{"type": "macvlan", "master": "` + nstest.Uplink + `", "optimisticDAD": true,
		"ipam": {"type": "host-local", "dataDir": "DIR/segment", "ranges": [[{"subnet": "198.18.0.0/24", "rangeStart": "198.18.0.10"}], [{"subnet": "2001:db8:18::/64", "rangeStart": "2001:db8:18::10"}]]}}`},
	{"chain", `{"type": "bridge", "bridge": "chain0", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
		"ipam": {"type": "host-local", "dataDir": "DIR/chain", "ranges": [[{"subnet": "10.3.0.0/16"}], [{"subnet": "fd00:3::/64"}]]}},
		{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
		{"type": "bandwidth", "capabilities": {"bandwidth": true}},
		{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}`},
	{"routed", `{"type": "ptp", "ipMasq": true, "ipam": {"type": "host-local", "dataDir": "DIR/routed",
		"ranges": [[{"subnet": "10.4.0.0/25"}], [{"subnet": "fd00:4::/120"}]], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}`},
	{"tables", `{"type": "bridge", "bridge": "tables0", "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "iptables",
		"ipam": {"type": "host-local", "dataDir": "DIR/tables", "ranges": [[{"subnet": "10.5.0.0/16"}], [{"subnet": "fd00:5::/64"}]]}},
		{"type": "portmap", "backend": "iptables", "snat": true, "capabilities": {"portMappings": true}}`},
}

// withoutRoutes is how many of the networks, from the first after "dual", can be a
// container's second one: two default routes would be in each other's way.
const withoutRoutes = 2

// A life is all that chance decides of a container.
type life struct {
	id    string
	port  int
	legs  []*leg
	check bool
	gone  bool // its namespace ends before DEL
	late  bool // DEL is told neither namespace nor capabilities
	pod   *nstest.NS
}

// A leg is an attachment of a container.
type leg struct {
	network int
	ifName  string
	add     *death // nil: none
	del     *death
	again   bool // a second DEL after the first
	failed  bool
}

// A death comes to one plugin of a call.
type death struct {
	plugin int // the how manyth that the call starts
	after  time.Duration
	await  bool // what it leaves running is awaited before the next call
	came   bool
}

// A chore is what a runtime does beside ADD and DEL.
type chore int

const (
	status     chore = iota
	gcAlone          // as the specification has it (section 3, Lifecycle & Ordering)
	gcAmidst         // as runtimes do it that do not stop for it
	choreKinds       // how many there are
)

// newLife draws a container.
func newLife(r *rand.Rand, n int) *life {
	l := &life{id: fmt.Sprintf("pod%d", n), port: 20000 + n, check: r.IntN(3) == 0, gone: r.IntN(5) == 0, late: r.IntN(5) == 0}
	l.legs = append(l.legs, newLeg(r, r.IntN(len(climate)), "eth0"))
	if r.IntN(4) == 0 {
		l.legs = append(l.legs, newLeg(r, 1+r.IntN(withoutRoutes), "eth1"))
	}
	// A macvlan lives as long as a namespace that nobody knows the way to.
	l.gone = l.gone || l.late && slices.ContainsFunc(l.legs, func(g *leg) bool { return climate[g.network].name == "segment" })
	return l
}

func newLeg(r *rand.Rand, network int, ifName string) *leg {
	return &leg{network: network, ifName: ifName, add: newDeath(r, 3), del: newDeath(r, 4), again: r.IntN(5) == 0}
}

// newDeath draws one in so many calls. Calls take from two to some hundred
// milliseconds; the logarithm of the time is what is even.
func newDeath(r *rand.Rand, oneIn int) *death {
	after := time.Duration(float64(300*time.Microsecond) * math.Exp(r.Float64()*math.Log(1000)))
	d := &death{plugin: r.IntN(4), after: after, await: r.IntN(2) == 0}
	if d.plugin == 3 { // most lists have one plugin
		d.plugin = 0
	}
	if r.IntN(oneIn) != 0 {
		return nil
	}
	return d
}

// A storm is a node with many networks, and a runtime that does all at once.
type storm struct {
	nstest.Site
	dir, bin, cache string
	lists           []*libcni.NetworkConfigList

	// calls is held for reading by ADD, DEL and what goes beside them, for writing by
	// a GC alone.
	calls sync.RWMutex

	mu     sync.Mutex
	holder map[string]string // network and address → who lives with it
	live   map[string]bool   // attachments, by key
	known  map[string]bool   // those that are not over yet, or have not begun
	failed []error
}

func newStorm() *storm {
	GinkgoHelper()
	tb := GinkgoTB()
	s := &storm{
		Site: nstest.NewSite(tb), dir: tb.TempDir(), cache: tb.TempDir(),
		bin:    nstest.Build(tb, "bridge", "ptp", "macvlan", "host-local", "portmap", "bandwidth", "tuning"),
		holder: map[string]string{}, live: map[string]bool{}, known: map[string]bool{},
	}
	for _, network := range climate {
		s.addNetwork(network.name, network.plugins)
	}
	return s
}

func (s *storm) addNetwork(name, plugins string) {
	GinkgoHelper()
	list, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": %q, "plugins": [%s]}`,
		name, strings.ReplaceAll(plugins, "DIR", s.dir)))
	Expect(err).NotTo(HaveOccurred())
	s.lists = append(s.lists, list)
}

// runtime is libcni, one call of which may meet its death.
func (s *storm) runtime(d *death) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir([]string{s.bin}, s.cache, &mortal{node: s.Node, death: d})
}

// mortal starts plugins on the node; its death comes to one of them.
type mortal struct {
	invoke.RawExec
	version.PluginDecoder
	node    *nstest.NS
	death   *death
	started int
}

func (m *mortal) ExecPlugin(_ context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(path)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environ, bytes.NewReader(stdin), &stdout, &stderr
	if err := m.node.Start(cmd); err != nil {
		return nil, err
	}
	if m.death != nil && m.started == m.death.plugin {
		defer time.AfterFunc(m.death.after, func() { _ = cmd.Process.Kill() }).Stop()
	}
	m.started++
	err := cmd.Wait()
	if err == nil {
		return stdout.Bytes(), nil
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && m.death != nil {
		m.death.came = true
	}
	return nil, fmt.Errorf("%s: %w: %s%s", filepath.Base(path), err, &stdout, &stderr)
}

func (s *storm) conf(l *life, g *leg) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: l.id, NetNS: l.pod.Path(), IfName: g.ifName, CapabilityArgs: map[string]any{
		"portMappings": []map[string]any{{"hostPort": l.port, "containerPort": 80, "protocol": "tcp"}},
		"bandwidth":    map[string]any{"ingressRate": 80_000_000, "ingressBurst": 800_000, "egressRate": 40_000_000, "egressBurst": 400_000},
	}}
}

func (s *storm) key(l *life, g *leg) string {
	return s.lists[g.network].Name + "/" + l.id + "/" + g.ifName
}

// lead is a container from its first ADD to its last DEL.
func (s *storm) lead(l *life) {
	for _, g := range l.legs {
		ok := s.attach(l, g)
		if ok && l.check {
			s.check(l, g)
		}
	}
	if l.gone {
		l.pod.Remove(GinkgoTB())
	}
	for _, g := range slices.Backward(l.legs) {
		s.detach(l, g)
	}
}

// attach reports whether the attachment lives.
func (s *storm) attach(l *life, g *leg) bool {
	s.calls.RLock()
	defer s.calls.RUnlock()
	result, err := s.runtime(g.add).AddNetworkList(context.Background(), s.lists[g.network], s.conf(l, g))
	if g.add != nil && g.add.came {
		s.mourn(l, g.add)
		return false
	}
	if err != nil {
		s.fail(g, "ADD %s: %w", s.key(l, g), err)
		return false
	}
	return s.hold(l, g, result)
}

// hold notes the addresses of an attachment, which nobody else may have.
func (s *storm) hold(l *life, g *leg, result cnitypes.Result) bool {
	r, err := current.NewResultFromResult(result)
	if err != nil || len(r.IPs) == 0 {
		s.fail(g, "ADD %s: %d addresses, %w", s.key(l, g), len(r.IPs), err)
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live[s.key(l, g)] = true
	for _, ip := range r.IPs {
		addr := s.lists[g.network].Name + " " + ip.Address.IP.String()
		if other := s.holder[addr]; other != "" {
			s.failed = append(s.failed, fmt.Errorf("%s was given to %s while %s lives with it", addr, s.key(l, g), other))
			g.failed = true
		}
		s.holder[addr] = s.key(l, g)
	}
	return true
}

// release forgets what hold noted: from now on the attachment may lose it.
func (s *storm) release(l *life, g *leg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, s.key(l, g))
	for addr, holder := range s.holder {
		if holder == s.key(l, g) {
			delete(s.holder, addr)
		}
	}
}

func (s *storm) check(l *life, g *leg) {
	s.calls.RLock()
	defer s.calls.RUnlock()
	err := s.runtime(nil).CheckNetworkList(context.Background(), s.lists[g.network], s.conf(l, g))
	tried("storm: CHECK of a live attachment", err == nil)
	if err != nil {
		s.fail(g, "CHECK %s: %w", s.key(l, g), err)
	}
}

// detach deletes an attachment, whatever became of its ADD.
func (s *storm) detach(l *life, g *leg) {
	s.release(l, g)
	conf := s.conf(l, g)
	if l.late {
		conf.NetNS, conf.CapabilityArgs = "", nil
	}
	s.calls.RLock()
	defer s.calls.RUnlock()
	err := s.runtime(g.del).DelNetworkList(context.Background(), s.lists[g.network], conf)
	if g.del != nil && g.del.came {
		s.mourn(l, g.del)
		err = s.runtime(nil).DelNetworkList(context.Background(), s.lists[g.network], conf)
		tried("storm: killed in DEL, then DEL", err == nil)
	}
	if g.add != nil && g.add.came {
		tried("storm: killed in ADD, then DEL", err == nil)
	}
	if err == nil && g.again {
		err = s.runtime(nil).DelNetworkList(context.Background(), s.lists[g.network], conf)
	}
	if err != nil {
		s.fail(g, "DEL %s: %w", s.key(l, g), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, s.key(l, g))
}

// mourn awaits what a killed plugin of the container left running, where that is
// planned. No other plugin of the container runs meanwhile.
func (s *storm) mourn(l *life, d *death) {
	if !d.await {
		return
	}
	for _, pid := range children() {
		environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if bytes.Contains(environ, []byte("\x00CNI_CONTAINERID="+l.id+"\x00")) {
			reap(pid)
		}
	}
}

// fail notes an error, be it of an attachment or of none (nil).
func (s *storm) fail(g *leg, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g != nil {
		g.failed = true
	}
	s.failed = append(s.failed, fmt.Errorf(format, args...))
}

// failures is what went wrong, as a text.
func (s *storm) failures() string {
	var text strings.Builder
	for _, err := range s.failed {
		fmt.Fprintln(&text, strings.Join(strings.Fields(err.Error()), " "))
	}
	return text.String()
}

// do is one chore, for one network.
func (s *storm) do(c chore, network int) {
	var err error
	switch c {
	case status:
		s.calls.RLock()
		defer s.calls.RUnlock()
		err = s.runtime(nil).GetStatusNetworkList(context.Background(), s.lists[network])
		tried("storm: STATUS", err == nil)
	case gcAlone:
		s.calls.Lock()
		defer s.calls.Unlock()
		err = s.gc(network, s.live)
		tried("storm: GC alone, with those that live", err == nil)
	case gcAmidst:
		s.calls.RLock()
		defer s.calls.RUnlock()
		err = s.gc(network, s.known)
		tried("storm: GC amidst ADD and DEL, with those that are known", err == nil)
	}
	if err != nil {
		s.fail(nil, "%s of network %s: %w", []string{"STATUS", "GC", "GC amidst others"}[c], s.lists[network].Name, err)
	}
}

func (s *storm) gc(network int, keep map[string]bool) error {
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

// rage lets so many attachments live and die, some at a time, as the seed has it.
func (s *storm) rage(seed uint64, pairs, atOnce int) {
	GinkgoHelper()
	r := rand.New(rand.NewPCG(seed, 0))
	var tasks []func()
	var legs []*leg
	for len(legs) < pairs {
		l := newLife(r, len(legs))
		l.pod = nstest.New(GinkgoTB()).Named(l.id)
		for _, g := range l.legs {
			s.known[s.key(l, g)] = true
		}
		legs = append(legs, l.legs...)
		tasks = append(tasks, func() { s.lead(l) })
		if r.IntN(4) == 0 {
			c, network := chore(r.IntN(int(choreKinds))), r.IntN(len(climate))
			if len(legs) > pairs/2 { // what DEL leaves then, no GC hides
				c = status
			}
			tasks = append(tasks, func() { s.do(c, network) })
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
	for _, pid := range children() {
		reap(pid)
	}
	for _, g := range legs {
		tried("storm: ADD and DEL", !g.failed)
	}
}

// calm lets one attachment of each network live and die.
func (s *storm) calm() {
	GinkgoHelper()
	for n := range climate {
		s.lead(s.life("calm", n))
	}
}

// life is a container of one network without surprises.
func (s *storm) life(id string, network int) *life {
	GinkgoHelper()
	return &life{id: id, port: 20000, pod: nstest.New(GinkgoTB()), check: true, legs: []*leg{{network: network, ifName: "eth0"}}}
}

// network is the number of a network.
func (s *storm) network(name string) int {
	return slices.IndexFunc(s.lists, func(l *libcni.NetworkConfigList) bool { return l.Name == name })
}

// stdin is the configuration of the network's first plugin.
func (s *storm) stdin(network int) io.Reader {
	GinkgoHelper()
	list := s.lists[network]
	conf, err := libcni.InjectConf(list.Plugins[0], map[string]any{"name": list.Name, "cniVersion": list.CNIVersion})
	Expect(err).NotTo(HaveOccurred())
	return bytes.NewReader(conf.Bytes)
}

// state is the node and the folders, but for what is in the files that stay: the
// address given out last, and the attachments' files.
func (s *storm) state() string {
	return nstest.Snapshot(GinkgoTB(), s.Node) + "\n" + contentless(nstest.SnapshotDir(GinkgoTB(), s.dir))
}

// constants is the state but for what chance or the order of things decides.
func (s *storm) constants() string {
	state := s.state()
	for _, chance := range []struct{ what, with string }{
		{`\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b`, "MAC"},
		{`\bfe80::[0-9a-f:]+`, "fe80::EUI"},
		{`\.plumb/(\w+)/[0-9a-f-]+\.\d+`, ".plumb/$1/BOOT.INODE"},
		{`\b(ifindex|link_index|link_netnsid|bridge_id|root_id)=\S+`, "$1"},
	} {
		state = regexp.MustCompile(chance.what).ReplaceAllString(state, chance.with)
	}
	lines := strings.Split(state, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// contentless leaves of the lines of SnapshotDir mode and path.
func contentless(files string) string {
	lines := strings.Split(files, "\n")
	for i, line := range lines {
		lines[i] = "file " + strings.Join(strings.Fields(line)[:min(2, len(strings.Fields(line)))], " ")
	}
	return strings.Join(lines, "\n")
}

// children are the processes that this one started, or inherited.
func children() []int {
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

// reap waits for the end of a child.
func reap(pid int) {
	for {
		if _, err := syscall.Wait4(pid, nil, 0, nil); !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

var _ = Describe("a storm", func() {
	seeds := []int64{0}
	pairs, atOnce := 60, 16
	if all() {
		seeds, pairs, atOnce = []int64{0, 1, 2}, 500, 64
	}
	for _, n := range seeds {
		It(fmt.Sprintf("of %d attachments, %d at a time, leaves what a calm day leaves (%d)", pairs, atOnce, n), func() {
			nstest.LeakCheck(GinkgoTB())
			adoptOrphans()
			quiet := newStorm()
			quiet.calm()
			want := nstest.WaitStable(quiet.constants)
			Expect(quiet.failures()).To(BeEmpty(), "on the calm day")

			s := newStorm()
			s.rage(uint64(GinkgoRandomSeed()+n), pairs, atOnce)
			s.calm() // for the networks' chains, which a GC may have taken
			Expect(s.failures()).To(BeEmpty())
			left := nstest.WaitEqual(want, s.constants)
			tried("storm: nothing left at the end", left == "")
			Expect(left).To(BeEmpty(), "left")
		})
	}
})
