package nstest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest/sandbox"
)

// A Call is one call of a plugin. An empty field selects the value that most tests need. Env replaces
// environment variables, for example with "CNI_IFNAME=".
type Call struct {
	Command     string
	ContainerID string // if it is "", the call uses "test"
	IfName      string // if it is "", the call uses "eth0"
	Args        string // CNI_ARGS
	Path        string // CNI_PATH; if it is "", the call uses a directory that does not exist
	Container   *NS    // CNI_NETNS
	NetNS       string // CNI_NETNS if Container is nil
	Config      string // stdin
	Env         []string
	Host        *NS // the namespace in which the plugin runs; if it is nil, the test's namespace
	// Before and After are the fields of trace.Tracer. Only Run uses them.
	Before, After func(step string) error
}

// With returns the call with another command.
func (c Call) With(command string) Call {
	c.Command = command
	return c
}

// OnContainerSide returns the call with skel.ContainerSide.
func (c Call) OnContainerSide() Call {
	c.Env = append(slices.Clone(c.Env), skel.ContainerSide+"=1")
	return c
}

// FailAt returns the call with the error at each step whose name begins with step.
func (c Call) FailAt(step string, err error) Call {
	c.Before = func(s string) error {
		if strings.HasPrefix(s, step) {
			return err
		}
		return nil
	}
	return c
}

// RecordSteps returns the call and a list to which the call appends the name of each step.
func (c Call) RecordSteps() (Call, *[]string) {
	steps := new([]string)
	c.Before = func(step string) error { *steps = append(*steps, step); return nil }
	return c, steps
}

// WithPrevResult returns the configuration with the result as prevResult. The configuration must contain
// another key, but no prevResult.
func WithPrevResult(conf, result string) string {
	return strings.TrimSuffix(conf, "}") + `,"prevResult":` + result + "}"
}

// environ returns the environment of the call. Only PATH comes from the test's own environment.
func (c Call) environ() []string {
	or := func(value, otherwise string) string {
		if value == "" {
			return otherwise
		}
		return value
	}
	if c.Container != nil {
		c.NetNS = c.Container.Path()
	}
	return override([]string{
		"PATH=" + os.Getenv("PATH"),
		"CNI_COMMAND=" + c.Command,
		"CNI_CONTAINERID=" + or(c.ContainerID, "test"),
		"CNI_IFNAME=" + or(c.IfName, "eth0"),
		"CNI_NETNS=" + c.NetNS,
		"CNI_ARGS=" + c.Args,
		"CNI_PATH=" + or(c.Path, "/nonexistent"),
	}, c.Env)
}

// override returns env with the settings, which replace variables with the same names. If a name occurred
// twice, some programs would read the first value, and others the second.
func override(env, settings []string) []string {
	for _, s := range settings {
		name, _, _ := strings.Cut(s, "=")
		env = slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
	}
	return append(env, settings...)
}

// A Reply is the outcome of a call of a plugin.
type Reply struct {
	Stdout, Stderr string
	Exit           int
}

// Run calls the plugin in this process.
func Run(p skel.Plugin, c Call) Reply {
	var stdout, stderr bytes.Buffer
	env := skel.Env{
		Environ: c.environ(), Stdin: strings.NewReader(c.Config), Stdout: &stdout, Stderr: &stderr,
		Before: c.Before, After: c.After,
	}
	if c.Host != nil {
		env.HostNS = c.Host.Path()
	}
	exit := skel.Run(p, env)
	return Reply{stdout.String(), stderr.String(), exit}
}

// RunAll runs the command of all calls at the same time in this process, and returns their
// replies in the order of the calls.
func RunAll(p skel.Plugin, command string, calls []Call) []Reply {
	replies := make([]Reply, len(calls))
	var wg sync.WaitGroup
	for i, c := range calls {
		wg.Go(func() { replies[i] = Run(p, c.With(command)) })
	}
	wg.Wait()
	return replies
}

// Cmd returns the command that calls the executable at path, for tests that start it themselves. The test
// must start it in the namespace Host.
func (c Call) Cmd(path string) *exec.Cmd {
	cmd := exec.Command(path)
	cmd.Env, cmd.Stdin = c.environ(), strings.NewReader(c.Config)
	return cmd
}

// Exec calls the executable at path, as a runtime on the host does.
func Exec(tb TB, path string, c Call) Reply {
	tb.Helper()
	var stdout, stderr bytes.Buffer
	cmd := c.Cmd(path)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := cmd.Start
	if c.Host != nil {
		start = func() error { return c.Host.Start(cmd) }
	}
	if err := start(); err != nil {
		tb.Fatalf("start %s: %v", path, err)
	}
	var status *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &status) {
		tb.Fatalf("run %s: %v", path, err)
	}
	return Reply{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// OK fails the test unless the call succeeded.
func (r Reply) OK(tb TB) Reply {
	tb.Helper()
	if r.Exit != 0 {
		tb.Fatalf("want success, got exit status %d\nstdout: %s\nstderr: %s", r.Exit, r.Stdout, r.Stderr)
	}
	return r
}

// Result returns the result of an ADD. It fails the test if the ADD failed.
func (r Reply) Result(tb TB) *types.Result {
	tb.Helper()
	result, err := types.ParseResult(types.Newest, []byte(r.OK(tb).Stdout))
	if err != nil {
		tb.Fatalf("%v\nstdout: %s", err, r.Stdout)
	}
	return result
}

// A Failure is the error that a plugin printed.
type Failure struct {
	CNIVersion string          `json:"cniVersion"`
	Code       uint            `json:"code"`
	Msg        string          `json:"msg"`
	Details    string          `json:"details"`
	Problems   []types.Problem `json:"problems"`
}

func (f Failure) String() string { return fmt.Sprintf("code %d: %s; %s", f.Code, f.Msg, f.Details) }

// Failure returns the error of a call. It fails the test if the call succeeded, or if the error is not one
// JSON document with version, code and message, as the specification requires.
func (r Reply) Failure(tb TB) Failure {
	tb.Helper()
	if r.Exit == 0 {
		tb.Fatalf("want an error, got success\nstdout: %s\nstderr: %s", r.Stdout, r.Stderr)
	}
	var f Failure
	dec := json.NewDecoder(strings.NewReader(r.Stdout))
	if err := dec.Decode(&f); err != nil {
		tb.Fatalf("want an error on stdout, got %v\nstdout: %s\nstderr: %s", err, r.Stdout, r.Stderr)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		tb.Fatalf("want one document on stdout, got %s", r.Stdout)
	}
	if f.CNIVersion == "" || f.Code == 0 || f.Msg == "" {
		tb.Fatalf("want an error with cniVersion, code and msg, got %s", r.Stdout)
	}
	return f
}

// RequireFailure fails the test unless the call failed with the code, and its error contains all texts.
func (r Reply) RequireFailure(tb TB, code int, texts ...string) {
	tb.Helper()
	f := r.Failure(tb)
	if f.Code != uint(code) {
		tb.Fatalf("want code %d, got %d: %s", code, f.Code, f)
	}
	for _, text := range texts {
		if !strings.Contains(f.String(), text) {
			tb.Fatalf("want %q in the error, got %s", text, f)
		}
	}
}

// Reservations returns the addresses that host-local has reserved for a network in its dataDir, in the
// order of their names.
func Reservations(tb TB, dataDir, network string) []string {
	tb.Helper()
	files, err := os.ReadDir(filepath.Join(dataDir, network))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		tb.Fatalf("%v", err)
	}
	var addrs []string
	for _, f := range files {
		if _, err := netip.ParseAddr(f.Name()); err == nil {
			addrs = append(addrs, f.Name())
		}
	}
	return addrs
}

// builds contains the executables that Build has built in this process.
var builds struct {
	sync.Mutex
	dir   string
	built map[string]bool
}

// Build returns a directory with the executables of the plugins, which can serve as CNI_PATH. It also
// accepts the name of the operator's tool, plumb. Build builds each executable at most once per process. If
// PLUMB_BIN names a directory, as with scripts/test.sh, the directory must contain the executables, and
// Build builds nothing.
func Build(tb TB, plugins ...string) string {
	tb.Helper()
	if dir := os.Getenv("PLUMB_BIN"); dir != "" {
		for _, p := range plugins {
			if _, err := os.Stat(filepath.Join(dir, p)); err != nil {
				tb.Fatalf("PLUMB_BIN: %v", err)
			}
		}
		return dir
	}
	builds.Lock()
	defer builds.Unlock()
	if builds.dir == "" {
		builds.dir, builds.built = buildDir(tb), map[string]bool{}
	}
	missing := slices.DeleteFunc(slices.Clone(plugins), func(p string) bool { return builds.built[p] })
	if len(missing) > 0 {
		build(tb, builds.dir, missing)
	}
	for _, p := range missing {
		builds.built[p] = true
	}
	return builds.dir
}

// build builds the executables into a directory that all test processes of the user share, because go build links only what is
// not up to date there, and then into dir, because the next process may build another version. It calls one go build at a time.
func build(tb TB, dir string, plugins []string) {
	tb.Helper()
	cache, err := os.UserCacheDir()
	Must(tb, err)
	shared := filepath.Join(cache, "plumb-test/bin")
	Must(tb, os.MkdirAll(shared, 0o755))
	lock, err := os.Create(filepath.Join(shared, "lock"))
	Must(tb, err)
	defer func() { _ = lock.Close() }()
	Must(tb, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	args := []string{"build", "-trimpath", "-o", shared + "/"}
	for _, p := range plugins {
		source := "./plugins/" + p
		if p == "plumb" {
			source = "./cmd/plumb"
		}
		args = append(args, source)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = Root(tb), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	for _, p := range plugins {
		from, to := filepath.Join(shared, p), filepath.Join(dir, p)
		if os.Link(from, to) != nil { // another file system
			Must(tb, exec.Command("cp", from, to).Run())
		}
	}
}

// Reference returns a directory with the newest reference plugins that plumb is compared with. It is the directory that
// CNI_REFERENCE names, or scripts/programs.sh builds it if necessary.
func Reference(tb TB) string {
	tb.Helper()
	if dir := os.Getenv("CNI_REFERENCE"); dir != "" {
		return dir
	}
	return Programs(tb, "reference")
}

// Programs returns a directory with these programs of test/programs/MODULE, or with all programs of the module. It builds
// the programs that are not built yet.
func Programs(tb TB, module string, programs ...string) string {
	tb.Helper()
	const script = "scripts/programs.sh"
	dir, err := os.Getwd()
	Must(tb, err)
	cmd := exec.Command(filepath.Join(sandbox.Above(dir, script), script), append([]string{module}, programs...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("%v: %v\n%s", cmd, err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// ExecReference calls the reference plugin with the name, as Exec does. The plugin finds other reference plugins.
func ExecReference(tb TB, name string, c Call) Reply {
	tb.Helper()
	dir := Reference(tb)
	if c.Path == "" {
		c.Path = dir
	}
	return Exec(tb, filepath.Join(dir, name), c)
}

// buildDir creates the directory for the executables of this process. It also removes the directories of
// processes that have ended, because a test does not know whether it is the last one of its process.
func buildDir(tb TB) string {
	tb.Helper()
	prefix := filepath.Join(os.TempDir(), "plumb-bin-")
	old, _ := filepath.Glob(prefix + "*")
	for _, dir := range old {
		pid, err := strconv.Atoi(strings.TrimPrefix(dir, prefix))
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = os.RemoveAll(dir)
		}
	}
	dir := prefix + strconv.Itoa(os.Getpid())
	Must(tb, os.MkdirAll(dir, 0o755))
	return dir
}

// Root returns the top directory of the module.
func Root(tb TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	root := sandbox.Above(dir, "go.mod")
	if root == "" {
		tb.Fatalf("no go.mod above the working directory (%v)", err)
	}
	return root
}
