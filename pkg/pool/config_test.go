package pool

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// parseConfig returns the configuration in text, as ADD does.
func parseConfig(text string, version types.Version) (*Pool, error) {
	var raw struct {
		IPAM *Keys `json:"ipam"`
		RuntimeKeys
	}
	if err := types.Decode([]byte(text), &raw); err != nil {
		return nil, err
	}
	in := input{keys: raw.IPAM, runtime: raw.RuntimeKeys, version: version}
	p, err := in.pool()
	return p, types.Coded(types.CodeConfig, err)
}

func TestInvalidConfig(t *testing.T) {
	for _, c := range []struct {
		name, ipam string // ipam: the members of the object
		want       []string
	}{
		{"no ranges", ``, []string{"ipam: no IP ranges specified"}},
		{"start without subnet", `"rangeStart": "10.1.2.3"`, []string{"ipam: no IP ranges specified"}},
		{"subnet without prefix length", `"subnet": "10.1.2"`, []string{`ipam.subnet: invalid CIDR address: "10.1.2"`}},
		{"/31", `"subnet": "10.1.2.0/31"`, []string{"ipam.subnet: Network 10.1.2.0/31 too small to allocate from"}},
		{"/32", `"subnet": "10.1.2.0/32"`, []string{"too small"}},
		{"/127", `"subnet": "fd00::/127"`, []string{"too small"}},
		{"/128", `"subnet": "fd00::/128"`, []string{"too small"}},
		{"multicast", `"subnet": "239.1.2.0/24"`, []string{"ipam: an interface cannot have a multicast or unspecified address, as in 239.1.2.1-239.1.2.254"}},
		{"multicast of IPv6", `"subnet": "ff05::/64"`, []string{"an interface cannot have a multicast or unspecified address"}},
		{"unspecified", `"subnet": "0.0.0.0/8", "rangeStart": "0.0.0.0"`, []string{"an interface cannot have a multicast or unspecified address"}},
		{"host bits", `"subnet": "10.1.2.5/24"`, []string{"ipam.subnet: Network has host bits set. For a subnet mask of length 24 the network address is 10.1.2.0"}},
		{"start outside", `"subnet": "10.1.2.0/24", "rangeStart": "10.2.0.1"`, []string{"ipam.rangeStart: RangeStart 10.2.0.1 not in network 10.1.2.0/24"}},
		{"end outside", `"subnet": "10.1.2.0/24", "rangeEnd": "10.2.0.1"`, []string{"ipam.rangeEnd: RangeEnd 10.2.0.1 not in network 10.1.2.0/24"}},
		{"start above end", `"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.20", "rangeEnd": "10.1.2.10"`, []string{"ipam.rangeStart 10.1.2.20 is above rangeEnd 10.1.2.10"}},
		{"start is not an address", `"subnet": "10.1.2.0/24", "rangeStart": "x"`, []string{`ipam.rangeStart: invalid IP address: "x"`}},
		{"start with a zone", `"subnet": "fd00::/64", "rangeStart": "fd00::1%eth0"`, []string{`ipam.rangeStart: invalid IP address: "fd00::1%eth0"`}},
		{"gateway of the other family", `"subnet": "10.1.2.0/24", "gateway": "fe80::1"`, []string{"ipam.gateway fe80::1 must be of the same family as subnet 10.1.2.0/24"}},
		{"gateway unspecified", `"subnet": "10.1.2.0/24", "gateway": "0.0.0.0"`, []string{"ipam.gateway 0.0.0.0: a router cannot have a multicast or unspecified address"}},
		{"gateway multicast", `"subnet": "fd00::/64", "gateway": "ff02::2"`, []string{"ipam.gateway ff02::2: a router cannot have a multicast or unspecified address"}},
		{"gateway is not an address", `"subnet": "10.1.2.0/24", "gateway": "x"`, []string{`ipam.gateway: invalid IP address: "x"`}},
		{"empty set", `"ranges": [[]]`, []string{"ipam.ranges[0]: empty range set"}},
		{"null set", `"ranges": [null]`, []string{"ipam.ranges[0]: empty range set"}},
		{"null range", `"ranges": [[null]]`, []string{"ipam.ranges[0][0].subnet is missing"}},
		{"no subnet in a range", `"ranges": [[{"rangeStart": "10.1.2.3"}]]`, []string{"ipam.ranges[0][0].subnet is missing"}},
		{"families mixed", `"ranges": [[{"subnet": "10.1.2.0/24"}, {"subnet": "fd00::/64"}]]`, []string{"ipam.ranges[0][1]: mixed address families"}},
		{"overlap in a set", `"ranges": [[{"subnet": "10.1.2.0/24"}, {"subnet": "10.1.0.0/16"}]]`,
			[]string{"ipam.ranges[0][1]: subnets 10.1.2.1-10.1.2.254 and 10.1.0.1-10.1.255.254 overlap"}},
		{"overlap of sets", `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.0.0/16"}]]`, []string{"ipam.ranges[1] overlaps with ipam.ranges[0]: 10.1.0.1-10.1.255.254 and 10.1.2.1-10.1.2.254"}},
		{"exclude", `"subnet": "10.1.2.0/24", "exclude": [null, "x"]`, []string{`ipam.exclude[0]: "" is neither an address nor a prefix`, `ipam.exclude[1]: "x" is neither an address nor a prefix`}},
		{"cooldown", `"subnet": "10.1.2.0/24", "cooldown": -1`, []string{"ipam.cooldown -1 must be between 0 and"}},
		{"dataDir", `"subnet": "10.1.2.0/24", "dataDir": "var/lib"`, []string{`ipam.dataDir "var/lib" is not an absolute path`}},
		{"routes", `"subnet": "10.1.2.0/24", "routes": [null, {"dst": "x"}, {"dst": "0.0.0.0/0", "gw": "y"}, {"dst": "::/0", "gw": "10.1.1.1"}]`,
			[]string{`ipam.routes[0].dst: invalid CIDR address: ""`, `ipam.routes[1].dst: invalid CIDR address: "x"`, `ipam.routes[2].gw: invalid IP address: "y"`, "ipam.routes[3].gw 10.1.1.1 must be of the same family as dst ::/0"}},
		{"several problems", `"subnet": "10.1.2.5/24", "ranges": [[]], "cooldown": -1, "dataDir": "x"`,
			[]string{"host bits", "ipam.ranges[0]: empty range set", "cooldown", "dataDir"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parseConfig(`{"ipam": {`+c.ipam+`}}`, types.V110)
			expectError(t, err, types.CodeConfig, c.want...)
			_, _, fromOutside := ParseIPAM([]byte("{" + c.ipam + "}"))
			if c.want[0] != "ipam: no IP ranges specified" && fmt.Sprint(fromOutside) != err.Error() {
				t.Errorf("want %v, got %v from ParseIPAM", err, fromOutside)
			}
		})
	}
}

// expectError fails the test if err does not have the code, or lacks one of the texts.
func expectError(t *testing.T, err error, code uint, want ...string) {
	t.Helper()
	var coded *types.Error
	if !errors.As(err, &coded) || coded.Code != code {
		t.Fatalf("error %v, want code %d", err, code)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q lacks %q", err, w)
		}
	}
}

func TestInvalidConfigOutsideIPAM(t *testing.T) {
	_, err := parseConfig(`{}`, types.V110)
	expectError(t, err, types.CodeConfig, "IPAM config missing 'ipam' key")
	const subnet = `"ipam": {"subnet": "10.1.2.0/24"}`
	for _, c := range []struct {
		name, text string
		want       string
	}{
		{"null in runtimeConfig.ips", `"runtimeConfig": {"ips": [null]}`, `runtimeConfig.ips[0]: invalid IP address: ""`},
		{"null in args", `"args": {"cni": {"ips": ["10.1.2.3", null]}}`, `args.cni.ips[1]: invalid IP address: ""`},
		{"empty text in runtimeConfig.ips", `"runtimeConfig": {"ips": [""]}`, `runtimeConfig.ips[0]: invalid IP address: ""`},
		{"not an address in args", `"args": {"cni": {"ips": ["x"]}}`, `args.cni.ips[0]: invalid IP address: "x"`},
		{"null range set", `"runtimeConfig": {"ipRanges": [null]}`, "runtimeConfig.ipRanges[0]: empty range set"},
		{"null range", `"runtimeConfig": {"ipRanges": [[null]]}`, "runtimeConfig.ipRanges[0][0].subnet is missing"},
	} {
		_, err := parseConfig("{"+subnet+", "+c.text+"}", types.V110)
		t.Run(c.name, func(t *testing.T) { expectError(t, err, types.CodeConfig, c.want) })
	}
	for _, text := range []string{`{"ipam": {"ranges": "x"}}`, `{"ipam": []}`, `[]`, `{`, `{"ipam": {"cooldown": "30"}}`} {
		_, err := parseConfig(text, types.V110)
		expectError(t, err, types.CodeDecode)
	}
	for key, text := range map[string]string{
		"ipam.routes":              `{"ipam": {"routes": "x"}}`,
		"ipam.routes[1].mtu":       `{"ipam": {"routes": [{}, {"mtu": "x"}]}}`,
		"runtimeConfig":            `{"runtimeConfig": 7}`,
		"runtimeConfig.ips[0]":     `{"runtimeConfig": {"ips": [7]}}`,
		"args.cni":                 `{"args": {"cni": "x"}}`,
		"ipam.ranges[0][0].subnet": `{"ipam": {"ranges": [[{"subnet": 7}]]}}`,
	} {
		_, err := parseConfig(text, types.V110)
		expectError(t, err, types.CodeDecode, key+": want ")
	}
	two := `{"ipam": {"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24"}]]}}`
	_, err = parseConfig(two, types.V020)
	expectError(t, err, types.CodeConfig, "cniVersion: CNI version 0.2.0 does not support more than 1 address per family")
	if _, err = parseConfig(two, types.V030); err != nil {
		t.Error(err)
	}
}

func TestValidConfig(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"defaults", `{"ipam": {"subnet": "10.1.2.0/24"}}`, "10.1.2.1-10.1.2.254 gw 10.1.2.1; /var/lib/cni/networks 0s"},
		{"IPv6 defaults", `{"ipam": {"subnet": "fd00::/126"}}`, "fd00::1-fd00::3 gw fd00::1; /var/lib/cni/networks 0s"},
		{"all keys set", `{"ipam": {"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9", "rangeEnd": "10.1.2.11", "gateway": "10.1.2.254", "dataDir": "/x/./y", "cooldown": 9}}`,
			"10.1.2.9-10.1.2.11 gw 10.1.2.254; /x/y 9s"},
		{"empty texts", `{"ipam": {"subnet": "10.1.2.0/30", "rangeStart": "", "rangeEnd": "", "gateway": "", "dataDir": ""}}`,
			"10.1.2.1-10.1.2.2 gw 10.1.2.1; /var/lib/cni/networks 0s"},
		{"null values", `{"ipam": {"subnet": "10.1.2.0/30", "ranges": null, "routes": null, "exclude": null, "gateway": null, "cooldown": null}, "runtimeConfig": null, "args": {"cni": null}}`,
			"10.1.2.1-10.1.2.2 gw 10.1.2.1; /var/lib/cni/networks 0s"},
		{"null lists", `{"ipam": {"subnet": "10.1.2.0/30"}, "runtimeConfig": {"ips": null, "ipRanges": null}, "args": {"cni": {"ips": null}}}`,
			"10.1.2.1-10.1.2.2 gw 10.1.2.1; /var/lib/cni/networks 0s"},
		{"the order of the range sets", `{"ipam": {"subnet": "10.2.0.0/30", "ranges": [[{"subnet": "10.3.0.0/30"}, {"subnet": "10.4.0.0/30"}]]}, "RuntimeConfig": {"IPRanges": [[{"Subnet": "10.1.0.0/30"}]]}}`,
			"10.1.0.1-10.1.0.2 gw 10.1.0.1; 10.2.0.1-10.2.0.2 gw 10.2.0.1; 10.3.0.1-10.3.0.2,10.4.0.1-10.4.0.2 gw 10.3.0.1 gw 10.4.0.1; /var/lib/cni/networks 0s"},
		{"requested addresses without duplicates", `{"ipam": {"subnet": "10.1.2.0/24"}, "runtimeConfig": {"IPs": ["10.1.2.9/24", "10.1.2.8"]}, "args": {"cni": {"ips": ["10.1.2.8", "::ffff:10.1.2.7"]}}}`,
			"10.1.2.1-10.1.2.254 gw 10.1.2.1; /var/lib/cni/networks 0s wants 10.1.2.8 10.1.2.7 10.1.2.9"},
		{"gateway outside of the subnet", `{"ipam": {"subnet": "10.1.2.64/26", "gateway": "10.1.2.1"}}`, "10.1.2.65-10.1.2.126 gw 10.1.2.1; /var/lib/cni/networks 0s"},
		{"link-local gateway", `{"ipam": {"subnet": "fd00::/64", "gateway": "fe80::1"}}`, "fd00::1-fd00::ffff:ffff:ffff:ffff gw fe80::1; /var/lib/cni/networks 0s"},
		{"an IPv4-mapped subnet", `{"ipam": {"subnet": "::ffff:10.1.2.0/120"}}`, "10.1.2.1-10.1.2.254 gw 10.1.2.1; /var/lib/cni/networks 0s"},
		{"0.0.0.0/8", `{"ipam": {"subnet": "0.0.0.0/8"}}`, "0.0.0.1-0.255.255.254 gw 0.0.0.1; /var/lib/cni/networks 0s"},
		{"keys in other case, and an unknown key", `{"IPAM": {"SubNet": "10.1.2.0/24", "nonsense": [null]}}`, "10.1.2.1-10.1.2.254 gw 10.1.2.1; /var/lib/cni/networks 0s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf, err := parseConfig(c.text, types.V110)
			if err != nil {
				t.Fatal(err)
			}
			if got := conf.describe(); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// describe returns the sets, the gateways, dataDir, the cooldown and the requested addresses as text.
func (p *Pool) describe() string {
	var text []string
	for _, set := range p.sets {
		setText := set.String()
		for _, r := range set {
			setText += " gw " + r.gateway.String()
		}
		text = append(text, setText)
	}
	text = append(text, fmt.Sprintf("%s %s", p.dataDir, p.cooldown))
	all := strings.Join(text, "; ")
	if len(p.Requested) > 0 {
		all += strings.TrimSuffix(" wants "+strings.Join(strings.Fields(strings.Trim(fmt.Sprint(p.Requested), "[]")), " "), " ")
	}
	return all
}

func TestResolvConf(t *testing.T) {
	got := parseResolvConf("# a comment\n; another\nnameserver 10.0.0.1 trailing\nnameserver fd00::1\n\ndomain one\ndomain two\n" +
		"search a b\nsearch c\noptions ndots:5\noptions rotate\nsortlist x\nnameserver\n  nameserver 10.0.0.2\n")
	want := types.DNS{
		Nameservers: []string{"10.0.0.1", "fd00::1", "10.0.0.2"}, Domain: "two",
		Search: []string{"a", "b", "c"}, Options: []string{"ndots:5", "rotate"},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := readResolvConf(t.TempDir() + "/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that does not exist: got error %v, want ErrNotExist", err)
	}
}

func TestLockerPID(t *testing.T) {
	const list = `1: POSIX  ADVISORY  WRITE 700 fe:00:42 0 EOF
2: FLOCK  ADVISORY  WRITE 701 fe:00:142 0 EOF
3: FLOCK  ADVISORY  WRITE 702 fe:00:42 0 EOF
3: -> FLOCK  ADVISORY  WRITE 703 fe:00:42 0 EOF
`
	if got := lockerPID(list, 42); got != 702 {
		t.Errorf("holder of inode 42: got %d, want 702", got)
	}
	if got := lockerPID("3: -> FLOCK ADVISORY WRITE 703 fe:00:42 0 EOF\n", 42); got != 0 {
		t.Errorf("process %d waits for the lock, but is returned as its holder", got)
	}
}

// FuzzConfig checks that no configuration causes a panic in the parser, and that the ranges of a valid one are in
// their subnets and usableAfter returns no gateway.
func FuzzConfig(f *testing.F) {
	for _, seed := range []string{
		`{"ipam": {"subnet": "10.1.2.0/24", "exclude": ["10.1.2.0/28"], "routes": [{"dst": "::/0"}]}}`,
		`{"ipam": {"ranges": [[{"subnet": "fd00::/64"}], [{"subnet": "10.0.0.0/8", "rangeEnd": "10.0.0.9"}]]}}`,
		`{"ipam": {"ranges": [null, [null]]}, "runtimeConfig": {"ips": [null], "ipRanges": [[]]}, "args": {"cni": {"ips": ["x"]}}}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		conf, err := parseConfig(text, types.V110)
		if err != nil {
			return
		}
		for _, set := range conf.sets {
			if len(set) == 0 {
				t.Fatal("an empty set was accepted")
			}
			for _, r := range set {
				if !r.subnet.Contains(r.First) || !r.subnet.Contains(r.Last) || r.Last.Less(r.First) {
					t.Fatalf("range %s of %s was accepted", r.Range, r.subnet)
				}
			}
			n := 0
			for a := range set.usableAfter(netip.Addr{}) {
				if n++; n > 1000 {
					break
				}
				if r := set.find(a); r < 0 || a == set[r].gateway {
					t.Fatalf("%s is in no range, or is the gateway", a)
				}
			}
		}
	})
}
