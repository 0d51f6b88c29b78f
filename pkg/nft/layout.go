package nft

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/plumb-cni/plumb/pkg/netlink"
	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// A Family is the kind of packets that a table sees.
type Family byte

// The families, by their numbers in the kernel.
const (
	Inet   Family = unix.NFPROTO_INET
	IPv4   Family = unix.NFPROTO_IPV4
	IPv6   Family = unix.NFPROTO_IPV6
	Bridge Family = unix.NFPROTO_BRIDGE
)

func (f Family) String() string {
	switch f {
	case Inet:
		return "inet"
	case IPv4:
		return "ip"
	case IPv6:
		return "ip6"
	case Bridge:
		return "bridge"
	}
	return "family " + strconv.Itoa(int(f))
}

// A Table is the name of a table.
type Table struct {
	Family Family
	Name   string
}

func (t Table) String() string { return t.Family.String() + " " + t.Name }

// A Layout is what a table consists of, elements apart.
type Layout struct {
	Table Table
	// Version is in the comment of each rule. A chain with rules of an older version
	// is rewritten; one with rules of a newer version is left as it is, so that the
	// executables of two releases can share a node. A later version may add sets and
	// chains and change rules; a set whose types must change gets a new name.
	Version int
	Sets    []Set
	Chains  []Chain // in an order in which each jumps only to those before it
	// Initial chains are made with the table. Afterwards they are not looked at.
	Initial []Chain
}

// With is the layout with more chains in it.
func (l Layout) With(chains ...Chain) Layout {
	l.Chains = append(l.Chains[:len(l.Chains):len(l.Chains)], chains...)
	return l
}

// A Set is a set or, with Data, a map. Several types are a concatenation.
type Set struct {
	Name string
	Key  []Type
	Data []Type
}

func (s Set) isMap() bool { return len(s.Data) > 0 }

// A Type is the type of a key or of data, by its number in nft (datatype.h).
type Type uint32

// The types in use.
const (
	Verdict     Type = 1
	IPv4Addr    Type = 7
	IPv6Addr    Type = 8
	EtherAddr   Type = 9
	InetProto   Type = 12
	InetService Type = 13
	IfName      Type = 41
)

// size is the length of a value in bytes.
func (t Type) size() uint32 {
	switch t {
	case IPv6Addr, IfName:
		return 16
	case EtherAddr:
		return 6
	case InetService:
		return 2
	case InetProto:
		return 1
	}
	return 4
}

// magic is the number by which nft knows the type of a concatenation: six bits
// each. A verdict is none of nft's types to the kernel, but one of its own.
func magic(types []Type) uint32 {
	if len(types) == 1 && types[0] == Verdict {
		return unix.NFT_DATA_VERDICT
	}
	var n uint32
	for _, t := range types {
		n = n<<6 | uint32(t)
	}
	return n
}

// length is the number of bytes of a value; in a concatenation each part is padded
// to a register of four.
func length(types []Type) uint32 {
	if len(types) == 1 {
		return types[0].size()
	}
	var n uint32
	for _, t := range types {
		n += (t.size() + 3) &^ 3
	}
	return n
}

// A Chain is a list of rules. The zero Hook makes one that only sees what jumps
// to it.
type Chain struct {
	Name  string
	Hook  Hook
	Rules []Rule
}

// A Hook is where packets enter a chain. Packets that no rule decides are accepted.
type Hook struct {
	Type     HookType
	At       HookPoint
	Priority int32
}

// A HookType is the kind of a base chain.
type HookType string

// The types of base chains.
const (
	NAT    HookType = "nat"
	Filter HookType = "filter"
)

// A HookPoint is a place on the way of a packet.
type HookPoint uint32

// The hook points: the numbers are the same in the inet and bridge families.
const (
	Prerouting  HookPoint = unix.NF_INET_PRE_ROUTING
	Output      HookPoint = unix.NF_INET_LOCAL_OUT
	Postrouting HookPoint = unix.NF_INET_POST_ROUTING
)

const versionPrefix = "plumb layout "

func (l Layout) comment() string { return versionPrefix + strconv.Itoa(l.Version) }

// whole reports whether the rules of a chain are those of the layout, or of a newer
// one. Rules that somebody added are no damage.
func (l Layout) whole(ch Chain, rules []Found) bool {
	count := 0
	for _, r := range rules {
		text, ours := strings.CutPrefix(r.Comment, versionPrefix)
		version, err := strconv.Atoi(text)
		switch {
		case !ours || err != nil:
		case version > l.Version:
			return true
		case version == l.Version:
			count++
		}
	}
	return count == len(ch.Rules)
}

// Ensure makes the table as l describes it: whole, in one transaction that fails if
// somebody else made it first; or it brings right what is damaged or older, and
// keeps the elements. It reads the rules of the layout's own chains, which are a
// handful whatever the number of elements. It is safe to run at once with others.
//
// A kernel that lacks what the layout needs is ErrUnavailable.
func (c *Conn) Ensure(l Layout) error {
	const attempts = 20
	var err error
	for range attempts {
		err = c.ensure(l)
		if !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return explain(l.Table, err)
}

// ensure fails with fs.ErrExist or fs.ErrNotExist where the table came or went meanwhile.
func (c *Conn) ensure(l Layout) error {
	problem, err := c.unusable(l.Table)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c.make(l)
	case err != nil:
		return err
	case problem != "":
		return types.Errorf(types.CodeConfig, "%s", problem)
	}
	damaged, err := c.incomplete(l)
	if err != nil || len(damaged) == 0 {
		return err
	}
	var tx Tx
	tx.addLayout(l, damaged)
	return c.Commit("nft repair table "+l.Table.String(), &tx)
}

// make makes the table, which must not exist.
func (c *Conn) make(l Layout) error {
	var tx Tx
	tx.addTable(l.Table)
	tx.addLayout(l, slices.Concat(l.Initial, l.Chains))
	return lacking(c.Commit("nft make table "+l.Table.String(), &tx))
}

// explain says what can be done about a table that does not take what is ours.
func explain(t Table, err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: CAP_NET_ADMIN is needed in the node's network namespace", err)
	case errors.Is(err, fs.ErrExist), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return types.Errorf(types.CodeConfig, "table %s is not as plumb makes it: if another program made it, rename it there; if nobody needs it, run nft delete table %s: %w", t, t, err)
	}
	return err
}

// unusable returns why a table that exists cannot be worked with; empty: it can. A missing
// table is fs.ErrNotExist.
func (c *Conn) unusable(t Table) (problem string, err error) {
	flags, owner, err := c.table(t)
	switch {
	case err != nil:
	case flags&unix.NFT_TABLE_F_DORMANT != 0:
		problem = fmt.Sprintf("table %s is dormant, so its rules see no packets: wake it with nft add table %[1]s, or delete it with nft delete table %[1]s", t)
	case flags&tableOwned != 0:
		problem = fmt.Sprintf("table %s belongs to another program alone (flag owner, netlink port %d, often its process ID): end that program, or have it use another name", t, owner)
	}
	return problem, err
}

// tableOwned is NFT_TABLE_F_OWNER of linux/netfilter/nf_tables.h (kernel 5.12): only the
// socket that made the table may change it.
const tableOwned = 2

// Damaged lists the chains of the layout that are missing, incomplete or older. A table
// that is dormant or another program's own is an error.
func (c *Conn) Damaged(l Layout) ([]Chain, error) {
	problem, err := c.unusable(l.Table)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return l.Chains, nil
	case err != nil:
		return nil, err
	case problem != "":
		return nil, errors.New(problem)
	}
	return c.incomplete(l)
}

// incomplete is Damaged for a table that can be worked with.
func (c *Conn) incomplete(l Layout) ([]Chain, error) {
	var damaged []Chain
	for _, ch := range l.Chains {
		rules, err := c.Rules(l.Table, ch.Name)
		if err != nil {
			return nil, err
		}
		if !l.whole(ch, rules) {
			damaged = append(damaged, ch)
		}
	}
	return damaged, nil
}

// Can is nil if the kernel has all that the layout needs, and else ErrUnavailable. A
// layout that does not stand is proposed to the kernel, but nothing is made.
func (c *Conn) Can(l Layout) error {
	damaged, err := c.Damaged(l)
	if err != nil || len(damaged) == 0 {
		return err
	}
	l.Table.Name += "-status" // one that nobody has, so that all of it is proposed
	tx := &Tx{dry: true}
	tx.addTable(l.Table)
	tx.addLayout(l, l.Chains)
	return lacking(c.Commit("nft propose table "+l.Table.String(), tx))
}

// addLayout adds the sets that are not there, and rewrites the chains.
func (t *Tx) addLayout(l Layout, chains []Chain) {
	for _, s := range l.Sets {
		t.addSet(l.Table, s)
	}
	for _, ch := range chains {
		t.addChain(l.Table, ch)
		t.Flush(l.Table, ch.Name)
		for _, r := range ch.Rules {
			t.addRule(l.Table, ch.Name, r, l.comment())
		}
	}
}

// lacking makes ErrUnavailable of what a kernel without some module says to a batch
// that makes all that it refers to: ENOENT for chain types and expressions,
// EOPNOTSUPP and EAFNOSUPPORT for families.
func lacking(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("%w: %w", ErrUnavailable, hide{err})
	}
	return err
}

// hide keeps the text of an error but not what it matches: that a module of the
// kernel does not exist is not what a caller means by fs.ErrNotExist.
type hide struct{ error }

// table reads the flags of a table and the netlink port of its owner.
func (c *Conn) table(t Table) (flags, owner uint32, err error) {
	answers, err := c.get("table "+t.String(), t, unix.NFT_MSG_GETTABLE, func(ae *netlink.Encoder) {
		ae.String(unix.NFTA_TABLE_NAME, t.Name)
	})
	for _, m := range answers {
		err = errors.Join(err, decode(body(m), func(ad *netlink.Decoder) {
			switch ad.Kind() {
			case unix.NFTA_TABLE_FLAGS:
				flags = ad.Uint32()
			case tableOwner:
				owner = ad.Uint32()
			}
		}))
	}
	return flags, owner, err
}

// tableOwner is NFTA_TABLE_OWNER of linux/netfilter/nf_tables.h.
const tableOwner = 7

// HasChain is nil if the chain exists, and else fs.ErrNotExist.
func (c *Conn) HasChain(t Table, chain string) error {
	_, err := c.ChainUse(t, chain)
	return err
}

// ChainUse returns the chain with how much there is that needs it. A missing one is
// fs.ErrNotExist.
func (c *Conn) ChainUse(t Table, chain string) (Use, error) {
	if len(chain) >= unix.NFT_CHAIN_MAXNAMELEN {
		return Use{}, fmt.Errorf("get chain %s of table %s: %w: no name is that long", chain, t, fs.ErrNotExist)
	}
	answers, err := c.get("chain "+chain+" of table "+t.String(), t, unix.NFT_MSG_GETCHAIN, func(ae *netlink.Encoder) {
		ae.String(unix.NFTA_CHAIN_TABLE, t.Name)
		ae.String(unix.NFTA_CHAIN_NAME, chain)
	})
	use := Use{Chain: chain}
	for _, m := range answers {
		_, found, derr := chainIn(m)
		use, err = found, errors.Join(err, derr)
	}
	return use, err
}

func (c *Conn) get(what string, t Table, kind uint16, encode func(*netlink.Encoder)) (answers []netlink.Message, err error) {
	err = c.h.Step("nft get "+what, func() error {
		answers, err = c.execute(request(verb{kind, 0}, t.Family, encode))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", what, err)
	}
	return answers, nil
}

// chainIn reads the chain that an answer is about.
func chainIn(m netlink.Message) (table string, use Use, err error) {
	err = decode(body(m), func(ad *netlink.Decoder) {
		switch ad.Kind() {
		case unix.NFTA_CHAIN_TABLE:
			table = ad.String()
		case unix.NFTA_CHAIN_NAME:
			use.Chain = ad.String()
		case unix.NFTA_CHAIN_USE:
			use.Count = int(ad.Uint32())
		}
	})
	return table, use, err
}

// A Use is a chain and how much there is that needs it: its rules, and what jumps to
// it.
type Use struct {
	Chain string
	Count int
}

// Chains lists the table's chains whose names have the prefix.
func (c *Conn) Chains(t Table, prefix string) ([]Use, error) {
	var uses []Use
	err := c.h.Step("nft list chains of "+t.String(), func() error {
		answers, err := c.dump(request(verb{unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP}, t.Family, none))
		for _, m := range answers {
			table, use, derr := chainIn(m)
			err = errors.Join(err, derr)
			if table == t.Name && strings.HasPrefix(use.Chain, prefix) {
				uses = append(uses, use)
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list chains of table %s: %w", t, err)
	}
	return uses, nil
}

// DelUnused removes the chains whose names have the prefix that nothing jumps to any
// more. Somebody may come first who needs one: then the kernel refuses, and it stays.
func (c *Conn) DelUnused(t Table, prefix string) error {
	chains, err := c.Chains(t, prefix)
	errs := []error{err}
	for _, ch := range chains {
		rules, err := c.Rules(t, ch.Chain)
		if errs = append(errs, err); ch.Count > len(rules) {
			continue
		}
		var tx Tx
		tx.DelChain(t, ch.Chain)
		err = c.Commit("nft delete chain "+ch.Chain, &tx)
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
