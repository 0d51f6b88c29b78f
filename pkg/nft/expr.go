package nft

import (
	"github.com/plumb-cni/plumb/pkg/netlink"
	"golang.org/x/sys/unix"
)

// Names, attributes and numbers of the expressions are those of
// linux/netfilter/nf_tables.h, where each attribute has its type; what is optional
// there and nft does not send is not sent here.

// An expression is one step of a rule: it loads something into a register, or works on
// what is there, in the first one where no other is named. A match that fails ends the
// rule.
type expression struct {
	name       string
	attributes func(*netlink.Encoder)
}

func (e expression) encode(ae *netlink.Encoder) {
	ae.String(unix.NFTA_EXPR_NAME, e.name)
	ae.Nested(unix.NFTA_EXPR_DATA, e.attributes)
}

// none adds no attributes.
func none(*netlink.Encoder) {}

// payload loads some bytes of a header (NFT_PAYLOAD_*) into the register.
func payload(base, offset, size, to uint32) expression {
	return expression{"payload", func(ae *netlink.Encoder) {
		ae.Uint32(unix.NFTA_PAYLOAD_DREG, to)
		ae.Uint32(unix.NFTA_PAYLOAD_BASE, base)
		ae.Uint32(unix.NFTA_PAYLOAD_OFFSET, offset)
		ae.Uint32(unix.NFTA_PAYLOAD_LEN, size)
	}}
}

// meta loads what the kernel knows of a packet (NFT_META_*) into the register.
func meta(key, to uint32) expression {
	return expression{"meta", func(ae *netlink.Encoder) {
		ae.Uint32(unix.NFTA_META_DREG, to)
		ae.Uint32(unix.NFTA_META_KEY, key)
	}}
}

// metaIifKind is NFT_META_IIFKIND, which x/sys/unix lacks.
const metaIifKind = 26

// setMeta changes what the kernel knows of a packet.
func setMeta(key uint32) expression {
	return expression{"meta", func(ae *netlink.Encoder) {
		ae.Uint32(unix.NFTA_META_KEY, key)
		ae.Uint32(unix.NFTA_META_SREG, unix.NFT_REG_1)
	}}
}

// ct loads what connection tracking knows of a packet (NFT_CT_*).
func ct(key uint32) expression {
	return expression{"ct", func(ae *netlink.Encoder) {
		ae.Uint32(unix.NFTA_CT_DREG, unix.NFT_REG_1)
		ae.Uint32(unix.NFTA_CT_KEY, key)
	}}
}

// fib loads what the routing table says (NFT_FIB_RESULT_*) of that of a packet which
// the flags name (NFTA_FIB_F_*).
func fib(result, flags uint32) expression {
	return expression{"fib", func(ae *netlink.Encoder) {
		ae.Uint32(unix.NFTA_FIB_DREG, unix.NFT_REG_1)
		ae.Uint32(unix.NFTA_FIB_RESULT, result)
		ae.Uint32(unix.NFTA_FIB_FLAGS, flags)
	}}
}

// bitwise changes a number: first and, then exclusive or.
func bitwise(and, xor value) expression {
	return expression{"bitwise", func(ae *netlink.Encoder) {
		ae.Uint32(unix.NFTA_BITWISE_SREG, unix.NFT_REG_1)
		ae.Uint32(unix.NFTA_BITWISE_DREG, unix.NFT_REG_1)
		ae.Uint32(unix.NFTA_BITWISE_LEN, uint32(len(and)))
		ae.Nested(unix.NFTA_BITWISE_MASK, and.encode)
		ae.Nested(unix.NFTA_BITWISE_XOR, xor.encode)
	}}
}

// equal matches the value.
func equal(v value) expression { return cmp(unix.NFT_CMP_EQ, v) }

// unequal matches any other value.
func unequal(v value) expression { return cmp(unix.NFT_CMP_NEQ, v) }

func cmp(op uint32, v value) expression {
	return expression{"cmp", func(ae *netlink.Encoder) {
		ae.Uint32(unix.NFTA_CMP_SREG, unix.NFT_REG_1)
		ae.Uint32(unix.NFTA_CMP_OP, op)
		ae.Nested(unix.NFTA_CMP_DATA, v.encode)
	}}
}

// contained matches what is in the set.
func contained(set string) expression { return lookup(set, none) }

// missing matches what is not in the set.
func missing(set string) expression {
	return lookup(set, func(ae *netlink.Encoder) {
		ae.Uint32(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV)
	})
}

// mapped matches what the map knows, and loads what it gives; a verdict into
// NFT_REG_VERDICT is done.
func mapped(set string, to uint32) expression {
	return lookup(set, func(ae *netlink.Encoder) {
		ae.Uint32(unix.NFTA_LOOKUP_DREG, to)
	})
}

func lookup(set string, more func(*netlink.Encoder)) expression {
	return expression{"lookup", func(ae *netlink.Encoder) {
		ae.String(unix.NFTA_LOOKUP_SET, set)
		ae.Uint32(unix.NFTA_LOOKUP_SREG, unix.NFT_REG_1)
		more(ae)
	}}
}

// dnat translates the destination: the address is in the first register, the port in
// the one named.
func dnat(f Family, port uint32) expression {
	return expression{"nat", func(ae *netlink.Encoder) {
		ae.Uint32(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT)
		ae.Uint32(unix.NFTA_NAT_FAMILY, uint32(f))
		ae.Uint32(unix.NFTA_NAT_REG_ADDR_MIN, unix.NFT_REG_1)
		ae.Uint32(unix.NFTA_NAT_REG_PROTO_MIN, port)
	}}
}

// masq translates the source to the address of the interface that a packet leaves by.
func masq() expression { return expression{"masq", none} }

// immediate does what the verdict says.
func immediate(v verdict) expression {
	return expression{"immediate", func(ae *netlink.Encoder) {
		ae.Uint32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		ae.Nested(unix.NFTA_IMMEDIATE_DATA, v.encode)
	}}
}

// A value is data that is compared, changed or looked up.
type value []byte

func (v value) encode(ae *netlink.Encoder) { ae.Bytes(unix.NFTA_DATA_VALUE, v) }

func (v *value) decode(ad *netlink.Decoder) {
	if ad.Kind() == unix.NFTA_DATA_VALUE {
		*v = ad.Bytes()
	}
}

// A verdict is data too: what happens to the packet next.
type verdict struct {
	code  int    // NFT_* or, of linux/netfilter.h, NF_*
	chain string // where NFT_JUMP leads
}

// The verdicts of linux/netfilter.h that x/sys/unix lacks.
const (
	drop   = 0 // NF_DROP
	accept = 1 // NF_ACCEPT
)

func (v verdict) encode(ae *netlink.Encoder) {
	ae.Nested(unix.NFTA_DATA_VERDICT, func(ae *netlink.Encoder) {
		ae.Uint32(unix.NFTA_VERDICT_CODE, uint32(v.code))
		if v.chain != "" {
			ae.String(unix.NFTA_VERDICT_CHAIN, v.chain)
		}
	})
}
