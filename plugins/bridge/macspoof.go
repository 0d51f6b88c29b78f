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

// macspoofchk drops what a container sends under a hardware address that is not its
// own. One rule serves all containers of the node:
//
//	set checked { "veth1" comment "net1/cid1/eth0" }
//	set allowed { "veth1" . 02:00:00:00:00:01 comment "net1/cid1/eth0" }
//	iifname @checked iifname . ether saddr != @allowed drop
//
// and owners leads from an attachment to its elements, for a DEL that finds the veth
// gone.
const (
	checkedSet = "checked"
	allowedSet = "allowed"
	ownersMap  = "owners"
)

// spoofLayout is the table that holds the check. Priority -300 (dstnat of the bridge
// family is -300 too) is where the reference has its own.
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
				nft.In(checkedSet, nft.IifName()),
				nft.NotIn(allowedSet, nft.IifName(), nft.EtherSaddr()),
				nft.Drop(),
			}},
		}},
	}
}

// A macSpoofCheck says whose packets are checked, and where they come in.
type macSpoofCheck struct {
	node  *ns.Handle
	owner types.Attachment
	port  string // the host end of the pair
	mac   types.MAC
	// warn tells a person whose port the check is taken over from; nil: nobody.
	warn func(format string, args ...any)
}

func (s macSpoofCheck) String() string { return "MAC spoof check of " + s.owner.String() }

func (a *attachment) spoofCheck(mac types.MAC) macSpoofCheck {
	return macSpoofCheck{node: a.r.Node, owner: a.r.Attachment(), port: a.host.Name, mac: mac, warn: a.r.Warn}
}

// store is what table bridge plumb has of the owner.
func (s macSpoofCheck) store(c *nft.Conn) *nft.Store {
	return &nft.Store{
		Conn:   c,
		Layout: spoofLayout(),
		Kinds:  []nft.Kind{{Owners: ownersMap, Held: []string{checkedSet}, With: []string{allowedSet}, Refs: spoofRefs}},
		Owner:  s.owner,
		What:   s.String(),
		Warn:   s.warn,
		Ensure: func() error { return c.Ensure(spoofLayout()) },
	}
}

// spoofRefs are the places of a claim whose name is the pair of port and hardware address.
func spoofRefs(pair nft.Key) []nft.Ref {
	if len(pair) < ifNameSize {
		return nil
	}
	return []nft.Ref{{Set: checkedSet, Key: pair[:ifNameSize]}, {Set: allowedSet, Key: pair}}
}

// ifNameSize is how much of a pair is the interface's name (IFNAMSIZ).
const ifNameSize = 16

// checkedPort is a port in what a person reads of its claim.
type checkedPort string

func (p checkedPort) String() string { return "the MAC spoof check of " + string(p) }

// claim is what the check needs.
func (s macSpoofCheck) claim() nft.Claim {
	claim := nft.Claim{
		About:  checkedPort(s.port),
		Owners: ownersMap,
		Listed: nft.Element{Data: nft.Concat(nft.IfNameKey(s.port), nft.MACKey(s.mac))},
	}
	for _, r := range spoofRefs(claim.Listed.Data) {
		claim.Elements = append(claim.Elements, nft.Entry{Set: r.Set, Element: nft.Element{Key: r.Key, Comment: nft.Owner(s.owner)}})
	}
	return claim
}

// addMACSpoofCheck has the check in force when it returns, and pushes its inverse.
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

// openSpoofTable connects to nf_tables, without which there is no check.
func openSpoofTable(node *ns.Handle) (*nft.Conn, error) {
	c, err := nft.Open(node)
	if errors.Is(err, nft.ErrUnavailable) {
		return nil, types.Errorf(types.CodeConfig, "macspoofchk needs nf_tables: load the module, or remove the key: %w", err)
	}
	return c, err
}

// delMACSpoofCheck removes what the attachment has of it, ours and the reference's.
func delMACSpoofCheck(node *ns.Handle, owner types.Attachment) error {
	c, err := nft.Open(node)
	if errors.Is(err, nft.ErrUnavailable) {
		return nil
	}
	if err != nil {
		return err
	}
	what := "nft delete MAC spoof check of " + owner.String()
	return c.Atomically(what, func(tx *nft.Tx) error {
		if _, err := (macSpoofCheck{owner: owner}).store(c).Delete(tx); err != nil {
			return err
		}
		return deleteReferenceCheck(c, tx, referenceSpoofChain(owner))
	})
}

// checkMACSpoofCheck says what of the check is missing. The reference's own check of
// the attachment, from before an upgrade of the node, counts as well.
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

func diffMACSpoofCheck(c *nft.Conn, s macSpoofCheck) error {
	store := s.store(c)
	store.Claims = []nft.Claim{s.claim()}
	damaged, err := c.Damaged(spoofLayout())
	missing := errors.Join(store.Check(), err)
	if len(damaged) > 0 {
		missing = errors.Join(missing, fmt.Errorf("chain %s of table %s is gone or lacks its rule", damaged[0].Name, spoofLayout().Table))
	}
	if missing != nil {
		return fmt.Errorf("%s is missing: %w", s, missing)
	}
	return nil
}

// gcMACSpoofChecks removes what attachments of the network have that are not to be
// kept.
func gcMACSpoofChecks(node *ns.Handle, network string, keep types.Set) error {
	c, err := nft.Open(node)
	if errors.Is(err, nft.ErrUnavailable) {
		return nil
	}
	if err != nil {
		return err
	}
	return c.Atomically("nft delete stale MAC spoof checks of network "+network, func(tx *nft.Tx) error {
		if err := (macSpoofCheck{}).store(c).GC(tx, network, keep); err != nil {
			return err
		}
		return gcReferenceChecks(c, tx, node)
	})
}

// The reference has a jump and two chains an attachment, named by container and
// interface:
//
//	chain PREROUTING { iifname "veth1" jump cni-br-iface-cid1-eth0 }
//	chain cni-br-iface-cid1-eth0 { jump cni-br-iface-cid1-eth0-mac }
//	chain cni-br-iface-cid1-eth0-mac { ether saddr 02:… return; drop }
//
// Nothing tells the network, so a GC, which is of one network, removes those whose
// interface is gone from the node.
func referenceSpoofTable() nft.Table { return nft.Table{Family: nft.Bridge, Name: "nat"} }

const referenceSpoofHook = "PREROUTING"

const referenceSpoofPrefix = "cni-br-iface-"

func referenceSpoofChain(a types.Attachment) string {
	return referenceSpoofPrefix + a.ContainerID + "-" + a.IfName
}

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

// deleteReferenceCheck deletes the jumps to the chain, and the chain and its sister.
func deleteReferenceCheck(c *nft.Conn, tx *nft.Tx, chain string) error {
	table := referenceSpoofTable()
	err := c.HasChain(table, chain)
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
	if err := c.HasChain(table, chain+"-mac"); err == nil {
		tx.DelChain(table, chain+"-mac")
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
