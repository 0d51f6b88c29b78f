// Command cni-conformance checks whether CNI plugins conform to the specification, and what they leave when calls fail. It
// calls the plugins of any network configuration list in network and mount namespaces of its own.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/plumb-cni/plumb/v2/cmd/cni-conformance/internal/lab"
	"github.com/plumb-cni/plumb/v2/cmd/cni-conformance/internal/suite"
	"github.com/plumb-cni/plumb/v2/pkg/version"
	"github.com/plumb-cni/plumb/v2/test/faults/inject"
)

// These are the exit statuses besides 0.
const (
	exitFailed = 1 // the plugins do not conform
	exitUsage  = 2
	exitError  = 3 // no case could run
)

func main() {
	inject.Launch()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// errFailed is the error of a run after which a case has the verdict fail or inconclusive.
var errFailed = errors.New("the plugins do not conform")

// A usageError is an error in the arguments.
type usageError struct{ error }

// run runs the command and returns its exit status.
func run(args []string, stdout, stderr io.Writer) int {
	c := newCommand()
	c.SetArgs(args)
	c.SetOut(stdout)
	c.SetErr(stderr)
	err := c.Execute()
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errFailed):
		return exitFailed
	case errors.As(err, new(exitStatus)):
		var status exitStatus
		errors.As(err, &status)
		return int(status)
	}
	fmt.Fprintf(stderr, "cni-conformance: %s\n", err)
	if errors.As(err, new(usageError)) {
		fmt.Fprintln(stderr, "See cni-conformance --help.")
		return exitUsage
	}
	return exitError
}

// An exitStatus is the exit status of the process in the sandbox.
type exitStatus int

func (exitStatus) Error() string { return "" }

// flags holds the arguments.
type flags struct {
	path    []string
	profile string
	format  string
	version string
	cases   []string
	skip    []string
	state   []string
	list    bool
	timeout time.Duration
	settle  time.Duration
	kills   int
	setup   string
	others  int
}

func newCommand() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use:   "cni-conformance [flags] LIST.conflist",
		Short: "Check whether CNI plugins conform to the specification",
		Long: `cni-conformance calls the plugins of a network configuration list, as a container runtime does, and checks what they do.
The plugins may be of any project. The profile spec contains requirements of the CNI specification 1.1.0, and the
profile robust contains what operators need beyond it, for example that a killed call leaves nothing.

The plugins run in new network and mount namespaces with empty directories /run and /var/lib/cni, so that nothing on
this machine changes. If you are not root, they run as root of a new user namespace. The host in these namespaces has an
interface uplink0 with a default route, and each interface that the list names as master, device or uplinkInterface.
Each case has a new host. If the plugins need a daemon or a file on it, start or write it with --setup.

The exit status is 0 if no case has the verdict fail or inconclusive, otherwise 1. It is 2 if the arguments are wrong,
and 3 if no case could run.`,
		Example: `  cni-conformance --cni-path /opt/cni/bin --profile all /etc/cni/net.d/10-net.conflist
  cni-conformance --case KILL-1 --case LEFT-1 mynet.conflist`,
		Version: version.String(), SilenceErrors: true, SilenceUsage: true,
		Args: func(_ *cobra.Command, args []string) error { return f.check(args) },
		RunE: func(c *cobra.Command, args []string) error { return f.run(args, c.OutOrStdout()) },
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	flags := c.Flags()
	flags.StringSliceVar(&f.path, "cni-path", filepath.SplitList(cmp.Or(os.Getenv("CNI_PATH"), "/opt/cni/bin")), "`directories` of the plugins; may be repeated ($CNI_PATH)")
	flags.StringVar(&f.profile, "profile", "spec", "which `cases` to run: spec, robust or all")
	flags.StringVarP(&f.format, "output", "o", "text", "`format`: text, json, junit, or with --list also markdown")
	flags.StringVar(&f.version, "cni-version", "", "the `version` of the protocol (default: the highest that all plugins support)")
	flags.StringSliceVar(&f.cases, "case", nil, "run only the case with this `ID`; may be repeated")
	flags.StringSliceVar(&f.skip, "skip", nil, "do not run the case with this `ID`; may be repeated")
	flags.StringSliceVar(&f.state, "state", []string{"/run", "/var/lib/cni"}, "`directories` that hold the plugins' files, and that are empty for them")
	flags.BoolVar(&f.list, "list", false, "print the cases, and run nothing")
	flags.StringVar(&f.setup, "setup", "", "a `command` for sh that prepares each host; what it starts in the background ends with the host")
	flags.IntVar(&f.others, "attachments", 0, "also measure ADD and DEL beside this many other attachments")
	flags.DurationVar(&f.timeout, "timeout", time.Minute, "how long a call may take before it is killed")
	flags.DurationVar(&f.settle, "settle", 5*time.Second, "how long to wait for the kernel to remove what a plugin removed")
	flags.IntVar(&f.kills, "kills", 40, "at how many system calls of each call to kill a plugin; 0 for all")
	return c
}

// check returns an error if the arguments are wrong.
func (f *flags) check(args []string) error {
	formats := []string{"text", "json", "junit"}
	if f.list {
		formats = []string{"text", "json", "markdown"}
	}
	ids := []string{}
	for _, c := range suite.All("all") {
		ids = append(ids, c.ID)
	}
	switch {
	case !slices.Contains([]string{"spec", "robust", "all"}, f.profile):
		return usageError{fmt.Errorf("--profile: want spec, robust or all, got %q", f.profile)}
	case !slices.Contains(formats, f.format):
		return usageError{fmt.Errorf("--output: want %s, got %q", strings.Join(formats, ", "), f.format)}
	case f.list && len(args) > 0:
		return usageError{fmt.Errorf("unexpected argument %q; --list runs nothing", args[0])}
	case !f.list && len(args) != 1:
		return usageError{fmt.Errorf("want one network configuration list, got %d arguments", len(args))}
	case f.timeout <= 0 || f.settle <= 0 || f.kills < 0 || f.others < 0:
		return usageError{errors.New("--timeout and --settle must be positive, and --kills and --attachments must not be negative")}
	}
	for _, id := range slices.Concat(f.cases, f.skip) {
		if !slices.Contains(ids, id) {
			return usageError{fmt.Errorf("there is no case %q; see cni-conformance --list", id)}
		}
	}
	for _, dir := range f.state {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) == "/" {
			return usageError{fmt.Errorf("--state: want an absolute path of a directory, got %q", dir)}
		}
	}
	return nil
}

// selected returns the cases to run.
func (f *flags) selected() []suite.Case {
	profile := f.profile
	if len(f.cases) > 0 {
		profile = "all"
	}
	return slices.DeleteFunc(suite.All(profile), func(c suite.Case) bool {
		return slices.Contains(f.skip, c.ID) || len(f.cases) > 0 && !slices.Contains(f.cases, c.ID)
	})
}

func (f *flags) run(args []string, out io.Writer) error {
	if f.list {
		return printCases(out, f.format, f.selected())
	}
	if os.Args[0] != lab.Sandboxed {
		status, err := lab.Enter()
		if err == nil && status != 0 {
			err = exitStatus(status)
		}
		return err
	}
	for i, dir := range f.path {
		absolute, err := filepath.Abs(dir)
		if err != nil {
			return err
		}
		f.path[i] = absolute
	}
	network, err := lab.Load(args[0], f.path)
	if err != nil {
		return err
	}
	network.StateDir, network.Timeout, network.Settle, network.Kills = f.state, f.timeout, f.settle, f.kills
	network.Setup = f.setup
	if err := lab.HideState(f.state, f.path); err != nil {
		return err
	}
	s, err := suite.New(network, f.version)
	if err != nil {
		return err
	}
	report := newReport(args[0], network, s)
	printer := report.printer(f.format, out)
	for _, c := range f.selected() {
		outcome := s.Run(c)
		report.add(outcome)
		if err := printer.outcome(outcome); err != nil {
			return err
		}
	}
	if f.others > 0 {
		report.Growth = s.Growth(f.others)
	}
	if err := printer.end(); err != nil {
		return err
	}
	if report.Counts[suite.Fail]+report.Counts[suite.Inconclusive] > 0 {
		return errFailed
	}
	return nil
}
