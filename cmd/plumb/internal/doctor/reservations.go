package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
)

// findReservations compares the addresses of containers with the reservations of host-local and cluster-local, and with
// those of other containers.
func findReservations(e *examination) (found []Finding) {
	for _, a := range e.inventory.Attachments {
		if a.ContainerID == "" {
			found = append(found, findUnowned(a)...)
		}
	}
	e.live = e.liveAttachments()
	for _, a := range e.live {
		found = append(found, e.findDoubles(a)...)
		f := e.fileOfNetwork(a.Network)
		if f == nil {
			continue
		}
		var different []Finding
		if lost := e.lostInterface(a); lost != nil {
			different = lost
		} else {
			for _, s := range f.spans() {
				different = append(different, e.compareReservations(a, s)...)
			}
			found = append(found, e.findOutside(a, f.spans())...)
		}
		e.explained[a] = e.explained[a] || len(different) > 0
		found = append(found, different...)
	}
	return found
}

// findUnowned finds reservations whose file names no container. It leaves out files that are younger than maxAddTime,
// because the reference plugin makes the file before it writes the name.
func findUnowned(a *node.Attachment) (found []Finding) {
	for _, t := range a.Things {
		// STATUS of host-local, which was called meanwhile, has removed most of these files.
		if t.Kind == node.Reservation && t.Since != nil && time.Since(*t.Since) >= maxAddTime && exists(t.Where) {
			found = append(found, Finding{Where: whereNode, What: fmt.Sprintf("%s is reserved in network %s for no container: the file names none", t.Address, a.Network),
				Mend: "rm -f " + node.Quote(t.Where)})
		}
	}
	return found
}

// lostInterface returns the finding for a container that has reservations, but not the interface, or nil.
func (e *examination) lostInterface(a *node.Attachment) []Finding {
	reserved := reservations(a)
	_, err := e.addresses(a)
	if len(reserved) == 0 || !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	are := "is"
	if len(reserved) > 1 {
		are = "are"
	}
	return []Finding{{Where: whereNode, What: fmt.Sprintf("%s %s reserved for %s, which has no interface %s", strings.Join(reserved, ", "), are, a.ContainerID, a.IfName),
		Mend: edit + "find out which program changed this, then let the runtime replace the container"}}
}

// reservations returns the addresses that are reserved for an attachment.
func reservations(a *node.Attachment) (reserved []string) {
	for _, t := range a.Things {
		if t.Kind == node.Reservation {
			reserved = append(reserved, t.Address)
		}
	}
	return reserved
}

// compareReservations compares the addresses of a container in a subnet with its reservations in the subnet.
func (e *examination) compareReservations(a *node.Attachment, s span) (found []Finding) {
	outside := func(text string) bool {
		ip, err := netip.ParseAddr(text)
		return err != nil || !s.subnet.Contains(ip)
	}
	reserved := slices.DeleteFunc(reservations(a), outside)
	for _, address := range slices.DeleteFunc(slices.Clone(a.Addresses), outside) {
		if !slices.Contains(reserved, address) {
			found = append(found, e.unreserved(a, s, address))
		}
	}
	have, err := e.addresses(a)
	if err != nil {
		e.unread("addresses of "+a.ContainerID, types.IgnoreNotExist(err))
		return found
	}
	for _, address := range reserved {
		if slices.Contains(have, address) || e.holder(a, address) != nil { // unreserved returns a finding for the container that has the address
			continue
		}
		line := fmt.Sprintf("interface %s has no address %s/%d", a.IfName, address, s.subnet.Bits())
		found = append(found, Finding{Where: whereNode, What: fmt.Sprintf("%s is reserved for %s, whose %s does not have it", address, a.ContainerID, a.IfName), Mend: commandFor(a, line)})
	}
	return found
}

// findOutside finds reservations of addresses that are in no range of the network, if the container does not have them.
func (e *examination) findOutside(a *node.Attachment, spans []span) (found []Finding) {
	have, err := e.addresses(a)
	if err != nil || len(spans) == 0 {
		return nil // compareReservations says why, if there is one to compare
	}
	for _, t := range a.Things {
		ip, err := netip.ParseAddr(t.Address)
		in := func(s span) bool { return err != nil || s.subnet.Contains(ip) }
		if t.Kind == node.Reservation && !slices.ContainsFunc(spans, in) && !slices.Contains(have, t.Address) && t.Since != nil && time.Since(*t.Since) >= maxAddTime {
			found = append(found, Finding{Where: whereNode, What: fmt.Sprintf("%s, which is in no range of network %s, is reserved for %s, whose %s does not have it",
				t.Address, a.Network, a.ContainerID, a.IfName), Mend: "rm -f " + node.Quote(t.Where)})
		}
	}
	return found
}

// holder returns the attachment of another container of the network that has the address, or nil if there is none.
func (e *examination) holder(a *node.Attachment, address string) *node.Attachment {
	for _, other := range e.live {
		if other.Network != a.Network || other == a {
			continue
		}
		have, err := e.addresses(other)
		e.unread("addresses of "+other.ContainerID, types.IgnoreNotExist(err))
		if slices.Contains(have, address) {
			return other
		}
	}
	return nil
}

// findDoubles finds addresses of a container that its ADD did not return, and the ADD of another one on the same wire did.
func (e *examination) findDoubles(a *node.Attachment) (found []Finding) {
	have, err := e.prefixes(a)
	e.unread("addresses of "+a.ContainerID, types.IgnoreNotExist(err))
	for _, p := range have {
		if slices.Contains(a.Addresses, p.Addr().String()) {
			continue
		}
		for _, other := range e.live {
			sameWire := other.Network == a.Network || e.wireOf(other) != "" && e.wireOf(other) == e.wireOf(a)
			of, err := e.addresses(other)
			if other.ContainerID == a.ContainerID || !sameWire || err != nil || !slices.Contains(of, p.Addr().String()) || !slices.Contains(other.Addresses, p.Addr().String()) {
				continue
			}
			e.doubles[double{p.Addr(), a}] = true
			found = append(found, Finding{Where: whereNode,
				What: fmt.Sprintf("%s, the address of %s, is also on %s of %s, whose ADD did not return it", p.Addr(), other.ContainerID, a.IfName, a.ContainerID),
				Mend: fmt.Sprintf("nsenter --net=%s ip address delete %s dev %s", node.Quote(a.NetNS), p, node.Quote(a.IfName))})
		}
	}
	return found
}

// A double is an address of a container that another one has, too.
type double struct {
	addr netip.Addr
	on   *node.Attachment
}

// unreserved returns the finding for an address of a container that is not reserved for it.
func (e *examination) unreserved(a *node.Attachment, s span, address string) Finding {
	for _, other := range e.inventory.Attachments {
		if other.Network == a.Network && slices.Contains(reservations(other), address) {
			return e.reservedForOther(a, other, s, address)
		}
	}
	// An ADD may have reserved it meanwhile: with set -C, the command writes no file that exists.
	return Finding{Where: whereNode, What: fmt.Sprintf("%s, an address of %s, is not reserved: another container can get it", address, a.ContainerID), Mend: e.reserveCommand(a, s, "set -C; ", address)}
}

// reservedForOther returns the finding for an address of a container that is reserved for another container.
func (e *examination) reservedForOther(a, other *node.Attachment, s span, address string) Finding {
	what := fmt.Sprintf("%s, an address of %s, is reserved for %s", address, a.ContainerID, other.ContainerID)
	have, err := e.addresses(a)
	otherHas, otherErr := e.addresses(other)
	if err == nil && otherErr == nil && slices.Contains(have, address) && !slices.Contains(otherHas, address) {
		return Finding{Where: whereNode, What: what + ", which does not have it", Mend: e.reserveCommand(a, s, "", address)}
	}
	return Finding{Where: whereNode, What: what + ": two containers may have it", Mend: edit + "let the runtime replace one of the two containers"}
}

// reserveCommand returns the command that reserves an address for the container that has it, after another command of the
// same shell. With another plugin than host-local, it is no command: the address may belong to another node by now.
func (e *examination) reserveCommand(a *node.Attachment, s span, before, address string) string {
	if s.plugin.ipam.Get("type").Text() != "host-local" {
		return edit + "let the runtime replace the container"
	}
	dir := cmp.Or(s.plugin.ipam.Get("dataDir").Text(), e.DataDir)
	// The file has the format of the reference plugin: container ID, CR LF, interface.
	return fmt.Sprintf(`(umask 077; %sprintf '%%s\r\n%%s' %s %s > %s)`, before, node.Quote(a.ContainerID), node.Quote(a.IfName), node.Quote(filepath.Join(dir, a.Network, address)))
}

// addresses returns the addresses of the container's interface.
func (e *examination) addresses(a *node.Attachment) (texts []string, err error) {
	list, err := e.prefixes(a)
	for _, p := range list {
		texts = append(texts, p.Addr().String())
	}
	return texts, err
}

// An addrsRead has the addresses of a container's interface, or the error of reading them.
type addrsRead struct {
	prefixes []netip.Prefix
	err      error
}

// prefixes returns the addresses of the container's interface, with their prefix lengths. It reads each container once:
// those of a node are compared with each other. The error matches fs.ErrNotExist if the namespace or the interface does
// not exist.
func (e *examination) prefixes(a *node.Attachment) ([]netip.Prefix, error) {
	in, known := e.containerAddrs[a]
	if !known {
		in.err = inContainer(a, func(c *nl.Conn) error {
			l, err := c.Link(a.IfName)
			if err != nil {
				return err
			}
			list, err := c.Addrs(l)
			for _, addr := range list {
				in.prefixes = append(in.prefixes, addr.Prefix)
			}
			return err
		})
		e.containerAddrs[a] = in
	}
	return in.prefixes, in.err
}

// inContainer calls f with a connection to the namespace of an attachment's container.
func inContainer(a *node.Attachment, f func(*nl.Conn) error) error {
	pod, err := ns.Open(a.NetNS, nil)
	if err != nil {
		return err
	}
	defer func() { _ = pod.Close() }()
	c, err := nl.Open(pod)
	if err != nil {
		return err
	}
	return f(c)
}
