package skel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"github.com/plumb-cni/plumb/v2/pkg/hostfile"
	"github.com/plumb-cni/plumb/v2/pkg/lock"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
)

// A Request is one call of a plugin. skel has validated it as the specification requires.
type Request struct {
	Command     string
	ContainerID string
	NetNS       string // CNI_NETNS, verbatim; may be empty in DEL, GC and STATUS
	IfName      string
	Path        string // CNI_PATH
	Stdin       []byte // the configuration, verbatim, for delegates
	Conf        types.Conf
	Version     types.Version

	// Undo contains the inverse of each change of this ADD. If ADD fails, skel runs them.
	Undo undo.Stack
	// HostNS is the namespace in which the plugin runs. It is nil in IPAM plugins. skel closes it.
	HostNS *ns.Handle
	// ContainerNS is the container's namespace. It is nil in IPAM plugins, in DEL if the namespace is gone, and
	// in verbs that do not use it. skel closes it.
	ContainerNS *ns.Handle
	// Trace logs each step.
	Trace *trace.Tracer

	plugin Plugin
	env    Env
	locks  []*lock.Key // the locks of this call, in the order in which they were locked
	logs   []logFile
	traced bool // beginTrace was called
	prev   *types.Result
	valid  types.ValidAttachments // the attachments that GC must keep
	// ipamErr is the error of a DEL whose "ipam" is invalid, so that DEL cannot release addresses.
	ipamErr error
	// misspelled names the unknown keys of which Decode warned. It is nil if there are none.
	misspelled error
	// beforeResult contains the functions that BeforeResult registered.
	beforeResult []func() error
}

func newRequest(p Plugin, env Env) *Request {
	env.Stderr = &lockedWriter{to: env.Stderr}
	r := &Request{plugin: p, env: env}
	r.Command = r.getenv("CNI_COMMAND")
	r.ContainerID = r.getenv("CNI_CONTAINERID")
	r.NetNS = r.getenv("CNI_NETNS")
	r.IfName = r.getenv("CNI_IFNAME")
	r.Path = r.getenv("CNI_PATH")
	r.Trace = &trace.Tracer{Who: p.Name + " " + r.Command, Before: env.Before, After: env.After}
	r.Trace.Warnings = func(text string) { r.Warn("%s", text) }
	return r
}

// getenv returns the value of a variable, or "" if it is not set. Like os.Getenv, it returns the first of
// several settings.
func (r *Request) getenv(key string) string {
	for _, setting := range r.env.Environ {
		if k, v, ok := strings.Cut(setting, "="); ok && k == key {
			return v
		}
	}
	return ""
}

// Environ returns the environment of this call, for delegates. If the call is recorded for CNI_TRACE_FILE,
// TRACEPARENT in it identifies this call.
func (r *Request) Environ() []string { return r.env.Environ }

// Plugin returns the plugin's name.
func (r *Request) Plugin() string { return r.plugin.Name }

// Stderr returns the writer for a delegate's messages. It is safe for concurrent use.
func (r *Request) Stderr() io.Writer { return r.env.Stderr }

// BeforeResult registers wait, which skel calls after the handler of ADD and before it prints the result. If
// wait returns an error, ADD fails with that error.
func (r *Request) BeforeResult(wait func() error) { r.beforeResult = append(r.beforeResult, wait) }

// Attachment returns the attachment of this call, which owns what the call creates on the host.
func (r *Request) Attachment() types.Attachment {
	return types.Attachment{Network: r.Conf.Name, ContainerID: r.ContainerID, IfName: r.IfName}
}

// ValidAttachments returns the attachments of this network that GC must keep.
func (r *Request) ValidAttachments() types.Set {
	set := types.Set{}
	for _, v := range r.valid {
		set[types.Attachment{Network: r.Conf.Name, ContainerID: v.ContainerID, IfName: v.IfName}] = true
	}
	return set
}

// Args returns CNI_ARGS. It returns an error if the text is malformed, except in DEL, which must succeed and
// gets no arguments.
func (r *Request) Args() (types.Args, error) { return r.parseArgs(types.ParseArgs) }

// AnyArgs returns CNI_ARGS like Args, but accepts unknown keys. It is for a plugin whose configuration can name
// any key.
func (r *Request) AnyArgs() (types.Args, error) { return r.parseArgs(types.ParseAnyArgs) }

func (r *Request) parseArgs(parse func(string) (types.Args, error)) (types.Args, error) {
	args, err := parse(r.getenv("CNI_ARGS"))
	if err != nil && r.Command == "DEL" {
		return types.Args{}, nil
	}
	return args, err
}

// Prev returns prevResult, which is the result of the previous plugin in the chain, in the form of the newest
// version. It returns nil if the configuration lacks prevResult, or contains null. An empty object is a result
// without interfaces and addresses, as in the reference plugins. If ADD returns the value of Prev, or a changed
// copy, skel prints the unchanged parts verbatim (see types.ParsePrevResult). Errors have types.CodeDecode. DEL
// must succeed, and therefore gets nil, after a warning, if prevResult cannot be decoded.
func (r *Request) Prev() (*types.Result, error) {
	raw := string(r.Conf.PrevResult)
	if r.prev != nil || raw == "" || raw == "null" {
		return r.prev, nil
	}
	prev, err := types.ParsePrevResult(r.Version, r.Conf.PrevResult)
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

// RequirePrev returns prevResult like Prev, but without a prevResult it returns an error with types.CodeConfig.
// It is for CHECK and REPAIR, and for ADD of a chained plugin.
func (r *Request) RequirePrev() (*types.Result, error) {
	why := "must be called as chained plugin, after the plugin that created the interface"
	if r.Command != "ADD" {
		why = "the result of the ADD, as the runtime keeps it"
	}
	prev, err := r.Prev()
	if err == nil && prev == nil {
		return nil, types.Errorf(types.CodeConfig, "%s of %s needs a prevResult: %s", r.Command, r.plugin.Name, why)
	}
	return prev, err
}

// Decode reads the plugin's own keys into conf, a pointer to a struct with json tags. ADD warns about each
// unknown key that is similar to a known key. If the configuration contains "strict": true, any unknown key is
// an error, except in DEL, which must succeed. The error names these keys and all values of a wrong type.
func (r *Request) Decode(conf any) error {
	err := types.Decode(r.Stdin, conf)
	if r.Command != "ADD" && !r.Conf.Strict || r.Command == "DEL" {
		return err
	}
	var refused []error
	for _, key := range types.Unknown(r.Stdin, conf, sharedKeys...) {
		switch {
		case !r.ownsKey(key):
		case r.Conf.Strict:
			p := types.Problem{Object: key.Path, Kind: types.ProblemUnknownKey, Want: key.Likely(), Got: key.Value}
			refused = append(refused, p.Errorf("%s", key))
		case key.Likely() != "":
			r.Warn("%s", key)
			r.misspelled = errors.Join(r.misspelled, errors.New(key.String()))
		}
	}
	if len(refused) > 0 {
		err = errors.Join(err, types.Coded(types.CodeUnsupported, errors.Join(refused...)))
	}
	return err
}

// DecodeWithArgs calls Decode and then Args.
func (r *Request) DecodeWithArgs(conf any) (types.Args, error) {
	if err := r.Decode(conf); err != nil {
		return types.Args{}, err
	}
	return r.Args()
}

// ownsKey reports whether this plugin is responsible for an unknown key. An IPAM plugin, which gets the
// configuration of the interface plugin, is responsible for the keys in "ipam" only. The interface plugin is
// responsible for all other keys. No plugin is responsible for the keys in args, runtimeConfig and prevResult,
// which runtimes set for all plugins of a chain.
func (r *Request) ownsKey(key types.UnknownKey) bool {
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

// SharedKeys returns the top-level keys that are known in the configuration of every plugin.
func SharedKeys() []string { return slices.Clone(sharedKeys) }

// sharedKeys are the top-level keys that the specification, libcni or skel defines. Editors find the JSON Schema
// of a configuration by the key "$schema".
var sharedKeys = []string{
	"$schema", "cniVersion", "cniVersions", "name", "type", "capabilities", "ipam", "dns", "args", "runtimeConfig",
	"prevResult", "strict", "disableCheck", "disableGC", "cni.dev/valid-attachments", "cni.dev/attachments",
}

// IsRepair reports whether this call is a REPAIR, which takes nothing from another attachment.
func (r *Request) IsRepair() bool { return r.Command == CommandRepair }

// ContainerSide is the environment variable with which "plumb repair --container-side" calls REPAIR. Its value is "1".
const ContainerSide = "PLUMB_CONTAINER_SIDE"

// RepairsContainer reports whether this call is a REPAIR that also restores what CHECK reports in the container.
func (r *Request) RepairsContainer() bool { return r.IsRepair() && r.getenv(ContainerSide) == "1" }

// WithoutIPAM is the environment variable with which "plumb doctor" and "plumb repair" call CHECK and REPAIR of a plugin whose
// IPAM plugin is of another project. Its value is "1".
const WithoutIPAM = "PLUMB_WITHOUT_IPAM"

// ChecksIPAM reports whether CHECK and REPAIR call CHECK of the IPAM plugin.
func (r *Request) ChecksIPAM() bool { return r.Conf.IPAM.Type != "" && r.getenv(WithoutIPAM) != "1" }

// StateDir returns the directory in which a plugin saves the state of its attachments. It is dataDir, the value of a key
// of the configuration, or else the directory that hostfile.InRun returns for the plugin's default. If neither can be
// written, StateDir returns "", so that nothing is saved (see statefile.File), and ADD warns.
func (r *Request) StateDir(dataDir, defaultDir string) string {
	if dataDir != "" {
		return dataDir
	}
	dir := hostfile.InRun(defaultDir)
	if dir == "" && r.Command == "ADD" {
		r.Warn("%s; no state is saved for DEL", hostfile.NotWritable(defaultDir))
	}
	return dir
}

// SavedStateDir returns StateDir of the key dataDir. It reads no other key, so that DEL and GC accept any configuration.
func (r *Request) SavedStateDir(defaultDir string) string {
	var raw struct {
		DataDir string `json:"dataDir"`
	}
	_ = types.Decode(r.Stdin, &raw)
	return r.StateDir(raw.DataDir, defaultDir)
}

// IgnoreForbidden returns nil, after a warning, if err matches fs.ErrPermission, and otherwise err. DEL and GC use it for
// rules on the host, because a process that may not change the rules there cannot have added any. Such a process is root of
// a user namespace, and shares the network namespace of the parent user namespace.
func (r *Request) IgnoreForbidden(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		r.Warn("%v; %s deletes no rules on the host", err, r.Command)
		return nil
	}
	return err
}

// JSONWarnings is the environment variable with which "plumb doctor" calls plugins. If its value is "1", a warning is a
// types.Problem in JSON instead of a text.
const JSONWarnings = "PLUMB_JSON_WARNINGS"

// Warn writes a warning to stderr, as one line.
func (r *Request) Warn(format string, args ...any) {
	r.WarnOf(*types.Problem{Kind: types.ProblemOther}.Errorf(format, args...))
}

// WarnOf writes a problem as a warning to stderr, as one line with its Msg and its Advice.
func (r *Request) WarnOf(p types.Problem) {
	p = shortenProblem(p)
	text := p.Msg
	if p.Advice != "" {
		text += "; " + p.Advice
	}
	if r.getenv(JSONWarnings) == "1" {
		encoded, _ := json.Marshal(p) // strings can always be encoded
		text = string(encoded)
	}
	fmt.Fprintf(r.env.Stderr, "%s: warning: %s\n", r.plugin.Name, oneLine(text))
}

// A lockedWriter runs one Write at a time, because warnings, steps of the trace and messages of a delegate can
// be written concurrently.
type lockedWriter struct {
	mu sync.Mutex
	to io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(b)
}

// openNamespaces sets r.HostNS and r.ContainerNS. IPAM plugins need no namespace.
func (r *Request) openNamespaces(v verb) error {
	if r.plugin.IPAM {
		return nil
	}
	host, err := r.openHost()
	switch {
	case err != nil && r.Command == "STATUS":
		return types.Errorf(types.CodeNotAvailable, "open own namespace: %w", err)
	case err != nil:
		return types.Errorf(types.CodeInternal, "open own namespace: %w", err)
	}
	r.HostNS, host.Memo = host, map[string]any{}
	if v.netns == netnsNone || r.NetNS == "" {
		return nil
	}
	container, err := ns.Open(r.NetNS, r.Trace)
	switch {
	case err == nil && container.Same(host) && !r.overridden():
		return r.rejectHostNS(v, container.Close())
	case err == nil:
		r.ContainerNS = container
		return nil
	case v.netns == netnsOptional && isGone(err):
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w; CNI_NETNS must be the path of the container's network namespace, for example /run/netns/NAME", err)
	}
	return types.Errorf(types.CodeNamespace, "container namespace: %w", err)
}

// rejectHostNS returns the error for a CNI_NETNS that is the host's namespace, because the plugin would change
// the host instead of the container. In DEL, it only warns, and the container counts as gone, because the pid in
// a path /proc/<pid>/ns/net may now belong to a process of the host. DEL then deletes only the container's
// objects on the host.
func (r *Request) rejectHostNS(v verb, closeErr error) error {
	if v.netns == netnsOptional {
		r.Warn("CNI_NETNS %s is the namespace that the plugin itself runs in; DEL continues as if the container's namespace were gone", r.NetNS)
		return closeErr
	}
	return types.Errorf(types.CodeNamespace,
		"CNI_NETNS %s is the namespace that the plugin itself runs in; set CNI_NETNS_OVERRIDE=1 if that is meant", r.NetNS)
}

// isGone reports whether err means that no namespace is at the path, because there is no file, or only the regular
// file that remains when a namespace is unmounted.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, ns.ErrNotNamespace)
}

// openHost opens the namespace of the process, or the namespace that a test chose.
func (r *Request) openHost() (*ns.Handle, error) {
	if r.env.HostNS != "" {
		return ns.Open(r.env.HostNS, r.Trace)
	}
	return ns.Self(r.Trace)
}

// overridden reports whether CNI_NETNS_OVERRIDE allows the host's namespace as the container's, as in plugins
// that use containernetworking/cni/pkg/skel.
func (r *Request) overridden() bool {
	v := r.getenv("CNI_NETNS_OVERRIDE")
	return v == "1" || strings.EqualFold(v, "true")
}

// close closes what the request has opened. It closes the locks last, because the next call for the attachment
// may begin when they are free.
func (r *Request) close() error {
	errs := []error{r.ContainerNS.Close(), r.HostNS.Close()}
	for _, key := range slices.Backward(r.locks) {
		errs = append(errs, key.Close())
	}
	return errors.Join(errs...)
}
