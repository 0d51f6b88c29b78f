package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/pkg/pool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// addPlaces adds the flags for the folders that a command reads. The returned places have the values of the
// flags after these have been parsed. The defaults are the environment variables of cnitool and the usual
// folders of container runtimes.
func addPlaces(flags *pflag.FlagSet) *node.Places {
	p := &node.Places{
		ConfDir:    environmentOr("NETCONFPATH", "/etc/cni/net.d"),
		PluginPath: filepath.SplitList(environmentOr("CNI_PATH", "/opt/cni/bin")),
		CacheDirs:  []string{"/var/lib/cni"},
		DataDir:    pool.DefaultDataDir,
		RunDir:     "/run/cni",
	}
	flags.Var((*folder)(&p.ConfDir), "conf-dir", "`folder` of the network configurations ($NETCONFPATH)")
	flags.Var((*pathList)(&p.PluginPath), "cni-path", "`folders` of the plugins, separated by colons ($CNI_PATH)")
	flags.StringArrayVar(&p.CacheDirs, "cache-dir", p.CacheDirs, "`folder` of libcni's cache, including the caches below it; may be repeated")
	flags.Var((*folder)(&p.DataDir), "data-dir", "`folder` of reservations, beside those that configurations name")
	return p
}

// checkFlags returns an error if a flag was given with an empty value, or names a folder that does not exist. An
// empty value is most often a variable that a script has not set. To ignore it would be dangerous: without the flag,
// a command acts on more than was meant, such as on all networks.
func checkFlags(c *cobra.Command, _ []string) error {
	var problems []error
	c.Flags().VisitAll(func(f *pflag.Flag) { problems = append(problems, flagProblem(f)) })
	if err := errors.Join(problems...); err != nil {
		return usageError{err}
	}
	return nil
}

// flagProblem returns what is wrong with the value of a flag, or nil. It does not check a default, unless that is from
// $NETCONFPATH.
func flagProblem(f *pflag.Flag) error {
	name := "--" + f.Name
	_, isFolder := f.Value.(*folder)
	if !f.Changed {
		if !isFolder || f.Name != "conf-dir" || os.Getenv("NETCONFPATH") == "" {
			return nil
		}
		name = "$NETCONFPATH"
	}
	values := []string{f.Value.String()}
	if list, ok := f.Value.(pflag.SliceValue); ok {
		values = list.GetSlice()
	}
	if len(values) == 0 || slices.Contains(values, "") {
		return fmt.Errorf("%s: the value is empty; give one, or leave out the flag", name)
	}
	if i := slices.IndexFunc(values, isMissing); i >= 0 && (isFolder || f.Name == "cache-dir") {
		return fmt.Errorf("%s: there is no folder %s", name, values[i])
	}
	return nil
}

// A folder is the value of a flag for a folder. checkFlags refuses a folder that does not exist. The default may be
// missing, as on a node without networks.
type folder string

func (f *folder) String() string { return string(*f) }

func (f *folder) Set(s string) error {
	*f = folder(s)
	return nil
}

func (f *folder) Type() string { return "folder" }

// isMissing reports whether the path does not exist or is not a folder. It reports false if that is not known, such
// as without the permission: then the command returns the error when it reads the folder.
func isMissing(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return !info.IsDir()
}

// environmentOr returns the value of an environment variable, or fallback if the variable is not set or empty.
func environmentOr(name, fallback string) string { return cmp.Or(os.Getenv(name), fallback) }

// A pathList is the value of a flag for several folders, separated by colons.
type pathList []string

func (l *pathList) String() string { return strings.Join(*l, string(os.PathListSeparator)) }

func (l *pathList) Set(s string) error {
	*l = filepath.SplitList(s)
	return nil
}

func (l *pathList) Type() string { return "folders" }

// An outputFormat is the value of the flag --output.
type outputFormat string

// addOutput adds the flag --output. The returned format is that of the flag after it has been parsed.
func addOutput(flags *pflag.FlagSet) *outputFormat {
	format := outputFormat("text")
	flags.VarP(&format, "output", "o", "`format`: text or json")
	return &format
}

func (f *outputFormat) String() string { return string(*f) }

func (f *outputFormat) Set(s string) error {
	if s != "text" && s != "json" {
		return fmt.Errorf("want text or json, have %q", s)
	}
	*f = outputFormat(s)
	return nil
}

func (f *outputFormat) Type() string { return "format" }

func (f *outputFormat) isJSON() bool { return *f == "json" }

// printJSON prints v as indented JSON. Unlike json.MarshalIndent, it does not escape <, > and &.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// readNode reads the inventory of the node, and prints a warning for each part that cannot be read.
func readNode(c *cobra.Command, p *node.Places) (*node.Inventory, error) {
	inv, err := p.Read()
	if err != nil {
		return nil, err
	}
	for _, problem := range inv.Unread {
		fmt.Fprintln(c.ErrOrStderr(), "plumb: cannot read", problem)
	}
	return inv, nil
}
