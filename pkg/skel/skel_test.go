package skel_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// TestMain runs the test binary as a plugin for the tests that start a process.
func TestMain(m *testing.M) {
	if file := os.Getenv("SKEL_TEST_PLUGIN"); file != "" {
		skel.Main(skel.Plugin{Name: "test", IPAM: os.Getenv("SKEL_TEST_NODE") == "", Add: func(r *skel.Request) (*types.Result, error) {
			r.Undo.Push("write", func() error { return os.WriteFile(file, []byte("undone"), 0o600) })
			return &types.Result{DNS: types.DNS{Domain: monitorSlack()}}, nil
		}})
	}
	os.Exit(m.Run())
}

// monitorSlack returns the timer slack of the second thread of this process.
func monitorSlack() string {
	tasks, _ := os.Open("/proc/self/task")
	threads, _ := tasks.Readdirnames(2)
	slack, _ := os.ReadFile("/proc/" + threads[1] + "/timerslack_ns")
	return strings.TrimSpace(string(slack))
}

// newNS returns the path of a network namespace that exists until the test ends.
func newNS(t *testing.T) string { return nstest.New(t).Path() }

// A call is one call of a plugin. run replaces an empty field with its default.
type call struct {
	env   []string // in addition to the variables of an ADD; the first setting counts
	conf  string
	stdin io.Reader // instead of conf
	out   io.Writer // stdout; nil: a buffer
	pipe  string    // the pipe of "plumb trace"; empty: none
}

type outcome struct {
	code           int
	stdout, stderr string
	err            *failure // set if code is not 0
}

type failure struct {
	CNIVersion string
	Code       uint
	Msg        string
	Details    string
	Problems   []types.Problem
}

const (
	plain = `{"cniVersion":"1.1.0","name":"net","type":"test"}`
	gone  = "/run/plumb-test-nowhere"
)

func run(t *testing.T, p skel.Plugin, c call) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if c.conf == "" {
		c.conf = plain
	}
	if c.stdin == nil {
		c.stdin = strings.NewReader(c.conf)
	}
	if c.out == nil {
		c.out = &stdout
	}
	env := []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_NETNS=" + gone, "CNI_IFNAME=eth0", "CNI_PATH=/bin"}
	code := skel.Run(p, skel.Env{
		Environ: append(slices.Clone(c.env), env...), // the first setting counts
		Stdin:   c.stdin, Stdout: c.out, Stderr: &stderr, Lock: filepath.Join(t.TempDir(), "lock"),
		Pipe: cmp.Or(c.pipe, gone),
	})
	o := outcome{code: code, stdout: stdout.String(), stderr: stderr.String()}
	if code != 0 && c.out == io.Writer(&stdout) {
		o.err = new(failure)
		dec := json.NewDecoder(strings.NewReader(o.stdout))
		dec.DisallowUnknownFields()
		if err := dec.Decode(o.err); err != nil || dec.More() {
			t.Errorf("stdout is not one error object (%v): %q", err, o.stdout)
		}
	}
	return o
}

// plugin returns a plugin that adds each verb to calls. It is an IPAM plugin, and therefore needs
// no namespace.
func plugin(calls *[]string) skel.Plugin {
	note := func(verb string) func(*skel.Request) error {
		return func(r *skel.Request) error {
			if r.Command != verb {
				return fmt.Errorf("%s called for %s", verb, r.Command)
			}
			*calls = append(*calls, verb)
			return nil
		}
	}
	add := func(r *skel.Request) (*types.Result, error) { return &types.Result{}, note("ADD")(r) }
	return skel.Plugin{
		Name: "test", IPAM: true,
		Add: add, Del: note("DEL"), Check: note("CHECK"), Status: note("STATUS"), GC: note("GC"),
	}
}

// pluginWithAdd returns an IPAM plugin without handlers except ADD.
func pluginWithAdd(add func(r *skel.Request) (*types.Result, error)) skel.Plugin {
	return skel.Plugin{Name: "test", IPAM: true, Add: add}
}

func TestVerbs(t *testing.T) {
	all := "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"
	for _, tc := range []struct{ verb, needs, since string }{
		{"ADD", all, "0.1.0"},
		{"CHECK", all, "0.4.0"},
		{"DEL", "CNI_CONTAINERID,CNI_IFNAME,CNI_PATH", "0.1.0"},
		{"GC", "CNI_PATH", "1.1.0"},
		{"STATUS", "CNI_PATH", "1.1.0"},
	} {
		needs := strings.Split(tc.needs, ",")
		var calls []string
		p := plugin(&calls)
		verb := "CNI_COMMAND=" + tc.verb
		conf := `{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[]}`

		exact := []string{verb} // only the variables that the verb needs are set
		for _, key := range strings.Split(all, ",") {
			if !slices.Contains(needs, key) {
				exact = append(exact, key+"=")
			}
		}
		if o := run(t, p, call{env: exact, conf: conf}); o.code != 0 || !slices.Equal(calls, []string{tc.verb}) {
			t.Errorf("%s: %+v, calls %v", tc.verb, o, calls)
		} else if printed := o.stdout != ""; printed != (tc.verb == "ADD") {
			t.Errorf("%s printed %q", tc.verb, o.stdout)
		}

		bare := []string{verb, "CNI_CONTAINERID=", "CNI_NETNS=", "CNI_IFNAME=", "CNI_PATH="}
		o := run(t, p, call{env: bare})
		if want := "required env variables [" + tc.needs + "] missing"; o.err == nil || o.err.Code != 4 || o.err.Msg != want {
			t.Errorf("%s without environment: %s", tc.verb, o.stdout)
		}

		for _, v := range types.VersionsSince(types.V010) {
			calls = nil
			o := run(t, p, call{env: []string{verb}, conf: strings.Replace(conf, "1.1.0", v, 1)})
			allowed, _ := types.ParseVersion(tc.since)
			asked, _ := types.ParseVersion(v)
			switch {
			case asked >= allowed && tc.verb == "ADD" && asked <= types.V020: // a version that requires an address
			case asked >= allowed && (o.code != 0 || len(calls) != 1):
				t.Errorf("%s under %s: %s", tc.verb, v, o.stdout)
			case asked < allowed && (o.err == nil || o.err.Code != 1 || o.err.Msg != "config version does not allow "+tc.verb || calls != nil):
				t.Errorf("%s under %s: %s, calls %v", tc.verb, v, o.stdout, calls)
			}
		}

		if o := run(t, skel.Plugin{Name: "test", IPAM: true}, call{env: []string{verb}, conf: conf}); (o.code == 0) == (tc.verb == "ADD") {
			t.Errorf("%s without a handler: %+v", tc.verb, o)
		}
	}
}

func TestUnknownCommand(t *testing.T) {
	for _, verb := range []string{"add", "UPDATE", " "} {
		o := run(t, plugin(new([]string)), call{env: []string{"CNI_COMMAND=" + verb}})
		if o.err == nil || o.err.Code != 4 || o.err.Msg != "unknown CNI_COMMAND: "+verb || o.err.Details != "want ADD, CHECK, DEL, GC, STATUS or VERSION" {
			t.Errorf("%q: %s", verb, o.stdout)
		}
	}
}

func TestBanner(t *testing.T) {
	p := plugin(new([]string))
	p.Name, p.Since = "bridge", types.V031
	o := run(t, p, call{env: []string{"CNI_COMMAND="}, stdin: unreadable{t}})
	want := "CNI bridge plugin v2.0.0+dev\nCNI protocol versions supported: 0.3.1, 0.4.0, 1.0.0, 1.1.0\n"
	if o.code != 0 || o.stdout != "" || o.stderr != want {
		t.Errorf("%+v", o)
	}
}

func TestCommands(t *testing.T) {
	var calls []string
	p := skel.Plugin{Name: "firewall", Commands: map[string]func(*skel.Request, []string) error{
		"restore": func(r *skel.Request, args []string) error {
			if calls = append(calls, strings.Join(args, ",")); r.HostNS == nil {
				t.Error("there is no host")
			}
			return errors.New("wrong")
		},
	}}
	var stdout, stderr strings.Builder
	env := skel.Env{Environ: []string{"CNI_COMMAND="}, Stdin: unreadable{t}, Stdout: &stdout, Stderr: &stderr}
	for _, args := range [][]string{{"restore"}, {"restore", "-all", "more"}} {
		stderr.Reset()
		env.Args = args
		if code := skel.Run(p, env); code != 1 || stdout.String() != "" || stderr.String() != "firewall restore: wrong\n" {
			t.Errorf("exit status %d, stdout %q, stderr %q", code, stdout.String(), stderr.String())
		}
	}
	if want := []string{"", "-all,more"}; !slices.Equal(calls, want) {
		t.Errorf("calls with arguments %q, want %q", calls, want)
	}
	for _, args := range [][]string{{"other"}, {"other", "restore"}, {""}} {
		stderr.Reset()
		env.Args = args
		want := fmt.Sprintf("firewall: unknown argument %q; the commands are: restore, --help, --version\n", args[0])
		if code := skel.Run(p, env); code != 2 || len(calls) != 2 || stdout.String() != "" || stderr.String() != want {
			t.Errorf("with arguments %q: exit status %d, stderr %q", args, code, stderr.String())
		}
	}
	for _, args := range [][]string{nil, {"--version"}} {
		env.Args = args
		if code := skel.Run(p, env); code != 0 || len(calls) != 2 {
			t.Errorf("with arguments %q the exit status is %d after %d calls, want the banner", args, code, len(calls))
		}
	}
	env.Args = []string{"--help"}
	if code := skel.Run(p, env); code != 0 || strings.Count(stdout.String(), "\n") != 3 || !strings.HasSuffix(stdout.String(), "\nCommands: restore, --help, --version\n") {
		t.Errorf("--help: exit status %d, %q", code, stdout.String())
	}
	p.Commands, env.Args = nil, []string{"restore"}
	if code := skel.Run(p, env); code != 2 {
		t.Errorf("a plugin without commands has exit status %d, want 2", code)
	}
}

func TestCommandCanReadAConfiguration(t *testing.T) {
	var name string
	p := skel.Plugin{Name: "firewall", Commands: map[string]func(*skel.Request, []string) error{
		"restore": func(r *skel.Request, _ []string) error {
			err := r.ReadConfig()
			name = r.Conf.Name
			return err
		},
	}}
	for stdin, want := range map[string]string{
		`{"cniVersion": "1.0.0", "name": "net", "type": "firewall"}`: "",
		``: "firewall restore: decode configuration: stdin is empty",
		`{"cniVersion": "1.0.0", "name": "net", "plugins": [{}]}`: "firewall restore: plugins: the configuration is a list of plugins",
	} {
		var stderr strings.Builder
		code := skel.Run(p, skel.Env{Args: []string{"restore"}, Stdin: strings.NewReader(stdin), Stdout: io.Discard, Stderr: &stderr})
		if !strings.HasPrefix(stderr.String(), want) || (code == 0) != (want == "") || code == 0 && name != "net" {
			t.Errorf("%s: exit status %d, name %q, stderr %q", stdin, code, name, stderr.String())
		}
	}
}

// An unreadable fails the test if it is read.
type unreadable struct{ t *testing.T }

func (u unreadable) Read([]byte) (int, error) {
	u.t.Error("stdin was read")
	return 0, io.EOF
}

func TestVersionAnswersInTheVersionOfTheCaller(t *testing.T) {
	p := plugin(new([]string))
	p.Since = types.V030
	env := []string{"CNI_COMMAND=VERSION", "CNI_CONTAINERID=", "CNI_NETNS=", "CNI_IFNAME=", "CNI_PATH="}
	for stdin, want := range map[string]string{
		``: "1.1.0", `{"cniVersion":"0.4.0"}`: "0.4.0", ` {"cniVersion": "0.2.0"}` + "\n\n": "0.2.0", `{"cniVersion":"0.4.0"} more`: "0.4.0",
		`{}`: "1.1.0", `{"cniVersion":"9.9.9"}`: "1.1.0", `{"cniVersion":7}`: "1.1.0", `garbage`: "1.1.0", `{"cniVersion":"0.4`: "1.1.0",
	} {
		o := run(t, p, call{env: env, stdin: strings.NewReader(stdin)})
		want := `{"cniVersion":"` + want + `","supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}` + "\n"
		if o.code != 0 || o.stdout != want || o.stderr != "" {
			t.Errorf("%q: %+v", stdin, o)
		}
	}
	if o := run(t, p, call{env: env, stdin: broken{}}); o.code != 0 {
		t.Errorf("stdin cannot be read: %+v", o)
	}
}

func TestMalformedEnvironment(t *testing.T) {
	const allowed = "; use only the characters a-z, A-Z, 0-9, '_', '.' and '-', and begin with a letter or digit"
	for _, tc := range []struct{ env, msg string }{
		{"CNI_CONTAINERID=-c", "invalid characters in containerID"},
		{"CNI_CONTAINERID=../c", "invalid characters in containerID"},
		{"CNI_CONTAINERID=c/d", "invalid characters in containerID"},
		{"CNI_CONTAINERID=cö", "invalid characters in containerID"},
		{"CNI_CONTAINERID=c\n", "invalid characters in containerID"},
		{"CNI_IFNAME=0123456789abcdef", "invalid interface name: longer than 15 bytes"},
		{"CNI_IFNAME=öööööööö", "invalid interface name: longer than 15 bytes"},
		{"CNI_IFNAME=.", "invalid interface name: '.' and '..' are not allowed"},
		{"CNI_IFNAME=..", "invalid interface name: '.' and '..' are not allowed"},
		{"CNI_IFNAME=a/b", "invalid interface name: '/', ':' and '%' are not allowed"},
		{"CNI_IFNAME=a:b", "invalid interface name: '/', ':' and '%' are not allowed"},
		{"CNI_IFNAME=eth%d", "invalid interface name: '/', ':' and '%' are not allowed"},
		{"CNI_IFNAME=a b", "invalid interface name: white space is not allowed"},
		{"CNI_IFNAME=a\u00a0b", "invalid interface name: white space is not allowed"},
	} {
		var calls []string
		details := tc.env
		if strings.HasPrefix(tc.env, "CNI_CONTAINERID") {
			details += allowed
		}
		for _, verb := range []string{"ADD", "CHECK", "DEL"} {
			o := run(t, plugin(&calls), call{env: []string{tc.env, "CNI_COMMAND=" + verb}})
			if o.err == nil || o.err.Code != 4 || o.err.Msg != tc.msg || o.err.Details != details {
				t.Errorf("%s %q: %s", verb, tc.env, o.stdout)
			}
		}
		if o := run(t, plugin(&calls), call{env: []string{tc.env, "CNI_COMMAND=STATUS"}}); o.code != 0 {
			t.Errorf("STATUS, which does not need the variable, %q: %s", tc.env, o.stdout)
		}
	}
	// An error about a malformed variable precedes an error about missing ones.
	o := run(t, plugin(new([]string)), call{env: []string{"CNI_CONTAINERID=-", "CNI_PATH="}})
	if o.err == nil || o.err.Msg != "invalid characters in containerID" {
		t.Errorf("%s", o.stdout)
	}
	for _, good := range []string{"CNI_CONTAINERID=9.-_Z", "CNI_IFNAME=0123456789abcde", "CNI_IFNAME=a.b-c@d"} {
		if o := run(t, plugin(new([]string)), call{env: []string{good}}); o.code != 0 {
			t.Errorf("%q: %s", good, o.stdout)
		}
	}
}

func TestConfiguration(t *testing.T) {
	const allowed = "; use only the characters a-z, A-Z, 0-9, '_', '.' and '-', and begin with a letter or digit"
	for _, tc := range []struct {
		conf         string
		code         uint
		msg, details string
	}{
		{" \n", 6, `decode configuration: stdin is empty; the network configuration is expected there as JSON`, ""},
		{"null", 6, `decode configuration: want an object, got null`, ""},
		{"[]", 6, `decode configuration: want an object, got array`, ""},
		{"garbage", 6, `decode configuration: byte 1: invalid character 'g' looking for beginning of value`, ""},
		{`{"name":"net"`, 6, `decode configuration: byte 13: unexpected end of JSON input`, ""},
		{`{"cniVersion":1.1,"name":"net"}`, 6, `cniVersion: want a string, got number`, ""},
		{`{"cniVersion":"1.1.0","name":7}`, 6, `name: want a string, got number`, ""},
		{`{"cniVersion":"1.1.0"}`, 7, `name: missing network name`, ""},
		{`{"cniVersion":"1.1.0","name":""}`, 7, `name: missing network name`, ""},
		{`{"cniVersion":"1.1.0","name":"a/b"}`, 7, `name: invalid characters in network name`, "a/b" + allowed},
		{`{"cniVersion":"1.1.0","name":"-a"}`, 7, `name: invalid characters in network name`, "-a" + allowed},
		{`{"cniVersion":"1.1.0","name":".."}`, 7, `name: invalid characters in network name`, ".." + allowed},
		{`{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"test"}]}`, 7, `plugins: the configuration is a list of plugins (a conflist); ` +
			`pass one plugin of the list, with the "name" and "cniVersion" of the list`, ""},
		{`{"cniVersion":"1.1.0","plugins":[]}`, 7, `plugins: the configuration is a list of plugins (a conflist); ` +
			`pass one plugin of the list, with the "name" and "cniVersion" of the list`, ""},
		{`{"cniVersion":"1.0","name":"net"}`, 1, "incompatible CNI versions",
			`config is "1.0", plugin supports ["0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]`},
		{`{"cniVersion":"1.2.0","name":"net"}`, 1, "incompatible CNI versions",
			`config is "1.2.0", plugin supports ["0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]`},
		{`{"name":"net"}`, 1, "incompatible CNI versions",
			`config is "", plugin supports ["0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]`},
		{`{"cniVersion":"0.2.0","name":"net"}`, 1, "incompatible CNI versions",
			`config is "0.2.0", plugin supports ["0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]`},
	} {
		var calls []string
		p := plugin(&calls)
		p.Since = types.V030
		o := run(t, p, call{conf: tc.conf})
		if o.err == nil || o.err.Code != tc.code || o.err.Msg != tc.msg || o.err.Details != tc.details || calls != nil {
			t.Errorf("%s: %s, calls %v", tc.conf, o.stdout, calls)
		}
	}
	for _, good := range []string{`{"CNIVERSION":"1.1.0","NAME":"9.-_Z","unknown":[]}`, "\n" + plain + "\n", `{"cniVersion":"1.1.0","name":"net","type":"test","plugins":[]}`} {
		if o := run(t, plugin(new([]string)), call{conf: good}); o.code != 0 {
			t.Errorf("%s: %s", good, o.stdout)
		}
	}
}

// TestDELAcceptsEachVersion checks that DEL succeeds even with a version that the plugin does not
// know, or no longer supports.
func TestDELAcceptsEachVersion(t *testing.T) {
	for version, warns := range map[string]bool{"1.1.0": false, "0.2.0": false, "": false, "1.2.0": true, "x": true} {
		var calls []string
		p := plugin(&calls)
		p.Since = types.V030
		conf := fmt.Sprintf(`{"cniVersion":%q,"name":"net"}`, version)
		o := run(t, p, call{env: []string{"CNI_COMMAND=DEL"}, conf: conf})
		if o.code != 0 || !slices.Equal(calls, []string{"DEL"}) || (o.stderr != "") != warns {
			t.Errorf("%q: %+v, calls %v", version, o, calls)
		}
		if warns && o.stderr != fmt.Sprintf("test: warning: cniVersion %q is not known; DEL uses 1.1.0\n", version) {
			t.Errorf("%q: stderr %q", version, o.stderr)
		}
	}
}

// TestDELGoesOnAfterValuesOfAWrongType checks that DEL of an interface plugin fails only if the
// IPAM plugin cannot be named, and only at its end.
func TestDELGoesOnAfterValuesOfAWrongType(t *testing.T) {
	for keys, code := range map[string]uint{
		`"dns":[],"ipam":{"type":"host-local"}`: 0,
		`"strict":"yes"`:                        0,
		`"ipam":"x"`:                            types.CodeDecode,
		`"ipam":[]`:                             types.CodeDecode,
		`"ipam":{"type":5}`:                     types.CodeDecode,
	} {
		var calls []string
		p := plugin(&calls)
		p.IPAM = false
		noteVerb := p.Del
		p.Del = func(r *skel.Request) error {
			if known := strings.Contains(keys, "host-local"); (r.Conf.IPAM.Type == "host-local") != known || r.Conf.Strict {
				t.Errorf("%s: configuration %+v", keys, r.Conf)
			}
			return noteVerb(r)
		}
		o := run(t, p, call{env: []string{"CNI_COMMAND=DEL"}, conf: `{"cniVersion":"1.1.0","name":"net",` + keys + `}`})
		if (o.err == nil) != (code == 0) || o.err != nil && o.err.Code != code || !slices.Equal(calls, []string{"DEL"}) {
			t.Errorf("%s: %+v, calls %v", keys, o, calls)
		}
		if !strings.Contains(o.stderr, "want ") {
			t.Errorf("%s: stderr %q", keys, o.stderr)
		}
	}
}

func TestStdinThatCannotBeRead(t *testing.T) {
	o := run(t, plugin(new([]string)), call{stdin: broken{}})
	if o.err == nil || o.err.Code != 5 || o.err.Msg != "read configuration from stdin: broken" {
		t.Errorf("%s", o.stdout)
	}
}

func TestStdinIsLimited(t *testing.T) {
	long := strings.NewReader(plain + strings.Repeat(" ", 17<<20))
	o := run(t, plugin(new([]string)), call{stdin: long})
	if o.err == nil || o.err.Code != 6 || o.err.Msg != "read configuration from stdin: more than 16 MiB" || long.Len() < 1<<19 {
		t.Errorf("%s, %d bytes were not read", o.stdout, long.Len())
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error)  { return 0, errors.New("broken") }
func (broken) Write([]byte) (int, error) { return 0, errors.New("broken") }

func TestFormOfAnError(t *testing.T) {
	for _, tc := range []struct {
		err        error
		conf, want string
	}{
		{errors.New(`<a> & "b"`), plain,
			"{\n    \"cniVersion\": \"1.1.0\",\n    \"code\": 999,\n    \"msg\": \"<a> & \\\"b\\\"\"\n}\n"},
		{fmt.Errorf("more: %w", &types.Error{Code: 11, Msg: "m", Details: "d"}), `{"cniVersion":"0.3.1","name":"net"}`,
			"{\n    \"cniVersion\": \"0.3.1\",\n    \"code\": 11,\n    \"msg\": \"more: m; d\"\n}\n"},
		{&types.Error{Code: 100, Msg: "m", Details: "d"}, `{"name":"net"}`,
			"{\n    \"cniVersion\": \"0.1.0\",\n    \"code\": 100,\n    \"msg\": \"m\",\n    \"details\": \"d\"\n}\n"},
		{fmt.Errorf("check: %w", errors.Join(errors.New("a"), types.Problem{Object: "interface x", Kind: types.ProblemDiffers, Want: "up", Fix: "ip link set dev x up"}.Errorf("x is down"),
			&types.Error{Code: 100, Msg: "b", Problems: []types.Problem{{Kind: types.ProblemMissing, Object: "y"}}})), plain,
			"{\n    \"cniVersion\": \"1.1.0\",\n    \"code\": 100,\n    \"msg\": \"check: a; x is down; b\",\n    \"problems\": [\n" +
				"        {\n            \"kind\": \"other\",\n            \"msg\": \"a\"\n        },\n" +
				"        {\n            \"object\": \"interface x\",\n            \"kind\": \"differs\",\n            \"want\": \"up\",\n            \"msg\": \"x is down\",\n            \"fix\": \"ip link set dev x up\"\n        },\n" +
				"        {\n            \"object\": \"y\",\n            \"kind\": \"missing\"\n        }\n    ]\n}\n"},
	} {
		o := run(t, pluginWithAdd(func(*skel.Request) (*types.Result, error) { return nil, tc.err }), call{conf: tc.conf})
		if o.code != 1 || o.stdout != tc.want {
			t.Errorf("%d, %s, want %s", o.code, o.stdout, tc.want)
		}
	}
}

// An error quotes values of a configuration, which may have megabytes.
func TestLongValuesAreShortened(t *testing.T) {
	long, path := strings.Repeat("b", 1<<20), "/"+strings.Repeat("p", 900)
	add := func(r *skel.Request) (*types.Result, error) {
		r.Warn("key %q is long", long)
		p := types.Problem{Object: long, Kind: types.ProblemUnknownKey, Got: long, Fix: "rm " + long}
		return nil, types.Coded(types.CodeConfig, p.Errorf("bridge %q, (%q): longer than 15 bytes; mode %s; %s is no directory", long, long, long, path))
	}
	o := run(t, skel.Plugin{Name: "test", IPAM: true, Add: add}, call{})
	short := strings.Repeat("b", 99)
	want := fmt.Sprintf(`bridge "%[1]s…", ("%.98[1]s…"): longer than 15 bytes; mode %[1]sb…; %[2]s is no directory`, short, path)
	if o.err == nil || o.err.Msg != want || o.err.Problems[0].Msg != want || o.err.Problems[0].Got != short+"b…" || o.err.Problems[0].Object != short+"b…" {
		t.Errorf("got %+v, want %q", o.err, want)
	}
	if o.err.Problems[0].Fix != "rm "+long {
		t.Error("the command was shortened")
	}
	if o.stderr != `test: warning: key "`+short+"…\" is long\n" {
		t.Errorf("got the warning %.200q", o.stderr)
	}
	o = run(t, skel.Plugin{Name: "test", IPAM: true, Add: func(*skel.Request) (*types.Result, error) { return nil, errors.New(strings.Repeat("a b ", 1<<20)) }}, call{})
	if n := len(o.err.Msg); n < 60<<10 || n > 70<<10 || !strings.HasSuffix(o.err.Msg, "…") {
		t.Errorf("got %d bytes", n)
	}
	o = run(t, skel.Plugin{Name: "test", IPAM: true}, call{conf: `{"cniVersion":"1.1.0","name":"!` + long + `"}`})
	if n := len(o.err.Details); n > 1000 {
		t.Errorf("got details of %d bytes", n)
	}
}

func TestFailedAddIsUndone(t *testing.T) {
	lease := &types.Result{}
	for _, tc := range []struct {
		why  string
		add  func() (*types.Result, error)
		conf string
		out  io.Writer
		code uint
		msg  string
	}{
		{"an error", func() (*types.Result, error) { return nil, errors.New("boom") }, plain, nil, 999, "boom"},
		{"a panic", func() (*types.Result, error) { panic("boom") }, plain, nil, 999, "panic: boom"},
		{"a nil pointer", func() (*types.Result, error) { return lease, *(*error)(nil) }, plain, nil, 999,
			"panic: runtime error: invalid memory address or nil pointer dereference"},
		{"no result", func() (*types.Result, error) { return nil, nil }, plain, nil, 999,
			"panic: runtime error: invalid memory address or nil pointer dereference"},
		{"a result that the version cannot express", func() (*types.Result, error) { return lease, nil }, `{"name":"net"}`, nil, 7, types.ErrNoAddress.Error()},
		{"stdout cannot be written", func() (*types.Result, error) { return lease, nil }, plain, broken{}, 0, ""},
	} {
		var undone []string
		o := run(t, pluginWithAdd(func(r *skel.Request) (*types.Result, error) {
			r.Undo.Push("a", func() error { undone = append(undone, "a"); return nil })
			r.Undo.Push("b", func() error { undone = append(undone, "b"); return nil })
			return tc.add()
		}), call{conf: tc.conf, out: tc.out})
		if o.code != 1 || !slices.Equal(undone, []string{"b", "a"}) {
			t.Errorf("%s: exit %d, undone %v", tc.why, o.code, undone)
		}
		if tc.out == nil && (o.err.Code != tc.code || o.err.Msg != tc.msg) {
			t.Errorf("%s: %s", tc.why, o.stdout)
		}
		if strings.HasPrefix(tc.msg, "panic") && !strings.Contains(o.err.Details, "goroutine ") {
			t.Errorf("%s: no stack in the details: %s", tc.why, o.err.Details)
		}
		if tc.out != nil && !strings.Contains(o.stderr, "test: write result to stdout: broken") {
			t.Errorf("%s: stderr %q", tc.why, o.stderr)
		}
	}
}

func TestPanicInAnotherNamespace(t *testing.T) {
	undone := false
	p := pluginWithAdd(func(r *skel.Request) (*types.Result, error) {
		r.Undo.Push("a", func() error { undone = true; return nil })
		return nil, r.ContainerNS.Do(func() error { panic("boom") })
	})
	p.IPAM = false
	o := run(t, p, call{env: []string{"CNI_NETNS=" + newNS(t)}})
	if o.err == nil || o.err.Msg != "panic: boom" || !strings.Contains(o.err.Details, "TestPanicInAnotherNamespace") || !undone {
		t.Errorf("%+v, undone %t", o, undone)
	}
}

func TestErrorsOfUndoAreInDetails(t *testing.T) {
	o := run(t, pluginWithAdd(func(r *skel.Request) (*types.Result, error) {
		r.Undo.Push("delete a", func() error { return errors.New("busy") })
		return nil, &types.Error{Code: 11, Msg: "m", Details: "d"}
	}), call{})
	if o.err == nil || o.err.Code != 11 || o.err.Msg != "m" || o.err.Details != "d; could not undo: delete a: busy" {
		t.Errorf("%s", o.stdout)
	}
}

func TestAddThatSucceedsIsNotUndone(t *testing.T) {
	o := run(t, pluginWithAdd(func(r *skel.Request) (*types.Result, error) {
		r.Undo.Push("a", func() error { t.Error("undone"); return nil })
		return &types.Result{Routes: []types.Route{{MTU: 1}}}, nil
	}), call{conf: `{"cniVersion":"1.0.0","name":"net"}`})
	if o.code != 0 || !strings.Contains(o.stdout, `"mtu": 1`) { // results of IPAM plugins contain mtu
		t.Errorf("%+v", o)
	}
}

// interfacePlugin returns a plugin that needs a namespace. Its handlers copy the request to seen.
func interfacePlugin(seen *skel.Request) skel.Plugin {
	note := func(r *skel.Request) error { *seen = *r; return nil }
	return skel.Plugin{
		Name: "test",
		Add:  func(r *skel.Request) (*types.Result, error) { return &types.Result{}, note(r) },
		Del:  note, Check: note, GC: note, Status: note,
	}
}

// TestInterfacePluginRefusesToBeCalledForIPAM checks that an interface plugin cannot call itself
// forever.
func TestInterfacePluginRefusesToBeCalledForIPAM(t *testing.T) {
	container := newNS(t)
	for verb, refused := range map[string]bool{"ADD": true, "CHECK": true, "DEL": true, "GC": true, "STATUS": true, "VERSION": false} {
		for _, isIPAM := range []bool{true, false} {
			var r skel.Request
			p := interfacePlugin(&r)
			p.IPAM = isIPAM
			o := run(t, p, call{
				env:  []string{"CNI_COMMAND=" + verb, "CNI_NETNS=" + container, skel.CalledForIPAM + "=bridge"},
				conf: `{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[]}`,
			})
			if want := refused && !isIPAM; (o.code != 0) != want || want && (o.err.Code != types.CodeConfig || r.Command != "" || !strings.Contains(o.err.Msg, "bridge")) {
				t.Errorf("%s, IPAM %t: %+v", verb, isIPAM, o)
			}
		}
	}
}

func TestNamespaces(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	nstest.Must(t, os.WriteFile(file, nil, 0o600))
	const self = "/proc/self/ns/net"
	container := newNS(t)
	type want struct {
		code      uint // error code; 0: the handler is called
		container bool // the request has a container
	}
	for _, tc := range []struct {
		why, netns, env string
		ipam            bool
		add, del        want // of ADD and CHECK, and of DEL
	}{
		{why: "a container", netns: container, add: want{container: true}, del: want{container: true}},
		{why: "none", netns: "", add: want{code: 4}, del: want{}},
		{why: "missing", netns: gone, add: want{code: 8}, del: want{}},
		{why: "beneath a file", netns: file + "/x", add: want{code: 8}, del: want{}},
		{why: "a plain file", netns: file, add: want{code: 8}, del: want{}},
		{why: "a file of proc", netns: "/proc/self/status", add: want{code: 8}, del: want{}},
		{why: "another kind", netns: "/proc/self/ns/uts", add: want{code: 8}, del: want{}},
		{why: "a loop", netns: "", add: want{code: 8}, del: want{code: 8}},
		{why: "its own", netns: self, add: want{code: 8}, del: want{}},
		{why: "its own, override is 0", netns: self, env: "CNI_NETNS_OVERRIDE=0", add: want{code: 8}, del: want{}},
		{why: "its own, override is 1", netns: self, env: "CNI_NETNS_OVERRIDE=1", add: want{container: true}, del: want{container: true}},
		{why: "its own, override is True", netns: self, env: "CNI_NETNS_OVERRIDE=True", add: want{container: true}, del: want{container: true}},
		{why: "IPAM, missing", netns: gone, ipam: true, add: want{}, del: want{}},
		{why: "IPAM, a plain file", netns: file, ipam: true, add: want{}, del: want{}},
		{why: "IPAM, a container", netns: container, ipam: true, add: want{}, del: want{}},
		{why: "IPAM, the host's", netns: self, ipam: true, add: want{}, del: want{}},
	} {
		if tc.why == "a loop" {
			tc.netns = file + ".loop"
			nstest.Must(t, os.Symlink(tc.netns, tc.netns))
		}
		for verb, want := range map[string]want{"ADD": tc.add, "CHECK": tc.add, "DEL": tc.del} {
			var r skel.Request
			p := interfacePlugin(&r)
			p.IPAM = tc.ipam
			o := run(t, p, call{env: []string{"CNI_COMMAND=" + verb, "CNI_NETNS=" + tc.netns, tc.env}})
			switch {
			case want.code != 0 && (o.err == nil || o.err.Code != want.code || r.Command != ""):
				t.Errorf("%s, %s: exit %d, %s; handler called: %t", verb, tc.why, o.code, o.stdout, r.Command != "")
			case want.code == 0 && (o.code != 0 || (r.ContainerNS != nil) != want.container || (r.HostNS != nil) == tc.ipam || r.HostNS != nil && !r.HostNS.Self()):
				t.Errorf("%s, %s: %s; container %v, host %v", verb, tc.why, o.stdout, r.ContainerNS, r.HostNS)
			}
			advice := "; CNI_NETNS must be the path of the container's network namespace, for example /run/netns/NAME"
			if advised := strings.Contains(o.stdout, advice); advised != (want.code == 8 && (tc.why == "missing" || tc.why == "beneath a file")) {
				t.Errorf("%s, %s: %s", verb, tc.why, o.stdout)
			}
			warned := strings.Contains(o.stderr, "as if the container's namespace were gone")
			if own := strings.Contains(tc.why, "its own") && want.code == 0 && !want.container; warned != own {
				t.Errorf("%s, %s: stderr %q", verb, tc.why, o.stderr)
			}
		}
	}
	for _, verb := range []string{"GC", "STATUS"} { // they do not use CNI_NETNS
		var r skel.Request
		o := run(t, interfacePlugin(&r), call{env: []string{"CNI_COMMAND=" + verb, "CNI_NETNS=" + self}, conf: `{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[]}`})
		if o.code != 0 || r.Command != verb || r.ContainerNS != nil {
			t.Errorf("%s: %+v, container %v", verb, o, r.ContainerNS)
		}
	}
}

// TestEnvHostIsTheHost checks that a test can set the host's namespace, including for the
// comparison with CNI_NETNS.
func TestEnvHostIsTheHost(t *testing.T) {
	host := newNS(t)
	var seen skel.Request
	add := func(r *skel.Request) (*types.Result, error) {
		seen = *r
		return &types.Result{}, nil
	}
	var stdout, stderr bytes.Buffer
	for netns, want := range map[string]int{host: 1, newNS(t): 0} {
		code := skel.Run(skel.Plugin{Name: "test", Add: add}, skel.Env{
			Environ: []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_NETNS=" + netns, "CNI_IFNAME=eth0", "CNI_PATH=/bin"},
			Stdin:   strings.NewReader(plain), Stdout: &stdout, Stderr: &stderr, HostNS: host,
		})
		if code != want {
			t.Errorf("%s on %s: exit %d, %s", netns, host, code, stdout.String())
		}
	}
	if seen.HostNS == nil || seen.HostNS.Self() || seen.HostNS.Path() != host {
		t.Errorf("host %v", seen.HostNS)
	}
}

func TestPrev(t *testing.T) {
	const ips = `"ips":[{"version":"4","address":"10.1.2.3/24"}]`
	for _, tc := range []struct {
		verb, prev string
		code       uint // error code of Prev
		must       uint // error code of RequirePrev
	}{
		{"ADD", `"prevResult":{"cniVersion":"0.3.1",` + ips + `}`, 0, 0},
		{"ADD", `"PrevResult":{` + ips + `}`, 0, 0},
		{"ADD", `"prevResult":null`, 0, 7},
		{"ADD", `"prevResult":{}`, 0, 0},
		{"ADD", `"x":1`, 0, 7},
		{"ADD", `"prevResult":{"ips":[null]}`, 6, 6},
		{"ADD", `"prevResult":[]`, 6, 6},
		{"CHECK", `"prevResult":{"cniVersion":"9"}`, 6, 6},
		{"DEL", `"prevResult":{` + ips + `}`, 0, 0},
		{"DEL", `"prevResult":{"ips":[null]}`, 0, 7},
		{"DEL", `"prevResult":"x"`, 0, 7},
	} {
		called := false
		look := func(r *skel.Request) error {
			called = true
			for range 2 {
				prev, err := r.Prev()
				if code(err) != tc.code || (prev != nil) != (tc.must == 0) {
					t.Errorf("%s %s: %v, %v", tc.verb, tc.prev, prev, err)
				}
				if prev != nil && strings.Contains(tc.prev, ips) && (len(prev.IPs) != 1 || prev.IPs[0].Address.String() != "10.1.2.3/24") {
					t.Errorf("%s %s: %+v", tc.verb, tc.prev, prev)
				}
			}
			if prev, err := r.RequirePrev(); code(err) != tc.must || (prev != nil) != (tc.must == 0) ||
				tc.must == 7 && tc.verb == "ADD" && !strings.Contains(err.Error(), "must be called as chained plugin") {
				t.Errorf("%s %s: %v, %v", tc.verb, tc.prev, prev, err)
			}
			return nil
		}
		p := skel.Plugin{Name: "test", IPAM: true, Check: look, Del: look, Add: func(r *skel.Request) (*types.Result, error) {
			return &types.Result{}, look(r)
		}}
		o := run(t, p, call{env: []string{"CNI_COMMAND=" + tc.verb}, conf: `{"cniVersion":"1.1.0","name":"net",` + tc.prev + `}`})
		if o.code != 0 || !called {
			t.Errorf("%s %s: %+v", tc.verb, tc.prev, o)
		}
		if warned := strings.Contains(o.stderr, "warning: prevResult: "); warned != (tc.verb == "DEL" && tc.must != 0) {
			t.Errorf("%s %s: stderr %q", tc.verb, tc.prev, o.stderr)
		}
	}
}

// code returns the error's code, or 0 for nil.
func code(err error) uint {
	if err == nil {
		return 0
	}
	return types.AsError(err).Code
}

func TestGCGetsTheValidAttachments(t *testing.T) {
	for _, tc := range []struct {
		keys  string
		calls bool
		want  types.Set
	}{
		{`"cni.dev/valid-attachments":[{"containerID":"c","ifname":"i"},{"containerID":"d","ifname":"i"}]`, true,
			types.Set{{Network: "net", ContainerID: "c", IfName: "i"}: true, {Network: "net", ContainerID: "d", IfName: "i"}: true}},
		{`"cni.dev/valid-attachments":[]`, true, types.Set{}},
		{`"CNI.DEV/valid-attachments":[{"CONTAINERID":"c","ifName":"i"}]`, true, types.Set{{Network: "net", ContainerID: "c", IfName: "i"}: true}},
		{`"cni.dev/valid-attachments":null`, true, types.Set{}},
		{`"cni.dev/attachments":[{"containerID":"c","ifname":"i"}]`, true, types.Set{{Network: "net", ContainerID: "c", IfName: "i"}: true}},
		{`"cni.dev/attachments":null,"cni.dev/valid-attachments":[{"containerID":"c","ifname":"i"}]`, true,
			types.Set{{Network: "net", ContainerID: "c", IfName: "i"}: true}},
		{`"x":1`, false, nil},
	} {
		called := false
		p := skel.Plugin{Name: "test", GC: func(r *skel.Request) error {
			called = true
			if got := r.ValidAttachments(); fmt.Sprint(got) != fmt.Sprint(tc.want) {
				t.Errorf("%s: %v", tc.keys, got)
			}
			return nil
		}}
		if o := run(t, skel.Plugin{Name: "test"}, call{env: []string{"CNI_COMMAND=GC"}, conf: `{"cniVersion":"1.1.0","name":"net",` + tc.keys + `}`}); o.code != 0 || o.stderr != "" {
			t.Errorf("a plugin that has nothing to collect, %s: %d, %q", tc.keys, o.code, o.stderr)
		}
		o := run(t, p, call{env: []string{"CNI_COMMAND=GC"}, conf: `{"cniVersion":"1.1.0","name":"net",` + tc.keys + `}`})
		if o.code != 0 || called != tc.calls || strings.Contains(o.stderr, "nothing is collected") == tc.calls {
			t.Errorf("%s: %+v, called %t", tc.keys, o, called)
		}
	}
}

// TestTwoListsOfValidAttachments checks that GC deletes nothing, because each list may name an attachment that exists.
func TestTwoListsOfValidAttachments(t *testing.T) {
	const list = `"cni.dev/valid-attachments":[{"containerID":"c","ifname":"i"}],`
	for _, second := range []string{`"cni.dev/valid-attachments":[]`, `"CNI.dev/valid-attachments":null`} {
		var calls []string
		o := run(t, plugin(&calls), call{env: []string{"CNI_COMMAND=GC"}, conf: `{"cniVersion":"1.1.0","name":"net",` + list + second + `}`})
		if o.err == nil || o.err.Code != types.CodeConfig || !strings.Contains(o.err.Msg, `cni.dev/valid-attachments: the key occurs twice`) || calls != nil {
			t.Errorf("%s: %s, calls %v", second, o.stdout, calls)
		}
	}
}

// TestMalformedValidAttachments checks that only GC, which reads the list, fails.
func TestMalformedValidAttachments(t *testing.T) {
	for list, code := range map[string]uint{`7`: 6, `[{"containerID":1}]`: 6, `[{"containerID":"c"}]`: 7, `[null]`: 7} {
		for _, key := range []string{"cni.dev/valid-attachments", "cni.dev/attachments"} {
			for _, verb := range []string{"ADD", "CHECK", "DEL", "STATUS", "GC"} {
				var calls []string
				conf := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net",%q:%s}`, key, list)
				o := run(t, plugin(&calls), call{env: []string{"CNI_COMMAND=" + verb}, conf: conf})
				switch {
				case verb != "GC" && (o.code != 0 || len(calls) != 1):
					t.Errorf("%s %s: %s, calls %v", verb, conf, o.stdout, calls)
				case verb == "GC" && (o.err == nil || o.err.Code != code || !strings.Contains(o.err.Msg, key) || calls != nil):
					t.Errorf("%s %s: %s, calls %v", verb, conf, o.stdout, calls)
				}
			}
		}
	}
}

// TestOnePluginOfAChainWarns checks that chained plugins do not warn about a GC without a list.
func TestOnePluginOfAChainWarns(t *testing.T) {
	for chained, want := range map[bool]string{false: "test: warning: GC without cni.dev/valid-attachments: nothing is collected\n", true: ""} {
		var calls []string
		p := plugin(&calls)
		p.Chained = chained
		if o := run(t, p, call{env: []string{"CNI_COMMAND=GC"}}); o.code != 0 || o.stderr != want || calls != nil {
			t.Errorf("chained %t: %+v, calls %v", chained, o, calls)
		}
	}
}

func TestArgs(t *testing.T) {
	for _, tc := range []struct {
		verb, args, want string
		code             uint
	}{
		{"ADD", "IP=10.0.0.1", "map[IP:10.0.0.1]", 0},
		{"ADD", "", "map[]", 0},
		{"ADD", "K8S=1", "map[]", 4},
		{"CHECK", "K8S", "map[]", 4},
		{"DEL", "K8S", "map[]", 0},
	} {
		look := func(r *skel.Request) error {
			args, err := r.Args()
			if fmt.Sprint(args) != tc.want || code(err) != tc.code {
				t.Errorf("%s %s: %v, %v", tc.verb, tc.args, args, err)
			}
			return nil
		}
		p := skel.Plugin{Name: "test", IPAM: true, Del: look, Check: look, Add: func(r *skel.Request) (*types.Result, error) {
			return &types.Result{}, look(r)
		}}
		if o := run(t, p, call{env: []string{"CNI_COMMAND=" + tc.verb, "CNI_ARGS=" + tc.args}}); o.code != 0 {
			t.Errorf("%s %s: %s", tc.verb, tc.args, o.stdout)
		}
	}
}

func TestAttachmentAndEnvironment(t *testing.T) {
	env := []string{"CNI_IFNAME=eth2", "CNI_IFNAME=eth1", "OTHER=x=y"}
	o := run(t, pluginWithAdd(func(r *skel.Request) (*types.Result, error) {
		if a := r.Attachment().String(); a != "net/c1/eth2" { // as os.Getenv returns it
			t.Error(a)
		}
		if string(r.Stdin) != plain || r.Path != "/bin" || r.NetNS != gone || !slices.Contains(r.Environ(), "OTHER=x=y") {
			t.Errorf("%+v", r)
		}
		return &types.Result{}, nil
	}), call{env: env})
	if o.code != 0 {
		t.Error(o.stdout)
	}
}

func TestUnknownKeys(t *testing.T) {
	type conf struct {
		types.Conf
		IsGateway     bool `json:"isGateway"`
		RuntimeConfig struct {
			MAC string `json:"mac"`
		} `json:"runtimeConfig"`
		Args struct {
			CNI struct {
				MAC string `json:"mac"`
			} `json:"cni"`
		} `json:"args"`
	}
	type ipamConf struct {
		IPAM struct {
			Type   string `json:"type"`
			Subnet string `json:"subnet"`
		} `json:"ipam"`
	}
	for _, tc := range []struct {
		why, verb, keys string
		ipam            bool
		code            uint   // of the error; 0: types.CodeUnsupported
		refused, warned string // text in the error, and on stderr
	}{
		{why: "similar to a known key", keys: `"isGatway":true`, warned: `isGatway: unknown key with value true; did you mean "isGateway"?`},
		{why: "similar to no known key", keys: `"com.example":true`},
		{why: "in another verb", verb: "CHECK", keys: `"isGatway":true`},
		{why: "strict", keys: `"strict":true,"isGatway":true,"com.example":{"a":1}`,
			refused: "com.example: unknown key with value {\"a\":1}; isGatway: unknown key with value true; did you mean \"isGateway\"?"},
		{why: "strict, with a value of a wrong type", keys: `"strict":true,"foo":1,"isGateway":"x"`, code: types.CodeDecode,
			refused: `isGateway: want true or false, got string; foo: unknown key with value 1`},
		{why: "strict in another verb", verb: "CHECK", keys: `"strict":true,"foo":1`, refused: `foo: unknown key with value 1`},
		{why: "strict, but DEL must succeed", verb: "DEL", keys: `"strict":true,"foo":1`},
		{why: "strict, and all known", keys: `"strict":true,"CAPABILITIES":{},"isgateway":true,"dns":{"search":[]},"prevResult":{"x":1},"cni.dev/attachments":[]`},
		{why: "strict, with a key twice", keys: `"strict":true,"isGateway":true,"isGateway":false`, code: types.CodeConfig,
			refused: `isGateway: the key occurs twice; delete one of the two`},
		{why: "a key twice", keys: `"isGateway":true,"isGateway":false`},
		{why: "strict, with a key twice, but DEL must succeed", verb: "DEL", keys: `"strict":true,"isGateway":true,"isGateway":false`},
		{why: "strict, with a schema for editors", keys: `"strict":true,"$schema":"https://example.org/bridge.schema.json"`},
		{why: "strict within a shared key", keys: `"strict":true,"dns":{"foo":1}`, refused: `dns.foo: unknown key with value 1`},
		{why: "keys that runtimes set for all plugins", keys: `"strict":true,"RuntimeConfig":{"ips":[]},"args":{"cni":{"ips":[],"mca":1},"labels":{}}`},
		{why: "the IPAM plugin's keys", keys: `"strict":true,"ipam":{"type":"t","subnt":"x"}`},
		{why: "IPAM: its keys", ipam: true, keys: `"strict":true,"ipam":{"type":"t","subnt":"x"}`,
			refused: `ipam.subnt: unknown key with value "x"; did you mean "subnet"?`},
		{why: "IPAM: similar to a known key", ipam: true, keys: `"ipam":{"type":"t","subnt":"x"}`, warned: `ipam.subnt: unknown key with value "x"; did you mean "subnet"?`},
		{why: "IPAM: the interface plugin's keys", ipam: true, keys: `"strict":true,"bridge":"b","com.example":1`},
	} {
		decode := func(r *skel.Request) error {
			if tc.ipam {
				return r.Decode(&ipamConf{})
			}
			return r.Decode(&conf{})
		}
		var netns string
		if !tc.ipam {
			netns = newNS(t)
		}
		p := skel.Plugin{Name: "test", IPAM: tc.ipam, Del: decode, Check: decode, Add: func(r *skel.Request) (*types.Result, error) {
			return &types.Result{}, decode(r)
		}}
		env := []string{"CNI_COMMAND=ADD"}
		if tc.verb != "" {
			env[0] = "CNI_COMMAND=" + tc.verb
		}
		if netns != "" {
			env = append(env, "CNI_NETNS="+netns)
		}
		o := run(t, p, call{env: env, conf: `{"cniVersion":"1.1.0","name":"net","type":"test",` + tc.keys + `}`})
		switch {
		case tc.refused == "" && o.code != 0:
			t.Errorf("%s: %s", tc.why, o.stdout)
		case tc.refused != "" && (o.err == nil || o.err.Code != cmp.Or(tc.code, types.CodeUnsupported) || o.err.Msg != tc.refused):
			t.Errorf("%s: %s", tc.why, o.stdout)
		}
		want := ""
		if tc.warned != "" {
			want = "test: warning: " + tc.warned + "\n"
		}
		if o.stderr != want {
			t.Errorf("%s: stderr %q, want %q", tc.why, o.stderr, want)
		}
	}
}

func TestLogs(t *testing.T) {
	steps := pluginWithAdd(func(r *skel.Request) (*types.Result, error) {
		return &types.Result{}, r.Trace.Do("add link x", func() error { return nil })
	})
	if o := run(t, steps, call{}); o.stderr != "" {
		t.Errorf("steps are printed without CNI_LOG_LEVEL: %q", o.stderr)
	}
	file := filepath.Join(t.TempDir(), "log")
	for range 2 { // the second call appends
		o := run(t, steps, call{env: []string{"CNI_LOG_LEVEL=Debug", "CNI_LOG_FILE=" + file}})
		if o.code != 0 || !strings.HasPrefix(o.stderr, "test ADD ") || !strings.HasSuffix(o.stderr, "ms add link x\n") {
			t.Errorf("%+v", o)
		}
	}
	text, err := os.ReadFile(file)
	nstest.Must(t, err)
	dec := json.NewDecoder(bytes.NewReader(text))
	for range 2 {
		for _, want := range []struct{ event, step string }{{"begin", ""}, {"step", "add link x"}, {"end", ""}} {
			var line struct{ Event, Plugin, Step string }
			if err := dec.Decode(&line); err != nil || line.Event != want.event || line.Plugin != "test ADD" || line.Step != want.step {
				t.Errorf("%+v, %v: %s", want, err, text)
			}
		}
	}
	o := run(t, steps, call{env: []string{"CNI_LOG_FILE=" + file + "/x"}})
	if o.code != 0 || !strings.HasPrefix(o.stderr, "test: warning: CNI_LOG_FILE: ") {
		t.Errorf("%+v", o)
	}
	o = run(t, steps, call{env: []string{"CNI_LOG_LEVEL=nonsense"}})
	if o.code != 0 || o.stderr != "test: warning: CNI_LOG_LEVEL: want debug, got \"nonsense\"\n" {
		t.Errorf("%+v", o)
	}
}

// TestLogFileThatIsNotRegular checks that a call does not wait for the reader of its log.
func TestLogFileThatIsNotRegular(t *testing.T) {
	dir := t.TempDir()
	pipe := dir + "/pipe"
	nstest.Must(t, unix.Mkfifo(pipe, 0o600))
	steps := pluginWithAdd(func(r *skel.Request) (*types.Result, error) {
		for range 10_000 { // far more than fits into a pipe
			if err := r.Trace.Do("add link x", func() error { return nil }); err != nil {
				return nil, err
			}
		}
		return &types.Result{}, nil
	})
	warned := func(path, want string) {
		t.Helper()
		o := run(t, steps, call{env: []string{"CNI_LOG_FILE=" + path}})
		if o.code != 0 || want == "" && o.stderr != "" || !strings.Contains(o.stderr, want) {
			t.Errorf("%s: %+v, want %q", path, o, want)
		}
	}
	warned(pipe, "test: warning: CNI_LOG_FILE: open "+pipe+": no such device or address: a socket, or a named pipe that no process reads\n")
	warned(dir, "is a directory\n")
	warned("/dev/null", "")
	reader, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0)
	nstest.Must(t, err)
	defer func() { _ = reader.Close() }()
	warned(pipe, "")
	line := make([]byte, 20)
	if _, err := reader.Read(line); err != nil || !strings.HasPrefix(string(line), `{"time":`) {
		t.Errorf("the reader of the pipe got %q, %v", line, err)
	}
}

func TestWarningInJSON(t *testing.T) {
	p := types.Problem{Object: "chain a", Kind: types.ProblemMissing, Table: "inet plumb", Advice: "wait"}
	warn := pluginWithAdd(func(r *skel.Request) (*types.Result, error) {
		r.WarnOf(*p.Errorf("a is missing"))
		return &types.Result{}, nil
	})
	if o := run(t, warn, call{}); o.stderr != "test: warning: a is missing; wait\n" {
		t.Error(o.stderr)
	}
	const want = `test: warning: {"object":"chain a","kind":"missing","table":"inet plumb","msg":"a is missing","advice":"wait"}` + "\n"
	if o := run(t, warn, call{env: []string{skel.JSONWarnings + "=1"}}); o.stderr != want {
		t.Error(o.stderr)
	}
}

// TestStderrIsSafeForConcurrentUse needs the race detector.
func TestStderrIsSafeForConcurrentUse(t *testing.T) {
	o := run(t, pluginWithAdd(func(r *skel.Request) (*types.Result, error) {
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() { r.Warn("one") })
			all.Go(func() { _, _ = r.Stderr().Write([]byte("test: warning: other\n")) })
		}
		all.Wait()
		return &types.Result{}, nil
	}), call{})
	if n := strings.Count(o.stderr, "\n"); n != 40 {
		t.Errorf("%d lines, want 40", n)
	}
}

func TestNoDescriptorIsLeft(t *testing.T) {
	nstest.LeakCheck(t)
	container := newNS(t)
	log := filepath.Join(t.TempDir(), "log")
	pipe, reader := newPipe(t)
	var seen skel.Request
	for _, netns := range []string{container, gone, "/proc/self/ns/net", "/proc/self/ns/uts"} {
		for _, verb := range []string{"ADD", "DEL"} {
			run(t, interfacePlugin(&seen), call{pipe: pipe, env: []string{
				"CNI_COMMAND=" + verb, "CNI_NETNS=" + netns, "CNI_LOG_FILE=" + log, sampled, "CNI_TRACE_FILE=" + log,
			}})
		}
		run(t, interfacePlugin(&seen), call{pipe: pipe, conf: "{", env: []string{sampled, "CNI_TRACE_FILE=" + log}})
		run(t, interfacePlugin(&seen), call{pipe: pipe, env: []string{"CNI_COMMAND=VERSION"}})
	}
	records(t, reader)
}
