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

// A prober is the probe, built for some architecture, and what it takes to run it here.
type prober struct{ path, emulator string }

func probe(t *testing.T, arch, flags string) prober {
	t.Helper()
	p := prober{path: filepath.Join(t.TempDir(), "probe")}
	if arch != runtime.GOARCH {
		program := map[string]string{"amd64": "qemu-x86_64-static", "arm64": "qemu-aarch64-static"}[arch]
		var err error
		if p.emulator, err = exec.LookPath(program); err != nil {
			t.Skipf("%s is missing: install qemu-user-static", program)
		}
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", flags, "-o", p.path, "./testdata/probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return p
}

func (p prober) ask(t *testing.T, args, environ []string) told {
	t.Helper()
	cmd := &exec.Cmd{Path: p.path, Args: args, Env: environ}
	if p.emulator != "" {
		cmd = &exec.Cmd{Path: p.emulator, Args: append([]string{p.emulator, "-0", args[0], p.path}, args[1:]...), Env: environ}
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("probe: %v", err)
	}
	var have told
	if err := json.Unmarshal(out, &have); err != nil {
		t.Fatalf("probe: %v\n%s", err, out)
	}
	slices.Sort(have.Environ) // an emulator may turn it round
	return have
}

// TestStart: the runtime sees one processor, and arguments, environment and auxiliary
// vector otherwise as the kernel gave them.
func TestStart(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		t.Run(arch, func(t *testing.T) { testStart(t, probe(t, arch, "-E _plumb_start")) })
	}
}

func testStart(t *testing.T, p prober) {
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
		have := p.ask(t, c.args, c.environ)
		slices.Sort(c.want)
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
	have := probe(t, runtime.GOARCH, "").ask(t, []string{"bridge"}, []string{"A=1"})
	if !slices.Equal(have.Environ, []string{"A=1"}) {
		t.Errorf("environment %q", have.Environ)
	}
}
