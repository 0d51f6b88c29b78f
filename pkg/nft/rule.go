package nft

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// A Rule is what one rule does, from left to right as nft prints it.
type Rule []Part

// A Part is one match or one statement of a rule.
type Part struct {
	of    Family // the packets it makes sense for; zero: all
	steps []expression
}

// expressions joins the parts. In a table that sees both IPv4 and IPv6, a part that
// reads one of the two headers first asks which one the packet has, once a rule, as
// nft does.
func (r Rule) expressions(table Family) []expression {
	var all []expression
	var asked Family
	for _, p := range r {
		if table == Inet && p.of != 0 && p.of != asked {
			all = append(all, meta(unix.NFT_META_NFPROTO, unix.NFT_REG_1), equal(value{byte(p.of)}))
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
	load func(register uint32) expression
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
	return Field{f, kind, func(r uint32) expression {
		return payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, kind.size(), r)
	}}
}

// L4Proto is the number of the protocol over IP.
func L4Proto() Field {
	return Field{kind: InetProto, load: func(r uint32) expression { return meta(unix.NFT_META_L4PROTO, r) }}
}

// Dport is the destination port of TCP, UDP and SCTP.
func Dport() Field {
	return Field{kind: InetService, load: func(r uint32) expression {
		return payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, InetService.size(), r)
	}}
}

// IifName is the name of the interface that the packet came in by.
func IifName() Field {
	return Field{kind: IfName, load: func(r uint32) expression { return meta(unix.NFT_META_IIFNAME, r) }}
}

// EtherSaddr is the hardware address of the sender.
func EtherSaddr() Field {
	return Field{kind: EtherAddr, load: func(r uint32) expression {
		return payload(unix.NFT_PAYLOAD_LL_HEADER, 6, EtherAddr.size(), r)
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
func (p Part) then(e expression) Part {
	p.steps = append(p.steps, e)
	return p
}

// In matches what is in the set.
func In(set string, fields ...Field) Part { return load(fields).then(contained(set)) }

// NotIn matches what is not in the set.
func NotIn(set string, fields ...Field) Part { return load(fields).then(missing(set)) }

// VMap does what the verdict map says.
func VMap(set string, fields ...Field) Part {
	return load(fields).then(mapped(set, unix.NFT_REG_VERDICT))
}

// DNATMap sends a packet to the address and port that the map gives for the fields.
// A packet that the map does not know goes on.
func DNATMap(f Family, set string, fields ...Field) Part {
	p := load(fields).then(mapped(set, unix.NFT_REG_1))
	p.of = f
	return p.then(dnat(f, register(Daddr(f).kind.size()/4)))
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
		part = part.then(bitwise(mask(p.Bits(), size), make(value, size)))
	}
	return part.then(equal(p.Addr().AsSlice()))
}

// Only matches the packets of one family.
func Only(f Family) Part { return Part{of: f} }

func mask(bits, size int) value {
	m := make(value, size)
	for i := range bits {
		m[i/8] |= 0x80 >> (i % 8)
	}
	return m
}

// ToLocal matches packets to an address of this node.
func ToLocal() Part {
	return steps(
		fib(unix.NFT_FIB_RESULT_ADDRTYPE, unix.NFTA_FIB_F_DADDR),
		equal(nativeUint32(unix.RTN_LOCAL)),
	)
}

// IifKindNot matches packets that came in by a virtual interface of another kind
// ("veth", "bridge"; kernel 5.1, commit 0fb4d21956f4). Neither lo nor the device of
// a network card has a kind.
func IifKindNot(kind string) Part {
	return steps(meta(metaIifKind, unix.NFT_REG_1), unequal(value(IfNameKey(kind))))
}

// Mark sets one bit of the packet's mark.
func Mark(bit int) Part {
	return steps(
		meta(unix.NFT_META_MARK, unix.NFT_REG_1),
		bitwise(nativeUint32(^(1<<bit)), nativeUint32(1<<bit)),
		setMeta(unix.NFT_META_MARK),
	)
}

// Marked matches packets with that bit in the mark.
func Marked(bit int) Part {
	flag := nativeUint32(1 << bit)
	return steps(
		meta(unix.NFT_META_MARK, unix.NFT_REG_1),
		bitwise(flag, nativeUint32(0)),
		equal(flag),
	)
}

// Translated matches packets of connections whose destination was translated.
func Translated() Part {
	return steps(
		ct(unix.NFT_CT_STATUS),
		bitwise(nativeUint32(ipsDstNAT), nativeUint32(0)),
		unequal(nativeUint32(0)),
	)
}

// ipsDstNAT is IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
const ipsDstNAT = 1 << 5

// Masquerade gives the packet the address of the interface it leaves by.
func Masquerade() Part { return steps(masq()) }

// Return ends the chain.
func Return() Part { return steps(immediate(verdict{code: unix.NFT_RETURN})) }

// Drop ends the packet.
func Drop() Part { return steps(immediate(verdict{code: drop})) }

// Jump goes through another chain, and comes back.
func Jump(chain string) Part { return steps(immediate(verdict{unix.NFT_JUMP, chain})) }

func steps(s ...expression) Part { return Part{steps: s} }
