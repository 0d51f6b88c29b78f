package nft

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// What a rule of ours says is what is told of it as of a rule that somebody made.
func TestReader(t *testing.T) {
	match := func(p Part, s ...expr.Any) Rule { return Rule{p, steps(s...)} }
	for name, tc := range map[string]struct {
		family Family
		rule   Rule
		want   Found // of it Jump, Target, Saddr, Iif
		values string
	}{
		"a subnet":             {Inet, Rule{SaddrIn(netip.MustParsePrefix("10.88.0.0/15")), Jump("c")}, Found{Saddr: netip.MustParsePrefix("10.88.0.0/15"), Jump: "c"}, "02 0a580000"},
		"an address":           {IPv4, Rule{SaddrIn(netip.MustParsePrefix("10.88.0.2/32")), Masquerade()}, Found{Saddr: netip.MustParsePrefix("10.88.0.2/32"), Target: "MASQUERADE"}, "0a580002"},
		"a subnet of IPv6":     {Inet, Rule{SaddrIn(netip.MustParsePrefix("fd00::/61")), Drop()}, Found{Saddr: netip.MustParsePrefix("fd00::/61")}, "0a fd000000000000000000000000000000"},
		"an address of IPv6":   {IPv6, Rule{SaddrIn(netip.MustParsePrefix("fd00::2/128")), Return()}, Found{Saddr: netip.MustParsePrefix("fd00::2/128")}, "fd000000000000000000000000000002"},
		"the leading bytes":    {IPv4, match(steps(payload(expr.PayloadBaseNetworkHeader, 12, 2, unix.NFT_REG_1)), equal([]byte{10, 88})), Found{Saddr: netip.MustParsePrefix("10.88.0.0/16")}, "0a58"},
		"another address":      {IPv4, match(load([]Field{Saddr(IPv4)}), unequal([]byte{10, 88, 0, 2})), Found{}, "0a580002"},
		"a destination":        {IPv4, Rule{DaddrIn(netip.MustParsePrefix("10.88.0.0/15"))}, Found{}, "0a580000"},
		"something else there": {IPv4, match(steps(payload(expr.PayloadBaseTransportHeader, 12, 4, unix.NFT_REG_1)), equal([]byte{10, 88, 0, 2})), Found{}, "0a580002"},
		"an interface":         {Inet, match(load([]Field{IifName()}), equal([]byte(IfNameKey("eth0"))), &expr.Verdict{Kind: expr.VerdictAccept}), Found{Iif: "eth0", Target: "ACCEPT"}, "65746830000000000000000000000000"},
		"another kind":         {Inet, Rule{IifKindNot("vrf")}, Found{}, "76726600000000000000000000000000"},
		"something else then":  {IPv4, match(load([]Field{Saddr(IPv4)}), meta(expr.MetaKeyMARK, unix.NFT_REG_1), equal([]byte{10, 88, 0, 2})), Found{}, "0a580002"},
		"a mask, then none": {IPv4, match(SaddrIn(netip.MustParsePrefix("10.88.0.0/15")), load([]Field{Saddr(IPv4)}).then(equal([]byte{10, 88, 0, 2})).steps...),
			Found{Saddr: netip.MustParsePrefix("10.88.0.2/32")}, "0a580000 0a580002"},
	} {
		t.Run(name, func(t *testing.T) {
			r := reader{family: tc.family}
			for _, e := range tc.rule.expressions(tc.family) {
				r.expression(e)
			}
			if r.Jump != tc.want.Jump || r.Target != tc.want.Target || r.Saddr != tc.want.Saddr || r.Iif != tc.want.Iif {
				t.Errorf("told %+v, want %+v", r.Found, tc.want)
			}
			var values []string
			for _, v := range r.values {
				values = append(values, hex.EncodeToString([]byte(v)))
			}
			if got := strings.Join(values, " "); got != tc.values {
				t.Errorf("compares with %s, want %s", got, tc.values)
			}
		})
	}
}

// Data that another program left with a rule may end anywhere.
func TestCommentOf(t *testing.T) {
	for data, want := range map[string]string{
		"": "", "\x00": "", "\x00\x05ab": "", "\x00\x03ab\x00": "ab", "\x01\x01x\x00\x02a\x00": "a", "\x01\x01x\x00\xff": "",
	} {
		if got := commentOf([]byte(data)); got != want {
			t.Errorf("the comment in %q is %q, want %q", data, got, want)
		}
	}
}
