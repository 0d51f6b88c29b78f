package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/cmd/plumb/internal/schema"
	"github.com/plumb-cni/plumb/pkg/nft"
)

// findElements finds containers whose elements in nftables are gone, such as after nft flush ruleset, and elements that
// other programs have made.
func findElements(e *examination) []Finding {
	lost := map[string][]string{} // IDs of containers by network
	for _, a := range e.liveAttachments() {
		if !e.hasPlumbHostEnd(a) || slices.Contains(lost[a.Network], a.ContainerID) {
			continue
		}
		noMasquerade := isMasqueraded(a) && slices.ContainsFunc(a.Addresses, func(address string) bool {
			return !hasElement(a, "map masq", address)
		})
		if noMasquerade || hasPorts(a) && !hasElement(a, "map hostport", "") {
			lost[a.Network] = append(lost[a.Network], a.ContainerID)
			e.explained[a] = true
		}
	}
	found := e.unownedElements()
	for _, n := range e.inventory.Networks {
		if ids := lost[n.Name]; len(ids) > 0 {
			found = append(found, Finding{Where: whereNode,
				What: fmt.Sprintf("network %s: table inet plumb lacks the elements for masquerade or host ports of %s; another program has probably deleted them", n.Name, strings.Join(ids, ", ")),
				Mend: edit + "find the program, which may be a service that runs nft flush ruleset when it is reloaded; then let the runtime replace these containers"})
		}
	}
	return found
}

// unownedElements returns a finding for each element of plumb's tables that has no comment. Those of plumb have one.
func (e *examination) unownedElements() (found []Finding) {
	if e.nft == nil {
		return nil
	}
	for _, table := range nft.OwnTables() {
		sets, err := e.nft.Sets(table)
		e.unread("nftables", err)
		for _, set := range sets {
			elements, err := e.nft.Elements(table, set.Name)
			if !errors.Is(err, fs.ErrNotExist) { // deleted meanwhile
				e.unread("nftables", err)
			}
			for _, element := range elements {
				if element.Comment == "" {
					found = append(found, unownedElement(table, set, element))
				}
			}
		}
	}
	return found
}

// unownedElement returns the finding for an element without a comment.
func unownedElement(table nft.Table, set nft.Set, element nft.Element) Finding {
	key, leads := element.Key.Text(set.Key), ""
	if element.Jump != "" {
		leads = " leads to chain " + element.Jump + " and"
	} else if element.Data != "" {
		leads = " leads to " + element.Data.Text(set.Data) + " and"
	}
	return Finding{Where: whereNode,
		What: fmt.Sprintf("table %s, %s: the element %s%s has no owner: another program has made it, and no DEL deletes it", table, set.Name, key, leads),
		Mend: fmt.Sprintf("nft delete element %s %s %s", table, set.Name, node.Quote("{ "+key+" }"))}
}

// hasElement reports whether an attachment has an element in a map, for an address; empty: for any.
func hasElement(a *node.Attachment, inMap, address string) bool {
	return slices.ContainsFunc(a.Things, func(t node.Thing) bool {
		return t.Kind == node.Element && strings.Contains(t.Where, inMap) && (address == "" || t.Address == address)
	})
}

// hasPlugin reports whether the ADD of an attachment called a plugin for which is reports true.
func hasPlugin(a *node.Attachment, is func(plugin) bool) bool {
	list, _ := a.Added()
	if list == nil {
		return false
	}
	for _, p := range list.Plugins {
		if v, err := schema.Parse(p.Bytes); err == nil && is(plugin{Value: v, typ: p.Network.Type}) {
			return true
		}
	}
	return false
}

// isMasqueraded reports whether the ADD of an attachment masqueraded its addresses with nftables, at least by default.
func isMasqueraded(a *node.Attachment) bool {
	return hasPlugin(a, func(p plugin) bool {
		return (p.typ == "bridge" || p.typ == "ptp") && p.Get("ipMasq").Bool() && p.Get("ipMasqBackend").Text() != "iptables"
	})
}

// hasPorts reports whether the ADD of an attachment got port mappings, and mapped them with nftables, at least by default.
// libcni gives them to the plugins that have the capability.
func hasPorts(a *node.Attachment) bool {
	_, runtime := a.Added()
	if runtime == nil {
		return false
	}
	mappings, _ := runtime.CapabilityArgs["portMappings"].([]any) // libcni's cache is JSON
	return len(mappings) > 0 && hasPlugin(a, func(p plugin) bool {
		return p.typ == "portmap" && p.Get("capabilities").Get("portMappings").Bool() && p.Get("backend").Text() != "iptables" &&
			p.Get("externalSetMarkChain").Text() == "" && len(p.Get("conditionsV4").Items())+len(p.Get("conditionsV6").Items()) == 0
	})
}
