// Package invoke runs delegates: plugins that a plugin calls for a part of its work
// (SPEC 1.1.0, section 4). A delegate is an executable in CNI_PATH, always, and sees
// the call as its caller did: the same configuration, the same environment.
//
// A delegate outlives a caller that is killed. PR_SET_PDEATHSIG would end it, but in
// the midst of its work, and the signal is tied to the thread that forked, which the
// Go runtime may end at any time. What the delegate finishes belongs to the
// attachment, so the DEL that must follow frees it.
package invoke

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// A Call is a delegate at work.
type Call struct {
	cmd    *exec.Cmd
	ctx    context.Context
	cancel context.CancelFunc
	stdout bytes.Buffer
	stderr tail
	end    func(error) error
}

// A runner holds what tests shorten.
type runner struct {
	limit  time.Duration // after which a delegate is killed
	pause  time.Duration // before the second try to start a busy file; grows with each
	linger time.Duration // how long heirs of the delegate may keep its stdout open
}

func standard() runner {
	return runner{
		// The reference's dhcp plugin waits for its daemon, which asks for 208 s.
		limit:  4 * time.Minute,
		pause:  15 * time.Millisecond,
		linger: 2 * time.Second,
	}
}

// Start runs a verb of a plugin beside the caller, who must Wait.
func Start(r *skel.Request, verb, plugin string) (*Call, error) {
	return standard().start(r, verb, plugin)
}

func (u runner) start(r *skel.Request, verb, plugin string) (*Call, error) {
	file, err := Find(plugin, r.Path)
	if err != nil {
		return nil, err
	}
	end, err := r.Trace.Start("run " + plugin + " " + verb)
	if err != nil {
		return nil, err
	}
	c := &Call{stderr: tail{to: r.Stderr()}, end: end}
	c.ctx, c.cancel = context.WithTimeout(context.Background(), u.limit)
	if err := u.exec(c, r, verb, file); err != nil {
		c.cancel()
		return nil, end(err)
	}
	return c, nil
}

// tries is how often a file that somebody is still writing (an update of the
// plugins in place) is tried: about a second in all.
const tries = 12

// exec starts the process. There is no event for "no longer open for writing", so
// this is a wait by sleeping.
func (u runner) exec(c *Call, r *skel.Request, verb, file string) error {
	env := append(slices.Clone(r.Environ()), "CNI_COMMAND="+verb) // the last one counts
	for try := 1; ; try++ {
		cmd := exec.CommandContext(c.ctx, file)
		cmd.Env, cmd.WaitDelay = env, u.linger
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(r.Stdin), &c.stdout, &c.stderr
		err := cmd.Start()
		switch {
		case err == nil:
			c.cmd = cmd
			return nil
		case !errors.Is(err, syscall.ETXTBSY):
			return fmt.Errorf("start: %w", err)
		case try == tries:
			return types.Errorf(types.CodeTryAgain, "start: %w: the file is open for writing", err)
		}
		time.Sleep(time.Duration(try) * u.pause)
	}
}

// Wait gives what the delegate printed. The error of a delegate that failed is a
// *types.Error with the code, msg and details of its answer. Wait is called once.
func (c *Call) Wait() ([]byte, error) {
	err := c.cmd.Wait()
	late := c.ctx.Err()
	c.cancel()
	if err = c.end(c.verdict(err, late)); err != nil {
		return nil, err
	}
	return c.stdout.Bytes(), nil
}

// verdict makes the error of the way the process ended.
func (c *Call) verdict(err, late error) error {
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay) && late == nil: // a process it left behind holds its stdout
		return nil
	case late != nil:
		return types.Errorf(types.CodeTryAgain, "no answer in time, killed: %w", late)
	}
	var answer struct {
		Code    uint   `json:"code"`
		Msg     string `json:"msg"`
		Details string `json:"details"`
	}
	if json.Unmarshal(c.stdout.Bytes(), &answer) == nil && answer.Msg != "" {
		if answer.Code == 0 {
			answer.Code = types.CodeInternal
		}
		return &types.Error{Code: answer.Code, Msg: answer.Msg, Details: answer.Details}
	}
	if said := c.stderr.String(); said != "" {
		return types.Errorf(types.CodeInternal, "%w without an error result; its last words: %s", err, said)
	}
	return types.Errorf(types.CodeInternal, "%w without an error result", err)
}

// Run is Start and Wait.
func Run(r *skel.Request, verb, plugin string) ([]byte, error) {
	c, err := Start(r, verb, plugin)
	if err != nil {
		return nil, err
	}
	return c.Wait()
}

// A tail passes on what a delegate writes to stderr and remembers the end of it. A
// stderr that cannot be written is no reason to fail the delegate.
type tail struct {
	to   io.Writer
	last []byte
}

const tailSize = 1024

func (t *tail) Write(b []byte) (int, error) {
	_, _ = t.to.Write(b)
	t.last = append(t.last, b...)
	t.last = t.last[max(0, len(t.last)-tailSize):]
	return len(b), nil
}

func (t *tail) String() string {
	return strings.TrimSpace(strings.ToValidUTF8(string(t.last), ""))
}
