package nstest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
)

func TestExamplesTakesOnlyWhatTheParserTakes(t *testing.T) {
	parse := func(r *skel.Request) error {
		var conf struct {
			MTU int `json:"mtu"`
		}
		return r.Decode(&conf)
	}
	for block, want := range map[string]string{
		`{"name": "n", "type": "toy", "mtu": 5}`:                      "",
		`{"name": "n", "plugins": [{"type": "a"}, {"type": "toy"}]}`:  "",
		`{"name": "n", "type": "a", "ipam": {"type": "toy"}}`:         "",
		`{"name": "n", "type": "toy", "mtuu": 5}`:                     "mtuu",
		`{"name": "n", "plugins": [{"type": "toy", "mtu": "large"}]}`: "mtu",
		`{"type": "toy"}`:                  "missing network name",
		`{"name": "n", "type": "another"}`: "no ```json block",
	} {
		t.Run(block, func(t *testing.T) {
			t.Chdir(newProject(t, "# toy\n```json\n"+block+"\n```\n"))
			v := &verdict{T: t}
			Examples(v, toy(""), parse)
			if got := strings.Join(v.errors, "\n"); want == "" && got != "" || !strings.Contains(got, want) {
				t.Errorf("want %q, got %q", want, got)
			}
		})
	}
}

// newProject creates a project with one plugin, whose page contains this text, and returns the plugin's
// directory.
func newProject(t *testing.T, text string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range map[string]string{"README.md": "", "docs/how-to/page.md": "", "plugins/toy/README.md": text} {
		file := filepath.Join(root, path)
		Must(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)))
	}
	return filepath.Join(root, "plugins/toy")
}
