package ipam

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/invoke"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

const lease = `{"cniVersion":"1.1.0","interfaces":[{"name":"x"}],"ips":[{"address":"10.1.2.3/24","gateway":"10.1.2.1","interface":0},
	{"address":"fd00::3/64","gateway":"fd00::1"}],"routes":[{"dst":"0.0.0.0/0","mtu":1400}],"dns":{"domain":"x"}}`

// A fakePlugin is a directory with an IPAM plugin, which logs its calls in the file log. The plugin
// has the names "fake" and "dhcp". Under the name "dhcp", it works over the link.
type fakePlugin struct {
	dir    string
	stderr bytes.Buffer
}

// newFakePlugin writes the plugin, which is a shell script that reads its configuration, logs the
// verb, and runs body.
func newFakePlugin(t *testing.T, body string) *fakePlugin {
	t.Helper()
	s := &fakePlugin{dir: t.TempDir()}
	script := "#!/bin/sh\n[ -n \"$(cat)\" ] || exit 1\necho $CNI_COMMAND >> " + s.dir + "/log\n" + body + "\n"
	for _, name := range []string{"fake", "dhcp"} {
		if err := os.WriteFile(s.dir+"/"+name, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *fakePlugin) log(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(s.dir + "/log")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(b)), " ")
}

// call runs f as the ADD of a plugin with that ipam.type, and returns the printed error, or nil.
func (s *fakePlugin) call(t *testing.T, ipamType string, f func(r *skel.Request) error) *types.Error {
	t.Helper()
	add := func(r *skel.Request) (*types.Result, error) { return &types.Result{}, f(r) }
	var stdout bytes.Buffer
	code := skel.Run(skel.Plugin{Name: "test", IPAM: true, Add: add}, skel.Env{
		Environ: []string{
			"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_NETNS=/nowhere", "CNI_IFNAME=eth0",
			"CNI_PATH=" + s.dir, "DIR=" + s.dir, "PATH=/bin:/usr/bin",
		},
		Stdin:  strings.NewReader(`{"cniVersion":"1.0.0","name":"net","ipam":{"type":"` + ipamType + `"}}`),
		Stdout: &stdout,
		Stderr: &s.stderr,
	})
	if code == 0 {
		return nil
	}
	var answer types.Error
	if err := json.Unmarshal(stdout.Bytes(), &answer); err != nil {
		t.Fatalf("%v: %s", err, stdout.String())
	}
	return &answer
}

// printOnAdd is a script that prints text when it is called for ADD.
func printOnAdd(text string) string {
	return "[ $CNI_COMMAND = ADD ] && cat <<'.'\n" + text + "\n.\ntrue"
}

func startAndSend(r *skel.Request) error {
	p, err := Start(r)
	p.AllowAllocation()
	return err
}

// getLease does all steps of an IPAM ADD.
func getLease(r *skel.Request) (*Lease, error) {
	p, err := Start(r)
	if err != nil {
		return nil, err
	}
	p.AllowAllocation()
	return p.Wait()
}

func TestLease(t *testing.T) {
	s := newFakePlugin(t, printOnAdd(lease))
	err := s.call(t, "fake", func(r *skel.Request) error {
		l, err := getLease(r)
		if err != nil {
			return err
		}
		want := &Lease{
			IPs: []types.IP{
				{Interface: types.NoInterface, Address: netip.MustParsePrefix("10.1.2.3/24"), Gateway: netip.MustParseAddr("10.1.2.1")},
				{Interface: types.NoInterface, Address: netip.MustParsePrefix("fd00::3/64"), Gateway: netip.MustParseAddr("fd00::1")},
			},
			Routes: []types.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0"), MTU: 1400}},
			DNS:    types.DNS{Domain: "x"},
		}
		if !reflect.DeepEqual(l, want) {
			t.Errorf("lease %+v, want %+v", l, want)
		}
		return nil
	})
	if log := s.log(t); err != nil || log != "ADD" {
		t.Errorf("calls %q, %v", log, err)
	}
}

// TestFailedAddReleasesItsOwnAddressOnly checks that an ADD that fails after Start releases the
// address that it allocated, and no other address.
func TestFailedAddReleasesItsOwnAddressOnly(t *testing.T) {
	stop := errors.New("something else")
	addFails := func(r *skel.Request) error { _, err := getLease(r); return err }
	const fails = `echo '{"code":11,"msg":"full"}'; exit 1`
	slow := func(body string) string { return "sleep 0.05; echo end >> $DIR/log\n" + body }
	for _, tc := range []struct {
		why, script string
		add         func(r *skel.Request) error
		calls, msg  string
		code        uint
	}{
		{"failed later", printOnAdd(lease), func(r *skel.Request) error {
			return errors.Join(addFails(r), stop)
		}, "ADD DEL", "something else", 999},
		{"panicked later", printOnAdd(lease), func(r *skel.Request) error {
			_, _ = getLease(r)
			panic("ouch")
		}, "ADD DEL", "panic: ouch", 999},
		{"failed before the answer", slow(printOnAdd(lease)), func(r *skel.Request) error {
			return errors.Join(startAndSend(r), stop)
		}, "ADD end DEL end", "something else", 999},
		{"failed before the answer, which is an error", slow(fails), func(r *skel.Request) error {
			return errors.Join(startAndSend(r), stop)
		}, "ADD end", "something else", 999},
		{"failed before AllowAllocation", printOnAdd(lease), func(r *skel.Request) error {
			_, err := Start(r)
			return errors.Join(err, stop)
		}, "", "something else", 999},
		{"ADD failed", fails, addFails, "ADD", `IPAM plugin "fake": full`, 11},
		{"ADD was killed", `[ $CNI_COMMAND = DEL ] || kill -9 $$`, addFails, "ADD DEL", `IPAM plugin "fake": it was killed (SIGKILL) before it answered`, 999},
		{"ADD prints text and fails", "echo 'Segmentation fault'; echo why >&2; exit 1", addFails, "ADD",
			`IPAM plugin "fake": it failed without an error result: exit status 1`, 999},
		{"ADD prints an error and succeeds", printOnAdd(`{"cniVersion":"1.0.0","code":11,"msg":"full"}`), addFails, "ADD DEL", `IPAM plugin "fake": full`, 11},
		{"ADD without an address", printOnAdd(`{"cniVersion":"1.0.0"}`), addFails, "ADD DEL", "IPAM plugin returned missing IP config: the result of fake contains no addresses in \"ips\"; configure addresses in the key \"ipam\", for example with \"addresses\" for static", 7},
		{"ADD answers null", printOnAdd(`null`), addFails, "ADD DEL", "IPAM plugin returned missing IP config: the result of fake contains no addresses in \"ips\"; configure addresses in the key \"ipam\", for example with \"addresses\" for static", 7},
		{"ADD answers nothing", "", addFails, "ADD DEL", `IPAM plugin "fake": it printed no result`, 6},
		{"ADD answers with a broken address", printOnAdd(`{"ips":[{"address":""}]}`), addFails, "ADD DEL",
			`IPAM plugin "fake": decode result of version 1.0.0: an IP without an address`, 6},
	} {
		s := newFakePlugin(t, tc.script)
		err := s.call(t, "fake", tc.add)
		if err == nil || err.Code != tc.code || err.Msg != tc.msg {
			t.Errorf("%s: error %+v, want %d %q", tc.why, err, tc.code, tc.msg)
		}
		if log := s.log(t); log != tc.calls {
			t.Errorf("%s: calls %q, want %q", tc.why, log, tc.calls)
		}
	}
}

// TestAddFailsIfIPAMFailsAfterItsAnswer checks that ADD uses a lease as soon as it is printed, but
// succeeds only if the IPAM plugin then exits with 0 and prints nothing else.
func TestAddFailsIfIPAMFailsAfterItsAnswer(t *testing.T) {
	for _, tc := range []struct {
		why, after string
		calls, msg string
		code       uint
	}{
		{"fails", "exit 3", "ADD used", `IPAM plugin "fake": it failed without an error result: exit status 3`, 999},
		{"is killed", "kill -9 $$", "ADD used DEL", `IPAM plugin "fake": it was killed (SIGKILL) before it exited`, 999},
		{"prints more", "echo '{}'", "ADD used DEL", `IPAM plugin "fake": it printed more than one result`, 6},
	} {
		// The plugin exits only after ADD has used its lease.
		s := newFakePlugin(t, printOnAdd(lease)+"\n[ $CNI_COMMAND = DEL ] && exit\nuntil grep -q used $DIR/log; do sleep 0.01; done; "+tc.after)
		err := s.call(t, "fake", func(r *skel.Request) error {
			_, err := getLease(r)
			return errors.Join(err, appendTo(s.dir+"/log", "used\n"))
		})
		if err == nil || err.Code != tc.code || err.Msg != tc.msg {
			t.Errorf("%s: error %+v, want %d %q", tc.why, err, tc.code, tc.msg)
		}
		if log := s.log(t); log != tc.calls {
			t.Errorf("%s: calls %q, want %q", tc.why, log, tc.calls)
		}
	}
}

// TestPluginOverLinkAllocatesInWait checks that AllowAllocation sends no configuration to a plugin
// that works over the link, and that a failed ADD releases the address before the link is deleted.
func TestPluginOverLinkAllocatesInWait(t *testing.T) {
	s := newFakePlugin(t, printOnAdd(lease))
	err := s.call(t, "dhcp", func(r *skel.Request) error {
		p, err := Start(r)
		if err != nil {
			return err
		}
		p.AllowAllocation()
		if state := p.call.State(); state != invoke.Launched {
			t.Errorf("state %d after AllowAllocation, want %d", state, invoke.Launched)
		}
		r.Undo.Push("delete link", func() error { return appendTo(s.dir+"/log", "link\n") })
		if _, err := p.Wait(); err != nil {
			return err
		}
		return errors.New("stop")
	})
	if log := s.log(t); log != "ADD DEL link" || messageOf(err) != "stop" {
		t.Errorf("calls %q, %v", log, err)
	}
}

// TestDelWithLink checks that DEL and the deletion of the link run in the order that the IPAM plugin
// needs, and that the address stays reserved if the link could not be deleted.
func TestDelWithLink(t *testing.T) {
	const succeeds, fails = "true", `echo '{"code":5,"msg":"disk"}'; exit 1`
	busy, slow := errors.New("link is busy"), errors.New("no answer")
	for _, tc := range []struct {
		why, kind, script string
		linkErr, waitErr  error
		calls, msg        string
	}{
		{"no ipam", "", succeeds, nil, nil, "link wait", ""},
		{"another plugin", "fake", succeeds, nil, nil, "link DEL wait", ""},
		{"another plugin, link fails", "fake", succeeds, busy, nil, "link wait", "link is busy"},
		{"another plugin, DEL fails", "fake", fails, nil, nil, "link DEL wait", `IPAM plugin "fake": disk`},
		{"another plugin, wait fails", "fake", succeeds, nil, slow, "link DEL wait", "no answer"},
		{"another plugin, DEL and wait fail", "fake", fails, nil, slow, "link DEL wait", "IPAM plugin \"fake\": disk; no answer"},
		{"dhcp", "dhcp", succeeds, nil, nil, "DEL link wait", ""},
		{"dhcp, link fails", "dhcp", succeeds, busy, nil, "DEL link wait", "link is busy"},
		{"dhcp, DEL fails", "dhcp", fails, nil, nil, "DEL link wait", `IPAM plugin "dhcp": disk`},
		{"dhcp, all fail", "dhcp", fails, busy, slow, "DEL link wait", "IPAM plugin \"dhcp\": disk; link is busy; no answer"},
	} {
		s := newFakePlugin(t, tc.script)
		err := s.call(t, tc.kind, func(r *skel.Request) error {
			return DelWithLink(r, func() (wait func() error, err error) {
				wait = func() error { return errors.Join(tc.waitErr, appendTo(s.dir+"/log", "wait\n")) }
				return wait, errors.Join(tc.linkErr, appendTo(s.dir+"/log", "link\n"))
			})
		})
		if msg := messageOf(err); msg != tc.msg {
			t.Errorf("%s: error %q, want %q", tc.why, msg, tc.msg)
		}
		if log := s.log(t); log != tc.calls {
			t.Errorf("%s: calls %q, want %q", tc.why, log, tc.calls)
		}
	}
}

// TestGCWithLinks checks that GC and the deletion of the links run in the order that the IPAM plugin
// needs, and that the second one runs even if the first one fails.
func TestGCWithLinks(t *testing.T) {
	const fails = `echo '{"code":5,"msg":"disk"}'; exit 1`
	for _, tc := range []struct{ kind, script, calls, msg string }{
		{"", "true", "link", "link is busy"},
		{"fake", fails, "link GC", "link is busy; IPAM plugin \"fake\": disk"},
		{"dhcp", fails, "GC link", "IPAM plugin \"dhcp\": disk; link is busy"},
	} {
		s := newFakePlugin(t, tc.script)
		err := s.call(t, tc.kind, func(r *skel.Request) error {
			return GCWithLinks(r, func() error {
				return errors.Join(errors.New("link is busy"), appendTo(s.dir+"/log", "link\n"))
			})
		})
		if msg := messageOf(err); msg != tc.msg {
			t.Errorf("%q: error %q, want %q", tc.kind, msg, tc.msg)
		}
		if log := s.log(t); log != tc.calls {
			t.Errorf("%q: calls %q, want %q", tc.kind, log, tc.calls)
		}
	}
}

// messageOf returns the message of err, or "" if err is nil.
func messageOf(err *types.Error) string {
	if err == nil {
		return ""
	}
	return err.Msg
}

func TestOtherVerbs(t *testing.T) {
	const old = `{"code":4,"msg":"unknown CNI_COMMAND: X"}`
	type answer struct {
		code uint
		msg  string
	}
	all := []string{"DEL", "CHECK", "GC", "STATUS"}
	do := map[string]func(*skel.Request) error{"DEL": Del, "CHECK": func(r *skel.Request) error { return StartCheck(r)() }, "GC": GC,
		"STATUS": func(r *skel.Request) error { return Status(r, nil) }}
	for _, tc := range []struct {
		why, kind, script string
		calls             bool
		want              map[string]answer
	}{
		{"succeeds", "fake", "true", true, nil},
		{"no ipam", "", "true", false, nil},
		{"missing", "gone", "true", false, map[string]answer{
			"DEL": {7, "failed to find"}, "CHECK": {7, "failed to find"}, "GC": {7, "failed to find"}, "STATUS": {50, "failed to find"},
		}},
		{"fails", "fake", `echo '{"code":50,"msg":"full"}'; exit 1`, true, map[string]answer{
			"DEL": {50, "full"}, "CHECK": {50, "full"}, "GC": {50, "full"}, "STATUS": {50, "full"},
		}},
		{"does not know the verb", "fake", `echo '` + old + `'; exit 1`, true, map[string]answer{
			"DEL": {4, "unknown CNI_COMMAND"}, "CHECK": {4, "unknown CNI_COMMAND"},
		}},
		{"fails with another code 4", "fake", `echo '{"code":4,"msg":"HOME"}'; exit 1`, true, map[string]answer{
			"DEL": {4, "HOME"}, "CHECK": {4, "HOME"}, "GC": {4, "HOME"}, "STATUS": {4, "HOME"},
		}},
	} {
		for _, verb := range all {
			s := newFakePlugin(t, tc.script)
			err := s.call(t, tc.kind, do[verb])
			want, fails := tc.want[verb]
			switch {
			case fails != (err != nil):
				t.Errorf("%s %s: %v", tc.why, verb, err)
			case fails && (err.Code != want.code || !strings.HasPrefix(err.Msg, `IPAM plugin "`+tc.kind+`": `+want.msg)):
				t.Errorf("%s %s: %+v, want %+v", tc.why, verb, err, want)
			}
			if log := s.log(t); tc.calls != (log == verb) {
				t.Errorf("%s %s: calls %q", tc.why, verb, log)
			}
		}
	}
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
