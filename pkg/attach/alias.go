package attach

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

const (
	aliasPrefix  = "plumb:"
	maxAliasPart = 110 // bytes of a name or ID in an alias, because the kernel limits the whole alias to 255 bytes
)

// LinkAlias returns the alias of the attachment's links, which `ip link` prints.
func LinkAlias(a types.Attachment) string {
	return networkAlias(a.Network) + shorten(a.ContainerID) + "/" + a.IfName
}

// CreatedByPlumb reports whether the link's alias says that plumb created the link.
func CreatedByPlumb(l nl.Link) bool { return strings.HasPrefix(l.Alias, aliasPrefix) }

// OwnerOf returns the attachment of a link that plumb created for the network. ok is false for any other
// link, and for a link whose alias contains a hash in place of a long container ID.
func OwnerOf(l nl.Link, network string) (owner types.Attachment, ok bool) {
	rest, ok := strings.CutPrefix(l.Alias, networkAlias(network))
	containerID, ifName, found := strings.Cut(rest, "/")
	owner = types.Attachment{Network: network, ContainerID: containerID, IfName: ifName}
	return owner, ok && found && !strings.HasPrefix(containerID, "#")
}

// ParseAlias returns the attachment that the link's alias names. created is false if plumb did not create the
// link. complete is false if the alias contains a hash in place of a long
// network name or container ID.
func ParseAlias(l nl.Link) (owner types.Attachment, created, complete bool) {
	text, created := strings.CutPrefix(l.Alias, aliasPrefix)
	owner, ok := types.ParseAttachment(text)
	return owner, created && ok, ok && !strings.HasPrefix(owner.Network, "#") && !strings.HasPrefix(owner.ContainerID, "#")
}

// IsOfContainer reports whether the link's alias names an attachment of the container.
func IsOfContainer(l nl.Link, containerID string) bool {
	owner, created, _ := ParseAlias(l)
	return created && owner.ContainerID == shorten(containerID)
}

// altNamePrefix is the prefix of the alternative names that plumb adds to links.
const altNamePrefix = "plumb-"

// AltName returns the alternative name that marks a link as the attachment's. host-device adds
// it to devices, whose alias another program may use.
func AltName(a types.Attachment) string { return altNamePrefix + types.ShortHash(a.String()) }

// returnPrefix is the prefix of the names that ReturnName returns.
const returnPrefix = "hd-"

// ReturnName returns the name with which host-device returns the attachment's device to the host if another interface has the
// device's name. The alias of the device is then its name.
func ReturnName(a types.Attachment) string {
	return (returnPrefix + types.ShortHash(a.String()))[:types.MaxIfName]
}

// IsReturned reports whether the name and the alias of a link are those of a device with a ReturnName.
func IsReturned(l nl.Link) bool {
	digits, ok := strings.CutPrefix(l.Name, returnPrefix)
	return ok && len(l.Name) == types.MaxIfName && strings.Trim(digits, "0123456789abcdef") == "" && types.CheckIfName(l.Alias) == nil
}

// HasAltName reports whether AltName(a) is one of the link's alternative names.
func HasAltName(l nl.Link, a types.Attachment) bool { return slices.Contains(l.AltNames, AltName(a)) }

// HasOtherAltName reports whether one of the link's alternative names is the AltName of another attachment.
func HasOtherAltName(l nl.Link, own types.Attachment) bool {
	return slices.ContainsFunc(l.AltNames, func(name string) bool {
		return strings.HasPrefix(name, altNamePrefix) && name != AltName(own)
	})
}

// UserAltNames returns the link's alternative names except those that AltName returns for any attachment.
func UserAltNames(l nl.Link) []string {
	return slices.DeleteFunc(slices.Clone(l.AltNames), func(name string) bool { return strings.HasPrefix(name, altNamePrefix) })
}

// UnfinishedGroup returns the link group of the network's links without an alias. The kernel sets the
// group when it creates a link, but the alias only in a later request. If the plugin is killed between the
// two, GC finds the link by its group.
func UnfinishedGroup(network string) uint32 {
	sum := types.Hash(networkAlias(network))
	return binary.BigEndian.Uint32(sum[:]) | 1<<31
}

// SetOwner sets the alias of a link that was created for the attachment in its UnfinishedGroup,
// and then clears the group.
func SetOwner(c *nl.Conn, l nl.Link, owner types.Attachment) error {
	if err := c.SetAlias(l, LinkAlias(owner)); err != nil {
		return err
	}
	return c.ClearGroup(l)
}

// networkAlias returns the prefix of the aliases of all the network's links.
func networkAlias(network string) string { return aliasPrefix + shorten(network) + "/" }

// shorten returns s or, if s is longer than maxAliasPart, a hash of s.
func shorten(s string) string {
	if len(s) <= maxAliasPart {
		return s
	}
	sum := types.Hash(s)
	return "#" + hex.EncodeToString(sum[:16])
}

// VethGC returns the LinkGC of the host ends that plumb created for the network, except those of host-access.
func VethGC(host *nl.Conn, network string) LinkGC {
	return LinkGC{Host: host, Kind: "veth", Network: network, Names: hostNames}
}

// AccessGC returns the LinkGC of the host ends that host-access created for the network.
func AccessGC(host *nl.Conn, network string) LinkGC {
	return LinkGC{Host: host, Kind: "veth", Network: network, Names: accessNames, access: true}
}

// A LinkGC deletes the links of one kind that plumb created on the host for invalid attachments of a network.
type LinkGC struct {
	Host    *nl.Conn
	Kind    string // kind of the links, "veth" or "ifb"
	Network string
	Names   func(types.Attachment) []string // returns the possible names of the attachment's link
	access  bool                            // whether the links are those of host-access, instead of all others
}

// Run deletes the links that Stale returns.
func (g LinkGC) Run(keep types.Set) error {
	stale, err := g.Stale(keep)
	errs := []error{err}
	for _, l := range stale {
		errs = append(errs, g.Host.DeleteLink(l))
	}
	return errors.Join(errs...)
}

// Stale returns the links of attachments that are not in keep. It compares a link without an alias by its
// name, because an ADD may still be creating the link. SPEC 1.1.0 (section 3) forbids runtimes to call GC
// during an ADD. Some runtimes do, but they list the attachment of that ADD as valid.
func (g LinkGC) Stale(keep types.Set) ([]nl.Link, error) {
	links, err := g.Host.LinksOfKind(g.Kind)
	if err != nil {
		return nil, err
	}
	aliases, names := map[string]bool{}, map[string]bool{}
	for a := range keep {
		aliases[LinkAlias(a)] = true
		for _, name := range g.Names(a) {
			names[name] = true
		}
	}
	var stale []nl.Link
	for _, l := range links {
		if IsAccessEnd(l.Name) != g.access {
			continue
		}
		unfinished := l.Alias == "" && l.Group == UnfinishedGroup(g.Network)
		finished := strings.HasPrefix(l.Alias, networkAlias(g.Network))
		if unfinished && !names[l.Name] || finished && !aliases[l.Alias] {
			stale = append(stale, l)
		}
	}
	return stale, nil
}
