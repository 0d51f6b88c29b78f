package suite

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/plumb-cni/plumb/v2/cmd/cni-conformance/internal/lab"
)

func delCases() []Case {
	return []Case{
		{ID: "DEL-1", Section: "2, DEL", Level: must, check: del("with prevResult"),
			Requirement: "DEL after ADD succeeds, and deletes the interface that ADD created."},
		{ID: "DEL-2", Section: "2, DEL", Level: must, check: delTwice,
			Requirement: "A second DEL of the same attachment succeeds."},
		{ID: "DEL-3", Section: "2, DEL", Level: should, check: del("without prevResult", lab.WithoutPrevResult),
			Requirement: "DEL without prevResult succeeds, and deletes the interface that ADD created."},
		{ID: "DEL-4", Section: "2, DEL", Level: must, check: delWithoutNetns,
			Requirement: "DEL succeeds without the variable CNI_NETNS, which is optional."},
		{ID: "DEL-5", Section: "2, DEL", Level: should, check: delAfterContainer,
			Requirement: "DEL succeeds after the container's namespace was deleted, and its path does not exist."},
		{ID: "DEL-6", Section: "2, DEL", Level: must, check: delNeverAdded,
			Requirement: "DEL of a container that was never attached succeeds."},
	}
}

// del returns a check of DEL whose calls are changed.
func del(what string, change ...func(*lab.Call)) func(*bench) error {
	return func(b *bench) error {
		c, err := b.AddNew()
		if err != nil {
			return err
		}
		if err := b.Del(c, change...); err != nil {
			return asFailure("DEL "+what, err)
		}
		if b.creator >= 0 && hasLink(c.NS, c.IfName) {
			return failf("DEL %s: %s is still in the container", what, c.IfName)
		}
		return nil
	}
}

func delTwice(b *bench) error {
	c, err := b.AddNew()
	if err != nil {
		return err
	}
	if err := b.Del(c); err != nil {
		return err
	}
	return asFailure("the second DEL", b.Del(c))
}

func delWithoutNetns(b *bench) error {
	c, err := b.AddNew()
	if err != nil {
		return err
	}
	return asFailure("DEL without CNI_NETNS", b.Del(c, lab.WithoutNetns))
}

func delAfterContainer(b *bench) error {
	c, err := b.AddNew()
	if err != nil {
		return err
	}
	if err := c.Remove(); err != nil {
		return err
	}
	return asFailure("DEL after the namespace was deleted", b.Del(c))
}

func delNeverAdded(b *bench) error {
	c, err := b.NewContainer()
	if err != nil {
		return err
	}
	return asFailure("DEL without an ADD", b.Del(c))
}

func checkCases() []Case {
	return under(since("0.4.0"), []Case{
		{ID: "CHECK-1", Section: "2, CHECK", Level: must, check: checkUntouched,
			Requirement: "CHECK directly after ADD succeeds."},
		{ID: "CHECK-2", Section: "2, CHECK", Level: must, applies: []condition{interfacePlugin}, check: checkAllowsMore,
			Requirement: "CHECK accepts a route that another plugin added."},
		{ID: "CHECK-3", Section: "2, CHECK", Level: must, applies: []condition{interfacePlugin}, check: checkPrevResult,
			Requirement: "CHECK consults prevResult: it fails if the interface lacks an address that prevResult contains."},
		{ID: "CHECK-4", Section: "2, CHECK", Level: should, applies: []condition{interfacePlugin}, check: checkWithoutLink,
			Requirement: "CHECK fails after the interface was deleted."},
		{ID: "CHECK-5", Section: "2, CHECK", Level: should, applies: []condition{interfacePlugin}, check: checkWithoutAddress,
			Requirement: "CHECK fails after an address of the result was deleted. This case deletes each one in turn."},
		{ID: "CHECK-6", Section: "2, CHECK", Level: should, applies: []condition{interfacePlugin}, check: checkWithoutRoute,
			Requirement: "CHECK fails after a route of the result was deleted. This case deletes each one in turn."},
	})
}

func checkUntouched(b *bench) error {
	c, err := b.AddNew()
	if err != nil {
		return err
	}
	return asFailure("CHECK of an attachment that nobody changed", b.Check(c))
}

func checkAllowsMore(b *bench) error {
	c, err := b.AddNew()
	if err != nil {
		return err
	}
	dst, _ := netlink.ParseIPNet("198.18.1.0/24")
	err = c.Do(func() error {
		link, err := netlink.LinkByName(c.IfName)
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK})
	})
	if err != nil {
		return err
	}
	return asFailure("CHECK with one more route", b.Check(c))
}

// wantCheckFails is the judgement after something was taken away.
func wantCheckFails(b *bench, c *lab.Container, what string) error {
	if b.Check(c) == nil {
		return failf("CHECK succeeds, although %s", what)
	}
	return nil
}

func checkPrevResult(b *bench) error {
	c, r, err := b.attached()
	if err != nil {
		return err
	}
	object, _ := lab.Object(c.Result())
	ips, _ := object["ips"].([]any)
	for i := range r.IPs {
		if _, _, inContainer, err := b.addressOf(r, i, c); err == nil && inContainer {
			ips[i].(map[string]any)["address"] = "198.18.2.77/24"
			c.Results[len(c.Results)-1] = lab.JSON(object)
			return wantCheckFails(b, c, "prevResult contains 198.18.2.77/24, which the container does not have")
		}
	}
	return notApplicable("the result contains no address in the container")
}

func checkWithoutLink(b *bench) error {
	c, err := b.AddNew()
	if err != nil {
		return err
	}
	err = c.Do(func() error {
		link, err := netlink.LinkByName(c.IfName)
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	})
	if err != nil {
		return err
	}
	return wantCheckFails(b, c, c.IfName+" was deleted")
}

func checkWithoutAddress(b *bench) error {
	count := 0
	for i := 0; ; i++ {
		c, r, err := b.attached()
		if err != nil {
			return err
		}
		if i >= len(r.IPs) {
			break
		}
		addr, dev, inContainer, err := b.addressOf(r, i, c)
		if err != nil {
			return err
		}
		if inContainer {
			count++
			if err := deleteAddress(c, dev, addr.String()); err != nil {
				return err
			}
			if err := wantCheckFails(b, c, addr.String()+" was deleted"); err != nil {
				return err
			}
		}
		if err := b.Del(c); err != nil {
			return err
		}
	}
	if count == 0 {
		return notApplicable("the result contains no address in the container")
	}
	return nil
}

func deleteAddress(c *lab.Container, dev, text string) error {
	return c.Do(func() error {
		link, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		if err := netlink.AddrDel(link, addr); err != nil {
			return fmt.Errorf("delete %s of %s: %w", text, dev, err)
		}
		return nil
	})
}

func checkWithoutRoute(b *bench) error {
	count := 0
	for i := 0; ; i++ {
		c, r, err := b.attached()
		if err != nil {
			return err
		}
		if i >= len(r.Routes) {
			break
		}
		found, err := findRoutes(c.NS, r.Routes[i].Dst, r.Routes[i].GW)
		if err != nil {
			return err
		}
		for _, route := range found {
			if err := c.Do(func() error { return netlink.RouteDel(&route) }); err != nil {
				return fmt.Errorf("delete route to %s: %w", r.Routes[i].Dst, err)
			}
		}
		if len(found) > 0 {
			count++
			if err := wantCheckFails(b, c, "the route to "+r.Routes[i].Dst+" was deleted"); err != nil {
				return err
			}
		}
		if err := b.Del(c); err != nil {
			return err
		}
	}
	if count == 0 {
		return notApplicable("the result contains no route that exists in the container")
	}
	return nil
}
