// Package skel implements the part of the CNI protocol that all plugins share (SPEC 1.1.0, sections 2
// and 5). It reads the environment and stdin, checks versions and names, opens the namespaces, calls the
// handler, and prints the result or the error. If ADD fails, skel undoes the handler's changes. Handlers
// return their result, and no other package prints or exits.
package skel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/version"
)

// A Plugin is a name and one handler per verb. A verb without a handler succeeds and does nothing,
// except ADD, which fails.
type Plugin struct {
	Name  string
	Since types.Version // the oldest supported cniVersion; if it is zero, the plugin supports 0.1.0
	IPAM  bool          // whether the plugin is an IPAM plugin, which needs no container namespace
	// Chained means that the plugin needs the result of an earlier plugin in the chain.
	Chained bool
	Add     func(*Request) (*types.Result, error)
	Del     func(*Request) error
	Check   func(*Request) error
	// RequireOwn returns an error if the interface CNI_IFNAME belongs to another attachment. It is called before Check and
	// Repair. It is nil for a plugin that uses no such interface.
	RequireOwn func(*Request) error
	// Repair restores what CHECK reports as missing on the host (see CommandRepair). It takes nothing from another
	// attachment, changes nothing where nothing is missing, and changes the container only if RepairsContainer.
	Repair func(*Request) error
	// Status returns an error with types.CodeNotAvailable if ADD cannot succeed, or with
	// types.CodeLimited if ADD can succeed only in part.
	Status func(*Request) error
	GC     func(*Request) error
	// Commands maps the names of commands to their functions. Operators and service managers run a command as NAME
	// COMMAND ARGUMENT…, without CNI_COMMAND. A command gets the arguments after its name. It gets a configuration
	// only if it calls Request.ReadConfig.
	Commands map[string]func(r *Request, args []string) error
}

// WithConfig returns p with handlers of ADD and CHECK that first call parse, which parses and checks the whole
// configuration. If p has no handler of STATUS, it gets one that returns the error of parse.
func WithConfig[C any](
	p Plugin, parse func(*Request) (C, error), add func(*Request, C) (*types.Result, error), check func(*Request, C) error,
) Plugin {
	p.Add = func(r *Request) (*types.Result, error) {
		conf, err := parse(r)
		if err != nil {
			return nil, errors.Join(err, r.misspelled)
		}
		return add(r, conf)
	}
	p.Check = Checked(parse, check)
	if p.Status == nil {
		p.Status = func(r *Request) error {
			_, err := parse(r)
			return types.NotAvailable(err)
		}
	}
	return p
}

// Env is the input and output of one call, which are the environment variables, the streams, and the
// paths, times and hooks that tests replace.
type Env struct {
	Environ []string // KEY=VALUE
	Args    []string // the arguments of the process, without its name
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	HostNS  string // path of the host's namespace; if it is "", skel uses the namespace of the process
	Lock    string // path of the lock file; if it is "", skel uses LockFile
	Pipe    string // path of the pipe of "plumb trace"; if it is "", skel uses trace.Pipe
	// LockWait is how long a call waits for a lock. If it is zero, a call waits for lockWait.
	LockWait time.Duration
	// Before and After are called around each step (see trace.Tracer). Only tests set them.
	Before, After func(step string) error
}

// Main runs one call with the environment and the streams of the process, and exits.
func Main(p Plugin) {
	slowMonitor()
	os.Exit(Run(p, Env{Environ: os.Environ(), Args: os.Args[min(1, len(os.Args)):], Stdin: os.Stdin, Stdout: stdout(), Stderr: outputStream(2, "stderr")}))
}

// TimerSlack is the timer slack, in nanoseconds, of the monitor thread of the Go runtime (runtime.sysmon), of threads that
// this thread creates, and of processes that a plugin starts. By default, the monitor thread looks for blocked goroutines
// every 20 µs plus 50 µs of slack, and each time interrupts the thread that works. With a longer slack, a call uses a
// fifth less processor time, and a timer of these threads can expire up to this much later.
const TimerSlack = 1_000_000

// slowMonitor sets the timer slack of the monitor thread, which is the first thread that the Go runtime starts. The file
// exists since Linux 4.6, and needs CAP_SYS_NICE. Without it, the call only uses more processor time.
func slowMonitor() {
	tasks, _ := os.Open("/proc/self/task") // all methods of a nil *os.File return an error
	if threads, _ := tasks.Readdirnames(2); len(threads) == 2 {
		_ = os.WriteFile("/proc/"+threads[1]+"/timerslack_ns", fmt.Append(nil, TimerSlack), 0)
	}
	_ = tasks.Close()
}

// Run runs one call and returns the exit status.
func Run(p Plugin, env Env) int {
	r := newRequest(p, env)
	if r.Command == "" {
		return r.answerUser()
	}
	if r.Command != cmdVersion {
		r.openLog()
		r.openTrace()
	}
	err := r.serve()
	r.endTrace(err)
	if err != nil {
		r.printError(err)
		return 1
	}
	return 0
}

// answerUser answers a user, who calls the plugin without CNI_COMMAND.
func (r *Request) answerUser() int {
	switch args := r.env.Args; {
	case len(args) == 0, args[0] == "--version":
		return r.printBanner()
	case r.plugin.Commands[args[0]] != nil:
		return r.runCommand()
	case slices.Contains([]string{"--help", "-h", "help"}, args[0]):
		fmt.Fprintf(r.env.Stdout, "%[1]s %[2]s is a plugin of the Container Network Interface. A container runtime calls it with CNI_COMMAND and a configuration on stdin.\n"+
			"Page: https://github.com/plumb-cni/plumb/tree/main/plugins/%[1]s. Schema of the configuration: plumb schema %[1]s\n"+
			"Commands: %[3]s\n", r.plugin.Name, version.String(), r.commands())
		return 0
	default:
		fmt.Fprintf(r.env.Stderr, "%s: unknown argument %q; the commands are: %s\n", r.plugin.Name, args[0], r.commands())
		return 2
	}
}

// commands lists what a user can pass as the first argument.
func (r *Request) commands() string {
	return strings.Join(append(slices.Sorted(maps.Keys(r.plugin.Commands)), "--help", "--version"), ", ")
}

// printBanner prints the name and version of the plugin. Run calls it if CNI_COMMAND is not set. The
// first line must begin with the name and the version, because runtimes read the version there.
func (r *Request) printBanner() int {
	fmt.Fprintf(r.env.Stderr, "CNI %s plugin %s\nCNI protocol versions supported: %s\n",
		r.plugin.Name, version.String(), strings.Join(types.VersionsSince(r.plugin.since()), ", "))
	return 0
}

// runCommand calls the command that the arguments name. It prints errors to stderr, because its caller
// is not a runtime.
func (r *Request) runCommand() int {
	r.Trace.Who = r.plugin.Name + " " + r.env.Args[0]
	if err := r.command(); err != nil {
		fmt.Fprintf(r.env.Stderr, "%s: %s\n", r.Trace.Who, shorten(oneLine(err.Error())))
		return 1
	}
	return 0
}

// command opens the host's namespace and calls the command.
func (r *Request) command() (err error) {
	r.openLog()
	defer r.closeLogs()
	defer func() { err = r.cleanUp(recover(), err) }()
	if err := r.openNamespaces(verb{}); err != nil {
		return err
	}
	return r.plugin.Commands[r.env.Args[0]](r, r.env.Args[1:])
}

func (p Plugin) since() types.Version { return max(p.Since, types.V010) }

// printError prints err as an error result of the specification to stdout, or to stderr if writing to
// stdout fails.
func (r *Request) printError(err error) {
	coded := *types.AsError(err)
	coded.Msg, coded.Details, coded.Problems = shorten(oneLine(coded.Msg)), shorten(coded.Details), types.ProblemsIn(err)
	for i, p := range coded.Problems {
		coded.Problems[i] = shortenProblem(p)
	}
	v := types.Newest.String()
	if r.Version != 0 {
		v = r.Version.String()
	}
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // people read the text
	enc.SetIndent("", "    ")
	_ = enc.Encode(struct { // strings and a number can always be encoded
		CNIVersion string `json:"cniVersion"`
		*types.Error
	}{v, &coded})
	if _, werr := r.env.Stdout.Write(body.Bytes()); werr != nil {
		fmt.Fprintf(r.env.Stderr, "%s: %v (and stdout cannot be written: %v)\n", r.plugin.Name, err, werr)
	}
}

// oneLine replaces the newlines of errors.Join in the text of an error with semicolons.
func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }

// ReadConfig reads the configuration of one plugin from stdin. Only Commands call it, because skel reads
// the configuration for verbs.
func (r *Request) ReadConfig() error { return r.readStdin() }

// maxStdin limits the size of a configuration with its prevResult, in bytes.
const maxStdin = 16 << 20

// readStdin reads the configuration from stdin and checks the keys that the specification defines for
// all plugins.
func (r *Request) readStdin() error {
	var in bytes.Buffer
	if _, err := in.ReadFrom(io.LimitReader(r.env.Stdin, maxStdin+1)); err != nil {
		return types.Errorf(types.CodeIO, "read configuration from stdin: %w", err)
	}
	if in.Len() > maxStdin {
		return types.Errorf(types.CodeDecode, "read configuration from stdin: more than %d MiB", maxStdin>>20)
	}
	r.Stdin = in.Bytes()
	if len(bytes.TrimSpace(r.Stdin)) == 0 {
		return types.Errorf(types.CodeDecode, "decode configuration: stdin is empty; the network configuration is expected there as JSON")
	}
	if err := r.decodeConf(); err != nil {
		return err
	}
	if r.Conf.Type == "" && len(r.Conf.Plugins) > 0 {
		return types.Errorf(types.CodeConfig, "plugins: the configuration is a list of plugins (a conflist); pass one plugin of the list, with the \"name\" and \"cniVersion\" of the list")
	}
	if r.Conf.Name == "" {
		return types.Errorf(types.CodeConfig, "name: missing network name")
	}
	if !types.IsID(r.Conf.Name) {
		return &types.Error{Code: types.CodeConfig, Msg: "name: invalid characters in network name", Details: r.Conf.Name + types.IDRule}
	}
	return r.checkVersion()
}

// decodeConf decodes the keys that skel reads. In DEL, which must succeed, a value of the wrong type is
// an error only for a key that DEL needs (types.DelConf). For any other key, DEL warns and treats the
// key as missing. If the value is in "ipam", an interface plugin cannot know which IPAM plugin must
// release the addresses. In that case, del returns an error at its end.
func (r *Request) decodeConf() error {
	err := types.Decode(r.Stdin, &r.Conf) // decodes the other keys even if it rejects some
	if err == nil && r.Conf.Strict && r.Command != "DEL" {
		err = types.CheckNotTwice(r.Stdin)
	}
	if err == nil || r.Command != "DEL" || types.Decode(r.Stdin, new(types.DelConf)) != nil {
		return err
	}
	r.Warn("%v", err)
	if !r.plugin.Chained && !r.plugin.IPAM {
		r.ipamErr = types.Decode(r.Stdin, new(types.IPAMConf))
	}
	return nil
}

// checkVersion returns an error if the plugin or the verb does not support the configuration's
// cniVersion. DEL must succeed, and therefore treats an unknown version as the newest version.
func (r *Request) checkVersion() error {
	v, err := types.ParseVersion(r.Conf.CNIVersion)
	if err != nil && r.Command == "DEL" {
		r.Warn("cniVersion %q is not known; DEL uses %s", r.Conf.CNIVersion, types.Newest)
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

// serve runs the verb of one call. If an ADD fails or panics, the deferred call of cleanUp undoes the
// changes.
func (r *Request) serve() (err error) {
	verb, known := verbs[r.Command]
	if !known {
		return &types.Error{
			Code: types.CodeEnvironment, Msg: "unknown CNI_COMMAND: " + r.Command, Details: "want ADD, CHECK, DEL, GC, STATUS or VERSION",
		}
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
	r.beginTrace()
	defer func() { err = r.cleanUp(recover(), err) }()
	if err := r.lockAttachment(verb); err != nil {
		return err
	}
	if err := r.openNamespaces(verb); err != nil {
		return err
	}
	if verb.marks && !r.plugin.IPAM {
		if err := r.writeMark(); err != nil {
			r.Warn("mark the attachment: %v; plumb repair may restore a part of it", err)
		}
	}
	if err := verb.call(r); err != nil {
		return err
	}
	r.Undo.Commit()
	return nil
}

// cleanUp undoes a failed ADD, and closes the namespaces and files of the request. It returns err or, if
// the handler panicked, an error with the value of the panic. It adds errors of the undo to the details.
func (r *Request) cleanUp(panicked any, err error) error {
	if panicked != nil {
		err = &types.Error{Code: types.CodeInternal, Msg: fmt.Sprint("panic: ", panicked), Details: string(debug.Stack())}
	}
	if undone := r.Undo.Rollback(); undone != nil {
		coded := *types.AsError(err)
		coded.Details = strings.TrimPrefix(coded.Details+"; could not undo: "+oneLine(undone.Error()), "; ")
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

// add calls the handler and prints its result. ADD fails if the result cannot be printed.
func add(r *Request) error {
	if r.plugin.Add == nil {
		return types.Errorf(types.CodeInternal, "plugin %s has no ADD", r.plugin.Name)
	}
	result, err := r.plugin.Add(r)
	if err != nil {
		return explainVanished(err)
	}
	marshal, since := (*types.Result).Marshal, types.V110
	if r.plugin.IPAM {
		marshal, since = (*types.Result).MarshalLease, types.V030
	}
	for _, route := range result.Routes {
		if route.GWs != nil && r.Version < since {
			r.Warn("the result contains only the first gateway of route %s, because cniVersion %s has no gws; use 1.1.0", route.Dst, r.Version)
		}
	}
	b, err := marshal(result, r.Version)
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

// explainVanished returns an error of ADD with types.CodeTryAgain if another program deleted an interface during ADD, such as
// a bridge or a master. The kernel then answers ENODEV. A plugin returns a code, or a types.Problem, for an interface that
// it looked for and that did not exist.
func explainVanished(err error) error {
	var coded *types.Error
	if !errors.Is(err, syscall.ENODEV) || errors.As(err, &coded) || len(types.ProblemsIn(err)) > 0 {
		return err
	}
	return types.Errorf(types.CodeTryAgain, "an interface was deleted during ADD: %w; try again", err)
}

// gc calls the handler only if the configuration contains the list of valid attachments. Without the
// list, which cnitool gc does not pass, the handler would delete all attachments. With two lists, it would
// delete the attachments that only the first one contains. Only a plugin that is not chained warns about a
// missing list, so that a chain warns once.
func gc(r *Request) error {
	if err := types.CheckNotTwice(r.Stdin, "cni.dev/valid-attachments", "cni.dev/attachments"); err != nil {
		return err
	}
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
	return r.handle(r.plugin.GC)
}

// del calls the handler. If the configuration does not say which IPAM plugin must release the
// addresses, del returns an error about it after everything else is deleted.
func del(r *Request) error {
	return errors.Join(r.handle(r.plugin.Del), r.ipamErr)
}

// check executes CHECK, unless the interface belongs to another attachment.
func check(r *Request) error {
	if err := r.requireOwn(); err != nil {
		return err
	}
	return r.check()
}

// requireOwn returns an error if the interface belongs to another attachment, which no REPAIR can change.
func (r *Request) requireOwn() error {
	return types.WithRepair(types.RepairNever, r.handle(r.plugin.RequireOwn))
}

// handle calls a handler that returns no result. It returns nil if the plugin has no such handler.
func (r *Request) handle(handler func(*Request) error) error {
	if handler == nil {
		return nil
	}
	return handler(r)
}
