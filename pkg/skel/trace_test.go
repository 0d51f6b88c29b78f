package skel_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

const (
	traceID  = "0af7651916cd43dd8448eb211c80319c"
	callerID = "b7ad6b7169203331"
	sampled  = "TRACEPARENT=00-" + traceID + "-" + callerID + "-01"
)

func oneStep() skel.Plugin {
	return pluginWithAdd(func(r *skel.Request) (*types.Result, error) {
		return &types.Result{}, r.Trace.Do("add link x", func() error { return nil })
	})
}

// newPipe returns the path of a named pipe and its reader.
func newPipe(t *testing.T) (string, *os.File) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trace")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Close() })
	return path, reader
}

// records returns the records that calls have written to a pipe. No call may still have the pipe
// open.
func records(t *testing.T, reader *os.File) (all []trace.Record) {
	t.Helper()
	lines := bufio.NewScanner(reader)
	for lines.Scan() {
		var r trace.Record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		all = append(all, r)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestPipeGetsBeginStepsAndEndOfACall(t *testing.T) {
	path, reader := newPipe(t)
	if o := run(t, oneStep(), call{pipe: path}); o.code != 0 || o.stderr != "" {
		t.Fatalf("%+v", o)
	}
	got := records(t, reader)
	if len(got) != 3 || got[0].Event != trace.EventBegin || got[1].Event != trace.EventStep || got[2].Event != trace.EventEnd {
		t.Fatalf("%+v", got)
	}
	want := trace.Call{Command: "ADD", Plugin: "test", Network: "net", ContainerID: "c1", IfName: "eth0", PID: os.Getpid(), ParentPID: os.Getppid()}
	for _, i := range []int{0, 2} {
		if got[i].About == nil || *got[i].About != want {
			t.Errorf("%s is about %+v, want %+v", got[i].Event, got[i].About, want)
		}
	}
	if got[0].Call == "" || got[1].Call != got[0].Call || got[2].Call != got[0].Call || got[1].Step != "add link x" || got[2].Lost != 0 || got[2].Error != "" {
		t.Errorf("%+v", got)
	}
}

// TestPipeGetsCallsThatFail includes calls that fail before the configuration is known.
func TestPipeGetsCallsThatFail(t *testing.T) {
	path, reader := newPipe(t)
	fails := pluginWithAdd(func(*skel.Request) (*types.Result, error) {
		return nil, types.Errorf(types.CodeTryAgain, "pool: %w", errors.New("exhausted"))
	})
	panics := pluginWithAdd(func(*skel.Request) (*types.Result, error) { panic("boom") })
	for _, tc := range []struct {
		plugin skel.Plugin
		call   call
		code   uint
		text   string
	}{
		{fails, call{}, types.CodeTryAgain, "pool: exhausted"},
		{panics, call{}, types.CodeInternal, "panic: boom"},
		{oneStep(), call{conf: "{"}, types.CodeDecode, "decode"},
		{oneStep(), call{env: []string{"CNI_IFNAME="}}, types.CodeEnvironment, "CNI_IFNAME"},
		{oneStep(), call{env: []string{"CNI_COMMAND=NOTHING"}}, types.CodeEnvironment, "NOTHING"},
	} {
		tc.call.pipe = path
		if o := run(t, tc.plugin, tc.call); o.code != 1 {
			t.Errorf("%+v", o)
		}
		got := records(t, reader)
		if len(got) < 2 || got[len(got)-1].Code != tc.code || !strings.Contains(got[len(got)-1].Error, tc.text) || got[len(got)-1].About == nil {
			t.Errorf("want %d %q, got %+v", tc.code, tc.text, got)
		}
	}
}

// TestCallsDoNotDependOnThePipe checks that neither the file at the path nor its reader affects a
// call.
func TestCallsDoNotDependOnThePipe(t *testing.T) {
	check := func(why, path string) {
		t.Helper()
		if o := run(t, oneStep(), call{pipe: path}); o.code != 0 || o.stderr != "" {
			t.Errorf("%s: %+v", why, o)
		}
	}
	dir := t.TempDir()
	check("no pipe", dir+"/none")
	check("a directory", dir)
	check("a device", "/dev/null")
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	check("a file", dir+"/file")
	if text, err := os.ReadFile(dir + "/file"); err != nil || len(text) > 0 {
		t.Errorf("the call wrote %q to a file that is not a pipe, %v", text, err)
	}
	path, reader := newPipe(t)
	if err := os.Symlink(path, dir+"/link"); err != nil {
		t.Fatal(err)
	}
	check("a symbolic link", dir+"/link")
	if got := records(t, reader); len(got) > 0 {
		t.Errorf("the call followed a symbolic link and wrote %+v", got)
	}
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	check("a pipe without a reader", path)
}

func TestReaderOfThePipeEndsDuringACall(t *testing.T) {
	path, reader := newPipe(t)
	o := run(t, pluginWithAdd(func(r *skel.Request) (*types.Result, error) {
		return &types.Result{}, errors.Join(reader.Close(), r.Trace.Do("add link x", func() error { return nil }))
	}), call{pipe: path})
	if o.code != 0 || o.stderr != "" {
		t.Errorf("%+v", o)
	}
}

// TestFullPipe checks that the call does not wait, and that its last line contains the number of lost
// lines.
func TestFullPipe(t *testing.T) {
	path, reader := newPipe(t)
	buffer := make([]byte, 1<<20)
	o := run(t, pluginWithAdd(func(r *skel.Request) (*types.Result, error) {
		for range 10_000 { // far more than fits into a pipe
			_ = r.Trace.Do("add link x", func() error { return nil })
		}
		_, err := reader.Read(buffer)
		return &types.Result{}, err
	}), call{pipe: path})
	if o.code != 0 || o.stderr != "" {
		t.Fatalf("%+v", o)
	}
	got := records(t, reader)
	if end := got[len(got)-1]; end.Event != trace.EventEnd || end.Lost == 0 {
		t.Errorf("the last line is %+v", end)
	}
}

func TestVersionIsNotTraced(t *testing.T) {
	path, reader := newPipe(t)
	run(t, oneStep(), call{pipe: path, env: []string{"CNI_COMMAND=VERSION"}})
	if got := records(t, reader); len(got) > 0 {
		t.Errorf("%+v", got)
	}
}

// TestTraceFile checks in which environments a span is recorded, and which parent delegates get.
func TestTraceFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "spans")
	for _, tc := range []struct {
		why      string
		env      []string
		recorded bool
		warning  string
	}{
		{"sampled", []string{sampled, "CNI_TRACE_FILE=" + file}, true, ""},
		{"not sampled", []string{strings.TrimSuffix(sampled, "1") + "0", "CNI_TRACE_FILE=" + file}, false, ""},
		{"malformed", []string{"TRACEPARENT=00-xyz", "CNI_TRACE_FILE=" + file}, false, ""},
		{"no TRACEPARENT", []string{"CNI_TRACE_FILE=" + file}, false, ""},
		{"no file", []string{sampled}, false, ""},
		{"a bad path", []string{sampled, "CNI_TRACE_FILE=" + file + "/x"}, false, "test: warning: CNI_TRACE_FILE: open " + file + "/x: not a directory\n"},
	} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		var parents []string
		o := run(t, pluginWithAdd(func(r *skel.Request) (*types.Result, error) {
			parents = slices.DeleteFunc(slices.Clone(r.Environ()), func(v string) bool { return !strings.HasPrefix(v, "TRACEPARENT=") })
			return &types.Result{}, nil
		}), call{env: tc.env})
		if o.code != 0 || o.stderr != tc.warning {
			t.Errorf("%s: %+v", tc.why, o)
		}
		text, err := os.ReadFile(file)
		if err != nil || strings.Count(string(text), "\n") != map[bool]int{true: 1}[tc.recorded] {
			t.Errorf("%s: %v, the file has %q", tc.why, err, text)
		}
		given := slices.DeleteFunc(slices.Clone(tc.env), func(v string) bool { return !strings.HasPrefix(v, "TRACEPARENT=") })
		changed := len(parents) == 1 && strings.HasPrefix(parents[0], "TRACEPARENT=00-"+traceID+"-") && !slices.Equal(parents, given) && len(parents[0]) == len(sampled)
		if tc.recorded && !changed || !tc.recorded && !slices.Equal(parents, given) {
			t.Errorf("%s: delegates get %q, the call has %q", tc.why, parents, given)
		}
	}
}
