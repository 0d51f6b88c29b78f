package nstest

import (
	"flag"
	"os"
	"path/filepath"
)

// update is set when the flags are parsed, before a test runs.
var update = flag.Bool("update", false, "rewrite the golden files")

// Updating reports whether tests write the current output to golden files and pages, instead of comparing with it.
// The flag -update requests this.
func Updating() bool { return *update }

// Golden fails the test if got differs from the file testdata/<name>.golden of the package.
// `go test -update` writes got to the file.
func Golden(tb TB, name, got string) {
	tb.Helper()
	path := filepath.Join("testdata", name+".golden")
	if Updating() {
		Must(tb, os.MkdirAll("testdata", 0o755))
		Must(tb, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	Must(tb, err)
	if got != string(want) {
		tb.Fatalf("the output differs from %s:\n%s\ngot:\n%s", path, Compare(string(want), got), got)
	}
}
