// Command plumb is the operator's tool. It shows the resources that the container networks of a host use, finds and
// explains what is wrong with them, removes what dead containers left, and installs the plugins.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/pkg/version"
)

// These are the exit statuses of all commands, besides 0 for success.
const (
	exitFound = 1 // something is wrong (doctor) or left (gc, repair)
	exitUsage = 2 // wrong arguments
	exitError = 3 // the command could not do its work
)

// errFound is the error of a command that has printed what is wrong or left. plumb then exits with exitFound.
var errFound = errors.New("something is wrong or left")

func main() {
	root := newRoot()
	out := setOutput(root, os.Stdout, os.Stderr)
	addCompletion(root)
	c, err := root.ExecuteC()
	if out.err != nil && !errors.Is(out.err, unix.EPIPE) && (err == nil || errors.Is(err, errFound)) {
		err = out.err
	}
	os.Exit(exitStatus(c, err))
}

// untilSignal returns a context that is cancelled by SIGINT or SIGTERM. A command calls it before work that must
// not be interrupted. Before that call, and after the first signal, a signal ends the process at once.
func untilSignal(ctx context.Context) context.Context {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, unix.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx
}

// afterCurrentCall returns the context of untilSignal for a command that ends after the current call of a plugin. It prints
// this when the signal arrives.
func afterCurrentCall(c *cobra.Command) context.Context {
	ctx := untilSignal(c.Context())
	context.AfterFunc(ctx, func() { printf(c.ErrOrStderr(), "plumb: ending after the current call of a plugin\n") })
	return ctx
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:               "plumb",
		Short:             "Show the resources that the container networks of this host use, and what is wrong with them",
		Version:           version.String(),
		SilenceUsage:      true,
		SilenceErrors:     true,
		Args:              noCommand,
		PersistentPreRunE: checkFlags,
		RunE:              func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SuggestionsMinimumDistance = 2
	root.AddCommand(newVersion(), newReport(), newUninstall(), newDoctor(), newExplain(), newGC(), newInstall(), newIPAM(), newList(), newMaintain(), newMetrics(), newRepair(), newSchema(), newTrace())
	if man := newMan(); man != nil {
		root.AddCommand(man)
	}
	cobra.AddTemplateFunc("flagsOf", flagUsages)
	const flags = "{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}"
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), flags, "{{flagsOf .LocalFlags}}", 1))
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.SetVersionTemplate("plumb {{.Version}}\n")
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of plumb", Args: usage(cobra.NoArgs),
		Run: func(c *cobra.Command, _ []string) { printf(c.OutOrStdout(), "plumb %s\n", version.String()) },
	}
}

// noCommand returns an error for arguments that are not a command, with the most similar commands.
func noCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	advice := c.CommandPath() + " --help lists the commands"
	if similar := c.SuggestionsFor(args[0]); len(similar) > 0 {
		advice = "did you mean " + strings.Join(similar, " or ") + "?"
	}
	return usageError{fmt.Errorf("unknown command %q; %s", args[0], advice)}
}

// addCompletion adds the command completion, which rejects unknown shells, and the argument and flag completions that
// several commands share. Call it after root.SetOut, because cobra's completion command keeps the writer.
func addCompletion(root *cobra.Command) {
	for _, c := range root.Commands() {
		if c.Flags().Lookup("output") != nil {
			// An error means that the flag does not exist.
			_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
		}
		if c.Name() != "doctor" && c.ValidArgs == nil && c.ValidArgsFunction == nil {
			c.ValidArgsFunction = cobra.NoFileCompletions
		}
	}
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		c.Args = usage(cobra.NoArgs)
		c.RunE = func(*cobra.Command, []string) error {
			return usageError{errors.New("the shell is required: bash, fish, powershell or zsh")}
		}
		for _, shell := range c.Commands() {
			shell.Args = usage(cobra.NoArgs)
		}
	}
}

// A usageError reports wrong arguments.
type usageError struct{ error }

// usage returns args with errors that name the wrong or missing arguments.
func usage(args cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, given []string) error {
		switch {
		case args(c, given) == nil:
			return nil
		case c.HasAvailableSubCommands():
			return noCommand(c, given)
		}
		return usageError{argumentProblem(c, given)}
	}
}

// argumentProblem returns which arguments of the command's usage are missing, or the first one that it does not name. cobra's own
// errors only count them.
func argumentProblem(c *cobra.Command, given []string) error {
	var required []string
	most := 0
	for _, word := range strings.Fields(c.Use)[1:] {
		if strings.HasPrefix(strings.TrimLeft(word, "[("), "-") {
			break // only flags follow
		}
		if most++; !strings.HasPrefix(word, "[") {
			required = append(required, word)
		}
	}
	if len(given) < len(required) {
		return fmt.Errorf("%s is missing", strings.Join(required[len(given):], " and "))
	}
	return fmt.Errorf("unexpected argument %q", given[min(most, len(given)-1)])
}

// exitStatus prints the error of a command and returns the exit status for it.
func exitStatus(c *cobra.Command, err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errFound):
		return exitFound
	}
	printf(c.ErrOrStderr(), "plumb: %s\n", err)
	if errors.As(err, new(usageError)) {
		printf(c.ErrOrStderr(), "See %s --help.\n", c.CommandPath())
		return exitUsage
	}
	return exitError
}
