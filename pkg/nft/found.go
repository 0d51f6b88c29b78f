package nft

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	mathbits "math/bits"
	"net"
	"net/netip"
	"reflect"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/google/nftables/xt"
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
	matches []expr.Any // all that it wants of a packet
	values  []string   // what it compares with, and where it translates to
}

// SameMatches reports whether both rules want the same of a packet, whatever they do
// with it and whatever their comments say. Expressions that the library does not know do
// not count; iptables makes none of them.
func (r Found) SameMatches(o Found) bool { return reflect.DeepEqual(r.matches, o.matches) }

// Mentions reports whether the rule compares something with the address, or
// translates to it.
func (r Found) Mentions(a netip.Addr) bool {
	return slices.Contains(r.values, string(a.Unmap().AsSlice()))
}

// Rules lists the rules of a chain; with chain "" those of the table. A missing
// table or chain has none.
func (c *Conn) Rules(t Table, chain string) (found []Found, err error) {
	what := "list rules of " + t.String()
	if chain != "" {
		what += " " + chain
	}
	err = c.step("nft "+what, func() error {
		return c.consistently(func() error {
			if chain == "" {
				found, err = c.tableRules(t)
			} else {
				found, err = c.rules(t, chain)
			}
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return found, nil
}

// tableRules lists the rules of all chains: the library lists those of one.
func (c *Conn) tableRules(t Table) (all []Found, err error) {
	_, err = c.lib.ListTableOfFamily(t.Name, nftables.TableFamily(t.Family))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // and the chains of other tables need not be listed
	}
	if err != nil {
		return nil, err
	}
	chains, err := c.chains(t, "")
	for _, ch := range chains {
		rules, err := c.rules(t, ch.Chain)
		if err != nil {
			return nil, err
		}
		all = append(all, rules...)
	}
	return all, err
}

func (c *Conn) rules(t Table, chain string) ([]Found, error) {
	rules, err := c.lib.GetRules(t.lib(), &nftables.Chain{Name: chain})
	if err != nil {
		return nil, err
	}
	found := make([]Found, len(rules))
	for i, rule := range rules {
		r := reader{family: t.Family}
		r.Chain, r.handle, r.Comment = chain, rule.Handle, commentOf(rule.UserData)
		for _, e := range rule.Exprs {
			r.expression(e)
		}
		found[i] = r.Found
	}
	return found, nil
}

// commentOf finds the comment in the data that nft keeps with a rule. userdata.Get panics
// where data that somebody else made ends within an attribute.
func commentOf(data []byte) string {
	for rest := data; len(rest) > 0; rest = rest[2+int(rest[1]):] {
		if len(rest) < 2 || len(rest) < 2+int(rest[1]) {
			return ""
		}
	}
	text, _ := userdata.GetString(data, userdata.TypeComment)
	return text
}

// A reader makes a Found of a rule's expressions.
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

// expression notes what one expression of the rule says; those that say nothing of
// interest are passed over.
func (r *reader) expression(e expr.Any) {
	switch e := e.(type) {
	case *expr.Immediate: // a value that a later expression uses
		r.values = append(r.values, string(e.Data))
		return
	case *expr.Verdict:
		r.Jump = e.Chain
		if e.Kind == expr.VerdictAccept {
			r.Target = "ACCEPT"
		}
		return
	case *expr.Target:
		r.target(e)
		return
	case *expr.Counter:
		return
	case *expr.Match:
		if text, ok := e.Info.(*xt.Comment); ok {
			r.Comment = string(*text) // it asks nothing of a packet
			return
		}
	case *expr.Masq:
		r.Target = "MASQUERADE"
	case *expr.Payload:
		r.payload(e)
	case *expr.Meta:
		r.loaded = other
		if e.Key == expr.MetaKeyIIFNAME {
			r.loaded = iif
		}
	case *expr.Bitwise:
		r.mask = e.Mask
	case *expr.Cmp:
		r.cmp(e)
	}
	r.matches = append(r.matches, e)
}

// payload notes whether the source address is loaded.
func (r *reader) payload(e *expr.Payload) {
	v6 := e.Offset == 8 && (r.family == IPv6 || e.Len > 4)
	v4 := e.Offset == 12 && r.family != IPv6
	r.loaded, r.size, r.mask = other, 4, nil
	if e.Base == expr.PayloadBaseNetworkHeader && (v4 || v6) {
		r.loaded = saddr
	}
	if v6 {
		r.size = 16
	}
}

// cmp notes what the register is to be equal to.
func (r *reader) cmp(e *expr.Cmp) {
	r.values = append(r.values, string(e.Data))
	switch {
	case e.Op != expr.CmpOpEq:
	case r.loaded == saddr:
		r.Saddr = prefix(r.size, e.Data, r.mask)
	case r.loaded == iif:
		name, _, _ := bytes.Cut(e.Data, []byte{0})
		r.Iif = string(name)
	}
	r.loaded = other
}

// target reads a target of iptables, and where its DNAT sends packets.
func (r *reader) target(e *expr.Target) {
	r.Target = e.Name
	switch to := e.Info.(type) {
	case *xt.NatRange2:
		r.translates(to.MinIP)
	case *xt.NatRange:
		r.translates(to.MinIP)
	case *xt.NatIPv4MultiRangeCompat:
		for _, one := range *to {
			r.translates(one.MinIP)
		}
	}
}

func (r *reader) translates(to net.IP) {
	if short := to.To4(); short != nil {
		to = short
	}
	r.values = append(r.values, string(to))
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
