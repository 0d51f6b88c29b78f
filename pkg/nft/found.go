package nft

import (
	"errors"
	"fmt"
	mathbits "math/bits"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/pkg/netlink"
	"golang.org/x/sys/unix"
)

// Found is what can be told of a rule that somebody made: with nft, or with an
// iptables that speaks to nf_tables.
type Found struct {
	Chain   string
	Comment string       // nft's comment, or that of iptables' match of this name
	Jump    string       // the chain it jumps or goes to
	Target  string       // what else it does, in iptables' words, as far as it is known: ACCEPT, MASQUERADE
	Saddr   netip.Prefix // the source it wants, where it wants one
	Iif     string       // the interface that packets come in by, where it wants one

	handle  uint64
	matches string   // all that it wants of a packet, in the kernel's form
	values  []string // what it compares with, and where it translates to
}

// SameMatches reports whether both rules want the same of a packet, whatever they do
// with it and whatever their comments say.
func (r Found) SameMatches(o Found) bool { return r.matches == o.matches }

// Mentions reports whether the rule compares something with the address, or
// translates to it.
func (r Found) Mentions(a netip.Addr) bool {
	return slices.Contains(r.values, string(a.Unmap().AsSlice()))
}

// Rules lists the rules of a chain; with chain "" those of the table. A missing
// table or chain has none.
func (c *Conn) Rules(t Table, chain string) ([]Found, error) {
	what := "list rules of " + t.String()
	if chain != "" {
		what += " " + chain
	}
	var found []Found
	err := c.h.Step("nft "+what, func() error {
		answers, err := c.dump(request(verb{unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP}, t.Family, func(ae *netlink.Encoder) {
			ae.String(unix.NFTA_RULE_TABLE, t.Name)
			if chain != "" {
				ae.String(unix.NFTA_RULE_CHAIN, chain)
			}
		}))
		for _, m := range answers {
			r := reader{family: t.Family}
			err = errors.Join(err, decode(body(m), r.attribute))
			found = append(found, r.Found)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return found, nil
}

// A reader makes a Found of a rule's attributes.
type reader struct {
	Found
	family Family
	loaded content // what is in the register
	size   int     // of the source address, in bytes
	mask   value
}

// content is what a rule has put into a register.
type content int

const (
	other content = iota
	saddr
	iif
)

func (r *reader) attribute(ad *netlink.Decoder) {
	switch ad.Kind() {
	case unix.NFTA_RULE_CHAIN:
		r.Chain = ad.String()
	case unix.NFTA_RULE_HANDLE:
		r.handle = ad.Uint64()
	case unix.NFTA_RULE_USERDATA:
		if text := commentOf(ad.Bytes()); text != "" {
			r.Comment = text
		}
	case unix.NFTA_RULE_EXPRESSIONS:
		inside(ad, func(ad *netlink.Decoder) {
			var name string
			inside(ad, func(ad *netlink.Decoder) {
				switch ad.Kind() {
				case unix.NFTA_EXPR_NAME:
					name = ad.String()
				case unix.NFTA_EXPR_DATA:
					r.expression(name, ad)
				}
			})
		})
	}
}

// expression notes what one expression of the rule says; those that say nothing of
// interest are passed over.
func (r *reader) expression(name string, ad *netlink.Decoder) {
	switch name {
	case "immediate":
		inside(ad, r.immediate)
		return
	case "target":
		r.target(ad)
		return
	case "counter":
		return
	case "match":
		r.match(ad)
		return
	}
	r.matches += name + string(ad.Bytes())
	switch name {
	case "masq":
		r.Target = "MASQUERADE"
	case "payload":
		r.payload(ad)
	case "meta":
		r.loaded = other
		inside(ad, r.meta)
	case "bitwise":
		inside(ad, r.bitwise)
	case "cmp":
		r.cmp(ad)
	}
}

// payload notes whether the source address is loaded.
func (r *reader) payload(ad *netlink.Decoder) {
	var base, offset, size uint32
	inside(ad, func(ad *netlink.Decoder) {
		switch ad.Kind() {
		case unix.NFTA_PAYLOAD_BASE:
			base = ad.Uint32()
		case unix.NFTA_PAYLOAD_OFFSET:
			offset = ad.Uint32()
		case unix.NFTA_PAYLOAD_LEN:
			size = ad.Uint32()
		}
	})
	v6 := offset == 8 && (r.family == IPv6 || size > 4)
	v4 := offset == 12 && r.family != IPv6
	r.loaded, r.size, r.mask = other, 4, nil
	if base == unix.NFT_PAYLOAD_NETWORK_HEADER && (v4 || v6) {
		r.loaded = saddr
	}
	if v6 {
		r.size = 16
	}
}

func (r *reader) meta(ad *netlink.Decoder) {
	if ad.Kind() == unix.NFTA_META_KEY && ad.Uint32() == unix.NFT_META_IIFNAME {
		r.loaded = iif
	}
}

func (r *reader) bitwise(ad *netlink.Decoder) {
	if ad.Kind() == unix.NFTA_BITWISE_MASK {
		inside(ad, r.mask.decode)
	}
}

// cmp notes what the register is to be equal to.
func (r *reader) cmp(ad *netlink.Decoder) {
	var op uint32
	var data value
	inside(ad, func(ad *netlink.Decoder) {
		switch ad.Kind() {
		case unix.NFTA_CMP_OP:
			op = ad.Uint32()
		case unix.NFTA_CMP_DATA:
			inside(ad, data.decode)
		}
	})
	r.values = append(r.values, string(data))
	switch {
	case op != unix.NFT_CMP_EQ:
	case r.loaded == saddr:
		r.Saddr = prefix(r.size, data, r.mask)
	case r.loaded == iif:
		r.Iif = netlink.Text(data)
	}
	r.loaded = other
}

// immediate reads a verdict, or a value that a later expression uses.
func (r *reader) immediate(ad *netlink.Decoder) {
	if ad.Kind() != unix.NFTA_IMMEDIATE_DATA {
		return
	}
	inside(ad, func(ad *netlink.Decoder) {
		switch ad.Kind() {
		case unix.NFTA_DATA_VALUE:
			r.values = append(r.values, string(ad.Bytes()))
		case unix.NFTA_DATA_VERDICT:
			inside(ad, r.verdict)
		}
	})
}

func (r *reader) verdict(ad *netlink.Decoder) {
	switch ad.Kind() {
	case unix.NFTA_VERDICT_CHAIN:
		r.Jump = ad.String()
	case unix.NFTA_VERDICT_CODE:
		if ad.Uint32() == accept {
			r.Target = "ACCEPT"
		}
	}
}

// target reads a target of iptables, and where its DNAT sends packets: struct nf_nat_range2 begins with
// flags of four bytes and an address with room for IPv6.
func (r *reader) target(ad *netlink.Decoder) {
	var name string
	var info []byte
	inside(ad, func(ad *netlink.Decoder) {
		switch ad.Kind() {
		case unix.NFTA_TARGET_NAME:
			name = ad.String()
		case unix.NFTA_TARGET_INFO:
			info = ad.Bytes()
		}
	})
	r.Target = name
	if name == "DNAT" && len(info) >= 20 {
		r.values = append(r.values, string(info[4:8]), string(info[4:20]))
	}
}

// match reads a match of iptables. Its comment (struct xt_comment_info: the text
// alone) asks nothing of a packet.
func (r *reader) match(ad *netlink.Decoder) {
	var name string
	var info []byte
	inside(ad, func(ad *netlink.Decoder) {
		switch ad.Kind() {
		case unix.NFTA_MATCH_NAME:
			name = ad.String()
		case unix.NFTA_MATCH_INFO:
			info = ad.Bytes()
		}
	})
	if name == "comment" {
		r.Comment = netlink.Text(info)
	} else {
		r.matches += name + string(info)
	}
}

// prefix reads what a source address is compared with. iptables and nft load only
// the leading bytes of a prefix that ends on a byte.
func prefix(size int, value, mask []byte) netip.Prefix {
	bits := 8 * len(value)
	if mask != nil {
		bits = 0
		for _, b := range mask {
			bits += mathbits.OnesCount8(b)
		}
	}
	full := make([]byte, size)
	copy(full, value)
	a, _ := netip.AddrFromSlice(full)
	return netip.PrefixFrom(a, bits)
}
