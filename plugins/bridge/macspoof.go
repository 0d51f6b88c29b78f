package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
)

// With macspoofchk the node drops the frames of a container whose source MAC is not the
// container's. One rule is for all containers of the node:
//
//	set checked { "veth1" comment "net1/cid1/eth0" }
//	set allowed { "veth1" . 02:00:00:00:00:01 comment "net1/cid1/eth0" }
//	iifname @checked iifname . ether saddr != @allowed drop
//
// The map owners has the port and the MAC of each attachment. DEL needs it, because it has
// already deleted the port, and may have no prevResult.
const (
	checkedSet = "checked"
	allowedSet = "allowed"
	ownersMap  = "owners"
)

// spoofLayout returns the layout of the table of the check. The rules of the reference
// plugin have the priority -300, too (dstnat in the bridge family).
func spoofLayout() nft.Layout {
	return nft.Layout{
		Table:   nft.Table{Family: nft.Bridge, Name: "plumb"},
		Version: 1,
		Sets: []nft.Set{
			{Name: checkedSet, Key: []nft.Type{nft.IfName}},
			{Name: allowedSet, Key: []nft.Type{nft.IfName, nft.EtherAddr}},
			{Name: ownersMap, Key: []nft.Type{nft.IfName}, Data: []nft.Type{nft.IfName, nft.EtherAddr}},
		},
		Chains: []nft.Chain{{
			Name: "prerouting",
			Hook: nft.Hook{Type: nft.Filter, At: nft.Prerouting, Priority: -300},
			Rules: []nft.Rule{{
				nft.InSet(checkedSet, nft.IifName()),
				nft.NotInSet(allowedSet, nft.IifName(), nft.EtherSaddr()),
				nft.Drop(),
			}},
		}},
	}
}

// A macSpoofCheck is the check of one attachment.
type macSpoofCheck struct {
	node  *ns.Handle
	owner types.Attachment
	port  string // the host end of the pair
	mac   types.MAC
	// warn gets a warning if the check of the port belonged to another attachment; nil: no
	// warning.
	warn func(format string, args ...any)
}

func (s macSpoofCheck) String() string { return "MAC spoof check of " + s.owner.String() }

// spoofCheck returns the check of this ADD.
func (a *attachment) spoofCheck() macSpoofCheck {
	return macSpoofCheck{node: a.r.Node, owner: a.r.Attachment(), port: a.host.Name, mac: a.eth.MAC, warn: a.r.Warn}
}

// store returns the store of the owner's elements in table bridge plumb.
func (s macSpoofCheck) store(c *nft.Conn) *nft.Store {
	return &nft.Store{
		Conn:        c,
		Layout:      spoofLayout(),
		Kinds:       []nft.ClaimKind{{OwnerMap: ownersMap, PrimarySets: []string{checkedSet}, OtherSets: []string{allowedSet}, ElementRefs: spoofRefs}},
		Owner:       s.owner,
		Description: s.String(),
		Warn:        s.warn,
		Ensure:      func() error { return c.Ensure(spoofLayout()) },
	}
}

// spoofRefs returns the set elements of a check by its value in the map owners, which is the
// pair of port and MAC.
func spoofRefs(pair nft.Key) []nft.ElementRef {
	if len(pair) < ifNameSize {
		return nil
	}
	return []nft.ElementRef{{Set: checkedSet, Key: pair[:ifNameSize]}, {Set: allowedSet, Key: pair}}
}

// ifNameSize is the size of an interface name in a key, in bytes (IFNAMSIZ).
const ifNameSize = 16

// A checkedPort is the name of a port. Its String is for error texts and warnings.
type checkedPort string

func (p checkedPort) String() string { return "the MAC spoof check of " + string(p) }

// claim returns the elements that the check needs.
func (s macSpoofCheck) claim() nft.Claim {
	claim := nft.Claim{
		Description: checkedPort(s.port),
		OwnerMap:    ownersMap,
		OwnerEntry:  nft.Element{Data: nft.Concat(nft.IfNameKey(s.port), nft.MACKey(s.mac))},
	}
	for _, r := range spoofRefs(claim.OwnerEntry.Data) {
		claim.Elements = append(claim.Elements, nft.SetElement{Set: r.Set, Element: nft.Element{Key: r.Key, Comment: nft.Owner(s.owner)}})
	}
	return claim
}

// addMACSpoofCheck adds the check and pushes its removal. The check works when it returns.
func addMACSpoofCheck(u *undo.Stack, s macSpoofCheck) error {
	c, err := openSpoofTable(s.node)
	if err != nil {
		return err
	}
	store := s.store(c)
	store.Claims = []nft.Claim{s.claim()}
	err = store.Add(u, func() error { return delMACSpoofCheck(s.node, s.owner) })
	if err != nil {
		return fmt.Errorf("macspoofchk: %w", err)
	}
	return nil
}

// openSpoofTable connects to nf_tables. A kernel without nf_tables is an error.
func openSpoofTable(node *ns.Handle) (*nft.Conn, error) {
	c, err := nft.Open(node)
	if errors.Is(err, nft.ErrUnavailable) {
		return nil, types.Errorf(types.CodeConfig, "macspoofchk needs nf_tables: load the kernel module nf_tables, or remove the key macspoofchk: %w", err)
	}
	return c, err
}

// delMACSpoofCheck deletes the check of the attachment, also one that the reference plugin
// made.
func delMACSpoofCheck(node *ns.Handle, owner types.Attachment) error {
	return deleteSpoofRules(node, "MAC spoof check of "+owner.String(), func(c *nft.Conn, tx *nft.Tx) error {
		if _, err := (macSpoofCheck{owner: owner}).store(c).Delete(tx); err != nil {
			return err
		}
		return deleteReferenceCheck(c, tx, referenceSpoofChain(owner))
	})
}

// deleteSpoofRules runs f in one transaction, for what f deletes. It does nothing if the kernel
// has no nf_tables.
func deleteSpoofRules(node *ns.Handle, what string, f func(c *nft.Conn, tx *nft.Tx) error) error {
	c, err := nft.Open(node)
	if errors.Is(err, nft.ErrUnavailable) {
		return nil
	}
	if err != nil {
		return err
	}
	return c.Atomically("nft delete "+what, func(tx *nft.Tx) error { return f(c, tx) })
}

// checkMACSpoofCheck returns an error that names what is missing of the check. A check that
// the reference plugin made for the attachment is sufficient, too: the node may have been
// upgraded since.
func checkMACSpoofCheck(s macSpoofCheck) error {
	c, err := openSpoofTable(s.node)
	if err != nil {
		return err
	}
	missing := diffMACSpoofCheck(c, s)
	if missing == nil {
		return nil
	}
	rules, err := c.Rules(referenceSpoofTable(), referenceSpoofHook)
	for _, r := range rules {
		if r.Jump == referenceSpoofChain(s.owner) {
			return nil
		}
	}
	return errors.Join(missing, err)
}

// diffMACSpoofCheck returns an error that names what is missing of plumb's own check.
func diffMACSpoofCheck(c *nft.Conn, s macSpoofCheck) error {
	store := s.store(c)
	store.Claims = []nft.Claim{s.claim()}
	if missing := errors.Join(store.Check(), c.CheckChains(spoofLayout())); missing != nil {
		return fmt.Errorf("%s is missing: %w", s, missing)
	}
	return nil
}

// gcMACSpoofChecks deletes the checks of the network whose attachment is not in keep.
func gcMACSpoofChecks(node *ns.Handle, network string, keep types.Set) error {
	return deleteSpoofRules(node, "stale MAC spoof checks of network "+network, func(c *nft.Conn, tx *nft.Tx) error {
		if err := (macSpoofCheck{}).store(c).GC(tx, network, keep); err != nil {
			return err
		}
		return gcReferenceChecks(c, tx, node)
	})
}

// The reference plugin has one jump and two chains per attachment. Their names contain the
// container ID and the interface name:
//
//	chain PREROUTING { iifname "veth1" jump cni-br-iface-cid1-eth0 }
//	chain cni-br-iface-cid1-eth0 { jump cni-br-iface-cid1-eth0-mac }
//	chain cni-br-iface-cid1-eth0-mac { ether saddr 02:… return; drop }
//
// They do not contain the network, to which a GC is limited. So GC deletes those whose
// interface no longer exists on the node.
func referenceSpoofTable() nft.Table { return nft.Table{Family: nft.Bridge, Name: "nat"} }

const referenceSpoofHook = "PREROUTING"

const referenceSpoofPrefix = "cni-br-iface-"

func referenceSpoofChain(a types.Attachment) string {
	return referenceSpoofPrefix + a.ContainerID + "-" + a.IfName
}

// gcReferenceChecks deletes the checks of the reference plugin whose port does not exist.
func gcReferenceChecks(c *nft.Conn, tx *nft.Tx, node *ns.Handle) error {
	rules, err := c.Rules(referenceSpoofTable(), referenceSpoofHook)
	if err != nil || len(rules) == 0 {
		return err
	}
	links, err := nl.Open(node)
	if err != nil {
		return err
	}
	for _, r := range rules {
		if !strings.HasPrefix(r.Jump, referenceSpoofPrefix) || r.Iif == "" {
			continue
		}
		_, err := links.Link(r.Iif)
		if errors.Is(err, fs.ErrNotExist) {
			err = deleteReferenceCheck(c, tx, r.Jump)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// deleteReferenceCheck deletes the jumps to the chain, the chain, and the chain that it
// jumps to.
func deleteReferenceCheck(c *nft.Conn, tx *nft.Tx, chain string) error {
	table := referenceSpoofTable()
	err := c.CheckChain(table, chain)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	rules, err := c.Rules(table, referenceSpoofHook)
	if err != nil {
		return err
	}
	for _, r := range rules {
		if r.Jump == chain {
			tx.DelRule(table, r)
		}
	}
	tx.DelChain(table, chain)
	if err := c.CheckChain(table, chain+"-mac"); err == nil {
		tx.DelChain(table, chain+"-mac")
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
