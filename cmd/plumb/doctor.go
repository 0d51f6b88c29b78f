package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/doctor"
)

// newDoctor returns the command doctor.
func newDoctor() *cobra.Command {
	var o doctor.Options
	var output string
	c := &cobra.Command{
		Use:   "doctor [FILE…]",
		Short: "Find what is wrong with the container networks of this node, and how to mend it",
		Long: "Find what is wrong with the container networks of this node: in their configurations (those of the folder, or FILE…),\n" +
			"the plugins' executables, the kernel, and what the node holds for containers. Nothing is changed.\n" +
			"The exit status is 1 if something is wrong.",
		Example: "  plumb doctor\n  plumb doctor 10-pods.conflist",
		Args:    usage(cobra.ArbitraryArgs),
		RunE: func(c *cobra.Command, args []string) error {
			if output != "text" && output != "json" {
				return usageError{fmt.Errorf("output %q: want text or json", output)}
			}
			o.Files, o.Spare = args, spareFolders()
			show := progress(c.ErrOrStderr())
			report, err := o.Examine(c.Context(), show)
			show("")
			if err != nil {
				return err
			}
			if err := printReport(c.OutOrStdout(), report, output); err != nil || len(report.Findings) == 0 {
				return err
			}
			return errFound
		},
	}
	path := filepath.SplitList(os.Getenv("CNI_PATH"))
	if len(path) == 0 {
		path = []string{"/opt/cni/bin"}
	}
	confDir := os.Getenv("NETCONFPATH")
	if confDir == "" {
		confDir = "/etc/cni/net.d"
	}
	c.Flags().StringVar(&o.ConfDir, "conf-dir", confDir, "the folder of the configurations (NETCONFPATH)")
	c.Flags().StringSliceVar(&o.Path, "cni-path", path, "the folders of the plugins (CNI_PATH)")
	c.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return c
}

// spareFolders returns the folders in which an executable may be that CNI_PATH lacks.
func spareFolders() []string {
	dirs := []string{"/usr/lib/plumb/cni", "/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"}
	if self, err := os.Executable(); err == nil {
		dirs = append([]string{filepath.Dir(self)}, dirs...)
	}
	return dirs
}

// progress returns a function that shows a text on a terminal, in place of the one before.
func progress(w io.Writer) func(string) {
	f, ok := w.(*os.File)
	if !ok || !isTerminal(f) {
		return func(string) {}
	}
	return func(check string) { fmt.Fprintf(w, "\r\x1b[K%s\r", check) }
}

// isTerminal reports whether a file is a terminal.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// printReport prints a report as text or as JSON.
func printReport(w io.Writer, r *doctor.Report, output string) error {
	if output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(r)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(w, "%s: %s\n    %s\n", f.Where, f.What, f.Mend)
	}
	for _, u := range r.Unread {
		fmt.Fprintf(w, "not examined: %s\n", u)
	}
	looked := fmt.Sprintf("%d configurations, %d executables, %d checks", len(r.Files), len(r.Executables), len(r.Checks))
	var err error
	switch n := len(r.Findings); n {
	case 0:
		_, err = fmt.Fprintf(w, "nothing found (%s)\n", looked)
	case 1:
		_, err = fmt.Fprintf(w, "1 problem (%s)\n", looked)
	default:
		_, err = fmt.Fprintf(w, "%d problems (%s)\n", n, looked)
	}
	return err
}
