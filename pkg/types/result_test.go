package types

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/*.golden anew")

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

func mac(t testing.TB, s string) MAC {
	t.Helper()
	m, err := ParseMAC(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// goldenResults returns the results that have a golden file for every version.
func goldenResults(t testing.TB) map[string]*Result {
	host := Interface{Name: "veth0a1b2c3d", MAC: "02:00:00:00:00:01"}
	container := Interface{Name: "eth0", MAC: "02:00:00:00:00:02", Sandbox: "/run/netns/container"}
	rich := container
	rich.MTU, rich.SocketPath, rich.PciID = 1400, "/run/s", "0000:00:1f.6"
	return map[string]*Result{
		"empty": {},
		"l2":    {Interfaces: []Interface{host, container}},
		"v4": {
			Interfaces: []Interface{host, container},
			IPs:        []IP{{Interface: 1, Address: prefix("10.1.2.3/24"), Gateway: addr("10.1.2.1")}},
			Routes:     []Route{{Dst: prefix("0.0.0.0/0")}},
		},
		"lease": {
			IPs:    []IP{{Interface: NoInterface, Address: prefix("10.1.2.3/24"), Gateway: addr("10.1.2.1")}},
			Routes: []Route{{Dst: prefix("0.0.0.0/0"), GW: addr("10.1.2.1"), MTU: 1400, Table: 7}},
			DNS:    DNS{Nameservers: []string{"10.0.0.53"}},
		},
		"dual": {
			Interfaces: []Interface{{Name: "lo", MAC: "00:00:00:00:00:00", Sandbox: "/run/netns/container"}, rich},
			IPs: []IP{
				{Interface: 0, Address: prefix("127.0.0.1/8")},
				{Interface: 1, Address: prefix("fd00::3/64"), Gateway: addr("fd00::1")},
				{Interface: 1, Address: prefix("10.1.2.3/24")},
			},
			Routes: []Route{
				{Dst: prefix("10.9.0.0/16"), GW: addr("10.1.2.9"), MTU: 1300, AdvMSS: 1260, Priority: 5, Table: 100, Scope: 253},
				{Dst: prefix("::/0"), GW: addr("fd00::1"), GWs: []netip.Addr{addr("fd00::1"), addr("fd00::2")}},
			},
			DNS: DNS{Nameservers: []string{"10.0.0.53", "fd00::53"}, Domain: "x.test", Search: []string{"a", "b"}, Options: []string{"ndots:5"}},
		},
	}
}

func allVersions() []Version { return []Version{V010, V020, V030, V031, V040, V100, V110} }

func TestGolden(t *testing.T) {
	for shape, r := range goldenResults(t) {
		for _, v := range allVersions() {
			name := filepath.Join("testdata", shape+"-"+v.String()+".golden")
			got, err := r.Marshal(v)
			if err != nil {
				got = []byte("error: " + err.Error() + "\n")
			}
			if *update {
				if err := os.WriteFile(name, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s: got\n%swant\n%s", name, got, want)
			}
		}
	}
}

func TestParseResultIsTheInverseOfMarshal(t *testing.T) {
	forms := map[string]func(*Result, Version) ([]byte, error){"result": (*Result).Marshal, "lease": (*Result).MarshalLease}
	for shape, r := range goldenResults(t) {
		for _, v := range allVersions() {
			for form, marshal := range forms {
				text, err := marshal(r, v)
				if errors.Is(err, ErrNoAddress) && v <= V020 && len(r.IPs) == 0 {
					continue
				}
				parsed, parseErr := ParseResult(Newest, text) // the text's own cniVersion decides
				if err := errors.Join(err, parseErr); err != nil {
					t.Errorf("%s %s as %s: %v", shape, v, form, err)
				} else if again, err := marshal(parsed, v); err != nil || !bytes.Equal(again, text) {
					t.Errorf("%s %s as %s: %v\n%s\nis printed as\n%s", shape, v, form, err, text, again)
				}
			}
		}
	}
}

// same compares results. An empty list equals nil.
func same(a, b *Result) bool {
	return slices.Equal(a.Interfaces, b.Interfaces) && slices.Equal(a.IPs, b.IPs) && slices.EqualFunc(a.Routes, b.Routes, equalRoutes) &&
		reflect.DeepEqual(a.DNS, b.DNS)
}

func equalRoutes(a, b Route) bool { return reflect.DeepEqual(a, b) }

func TestParseResultOfAnyVersion(t *testing.T) {
	want := &Result{
		IPs:    []IP{{Interface: NoInterface, Address: prefix("10.1.2.3/24"), Gateway: addr("10.1.2.1")}},
		Routes: []Route{{Dst: prefix("0.0.0.0/0")}},
	}
	const ips = `"ips":[{"version":"4","address":"10.1.2.3/24","gateway":"10.1.2.1"}],"routes":[{"dst":"0.0.0.0/0"}]`
	const ip4 = `"ip4":{"ip":"10.1.2.3/24","gateway":"10.1.2.1","routes":[{"dst":"0.0.0.0/0"}]}`
	for _, tc := range []struct {
		conf Version
		text string
	}{
		{V110, `{"cniVersion":"0.1.0",` + ip4 + `}`},
		{V110, `{"cniVersion":"0.2.0",` + ip4 + `,"dns":{}}`},
		{V010, `{"cniVersion":"0.3.1",` + ips + `}`},
		{V020, `{"cniVersion":"1.0.0",` + ips + `}`},
		{V040, `{"cniVersion":"1.1.0",` + ips + `}`},
		{V010, `{` + ip4 + `}`},
		{V020, `{"cniVersion":"",` + ip4 + `}`},
		{V030, `{` + ips + `}`},
		{V100, `{` + ips + `}`},
		{V110, `{"cniVersion":null,` + ips + `,"unknown":[1]}`},
		{V110, `{"CNIVERSION":"1.1.0","IPs":[{"ADDRESS":"10.1.2.3/24","Gateway":"10.1.2.1"}],"Routes":[{"DST":"0.0.0.0/0"}]}`},
	} {
		got, err := ParseResult(tc.conf, []byte(tc.text))
		if err != nil || !same(got, want) {
			t.Errorf("%s under %s: %v, %+v", tc.text, tc.conf, err, got)
		}
	}
}

// TestParseResultChecksKeys checks that a key that is missing or null is not set if it is optional
// in the specification. Any other wrong value is an error that names the key.
func TestParseResultChecksKeys(t *testing.T) {
	for _, tc := range []struct {
		v         Version
		text, err string // err empty: the result is accepted
	}{
		{V110, `null`, ""},
		{V110, `{}`, ""},
		{V110, `{"ips":null,"routes":null,"interfaces":null,"dns":null}`, ""},
		{V020, `{"ip4":null,"ip6":null,"dns":null}`, ""},
		{V110, `{"interfaces":[null]}`, ""},
		{V110, `{"interfaces":[{"name":null,"mac":null,"mtu":null}]}`, ""},
		{V110, `{"ips":[{"address":"10.0.0.1/8","gateway":null,"interface":null}]}`, ""},
		{V110, `{"ips":[{"address":"10.0.0.1/8","gateway":""}]}`, ""},
		{V110, `{"ips":[{"address":"10.0.0.1/8","interface":4}]}`, ""}, // a result without interfaces
		{V110, `{"routes":[{"dst":"10.0.0.1/8","gw":""}]}`, ""},
		{V110, ``, `decode result: byte 0: unexpected end of JSON input`},
		{V110, `[]`, `decode result: want an object, got array`},
		{V110, `"x"`, `decode result: want an object, got string`},
		{V110, `{"cniVersion":1}`, `decode result: cniVersion: want a string, got number`},
		{V110, `{"cniVersion":"1.2.0"}`, `decode result: unknown CNI version "1.2.0"`},
		{V110, `{"cniVersion":"1.0"}`, `decode result: unknown CNI version "1.0"`},
		{V110, `{"ips":[null]}`, "an IP without an address"},
		{V040, `{"ips":[null]}`, "an IP without an address"},
		{V110, `{"ips":[{}]}`, "an IP without an address"},
		{V110, `{"ips":[{"address":null}]}`, "an IP without an address"},
		{V110, `{"ips":[{"address":""}]}`, "an IP without an address"},
		{V020, `{"ip4":{}}`, "an IP without an address"},
		{V110, `{"routes":[null]}`, "routes[0].dst is missing"},
		{V110, `{"routes":[{"gw":"10.0.0.1"}]}`, "routes[0].dst is missing"},
		{V110, `{"ips":{}}`, `ips: want a list, got object`},
		{V110, `{"ips":[{"address":"10.0.0.1/8"},{"address":7}]}`, `ips[1].address: want a string, got number`},
		{V110, `{"ips":[{"address":"10.0.0.1"}]}`, `ips[0].address: netip.ParsePrefix("10.0.0.1"): no '/'`},
		{V110, `{"ips":[{"address":"10.0.0.1/8","interface":"0"}]}`, `ips[0].interface: want a number (int), got string`},
		{V110, `{"interfaces":[{"name":"a"}],"ips":[{"address":"10.0.0.1/8","interface":1}]}`, "IP 10.0.0.1/8 has interface index 1, but the result has 1 interfaces"},
		{V110, `{"interfaces":[{"name":"a"}],"ips":[{"address":"10.0.0.1/8","interface":-2}]}`, "IP 10.0.0.1/8 has interface index -2, but the result has 1 interfaces"},
		{V110, `{"interfaces":[{"name":"a","mac":"zz"}]}`, ""},
		{V110, `{"ips":[{"address":"10.0.0.1/8","gateway":"fe80::1%eth0"}]}`, "IP 10.0.0.1/8 has a gateway with a zone: fe80::1%eth0"},
		{V110, `{"routes":[{"dst":"fd00::/8","gw":"fe80::1%eth0"}]}`, "routes[0].gw fe80::1%eth0 must not have a zone"},
		{V110, `{"routes":[{"dst":"10.0.0.0/8","gw":"fe80::1"}]}`, "routes[0].gw fe80::1 must be of the same family as dst 10.0.0.0/8"},
		{V110, `{"routes":[{"dst":"10.0.0.0/8","mtu":-1}]}`, "routes[0].mtu -1 must be between 0 and 4294967295"},
		{V110, `{"routes":[{"dst":"10.0.0.0/8","table":4294967296}]}`, "routes[0].table 4294967296 must be between 0 and 4294967295"},
		{V110, `{"routes":[{"dst":"10.0.0.0/8","scope":256}]}`, "routes[0].scope 256 must be between 0 and 255"},
	} {
		_, err := ParseResult(tc.v, []byte(tc.text))
		switch {
		case tc.err == "" && err != nil:
			t.Errorf("%s: %v", tc.text, err)
		case tc.err != "" && (err == nil || !strings.HasSuffix(err.Error(), tc.err)):
			t.Errorf("%s: error %v, want %q", tc.text, err, tc.err)
		}
	}
}

// TestAddressesAreNormalized checks that texts that netip and the reference plugins' net.IP parse
// differently become the same address.
func TestAddressesAreNormalized(t *testing.T) {
	for _, tc := range []struct{ address, gateway, want string }{ // an empty want means an error
		{"10.0.0.5/24", "10.0.0.1", "10.0.0.5/24 10.0.0.1"}, // the host part is kept
		{"::ffff:10.0.0.1/120", "::ffff:10.0.0.9", "10.0.0.1/24 10.0.0.9"},
		{"::ffff:10.0.0.1/96", "", "10.0.0.1/0 invalid IP"},
		{"::ffff:10.0.0.1/64", "", ""},
		{"FD00:0:0::0005/64", "FD00::1", "fd00::5/64 fd00::1"},
		{"10.0.0.1/08", "", ""},
		{"010.0.0.1/8", "", ""},
		{"10.0.0.1/33", "", ""},
		{"10.0.0.1/-1", "", ""},
		{"fe80::1%eth0/64", "", ""},
		{" 10.0.0.1/8", "", ""},
		{"10.0.0.1/8", "10.0.0.256", ""},
		{"10.0.0.1/8", "10.0.0.2/8", ""},
	} {
		for _, text := range []string{
			fmt.Sprintf(`{"cniVersion":"1.1.0","ips":[{"address":%q,"gateway":%q}]}`, tc.address, tc.gateway),
			fmt.Sprintf(`{"cniVersion":"0.2.0","ip4":{"ip":%q,"gateway":%q}}`, tc.address, tc.gateway),
		} {
			r, err := ParseResult(Newest, []byte(text))
			if tc.want == "" {
				if err == nil {
					t.Errorf("%s: accepted as %v", text, r.IPs)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", text, err)
			} else if got := fmt.Sprint(r.IPs[0].Address, " ", r.IPs[0].Gateway); got != tc.want {
				t.Errorf("%s: %s, want %s", text, got, tc.want)
			}
		}
	}
}

func TestRouteNormalize(t *testing.T) {
	r := Route{Dst: prefix("::ffff:10.1.2.3/120"), GW: addr("::ffff:10.0.0.1")}
	if err := r.Normalize(); err != nil || r.Dst != prefix("10.1.2.0/24") || r.GW != addr("10.0.0.1") {
		t.Errorf("%v, %v", r, err)
	}
	r = Route{Dst: prefix("::ffff:10.1.2.3/64")} // not IPv4 any more
	if err := r.Normalize(); err != nil || r.Dst != prefix("::/64") {
		t.Errorf("%v, %v", r, err)
	}
}

func TestContainerAndOf(t *testing.T) {
	r := goldenResults(t)["dual"]
	r.Interfaces = append([]Interface{{Name: "eth0"}}, r.Interfaces...) // the same name on the host
	i, ok := r.ContainerInterface("eth0")
	if i != 2 || !ok {
		t.Errorf("%d, %t", i, ok)
	}
	if i, ok := r.ContainerInterface("eth1"); i != NoInterface || ok {
		t.Errorf("%d, %t", i, ok)
	}
	r.IPs[0].Interface = NoInterface
	if ips := r.Of(1); len(ips) != 3 {
		t.Errorf("%v", ips)
	}
	if ips := r.Of(2); len(ips) != 1 || ips[0] != r.IPs[0] {
		t.Errorf("%v", ips)
	}
}

func TestMAC(t *testing.T) {
	var m MAC
	for text, want := range map[string]string{`"02-00-00-AA-00-01"`: "02:00:00:aa:00:01", `""`: "", `null`: "", `"0200.00aa.0001"`: "02:00:00:aa:00:01"} {
		m = ""
		if err := json.Unmarshal([]byte(text), &m); err != nil || m.String() != want {
			t.Errorf("%s: %q, %v", text, m, err)
		}
	}
	if got := mac(t, "02:00:00:00:00:01"); got != mac(t, "02-00-00-00-00-01") || len(got.Bytes()) != 6 {
		t.Errorf("%v", got)
	}
}

// TestAllocationsOfMarshal fails if Marshal encodes a result twice.
func TestAllocationsOfMarshal(t *testing.T) {
	r := goldenResults(t)["dual"]
	for _, v := range allVersions() {
		if n := testing.AllocsPerRun(100, func() { _, _ = r.Marshal(v) }); n > 30 {
			t.Errorf("%s: %v allocations", v, n)
		} else {
			t.Logf("%s: %v allocations", v, n)
		}
	}
}

// addGoldenResults adds each golden result as a seed, in each version that can express it.
func addGoldenResults(f *testing.F) {
	f.Helper()
	for _, r := range goldenResults(f) {
		for _, v := range allVersions() {
			if text, err := r.Marshal(v); err == nil {
				f.Add(int(v), text)
			}
		}
	}
}
