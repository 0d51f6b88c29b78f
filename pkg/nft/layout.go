package nft

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
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

// datatypes are the library's.
var datatypes = map[Type]nftables.SetDatatype{
	Verdict:     nftables.TypeVerdict,
	IPv4Addr:    nftables.TypeIPAddr,
	IPv6Addr:    nftables.TypeIP6Addr,
	EtherAddr:   nftables.TypeEtherAddr,
	InetProto:   nftables.TypeInetProto,
	InetService: nftables.TypeInetService,
	IfName:      nftables.TypeIFName,
}

// size returns the length of a value in bytes.
func (t Type) size() uint32 { return datatypes[t].Bytes }

// datatype returns the type of a value, or of a concatenation of values.
func datatype(types []Type) nftables.SetDatatype {
	if len(types) == 1 {
		return datatypes[types[0]]
	}
	parts := make([]nftables.SetDatatype, len(types))
	for i, t := range types {
		parts[i] = datatypes[t]
	}
	return nftables.MustConcatSetType(parts...)
}

func (s Set) lib(t Table) *nftables.Set {
	l := &nftables.Set{Table: t.lib(), Name: s.Name, IsMap: s.isMap(), KeyType: datatype(s.Key), DataType: datatype(s.Data)}
	if len(s.Key) == 1 && s.Key[0] == IfName {
		l.KeyByteOrder = binaryutil.NativeEndian // nft prints the keys as texts then
	}
	return l
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

// Priorities of base chains (linux/netfilter_ipv4.h).
const (
	PriorityRaw    = -300 // "raw" in nft
	PriorityDstNAT = -100 // "dstnat"
	PrioritySrcNAT = 100  // "srcnat"
)

const versionPrefix = "plumb layout "

// Comment returns the comment of each rule of the layout, which says its version.
func (l Layout) Comment() string { return versionPrefix + strconv.Itoa(l.Version) }

// intact reports whether a chain has all rules of this version of the layout, or rules of
// a newer version. Rules of others are ignored.
func (l Layout) intact(ch Chain, rules []Found) bool {
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
	return unavailable(c.Commit("nft make table "+l.Table.String(), &tx))
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
	var found *nftables.Table
	err = c.step("nft get table "+t.String(), func() (err error) {
		found, err = c.lib.ListTableOfFamily(t.Name, nftables.TableFamily(t.Family))
		return err
	})
	switch {
	case err != nil:
		err = fmt.Errorf("get table %s: %w", t, err)
	case found.Flags&nftables.TableFlagDormant != 0:
		problem = fmt.Sprintf("table %s is dormant, so its rules see no packets: wake it with nft add table %[1]s, or delete it with nft delete table %[1]s", t)
	case found.Flags&nftables.TableFlagOwner != 0:
		problem = fmt.Sprintf("table %s belongs to another program alone (flag owner, netlink port %d, often its process ID): end that program, or have it use another name", t, found.Owner)
	}
	return problem, err
}

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
func (c *Conn) incomplete(l Layout) (damaged []Chain, err error) {
	what := "list rules of " + l.Table.String()
	err = c.step("nft "+what, func() error {
		return c.consistently(func() error {
			damaged = nil
			for _, ch := range l.Chains {
				rules, err := c.rules(l.Table, ch.Name)
				if err != nil {
					return err
				}
				if !l.intact(ch, rules) {
					damaged = append(damaged, ch)
				}
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return damaged, nil
}

// CheckSupport returns nil if the kernel has all that the layout needs, and else ErrUnavailable. A
// layout that does not stand is proposed to the kernel, but nothing is made: the last
// change makes a table that exists by then, so the kernel refuses it, and with it all. The
// error is that of the first change that the kernel refused.
func (c *Conn) CheckSupport(l Layout) error {
	damaged, err := c.Damaged(l)
	if err != nil || len(damaged) == 0 {
		return err
	}
	l.Table.Name += "-status" // one that nobody has, so that all of it is proposed
	var tx Tx
	tx.addTable(l.Table)
	tx.addLayout(l, l.Chains)
	tx.addTable(l.Table)
	err = c.Commit("nft propose table "+l.Table.String(), &tx)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return unavailable(err)
}

// addLayout adds the sets that are not there, and rewrites the chains.
func (t *Tx) addLayout(l Layout, chains []Chain) {
	for _, s := range l.Sets {
		t.EnsureSet(l.Table, s)
	}
	for _, ch := range chains {
		t.addChain(l.Table, ch)
		t.Flush(l.Table, ch.Name)
		for _, r := range ch.Rules {
			t.addRule(l.Table, ch.Name, r, l.Comment())
		}
	}
}

// unavailable makes ErrUnavailable of what a kernel without some module says to a batch
// that makes all that it refers to: ENOENT for chain types and expressions,
// EOPNOTSUPP and EAFNOSUPPORT for families.
func unavailable(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("%w: %w", ErrUnavailable, opaque{err})
	}
	return err
}

// opaque keeps the text of an error but not what it matches: that a module of the
// kernel does not exist is not what a caller means by fs.ErrNotExist.
type opaque struct{ error }

// HasChain is nil if the chain exists, and else fs.ErrNotExist.
func (c *Conn) HasChain(t Table, chain string) error {
	_, err := c.ChainUse(t, chain)
	return err
}

// ChainUse returns the chain with how much there is that needs it. A missing one is
// fs.ErrNotExist.
func (c *Conn) ChainUse(t Table, chain string) (Use, error) {
	what := "get chain " + chain + " of table " + t.String()
	if len(chain) >= unix.NFT_CHAIN_MAXNAMELEN {
		return Use{}, fmt.Errorf("%s: %w: no name is that long", what, fs.ErrNotExist)
	}
	var found []Use
	err := c.step("nft "+what, func() (err error) {
		found, err = c.chains(t, chain)
		return err
	})
	switch {
	case err != nil:
		return Use{}, fmt.Errorf("%s: %w", what, err)
	case len(found) != 1:
		return Use{}, fmt.Errorf("%s: got %d", what, len(found))
	}
	return found[0], nil
}

// A Use is a chain and how much there is that needs it: its rules, and what jumps to
// it.
type Use struct {
	Chain string
	Count int
}

// Chains lists the table's chains whose names have the prefix.
func (c *Conn) Chains(t Table, prefix string) (uses []Use, err error) {
	err = c.step("nft list chains of "+t.String(), func() error {
		return c.consistently(func() error {
			uses, err = c.chains(t, "")
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list chains of table %s: %w", t, err)
	}
	return slices.DeleteFunc(uses, func(u Use) bool { return !strings.HasPrefix(u.Chain, prefix) }), nil
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
