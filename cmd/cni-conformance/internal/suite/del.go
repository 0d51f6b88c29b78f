package suite

import (
	"errors"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/cmd/cni-conformance/internal/lab"
)

func delCases() []Case {
	return []Case{
		{ID: "DEL-1", Section: "2, DEL", Level: must, check: attached(del(), noLink),
			Requirement: "DEL after ADD succeeds, and deletes the interface that ADD created."},
		{ID: "DEL-2", Section: "2, DEL", Level: must, check: attached(func(b *bench, c *lab.Container) error { return b.Del(c) }, del()),
			Requirement: "A second DEL of the same attachment succeeds."},
		{ID: "DEL-3", Section: "2, DEL", Level: should, check: attached(del(lab.WithoutPrevResult), noLink),
			Requirement: "DEL without prevResult succeeds, and deletes the interface that ADD created."},
		{ID: "DEL-4", Section: "2, DEL", Level: must, check: attached(del(lab.WithoutNetns)),
			Requirement: "DEL succeeds without the variable CNI_NETNS, which is optional."},
		{ID: "DEL-5", Section: "2, DEL", Level: should, check: attached(remove, del()),
			Requirement: "DEL succeeds after the container's namespace was deleted, and its path does not exist."},
		{ID: "DEL-6", Section: "2, DEL", Level: must, check: delNeverAdded,
			Requirement: "DEL of a container that was never attached succeeds."},
	}
}

// A step does something with a container, or checks something.
type step func(*bench, *lab.Container) error

// attached is a check that takes steps with an attached container.
func attached(steps ...step) func(*bench) error {
	return func(b *bench) error {
		c, err := b.AddNew()
		for _, step := range steps {
			if err == nil {
				err = step(b, c)
			}
		}
		return err
	}
}

func del(change ...func(*lab.Call)) step {
	return func(b *bench, c *lab.Container) error { return asFailure("DEL", b.Del(c, change...)) }
}

func noLink(b *bench, c *lab.Container) error {
	if b.creator >= 0 && hasLink(c.NS, c.IfName) {
		return failf("after DEL, %s is still in the container", c.IfName)
	}
	return nil
}

func remove(_ *bench, c *lab.Container) error { return c.Remove() }

func delNeverAdded(b *bench) error {
	c, err := b.NewContainer()
	if err != nil {
		return err
	}
	return del()(b, c)
}

func checkCases() []Case {
	return under(since("0.4.0"), []Case{
		{ID: "CHECK-1", Section: "2, CHECK", Level: must, check: attached(wantCheck),
			Requirement: "CHECK directly after ADD succeeds."},
		{ID: "CHECK-2", Section: "2, CHECK", Level: must, applies: []condition{interfacePlugin}, check: attached(onLink(addRoute), wantCheck),
			Requirement: "CHECK accepts a route that another plugin added."},
		{ID: "CHECK-3", Section: "2, CHECK", Level: must, applies: []condition{interfacePlugin}, check: withResult(checkPrevResult),
			Requirement: "CHECK consults prevResult: it fails if the interface lacks an address that prevResult contains."},
		{ID: "CHECK-4", Section: "2, CHECK", Level: should, applies: []condition{interfacePlugin}, check: attached(onLink(netlink.LinkDel), wantCheckFails("the interface was deleted")),
			Requirement: "CHECK fails after the interface was deleted."},
		{ID: "CHECK-5", Section: "2, CHECK", Level: should, applies: []condition{interfacePlugin}, check: checkWithoutEach("address", func(r *result) int { return len(r.IPs) }, takeAddress),
			Requirement: "CHECK fails after an address of the result was deleted. This case deletes each one in turn."},
		{ID: "CHECK-6", Section: "2, CHECK", Level: should, applies: []condition{interfacePlugin}, check: checkWithoutEach("route", func(r *result) int { return len(r.Routes) }, takeRoute),
			Requirement: "CHECK fails after a route of the result was deleted. This case deletes each one in turn."},
	})
}

func wantCheck(b *bench, c *lab.Container) error {
	return asFailure("CHECK of what ADD created", b.Check(c))
}

func wantCheckFails(although string) step {
	return func(b *bench, c *lab.Container) error {
		if b.Check(c) == nil {
			return failf("CHECK succeeds, although %s", although)
		}
		return nil
	}
}

// onLink calls f for the container's interface CNI_IFNAME.
func onLink(f func(netlink.Link) error) step {
	return func(_ *bench, c *lab.Container) error {
		return c.Do(func() error {
			link, err := netlink.LinkByName(c.IfName)
			if err != nil {
				return err
			}
			return f(link)
		})
	}
}

func addRoute(link netlink.Link) error {
	dst, _ := netlink.ParseIPNet("198.18.1.0/24")
	return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK})
}

func checkPrevResult(b *bench, c *lab.Container, r *result) error {
	object, _ := lab.Object(c.Result())
	ips, _ := object["ips"].([]any)
	for i := range r.IPs {
		if _, _, inContainer, err := b.addressOf(r, i, c); err == nil && inContainer {
			ips[i].(map[string]any)["address"] = "198.18.2.77/24"
			c.Results[len(c.Results)-1] = lab.JSON(object)
			return wantCheckFails("prevResult contains 198.18.2.77/24, which the container does not have")(b, c)
		}
	}
	return notApplicable("the result contains no address in the container")
}

// checkWithoutEach takes each object of the result from another container. take returns what it deleted, or "" if the object did
// not exist.
func checkWithoutEach(kind string, count func(*result) int, take func(*bench, *lab.Container, *result, int) (string, error)) func(*bench) error {
	return func(b *bench) error {
		any := false
		for i, n := 0, 1; i < n; i++ {
			err := withResult(func(b *bench, c *lab.Container, r *result) error {
				if i == 0 {
					n = count(r)
				}
				if i >= count(r) {
					return nil
				}
				deleted, err := take(b, c, r, i)
				if err == nil && deleted != "" {
					any = true
					err = wantCheckFails(deleted+" was deleted")(b, c)
				}
				if err != nil {
					return err
				}
				return b.Del(c)
			})(b)
			if err != nil {
				return err
			}
		}
		if !any {
			return notApplicable("the result contains no " + kind + " that exists in the container")
		}
		return nil
	}
}

func takeAddress(b *bench, c *lab.Container, r *result, i int) (deleted string, err error) {
	addr, dev, inContainer, err := b.addressOf(r, i, c)
	if err != nil || !inContainer {
		return "", nil // ADD-6 judges it
	}
	err = c.Do(func() error {
		link, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		parsed, err := netlink.ParseAddr(addr.String())
		if err != nil {
			return err
		}
		return netlink.AddrDel(link, parsed)
	})
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return "", nil
	}
	return addr.String(), err
}

func takeRoute(_ *bench, c *lab.Container, r *result, i int) (deleted string, err error) {
	found, err := findRoutes(c.NS, r.Routes[i].Dst, r.Routes[i].GW)
	for _, route := range found {
		err = errors.Join(err, c.Do(func() error { return netlink.RouteDel(&route) }))
		deleted = "the route to " + r.Routes[i].Dst
	}
	return deleted, err
}
