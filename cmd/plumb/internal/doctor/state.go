package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/cmd/plumb/internal/schema"
	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/masq"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
)

// youngest is the age from which on an attachment counts as made: an ADD writes its files before the runtime writes
// its result.
const youngest = time.Minute

// whereNode is the Where of a finding about what the node holds.
const whereNode = "node"

// result returns the file of libcni's cache for an attachment, or "".
func result(a *node.Attachment) string {
	for _, t := range a.Things {
		if t.Kind == node.Result {
			return t.Where
		}
	}
	return ""
}

// describe returns what the node holds for an attachment.
func describe(a *node.Attachment) string {
	var things []string
	elements := 0
	for _, t := range a.Things {
		switch t.Kind {
		case node.Element:
			elements++
		case node.Result:
			things = append(things, "result of libcni")
		default:
			things = append(things, fmt.Sprintf("%s %s", t.Kind, t.Name))
		}
	}
	if elements > 0 {
		things = append(things, fmt.Sprintf("%d elements of nftables", elements))
	}
	return fmt.Sprintf("container %s, interface %s, network %s: %s", a.ContainerID, cmp.Or(a.IfName, "not known"), a.Network, strings.Join(things, ", "))
}

// findLeftovers finds attachments whose container is gone: it is not in the list of live containers. Without a list,
// the evidence is that its namespace does not exist, or that the runtime has no result of it while it has results of
// others in the network. A runtime that does not use this cache of libcni has no results there at all.
func findLeftovers(e *examination) (found []Finding) {
	e.countLeftOut()
	if e.plan != nil {
		for _, a := range e.plan.Dead {
			e.leftover[a] = true
			found = append(found, Finding{Where: whereNode, What: describe(a) + ": the container is not in the list of live ones", Mend: e.collectByList(a)})
		}
		return found
	}
	results := map[string][]string{} // the containers of each network that have a result
	for _, a := range e.inventory.Attachments {
		if result(a) != "" {
			results[a.Network] = append(results[a.Network], a.ContainerID)
		}
	}
	for _, a := range e.inventory.Attachments {
		if !a.CanDelete() || mayBeginNow(a) || a.IfName == "" && slices.Contains(results[a.Network], a.ContainerID) {
			continue
		}
		what, mend := "", e.collect(a)
		switch {
		case !hasLink(a) && isKnownGone(a.NetNS):
			what = "its namespace " + a.NetNS + " does not exist"
		case result(a) == "" && len(results[a.Network]) > 0:
			what = "libcni's cache has no result of it, so its ADD failed, or its DEL, or the result was lost"
			if e.inventory.HostEnd(a.ContainerID) != "" {
				what += "; its namespace exists"
			}
			mend = edit + "if the runtime does not have the container any more: " + mend
		default:
			continue
		}
		e.leftover[a] = true
		found = append(found, Finding{Where: whereNode, What: describe(a) + ": " + what, Mend: mend})
	}
	return found
}

// countLeftOut counts the attachments that findLeftovers leaves out although something says that they are leftovers.
func (e *examination) countLeftOut() {
	left := map[*node.Attachment]bool{}
	for _, a := range e.inventory.Attachments {
		left[a] = a.CanDelete() && a.Doubt != ""
	}
	if e.plan != nil {
		clear(left)
		for _, kept := range e.plan.Kept {
			left[kept.Attachment] = true
		}
	}
	for a, doubtful := range left {
		if doubtful && mayBeginNow(a) {
			e.report.LeftOut++
		}
	}
}

// mayBeginNow reports whether the ADD of an attachment may be under way. If there is an interface only, the age is not known.
func mayBeginNow(a *node.Attachment) bool {
	return a.Since().IsZero() && hasLink(a) || time.Since(a.Since()) < youngest
}

// hasLink reports whether the node has an interface of the attachment. Then the namespace of the container exists: a
// veth pair ends with one of its ends.
func hasLink(a *node.Attachment) bool {
	return slices.ContainsFunc(a.Things, func(t node.Thing) bool { return t.Kind == node.Link })
}

// isKnownGone reports whether the namespace at a path is gone for certain. If the folder does not exist either, plumb may
// run where the paths of the runtime do not exist, such as in a container.
func isKnownGone(netns string) bool {
	_, err := os.Stat(filepath.Dir(netns))
	return netns != "" && err == nil && isGone(netns)
}

// collectByList returns the command that removes what the node holds for an attachment by the list of live containers.
func (e *examination) collectByList(a *node.Attachment) string {
	n, err := e.inventory.Network(a.Network)
	switch {
	case err != nil || n.File == "":
		return e.collect(a)
	case e.LiveFile == "-":
		return edit + "give the same list to plumb gc --live -" + e.Flags
	}
	return "plumb gc --live " + node.Quote(e.LiveFile) + " --network " + node.Quote(a.Network) + e.Flags
}

// isGone reports whether there is no namespace at a path.
func isGone(netns string) bool {
	h, err := ns.Open(netns, nil)
	_ = h.Close()
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, ns.ErrNotNamespace)
}

// collect returns the command that removes what the node holds for an attachment, and nothing of others. Without a
// configuration of the network, the command removes the things themselves.
func (e *examination) collect(a *node.Attachment) string {
	var commands []string
	if n, err := e.inventory.Network(a.Network); err == nil && n.File != "" {
		return "plumb gc --dead " + node.Quote(a.ContainerID) + " --network " + node.Quote(a.Network) + e.Flags
	}
	for _, t := range a.Things {
		commands = append(commands, t.Remove)
	}
	return strings.Join(commands, "; ")
}

// living returns the attachments of containers that exist, as far as the node knows.
func (e *examination) living() []*node.Attachment {
	return slices.DeleteFunc(slices.Clone(e.inventory.Attachments), func(a *node.Attachment) bool {
		return a.Incomplete || e.leftover[a] || result(a) == "" || isGone(a.NetNS)
	})
}

// fileOfNetwork returns the configuration of a network, or nil.
func (e *examination) fileOfNetwork(name string) *file {
	for _, f := range e.parsed() {
		if f.name() == name {
			return f
		}
	}
	return nil
}

// findReservations compares the addresses of containers with the reservations of host-local and cluster-local.
func findReservations(e *examination) (found []Finding) {
	for _, a := range e.inventory.Attachments {
		if a.ContainerID == "" {
			found = append(found, unowned(a)...)
		}
	}
	for _, a := range e.living() {
		f := e.fileOfNetwork(a.Network)
		if f == nil {
			continue
		}
		found = append(found, e.outside(a, f.spans())...)
		for _, s := range f.spans() {
			different := e.compareReservations(a, s)
			e.explained[a] = e.explained[a] || len(different) > 0
			found = append(found, different...)
		}
	}
	return found
}

// unowned returns the findings for reservations that name no container. What is younger than a minute is left out: the
// reference plugin makes the file before it writes the name.
func unowned(a *node.Attachment) (found []Finding) {
	for _, t := range a.Things {
		if t.Kind == node.Reservation && t.Since != nil && time.Since(*t.Since) >= youngest {
			found = append(found, Finding{Where: whereNode, What: fmt.Sprintf("%s is reserved in network %s for no container: the file names none", t.Address, a.Network),
				Mend: "rm -f " + node.Quote(t.Where)}) // STATUS of host-local may have removed it meanwhile
		}
	}
	return found
}

// outside returns the findings for reservations of addresses that are in no range of the network, if the container does
// not have them.
func (e *examination) outside(a *node.Attachment, spans []span) (found []Finding) {
	have, err := addresses(a)
	if err != nil || len(spans) == 0 {
		return nil // compareReservations says why, if there is one to compare
	}
	for _, t := range a.Things {
		ip, err := netip.ParseAddr(t.Address)
		in := func(s span) bool { return err != nil || s.subnet.Contains(ip) }
		if t.Kind == node.Reservation && !slices.ContainsFunc(spans, in) && !slices.Contains(have, t.Address) && t.Since != nil && time.Since(*t.Since) >= youngest {
			found = append(found, Finding{Where: whereNode, What: fmt.Sprintf("%s, which is in no range of network %s, is reserved for %s, whose %s does not have it",
				t.Address, a.Network, a.ContainerID, a.IfName), Mend: "rm -f " + node.Quote(t.Where)})
		}
	}
	return found
}

// compareReservations compares the addresses of a container in a range with its reservations.
func (e *examination) compareReservations(a *node.Attachment, s span) (found []Finding) {
	in := func(text string) bool {
		ip, err := netip.ParseAddr(text)
		return err == nil && s.subnet.Contains(ip)
	}
	var reserved []string
	for _, t := range a.Things {
		if t.Kind == node.Reservation && in(t.Address) {
			reserved = append(reserved, t.Address)
		}
	}
	for _, address := range a.Addresses {
		if in(address) && !slices.Contains(reserved, address) {
			found = append(found, e.unreserved(a, s, address))
		}
	}
	for _, address := range reserved {
		mend := fmt.Sprintf("nsenter --net=%s ip address add %s/%d dev %s", node.Quote(a.NetNS), address, s.subnet.Bits(), node.Quote(a.IfName))
		switch have, err := addresses(a); {
		case errors.Is(err, fs.ErrNotExist):
			found = append(found, Finding{Where: whereNode, What: fmt.Sprintf("%s is reserved for %s, which has no interface %s", address, a.ContainerID, a.IfName),
				Mend: edit + "let the runtime replace the container"})
		case err != nil:
			e.unread("addresses of "+a.ContainerID, err)
		case !slices.Contains(have, address) && e.holder(a, address) != nil: // the finding of that container says more
		case !slices.Contains(have, address):
			found = append(found, Finding{Where: whereNode, What: fmt.Sprintf("%s is reserved for %s, whose %s does not have it", address, a.ContainerID, a.IfName), Mend: mend})
		}
	}
	return found
}

// holder returns another container of the network that has an address, or nil.
func (e *examination) holder(a *node.Attachment, address string) *node.Attachment {
	for _, other := range e.living() {
		if other.Network != a.Network || other == a {
			continue
		}
		have, err := addresses(other)
		e.unread("addresses of "+other.ContainerID, types.IgnoreNotExist(err))
		if slices.Contains(have, address) {
			return other
		}
	}
	return nil
}

// unreserved returns the finding for an address of a container that is not reserved for it.
func (e *examination) unreserved(a *node.Attachment, s span, address string) Finding {
	for _, other := range e.inventory.Attachments {
		if other.Network == a.Network && slices.ContainsFunc(other.Things, func(t node.Thing) bool { return t.Kind == node.Reservation && t.Address == address }) {
			return e.reservedForOther(a, other, s, address)
		}
	}
	return Finding{Where: whereNode, What: fmt.Sprintf("%s, an address of %s, is not reserved: another container can get it", address, a.ContainerID), Mend: e.reserve(a, s, address)}
}

// reservedForOther returns the finding for an address of a container that is reserved for another one.
func (e *examination) reservedForOther(a, other *node.Attachment, s span, address string) Finding {
	what := fmt.Sprintf("%s, an address of %s, is reserved for %s", address, a.ContainerID, other.ContainerID)
	have, err := addresses(a)
	of, otherErr := addresses(other)
	if err == nil && otherErr == nil && slices.Contains(have, address) && !slices.Contains(of, address) {
		return Finding{Where: whereNode, What: what + ", which does not have it", Mend: e.reserve(a, s, address)}
	}
	return Finding{Where: whereNode, What: what + ": two containers may have it", Mend: edit + "let the runtime replace one of both containers"}
}

// reserve returns how to reserve an address for a container that has it.
func (e *examination) reserve(a *node.Attachment, s span, address string) string {
	dir := s.plugin.ipam.Get("dataDir").Text()
	if dir == "" {
		dir = e.DataDir
	}
	// The form of the file is that of the reference plugin: container ID, CR LF, interface.
	mend := fmt.Sprintf(`printf '%%s\r\n%%s' %s %s > %s`, node.Quote(a.ContainerID), node.Quote(a.IfName), node.Quote(filepath.Join(dir, a.Network, address)))
	if s.plugin.ipam.Get("type").Text() != "host-local" { // the address may belong to another node by now
		mend = edit + "let the runtime replace the container"
	}
	return mend
}

// addresses returns the addresses of the container's interface.
func addresses(a *node.Attachment) ([]string, error) {
	pod, err := ns.Open(a.NetNS, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = pod.Close() }()
	c, err := nl.Open(pod)
	if err != nil {
		return nil, err
	}
	l, err := c.Link(a.IfName)
	if err != nil {
		return nil, err
	}
	list, err := c.Addrs(l)
	var texts []string
	for _, addr := range list {
		texts = append(texts, addr.Prefix.Addr().String())
	}
	return texts, err
}

// findElements finds containers whose elements in nftables are gone, such as after nft flush ruleset.
func findElements(e *examination) (found []Finding) {
	lost := map[string][]string{}
	for _, a := range e.living() {
		f := e.fileOfNetwork(a.Network)
		if f == nil || !e.isOurs(a) || slices.Contains(lost[a.Network], a.ContainerID) {
			continue
		}
		noMasquerade := f.masquerades() && slices.ContainsFunc(a.Addresses, func(address string) bool {
			return !hasElement(a, "map masq", address)
		})
		if noMasquerade || f.forwards() && hasPortMappings(result(a)) && !hasElement(a, "map hostport", "") {
			lost[a.Network] = append(lost[a.Network], a.ContainerID)
			e.explained[a] = true
		}
	}
	for _, n := range e.inventory.Networks {
		if ids := lost[n.Name]; len(ids) > 0 {
			found = append(found, Finding{Where: whereNode,
				What: fmt.Sprintf("network %s: table inet plumb lacks elements of %s, which another program has deleted: masquerade or host ports do not work", n.Name, strings.Join(ids, ", ")),
				Mend: edit + "let the runtime replace these containers; and find the program, which may be a service that runs nft flush ruleset when it is reloaded"})
		}
	}
	return found
}

// hasElement reports whether an attachment has an element in a map, for an address; empty: for any.
func hasElement(a *node.Attachment, inMap, address string) bool {
	return slices.ContainsFunc(a.Things, func(t node.Thing) bool {
		return t.Kind == node.Element && strings.Contains(t.Where, inMap) && (address == "" || t.Address == address)
	})
}

// masquerades reports whether a plugin of the network masquerades with nftables, at least by default.
func (f *file) masquerades() bool {
	return slices.ContainsFunc(f.plugins, func(p plugin) bool {
		return (p.typ == "bridge" || p.typ == "ptp") && p.Get("ipMasq").Bool() && p.Get("ipMasqBackend").Text() != "iptables"
	})
}

// forwards reports whether a plugin of the network forwards host ports with nftables, at least by default.
func (f *file) forwards() bool {
	return slices.ContainsFunc(f.plugins, func(p plugin) bool {
		return p.typ == "portmap" && p.Get("backend").Text() != "iptables" &&
			p.Get("externalSetMarkChain").Text() == "" && len(p.Get("conditionsV4").Items())+len(p.Get("conditionsV6").Items()) == 0
	})
}

// hasPortMappings reports whether the file of libcni's cache has port mappings.
func hasPortMappings(path string) bool {
	text, err := node.ReadFile(path)
	if err != nil {
		return false
	}
	v, err := schema.Parse(text)
	return err == nil && len(v.Get("capabilityArgs").Get("portMappings").Items()) > 0
}

// isOurs reports whether the attachment has a host end that plumb made.
func (e *examination) isOurs(a *node.Attachment) bool {
	return slices.ContainsFunc(e.links, func(l nl.Link) bool { return l.Alias == attach.LinkAlias(a.ID()) })
}

// findChains finds damaged chains of plumb, if the table has elements.
func findChains(e *examination) []Finding {
	hasElements := slices.ContainsFunc(e.inventory.Attachments, func(a *node.Attachment) bool {
		return hasElement(a, "map masq", "")
	})
	if e.nft == nil || !hasElements {
		return nil
	}
	damaged, err := e.nft.DamagedChains(masq.Layout())
	if err != nil {
		e.explainAll()
		return []Finding{{Where: whereNode, What: err.Error(), Mend: edit + "end the program that owns the table, or make the table active again"}}
	}
	var found []Finding
	if len(damaged) > 0 {
		e.explainAll()
	}
	for _, c := range damaged {
		found = append(found, Finding{Where: whereNode,
			What: fmt.Sprintf("table inet plumb: chain %s is missing, or another program has deleted rules of it", c.Name),
			Mend: edit + "let the runtime make or replace a container of a network with ipMasq or host ports: its ADD writes the chain again",
		})
	}
	return found
}

// explainAll leaves out all attachments with elements in table inet plumb from CHECK.
func (e *examination) explainAll() {
	for _, a := range e.inventory.Attachments {
		if hasElement(a, "table inet plumb", "") {
			e.explained[a] = true
		}
	}
}

// findForwardDrop finds chains that drop forwarded packets by their policy, where no plugin firewall accepts those of a
// network.
func findForwardDrop(e *examination) (found []Finding) {
	if e.nft == nil {
		return nil
	}
	chains, err := e.nft.AllChains()
	e.unread("chains of nftables", err)
	for _, c := range chains {
		if !c.Forward || !c.Drops || c.Table.Name == "plumb" {
			continue
		}
		for _, f := range e.good() {
			if !slices.ContainsFunc(f.plugins, plugin.isRouted) || slices.Contains(f.types(), "firewall") || !f.isList() {
				continue
			}
			rules, err := e.nft.Rules(c.Table, c.Name)
			e.unread("rules of nftables", types.IgnoreNotExist(err))
			if slices.ContainsFunc(rules, f.isNamed) {
				continue
			}
			found = append(found, Finding{Where: f.path,
				What: fmt.Sprintf("table %s, chain %s: its policy is drop, and network %q has no plugin that lets packets of its containers pass; nor does a rule of the chain name its subnet or its bridge", c.Table, c.Name, f.name()),
				Mend: edit + `add {"type": "firewall"} to plugins, after the plugin that makes the interface; containers that run must be replaced`})
		}
	}
	return found
}

// isNamed reports whether a rule of another program is about the packets of the network.
func (f *file) isNamed(r nft.ListedRule) bool {
	return slices.ContainsFunc(f.spans(), func(s span) bool { return r.Saddr.IsValid() && r.Saddr.Overlaps(s.subnet) }) ||
		slices.ContainsFunc(f.plugins, func(p plugin) bool { return p.typ == "bridge" && r.Iif == bridgeName(p) })
}

// findLocalnet finds interfaces to containers with route_localnet, on a node without the chain that guards 127/8.
func findLocalnet(e *examination) (found []Finding) {
	if e.nft == nil {
		return nil
	}
	guard := masq.LocalnetGuard()
	if err := e.nft.CheckChain(masq.Layout().Table, guard.Name); !errors.Is(err, fs.ErrNotExist) {
		e.unread("chain "+guard.Name, err)
		return nil
	}
	leads := map[int]bool{}
	for _, l := range e.links {
		if attach.MadeByPlumb(l) {
			leads[l.Index], leads[l.Master] = true, true
		}
	}
	for _, l := range e.links {
		value, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + l.Name + "/route_localnet")
		e.unread("route_localnet of "+l.Name, types.IgnoreNotExist(err))
		if leads[l.Index] && strings.TrimSpace(string(value)) == "1" {
			found = append(found, Finding{Where: whereNode,
				What: fmt.Sprintf("%s has route_localnet, and table inet plumb has no chain %s: containers reach what the node serves on 127.0.0.1 (CVE-2020-8558)", l.Name, guard.Name),
				Mend: "sysctl -w " + node.Quote("net/ipv4/conf/"+l.Name+"/route_localnet=0")})
		}
	}
	return found
}

// openNFT opens nftables, if the kernel has it.
func openNFT(h *ns.Handle) (*nft.Conn, error) {
	c, err := nft.Open(h)
	if err == nil {
		_, err = c.AllChains()
	}
	if errors.Is(err, nft.ErrUnavailable) {
		return nil, nil
	}
	return c, err
}
