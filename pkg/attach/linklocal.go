package attach

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// When the host forwards an IPv6 packet to a container, it sends the neighbor solicitation from a link-local address of the
// gateway's interface. Without such an address, it sends none (ndisc_solicit).

// missingLinkLocal returns a link-local address for dev, the gateway's interface, if ips contains an IPv6 address and dev has
// no working link-local address. While dev is not running, the kernel may not have added the address yet. It also adds none
// if IPv6 is off, which CHECK reports in another way, and if new interfaces get none by default. If another host has the only
// link-local address, missingLinkLocal returns an error.
func missingLinkLocal(host *nl.Conn, dev nl.Link, ips []types.IP) ([]nl.Addr, error) {
	if !slices.ContainsFunc(ips, is6) || !dev.Running || !dev.Carrier || len(dev.MAC) != 6 {
		return nil, nil
	}
	got, err := host.Addrs(dev)
	if err != nil {
		return nil, err
	}
	var duplicate error
	for _, a := range got {
		if !a.Prefix.Addr().Is6() || !a.Prefix.Addr().IsLinkLocalUnicast() {
			continue
		}
		if !a.Duplicate {
			return nil, nil
		}
		duplicate = types.WithRepair(types.RepairNever, fmt.Errorf("link-local address %s of interface %s: %w", a.Prefix, dev.Name, nl.ErrDuplicate))
	}
	if duplicate != nil {
		return nil, duplicate
	}
	adds, err := addsLinkLocal(host, dev)
	if !adds {
		return nil, err
	}
	return []nl.Addr{linkLocalOf(dev)}, nil
}

// addsLinkLocal reports whether the kernel adds a link-local address to dev or to new interfaces. The value 1 of addr_gen_mode
// means that it adds none.
func addsLinkLocal(host *nl.Conn, dev nl.Link) (bool, error) {
	var values [3]string
	for i, key := range []string{sysctl.IPv6(dev.Name, "disable_ipv6"), sysctl.IPv6(dev.Name, "addr_gen_mode"), sysctl.IPv6("default", "addr_gen_mode")} {
		var err error
		if values[i], err = sysctl.Get(host.NS(), key); err != nil {
			return false, types.IgnoreNotExist(err) // without IPv6, the sysctl does not exist
		}
	}
	return values[0] == "0" && (values[1] != "1" || values[2] != "1"), nil
}

// linkLocalOf returns the link-local address that the kernel derives from the MAC of a link (RFC 4291, appendix A).
func linkLocalOf(l nl.Link) nl.Addr {
	mac := l.MAC.Bytes()
	addr := netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
	return nl.Addr{Prefix: netip.PrefixFrom(addr, 64), NoDAD: true}
}
