package pool

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// FuzzReleases checks that no address cools down for longer than the cooldown, and that a line that was
// written in part does not hide the next one.
func FuzzReleases(f *testing.F) {
	se := &Session{store: Store{cooldown: time.Minute, machine: Machine{Now: func() time.Duration { return time.Hour }}}, boot: "b"}
	f.Add("b" + releaseText(ip("10.1.2.2"), 59*time.Minute+time.Second))
	f.Add("b" + releaseText(ip("10.1.2.2"), 1<<62) + "\nfd00::2 5")
	f.Add("short")
	f.Fuzz(func(t *testing.T, text string) {
		for a, at := range se.parseReleases(text) {
			if now := se.store.machine.Now(); at > now || now-at >= se.store.cooldown {
				t.Errorf("%s cools down since %s, which is not within the cooldown", a, at)
			}
			if !strings.Contains(text, "\n"+a.String()+" ") {
				t.Errorf("%s is not in the file", a)
			}
		}
		last, at := ip("10.1.2.99"), 59*time.Minute+500
		if got := se.parseReleases("b\n" + text + releaseText(last, at)); got[last] != at {
			t.Errorf("after %q, the last line is read as %s", text, got[last])
		}
	})
}

// FuzzAddressFile checks that an address is read only in its canonical form, so that it is the name of a file, and that a
// workload contains neither white space nor characters that a terminal interprets.
func FuzzAddressFile(f *testing.F) {
	f.Add("10.1.2.2 17\nfd00::2 18 pod/default/web-0/eth0\n")
	f.Add("10.1.2.2\n../10.1.2.3\n10.1.2.4 1 mac/02:00:00:00:00:05/eth0 x\n\x00\x00")
	f.Fuzz(func(t *testing.T, text string) {
		for _, line := range parseAddressFile(text) {
			if line.addr.IsValid() && !strings.Contains("\n"+text, "\n"+line.addr.String()) {
				t.Errorf("%s is not in the file", line.addr)
			}
			if isWorkload(line.workload) && (strings.ContainsAny(line.workload, " \t\r\n\x1b") || !strings.Contains(text, line.workload)) {
				t.Errorf("%q is read as a workload", line.workload)
			}
		}
	})
}

// FuzzName checks that parseName accepts only the canonical form of an address, which is a file name and
// not a longer path.
func FuzzName(f *testing.F) {
	for _, s := range []string{"10.1.2.2", "fd00::2", "::ffff:1.2.3.4", "fe80::1%../x", "lock", "last_reserved_ip.0", "10.01.2.2", "..", "10.1.2", "10.1.2.3.new", "fd00:0::2", "FD00::2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, ok := parseName(s)
		if ok && (a.String() != s || filepath.Join("/d", s) != "/d/"+s || a.Unmap() != a || a.Zone() != "") {
			t.Errorf("%q is read as %s", s, a)
		}
	})
}

// FuzzResolvConf checks that each value of the configuration is a word of the text.
func FuzzResolvConf(f *testing.F) {
	f.Add("nameserver 10.0.0.1\nsearch a b\noptions ndots:5\ndomain x # y\n;c\n")
	f.Fuzz(func(t *testing.T, text string) {
		dns := parseResolvConf(text)
		for _, word := range append(append(append(dns.Nameservers, dns.Search...), dns.Options...), dns.Domain) {
			if strings.ContainsAny(word, " \t\n") || !strings.Contains(text, word) {
				t.Errorf("%q is not a word of %q", word, text)
			}
		}
	})
}
