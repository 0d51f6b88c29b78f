package runtimes

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
)

// DefaultConfig is the path of plumb's configuration file.
const DefaultConfig = "/etc/plumb.yaml"

// A Config is the content of plumb's configuration file. A missing key is empty.
type Config struct {
	CNIPath []string `json:"cni-path"` // the directories of the plugins, if no runtime answers
	ConfDir string   `json:"conf-dir"` // the directory of the network configurations, if no runtime answers
	DataDir string   `json:"data-dir"` // the default directory of reservations
	CRI     []string `json:"cri"`      // the sockets of runtimes, instead of the default sockets
}

// ReadConfig reads a configuration file. It returns an empty Config if the file does not exist. An error names a key that is
// unknown, occurs twice or has a value of a wrong type.
func ReadConfig(path string) (c Config, err error) {
	text, err := node.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		return c, fmt.Errorf("%s: %w; the keys are cni-path and cri (lists), conf-dir and data-dir", path, err)
	}
	for i, socket := range c.CRI {
		c.CRI[i] = strings.TrimPrefix(socket, "unix://")
	}
	for key, paths := range map[string][]string{"cni-path": c.CNIPath, "conf-dir": {c.ConfDir}, "data-dir": {c.DataDir}, "cri": c.CRI} {
		for i, p := range paths {
			if strings.HasSuffix(key, "-dir") && p == "" {
				continue // the key is missing
			}
			if !filepath.IsAbs(p) {
				return c, fmt.Errorf("%s: %s[%d] must be an absolute path, got %q", path, key, i, p)
			}
		}
	}
	return c, nil
}
