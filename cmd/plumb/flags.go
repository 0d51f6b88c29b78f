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

	"github.com/plumb-cni/plumb/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/pkg/pool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// addPlaces adds the flags that say where to look, and returns the places. Their defaults are libcni's.
func addPlaces(flags *pflag.FlagSet) *node.Places {
	p := &node.Places{RunDir: "/run/cni", PluginPath: filepath.SplitList(environment("CNI_PATH", "/opt/cni/bin"))}
	p.ConfDir, p.CacheDir, p.DataDir = environment("NETCONFPATH", "/etc/cni/net.d"), "/var/lib/cni", pool.DefaultDataDir
	flags.Var((*folder)(&p.ConfDir), "conf-dir", "`folder` of the network configurations ($NETCONFPATH)")
	flags.Var((*pathList)(&p.PluginPath), "cni-path", "`folders` of the plugins, separated by colons ($CNI_PATH)")
	flags.Var((*folder)(&p.CacheDir), "cache-dir", "`folder` of libcni's cache")
	flags.Var((*folder)(&p.DataDir), "data-dir", "`folder` of reservations, beside those that configurations name")
	return p
}

// checkFlags returns an error if a flag was given with an empty value, or names a folder that does not exist. Most
// often an empty value is a variable of a script that is not set, and without the flag a command concerns more than
// was meant, such as all networks.
func checkFlags(c *cobra.Command, _ []string) error {
	var wrong []error
	c.Flags().VisitAll(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		dir, isFolder := f.Value.(*folder)
		name := "--" + f.Name
		if isFolder && !f.Changed && f.Name == "conf-dir" && os.Getenv("NETCONFPATH") != "" {
			name = "$NETCONFPATH"
		}
		switch given := f.Changed || name == "$NETCONFPATH"; {
		case given && (len(values) == 0 || slices.Contains(values, "")):
			wrong = append(wrong, fmt.Errorf("%s: the value is empty; give one, or leave out the flag", name))
		case given && isFolder && !dir.exists():
			wrong = append(wrong, fmt.Errorf("%s: no folder %s", name, dir))
		}
	})
	if len(wrong) > 0 {
		return usageError{errors.Join(wrong...)}
	}
	return nil
}

// A folder is a flag for a folder that exists. Only its default may be missing, as on a node without networks.
type folder string

func (f *folder) String() string { return string(*f) }

func (f *folder) Set(s string) error {
	*f = folder(s)
	return nil
}

func (f *folder) Type() string { return "folder" }

// exists reports whether the path is not known to be missing, or to be something else than a folder.
func (f *folder) exists() bool {
	info, err := os.Stat(string(*f))
	return err == nil && info.IsDir() || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// environment returns the value of an environment variable, or the default if it is empty.
func environment(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// A pathList is a flag for several folders, separated by colons.
type pathList []string

func (l *pathList) String() string { return strings.Join(*l, string(os.PathListSeparator)) }

func (l *pathList) Set(s string) error {
	*l = filepath.SplitList(s)
	return nil
}

func (l *pathList) Type() string { return "folders" }

// An outputFormat is the value of the flag --output.
type outputFormat string

// addOutput adds the flag --output to the command.
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

// isJSON reports whether the output is JSON.
func (f *outputFormat) isJSON() bool { return *f == "json" }

// printJSON prints v as indented JSON.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// readNode reads what the node holds, and warns of what cannot be read.
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
