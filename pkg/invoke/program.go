package invoke

import (
	"errors"
	"os"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// ErrNotStarted matches the errors of RunProgram if the program has not run.
var ErrNotStarted = errors.New("not started")

// RunProgram runs an executable in CNI_PATH that is not a plugin. The program reads input from its
// stdin, and its environment contains no CNI variable except CNI_PATH. RunProgram kills it after the
// limit. It returns the program's stdout even if the program failed, was killed, or printed too much. If
// the program has not run, the error matches ErrNotStarted. If CNI_PATH contains no such executable, the
// error also matches fs.ErrNotExist and has types.CodeConfig.
func RunProgram(r *skel.Request, name string, input []byte, limit time.Duration) ([]byte, error) {
	file, err := Find(name, r.Path)
	if err != nil {
		return nil, notStarted(err)
	}
	endStep, err := r.Trace.Start("run " + name)
	if err != nil {
		return nil, notStarted(err)
	}
	c := &Call{config: input, pidfd: -1, stdin: -1, stdout: stream{fd: -1}, stderr: stream{fd: -1}, stderrTo: r.Stderr(), endStep: endStep}
	if err := defaultTiming().startProcess(c, file, programEnviron(r)); err != nil {
		c.end(err)
		return nil, notStarted(c.err)
	}
	c.deadline = time.Now().Add(limit)
	c.SendConfig()
	c.end(c.programError(limit, c.waitForEnd()))
	return c.stdout.data, c.err
}

// notStarted returns err as an error that matches ErrNotStarted, with the same text and code.
func notStarted(err error) error { return unstarted{err} }

type unstarted struct{ error }

func (e unstarted) Is(target error) bool { return target == ErrNotStarted }
func (e unstarted) Unwrap() error        { return e.error }

// programEnviron returns the caller's environment without the CNI variables except CNI_PATH, and with
// GOMAXPROCS=1 (see environ).
func programEnviron(r *skel.Request) []string {
	env := []string{"GOMAXPROCS=1"}
	for _, v := range r.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch {
		case name == "GOMAXPROCS":
			env[0] = v
		case name == "CNI_PATH" || !strings.HasPrefix(name, "CNI_") && name != skel.CalledForIPAM:
			env = append(env, v)
		}
	}
	return env
}

// programError returns the error of RunProgram. err says how the process ended.
func (c *Call) programError(limit time.Duration, err error) error {
	switch {
	case err == nil:
		return nil
	case c.timedOut:
		return types.Errorf(types.CodeTryAgain, "no answer within %v, %w: %w", limit, ErrKilled, os.ErrDeadlineExceeded)
	case errors.Is(err, errTooMuch):
		return types.Errorf(types.CodeDecode, "%w, and was %w", errTooMuch, ErrKilled)
	}
	return err
}
