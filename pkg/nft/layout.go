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
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/sys/unix"
)

// A Family is the address family of a table, by its number in the kernel.
type Family byte

// The families in use.
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

// Version returns the version of the IP protocol, "4" or "6".
func (f Family) Version() string {
	if f == IPv6 {
		return "6"
	}
	return "4"
}

// A Table names a table.
type Table struct {
	Family Family
	Name   string
}

func (t Table) String() string { return t.Family.String() + " " + t.Name }

// A Layout describes a table without its elements.
type Layout struct {
	Table Table
	// Version is in the comment of each rule. Ensure rewrites a chain with rules of an older
	// version, and does not change a chain with rules of a newer version.
	Version int
	Sets    []Set
	Chains  []Chain // a chain may jump only to chains before it in this list
	// InitialChains are chains that Ensure creates together with the table. If the table already
	// exists, Ensure does not check these chains.
	InitialChains []Chain
}

// WithChains returns the layout with more chains.
func (l Layout) WithChains(chains ...Chain) Layout {
	l.Chains = append(l.Chains[:len(l.Chains):len(l.Chains)], chains...)
	return l
}

// A Set describes a set or, if Data is not empty, a map. If Key or Data lists several types, the keys
// or values are concatenations of these types.
type Set struct {
	Name string
	Key  []Type
	Data []Type
}

// DeleteCommand returns the command for sh that deletes an element of the set.
func (s Set) DeleteCommand(t Table, key Key) string {
	return types.Command("nft", "delete", "element", t.Family.String(), t.Name, s.Name, "{ "+key.Text(s.Key)+" }")
}

// KeySize returns the size of the keys in bytes. Each part of a concatenation starts at a multiple of
// four bytes.
func (s Set) KeySize() int { return int(libraryType(s.Key).Bytes) }

// A Type is the type of a key or a value, by its number in nft (datatype.h).
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

// libraryTypes maps each Type to its counterpart in package nftables (github.com/google/nftables).
var libraryTypes = map[Type]nftables.SetDatatype{
	Verdict:     nftables.TypeVerdict,
	IPv4Addr:    nftables.TypeIPAddr,
	IPv6Addr:    nftables.TypeIP6Addr,
	EtherAddr:   nftables.TypeEtherAddr,
	InetProto:   nftables.TypeInetProto,
	InetService: nftables.TypeInetService,
	IfName:      nftables.TypeIFName,
}

// size returns the size of a value in bytes.
func (t Type) size() uint32 { return libraryTypes[t].Bytes }

// libraryType returns the nftables.SetDatatype for one type, or for the concatenation of several types.
func libraryType(types []Type) nftables.SetDatatype {
	if len(types) == 1 {
		return libraryTypes[types[0]]
	}
	parts := make([]nftables.SetDatatype, len(types))
	for i, t := range types {
		parts[i] = libraryTypes[t]
	}
	return nftables.MustConcatSetType(parts...)
}

// library converts s for package nftables.
func (s Set) library(t Table) *nftables.Set {
	l := &nftables.Set{Table: t.library(), Name: s.Name, IsMap: len(s.Data) > 0, KeyType: libraryType(s.Key), DataType: libraryType(s.Data)}
	if len(s.Key) == 1 && s.Key[0] == IfName {
		l.KeyByteOrder = binaryutil.NativeEndian // so that nft prints the keys as text
	}
	return l
}

// A Chain is a list of rules. With a Hook it is a base chain. Without a Hook, the chain sees only the
// packets for which a rule or an element jumps to it.
type Chain struct {
	Name  string
	Hook  Hook
	Rules []Rule
}

// A Hook determines which packets reach a base chain. The policy of the chain is accept.
type Hook struct {
	Type     HookType
	At       HookPoint
	Priority int32
}

// A HookType is the type of a base chain.
type HookType string

// The types of base chains.
const (
	NAT    HookType = "nat"
	Filter HookType = "filter"
)

// A HookPoint is a hook of netfilter.
type HookPoint uint32

// The hooks. Their numbers are the same in the families inet and bridge.
const (
	Prerouting  HookPoint = unix.NF_INET_PRE_ROUTING
	Input       HookPoint = unix.NF_INET_LOCAL_IN
	Forward     HookPoint = unix.NF_INET_FORWARD
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

// Comment returns the comment of the layout's rules.
func (l Layout) Comment() string { return versionPrefix + strconv.Itoa(l.Version) }

// isIntact reports whether the rules of ch include all rules of this version of the layout, or a rule of a
// newer version. It ignores rules of older versions and of other programs.
func (l Layout) isIntact(ch Chain, rules []ListedRule) bool {
	count := 0
	for _, r := range rules {
		text, own := strings.CutPrefix(r.Comment, versionPrefix)
		version, err := strconv.Atoi(text)
		switch {
		case !own || err != nil:
		case version > l.Version:
			return true
		case version == l.Version:
			count++
		}
	}
	return count == len(ch.Rules)
}

// Ensure creates the table in one transaction or, if the table exists, adds the sets that are
// missing and rewrites the chains that are missing, incomplete or of an older version. It keeps all
// elements. If all chains are complete, Ensure does not look for missing sets, because the kernel does
// not delete a set that a rule uses. Other processes may call Ensure at the same time.
//
// The error is ErrUnavailable if the kernel lacks a feature that the layout needs. If a set of the same name
// is of other types, the error tells how to delete the table.
//
// The cost depends neither on the number of elements, nor on the number of chains that are not in
// the layout.
func (c *Conn) Ensure(l Layout) error {
	const attempts = 20
	var err error
	for range attempts {
		if err = c.tryEnsure(l); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return AddAdvice(l.Table, err)
}

// tryEnsure tries once to create what is missing. The error matches fs.ErrNotExist if another process
// deleted the table or a chain meanwhile.
func (c *Conn) tryEnsure(l Layout) error {
	damaged, exists, err := c.damagedChains(l)
	if err != nil || len(damaged) == 0 {
		return err
	}
	var tx Tx
	if !exists { // if the table exists and is deleted before the commit, the kernel must refuse to create only a part of it
		tx.ensureTable(l.Table)
	}
	tx.addLayout(l, damaged)
	return c.asUnavailable(l, exists, c.Commit("nft create table "+l.Table.String(), &tx))
}

// AddAdvice adds advice for the operator to an error of the kernel.
func AddAdvice(t Table, err error) error {
	switch {
	case errors.As(err, new(unusableError)):
		return types.Coded(types.CodeConfig, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w; grant CAP_NET_ADMIN in the host's network namespace", err)
	case errors.Is(err, fs.ErrExist), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return types.Errorf(types.CodeConfig, "table %s differs from the table that plumb creates: %w; if another program needs it, rename it there; "+
			"otherwise run nft delete table %[1]s", t, err)
	}
	return err
}

// An unusableError describes why plumb cannot use an existing table, and what to do.
type unusableError string

func (e unusableError) Error() string { return string(e) }

// checkTable returns an unusableError if plumb cannot use the table. If the table does not exist, the
// error matches fs.ErrNotExist.
func (c *Conn) checkTable(t Table) error {
	var table *nftables.Table
	err := c.step("nft get table "+t.String(), func() (err error) {
		table, err = c.nft.ListTableOfFamily(t.Name, nftables.TableFamily(t.Family))
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("get table %s: %w", t, err)
	case table.Flags&nftables.TableFlagDormant != 0:
		return unusableError(fmt.Sprintf("table %s is dormant: its rules see no packets; run nft add table %[1]s to activate it, or nft delete table %[1]s", t))
	case table.Flags&nftables.TableFlagOwner != 0:
		return unusableError(fmt.Sprintf("table %s belongs exclusively to another program (flag owner, netlink port %d, often its process ID); "+
			"end that program, or configure another table in it", t, table.Owner))
	}
	return nil
}

// CheckChains returns an error that lists the DamagedChains of the layout.
func (c *Conn) CheckChains(l Layout) error {
	damaged, err := c.DamagedChains(l)
	errs := []error{err}
	for _, ch := range damaged {
		p := types.Problem{Object: "chain " + ch.Name, Kind: types.ProblemMissing, Table: l.Table.String()}
		errs = append(errs, p.Errorf("chain %s of table %s is missing or lacks rules", ch.Name, l.Table))
	}
	return errors.Join(errs...)
}

// DamagedChains returns the chains of the layout, without InitialChains, that are missing, incomplete
// or of an older version. It returns an error if the table is dormant, or belongs exclusively to
// another program.
func (c *Conn) DamagedChains(l Layout) ([]Chain, error) {
	l.InitialChains = nil
	damaged, _, err := c.damagedChains(l)
	return damaged, err
}

// damagedChains returns the chains for DamagedChains, and reports whether the table exists. If it does not
// exist, all chains are damaged, including InitialChains.
func (c *Conn) damagedChains(l Layout) (damaged []Chain, exists bool, err error) {
	err = c.checkTable(l.Table)
	if errors.Is(err, fs.ErrNotExist) {
		return slices.Concat(l.InitialChains, l.Chains), false, nil
	}
	if err != nil {
		return nil, false, err
	}
	damaged, err = list(c, "list rules of "+l.Table.String(), func() (damaged []Chain, err error) {
		for _, ch := range l.Chains {
			rules, err := c.chainRules(l.Table, ch.Name)
			if err != nil {
				return nil, err
			}
			if !l.isIntact(ch, rules) {
				damaged = append(damaged, ch)
			}
		}
		return damaged, nil
	})
	return damaged, true, err
}

// CheckSupport returns nil if Ensure would succeed. The error is ErrUnavailable if the kernel lacks a
// feature that the layout needs. Its code is types.CodeConfig if the table differs from the layout.
//
// CheckSupport changes nothing. If the table is incomplete, it sends a transaction that creates the missing
// parts. The last change of that transaction creates the table a second time, which the kernel always
// refuses, together with the whole transaction. If the kernel refuses no other change, Ensure would succeed.
func (c *Conn) CheckSupport(l Layout) error {
	damaged, exists, err := c.damagedChains(l)
	if err != nil || len(damaged) == 0 {
		return err
	}
	var tx Tx
	tx.ensureTable(l.Table)
	tx.addLayout(l, damaged)
	tx.createTable(l.Table)
	err = c.Commit("nft propose table "+l.Table.String(), &tx)
	var refused *refusedError
	if errors.As(err, &refused) && refused.index == len(tx.changes)-1 {
		return nil
	}
	return AddAdvice(l.Table, c.asUnavailable(l, exists, err))
}

// addLayout adds the missing sets of the layout, and rewrites the chains.
func (t *Tx) addLayout(l Layout, chains []Chain) {
	for _, s := range l.Sets {
		t.EnsureSet(l.Table, s)
	}
	for _, ch := range chains {
		t.ensureChain(l.Table, ch)
		t.flushChain(l.Table, ch.Name)
		for _, r := range ch.Rules {
			t.addRule(l.Table, ch.Name, r, l.Comment())
		}
	}
}

// asUnavailable returns an ErrUnavailable if err is an error of a kernel that lacks a module. Such a
// kernel returns ENOENT for a chain type or an expression, and EOPNOTSUPP or EAFNOSUPPORT for a family.
// asUnavailable returns any other error unchanged.
//
// If the table exists, these error numbers can also mean that another process deleted the table or a chain,
// or that the table differs from the layout. Therefore asUnavailable proposes the layout under another name.
func (c *Conn) asUnavailable(l Layout, exists bool, err error) error {
	unavailable := errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT)
	if unavailable && exists {
		l.Table.Name += "-support"
		unavailable = errors.Is(c.CheckSupport(l), ErrUnavailable)
	}
	if unavailable {
		return fmt.Errorf("%w: %w", ErrUnavailable, textOnly{err})
	}
	return err
}

// A textOnly contains an error, but hides it from errors.Is and errors.As. For a caller, fs.ErrNotExist
// means a missing table, chain or element, and not a missing kernel module.
type textOnly struct{ error }
