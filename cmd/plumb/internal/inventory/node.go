// Package inventory reads what the container networks of this host hold: the resources that plugins made for
// attachments, the configurations of networks, and the results that libcni keeps. It also removes the
// resources of containers that no longer exist (Collector).
//
// Reading changes nothing, and takes no lock. A plugin that runs at the same time may add or remove
// something meanwhile.
package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
)

// Places says where to look.
type Places struct {
	ConfDir    string   // the folder of the networks' configurations
	PluginPath []string // the folders of the plugins' executables
	CacheDirs  []string // libcni's caches, which contain a directory results, or directories with one
	DataDir    string   // the folder of reservations for which no configuration names another one
	RunDir     string   // the folder in which plugins keep what a reboot ends: /run/cni
}

// A Kind is a kind of Resource.
type Kind string

// The kinds of resources.
const (
	Reservation Kind = "reservation" // a file of host-local or cluster-local, which reserves one address
	Link        Kind = "link"        // an interface on the host, such as the host end of a veth pair
	Element     Kind = "element"     // an element of a set or map of nftables
	Record      Kind = "record"      // a file of tuning, ipvlan or host-device, from which DEL restores
	Lease       Kind = "lease"       // a file of the DHCP daemon
	Result      Kind = "result"      // a file of libcni's cache: the ADD of the whole chain succeeded
)

// A Resource is one object on the host that belongs to an attachment.
type Resource struct {
	Kind  Kind   `json:"kind"`
	Name  string `json:"name"`  // the address, the interface, the key of the element, the plugin of a record, or libcni
	Where string `json:"where"` // the path of the file, the bridge of the interface, or the table and the map
	// Address is the address of a reservation or lease, or one that is masqueraded, or to which a host port leads.
	Address string `json:"address,omitempty"`
	// Value is to what the element of a map leads: a value, or "jump" and a chain.
	Value  string     `json:"value,omitempty"`
	Since  *time.Time `json:"since,omitempty"` // when the file was written; only files have it
	Remove string     `json:"remove"`          // the command that removes the resource alone, if nothing else helps

	sub string // of an element: the name of the set; of a link: its kind
}

// An Attachment is one interface of one container in one network, and what the host holds for it.
type Attachment struct {
	Network     string `json:"network"`   // empty: not known
	ContainerID string `json:"container"` // empty: not known
	IfName      string `json:"ifName"`    // empty: not known
	// Incomplete says that one of the names is missing or shortened, because the resources do not have more.
	Incomplete bool       `json:"incomplete,omitempty"`
	Addresses  []string   `json:"addresses"`       // those of libcni's result, or else those of the resources
	NetNS      string     `json:"netns,omitempty"` // the path of the container's namespace, as libcni's cache has it
	Resources  []Resource `json:"resources"`
	Reason     string     `json:"reason,omitempty"` // why the attachment may be a leftover; empty: nothing speaks for that
	cached     *cachedAttachment
	oldest     time.Time
	youngest   time.Time
	namespaces namespaceState
}

// ID returns the names of the attachment.
func (a *Attachment) ID() types.Attachment {
	return types.Attachment{Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName}
}

// CanDelete reports whether DEL can be called for the attachment: its network and its container are known by their whole
// names. The interface of a reservation is not known if the file has the container ID only: DEL of host-local releases
// it for any interface.
func (a *Attachment) CanDelete() bool {
	return !a.Incomplete || a.Network != "" && a.ContainerID != "" && a.IfName == "" && len(a.ResourcesOf(Reservation)) == len(a.Resources)
}

// Since returns when the oldest file of the attachment was written, or the zero time if it has no file.
func (a *Attachment) Since() time.Time { return a.oldest }

// ResourcesOf returns the resources of a kind.
func (a *Attachment) ResourcesOf(k Kind) []Resource {
	return slices.DeleteFunc(slices.Clone(a.Resources), func(t Resource) bool { return t.Kind != k })
}

// HasNamespace reports whether the namespace that libcni's cache names exists.
func (a *Attachment) HasNamespace() bool { return a.namespaces == namespaceExists }

// HostEnd returns the name of a host end of a veth pair of the container, in any network, or "". If there is one, the
// namespace of the container exists: a veth pair ends with one of its ends.
func (inv *Inventory) HostEnd(containerID string) string { return inv.containers[containerID].hostEnd }

// An Inventory is what a host holds.
type Inventory struct {
	Time        time.Time     `json:"time"`
	Networks    []*Network    `json:"networks"`    // in the order of their names
	Attachments []*Attachment `json:"attachments"` // in the order of network, container and interface
	// Errors has the errors of the parts that could not be read, which can hold more.
	Errors []string `json:"errors"`

	byID       map[types.Attachment]*Attachment
	containers map[string]container // by their IDs
	partial    bool                 // some of what the host holds could not be read
	denied     error
}

// Read reads what the host of this process holds. What cannot be read of it is in Inventory.Errors. Read fails if
// this process may not read a part of it (fs.ErrPermission): most of the rest would seem to have no owner.
func (p Places) Read() (*Inventory, error) {
	h, err := ns.Self(nil)
	if err != nil {
		return nil, err
	}
	inv := &Inventory{
		Time: time.Now(), Networks: []*Network{}, Attachments: []*Attachment{}, Errors: []string{},
		byID: map[types.Attachment]*Attachment{}, containers: map[string]container{},
	}
	inv.readNetworks(p)
	inv.readResults(p, h)
	inv.readFiles(p)
	inv.readKernel(h)
	inv.unread("processes", inv.findContainers(h))
	if err := errors.Join(h.Close(), inv.denied); err != nil {
		return nil, err
	}
	inv.finish()
	return inv, nil
}

// unread records the error of a part of what the host holds. A nil error is none.
func (inv *Inventory) unread(what string, err error) {
	inv.partial = inv.partial || err != nil
	inv.unreadFile(what, err)
}

// unreadFile records the error of a file. A nil error is none.
func (inv *Inventory) unreadFile(what string, err error) {
	if errors.Is(err, fs.ErrPermission) && inv.denied == nil {
		inv.denied = fmt.Errorf("read %s: %w; run plumb as root on the host", what, err)
	}
	if err != nil {
		inv.Errors = append(inv.Errors, fmt.Sprintf("%s: %v", what, err))
	}
}

// attachment returns the attachment with these names, and adds it if the inventory has none.
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

// add adds a resource to the attachment.
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

// finish sets what depends on all resources, and sorts.
func (inv *Inventory) finish() {
	results := slices.ContainsFunc(inv.Attachments, func(a *Attachment) bool { return a.cached != nil })
	inv.setCachedLists()
	for _, a := range inv.Attachments {
		a.setAddresses()
		a.Reason = a.suspicion()
		switch life, _ := inv.Judge(a, LiveList{}); {
		case life == Alive && !a.Incomplete:
			a.Reason = ""
		case a.Reason == "" && results && a.cached == nil && inv.Time.Sub(a.youngest) > MaxAddTime:
			a.Reason = noResult
		}
		slices.SortStableFunc(a.Resources, func(x, y Resource) int {
			return cmp.Compare(slices.Index(kinds(), x.Kind), slices.Index(kinds(), y.Kind))
		})
		inv.network(a.Network)
	}
	slices.SortFunc(inv.Attachments, func(x, y *Attachment) int {
		return cmp.Or(cmp.Compare(x.Network, y.Network), cmp.Compare(x.ContainerID, y.ContainerID), cmp.Compare(x.IfName, y.IfName))
	})
	slices.SortFunc(inv.Networks, func(x, y *Network) int { return cmp.Compare(x.Name, y.Name) })
}

// kinds returns all kinds, in the order in which the resources of an attachment are listed.
func kinds() []Kind { return []Kind{Reservation, Lease, Link, Element, Record, Result} }

// setAddresses sets the addresses: those of libcni's result and, if there is none, those of the resources.
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

// The values of Attachment.Reason.
const (
	ownerUnknown  = "owner not known"
	noNamespace   = "namespace gone"
	noResult      = "no result" // although libcni's cache has results of others, so that the runtime uses it
	onlyElements  = "elements only"
	onlyAddresses = "reservation only"
	onlyRecord    = "record only"
	onlyLease     = "lease only"
)

// reasons has all of them.
var reasons = []string{ownerUnknown, noNamespace, noResult, onlyAddresses, onlyElements, onlyRecord, onlyLease}

// MaxAddTime is the longest time that an ADD is expected to take. If the files of an attachment are younger, its ADD may
// not have ended. libcni writes the result when the ADD has ended.
const MaxAddTime = time.Minute

// suspicion returns why the attachment may be a leftover, as far as its own resources tell.
func (a *Attachment) suspicion() string {
	kinds := map[Kind]bool{}
	for _, t := range a.Resources {
		kinds[t.Kind] = true
	}
	switch {
	case a.Incomplete:
		return ownerUnknown
	case a.namespaces == namespaceGone, a.namespaces == namespaceReused:
		return noNamespace
	case len(kinds) != 1:
		return ""
	case kinds[Reservation]:
		return onlyAddresses
	case kinds[Element]:
		return onlyElements
	case kinds[Record]:
		return onlyRecord
	case kinds[Lease]:
		return onlyLease
	}
	return ""
}

// Select removes all but one network, and all attachments but those of containers whose ID begins with prefix.
// An empty text stands for all. If the network does not exist, Select returns an error that names those that do.
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
	return nil
}

// network returns the network of that name, and adds it if the inventory has none. It has no configuration then.
func (inv *Inventory) network(name string) *Network {
	i := slices.IndexFunc(inv.Networks, func(n *Network) bool { return n.Name == name })
	if i < 0 {
		i = len(inv.Networks)
		inv.Networks = append(inv.Networks, &Network{Name: name, Plugins: []string{}})
	}
	return inv.Networks[i]
}

// Network returns the network of that name, or an error that names those that exist.
func (inv *Inventory) Network(name string) (*Network, error) {
	var names []string
	for _, n := range inv.Networks {
		if n.Name == name {
			return n, nil
		}
		names = append(names, n.Name)
	}
	if len(names) == 0 {
		return nil, errors.New("this host has no network, and no configuration of one")
	}
	return nil, fmt.Errorf("network %q: there is no such network on this host; it has %s", name, strings.Join(names, ", "))
}
