// Package repair restores what living attachments have lost on the host. It calls CHECK of their plugins, and REPAIR of
// each plugin whose CHECK fails (see skel.CommandRepair).
package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/life"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/plugins"
	"github.com/plumb-cni/plumb/v2/pkg/lock"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// Options contains the inputs of a repair.
type Options struct {
	node.Places
	Network string // the only network to repair; empty for all networks
	DryRun  bool   // call CHECK only
	// ContainerSide means that REPAIR also restores what is missing in the containers.
	ContainerSide bool
	Flags         string // the flags that select the same Places for another plumb repair, each after a space
	// Timeout limits the time of one call of a plugin, and the wait for another repair to end.
	Timeout time.Duration
}

// An Entry is one plugin of an attachment or, in Report.Skipped, an attachment. If Network is empty, it is an interface of
// the host.
type Entry struct {
	Network     string `json:"network"`
	ContainerID string `json:"container"`
	IfName      string `json:"ifName"`
	Plugin      string `json:"plugin,omitempty"`
	// What is the error of CHECK or, in Report.Skipped, why the attachment was skipped, and what to do.
	What             string `json:"what"`
	Error            string `json:"error,omitempty"` // the error of REPAIR
	plugins.Solution        // how to fix the rest, in Report.Left

	summary string // What with only the first of several problems
}

// Summary returns What or, if it contains several problems, the first one and their number.
func (e Entry) Summary() string { return cmp.Or(e.summary, e.What) }

// Counts are the numbers of attachments. Each examined attachment is in one of them. One with a problem in Left is in Left, even
// if others of its problems were repaired.
type Counts struct {
	Repaired int `json:"repaired"`
	Damaged  int `json:"damaged"` // would be repaired, with Options.DryRun
	Healthy  int `json:"healthy"`
	Left     int `json:"left"`
	Skipped  int `json:"skipped"`
}

// A Report is the result of a repair.
type Report struct {
	Counts   Counts  `json:"counts"`
	Damaged  []Entry `json:"damaged"` // the plugins whose CHECK failed, with Options.DryRun
	Repaired []Entry `json:"repaired"`
	// Left contains the plugins whose REPAIR failed or could not be called.
	Left []Entry `json:"left"`
	// Skipped contains the attachments that cannot be checked, and those whose DEL has begun.
	Skipped []Entry `json:"skipped"`
	// Errors is empty if all parts of the host that can contain attachments could be read.
	Errors []string `json:"errors"`

	flags   string // Options.Flags
	healthy []types.Attachment
}

// count sets Counts. It counts each attachment once.
func (r *Report) count() {
	seen := types.Set{}
	number := func(entries []Entry) (n int) {
		for _, e := range entries {
			if id := (types.Attachment{Network: e.Network, ContainerID: e.ContainerID, IfName: e.IfName}); e.Network != "" && !seen[id] {
				seen[id] = true
				n++
			}
		}
		return n
	}
	r.Counts.Left, r.Counts.Skipped = number(r.Left), number(r.Skipped)
	r.Counts.Damaged, r.Counts.Repaired = number(r.Damaged), number(r.Repaired)
	for _, id := range r.healthy {
		if !seen[id] {
			r.Counts.Healthy++
		}
	}
}

// Run checks the living attachments of the host, and repairs them one at a time. It needs root. An error wraps
// node.ErrNoNetwork if Options.Network does not exist, and os.ErrDeadlineExceeded if another repair or plumb gc runs too long.
// After ctx is done, Run ends when the current REPAIR has ended. It then returns the error of ctx and a Report of what
// was done.
func Run(ctx context.Context, o Options) (*Report, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("repair calls plugins: %w; run plumb as root on the host", syscall.EPERM)
	}
	path, err := skel.LockPath()
	if err != nil {
		return nil, err
	}
	key, err := lock.NewKey(path, "plumb repair") // which also waits for the GC of plumb gc (lock.NewAll)
	if err != nil {
		return nil, err
	}
	defer func() { _ = key.Close() }()
	if err := key.Lock(o.Timeout); err != nil {
		return nil, fmt.Errorf("wait until another plumb repair or plumb gc ends: %w; try again later", err)
	}
	inv, err := o.Read()
	if err != nil {
		return nil, err
	}
	if err := inv.Select(o.Network, ""); err != nil {
		return nil, err
	}
	r := &Report{flags: o.Flags, Damaged: []Entry{}, Repaired: []Entry{}, Left: []Entry{}, Skipped: []Entry{}, Errors: []string{}}
	if inv.IsPartial() {
		for _, problem := range inv.Errors {
			r.Errors = append(r.Errors, problem.String())
		}
	}
	caller := plugins.NewCaller(o.PluginPath, o.Timeout)
	caller.ContainerSide = o.ContainerSide
	for range maxPasses {
		repaired := len(r.Repaired)
		r.pass(ctx, caller, living(inv), o.DryRun)
		if ctx.Err() != nil || len(r.Repaired) == repaired {
			break
		}
	}
	for _, a := range inv.Attachments {
		if isAlive(inv, a) && isAdding(a) {
			r.skip(a, errors.New("libcni's cache contains no result of its ADD, which may still be running"))
		}
	}
	if ctx.Err() == nil && slices.ContainsFunc(living(inv), (*node.Attachment).RoutesIPv6) {
		if err := r.acceptRouters(o.DryRun); err != nil {
			r.Errors = append(r.Errors, fmt.Sprintf("router advertisements: %v", err))
		}
	}
	r.count()
	return r, ctx.Err()
}

// maxPasses limits the number of passes. Some damage can be seen only after other damage was repaired. For example, the
// sysctls of a bridge can be read only after the bridge was restored, which the first pass does.
const maxPasses = 3

// pass checks the attachments and repairs what is damaged.
func (r *Report) pass(ctx context.Context, caller *plugins.Caller, all []*node.Attachment, dryRun bool) {
	for _, c := range r.check(ctx, caller, all) {
		for _, d := range c.damages {
			switch {
			case errors.Is(d.Err, plugins.ErrNotChecked):
				e := entry(c.Attachment, d)
				e.Solution = d.Solution()
				r.Left = append(r.Left, e)
			case dryRun:
				r.Damaged = append(r.Damaged, entry(c.Attachment, d))
			default:
				r.repair(context.WithoutCancel(ctx), caller, c.Attachment, d)
			}
		}
		if ctx.Err() != nil {
			return
		}
	}
}

func isAlive(inv *node.Inventory, a *node.Attachment) bool {
	verdict, _ := inv.Judge(a, life.List{})
	return !a.Incomplete && verdict == life.Alive
}

// isAdding reports whether the ADD of the attachment may still be running.
func isAdding(a *node.Attachment) bool { return a.ResultPath() == "" && a.AddMayRun() }

// living returns the living attachments whose ADD has ended.
//
// The latest ADD comes first. If two attachments want one host port, the later one has it, as after their ADDs. Because
// REPAIR never takes what another attachment owns, the later one must be repaired first.
func living(inv *node.Inventory) []*node.Attachment {
	all := slices.DeleteFunc(slices.Clone(inv.Attachments), func(a *node.Attachment) bool { return !isAlive(inv, a) || isAdding(a) })
	slices.SortStableFunc(all, func(a, b *node.Attachment) int { return b.ResultTime().Compare(a.ResultTime()) })
	return all
}

// isLoopback reports whether the attachment has only the interface lo, which needs nothing on the host.
func isLoopback(a *node.Attachment) bool {
	list, _ := a.Added()
	return list != nil && !slices.ContainsFunc(list.Plugins, func(p *libcni.PluginConfig) bool { return p.Network.Type != "loopback" })
}

// A checked attachment contains the plugins whose CHECK failed, or the error of why none was called.
type checked struct {
	*node.Attachment
	damages []plugins.Damage
	err     error
}

// maxChecks limits the number of plugins that run at a time, because the container of a DaemonSet limits their memory.
const maxChecks = 4

// check calls CHECK for several attachments at a time. It clears the counts of the previous pass, adds all except the
// damaged attachments to the report, and returns the damaged ones. After ctx is done, it returns none, and does not change
// the report.
func (r *Report) check(ctx context.Context, caller *plugins.Caller, all []*node.Attachment) []checked {
	results, next := make([]checked, len(all)), make(chan int)
	var workers sync.WaitGroup
	for range min(maxChecks, runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for i := range next {
				results[i] = checkOne(ctx, caller, all[i])
			}
		})
	}
	for i := range all {
		next <- i
	}
	close(next)
	workers.Wait()
	if ctx.Err() != nil {
		return nil
	}
	r.healthy, r.Left, r.Skipped = nil, []Entry{}, []Entry{}
	return slices.DeleteFunc(results, func(c checked) bool {
		switch {
		case c.err != nil && isLoopback(c.Attachment): // such as each pod's cni-loopback beside another project's plugin
		case c.err != nil:
			r.skip(c.Attachment, c.err)
		case len(c.damages) == 0 && !node.IsLoopback(c.Network, c.IfName): // which plumb list and doctor do not count either
			r.healthy = append(r.healthy, c.ID())
		}
		return len(c.damages) == 0
	})
}

func checkOne(ctx context.Context, caller *plugins.Caller, a *node.Attachment) (c checked) {
	c.Attachment = a
	list, _ := a.Added()
	switch {
	case ctx.Err() != nil:
	case list != nil && list.DisableCheck:
		c.err = errors.New("its network has disableCheck")
	case a.ResultPath() != "" && !a.HasNamespace():
		c.err = errors.New("the path of its namespace is unknown; delete the pod or the container, and let the runtime create it again")
	default:
		c.damages, c.err = caller.Check(ctx, a)
	}
	return c
}

// repair calls REPAIR of one plugin.
func (r *Report) repair(ctx context.Context, caller *plugins.Caller, a *node.Attachment, d plugins.Damage) {
	err := caller.Repair(ctx, a, d)
	rest := d.After(err)
	solution := rest.Solution()
	switch {
	case err == nil:
		r.Repaired = append(r.Repaired, entry(a, d))
		return
	case a.IsDeleted(), rest.HasKind(types.ProblemDeleted):
		r.skip(a, fmt.Errorf("a DEL of %s has begun; if the runtime does not repeat it, run this: %s", a.ID(),
			types.Command("plumb", "gc", "--dead", a.ContainerID, "--network", a.Network, "--force")+r.flags))
		return
	case !caller.ContainerSide && rest.Repair() == types.RepairContainerSide:
		solution = plugins.Solution{Fix: rest.RepairCommand(a.Network, r.flags)}
	}
	e := entry(a, d)
	e.Error, e.Solution = plugins.ErrorText(err), solution
	r.Left = append(r.Left, e)
}

func (r *Report) skip(a *node.Attachment, reason error) {
	r.Skipped = append(r.Skipped, Entry{Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName, What: reason.Error()})
}

func entry(a *node.Attachment, d plugins.Damage) Entry {
	e := Entry{Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName, Plugin: d.Plugin, What: plugins.ErrorText(d.Err)}
	if texts := d.Texts(); len(texts) > 1 && texts[0] != "" {
		e.summary = fmt.Sprintf("%s; and %d more (-v)", texts[0], len(texts)-1)
	}
	return e
}
