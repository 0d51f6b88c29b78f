package types

import (
	"errors"
	"net"
	"strings"
	"testing"
)

// FuzzText checks that a parsed address, prefix or version is printed as a text that parses to the same value, that
// IPv4 is never IPv4-mapped IPv6, and that ParseMAC accepts what net.ParseMAC accepts.
func FuzzText(f *testing.F) {
	for _, s := range []string{"10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "10.0.0.1/08", "::ffff:0.0.0.0/95", "02:00:00:00:00:01", "02-00-00-00-00-01", "0200.0000.0001", "02-00-5E-10-00-00-00-01", "02:00-00:00:00:01", "02:00:00:00:00:1", "020000000001", "1.1.0", "0.3.1", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if a, err := ParseAddr(s); err == nil {
			if again, err := ParseAddr(a.String()); err != nil || again != a || a.Is4In6() || a.Zone() != "" {
				t.Errorf("address %q: %s, then %s, %v", s, a, again, err)
			}
		}
		if p, err := ParseCIDR(s); err == nil {
			if again, err := ParseCIDR(p.String()); err != nil || again != p || p.Addr().Is4In6() {
				t.Errorf("prefix %q: %s, then %s, %v", s, p, again, err)
			}
		}
		m, err := ParseMAC(s)
		if like, lerr := net.ParseMAC(s); (err == nil) != (lerr == nil) || err == nil && m.String() != like.String() {
			t.Errorf("MAC %q: %s, %v, not %s, %v", s, m, err, like, lerr)
		}
		if v, err := ParseVersion(s); err == nil {
			if again, err := ParseVersion(v.String()); err != nil || again != v {
				t.Errorf("version %q: %s, then %s, %v", s, v, again, err)
			}
		}
	})
}

// FuzzAttachment checks that String is the inverse of ParseAttachment.
func FuzzAttachment(f *testing.F) {
	f.Add("net/c1/eth0")
	f.Add("a//b")
	f.Fuzz(func(t *testing.T, s string) {
		if a, ok := ParseAttachment(s); ok && (a.String() != s || strings.Contains(a.Network+a.ContainerID+a.IfName, "/")) {
			t.Errorf("%q is parsed as %+v", s, a)
		}
	})
}

// FuzzResultOfVersion checks that a result that was parsed in a version, and printed in that version or as a lease of
// the newest version, can be parsed again, and is then printed as the same text.
func FuzzResultOfVersion(f *testing.F) {
	addGoldenResults(f)
	f.Add(int(V040), []byte(`{"ips": [{"version": "4", "address": "10.0.0.1/8", "interface": 7}], "routes": [{"dst": "::/0"}]}`))
	f.Add(int(V020), []byte(`{"ip4": {"ip": "10.0.0.1/8", "routes": [null]}, "ip6": null, "dns": {"search": [""]}}`))
	f.Add(int(V110), []byte(`{"interfaces":[null],"ips":[{"address":"::ffff:1.2.3.4/120"}],"routes":[{"dst":"::ffff:1.2.3.4/97"}]}`))
	f.Fuzz(func(t *testing.T, n int, data []byte) {
		v := Version(n)
		if v < V010 || v > Newest {
			return
		}
		first, err := ParseResult(v, data)
		if err != nil {
			return
		}
		for _, marshal := range []func(*Result) ([]byte, error){
			func(r *Result) ([]byte, error) { return r.Marshal(v) },
			func(r *Result) ([]byte, error) { return r.MarshalLease(V110) },
		} {
			text, err := marshal(first)
			if errors.Is(err, ErrNoAddress) {
				continue
			}
			second, parseErr := ParseResult(V010, text)
			if err := errors.Join(err, parseErr); err != nil {
				t.Fatalf("%s: printed, but cannot be parsed: %v\n%s", v, err, text)
			}
			if again, err := marshal(second); err != nil || string(again) != string(text) {
				t.Fatalf("%s: %v\n%s\nis not\n%s", v, err, again, text)
			}
		}
		for _, ip := range first.IPs {
			if !ip.Address.IsValid() || ip.Interface >= len(first.Interfaces) {
				t.Fatalf("%s: %+v of %d interfaces", v, ip, len(first.Interfaces))
			}
		}
	})
}
