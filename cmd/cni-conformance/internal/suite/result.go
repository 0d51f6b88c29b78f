package suite

import (
	"encoding/json"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/cmd/cni-conformance/internal/lab"
)

// A result is the result of ADD since version 0.3.0, as a plugin printed it.
type result struct {
	CNIVersion string          `json:"cniVersion"`
	Interfaces []iface         `json:"interfaces"`
	IPs        []address       `json:"ips"`
	Routes     []route         `json:"routes"`
	DNS        json.RawMessage `json:"dns"`
}

type iface struct {
	Name    string `json:"name"`
	MAC     string `json:"mac"`
	MTU     int    `json:"mtu"`
	Sandbox string `json:"sandbox"`
}

type address struct {
	Version   string `json:"version"` // until 0.4.0
	Address   string `json:"address"`
	Interface *int   `json:"interface"`
}

type route struct {
	Dst string `json:"dst"`
	GW  string `json:"gw"`
}

func parseResult(text string) (*result, error) {
	if _, err := lab.Object(text); err != nil {
		return nil, failf("the result of ADD: %w", err)
	}
	var r result
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return nil, failf("the result of ADD: %w", err)
	}
	return &r, nil
}

// withResult is attached for a check of the result.
func withResult(check func(*bench, *lab.Container, *result) error) func(*bench) error {
	return attached(func(b *bench, c *lab.Container) error {
		r, err := parseResult(c.Result())
		if err != nil {
			return err
		}
		return check(b, c, r)
	})
}

// namespace returns the namespace of interface i of a result.
func (b *bench) namespace(r *result, i int, c *lab.Container) (*lab.NS, error) {
	switch r.Interfaces[i].Sandbox {
	case "":
		return b.Host, nil
	case c.Path:
		return c.NS, nil
	}
	return nil, failf("interfaces[%d].sandbox: want %q or nothing, got %q", i, c.Path, r.Interfaces[i].Sandbox)
}

// link returns interface i of a result, as it is in the kernel.
func (b *bench) link(r *result, i int, c *lab.Container) (link netlink.Link, err error) {
	n, err := b.namespace(r, i, c)
	if err != nil {
		return nil, err
	}
	err = n.Do(func() error { link, err = netlink.LinkByName(r.Interfaces[i].Name); return err })
	if err != nil {
		return nil, failf("interfaces[%d]: %s is not in sandbox %q: %w", i, r.Interfaces[i].Name, r.Interfaces[i].Sandbox, err)
	}
	return link, nil
}

func hasLink(n *lab.NS, name string) bool {
	return n.Do(func() error { _, err := netlink.LinkByName(name); return err }) == nil
}

// eachInterface calls judge for each interface of the result that exists. Without judge, all must exist.
func eachInterface(judge func(want iface, got *netlink.LinkAttrs) error) func(*bench) error {
	return withResult(func(b *bench, c *lab.Container, r *result) error {
		for i, want := range r.Interfaces {
			link, err := b.link(r, i, c)
			if err != nil && judge == nil {
				return err
			}
			if err != nil || judge == nil {
				continue
			}
			if err := judge(want, link.Attrs()); err != nil {
				return failf("interfaces[%d], %s: %w", i, want.Name, err)
			}
		}
		return nil
	})
}

// addressOf returns address i of a result and its interface in the container. ok is false if the address belongs to
// no interface of the container.
func (b *bench) addressOf(r *result, i int, c *lab.Container) (addr netip.Prefix, dev string, ok bool, err error) {
	ip := r.IPs[i]
	if addr, err = netip.ParsePrefix(ip.Address); err != nil {
		return addr, "", false, failf("ips[%d].address: %w", i, err)
	}
	if ip.Interface == nil {
		return addr, "", false, nil
	}
	if *ip.Interface < 0 || *ip.Interface >= len(r.Interfaces) {
		return addr, "", false, failf("ips[%d].interface: want an index of interfaces, which has %d entries, got %d", i, len(r.Interfaces), *ip.Interface)
	}
	on := r.Interfaces[*ip.Interface]
	return addr, on.Name, on.Sandbox == c.Path, nil
}

// hasAddress reports whether an interface has the address, with its prefix length.
func hasAddress(n *lab.NS, dev string, addr netip.Prefix) (found bool, err error) {
	err = n.Do(func() error {
		link, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		for _, a := range addrs {
			found = found || a.IPNet.String() == addr.String()
		}
		return err
	})
	return found, err
}

// findRoutes returns the routes to a destination in a namespace, in all tables.
func findRoutes(n *lab.NS, dst, gw string) (found []netlink.Route, err error) {
	want, err := netip.ParsePrefix(dst)
	if err != nil {
		return nil, failf("route %q: %w", dst, err)
	}
	family := netlink.FAMILY_V6
	if want.Addr().Is4() {
		family = netlink.FAMILY_V4
	}
	err = n.Do(func() error {
		all, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		for _, r := range all {
			to := netip.PrefixFrom(want.Addr(), 0).Masked().String() // the default route has no destination
			if r.Dst != nil {
				to = r.Dst.String()
			}
			if to == want.Masked().String() && (gw == "" || len(r.MultiPath) > 0 || r.Gw != nil && r.Gw.String() == gw || r.Via != nil && strings.Contains(r.Via.String(), gw)) {
				found = append(found, r)
			}
		}
		return err
	})
	return found, err
}
