package nft

import (
	"errors"
	"fmt"
	mathbits "math/bits"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
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
		answers, err := c.dump(request(verb{unix.NFT_MSG_GETRULE, netlink.Dump}, t.Family, func(ae *netlink.AttributeEncoder) {
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
	mask   []byte
}

// content is what a rule has put into a register.
type content int

const (
	other content = iota
	saddr
	iif
)

func (r *reader) attribute(ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.NFTA_RULE_CHAIN:
		r.Chain = ad.String()
	case unix.NFTA_RULE_HANDLE:
		r.handle = ad.Uint64()
	case unix.NFTA_RULE_USERDATA:
		if text := commentOf(ad.Bytes()); text != "" {
			r.Comment = text
		}
	case unix.NFTA_RULE_EXPRESSIONS:
		inside(ad, func(ad *netlink.AttributeDecoder) {
			var name string
			inside(ad, func(ad *netlink.AttributeDecoder) {
				switch ad.Type() {
				case unix.NFTA_EXPR_NAME:
					name = ad.String()
				case unix.NFTA_EXPR_DATA:
					ad.Do(func(b []byte) error { return r.expression(name, b) })
				}
			})
		})
	}
}

// expression notes what one expression of the rule says; those that say nothing of
// interest are passed over.
func (r *reader) expression(name string, b []byte) error {
	fam := byte(r.family)
	switch name {
	case "immediate":
		return r.immediate(b)
	case "target":
		return r.target(b)
	case "counter":
		return nil
	case "match":
		return r.match(b)
	}
	r.matches += name + string(b)
	switch name {
	case "masq":
		r.Target = "MASQUERADE"
	case "payload":
		var e expr.Payload
		err := expr.Unmarshal(fam, b, &e)
		v6 := e.Offset == 8 && (r.family == IPv6 || e.Len > 4)
		v4 := e.Offset == 12 && r.family != IPv6
		r.loaded, r.size, r.mask = other, 4, nil
		if e.Base == expr.PayloadBaseNetworkHeader && (v4 || v6) {
			r.loaded = saddr
		}
		if v6 {
			r.size = 16
		}
		return err
	case "meta":
		var e expr.Meta
		err := expr.Unmarshal(fam, b, &e)
		if r.loaded = other; e.Key == expr.MetaKeyIIFNAME {
			r.loaded = iif
		}
		return err
	case "bitwise":
		var e expr.Bitwise
		err := expr.Unmarshal(fam, b, &e)
		r.mask = e.Mask
		return err
	case "cmp":
		var e expr.Cmp
		err := expr.Unmarshal(fam, b, &e)
		r.compare(e)
		return err
	}
	return nil
}

// compare notes what the register is to be equal to.
func (r *reader) compare(e expr.Cmp) {
	r.values = append(r.values, string(e.Data))
	switch {
	case e.Op != expr.CmpOpEq:
	case r.loaded == saddr:
		r.Saddr = prefix(r.size, e.Data, r.mask)
	case r.loaded == iif:
		r.Iif = cString(e.Data)
	}
	r.loaded = other
}

const accept = 1 // NF_ACCEPT, linux/netfilter.h

// immediate reads a verdict, or a value that a later expression uses.
func (r *reader) immediate(b []byte) error {
	return decode(b, func(ad *netlink.AttributeDecoder) {
		if ad.Type() != unix.NFTA_IMMEDIATE_DATA {
			return
		}
		inside(ad, func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.NFTA_DATA_VALUE:
				r.values = append(r.values, string(ad.Bytes()))
			case unix.NFTA_DATA_VERDICT:
				inside(ad, func(ad *netlink.AttributeDecoder) {
					switch ad.Type() {
					case unix.NFTA_VERDICT_CHAIN:
						r.Jump = ad.String()
					case unix.NFTA_VERDICT_CODE:
						if ad.Uint32() == accept {
							r.Target = "ACCEPT"
						}
					}
				})
			}
		})
	})
}

// target reads a target of iptables, and where its DNAT sends packets: struct nf_nat_range2 begins with
// flags of four bytes and an address with room for IPv6.
func (r *reader) target(b []byte) error {
	var name string
	var info []byte
	err := decode(b, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
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
	return err
}

// match reads a match of iptables. Its comment (struct xt_comment_info: the text
// alone) asks nothing of a packet.
func (r *reader) match(b []byte) error {
	var name string
	var info []byte
	err := decode(b, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_MATCH_NAME:
			name = ad.String()
		case unix.NFTA_MATCH_INFO:
			info = ad.Bytes()
		}
	})
	if name == "comment" {
		r.Comment = cString(info)
	} else {
		r.matches += name + string(info)
	}
	return err
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
