package doctor

import (
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
	return fmt.Sprintf("container %s, interface %s, network %s: %s", a.ContainerID, a.IfName, a.Network, strings.Join(things, ", "))
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
	results := map[string]int{} // the number of results of each network
	for _, a := range e.inventory.Attachments {
		if result(a) != "" {
			results[a.Network]++
		}
	}
	for _, a := range e.inventory.Attachments {
		if a.Incomplete || mayBeginNow(a) {
			continue
		}
		what, mend := "", e.collect(a)
		switch {
		case !hasLink(a) && isKnownGone(a.NetNS):
			what = "its namespace " + a.NetNS + " does not exist"
		case result(a) == "" && results[a.Network] > 0:
			what = "libcni's cache has no result of it, so its ADD failed, or its DEL, or the result was lost"
			if path := e.resultPath(a); exists(path) {
				what = "the result in libcni's cache cannot be read: " + path
			}
			if a.HasPeer() {
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

// resultPath returns the path of an attachment's file in libcni's cache.
func (e *examination) resultPath(a *node.Attachment) string {
	return filepath.Join(e.CacheDir, "results", a.Network+"-"+a.ContainerID+"-"+a.IfName)
}

// exists reports whether there is a file at a path.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// countLeftOut counts the attachments that findLeftovers leaves out although something says that they are leftovers.
func (e *examination) countLeftOut() {
	left := map[*node.Attachment]bool{}
	for _, a := range e.inventory.Attachments {
		left[a] = !a.Incomplete && a.Doubt != ""
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
