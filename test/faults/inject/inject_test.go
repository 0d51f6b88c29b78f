package inject

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	Launch()
	os.Exit(m.Run())
}

// limit is how long the programs here may take on a machine that has much else to do.
const limit = time.Minute

// A run is what a shell said under a session, and the calls that it made.
type run struct {
	stdout string
	err    error // of the shell
	calls  []string
}

// shell runs a script. It sees the world as it is: only files in dir change.
func shell(t *testing.T, script string, calls []Syscall, decide func(*Call) Verdict) run {
	t.Helper()
	var out run
	var stdout bytes.Buffer
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Stdout = &stdout
	tree, err := Session{Calls: calls, Decide: func(c *Call) Verdict {
		out.calls = append(out.calls, fmt.Sprintf("%d %s %d %s", c.Process, c.Program, c.N, c.Name))
		return decide(c)
	}}.Run(cmd)
	if err != nil {
		t.Fatal(err)
	}
	out.err = cmd.Wait()
	if err := tree.Wait(limit); err != nil {
		t.Fatal(err)
	}
	out.stdout = stdout.String()
	return out
}

func pass(*Call) Verdict { return Pass() }

func TestCount(t *testing.T) {
	a := filepath.Join(t.TempDir(), "a")
	r := shell(t, "echo 1 > "+a+"; echo 2; cat "+a+"; exit 3", Mutating(), pass)
	var status *exec.ExitError
	if !errors.As(r.err, &status) || status.ExitCode() != 3 || r.stdout != "2\n1\n" {
		t.Errorf("%q, %v", r.stdout, r.err)
	}
	program := filepath.Base(must(filepath.EvalSymlinks("/bin/cat")))
	own := slices.DeleteFunc(slices.Clone(r.calls), func(c string) bool { return !strings.HasPrefix(c, "0 ") })
	if want := []string{"0 sh 1 openat", "0 sh 2 write", "0 sh 3 write"}; !slices.Equal(own[:3], want) || len(own) > 4 {
		t.Errorf("the shell's calls are %q, want %q and a fork", own, want)
	}
	if !slices.ContainsFunc(r.calls, func(c string) bool { return strings.HasPrefix(c, "1 "+program+" ") && strings.HasSuffix(c, " write") }) {
		t.Errorf("no write of %s among %q", program, r.calls)
	}
}

func TestRefuse(t *testing.T) {
	dir := t.TempDir()
	r := shell(t, "mkdir "+dir+"/a 2>&1; mkdir "+dir+"/b; ls "+dir, Files(), func(c *Call) Verdict {
		if strings.HasPrefix(c.Name, "mkdir") && strings.HasSuffix(c.String(), "/a") {
			return Refuse(unix.ENOSPC)
		}
		return Pass()
	})
	if !strings.Contains(r.stdout, "No space left on device") || !strings.HasSuffix(r.stdout, "\nb\n") {
		t.Errorf("%q", r.stdout)
	}
}

func TestKillTheProgram(t *testing.T) {
	for n := 1; n <= 3; n++ {
		a := filepath.Join(t.TempDir(), "a")
		r := shell(t, "echo 1 > "+a+"; echo 2 >> "+a+"; exit 0", Mutating(), func(c *Call) Verdict {
			if c.Process == 0 && c.N == n {
				return Kill()
			}
			return Pass()
		})
		var status *exec.ExitError
		if !errors.As(r.err, &status) || status.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
			t.Fatalf("killed at call %d: %v", n, r.err)
		}
		content, err := os.ReadFile(a)
		if missing := errors.Is(err, os.ErrNotExist); missing != (n == 1) || string(content) != []string{"", "", "1\n"}[n-1] {
			t.Errorf("killed at call %d, and there is %q, %v", n, content, err)
		}
		if len(r.calls) != n {
			t.Errorf("killed at call %d, and it made %q", n, r.calls)
		}
	}
}

// TestKillAChild: its parent sees it, and goes on.
func TestKillAChild(t *testing.T) {
	dir := t.TempDir()
	r := shell(t, "mkdir "+dir+"/a; echo $?; ls "+dir, Mutating(), func(c *Call) Verdict {
		if c.Program == "mkdir" && strings.HasPrefix(c.Name, "mkdir") {
			return Kill()
		}
		return Pass()
	})
	if r.stdout != "137\n" || r.err != nil {
		t.Errorf("%q, %v", r.stdout, r.err)
	}
}

// TestOrphan: the end of the tree is that of its last process, not the program's.
func TestOrphan(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "late")
	cmd := exec.Command("/bin/sh", "-c", "exec 3<&0; (read line <&3; echo $line > "+file+") & exit 0")
	cmd.Stdin = r
	tree, err := Session{Calls: Mutating(), Decide: pass}.Run(cmd)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-tree.done:
		t.Fatal("ended before its last process")
	default:
	}
	_, err = w.WriteString("late\n")
	if err := errors.Join(err, w.Close(), tree.Wait(limit)); err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(file); string(content) != "late\n" {
		t.Errorf("%q, %v", content, err)
	}
}

func TestNetlinkIsTold(t *testing.T) {
	refused := 0
	cmd := exec.Command("ip", "link", "show", "lo")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	tree, err := Session{Calls: Netlink(), Decide: func(c *Call) Verdict {
		refused++
		if !strings.Contains(c.String(), "family 16, protocol 0") {
			t.Error(c)
		}
		return Refuse(unix.ENOBUFS)
	}}.Run(cmd)
	if err != nil {
		t.Fatal(err)
	}
	ended := cmd.Wait()
	if err := tree.Wait(limit); err != nil {
		t.Fatal(err)
	}
	if ended == nil || refused == 0 || !strings.Contains(stderr.String(), "No buffer space") {
		t.Errorf("%d requests refused, %v: %s", refused, ended, &stderr)
	}
}

func TestWhatCannotStart(t *testing.T) {
	cmd := exec.Command("/nonexistent")
	if cmd.Err != nil {
		t.Fatal(cmd.Err)
	}
	tree, err := Session{Calls: Mutating(), Decide: pass}.Run(cmd)
	if err != nil {
		t.Fatal(err)
	}
	var status *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &status) || status.ExitCode() != 127 {
		t.Errorf("%v", err)
	}
	if err := tree.Wait(limit); err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func BenchmarkLaunch(b *testing.B) {
	for b.Loop() {
		cmd := exec.Command("/bin/true")
		tree, err := Session{Calls: Mutating(), Decide: pass}.Run(cmd)
		if err == nil {
			err = errors.Join(cmd.Wait(), tree.Wait(limit))
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
