package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/traces"
	"github.com/plumb-cni/plumb/pkg/trace"
)

// traceOptions are the flags of plumb trace.
type traceOptions struct {
	limit     time.Duration
	network   string
	container string
	output    string
	steps     bool
}

func newTrace() *cobra.Command {
	var o traceOptions
	c := &cobra.Command{
		Use:   "trace",
		Short: "Show the calls of plugins on this node as they end",
		Long: `plumb trace shows each call of a plugin on this node as it ends: when it began, the network, the container,
the duration without the start of the process, and the outcome. It needs no change of the runtime. It ends
with Ctrl-C. Only one plumb trace can run on a node.`,
		Example: `  plumb trace --for 60s
  plumb trace --network pods --steps
  plumb trace -o json | jq 'select(.outcome != "ok")'`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c) },
	}
	flags := c.Flags()
	flags.DurationVar(&o.limit, "for", 0, "end after this time, such as 60s")
	flags.StringVar(&o.network, "network", "", "show only calls for this network")
	flags.StringVar(&o.container, "container", "", "show only calls for containers whose ID begins with this")
	flags.BoolVar(&o.steps, "steps", false, "show the steps of each call: begin after that of the call, duration, what was done")
	flags.StringVarP(&o.output, "output", "o", "text", "text, or json: one object per call and line")
	return c
}

// run shows the calls until the end of the context or of the time.
func (o traceOptions) run(c *cobra.Command) (err error) {
	if o.output != "text" && o.output != "json" {
		return usageError{fmt.Errorf("--output %q: want text or json", o.output)}
	}
	if o.limit < 0 {
		return usageError{fmt.Errorf("--for %s: want a positive duration", o.limit)}
	}
	ctx := c.Context()
	if o.limit > 0 {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, o.limit)
		defer cancel()
	}
	listener, err := traces.Listen(trace.Pipe)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, listener.Close()) }()
	fmt.Fprintln(c.ErrOrStderr(), "plumb trace: waiting for calls of plugins; Ctrl-C ends it")
	out := c.OutOrStdout()
	if o.output == "text" {
		fmt.Fprintf(out, traceColumns, "TIME", "NETWORK", "CONTAINER", "IF", "COMMAND", "PLUGIN", "DURATION", "OUTCOME")
	}
	return listener.Follow(ctx, func(call *traces.Call) error {
		switch {
		case o.network != "" && call.Network != o.network || !strings.HasPrefix(call.ContainerID, o.container):
			return nil
		case o.output == "json":
			return json.NewEncoder(out).Encode(call)
		}
		_, err := io.WriteString(out, o.text(call, ""))
		return err
	})
}

const traceColumns = "%-12s  %-12s  %-12s  %-6s  %-7s  %-14s  %9s  %s\n"

// text returns a call, its steps if they are wanted, and the calls of its IPAM plugins, which are indented.
func (o traceOptions) text(c *traces.Call, indent string) string {
	var b strings.Builder
	took := fmt.Sprintf("%.1fms", c.TookMS)
	if c.Outcome == traces.OutcomeKilled {
		took = "-"
	}
	outcome := c.Outcome
	if c.Error != nil {
		outcome = fmt.Sprintf("code %d: %s", c.Error.Code, oneLine(c.Error.Message))
	}
	if c.LostLines > 0 {
		outcome += fmt.Sprintf(" (%d steps are lost: too many calls at once)", c.LostLines)
	}
	container := oneLine(c.ContainerID)
	fmt.Fprintf(&b, traceColumns, c.Time.Local().Format("15:04:05.000"), oneLine(c.Network), container[:min(12, len(container))],
		oneLine(c.IfName), oneLine(c.Command), indent+c.Plugin, took, outcome)
	if o.steps {
		for _, s := range c.Steps {
			failed := ""
			if s.Error != "" {
				failed = ": " + oneLine(s.Error)
			}
			fmt.Fprintf(&b, "%s    %9.3fms  %9.3fms  %s%s\n", indent, s.AtMS, s.TookMS, oneLine(s.Step), failed)
		}
	}
	for _, inner := range c.Calls {
		b.WriteString(o.text(inner, indent+"  "))
	}
	return b.String()
}

// oneLine returns text without what changes a terminal: line breaks become "; ", and other control
// characters become "?". Names and messages come from configurations and from the kernel.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, strings.ReplaceAll(text, "\n", "; "))
}
