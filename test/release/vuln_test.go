package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// recordingGo is a go that records "build" and the path and arguments of govulncheck, and neither builds nor scans.
const recordingGo = `#!/bin/sh
dir=$PWD verb=$1
case $0 in *govulncheck) verb=govulncheck ;; esac
if [ "$1" = -C ]; then
	dir=$PWD/$2
	shift 2
	[ "$verb" = govulncheck ] || verb=$1
fi
case $verb in
tool) echo "$RECORD/govulncheck" ;;
build) echo "$verb $dir $*" >>"$RECORD/calls"; : >"$RECORD/bin/plumb" ;; # the last file that build_linux.sh looks for
govulncheck) echo "$verb $dir $*" >>"$RECORD/calls"; echo '{"@context": "https://openvex.dev/ns/v0.2.0", "statements": []}' ;;
*) exec "$REAL_GO" "$@" ;;
esac
`

// TestVulnerabilitiesOfEveryExecutable checks that vuln.sh scans the executables that build_linux.sh builds, for its report
// and for the OpenVEX document.
func TestVulnerabilitiesOfEveryExecutable(t *testing.T) {
	root, dir := nstest.Root(t), t.TempDir()
	realGo, err := exec.LookPath("go")
	nstest.Must(t, err)
	writeExecutable(t, filepath.Join(dir, "go"), recordingGo)
	writeExecutable(t, filepath.Join(dir, "govulncheck"), recordingGo)
	record := func(verb, name string, args ...string) []string {
		t.Helper()
		run(t, root, []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "RECORD=" + dir, "REAL_GO=" + realGo}, name, args...)
		calls, err := os.ReadFile(filepath.Join(dir, "calls"))
		nstest.Must(t, err)
		nstest.Must(t, os.Remove(filepath.Join(dir, "calls")))
		return mainPackages(t, verb, string(calls))
	}
	built := record("build", "./build_linux.sh", filepath.Join(dir, "bin"))
	if len(built) < 20 {
		t.Fatalf("build_linux.sh builds only %q", built)
	}
	for _, args := range [][]string{nil, {"--openvex"}} {
		if diff := cmp.Diff(built, record("govulncheck", "scripts/vuln.sh", args...)); diff != "" {
			t.Errorf("vuln.sh %q scans other executables than build_linux.sh builds:\n%s", args, diff)
		}
	}
}

// mainPackages returns the main packages to which the recorded calls of a verb refer.
func mainPackages(t *testing.T, verb, calls string) (all []string) {
	t.Helper()
	for line := range strings.Lines(calls) {
		words := strings.Fields(line)
		if words[0] != verb {
			continue
		}
		patterns := slices.DeleteFunc(words[2:], func(word string) bool { return !strings.HasPrefix(word, "./") })
		list := append([]string{"list", "-f", `{{if eq .Name "main"}}{{.ImportPath}}{{end}}`}, patterns...)
		all = append(all, strings.Fields(run(t, words[1], nil, "go", list...))...)
	}
	slices.Sort(all)
	return all
}
