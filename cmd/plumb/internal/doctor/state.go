package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/gc"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/life"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/plugins"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/runtimes"
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A state is what the host holds for containers.
type state struct {
	Options
	inventory *node.Inventory
	list      life.List // the live containers
	plan      *gc.Plan  // nil if there is no list
	report    *Report
	left      map[*node.Attachment]bool // the leftovers, which findLeftovers sets
	young     map[*node.Attachment]bool // attachments that suspects omits because their ADD may be running
	replaced  *plugins.Replacements
}

// readState reads what the host holds, and then the list of live containers.
func (o Options) readState(r *Report) (s *state, err error) {
	s = &state{Options: o, report: r, left: map[*node.Attachment]bool{}, young: map[*node.Attachment]bool{}, replaced: plugins.NewReplacements(o.PluginPath)}
	if s.inventory, err = o.Read(); err != nil {
		return nil, err
	}
	for _, a := range s.inventory.Attachments {
		if !node.IsLoopback(a.Network, a.IfName) {
			r.Attachments++
		}
	}
	for _, problem := range s.inventory.Errors {
		if !slices.Contains(r.Files, problem.Part) {
			r.Errors = append(r.Errors, problem.String()) // findSyntax reports unreadable configuration files as findings
		}
	}
	if o.Live == nil {
		return s, nil
	}
	if s.list, err = o.Live(s.inventory); err == nil && s.list.IsGiven() {
		s.plan, err = gc.NewPlan(s.inventory, s.list, gc.Selection{MinAge: node.MaxAddTime, Force: true, Suspects: gc.ReadSuspects(o.Places)})
	}
	return s, err
}

// findNone finds directories without a configuration. It ignores hosts on which only libcni's cache contains
// configurations, because Nomad writes no files, and directories of a runtime that is not ready, which findRuntimeNetworks
// reports.
func (s *state) findNone(files []*file, add addFunc) {
	notReady := slices.ContainsFunc(s.Runtimes, func(r runtimes.Runtime) bool { return r.NotReady != "" })
	if len(files) == 0 && !s.Guessed && !notReady && !slices.ContainsFunc(s.inventory.Networks, func(n *node.Network) bool { return n.List() != nil }) {
		add(strings.Join(s.ConfDirs, ", "), say("Write a file *.conflist into the directory, or name the runtime's directory with --conf-dir."),
			"no network configuration (*.conflist, *.conf, *.json)")
	}
}

// live returns the attachments with a namespace and a result in libcni's cache, except leftovers.
func (s *state) live() []*node.Attachment {
	return slices.DeleteFunc(slices.Clone(s.inventory.Attachments), func(a *node.Attachment) bool {
		return a.Incomplete || s.left[a] || a.ResultPath() == "" || !a.HasNamespace()
	})
}

// findLeftovers finds attachments whose container no longer exists, or may no longer exist.
func (s *state) findLeftovers(_ []*file, add addFunc) {
	groups := map[string][]*node.Attachment{} // the leftovers that one command removes
	for _, a := range s.suspects() {
		s.left[a] = true
		if node.IsLoopback(a.Network, a.IfName) {
			continue // it needs nothing on the host
		}
		key := s.removalGroup(a)
		groups[key] = append(groups[key], a)
	}
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		command := s.removalCommand(groups[key]...)
		for _, a := range groups[key] {
			s.addLeftover(a, command, add)
		}
	}
	s.countSkipped()
}

// removalGroup returns the same text for leftovers that one command removes, which are those of deleted containers in one network.
func (s *state) removalGroup(a *node.Attachment) string {
	if verdict, _ := s.judge(a); verdict == life.Dead && s.canDelete(a) {
		return a.Network
	}
	return a.Network + "\x00" + a.ID().String() // names contain no NUL
}

// addLeftover adds the finding for a leftover that the command removes.
func (s *state) addLeftover(a *node.Attachment, command string, add addFunc) {
	verdict, why := s.judge(a)
	if !s.isCovered(a) && a.ResultPath() == "" {
		why = "libcni's cache has no readable result of it, so its ADD or its DEL failed, or the result was lost"
		if s.inventory.HostEnd(a.ContainerID) != "" {
			why += "; its namespace exists"
		}
	}
	state, fix := "may be deleted", s.removalIfGone(a)
	switch {
	case verdict == life.Dead:
		state, fix = "is deleted", plugins.Solution{Fix: command}
	case s.list.RuntimeNetworks[a.Network] && s.canDelete(a):
		interval := gc.InWords(gc.Selection{MinAge: node.MaxAddTime}.Interval(a))
		fix = withAdvice(plugins.Solution{Fix: types.Command("plumb", "gc", "--cri") + s.Flags},
			"gc --cri removes it only in a second run, %s later. If you know that it is deleted, run instead: %s", interval, command)
	}
	add(onHost, fix, "container %s, interface %s, network %s, %s, but still holds %s: %s",
		a.ContainerID, cmp.Or(a.IfName, "unknown"), a.Network, state, cmp.Or(strings.Join(a.Holdings(), ", "), "its result in libcni's cache"), why)
}

// countSkipped counts the attachments that no check examines.
func (s *state) countSkipped() {
	for _, a := range s.inventory.Attachments {
		if a.ResultPath() == "" && !a.Incomplete && !s.left[a] && !s.young[a] {
			s.report.WithoutResult++
		}
	}
	s.report.Skipped = len(s.young) + s.report.WithoutResult
}

// suspects returns the attachments that may be leftovers, and adds to young the attachments whose ADD may be running.
// With a list of live containers, these are the attachments of all other containers without a process. On the runtimes'
// networks, gc keeps some of them, because the runtime may be creating the container. In networks that no list covers,
// these are attachments whose namespace does not exist, and attachments without a result in libcni's cache in a network
// with other results. A cache without results proves nothing, because the runtime may not use it, but a missing host end does.
func (s *state) suspects() (all []*node.Attachment) {
	if s.plan != nil {
		all = slices.Clone(s.plan.Dead)
		for _, kept := range s.plan.Kept {
			switch {
			case kept.Life == life.Alive:
			case kept.AddMayRun():
				s.young[kept.Attachment] = true
			case s.list.RuntimeNetworks[kept.Network]:
				all = append(all, kept.Attachment)
			}
		}
	}
	results := map[string][]string{} // the containers with a result, by network
	for _, a := range s.inventory.Attachments {
		if a.ResultPath() != "" {
			results[a.Network] = append(results[a.Network], a.ContainerID)
		}
	}
	for _, a := range s.inventory.Attachments {
		verdict, _ := s.judge(a)
		switch hasResult := a.ResultPath() != ""; {
		case !a.CanDelete() || s.isCovered(a):
		case a.AddMayRun():
			if a.Reason != "" || !hasResult {
				s.young[a] = true
			}
		case a.IfName == "" && slices.Contains(results[a.Network], a.ContainerID):
		case verdict == life.Alive || !hasResult && len(results[a.Network]) == 0 && !s.lacksHostEnd(a):
		case hasResult && s.inventory.HostEnd(a.ContainerID) != "": // the runtime is deleting the namespace
		default:
			all = append(all, a)
		}
	}
	return all
}

// lacksHostEnd reports whether only nftables elements are left of an attachment of bridge or ptp, whose host end exists as long
// as its container. Other plugins that have replaced plumb's leave these elements.
func (s *state) lacksHostEnd(a *node.Attachment) bool {
	list := s.inventory.NetworkOf(a.Network).List()
	return list != nil && a.HasOnlyElements() && s.inventory.HostEnd(a.ContainerID) == "" &&
		slices.ContainsFunc(list.Plugins, func(p *libcni.PluginConfig) bool { return p.Network.Type == "bridge" || p.Network.Type == "ptp" })
}

// isCovered reports whether the list says if the container of the attachment lives.
func (s *state) isCovered(a *node.Attachment) bool { return s.plan != nil && s.list.Covers(a.Network) }

// judge returns whether the container of the attachment lives, and the reason.
func (s *state) judge(a *node.Attachment) (life.Life, string) {
	if !s.isCovered(a) {
		return s.inventory.Judge(a, life.List{})
	}
	return s.inventory.Judge(a, s.list)
}

// removalCommand returns the command that removes only the resources of these attachments of one network. The command is plumb
// gc. If gc cannot remove the resources, the text is one command for each of them.
func (s *state) removalCommand(attachments ...*node.Attachment) string {
	network := attachments[0].Network
	words, force := []string{"plumb", "gc"}, false
	var commands []string
	for _, a := range attachments {
		if !slices.Contains(words[2:], a.ContainerID) { // of another interface
			words = append(words, "--dead", a.ContainerID)
		}
		force = force || a.HasNamespace()
		for _, r := range a.Resources {
			commands = append(commands, r.Remove)
		}
	}
	if !s.canDelete(attachments[0]) {
		return strings.Join(commands, "; ")
	}
	words = append(words, "--network", network)
	if force {
		words = append(words, "--force")
	}
	return types.Command(words...) + s.Flags
}

// canDelete reports whether DEL can delete what the host holds for the attachment. It cannot if the network has no configuration,
// or if other plugins have replaced plumb's, and only nftables elements of plumb are left.
func (s *state) canDelete(a *node.Attachment) bool {
	list := s.inventory.NetworkOf(a.Network).List()
	return list != nil && (!a.HasOnlyElements() || s.replaced.In(list) == nil)
}

// removalIfGone returns the solution for an attachment whose container may exist.
func (s *state) removalIfGone(a *node.Attachment) plugins.Solution {
	return say("If the runtime no longer has the container, run this: %s", s.removalCommand(a))
}

// findNoNetworks finds networks with attachments, but without a configuration, which a runtime needs to call DEL. It
// skips the check if a file cannot be parsed, because that file may be the configuration of any network. It also finds
// networks that got another name in their file.
func (s *state) findNoNetworks(files []*file, add addFunc) {
	if len(parsed(files)) < len(files) || s.Guessed {
		return
	}
	for _, n := range s.inventory.Networks {
		if slices.ContainsFunc(files, func(f *file) bool { return f.name() == n.Name }) {
			continue
		}
		if n.List() != nil {
			s.findRenamed(n, files, add)
			continue
		}
		var names []string
		force := ""
		for _, a := range s.inventory.Attachments {
			if a.Network == n.Name && !a.Incomplete && !s.left[a] && !a.AddMayRun() {
				if a.HasNamespace() || s.inventory.HostEnd(a.ContainerID) != "" {
					force = " --force"
				}
				names = append(names, fmt.Sprintf("container %s, interface %s", a.ContainerID, a.IfName))
			}
		}
		if len(names) > 0 {
			add(onHost, say("If none of these containers runs, run this, which prints the commands that remove their resources: %s%s%s",
				types.Command("plumb", "gc", "--no-live", "--network", n.Name), force, s.Flags),
				"network %s has no configuration, so that no runtime can call DEL, but the host holds resources for it: %s",
				n.Name, strings.Join(names, "; "))
		}
	}
}

// findRenamed finds networks with host-local whose ranges contain addresses of running containers of n, which no file
// configures. The datastore of cluster-local knows these addresses if the key segment names the same segment.
func (s *state) findRenamed(n *node.Network, files []*file, add addFunc) {
	for _, p := range pluginsOf(usable(files)) {
		var keys struct{ Segment string }
		_ = json.Unmarshal(p.IPAM, &keys) // without ipam, there are no sets
		if keys.Segment != "" || !slices.ContainsFunc(n.Keys(), func(k node.Keys) bool { return p.meets(plugin{Keys: k}) }) {
			continue
		}
		var held []string
		for _, a := range s.inventory.Attachments {
			if a.Network != n.Name || a.Incomplete || s.left[a] || a.AddMayRun() {
				continue
			}
			i := slices.IndexFunc(a.Addresses, func(address string) bool {
				ip, err := netip.ParseAddr(address)
				return err == nil && slices.ContainsFunc(p.sets(), func(set pool.Set) bool { return set.Contains(ip) })
			})
			if i >= 0 {
				held = append(held, fmt.Sprintf("container %s has %s", a.ContainerID, a.Addresses[i]))
			}
		}
		if len(held) > 0 {
			p.file.explained = true // no runtime should load the file
			fix := withAdvice(p.file.edit("write \"name\": %q", n.Name), "If you want the name %s, delete the containers of network %s first.", p.file.name(), n.Name)
			if slices.ContainsFunc(s.inventory.Attachments, func(a *node.Attachment) bool { return a.Network == p.file.name() }) {
				fix = say("Delete the pods or containers of network %s, and let the runtime create them again.", n.Name) // otherwise, the other network would have none
			}
			add(p.file.where(p.file.top.Get("name")), fix,
				"no file configures network %q, and new containers in network %q can get the addresses of its containers: %s",
				n.Name, p.file.name(), strings.Join(held, "; "))
		}
	}
}

// findOrphans finds reservations and nftables elements that name no container, and that therefore no DEL removes. It
// skips files that are younger than node.MaxAddTime, because the reference plugin creates the file before it
// writes the name, and files that a plugin has removed since the inventory was read. Chains of networks without containers
// are no finding, because the configuration of such a network may be elsewhere, for example in Kubernetes (multus).
func (s *state) findOrphans(_ []*file, add addFunc) {
	for _, a := range s.inventory.Attachments {
		for _, r := range a.Resources {
			if a.ContainerID == "" && (r.Kind == node.Element || r.Kind == node.Reservation && isOld(r)) {
				name := strings.TrimSuffix(r.Name+" ("+r.Value+")", " ()")
				add(onHost, plugins.Solution{Fix: r.Remove}, "%s %s in %s names no container, and no DEL removes it", r.Kind, name, r.Where)
			}
		}
	}
}

// findIrregular finds directories, named pipes and other files that are not regular where plumb needs a regular file.
func (s *state) findIrregular(_ []*file, add addFunc) {
	paths := slices.Clone(s.inventory.Irregular)
	for _, name := range []string{filepath.Base(skel.LockFile), skel.MarksName} {
		if info, err := os.Stat(s.InRun(name)); err == nil && !info.Mode().IsRegular() {
			paths = append(paths, s.InRun(name))
		}
	}
	for _, path := range paths {
		add(onHost, run("rm", "-r", path), "%s is not a regular file, so that the plugins cannot use it", path)
	}
}

// findReturned finds devices that host-device returned to the host with another name, because another interface had their
// name. If the record of the attachment still exists, DEL and GC restore the device.
func (s *state) findReturned(h host, add addFunc) {
	for _, l := range h.links {
		if !attach.IsReturned(l) {
			continue
		}
		const text = "host-device has returned interface %s with the name %s, because another interface had its name"
		i := slices.IndexFunc(s.inventory.Attachments, func(a *node.Attachment) bool {
			return attach.ReturnName(a.ID()) == l.Name && len(a.ResourcesOf(node.Record)) > 0
		})
		if i >= 0 {
			if a := s.inventory.Attachments[i]; !s.left[a] && !a.AddMayRun() {
				add(onHost, s.removalIfGone(a), text, l.Alias, l.Name)
			}
			continue
		}
		fix := rename(l, l.Alias, "alias", "")
		if slices.ContainsFunc(h.links, func(o nl.Link) bool { return o.Name == l.Alias || slices.Contains(o.AltNames, l.Alias) }) {
			fix = say("Rename or delete the other interface, and then run this: %s", fix.Fix)
		}
		add(onHost, fix, text, l.Alias, l.Name)
	}
}

// isOld reports whether the file of a resource is still the same and is too old to be written by a running ADD.
func isOld(r node.Resource) bool {
	info, err := os.Lstat(r.Where)
	return err == nil && r.Since != nil && info.ModTime().Equal(*r.Since) && time.Since(*r.Since) >= node.MaxAddTime
}

// findReservations finds reservations of live containers for addresses that the ADD did not return. CHECK finds such
// reservations only in the ranges of the network.
func (s *state) findReservations(_ []*file, add addFunc) {
	s.findUnreserved(add)
	for _, a := range s.live() {
		for _, r := range a.ResourcesOf(node.Reservation) {
			if !slices.Contains(a.Addresses, r.Address) && isOld(r) {
				add(onHost, plugins.Solution{Fix: r.Remove}, "%s is reserved for %s, whose ADD did not return it", r.Address, a.ContainerID)
			}
		}
	}
}

// findUnreserved finds running containers of networks with host-local without a reservation and a result, because someone
// deleted /var/lib/cni. CHECK finds lost reservations only with a result.
func (s *state) findUnreserved(add addFunc) {
	settled := 0 // the highest index of a host end whose ADD has ended
	for _, a := range s.inventory.Attachments {
		if ended := a.ResultTime(); !ended.IsZero() && time.Since(ended) >= node.MaxAddTime {
			settled = max(settled, a.VethIndex())
		}
	}
	for _, n := range s.inventory.Networks {
		i := slices.IndexFunc(n.IPAMs, func(ipam node.IPAM) bool { return !ipam.ClusterLocal && len(ipam.Pools) > 0 })
		if i < 0 {
			continue
		}
		wiped := !n.IPAMs[i].Pools[0].HasDirectory()
		var names []string
		for _, a := range s.inventory.Attachments {
			if a.Network == n.Name && s.isUnreserved(a) && (wiped || a.VethIndex() < settled) {
				names = append(names, strings.TrimSuffix(fmt.Sprintf("container %s (%s)", a.ContainerID, strings.Join(s.withOthers(a), ", ")), " ()"))
				if s.young[a] {
					delete(s.young, a)
					s.report.WithoutResult++
				}
			}
		}
		if len(names) > 0 {
			add(onHost, say("Delete these pods or containers, and let the runtime create them again."),
				"network %s has no reservations for containers that run, so that new containers can get their addresses: %s", n.Name, strings.Join(names, "; "))
		}
	}
}

// withOthers returns the addresses of the attachment, each with another container of the network that has the same address.
func (s *state) withOthers(a *node.Attachment) []string {
	texts := slices.Clone(a.Addresses)
	for i, address := range texts {
		for _, other := range s.inventory.Attachments {
			if other.Network == a.Network && other.ContainerID != a.ContainerID && !s.left[other] && slices.Contains(other.Addresses, address) {
				texts[i] = fmt.Sprintf("%s, which container %s also has", address, other.ContainerID)
			}
		}
	}
	return texts
}

// isUnreserved reports whether the attachment has neither a reservation nor a result, although its IPAM plugin has probably
// returned. This is the case if an element contains an address, or if a process runs in the namespace.
func (s *state) isUnreserved(a *node.Attachment) bool {
	alive, _ := s.inventory.Judge(a, life.List{}) // alive without a result means that there is a process
	return !a.Incomplete && !s.left[a] && a.VethIndex() > 0 && a.ResultPath() == "" && len(a.ResourcesOf(node.Reservation)) == 0 &&
		(len(a.Addresses) > 0 || alive == life.Alive)
}

// findForeignTargets finds nftables elements of live containers for addresses that the ADD did not return. Such an address can
// belong to another container.
func (s *state) findForeignTargets(_ []*file, add addFunc) {
	for _, a := range s.live() {
		for _, r := range a.ResourcesOf(node.Element) {
			if r.Address != "" && !slices.Contains(a.Addresses, r.Address) {
				add(onHost, plugins.Solution{Fix: r.Remove}, "element %s (%s) in %s belongs to %s, whose ADD did not return %s", r.Name, r.Value, r.Where, a.ContainerID, r.Address)
			}
		}
	}
}

// addedWithout returns the short IDs of the live containers of a network whose ADD did not call the plugin.
func (s *state) addedWithout(network, plugin string) (ids []string) {
	for _, a := range s.live() {
		list, _ := a.Added()
		if a.Network == network && list != nil && !slices.ContainsFunc(list.Plugins, func(p *libcni.PluginConfig) bool { return p.Network.Type == plugin }) {
			ids = append(ids, life.ShortID(a.ContainerID))
		}
	}
	return ids
}
