package attach

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/sysctl"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
)

// The host end of an attachment's veth pair is found without prevResult and without
// the container: its name is "veth" and 8 hex digits, as with the reference plugins,
// but the digits are a hash of the attachment, and its alias names the attachment
// for people and as proof. Two attachments whose digits are equal differ in the
// alias; the later one takes the next name of its row.
const (
	hostPrefix = "veth"
	hostNames  = 4 // names in a row
	aliasMark  = "plumb:"
	aliasPart  = 110 // bytes of a part of an alias; the kernel allows 255 in all
)

func hostName(owner types.Attachment, i int) string {
	sum := sha256.Sum256([]byte(owner.String()))
	return hostPrefix + hex.EncodeToString(sum[4*i:4*i+4])
}

func hostNamesOf(owner types.Attachment) []string {
	var names []string
	for i := range hostNames {
		names = append(names, hostName(owner, i))
	}
	return names
}

// Alias is what `ip link` shows beside a link of the attachment.
func Alias(a types.Attachment) string {
	return aliasOfNetwork(a.Network) + fit(a.ContainerID) + "/" + a.IfName
}

// Group marks a link that is being made for the network and has no alias yet: what a
// plugin leaves that is killed at that moment, and GC then collects.
func Group(network string) uint32 {
	sum := sha256.Sum256([]byte(aliasOfNetwork(network)))
	return binary.BigEndian.Uint32(sum[:]) | 1<<31
}

func aliasOfNetwork(network string) string { return aliasMark + fit(network) + "/" }

// fit puts a hash in the place of a name that is too long.
func fit(s string) string {
	if len(s) <= aliasPart {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return "#" + hex.EncodeToString(sum[:16])
}

// Pair describes a container's veth pair.
type Pair struct {
	Node, Pod *nl.Conn
	Owner     types.Attachment
	MAC       types.MAC // of the container's end; zero: random
	MTU       int       // of both ends, in bytes; zero: the kernel's default
}

// EnsureFree fails with a text for people when the container has an interface of
// that name. It comes before IPAM is asked.
func EnsureFree(pod *nl.Conn, ifName string) error {
	_, err := pod.Link(ifName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return types.Errorf(types.CodeConfig, "interface %q already exists in container %s: it has this attachment already, or CNI_IFNAME is to be another", ifName, pod.NS().Path())
}

// AddVeth makes the pair and pushes its removal. The host end is down yet: the
// caller makes it a port, or gives it addresses, and sets it up.
func AddVeth(u *undo.Stack, p Pair) (host, pod nl.Link, err error) {
	for i := range hostNames {
		host, pod, err = p.Node.AddVeth(u, nl.Veth{
			Name: hostName(p.Owner, i), Peer: p.Owner.IfName, PeerIn: p.Pod, PeerMAC: p.MAC, MTU: p.MTU,
			Group: Group(p.Owner.Network),
		})
		if !errors.Is(err, fs.ErrExist) {
			break
		}
		if err := p.taken(hostName(p.Owner, i)); err != nil {
			return nl.Link{}, nl.Link{}, err
		}
	}
	if err != nil {
		return nl.Link{}, nl.Link{}, err
	}
	// Before the link comes up there is no moment in which a router advertisement
	// of the container could be taken.
	if err := sysctl.Set(p.Node.NS(), HostSysctls(host.Name)...); err != nil {
		return nl.Link{}, nl.Link{}, err
	}
	host.Alias = Alias(p.Owner)
	return host, pod, p.Node.Apply(host.SetAlias(host.Alias), host.ClearGroup())
}

// HostSysctls is what the host end of a pair must have.
func HostSysctls(name string) []sysctl.Setting {
	return []sysctl.Setting{{Key: sysctl.IPv6(name, "accept_ra"), Value: "0", Optional: true}}
}

// taken explains why the kernel would not make a pair: nil when another attachment
// has the name, so that the next of the row is to be tried.
func (p Pair) taken(name string) error {
	l, err := p.Node.Link(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return EnsureFree(p.Pod, p.Owner.IfName)
	case err != nil:
		return err
	case l.Alias == "", l.Alias == Alias(p.Owner):
		return types.Errorf(types.CodeConfig, "host interface %s already serves %s: an earlier ADD was not followed by a DEL", name, p.Owner)
	}
	return nil
}

// HostEnd finds the host end of the attachment's pair: by the names that the
// attachment has, else among the interfaces of prev (which may be nil), where the
// reference plugins noted it. The error matches fs.ErrNotExist.
func HostEnd(node *nl.Conn, owner types.Attachment, prev *types.Result) (nl.Link, error) {
	names := hostNamesOf(owner)
	for _, name := range append(names, hostEnds(prev)...) {
		l, err := node.Link(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nl.Link{}, err
		}
		if err == nil && l.Kind == "veth" && (l.Alias == "" || l.Alias == Alias(owner)) {
			return l, nil
		}
	}
	return nl.Link{}, fmt.Errorf("find host end of %s: %w", owner, fs.ErrNotExist)
}

// hostEnds lists what prev, which may be nil, says are host ends.
func hostEnds(prev *types.Result) []string {
	if prev == nil {
		return nil
	}
	var names []string
	for _, in := range prev.Interfaces {
		if in.Sandbox == "" && strings.HasPrefix(in.Name, hostPrefix) {
			names = append(names, in.Name)
		}
	}
	return names
}

// Ours reports whether plumb made the pair of that host end.
func Ours(host nl.Link) bool { return strings.HasPrefix(host.Alias, aliasMark) }

// DelVeth removes the attachment's pair, from whichever end it is found, and returns
// when nothing answers for the container any more; finish waits until the kernel has
// cleaned up behind it (nl.DelAside) and is called before the connections are used
// again. pod and prev may be nil. An interface of the container that serves another
// attachment is left alone: the namespace at that path is a newcomer's then.
func DelVeth(node, pod *nl.Conn, owner types.Attachment, prev *types.Result) (finish func() error, err error) {
	host, err := HostEnd(node, owner, prev)
	if err == nil {
		return node.DelAside(host)
	}
	nothing := func() error { return nil }
	if !errors.Is(err, fs.ErrNotExist) || pod == nil {
		return nothing, ignoreNotExist(err)
	}
	l, err := pod.Link(owner.IfName)
	if err != nil {
		return nothing, ignoreNotExist(err)
	}
	if l.Kind != "veth" || servesAnother(node, pod, l) {
		return nothing, nil
	}
	if newcomers, err := Newcomers(pod, l, owner, prev); newcomers || err != nil {
		return nothing, ignoreNotExist(err)
	}
	return pod.DelAside(l)
}

// Newcomers reports whether an interface that the container has, where the node has
// no host end of the attachment, is known not to be the attachment's: its namespace
// came to the path later. An alias says so, and prev: a host end
// that it lists is gone, and with it was the end in the container; or the interface
// has neither the hardware address nor an IP of the one that it tells of. One of them
// is enough, for tuning changes the address. Of a link without an alias, made by the
// reference plugins or by an ADD that was killed, nothing is known without a prev.
func Newcomers(pod *nl.Conn, l nl.Link, owner types.Attachment, prev *types.Result) (bool, error) {
	if l.Alias != "" {
		return l.Alias != Alias(owner), nil
	}
	if len(hostEnds(prev)) > 0 {
		return true, nil
	}
	if prev == nil {
		return false, nil
	}
	index, found := prev.Container(l.Name)
	if !found || prev.Interfaces[index].MAC == "" || prev.Interfaces[index].MAC == l.MAC {
		return false, nil
	}
	addrs, err := pod.Addrs(l)
	if err != nil {
		return false, err
	}
	known := Prefixes(prev.Of(index))
	return !slices.ContainsFunc(addrs, func(a nl.Addr) bool { return slices.Contains(known, a.Prefix) }), nil
}

// servesAnother reports whether the host end of a container's interface names an
// attachment. It is not the one that is asked for: that was not found by name.
func servesAnother(node, pod *nl.Conn, l nl.Link) bool {
	host, err := pod.VethPeer(l, node)
	return err == nil && Ours(host)
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// GCVeths removes the pairs of the network whose attachment is not to be kept.
func GCVeths(node *nl.Conn, network string, keep types.Set) error {
	return Veths(node, network).Run(keep)
}

// Veths are the host ends of the pairs that plumb made for the network.
func Veths(node *nl.Conn, network string) GC {
	return GC{Node: node, Kind: "veth", Network: network, Names: hostNamesOf}
}

// A GC names the links of a network on the node that have the alias of an attachment.
type GC struct {
	Node    *nl.Conn
	Kind    string // "veth", "ifb"
	Network string
	Names   func(types.Attachment) []string // that a link of the attachment may have
}

// Run removes those whose attachment is not to be kept.
func (g GC) Run(keep types.Set) error {
	stale, err := g.Stale(keep)
	errs := []error{err}
	for _, l := range stale {
		errs = append(errs, g.Node.Apply(l.Del()))
	}
	return errors.Join(errs...)
}

// Stale lists those whose attachment is not to be kept. A link without an alias is told
// by its name: it may be in the making. SPEC 1.1.0 (section 3) has runtimes keep GC
// apart from ADD; not all do, but an attachment that they name is safe.
func (g GC) Stale(keep types.Set) ([]nl.Link, error) {
	links, err := g.Node.LinksOfKind(g.Kind)
	if err != nil {
		return nil, err
	}
	aliases, names := map[string]bool{}, map[string]bool{}
	for a := range keep {
		aliases[Alias(a)] = true
		for _, name := range g.Names(a) {
			names[name] = true
		}
	}
	var stale []nl.Link
	for _, l := range links {
		halfMade := l.Alias == "" && l.Group == Group(g.Network)
		made := strings.HasPrefix(l.Alias, aliasOfNetwork(g.Network))
		if halfMade && !names[l.Name] || made && !aliases[l.Alias] {
			stale = append(stale, l)
		}
	}
	return stale, nil
}
