package nl

import (
	"errors"

	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/vishvananda/netlink"
	rawnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A LossKind says what happened to a link.
type LossKind string

// These are the kinds of losses.
const (
	Deleted        LossKind = "deleted" // or moved to another namespace
	SetDown        LossKind = "set down"
	AddressDeleted LossKind = "address deleted"
)

// A Loss is a deletion, or a change that stops the traffic of a link.
type Loss struct {
	Kind LossKind
	Link Link // only Index is set if an address was deleted
}

// watchBuffer is the size of the receive buffer in bytes. The kernel drops notifications that do not fit.
const watchBuffer = 4 << 20

// WatchLosses returns a channel that receives the losses of all links in h from now on. The caller must receive until
// the channel is closed. Closing h closes the channel. The channel is also closed if the socket fails, for example
// because the kernel dropped notifications (ENOBUFS).
//
// WatchLosses does not use netlink.LinkSubscribe and netlink.AddrSubscribe, because the notifications on their two
// sockets have no common order.
func WatchLosses(h *ns.Handle) (<-chan Loss, error) {
	events, err := openSocket(h, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return nil, err
	}
	h.OnClose(events.Close)
	_ = events.SetReceiveBufferSize(watchBuffer, true) // if this fails, the buffer keeps the default size
	losses := make(chan Loss)
	go func() {
		defer close(losses)
		for {
			msgs, from, err := events.Receive()
			if errors.Is(err, unix.EINVAL) { // a container can make one notification too long, see executeLarge
				continue
			}
			if err != nil {
				return
			}
			for _, m := range msgs {
				if l, lost := lossOf(m.Header.Type, m.Data); lost && from.Pid == rawnl.PidKernel {
					losses <- l
				}
			}
		}
	}()
	return losses, nil
}

// lossOf returns the loss that a notification announces, if any.
func lossOf(messageType uint16, data []byte) (l Loss, lost bool) {
	if messageType == unix.RTM_DELADDR {
		return Loss{AddressDeleted, Link{Index: int(rawnl.DeserializeIfAddrmsg(data).Index)}}, true
	}
	if messageType != unix.RTM_NEWLINK && messageType != unix.RTM_DELLINK {
		return l, false
	}
	info := rawnl.DeserializeIfInfomsg(data)
	// The kernel sets all bits of Change for a new link, which is down as well.
	isSetDown := info.Change&unix.IFF_UP != 0 && info.Change != ^uint32(0) && info.Flags&unix.IFF_UP == 0
	switch {
	case info.Family != unix.AF_UNSPEC: // with AF_BRIDGE, the notification concerns a bridge port
	case messageType == unix.RTM_DELLINK:
		l.Kind, lost = Deleted, true
	case isSetDown:
		l.Kind, lost = SetDown, true
	}
	if !lost {
		return l, false
	}
	link, err := netlink.LinkDeserialize(nil, data)
	if err != nil {
		return l, false
	}
	l.Link = newLink(link)
	return l, true
}
