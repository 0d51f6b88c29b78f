package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/doctor"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/life"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

func newDoctor() *cobra.Command {
	c := &cobra.Command{
		Use:   "doctor [FILE…]",
		Short: "Find what is wrong with the container networks of this host, and how to fix it",
		Long: `doctor finds what is wrong with the container networks of this host: in the configurations of --conf-dir or FILE…, in the
plugins' executables, in the kernel, and in what the host holds for containers. It calls STATUS and CHECK of the plugins. It
changes nothing itself, but host-local may release reservations from before a reboot. The exit status is 1 if something is
wrong.`,
		Example: "  plumb doctor\n  crictl pods -q --no-trunc | plumb doctor --live -\n  plumb doctor 10-pods.conflist",
		Args:    usage(cobra.ArbitraryArgs),
	}
	places, format := addPlaces(c), addOutput(c.Flags())
	places.askAlways = true
	var live string
	var verbose bool
	begin := time.Now()
	timeout := addTimeout(c.Flags())
	c.Flags().StringVar(&live, "live", "", "`file` with the whole IDs of all live containers of all runtimes; - for stdin")
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "show whole container IDs, and each problem that a line sums up")
	c.RunE = func(c *cobra.Command, files []string) error {
		if err := checkFiles(files, live); err != nil {
			return usageError{err}
		}
		o := doctor.Options{
			Places: places.Places, Runtimes: places.runtimes, Problems: places.problems, Guessed: places.guessed, Files: files, Timeout: *timeout,
			Flags: placeFlags(c.Flags()), Spare: spareDirectories(),
		}
		switch {
		case len(files) > 0:
		case live == "":
			ofRuntimes := places.ask(c.Context())
			o.Live = func(inv *node.Inventory) (life.List, error) {
				list := ofRuntimes(inv)
				inv.Suspect(list)
				return list, nil
			}
		default:
			o.Live = func(inv *node.Inventory) (life.List, error) {
				return (&collection{begin: begin, live: live}).readLive(c, inv)
			}
		}
		report, err := o.Examine(c.Context(), untilSignal)
		if err != nil {
			return err
		}
		if err := format.print(c.OutOrStdout(), report, func(w io.Writer) error { return printReport(w, report, verbose) }); err != nil {
			return err
		}
		switch {
		case len(report.Findings) > 0:
			return errFound
		case len(report.Errors) > 0:
			return errors.New("not everything could be examined")
		}
		return nil
	}
	return c
}

// checkFiles returns an error if the arguments FILE… are wrong.
func checkFiles(files []string, live string) error {
	if len(files) > 0 && live != "" {
		return errors.New("--live cannot be combined with FILE, because doctor then examines only the files")
	}
	if i := slices.IndexFunc(files, isDirectory); i >= 0 {
		return fmt.Errorf("%s is a directory; name the files in it, or use %s", files[i], types.Command("--conf-dir", files[i]))
	}
	return nil
}

func addTimeout(flags *pflag.FlagSet) *time.Duration {
	return flags.Duration("timeout", 30*time.Second, "how long one call of a plugin may take")
}

// placeFlags returns the flags of addPlaces that the user gave, as words of another command line.
func placeFlags(flags *pflag.FlagSet) string {
	var given strings.Builder
	flags.Visit(func(f *pflag.Flag) {
		if !isLocation(f) {
			return
		}
		for _, value := range valuesOf(f) {
			given.WriteString(" " + types.Command("--"+f.Name, value))
		}
	})
	return given.String()
}

// spareDirectories returns the directories that may contain an executable that CNI_PATH lacks.
func spareDirectories() []string {
	dirs := doctor.UsualDirectories()
	if self, err := os.Executable(); err == nil {
		dirs = append([]string{filepath.Dir(self)}, dirs...)
	}
	return dirs
}

// printRuntimes prints what doctor examines: each runtime with its directories, and the directories that flags or environment
// variables name instead.
func printRuntimes(w io.Writer, r *doctor.Report) {
	own := true // whether the examined directories are those of the runtimes
	for _, runtime := range r.Runtimes {
		own = own && slices.Contains(r.ConfDirs, filepath.Clean(runtime.ConfDir)) &&
			!slices.ContainsFunc(runtime.PluginDirs, func(dir string) bool { return !slices.Contains(r.PluginDirs, filepath.Clean(dir)) })
		networks := "configurations"
		if runtime.Networks != nil {
			networks = "network " + cmp.Or(strings.Join(runtime.Networks, ", "), "not loaded")
		}
		version := ""
		if runtime.CNIVersion != "" {
			version = ", cniVersion up to " + runtime.CNIVersion
		}
		printf(w, "%s: %s in %s, plugins in %s%s\n", strings.TrimSpace(runtime.Name+" "+runtime.Version), networks, runtime.ConfDir,
			strings.Join(runtime.PluginDirs, ", "), version)
	}
	start := "examined instead"
	switch {
	case len(r.ConfDirs) == 0 || len(r.Runtimes) > 0 && own: // ConfDirs is empty with FILE…, and if the directories are unknown
		return
	case len(r.Runtimes) == 0:
		start = "no runtime found"
	}
	printf(w, "%s: configurations in %s, plugins in %s\n", start, strings.Join(r.ConfDirs, ", "), strings.Join(r.PluginDirs, ", "))
}

// withShortIDs shortens the container IDs of a text, as plumb list does.
func withShortIDs(text string) string {
	return regexp.MustCompile(`[0-9a-f]{64}`).ReplaceAllStringFunc(text, life.ShortID)
}

// printReport prints one line for each problem, and below it how to fix it. It prints the same solution of problems that follow
// each other only once.
func printReport(w io.Writer, r *doctor.Report, verbose bool) error {
	printRuntimes(w, r)
	for i, f := range r.Findings {
		if !verbose {
			f.What, f.Details = withShortIDs(f.What), nil
		}
		printf(w, "%s: %s\n", f.Where, f.What)
		if i+1 == len(r.Findings) || r.Findings[i+1].Solution != f.Solution {
			printSolution(w, f.Solution)
		}
		for _, detail := range f.Details {
			printf(w, "  - %s\n", detail)
		}
	}
	for _, u := range r.Errors {
		printf(w, "not examined: %s\n", u)
	}
	for _, part := range r.RootOnly {
		printf(w, "skipped without root: %s\n", part)
	}
	found := "nothing found"
	if n := len(r.Findings); n > 0 {
		found = count(n, "problem")
	}
	if young := r.Skipped - r.WithoutResult - r.Foreign; young > 0 {
		printf(w, "%s skipped: younger than a minute (run doctor again in a minute), or of unknown age\n", count(young, "attachment"))
	}
	if r.Foreign > 0 {
		printf(w, "%s skipped: no plugin of their networks is plumb's\n", count(r.Foreign, "attachment"))
	}
	if r.WithoutResult > 0 {
		printf(w, "%s skipped: libcni's cache contains no result of ADD\n", count(r.WithoutResult, "attachment"))
	}
	printf(w, "%s (%s, %s, %s, %s)\n", found, count(len(r.Files), "configuration"),
		count(len(r.Executables), "executable"), count(r.Attachments, "attachment"), count(len(r.Checks), "check"))
	for _, n := range r.Notes {
		if n.Check == doctor.NoGC && !verbose { // most networks work well without GC
			continue
		}
		printf(w, "note: %s: %s\n", n.Where, n.What)
		printSolution(w, n.Solution)
	}
	return nil
}
