package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/cri"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/gc"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/life"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/plugins"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newGC() *cobra.Command {
	c := &cobra.Command{
		Use:   "gc (--cri[=SOCKET] | --live FILE | --live-from-cache | --no-live | --dead CONTAINER)",
		Short: "Remove what dead containers left on this host",
		Long: `gc removes what this host holds for containers that no longer exist. It calls DEL for each of their attachments, and
GC for each network whose cniVersion supports GC. It keeps containers that are in the list of live containers, that are
newer than the list, or that have a process in their network namespace. With --dead, it calls DEL only, for the
attachments of the given containers.

With --cri, gc asks the container runtimes of Kubernetes for their pod sandboxes. It also removes suspect attachments, for
example what a failed ADD left, if two runs of gc --cri find them suspect and the runs are at least --min-age apart. If the
ADD succeeded, the runs must be at least 10 minutes apart. With --live as well, the sandboxes and the containers in the
file are live. --force does not affect the runtime's networks.`,
		Example: `  plumb gc --cri
  crictl pods -q --no-trunc | plumb gc --live -
  nerdctl ps -aq --no-trunc | plumb gc --live - --dry-run`,
		Args: noArgs,
	}
	g := &collection{begin: time.Now(), places: addPlaces(c), format: addOutput(c.Flags())}
	c.Flags().StringVar(&g.live, "live", "", "`file` with the whole IDs of all live containers of all runtimes; - for stdin")
	addCRI(c.Flags(), &g.cri)
	c.Flags().BoolVar(&g.fromResults, "live-from-cache", false, "the containers with a result in libcni's cache are live")
	c.Flags().BoolVar(&g.noneLive, "no-live", false, "treat every container as deleted")
	c.Flags().StringSliceVar(&g.dead, "dead", nil, "ID of a `container` that no longer exists, or the beginning of the ID; may be repeated")
	c.Flags().BoolVar(&g.dryRun, "dry-run", false, "show what would be removed, and remove nothing")
	c.Flags().BoolVar(&g.selection.Force, "force", false, "also remove what belongs to containers whose namespace exists, but contains no process")
	c.Flags().StringVar(&g.selection.Network, "network", "", "collect one `network` only")
	c.Flags().DurationVar(&g.selection.MinAge, "min-age", minAge, "keep attachments that were younger than this when the list was created")
	c.RunE = g.run
	return c
}

// addCRI adds the flag --cri.
func addCRI(flags *pflag.FlagSet, socket *string) {
	flags.StringVar(socket, "cri", "", "`socket` of a runtime with CRI v1; without a value, the default sockets of containerd, CRI-O and k3s")
	flags.Lookup("cri").NoOptDefVal = defaultSockets
}

// minAge is the default of --min-age.
const minAge = time.Minute

// defaultSockets is the value of --cri without a socket. cri.FindSandboxes then finds the sockets.
const defaultSockets = "auto"

// A collection holds the flags of one run of the command.
type collection struct {
	begin       time.Time
	places      *places
	format      *format
	live        string
	cri         string
	fromResults bool
	noneLive    bool
	dead        []string
	dryRun      bool
	selection   gc.Selection
	ofRuntimes  map[string]bool // the networks whose suspect attachments a second run with --cri removes
}

func (g *collection) run(c *cobra.Command, _ []string) error {
	sources := 0
	for _, given := range []bool{g.live != "" || g.cri != "", g.fromResults, g.noneLive, len(g.dead) > 0} {
		if given {
			sources++
		}
	}
	if sources != 1 {
		return usageError{errors.New("give exactly one of --cri, --live, --live-from-cache, --no-live and --dead, or --cri with --live, because gc must know which containers live")}
	}
	inv, err := readHost(c, g.places) // read before the list, see gc.NewPlan
	if err != nil {
		return err
	}
	if g.selection.Network != "" {
		if _, err := inv.Network(g.selection.Network); err != nil {
			return usageError{err}
		}
	}
	plan, err := g.plan(c, inv)
	switch {
	case err != nil && len(g.dead) > 0:
		return usageError{err}
	case errors.Is(err, life.ErrNoneLive):
		return fmt.Errorf("%w; if no container with an attachment lives, use --no-live", err)
	case err != nil:
		return err
	}
	if g.dryRun {
		err := g.format.print(c.OutOrStdout(), plan, func(w io.Writer) error { return g.printPlan(w, plan) })
		if err == nil && g.keepsDead(plan.Kept) {
			err = errFound
		}
		return err
	}
	ctx := afterCurrentCall(c)
	report, err := g.collect(ctx, c, plan)
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("ended by a signal before everything was removed: %w", ctx.Err())
	case len(report.Left)+len(report.Errors) > 0, g.keepsDead(report.Kept):
		return errFound
	}
	return nil
}

// keepsDead reports whether gc keeps what --dead names, for example because it is younger than --min-age.
func (g *collection) keepsDead(kept []gc.WithReason) bool { return len(g.dead) > 0 && len(kept) > 0 }

// callLimit is the time after which gc kills a plugin. It is longer than the time for which plumb's plugins wait for
// other calls.
const callLimit = 2 * time.Minute

// collect carries out the plan, and prints the report.
func (g *collection) collect(ctx context.Context, c *cobra.Command, plan *gc.Plan) (*gc.Report, error) {
	if g.selection.Suspects != nil {
		if err := g.selection.Suspects.Save(); err != nil {
			return nil, err
		}
	}
	collector := gc.Collector{
		Places: g.places.Places, Network: g.selection.Network, Exec: plugins.NewCaller(g.places.PluginPath, callLimit),
		Log: func(format string, args ...any) { printf(c.ErrOrStderr(), "plumb: "+format+"\n", args...) },
	}
	report, err := collector.Run(ctx, plan)
	if err == nil {
		err = g.format.print(c.OutOrStdout(), report, func(w io.Writer) error { return g.printReport(w, report) })
	}
	for _, problem := range report.Errors {
		printf(c.ErrOrStderr(), "plumb: %s\n", problem)
	}
	return report, err
}

// plan reads the list of live containers and returns the plan.
func (g *collection) plan(c *cobra.Command, inv *node.Inventory) (*gc.Plan, error) {
	var live life.List
	var err error
	if g.cri == "" || g.live != "" {
		live, err = g.readLive(c, inv)
	}
	if err == nil && g.cri != "" {
		live, err = g.ask(c.Context(), inv, live)
	}
	if err != nil {
		return nil, err
	}
	return gc.NewPlan(inv, live, g.selection)
}

// ask returns a list that also contains the pod sandboxes of the runtimes.
func (g *collection) ask(ctx context.Context, inv *node.Inventory, live life.List) (life.List, error) {
	var sandboxes []string
	var err error
	if g.cri == defaultSockets {
		sandboxes, err = cri.FindSandboxes(ctx, g.places.sockets)
	} else {
		sandboxes, err = cri.Sandboxes(ctx, g.cri)
	}
	if err != nil {
		return live, err
	}
	g.selection.Suspects = gc.ReadSuspects(g.places.Places)
	live, err = live.WithSandboxes(inv.Facts(), sandboxes, g.begin)
	g.ofRuntimes = live.RuntimeNetworks
	return live, err
}

// readLive returns the list of live containers.
func (g *collection) readLive(c *cobra.Command, inv *node.Inventory) (life.List, error) {
	switch {
	case g.fromResults:
		return life.FromResults(inv.Facts(), inv.Time), nil
	case len(g.dead) > 0:
		return g.deadList(inv)
	case g.noneLive:
		return life.List{None: true, Created: inv.Time}, nil
	case g.live == "-":
		stdin, ok := c.InOrStdin().(*os.File)
		if !ok {
			return life.List{}, errors.New("stdin is not a file")
		}
		return life.Read(stdin, g.begin)
	}
	file, err := os.Open(g.live)
	if err != nil {
		return life.List{}, err
	}
	list, err := life.Read(file, g.begin)
	return list, errors.Join(err, file.Close())
}

// deadList returns the list for --dead.
func (g *collection) deadList(inv *node.Inventory) (life.List, error) {
	var ids []string
	for _, id := range g.dead {
		attachments, err := inv.Find(id, "")
		if err != nil {
			return life.List{}, err
		}
		ids = append(ids, attachments[0].ContainerID)
	}
	return life.NewDead(ids, inv.Time), nil
}

func (g *collection) printPlan(w io.Writer, p *gc.Plan) error {
	printAttachments(w, "would remove", p.Dead)
	g.printKept(w, p.Kept, fmt.Sprintf("%s would be removed, %d kept", count(len(p.Dead), "attachment"), len(p.Kept)))
	return nil
}

// printReport prints what was removed and what is left.
func (g *collection) printReport(w io.Writer, r *gc.Report) error {
	printAttachments(w, "removed", r.Removed)
	for _, l := range r.Left {
		printf(w, "left %s %s %s: %s\n", l.Network, l.ContainerID, l.IfName, l.Reason)
		for _, t := range l.Resources {
			printf(w, "  %s\n", t.Remove)
		}
	}
	for _, s := range r.Shared {
		printf(w, "left chains of network %s, which its attachments shared; then run these commands:\n", s.Network)
		for _, command := range s.Commands {
			printf(w, "  %s\n", command)
		}
	}
	g.printKept(w, r.Kept, fmt.Sprintf("removed resources of %s, kept %d, left %d", count(len(r.Removed), "attachment"), len(r.Kept), len(r.Left)))
	return nil
}

func printAttachments(out io.Writer, what string, all []*node.Attachment) {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, a := range all {
		printf(w, "%s %s %s %s\n", what, cmp.Or(a.Network, "?"), cmp.Or(a.ContainerID, "?"), cmp.Or(a.IfName, "?"))
		for _, t := range a.Resources {
			printf(w, "  %s\t%s\t%s\n", t.Kind, t.Name, t.Where)
		}
	}
	_ = w.Flush() // main returns the error of stdout
}

// printKept prints the kept attachments with the reasons, the line last, and how to remove the suspect attachments.
func (g *collection) printKept(w io.Writer, kept []gc.WithReason, last string) {
	suspect, interval := 0, time.Duration(0)
	for _, k := range kept {
		printf(w, "kept %s %s %s: %s\n", k.Network, k.ContainerID, k.IfName, k.Reason)
		if k.Life == life.Suspect && (g.cri == "" || g.ofRuntimes[k.Network]) {
			suspect++
			interval = max(interval, g.selection.Interval(k.Attachment))
		}
	}
	printf(w, "%s\n", last)
	switch {
	case suspect > 0 && g.cri != "":
		printf(w, "suspect on the runtime's networks: %d; a run of gc --cri at least %s later removes them\n", suspect, gc.InWords(interval))
	case suspect > 0 && !g.selection.Force:
		printf(w, "suspect: %d; if no runtime knows these containers, use --force\n", suspect)
	}
}
