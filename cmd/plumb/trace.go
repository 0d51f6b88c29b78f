package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/life"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/traces"
	"github.com/plumb-cni/plumb/v2/pkg/hostfile"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
)

// traceOptions are the flags of plumb trace.
type traceOptions struct {
	limit     time.Duration
	network   string
	container string
	format    *format
	steps     bool
	all       bool
}

func newTrace() *cobra.Command {
	var o traceOptions
	c := &cobra.Command{
		Use:   "trace",
		Short: "Show the calls of plugins on this host as they end",
		Long: `trace shows each call of a plugin on this host as it ends: its start, the attachment, the duration without the start of the
process, and the outcome. The runtime needs no change and no restart. Ctrl-C ends trace. Only one trace can run on a host.`,
		Example: `  plumb trace --for 60s
  plumb trace --network pods --steps
  plumb trace -o json | jq 'select(.outcome != "ok")'`,
		Args: usage(cobra.NoArgs),
	}
	flags := c.Flags()
	o.format = addOutput(flags)
	flags.DurationVar(&o.limit, "for", 0, "end after this `time`, such as 60s")
	flags.StringVar(&o.network, "network", "", "show calls for one `network` only")
	flags.StringVar(&o.container, "container", "", "show calls for containers whose ID begins with this `prefix` only")
	flags.BoolVar(&o.all, "all", false, "also show calls for containerd's network cni-loopback, and each successful STATUS")
	flags.BoolVar(&o.steps, "steps", false, "show the steps of each call: the offset from the start of the call, the duration, and what was done")
	c.RunE = func(c *cobra.Command, _ []string) error { return o.run(c) }
	return c
}

// run shows the calls until a signal arrives or the time limit is reached.
func (o traceOptions) run(c *cobra.Command) (err error) {
	ctx := untilSignal(c.Context())
	o.warnOfNetwork(ctx, c.ErrOrStderr())
	if o.limit > 0 {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, o.limit)
		defer cancel()
	}
	// Catch SIGPIPE, so that a write returns EPIPE when nobody reads the output. The signal would end the process
	// before it removes the pipe.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	listener, err := traces.Listen(cmp.Or(hostfile.InRun(trace.Pipe), trace.Pipe))
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, listener.Close()) }()
	printf(c.ErrOrStderr(), "plumb trace: waiting for calls of plugins; Ctrl-C ends it\n")
	out := c.OutOrStdout()
	if !o.format.isJSON() {
		printf(out, traceColumns, "TIME", "NETWORK", "CONTAINER", "IF", "COMMAND", "PLUGIN", "DURATION", "OUTCOME")
	}
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	err = listener.Follow(ctx, func(call *traces.Call) error {
		switch {
		case !o.all && (o.network == "" && node.IsLoopback(call.Network, call.IfName) || call.Command == "STATUS" && call.Outcome == traces.OutcomeOK),
			o.network != "" && call.Network != o.network || !strings.HasPrefix(call.ContainerID, o.container):
			return nil
		case o.format.isJSON():
			return lines.Encode(call)
		}
		_, err := io.WriteString(out, o.text(call, ""))
		return err
	})
	if errors.Is(err, unix.EPIPE) {
		return nil // the reader, for example head, is done
	}
	return err
}

// warnOfNetwork prints a warning if the host lacks the network of the flag --network.
func (o traceOptions) warnOfNetwork(ctx context.Context, w io.Writer) {
	if o.network == "" {
		return
	}
	p := newPlaces(pflag.NewFlagSet("", pflag.ContinueOnError))
	if p.find(ctx) != nil {
		return // a trace works without the inventory
	}
	inv, err := p.Read()
	if err != nil {
		return
	}
	if _, err := inv.Network(o.network); err != nil {
		printf(w, "plumb: %v; waiting for it\n", err)
	}
}

// traceColumns is the format of a line. Lines are printed as the calls end, so the columns have fixed widths.
const traceColumns = "%-12s  %-10s  %-12s  %-6s  %-7s  %-14s  %9s  %s\n"

// text returns the lines for a call, for its steps if the flag --steps is set, and, indented, for the calls of its IPAM
// plugins.
func (o traceOptions) text(c *traces.Call, indent string) string {
	var b strings.Builder
	took := fmt.Sprintf("%.1fms", c.DurationMS)
	if c.Outcome == traces.OutcomeKilled {
		took = "-"
	}
	outcome := c.Outcome
	if c.Error != nil {
		outcome = fmt.Sprintf("code %d: %s", c.Error.Code, oneLine(c.Error.Message))
	}
	if c.LostLines > 0 {
		outcome += fmt.Sprintf(" (%d lines lost, because the pipe was full)", c.LostLines)
	}
	name := func(text string) string { return oneLine(cmp.Or(text, "-")) }
	printf(&b, traceColumns, c.Time.Local().Format("15:04:05.000"), name(c.Network), name(life.ShortID(c.ContainerID)),
		name(c.IfName), name(c.Command), indent+oneLine(c.Plugin), took, outcome)
	if o.steps {
		for _, s := range c.Steps {
			failed := ""
			if s.Error != "" {
				failed = ": " + oneLine(s.Error)
			}
			printf(&b, "%s    %9.3fms  %9.3fms  %s%s\n", indent, s.OffsetMS, s.DurationMS, oneLine(s.Step), failed)
		}
	}
	for _, inner := range c.Calls {
		b.WriteString(o.text(inner, indent+"  "))
	}
	return b.String()
}
