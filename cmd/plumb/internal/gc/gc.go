// Package gc removes what the containers that no longer exist have left on a node.
package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/life"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/plugins"
	"github.com/plumb-cni/plumb/v2/pkg/lock"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A Plan says which attachments a Collector deletes. It contains no attachments of containers that are in the list.
type Plan struct {
	Dead []*node.Attachment `json:"dead"`
	Kept []WithReason       `json:"kept"`

	before *node.Inventory
	live   life.List
}

// A WithReason is an attachment that is kept or left although the list lacks its container, with the reason.
type WithReason struct {
	*node.Attachment
	Reason string    `json:"reason"`
	Life   life.Life `json:"life"`
}

// A Selection says which attachments of dead containers are deleted.
type Selection struct {
	Network string        // empty selects all networks
	MinAge  time.Duration // keep attachments that are younger than this at the time of the list
	Force   bool          // treat suspect containers as dead, except in life.List.RuntimeNetworks
	// Suspects contains what earlier runs found suspect. NewPlan replaces it with what this run finds suspect. It may be
	// nil if the list contains no answer of a runtime.
	Suspects *Suspects
}

// NewPlan returns the plan for an inventory and a list. Read the inventory before the list. A container that starts in
// between may be missing from the list, but it is not in the inventory either.
//
// A container in the inventory can also be newer than the list, for example a list in a file. NewPlan therefore keeps
// an attachment if one of its files was written later than MinAge before the list, or if it has a link but no file, and
// therefore no known age. With a MinAge of zero, NewPlan keeps only attachments that are newer than the list.
func NewPlan(inv *node.Inventory, live life.List, s Selection) (*Plan, error) {
	if err := live.Check(inv.Facts()); err != nil {
		return nil, err
	}
	p := &Plan{Dead: []*node.Attachment{}, Kept: []WithReason{}, before: inv, live: live}
	for _, a := range inv.Attachments {
		selected := s.Network == "" || a.Network == s.Network
		if s.Suspects != nil && !(selected && live.RuntimeNetworks[a.Network]) {
			s.Suspects.keep(a)
		}
		if !a.CanDelete() || live.Contains(a.ContainerID) || !selected {
			continue
		}
		verdict, reason := s.judge(inv, a, live)
		if reason == "" {
			p.Dead = append(p.Dead, a)
			continue
		}
		p.Kept = append(p.Kept, WithReason{a, reason, verdict})
	}
	return p, nil
}

// judge returns the Life of an attachment's container that is missing from the list, and why gc keeps the attachment. The
// reason is "" if gc deletes the attachment.
func (s Selection) judge(inv *node.Inventory, a *node.Attachment, live life.List) (life.Life, string) {
	verdict, why := inv.Judge(a, live)
	kept := s.keepReason(inv, a, live)
	switch {
	case verdict == life.Alive:
		return verdict, why
	case !live.Covers(a.Network):
		return life.Suspect, kept
	case kept != "" || verdict == life.Dead:
		return verdict, kept
	case !live.RuntimeNetworks[a.Network]:
		if s.Force {
			return verdict, ""
		}
		return verdict, why
	}
	if s.Suspects.confirm(a, inv.Time, s.Interval(a)) {
		return verdict, ""
	}
	return verdict, why
}

// Interval returns how far apart the two runs that find an attachment suspect must be for gc to delete it.
func (s Selection) Interval(a *node.Attachment) time.Duration {
	if a.ResultPath() == "" {
		return s.MinAge
	}
	return max(s.MinAge, startTime)
}

// InWords returns whole minutes in words, for example "10 minutes", and another duration as it prints itself.
func InWords(d time.Duration) string {
	switch {
	case d == time.Minute:
		return "a minute"
	case d == 0 || d%time.Minute != 0:
		return d.String()
	}
	return fmt.Sprintf("%d minutes", d/time.Minute)
}

// startTime is the time in which a runtime starts a pod after its ADD. Until then, the runtime may not list the pod, and
// no process runs in the namespace.
const startTime = 10 * time.Minute

// keepReason returns why an attachment is kept even if its container does not live.
func (s Selection) keepReason(inv *node.Inventory, a *node.Attachment, live life.List) string {
	n, young := inv.NetworkOf(a.Network), a.Youngest().After(live.Created.Add(-s.MinAge))
	future := a.Youngest().After(inv.Time.Add(node.MaxAddTime))
	switch {
	case !live.Covers(a.Network):
		return "no list contains a container of its network"
	case live.Dead != nil && young && !future:
		return "it is younger than " + s.MinAge.String() + " (--min-age)"
	case live.Dead != nil:
		return ""
	case n.DisableGC:
		return "disableGC is set in " + cmp.Or(n.File, "the configuration") + ", because other nodes or runtimes share the network"
	case young && future:
		return fmt.Sprintf("the clock was set back, and its files are from %s; --dead deletes it", a.Youngest().Format(time.RFC3339))
	case young && live.None:
		return "it may be newer than the answer that no container lives (--min-age)"
	case young:
		return "it may be newer than the list of live containers (--min-age)"
	case s.MinAge > 0 && a.Youngest().IsZero() && len(a.ResourcesOf(node.Link)) > 0 && !live.RuntimeNetworks[a.Network]:
		return "its interface exists, and its age is unknown; --min-age 0 deletes it"
	}
	return ""
}

// A Report says what a Collector did.
type Report struct {
	Removed []*node.Attachment `json:"removed"` // the attachments, with the removed resources
	Left    []WithReason       `json:"left"`    // the attachments of dead containers, with the remaining resources
	Kept    []WithReason       `json:"kept"`
	// Shared contains the commands that remove what the attachments of a network in Left shared, if the network has no
	// configuration and no other attachments. They work only after the commands in Left.
	Shared []Shared `json:"shared"`
	Errors []string `json:"errors"`
}

// A Shared contains commands that remove what the attachments of a network shared.
type Shared struct {
	Network  string   `json:"network"`
	Commands []string `json:"commands"`
}

// A Collector carries out a Plan.
type Collector struct {
	Places  node.Places
	Network string                           // the only network to collect; empty for all networks
	Log     func(format string, args ...any) // prints a line for each network
	Exec    invoke.Exec                      // calls the plugins. It must limit the time of a call.
}

// Run calls DEL for the attachments of the plan, and then GC for each network, so that the plugins remove resources
// that name no attachment. It reports the difference between the inventories from before and after these calls. It returns an
// error only if it cannot read the second inventory. After ctx is done, Run ends when the current DEL of an attachment or the
// current GC of a plugin has ended.
//
// A DEL for each attachment works with all versions of the specification, and does not touch an attachment that is
// added during Run.
func (c *Collector) Run(ctx context.Context, p *Plan) (*Report, error) {
	r := &Report{Removed: []*node.Attachment{}, Left: []WithReason{}, Kept: p.Kept, Shared: []Shared{}, Errors: []string{}}
	for _, n := range p.before.Networks {
		if c.Network != "" && n.Name != c.Network || ctx.Err() != nil {
			continue
		}
		r.fail(n, c.delete(ctx, n, p))
		if ctx.Err() == nil && p.live.Dead == nil && p.live.Covers(n.Name) { // --dead removes only the named containers
			r.fail(n, c.sweep(ctx, n, p))
		}
	}
	after, err := c.Places.Read()
	if err != nil {
		return r, err
	}
	r.compare(p, after, c.Places.PluginPath)
	return r, r.findShared(after)
}

// findShared sets Shared. after is the inventory in which compare found Left.
func (r *Report) findShared(after *node.Inventory) error {
	left := map[string]int{} // the number of attachments in Left by network
	for _, l := range r.Left {
		left[l.Network]++
	}
	for _, a := range after.Attachments {
		left[a.Network]--
	}
	for _, n := range after.Networks {
		all, isLeft := left[n.Name]
		if !isLeft || all != 0 || n.List() != nil {
			continue
		}
		commands, err := node.SharedChains(n.Name)
		if err != nil {
			return err
		}
		if commands != nil {
			r.Shared = append(r.Shared, Shared{n.Name, commands})
		}
	}
	return nil
}

// fail records an error of a network. It ignores a nil error.
func (r *Report) fail(n *node.Network, err error) {
	if err != nil {
		r.Errors = append(r.Errors, fmt.Sprintf("network %s: %v", n.Name, err))
	}
}

// delete calls DEL for the dead attachments of a network.
func (c *Collector) delete(ctx context.Context, n *node.Network, p *Plan) error {
	dead := slices.DeleteFunc(slices.Clone(p.Dead), func(a *node.Attachment) bool {
		list, _ := a.DelArguments(n)
		return a.Network != n.Name || list == nil // without a configuration, the attachment is in Report.Left
	})
	if len(dead) == 0 {
		return nil
	}
	c.Log("network %s: DEL of dead attachments: %d", n.Name, len(dead))
	cni := libcni.NewCNIConfig(c.Places.PluginPath, c.Exec) // each attachment names its cache directory
	var errs []error
	for _, a := range dead {
		if ctx.Err() != nil {
			break
		}
		list, runtime := a.DelArguments(n)
		runtime.CacheDir = cmp.Or(runtime.CacheDir, c.Places.CacheDirs[0])
		if err := checkCache(list, runtime); err != nil { // libcni would wait for the writer of a named pipe
			errs = append(errs, err)
			continue
		}
		if err := cni.DelNetworkList(context.WithoutCancel(ctx), list, runtime); err != nil {
			errs = append(errs, fmt.Errorf("delete %s %s: %w", a.ContainerID, a.IfName, err))
		}
	}
	return errors.Join(errs...)
}

// checkCache returns an error if the file of the attachment in libcni's cache exists, but cannot be opened as a regular file.
func checkCache(list *libcni.NetworkConfigList, runtime *libcni.RuntimeConf) error {
	name := node.CacheName(types.Attachment{Network: list.Name, ContainerID: runtime.ContainerID, IfName: runtime.IfName})
	file, err := node.Open(filepath.Join(runtime.CacheDir, "results", name))
	if err != nil {
		return types.IgnoreNotExist(err)
	}
	return file.Close()
}

// lockWait is how long sweep waits for running plugins.
const lockWait = time.Minute

// sweep calls GC for a network. All attachments are valid, except the dead ones of the plan. During GC, plumb's plugins
// wait before they add or delete attachments, because GC would delete an attachment that is added after sweep has read
// the valid ones.
func (c *Collector) sweep(ctx context.Context, n *node.Network, p *Plan) (err error) {
	if n.List() == nil || n.DisableGC {
		return nil
	}
	if supported, _ := version.GreaterThanOrEqualTo(n.CNIVersion, "1.1.0"); !supported {
		return nil
	}
	path, err := skel.LockPath()
	if err != nil {
		return err
	}
	all, err := lock.NewAll(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.Close()) }()
	if err := all.Lock(lockWait); err != nil {
		return fmt.Errorf("wait for calls of plugins: %w; resources that name no attachment remain; run gc again", err)
	}
	now, err := c.Places.Read()
	if err != nil {
		return err
	}
	if now.IsPartial() {
		return fmt.Errorf("no GC, because not all attachments can be read: %v", now.Errors)
	}
	// With its cache, libcni would repeat the DEL of the dead attachments whose DEL has just failed, and the repeated
	// DEL would wait for the lock.
	noCache, err := os.MkdirTemp("", "plumb-gc-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(noCache)) }()
	c.Log("network %s: GC", n.Name)
	cni := libcni.NewCNIConfigWithCacheDir(c.Places.PluginPath, noCache, finisher{c.Exec})
	return cni.GCNetworkList(ctx, n.List(), &libcni.GCArgs{ValidAttachments: p.valid(now, n.Name)})
}

// A finisher starts no plugin after its context is done, but lets a started plugin finish.
type finisher struct{ invoke.Exec }

func (f finisher) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return f.Exec.ExecPlugin(context.WithoutCancel(ctx), path, stdin, environ)
}

// valid returns the attachments of a network that GC must keep. These are the current attachments of the host, except
// the dead ones. Because the name of an owner may be shortened or lack the interface, valid adds each live or kept
// container with each interface name of the network.
func (p *Plan) valid(now *node.Inventory, network string) []cnitypes.GCAttachment {
	dead, valid, ifNames := types.Set{}, types.Set{}, map[string]bool{"eth0": true}
	namespaces := map[string]bool{"": true} // nerdctl's namespaces, see life.RuntimeID
	for _, a := range p.Dead {
		dead[a.ID()] = true
	}
	for _, a := range now.Attachments {
		namespaces[strings.TrimSuffix(a.ContainerID, life.RuntimeID(a.ContainerID))] = true
		if a.Network != network {
			continue
		}
		if a.IfName != "" {
			ifNames[a.IfName] = true
		}
		if !a.Incomplete && !dead[a.ID()] {
			valid[a.ID()] = true
		}
	}
	ids := map[string]bool{}
	maps.Copy(ids, p.live.IDs)
	for _, k := range p.Kept {
		ids[k.ContainerID] = true
	}
	for id := range ids {
		for ifName := range ifNames {
			for namespace := range namespaces {
				valid[types.Attachment{Network: network, ContainerID: namespace + id, IfName: ifName}] = true
			}
		}
	}
	list := []cnitypes.GCAttachment{}
	for a := range valid {
		list = append(list, cnitypes.GCAttachment{ContainerID: a.ContainerID, IfName: a.IfName})
	}
	return list
}

// compare sets Removed and Left from the inventories before and after.
func (r *Report) compare(p *Plan, after *node.Inventory, pluginPath []string) {
	dead, replaced := types.Set{}, plugins.NewReplacements(pluginPath)
	for _, a := range p.Dead {
		dead[a.ID()] = true
	}
	for _, a := range p.before.Attachments {
		now := after.Attachment(a.ID())
		if gone := without(a, now); len(gone.Resources) > 0 && (dead[a.ID()] || a.Incomplete) {
			r.Removed = append(r.Removed, gone)
		}
		if now != nil && dead[a.ID()] {
			r.Left = append(r.Left, WithReason{now, leftReason(now, p.before.NetworkOf(a.Network).List(), replaced), life.Dead})
		}
	}
}

// leftReason returns why gc could not remove a dead attachment of the network, and what to do.
func leftReason(a *node.Attachment, list *libcni.NetworkConfigList, replaced *plugins.Replacements) string {
	if list == nil {
		return fmt.Sprintf("network %s has no configuration; run these commands:", a.Network)
	}
	if names := replaced.In(list); names != nil && a.HasOnlyElements() {
		return fmt.Sprintf("%s in %s are not plumb's plugins, and do not delete plumb's nftables elements; run these commands:",
			strings.Join(names, ", "), strings.Join(replaced.Path, ":"))
	}
	return "its DEL failed or was incomplete; fix the cause and run gc again, or run these commands:"
}

// without returns a copy of a with the resources that other lacks. other may be nil.
func without(a, other *node.Attachment) *node.Attachment {
	gone := *a
	gone.Resources = []node.Resource{}
	for _, t := range a.Resources {
		same := func(o node.Resource) bool { return o.Kind == t.Kind && o.Name == t.Name && o.Where == t.Where }
		if other == nil || !slices.ContainsFunc(other.Resources, same) {
			gone.Resources = append(gone.Resources, t)
		}
	}
	return &gone
}
