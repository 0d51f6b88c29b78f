package types

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func TestParseCIDR(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.5/24":            "10.0.0.5/24",
		"::ffff:10.0.0.5/120":    "10.0.0.5/24",
		"fd00:0::5/64":           "fd00::5/64",
		"::ffff:10.0.0.5/64":     "",
		"10.0.0.5":               "",
		"10.0.0.5/08":            "",
		"10.0.0.5/33":            "",
		"fe80::1%eth0/64":        "",
		"10.0.0.5/24 10.0.0.6/8": "",
		"":                       "",
	} {
		p, err := ParseCIDR(text)
		if want == "" {
			if err == nil {
				t.Errorf("%q: got %s, want an error", text, p)
			}
			continue
		}
		if err != nil || p.String() != want {
			t.Errorf("%q: got %s, %v, want %s", text, p, err, want)
		}
	}
}

func TestParseAddr(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "fd00:0::1": "fd00::1",
		"fe80::1%eth0": "", "10.0.0.1/24": "", "010.0.0.1": "", "": "",
	} {
		ip, err := ParseAddr(text)
		if want == "" && err == nil || want != "" && (err != nil || ip.String() != want) {
			t.Errorf("%q: got %s, %v, want %q", text, ip, err, want)
		}
	}
}

func TestRouteText(t *testing.T) {
	got, err := RouteText{Dst: "10.9.0.7/16", GW: "::ffff:10.0.0.1", MTU: 1400, AdvMSS: 1200, Priority: 7, Table: 9, Scope: 253}.Route()
	want := Route{
		Dst: netip.MustParsePrefix("10.9.0.0/16"), GW: netip.MustParseAddr("10.0.0.1"),
		MTU: 1400, AdvMSS: 1200, Priority: 7, Table: 9, Scope: 253,
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	got, err = RouteText{Dst: "::/0", GWs: []string{"fd00::1", "fd00::2"}}.Route()
	gws := []netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")}
	if want = (Route{Dst: netip.MustParsePrefix("::/0"), GW: gws[0], GWs: gws}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if got, err = (RouteText{Dst: "::/0", GW: "fd00::1", GWs: []string{"fd00::1"}}).Route(); err != nil || got.GW != gws[0] || got.GWs != nil {
		t.Errorf("a list of one gateway: got %+v, %v", got, err)
	}
	for want, text := range map[string]RouteText{
		`dst: invalid CIDR address: ""`:                           {},
		`gw: invalid IP address: "x"`:                             {Dst: "10.0.0.0/8", GW: "x"},
		"gw fd00::1 must be of the same family as dst 10.0.0.0/8": {Dst: "10.0.0.0/8", GW: "fd00::1"},
		"scope 256":                      {Dst: "10.0.0.0/8", Scope: 256},
		`gws[1]: invalid IP address: ""`: {Dst: "10.0.0.0/8", GWs: []string{"10.0.0.1", ""}},
		"gws[1] repeats 10.0.0.1; list each gateway once":                   {Dst: "10.0.0.0/8", GWs: []string{"10.0.0.1", "::ffff:10.0.0.1"}},
		"gws[1] fd00::1 must be of the same family as dst 10.0.0.0/8":       {Dst: "10.0.0.0/8", GWs: []string{"10.0.0.1", "fd00::1"}},
		"gws[0] must be the address of a gateway":                           {Dst: "10.0.0.0/8", GWs: []string{"0.0.0.0", "10.0.0.1"}},
		"gw must be the first of gws, want 10.0.0.1, got 10.0.0.2; omit gw": {Dst: "10.0.0.0/8", GW: "10.0.0.2", GWs: []string{"10.0.0.1", "10.0.0.2"}},
	} {
		if _, err := text.Route(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %s", text, err, want)
		}
	}
}
