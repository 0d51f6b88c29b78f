package iptables

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A Program is an executable with its arguments and input. Limit must be positive.
type Program struct {
	Path  string
	Args  []string
	Stdin string
	Limit time.Duration // the time after which Run kills the program
}

// An ExitError is the error of a program that ended with an exit status other than 0, or by a signal.
type ExitError = exec.ExitError

// Run runs the program in the namespace and returns its stdout. The parameter step describes the run
// in errors and in the trace.
//
// If the program failed, the error matches an *ExitError and contains the program's stderr in one line.
// If Run killed the program after Limit, the error has types.CodeTryAgain, and does not contain stderr.
//
// A new process is in the namespace of the thread that forks it. If the plugin is killed, the kernel
// kills the program as well (PR_SET_PDEATHSIG). Otherwise the program could apply its changes after the
// next DEL, and the changes would remain. Because the kernel also kills the program when the thread that
// forked it ends, Run locks the goroutine to its thread.
func (p Program) Run(host *ns.Handle, step string) (stdout string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), p.Limit)
	defer cancel()
	var out, errOut strings.Builder
	err = host.Step(step, func() error {
		return host.Do(func() error {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			cmd := exec.CommandContext(ctx, p.Path, p.Args...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			cmd.WaitDelay = runLimit // limits how long Run reads the output after the program has ended
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(p.Stdin), &out, &errOut
			return cmd.Run()
		})
	})
	text := strings.Join(strings.Fields(errOut.String()), " ")
	switch {
	case err == nil:
		return out.String(), nil
	case ctx.Err() != nil:
		return "", types.Errorf(types.CodeTryAgain, "%s: the program still ran after %s and was killed: %w", step, p.Limit, err)
	case text != "":
		err = fmt.Errorf("%w: %s", err, text)
	}
	return "", fmt.Errorf("%s: %w", step, err)
}

// FindProgram returns the path of a program such as nft or iptables-save. Besides PATH, it searches the
// directories where distributions install these programs, because a runtime may call plugins with any
// PATH.
func FindProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"} {
		candidate := filepath.Join(dir, name)
		if info, err := os.Stat(candidate); err == nil && info.Mode()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", err
}
