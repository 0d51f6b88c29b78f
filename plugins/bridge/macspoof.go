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
}

func (s macSpoofCheck) String() string { return "MAC spoof check of " + s.owner.String() }

func (a *attachment) spoofCheck(mac types.MAC) macSpoofCheck {
	return macSpoofCheck{node: a.r.Node, owner: a.r.Attachment(), port: a.host.Name, mac: mac}
}

// A spoofEntry is an element and the set it is in.
type spoofEntry struct {
	set string
	nft.Element
}

// entries is all that the check needs.
func (s macSpoofCheck) entries() []spoofEntry {
	comment, port := nft.Owner(s.owner), nft.IfNameKey(s.port)
	pair := nft.Concat(port, nft.MACKey(s.mac))
	return []spoofEntry{
		{checkedSet, nft.Element{Key: port, Comment: comment}},
		{allowedSet, nft.Element{Key: pair, Comment: comment}},
		{ownersMap, nft.Element{Key: nft.OwnerKey(s.owner, 0), Data: pair, Comment: comment}},
	}
}

// addMACSpoofCheck has the check in force when it returns, and pushes its inverse.
func addMACSpoofCheck(u *undo.Stack, s macSpoofCheck) error {
	c, err := openSpoofTable(s.node)
	if err != nil {
		return err
	}
	if err := c.Ensure(spoofLayout()); err != nil {
		return fmt.Errorf("macspoofchk: %w", err)
	}
	what := "nft add " + s.String()
	var tx nft.Tx
	for _, e := range s.entries() {
		tx.AddElement(spoofLayout().Table, e.set, e.Element)
	}
	err = c.Commit(what, &tx)
	if errors.Is(err, fs.ErrExist) { // left by an earlier life of the attachment or of the port's name
		err = c.Atomically(what, func(tx *nft.Tx) error { return replaceSpoofEntries(c, tx, s) })
	}
	if err != nil {
		return err
	}
	u.Push("delete "+s.String(), func() error { return delMACSpoofCheck(s.node, s.owner) })
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

// replaceSpoofEntries puts the elements in the place of all that the owner has, and of
// what others left under the same keys.
func replaceSpoofEntries(c *nft.Conn, tx *nft.Tx, s macSpoofCheck) error {
	if err := deleteSpoofEntries(c, tx, s.owner); err != nil {
		return err
	}
	table := spoofLayout().Table
	for _, e := range s.entries() {
		have, err := c.Element(table, e.set, e.Key)
		if err == nil && have.Comment != e.Comment {
			tx.DelElement(table, e.set, e.Key)
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		tx.AddElement(table, e.set, e.Element)
	}
	return nil
}

// deleteSpoofEntries deletes what owners says that the owner has.
func deleteSpoofEntries(c *nft.Conn, tx *nft.Tx, owner types.Attachment) error {
	table := spoofLayout().Table
	listed, err := c.Element(table, ownersMap, nft.OwnerKey(owner, 0))
	if errors.Is(err, fs.ErrNotExist) || err == nil && listed.Comment != nft.Owner(owner) {
		return nil
	}
	if err != nil {
		return err
	}
	tx.DelElement(table, ownersMap, listed.Key)
	for set, key := range map[string]nft.Key{checkedSet: listed.Data[:ifNameSize], allowedSet: listed.Data} {
		e, err := c.Element(table, set, key)
		if err == nil && e.Comment == listed.Comment {
			tx.DelElement(table, set, key)
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// ifNameSize is how much of a pair is the interface's name (IFNAMSIZ).
const ifNameSize = 16

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
		if err := deleteSpoofEntries(c, tx, owner); err != nil {
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
	table := spoofLayout().Table
	for _, want := range s.entries() {
		have, err := c.Element(table, want.set, want.Key)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%s is missing: no element for %s in set %s of table %s", s, s.port, want.set, table)
		case err != nil:
			return err
		case have != want.Element:
			return fmt.Errorf("%s is missing: the element for %s in set %s of table %s belongs to %q", s, s.port, want.set, table, have.Comment)
		}
	}
	damaged, err := c.Damaged(spoofLayout())
	if err == nil && len(damaged) > 0 {
		return fmt.Errorf("%s is missing: chain %s of table %s is gone or lacks its rule", s, damaged[0].Name, table)
	}
	return err
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
	kept := map[string]bool{}
	for a := range keep {
		kept[nft.Owner(a)] = true
	}
	return c.Atomically("nft delete stale MAC spoof checks of network "+network, func(tx *nft.Tx) error {
		for _, set := range spoofLayout().Sets {
			elements, err := c.Elements(spoofLayout().Table, set.Name)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			for _, e := range elements {
				if strings.HasPrefix(e.Comment, nft.NetworkPrefix(network)) && !kept[e.Comment] {
					tx.DelElement(spoofLayout().Table, set.Name, e.Key)
				}
			}
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
