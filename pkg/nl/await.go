package nl

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"time"

	rawnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

var ErrDuplicate = errors.New("the address is in use on the segment (duplicate address detection)")

// maxEventWait limits how long await waits for one notification before it reads the state again. The
// kernel drops notifications if the buffer of the socket is full.
const maxEventWait = time.Second

// AwaitRunning waits until the operational state of the link is up (RFC 2863). A bridge port reaches
// that state when the bridge forwards packets to it. If the link does not reach it within the given
// time, the error matches os.ErrDeadlineExceeded.
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

// AwaitUsable waits until duplicate address detection has ended for the addresses of the link. It ignores
// addresses with a limited lifetime, which the kernel adds after a router advertisement, and optimistic
// addresses, which are usable during the detection. If the detection finds a duplicate, the error names
// the address and matches ErrDuplicate. If the detection does not end within the given time, the error
// matches os.ErrDeadlineExceeded.
func (c *Conn) AwaitUsable(l Link, within time.Duration) error {
	var waiting netip.Prefix
	return c.await(within, awaited{
		step:  "await addresses of " + l.Name,
		group: unix.RTNLGRP_IPV6_IFADDR,
		done: func() (done bool, err error) {
			addrs, err := c.Addrs(l)
			if err == nil {
				waiting, err = anyTentative(addrs)
			}
			return !waiting.IsValid(), err
		},
		state: func() string { return waiting.String() + " is still tentative" },
	})
}

// DeleteLinkAsync deletes a link and returns when the kernel has announced the deletion (RTM_DELLINK).
// At that time, the request still waits in the kernel for tens of milliseconds (netdev_run_todo), but
// does not block requests of other connections. wait, which is never nil, waits until the request has
// ended and returns its error. The caller must not use the connection before wait has returned. If the
// link does not exist, DeleteLinkAsync returns no error.
func (c *Conn) DeleteLinkAsync(l Link) (wait func() error, err error) {
	noWait := func() error { return nil }
	events, err := openSocket(c.h, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return noWait, err
	}
	answer := make(chan error, 1)
	go func() {
		err := c.DeleteLink(l)
		answer <- errors.Join(err, events.Close())
	}()
	if awaitDeleted(events, l.Index) {
		return func() error { return <-answer }, nil
	}
	return noWait, <-answer
}

// awaitDeleted reads notifications until one of them announces that the link was deleted, and returns
// true. It returns false when the socket is closed.
func awaitDeleted(events *rawnl.NetlinkSocket, index int) bool {
	for {
		msgs, from, err := events.Receive()
		if err != nil && !isLoss(err) {
			return false
		}
		for _, m := range msgs {
			if from.Pid != rawnl.PidKernel || m.Header.Type != unix.RTM_DELLINK {
				continue
			}
			// An RTM_DELLINK with AF_BRIDGE announces that the link is no longer a bridge port.
			if l := rawnl.DeserializeIfInfomsg(m.Data); l.Family == unix.AF_UNSPEC && int(l.Index) == index {
				return true
			}
		}
	}
}

// anyTentative returns a permanent address that is not usable because duplicate address detection has
// not ended, or the zero Prefix if there is none. It returns an error if one of the permanent addresses
// is a duplicate.
func anyTentative(addrs []Addr) (waiting netip.Prefix, err error) {
	for _, a := range addrs {
		if !a.Permanent {
			continue
		}
		if a.Duplicate {
			return a.Prefix, fmt.Errorf("%s: %w", a.Prefix, ErrDuplicate)
		}
		if a.Tentative && !a.Optimistic {
			waiting = a.Prefix
		}
	}
	return waiting, nil
}

// AwaitDelivery waits until the addresses have local routes, so that the kernel delivers packets for
// them to the namespace. For IPv4, the kernel adds the route before it answers the request that adds
// the address. For IPv6, it adds the route, and joins the multicast group of neighbor solicitations
// for the address, some time after its answer (addrconf_dad_work), even without duplicate address
// detection. If a route does not exist within the given time, the error names the address and matches
// os.ErrDeadlineExceeded.
func (c *Conn) AwaitDelivery(l Link, addrs []netip.Addr, within time.Duration) error {
	waiting := slices.DeleteFunc(slices.Clone(addrs), netip.Addr.Is4)
	return c.await(within, awaited{
		step:  "await delivery to " + l.Name,
		group: unix.RTNLGRP_IPV6_ROUTE,
		done: func() (bool, error) {
			for len(waiting) > 0 {
				if ok, err := c.hasLocalRoute(l, waiting[0]); !ok || err != nil {
					return false, err
				}
				waiting = waiting[1:]
			}
			return true, nil
		},
		state: func() string { return waiting[0].String() + " is not in the routing table" },
	})
}

// awaited describes a state of the kernel for which await waits.
type awaited struct {
	step  string
	group uint                 // the multicast group of the notifications about changes
	done  func() (bool, error) // reads the state, and reports whether it is reached
	state func() string        // describes the state that done has read, for the error after a timeout
}

// await reads the state until it is reached, again after each notification. If the state is not
// reached within the given time, the error matches os.ErrDeadlineExceeded.
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
		// The socket joined the group before the state is read. Therefore await misses no change.
		if ok, err := a.done(); ok || err != nil {
			return withStep(a.step, err)
		}
		left := time.Until(deadline)
		if left <= 0 {
			return &requestError{step: a.step, err: fmt.Errorf("not within %s: %s: %w", within, a.state(), os.ErrDeadlineExceeded)}
		}
		if err := c.h.Step(a.step, func() error { return nextEvent(events, min(left, maxEventWait)) }); err != nil {
			return withStep(a.step, err)
		}
	}
}

// nextEvent waits for any notification. It also returns nil after a timeout or a loss of
// notifications, because the caller reads the state again in any case.
func nextEvent(events *rawnl.NetlinkSocket, within time.Duration) error {
	limit := unix.NsecToTimeval(max(within, time.Millisecond).Nanoseconds()) // zero means no limit
	if err := events.SetReceiveTimeout(&limit); err != nil {
		return err
	}
	_, _, err := events.Receive()
	if errors.Is(err, unix.EAGAIN) || isLoss(err) {
		return nil
	}
	return err
}

// isLoss reports whether the error of Receive means that notifications were lost, either because the buffer of the
// socket was full, or because package netlink could not receive a notification of more than 64 KiB (see executeLarge).
func isLoss(err error) bool { return errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EINVAL) }

// AwaitLink calls find, and calls it again after each change of a link in the namespace, until find
// returns a link, or an error that does not match fs.ErrNotExist. After a timeout, AwaitLink returns
// the last error of find. what describes the link in the name of the step.
func (c *Conn) AwaitLink(what string, within time.Duration, find func() (Link, error)) (found Link, err error) {
	waitErr := c.await(within, awaited{
		step:  "await " + what,
		group: unix.RTNLGRP_LINK,
		done: func() (bool, error) {
			found, err = find()
			return !errors.Is(err, fs.ErrNotExist), nil
		},
		state: func() string { return "it does not exist" },
	})
	if errors.Is(waitErr, os.ErrDeadlineExceeded) || waitErr == nil {
		return found, err
	}
	return Link{}, waitErr
}
