package main

import (
	"net/netip"
	"strings"
	"testing"

	xt "github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// FuzzConfig checks that, for any configuration, each rule is one line, and each marker is parsed as a marker of
// its attachment only.
func FuzzConfig(f *testing.F) {
	f.Add(`{"name":"n","ingressPolicy":"isolated","publishedPorts":true,"iptablesAdminChainName":"NOMAD-ADMIN"}`, "eth0")
	f.Add(`{"name":"n","backend":"nftables","ingressPolicy":"bogus","firewalldZone":"a\nb"}`, `e"h`)
	f.Add(`{"name":"`+strings.Repeat("n", 300)+`","iptablesAdminChainName":"A -j ACCEPT\n-A INPUT"}`, `\`)
	f.Fuzz(func(t *testing.T, text, ifName string) {
		r := &skel.Request{Command: "CHECK", ContainerID: "c", IfName: ifName, Stdin: []byte(text), Version: types.Newest}
		if strings.ContainsAny(ifName, " \n\t\r\v\f\x00") || strings.ToValidUTF8(ifName, "") != ifName || types.Decode(r.Stdin, &r.Conf) != nil {
			return
		}
		conf, err := parse(r)
		if err != nil {
			return
		}
		conf.backend = iptables
		a := netip.MustParseAddr("10.1.0.2")
		w := &firewall{r: r, conf: conf, addrs: []netip.Addr{a}}
		lines := w.additions(xt.Table{}, w.addrs)
		for _, line := range lines {
			if strings.ContainsAny(line, "\n\r\x00") {
				t.Errorf("%q contains a line break", line)
			}
			if strings.Contains(line, markerPrefix) && strings.ToValidUTF8(line, "") == line {
				checkMarker(t, w, a, line)
			}
		}
		rules := xt.Parse(lines...).Rules
		if got := ownRules(rules, func(string) bool { return false }, nil); len(got) != 0 {
			t.Errorf("want no deletion of other attachments' rules, got %+v", got)
		}
	})
}

func checkMarker(t *testing.T, w *firewall, a netip.Addr, line string) {
	t.Helper()
	rule := xt.Parse(line).Rules[0]
	if !isMarker(rule) || rule.Source != host(a) || !w.isOwn(rule.Comment) || len(rule.Comment) > 255 {
		t.Errorf("%s is parsed as the marker %q of %s", line, rule.Comment, rule.Source)
	}
}

// FuzzCheck checks that CHECK replies as the CNI specification requires, for any prevResult.
func FuzzCheck(f *testing.F) {
	nstest.FuzzChainedCheck(f, plugin(), nstest.Call{Config: `{"cniVersion":"1.1.0","name":"net1","type":"firewall","ingressPolicy":"isolated"}`})
}
