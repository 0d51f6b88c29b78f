package main

import (
	"net/netip"
	"strings"
	"testing"

	xt "github.com/plumb-cni/plumb/pkg/iptables"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// FuzzConfig: whatever stands in the configuration, ports are ports, and each rule for a
// program is one line, in which the words are those that were meant.
func FuzzConfig(f *testing.F) {
	f.Add(`{"name": "n", "snat": false, "masqAll": true, "runtimeConfig": {"portMappings": [{"hostPort": 80, "containerPort": 81, "protocol": "TCP", "hostIP": "::1"}]}}`, "eth0")
	f.Add(`{"name": "n", "backend": "iptables", "conditionsV4": ["!", "-s", "1.2.3.0/24", "a\"b\\"], "markMasqBit": 5, "runtimeConfig": {"portMappings": [{"hostPort": 1, "containerPort": 2, "protocol": "udp"}, null]}}`, "e\"h")
	f.Add(`{"name": "n", "conditionsV6": ["ip6", "saddr", "\n;drop"], "externalSetMarkChain": "X -j ACCEPT", "runtimeConfig": {"portMappings": [{"hostPort": 65536, "protocol": "sctp"}]}}`, "x")
	f.Add(`{"name": "n", "conditionsV6": ["ip6", "saddr", "::1\nadd rule"], "runtimeConfig": {"portMappings": [{"hostPort": 1, "containerPort": 2, "protocol": "udp"}]}}`, "eth0")
	f.Add(`{"name": "n", "conditionsV4": ["-s", "1.2.3.4\n-A INPUT"], "runtimeConfig": {"portMappings": [{"hostPort": 1, "containerPort": 2, "protocol": "udp"}]}}`, "eth0")
	f.Add(`{"name": "n", "externalSetMarkChain": "X\n-A", "runtimeConfig": {"portMappings": [{"hostPort": 1, "containerPort": 2, "protocol": "tcp"}]}}`, "eth0")
	f.Fuzz(func(t *testing.T, text, ifName string) {
		r := &skel.Request{Command: "CHECK", ContainerID: "c", IfName: ifName, Stdin: []byte(text), Version: types.Newest}
		if strings.ContainsAny(ifName, " \n\t\x00") || strings.ToValidUTF8(ifName, "") != ifName || types.Decode(r.Stdin, &r.Conf) != nil {
			return
		}
		conf, err := parse(r)
		if err != nil {
			return
		}
		for _, m := range conf.mappings {
			if m.hostPort == 0 || m.containerPort == 0 {
				t.Errorf("%s: accepted as %+v", text, m)
			}
		}
		p := &portMap{r: r, conf: conf, ips: []netip.Prefix{netip.MustParsePrefix("10.1.0.2/24"), netip.MustParsePrefix("fd00::2/64")}}
		p.layout()
		for _, c := range p.claims() {
			if name := c.OwnerEntry.Data; c.OwnerMap == nft.HostportOwners(nft.IPv4) {
				s, ok := parseListed(nft.IPv4, name)
				if !ok || s.listed(p.ips[0].Addr()) != name || slotOf(s.family, c.Elements[0].Set, c.Elements[0].Key) != s {
					t.Errorf("%s: %v is read as %v", text, name, s)
				}
			}
		}
		for _, ip := range p.ips {
			p.checkText(t, ip)
		}
	})
}

// checkText: each rule is a line of a script, and quoted words stay words.
func (p *portMap) checkText(t *testing.T, ip netip.Prefix) {
	t.Helper()
	f := familyOf(ip.Addr())
	lines := p.ownRules(ip)
	for _, s := range p.sharedRules() {
		lines = append(lines, "-A "+s.chain+" "+s.spec)
	}
	for _, e := range p.portEntries(f) {
		line := "-A X " + e.rule(markComment(p.owner()))
		lines = append(lines, line)
		if words := xt.Words(line); len(words) < len(p.conf.tokens[f]) || strings.Join(words[len(words)-len(p.conf.tokens[f]):], "\x00") != strings.Join(p.conf.tokens[f], "\x00") {
			t.Errorf("%q are not the conditions %q", words, p.conf.tokens[f])
		}
		if name, ok := markedIf(xt.Parse(line)[0].Comment); len(p.r.Conf.Name) < 150 && (!ok || name != p.r.IfName && !strings.ContainsAny(p.r.IfName, `"\`)) {
			t.Errorf("%s is marked as of %q, %t", line, name, ok)
		}
	}
	for _, line := range lines {
		if strings.ContainsAny(line, "\n\r\x00") {
			t.Errorf("%q is no line", line)
		}
	}
	if cond, ok := p.conditions(ip); ok && p.conf.backend != iptables && strings.ContainsAny(cond.Text, "\n\r;#") {
		t.Errorf("%q is no part of a rule", cond.Text)
	}
}

// FuzzListed: the data of elements, which others may have written, is read or refused,
// and printed as it was.
func FuzzListed(f *testing.F) {
	s := slot{nft.IPv4, netip.IPv4Unspecified(), tcp, 8080}
	f.Add([]byte(s.listed(netip.MustParseAddr("10.1.0.2"))), false)
	f.Add([]byte("short"), true)
	f.Fuzz(func(t *testing.T, data []byte, v6 bool) {
		family := nft.IPv4
		if v6 {
			family = nft.IPv6
		}
		s, ok := parseListed(family, nft.Key(data))
		if !ok {
			return
		}
		if again, ok := parseListed(family, s.listed(unspecified(family))); !ok || again != s {
			t.Errorf("%x: %+v, then %+v", data, s, again)
		}
	})
}
