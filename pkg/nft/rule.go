package nft

import (
	"net/netip"

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
			all = append(all,
				&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: unix.NFT_REG_1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{byte(p.of)}})
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
		return &expr.Payload{DestRegister: r, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: kind.size()}
	}}
}

// L4Proto is the number of the protocol over IP.
func L4Proto() Field {
	return Field{kind: InetProto, load: func(r uint32) expr.Any {
		return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: r}
	}}
}

// Dport is the destination port of TCP, UDP and SCTP.
func Dport() Field {
	return Field{kind: InetService, load: func(r uint32) expr.Any {
		return &expr.Payload{DestRegister: r, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: InetService.size()}
	}}
}

// IifName is the name of the interface that the packet came in by.
func IifName() Field {
	return Field{kind: IfName, load: func(r uint32) expr.Any {
		return &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: r}
	}}
}

// EtherSaddr is the hardware address of the sender.
func EtherSaddr() Field {
	return Field{kind: EtherAddr, load: func(r uint32) expr.Any {
		return &expr.Payload{DestRegister: r, Base: expr.PayloadBaseLLHeader, Offset: 6, Len: EtherAddr.size()}
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

// In matches what is in the set.
func In(set string, fields ...Field) Part { return lookup(&expr.Lookup{SetName: set}, fields) }

// NotIn matches what is not in the set.
func NotIn(set string, fields ...Field) Part {
	return lookup(&expr.Lookup{SetName: set, Invert: true}, fields)
}

// VMap does what the verdict map says.
func VMap(set string, fields ...Field) Part {
	return lookup(&expr.Lookup{SetName: set, IsDestRegSet: true, DestRegister: unix.NFT_REG_VERDICT}, fields)
}

func lookup(l *expr.Lookup, fields []Field) Part {
	p := load(fields)
	l.SourceRegister = unix.NFT_REG_1
	p.steps = append(p.steps, l)
	return p
}

// DNATMap sends a packet to the address and port that the map gives for the fields.
// A packet that the map does not know goes on.
func DNATMap(f Family, set string, fields ...Field) Part {
	p := lookup(&expr.Lookup{SetName: set, IsDestRegSet: true, DestRegister: unix.NFT_REG_1}, fields)
	port := register(Daddr(f).kind.size() / 4)
	p.of = f
	p.steps = append(p.steps, &expr.NAT{
		Type: expr.NATTypeDestNAT, Family: uint32(f),
		RegAddrMin: unix.NFT_REG_1, RegAddrMax: unix.NFT_REG_1, RegProtoMin: port, RegProtoMax: port, Specified: true,
	})
	return p
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
		part.steps = append(part.steps, bitwise(mask(p.Bits(), size), make([]byte, size)))
	}
	part.steps = append(part.steps, &expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: p.Addr().AsSlice()})
	return part
}

// Only matches the packets of one family.
func Only(f Family) Part { return Part{of: f} }

func mask(bits, size int) []byte {
	m := make([]byte, size)
	for i := range bits {
		m[i/8] |= 0x80 >> (i % 8)
	}
	return m
}

// ToLocal matches packets to an address of this node.
func ToLocal() Part {
	return Part{steps: []expr.Any{
		&expr.Fib{Register: unix.NFT_REG_1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: nativeUint32(unix.RTN_LOCAL)},
	}}
}

// IifKindNot matches packets that came in by a virtual interface of another kind
// ("veth", "bridge"; kernel 5.1, commit 0fb4d21956f4). Neither lo nor the device of
// a network card has a kind.
func IifKindNot(kind string) Part {
	return Part{steps: []expr.Any{
		&expr.Meta{Key: metaIifKind, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: []byte(IfNameKey(kind))},
	}}
}

// metaIifKind is NFT_META_IIFKIND of linux/netfilter/nf_tables.h.
const metaIifKind expr.MetaKey = 26

// Mark sets one bit of the packet's mark.
func Mark(bit int) Part {
	flag := nativeUint32(1 << bit)
	others := make([]byte, len(flag))
	for i := range flag {
		others[i] = ^flag[i]
	}
	return Part{steps: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: unix.NFT_REG_1},
		bitwise(others, flag),
		&expr.Meta{Key: expr.MetaKeyMARK, Register: unix.NFT_REG_1, SourceRegister: true},
	}}
}

// Marked matches packets with that bit in the mark.
func Marked(bit int) Part {
	flag := nativeUint32(1 << bit)
	return Part{steps: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: unix.NFT_REG_1},
		bitwise(flag, make([]byte, len(flag))),
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: flag},
	}}
}

// Translated matches packets of connections whose destination was translated.
func Translated() Part {
	return Part{steps: []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: unix.NFT_REG_1},
		bitwise(nativeUint32(ipsDstNAT), nativeUint32(0)),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: nativeUint32(0)},
	}}
}

// ipsDstNAT is IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
const ipsDstNAT = 1 << 5

// bitwise changes the number in the register: first and, then exclusive or.
func bitwise(and, xor []byte) *expr.Bitwise {
	return &expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: uint32(len(and)), Mask: and, Xor: xor}
}

// Masquerade gives the packet the address of the interface it leaves by.
func Masquerade() Part { return Part{steps: []expr.Any{&expr.Masq{}}} }

// Return ends the chain.
func Return() Part { return verdict(expr.VerdictReturn) }

// Drop ends the packet.
func Drop() Part { return verdict(expr.VerdictDrop) }

// Jump goes through another chain, and comes back.
func Jump(chain string) Part {
	return Part{steps: []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}}
}

func verdict(kind expr.VerdictKind) Part { return Part{steps: []expr.Any{&expr.Verdict{Kind: kind}}} }
