// Package tables describes plumb's nftables tables, inet plumb and bridge plumb, with their sets and maps,
// and the chain that guards 127/8. Each plugin adds its own chains to the tables. The command plumb reads
// all sets.
package tables

import (
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/claims"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
)

// The firewall plugin's sets in table inet plumb.
const (
	IsolatedBridges = "isolated_bridges" // names of bridges with an ingress policy
	SameBridge      = "same_bridge"      // pairs of the same bridge name, for bridges whose containers can reach each other
	Published       = "published"        // names of bridges whose host ports are reachable from other bridges
)

// HostAccessEnds is the name of the set of the host ends of the pairs that the plugin host-access creates.
const HostAccessEnds = "host_access"

// The sets of table bridge plumb.
const (
	IsolatedPorts = "isolated_ports" // bridge ports that cannot reach each other
	CheckedPorts  = "checked"        // ports with a MAC spoof check
	AllowedMACs   = "allowed"        // pairs of a checked port and a source MAC that may pass
)

// Masquerade returns the name of the map from an address to masquerade to the chain of its subnet.
func Masquerade(f nft.Family) string { return "masq" + f.Version() }

// HostPort returns the name of the map from the host's protocol and port to the container's address and
// port.
func HostPort(f nft.Family) string { return "hostport" + f.Version() }

// HostPortIP returns the name of the map from the host's address, protocol and port to the container's
// address and port.
func HostPortIP(f nft.Family) string { return HostPort(f) + "ip" }

// HostPortChain returns the name of the map from a key of HostPort to the chain through which a packet
// passes before its address is translated.
func HostPortChain(f nft.Family) string { return HostPort(f) + "_chain" }

// HostPortIPChain returns the name of the map from a key of HostPortIP to the same chain as HostPortChain.
func HostPortIPChain(f nft.Family) string { return HostPort(f) + "_addr" }

// HostPortIndex is the name of the index of the host port maps (package claims). The value of an element contains the host's
// address, protocol and port. An IPv4 address is mapped to IPv6.
const HostPortIndex = "hostport_index"

// HostPorts is the chain that forwards packets to host ports. It uses the sets of ServiceSets.
const HostPorts = "hostports"

// ServiceAddrs returns the name of the set of addresses to which host ports do not apply (see ServiceLinks).
func ServiceAddrs(f nft.Family) string { return "service" + f.Version() }

// KubeProxyLink is the interface to which kube-proxy assigns the addresses of Services in its mode ipvs, so that the
// kernel delivers their packets to ip_vs, in the hook input. It is down.
const KubeProxyLink = "kube-ipvs0"

// ServiceLinks returns the names of the interfaces of the host with addresses of Services. kube-router assigns these
// addresses to kube-dummy-if, for the same reason as kube-proxy (see KubeProxyLink).
func ServiceLinks() []string { return []string{KubeProxyLink, "kube-dummy-if"} }

// HostAccess returns the name of the set of packets that the host accepts from the host ends in HostAccessEnds. A key is a
// host end, the source and the destination.
func HostAccess(f nft.Family) string { return HostAccessEnds + f.Version() }

// Source returns the name of the map from an address to the two parts of its firewalld zone name.
func Source(f nft.Family) string { return "source" + f.Version() }

// MasqueradeSets returns the masquerade maps, which every plugin creates together with the table.
func MasqueradeSets() []nft.Set {
	return perFamily(func(f nft.Family, addr nft.Type) []nft.Set {
		return []nft.Set{{Name: Masquerade(f), Key: []nft.Type{addr}, Data: []nft.Type{nft.Verdict}}}
	})
}

// HostPortSets returns the host port maps and their index.
func HostPortSets() []nft.Set {
	index := nft.Set{Name: HostPortIndex, Key: claims.IndexKey(), Data: []nft.Type{nft.IPv6Addr, nft.InetProto, nft.InetService}}
	return append(perFamily(func(f nft.Family, addr nft.Type) []nft.Set {
		withAddress, withoutAddress := []nft.Type{addr, nft.InetProto, nft.InetService}, []nft.Type{nft.InetProto, nft.InetService}
		return []nft.Set{
			{Name: HostPort(f), Key: withoutAddress, Data: []nft.Type{addr, nft.InetService}},
			{Name: HostPortIP(f), Key: withAddress, Data: []nft.Type{addr, nft.InetService}},
			{Name: HostPortChain(f), Key: withoutAddress, Data: []nft.Type{nft.Verdict}},
			{Name: HostPortIPChain(f), Key: withAddress, Data: []nft.Type{nft.Verdict}},
		}
	}), index)
}

// ServiceSets returns the sets of addresses of Services. All attachments share their elements.
func ServiceSets() []nft.Set {
	return perFamily(func(f nft.Family, addr nft.Type) []nft.Set {
		return []nft.Set{{Name: ServiceAddrs(f), Key: []nft.Type{addr}}}
	})
}

// FirewallSets returns the firewall plugin's sets and maps in table inet plumb.
func FirewallSets() []nft.Set {
	bridges := []nft.Set{
		{Name: IsolatedBridges, Key: []nft.Type{nft.IfName}},
		{Name: SameBridge, Key: []nft.Type{nft.IfName, nft.IfName}},
		{Name: Published, Key: []nft.Type{nft.IfName}},
	}
	return append(bridges, perFamily(func(f nft.Family, addr nft.Type) []nft.Set {
		return []nft.Set{{Name: Source(f), Key: []nft.Type{addr}, Data: []nft.Type{nft.IfName, nft.IfName}}}
	})...)
}

// HostAccessSets returns the sets of the plugin host-access.
func HostAccessSets() []nft.Set {
	return append([]nft.Set{{Name: HostAccessEnds, Key: []nft.Type{nft.IfName}}}, perFamily(func(f nft.Family, addr nft.Type) []nft.Set {
		return []nft.Set{{Name: HostAccess(f), Key: []nft.Type{nft.IfName, addr, addr}}}
	})...)
}

// perFamily returns the sets for IPv4 and the sets for IPv6.
func perFamily(sets func(f nft.Family, addr nft.Type) []nft.Set) []nft.Set {
	return append(sets(nft.IPv4, nft.IPv4Addr), sets(nft.IPv6, nft.IPv6Addr)...)
}

// SpoofCheckSets returns the sets of the MAC spoof check in table bridge plumb.
func SpoofCheckSets() []nft.Set {
	return []nft.Set{
		{Name: CheckedPorts, Key: []nft.Type{nft.IfName}},
		{Name: AllowedMACs, Key: []nft.Type{nft.IfName, nft.EtherAddr}},
	}
}

// IsolatedPortSets returns the set of isolated ports in table bridge plumb.
func IsolatedPortSets() []nft.Set {
	return []nft.Set{{Name: IsolatedPorts, Key: []nft.Type{nft.IfName}}}
}

// All returns the tables with all sets whose elements belong to attachments, including the sets for former owners.
func All() []nft.Layout {
	all := []nft.Layout{
		Inet(slices.Concat(MasqueradeSets(), HostPortSets(), FirewallSets(), HostAccessSets())...),
		Bridge(append(SpoofCheckSets(), IsolatedPortSets()...)...),
	}
	for i := range all {
		for _, s := range all[i].Sets {
			s.Name += claims.FormerSuffix
			all[i].Sets = append(all[i].Sets, s)
		}
	}
	return all
}

// layoutVersion is the nft.Layout.Version of both tables. It increases when the rules of a chain change.
const layoutVersion = 2

// Inet returns table inet plumb with these sets. Every plugin that creates the table also creates the guard
// of 127/8, because route_localnet stays 1 when the ruleset is flushed.
func Inet(sets ...nft.Set) nft.Layout {
	return nft.Layout{
		Table: nft.Table{Family: nft.Inet, Name: "plumb"}, Version: layoutVersion, Sets: sets, InitialChains: []nft.Chain{localnetGuard()},
	}
}

// Bridge returns table bridge plumb with these sets.
func Bridge(sets ...nft.Set) nft.Layout {
	return nft.Layout{Table: nft.Table{Family: nft.Bridge, Name: "plumb"}, Version: layoutVersion, Sets: sets}
}

// WithGuard returns the layout with the guard of 127/8 as one of its chains, so that Ensure creates the
// guard even if the table exists.
func WithGuard(l nft.Layout) nft.Layout {
	l = l.WithChains(l.InitialChains...)
	l.InitialChains = nil
	return l
}

// GuardComment is the comment of the rules with which portmap's backend iptables, and the reference plugin, guard 127/8 in table raw.
const GuardComment = "CNI portfwd localhost only from this host"

// localnetGuard returns the chain that drops packets to 127/8 from virtual interfaces. The kernel accepts
// such packets where route_localnet is set (CVE-2020-8558). The chain does not drop answers from
// containers, because at this hook the destination of an answer is still the address with which the request
// was masqueraded. It does not drop packets from a VRF, which has its own loopback address, or packets from
// lo and network cards, which have no kind (see nft.IifKindNot).
func localnetGuard() nft.Chain {
	return nft.Chain{
		Name:  "localnet",
		Hook:  nft.Hook{Type: nft.Filter, At: nft.Prerouting, Priority: nft.PriorityRaw},
		Rules: []nft.Rule{{nft.DaddrIn(netip.MustParsePrefix("127.0.0.0/8")), nft.IifKindNot("vrf"), nft.Drop()}},
	}
}
