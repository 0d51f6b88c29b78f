package lab

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/faults/inject"
)

// A Call is one execution of a plugin, and the plugin's answer.
type Call struct {
	Plugin  string   `json:"plugin"`
	Env     []string `json:"environment"`
	Stdin   string   `json:"stdin"`
	Exit    int      `json:"exitStatus"`
	Stdout  string   `json:"stdout"`
	Stderr  string   `json:"stderr,omitempty"`
	Problem string   `json:"problem,omitempty"` // why the answer is not an answer, for example because the plugin hung
}

// Set sets an environment variable. With the value Unset, it removes the variable.
func (c *Call) Set(name, value string) {
	c.Env = slices.DeleteFunc(slices.Clone(c.Env), func(v string) bool { return strings.HasPrefix(v, name+"=") })
	if value != Unset {
		c.Env = append(c.Env, name+"="+value)
	}
}

// Unset is the value of a variable that a call does not contain.
const Unset = "\x00"

// Get returns the value of an environment variable.
func (c *Call) Get(name string) string {
	for _, v := range c.Env {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// OK reports whether the plugin succeeded.
func (c *Call) OK() bool { return c.Exit == 0 && c.Problem == "" }

// Err returns nil if the plugin succeeded. Otherwise, the error contains the plugin's answer.
func (c *Call) Err() error {
	if c.OK() {
		return nil
	}
	why := c.Problem
	if why == "" {
		why = fmt.Sprintf("exit status %d, %s", c.Exit, strings.Join(strings.Fields(c.Stdout), " "))
	}
	return fmt.Errorf("%s of %s: %s", c.Get("CNI_COMMAND"), filepath.Base(c.Plugin), why)
}

// Shell returns the call as a command for sh.
func (c *Call) Shell() string {
	var b strings.Builder
	for _, v := range c.Env {
		name, value, _ := strings.Cut(v, "=")
		fmt.Fprintf(&b, "%s=%s ", name, types.Command(value))
	}
	fmt.Fprintf(&b, "%s <<'EOF'\n%s\nEOF", types.Command(c.Plugin), c.Stdin)
	return b.String()
}

// A Failure is the error result of a plugin.
type Failure struct {
	CNIVersion *string `json:"cniVersion"`
	Code       *int    `json:"code"`
	Msg        string  `json:"msg"`
	Details    string  `json:"details"`
}

// Failure parses the error result. It ignores what follows the object.
func (c *Call) Failure() (*Failure, error) {
	var f Failure
	if err := json.NewDecoder(strings.NewReader(c.Stdout)).Decode(&f); err != nil {
		return nil, fmt.Errorf("want one JSON object on stdout, got %.200q: %w", c.Stdout, err)
	}
	if f.Code == nil || f.Msg == "" {
		return nil, fmt.Errorf("want the keys code and msg, got %.200q", c.Stdout)
	}
	return &f, nil
}

// command returns the command for the call, in a process group of its own.
func (c *Call) command() *exec.Cmd {
	return &exec.Cmd{
		Path: c.Plugin, Args: []string{c.Plugin}, Dir: "/",
		Env:         append([]string{"PATH=" + os.Getenv("PATH")}, c.Env...),
		Stdin:       strings.NewReader(c.Stdin),
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
}

// Run runs the call on the host and records it. If the plugin and its children do not end within the limit, Run kills
// them.
func (b *Bed) Run(c Call) *Call {
	cmd := c.command()
	var stdout, stderr output
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &stdout, &stderr, b.Timeout
	err := b.Host.Do(cmd.Start)
	if err == nil {
		kill := time.AfterFunc(b.Timeout, func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
		err = cmd.Wait()
		if !kill.Stop() {
			c.Problem = fmt.Sprintf("it did not end within %s", b.Timeout)
		}
	}
	c.Stdout, c.Stderr = stdout.String(), stderr.String()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		c.Exit = exit.ExitCode()
	} else if err != nil && c.Problem == "" {
		c.Problem = err.Error()
	}
	if c.Exit < 0 && c.Problem == "" {
		c.Problem = err.Error() // a signal
	}
	if stdout.cut {
		c.Problem = fmt.Sprintf("it printed more than %d bytes on stdout", maxOutput)
	}
	b.record(&c)
	return &c
}

// maxOutput limits what is read from a plugin.
const maxOutput = 1 << 20

// An output keeps the first maxOutput bytes that a plugin prints.
type output struct {
	bytes.Buffer
	cut bool
}

func (o *output) Write(p []byte) (int, error) {
	n := min(len(p), maxOutput-o.Len())
	o.cut = o.cut || n < len(p)
	_, _ = o.Buffer.Write(p[:n])
	return len(p), nil
}

// ErrNoInjection is the error of a kernel that does not allow RunKilled.
var ErrNoInjection = errors.New("this kernel does not stop system calls (seccomp_unotify(2), Linux 5.19)")

// RunKilled runs the call, and kills the plugin before its nth system call that changes something outside of the process.
// It returns a description of that system call, which is empty if the plugin ended before, and how many such calls
// there were. Children of the plugin, for example its delegate, run to their end.
func (b *Bed) RunKilled(c Call, n int) (at string, total int, err error) {
	session := inject.Session{
		Calls: inject.Mutating(),
		Decide: func(call *inject.Call) inject.Verdict {
			if call.Process == 0 {
				total = call.N
			}
			if call.Process != 0 || call.N != n {
				return inject.Pass()
			}
			at = call.String()
			return inject.Kill()
		},
		Start: func(cmd *exec.Cmd) error { return b.Host.Do(cmd.Start) },
	}
	cmd := c.command()
	var stdout, stderr output
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &stdout, &stderr, b.Timeout
	tree, err := session.Run(cmd)
	if err != nil {
		return "", 0, fmt.Errorf("%w: %w", ErrNoInjection, err)
	}
	kill := time.AfterFunc(b.Timeout, func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
	defer kill.Stop()
	_ = cmd.Wait() // the error says only that it was killed
	err = tree.Wait(2 * b.Timeout)
	c.Exit, c.Stdout, c.Stderr = cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
	if at != "" {
		c.Problem = "killed at " + at
	}
	b.record(&c)
	return at, total, err
}
