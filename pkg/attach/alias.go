package attach

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/statefile"
	"github.com/plumb-cni/plumb/pkg/types"
)

const (
	aliasPrefix  = "plumb:"
	maxAliasPart = 110 // bytes of a part of an alias; the kernel allows 255 in all
)

// LinkAlias returns the alias of the links of the attachment. `ip link` shows it.
func LinkAlias(a types.Attachment) string {
	return networkAlias(a.Network) + shortened(a.ContainerID) + "/" + a.IfName
}

// MadeByPlumb reports whether the alias of the link says that plumb created it.
func MadeByPlumb(l nl.Link) bool { return strings.HasPrefix(l.Alias, aliasPrefix) }

// OwnerOf returns the attachment of a link that plumb created for the network. It reports false for
// any other link, and if the alias has only a hash of the container ID, which is too long.
func OwnerOf(l nl.Link, network string) (owner types.Attachment, ok bool) {
	rest, ok := strings.CutPrefix(l.Alias, networkAlias(network))
	containerID, ifName, found := strings.Cut(rest, "/")
	owner = types.Attachment{Network: network, ContainerID: containerID, IfName: ifName}
	return owner, ok && found && !strings.HasPrefix(containerID, "#")
}

// ParseAlias returns the attachment that the alias of a link names. made is false if plumb did not make the
// link. complete is false if the alias has a hash in place of a name that is too long.
func ParseAlias(l nl.Link) (owner types.Attachment, made, complete bool) {
	text, made := strings.CutPrefix(l.Alias, aliasPrefix)
	owner, ok := types.ParseAttachment(text)
	return owner, made && ok, ok && !strings.HasPrefix(owner.Network, "#") && !strings.HasPrefix(owner.ContainerID, "#")
}

// NamesOther reports whether the alias of the link names another attachment: then another
// namespace is at the path. A link without an alias of plumb's was created by another program.
func NamesOther(l nl.Link, owner types.Attachment) bool {
	return MadeByPlumb(l) && l.Alias != LinkAlias(owner)
}

// altNamePrefix is what the AltNames of all attachments begin with.
const altNamePrefix = "plumb-"

// AltName returns the alternative name that marks a link of the attachment. It is for a link whose
// alias has something else.
func AltName(a types.Attachment) string { return altNamePrefix + statefile.ShortHash(a.String()) }

// HasAltName reports whether the link has the AltName of the attachment.
func HasAltName(l nl.Link, a types.Attachment) bool { return slices.Contains(l.AltNames, AltName(a)) }

// HasOtherAltName reports whether the link has the AltName of another attachment.
func HasOtherAltName(l nl.Link, own types.Attachment) bool {
	return slices.ContainsFunc(l.AltNames, func(name string) bool {
		return strings.HasPrefix(name, altNamePrefix) && name != AltName(own)
	})
}

// UnfinishedGroup returns the group of a link of the network that has no alias yet. The
// kernel sets the group when it creates the link, but the alias only later. If the plugin is
// killed between the two, GC finds the link by its group.
func UnfinishedGroup(network string) uint32 {
	sum := sha256.Sum256([]byte(networkAlias(network)))
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

// networkAlias returns what the aliases of all links of the network begin with.
func networkAlias(network string) string { return aliasPrefix + shortened(network) + "/" }

// shortened returns s or, if s is too long for an alias, its hash.
func shortened(s string) string {
	if len(s) <= maxAliasPart {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return "#" + hex.EncodeToString(sum[:16])
}

// VethGC returns the LinkGC of the host ends that plumb created for the network.
func VethGC(host *nl.Conn, network string) LinkGC {
	return LinkGC{Host: host, Kind: "veth", Network: network, Names: hostNames}
}

// A LinkGC finds the links of one kind that plumb created on the host for a network.
type LinkGC struct {
	Host    *nl.Conn
	Kind    string // "veth", "ifb"
	Network string
	Names   func(types.Attachment) []string // the names that a link of the attachment can have
}

// Run deletes the links whose attachment is not in keep.
func (g LinkGC) Run(keep types.Set) error {
	stale, err := g.Stale(keep)
	errs := []error{err}
	for _, l := range stale {
		errs = append(errs, g.Host.DeleteLink(l))
	}
	return errors.Join(errs...)
}

// Stale returns the links whose attachment is not in keep. A link without an alias is
// compared by its name: an ADD may still be making it. SPEC 1.1.0 (section 3) forbids
// runtimes to call GC during an ADD. Some do, but their list contains that attachment.
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
		unfinished := l.Alias == "" && l.Group == UnfinishedGroup(g.Network)
		finished := strings.HasPrefix(l.Alias, networkAlias(g.Network))
		if unfinished && !names[l.Name] || finished && !aliases[l.Alias] {
			stale = append(stale, l)
		}
	}
	return stale, nil
}
