package nl

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	rawnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrDuplicate is the error of an address that another host on the segment has.
var ErrDuplicate = errors.New("the address is in use on the segment (duplicate address detection)")

// awaitStep is how long one event is awaited before the state is read again: a
// notification can be lost when the socket's buffer is full.
const awaitStep = time.Second

// AwaitRunning waits until the link is operationally up; for a bridge port that is
// when the bridge forwards to it.
func (c *Conn) AwaitRunning(l Link, within time.Duration) error {
	state := "unknown"
	return c.await(within, awaited{
		step:  "await link " + l.Name + " running",
		group: unix.RTNLGRP_LINK,
		done: func() (bool, error) {
			now, err := c.LinkByIndex(l.Index)
			state = now.state.String()
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
		step:  "await addresses of " + l.Name,
		group: unix.RTNLGRP_IPV6_IFADDR,
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

// DeleteLinkAsync deletes a link and returns when the kernel has announced the deletion
// (RTM_DELLINK). The kernel then waits for a grace period of some ten milliseconds
// (netdev_run_todo); it holds no lock that other requests need. The function finish is
// never nil. It waits until the kernel has finished and returns the result. The caller must
// not use the connection before finish has returned.
func (c *Conn) DeleteLinkAsync(l Link) (finish func() error, err error) {
	noWait := func() error { return nil }
	events, err := openSocket(c.h, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return noWait, err
	}
	answer := make(chan error, 1)
	go func() {
		err := c.Apply(l.Del())
		answer <- errors.Join(err, events.Close())
	}()
	if sawDeleted(events, l.Index) {
		return func() error { return <-answer }, nil
	}
	return noWait, <-answer
}

// sawDeleted reads notifications until one says that the link is gone; then it reports
// true. It reports false when the socket is closed.
func sawDeleted(events *rawnl.NetlinkSocket, index int) bool {
	for {
		msgs, from, err := events.Receive()
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return false
		}
		for _, m := range msgs {
			if from.Pid != rawnl.PidKernel || m.Header.Type != unix.RTM_DELLINK {
				continue
			}
			// With AF_BRIDGE it only says that the link left its bridge.
			if l := rawnl.DeserializeIfInfomsg(m.Data); l.Family == unix.AF_UNSPEC && int(l.Index) == index {
				return true
			}
		}
	}
}

// tentative returns an address that is not usable yet; zero: all are.
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

// AwaitDelivery waits until the local routes of the addresses exist, so that the kernel
// takes packets to them for the namespace's own. IPv4 has them at once. For IPv6 a worker
// of the kernel adds them, and joins the group in which neighbours ask for the address,
// some time after the request for the address was answered (addrconf_dad_work), also
// where it does not look for duplicates.
func (c *Conn) AwaitDelivery(l Link, addrs []netip.Addr, within time.Duration) error {
	waiting := slices.DeleteFunc(slices.Clone(addrs), netip.Addr.Is4)
	return c.await(within, awaited{
		step:  "await delivery to " + l.Name,
		group: unix.RTNLGRP_IPV6_ROUTE,
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

// awaited is a state of the kernel that notifications of a group announce.
type awaited struct {
	step  string
	group uint
	done  func() (bool, error)
	state func() string // for people, when the time is over
}

// await reads the state, and again after each notification, until it is done or the
// time is over.
func (c *Conn) await(within time.Duration, a awaited) error {
	if ok, err := a.done(); ok || err != nil {
		return withStep(a.step, err)
	}
	events, err := openSocket(c.h, unix.NETLINK_ROUTE, a.group)
	if err != nil {
		return err
	}
	defer func() { _ = events.Close() }()
	deadline := time.Now().Add(within)
	for {
		// The state is read after the group was joined, so no change is missed.
		if ok, err := a.done(); ok || err != nil {
			return withStep(a.step, err)
		}
		left := time.Until(deadline)
		if left <= 0 {
			return &Error{Step: a.step, Err: fmt.Errorf("not within %s: %s: %w", within, a.state(), os.ErrDeadlineExceeded)}
		}
		if err := c.h.Step(a.step, func() error { return nextEvent(events, min(left, awaitStep)) }); err != nil {
			return withStep(a.step, err)
		}
	}
}

// nextEvent waits for any notification. It is no error that the time is over or that
// notifications were lost: the caller reads the state again.
func nextEvent(events *rawnl.NetlinkSocket, within time.Duration) error {
	limit := unix.NsecToTimeval(max(within, time.Millisecond).Nanoseconds()) // zero would be no limit
	if err := events.SetReceiveTimeout(&limit); err != nil {
		return err
	}
	_, _, err := events.Receive()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS) {
		return nil
	}
	return err
}
