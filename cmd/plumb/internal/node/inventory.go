// Package node reads the resources that plugins created for attachments on this host, the configurations of networks, and
// the results in libcni's cache.
//
// Reading changes nothing and takes no lock. A plugin that runs at the same time may therefore add or remove resources.
package node

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/life"
	"github.com/plumb-cni/plumb/v2/pkg/hostfile"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// Places contains the directories to read.
type Places struct {
	ConfDirs   []string // the directories of the network configurations
	PluginPath []string // CNI_PATH
	CacheDirs  []string // the directories of libcni's caches, which contain a directory results, directly or one level below
	DataDir    string   // the default directory of reservations
	RunDir     string   // the directory of files that do not survive a reboot, /run/cni
}

// InRun returns the path at which plugins of this process keep the file or directory of RunDir with that name, or "" if they
// can write it nowhere (see hostfile.InRun).
func (p Places) InRun(name string) string { return hostfile.InRun(filepath.Join(p.RunDir, name)) }

// A Kind is a kind of Resource.
type Kind string

// These are the kinds of resources.
const (
	Reservation Kind = "reservation" // a file of host-local or cluster-local that reserves one address
	Link        Kind = "link"        // an interface on the host, such as the host end of a veth pair
	Element     Kind = "element"     // an element of an nftables set or map
	Record      Kind = "record"      // a file of tuning, ipvlan or host-device with the state that DEL restores
	Lease       Kind = "lease"       // a file of the DHCP daemon
	Result      Kind = "result"      // a file of libcni's cache, which exists if the ADD of the whole chain succeeded
)

// A Resource is one object on the host that belongs to an attachment.
type Resource struct {
	Kind  Kind   `json:"kind"`
	Name  string `json:"name"`  // the address, the interface, the key of the element, the plugin of a record, or libcni
	Where string `json:"where"` // the path of the file, the bridge of the interface, or the table and the map
	// Address is the reserved, leased or masqueraded address, or the target of a host port.
	Address string `json:"address,omitempty"`
	// Value is the value of a map element, or "jump" and a chain.
	Value  string     `json:"value,omitempty"`
	Since  *time.Time `json:"since,omitempty"` // the time at which the file was written; nil if the resource is not a file
	Remove string     `json:"remove"`          // the command that removes only this resource, as a last resort

	// Set is the set or map of an element, and LinkKind the kind of a link.
	Set, LinkKind string `json:"-"`
	index         int    // of a link
}

// An Attachment is one interface of one container in one network, and what the host holds for it.
type Attachment struct {
	Network     string `json:"network"`   // empty if unknown
	ContainerID string `json:"container"` // empty if unknown
	IfName      string `json:"ifName"`    // empty if unknown
	// Incomplete is true if one of the names is missing or shortened because no resource contains the whole name.
	Incomplete bool       `json:"incomplete,omitempty"`
	Addresses  []string   `json:"addresses"`       // the addresses from libcni's result or, without a result, from the resources
	NetNS      string     `json:"netns,omitempty"` // the path of the container's namespace, from libcni's cache
	Resources  []Resource `json:"resources"`
	Reason     string     `json:"reason,omitempty"` // why the attachment may be a leftover; empty if it is not suspect
	cached     *cachedAttachment
	oldest     time.Time
	youngest   time.Time
	namespaces life.Namespace
}

// ID returns the names of the attachment.
func (a *Attachment) ID() types.Attachment {
	return types.Attachment{Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName}
}

// runtimeLoopback is the network with which containerd sets lo up in each pod. It needs nothing on the host.
const runtimeLoopback = "cni-loopback"

// WithoutLoopback removes containerd's attachments of lo from the inventory.
func (inv *Inventory) WithoutLoopback() {
	inv.Attachments = slices.DeleteFunc(inv.Attachments, func(a *Attachment) bool { return IsLoopback(a.Network, a.IfName) })
	inv.Networks = slices.DeleteFunc(inv.Networks, func(n *Network) bool { return n.Name == runtimeLoopback && n.File == "" })
}

// IsLoopback reports whether an interface of a network is the lo that containerd sets up in each pod.
func IsLoopback(network, ifName string) bool { return network == runtimeLoopback && ifName == "lo" }

// CanDelete reports whether DEL can be called for the attachment, which needs the whole names of its network and container.
// The interface may be unknown if all resources are reservations whose files contain only the container ID, because DEL of
// host-local releases these for any interface.
func (a *Attachment) CanDelete() bool {
	return !a.Incomplete || a.Network != "" && a.ContainerID != "" && a.IfName == "" && len(a.ResourcesOf(Reservation)) == len(a.Resources)
}

// Youngest returns when the youngest file of the attachment was written, or the zero time if there is no file.
func (a *Attachment) Youngest() time.Time { return a.youngest }

// Since returns when the oldest file of the attachment was written, or the zero time if there is no file.
func (a *Attachment) Since() time.Time { return a.oldest }

// ResourcesOf returns the resources of a kind.
func (a *Attachment) ResourcesOf(k Kind) []Resource {
	return slices.DeleteFunc(slices.Clone(a.Resources), func(t Resource) bool { return t.Kind != k })
}

// HasOnlyElements reports whether all resources of the attachment are nftables elements.
func (a *Attachment) HasOnlyElements() bool { return len(a.ResourcesOf(Element)) == len(a.Resources) }

// VethIndex returns the index of the attachment's host end, or 0. The kernel gives a newer veth a higher index.
func (a *Attachment) VethIndex() int {
	for _, r := range a.ResourcesOf(Link) {
		if r.LinkKind == "veth" {
			return r.index
		}
	}
	return 0
}

// HasNamespace reports whether the namespace that libcni's cache names exists.
func (a *Attachment) HasNamespace() bool { return a.namespaces == life.Exists }

// HostEnd returns the name of a host end of the container, in any network, or "". If there is one, the container's
// namespace exists, because the kernel deletes both ends of a veth pair together.
func (inv *Inventory) HostEnd(containerID string) string { return inv.containers[containerID].hostEnd }

// An Inventory is what a host holds.
type Inventory struct {
	Time        time.Time     `json:"time"`
	Networks    []*Network    `json:"networks"`    // sorted by name
	Attachments []*Attachment `json:"attachments"` // sorted by network, container and interface
	// Errors contains the errors of the parts that could not be read. These parts may hold more resources.
	Errors []ReadError `json:"errors"`
	// Irregular contains the paths of files of address pools that are not regular files.
	Irregular []string `json:"-"`

	byID       map[types.Attachment]*Attachment
	containers map[string]container // the containers by ID
	partial    bool                 // a part that can contain attachments could not be read
	denied     error                // the first error that matches fs.ErrPermission
}

// A ReadError says why a part could not be read.
type ReadError struct {
	Part string // the path of a file or directory, "links", "nftables" or "processes"
	Err  error
}

func (e ReadError) String() string { return fmt.Sprintf("%s: %v", e.Part, e.Err) }

// MarshalText returns the same text as String, for JSON.
func (e ReadError) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// Read reads what the host of this process holds. Inventory.Errors contains the errors of the parts that cannot be read.
// Read fails if one of these errors is fs.ErrPermission, because most of the other resources would seem to lack an owner.
func (p Places) Read() (*Inventory, error) {
	h, err := ns.Self(nil)
	if err != nil {
		return nil, err
	}
	inv := &Inventory{
		Time: time.Now(), Networks: []*Network{}, Attachments: []*Attachment{}, Errors: []ReadError{},
		byID: map[types.Attachment]*Attachment{}, containers: map[string]container{},
	}
	inv.readNetworks(p)
	inv.readResults(p, h)
	inv.readFiles(p)
	inv.unread("links", inv.readLinks(h))
	if err := inv.readElements(h); !errors.Is(err, nft.ErrUnavailable) {
		inv.unread("nftables", err)
	}
	inv.unread("processes", inv.findContainers(h))
	if err := errors.Join(h.Close(), inv.denied); err != nil {
		return nil, err
	}
	inv.finish()
	return inv, nil
}

// unread records the error of a part that can contain attachments. It ignores a nil error.
func (inv *Inventory) unread(what string, err error) {
	inv.partial = inv.partial || err != nil
	inv.unreadFile(what, err)
}

// unreadFile records the error of a part that contains no attachments. It ignores a nil error.
func (inv *Inventory) unreadFile(what string, err error) {
	if errors.Is(err, fs.ErrPermission) && inv.denied == nil {
		inv.denied = fmt.Errorf("read %s: %w; run plumb as root on the host", what, err)
	}
	if err != nil {
		inv.Errors = append(inv.Errors, ReadError{what, err})
	}
}

// attachment returns the attachment with this ID, and adds it if it is missing.
func (inv *Inventory) attachment(id types.Attachment) *Attachment {
	a := inv.byID[id]
	if a == nil {
		a = &Attachment{
			Network: id.Network, ContainerID: id.ContainerID, IfName: id.IfName, Addresses: []string{}, Resources: []Resource{},
			Incomplete: id.Network == "" || id.ContainerID == "" || id.IfName == "",
		}
		inv.byID[id] = a
		inv.Attachments = append(inv.Attachments, a)
	}
	return a
}

func (a *Attachment) add(t Resource) {
	a.Resources = append(a.Resources, t)
	if t.Since == nil {
		return
	}
	if a.oldest.IsZero() || t.Since.Before(a.oldest) {
		a.oldest = *t.Since
	}
	if t.Since.After(a.youngest) {
		a.youngest = *t.Since
	}
}

// finish sets the fields that depend on all resources, and sorts the inventory.
func (inv *Inventory) finish() {
	results := slices.ContainsFunc(inv.Attachments, func(a *Attachment) bool { return a.cached != nil })
	inv.setCachedLists()
	for _, a := range inv.Attachments {
		a.setAddresses()
		a.Reason = a.suspicion()
		switch verdict, _ := inv.Judge(a, life.List{}); {
		case verdict == life.Alive && !a.Incomplete:
			a.Reason = ""
		case a.Reason == "" && results && a.cached == nil && inv.Time.Sub(a.youngest) > MaxAddTime:
			a.Reason = noResult
		}
		slices.SortStableFunc(a.Resources, func(x, y Resource) int {
			return cmp.Compare(slices.Index(Kinds(), x.Kind), slices.Index(Kinds(), y.Kind))
		})
		inv.NetworkOf(a.Network)
	}
	slices.SortFunc(inv.Attachments, func(x, y *Attachment) int {
		return cmp.Or(cmp.Compare(x.Network, y.Network), cmp.Compare(x.ContainerID, y.ContainerID), cmp.Compare(x.IfName, y.IfName))
	})
	for _, n := range inv.Networks {
		n.IPAMs = inv.ipamsOf(n)
		for _, ipam := range n.IPAMs {
			n.Pools = append(n.Pools, ipam.Pools...)
		}
	}
	slices.SortFunc(inv.Networks, func(x, y *Network) int { return cmp.Compare(x.Name, y.Name) })
}

// Kinds returns all kinds in the order in which an attachment lists its resources.
func Kinds() []Kind { return []Kind{Reservation, Lease, Link, Element, Record, Result} }

// setAddresses sets the addresses, from libcni's result or, without addresses there, from the resources.
func (a *Attachment) setAddresses() {
	if a.cached != nil && len(a.cached.addresses) > 0 {
		a.Addresses = a.cached.addresses
		return
	}
	for _, t := range a.Resources {
		if t.Address != "" && !slices.Contains(a.Addresses, t.Address) {
			a.Addresses = append(a.Addresses, t.Address)
		}
	}
	slices.SortFunc(a.Addresses, compareAddresses)
}

// These are the values of Attachment.Reason, besides "" and the values of onlyOfKind.
const (
	ownerUnknown = "owner not known"
	noNamespace  = "namespace gone"
	notListed    = "unknown to the runtime"
	noResult     = "no result" // the runtime uses libcni's cache, which contains results of other attachments, but no result of this one
)

// onlyOfKind contains the Reason of an attachment whose resources are all of one kind.
var onlyOfKind = map[Kind]string{Reservation: "reservation only", Element: "elements only", Record: "record only", Lease: "lease only"}

// Reasons returns all values of Attachment.Reason but "".
func Reasons() []string {
	only := onlyOfKind
	return []string{ownerUnknown, noNamespace, notListed, noResult, only[Reservation], only[Element], only[Record], only[Lease]}
}

// MaxAddTime is the longest expected duration of an ADD. The ADD of an attachment with younger files may still be running,
// and libcni writes the result when the ADD has ended.
const MaxAddTime = time.Minute

// AddMayRun reports whether the ADD of the attachment may still be running. If the host holds only an interface of the
// attachment and no file, the age is unknown, and the ADD may be running.
func (a *Attachment) AddMayRun() bool {
	return a.oldest.IsZero() && len(a.ResourcesOf(Link)) > 0 || time.Since(a.oldest) < MaxAddTime
}

// suspicion returns why the attachment may be a leftover according to its own resources, or "".
func (a *Attachment) suspicion() string {
	switch {
	case a.Incomplete:
		return ownerUnknown
	case a.namespaces == life.Gone, a.namespaces == life.Reused:
		return noNamespace
	case len(a.Resources) == 0, slices.ContainsFunc(a.Resources, func(t Resource) bool { return t.Kind != a.Resources[0].Kind }):
		return ""
	}
	return onlyOfKind[a.Resources[0].Kind]
}

// Select keeps one network, and the attachments of containers whose ID begins with prefix. It keeps all networks if network
// is empty. If the network does not exist, Select returns the error of Network, and if no container matches, an error as Find.
func (inv *Inventory) Select(network, prefix string) error {
	if network != "" {
		n, err := inv.Network(network)
		if err != nil {
			return err
		}
		inv.Networks = []*Network{n}
	}
	inv.Attachments = slices.DeleteFunc(inv.Attachments, func(a *Attachment) bool {
		return network != "" && a.Network != network || !strings.HasPrefix(a.ContainerID, prefix)
	})
	where := "a network of this host"
	if network != "" {
		where = "network " + network
	}
	if prefix != "" && len(inv.Attachments) == 0 {
		return noContainer(prefix, where)
	}
	return nil
}

// noContainer returns the error that no ID begins with prefix.
func noContainer(prefix, where string) error {
	return fmt.Errorf("no container whose ID begins with %q is attached to %s; a pod's ID is the ID of its sandbox; plumb list shows all attachments", prefix, where)
}

// Attachment returns the attachment with this ID, or nil.
func (inv *Inventory) Attachment(id types.Attachment) *Attachment { return inv.byID[id] }

// Facts returns what the host shows about each attachment, for package life.
func (inv *Inventory) Facts() (all []life.Facts) {
	for _, a := range inv.Attachments {
		all = append(all, inv.factsOf(a))
	}
	return all
}

func (inv *Inventory) factsOf(a *Attachment) life.Facts {
	c := inv.containers[a.ContainerID]
	return life.Facts{
		Network: a.Network, ContainerID: a.ContainerID, CanDelete: a.CanDelete(), HasResult: a.cached != nil,
		Path: a.NetNS, Namespace: a.namespaces, NetNS: c.netns, HostEnd: c.hostEnd, Process: c.process, Named: c.named,
	}
}

// Suspect sets the Reason of the attachments on the runtimes' networks whose containers do not live according to the list. It
// omits attachments whose ADD may be running. It removes the Reason of attachments whose containers the runtime lists, because
// the runtime will call their DEL. The zero List says nothing.
func (inv *Inventory) Suspect(list life.List) {
	for _, a := range inv.Attachments {
		if list.RuntimeNetworks[a.Network] && list.Contains(a.ContainerID) && a.CanDelete() {
			a.Reason = ""
		}
		if verdict, _ := inv.Judge(a, list); a.Reason == "" && verdict != life.Alive && list.RuntimeNetworks[a.Network] && a.CanDelete() && !a.AddMayRun() {
			a.Reason = notListed
		}
	}
}

// Judge returns whether the container of an attachment lives, and the reason (see life.Judge).
func (inv *Inventory) Judge(a *Attachment, list life.List) (life.Life, string) {
	return life.Judge(inv.factsOf(a), list)
}

// NetworkOf returns the network with this name. If it is missing, NetworkOf adds it without a configuration.
func (inv *Inventory) NetworkOf(name string) *Network {
	i := slices.IndexFunc(inv.Networks, func(n *Network) bool { return n.Name == name })
	if i < 0 {
		i = len(inv.Networks)
		inv.Networks = append(inv.Networks, &Network{Name: name, Plugins: []string{}})
	}
	return inv.Networks[i]
}

// ErrNoNetwork means that the host has no network with a name.
var ErrNoNetwork = errors.New("no such network on this host")

// IsPartial reports whether a part that can contain attachments could not be read.
func (inv *Inventory) IsPartial() bool { return inv.partial }

// Network returns the network with this name, or an error that wraps ErrNoNetwork and lists the existing networks.
func (inv *Inventory) Network(name string) (*Network, error) {
	var names []string
	for _, n := range inv.Networks {
		if n.Name == name {
			return n, nil
		}
		names = append(names, n.Name)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("network %q: %w, which has no networks and no network configurations", name, ErrNoNetwork)
	}
	return nil, fmt.Errorf("network %q: %w; its networks are %s", name, ErrNoNetwork, strings.Join(names, ", "))
}

// Find returns the attachments of the container whose ID, with or without nerdctl's namespace, is prefix or begins with it. If
// ifName is not empty, Find returns only the attachments with this interface name. It returns an error if no container or
// several containers match.
func (inv *Inventory) Find(prefix, ifName string) ([]*Attachment, error) {
	var found []*Attachment
	ids := map[string]bool{}
	exact := slices.ContainsFunc(inv.Attachments, func(a *Attachment) bool { return a.ContainerID == prefix })
	for _, a := range inv.Attachments {
		matches := a.ContainerID == prefix || !exact && (strings.HasPrefix(a.ContainerID, prefix) || strings.HasPrefix(life.RuntimeID(a.ContainerID), prefix))
		if a.ContainerID != "" && matches && (ifName == "" || a.IfName == ifName) {
			found = append(found, a)
			ids[a.ContainerID] = true
		}
	}
	switch {
	case len(found) == 0 && ifName != "":
		return nil, fmt.Errorf("no container whose ID begins with %q has an interface %q in a network of this host; plumb list shows all attachments", prefix, ifName)
	case len(found) == 0:
		return nil, noContainer(prefix, "a network of this host")
	case len(ids) > 1:
		return nil, fmt.Errorf("the IDs of %d containers begin with %q; give more of the ID", len(ids), prefix)
	}
	return found, nil
}
