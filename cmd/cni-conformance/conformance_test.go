package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/v2/cmd/cni-conformance/internal/lab"
	"github.com/plumb-cni/plumb/v2/cmd/cni-conformance/internal/suite"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// conformance is the name under which the test binary is cni-conformance.
const conformance = "cni-conformance"

// TestMain runs cni-conformance, or a wrong plugin, if the test binary has their name.
func TestMain(m *testing.M) {
	name := filepath.Base(os.Args[0])
	if plugin, break_, isWrong := strings.Cut(name, wrongInfix); isWrong {
		os.Exit(wrong(plugin, break_))
	}
	if name == conformance || name == lab.Sandboxed || name == "plumb-inject" {
		main()
	}
	flag.Parse()
	// The cases wait more than they compute: for what is left, for processes that were killed, and for the kernel.
	if err := flag.Set("test.parallel", strconv.Itoa(3*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// These are network configuration lists of plugins of plumb that pass all cases.
const (
	single = `{"cniVersion": "1.1.0", "name": "tested", "plugins": [PTP]}`
	chain  = `{"cniVersion": "1.1.0", "name": "tested", "plugins": [PTP, {"type": "tuning", "mtu": 1400, "capabilities": {"mac": true}}]}`
	ptp    = `{"type": "ptp", "ipMasq": true, "capabilities": {"ips": true}, "ipam":
		{"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}`
)

// known maps the cases that plumb's plugins do not pass to the reasons.
var known = map[string]string{
	"DELEGATE-3": "after a failed ADD of the IPAM plugin, DEL would release an address that the attachment had before (pkg/ipam)",
}

// kills returns at how many system calls of each call the tests kill a plugin of plumb. test/faults kills it at all of them.
func kills() string { return strconv.Itoa(nstest.FullOrShort(20, 5)) }

// runConformance runs cni-conformance for a list, and returns its exit status and report.
func runConformance(t *testing.T, dir, list string, args ...string) (status int, r report, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "list.conflist")
	nstest.Must(t, os.WriteFile(file, []byte(list), 0o644))
	self, err := os.Executable()
	nstest.Must(t, err)
	cmd := exec.Command(self)
	cmd.Args = append([]string{conformance, "--cni-path", dir, "-o", "json", file}, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run()
	if stdout.Len() > 0 {
		if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
			t.Fatalf("%v\n%s", err, stdout.String())
		}
	}
	return cmd.ProcessState.ExitCode(), r, stderr.String()
}

// TestPlumbConforms checks that plumb's plugins pass every case.
func TestPlumbConforms(t *testing.T) {
	bin := nstest.Build(t, "ptp", "host-local", "tuning")
	status, r, stderr := runConformance(t, bin, strings.Replace(chain, "PTP", ptp, 1), "--profile", "all", "--settle", "30s", "--kills", kills())
	for _, o := range r.Cases {
		if (o.Verdict == suite.Pass) == (known[o.ID] != "") {
			t.Errorf("%s: %s: %s", o.ID, o.Verdict, o.Why)
		}
	}
	if len(r.Cases) != len(breaks) {
		t.Errorf("want %d cases, got %d with exit status %d: %s", len(breaks), len(r.Cases), status, stderr)
	}
}

// TestWrongPlugins checks that a plugin that breaks one requirement fails the case of this requirement. With all faults, it checks
// that the plugin passes the other cases.
func TestWrongPlugins(t *testing.T) {
	bin := nstest.Build(t, "ptp", "host-local", "tuning")
	self, err := os.Executable()
	nstest.Must(t, err)
	for _, c := range suite.All("all") {
		t.Run(c.ID, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			plugin, list := "ptp", single
			if c.ID == "CHAIN-1" || c.ID == "CAPABILITY-1" {
				plugin, list = "tuning", chain
			}
			name := plugin + wrongInfix + c.ID
			list = strings.Replace(strings.Replace(list, "PTP", ptp, 1), fmt.Sprintf(`"type": %q`, plugin), fmt.Sprintf(`"type": %q`, name), 1)
			targets := map[string]string{name: self}
			for _, right := range []string{"ptp", "host-local", "tuning"} {
				targets[right] = filepath.Join(bin, right)
			}
			for link, target := range targets {
				nstest.Must(t, os.Symlink(target, filepath.Join(dir, link)))
			}
			args, count, want := []string{"--case", c.ID, "--settle", "1s"}, 1, []string{c.ID}
			if nstest.AllFaults() {
				args, count = []string{"--profile", "all", "--settle", "30s"}, len(breaks)
				want = slices.AppendSeq(append(want, inherent[c.ID]...), maps.Keys(known))
			}
			kills := "2"
			if strings.HasPrefix(c.ID, "KILL-") {
				kills = "0"
			}
			status, r, stderr := runConformance(t, dir, list, append(args, "--kills", kills)...)
			for _, o := range r.Cases {
				good := o.Verdict == suite.Pass || o.Verdict == suite.NotApplicable
				if slices.Contains(want, o.ID) {
					good = o.Verdict == suite.Fail
				}
				if !good {
					t.Errorf("%s: %s: %s", o.ID, o.Verdict, o.Why)
				}
			}
			if status != exitFailed || len(r.Cases) != count {
				t.Errorf("want exit status %d and %d cases, got %d and %d: %s", exitFailed, count, status, len(r.Cases), stderr)
			}
		})
	}
}

// TestTutorial checks that a shell script as tutorials show it fails a few cases that are known to be hard for it, and passes others.
func TestTutorial(t *testing.T) {
	list, err := os.ReadFile("testdata/tutorial/tutorial.conflist")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs("testdata/tutorial")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"ADD-2": suite.Pass, "ADD-6": suite.Pass, "DEL-1": suite.Pass, "DEL-2": suite.Fail, "CHECK-3": suite.Fail, "LEFT-1": suite.Pass, "LEFT-4": suite.Fail}
	args := []string{"--settle", "1s"}
	for id := range want {
		args = append(args, "--case", id)
	}
	_, r, stderr := runConformance(t, dir, string(list), args...)
	for _, o := range r.Cases {
		if o.Verdict != want[o.ID] {
			t.Errorf("%s: want %s, got %s: %s", o.ID, want[o.ID], o.Verdict, o.Why)
		}
	}
	if len(r.Cases) != len(want) {
		t.Errorf("want %d cases, got %d: %s", len(want), len(r.Cases), stderr)
	}
}

// TestSetup checks that the command of --setup prepares each host, and that what it started ends with the host.
func TestSetup(t *testing.T) {
	dir := t.TempDir()
	plugin := "#!/bin/sh\n[ -e /run/prepared ] || exit 1\nexec " + filepath.Join(nstest.Build(t, "host-local"), "host-local")
	nstest.Must(t, os.WriteFile(filepath.Join(dir, "needs-setup"), []byte(plugin), 0o755))
	list := `{"cniVersion": "1.1.0", "name": "tested", "plugins": [{"type": "needs-setup", "ipam": {"type": "needs-setup", "ranges": [[{"subnet": "10.1.0.0/24"}]]}}]}`
	pids := filepath.Join(dir, "pids")
	daemon := fmt.Sprintf(`>/run/prepared; sh -c 'read -r pid _ </proc/self/stat; echo $pid >>"%s"; exec sleep 1000' &`, pids)
	status, r, stderr := runConformance(t, dir, list, "--setup", daemon, "--case", "DEL-1", "--case", "LEFT-1", "--attachments", "3")
	if status != 0 || len(r.Cases) != 2 {
		t.Errorf("want exit status 0 and two cases, got %d and %+v: %s", status, r.Cases, stderr)
	}
	if g := r.Growth; g == nil || g.Error != "" || g.Alone.Add <= 0 || g.Beside.Del <= 0 {
		t.Errorf("want the times of ADD and DEL, got %+v", g)
	}
	started := strings.Fields(nstest.ReadFile(t, pids))
	if len(started) != 4 { // a host for the probe, for each case and for the times
		t.Errorf("want 4 hosts, got %d", len(started))
	}
	for _, pid := range started {
		if _, err := os.Stat("/proc/" + pid); err == nil {
			t.Errorf("process %s has not ended with its host", pid)
		}
	}
	for setup, want := range map[string]string{"echo no daemon >&2; exit 4": "setup command: exit status 4: no daemon", "": "no case can run"} {
		status, _, stderr := runConformance(t, dir, list, "--setup", setup)
		if status != exitError || !strings.Contains(stderr, want) {
			t.Errorf("setup command %q: want exit status %d and %q, got %d and %q", setup, exitError, want, status, stderr)
		}
	}
}

// TestPage checks that docs/reference/conformance-cases.md contains the cases.
func TestPage(t *testing.T) {
	var cases bytes.Buffer
	if status := run([]string{"--list", "--profile", "all", "-o", "markdown"}, &cases, t.Output()); status != 0 {
		t.Fatalf("exit status %d", status)
	}
	page := nstest.ReadFile(t, "../../docs/reference/conformance-cases.md")
	if _, table, _ := strings.Cut(page, "\n\n| "); "| "+table != cases.String() {
		t.Errorf("docs/reference/conformance-cases.md differs from the cases; the output of cni-conformance --list --profile all -o markdown is:\n%s", cases.String())
	}
}

// TestArguments checks the exit statuses of calls that run no case.
func TestArguments(t *testing.T) {
	for _, c := range []struct {
		args   string
		status int
		stderr string
	}{
		{"", exitUsage, "want one network configuration list"},
		{"a b", exitUsage, "got 2 arguments"},
		{"--profile fast a", exitUsage, `want spec, robust or all, got "fast"`},
		{"-o yaml a", exitUsage, `got "yaml"`},
		{"--case NONE-1 a", exitUsage, `no case "NONE-1"`},
		{"--state / a", exitUsage, "--state"},
		{"--none a", exitUsage, "unknown flag"},
		{"--list a", exitUsage, "--list runs nothing"},
	} {
		var stdout, stderr bytes.Buffer
		status := run(strings.Fields(c.args), &stdout, &stderr)
		if status != c.status || !strings.Contains(stderr.String(), c.stderr) {
			t.Errorf("%s: want exit status %d and %q, got %d and %q", c.args, c.status, c.stderr, status, stderr.String())
		}
	}
	status, _, stderr := runConformance(t, t.TempDir(), `{"cniVersion": "1.1.0", "name": "none", "plugins": [{"type": "none"}]}`)
	if status != exitError || !strings.Contains(stderr, "plugins[0]") {
		t.Errorf("a plugin that does not exist: want exit status %d, got %d and %q", exitError, status, stderr)
	}
}
