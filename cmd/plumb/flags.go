package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// mustExist annotates flags whose values are directories that checkFlags requires to exist.
const mustExist = "must-exist"

// checkFlags returns an error if a flag has an empty value, an unknown format or a duration that is too short, or names
// a directory that does not exist, or a directory in place of a file. An empty value usually comes from an unset variable in
// a script. The command would then act on more than intended, for example on all networks.
func checkFlags(c *cobra.Command, _ []string) error {
	var problems []error
	c.Flags().VisitAll(func(f *pflag.Flag) { problems = append(problems, flagProblem(f)) })
	if err := errors.Join(problems...); err != nil {
		return usageError{err}
	}
	return nil
}

// isLocation reports whether the flag is one of addPlaces.
func isLocation(f *pflag.Flag) bool { return f.Name == "cni-path" || f.Annotations[mustExist] != nil }

// flagUsages returns the help of the flags, with those of addPlaces at the end.
func flagUsages(all *pflag.FlagSet) string {
	work, locations := pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	all.VisitAll(func(f *pflag.Flag) {
		if isLocation(f) {
			locations.AddFlag(f)
		} else {
			work.AddFlag(f)
		}
	})
	text := strings.TrimRight(work.FlagUsages(), "\n")
	if locations.HasFlags() {
		text += "\n\nFlags for other directories than the runtime's:\n" + strings.TrimRight(locations.FlagUsages(), "\n")
	}
	return text
}

// flagProblem returns what is wrong with the value of a flag, or nil. It checks a default value only if $NETCONFPATH
// set it, because the default directories may be missing on a host without networks.
func flagProblem(f *pflag.Flag) error {
	name := "--" + f.Name
	if !f.Changed {
		if f.Name != "conf-dir" || os.Getenv("NETCONFPATH") == "" || f.Annotations[mustExist] == nil {
			return nil
		}
		name = "$NETCONFPATH"
	}
	values := valuesOf(f)
	if len(values) == 0 || slices.Contains(values, "") {
		return fmt.Errorf("%s: the value is empty; give one, or leave out the flag", name)
	}
	if strings.HasPrefix(values[0], "--") {
		return fmt.Errorf("%s: want a value, got the flag %s", name, values[0]) // --restore --dry-run would not be a dry run
	}
	if f.Name == "output" && values[0] != "text" && values[0] != "json" {
		return fmt.Errorf("%s: want text or json, got %q", name, values[0])
	}
	least, limit := time.Duration(1), "must be positive"
	switch f.Name {
	case "min-age":
		least, limit = 0, "must not be negative"
	case "every":
		least, limit = minEvery, "must be at least "+minEvery.String()
	}
	if d, err := time.ParseDuration(values[0]); err == nil && f.Value.Type() == "duration" && d < least {
		return fmt.Errorf("%s %s, got %s", name, limit, d)
	}
	if i := slices.IndexFunc(values, isMissing); i >= 0 && f.Annotations[mustExist] != nil {
		return fmt.Errorf("%s: there is no directory %s", name, values[i])
	}
	if i := slices.IndexFunc(values, isDirectory); i >= 0 && kindOf(f) == "file" {
		return fmt.Errorf("%s: %s is a directory; give the name of a file", name, values[i])
	}
	return nil
}

// kindOf returns the word for the value of a flag in its usage, such as "file" or "directory".
func kindOf(f *pflag.Flag) string {
	kind, _ := pflag.UnquoteUsage(f)
	return kind
}

// minEvery is the shortest time between two runs of plumb maintain, which calls a plugin for each attachment.
const minEvery = time.Second

// noArgs is cobra.NoArgs for a command with the flag --cri. It explains how to give a socket, because the flag does not take
// the next argument as its value.
func noArgs(c *cobra.Command, args []string) error {
	if f := c.Flags().Lookup("cri"); len(args) > 0 && f.Value.String() == defaultSockets {
		return usageError{fmt.Errorf("unexpected argument %q; to name the socket of the runtime, write --cri=%s", args[0], args[0])}
	}
	return usage(cobra.NoArgs)(c, args)
}

// valuesOf returns the value of a flag, or all values of a flag that may be repeated.
func valuesOf(f *pflag.Flag) []string {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return list.GetSlice()
	}
	return []string{f.Value.String()}
}

// isMissing reports whether the path does not exist or is not a directory. It reports false if stat fails otherwise, for
// example with EACCES, because the command returns this error when it reads the directory.
func isMissing(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return !info.IsDir()
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// A pathList is a flag value that lists directories, separated by colons.
type pathList []string

func (l *pathList) String() string { return strings.Join(*l, string(os.PathListSeparator)) }

func (l *pathList) Set(s string) error {
	*l = filepath.SplitList(s)
	return nil
}

func (l *pathList) Type() string { return "directories" }

// A format is the value of the flag --output. checkFlags checks it.
type format string

func addOutput(flags *pflag.FlagSet) *format {
	var f format
	flags.StringVarP((*string)(&f), "output", "o", "text", "`format`: text or json")
	return &f
}

func (f format) isJSON() bool { return f == "json" }

// print prints v as indented JSON, or calls text. Unlike json.MarshalIndent, it does not escape <, > and &.
func (f format) print(w io.Writer, v any, text func(io.Writer) error) error {
	if !f.isJSON() {
		return text(w)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// readHost reads the inventory of the host, and prints a warning for each part that cannot be read.
func readHost(c *cobra.Command, p *places) (*node.Inventory, error) {
	live := p.ask(c.Context())
	inv, err := p.Read()
	if err != nil {
		return nil, err
	}
	inv.Suspect(live(inv))
	for _, problem := range inv.Errors {
		printf(c.ErrOrStderr(), "plumb: cannot read %s\n", problem)
	}
	return inv, nil
}
