// Package plugins finds the executables of plugins, and calls them as a runtime does.
package plugins

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"
	cniinvoke "github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/inventory"
	"github.com/plumb-cni/plumb/pkg/invoke"
)

// A Caller calls plugins for libcni, one at a time. It kills a plugin that has not answered after Timeout,
// and all processes that the plugin has started in its process group. invoke.RawExec of libcni would wait for a child that
// holds the pipes of the plugin.
type Caller struct {
	version.PluginDecoder
	Path    []string // CNI_PATH
	Timeout time.Duration
	found   map[string]*Executable
	stderr  []byte // of the last plugin
}

// NewCaller returns a Caller.
func NewCaller(path []string, timeout time.Duration) *Caller {
	return &Caller{Path: path, Timeout: timeout, found: map[string]*Executable{}}
}

// ErrNoAnswer is the error of a plugin that was killed because it had not answered after Timeout.
var ErrNoAnswer = errors.New("no answer")

// pipeTime is how long a Caller waits for the output of a plugin that has ended: a child may hold its pipes.
const pipeTime = time.Second

// FindInPath returns the path of a plugin.
func (c *Caller) FindInPath(plugin string, paths []string) (string, error) {
	return cniinvoke.FindInPath(plugin, paths)
}

// ExecPlugin runs a plugin, and returns what it prints to stdout. If the plugin prints an error result, that is the
// error, as a *types.Error.
func (c *Caller) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	out, stderr, err := c.Run(ctx, path, stdin, environ)
	if c.stderr = stderr; err == nil {
		return out, nil
	}
	if failure := invoke.ParseError(out); failure != nil {
		return nil, failure
	}
	if text := strings.TrimSpace(string(stderr) + " " + string(out)); text != "" {
		err = fmt.Errorf("%w: %.200s", err, text)
	}
	return nil, err
}

// Run runs an executable, and returns what it prints. It kills the process, and all of its process
// group, after Timeout or if the context ends.
func (c *Caller) Run(ctx context.Context, path string, stdin []byte, environ []string) (stdout, stderr []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, path)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &errOut
	cmd.Env, cmd.WaitDelay = environ, pipeTime
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	if err = cmd.Run(); err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, nil, fmt.Errorf("%w in %s", ErrNoAnswer, c.Timeout)
	}
	return out.Bytes(), errOut.Bytes(), err
}

// Status calls STATUS of one plugin of a list, and returns the plugin's warnings, each of one line. libcni calls STATUS from
// version 1.1.0 on. The version of an older network is therefore set to 1.1.0, if the plugin and its IPAM plugin support it.
func (c *Caller) Status(ctx context.Context, list *libcni.NetworkConfigList, p *libcni.PluginConfig) (warnings []string, err error) {
	one := *list
	one.Plugins = []*libcni.PluginConfig{p}
	serves := func(plugin string) bool {
		return plugin == "" || slices.Contains(c.Find(ctx, plugin).Serves, "1.1.0")
	}
	if serves(p.Network.Type) && serves(p.Network.IPAM.Type) {
		one.CNIVersion = "1.1.0"
	}
	c.stderr = nil
	err = libcni.NewCNIConfig(c.Path, c).GetStatusNetworkList(ctx, &one)
	for line := range strings.Lines(string(c.stderr)) {
		if _, warning, is := strings.Cut(line, ": warning: "); is {
			warnings = append(warnings, strings.TrimSpace(warning))
		}
	}
	return warnings, err
}

// Damage is an error of CHECK.
type Damage struct {
	Plugin string
	Err    error
}

// Check calls CHECK of the plugins of plumb in the attachment's chain, with the configuration and the result of libcni's
// cache. It leaves out other plugins: some of these fail although nothing is wrong. The reference plugin portmap fails for
// containers with IPv4 only. It ends at a plugin that does not answer.
func (c *Caller) Check(ctx context.Context, a *inventory.Attachment) (found []Damage) {
	list, runtime := a.Added()
	if list == nil || !slices.Contains([]string{"0.4.0", "1.0.0", "1.1.0"}, list.CNIVersion) {
		return nil
	}
	for _, p := range list.Plugins {
		if c.Find(ctx, p.Network.Type).Version == "" {
			continue
		}
		one := *list
		one.Plugins = []*libcni.PluginConfig{p}
		err := libcni.NewCNIConfig(c.Path, c).CheckNetworkList(ctx, &one, runtime)
		if _, gone := os.Stat(a.ResultPath()); err == nil || gone != nil { // without a result, DEL has been called meanwhile
			continue
		}
		if found = append(found, Damage{p.Network.Type, err}); errors.Is(err, ErrNoAnswer) {
			break
		}
	}
	return found
}
