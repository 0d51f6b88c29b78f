package nstest

import (
	"cmp"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/plumb-cni/plumb/pkg/skel"
)

// A Sweep says what FaultSweep runs.
type Sweep struct {
	Plugin skel.Plugin
	Config string
	Args   string   // CNI_ARGS
	Path   string   // CNI_PATH
	Dirs   []string // folders that have to be as before as well
	// Prepare readies a fresh node and pod before anything is called; nil: not needed.
	Prepare func(node, pod *NS)
	// PreparePod gives each container that is served, be it the one before, what a
	// chained plugin finds there; nil: nothing.
	PreparePod func(pod *NS)
	// Survives lists how the steps begin that an ADD may do without ("announce "):
	// they may be refused and the ADD succeed. Each needs its reason at the caller.
	Survives []string
	// Ignore tells lines of a snapshot that may change; nil: none may.
	Ignore func(line string) bool

	// For tests of the sweep itself.
	settling time.Duration // 0: as in Settled
	whole    bool          // with -short too
}

// KeptByHostLocal reports whether a line of a snapshot is of a file that host-local keeps after DEL:
// the address that it reserved last, and its own folder ".plumb". It serves as Sweep.Ignore.
func KeptByHostLocal(line string) bool {
	return strings.Contains(line, "last_reserved_ip") || strings.Contains(line, " .plumb")
}

// FaultSweep refuses each step of a plugin in turn, and demands that nothing stays.
//
//   - ADD whose k-th step is refused fails, and leaves node, pod and folders as they were;
//   - ADD whose k-th step is done but its outcome lost fails, and a DEL leaves them so;
//   - DEL whose k-th step is refused, or its outcome lost, has tried the others, and a
//     second DEL leaves them so;
//
// for k = 1, 2, 3 … until k is past the last step. An ADD of another container comes
// first: what the node shares then stands already, and equality can be exact.
//
// With -short it takes every eighth step only, another of them in each mode.
func FaultSweep(tb TB, s Sweep) {
	tb.Helper()
	stride := FullOrShort(1, 8)
	if s.whole {
		stride = 1
	}
	b := newBed(tb, s)
	for i, m := range []mode{
		{"ADD, step refused", (*bed).addRefused},
		{"ADD, outcome lost", (*bed).addLost},
		{"DEL, step refused", (*bed).delRefused},
		{"DEL, outcome lost", (*bed).delLost},
	} {
		violations := 0
		for k := 1 + i%stride; ; k += stride {
			f := &fault{at: k}
			if err := m.run(b, f); err != nil {
				tb.Errorf("%s: step %d (%s): %v", m.name, k, f.step, err)
				violations++
				b.retire()
				b = newBed(tb, s)
			}
			if f.step == "" {
				tb.Logf("%s: fewer than %d steps, %d violations", m.name, k, violations)
				break
			}
		}
	}
	b.retire()
}

type mode struct {
	name string
	run  func(*bed, *fault) error
}

// A fault strikes at one step. Steps may come from several goroutines.
type fault struct {
	mu   sync.Mutex
	at   int
	seen int
	step string // the one that was struck; empty: none yet
}

func (f *fault) strike(step string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen++
	if f.seen != f.at {
		return nil
	}
	f.step = step
	return fmt.Errorf("injected: %w", syscall.ENOBUFS)
}

// A bed is a node that has served before, and a pod that is to be served.
type bed struct {
	tb     TB
	sweep  Sweep
	call   Call
	before string
	warm   Call
}

func newBed(tb TB, s Sweep) *bed {
	tb.Helper()
	node, pod := Pair(tb)
	if s.Prepare != nil {
		s.Prepare(node, pod)
	}
	b := &bed{tb: tb, sweep: s, call: Call{
		ContainerID: "swept", Node: node, Pod: pod, Path: s.Path, Args: s.Args, Config: s.Config,
	}}
	warm := b.call
	warm.ContainerID, warm.Pod, warm.Args = "warm", New(tb), ""
	if s.PreparePod != nil {
		s.PreparePod(pod)
		s.PreparePod(warm.Pod)
	}
	Run(s.Plugin, warm.With("ADD")).OK(tb)
	b.before = Steady(b.state)
	b.warm = warm
	return b
}

// retire takes the warming container's attachment back: folders outlive the bed.
func (b *bed) retire() {
	b.tb.Helper()
	Run(b.sweep.Plugin, b.warm.With("DEL")).OK(b.tb)
}

func (b *bed) state() string {
	all := []string{Snapshot(b.tb, b.call.Node, b.call.Pod)}
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

// asBefore is an error that shows what stayed.
func (b *bed) asBefore() error {
	if diff := settled(b.before, b.state, cmp.Or(b.sweep.settling, settling)); diff != "" {
		return fmt.Errorf("not as before:\n%s", diff)
	}
	return nil
}

func (b *bed) run(c Call) Reply { return Run(b.sweep.Plugin, c) }

// failed checks that the fault, where it struck, was told and not swallowed.
func (b *bed) failed(r Reply, f *fault) error {
	if f.step == "" {
		if r.Exit != 0 {
			return fmt.Errorf("failed without a fault: %s", r.Stdout)
		}
		return nil
	}
	if r.Exit == 0 {
		for _, s := range b.sweep.Survives {
			if strings.HasPrefix(f.step, s) {
				return nil
			}
		}
		return fmt.Errorf("succeeded all the same")
	}
	if got := r.Failure(b.tb); !strings.Contains(got.String(), syscall.ENOBUFS.Error()) {
		return fmt.Errorf("the error hides its cause: %s", got)
	}
	return nil
}

func (b *bed) addRefused(f *fault) error {
	c := b.call.With("ADD")
	c.Before = f.strike
	r := b.run(c)
	if err := b.failed(r, f); err != nil {
		return err
	}
	if r.Exit == 0 {
		return b.del()
	}
	if err := b.asBefore(); err != nil {
		return fmt.Errorf("%w\nthe plugin said: %s%s", err, r.Stdout, r.Stderr)
	}
	return nil
}

func (b *bed) addLost(f *fault) error {
	c := b.call.With("ADD")
	c.After = f.strike
	if err := b.failed(b.run(c), f); err != nil {
		return err
	}
	return b.del()
}

func (b *bed) delRefused(f *fault) error {
	c := b.call.With("DEL")
	c.Before = f.strike
	return b.delTwice(c)
}

func (b *bed) delLost(f *fault) error {
	c := b.call.With("DEL")
	c.After = f.strike
	return b.delTwice(c)
}

// delTwice: the first DEL may fail, as its fault demands, or need not.
func (b *bed) delTwice(first Call) error {
	if r := b.run(b.call.With("ADD")); r.Exit != 0 {
		return fmt.Errorf("ADD without a fault: %s", r.Stdout)
	}
	b.run(first)
	return b.del()
}

// del is a DEL without a fault, after which all has to be as before.
func (b *bed) del() error {
	if r := b.run(b.call.With("DEL")); r.Exit != 0 {
		return fmt.Errorf("DEL: %s", r.Stdout)
	}
	return b.asBefore()
}
