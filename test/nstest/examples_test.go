package nstest

import (
	"os"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/pkg/skel"
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
			t.Chdir(t.TempDir())
			if err := os.WriteFile("README.md", []byte("# toy\n```json\n"+block+"\n```\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			v := &verdict{T: t}
			Examples(v, toy(""), parse)
			if got := strings.Join(v.errors, "\n"); want == "" && got != "" || !strings.Contains(got, want) {
				t.Errorf("said %q, want %q", got, want)
			}
		})
	}
}
