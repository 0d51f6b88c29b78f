package nft

import (
	"net"
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A Rule is what one rule does, from left to right as nft prints it.
type Rule []Part

// A Part is one match or one statement of a rule.
type Part struct {
	of    Family // the packets it makes sense for; zero: all
	steps []expr.Any
}

// expressions joins the parts. In a table that sees both IPv4 and IPv6, a part that
// reads one of the two headers first asks which one the packet has, once a rule, as
// nft does.
func (r Rule) expressions(table Family) []expr.Any {
	var all []expr.Any
	var asked Family
	for _, p := range r {
		if table == Inet && p.of != 0 && p.of != asked {
			all = append(all, meta(expr.MetaKeyNFPROTO, unix.NFT_REG_1), equal([]byte{byte(p.of)}))
			asked = p.of
		}
		all = append(all, p.steps...)
	}
	return all
}

// A Field is something of a packet that can be looked up.
type Field struct {
	of   Family
	kind Type
	load func(register uint32) expr.Any
}

// Saddr is the source address.
func Saddr(f Family) Field {
	if f == IPv6 {
		return header(IPv6, IPv6Addr, 8)
	}
	return header(IPv4, IPv4Addr, 12)
}

// Daddr is the destination address.
func Daddr(f Family) Field {
	if f == IPv6 {
		return header(IPv6, IPv6Addr, 24)
	}
	return header(IPv4, IPv4Addr, 16)
}

func header(f Family, kind Type, offset uint32) Field {
	return Field{f, kind, func(r uint32) expr.Any {
		return payload(expr.PayloadBaseNetworkHeader, offset, kind.size(), r)
	}}
}

// L4Proto is the number of the protocol over IP.
func L4Proto() Field {
	return Field{kind: InetProto, load: func(r uint32) expr.Any { return meta(expr.MetaKeyL4PROTO, r) }}
}

// Dport is the destination port of TCP, UDP and SCTP.
func Dport() Field {
	return Field{kind: InetService, load: func(r uint32) expr.Any {
		return payload(expr.PayloadBaseTransportHeader, 2, InetService.size(), r)
	}}
}

// IifName is the name of the interface that the packet came in by.
func IifName() Field {
	return Field{kind: IfName, load: func(r uint32) expr.Any { return meta(expr.MetaKeyIIFNAME, r) }}
}

// EtherSaddr is the hardware address of the sender.
func EtherSaddr() Field {
	return Field{kind: EtherAddr, load: func(r uint32) expr.Any {
		return payload(expr.PayloadBaseLLHeader, 6, EtherAddr.size(), r)
	}}
}

// load puts the fields side by side into the registers, from the first on. The
// registers of four bytes (NFT_REG32_00 on) are the same memory as those of 16.
func load(fields []Field) Part {
	p := Part{}
	at := uint32(0)
	for _, f := range fields {
		if f.of != 0 {
			p.of = f.of
		}
		p.steps = append(p.steps, f.load(register(at)))
		at += (f.kind.size() + 3) / 4
	}
	return p
}

// register is the register that begins at the n-th four bytes, by the name that nft
// gives it: of 16 bytes where one begins there.
func register(n uint32) uint32 {
	if n%4 == 0 {
		return unix.NFT_REG_1 + n/4
	}
	return unix.NFT_REG32_00 + n
}

// then is the part with one more step.
func (p Part) then(e expr.Any) Part {
	p.steps = append(p.steps, e)
	return p
}

// In matches what is in the set.
func In(set string, fields ...Field) Part {
	return load(fields).then(&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set})
}

// NotIn matches what is not in the set.
func NotIn(set string, fields ...Field) Part {
	return load(fields).then(&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set, Invert: true})
}

// VMap does what the verdict map says.
func VMap(set string, fields ...Field) Part {
	return load(fields).then(mapped(set, unix.NFT_REG_VERDICT))
}

// DNATMap sends a packet to the address and port that the map gives for the fields.
// A packet that the map does not know goes on.
func DNATMap(f Family, set string, fields ...Field) Part {
	p := load(fields).then(mapped(set, unix.NFT_REG_1))
	p.of = f
	return p.then(&expr.NAT{
		Type:        expr.NATTypeDestNAT,
		Family:      uint32(f),
		RegAddrMin:  unix.NFT_REG_1,
		RegProtoMin: register(Daddr(f).kind.size() / 4),
	})
}

// mapped loads what the map gives for the fields. A verdict is done.
func mapped(set string, to uint32) expr.Any {
	return &expr.Lookup{SourceRegister: unix.NFT_REG_1, DestRegister: to, IsDestRegSet: true, SetName: set}
}

// DaddrIn matches packets to the prefix.
func DaddrIn(p netip.Prefix) Part { return in(p, Daddr) }

// SaddrIn matches packets from the prefix.
func SaddrIn(p netip.Prefix) Part { return in(p, Saddr) }

func in(p netip.Prefix, field func(Family) Field) Part {
	p = p.Masked()
	f, size := IPv4, 4
	if p.Addr().Is6() {
		f, size = IPv6, 16
	}
	part := load([]Field{field(f)})
	if p.Bits() < 8*size {
		part = part.then(bitwise(net.CIDRMask(p.Bits(), 8*size), make([]byte, size)))
	}
	return part.then(equal(p.Addr().AsSlice()))
}

// Only matches the packets of one family.
func Only(f Family) Part { return Part{of: f} }

// ToLocal matches packets to an address of this node.
func ToLocal() Part {
	return steps(
		&expr.Fib{Register: unix.NFT_REG_1, ResultADDRTYPE: true, FlagDADDR: true},
		equal(binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)),
	)
}

// IifKindNot matches packets that came in by a virtual interface of another kind
// ("veth", "bridge"; kernel 5.1, commit 0fb4d21956f4). Neither lo nor the device of
// a network card has a kind.
func IifKindNot(kind string) Part {
	const iifKind expr.MetaKey = 26 // NFT_META_IIFKIND, which the library and x/sys/unix lack
	return steps(meta(iifKind, unix.NFT_REG_1), unequal([]byte(IfNameKey(kind))))
}

// Mark sets one bit of the packet's mark.
func Mark(bit int) Part {
	number := binaryutil.NativeEndian.PutUint32
	return steps(
		meta(expr.MetaKeyMARK, unix.NFT_REG_1),
		bitwise(number(^(1<<bit)), number(1<<bit)),
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: unix.NFT_REG_1},
	)
}

// Marked matches packets with that bit in the mark.
func Marked(bit int) Part {
	flag := binaryutil.NativeEndian.PutUint32(1 << bit)
	return steps(meta(expr.MetaKeyMARK, unix.NFT_REG_1), bitwise(flag, make([]byte, 4)), equal(flag))
}

// Translated matches packets of connections whose destination was translated.
func Translated() Part {
	return steps(
		&expr.Ct{Register: unix.NFT_REG_1, Key: expr.CtKeySTATUS},
		bitwise(binaryutil.NativeEndian.PutUint32(ipsDstNAT), make([]byte, 4)),
		unequal(make([]byte, 4)),
	)
}

// ipsDstNAT is IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
const ipsDstNAT = 1 << 5

// Masquerade gives the packet the address of the interface it leaves by.
func Masquerade() Part { return steps(&expr.Masq{}) }

// Return ends the chain.
func Return() Part { return steps(&expr.Verdict{Kind: expr.VerdictReturn}) }

// Drop ends the packet.
func Drop() Part { return steps(&expr.Verdict{Kind: expr.VerdictDrop}) }

// Jump goes through another chain, and comes back.
func Jump(chain string) Part {
	return steps(&expr.Verdict{Kind: expr.VerdictJump, Chain: chain})
}

func steps(s ...expr.Any) Part { return Part{steps: s} }

// payload loads some bytes of a header into the register.
func payload(base expr.PayloadBase, offset, size, to uint32) expr.Any {
	return &expr.Payload{Base: base, Offset: offset, Len: size, DestRegister: to}
}

// meta loads what the kernel knows of a packet into the register.
func meta(key expr.MetaKey, to uint32) expr.Any { return &expr.Meta{Key: key, Register: to} }

// bitwise changes the first register: first and, then exclusive or.
func bitwise(and, xor []byte) expr.Any {
	return &expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: uint32(len(and)), Mask: and, Xor: xor}
}

// equal matches the value in the first register.
func equal(v []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: v}
}

// unequal matches any other value.
func unequal(v []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: v}
}
