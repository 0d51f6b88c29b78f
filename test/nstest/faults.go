package nstest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
)

// A Sweep contains the parameters of FaultSweep.
type Sweep struct {
	Plugin skel.Plugin
	Config string
	Args   string   // CNI_ARGS
	Path   string   // CNI_PATH
	Dirs   []string // directories whose content must be restored as well
	// Prepare, if not nil, prepares a new host and container before the plugin is called.
	Prepare func(host, container *NS)
	// PrepareContainer, if not nil, creates in each of the two containers what an earlier plugin of the
	// chain creates there.
	PrepareContainer func(container *NS)
	// MayFail lists prefixes of steps, for example "announce ", that may fail in an ADD that succeeds. Give the
	// reason for each prefix in a comment.
	MayFail []string
	// Damage lists commands that damage on the host what the plugin's REPAIR restores. Without them, the sweep calls no
	// REPAIR.
	Damage []string
	// Ignore, if not nil, reports whether a line of a snapshot may change.
	Ignore func(line string) bool

	// The following fields are for tests of the sweep itself.
	settleTime time.Duration // limit for restoring the state; if it is 0, the constant settleTime applies
	everyStep  bool          // try every step instead of a sample
}

// KeptByHostLocal reports whether a line of a snapshot describes a file that host-local keeps after DEL. These
// are the file with the last reserved address and the directory ".plumb". Use the function as Sweep.Ignore.
func KeptByHostLocal(line string) bool {
	return strings.Contains(line, "last_reserved_ip") || strings.Contains(line, " .plumb")
}

// FaultSweep injects a fault into each step k = 1, 2, 3, … of a plugin in turn, and checks that nothing remains:
//
//   - If the k-th step of an ADD is refused, ADD fails and restores host, container and directories.
//   - If the k-th step of an ADD is done, but seems to fail, ADD fails, and a DEL restores them.
//   - If the k-th step of a DEL is refused, or is done but seems to fail, a second DEL
//     restores them.
//   - If the k-th step of a REPAIR is refused, or is done but seems to fail, or REPAIR is killed before it, a second
//     REPAIR restores what was damaged.
//
// Before that, FaultSweep adds another container to create what the containers of a host share. Each call must
// restore exactly this state.
//
// FaultSweep tries a sample of the steps. It begins with a random step, and SweepStride returns the distance.
func FaultSweep(tb TB, s Sweep) {
	tb.Helper()
	stride := SweepStride()
	if s.everyStep {
		stride = 1
	}
	b := newTestbed(tb, s)
	modes := []mode{
		{"ADD, step refused", (*testbed).addRefused},
		{"ADD, outcome lost", (*testbed).addLost},
		{"DEL, step refused", (*testbed).delRefused},
		{"DEL, outcome lost", (*testbed).delLost},
		{"REPAIR, step refused", (*testbed).repairRefused},
		{"REPAIR, outcome lost", (*testbed).repairLost},
		{"REPAIR, killed", (*testbed).repairKilled},
	}
	if s.Damage == nil {
		modes = modes[:4]
	}
	for i, m := range modes {
		if i == 4 && stride > 1 {
			stride *= 3 // REPAIR contains the steps of two CHECKs
		}
		violations := 0
		for k := 1 + rand.IntN(stride); ; k += stride {
			f := &fault{at: k}
			if err := m.run(b, f); err != nil {
				tb.Errorf("%s: step %d (%s): %v", m.name, k, f.step, err)
				violations++
				b.close()
				b = newTestbed(tb, s)
			}
			if f.step == "" {
				tb.Logf("%s: fewer than %d steps, %d violations", m.name, k, violations)
				break
			}
		}
	}
	b.close()
}

// AllFaults reports whether tests inject all faults, and execute all calls instead of a sample.
func AllFaults() bool { return os.Getenv("CNI_TEST_FAULTS") == "all" }

// SweepStride returns the distance between the steps at which a sweep injects a fault. It is 1 with
// CNI_TEST_FAULTS=all, which scripts/test.sh --nightly sets, and 8 with -short or in the slow virtual machine
// of test/vm. The default is 5.
func SweepStride() int {
	switch {
	case AllFaults():
		return 1
	case inVM():
		return 8
	}
	return FullOrShort(5, 8)
}

type mode struct {
	name string
	run  func(*testbed, *fault) error
}

// A fault causes one step to fail. Its method inject is a Call.Before or Call.After, and several goroutines may call
// it.
type fault struct {
	mu   sync.Mutex
	at   int    // the number of the step, from 1
	kill bool   // whether all later steps fail as well, so that nothing happens after the step, as after a kill
	seen int    // the number of steps so far
	step string // the step that failed, or "" before that
}

func (f *fault) inject(step string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen++
	if f.seen != f.at && (f.seen < f.at || !f.kill) {
		return nil
	}
	f.step = cmp.Or(f.step, step)
	return fmt.Errorf("injected: %w", syscall.ENOBUFS)
}

// A testbed is a host with one container, and a namespace for another container.
type testbed struct {
	tb     TB
	sweep  Sweep
	call   Call   // for the container that the sweep adds and deletes
	before string // the state without that container
	warm   Call   // for the other container, with its result
}

func newTestbed(tb TB, s Sweep) *testbed {
	tb.Helper()
	host, container := NewHostAndContainer(tb)
	if s.Prepare != nil {
		s.Prepare(host, container)
	}
	b := &testbed{tb: tb, sweep: s, call: Call{
		ContainerID: "swept", Host: host, Container: container, Path: s.Path, Args: s.Args, Config: s.Config,
	}}
	warm := b.call
	warm.ContainerID, warm.Container, warm.Args = "warm", New(tb), ""
	if s.PrepareContainer != nil {
		s.PrepareContainer(container)
		s.PrepareContainer(warm.Container)
	}
	warm.Config = WithPrevResult(warm.Config, Run(s.Plugin, warm.With("ADD")).OK(tb).Stdout)
	b.before = WaitStable(b.state)
	b.warm = warm
	return b
}

// close deletes the other container, because the next testbed uses the same directories.
func (b *testbed) close() {
	b.tb.Helper()
	Run(b.sweep.Plugin, b.warm.With("DEL")).OK(b.tb)
}

func (b *testbed) state() string {
	all := []string{Snapshot(b.tb, b.call.Host, b.call.Container)}
	for _, dir := range b.sweep.Dirs {
		all = append(all, SnapshotDir(b.tb, dir))
	}
	if b.sweep.Ignore == nil {
		return strings.Join(all, "\n")
	}
	var kept []string
	for line := range strings.SplitSeq(strings.Join(all, "\n"), "\n") {
		if !b.sweep.Ignore(line) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}

// requireRestored returns an error with the difference unless the state becomes b.before again.
func (b *testbed) requireRestored() error {
	if diff := waitEqual(b.before, b.state, cmp.Or(b.sweep.settleTime, settleTime)); diff != "" {
		return fmt.Errorf("not as before:\n%s", diff)
	}
	return nil
}

func (b *testbed) run(c Call) Reply { return Run(b.sweep.Plugin, c) }

// checkReply returns an error unless the call failed with the error of the fault. Without a fault, the call
// must have succeeded. It may also succeed if MayFail contains the step.
func (b *testbed) checkReply(r Reply, f *fault) error {
	if f.step == "" {
		if r.Exit != 0 {
			return fmt.Errorf("failed without a fault: %s", r.Stdout)
		}
		return nil
	}
	if r.Exit == 0 {
		for _, s := range b.sweep.MayFail {
			if strings.HasPrefix(f.step, s) {
				return nil
			}
		}
		return fmt.Errorf("succeeded in spite of the fault")
	}
	if got := r.Failure(b.tb); !strings.Contains(got.String(), syscall.ENOBUFS.Error()) {
		return fmt.Errorf("the error hides its cause: %s", got)
	}
	return nil
}

func (b *testbed) addRefused(f *fault) error {
	c := b.call.With("ADD")
	c.Before = f.inject
	r := b.run(c)
	if err := b.checkReply(r, f); err != nil {
		return err
	}
	if r.Exit == 0 {
		return b.del()
	}
	if err := b.requireRestored(); err != nil {
		return fmt.Errorf("%w\nthe plugin printed: %s%s", err, r.Stdout, r.Stderr)
	}
	return nil
}

func (b *testbed) addLost(f *fault) error {
	c := b.call.With("ADD")
	c.After = f.inject
	if err := b.checkReply(b.run(c), f); err != nil {
		return err
	}
	return b.del()
}

func (b *testbed) delRefused(f *fault) error {
	c := b.call.With("DEL")
	c.Before = f.inject
	return b.delTwice(c)
}

func (b *testbed) delLost(f *fault) error {
	c := b.call.With("DEL")
	c.After = f.inject
	return b.delTwice(c)
}

// delTwice runs an ADD, the DEL first, which may fail, and a DEL without a fault.
func (b *testbed) delTwice(first Call) error {
	if r := b.run(b.call.With("ADD")); r.Exit != 0 {
		return fmt.Errorf("ADD without a fault: %s", r.Stdout)
	}
	b.run(first)
	return b.del()
}

func (b *testbed) repairRefused(f *fault) error {
	c := b.call.With("REPAIR")
	c.Before = f.inject
	return b.repairTwice(c)
}

func (b *testbed) repairLost(f *fault) error {
	c := b.call.With("REPAIR")
	c.After = f.inject
	return b.repairTwice(c)
}

func (b *testbed) repairKilled(f *fault) error {
	f.kill = true
	return b.repairRefused(f)
}

// repairTwice runs an ADD, the commands in Damage, the REPAIR first, which may fail, and REPAIRs of both containers
// without a fault. These must restore the state, apart from the order of its lines and the kernel's numbers, and DEL
// the state before the ADD.
func (b *testbed) repairTwice(first Call) error {
	without := WaitStable(b.unnumbered)
	r := b.run(b.call.With("ADD"))
	if r.Exit != 0 {
		return fmt.Errorf("ADD without a fault: %s", r.Stdout)
	}
	first.Config = WithPrevResult(b.call.Config, r.Stdout)
	before := WaitStable(b.unnumbered)
	for _, line := range b.sweep.Damage {
		b.call.Host.MustLine(b.tb, line)
	}
	b.run(first)
	first.Before, first.After = nil, nil
	for _, c := range []Call{first, b.warm.With("REPAIR")} {
		if r := b.run(c); r.Exit != 0 {
			return fmt.Errorf("REPAIR: %s", r.Stdout)
		}
	}
	if diff := waitEqual(before, b.unnumbered, settleTime); diff != "" {
		return fmt.Errorf("not as before:\n%s", diff)
	}
	if r := b.run(b.call.With("DEL")); r.Exit != 0 {
		return fmt.Errorf("DEL: %s", r.Stdout)
	}
	if diff := waitEqual(without, b.unnumbered, settleTime); diff != "" {
		return fmt.Errorf("DEL: not as before ADD:\n%s", diff)
	}
	return nil
}

// unnumbered returns the sorted lines of the state without the kernel's numbers.
func (b *testbed) unnumbered() string {
	lines := slices.DeleteFunc(strings.Split(b.state(), "\n"), numbered)
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// numbered reports whether a line of a snapshot contains the index of a link, or the number of a bridge's port. The
// kernel assigns both in the order in which it creates the links and adds the ports.
func numbered(line string) bool {
	return slices.ContainsFunc([]string{" ifindex=", "_data.designated_port=", "_data.id=", "_data.no="}, func(text string) bool {
		return strings.Contains(line, text)
	})
}

// del runs a DEL without a fault, which must restore the state.
func (b *testbed) del() error {
	if r := b.run(b.call.With("DEL")); r.Exit != 0 {
		return fmt.Errorf("DEL: %s", r.Stdout)
	}
	return b.requireRestored()
}
