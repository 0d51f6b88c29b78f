package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/gc"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/life"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/maintain"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/repair"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/watch"
	"github.com/plumb-cni/plumb/v2/pkg/hostfile"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/statefile"
	"github.com/spf13/cobra"
)

func newMaintain() *cobra.Command {
	c := &cobra.Command{
		Use:   "maintain [--cri[=SOCKET]] [--live FILE]",
		Short: "Remove what dead containers left on this host, and restore what running ones have lost",
		Long: `maintain calls gc, if --cri or --live tells it which containers live, and then repair. With --every, it runs as a service
that repeats this, and that also repairs at once when another program deletes a table of plumb or changes a bridge, or when
firewalld reloads. The exit status is 1 if something is left. After SIGTERM, it finishes the current attachment, and exits with
status 0.`,
		Example: `  plumb maintain --cri --metrics /var/lib/node_exporter/plumb-maintain.prom
  plumb maintain --cri --every 5m`,
		Args: noArgs,
	}
	m := &maintainer{c: c, places: addPlaces(c), timeout: addTimeout(c.Flags())}
	c.Flags().StringVar(&m.live, "live", "", "`file` with the whole IDs of all live containers of all runtimes")
	addCRI(c.Flags(), &m.cri)
	c.Flags().StringVar(&m.Metrics, "metrics", "", "replace this `file` with metrics after each run, for the textfile collector of node_exporter")
	c.Flags().DurationVar(&m.Every, "every", 0, "run as a service, with this `time` between two runs")
	c.Flags().BoolVar(&m.dryRun, "dry-run", false, "show what would be removed and repaired, and change nothing")
	host := c.Flags().Bool("host", false, "work with the files of the host; only in a privileged container with the host's network (hostNetwork) and processes (hostPID)")
	c.RunE = func(*cobra.Command, []string) error {
		if *host {
			return execOnHost(slices.DeleteFunc(os.Args[1:], func(arg string) bool { return strings.HasPrefix(arg, "--host") }))
		}
		return m.run()
	}
	return c
}

// A maintainer holds the flags of the command.
type maintainer struct {
	maintain.Maintainer
	c         *cobra.Command
	places    *places
	timeout   *time.Duration
	live, cri string
	dryRun    bool
}

func (m *maintainer) run() (err error) {
	switch {
	case m.live == "-":
		return usageError{errors.New("--live: the list must be a file")}
	case m.dryRun && (m.Every > 0 || m.Metrics != ""):
		return usageError{errors.New("--dry-run cannot be combined with --every and --metrics")}
	}
	const lockName = "plumb-maintain.lock"
	path := m.places.InRun(lockName)
	if path == "" {
		return errors.New(hostfile.NotWritable(filepath.Join(m.places.RunDir, lockName)))
	}
	unlock, err := maintain.Lock(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	ctx := untilSignal(m.c.Context())
	m.GC, m.Repair = m.gc, m.repair
	m.State = statefile.File{Dir: filepath.Dir(path), Name: "plumb-maintain.json"}
	m.Log = func(format string, args ...any) { printf(m.c.ErrOrStderr(), "plumb: "+format+"\n", args...) }
	context.AfterFunc(ctx, func() { m.Log("ending after the current attachment") })
	if m.Every > 0 {
		w := watch.Watcher{OpenHost: func() (*ns.Handle, error) { return ns.Self(nil) }, UsesBridge: m.usesBridge}
		if m.Events, err = w.Start(ctx); err != nil {
			return err
		}
	}
	left, err := m.Run(ctx)
	if err == nil && left > 0 {
		return errFound
	}
	return err
}

// gc runs gc if a flag says which containers live.
func (m *maintainer) gc(ctx context.Context) (removed, suspect, left int, err error) {
	if m.live == "" && m.cri == "" {
		return 0, 0, 0, nil
	}
	g := &collection{begin: time.Now(), places: m.places, format: new(format), live: m.live, cri: m.cri, selection: gc.Selection{MinAge: minAge}}
	inv, err := readHost(m.c, m.places) // read before the list, see gc.NewPlan
	if err != nil {
		return 0, 0, 0, err
	}
	plan, err := g.plan(m.c, inv)
	if err != nil {
		return 0, 0, 0, err
	}
	for _, k := range plan.Kept {
		if k.Life == life.Suspect {
			suspect++
		}
	}
	if m.dryRun {
		return 0, suspect, 0, g.printPlan(m.c.OutOrStdout(), plan)
	}
	report, err := g.collect(ctx, m.c, plan)
	if report == nil {
		return 0, suspect, 0, err
	}
	return len(report.Removed), suspect, max(len(report.Left), len(report.Errors)), err
}

func (m *maintainer) repair(ctx context.Context) (repaired, left int, err error) {
	report, err := repair.Run(ctx, repair.Options{Places: m.places.Places, DryRun: m.dryRun, Timeout: *m.timeout, Flags: placeFlags(m.c.Flags())})
	if report == nil {
		return 0, 0, err
	}
	if err == nil && len(report.Errors) > 0 {
		err = errors.New("cannot read " + strings.Join(report.Errors, "; "))
	}
	return len(report.Repaired), len(report.Left) + len(report.Damaged), errors.Join(err, printRepairs(m.c.OutOrStdout(), report, m.dryRun, false))
}

// usesBridge reports whether an attachment uses the bridge. If it cannot read the host, it returns true, so that Repair
// reports the error.
func (m *maintainer) usesBridge(name string) bool {
	inv, err := m.places.Read()
	return err != nil || slices.ContainsFunc(inv.Attachments, func(a *node.Attachment) bool { return a.Uplink() == name })
}
