package main

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/claims"
	xt "github.com/plumb-cni/plumb/v2/pkg/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
)

// A chain can drop packets even if all other chains accept them. Therefore the ingress policies are in
// nftables with every backend. In table inet plumb, the set isolated_bridges contains the
// bridges with a policy, and the set same_bridge contains the bridges with the policy same-bridge:
//
//	set isolated_bridges { "cni0" comment "net1/" }
//	set same_bridge      { "cni0" . "cni0" comment "net1/" }
//	set published        { "cni0" comment "net1/" }
//
// The policy isolated also needs table bridge plumb, because most frames between two containers on one
// bridge do not reach the inet family. A set in that table contains the host ends of the containers:
//
//	set isolated_ports { "veth1" comment "net1/cid1/eth0" }
//
// Each element of isolated_ports belongs to one attachment. The comment of any other element names only
// the network of the last ADD on the bridge. It is policyPrefix for a bridge of the reference plugin.
const isolationName = "isolation"

// isolationLayout returns the part of table inet plumb that this plugin creates.
func isolationLayout() nft.Layout {
	return tables.Inet(tables.FirewallSets()...).WithChains(nft.Chain{
		Name: isolationName,
		Rules: []nft.Rule{
			{nft.DestinationTranslated(), nft.Reply(), nft.Return()},
			{nft.DestinationTranslated(), nft.InSet(tables.Published, nft.OifName()), nft.Return()},
			{nft.Drop()},
		},
	}, nft.Chain{
		Name: "forward",
		Hook: nft.Hook{Type: nft.Filter, At: nft.Forward, Priority: -1}, // before the rules of iptables
		Rules: []nft.Rule{{
			nft.InSet(tables.IsolatedBridges, nft.IifName()),
			nft.InSet(tables.IsolatedBridges, nft.OifName()),
			nft.NotInSet(tables.SameBridge, nft.IifName(), nft.OifName()),
			nft.Jump(isolationName),
		}},
	})
}

// bridgeSets returns the sets of isolationLayout whose keys start with the name of a bridge.
func bridgeSets() []string {
	return []string{tables.IsolatedBridges, tables.SameBridge, tables.Published}
}

// isolatedPortsLayout returns the part of table bridge plumb that this plugin creates. The plugin bridge adds
// its own chains to that table.
func isolatedPortsLayout() nft.Layout {
	return tables.Bridge(tables.IsolatedPortSets()...).WithChains(nft.Chain{
		Name:  "forward",
		Hook:  nft.Hook{Type: nft.Filter, At: nft.Forward},
		Rules: []nft.Rule{{nft.InSet(tables.IsolatedPorts, nft.IifName()), nft.InSet(tables.IsolatedPorts, nft.OifName()), nft.Drop()}},
	})
}

// elements returns the elements that the configured policy needs.
func (f *firewall) elements() []nft.SetElement {
	comment := nft.NetworkPrefix(f.r.Conf.Name)
	all := policyElements(f.device, f.conf.policy, comment)
	if f.conf.published && len(all) > 0 {
		all = append(all, nft.SetElement{Set: tables.Published, Element: nft.Element{Key: nft.IfNameKey(f.device), Comment: comment}})
	}
	return all
}

// policyElements returns the elements that isolate a bridge by the policy.
func policyElements(bridge, policy, comment string) []nft.SetElement {
	name := nft.IfNameKey(bridge)
	all := []nft.SetElement{
		{Set: tables.IsolatedBridges, Element: nft.Element{Key: name, Comment: comment}},
		{Set: tables.SameBridge, Element: nft.Element{Key: nft.Concat(name, name), Comment: comment}},
	}
	return all[:map[string]int{isolated: 1, sameBridge: 2}[policy]]
}

// setPolicy adds the elements of the bridge's policy and of the other bridges in rules, and deletes the elements of the
// bridge's former policy.
//
// REPAIR adds the elements only if the bridge has no policy, or if it lacks the element in same_bridge, because the last
// ADD may have set another policy.
func (f *firewall) setPolicy(rules []xt.Rule) error {
	if f.c == nil {
		return nil
	}
	return f.c.Atomically("nft set ingress policy of "+f.device, func(tx *nft.Tx) error {
		found, err := f.elementsIn(bridgeSets()...)
		if err != nil {
			return err
		}
		others, err := f.otherBridges(rules, found)
		want := f.elements()
		if err == nil && len(want) > 0 {
			err = f.c.Ensure(isolationLayout())
		}
		if f.r.IsRepair() {
			for _, e := range found {
				if e.Set == tables.IsolatedBridges && bridgeOf(e.Key) == f.device {
					var lostErr error
					want, lostErr = f.lostSameBridge(e)
					err = errors.Join(err, lostErr)
				}
			}
			return errors.Join(err, replaceElements(tx, found, append(want, others...), func(nft.Element) (bool, error) { return false, nil }))
		}
		if err == nil && f.conf.policy != isolated {
			_, err = f.isolatedPorts().GC(tx, f.r.Conf.Name, nil) // delete the elements of all containers of the network
		}
		return errors.Join(err, replaceElements(tx, found, append(want, others...), func(e nft.Element) (bool, error) {
			if name := bridgeOf(e.Key); name != f.device {
				return f.isGone(name)
			}
			return true, nil
		}))
	})
}

// lostSameBridge returns the element of the bridge in same_bridge, unless the last ADD on the bridge had the policy
// isolated, or may belong to another network. policy is the bridge's element in isolated_bridges. An ADD with the policy
// isolated adds elements of its network to isolated_ports, and an ADD with another policy deletes them.
func (f *firewall) lostSameBridge(policy nft.SetElement) ([]nft.SetElement, error) {
	if f.bridge.Kind != "bridge" || policy.Comment != nft.NetworkPrefix(f.r.Conf.Name) {
		return nil, nil
	}
	ports, err := f.c.Elements(isolatedPortsLayout().Table, tables.IsolatedPorts)
	if types.IgnoreNotExist(err) != nil || slices.ContainsFunc(ports, func(e nft.Element) bool { return strings.HasPrefix(e.Comment, policy.Comment) }) {
		return nil, types.IgnoreNotExist(err)
	}
	return slices.DeleteFunc(f.elements(), func(e nft.SetElement) bool { return e.Set != tables.SameBridge }), nil
}

// elementsIn returns the elements of the sets and maps of isolationLayout that exist.
func (f *firewall) elementsIn(sets ...string) (all []nft.SetElement, err error) {
	for _, set := range sets {
		elements, err := f.c.Elements(isolationLayout().Table, set)
		if types.IgnoreNotExist(err) != nil {
			return nil, err
		}
		for _, e := range elements {
			all = append(all, nft.SetElement{Set: set, Element: e})
		}
	}
	return all, nil
}

// replaceElements adds to tx the deletion of the found elements for which match returns true and that
// are not in want, and the addition of the missing elements.
func replaceElements(tx *nft.Tx, found, want []nft.SetElement, match func(nft.Element) (bool, error)) error {
	table := isolationLayout().Table
	for _, e := range found {
		if slices.Contains(want, e) {
			continue
		}
		del, err := match(e.Element)
		if err != nil {
			return err
		}
		if del {
			tx.DelElement(table, e.Set, e.Key)
		}
	}
	for _, e := range want {
		if !slices.Contains(found, e) {
			tx.AddElement(table, e.Set, e.Element)
		}
	}
	return nil
}

// delBridges adds to tx the deletion of the bridges' elements for which match returns true.
func (f *firewall) delBridges(tx *nft.Tx, match func(nft.Element) (bool, error)) error {
	found, err := f.elementsIn(bridgeSets()...)
	return errors.Join(err, replaceElements(tx, found, nil, match))
}

// bridgeOf returns the name of the bridge in the key of an element.
func bridgeOf(k nft.Key) string {
	name, _, _ := strings.Cut(string(k), "\x00")
	return name
}

// isGone reports whether no link with the name exists on the host.
func (f *firewall) isGone(name string) (bool, error) {
	_, err := f.links.Link(name)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return false, err
}

// isUnused reports whether the link does not exist on the host, or is a bridge without ports.
func (f *firewall) isUnused(name string) (bool, error) {
	l, err := f.links.Link(name)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil || l.Kind != "bridge" {
		return false, err
	}
	ports, err := f.links.Ports(l)
	return len(ports) == 0, err
}

// isolatedPorts returns the store of the attachment's elements in table bridge plumb.
func (f *firewall) isolatedPorts() *claims.Store { return f.isolatedPortsOf(f.r.Attachment(), f.ports) }

// isolatedPortsOf returns the store of an attachment's elements in table bridge plumb.
func (f *firewall) isolatedPortsOf(owner types.Attachment, ports []string) *claims.Store {
	s := &claims.Store{
		Conn:        f.c,
		Layout:      isolatedPortsLayout(),
		Groups:      []claims.Group{{tables.IsolatedPorts}},
		Owner:       owner,
		Description: "isolation of " + owner.String(),
		Warn:        f.r.Warn,
		OnlyFree:    f.r.IsRepair(),
	}
	for _, port := range ports {
		s.Claims = append(s.Claims, claims.Claim{
			Description: "the isolation of " + port,
			Elements:    []nft.SetElement{{Set: tables.IsolatedPorts, Element: nft.Element{Key: nft.IfNameKey(port)}}},
		})
	}
	return s
}

// addIsolatedPorts adds the host ends of the attachment to the set isolated_ports. If the bridge had another
// policy before, addIsolatedPorts first adds the host ends of the network's other attachments. If ADD fails
// later, these stay in the set. REPAIR adds only the attachment's own host ends, and none if the bridge has another
// policy now.
func (f *firewall) addIsolatedPorts() error {
	name := nft.IfNameKey(f.device)
	found, err := f.c.Lookup(isolationLayout().Table, []nft.ElementRef{{Set: tables.IsolatedBridges, Key: name}, {Set: tables.SameBridge, Key: nft.Concat(name, name)}})
	if err != nil {
		return err
	}
	hasPolicy, isSameBridge := found[0].Key != "", found[1].Key != ""
	switch {
	case f.r.IsRepair() && isSameBridge:
		return nil
	case !f.r.IsRepair() && (!hasPolicy || isSameBridge) && f.bridge.Kind == "bridge":
		if err := f.addOthersIsolatedPorts(); err != nil {
			return err
		}
	}
	return f.isolatedPorts().Add(&f.r.Undo)
}

// addOthersIsolatedPorts adds the host ends of the network's other attachments to the set isolated_ports. It
// finds them by their aliases.
func (f *firewall) addOthersIsolatedPorts() error {
	links, err := f.links.Ports(f.bridge)
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range links {
		if owner, ok := attach.OwnerOf(l, f.r.Conf.Name); ok && owner != f.r.Attachment() {
			errs = append(errs, f.isolatedPortsOf(owner, []string{l.Name}).Add(new(undo.Stack))) // never undone
		}
	}
	return errors.Join(errs...)
}

// delElements deletes the attachment's elements in nftables, its sources in firewalld, and the elements
// of bridges that no longer exist. It finds the host ends by their owner, because prevResult may lack
// them.
func (f *firewall) delElements() error {
	if f.c == nil {
		return f.removeSources(f.sourcesInPrev(), f.isOwner)
	}
	attachment := f.r.Attachment().String()
	err := f.c.Atomically("nft delete elements of "+attachment, func(tx *nft.Tx) error {
		_, err := f.isolatedPorts().Delete(tx)
		return errors.Join(err, f.delBridges(tx, func(e nft.Element) (bool, error) { return f.isGone(bridgeOf(e.Key)) }))
	})
	return errors.Join(err, f.c.Atomically("nft delete sources of "+attachment, f.delSources))
}

// gcElements deletes the elements and sources of the network's attachments that are not in keep. It also
// deletes the elements of bridges that no longer exist, and of the network's bridges without ports.
func (f *firewall) gcElements(keep types.Set) error {
	if f.c == nil {
		return nil
	}
	network := f.r.Conf.Name
	err := f.c.Atomically("nft delete stale elements of network "+network, func(tx *nft.Tx) error {
		_, err := f.isolatedPorts().GC(tx, network, keep)
		return errors.Join(err, f.delBridges(tx, func(e nft.Element) (bool, error) {
			if e.Comment != nft.NetworkPrefix(network) {
				return f.isGone(bridgeOf(e.Key))
			}
			return f.isUnused(bridgeOf(e.Key))
		}))
	})
	return errors.Join(err, f.c.Atomically("nft delete stale sources of network "+network, func(tx *nft.Tx) error {
		deleted, err := f.sourceStore().GC(tx, network, keep)
		return errors.Join(err, f.removeSources(deleted, nft.StaleOwner(network, keep)))
	}))
}

// checkPolicy returns an error that lists how the elements in nftables differ from the policy. rules contain the
// reference plugin's policies.
func (f *firewall) checkPolicy(rules []xt.Rule) error {
	if f.c == nil {
		return nil
	}
	found, err := f.elementsIn(bridgeSets()...)
	if err != nil {
		return err
	}
	others, err := f.otherBridges(rules, found)
	errs := []error{err}
	want := append(f.elements(), others...)
	table := isolationLayout().Table
	problem := func(set, kind string) types.Problem {
		return types.Problem{Object: "set " + set, Kind: kind, Table: table.String()}
	}
	lacks := func(elements []nft.SetElement, e nft.SetElement) bool {
		return !slices.ContainsFunc(elements, func(other nft.SetElement) bool { return other.Ref() == e.Ref() })
	}
	for _, e := range found {
		if name := bridgeOf(e.Key); name == f.device && lacks(want, e) {
			errs = append(errs, problem(e.Set, types.ProblemDiffers).Errorf("set %s of table %s contains %s, but ingressPolicy is %q", e.Set, table, name, f.conf.policy))
		}
	}
	for _, e := range want {
		if lacks(found, e) {
			errs = append(errs, problem(e.Set, types.ProblemMissing).Errorf("set %s of table %s lacks %s, which ingressPolicy %q requires", e.Set, table, bridgeOf(e.Key), f.conf.policy))
		}
	}
	if len(want) > 0 {
		errs = append(errs, f.c.CheckChains(isolationLayout()))
	}
	if f.conf.policy == isolated {
		errs = append(errs, f.isolatedPorts().Check(), f.c.CheckChains(isolatedPortsLayout()))
	}
	return errors.Join(errs...)
}
