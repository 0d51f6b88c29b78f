package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestReadme(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

func TestPathsOf(t *testing.T) {
	for _, tc := range []struct{ key, ifName, want string }{
		{"net.ipv4.ip_forward", "eth0", "net/ipv4/ip_forward"},
		{"net/ipv4/ip_forward", "eth0", "net/ipv4/ip_forward"},
		{"net.ipv4.conf.IFNAME.arp_notify", "eth0", "net/ipv4/conf/eth0/arp_notify"},
		{"net/ipv4/conf/IFNAME/arp_notify", "eth0", "net/ipv4/conf/eth0/arp_notify"},
		{"net.ipv4.conf.IFNAME.arp_notify", "eth0.100", "net/ipv4/conf/eth0.100/arp_notify"},
		{"net/ipv4/conf/IFNAME/arp_notify", "eth0.100", "net/ipv4/conf/eth0.100/arp_notify"},
		{"net.ipv4.conf.IFNAME.arp_notify", "", "net/ipv4/conf/IFNAME/arp_notify"}, // STATUS
		{"net/ipv4/conf/IFNAME/IFNAME", "eth0", "net/ipv4/conf/eth0/IFNAME"},       // only the first one, as in the reference plugin
		// A key with both separators can mean one path in sysctl(8), and another one in the reference plugin.
		{"net/ipv4/conf/eth0.100/arp_notify", "x", "net/ipv4/conf/eth0.100/arp_notify net/ipv4/conf/eth0/100/arp_notify"},
		{"net.ipv4.conf.eth0/100.arp_notify", "x", "net/ipv4/conf/eth0.100/arp_notify net/ipv4/conf/eth0/100/arp_notify"},
		{"net.ipv4/conf/eth0/arp_notify", "x", "net/ipv4.conf.eth0.arp_notify net/ipv4/conf/eth0/arp_notify"},
		{"net//ipv4/./ip_forward", "x", "net/ipv4/ip_forward net/ipv4/ip_forward"},
		// Keys that are not below net. are errors.
		{"kernel.nosuch", "x", ""}, {"kernel/nosuch", "x", ""}, {"", "x", ""}, {"net", "x", ""}, {"net.", "x", ""},
		{"netx.y", "x", ""}, {".net.x", "x", ""}, {"/net/x", "x", ""}, {"/proc/sys/net/x", "x", ""},
		{"net/../kernel/nosuch", "x", ""}, {"net/ipv4/../../kernel/nosuch", "x", ""}, {"../net/x", "x", ""},
		{"net/ipv4/../ipv4/ip_forward", "x", ""}, {"net.ipv4.//.kernel", "x", ""}, {"net/ipv4/..", "x", ""},
		{"net/ipv4/ip_forward\x00", "x", ""}, {"net/..", "x", ""}, {"IFNAME/x", "eth0", ""},
	} {
		got, err := pathsOf(tc.key, tc.ifName)
		want := slices.Compact(strings.Fields(tc.want))
		if !slices.Equal(got, want) || (err != nil) != (tc.want == "") {
			t.Errorf("%q for %q: got %q, %v, want %q", tc.key, tc.ifName, got, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), "invalid net sysctl key") {
			t.Errorf("%q: %v", tc.key, err)
		}
	}
}

// decode returns what parse returns in an ADD.
func decode(t *testing.T, text, args string) (*config, error) {
	t.Helper()
	var conf *config
	var err error
	p := skel.Plugin{Name: "tuning", Add: func(r *skel.Request) (*types.Result, error) {
		conf, err = parse(r)
		return &types.Result{}, nil
	}}
	host, container := nstest.NewHostAndContainer(t)
	nstest.Run(p, nstest.Call{Command: "ADD", Host: host, Container: container, Args: args, Config: text}).OK(t)
	return conf, err
}

// describe returns the checked configuration as text.
func describe(c *config) string {
	var all []string
	for _, a := range c.sysctls {
		all = append(all, strings.Join(a.paths, "|")+"="+a.value)
	}
	link, err := json.Marshal(c.link)
	if err != nil {
		all = append(all, err.Error())
	}
	return strings.Join(append(all, string(link), c.dataDir), " ")
}

func TestParse(t *testing.T) {
	const head = `{"cniVersion": "1.1.0", "name": "n", "type": "tuning"`
	for _, tc := range []struct{ name, body, args, want string }{
		{"no keys", ``, "", `{} /run/cni/tuning`},
		{"empty values and null", `, "sysctl": {}, "mac": "", "promisc": false, "mtu": 0, "allmulti": null, "txQLen": null, "args": null`, "", `{} /run/cni/tuning`},
		{"all keys", `, "sysctl": {"net.b": "2", "net/a": "1"}, "mac": "C2:B0:57:49:47:F1", "promisc": true, "mtu": 1454, "allmulti": true, "txQLen": 20000, "dataDir": "/d"`, "",
			`net/a=1 net/b=2 {"mac":"c2:b0:57:49:47:f1","promisc":true,"mtu":1454,"allmulti":true,"txQLen":20000} /d`},
		{"allmulti false and txQLen 0 are values", `, "allmulti": false, "txQLen": 0`, "", `{"allmulti":false,"txQLen":0} /run/cni/tuning`},
		{"keys in any case", `, "SYSCTL": {"net.a": "1"}, "MTU": 1400, "AllMulti": false, "RuntimeConfig": {"Mac": "02:00:00:00:00:01"}`, "",
			`net/a=1 {"mac":"02:00:00:00:00:01","mtu":1400,"allmulti":false} /run/cni/tuning`},
		{"args.cni.sysctl without sysctl, which makes the reference plugin panic", `, "args": {"cni": {"sysctl": {"net.a": "1"}}}`, "", `net/a=1 {} /run/cni/tuning`},
		{"args.cni replaces the keys of the configuration", `, "sysctl": {"net.a": "1", "net.b": "2"}, "promisc": true, "mtu": 1400, "allmulti": true, "txQLen": 5,
			"args": {"cni": {"sysctl": {"net/b": "3"}, "promisc": false, "mtu": 1300, "allmulti": false, "txQLen": 6}}`, "",
			`net/a=1 net/b=3 {"mtu":1300,"allmulti":false,"txQLen":6} /run/cni/tuning`},
		{"mac: runtimeConfig first", `, "mac": "02:00:00:00:00:04", "args": {"cni": {"mac": "02:00:00:00:00:02"}}, "runtimeConfig": {"mac": "02:00:00:00:00:01"}`,
			"MAC=02:00:00:00:00:03", `{"mac":"02:00:00:00:00:01"} /run/cni/tuning`},
		{"mac: then args.cni", `, "mac": "02:00:00:00:00:04", "args": {"cni": {"mac": "02:00:00:00:00:02"}}`, "MAC=02:00:00:00:00:03", `{"mac":"02:00:00:00:00:02"} /run/cni/tuning`},
		{"mac: then CNI_ARGS", `, "mac": "02:00:00:00:00:04"`, "IgnoreUnknown=1;K8S_POD_NAME=p;MAC=02:00:00:00:00:03", `{"mac":"02:00:00:00:00:03"} /run/cni/tuning`},
		{"mac: then the configuration", `, "mac": "02:00:00:00:00:04"`, "", `{"mac":"02:00:00:00:00:04"} /run/cni/tuning`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			conf, err := decode(t, head+tc.body+"}", tc.args)
			if err != nil || describe(conf) != tc.want {
				t.Errorf("got %v, %v, want %s", describe(conf), err, tc.want)
			}
		})
	}
}

func TestParseReturnsErrors(t *testing.T) {
	const head = `{"cniVersion": "1.1.0", "name": "n", "type": "tuning"`
	for _, tc := range []struct {
		body, args string
		code       uint
		want       string
	}{
		{`, "sysctl": {"net.a": "1", "net.a": "2"}`, "", types.CodeConfig, "duplicated sysctl keys are not allowed"},
		{`, "sysctl": {"net.a": "1", "net.b": 5}`, "", types.CodeDecode, `sysctl.net.b: want a string, got number`},
		{`, "args": {"cni": {"sysctl": {"net.b": ["x"]}}}`, "", types.CodeDecode, `args.cni.sysctl.net.b: want a string, got array`},
		{`, "sysctl": {"net.b": null}`, "", types.CodeConfig, `sysctl: "net.b": want a string, got null`},
		{`, "sysctl": {"net.a": "1", "net.b": "2", "net.a": "1"}`, "", types.CodeConfig, "duplicated sysctl keys are not allowed"},
		{`, "args": {"cni": {"sysctl": {"net.a": "1", "net.a": "1"}}}`, "", types.CodeConfig, "duplicated sysctl keys are not allowed"},
		{`, "sysctl": {"net.a": "1", "net/a": "2"}`, "", types.CodeConfig, `duplicated sysctl keys are not allowed: "net.a" and "net/a" are the same`},
		{`, "sysctl": {"net.ipv4.conf.IFNAME.x": "1", "net.ipv4.conf.eth0.x": "2"}`, "", types.CodeConfig, "duplicated sysctl keys"},
		{`, "sysctl": {"net.a.b": "1", "net.a/b": "2"}`, "", types.CodeConfig, "duplicated sysctl keys"},
		{`, "sysctl": {"kernel.nosuch": "1", "net/../vm/x": "2"}, "mtu": 67, "txQLen": -1, "dataDir": "d", "mac": "no"`, "", types.CodeConfig,
			"mac: invalid MAC address \"no\"\n" +
				"sysctl: invalid net sysctl key: \"kernel.nosuch\"; a key must begin with \"net.\"\n" +
				"sysctl: invalid net sysctl key: \"net/../vm/x\"; a key must begin with \"net.\"\n" +
				"mtu 67 must be between 68 and 65536\ntxQLen -1 must be between 0 and 2147483647\ndataDir \"d\" is not an absolute path"},
		{`, "mtu": -5`, "", types.CodeConfig, "mtu -5"}, {`, "mtu": 65537`, "", types.CodeConfig, "mtu 65537"},
		{`, "txQLen": 4294967296`, "", types.CodeConfig, "txQLen 4294967296"},
		{`, "mac": "ff:ff:ff:ff:ff:ff"`, "", types.CodeConfig, "unicast"},
		{``, "MAC=nonsense", types.CodeConfig, `invalid MAC address "nonsense"`},
		{``, "FOO=1", types.CodeEnvironment, "unknown args"},
	} {
		t.Run(tc.body+tc.args, func(t *testing.T) {
			_, err := decode(t, head+tc.body+"}", tc.args)
			if err == nil || types.AsError(err).Code != tc.code || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want code %d: %s", err, tc.code, tc.want)
			}
		})
	}
}

func TestAllowlist(t *testing.T) {
	path := filepath.Join(t.TempDir(), "allowlist.conf")
	keys := func(written ...string) (all []assignment) {
		for _, w := range written {
			all = append(all, assignment{written: w})
		}
		return all
	}
	for _, tc := range []struct{ text, keys, want string }{
		{"^net.ipv4.conf.IFNAME.arp_notify$", "net.ipv4.conf.IFNAME.arp_notify", ""},
		{"^net.ipv4.conf.IFNAME.arp_notify$", "net/ipv4/conf/IFNAME/arp_notify", ""}, // a dot matches a slash
		{"^net.ipv4.conf.IFNAME.arp_notify$", "net.ipv4.conf.eth0.arp_notify", "net.ipv4.conf.eth0.arp_notify"},
		{"conf", "net.ipv4.conf.IFNAME.arp_notify net.x.conf", ""}, // not anchored
		{"\n  \n\r\n^net.a$\r\n\n^net.b$", "net.a net.b", ""},
		{"^net.a$\n^net.b$\n", "net.a net.c net.d", "net.c net.d"},
		{"^net\\.(a|b)", "net.bc", ""},
		{"", "net.a", "net.a"}, {"\n\n", "net.a", "net.a"},
		{" ^net.a$", "net.a", "net.a"}, // white space is not trimmed
	} {
		nstest.Must(t, os.WriteFile(path, []byte(tc.text), 0o600))
		var refused []string
		if err := checkAllowlist(path, keys(strings.Fields(tc.keys)...)); err != nil {
			for line := range strings.Lines(err.Error()) {
				refused = append(refused, strings.Split(line, `"`)[1])
			}
			if types.AsError(err).Code != types.CodeConfig || !strings.Contains(err.Error(), path) {
				t.Errorf("%q: %v", tc.text, err)
			}
		}
		if got := strings.Join(refused, " "); got != tc.want {
			t.Errorf("%q with the keys %s: got %q, want %q", tc.text, tc.keys, got, tc.want)
		}
	}

	nstest.Must(t, os.WriteFile(path, []byte("net.a\nnet.(\n"), 0o600))
	if err := checkAllowlist(path, nil); err == nil || types.AsError(err).Code != types.CodeConfig || !strings.Contains(err.Error(), path+", line 2: ") {
		t.Errorf("an invalid expression: %v", err)
	}
	if err := checkAllowlist(filepath.Dir(path), nil); err == nil || types.AsError(err).Code != types.CodeIO {
		t.Errorf("a directory: %v", err)
	}
	if err := checkAllowlist(path+".none", keys("net.anything")); err != nil {
		t.Errorf("no file: %v", err)
	}
}
