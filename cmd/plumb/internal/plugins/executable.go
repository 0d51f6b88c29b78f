package plugins

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	cniinvoke "github.com/containernetworking/cni/pkg/invoke"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/schema"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// An Executable is the executable of a plugin.
type Executable struct {
	Name    string
	Path    string   // empty if no directory of CNI_PATH contains the executable
	Problem error    // why the executable cannot run; nil if it can
	Version string   // the release, for plumb's plugins
	Serves  []string // the supported versions of the specification
}

// ErrNotExecutable means that the mode of a file forbids to run it.
var ErrNotExecutable = errors.New("not executable")

// Find returns the executable of a plugin. Like libcni, it uses the first regular file with this name in CNI_PATH. It reads
// each executable once.
func (c *Caller) Find(ctx context.Context, name string) *Executable {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.found[name] == nil {
		c.found[name] = &Executable{Name: name}
		if path, err := cniinvoke.FindInPath(name, c.Path); err == nil {
			c.found[name].Path = path
			c.read(ctx, c.found[name])
		}
	}
	return c.found[name]
}

func (c *Caller) read(ctx context.Context, x *Executable) {
	if file, err := os.Stat(x.Path); err == nil && file.Mode()&0o111 == 0 {
		x.Problem = fmt.Errorf("%w (mode %04o)", ErrNotExecutable, file.Mode().Perm())
		return
	}
	info, err := cniinvoke.GetVersionInfo(ctx, x.Path, c)
	if err != nil {
		x.Problem = fmt.Errorf("does not answer VERSION: %w", err)
		return
	}
	x.Serves, x.Version = info.SupportedVersions(), c.VersionOf(ctx, x.Path)
}

// hasPlumbsName reports whether the executable is one of plumb's plugins, or is installed in the place of one.
func (x *Executable) hasPlumbsName() bool {
	return isPlumbs(x.Path) || slices.Contains(schema.Names(), x.Name)
}

// whyNot returns why the executable cannot be called, or nil. path is CNI_PATH. Another project's plugin need not answer
// VERSION, which libcni does not call.
func (x *Executable) whyNot(path []string) error {
	switch {
	case x.Path == "":
		return fmt.Errorf("no executable in %s", strings.Join(path, ":"))
	case errors.Is(x.Problem, ErrNotExecutable), x.Problem != nil && x.hasPlumbsName():
		return fmt.Errorf("%s: %w", x.Path, x.Problem)
	}
	return nil
}

// Solution returns how to make the plugin answer.
func (x *Executable) Solution() Solution {
	switch {
	case x.Path == "":
		return Solution{Advice: fmt.Sprintf("Install the plugin %s in one of these directories (plumb install), or name its directory with --cni-path.", x.Name)}
	case errors.Is(x.Problem, ErrNotExecutable):
		return Solution{Fix: types.Command("chmod", "0755", x.Path)}
	}
	return Solution{Advice: fmt.Sprintf("Replace %s with an executable that works (plumb install), and try again.", x.Path)}
}

// Executables returns the executables that Find has found so far, sorted by name.
func (c *Caller) Executables() (all []*Executable) {
	for _, name := range slices.Sorted(maps.Keys(c.found)) {
		if c.found[name].Path != "" {
			all = append(all, c.found[name])
		}
	}
	return all
}

// UsualVersion returns the most frequent version of the executables that Find has found, or "" if none is plumb's.
func (c *Caller) UsualVersion() (usual string) {
	count := map[string]int{}
	for _, x := range c.Executables() {
		if x.Version == "" {
			continue
		}
		if count[x.Version]++; count[x.Version] > count[usual] {
			usual = x.Version
		}
	}
	return usual
}

// isPlumbs reports whether a file is the executable of one of plumb's plugins.
func isPlumbs(path string) bool {
	built, err := buildinfo.ReadFile(path)
	return err == nil && strings.HasPrefix(built.Path, "github.com/plumb-cni/plumb/v2/plugins/")
}

// Replacements are the plugins that have the name of one of plumb's plugins, but whose executables are not plumb's. Such plugins
// do not delete plumb's nftables elements.
type Replacements struct {
	Path []string        // the directories of the plugins
	read map[string]bool // whether the plugin with this name is one, for executables that In has read
}

// NewReplacements returns the Replacements in the directories of path. It reads nothing.
func NewReplacements(path []string) *Replacements { return &Replacements{path, map[string]bool{}} }

// In returns the names of the replacements in a list. It reads each executable once.
func (r *Replacements) In(list *libcni.NetworkConfigList) (names []string) {
	for _, p := range list.Plugins {
		name := p.Network.Type
		if _, known := r.read[name]; !known {
			file, err := cniinvoke.FindInPath(name, r.Path)
			r.read[name] = err == nil && slices.Contains(schema.Names(), name) && !isPlumbs(file)
		}
		if r.read[name] {
			names = append(names, name)
		}
	}
	return names
}

// VersionOf returns the version of one of plumb's plugins, or "" for another executable. Without CNI variables, a plugin prints
// "CNI bridge plugin v2.0.0".
func (c *Caller) VersionOf(ctx context.Context, path string) string {
	if !isPlumbs(path) {
		return ""
	}
	_, banner, _ := c.Run(ctx, path, nil, []string{"PATH=/usr/bin:/bin"}) // a failed run prints no version
	line, _, _ := strings.Cut(string(banner), "\n")
	words := strings.Fields(line)
	if len(words) < 4 {
		return ""
	}
	return words[3]
}
