package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/pkg/attach"
	"github.com/plumb-cni/plumb/pkg/masq"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
)

// maxAddTime is the longest time that an ADD is expected to take. If the files of an attachment are younger, its ADD may
// not have ended, and the runtime may not have written the result yet.
const maxAddTime = time.Minute

// whereNode is the value of Finding.Where for what the node holds.
const whereNode = "node"

// resultPath returns the path of the file in libcni's cache for the attachment, or "" if there is none.
func resultPath(a *node.Attachment) string {
	for _, t := range a.Things {
		if t.Kind == node.Result {
			return t.Where
		}
	}
	return ""
}

// describe returns a text with the names of the attachment and the things that the node holds for it.
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
		things = append(things, fmt.Sprintf("nftables elements: %d", elements))
	}
	return fmt.Sprintf("container %s, interface %s, network %s: %s", a.ContainerID, cmp.Or(a.IfName, "not known"), a.Network, strings.Join(things, ", "))
}

// findLeftovers finds attachments whose container does not exist any more, or may not exist. If there is a list of live
// containers, these are the attachments of all other containers without a process. Without a list, they are the attachments
// whose namespace does not exist, and those without a result in libcni's cache, if the cache has results of other
// attachments in the network. A cache without any result says nothing: the runtime does not use it.
func findLeftovers(e *examination) (found []Finding) {
	e.countLeftOut()
	if e.plan != nil {
		for _, a := range e.plan.Dead {
			life, why := e.inventory.Judge(a, e.list)
			found = append(found, e.leftOver(a, why, e.removal(life, e.listRemovalCommand(a), a)))
		}
		return found
	}
	results := map[string][]string{} // the containers of each network that have a result
	for _, a := range e.inventory.Attachments {
		if resultPath(a) != "" {
			results[a.Network] = append(results[a.Network], a.ContainerID)
		}
	}
	for _, a := range e.inventory.Attachments {
		if !a.CanDelete() || addMayRun(a) || a.IfName == "" && slices.Contains(results[a.Network], a.ContainerID) {
			continue
		}
		life, what := e.inventory.Judge(a, e.list)
		hostEnd := e.inventory.HostEnd(a.ContainerID)
		switch {
		case life == node.Alive || resultPath(a) == "" && len(results[a.Network]) == 0 || resultPath(a) != "" && hostEnd != "":
			continue // with a host end, a namespace whose path is gone is being deleted
		case resultPath(a) == "":
			what = e.whyNoResult(a)
			if hostEnd != "" {
				what += "; its namespace exists"
			}
		}
		found = append(found, e.leftOver(a, what, e.removal(life, e.removalCommand(a), a)))
	}
	return found
}

// leftOver returns the finding for a leftover, and records it.
func (e *examination) leftOver(a *node.Attachment, what, mend string) Finding {
	e.leftover[a] = true
	return Finding{Where: whereNode, What: describe(a) + ": " + what, Mend: mend}
}

// removal returns how to remove an attachment: by a command, if its container is certainly dead.
func (e *examination) removal(life node.Life, command string, a *node.Attachment) string {
	if life == node.Dead {
		return command
	}
	return edit + "if the runtime does not have the container any more: " + e.removalCommand(a)
}

// whyNoResult returns why the inventory has no result of an attachment.
func (e *examination) whyNoResult(a *node.Attachment) string {
	for _, dir := range e.CacheDirs {
		if path := filepath.Join(dir, "results", a.Network+"-"+a.ContainerID+"-"+a.IfName); exists(path) {
			return "the result in libcni's cache cannot be read: " + path
		}
	}
	return "libcni's cache has no result of it, so its ADD failed, or its DEL, or the result was lost"
}

// exists reports whether there is a file at a path.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// countLeftOut counts the attachments that may be leftovers, but are no findings because their ADD may not have ended.
func (e *examination) countLeftOut() {
	var doubtful []*node.Attachment
	if e.plan != nil {
		for _, kept := range e.plan.Kept {
			if kept.Life != node.Alive {
				doubtful = append(doubtful, kept.Attachment)
			}
		}
	} else {
		for _, a := range e.inventory.Attachments {
			if a.CanDelete() && a.Doubt != "" {
				doubtful = append(doubtful, a)
			}
		}
	}
	for _, a := range doubtful {
		if addMayRun(a) {
			e.report.LeftOut++
		}
	}
}

// addMayRun reports whether the ADD of an attachment may not have ended. If the node has only an interface of the
// attachment, the age is not known, and the ADD may run.
func addMayRun(a *node.Attachment) bool {
	return a.Since().IsZero() && hasLink(a) || time.Since(a.Since()) < maxAddTime
}

// hasLink reports whether the node has an interface of the attachment. If it is the host end of a veth pair, the
// namespace of the container exists: when the kernel deletes a namespace, it deletes both ends.
func hasLink(a *node.Attachment) bool {
	return slices.ContainsFunc(a.Things, func(t node.Thing) bool { return t.Kind == node.Link })
}

// listRemovalCommand returns the command that removes the things of an attachment whose container is not in the list of
// live containers.
func (e *examination) listRemovalCommand(a *node.Attachment) string {
	n, err := e.inventory.Network(a.Network)
	switch {
	case err != nil || n.List() == nil:
		return e.removalCommand(a)
	case e.LiveFile == "-":
		return edit + "give the same list to plumb gc --live -" + e.Flags
	}
	return "plumb gc --live " + node.Quote(e.LiveFile) + " --network " + node.Quote(a.Network) + e.Flags
}

// removalCommand returns the command that removes the things of an attachment, and no things of others. It is plumb gc,
// or, if the network has no configuration, one command per thing.
func (e *examination) removalCommand(a *node.Attachment) string {
	if n, err := e.inventory.Network(a.Network); err == nil && n.List() != nil {
		force := ""
		if a.HasNamespace() {
			force = " --force"
		}
		return "plumb gc --dead " + node.Quote(a.ContainerID) + " --network " + node.Quote(a.Network) + force + e.Flags
	}
	var commands []string
	for _, t := range a.Things {
		commands = append(commands, t.Remove)
	}
	return strings.Join(commands, "; ")
}

// liveAttachments returns the attachments that have a result in libcni's cache and a namespace, and that are no
// leftovers.
func (e *examination) liveAttachments() []*node.Attachment {
	return slices.DeleteFunc(slices.Clone(e.inventory.Attachments), func(a *node.Attachment) bool {
		return a.Incomplete || e.leftover[a] || resultPath(a) == "" || !a.HasNamespace()
	})
}

// fileOfNetwork returns the configuration file of a network, or nil if there is none.
func (e *examination) fileOfNetwork(name string) *file {
	for _, f := range e.parsed() {
		if f.name() == name {
			return f
		}
	}
	return nil
}

// hasPlumbHostEnd reports whether the attachment has a host end that plumb made.
func (e *examination) hasPlumbHostEnd(a *node.Attachment) bool {
	return slices.ContainsFunc(e.links, func(l nl.Link) bool { return l.Alias == attach.LinkAlias(a.ID()) })
}

// findChains finds damaged chains for masquerading, if an attachment is masqueraded.
func findChains(e *examination) []Finding {
	isMasqueraded := slices.ContainsFunc(e.inventory.Attachments, func(a *node.Attachment) bool {
		return hasElement(a, "map masq", "")
	})
	if e.nft == nil || !isMasqueraded {
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

// explainAll records that all attachments with elements in the table inet plumb have a finding, so that findDamaged does
// not call CHECK for them.
func (e *examination) explainAll() {
	for _, a := range e.inventory.Attachments {
		if hasElement(a, "table inet plumb", "") {
			e.explained[a] = true
		}
	}
}

// findForwardDrop finds chains of other programs whose policy drops forwarded packets, for each network that has no plugin
// firewall and for which the chain has no rule.
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
			if len(f.spans()) > 0 && len(f.acceptRules(c.Table.Family)) == 0 {
				continue // the chain sees only packets of an IP version that the network does not have
			}
			rules, err := e.nft.Rules(c.Table, c.Name)
			e.unread("rules of nftables", types.IgnoreNotExist(err))
			if !slices.ContainsFunc(rules, f.isNamedIn) {
				found = append(found, f.dropped(c))
			}
		}
	}
	return found
}

// dropped returns the finding for a chain that drops what containers of the network send. The plugin firewall can only
// accept packets in the chain of iptables.
func (f *file) dropped(c nft.ListedChain) Finding {
	found := Finding{Where: f.path, What: fmt.Sprintf("table %s, chain %s: its policy is drop, and no rule of it names the subnet or the bridge of network %q", c.Table, c.Name, f.name())}
	rules := f.acceptRules(c.Table.Family)
	switch {
	case c.Name == "FORWARD" && c.Table.Name == "filter" && c.Table.Family != nft.Inet:
		found.What += ", which has no plugin that lets packets of its containers pass"
		found.Mend = edit + `add {"type": "firewall"} to plugins, after the plugin that makes the interface; containers that run must be replaced`
	case len(rules) == 0:
		found.Mend = edit + "add a rule to the chain that accepts packets from the containers, and one for the answers"
	default:
		found.What += ". The program that makes the chain needs these rules in its own configuration, too"
		for i, rule := range rules {
			rules[i] = fmt.Sprintf("add rule %s %s %s", c.Table, c.Name, rule)
		}
		found.Mend = "nft " + node.Quote(strings.Join(rules, "; "))
	}
	return found
}

// acceptRules returns the rules of nftables that let pass what the containers of the network send, the answers, and what
// arrives at their host ports.
func (f *file) acceptRules(family nft.Family) (rules []string) {
	accept := func(from, to string) {
		rules = append(rules, from+" accept", to+" ct state established,related accept")
		if slices.Contains(f.types(), "portmap") {
			rules = append(rules, to+" ct status dnat accept")
		}
	}
	spans := f.spans()
	for _, s := range spans {
		ip := nft.IPv6
		if s.subnet.Addr().Is4() {
			ip = nft.IPv4
		}
		if family == nft.Inet || family == ip {
			accept(fmt.Sprintf("%s saddr %s", ip, s.subnet), fmt.Sprintf("%s daddr %s", ip, s.subnet))
		}
	}
	for _, p := range f.plugins {
		if p.typ == "bridge" && len(spans) == 0 {
			accept(fmt.Sprintf("iifname %q", bridgeName(p)), fmt.Sprintf("oifname %q", bridgeName(p)))
		}
	}
	return rules
}

// isNamedIn reports whether a rule names a subnet or the bridge of the network.
func (f *file) isNamedIn(r nft.ListedRule) bool {
	return slices.ContainsFunc(f.spans(), func(s span) bool { return r.Saddr.IsValid() && r.Saddr.Overlaps(s.subnet) }) ||
		slices.ContainsFunc(f.plugins, func(p plugin) bool { return p.typ == "bridge" && r.Iif == bridgeName(p) })
}

// findLocalnet finds interfaces to containers on which route_localnet is set, if the node does not have the chain that
// drops packets to 127.0.0.0/8 (masq.LocalnetGuard).
func findLocalnet(e *examination) (found []Finding) {
	if e.nft == nil {
		return nil
	}
	guard := masq.LocalnetGuard()
	if err := e.nft.CheckChain(masq.Layout().Table, guard.Name); !errors.Is(err, fs.ErrNotExist) {
		e.unread("chain "+guard.Name, err)
		return nil
	}
	toContainers := map[int]bool{} // by index: host ends, and the bridges that they are ports of
	for _, l := range e.links {
		if attach.MadeByPlumb(l) {
			toContainers[l.Index], toContainers[l.Master] = true, true
		}
	}
	for _, l := range e.links {
		value, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + l.Name + "/route_localnet")
		e.unread("route_localnet of "+l.Name, types.IgnoreNotExist(err))
		if toContainers[l.Index] && strings.TrimSpace(string(value)) == "1" {
			found = append(found, Finding{Where: whereNode,
				What: fmt.Sprintf("%s has route_localnet, and table inet plumb has no chain %s: containers reach what the node serves on 127.0.0.1 (CVE-2020-8558)", l.Name, guard.Name),
				Mend: "sysctl -w " + node.Quote("net/ipv4/conf/"+l.Name+"/route_localnet=0")})
		}
	}
	return found
}

// openNFT returns a connection to nftables, or nil if the kernel has no nf_tables.
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
