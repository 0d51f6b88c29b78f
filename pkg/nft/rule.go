package nft

import (
	"net"
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A Rule lists the parts of one rule, from left to right as nft prints them.
type Rule []Part

// A Part is one match or one statement of a rule.
type Part struct {
	family      Family // the IP version of the packets to which the part applies; if it is zero, the part applies to all packets
	expressions []expr.Any
}

// expressions returns the expressions of all parts. A table of the family Inet sees IPv4 and IPv6
// packets. In such a table, expressions adds a match of the IP version before a part for one version,
// as nft does.
func (r Rule) expressions(table Family) []expr.Any {
	var all []expr.Any
	var matched Family
	for _, p := range r {
		if table == Inet && p.family != 0 && p.family != matched {
			all = append(all, meta(expr.MetaKeyNFPROTO, unix.NFT_REG_1), equal([]byte{byte(p.family)}))
			matched = p.family
		}
		all = append(all, p.expressions...)
	}
	return all
}

// A Field is a property of a packet that a rule can look up in a set or map.
type Field struct {
	family   Family // see Part.family
	dataType Type
	load     func(register uint32) expr.Any
}

// Saddr is the source address of an IP packet.
func Saddr(f Family) Field {
	if f == IPv6 {
		return ipHeader(IPv6, IPv6Addr, 8)
	}
	return ipHeader(IPv4, IPv4Addr, 12)
}

// Daddr is the destination address of an IP packet.
func Daddr(f Family) Field {
	if f == IPv6 {
		return ipHeader(IPv6, IPv6Addr, 24)
	}
	return ipHeader(IPv4, IPv4Addr, 16)
}

// ipHeader is the field at the offset in bytes in the IP header.
func ipHeader(f Family, dataType Type, offset uint32) Field {
	return Field{f, dataType, func(r uint32) expr.Any {
		return payload(expr.PayloadBaseNetworkHeader, offset, dataType.size(), r)
	}}
}

// L4Proto is the number of the transport protocol.
func L4Proto() Field {
	return Field{dataType: InetProto, load: func(r uint32) expr.Any { return meta(expr.MetaKeyL4PROTO, r) }}
}

// Dport is the destination port of TCP, UDP and SCTP.
func Dport() Field {
	return Field{dataType: InetService, load: func(r uint32) expr.Any {
		return payload(expr.PayloadBaseTransportHeader, 2, InetService.size(), r)
	}}
}

// IifName is the name of the input interface.
func IifName() Field {
	return Field{dataType: IfName, load: func(r uint32) expr.Any { return meta(expr.MetaKeyIIFNAME, r) }}
}

// OifName is the name of the output interface.
func OifName() Field {
	return Field{dataType: IfName, load: func(r uint32) expr.Any { return meta(expr.MetaKeyOIFNAME, r) }}
}

// EtherSaddr is the source MAC address.
func EtherSaddr() Field {
	return Field{dataType: EtherAddr, load: func(r uint32) expr.Any {
		return payload(expr.PayloadBaseLLHeader, 6, EtherAddr.size(), r)
	}}
}

// loadFields loads the fields into consecutive registers, starting with the first register.
func loadFields(fields []Field) Part {
	p := Part{}
	word := uint32(0) // number of the next free word of four bytes
	for _, f := range fields {
		if f.family != 0 {
			p.family = f.family
		}
		p.expressions = append(p.expressions, f.load(register(word)))
		word += (f.dataType.size() + 3) / 4
	}
	return p
}

// register returns the register that starts at the n-th word of four bytes. The registers of 16
// bytes (from NFT_REG_1) and of four bytes (from NFT_REG32_00) share their memory. If a register
// of each size starts at the word, register returns the larger register, as nft does.
func register(n uint32) uint32 {
	if n%4 == 0 {
		return unix.NFT_REG_1 + n/4
	}
	return unix.NFT_REG32_00 + n
}

// appendExpr returns the part with one more expression.
func (p Part) appendExpr(e expr.Any) Part {
	p.expressions = append(p.expressions, e)
	return p
}

// InSet matches packets whose fields are an element of the set.
func InSet(set string, fields ...Field) Part {
	return loadFields(fields).appendExpr(&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set})
}

// NotInSet matches packets whose fields are not an element of the set.
func NotInSet(set string, fields ...Field) Part {
	return loadFields(fields).appendExpr(&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set, Invert: true})
}

// VerdictMap executes the verdict for the fields in the map. If the map contains no verdict for them,
// the kernel continues with the next rule.
func VerdictMap(verdicts string, fields ...Field) Part {
	return loadFields(fields).appendExpr(lookup(verdicts, unix.NFT_REG_VERDICT))
}

// DNATMap translates the destination to the address and port for the fields in the map. If the map
// contains none for them, the kernel continues with the next rule.
func DNATMap(f Family, destinations string, fields ...Field) Part {
	p := loadFields(fields).appendExpr(lookup(destinations, unix.NFT_REG_1))
	p.family = f
	return p.appendExpr(&expr.NAT{
		Type:        expr.NATTypeDestNAT,
		Family:      uint32(f),
		RegAddrMin:  unix.NFT_REG_1,
		RegProtoMin: register(Daddr(f).dataType.size() / 4), // the port follows the address
	})
}

// lookup looks up the loaded fields in a map and stores the result in the register. The kernel
// executes a result in the verdict register.
func lookup(mapName string, to uint32) expr.Any {
	return &expr.Lookup{SourceRegister: unix.NFT_REG_1, DestRegister: to, IsDestRegSet: true, SetName: mapName}
}

// DaddrIn matches packets whose destination is in the prefix.
func DaddrIn(p netip.Prefix) Part { return inPrefix(p, Daddr) }

// SaddrIn matches packets whose source is in the prefix.
func SaddrIn(p netip.Prefix) Part { return inPrefix(p, Saddr) }

// inPrefix matches packets whose field, an address, is in the prefix.
func inPrefix(p netip.Prefix, field func(Family) Field) Part {
	p = p.Masked()
	part, bits := loadFields([]Field{field(FamilyOf(p.Addr()))}), p.Addr().BitLen()
	if p.Bits() < bits {
		part = part.appendExpr(bitwise(net.CIDRMask(p.Bits(), bits), make([]byte, bits/8)))
	}
	return part.appendExpr(equal(p.Addr().AsSlice()))
}

// OnlyFamily matches packets of one IP version, in a table of the family Inet. The part contains no
// expressions, because Rule.expressions adds the match.
func OnlyFamily(f Family) Part { return Part{family: f} }

// ToLocal matches packets whose destination is an address of this host.
func ToLocal() Part {
	return newPart(
		&expr.Fib{Register: unix.NFT_REG_1, ResultADDRTYPE: true, FlagDADDR: true},
		equal(binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)),
	)
}

// IifKindNot matches packets whose input interface has a kind that differs from kind, for example
// from "veth" (Linux 5.1, commit 0fb4d21956f4). It does not match packets from an interface without a
// kind, such as lo or a network card, because the kernel has nothing to compare.
func IifKindNot(kind string) Part {
	const iifKind expr.MetaKey = 26  // NFT_META_IIFKIND, which package nftables and x/sys/unix lack
	value := []byte(IfNameKey(kind)) // a kind takes 16 bytes, like an interface name
	return newPart(meta(iifKind, unix.NFT_REG_1), unequal(value))
}

// SetMarkBit sets one bit of the packet's mark. Bit 0 is the lowest.
func SetMarkBit(bit int) Part {
	number := binaryutil.NativeEndian.PutUint32
	return newPart(
		meta(expr.MetaKeyMARK, unix.NFT_REG_1),
		bitwise(number(^(1<<bit)), number(1<<bit)),
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: unix.NFT_REG_1},
	)
}

// HasMarkBit matches packets with this bit set in the mark.
func HasMarkBit(bit int) Part {
	flag := binaryutil.NativeEndian.PutUint32(1 << bit)
	return newPart(meta(expr.MetaKeyMARK, unix.NFT_REG_1), bitwise(flag, make([]byte, 4)), equal(flag))
}

// DestinationTranslated matches packets of connections whose destination address was translated.
func DestinationTranslated() Part {
	return newPart(
		&expr.Ct{Register: unix.NFT_REG_1, Key: expr.CtKeySTATUS},
		bitwise(binaryutil.NativeEndian.PutUint32(ipsDstNAT), make([]byte, 4)),
		unequal(make([]byte, 4)),
	)
}

// ipsDstNAT is IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
const ipsDstNAT = 1 << 5

// Reply matches packets of the direction that answers the first packet of a connection.
func Reply() Part {
	const reply = 1 // IP_CT_DIR_REPLY of linux/netfilter/nf_conntrack_tuple_common.h
	return newPart(&expr.Ct{Register: unix.NFT_REG_1, Key: expr.CtKeyDIRECTION}, equal([]byte{reply}))
}

// Masquerade translates the source address to an address of the output interface.
func Masquerade() Part { return newPart(&expr.Masq{}) }

// Return leaves the chain.
func Return() Part { return newPart(&expr.Verdict{Kind: expr.VerdictReturn}) }

// Drop drops the packet.
func Drop() Part { return newPart(&expr.Verdict{Kind: expr.VerdictDrop}) }

// Jump evaluates another chain, and after it the next rule.
func Jump(chain string) Part {
	return newPart(&expr.Verdict{Kind: expr.VerdictJump, Chain: chain})
}

func newPart(e ...expr.Any) Part { return Part{expressions: e} }

// payload loads size bytes at the offset of a header into the register.
func payload(base expr.PayloadBase, offset, size, to uint32) expr.Any {
	return &expr.Payload{Base: base, Offset: offset, Len: size, DestRegister: to}
}

// meta loads metadata of the packet into the register.
func meta(key expr.MetaKey, to uint32) expr.Any { return &expr.Meta{Key: key, Register: to} }

// bitwise replaces the value of the first register with (value AND mask) XOR xor.
func bitwise(mask, xor []byte) expr.Any {
	return &expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: uint32(len(mask)), Mask: mask, Xor: xor}
}

// equal matches if the value of the first register is v.
func equal(v []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: v}
}

// unequal matches if the value of the first register is not v.
func unequal(v []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: v}
}
