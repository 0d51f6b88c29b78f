package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

// valid is a valid request. Nothing listens at its endpoint.
const valid = `{"verb":"status","segment":"vlan7","datastore":{"type":"cluster-local-etcd","endpoints":["http://127.0.0.1:1"],"timeout":1}}`

func TestConfig(t *testing.T) {
	if e := program().Answer([]byte(valid)).Error; e.Reason != datastore.ReasonUnreachable || !strings.Contains(e.Msg, "connection refused") {
		t.Errorf("nothing listens: %+v", e)
	}
	tests := []struct {
		old, new string
		code     uint
		texts    []string
	}{
		{`http://127.0.0.1:1`, `http://10.0.0.1:1`, types.CodeConfig, []string{"is not encrypted; use https"}},
		{`http://127.0.0.1:1`, `http://localhost:1`, types.CodeConfig, []string{"is not encrypted; use https"}},
		{`http://127.0.0.1:1`, `10.0.0.1:2379`, types.CodeConfig, []string{"ipam.datastore.endpoints[0]: "}},
		{`http://127.0.0.1:1`, `https://10.0.0.1/x`, types.CodeConfig, []string{"https://host:port"}},
		{`http://127.0.0.1:1`, `https://10.0.0.1:1`, types.CodeConfig, []string{"an https endpoint needs caFile, certFile and keyFile"}},
		{`"http://127.0.0.1:1"`, ``, types.CodeConfig, []string{"endpoints is missing"}},
		{`"timeout":1`, `"prefix":"a/","timeout":61,"caFile":""`, types.CodeConfig, []string{"timeout 61", "prefix"}},
	}
	for _, test := range tests {
		e := program().Answer([]byte(strings.Replace(valid, test.old, test.new, 1))).Error
		if e == nil || e.Code != test.code || e.Reason != datastore.ReasonRequest {
			t.Errorf("%s: got %+v, want code %d", test.new, e, test.code)
			continue
		}
		for _, want := range test.texts {
			if !strings.Contains(e.Msg, want) {
				t.Errorf("%s: %q does not contain %q", test.new, e.Msg, want)
			}
		}
	}
}

func TestKeysOfAddresses(t *testing.T) {
	for _, text := range []string{"0.0.0.0", "10.7.0.41", "255.255.255.255", "::", "fd00::1", "::ffff:ffff"} {
		a := netip.MustParseAddr(text)
		if back, err := addrOf([]byte(keys{root: "/p/s/"}.owner(a))); err != nil || back != a {
			t.Errorf("%v becomes %v (%v)", a, back, err)
		}
	}
}
