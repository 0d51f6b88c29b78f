package main

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/cri"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/life"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/runtimes"
	"github.com/plumb-cni/plumb/v2/pkg/pool"
)

// These are the directories that the commands read if neither a flag, a runtime nor a configuration file names others.
const (
	defaultConfDir = "/etc/cni/net.d"
	defaultCNIPath = "/opt/cni/bin"
)

// places contains the directories that a command reads, and the runtimes that use them. find fills it in.
type places struct {
	node.Places
	runtimes []runtimes.Runtime
	problems []error  // runtimes that do not answer, and configuration files of runtimes that cannot be read
	sockets  []string // the sockets in plumb's configuration file
	// guessed means that a runtime does not answer, and that nothing else names the directories.
	guessed bool
	// askAlways means that find asks the runtimes even if the flags name all directories.
	askAlways bool
	flags     *pflag.FlagSet
}

// addPlaces adds the flags for the directories that a command reads. Before the command runs, cobra calls find.
func addPlaces(c *cobra.Command) *places {
	p := newPlaces(c.Flags())
	c.PreRunE = func(c *cobra.Command, _ []string) error {
		err := p.find(c.Context())
		for _, problem := range p.problems {
			if !p.askAlways { // doctor prints them in its report
				printf(c.ErrOrStderr(), "plumb: runtime: %v\n", problem)
			}
		}
		return err
	}
	return p
}

func newPlaces(flags *pflag.FlagSet) *places {
	p := &places{flags: flags, Places: node.Places{
		ConfDirs:   []string{cmp.Or(os.Getenv("NETCONFPATH"), defaultConfDir)},
		PluginPath: filepath.SplitList(cmp.Or(os.Getenv("CNI_PATH"), defaultCNIPath)),
		CacheDirs:  []string{"/var/lib/cni"},
		DataDir:    pool.DefaultDataDir,
		RunDir:     "/run/cni",
	}}
	flags.StringArrayVar(&p.ConfDirs, "conf-dir", p.ConfDirs, "`directory` of the network configurations, instead of the runtime's ($NETCONFPATH); may be repeated")
	flags.Var((*pathList)(&p.PluginPath), "cni-path", "`directories` of the plugins, separated by colons, instead of the runtime's ($CNI_PATH)")
	flags.StringArrayVar(&p.CacheDirs, "cache-dir", p.CacheDirs, "`directory` of libcni's cache, including the caches below it; may be repeated")
	flags.StringVar(&p.DataDir, "data-dir", p.DataDir, "default `directory` of reservations; the directories that configurations name are always read")
	for _, name := range []string{"conf-dir", "cache-dir", "data-dir"} {
		_ = flags.SetAnnotation(name, mustExist, []string{}) // an error means that the flag does not exist
	}
	return p
}

// find sets the directories. Flags and environment variables are used first, then the directories of all runtimes that
// answer, then plumb's configuration file, and then the defaults.
func (p *places) find(ctx context.Context) error {
	config, err := runtimes.ReadConfig(cmp.Or(os.Getenv("PLUMB_CONFIG"), runtimes.DefaultConfig))
	if err != nil {
		return err
	}
	confDirGiven := p.flags.Changed("conf-dir") || os.Getenv("NETCONFPATH") != ""
	pathGiven := p.flags.Changed("cni-path") || os.Getenv("CNI_PATH") != ""
	p.sockets = config.CRI
	if search := (runtimes.Search{Sockets: config.CRI, OnlyCRI: confDirGiven && pathGiven}); p.askAlways || !search.OnlyCRI {
		p.runtimes, p.problems = search.Find(ctx)
	}
	var confDirs, path []string
	for _, r := range p.runtimes {
		confDirs, path = append(confDirs, r.ConfDir), append(path, r.PluginDirs...)
	}
	if config.ConfDir != "" && len(confDirs) == 0 {
		confDirs = []string{config.ConfDir}
	}
	if len(path) == 0 {
		path = config.CNIPath
	}
	p.guessed = len(p.problems) > 0 && (!confDirGiven && len(confDirs) == 0 || !pathGiven && len(path) == 0)
	if !confDirGiven && len(confDirs) > 0 {
		p.ConfDirs = unique(confDirs)
	}
	if !pathGiven && len(path) > 0 {
		p.PluginPath = unique(path)
	}
	if !p.flags.Changed("data-dir") {
		p.DataDir = cmp.Or(config.DataDir, p.DataDir)
	}
	return nil
}

// ask returns a function that returns the containers that live according to the runtimes with CRI v1. Call ask before the host
// is read, so that a container that the runtime deletes in between is still in the list. The list is the zero List, which says
// nothing, if no such runtime answers, or if none of its containers has a result in libcni's cache.
func (p *places) ask(ctx context.Context) func(*node.Inventory) life.List {
	var sockets []string
	for _, r := range p.runtimes {
		if r.Version != "" { // podman and nerdctl have none, and no socket
			sockets = append(sockets, r.Source)
		}
	}
	at := time.Now()
	ids, err := []string(nil), cri.ErrNoRuntime
	if len(sockets) > 0 {
		ids, err = cri.FindSandboxes(ctx, sockets)
	}
	return func(inv *node.Inventory) life.List {
		if err != nil {
			return life.List{}
		}
		list, err := life.List{}.WithSandboxes(inv.Facts(), ids, at)
		if err != nil {
			return life.List{}
		}
		return list
	}
}

// unique returns the directories without repetitions, in their order.
func unique(dirs []string) (all []string) {
	for _, dir := range dirs {
		if dir = filepath.Clean(dir); !slices.Contains(all, dir) {
			all = append(all, dir)
		}
	}
	return all
}
