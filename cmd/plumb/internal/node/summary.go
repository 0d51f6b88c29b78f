package node

import (
	"fmt"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/life"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
)

// Summary describes in one line what the host holds for the attachment. The line contains links with their bridge,
// masquerade, the number of host ports, records, and the reason why the attachment is suspect.
func (a *Attachment) Summary() string {
	parts := a.parts()
	if a.Reason != "" {
		parts = append(parts, a.Reason)
	}
	return strings.Join(parts, ", ")
}

// Holdings lists what the host holds for the attachment, including the addresses that no other container can get. An element
// that only names an address does not hold it.
func (a *Attachment) Holdings() (all []string) {
	for _, address := range a.Addresses {
		if slices.ContainsFunc(a.Resources, func(t Resource) bool { return (t.Kind == Reservation || t.Kind == Lease) && t.Address == address }) {
			all = append(all, "address "+address)
		}
	}
	return append(all, a.parts()...)
}

func (a *Attachment) parts() (parts []string) {
	add := func(part string) {
		if part != "" && !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	if links := a.ResourcesOf(Link); len(links) == 0 && a.cached != nil {
		add(a.inContainer())
	}
	for _, t := range a.Resources {
		switch {
		case t.Kind == Link && t.LinkKind == "ifb":
			add("rate limit")
		case t.Kind == Link && t.Where != "":
			add(t.Name + " @" + t.Where)
		case t.Kind == Link:
			add(t.Name)
		case t.Kind == Record:
			add(t.Name + " record")
		case t.Kind == Lease:
			add("DHCP lease")
		case t.Kind == Element && IsHostPortMap(t.Set):
			add(a.hostPorts())
		case t.Kind == Element:
			add(summaryOfSet(t.Set))
		}
	}
	return parts
}

// hostPorts returns the number of host ports. A port of both IP versions counts once.
func (a *Attachment) hostPorts() string {
	ports := map[string]bool{}
	for _, t := range a.Resources {
		if IsHostPortMap(t.Set) {
			ports[t.Name] = true
		}
	}
	if len(ports) == 1 {
		return "1 host port"
	}
	return fmt.Sprintf("%d host ports", len(ports))
}

// inContainer names the plugin that created an interface without a host end in the container, or says that bridge's or
// ptp's host end is missing. It returns "" if the container is gone.
func (a *Attachment) inContainer() string {
	plugin := a.InterfaceKeys().Type
	switch {
	case a.namespaces == life.Gone || a.namespaces == life.Reused || plugin == "":
		return ""
	case plugin == "bridge" || plugin == "ptp":
		return "no host end"
	}
	return "(" + plugin + " in the container)"
}

// summaryOfSet returns what Summary prints for the elements of a set. It returns "" if Summary shows them otherwise.
func summaryOfSet(set string) string {
	switch {
	case IsMasqueradeMap(set):
		return set
	case set == tables.CheckedPorts:
		return "macspoofchk"
	case set == tables.HostAccessEnds:
		return "host-access"
	case set == tables.IsolatedPorts:
		return "isolated"
	}
	return ""
}
