// Package plugins finds the executables of plugins and calls them like a runtime.
package plugins

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"
	cniinvoke "github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/pkg/invoke"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A Caller calls plugins for libcni. Several goroutines may use it. It kills a plugin that has not answered after
// Timeout, and all processes of the plugin's process group. libcni's invoke.RawExec would wait for a child that holds the
// plugin's pipes.
type Caller struct {
	version.PluginDecoder
	Path    []string // CNI_PATH
	Timeout time.Duration
	// ContainerSide means that Repair also restores what CHECK reports in the container.
	ContainerSide bool
	mu            sync.Mutex // of found
	found         map[string]*Executable
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
	return resultOf(out, stderr, err)
}

// resultOf returns the stdout or the error of a plugin that has ended.
func resultOf(out, stderr []byte, err error) ([]byte, error) {
	if err == nil {
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

// A recorder is a Caller that keeps the stderr of the last plugin.
type recorder struct {
	*Caller
	stderr []byte
}

func (r *recorder) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	out, stderr, err := r.Run(ctx, path, stdin, append(slices.Clone(environ), skel.JSONWarnings+"=1"))
	r.stderr = stderr
	return resultOf(out, stderr, err)
}

// warnings returns the warnings of the last plugin. A warning of another project's plugin has only the Msg.
func (r *recorder) warnings() (all []types.Problem) {
	for line := range strings.Lines(string(r.stderr)) {
		if _, text, is := strings.Cut(line, ": warning: "); is {
			var p types.Problem
			if err := json.Unmarshal([]byte(text), &p); err != nil {
				p = types.Problem{Kind: types.ProblemOther, Msg: strings.TrimSpace(text)}
			}
			all = append(all, p)
		}
	}
	return all
}

// A checker is a Caller that calls CHECK or REPAIR, which libcni does not know, when libcni calls CHECK.
type checker struct {
	*Caller
	command     string
	withoutIPAM bool
}

// checker returns the checker for a plugin. CHECK of another project's IPAM plugin may fail without a reason. For example,
// whereabouts does not implement it.
func (c *Caller) checker(ctx context.Context, command string, p *libcni.PluginConfig) checker {
	x := c.Find(ctx, p.Network.IPAM.Type)
	return checker{c, command, x.Version == "" && x.whyNot(c.Path) == nil}
}

func (k checker) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	environ = slices.DeleteFunc(slices.Clone(environ), func(v string) bool { return strings.HasPrefix(v, "CNI_COMMAND=") })
	if k.command == skel.CommandRepair && k.ContainerSide {
		environ = append(environ, skel.ContainerSide+"=1")
	}
	if k.withoutIPAM {
		environ = append(environ, skel.WithoutIPAM+"=1")
	}
	return k.Caller.ExecPlugin(ctx, path, stdin, append(environ, "CNI_COMMAND="+k.command))
}

// Status calls STATUS of one plugin of a list, and returns the plugin's warnings. Because libcni calls STATUS from
// version 1.1.0 on, Status sets the version of an older network to 1.1.0, if the plugin and its IPAM plugin support that.
func (c *Caller) Status(ctx context.Context, list *libcni.NetworkConfigList, p *libcni.PluginConfig) (warnings []types.Problem, err error) {
	one := *list
	one.Plugins = []*libcni.PluginConfig{p}
	serves := func(plugin string) bool {
		return plugin == "" || slices.Contains(c.Find(ctx, plugin).Serves, "1.1.0")
	}
	if serves(p.Network.Type) && serves(p.Network.IPAM.Type) {
		one.CNIVersion = "1.1.0"
	}
	r := &recorder{Caller: c}
	err = libcni.NewCNIConfig(c.Path, r).GetStatusNetworkList(ctx, &one)
	return r.warnings(), err
}

// ErrNotChecked means that a plugin gave no verdict, because its executable is missing or cannot run, or because it did not
// answer CHECK with a result of the specification.
var ErrNotChecked = errors.New("no verdict")

// ErrForeign is the error of Check for an attachment of a network without a plugin of plumb.
var ErrForeign = errors.New("no plugin of the network is plumb's; use the tools of its plugins, or delete the pod or the container")

// Check calls CHECK of the plugins in the attachment's chain, with the configuration and the result from libcni's
// cache. It judges only plumb's plugins, also as IPAM plugins, because CHECK of other plugins can fail without a reason. For
// example, the reference plugin portmap fails for containers without IPv6. Another executable with the name of one of plumb's
// plugins must answer, but its error is ignored. Check ends at a plugin that does not answer, or that misses the container's
// interface, which the other plugins would repeat. It returns an error with advice if it can call no plugin.
func (c *Caller) Check(ctx context.Context, a *node.Attachment) (found []Damage, err error) {
	list, runtime, err := a.Chain()
	if err != nil {
		return nil, err
	}
	// 0.3.x has no CHECK. Its results have the same format as the results of 0.4.0.
	version := cmp.Or(map[string]string{"0.3.0": "0.4.0", "0.3.1": "0.4.0"}[list.CNIVersion], list.CNIVersion)
	if !slices.Contains([]string{"0.4.0", "1.0.0", "1.1.0"}, version) {
		return nil, fmt.Errorf("cniVersion %q has no CHECK; set a newer one, then delete the pod or the container, and let the runtime create it again", list.CNIVersion)
	}
	isOurs := func(p *libcni.PluginConfig) bool { return c.Find(ctx, p.Network.Type).Version != "" }
	isBroken := func(p *libcni.PluginConfig) bool { return c.Find(ctx, p.Network.Type).whyNot(c.Path) != nil }
	if !slices.ContainsFunc(list.Plugins, func(p *libcni.PluginConfig) bool { return isOurs(p) || isBroken(p) }) {
		return nil, ErrForeign
	}
	for i, p := range list.Plugins {
		one := *list
		one.Plugins, one.CNIVersion = []*libcni.PluginConfig{p}, version
		d := Damage{Plugin: p.Network.Type, ifName: a.IfName, list: &one}
		d.Err = c.checkPlugin(ctx, d, runtime)
		if d.Err == nil || !isOurs(p) && !errors.Is(d.Err, ErrNotChecked) || a.IsDeleted() {
			continue
		}
		if errors.Is(d.Err, ErrNotChecked) {
			d.silent = c.Find(ctx, d.Plugin).Solution()
		}
		if d.lacksInterface() {
			d.later = slices.DeleteFunc(slices.Clone(list.Plugins[i+1:]), func(p *libcni.PluginConfig) bool { return !isOurs(p) })
		}
		found = append(found, d)
		if errors.Is(d.Err, ErrNoAnswer) || d.lacksInterface() {
			break
		}
	}
	return found, nil
}

// checkPlugin calls CHECK of the plugin of a Damage, unless the plugin belongs to another project.
func (c *Caller) checkPlugin(ctx context.Context, d Damage, runtime *libcni.RuntimeConf) error {
	x := c.Find(ctx, d.Plugin)
	if err := x.whyNot(c.Path); err != nil {
		return fmt.Errorf("%w: %w", ErrNotChecked, err)
	}
	if !x.hasPlumbsName() {
		return nil
	}
	err := libcni.NewCNIConfig(c.Path, c.checker(ctx, "CHECK", d.list.Plugins[0])).CheckNetworkList(ctx, d.list, runtime)
	if err != nil && Failure(err).Code == 0 {
		err = fmt.Errorf("%w: %s: %w", ErrNotChecked, x.Path, err)
	}
	return err
}

// Repair calls REPAIR of the plugin that found the damage. If the container's interface is missing, Repair also calls REPAIR
// of the plugins after it, because they may limit what the container reaches without this interface. Their errors with
// types.CodeChanged, which CHECK returns after the repair, are omitted.
func (c *Caller) Repair(ctx context.Context, a *node.Attachment, d Damage) error {
	_, runtime := a.Added()
	repair := func(p *libcni.PluginConfig) error {
		list := *d.list
		list.Plugins = []*libcni.PluginConfig{p}
		return libcni.NewCNIConfig(c.Path, c.checker(ctx, skel.CommandRepair, p)).CheckNetworkList(ctx, &list, runtime)
	}
	err := repair(d.list.Plugins[0]) // Check puts one plugin into each list
	for _, p := range d.later {
		if later := repair(p); later != nil && Failure(later).Code != types.CodeChanged {
			err = fmt.Errorf("%s: %w", p.Network.Type, later)
		}
	}
	return err
}
