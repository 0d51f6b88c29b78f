package types

import (
	"encoding/json"
	"reflect"
	"testing"
)

// TestPrevResultIsPrintedAsItCame changes a prevResult as plugins do, and prints it in a version.
func TestPrevResultIsPrintedAsItCame(t *testing.T) {
	setMAC := func(r *Result) { r.Interfaces[0].MAC = "02:00:00:00:00:01" }
	addAll := func(r *Result) {
		r.Interfaces = append(r.Interfaces, Interface{Name: "ifb0"})
		r.IPs = append(r.IPs, IP{Interface: 1, Address: prefix("10.0.0.9/8")})
		r.Routes = append(r.Routes, Route{Dst: prefix("10.9.0.0/16")})
		r.DNS.Domain = "x.test"
	}
	for _, tc := range []struct {
		prev   string
		v      Version
		change func(*Result)
		want   string
	}{
		{`{}`, V100, nil, `{"cniVersion":"1.0.0"}`},
		{`{"x":1.50,"interfaces":null}`, V040, nil, `{"cniVersion":"0.4.0","x":1.50,"interfaces":null}`},
		{`{"cniVersion":"1.1.0","interfaces":[{"name":"a","mac":"7","x":1,"sandbox":""},null],"ips":[],"dns":{}}`, V110, setMAC,
			`{"cniVersion":"1.1.0","interfaces":[{"name":"a","mac":"02:00:00:00:00:01","x":1,"sandbox":""},null],"ips":[],"dns":{}}`},
		{`{"CNIVersion":"1.1.0","Interfaces":[{"Name":"a","Mac":"7"}]}`, V110, setMAC, `{"CNIVersion":"1.1.0","Interfaces":[{"Name":"a","Mac":"02:00:00:00:00:01"}]}`},
		{`{"cniVersion":"1.1.0","routes":[{"gw":"10.0.0.1"},{"dst":"10.1.2.3/16"}],"dns":{"x":1}}`, V110, addAll,
			`{"cniVersion":"1.1.0","interfaces":[{"name":"ifb0"}],"ips":[{"interface":1,"address":"10.0.0.9/8"}],` +
				`"routes":[{"gw":"10.0.0.1"},{"dst":"10.1.2.3/16"},{"dst":"10.9.0.0/16"}],"dns":{"x":1,"domain":"x.test"}}`},
		{`{"cniVersion":"1.1.0","routes":[{"gw":"10.0.0.1"}]}`, V110, addAll,
			`{"cniVersion":"1.1.0","interfaces":[{"name":"ifb0"}],"ips":[{"interface":1,"address":"10.0.0.9/8"}],` +
				`"routes":[{"gw":"10.0.0.1"},{"dst":"10.9.0.0/16"}],"dns":{"domain":"x.test"}}`},
		// to another version: keys that the version lacks are removed
		{`{"cniVersion":"1.1.0","x":1,"interfaces":[{"name":"a","mac":"7","mtu":1400,"x":1}],"ips":[{"address":"10.0.0.1/8","interface":7,"x":1}],"routes":[{"dst":"10.1.2.3/16","mtu":1}]}`, V040, nil,
			`{"cniVersion":"0.4.0","x":1,"interfaces":[{"name":"a","mac":"7","x":1}],"ips":[{"version":"4","address":"10.0.0.1/8","interface":7,"x":1}],"routes":[{"dst":"10.1.2.3/16"}],"dns":{}}`},
		{`{"cniVersion":"0.3.1","x":1,"ips":[{"version":"6","address":"fd00::1/64","interface":-1}],"dns":{}}`, V100, nil,
			`{"cniVersion":"1.0.0","x":1,"ips":[{"address":"fd00::1/64","interface":-1}]}`},
		{`{"cniVersion":"0.2.0","x":1,"ip4":{"ip":"10.0.0.1/8","routes":[{"dst":"0.0.0.0/0"}]},"dns":{}}`, V100, nil,
			`{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1/8"}],"routes":[{"dst":"0.0.0.0/0"}]}`},
		{`{"cniVersion":"0.2.0","x":1}`, V100, nil, `{"cniVersion":"1.0.0"}`},
	} {
		r, err := ParsePrevResult(tc.v, []byte(tc.prev))
		if err != nil {
			t.Errorf("%s: %v", tc.prev, err)
			continue
		}
		if tc.change != nil {
			tc.change(r)
		}
		text, err := r.Marshal(tc.v)
		var got, want any
		if json.Unmarshal(text, &got) != nil || json.Unmarshal([]byte(tc.want), &want) != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s as %s: %v, %s\nwant %s", tc.prev, tc.v, err, text, tc.want)
		}
	}
}

// FuzzPrevResult checks that an unchanged prevResult is printed with equal JSON values and can be parsed
// again, and that in another version it is a result of that version.
func FuzzPrevResult(f *testing.F) {
	addGoldenResults(f)
	f.Add(int(V110), []byte(`{"cniVersion":"1.1.0","x":1,"interfaces":[null,{"mac":"0"}],"ips":[{"address":"::ffff:1.2.3.4/120","interface":-1}],"routes":[null,{"dst":"10.1.2.3/8","x":{}}]}`))
	f.Add(int(V110), []byte(`null`))
	f.Add(int(V010), []byte(`{"CniVersion":"0.1.0","ips":{}}`))
	f.Add(int(V020), []byte(`{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.1/8","routes":[{"gw":"::1"}],"x":[]}}`))
	f.Fuzz(func(t *testing.T, n int, data []byte) {
		v := Version(n)
		if v < V010 || v > Newest {
			return
		}
		first, err := ParsePrevResult(v, data)
		if err != nil {
			return
		}
		for out := V010; out <= Newest; out++ {
			text, err := first.Marshal(out)
			if err != nil {
				continue
			}
			if _, err := ParsePrevResult(V010, text); err != nil {
				t.Fatalf("printed as %s, but cannot be parsed: %v\n%s", out, err, text)
			}
			var head struct{ CNIVersion string }
			var came, got any
			if json.Unmarshal(data, &came) != nil || json.Unmarshal(text, &got) != nil || json.Unmarshal(text, &head) != nil || head.CNIVersion != out.String() {
				t.Fatalf("%s has version %q, want %s", text, head.CNIVersion, out)
			}
			if object, ok := came.(map[string]any); ok && object["cniVersion"] == out.String() && !reflect.DeepEqual(got, came) {
				t.Fatalf("%s\nis printed as\n%s", data, text)
			}
		}
	})
}
