package nl

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A RefusingRoute is a route that refuses packets. It is the error of LinkTo and RouteTo, which matches fs.ErrNotExist.
type RefusingRoute struct {
	Type     string // "blackhole", "unreachable" or "prohibit"
	Dst      netip.Prefix
	Table    int
	Priority int // metric
}

// Error returns the route as a text, for example "blackhole route 10.88.0.12".
func (r *RefusingRoute) Error() string {
	s := r.Type + " route " + r.destination()
	if r.Table != MainTable {
		s += fmt.Sprintf(" of table %d", r.Table)
	}
	return s
}

// Is lets the error match fs.ErrNotExist.
func (r *RefusingRoute) Is(target error) bool { return target == fs.ErrNotExist }

// Delete returns the words of the command that deletes the route.
func (r *RefusingRoute) Delete() []string {
	words := []string{"ip", "route", "delete", r.Type, r.destination()}
	if r.Table != MainTable {
		words = append(words, "table", strconv.Itoa(r.Table))
	}
	if r.Priority != 0 {
		words = append(words, "metric", strconv.Itoa(r.Priority))
	}
	return words
}

func (r *RefusingRoute) destination() string {
	if r.Dst.IsSingleIP() {
		return r.Dst.Addr().String()
	}
	return r.Dst.String()
}

// refusals contains the types of routes that refuse packets, with the error of a look-up (fib_props, ip6_rt_type_to_error).
var refusals = []struct {
	err  error
	kind int
	name string
}{
	{unix.EINVAL, unix.RTN_BLACKHOLE, "blackhole"},
	{unix.EHOSTUNREACH, unix.RTN_UNREACHABLE, "unreachable"},
	{unix.EACCES, unix.RTN_PROHIBIT, "prohibit"},
}

// DefaultRefusal returns the default route that refuses packets from the address that arrive through the link, or nil if it finds
// none. A policy rule may select its table.
func (c *Conn) DefaultRefusal(l Link, from netip.Addr) *RefusingRoute {
	probe := unrouted4
	if from.Is6() {
		probe = unrouted6
	}
	_, err := c.lookup(probe, &netlink.RouteGetOptions{Iif: l.Name, SrcAddr: from.AsSlice()})
	var found *RefusingRoute
	if err == nil || !errors.As(c.explainRefusal(probe, err), &found) || found.Dst.Bits() > 0 {
		return nil
	}
	return found
}

// explainRefusal returns the route that caused the error of a look-up, or the error if it finds none, for example because a
// policy rule refuses the packets.
func (c *Conn) explainRefusal(a netip.Addr, err error) error {
	for _, refusal := range refusals {
		if !errors.Is(err, refusal.err) {
			continue
		}
		list, listErr := c.routes("list routes to "+a.String(), familyOf(a), &netlink.Route{})
		if listErr != nil {
			return listErr
		}
		best := bestRoutes(list, a)
		for _, table := range append([]int{MainTable}, slices.Sorted(maps.Keys(best))...) {
			if r := best[table]; r.Type == refusal.kind {
				return &RefusingRoute{refusal.name, prefix(r.Dst), table, r.Priority}
			}
		}
	}
	if errors.Is(err, unix.EHOSTUNREACH) {
		return withStep("find route to "+a.String(), fs.ErrNotExist)
	}
	return err
}

// bestRoutes returns the route to an address that the kernel selects in each table.
func bestRoutes(list []netlink.Route, a netip.Addr) map[int]netlink.Route {
	best := map[int]netlink.Route{}
	for _, r := range list {
		bits := prefix(r.Dst).Bits()
		if !prefix(r.Dst).Contains(a) {
			continue
		}
		if other, found := best[r.Table]; !found || bits > prefix(other.Dst).Bits() || bits == prefix(other.Dst).Bits() && r.Priority < other.Priority {
			best[r.Table] = r
		}
	}
	return best
}
