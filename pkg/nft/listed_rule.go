package nft

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	mathbits "math/bits"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// A ListedRule is a rule that was read from the kernel. Any program may have added it, for example
// nft or iptables-nft.
type ListedRule struct {
	Chain   string       // the chain that contains the rule
	Comment string       // the comment in nft, or the text of the iptables match "comment"
	Jump    string       // the chain of a jump or goto
	Target  string       // the name of the iptables target, such as ACCEPT, REJECT or MASQUERADE, if it is known
	Saddr   netip.Prefix // the source addresses that the rule matches, or the zero Prefix if it matches all
	Daddr   netip.Prefix // the destination addresses that the rule matches, or the zero Prefix if it matches all
	Dport   uint16       // the only destination port that the rule matches, or 0
	Iif     string       // the input interface that the rule matches, such as eth0 or eth+, or "" if it matches all
	// Matches contains all conditions as iptables prints them, "ibrname NAME" and "obrname NAME" for a bridge, or only "-m NAME",
	// "nfproto" or "?". A counter is no condition.
	Matches []string
	Handle  uint64 // the number of the rule in its table

	values []string // the values to which the rule compares fields, and the addresses to which it translates
}

// IsOfLayout reports whether the comment of the rule is the Comment of a Layout of any version.
func (r ListedRule) IsOfLayout() bool { return strings.HasPrefix(r.Comment, versionPrefix) }

// Mentions reports whether the rule compares a field with the address, or translates an
// address to it.
func (r ListedRule) Mentions(a netip.Addr) bool {
	return slices.Contains(r.values, string(a.Unmap().AsSlice()))
}

// Rules returns the rules of a chain or, if chain is empty, of all chains of the table. If the
// table or the chain does not exist, it returns no rules and no error.
func (c *Conn) Rules(t Table, chain string) ([]ListedRule, error) {
	if chain == "" {
		return list(c, "list rules of "+t.String(), func() ([]ListedRule, error) { return c.tableRules(t) })
	}
	return list(c, "list rules of "+t.String()+" "+chain, func() ([]ListedRule, error) { return c.chainRules(t, chain) })
}

// tableRules returns the rules of all chains of the table. It lists them chain by chain, because
// package nftables cannot list the rules of a whole table.
func (c *Conn) tableRules(t Table) (rules []ListedRule, err error) {
	_, err = c.nft.ListTableOfFamily(t.Name, nftables.TableFamily(t.Family))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // do not list chains, because the kernel lists the chains of all tables
	}
	if err != nil {
		return nil, err
	}
	chains, err := c.listChains(t)
	for _, ch := range chains {
		more, err := c.chainRules(t, ch.Name)
		if err != nil {
			return nil, err
		}
		rules = append(rules, more...)
	}
	return rules, err
}

// chainRules returns the rules of one chain.
func (c *Conn) chainRules(t Table, chain string) ([]ListedRule, error) {
	listed, err := c.nft.GetRules(t.library(), &nftables.Chain{Name: chain})
	if err != nil {
		return nil, err
	}
	rules := make([]ListedRule, len(listed))
	for i, rule := range listed {
		p := ruleParser{family: t.Family}
		p.rule.Chain, p.rule.Handle, p.rule.Comment = chain, rule.Handle, parseComment(rule.UserData)
		for _, e := range rule.Exprs {
			p.parse(e)
		}
		rules[i] = p.rule
	}
	return rules, nil
}

// parseComment returns the comment in the user data of a rule or an element. It first checks
// the lengths of all attributes, because userdata.Get panics if the data ends within one.
func parseComment(data []byte) string {
	for rest := data; len(rest) > 0; rest = rest[2+int(rest[1]):] {
		if len(rest) < 2 || len(rest) < 2+int(rest[1]) {
			return ""
		}
	}
	text, _ := userdata.GetString(data, userdata.TypeComment)
	return text
}

// A ruleParser reads the expressions of a rule into a ListedRule, from the first to the last.
type ruleParser struct {
	rule     ListedRule
	family   Family // family of the table
	loaded   loadedField
	addrSize int    // the size of the loaded address in bytes
	mask     []byte // the mask of the loaded field; it is nil if the rule applies none
}

// A loadedField is the field of a packet that the rule has loaded into a register.
type loadedField int

const (
	loadedOther loadedField = iota
	loadedSaddr
	loadedDaddr
	loadedIifName
	loadedOifName
	loadedIbrName
	loadedObrName
	loadedMark
	loadedDport
	loadedL4       // the protocol of the transport layer
	loadedProtocol // the protocol of the network layer, which nft compares before it compares an address
)

// metaFields, verdicts and translations contain what parse knows of an expression. A host can have thousands of rules.
var (
	metaFields = map[expr.MetaKey]loadedField{
		expr.MetaKeyIIFNAME: loadedIifName, expr.MetaKeyOIFNAME: loadedOifName,
		expr.MetaKeyBRIIIFNAME: loadedIbrName, expr.MetaKeyBRIOIFNAME: loadedObrName,
		expr.MetaKeyMARK: loadedMark, expr.MetaKeyL4PROTO: loadedL4, expr.MetaKeyNFPROTO: loadedProtocol, expr.MetaKeyPROTOCOL: loadedProtocol,
	}
	verdicts     = map[expr.VerdictKind]string{expr.VerdictAccept: "ACCEPT", expr.VerdictDrop: "DROP", expr.VerdictReturn: "RETURN"}
	translations = map[expr.NATType]string{expr.NATTypeSourceNAT: "SNAT", expr.NATTypeDestNAT: "DNAT"}
)

// parse reads one expression into p.rule.
func (p *ruleParser) parse(e expr.Any) {
	switch e := e.(type) {
	case *expr.Immediate: // a value for a later expression
		p.rule.values = append(p.rule.values, string(e.Data))
	case *expr.Verdict:
		p.rule.Jump = e.Chain
		p.rule.Target = verdicts[e.Kind]
	case *expr.Reject:
		p.rule.Target = "REJECT"
	case *expr.Target:
		p.parseTarget(e)
	case *expr.Match:
		p.parseMatch(e)
	case *expr.Masq:
		p.rule.Target = "MASQUERADE"
	case *expr.Redir:
		p.rule.Target = "REDIRECT"
	case *expr.NAT:
		p.rule.Target = translations[e.Type]
	case *expr.Payload:
		p.parsePayload(e)
	case *expr.Meta:
		p.loaded = metaFields[e.Key]
	case *expr.Bitwise:
		p.mask = e.Mask
	case *expr.Cmp:
		p.parseCmp(e)
	case *expr.Counter, *expr.Log, *expr.Objref:
	default:
		p.add("?")
	}
}

func (p *ruleParser) add(match string) { p.rule.Matches = append(p.rule.Matches, match) }

// parseMatch reads an iptables match.
func (p *ruleParser) parseMatch(e *expr.Match) {
	const relatedOrEstablished = 1<<1 | 1<<2 // XT_CONNTRACK_STATE_BIT
	if text, ok := e.Info.(*xt.Comment); ok {
		p.rule.Comment = string(*text)
		return
	}
	switch ports := e.Info.(type) {
	case *xt.Tcp:
		p.setDport(ports.DstPorts, ports.InvFlags != 0)
	case *xt.Udp:
		p.setDport(ports.DstPorts, ports.InvFlags != 0)
	}
	text := "-m " + e.Name
	ct, ok := e.Info.(*xt.ConntrackMtinfo3)
	if ok && ct.MatchFlags == uint16(xt.ConntrackState) && ct.InvertFlags == 0 && ct.StateMask == relatedOrEstablished {
		text += " --ctstate RELATED,ESTABLISHED"
	}
	p.add(text)
}

func (p *ruleParser) setDport(ports [2]uint16, inverted bool) {
	if ports[0] == ports[1] && !inverted {
		p.rule.Dport = ports[0]
	}
}

// parsePayload notes whether the expression loads an address, the protocol or the destination port. The source and destination
// addresses are at bytes 8 and 24 of an IPv6 header, and at bytes 12 and 16 of an IPv4 header. The protocol is at byte 6 and 9. The
// destination port is at byte 2 of a TCP, UDP or SCTP header.
func (p *ruleParser) parsePayload(e *expr.Payload) {
	p.loaded, p.addrSize, p.mask = loadedOther, 4, nil
	switch {
	case e.Base == expr.PayloadBaseTransportHeader && e.Offset == 2 && e.Len == 2:
		p.loaded = loadedDport
	case e.Base != expr.PayloadBaseNetworkHeader:
	case e.Len == 1 && (e.Offset == 9 && p.family == IPv4 || e.Offset == 6 && p.family == IPv6):
		p.loaded = loadedL4
	case e.Offset == 8 && (p.family == IPv6 || e.Len > 4): // in IPv4, up to four bytes at 8 are other fields
		p.loaded, p.addrSize = loadedSaddr, 16
	case e.Offset == 24 && p.family != IPv4:
		p.loaded, p.addrSize = loadedDaddr, 16
	case e.Offset == 12 && p.family != IPv6:
		p.loaded = loadedSaddr
	case e.Offset == 16 && p.family != IPv6:
		p.loaded = loadedDaddr
	}
}

// parseCmp reads the value to which the rule compares the loaded field.
func (p *ruleParser) parseCmp(e *expr.Cmp) {
	p.rule.values = append(p.rule.values, string(e.Data))
	name, _, terminated := strings.Cut(string(e.Data), "\x00")
	if !terminated && len(name) < unix.IFNAMSIZ {
		name += "+" // all interfaces whose names begin with it
	}
	switch isEqual := e.Op == expr.CmpOpEq; {
	case isEqual && p.loaded == loadedSaddr:
		p.rule.Saddr = parsePrefix(p.addrSize, e.Data, p.mask)
		p.add("-s " + p.rule.Saddr.String())
	case isEqual && p.loaded == loadedDaddr:
		p.rule.Daddr = parsePrefix(p.addrSize, e.Data, p.mask)
		p.add("-d " + p.rule.Daddr.String())
	case isEqual && p.loaded == loadedIifName:
		p.rule.Iif = name
		p.add("-i " + name)
	case isEqual && p.loaded == loadedOifName:
		p.add("-o " + name)
	case p.loaded == loadedIifName:
		p.add("! -i " + name)
	case p.loaded == loadedOifName:
		p.add("! -o " + name)
	case isEqual && p.loaded == loadedIbrName:
		p.add("ibrname " + name)
	case isEqual && p.loaded == loadedObrName:
		p.add("obrname " + name)
	case isEqual && p.loaded == loadedL4 && len(e.Data) == 1:
		p.add("-p " + cmp.Or(transports[e.Data[0]], fmt.Sprint(e.Data[0])))
	case isEqual && p.loaded == loadedDport && len(e.Data) == 2:
		p.rule.Dport = binary.BigEndian.Uint16(e.Data)
		p.add("?")
	case p.loaded == loadedMark:
		p.add("-m mark")
	case isEqual && p.loaded == loadedProtocol:
		p.add("nfproto")
	default:
		p.add("?")
	}
	p.loaded = loadedOther
}

// transports contains the names of the protocols that have ports.
var transports = map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp"}

// parseTarget reads an iptables target, including the addresses to which a NAT target translates.
func (p *ruleParser) parseTarget(e *expr.Target) {
	p.rule.Target = e.Name
	switch to := e.Info.(type) {
	case *xt.NatRange2:
		p.addAddress(to.MinIP)
	case *xt.NatRange:
		p.addAddress(to.MinIP)
	case *xt.NatIPv4MultiRangeCompat:
		for _, r := range *to {
			p.addAddress(r.MinIP)
		}
	}
}

// addAddress adds the address to the values of the rule.
func (p *ruleParser) addAddress(ip net.IP) {
	if v4 := ip.To4(); v4 != nil {
		ip = v4
	}
	p.rule.values = append(p.rule.values, string(ip))
}

// parsePrefix returns the prefix whose addresses, of size bytes each, match value and mask. If the
// length of a prefix is a multiple of 8, iptables and nft compare only the bytes of the prefix, without
// a mask.
func parsePrefix(size int, value, mask []byte) netip.Prefix {
	bits := 8 * len(value)
	if mask != nil {
		bits = 0
		for _, b := range mask {
			bits += mathbits.OnesCount8(b)
		}
	}
	address := make([]byte, size)
	copy(address, value)
	a, _ := netip.AddrFromSlice(address)
	return netip.PrefixFrom(a, bits)
}
