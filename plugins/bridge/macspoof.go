package main

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/claims"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
)

// spoofLayout returns the table with the rule for macspoofchk. The host drops a container's frames
// whose source MAC is not the container's. One rule serves all containers on the host:
//
//	set checked { "veth1" comment "net1/cid1/eth0" }
//	set allowed { "veth1" . 02:00:00:00:00:01 comment "net1/cid1/eth0" }
//	iifname @checked iifname . ether saddr != @allowed drop
//
// The priority -300 (dstnat in the bridge family) is the same as in the reference plugin.
func spoofLayout() nft.Layout {
	return tables.Bridge(tables.SpoofCheckSets()...).WithChains(nft.Chain{
		Name: "prerouting",
		Hook: nft.Hook{Type: nft.Filter, At: nft.Prerouting, Priority: -300},
		Rules: []nft.Rule{{
			nft.InSet(tables.CheckedPorts, nft.IifName()),
			nft.NotInSet(tables.AllowedMACs, nft.IifName(), nft.EtherSaddr()),
			nft.Drop(),
		}},
	})
}

// A macSpoofCheck is the check of one attachment.
type macSpoofCheck struct {
	host  *ns.Handle
	owner types.Attachment
	port  string // the host end of the pair; it is empty if it is not known
	mac   types.MAC
	// onlyFree limits addMACSpoofCheck to a port whose check does not belong to another attachment.
	onlyFree bool
	// warn is called if the port's check belonged to another attachment. It may be nil.
	warn func(format string, args ...any)
}

func (s macSpoofCheck) String() string { return "MAC spoof check of " + s.owner.String() }

func (a *attachment) spoofCheck(mac types.MAC) macSpoofCheck {
	return macSpoofCheck{
		host: a.r.HostNS, owner: a.r.Attachment(), port: a.hostEnd.Name, mac: mac, onlyFree: a.r.IsRepair(), warn: a.r.Warn,
	}
}

// formerSpoofCheck returns the check of the ADD whose result is prev. The port is empty if prev does not contain the
// port and the MAC of the check.
func formerSpoofCheck(r *skel.Request, prev *types.Result) macSpoofCheck {
	s := macSpoofCheck{host: r.HostNS, owner: r.Attachment()}
	port, found := hostInterface(prev, bridgeName(r))
	isBridge := func(in types.Interface) bool { return in.Sandbox == "" && in.Name == bridgeName(r) }
	if !found || !slices.ContainsFunc(prev.Interfaces, isBridge) { // the configuration may have changed
		return s
	}
	index, found := prev.ContainerInterface(r.IfName)
	if !found {
		return s
	}
	mac, err := types.UnicastMAC(prev.Interfaces[index].MAC)
	if err == nil {
		s.port, s.mac = port, mac
	}
	return s
}

// store returns the store of the owner's elements in table bridge plumb.
func (s macSpoofCheck) store(c *nft.Conn) *claims.Store {
	store := &claims.Store{
		Conn:        c,
		Layout:      spoofLayout(),
		Groups:      []claims.Group{{tables.CheckedPorts, tables.AllowedMACs}},
		Owner:       s.owner,
		Description: s.String(),
		OnlyFree:    s.onlyFree,
		Warn:        s.warn,
	}
	if s.port != "" {
		key := nft.IfNameKey(s.port)
		store.Claims = []claims.Claim{{Description: "the MAC spoof check of " + s.port, Elements: []nft.SetElement{
			{Set: tables.CheckedPorts, Element: nft.Element{Key: key}},
			{Set: tables.AllowedMACs, Element: nft.Element{Key: nft.Concat(key, nft.MACKey(s.mac))}},
		}}}
	}
	return store
}

// addMACSpoofCheck adds the check and pushes its removal to u. The check is in effect when
// addMACSpoofCheck returns.
func addMACSpoofCheck(u *undo.Stack, s macSpoofCheck) error {
	c, err := openSpoofTable(s)
	if err != nil {
		return err
	}
	if err := s.store(c).Add(u); err != nil {
		return fmt.Errorf("macspoofchk: %w", err)
	}
	return nil
}

// openSpoofTable connects to nftables. It returns an error if the kernel lacks nftables.
func openSpoofTable(s macSpoofCheck) (*nft.Conn, error) {
	c, err := nft.Open(s.host)
	if errors.Is(err, nft.ErrUnavailable) {
		return nil, types.Errorf(types.CodeConfig, "macspoofchk needs nf_tables: %w; load the kernel module nf_tables, or remove the key macspoofchk", err)
	}
	return c, err
}

// delete adds to tx the deletion of the check and of the reference plugin's check for the attachment. Without a
// port, it finds the check by its owner.
func (s macSpoofCheck) delete(c *nft.Conn, tx *nft.Tx) error {
	if _, err := s.store(c).Delete(tx); err != nil {
		return err
	}
	return deleteReferenceCheck(c, tx, referenceSpoofChain(s.owner))
}

// checkMACSpoofCheck returns an error that names the missing parts of the check. It also accepts
// a check that the reference plugin created for the attachment, because plumb may have replaced
// the reference plugin since.
func checkMACSpoofCheck(s macSpoofCheck) error {
	c, err := openSpoofTable(s)
	if err != nil {
		return err
	}
	checkErr := errors.Join(s.store(c).Check(), c.CheckChains(spoofLayout()))
	if checkErr == nil {
		return nil
	}
	rules, err := c.Rules(referenceSpoofTable(), referenceSpoofHook)
	for _, r := range rules {
		if r.Jump == referenceSpoofChain(s.owner) {
			return nil
		}
	}
	return errors.Join(fmt.Errorf("%s is missing: %w", s, checkErr), err)
}

// gcMACSpoofChecks returns a change that deletes the checks of the network's attachments that are not in keep.
func gcMACSpoofChecks(host *nl.Conn, network string, keep types.Set) nft.Change {
	return func(c *nft.Conn, tx *nft.Tx) error {
		if _, err := (macSpoofCheck{}).store(c).GC(tx, network, keep); err != nil {
			return err
		}
		return gcReferenceChecks(c, tx, host)
	}
}

// The reference plugin creates one jump and two chains for each attachment. Their names contain
// the container ID and the interface name:
//
//	chain PREROUTING { iifname "veth1" jump cni-br-iface-cid1-eth0 }
//	chain cni-br-iface-cid1-eth0 { jump cni-br-iface-cid1-eth0-mac }
//	chain cni-br-iface-cid1-eth0-mac { ether saddr 02:… return; drop }
//
// The names do not contain the network, although a GC is limited to one network. Therefore GC
// deletes only the chains whose interface no longer exists on the host.
func referenceSpoofTable() nft.Table { return nft.Table{Family: nft.Bridge, Name: "nat"} }

const referenceSpoofHook = "PREROUTING"

const referenceSpoofPrefix = "cni-br-iface-"

func referenceSpoofChain(a types.Attachment) string {
	return referenceSpoofPrefix + a.ContainerID + "-" + a.IfName
}

// gcReferenceChecks deletes the reference plugin's checks whose port does not exist.
func gcReferenceChecks(c *nft.Conn, tx *nft.Tx, links *nl.Conn) error {
	rules, err := c.Rules(referenceSpoofTable(), referenceSpoofHook)
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

// deleteReferenceCheck deletes the chain, the jumps to it, and the chain to which it jumps.
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
