package node

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/claims"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// readLinks reads the links that plumb created and the host ends that libcni's results name.
func (inv *Inventory) readLinks(host *ns.Handle) error {
	c, err := nl.Open(host)
	if err != nil {
		return err
	}
	links, err := c.Links()
	if err != nil {
		return err
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Index] = l.Name
	}
	for _, l := range links {
		a := inv.ownerOfLink(l)
		if a == nil {
			continue
		}
		t := Resource{Kind: Link, Name: l.Name, Remove: types.Command("ip", "link", "delete", l.Name), LinkKind: l.Kind, index: l.Index}
		if l.Master != 0 {
			t.Where = names[l.Master]
		}
		a.add(t)
	}
	return nil
}

// ownerOfLink returns the attachment of a link, or nil if the link has no owner.
func (inv *Inventory) ownerOfLink(l nl.Link) *Attachment {
	owner, byPlumb, complete := attach.ParseAlias(l)
	if byPlumb {
		for id := range inv.byID {
			if !complete && attach.LinkAlias(id) == l.Alias { // a long alias ends with a hash
				return inv.byID[id]
			}
		}
		a := inv.attachment(owner)
		a.Incomplete = a.Incomplete || !complete
		return a
	}
	for _, n := range inv.Networks {
		if l.Alias == "" && l.Group == attach.UnfinishedGroup(n.Name) {
			return inv.attachment(types.Attachment{Network: n.Name})
		}
	}
	for _, a := range inv.Attachments {
		if l.Alias == "" && a.cached != nil && slices.Contains(a.cached.interfaces, cachedInterface{Name: l.Name}) && l.Kind == "veth" {
			return a
		}
	}
	return nil
}

// readElements reads the elements of plumb's nftables tables that name an owner.
func (inv *Inventory) readElements(host *ns.Handle) error {
	c, err := nft.Open(host)
	if err != nil {
		return err
	}
	owners := map[string]*Attachment{}
	for id, a := range inv.byID {
		owners[nft.Owner(id)] = a
	}
	for _, l := range tables.All() {
		for _, set := range l.Sets {
			elements, err := c.Elements(l.Table, set.Name)
			if types.IgnoreNotExist(err) != nil {
				return err
			}
			slices.SortFunc(elements, func(x, y nft.Element) int { return cmp.Compare(x.Key, y.Key) })
			for _, e := range elements {
				if a := inv.ownerOfElement(owners, e.Comment); a != nil {
					a.add(elementResource(l.Table, set, e))
				}
			}
		}
	}
	return nil
}

// ownerOfElement returns the attachment that the comment of an element names, or nil if it names none. An element without
// a comment, which plumb did not add, belongs to the attachment without names. In a comment, "~" and a hash replace the end
// of a name that is too long.
func (inv *Inventory) ownerOfElement(owners map[string]*Attachment, comment string) *Attachment {
	if a := owners[comment]; a != nil {
		return a
	}
	if comment == "" {
		return inv.attachment(types.Attachment{})
	}
	id, ok := types.ParseAttachment(comment)
	if !ok {
		return nil
	}
	a := inv.attachment(id)
	a.Incomplete = a.Incomplete || strings.Contains(comment, "~")
	owners[comment] = a
	return a
}

func elementResource(table nft.Table, set nft.Set, e nft.Element) Resource {
	key := e.Key.Text(set.Key)
	what := "set"
	if len(set.Data) > 0 {
		what = "map"
	}
	value := ""
	if e.Jump != "" {
		value = "jump " + e.Jump
	} else if e.Data != "" {
		value = e.Data.Text(set.Data)
	}
	return Resource{
		Kind: Element, Name: key, Where: fmt.Sprintf("table %s, %s %s", table, what, set.Name),
		Address: addressIn(set, e), Value: value, Set: set.Name,
		Remove: set.DeleteCommand(table, e.Key),
	}
}

// addressIn returns the container address that a masquerade or host-port element contains, or "".
func addressIn(set nft.Set, e nft.Element) string {
	switch {
	case IsMasqueradeMap(strings.TrimSuffix(set.Name, claims.FormerSuffix)):
		return e.Key.Text(set.Key)
	case IsHostPortMap(set.Name):
		address, _, _ := strings.Cut(e.Data.Text(set.Data), " . ")
		return address
	}
	return ""
}

// IsMasqueradeMap reports whether the keys of the map are masqueraded addresses.
func IsMasqueradeMap(set string) bool {
	return slices.ContainsFunc(nft.Families(), func(f nft.Family) bool { return set == tables.Masquerade(f) })
}

// IsHostPortMap reports whether the map maps host ports to container addresses.
func IsHostPortMap(set string) bool {
	return slices.ContainsFunc(nft.Families(), func(f nft.Family) bool { return set == tables.HostPort(f) || set == tables.HostPortIP(f) })
}

// HostPort returns the protocol, for example "tcp", and the address and port of the host that an element of a host-port map
// forwards. The address is unspecified if the element forwards the port of all addresses of its family. ok is false for
// every other resource.
func (t Resource) HostPort() (protocol string, local netip.AddrPort, ok bool) {
	addr, words := netip.IPv4Unspecified(), strings.Split(t.Name, " . ")
	if t.Set == tables.HostPort(nft.IPv6) {
		addr = netip.IPv6Unspecified()
	}
	if !IsHostPortMap(t.Set) {
		return "", local, false
	}
	if len(words) == 3 {
		addr, _ = netip.ParseAddr(words[0])
		words = words[1:]
	}
	port, err := strconv.ParseUint(words[len(words)-1], 10, 16)
	return words[0], netip.AddrPortFrom(addr, uint16(port)), err == nil
}
