// Package skel is the protocol side of every plugin (SPEC 1.1.0, sections 2 and 5):
// it reads environment and stdin, applies the version and naming rules, opens the
// namespaces, calls the handler, prints the result or the error, and either commits
// what the handler did or undoes it. Handlers only return.
package skel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
)

// version is set by the linker: -X github.com/plumb-cni/plumb/pkg/skel.version=…
var version = "v2.0.0-dev"

// A Plugin is a name and a handler a verb. A nil handler means that there is
// nothing to do: the verb succeeds.
type Plugin struct {
	Name  string
	Since types.Version // the oldest version served; zero: 0.1.0
	IPAM  bool          // an IPAM plugin: it needs no container namespace
	// Chained says that the plugin works on what another one of the chain has made.
	Chained bool
	Add     func(*Request) (*types.Result, error)
	Del     func(*Request) error
	Check   func(*Request) error
	// Status fails with types.CodeNotAvailable or types.CodeLimited.
	Status func(*Request) error
	GC     func(*Request) error
}

// Env is the world of one run. Tests put their own in its place.
type Env struct {
	Environ []string // KEY=VALUE
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Node    string // netns path that stands for the node; empty: the process's own
	Lock    string // file of the locks of attachments; empty: lockFile
	// LockWait is how long a lock is waited for; zero: lockWait.
	LockWait time.Duration
	Before   func(step string) error // see trace.Tracer; tests only
	After    func(step string) error
}

// Main serves one call with the environment and the streams of the process, and exits.
func Main(p Plugin) {
	os.Exit(Run(p, Env{Environ: os.Environ(), Stdin: os.Stdin, Stdout: stdout(), Stderr: outputStream(2, "stderr")}))
}

// Run serves one call and gives the exit status.
func Run(p Plugin, env Env) int {
	r := newRequest(p, env)
	if r.Command == "" {
		return r.banner()
	}
	if err := r.serve(); err != nil {
		r.printError(err)
		return 1
	}
	return 0
}

// banner answers a call without CNI_COMMAND: a person, or a runtime that wants our
// version, which must be the first on the line and in the text.
func (r *Request) banner() int {
	fmt.Fprintf(r.env.Stderr, "CNI %s plugin %s\nCNI protocol versions supported: %s\n",
		r.plugin.Name, version, strings.Join(types.VersionsSince(r.plugin.since()), ", "))
	return 0
}

func (p Plugin) since() types.Version { return max(p.Since, types.V010) }

// printError puts the error on stdout in the form of the specification. A stdout
// that cannot be written leaves stderr.
func (r *Request) printError(err error) {
	coded := types.AsError(err)
	v := types.Newest.String()
	if r.Version != 0 {
		v = r.Version.String()
	}
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // people read it: "<" is "<"
	enc.SetIndent("", "    ")
	_ = enc.Encode(struct { // cannot fail: texts and a number
		CNIVersion string `json:"cniVersion"`
		Code       uint   `json:"code"`
		Msg        string `json:"msg"`
		Details    string `json:"details,omitempty"`
	}{v, coded.Code, coded.Msg, coded.Details})
	if _, werr := r.env.Stdout.Write(body.Bytes()); werr != nil {
		fmt.Fprintf(r.env.Stderr, "%s: %v (and stdout cannot be written: %v)\n", r.plugin.Name, err, werr)
	}
}

// readStdin reads the configuration and applies what the specification says of it.
func (r *Request) readStdin() error {
	var in bytes.Buffer
	if _, err := in.ReadFrom(r.env.Stdin); err != nil {
		return types.Errorf(types.CodeIO, "read configuration from stdin: %w", err)
	}
	r.Stdin = in.Bytes()
	if len(bytes.TrimSpace(r.Stdin)) == 0 {
		return types.Errorf(types.CodeDecode, "decode configuration: stdin is empty; the network configuration is expected there as JSON")
	}
	if err := types.Decode(r.Stdin, &r.Conf); err != nil {
		return err
	}
	if r.Conf.Type == "" && len(r.Conf.Plugins) > 0 {
		return types.Errorf(types.CodeConfig, "the configuration is a list of plugins (a conflist): a plugin takes one of them, with the \"name\" and \"cniVersion\" of the list")
	}
	if r.Conf.Name == "" {
		return types.Errorf(types.CodeConfig, "missing network name: the configuration needs a \"name\"")
	}
	if !validID(r.Conf.Name) {
		return &types.Error{Code: types.CodeConfig, Msg: "invalid characters in network name", Details: r.Conf.Name}
	}
	return r.agreeOnVersion()
}

// agreeOnVersion applies the plugin's own range and the verb's. DEL must finish, so it
// takes a version that it does not know for the newest.
func (r *Request) agreeOnVersion() error {
	v, err := types.ParseVersion(r.Conf.CNIVersion)
	if err != nil && r.Command == "DEL" {
		r.Warn("cniVersion %q is not known; DEL takes it for %s", r.Conf.CNIVersion, types.Newest)
		v, err = types.Newest, nil
	}
	if err != nil || v < r.plugin.since() && r.Command != "DEL" {
		return &types.Error{
			Code:    types.CodeVersion,
			Msg:     "incompatible CNI versions",
			Details: fmt.Sprintf("config is %q, plugin supports %q", r.Conf.CNIVersion, types.VersionsSince(r.plugin.since())),
		}
	}
	r.Version = v
	if since := verbs[r.Command].since; v < since {
		return &types.Error{
			Code:    types.CodeVersion,
			Msg:     "config version does not allow " + r.Command,
			Details: fmt.Sprintf("%s needs cniVersion %s or later, the configuration has %s", r.Command, since, v),
		}
	}
	return nil
}

// serve is the story of one call. Whatever stops an ADD, the one deferred line
// undoes what it did.
func (r *Request) serve() (err error) {
	verb, known := verbs[r.Command]
	if !known {
		return types.Errorf(types.CodeEnvironment, "unknown CNI_COMMAND: %s", r.Command)
	}
	if err := r.checkEnvironment(verb); err != nil {
		return err
	}
	if r.Command == cmdVersion {
		return r.printVersions()
	}
	if err := r.readStdin(); err != nil {
		return err
	}
	defer func() { err = r.finish(recover(), err) }()
	r.openLog()
	if err := r.lockAttachment(verb); err != nil {
		return err
	}
	if err := r.openNamespaces(verb); err != nil {
		return err
	}
	if err := verb.call(r); err != nil {
		return err
	}
	r.Undo.Commit()
	return nil
}

// finish undoes an unfinished ADD and closes what the request opened. Its error is
// the cause; what went wrong while undoing goes to the details.
func (r *Request) finish(panicked any, err error) error {
	if panicked != nil {
		stack := debug.Stack()
		if p, ok := panicked.(ns.Panic); ok {
			stack = p.Stack
		}
		err = &types.Error{Code: types.CodeInternal, Msg: fmt.Sprint("panic: ", panicked), Details: string(stack)}
	}
	if undone := r.Undo.Rollback(); undone != nil {
		coded := *types.AsError(err)
		coded.Details = strings.TrimPrefix(coded.Details+"; could not undo: "+undone.Error(), "; ")
		err = &coded
	}
	if cerr := r.close(); cerr != nil && err == nil {
		r.Warn("close: %v", cerr)
	}
	return err
}

func (r *Request) printVersions() error {
	b, err := json.Marshal(struct {
		CNIVersion        string   `json:"cniVersion"`
		SupportedVersions []string `json:"supportedVersions"`
	}{r.versionAsked().String(), types.VersionsSince(r.plugin.since())})
	if err != nil {
		return err
	}
	return r.write(append(b, '\n'))
}

func (r *Request) write(b []byte) error {
	if _, err := r.env.Stdout.Write(b); err != nil {
		return types.Errorf(types.CodeIO, "write result to stdout: %w", err)
	}
	return nil
}

// add calls the handler and prints its result; a result that cannot be printed is
// an ADD that failed.
func add(r *Request) error {
	if r.plugin.Add == nil {
		return types.Errorf(types.CodeInternal, "plugin %s has no ADD", r.plugin.Name)
	}
	result, err := r.plugin.Add(r)
	if err != nil {
		return err
	}
	form := (*types.Result).Marshal
	if r.plugin.IPAM {
		form = (*types.Result).MarshalLease
	}
	b, err := form(result, r.Version)
	if err != nil {
		code := uint(types.CodeInternal)
		if errors.Is(err, types.ErrNoAddress) {
			code = types.CodeConfig
		}
		return types.Coded(code, err)
	}
	for _, wait := range r.beforeResult {
		if err := wait(); err != nil {
			return err
		}
	}
	return r.write(b)
}

// gc calls the handler only with a list of what lives on: without one (cnitool gc),
// everything would have to be taken for garbage. One plugin of a chain says so.
func gc(r *Request) error {
	var conf types.GCConf
	if err := types.Decode(r.Stdin, &conf); err != nil {
		return err
	}
	if r.valid = conf.Valid; r.valid == nil {
		r.valid = conf.ValidOld
	}
	if r.valid == nil {
		if r.plugin.GC != nil && !r.plugin.Chained {
			r.Warn("GC without cni.dev/valid-attachments: nothing is collected")
		}
		return nil
	}
	return quiet(func(p Plugin) func(*Request) error { return p.GC })(r)
}

// quiet calls a handler that has no result.
func quiet(handler func(Plugin) func(*Request) error) func(*Request) error {
	return func(r *Request) error {
		if h := handler(r.plugin); h != nil {
			return h(r)
		}
		return nil
	}
}
