// Package plugins finds the executables of plugins and calls them like a runtime.
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

// A Caller calls plugins for libcni, one at a time. It kills a plugin that has not answered after Timeout, and all
// processes of the plugin's process group. libcni's invoke.RawExec would wait for a child that holds the plugin's pipes.
type Caller struct {
	version.PluginDecoder
	Path    []string // CNI_PATH
	Timeout time.Duration
	found   map[string]*Executable
	stderr  []byte // the stderr of the last plugin
}

// NewCaller returns a Caller.
func NewCaller(path []string, timeout time.Duration) *Caller {
	return &Caller{Path: path, Timeout: timeout, found: map[string]*Executable{}}
}

// ErrNoAnswer means that a plugin was killed because it had not answered after Timeout.
var ErrNoAnswer = errors.New("no answer")

// pipeTime is how long a Caller waits for the pipes of a plugin that has ended, because a child may hold them.
const pipeTime = time.Second

// FindInPath returns the path of a plugin. With ExecPlugin, it implements libcni's invoke.Exec.
func (c *Caller) FindInPath(plugin string, paths []string) (string, error) {
	return cniinvoke.FindInPath(plugin, paths)
}

// ExecPlugin runs a plugin and returns its stdout. If the plugin prints an error result, ExecPlugin returns that as a
// *types.Error.
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

// Run runs an executable and returns its output. After Timeout, or when ctx is done, it kills the process group.
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

// Status calls STATUS of one plugin of a list, and returns the plugin's warnings, one per line. Because libcni calls STATUS from
// version 1.1.0 on, Status sets the version of an older network to 1.1.0, if the plugin and its IPAM plugin support that.
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

// A Damage is an error of a plugin's CHECK.
type Damage struct {
	Plugin string
	Err    error
}

// Check calls CHECK of the plugins in the attachment's chain, with the configuration and the result from libcni's
// cache. It calls only plumb's plugins, because CHECK of other plugins can fail without a reason. For example, the
// reference plugin portmap fails for containers without IPv6. Check ends at a plugin that does not answer.
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
		if _, gone := os.Stat(a.ResultPath()); err == nil || gone != nil { // without the result, a runtime has called DEL
			continue
		}
		if found = append(found, Damage{p.Network.Type, err}); errors.Is(err, ErrNoAnswer) {
			break
		}
	}
	return found
}
