package attach

import (
	"errors"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// IgnoreRouters returns the sysctl with which an interface ignores router advertisements. It is for interfaces that
// receive packets only from containers, because a container could otherwise change routes and addresses
// (CVE-2020-10749), and for containers' interfaces on links without a router.
func IgnoreRouters(ifName string) sysctl.Setting { return optional6(ifName, "accept_ra", "0") }

// AcceptRouters returns the sysctl with which an interface accepts router advertisements even if the host forwards IPv6.
func AcceptRouters(ifName string) sysctl.Setting { return optional6(ifName, "accept_ra", "2") }

// linksToRouters returns the host's links that accept router advertisements only while the host does not forward IPv6,
// because accept_ra is 1 (Documentation/networking/ip-sysctl.rst). If the host forwards and the value stays, the host
// loses its addresses and its default route. linksToRouters returns only links on which hosts other than containers can
// be (see FacesLAN), and links with an advertised default route. conf/default must stay, because it applies to the links
// of later containers.
func linksToRouters(host *nl.Conn) ([]nl.Link, error) {
	names, err := sysctl.InterfacesWith(host.NS(), "accept_ra", "1", func(name string) bool {
		return name != "all" && name != "default" && name != "lo" && !IsHostEndName(name)
	})
	if err != nil || len(names) == 0 {
		return nil, err
	}
	uplinks, err := host.AdvertisedUplinks()
	if err != nil {
		return nil, err
	}
	var links []nl.Link
	for _, name := range names {
		l, err := host.Link(name)
		faces := slices.ContainsFunc(uplinks, func(u nl.Link) bool { return u.Index == l.Index })
		if err == nil && !faces {
			faces, err = FacesLAN(host, l)
		}
		if types.IgnoreNotExist(err) != nil { // the link may be deleted meanwhile
			return nil, err
		}
		if faces {
			links = append(links, l)
		}
	}
	return links, nil
}

// LinksIgnoringRouters returns the same links if the host forwards IPv6.
func LinksIgnoringRouters(host *nl.Conn) ([]nl.Link, error) {
	forwarding, err := sysctl.Get(host.NS(), forwarding6)
	if err != nil || forwarding != "1" {
		return nil, types.IgnoreNotExist(err) // without IPv6, the sysctl does not exist
	}
	return linksToRouters(host)
}

// FacesLAN reports whether a link of the host is a network card, a bond, or an interface above one, such as a VLAN or a
// bridge with such a port. Containers of this host cannot send through such a link as the host's neighbors, in contrast
// to the links that programs create for containers. A veth counts as a network card if its name begins with eth, because
// the host may be a container itself, for example of LXC or kind.
func FacesLAN(host *nl.Conn, l nl.Link) (bool, error) {
	switch l.Kind {
	case "":
		return l.Name != "lo", nil
	case "bond", "team", "ipoib", "wwan":
		return true, nil
	case "veth":
		return strings.HasPrefix(l.Name, "eth"), nil
	case "vlan", "macvlan", "ipvlan":
		if l.PeerNS != 0 { // the host is a container, and its own host has the lower link
			return true, nil
		}
		lower, err := host.LinkByIndex(l.Peer)
		if err != nil {
			return false, err
		}
		return FacesLAN(host, lower)
	case "bridge":
		return anyPortFacesLAN(host, l)
	}
	return false, nil
}

func anyPortFacesLAN(host *nl.Conn, bridge nl.Link) (bool, error) {
	names, err := host.PortNames(bridge)
	errs := []error{err}
	for _, name := range names {
		if IsHostEndName(name) {
			continue
		}
		port, err := host.Link(name)
		if err == nil && port.Kind != "bridge" { // the kernel rejects a bridge as a port
			var faces bool
			if faces, err = FacesLAN(host, port); faces {
				return true, nil
			}
		}
		errs = append(errs, types.IgnoreNotExist(err))
	}
	return false, errors.Join(errs...)
}
