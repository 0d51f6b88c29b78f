package invoke

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzFind checks that Find returns only files that are directly in a directory of the path.
func FuzzFind(f *testing.F) {
	for _, s := range []string{"a", "../a", "x/../a", "..", ".", "", "a\x00", `x\a`, "/etc/passwd", "sub"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		dir := filepath.Join(t.TempDir(), "bin")
		if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"a", "sub/a", "../a"} {
			if err := os.WriteFile(filepath.Join(dir, file), nil, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := Find(name, dir); err == nil && (filepath.Dir(got) != dir || filepath.Base(got) != name || strings.Contains(name, "/")) {
			t.Errorf("%q is found at %s", name, got)
		}
	})
}
