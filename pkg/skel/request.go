package skel

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"

	"github.com/plumb-cni/plumb/pkg/lock"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/trace"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
	"golang.org/x/sys/unix"
)

// A Request is one call of a plugin, checked as far as the specification goes.
type Request struct {
	Command     string
	ContainerID string
	NetNS       string // CNI_NETNS, verbatim; may be empty in DEL, GC and STATUS
	IfName      string
	Path        string // CNI_PATH
	Stdin       []byte // the configuration, verbatim, for delegates
	Conf        types.Conf
	Version     types.Version

	// Undo holds the inverse of all that this ADD did. skel runs it when the ADD
	// fails, in whatever way.
	Undo undo.Stack
	// Node is the namespace the plugin runs in; nil in IPAM plugins. skel closes it.
	Node *ns.Handle
	// Pod is the container's namespace: never nil in ADD and CHECK of an interface
	// or chained plugin, nil in DEL when it is gone. skel closes it.
	Pod *ns.Handle
	// Trace is the tracer that every step passes through.
	Trace *trace.Tracer

	plugin  Plugin
	env     Env
	lock    *lock.Key
	logFile logFile
	prev    *types.Result
	valid   types.ValidAttachments // of GC
	// beforeResult are the functions that BeforeResult registered.
	beforeResult []func() error
}

func newRequest(p Plugin, env Env) *Request {
	env.Stderr = &lines{to: env.Stderr}
	r := &Request{plugin: p, env: env, logFile: noLog}
	r.Command = r.getenv("CNI_COMMAND")
	r.ContainerID = r.getenv("CNI_CONTAINERID")
	r.NetNS = r.getenv("CNI_NETNS")
	r.IfName = r.getenv("CNI_IFNAME")
	r.Path = r.getenv("CNI_PATH")
	r.Trace = &trace.Tracer{Who: p.Name + " " + r.Command, Before: env.Before, After: env.After}
	r.Trace.Warnings = func(text string) { r.Warn("%s", text) }
	return r
}

// getenv finds the first setting of key, as os.Getenv does.
func (r *Request) getenv(key string) string {
	for _, setting := range r.env.Environ {
		if k, v, ok := strings.Cut(setting, "="); ok && k == key {
			return v
		}
	}
	return ""
}

// Environ is the environment of this call, for delegates.
func (r *Request) Environ() []string { return r.env.Environ }

// Plugin is the name of the plugin that serves the call.
func (r *Request) Plugin() string { return r.plugin.Name }

// Stderr is where the messages of a delegate go. It is safe for concurrent use.
func (r *Request) Stderr() io.Writer { return r.env.Stderr }

// BeforeResult registers wait, which skel calls after the handler of ADD and before it prints
// the result. If wait returns an error, ADD fails with it.
func (r *Request) BeforeResult(wait func() error) { r.beforeResult = append(r.beforeResult, wait) }

// Attachment is the identity under which this call owns things on the node.
func (r *Request) Attachment() types.Attachment {
	return types.Attachment{Network: r.Conf.Name, ContainerID: r.ContainerID, IfName: r.IfName}
}

// Valid is the set of attachments of this network that GC is to keep.
func (r *Request) Valid() types.Set {
	set := types.Set{}
	for _, v := range r.valid {
		set[types.Attachment{Network: r.Conf.Name, ContainerID: v.ContainerID, IfName: v.IfName}] = true
	}
	return set
}

// Args is CNI_ARGS. DEL must finish whatever was passed to it, so there a malformed
// text counts as none.
func (r *Request) Args() (types.Args, error) {
	args, err := types.ParseArgs(r.getenv("CNI_ARGS"))
	if err != nil && r.Command == "DEL" {
		return types.Args{}, nil
	}
	return args, err
}

// Prev is the result of the plugin before this one in the chain, in the newest
// form; nil when there is none. It is decoded once. Errors have CodeDecode. DEL must
// finish whatever was passed to it, so there one that cannot be read counts as none.
func (r *Request) Prev() (*types.Result, error) {
	raw := string(r.Conf.PrevResult)
	if r.prev != nil || raw == "" || raw == "null" {
		return r.prev, nil
	}
	prev, err := types.ParseResult(r.Version, r.Conf.PrevResult)
	if err != nil && r.Command == "DEL" {
		r.Warn("prevResult: %v", err)
		r.Conf.PrevResult = nil
		return nil, nil
	}
	if err != nil {
		return nil, types.Errorf(types.CodeDecode, "prevResult: %w", err)
	}
	r.prev = prev
	return prev, nil
}

// MustPrev is Prev for calls that make no sense without one: CHECK, and ADD of a
// chained plugin.
func (r *Request) MustPrev() (*types.Result, error) {
	why := "must be called as chained plugin, after the one that made the interface"
	if r.Command == "CHECK" {
		why = "the result of the ADD, as the runtime keeps it"
	}
	prev, err := r.Prev()
	if err == nil && prev == nil {
		return nil, types.Errorf(types.CodeConfig, "%s of %s needs a prevResult: %s", r.Command, r.plugin.Name, why)
	}
	return prev, err
}

// Decode reads the plugin's own keys into conf, a pointer to a struct with json
// tags. On ADD it names unknown keys that are nearly known ones on stderr; with
// "strict": true in the configuration any unknown key is an error, but in DEL, which
// must finish.
func (r *Request) Decode(conf any) error {
	if err := types.Decode(r.Stdin, conf); err != nil {
		return err
	}
	if r.Command != "ADD" && !r.Conf.Strict || r.Command == "DEL" {
		return nil
	}
	var refused []error
	for _, key := range types.Unknown(r.Stdin, conf, sharedKeys...) {
		switch {
		case !r.judges(key):
		case r.Conf.Strict:
			refused = append(refused, errors.New(key.String()))
		case key.Likely() != "":
			r.Warn("%s", key)
		}
	}
	if len(refused) > 0 {
		return types.Errorf(types.CodeUnsupported, "strict configuration: %w", errors.Join(refused...))
	}
	return nil
}

// judges: is an unknown key this plugin's business? An IPAM plugin reads within the
// configuration of an interface plugin, and either passes over what is the other's.
// What runtimes pass (args, runtimeConfig, prevResult) is for all plugins.
func (r *Request) judges(key types.UnknownKey) bool {
	if !key.Nested {
		return !r.plugin.IPAM
	}
	top, _, _ := strings.Cut(strings.ToLower(key.Path), ".")
	switch top {
	case "args", "runtimeconfig", "prevresult":
		return false
	case "ipam":
		return r.plugin.IPAM
	}
	return !r.plugin.IPAM
}

// sharedKeys are the top-level keys that belong to the specification, to libcni or
// to skel.
var sharedKeys = []string{
	"cniVersion", "cniVersions", "name", "type", "capabilities", "ipam", "dns", "args", "runtimeConfig",
	"prevResult", "strict", "disableCheck", "disableGC", "cni.dev/valid-attachments", "cni.dev/attachments",
}

// Warn tells a person of something that is no error: a line on stderr.
func (r *Request) Warn(format string, args ...any) {
	fmt.Fprintf(r.env.Stderr, "%s: warning: %s\n", r.plugin.Name, fmt.Sprintf(format, args...))
}

// lines keeps what is written at the same time apart: warnings, the steps of the
// trace, what a delegate says while it runs beside.
type lines struct {
	mu sync.Mutex
	to io.Writer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(b)
}

// openLog sets the tracer up as CNI_LOG_LEVEL and CNI_LOG_FILE ask.
func (r *Request) openLog() {
	switch level := r.getenv("CNI_LOG_LEVEL"); strings.ToLower(level) {
	case "":
	case "debug":
		r.Trace.Text = r.env.Stderr
	default:
		r.Warn("CNI_LOG_LEVEL: unknown level %q: the only one is debug", level)
	}
	path := r.getenv("CNI_LOG_FILE")
	if path == "" {
		return
	}
	f, err := openLogFile(path)
	if err != nil {
		r.Warn("CNI_LOG_FILE: %v", err)
		return
	}
	r.Trace.JSON, r.logFile = f, f
}

// A logFile is written to without waiting: what a pipe has no room for is lost.
type logFile int

const noLog logFile = -1

// openLogFile opens a file, a terminal or the like, or a named pipe that somebody reads.
func openLogFile(path string) (logFile, error) {
	const flags = unix.O_WRONLY | unix.O_APPEND | unix.O_CREAT | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Open(path, flags, 0o600)
	for errors.Is(err, unix.EINTR) {
		fd, err = unix.Open(path, flags, 0o600)
	}
	if err != nil {
		err = &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if errors.Is(err, unix.ENXIO) {
		return noLog, fmt.Errorf("%w: a socket, or a named pipe that no process reads", err)
	}
	if err != nil {
		return noLog, err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if kind := st.Mode & unix.S_IFMT; err == nil && kind != unix.S_IFREG && kind != unix.S_IFCHR && kind != unix.S_IFIFO {
		err = fmt.Errorf("%s is no file to write a log to", path)
	}
	if err != nil {
		_ = unix.Close(fd)
		return noLog, err
	}
	return logFile(fd), nil
}

func (f logFile) Write(b []byte) (int, error) { return unix.Write(int(f), b) }

func (f logFile) close() error {
	if f == noLog {
		return nil
	}
	return unix.Close(int(f))
}

// openNamespaces opens node and pod and refuses a pod that is the node: every step
// in it would be taken on the host. It comes before anything is done. An IPAM plugin
// does nothing in either.
func (r *Request) openNamespaces(v verb) error {
	if r.plugin.IPAM {
		return nil
	}
	node, err := r.openNode()
	switch {
	case err != nil && r.Command == "STATUS":
		return types.Errorf(types.CodeNotAvailable, "open own namespace: %w", err)
	case err != nil:
		return types.Errorf(types.CodeInternal, "open own namespace: %w", err)
	}
	r.Node = node
	if v.netns == netnsNone || r.NetNS == "" {
		return nil
	}
	pod, err := ns.Open(r.NetNS, r.Trace)
	switch {
	case err == nil && pod.Same(node) && !r.overridden():
		return r.refuseOwn(v, pod.Close())
	case err == nil:
		r.Pod = pod
		return nil
	case v.netns == netnsOptional && gone(err):
		return nil
	}
	return types.Errorf(types.CodeNamespace, "container namespace: %w", err)
}

// refuseOwn answers a CNI_NETNS that is the node's. In DEL it is a container that is
// gone: /proc/<pid>/ns/net of a pid that the host has used again, say. Nothing may be
// deleted there, but what the node keeps for the container must be.
func (r *Request) refuseOwn(v verb, closed error) error {
	if v.netns == netnsOptional {
		r.Warn("CNI_NETNS %s is the namespace that the plugin itself runs in; taken for gone", r.NetNS)
		return closed
	}
	return types.Errorf(types.CodeNamespace,
		"CNI_NETNS %s is the namespace that the plugin itself runs in; set CNI_NETNS_OVERRIDE=1 if that is meant", r.NetNS)
}

// gone: no namespace there any more, be it nothing or the plain file that an
// unmounted namespace leaves.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, ns.ErrNotNamespace)
}

func (r *Request) openNode() (*ns.Handle, error) {
	if r.env.Node != "" {
		return ns.Open(r.env.Node, r.Trace)
	}
	return ns.Self(r.Trace)
}

func (r *Request) overridden() bool {
	v := r.getenv("CNI_NETNS_OVERRIDE")
	return v == "1" || strings.EqualFold(v, "true")
}

// close ends with the lock: whoever waits for it finds nothing of this call's at work.
func (r *Request) close() error {
	return errors.Join(r.Pod.Close(), r.Node.Close(), r.logFile.close(), r.lock.Close())
}
