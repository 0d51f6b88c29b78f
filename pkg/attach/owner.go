package attach

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// The path of a namespace can refer to another container's namespace, because names below /run/netns and process IDs are
// reused. The functions in this file decide whether an interface that was found by its name belongs to the attachment.

// guessedOther is the owner of an interface that prevResult, and not a mark, shows to be another attachment's.
const guessedOther = "another attachment, because its MAC, addresses or host end differ from prevResult"

// RequireOwn returns an error if the container's interface CNI_IFNAME belongs to another attachment (see BelongsToOther).
// It returns nil if there is no such interface. skel calls it before CHECK and REPAIR (see skel.Plugin).
func RequireOwn(r *skel.Request) error {
	container, l, err := nl.OpenLink(r.ContainerNS, r.IfName)
	if err != nil {
		return types.IgnoreNotExist(err)
	}
	return requireOwn(r, container, l)
}

// RequireOwnLink is RequireOwn in ADD of a chained plugin, which has read the interface. In CHECK and REPAIR, skel has called
// RequireOwn, and RequireOwnLink does nothing.
func RequireOwnLink(r *skel.Request, container *nl.Conn, l nl.Link) error {
	if r.Command != "ADD" {
		return nil
	}
	return requireOwn(r, container, l)
}

// requireOwn returns an error if l belongs to another attachment. The error has types.CodeConfig in ADD, and otherwise
// types.CodeChanged. Except in REPAIR, only a mark of the other attachment suffices, because CHECK reports an interface with
// another MAC and other addresses anyway.
func requireOwn(r *skel.Request, container *nl.Conn, l nl.Link) error {
	other, err := findOther(r, container, l)
	switch {
	case err != nil || other == "":
		return err
	case other == guessedOther && !r.IsRepair():
		return nil
	case r.Command == "ADD":
		return types.Errorf(types.CodeConfig, "interface %s in %s: it belongs to %s, and not to %s; pass the result of the plugin that created the interface as prevResult",
			l.Name, r.NetNS, other, r.Attachment())
	}
	return types.Errorf(types.CodeChanged, "interface %s in %s: the namespace path now belongs to %s, and not to %s; call DEL for %s",
		l.Name, r.NetNS, other, r.Attachment(), r.Attachment())
}

// BelongsToOther reports whether l, an interface of the container, is known to belong to another attachment than that of
// the call. The first of these that exists decides:
//
//   - the AltName of an attachment on l
//   - the alias that plumb set on the host end of l, if l is a veth. ADD skips it, because it would need more requests,
//     and because the interface plugin has just used the namespace.
//   - the alias that plumb set on l
//   - the host ends in prevResult. l belongs to the attachment if its host end is among them.
//   - the MAC and the IPs in prevResult. One of the IPs is enough to recognize l, because tuning may have changed the MAC.
//     If prevResult contains IPs, the MAC of a vlan or ipvlan proves nothing, because all interfaces on one master have
//     the master's MAC.
//
// ADD ignores prevResult, which some plugins return without the state of the interface. If none exists, the owner is
// unknown, and BelongsToOther returns false, unless l has an alias, which neither plumb nor the reference plugins set on
// such an interface.
func BelongsToOther(r *skel.Request, container *nl.Conn, l nl.Link) (bool, error) {
	other, err := findOther(r, container, l)
	return other != "", err
}

// findOther returns a text that names the other attachment, or "" if l belongs to the attachment or its owner is unknown.
func findOther(r *skel.Request, container *nl.Conn, l nl.Link) (string, error) {
	own := r.Attachment()
	switch {
	case HasAltName(l, own):
		return "", nil
	case HasOtherAltName(l, own):
		return "another attachment", nil
	}
	hostEnd, err := hostEndOf(r, container, l)
	if err != nil {
		return "", err
	}
	for _, marked := range []nl.Link{hostEnd, l} {
		if marked.Alias == LinkAlias(own) {
			return "", nil
		}
		if other, found := strings.CutPrefix(marked.Alias, aliasPrefix); found {
			return other, nil
		}
	}
	prev, err := r.Prev()
	if err != nil {
		return "", err
	}
	listed := hostEndNames(prev)
	switch {
	case prev == nil && l.Alias == "":
		return "", nil
	case prev == nil:
		return guessedOther, nil
	case r.Command == "ADD" || slices.Contains(listed, hostEnd.Name):
		return "", nil
	case len(listed) > 0:
		return guessedOther, nil
	}
	return otherInResult(r, prev, container, l)
}

// hostEndOf returns the host end of l, or the zero Link if there is none, or in ADD.
func hostEndOf(r *skel.Request, container *nl.Conn, l nl.Link) (nl.Link, error) {
	if l.Kind != "veth" || r.Command == "ADD" {
		return nl.Link{}, nil
	}
	host, err := nl.Open(r.HostNS)
	if err != nil {
		return nl.Link{}, err
	}
	hostEnd, err := container.VethPeer(l, host)
	if errors.Is(err, fs.ErrNotExist) {
		return nl.Link{}, nil
	}
	return hostEnd, err
}

// otherInResult compares the MAC and the addresses of l with prev. Except in DEL, it needs both in prev, because some
// plugins return a result without a MAC, or set another MAC without changing the result.
func otherInResult(r *skel.Request, prev *types.Result, container *nl.Conn, l nl.Link) (string, error) {
	index, found := prev.ContainerInterface(l.Name)
	if !found {
		return "", nil
	}
	prevPrefixes := Prefixes(prev.Of(index))
	mac, err := types.ParseMAC(prev.Interfaces[index].MAC)
	onlyIPs := err != nil || l.Kind == "vlan" || l.Kind == "ipvlan" // the MAC is invalid, or the master's
	if r.Command != "DEL" && (err != nil || len(prevPrefixes) == 0) {
		return "", nil
	}
	if onlyIPs && len(prevPrefixes) == 0 || mac == l.MAC && !onlyIPs {
		return "", nil
	}
	addrs, err := container.Addrs(l)
	if err != nil || slices.ContainsFunc(addrs, func(a nl.Addr) bool { return slices.Contains(prevPrefixes, a.Prefix) }) {
		return "", err
	}
	return guessedOther, nil
}
