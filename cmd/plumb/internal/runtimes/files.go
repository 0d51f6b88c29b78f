package runtimes

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/BurntSushi/toml"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// defaultConfDir is the directory of network configurations in which every runtime looks unless it is configured otherwise.
const defaultConfDir = "/etc/cni/net.d"

// decode decodes the TOML files that match the patterns into v, in this order, so that later files replace values of earlier
// ones. It returns the path of the last file, or "" if there is none.
func (s Search) decode(v any, patterns ...string) (last string, err error) {
	for _, pattern := range patterns {
		files, _ := filepath.Glob(filepath.Join(s.Root, "/", pattern)) // Glob fails only for a wrong pattern
		for _, file := range files {
			text, err := node.ReadFile(file)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = toml.Unmarshal(text, v)
			}
			if err != nil {
				return "", fmt.Errorf("%s: %w", file, err)
			}
			last = file
		}
	}
	return last, nil
}

// crio adds the directories of CRI-O, which does not return them. See crio.conf(5).
func (s Search) crio(r *Runtime) (*Runtime, error) {
	var c struct {
		CRIO struct {
			Network struct {
				Dir        string   `toml:"network_dir"`
				PluginDirs []string `toml:"plugin_dirs"`
			} `toml:"network"`
		} `toml:"crio"`
	}
	_, err := s.decode(&c, "/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*")
	r.ConfDir = cmp.Or(c.CRIO.Network.Dir, defaultConfDir)
	if r.PluginDirs = c.CRIO.Network.PluginDirs; len(r.PluginDirs) == 0 {
		r.PluginDirs = []string{"/opt/cni/bin", "/usr/lib/cni"}
	}
	return r, err
}

// podman returns podman if its configuration selects CNI. See containers.conf(5).
func (s Search) podman() (*Runtime, error) {
	var c struct {
		Network struct {
			Backend    string   `toml:"network_backend"`
			Dir        string   `toml:"network_config_dir"`
			PluginDirs []string `toml:"cni_plugin_dirs"`
		} `toml:"network"`
	}
	file, err := s.decode(&c, "/usr/share/containers/containers.conf", "/etc/containers/containers.conf", "/etc/containers/containers.conf.d/*.conf")
	if err != nil || c.Network.Backend != "cni" {
		return nil, types.IgnoreNotExist(err)
	}
	r := &Runtime{Name: "podman", Source: file, ConfDir: cmp.Or(c.Network.Dir, defaultConfDir), PluginDirs: c.Network.PluginDirs}
	if len(r.PluginDirs) == 0 {
		r.PluginDirs = []string{"/usr/local/libexec/cni", "/usr/libexec/cni", "/usr/local/lib/cni", "/usr/lib/cni", "/opt/cni/bin"}
	}
	return r, nil
}

// nerdctl returns nerdctl if its configuration names a directory. Otherwise, it uses the defaults of containerd.
func (s Search) nerdctl() (*Runtime, error) {
	var c struct {
		Path string `toml:"cni_path"`
		Dir  string `toml:"cni_netconfpath"`
	}
	file, err := s.decode(&c, "/etc/nerdctl/nerdctl.toml")
	if err != nil || c.Path == "" && c.Dir == "" {
		return nil, err
	}
	return &Runtime{Name: "nerdctl", Source: file, ConfDir: cmp.Or(c.Dir, defaultConfDir), PluginDirs: []string{cmp.Or(c.Path, "/opt/cni/bin")}}, nil
}
