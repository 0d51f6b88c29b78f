package skel

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// told is what the probe prints.
type told struct {
	Args, Environ []string
	Processors    int
	Auxv          [][2]uint64
}

func probe(t *testing.T, flags string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "probe")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", flags, "-o", path, "./testdata/probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

func ask(t *testing.T, path string, args, environ []string) told {
	t.Helper()
	out, err := (&exec.Cmd{Path: path, Args: args, Env: environ}).Output()
	if err != nil {
		t.Fatalf("probe: %v", err)
	}
	var have told
	if err := json.Unmarshal(out, &have); err != nil {
		t.Fatalf("probe: %v\n%s", err, out)
	}
	return have
}

// TestStart: the runtime sees one processor, and arguments, environment and auxiliary
// vector otherwise as the kernel gave them.
func TestStart(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skipf("no entry point for %s", runtime.GOARCH)
	}
	path := probe(t, "-E _plumb_start")
	many := make([]string, 2000)
	for i := range many {
		many[i] = "K" + strings.Repeat("x", i%50) + string(rune('a'+i%26)) + strings.Repeat("y", i/26) + "=v"
	}
	for name, c := range map[string]struct {
		args, environ, want []string
		processors          int
	}{
		"usual":         {[]string{"bridge"}, []string{"A=1", "B="}, []string{"A=1", "B=", "GOMAXPROCS=1"}, 1},
		"even":          {[]string{"bridge", "x"}, []string{"A=1", "B="}, []string{"A=1", "B=", "GOMAXPROCS=1"}, 1},
		"nothing":       {[]string{""}, []string{}, []string{"GOMAXPROCS=1"}, 1},
		"much":          {many, many, append(slices.Clone(many), "GOMAXPROCS=1"), 1},
		"somebody's":    {[]string{"bridge"}, []string{"GOMAXPROCS=3", "A=1"}, []string{"GOMAXPROCS=3", "A=1"}, 3},
		"somebody's, 1": {[]string{"bridge"}, []string{"A=1", "GOMAXPROCS=3"}, []string{"A=1", "GOMAXPROCS=3"}, 3},
	} {
		have := ask(t, path, c.args, c.environ)
		if have.Processors != c.processors || !slices.Equal(have.Environ, c.want) || !slices.Equal(have.Args, c.args) {
			t.Errorf("%s: %d processors, arguments %.200q, environment %.200q", name, have.Processors, have.Args, have.Environ)
		}
		if value(have.Auxv, auxvPageSize) != uint64(os.Getpagesize()) || value(have.Auxv, auxvUID) != uint64(os.Getuid()) {
			t.Errorf("%s: auxiliary vector %v", name, have.Auxv)
		}
	}
}

// Kinds of the auxiliary vector (linux/auxvec.h).
const (
	auxvPageSize = 6  // AT_PAGESZ
	auxvUID      = 11 // AT_UID
)

func value(auxv [][2]uint64, kind uint64) uint64 {
	for _, pair := range auxv {
		if pair[0] == kind {
			return pair[1]
		}
	}
	return 1<<64 - 1
}

// TestWithout: an executable whose linker was not told begins as any other.
func TestWithout(t *testing.T) {
	have := ask(t, probe(t, ""), []string{"bridge"}, []string{"A=1"})
	if !slices.Equal(have.Environ, []string{"A=1"}) {
		t.Errorf("environment %q", have.Environ)
	}
}
