package lab

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// daemons are the processes that a command has started to prepare a host. They are in a PID namespace, and end with its first
// process, a shell.
type daemons struct {
	shell *exec.Cmd
	stdin io.Closer // ends the shell, also when this process is killed
}

// setUp runs a command for sh on the host, and waits until it has ended. What it started in the background runs on.
func (b *Bed) setUp(command string) (*daemons, error) {
	shell := exec.Command("sh", "-c", `eval "$1" </dev/null >&2 || exit; echo; read -r _`, "sh", command)
	shell.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	var stderr output
	shell.Stderr = &stderr
	stdin, err := shell.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := shell.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := b.Host.Do(shell.Start); err != nil {
		return nil, fmt.Errorf("run the setup command: %w", err)
	}
	d := &daemons{shell, stdin}
	limit := time.AfterFunc(b.Timeout, func() { _ = shell.Process.Kill() })
	_, err = bufio.NewReader(stdout).ReadString('\n')
	inTime := limit.Stop()
	if err == nil {
		return d, nil
	}
	d.end()
	why := shell.ProcessState.String()
	if !inTime {
		why = fmt.Sprintf("it did not end within %s", b.Timeout)
	}
	return nil, fmt.Errorf("setup command: %s: %.1000s", why, stderr.String())
}

// end ends all processes. It waits until they have ended.
func (d *daemons) end() {
	if d == nil {
		return
	}
	_ = d.shell.Process.Kill()
	_ = d.stdin.Close()
	_ = d.shell.Wait()
}
