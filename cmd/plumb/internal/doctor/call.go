package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"
)

// A caller runs plugins for libcni, without their warnings. It kills a plugin that has not answered after the limit,
// and all processes that the plugin has started in its process group. invoke.RawExec would wait for a child that holds
// the pipes of the plugin.
type caller struct {
	version.PluginDecoder
	limit time.Duration // of one call
}

// errNoAnswer is the error of a plugin that was killed because it had not answered after the limit.
var errNoAnswer = errors.New("no answer")

// pipeTime is how long a caller waits for the output of a plugin that has ended: a child may hold its pipes.
const pipeTime = time.Second

// FindInPath returns the path of a plugin.
func (c *caller) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// ExecPlugin runs a plugin, and returns what it prints to stdout. If the plugin fails, the error is the one that it
// prints, if it prints one.
func (c *caller) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	var out, warnings bytes.Buffer
	cmd := c.command(ctx, path, environ)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &warnings
	err := cmd.Run()
	failure := new(cnitypes.Error)
	switch {
	case err == nil:
		return out.Bytes(), nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, fmt.Errorf("%w in %s", errNoAnswer, c.limit)
	case json.Unmarshal(out.Bytes(), failure) == nil && failure.Code != 0:
		return nil, failure
	}
	if text := strings.TrimSpace(warnings.String() + " " + out.String()); text != "" {
		err = fmt.Errorf("%w: %.200s", err, text)
	}
	return nil, err
}

// command returns the command for a plugin. It ends with the context, and with it all processes of its group.
func (c *caller) command(ctx context.Context, path string, environ []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path)
	cmd.Env, cmd.WaitDelay = environ, pipeTime
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	return cmd
}
