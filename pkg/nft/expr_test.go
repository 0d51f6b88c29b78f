package nft

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/pkg/netlink"
	"golang.org/x/sys/unix"
)

// The bytes of each expression by the layout in linux/netfilter/nf_tables.h, as tree
// writes them.
func TestExpressions(t *testing.T) {
	for _, tc := range []struct {
		name string
		e    expression
		want string
	}{
		{"payload", payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 12, 4, unix.NFT_REG_1), "1=00000001 2=00000001 3=0000000c 4=00000004"},
		{"payload", payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, unix.NFT_REG32_01), "1=00000009 2=00000002 3=00000002 4=00000002"},
		{"payload", payload(unix.NFT_PAYLOAD_LL_HEADER, 6, 6, unix.NFT_REG_2), "1=00000002 2=00000000 3=00000006 4=00000006"},
		{"meta", meta(unix.NFT_META_L4PROTO, unix.NFT_REG32_02), "1=0000000a 2=00000010"},
		{"meta", meta(metaIifKind, unix.NFT_REG_1), "1=00000001 2=0000001a"},
		{"meta", setMeta(unix.NFT_META_MARK), "2=00000003 3=00000001"},
		{"ct", ct(unix.NFT_CT_STATUS), "1=00000001 2=00000002"},
		{"fib", fib(unix.NFT_FIB_RESULT_ADDRTYPE, unix.NFTA_FIB_F_DADDR), "1=00000001 2=00000003 3=00000002"},
		{"bitwise", bitwise(value{255, 254, 0}, value{0, 1, 2}), "1=00000001 2=00000001 3=00000003 4{1=fffe00} 5{1=000102}"},
		{"cmp", equal(value{10, 88, 0, 2}), "1=00000001 2=00000000 3{1=0a580002}"},
		{"cmp", unequal(value{2}), "1=00000001 2=00000001 3{1=02}"},
		{"lookup", contained("s"), "1=7300 2=00000001"},
		{"lookup", missing("s"), "1=7300 2=00000001 5=00000001"},
		{"lookup", mapped("m", unix.NFT_REG_VERDICT), "1=6d00 2=00000001 3=00000000"},
		{"lookup", mapped("m", unix.NFT_REG_1), "1=6d00 2=00000001 3=00000001"},
		{"nat", dnat(IPv4, unix.NFT_REG32_01), "1=00000001 2=00000002 3=00000001 5=00000009"},
		{"nat", dnat(IPv6, unix.NFT_REG_2), "1=00000001 2=0000000a 3=00000001 5=00000002"},
		{"masq", masq(), ""},
		{"immediate", immediate(verdict{code: drop}), "1=00000000 2{2{1=00000000}}"},
		{"immediate", immediate(verdict{code: accept}), "1=00000000 2{2{1=00000001}}"},
		{"immediate", immediate(verdict{code: unix.NFT_RETURN}), "1=00000000 2{2{1=fffffffb}}"},
		{"immediate", immediate(verdict{unix.NFT_JUMP, "c"}), "1=00000000 2{2{1=fffffffd 2=6300}}"},
	} {
		want := "1=" + hex.EncodeToString([]byte(tc.name+"\x00")) + " 2{" + tc.want + "}"
		if got := tree(t, encoded(t, tc.e)); got != want {
			t.Errorf("%s is\n%s, want\n%s", tc.name, got, want)
		}
	}
}

// What a rule of ours says is what is told of it as of a rule that somebody made.
func TestReader(t *testing.T) {
	match := func(p Part, s ...expression) Rule { return Rule{p, steps(s...)} }
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
		"the leading bytes":    {IPv4, match(steps(payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 12, 2, unix.NFT_REG_1)), equal(value{10, 88})), Found{Saddr: netip.MustParsePrefix("10.88.0.0/16")}, "0a58"},
		"another address":      {IPv4, match(load([]Field{Saddr(IPv4)}), unequal(value{10, 88, 0, 2})), Found{}, "0a580002"},
		"a destination":        {IPv4, Rule{DaddrIn(netip.MustParsePrefix("10.88.0.0/15"))}, Found{}, "0a580000"},
		"something else there": {IPv4, match(steps(payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 12, 4, unix.NFT_REG_1)), equal(value{10, 88, 0, 2})), Found{}, "0a580002"},
		"an interface":         {Inet, match(load([]Field{IifName()}), equal(value(IfNameKey("eth0"))), immediate(verdict{code: accept})), Found{Iif: "eth0", Target: "ACCEPT"}, "65746830000000000000000000000000"},
		"another kind":         {Inet, Rule{IifKindNot("vrf")}, Found{}, "76726600000000000000000000000000"},
		"something else then":  {IPv4, match(load([]Field{Saddr(IPv4)}), meta(unix.NFT_META_MARK, unix.NFT_REG_1), equal(value{10, 88, 0, 2})), Found{}, "0a580002"},
		"a mask, then none": {IPv4, match(SaddrIn(netip.MustParsePrefix("10.88.0.0/15")), load([]Field{Saddr(IPv4)}).then(equal(value{10, 88, 0, 2})).steps...),
			Found{Saddr: netip.MustParsePrefix("10.88.0.2/32")}, "0a580000 0a580002"},
	} {
		t.Run(name, func(t *testing.T) {
			r := reader{family: tc.family}
			for _, e := range tc.rule.expressions(tc.family) {
				err := decode(encoded(t, e), func(ad *netlink.Decoder) {
					if ad.Kind() == unix.NFTA_EXPR_DATA {
						r.expression(e.name, ad)
					}
				})
				if err != nil {
					t.Fatal(err)
				}
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

func encoded(t *testing.T, e expression) []byte {
	t.Helper()
	b, err := netlink.Encode(nil, binary.BigEndian, e.encode)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// tree writes attributes with their numbers: values in hexadecimal, nested ones in
// braces.
func tree(t *testing.T, b []byte) string {
	t.Helper()
	var all []string
	for len(b) > 0 {
		size, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		end := (size + 3) &^ 3
		if size < 4 || end > len(b) {
			t.Fatalf("an attribute of %d bytes where %d are left", size, len(b))
		}
		number := string('0' + rune(kind&^unix.NLA_F_NESTED))
		if kind&unix.NLA_F_NESTED != 0 {
			all = append(all, number+"{"+tree(t, b[4:size])+"}")
		} else {
			all = append(all, number+"="+hex.EncodeToString(b[4:size]))
		}
		b = b[end:]
	}
	return strings.Join(all, " ")
}
