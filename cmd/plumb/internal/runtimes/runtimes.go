// Package runtimes finds the container runtimes of a host, and the directories in which they look for network configurations
// and plugins.
package runtimes

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/cri"
)

// A Runtime is a container runtime of this host.
type Runtime struct {
	Name       string   `json:"name"`              // as the runtime calls itself, such as containerd
	Version    string   `json:"version,omitempty"` // empty for podman and nerdctl, which plumb does not ask
	Source     string   `json:"source"`            // the socket that answered, or the configuration file that was read
	ConfDir    string   `json:"confDir"`           // the directory of the network configurations
	PluginDirs []string `json:"pluginDirs"`        // the directories of the plugins, in the order of their use
	// CNIVersion is the highest cniVersion that the runtime's libcni supports, or "" if it is unknown.
	CNIVersion string `json:"cniVersion,omitempty"`
	// MaxConfNum is the number of files of ConfDir that the runtime uses, in alphabetical order. It is 0 if it uses all
	// of them, or if it does not say.
	MaxConfNum int `json:"maxConfNum,omitempty"`
	// Networks contains the names of the networks in which the runtime attaches containers. It is nil if the runtime does not
	// say which.
	Networks []string `json:"networks,omitempty"`
	NotReady string   `json:"notReady,omitempty"` // why the runtime cannot attach containers
}

// String returns the name, the version and the source.
func (r Runtime) String() string {
	return fmt.Sprintf("%s (%s)", strings.TrimSpace(r.Name+" "+r.Version), r.Source)
}

// A Search says where Find looks.
type Search struct {
	Root string // the directory that contains the files of the host; empty for /
	// Sockets contains the sockets of runtimes with CRI v1. If it is empty, Find uses the default sockets that exist.
	Sockets []string
	OnlyCRI bool // do not read the configuration files of podman and nerdctl
}

// Find returns the runtimes of the host in the order of their sockets, and then podman and nerdctl if their configuration
// files name directories. problems says which runtimes do not answer, and which files cannot be read.
func (s Search) Find(ctx context.Context) (found []Runtime, problems []error) {
	for _, answer := range cri.AskAll(ctx, s.sockets()) {
		switch r, err := s.runtimeOf(answer); {
		case err != nil:
			problems = append(problems, err)
		case r != nil:
			found = append(found, *r)
		}
	}
	for _, read := range []func() (*Runtime, error){s.podman, s.nerdctl} {
		if s.OnlyCRI {
			break
		}
		switch r, err := read(); {
		case err != nil:
			problems = append(problems, err)
		case r != nil:
			found = append(found, *r)
		}
	}
	return found, problems
}

// sockets returns the sockets to ask.
func (s Search) sockets() (all []string) {
	if len(s.Sockets) > 0 {
		return s.Sockets
	}
	for _, socket := range cri.DefaultSockets() {
		all = append(all, s.Root+socket)
	}
	return cri.Existing(all)
}

// cniConfig is what containerd returns as cniconfig, which is the type ConfigResult of github.com/containerd/go-cni. It is
// the same in 1.x, where the configuration calls the directory bin_dir, and in 2.x, where it may list several (bin_dirs).
type cniConfig struct {
	PluginDirs       []string
	PluginConfDir    string
	PluginMaxConfNum int
	Networks         []struct {
		Config struct{ Name string }
		IFName string
	}
}

// runtimeOf returns the runtime that gave the answer. It returns nil if there is no CRI service at the socket.
func (s Search) runtimeOf(a cri.Answer) (*Runtime, error) {
	if a.Err != nil || a.Name == "" {
		return nil, a.Err
	}
	r := &Runtime{Name: a.Name, Version: a.Version, Source: a.Socket, NotReady: a.NotReady, CNIVersion: HighestCNIVersion(a.Name, a.Version)}
	text, ok := a.Info["cniconfig"]
	if !ok {
		return s.crio(r)
	}
	var c cniConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return nil, fmt.Errorf("%s: cniconfig: %w", a.Socket, err)
	}
	r.ConfDir, r.PluginDirs, r.MaxConfNum, r.Networks = c.PluginConfDir, c.PluginDirs, c.PluginMaxConfNum, []string{}
	for _, n := range c.Networks {
		if n.IFName != "lo" { // containerd before 2.0 adds its own network cni-loopback
			r.Networks = append(r.Networks, n.Config.Name)
		}
	}
	if status := lastLoad(a.Info["lastCNILoadStatus"]); r.NotReady != "" && status != "OK" && status != "" {
		r.NotReady = status
	}
	return r, nil
}

// lastLoad returns the text of lastCNILoadStatus. A runtime may return it as JSON or as plain text.
func lastLoad(text string) string {
	var decoded string
	if json.Unmarshal([]byte(text), &decoded) == nil {
		return decoded
	}
	return text
}

// HighestCNIVersion returns the highest cniVersion that the libcni of a runtime's release supports, or "" if it is not known.
// docs/reference/compatibility.md contains the same table.
func HighestCNIVersion(name, version string) string {
	since, known := map[string]release{"containerd": {2, 0}, "cri-o": {1, 31}}[strings.ToLower(name)]
	r, err := parseRelease(version)
	switch {
	case !known || err != nil:
		return ""
	case slices.Compare(r[:], since[:]) < 0:
		return "1.0.0"
	}
	return "1.1.0"
}

// A release consists of the major and the minor version.
type release [2]int

// parseRelease parses the beginning of a version, such as "v1.7.23-k3s2" or "1.6.20~ds1".
func parseRelease(version string) (r release, err error) {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return r, fmt.Errorf("version %q: want MAJOR.MINOR", version)
	}
	for i := range r {
		if r[i], err = strconv.Atoi(parts[i]); err != nil {
			return r, err
		}
	}
	return r, nil
}
