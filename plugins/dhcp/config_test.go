package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// No daemon listens at the socket. Therefore ADD fails with types.CodeIO if it accepts the configuration.
var _ = DescribeTable("ADD fails for",
	func(ipam, rest, args string, code int, texts ...string) {
		nstest.LeakCheck(GinkgoTB())
		bed := nstest.Bed{Plugin: plugin()}
		c := nstest.Call{NetNS: "/run/netns/none", Args: args, Config: `{"cniVersion":"1.1.0","name":"d","type":"macvlan"` + rest +
			`,"ipam":{"type":"dhcp","daemonSocketPath":"/nonexistent/dhcp.sock"` + ipam + `}}`}
		bed.Run("ADD", c).RequireFailure(GinkgoTB(), code, texts...)
		if code == types.CodeConfig {
			bed.Run("STATUS", c).RequireFailure(GinkgoTB(), types.CodeNotAvailable, texts...)
		}
		bed.Run("DEL", c)
	},
	Entry("a valid configuration only because no daemon runs", "", "", "A=b;C=", types.CodeIO, "/nonexistent/dhcp.sock"),
	Entry("all problems at once",
		`,"priority":-1,"timeout":201,"provide":[{"option":"nosuch","value":"x"},{"option":"53","value":"x"},{"option":"12"},
		{"option":"60","value":"`+strings.Repeat("x", 256)+`"},{"option":"15","value":"a"},{"option":"15","value":"b"}],"request":[{"option":"256"},{"option":"0"},{}]`, "", "",
		types.CodeConfig, "ipam.priority -1", "ipam.timeout 201", `ipam.provide[0].option "nosuch" is neither`, "ipam.provide[1].option 53 is set by the client itself",
		"ipam.provide[2]: neither value nor fromArg", "ipam.provide[3].value of option 60 must be at most 255 bytes long, got 256", "ipam.provide[5].option 15 is listed twice",
		`ipam.request[0].option "256"`, `ipam.request[1].option "0"`, `ipam.request[2].option ""`),
	Entry("a value in CNI_ARGS that is too long", `,"provide":[{"option":"host-name","fromArg":"K"}]`, "", "K="+strings.Repeat("x", 256),
		types.CodeConfig, "ipam.provide[0].value of option host-name must be at most 255"),
	Entry("a socket path that is not absolute", `,"daemonSocketPath":"run/dhcp.sock"`, "", "", types.CodeConfig, `ipam.daemonSocketPath "run/dhcp.sock" is not an absolute path`),
	Entry("malformed CNI_ARGS", "", "", "A", types.CodeEnvironment, `"A" is not KEY=VALUE`),
	Entry("an unknown key with strict", `,"clientId2":""`, `,"strict":true`, "", types.CodeUnsupported, "ipam.clientId2: unknown key"),
)

// FuzzConfig tests that the client identifier and the options of every accepted configuration fit into
// a DHCP message, and that there are no duplicates.
func FuzzConfig(f *testing.F) {
	f.Add(`{"ipam":{"provide":[{"option":"12","fromArg":"K8S_POD_NAME","value":"x"}],"request":[{"option":"42"},{"skipDefault":true}],"clientID":"name"}}`, "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b")
	f.Add(`{"ipam":{"provide":[{"option":"61","value":"x"},{"option":"dhcp-client-identifier","value":"y"}],"clientID":"mac","timeout":200,"priority":4294967295}}`, "")
	f.Add(`{"ipam":{"request":[{"option":"121","skipDefault":true},{"option":"121"}],"daemonSocketPath":"/x"}}`, "=;")
	f.Add(`{"ipam":null}`, "K")
	f.Fuzz(func(t *testing.T, text, args string) {
		var raw rawConfig
		given, err := types.ParseAnyArgs(args)
		if err != nil || types.Decode([]byte(text), &raw) != nil {
			return
		}
		conf, err := input{raw.IPAM, given, types.Attachment{Network: "n", ContainerID: strings.Repeat("c", 300), IfName: "eth0"}}.toConfig()
		if err != nil {
			return
		}
		s := conf.settings
		if len(s.ID) > maxValue || len(s.ID) == 0 && raw.IPAM.ClientID != "mac" || conf.timeout < 0 || s.Priority < 0 {
			t.Errorf("%s: accepted as %+v", text, conf)
		}
		codes := slices.Clone(s.Ask)
		slices.Sort(codes)
		if len(codes) == 0 || len(slices.Compact(codes)) != len(s.Ask) || bytes.ContainsAny(s.Ask, "\x00\xff") {
			t.Errorf("%s: asks for %v", text, s.Ask)
		}
		sent := map[uint8]bool{}
		for _, o := range s.Options {
			if sent[o.Code] || len(o.Value) == 0 || len(o.Value) > maxValue || slices.Contains(ownOptions, o.Code) || o.Code == optionPad || o.Code == optionEnd {
				t.Errorf("%s: sends %+v", text, o)
			}
			sent[o.Code] = true
		}
	})
}
