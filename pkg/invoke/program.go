package invoke

import (
	"cmp"
	"errors"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
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
	c := newCall(r, input, limit, endStep)
	env := environ(r, func(name string) bool {
		return name == "CNI_PATH" || !strings.HasPrefix(name, "CNI_") && name != skel.CalledForIPAM
	})
	if err := defaultTiming().startProcess(c, file, env); err != nil {
		c.end(err)
		return nil, notStarted(c.err)
	}
	c.SendConfig()
	err = c.waitForEnd()
	c.end(cmp.Or(c.stopError(err), err))
	return c.stdout.data, c.err
}

// notStarted returns err as an error that matches ErrNotStarted, with the same text and code.
func notStarted(err error) error { return notStartedError{err} }

type notStartedError struct{ error }

func (e notStartedError) Is(target error) bool { return target == ErrNotStarted }
func (e notStartedError) Unwrap() error        { return e.error }
