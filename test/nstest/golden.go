package nstest

import (
	"flag"
	"os"
	"path/filepath"
)

// update is read when a test runs, after the flags were.
var update = flag.Bool("update", false, "rewrite the golden files")

// Golden compares got with testdata/<name>.golden of the package under test, which
// `go test -update` writes anew.
func Golden(tb TB, name, got string) {
	tb.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			tb.Fatalf("%v", err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			tb.Fatalf("%v", err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	if got != string(want) {
		tb.Fatalf("not as in %s:\n%s\nhave:\n%s", path, Compare(string(want), got), got)
	}
}
