package attach

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
)

// hostPrefix begins the name of the host end of a veth pair. 8 hexadecimal digits follow, as with the reference
// plugins, but plumb's digits are a hash of the attachment. Therefore HostEnd can find the host end without prevResult
// and without the container. The link's alias names the attachment and proves that plumb created the link for it.
const hostPrefix = "veth"

// accessPrefix begins the name of a host end that host-access created. It differs from every other name of a host end,
// because h is not a hexadecimal digit.
const accessPrefix = hostPrefix + "h"

// hostNames returns the four possible names of the host end of the attachment's pair. AddVeth uses the first name that no
// other link has.
func hostNames(owner types.Attachment) []string { return namesWith(hostPrefix, owner) }

// accessNames returns the possible names of the host end of the pair that host-access creates for the attachment.
func accessNames(owner types.Attachment) []string { return namesWith(accessPrefix, owner) }

func namesWith(prefix string, owner types.Attachment) (names []string) {
	sum := types.Hash(owner.String())
	for part := range slices.Chunk(sum[:16], 4) {
		names = append(names, prefix+hex.EncodeToString(part))
	}
	return names
}

// A Pair describes a veth pair that AddVeth creates for a container.
type Pair struct {
	Host, Container *nl.Conn
	Owner           types.Attachment
	Name            string    // name of the container end of a pair of host-access; if it is "", the interface name of the attachment
	MAC             types.MAC // MAC of the container end; if it is zero, nl.Conn.AddVeth chooses a random MAC
	MTU             int       // MTU of both ends, in bytes; if it is zero, the kernel chooses it
}

func (p Pair) containerEnd() string { return cmp.Or(p.Name, p.Owner.IfName) }

// AccessName returns the name of the container end of the pair that host-access creates beside the container's interface.
func AccessName(ifName string) string {
	if name := "h-" + ifName; len(name) <= types.MaxIfName {
		return name
	}
	return "h-" + types.ShortHash(ifName)[:12]
}

// EnsureNameFree returns an error with types.CodeConfig if the container already has an interface with the name. Plugins
// call EnsureNameFree before they call the IPAM plugin.
func EnsureNameFree(container *nl.Conn, ifName string) error {
	if _, err := container.LinkByAnyName(ifName); err != nil {
		return types.IgnoreNotExist(err)
	}
	return types.Errorf(types.CodeConfig, "interface %q already exists in container %s: either this attachment was already added, or CNI_IFNAME must be another name", ifName, container.NS().Path())
}

// AddVeth creates the pair and pushes its removal to u. Both ends are down. The caller first attaches the host end to a
// bridge or adds addresses to it, and then sets it up.
func AddVeth(u *undo.Stack, p Pair) (hostEnd, container nl.Link, err error) {
	names := hostNames(p.Owner)
	if p.Name != "" {
		names = accessNames(p.Owner)
	}
	for _, name := range names {
		hostEnd, container, err = p.Host.AddVeth(u, nl.Veth{
			Name: name, Peer: p.containerEnd(), PeerIn: p.Container, PeerMAC: p.MAC, MTU: p.MTU,
			Group: UnfinishedGroup(p.Owner.Network), // marks the link until SetOwner has set the alias
		})
		if !errors.Is(err, fs.ErrExist) {
			break
		}
		if err := p.explainExists(name); err != nil {
			return nl.Link{}, nl.Link{}, err
		}
	}
	if err != nil {
		return nl.Link{}, nl.Link{}, err
	}
	// While the link is down, it cannot receive a router advertisement from the container.
	if err := sysctl.Set(p.Host.NS(), IgnoreRouters(hostEnd.Name)); err != nil {
		return nl.Link{}, nl.Link{}, err
	}
	hostEnd.Alias = LinkAlias(p.Owner)
	return hostEnd, container, SetOwner(p.Host, hostEnd, p.Owner)
}

// explainExists explains why the kernel created no pair (EEXIST). It returns nil if the link with the name belongs to
// another attachment or an unknown owner, so that the caller tries the next name.
func (p Pair) explainExists(name string) error {
	l, err := p.Host.Link(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return EnsureNameFree(p.Container, p.containerEnd())
	case err == nil && createdFor(l, p.Owner):
		return types.Errorf(types.CodeConfig, "host interface %s already serves %s: an earlier ADD was not followed by a DEL", name, p.Owner)
	}
	return err
}

// HostEnd returns the host end of the attachment's pair. It looks for links with the possible names of the attachment's
// host end, and then for links with the names in prev, which may be nil. It returns a link that plumb created for the
// attachment, or a link without an alias whose name is in prev, because the reference plugins set no alias. If no link
// is found, the error matches fs.ErrNotExist.
func HostEnd(host *nl.Conn, owner types.Attachment, prev *types.Result) (nl.Link, error) {
	prevNames := hostEndNames(prev)
	return findHostEnd(host, owner, append(hostNames(owner), prevNames...), func(l nl.Link) bool { return slices.Contains(prevNames, l.Name) })
}

// AccessHostEnd returns the host end of the pair that host-access created beside the attachment's interface. It is not the
// HostEnd of an attachment, because its name differs. A link that has the right name but no alias is the host end only if
// isOwn, which may be nil, returns true. If the host end does not exist, the error matches fs.ErrNotExist.
func AccessHostEnd(host *nl.Conn, owner types.Attachment, isOwn func(nl.Link) bool) (nl.Link, error) {
	return findHostEnd(host, owner, accessNames(owner), isOwn)
}

func findHostEnd(host *nl.Conn, owner types.Attachment, names []string, isOwn func(nl.Link) bool) (nl.Link, error) {
	for _, name := range names {
		l, err := host.Link(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nl.Link{}, err
		}
		if err == nil && l.Kind == "veth" && (createdFor(l, owner) || l.Alias == "" && isOwn != nil && isOwn(l)) {
			return l, nil
		}
	}
	return nl.Link{}, types.NotExist(fmt.Sprintf("the host lacks the other end of the veth pair of %s (%s)", owner.IfName, owner))
}

// createdFor reports whether plumb created the host end for the attachment. It compares the link's alias or, if the link
// has no alias yet, its group. It ignores the name, which any program may use.
func createdFor(hostEnd nl.Link, owner types.Attachment) bool {
	return hostEnd.Alias == LinkAlias(owner) || hostEnd.Alias == "" && hostEnd.Group == UnfinishedGroup(owner.Network)
}

// IsHostEndName reports whether the name begins like the name of a host end.
func IsHostEndName(name string) bool { return strings.HasPrefix(name, hostPrefix) }

// NameOfHostEnd returns the name that ADD gives the attachment's host end if no other interface has it.
func NameOfHostEnd(owner types.Attachment) string { return hostNames(owner)[0] }

// HasHostEndForm reports whether the name has the form of a host end's name, with plumb and with the reference plugins.
func HasHostEndForm(name string) bool {
	digits, found := strings.CutPrefix(name, hostPrefix)
	sum, err := hex.DecodeString(digits)
	return found && err == nil && len(sum) == 4
}

// IsAccessEnd reports whether the name is that of a host end of host-access.
func IsAccessEnd(name string) bool { return strings.HasPrefix(name, accessPrefix) }

// hostEndNames returns the names of the host ends of veth pairs in prev, which may be nil.
func hostEndNames(prev *types.Result) []string {
	if prev == nil {
		return nil
	}
	var names []string
	for _, in := range prev.Interfaces {
		if in.Sandbox == "" && IsHostEndName(in.Name) {
			names = append(names, in.Name)
		}
	}
	return names
}

// DelVeth deletes the attachment's pair by its host end or, if the host end is not found, by its container end. When it
// returns, no process can reach the container through the pair. The caller must call wait before it uses the
// connections again. wait returns when the kernel has cleaned up (see nl.Conn.DeleteLinkAsync). container may be nil.
func DelVeth(r *skel.Request, host, container *nl.Conn) (wait func() error, err error) {
	prev, _ := r.Prev() // in DEL, Prev returns no error
	hostEnd, err := HostEnd(host, r.Attachment(), prev)
	switch {
	case err == nil:
		return host.DeleteLinkAsync(hostEnd)
	case errors.Is(err, fs.ErrNotExist) && container != nil:
		return deleteOwn(r, container, "veth")
	}
	return noWait, types.IgnoreNotExist(err)
}

// deleteOwn deletes the container's interface CNI_IFNAME. If the path of the namespace was reused, an interface of another
// kind or attachment may have the name. deleteOwn does not delete it.
func deleteOwn(r *skel.Request, container *nl.Conn, kind string) (wait func() error, err error) {
	l, err := container.Link(r.IfName)
	if err != nil || l.Kind != kind {
		return noWait, types.IgnoreNotExist(err)
	}
	if other, err := BelongsToOther(r, container, l); other || err != nil {
		return noWait, types.IgnoreNotExist(err)
	}
	return container.DeleteLinkAsync(l)
}

func noWait() error { return nil }
