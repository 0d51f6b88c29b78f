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

	_ "github.com/plumb-cni/plumb/v2/test/nstest/sandbox" // a filter needs root of a user namespace
)

func TestMain(m *testing.M) {
	Launch()
	os.Exit(m.Run())
}

// timeout is the time limit for a program. It is long, because the machine may be busy.
const timeout = time.Minute

// A shellRun is the outcome of a shell script that ran in a Session.
type shellRun struct {
	stdout string
	err    error    // the error of the shell
	calls  []string // the calls that stopped
}

func shell(t *testing.T, script string, calls []Syscall, decide func(*Call) Verdict) shellRun {
	t.Helper()
	var out shellRun
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
	if err := tree.Wait(timeout); err != nil {
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
		t.Errorf("want 2, 1 and the exit status 3, got %q, %v", r.stdout, r.err)
	}
	cat, err := filepath.EvalSymlinks("/bin/cat")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Base(cat)
	own := slices.DeleteFunc(slices.Clone(r.calls), func(c string) bool { return !strings.HasPrefix(c, "0 ") })
	if want := []string{"0 sh 1 openat", "0 sh 2 write", "0 sh 3 write"}; !slices.Equal(own[:3], want) || len(own) > 4 {
		t.Errorf("want the shell's calls %q and a fork, got %q", want, own)
	}
	if !slices.ContainsFunc(r.calls, func(c string) bool { return strings.HasPrefix(c, "1 "+program+" ") && strings.HasSuffix(c, " write") }) {
		t.Errorf("want a write of %s, got %q", program, r.calls)
	}
}

func TestRefuse(t *testing.T) {
	dir := t.TempDir()
	r := shell(t, "mkdir "+dir+"/a 2>&1; mkdir "+dir+"/b; ls "+dir, FileChanges(), func(c *Call) Verdict {
		if strings.HasPrefix(c.Name, "mkdir") && strings.HasSuffix(c.String(), "/a") {
			return Refuse(unix.ENOSPC)
		}
		return Pass()
	})
	if !strings.Contains(r.stdout, "No space left on device") || !strings.HasSuffix(r.stdout, "\nb\n") {
		t.Errorf("want ENOSPC for a, and only b, got %q", r.stdout)
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
			t.Fatalf("want SIGKILL at call %d, got %v", n, r.err)
		}
		content, err := os.ReadFile(a)
		if missing := errors.Is(err, os.ErrNotExist); missing != (n == 1) || string(content) != []string{"", "", "1\n"}[n-1] {
			t.Errorf("killed at call %d: unexpected content %q, %v", n, content, err)
		}
		if len(r.calls) != n {
			t.Errorf("killed at call %d: want %[1]d calls, got %[2]q", n, r.calls)
		}
	}
}

// TestKillAChild checks that the parent of a killed process continues.
func TestKillAChild(t *testing.T) {
	dir := t.TempDir()
	r := shell(t, "mkdir "+dir+"/a; echo $?; ls "+dir, Mutating(), func(c *Call) Verdict {
		if c.Program == "mkdir" && strings.HasPrefix(c.Name, "mkdir") {
			return Kill()
		}
		return Pass()
	})
	if r.stdout != "137\n" || r.err != nil {
		t.Errorf("want 137, got %q, %v", r.stdout, r.err)
	}
}

// TestOrphan checks that Wait waits for the last process of the ProcessTree, and not only for the
// program.
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
		t.Fatal("the tree ended before its last process")
	default:
	}
	_, err = w.WriteString("late\n")
	if err := errors.Join(err, w.Close(), tree.Wait(timeout)); err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(file); string(content) != "late\n" {
		t.Errorf("want late, got %q, %v", content, err)
	}
}

func TestNetlinkRequests(t *testing.T) {
	refused := 0
	cmd := exec.Command("ip", "link", "show", "lo")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	tree, err := Session{Calls: NetlinkRequests(), Decide: func(c *Call) Verdict {
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
	if err := tree.Wait(timeout); err != nil {
		t.Fatal(err)
	}
	if ended == nil || refused == 0 || !strings.Contains(stderr.String(), "No buffer space") {
		t.Errorf("want refused requests and ENOBUFS, got %d refused, %v: %s", refused, ended, &stderr)
	}
}

func TestProgramDoesNotExist(t *testing.T) {
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
		t.Errorf("want the exit status 127, got %v", err)
	}
	if err := tree.Wait(timeout); err != nil {
		t.Fatal(err)
	}
}
