package traces

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/pkg/trace"
)

// listen returns a listener that the test closes.
func listen(t *testing.T, path string) *Listener {
	t.Helper()
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestListenTakesOverThePipeOfAKilledListener(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "trace")
	if err := os.WriteFile(dir+"/other", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	l := listen(t, path)
	if info, err := os.Lstat(path); err != nil || info.Mode() != fs.ModeNamedPipe|0o600 {
		t.Errorf("want a named pipe with mode 0600, got %v, %v", info, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("after Close: want only the file other, got %v, %v", list, err)
	}
}

// TestListenFailsIfTheDirectoryIsADanglingLink tests that Listen does not repeat mkdir and mkfifo forever, because for
// a dangling link mkdir returns EEXIST and mkfifo ENOENT.
func TestListenFailsIfTheDirectoryIsADanglingLink(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(dir+"/missing", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := Listen(dir + "/link/trace")
		result <- err
	}()
	select {
	case err := <-result:
		if !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("Listen did not return within a minute")
	}
}

// TestManyListenersOneAtATime tests that only one listener at a time owns the pipe, and that the last one removes the directory.
func TestManyListenersOneAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plumb", "trace")
	results := make(chan error)
	for range 8 {
		go func() {
			for range 200 {
				l, err := Listen(path)
				if err == ErrBusy {
					continue
				}
				if err == nil {
					err = errors.Join(checkPipe(l), l.Close())
				}
				if err != nil {
					results <- err
					return
				}
			}
			results <- nil
		}()
	}
	for range 8 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(filepath.Dir(path)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("want no directory, got %v", err)
	}
}

// checkPipe returns an error if the listener does not read the pipe at its path.
func checkPipe(l *Listener) error {
	opened, err := l.file.Stat()
	if err != nil {
		return err
	}
	current, err := os.Lstat(l.path)
	if err == nil && !os.SameFile(opened, current) {
		return errors.New("the listener reads a pipe that was removed")
	}
	return err
}

func TestFollowReportsCallsUntilItsContextIsDone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	l := listen(t, path)
	defer func() { _ = l.Close() }()
	killed := exec.Command("cat")
	if _, err := killed.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	write := func(event, call string, pid int) {
		t.Helper()
		r := record(event, call, 0)
		r.About.PID = pid
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(line, '\n'), 0); err != nil {
			t.Fatal(err)
		}
	}
	write(trace.EventBegin, "running", os.Getpid())
	write(trace.EventBegin, "killed", killed.Process.Pid)
	write(trace.EventEnd, "ended", os.Getpid())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var got []string
	err := l.Follow(ctx, func(c *Call) error {
		got = append(got, c.Plugin+" "+c.Outcome)
		switch c.Outcome {
		case OutcomeOK: // the listener has read the begin records of the other calls
			return errors.Join(killed.Process.Kill(), waitKilled(killed))
		case OutcomeKilled:
			cancel()
		}
		return nil
	})
	if err != nil || strings.Join(got, ", ") != "ended ok, killed killed, running running" {
		t.Errorf("want the calls in this order, got %q, %v", got, err)
	}
}

func waitKilled(cmd *exec.Cmd) error {
	if err := cmd.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		return err
	}
	return nil
}
