package nl

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/plumb-cni/plumb/pkg/netlink"
	"golang.org/x/sys/unix"
)

// ErrDuplicate says that another host on the segment answers for an address.
var ErrDuplicate = errors.New("the address is in use on the segment (duplicate address detection)")

// awaitStep is how long one event is awaited before the state is read again: a
// notification can be lost when the socket's buffer is full.
const awaitStep = time.Second

// groups of rtnetlink notifications, as the bits of the socket's address.
func group(n uint) uint32 { return 1 << (n - 1) }

// listen subscribes to notifications of the connection's namespace.
func (c *Conn) listen(groups uint32) (*netlink.Listener, error) {
	var l *netlink.Listener
	err := inside(c.h, "open netlink socket", func() (err error) {
		l, err = netlink.Listen(unix.NETLINK_ROUTE, groups)
		return err
	})
	if err != nil && l != nil {
		err = errors.Join(err, l.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("open netlink socket in %s: %w", c.h.Path(), err)
	}
	return l, nil
}

// AwaitRunning waits until the link is operationally up; for a bridge port that is
// when the bridge forwards to it.
func (c *Conn) AwaitRunning(l Link, within time.Duration) error {
	state := "unknown"
	return c.await(within, awaited{
		step:   "await link " + l.Name + " running",
		groups: group(unix.RTNLGRP_LINK),
		done: func() (bool, error) {
			now, err := c.LinkByIndex(l.Index)
			state = operState(now.operstate)
			return now.Running, err
		},
		state: func() string { return "its state is " + state },
	})
}

// AwaitUsable waits until duplicate address detection is done with the link's
// addresses. A duplicate is an error that matches ErrDuplicate and names it.
func (c *Conn) AwaitUsable(l Link, within time.Duration) error {
	var waiting netip.Prefix
	return c.await(within, awaited{
		step:   "await addresses of " + l.Name,
		groups: group(unix.RTNLGRP_IPV6_IFADDR),
		done: func() (done bool, err error) {
			addrs, err := c.Addrs(l)
			if err == nil {
				waiting, err = tentative(addrs)
			}
			return !waiting.IsValid(), err
		},
		state: func() string { return waiting.String() + " is still tentative" },
	})
}

// DelAside deletes a link and returns as soon as nobody sees it any more. The kernel
// goes on to wait for a grace period, some ten milliseconds (netdev_run_todo), without
// a lock that anybody needs; finish, never nil, waits for that and gives its outcome.
// Until then the connection is in use.
func (c *Conn) DelAside(l Link) (finish func() error, err error) {
	done := func() error { return nil }
	events, err := c.listen(group(unix.RTNLGRP_LINK))
	if err != nil {
		return done, err
	}
	answer, gone := make(chan error, 1), make(chan struct{})
	go func() { answer <- c.Apply(l.Del()) }()
	go func() {
		if sawDeleted(events, l.Index) {
			close(gone)
		}
	}()
	select {
	case err := <-answer:
		return done, errors.Join(err, events.Close())
	case <-gone:
		return func() error { return errors.Join(<-answer, events.Close()) }, nil
	}
}

// sawDeleted reads notifications until one says that the link is gone (true) or the
// socket is closed.
func sawDeleted(events *netlink.Listener, index int) bool {
	for {
		msgs, err := events.Next(time.Time{})
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return false
		}
		for _, m := range msgs {
			if l, err := decodeLink(m.Body); m.Kind == unix.RTM_DELLINK && err == nil && l.Index == index {
				return true
			}
		}
	}
}

// tentative gives an address that is not usable yet; zero: all are.
func tentative(addrs []Addr) (waiting netip.Prefix, err error) {
	for _, a := range addrs {
		if a.Duplicate {
			return a.Prefix, fmt.Errorf("%s: %w", a.Prefix, ErrDuplicate)
		}
		if a.Tentative && !a.Optimistic {
			waiting = a.Prefix
		}
	}
	return waiting, nil
}

// AwaitDelivery waits until the kernel takes what is sent to the link's addresses for
// itself. It does at once for IPv4. For IPv6 a worker of the kernel puts an address in
// the routing table, and joins the group in which neighbours ask for it, some time
// after the request for the address was answered (addrconf_dad_work), also where
// duplicates are not looked for.
func (c *Conn) AwaitDelivery(l Link, addrs []netip.Addr, within time.Duration) error {
	waiting := slices.DeleteFunc(slices.Clone(addrs), netip.Addr.Is4)
	return c.await(within, awaited{
		step:   "await delivery to " + l.Name,
		groups: group(unix.RTNLGRP_IPV6_ROUTE),
		done: func() (bool, error) {
			for len(waiting) > 0 {
				if ok, err := c.delivers(l, waiting[0]); !ok || err != nil {
					return false, err
				}
				waiting = waiting[1:]
			}
			return true, nil
		},
		state: func() string { return waiting[0].String() + " is not in the routing table" },
	})
}

// awaited is a state of the kernel's that comes with notifications of the groups.
type awaited struct {
	step   string
	groups uint32
	done   func() (bool, error)
	state  func() string // for people, when it does not come
}

// await reads the state, and again after each notification, until it has come or the
// time is over.
func (c *Conn) await(within time.Duration, a awaited) error {
	if ok, err := a.done(); ok || err != nil {
		return wrap(a.step, err)
	}
	events, err := c.listen(a.groups)
	if err != nil {
		return err
	}
	defer func() { _ = events.Close() }()
	deadline := time.Now().Add(within)
	for {
		// The state is read after the groups were joined, so no change is missed.
		if ok, err := a.done(); ok || err != nil {
			return wrap(a.step, err)
		}
		left := time.Until(deadline)
		if left <= 0 {
			return &Error{Step: a.step, Err: fmt.Errorf("not within %s: %s: %w", within, a.state(), os.ErrDeadlineExceeded)}
		}
		if err := c.h.Step(a.step, func() error { return nextEvent(events, min(left, awaitStep)) }); err != nil {
			return wrap(a.step, err)
		}
	}
}

// nextEvent waits for any notification. Running out of time or of buffer is no
// error: the caller reads the state again.
func nextEvent(events *netlink.Listener, within time.Duration) error {
	_, err := events.Next(time.Now().Add(within))
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, unix.ENOBUFS) {
		return nil
	}
	return err
}

// operState names the states of RFC 2863 as `ip link` does.
func operState(s uint8) string {
	names := [...]string{"UNKNOWN", "NOTPRESENT", "DOWN", "LOWERLAYERDOWN", "TESTING", "DORMANT", "UP"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprint(s)
}
