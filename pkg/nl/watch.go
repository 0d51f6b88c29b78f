package nl

import (
	"errors"

	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/vishvananda/netlink"
	rawnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A ChangeKind says what happened to a link.
type ChangeKind string

// These are the kinds of changes.
const (
	Deleted        ChangeKind = "deleted" // or moved to another namespace
	SetDown        ChangeKind = "set down"
	AddressAdded   ChangeKind = "address added"
	AddressDeleted ChangeKind = "address deleted"
)

// A Change is a deletion, a change of the addresses, or a change that stops the traffic of a link.
type Change struct {
	Kind ChangeKind
	Link Link // only Index is set if an address was added or deleted
}

// watchBuffer is the size of the receive buffer in bytes. The kernel drops notifications that do not fit.
const watchBuffer = 4 << 20

// WatchChanges returns a channel that receives the changes of all links in h from now on. The caller must receive until
// the channel is closed. Closing h closes the channel. The channel is also closed if the socket fails, for example
// because the kernel dropped notifications (ENOBUFS).
//
// WatchChanges does not use netlink.LinkSubscribe and netlink.AddrSubscribe, because the notifications on their two
// sockets have no common order.
func WatchChanges(h *ns.Handle) (<-chan Change, error) {
	events, err := openSocket(h, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return nil, err
	}
	h.OnClose(events.Close)
	_ = events.SetReceiveBufferSize(watchBuffer, true) // if this fails, the buffer keeps the default size
	changes := make(chan Change)
	go func() {
		defer close(changes)
		for {
			msgs, from, err := events.Receive()
			if errors.Is(err, unix.EINVAL) { // a container can make one notification too long, see executeLarge
				continue
			}
			if err != nil {
				return
			}
			for _, m := range msgs {
				if c, ok := changeOf(m.Header.Type, m.Data); ok && from.Pid == rawnl.PidKernel {
					changes <- c
				}
			}
		}
	}()
	return changes, nil
}

// changeOf returns the change that a notification announces, if any.
func changeOf(messageType uint16, data []byte) (c Change, ok bool) {
	switch messageType {
	case unix.RTM_NEWADDR:
		return Change{AddressAdded, addressLink(data)}, true
	case unix.RTM_DELADDR:
		return Change{AddressDeleted, addressLink(data)}, true
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
	default:
		return c, false
	}
	info := rawnl.DeserializeIfInfomsg(data)
	// The kernel sets all bits of Change for a new link, which is down as well.
	isSetDown := info.Change&unix.IFF_UP != 0 && info.Change != ^uint32(0) && info.Flags&unix.IFF_UP == 0
	switch {
	case info.Family != unix.AF_UNSPEC: // with AF_BRIDGE, the notification concerns a bridge port
	case messageType == unix.RTM_DELLINK:
		c.Kind, ok = Deleted, true
	case isSetDown:
		c.Kind, ok = SetDown, true
	}
	if !ok {
		return c, false
	}
	link, err := netlink.LinkDeserialize(nil, data)
	if err != nil {
		return c, false
	}
	c.Link = newLink(link)
	return c, true
}

// addressLink returns the link of the address in a notification, with only its index.
func addressLink(data []byte) Link { return Link{Index: int(rawnl.DeserializeIfAddrmsg(data).Index)} }
