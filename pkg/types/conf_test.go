package types

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// pluginConf contains each kind of field that a plugin's configuration can contain.
type pluginConf struct {
	Conf
	Bridge    string `json:"bridge"`
	IsGateway bool   `json:"isGateway"`
	MTU       int    `json:"mtu"`
	Rate      uint64 `json:"rate"`
	VLANTrunk []struct {
		MinID int `json:"minID"`
	} `json:"vlanTrunk"`
	Nested *struct {
		Subnet netip.Prefix `json:"subnet"`
		MAC    MAC          `json:"mac"`
	} `json:"nested"`
	Ranges [][]struct {
		Subnet netip.Prefix `json:"subnet"`
	} `json:"ranges"`
	Sysctl   map[string]string `json:"sysctl"`
	Raw      json.RawMessage   `json:"raw"`
	Untagged string
	Hidden   string `json:"-"`
}

func TestDecode(t *testing.T) {
	var conf pluginConf
	text := ` {"CNIVersion":"1.1.0","NAME":"n","isgateway":true,"nested":{"SUBNET":"10.0.0.0/8","mac":null},"ranges":[[{"subnet":"fd00::/8"}]],
		"mtu":null,"bridge":null,"prevResult":null,"plugins":[7],"unknown":{}} `
	if err := Decode([]byte(text), &conf); err != nil {
		t.Fatal(err)
	}
	if conf.Name != "n" || !conf.IsGateway || conf.Nested.Subnet != prefix("10.0.0.0/8") || conf.Ranges[0][0].Subnet != prefix("fd00::/8") || string(conf.Plugins) != "[7]" {
		t.Errorf("%+v", conf)
	}
}

func TestErrorsOfDecodeNameEachKey(t *testing.T) {
	for _, tc := range []struct {
		text string
		code uint
		want string
	}{
		{``, CodeDecode, `decode configuration: byte 0: unexpected end of JSON input`},
		{`{"a":`, CodeDecode, `decode configuration: byte 5: unexpected end of JSON input`},
		{`{a}`, CodeDecode, `decode configuration: byte 2: invalid character 'a' looking for beginning of object key string`},
		{`{} {}`, CodeDecode, `decode configuration: byte 4: invalid character '{' after top-level value`},
		{` null `, CodeDecode, `decode configuration: want an object, got null`},
		{`[]`, CodeDecode, `decode configuration: want an object, got array`},
		{`"x"`, CodeDecode, `decode configuration: want an object, got string`},
		{`{"mtu":"x"}`, CodeDecode, `mtu: want a number (int), got string`},
		{`{"mtu":1.5}`, CodeDecode, `mtu: want a number (int), got number 1.5`},
		{`{"rate":-1}`, CodeDecode, `rate: want an integer of at least 0, got number -1`},
		{`{"isGateway":"true"}`, CodeDecode, `isGateway: want true or false, got string`},
		{`{"bridge":1}`, CodeDecode, `bridge: want a string, got number`},
		{`{"ipam":"host-local"}`, CodeDecode, `ipam: want an object, got string`},
		{`{"vlanTrunk":{}}`, CodeDecode, `vlanTrunk: want a list, got object`},
		{`{"vlanTrunk":[{},{"minID":[]}]}`, CodeDecode, `vlanTrunk[1].minID: want a number (int), got array`},
		{`{"sysctl":[]}`, CodeDecode, `sysctl: want an object, got array`},
		{`{"nested":{"subnet":1}}`, CodeDecode, `nested.subnet: want a string, got number`},
		{`{"nested":{"Subnet":"10.0.0.0"}}`, CodeConfig, `nested.Subnet: netip.ParsePrefix("10.0.0.0"): no '/'`},
		{`{"nested":{"mac":"zz"}}`, CodeConfig, `nested.mac: invalid MAC address "zz"`},
		{`{"mtu":"x","bridge":1,"nested":{"subnet":5}}`, CodeDecode, `bridge: want a string, got number` + "\n" +
			`mtu: want a number (int), got string` + "\n" + `nested.subnet: want a string, got number`},
		{`{"ranges":[[{"subnet":"x"}]],"nested":{"mac":"zz"},"mtu":[]}`, CodeDecode, `mtu: want a number (int), got array` + "\n" +
			`nested.mac: invalid MAC address "zz"` + "\n" + `ranges[0][0].subnet: netip.ParsePrefix("x"): no '/'`},
		{`{"mtu":"x","mtu":1}`, CodeDecode, `decode configuration: want a number (int), got string`},
		{`{"ranges":[[{}],[{},{"subnet":"x"}]]}`, CodeConfig, `ranges[1][1].subnet: netip.ParsePrefix("x"): no '/'`},
	} {
		err := Decode([]byte(tc.text), &pluginConf{})
		if err == nil || err.Error() != tc.want || AsError(err).Code != tc.code {
			t.Errorf("%s: %v, want %d %q", tc.text, err, tc.code, tc.want)
		}
	}
}

func TestMalformedValidAttachments(t *testing.T) {
	for text, want := range map[string]string{
		`{"cni.dev/valid-attachments":[{"containerID":1}]}`: `cni.dev/valid-attachments[0].containerID: want a string, got number`,
		`{"cni.dev/attachments":[{"containerID":"c"}]}`: `cni.dev/attachments: ` +
			`entry [0]: containerID or ifname is missing; nothing is collected`,
	} {
		if err := Decode([]byte(text), new(GCConf)); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestUnknown(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{`{"bridge":"b","BRIDGE":"b","untagged":"x","ipam":{"type":"t"},"sysctl":{"any.thing":"1"},"raw":{"a":[1]}}`, `BRIDGE: unknown key with value "b"`},
		{`{"isGatway":true}`, `isGatway: unknown key with value true; did you mean "isGateway"?`},
		{`{"ISGATWAY":true}`, `ISGATWAY: unknown key with value true; did you mean "isGateway"?`},
		{`{"mut":1}`, `mut: unknown key with value 1`}, // a key with fewer than five letters may differ by one edit only
		{`{"mtuu":1}`, `mtuu: unknown key with value 1; did you mean "mtu"?`},
		{`{"com.example/x":{"y":1}}`, `com.example/x: unknown key with value {"y":1}`},
		{`{"Hidden":"x"}`, `Hidden: unknown key with value "x"`},
		{`{"-":"x"}`, `-: unknown key with value "x"`},
		{`{"shard":1}`, `shard: unknown key with value 1; did you mean "shared"?`},
		{`{"shared":{"deep":1}}`, ""},
		{`{"dns":{"nameserver":[]},"nested":{"subnt":1}}`,
			`dns.nameserver: unknown key with value []; did you mean "nameservers"?` + "\n" + `nested.subnt: unknown key with value 1; did you mean "subnet"?`},
		{`{"vlanTrunk":[{"minID":1},{"minld":1}]}`, `vlanTrunk[1].minld: unknown key with value 1; did you mean "minID"?`},
		{`{"ranges":[[{"gw":1}]]}`, `ranges[0][0].gw: unknown key with value 1`},
		{"{ \"mut\\u0075\" : [ \"}\" ] ,\n\"nested\" :\t{ } }", `mutu: unknown key with value [ "}" ]; did you mean "mtu"?`},
		{`{"nested":null,"vlanTrunk":null,"ranges":[null]}`, ""},
		{`{"nested":5,"vlanTrunk":{}}`, ""}, // Decode refuses it
		{`[]`, ""}, {`null`, ""}, {`{`, ""},
	} {
		var lines []string
		for _, key := range Unknown([]byte(tc.text), &pluginConf{}, "shared") {
			lines = append(lines, key.String())
			if nested := strings.ContainsAny(key.Path, "[") || strings.HasPrefix(key.Path, "dns.") || strings.HasPrefix(key.Path, "nested."); key.Nested != nested {
				t.Errorf("%s: nested %t", key.Path, key.Nested)
			}
		}
		if got := strings.Join(lines, "\n"); got != tc.want {
			t.Errorf("%s:\n%s\nwant\n%s", tc.text, got, tc.want)
		}
	}
}

func TestAttachmentText(t *testing.T) {
	a := Attachment{Network: "n", ContainerID: "c", IfName: "i"}
	if got, ok := ParseAttachment(a.String()); got != a || !ok {
		t.Errorf("%v, %t", got, ok)
	}
	for _, bad := range []string{"", "n/c", "n/c/i/x", "n//i", "/c/i", "n/c/"} {
		if a, ok := ParseAttachment(bad); ok {
			t.Errorf("%q: %v", bad, a)
		}
	}
}

func TestParseArgs(t *testing.T) {
	for _, tc := range []struct{ text, want, err string }{
		{"", "map[]", ""},
		{";;", "map[]", ""},
		{"IP=10.0.0.1;GATEWAY=10.0.0.254;MAC=02:00:00:00:00:01;", "map[GATEWAY:10.0.0.254 IP:10.0.0.1 MAC:02:00:00:00:00:01]", ""},
		{"IP=1;IP=2", "map[IP:2]", ""},
		{"IP=", "map[IP:]", ""},
		{"IgnoreUnknown=1;K8S_POD_NAME=a=b", "map[IgnoreUnknown:1 K8S_POD_NAME:a=b]", ""},
		{"K8S_POD_NAME=a;IgnoreUnknown=TRUE", "map[IgnoreUnknown:TRUE K8S_POD_NAME:a]", ""},
		{"ip=1", "", `ARGS: unknown args ["ip=1"]; add IgnoreUnknown=1 to accept them`},
		{"Z=1;A=2;IgnoreUnknown=0", "", `ARGS: unknown args ["A=2" "Z=1"]; add IgnoreUnknown=1 to accept them`},
		{"IgnoreUnknown=yes", "", `CNI_ARGS: IgnoreUnknown: want 1, 0, true or false, got "yes"`},
		{"ignoreunknown=1", "", `ARGS: unknown args ["ignoreunknown=1"]; add IgnoreUnknown=1 to accept them`},
		{"IP", "", `CNI_ARGS: "IP" is not KEY=VALUE`},
		{"=1", "", `CNI_ARGS: "=1" is not KEY=VALUE`},
	} {
		args, err := ParseArgs(tc.text)
		switch {
		case tc.err == "" && (err != nil || fmt.Sprint(map[string]string(args)) != tc.want):
			t.Errorf("%q: %v, %v, want %s", tc.text, args, err, tc.want)
		case tc.err != "" && (err == nil || err.Error() != tc.err || AsError(err).Code != CodeEnvironment || args != nil):
			t.Errorf("%q: %v, %v, want %q", tc.text, args, err, tc.err)
		}
	}
}

func TestVersions(t *testing.T) {
	for text, want := range map[string]Version{"": V010, "0.1.0": V010, "0.2.0": V020, "0.3.0": V030, "0.3.1": V031, "0.4.0": V040, "1.0.0": V100, "1.1.0": V110} {
		if got, err := ParseVersion(text); got != want || err != nil {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"1.0", "1", "1.2.0", "v1.0.0", "1.0.0 ", "0.3.2", "Version(0)"} {
		if got, err := ParseVersion(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
	if got := strings.Join(VersionsSince(V040), " "); got != "0.4.0 1.0.0 1.1.0" {
		t.Error(got)
	}
}

func TestErrors(t *testing.T) {
	cause := errors.New("cause")
	coded := Errorf(CodeIO, "read x: %w", cause)
	for _, tc := range []struct {
		why  string
		err  error
		code uint
		text string
	}{
		{"plain", cause, CodeInternal, "cause"},
		{"coded", coded, CodeIO, "read x: cause"},
		{"wrapped", fmt.Errorf("more: %w", coded), CodeIO, "more: read x: cause"},
		{"joined", errors.Join(errors.New("first"), coded), CodeIO, "first\nread x: cause"},
		{"given a code", Coded(CodeConfig, cause), CodeConfig, "cause"},
		{"keeps its code", Coded(CodeConfig, fmt.Errorf("more: %w", coded)), CodeIO, "more: read x: cause"},
	} {
		got := AsError(tc.err)
		if got.Code != tc.code || got.Msg != tc.text || !errors.Is(got, cause) || !errors.Is(tc.err, cause) {
			t.Errorf("%s: %d %q, Is %t", tc.why, got.Code, got.Msg, errors.Is(got, cause))
		}
	}
	if Coded(CodeConfig, nil) != nil {
		t.Error("no error got a code")
	}
	detailed := &Error{Code: 7, Msg: "m", Details: "d"}
	if AsError(detailed) != detailed || detailed.Error() != "m; d" {
		t.Errorf("%v", detailed)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"name":"n","isGatway":1,"ranges":[[{"subnet":"10.0.0.0/8"}]],"nested":{"x":1}}`))
	f.Add([]byte(`{"vlanTrunk":[{"minID":"x"}],"cni.dev/valid-attachments":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var conf pluginConf
		if err := Decode(data, &conf); err != nil && err.Error() == "" {
			t.Error("an error without a text")
		}
		for _, key := range Unknown(data, &conf, "shared") {
			_ = key.String()
		}
	})
}

func FuzzParseArgs(f *testing.F) {
	f.Add("IgnoreUnknown=1;IP=10.0.0.1;A=b=c;")
	f.Fuzz(func(t *testing.T, text string) {
		args, err := ParseArgs(text)
		if (err == nil) == (args == nil) {
			t.Errorf("%v, %v", args, err)
		}
		for key := range args {
			if key == "" || strings.ContainsAny(key, "=;") {
				t.Errorf("key %q", key)
			}
		}
	})
}

// TestSpelling checks that a key with the exact spelling has precedence over another spelling, which is then an unknown key.
func TestSpelling(t *testing.T) {
	type item struct {
		Address string     `json:"address"`
		Gateway netip.Addr `json:"gateway"`
	}
	type conf struct {
		Name  string          `json:"name"`
		Items []item          `json:"items"`
		ByKey map[string]item `json:"byKey"`
		Raw   json.RawMessage `json:"raw"`
	}
	type empty struct{}
	for text, want := range map[string]conf{
		`{"name": "a", "Name": "b"}`: {Name: "a"},
		`{"NAME": {}, "name": "a"}`:  {Name: "a"},
		`{"Name": "b"}`:              {Name: "b"},
		`{"items": [{"address": "a", "Address": {"IP": "x", "Mask": ""}, "gateway": "10.0.0.1", "Version": "4"}]}`: {Items: []item{{"a", netip.MustParseAddr("10.0.0.1")}}},
		`{"byKey": {"x": {"address": "a", "ADDRESS": 1}, "X": {"Address": "b"}}}`:                                  {ByKey: map[string]item{"x": {Address: "a"}, "X": {Address: "b"}}},
		`{"raw": {"a": 1, "A": 2}, "name": "\"", "NAME": 5}`:                                                       {Raw: json.RawMessage(`{"a":1,"A":2}`), Name: `"`},
	} {
		var got conf
		if err := Decode([]byte(text), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
	}
	if err := Decode([]byte(`{"name": 1, "Name": "a"}`), &conf{}); err == nil {
		t.Error("a wrong value of the key with the exact spelling is accepted")
	}
	for text, want := range map[string]string{
		`{"items": [{"address": "a", "Address": {"IP": "x"}}]}`: "items[0].Address",
		`{"Name": "a"}`: "",
	} {
		if got := Unknown([]byte(text), &conf{}); len(got) != min(1, len(want)) || want != "" && got[0].Path != want {
			t.Errorf("%s: unknown keys %+v, want %q", text, got, want)
		}
	}
	if got := Unknown([]byte(`{"x": 1}`), &empty{}, "name"); len(got) != 1 {
		t.Errorf("want every key to be unknown to a configuration without keys, got %+v", got)
	}
}
