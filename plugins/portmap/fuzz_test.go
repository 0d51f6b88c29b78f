package main

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// FuzzConfig checks that an accepted configuration contains valid ports, that each rule for a program is one
// line, and that the words of conditions stay separate words.
func FuzzConfig(f *testing.F) {
	f.Add(`{"name": "n", "snat": false, "masqAll": true, "runtimeConfig": {"portMappings": [{"hostPort": 80, "containerPort": 81, "protocol": "TCP", "hostIP": "::1"}]}}`, "eth0")
	f.Add(`{"name": "n", "backend": "iptables", "conditionsV4": ["!", "-s", "1.2.3.0/24", "a\"b\\"], "markMasqBit": 5, "runtimeConfig": {"portMappings": [{"hostPort": 1, "containerPort": 2, "protocol": "udp"}, null]}}`, "e\"h")
	f.Add(`{"name": "n", "conditionsV6": ["ip6", "saddr", "\n;drop"], "externalSetMarkChain": "X -j ACCEPT", "runtimeConfig": {"portMappings": [{"hostPort": 65536, "protocol": "sctp"}]}}`, "x")
	f.Add(`{"name": "n", "conditionsV6": ["ip6", "saddr", "::1\nadd rule"], "runtimeConfig": {"portMappings": [{"hostPort": 1, "containerPort": 2, "protocol": "udp"}]}}`, "eth0")
	f.Add(`{"name": "n", "conditionsV4": ["-s", "1.2.3.4\n-A INPUT"], "runtimeConfig": {"portMappings": [{"hostPort": 1, "containerPort": 2, "protocol": "udp"}]}}`, "eth0")
	f.Add(`{"name": "n", "externalSetMarkChain": "X\n-A", "runtimeConfig": {"portMappings": [{"hostPort": 1, "containerPort": 2, "protocol": "tcp"}]}}`, "eth0")
	f.Add(`{"name": "n", "backend": "iptables", "runtimeConfig": {"portMappings": [{"hostPort": 1, "containerPort": 2, "protocol": "tcp"}]}}`, `e"h\0`)
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
		for _, ip := range p.ips {
			f := nft.FamilyOf(ip.Addr())
			for _, m := range conf.mappingsOf(f) {
				at := m.endpoint(f).claim().Elements[0]
				if got := endpointAt(f, at.Set, at.Key); got != m.endpoint(f) {
					t.Errorf("%s: %v is read as %v", text, m.endpoint(f), got)
				}
				if got := endpointOf(m.endpoint(f).entry()); got != m.endpoint(f) {
					t.Errorf("%s: %v is read from the index as %v", text, m.endpoint(f), got)
				}
			}
			p.checkText(t, ip)
		}
	})
}

// checkText checks that each rule is one line of a script, and that quoted words stay one word.
func (p *portMap) checkText(t *testing.T, ip netip.Prefix) {
	t.Helper()
	f := nft.FamilyOf(ip.Addr())
	lines := slices.Concat(p.containerRules(ip), p.sharedRules())
	for _, e := range p.entries(f) {
		line := "-A X " + e.rule(entryComment(p.owner()))
		lines = append(lines, line)
		if words := iptables.Words(line); len(words) < len(p.conf.conditions[f]) || strings.Join(words[len(words)-len(p.conf.conditions[f]):], "\x00") != strings.Join(p.conf.conditions[f], "\x00") {
			t.Errorf("%q are not the conditions %q", words, p.conf.conditions[f])
		}
	}
	for _, line := range lines {
		if strings.ContainsAny(line, "\n\r\x00") {
			t.Errorf("%q is more than one line", line)
		}
	}
	if cond, ok := p.conditionsChain(ip); ok && p.conf.backend != backendIPTables && strings.ContainsAny(cond.text, "\n\r;#") {
		t.Errorf("%q cannot be part of a rule", cond.text)
	}
}

// FuzzCheck checks that CHECK returns a success or an error as in the specification, whatever prevResult is.
func FuzzCheck(f *testing.F) {
	nstest.FuzzChainedCheck(f, plugin(), nstest.Call{Config: `{"cniVersion":"1.1.0","name":"net1","type":"portmap","snat":true,"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}}`})
}
