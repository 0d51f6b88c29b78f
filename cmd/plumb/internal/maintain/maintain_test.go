package maintain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/statefile"
)

// calls records the calls of GC and Repair, and what a Maintainer logs.
type calls struct {
	Maintainer
	list             []string
	gcErr, repairErr error
	repaired         chan bool // receives a value after each call of Repair
}

func newCalls() *calls {
	c := &calls{repaired: make(chan bool, 100)}
	c.GC = func(context.Context) (removed, suspect, left int, err error) {
		c.list = append(c.list, "gc")
		return 3, 2, 1, c.gcErr
	}
	c.Repair = func(context.Context) (repaired, left int, err error) {
		c.list = append(c.list, "repair")
		c.repaired <- true
		return 5, 4, c.repairErr
	}
	c.Log = func(format string, args ...any) { c.list = append(c.list, fmt.Sprintf(format, args...)) }
	return c
}

func TestOnce(t *testing.T) {
	c := newCalls()
	c.Metrics = filepath.Join(t.TempDir(), "plumb.prom")
	left, err := c.Run(t.Context())
	if left != 5 || err != nil || !slices.Equal(c.list, []string{"gc", "repair"}) {
		t.Errorf("want gc, repair and 5 attachments left, got %q, %d, %v", c.list, left, err)
	}
	c.expectMetrics(t, fmt.Sprintf("last_success_timestamp_seconds %d", c.numbers.Success.Unix()), "removed_total 3", "repaired_total 5", "suspect 2", "left 5")
	if time.Since(c.numbers.Success) > time.Hour {
		t.Errorf("want the time of the run, got %s", c.numbers.Success)
	}
	if files, _ := os.ReadDir(filepath.Dir(c.Metrics)); len(files) != 1 {
		t.Errorf("want only the metrics in the directory, got %v", files)
	}
}

// expectMetrics checks the samples in the file, without their common prefix.
func (c *calls) expectMetrics(t *testing.T, want ...string) {
	t.Helper()
	text, err := os.ReadFile(c.Metrics)
	if err != nil {
		t.Fatal(err)
	}
	samples := regexp.MustCompile(`(?m)^plumb_maintain_.*$`).FindAllString(string(text), -1)
	if got, want := strings.Join(samples, "\n"), "plumb_maintain_"+strings.Join(want, "\nplumb_maintain_"); got != want {
		t.Errorf("want\n%s\ngot\n%s", want, got)
	}
}

// TestErrors checks that a run repairs after an error of GC, and that a step that fails does not change how many
// attachments are suspect or left.
func TestErrors(t *testing.T) {
	c := newCalls()
	c.Metrics, c.gcErr = filepath.Join(t.TempDir(), "plumb.prom"), errors.New("no answer")
	_, err := c.Run(t.Context())
	if !errors.Is(err, c.gcErr) || !slices.Equal(c.list, []string{"gc", "repair"}) {
		t.Errorf("want the error of gc and a repair, got %q, %v", c.list, err)
	}
	c.expectMetrics(t, "removed_total 3", "repaired_total 5", "suspect 0", "left 4")
	c.gcErr, c.repairErr = nil, errors.New("no permission")
	if _, err := c.Run(t.Context()); !errors.Is(err, c.repairErr) {
		t.Errorf("want the error of repair, got %v", err)
	}
	c.expectMetrics(t, "removed_total 6", "repaired_total 10", "suspect 2", "left 4")
}

// TestState checks that the counters and the last success survive the end of plumb maintain.
func TestState(t *testing.T) {
	dir := t.TempDir()
	run := func(gcErr error) *calls {
		c := newCalls()
		c.Metrics, c.State, c.gcErr = filepath.Join(dir, "plumb.prom"), statefile.File{Dir: dir, Name: "state"}, gcErr
		_, _ = c.Run(t.Context())
		return c
	}
	success := run(nil).numbers.Success.Unix()
	run(errors.New("no answer")).expectMetrics(t, fmt.Sprintf("last_success_timestamp_seconds %d", success),
		"removed_total 6", "repaired_total 10", "suspect 0", "left 4")
}

// TestFailedMetrics checks that no temporary file stays if the metrics cannot be written.
func TestFailedMetrics(t *testing.T) {
	dir := t.TempDir()
	c := newCalls()
	c.Metrics = filepath.Join(dir, "directory")
	if err := os.Mkdir(c.Metrics, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "write metrics: ") {
		t.Errorf("metrics in a directory: %v", err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("a temporary file is left: %v", files)
	}
}

// TestMetricsFile checks that an existing temporary file is replaced, and that the target of a symbolic link is not
// changed.
func TestMetricsFile(t *testing.T) {
	c := newCalls()
	dir := t.TempDir()
	c.Metrics = filepath.Join(dir, "plumb.prom")
	target := filepath.Join(dir, "target")
	if err := errors.Join(os.WriteFile(target, nil, 0o600), os.Symlink(target, c.Metrics+".new")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Run(t.Context()); err != nil {
		t.Error(err)
	}
	file, err := os.Lstat(c.Metrics)
	if text, _ := os.ReadFile(target); err != nil || file.Mode() != 0o644 || len(text) > 0 {
		t.Errorf("want a regular file that all users can read, and an empty target, got %v, %v, %q", file.Mode(), err, text)
	}
}

func TestSignal(t *testing.T) {
	for _, every := range []time.Duration{0, time.Hour} {
		c := newCalls()
		ctx, signal := context.WithCancel(t.Context())
		c.Every, c.Metrics = every, filepath.Join(t.TempDir(), "plumb.prom")
		c.gcErr = context.Canceled
		gc := c.GC
		c.GC = func(ctx context.Context) (removed, suspect, left int, err error) {
			signal()
			return gc(ctx)
		}
		if left, err := c.Run(ctx); left != 0 || err != nil || !slices.Equal(c.list, []string{"gc"}) {
			t.Errorf("--every %s: want gc and no error, got %q, %d, %v", every, c.list, left, err)
		}
	}
}

// TestService checks that a service repairs after each event, except after events that repeat too often, and that it
// repeats the whole run.
func TestService(t *testing.T) {
	c := newCalls()
	ctx, signal := context.WithCancel(t.Context())
	events, ended := make(chan []string), make(chan error)
	c.Every, c.Events, c.gcErr = time.Hour, events, errors.New("no answer")
	run := func() {
		_, err := c.Run(ctx)
		ended <- err
	}
	go run()
	for range 5 {
		events <- []string{"bridge cni0"}
	}
	events <- []string{"firewalld"}
	events <- []string{"bridge cni0"} // received when the repair has ended
	signal()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	want := []string{"gc", "repair", "gc: no answer"}
	for range 3 {
		want = append(want, "bridge cni0: change detected; repairing", "repair")
	}
	want = append(want, "bridge cni0: change detected again after 3 repairs within 1m0s; find the program that does this; plumb tries again in 1h0m0s",
		"firewalld: change detected; repairing", "repair")
	if !slices.Equal(c.list, want) {
		t.Errorf("want\n%s\ngot\n%s", strings.Join(want, "\n"), strings.Join(c.list, "\n"))
	}

	ctx, signal = context.WithCancel(t.Context())
	c.Every, c.list, c.repaired = time.Millisecond, nil, make(chan bool)
	go run()
	for range 3 {
		<-c.repaired
	}
	signal()
	for open := true; open; {
		select {
		case <-c.repaired:
		case <-ended:
			open = false
		}
	}
	if repeated := slices.DeleteFunc(c.list, func(s string) bool { return s != "gc" }); len(repeated) < 3 {
		t.Errorf("want at least 3 runs, got %q", c.list)
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "lock")
	unlock, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(path); !errors.Is(err, ErrBusy) {
		t.Errorf("want ErrBusy, got %v", err)
	}
	if err := unlock(); err != nil {
		t.Error(err)
	}
	if _, err := Lock(path); err != nil {
		t.Errorf("lock again: %v", err)
	}
}
