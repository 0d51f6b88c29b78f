package invoke

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	_ "github.com/plumb-cni/plumb/v2/test/nstest/sandbox"
	"golang.org/x/sys/unix"
)

// init locks the main goroutine to the process's first thread, so that no test runs on it. Other
// threads end with the goroutine that is locked to them, but the first thread would stay in its
// namespace.
func init() { runtime.LockOSThread() }

// TestMain runs the test binary as a plugin that calls a delegate, for
// TestDelegateIsKilledWithItsCaller.
func TestMain(m *testing.M) {
	if os.Getenv("INVOKE_TEST_CALLER") != "" {
		skel.Main(skel.Plugin{Name: "caller", IPAM: true, Add: func(r *skel.Request) (*types.Result, error) {
			_, err := Run(r, "ADD", "fake")
			return nil, err
		}})
	}
	os.Exit(m.Run())
}

const conf = `{"cniVersion":"1.1.0", "name":"net",  "unknown":["kept","verbatim"]}` + "\n"

// A testCaller is a plugin that calls the delegate "fake" with its own CNI_PATH, and the output of
// that plugin.
type testCaller struct {
	dir    string
	env    []string
	before func(string) error
	after  func(string) error
	stdout bytes.Buffer
	stderr bytes.Buffer
}

// newTestCaller puts a shell script into CNI_PATH as the delegate "fake".
func newTestCaller(t *testing.T, script string) *testCaller {
	t.Helper()
	b := &testCaller{dir: t.TempDir()}
	b.write(t, "fake", "#!/bin/sh\n"+script+"\n", 0o755)
	return b
}

func (b *testCaller) write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(b.dir+"/"+name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func (b *testCaller) read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(b.dir + "/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// add calls f with a request, as the ADD of a plugin.
func (b *testCaller) add(t *testing.T, f func(r *skel.Request)) {
	t.Helper()
	handler := func(r *skel.Request) (*types.Result, error) { f(r); return &types.Result{}, nil }
	code := skel.Run(skel.Plugin{Name: "caller", IPAM: true, Add: handler}, skel.Env{
		Environ: append(slices.Clone(b.env), // the first setting counts
			"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_NETNS=/nowhere", "CNI_IFNAME=eth0",
			"CNI_ARGS=IgnoreUnknown=1", "DIR="+b.dir, "CNI_PATH="+b.dir, "PATH=/bin:/usr/bin"),
		Stdin: strings.NewReader(conf), Stdout: &b.stdout, Stderr: &b.stderr,
		Before: b.before, After: b.after,
	})
	if code != 0 {
		t.Errorf("exit %d: %s", code, b.stdout.String()) // f has panicked
	}
}

// shortTiming returns durations with which the tests of failures end soon.
func shortTiming() timing {
	return timing{limit: time.Minute, retryPause: time.Millisecond}
}

func (t timing) run(r *skel.Request, verb string) ([]byte, error) {
	c, err := t.launch(r, verb, "fake")
	if err != nil {
		return nil, err
	}
	return c.Wait()
}

func TestFind(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	for _, file := range []string{second + "/a", first + "/b", second + "/b", second + "/dir"} {
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(first+"/dir", 0o755), os.Symlink(second+"/a", first+"/link"), os.Symlink("nowhere", first+"/a")); err != nil {
		t.Fatal(err)
	}
	path := first + "::" + second + ":"
	missing := "[" + first + " " + second + "]"
	for _, tc := range []struct{ why, name, path, want, err string }{
		{"in the second directory; a dangling link in the first directory", "a", path, second + "/a", ""},
		{"in both directories", "b", path, first + "/b", ""},
		{"a directory in the first directory, a file in the second one", "dir", path, second + "/dir", ""},
		{"a symbolic link", "link", path, first + "/link", ""},
		{"missing", "c", path, "", `failed to find plugin "c" in path ` + missing},
		{"no path", "c", "", "", `failed to find plugin "c" in path []`},
		{"no name", "", path, "", "no plugin name provided"},
		{"separator", "x/a", path, "", "invalid plugin name"},
		{"leaves the directory", "../b", path, "", "invalid plugin name"},
		{"the other separator", `x\a`, path, "", "invalid plugin name"},
		{"dot", ".", path, "", "invalid plugin name"},
		{"dots", "..", path, "", "invalid plugin name"},
		{"nul", "a\x00", path, "", "invalid plugin name"},
	} {
		got, err := Find(tc.name, tc.path)
		if tc.err == "" {
			if got != tc.want || err != nil {
				t.Errorf("%s: %q, %v, want %q", tc.why, got, err, tc.want)
			}
			continue
		}
		if err == nil || !strings.HasPrefix(err.Error(), tc.err) || types.AsError(err).Code != types.CodeConfig {
			t.Errorf("%s: %q, %v, want the error %q", tc.why, got, err, tc.err)
		}
		if missing := strings.HasPrefix(tc.err, "failed"); errors.Is(err, fs.ErrNotExist) != missing {
			t.Errorf("%s: %v is ErrNotExist: %t", tc.why, err, !missing)
		}
	}
}

func TestRelativeDirectoryIsNotLookedUpInPATH(t *testing.T) {
	b := newTestCaller(t, "echo here")
	t.Chdir(b.dir)
	b.env = []string{"CNI_PATH=."}
	b.add(t, func(r *skel.Request) {
		if out, err := Run(r, "ADD", "fake"); string(out) != "here\n" {
			t.Errorf("%q, %v", out, err)
		}
	})
}

func TestDelegateSeesTheCallOfItsCaller(t *testing.T) {
	// env(1) would show the environment as the shell has changed it.
	b := newTestCaller(t, `tr '\0' '\n' < /proc/$$/environ > $DIR/env; cat > $DIR/stdin; cat /proc/$$/timerslack_ns > $DIR/slack; echo "told <you>" >&2; echo answer`)
	b.env = []string{"CNI_COMMAND=ADD", skel.CalledForIPAM + "=another", "CNI_COMMAND=CHECK"}
	b.add(t, func(r *skel.Request) {
		out, err := Run(r, "DEL", "fake")
		if string(out) != "answer\n" || err != nil {
			t.Errorf("%q, %v", out, err)
		}
	})
	env := strings.Fields(b.read(t, "env"))
	for _, want := range []string{
		"CNI_COMMAND=DEL", "CNI_CONTAINERID=c1", "CNI_NETNS=/nowhere", "CNI_IFNAME=eth0", "CNI_ARGS=IgnoreUnknown=1", "CNI_PATH=" + b.dir,
		"GOMAXPROCS=1", skel.CalledForIPAM + "=caller",
	} {
		if n := strings.Count(" "+strings.Join(env, " ")+" ", " "+want+" "); n != 1 {
			t.Errorf("%s is %d times in the environment %v", want, n, env)
		}
	}
	if n := strings.Count(" "+strings.Join(env, " "), " CNI_COMMAND="); n != 1 {
		t.Errorf("CNI_COMMAND is %d times in the environment %v", n, env)
	}
	if got := b.read(t, "stdin"); got != conf {
		t.Errorf("stdin %q, want %q", got, conf)
	}
	if got := strings.TrimSpace(b.read(t, "slack")); got != strconv.Itoa(skel.TimerSlack) {
		t.Errorf("timer slack: want %d, got %s", skel.TimerSlack, got)
	}
	if !strings.Contains(b.stderr.String(), "told <you>\n") {
		t.Errorf("stderr %q", b.stderr.String())
	}
}

func TestDelegateStartsInTheNamespaceOfTheHost(t *testing.T) {
	b := newTestCaller(t, "readlink /proc/self/ns/net")
	host, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		b.add(t, func(r *skel.Request) {
			handle, err := ns.Open("/proc/self/ns/net", nil)
			if err != nil {
				t.Error(err)
				return
			}
			r.HostNS = handle // skel closes it
			if out, err := shortTiming().run(r, "ADD"); err != nil || strings.TrimSpace(string(out)) != host {
				t.Errorf("want %s, got %q, %v", host, out, err)
			}
		})
	}()
	<-done
}

// TestDelegateDoesNothingBeforeSendConfig also checks that a configuration arrives that is larger
// than a pipe.
func TestDelegateDoesNothingBeforeSendConfig(t *testing.T) {
	b := newTestCaller(t, `[ -n "$(head -c 1)" ] || exit 1; echo "told $(($(wc -c) + 1))"; echo >> $DIR/done`)
	b.add(t, func(r *skel.Request) {
		r.Stdin = bytes.Repeat([]byte("x"), 1<<20)
		c, err := Launch(r, "ADD", "fake")
		if err != nil {
			t.Error(err)
			return
		}
		c.Kill()
		if _, err := os.Stat(b.dir + "/done"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the delegate ran, though it was killed before SendConfig: %v", err)
		}
		if out, err := Run(r, "ADD", "fake"); string(out) != "told 1048576\n" || err != nil {
			t.Errorf("%q, %v", out, err)
		}
	})
}

// TestReadAnswerReturnsBeforeTheDelegateEnds checks that ReadAnswer returns as soon as the output
// is a JSON document.
func TestReadAnswerReturnsBeforeTheDelegateEnds(t *testing.T) {
	b := newTestCaller(t, `printf '{"a":'; sleep 0.05; echo '1}'; while [ ! -e $DIR/taken ]; do sleep 0.01; done; echo more`)
	b.add(t, func(r *skel.Request) {
		c, err := Start(r, "ADD", "fake")
		if err != nil {
			t.Error(err)
			return
		}
		out, err := c.ReadAnswer()
		if string(out) != `{"a":1}`+"\n" || err != nil {
			t.Errorf("%q, %v", out, err)
		}
		b.write(t, "taken", "", 0o600)
		if out, err := c.Wait(); string(out) != `{"a":1}`+"\nmore\n" || err != nil {
			t.Errorf("%q, %v", out, err)
		}
	})
}

// TestStatesOfACall checks that Kill ends only a delegate without a configuration, and that each
// Wait returns the same values.
func TestStatesOfACall(t *testing.T) {
	b := newTestCaller(t, `echo >> $DIR/runs; echo '{"code":11,"msg":"full"}'; exit 1`)
	b.add(t, func(r *skel.Request) {
		c, err := Launch(r, "ADD", "fake")
		if err != nil || c.State() != Launched {
			t.Fatalf("Launch: %v", err)
		}
		c.SendConfig()
		if c.Kill(); c.State() != Running {
			t.Errorf("state %d after Kill of a delegate that has its configuration", c.State())
		}
		for range 2 {
			if out, err := c.Wait(); out != nil || types.AsError(err).Msg != "full" || c.State() != Ended {
				t.Errorf("Wait: %q, %v, state %d", out, err, c.State())
			}
		}
	})
	if runs := b.read(t, "runs"); runs != "\n" {
		t.Errorf("the delegate ran %d times", len(runs))
	}
}

// TestDelegateThatReadsNothing checks that EPIPE on the delegate's stdin is not an error. The
// configuration is larger than a pipe.
func TestDelegateThatReadsNothing(t *testing.T) {
	b := newTestCaller(t, "echo answer")
	b.add(t, func(r *skel.Request) {
		r.Stdin = bytes.Repeat([]byte(" "), 1<<20)
		if out, err := Run(r, "ADD", "fake"); string(out) != "answer\n" || err != nil {
			t.Errorf("%q, %v", out, err)
		}
	})
}

func TestFailures(t *testing.T) {
	for _, tc := range []struct {
		why, script  string
		code         uint
		msg, details string
	}{
		{"a code of the specification", `echo '{"cniVersion":"1.1.0","code":11,"msg":"no address","details":"pool <a>"}'; exit 1`, 11, "no address", "pool <a>"},
		{"a code that only the plugin knows", `echo '{"code":123,"msg":"m"}'; exit 7`, 123, "m", ""},
		{"no code", `echo '{"msg":"m"}'; exit 1`, 999, "m", ""},
		{"code 0", `echo '{"code":0,"msg":"m"}'; exit 1`, 999, "m", ""},
		{"no output", `exit 3`, 999, "it failed without an error result: exit status 3", ""},
		{"stderr only", `echo 'it hurts' >&2; exit 3`, 999, "it failed without an error result: exit status 3", "its stderr ends with: it hurts"},
		{"no JSON", `echo panic; echo why >&2; exit 2`, 999, "it failed without an error result: exit status 2", `it printed "panic"; its stderr ends with: why`},
		{"JSON, but no error", `echo '{}'; exit 1`, 999, "it failed without an error result: exit status 1", `it printed "{}"`},
		{"null", `echo null; exit 1`, 999, "it failed without an error result: exit status 1", `it printed "null"`},
		{"an invalid code", `echo '{"code":-1,"msg":"m"}'; exit 1`, 999, "it failed without an error result: exit status 1", `it printed "{\"code\":-1,\"msg\":\"m\"}"`},
		{"problems of another type", `echo '{"code":7,"msg":"m","problems":"p"}'; exit 1`, 7, "m", ""},
		{"a signal", `kill -9 $$`, 999, "it was killed (SIGKILL) before it answered", ""},
		{"another signal", `echo '{'; kill -SEGV $$`, 999, "it was killed (SIGSEGV) before it exited", `it printed "{"`},
		{"output without end", `exec cat /dev/zero`, 6, "it printed more than 8 MiB, and was killed", ""},
		{"messages without end", `exec cat /dev/zero >&2`, 6, "it printed more than 8 MiB, and was killed", ""},
	} {
		b := newTestCaller(t, tc.script)
		b.add(t, func(r *skel.Request) {
			out, err := Run(r, "ADD", "fake")
			if err == nil {
				t.Errorf("%s: no error, out %q", tc.why, out)
				return
			}
			got := types.AsError(err)
			if got.Code != tc.code || got.Msg != tc.msg || got.Details != tc.details {
				t.Errorf("%s: %d, %q, %q", tc.why, got.Code, got.Msg, got.Details)
			}
		})
	}
}

func TestShownOutputIsLimited(t *testing.T) {
	for _, tc := range []struct {
		redirection string
		limit       int
		text, end   string
	}{
		{"", 2 * maxShownStdout, `it printed "line 0 ääääääää\nline 1`, ""},
		{">&2", maxShownStderr + 100, "", "line 299 ääääääää"},
	} {
		b := newTestCaller(t, `i=0; while [ $i -lt 300 ]; do echo "line $i ääääääää" `+tc.redirection+`; i=$((i+1)); done; exit 1`)
		b.add(t, func(r *skel.Request) {
			_, err := Run(r, "ADD", "fake")
			if msg := err.Error(); len(msg) > tc.limit || !strings.Contains(msg, tc.text) || !strings.HasSuffix(msg, tc.end) {
				t.Errorf("%d bytes: %q", len(msg), msg)
			}
		})
		if tc.end != "" && !strings.Contains(b.stderr.String(), "line 0 ") {
			t.Error("the beginning was not passed through")
		}
	}
}

func TestFileThatCannotBeStarted(t *testing.T) {
	for why, tc := range map[string]struct {
		text string
		mode os.FileMode
		want error
	}{
		"not executable":      {"#!/bin/sh\n", 0o644, syscall.EACCES},
		"another machine's":   {"\x7fELF nonsense", 0o755, syscall.ENOEXEC},
		"interpreter missing": {"#!/nowhere/sh\n", 0o755, syscall.ENOENT},
	} {
		b := newTestCaller(t, "")
		if err := os.Remove(b.dir + "/fake"); err != nil {
			t.Fatal(err)
		}
		b.write(t, "fake", tc.text, tc.mode)
		b.add(t, func(r *skel.Request) {
			if c, err := Start(r, "ADD", "fake"); c != nil || !errors.Is(err, tc.want) {
				t.Errorf("%s: %v", why, err)
			}
		})
	}
}

func TestDeadlineKills(t *testing.T) {
	b := newTestCaller(t, `echo $$ > $DIR/pid; exec sleep 60`)
	short := shortTiming()
	short.limit = 2 * time.Second
	b.add(t, func(r *skel.Request) {
		_, err := short.run(r, "ADD")
		if !errors.Is(err, os.ErrDeadlineExceeded) || types.AsError(err).Code != types.CodeTryAgain {
			t.Errorf("%v", err)
		}
	})
	pid, err := strconv.Atoi(strings.TrimSpace(b.read(t, "pid")))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the delegate is still there: %v", err)
	}
}

// TestDelegateIsKilledWithItsCaller checks that no delegate survives to reserve an address after
// the next DEL.
func TestDelegateIsKilledWithItsCaller(t *testing.T) {
	b := newTestCaller(t, `echo $$ > $DIR/started; exec sleep 1000`)
	if err := syscall.Mkfifo(b.dir+"/started", 0o600); err != nil {
		t.Fatal(err)
	}
	caller := exec.Command("/proc/self/exe")
	caller.Env = []string{
		"INVOKE_TEST_CALLER=1", "CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_NETNS=/nowhere", "CNI_IFNAME=eth0",
		"DIR=" + b.dir, "CNI_PATH=" + b.dir, "PATH=/bin:/usr/bin",
	}
	caller.Stdin = strings.NewReader(conf)
	if err := caller.Start(); err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(b.read(t, "started")))
	if err != nil {
		t.Fatal(err)
	}
	delegate, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(delegate) }()
	_ = caller.Process.Kill()
	_ = caller.Wait()
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(delegate), Events: unix.POLLIN}}, 30_000); n != 1 {
		t.Errorf("the delegate still runs: %v", err)
		_ = unix.PidfdSendSignal(delegate, unix.SIGKILL, nil, 0)
	}
}

// TestChildOfDelegateKeepsStdoutOpen checks that Wait returns when the delegate has ended, even if
// a process that the delegate started keeps the delegate's stdout open.
func TestChildOfDelegateKeepsStdoutOpen(t *testing.T) {
	b := newTestCaller(t, `echo answer; sleep 20 & echo $! > $DIR/pid`)
	b.add(t, func(r *skel.Request) {
		if out, err := shortTiming().run(r, "ADD"); string(out) != "answer\n" || err != nil {
			t.Errorf("%q, %v", out, err)
		}
	})
	pid, err := strconv.Atoi(strings.TrimSpace(b.read(t, "pid")))
	if err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || strings.Contains(string(stat), ") Z ") {
		t.Errorf("Wait returned after the child of the delegate had ended: %s, %v", stat, err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

// openForWriting opens the delegate for writing, as an update in place does. Linux 6.11 and
// 6.12 execute such a file.
func (b *testCaller) openForWriting(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile(b.dir+"/fake", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	p, err := os.StartProcess(b.dir+"/fake", []string{"fake"}, &os.ProcAttr{})
	if err == nil {
		_, _ = p.Wait()
		t.Skip("this kernel executes a file that is open for writing")
	}
	return f
}

func TestBusyFileIsRetried(t *testing.T) {
	b := newTestCaller(t, "echo answer")
	f := b.openForWriting(t)
	short := shortTiming()
	short.retryPause = 10 * time.Millisecond
	b.add(t, func(r *skel.Request) {
		released := make(chan error)
		time.AfterFunc(short.retryPause, func() { released <- f.Close() })
		if out, err := short.run(r, "ADD"); string(out) != "answer\n" || err != nil {
			t.Errorf("%q, %v", out, err)
		}
		if err := <-released; err != nil {
			t.Error(err)
		}
	})
}

func TestBusyFileFailsInTheEnd(t *testing.T) {
	b := newTestCaller(t, "echo answer")
	b.openForWriting(t)
	b.add(t, func(r *skel.Request) {
		out, err := shortTiming().run(r, "ADD")
		if !errors.Is(err, syscall.ETXTBSY) || types.AsError(err).Code != types.CodeTryAgain || out != nil {
			t.Errorf("%q, %v", out, err)
		}
	})
}
