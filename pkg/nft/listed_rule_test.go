package nft

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// TestRuleParser parses rules of this package as if another program had added them.
func TestRuleParser(t *testing.T) {
	ruleOf := func(p Part, e ...expr.Any) Rule { return Rule{p, newPart(e...)} }
	for name, tc := range map[string]struct {
		family Family
		rule   Rule
		want   ListedRule // the test compares only Jump, Target, Saddr, Daddr, Iif and, if they are not nil, Matches
		values string     // the values to which the rule compares fields, as hexadecimal digits
	}{
		"an IPv4 subnet":                    {Inet, Rule{SaddrIn(netip.MustParsePrefix("10.88.0.0/15")), Jump("c")}, ListedRule{Saddr: netip.MustParsePrefix("10.88.0.0/15"), Jump: "c", Matches: []string{"nfproto", "-s 10.88.0.0/15"}}, "02 0a580000"},
		"an IPv4 address":                   {IPv4, Rule{SaddrIn(netip.MustParsePrefix("10.88.0.2/32")), Masquerade()}, ListedRule{Saddr: netip.MustParsePrefix("10.88.0.2/32"), Target: "MASQUERADE"}, "0a580002"},
		"an IPv6 subnet":                    {Inet, Rule{SaddrIn(netip.MustParsePrefix("fd00::/61")), Drop()}, ListedRule{Saddr: netip.MustParsePrefix("fd00::/61"), Target: "DROP"}, "0a fd000000000000000000000000000000"},
		"an IPv6 address":                   {IPv6, Rule{SaddrIn(netip.MustParsePrefix("fd00::2/128")), Return()}, ListedRule{Saddr: netip.MustParsePrefix("fd00::2/128"), Target: "RETURN"}, "fd000000000000000000000000000002"},
		"a prefix that ends at a byte":      {IPv4, ruleOf(newPart(payload(expr.PayloadBaseNetworkHeader, 12, 2, unix.NFT_REG_1)), equal([]byte{10, 88})), ListedRule{Saddr: netip.MustParsePrefix("10.88.0.0/16")}, "0a58"},
		"all addresses but one":             {IPv4, ruleOf(loadFields([]Field{Saddr(IPv4)}), unequal([]byte{10, 88, 0, 2})), ListedRule{Matches: []string{"?"}}, "0a580002"},
		"a destination":                     {IPv4, Rule{DaddrIn(netip.MustParsePrefix("10.88.0.0/15"))}, ListedRule{Daddr: netip.MustParsePrefix("10.88.0.0/15"), Matches: []string{"-d 10.88.0.0/15"}}, "0a580000"},
		"an IPv6 destination":               {IPv6, Rule{DaddrIn(netip.MustParsePrefix("fd00::/61"))}, ListedRule{Daddr: netip.MustParsePrefix("fd00::/61")}, "fd000000000000000000000000000000"},
		"the same offset in another header": {IPv4, ruleOf(newPart(payload(expr.PayloadBaseTransportHeader, 12, 4, unix.NFT_REG_1)), equal([]byte{10, 88, 0, 2})), ListedRule{Matches: []string{"?"}}, "0a580002"},
		"an interface":                      {Inet, ruleOf(loadFields([]Field{IifName()}), equal([]byte(IfNameKey("eth0"))), &expr.Verdict{Kind: expr.VerdictAccept}), ListedRule{Iif: "eth0", Target: "ACCEPT", Matches: []string{"-i eth0"}}, "65746830000000000000000000000000"},
		"an output interface":               {Inet, ruleOf(loadFields([]Field{OifName()}), equal([]byte("eth0\x00"))), ListedRule{Matches: []string{"-o eth0"}}, "6574683000"},
		"all output interfaces but one":     {Inet, ruleOf(loadFields([]Field{OifName()}), unequal([]byte("eth0\x00"))), ListedRule{Matches: []string{"! -o eth0"}}, "6574683000"},
		"a member of a set":                 {IPv4, Rule{InSet("set", Saddr(IPv4))}, ListedRule{Matches: []string{"?"}}, ""},
		"the kind of the interface":         {Inet, Rule{IifKindNot("vrf")}, ListedRule{Matches: []string{"?"}}, "76726600000000000000000000000000"},
		"another field loaded afterwards":   {IPv4, ruleOf(loadFields([]Field{Saddr(IPv4)}), meta(expr.MetaKeyMARK, unix.NFT_REG_1), equal([]byte{10, 88, 0, 2})), ListedRule{Matches: []string{"-m mark"}}, "0a580002"},
		"a comparison with a mask before one without a mask": {IPv4, ruleOf(SaddrIn(netip.MustParsePrefix("10.88.0.0/15")), loadFields([]Field{Saddr(IPv4)}).appendExpr(equal([]byte{10, 88, 0, 2})).expressions...),
			ListedRule{Saddr: netip.MustParsePrefix("10.88.0.2/32")}, "0a580000 0a580002"},
		"a condition of another kind": {IPv4, ruleOf(SaddrIn(netip.MustParsePrefix("10.88.0.2/32")), &expr.Limit{}), ListedRule{Saddr: netip.MustParsePrefix("10.88.0.2/32"), Matches: []string{"-s 10.88.0.2/32", "?"}}, "0a580002"},
	} {
		t.Run(name, func(t *testing.T) {
			p := ruleParser{family: tc.family}
			for _, e := range tc.rule.expressions(tc.family) {
				p.parse(e)
			}
			got := p.rule
			if got.Jump != tc.want.Jump || got.Target != tc.want.Target || got.Saddr != tc.want.Saddr || got.Daddr != tc.want.Daddr || got.Iif != tc.want.Iif {
				t.Errorf("parsed %+v, want %+v", got, tc.want)
			}
			if tc.want.Matches != nil && !slices.Equal(got.Matches, tc.want.Matches) {
				t.Errorf("parsed the matches %q, want %q", got.Matches, tc.want.Matches)
			}
			var values []string
			for _, v := range got.values {
				values = append(values, hex.EncodeToString([]byte(v)))
			}
			if got := strings.Join(values, " "); got != tc.values {
				t.Errorf("the rule compares with the values %q, want %q", got, tc.values)
			}
		})
	}
}

// TestParseComment also parses user data that is cut off, because other programs can write any bytes.
func TestParseComment(t *testing.T) {
	for data, want := range map[string]string{
		"": "", "\x00": "", "\x00\x05ab": "", "\x00\x03ab\x00": "ab", "\x01\x01x\x00\x02a\x00": "a", "\x01\x01x\x00\xff": "",
	} {
		if got := parseComment([]byte(data)); got != want {
			t.Errorf("the comment in %q is %q, want %q", data, got, want)
		}
	}
}
