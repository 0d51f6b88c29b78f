package nl

import (
	"errors"
	"fmt"
	"os"

	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TunPath is the path of the device file that creates tap devices.
const TunPath = "/dev/net/tun"

// MaxTapMTU is the largest MTU of a tap device, which is 65535 less the Ethernet header
// (tun_net_init).
const MaxTapMTU = 65535 - 14

// A Tun is the state of a tun or tap device.
type Tun struct {
	Tap        bool   // true for a tap device, which carries Ethernet frames; false for a tun device, which carries IP packets
	MultiQueue bool   // several programs can attach (see Tap.MultiQueue)
	Owner      uint32 // ID of the user who may attach; zero means root or nobody
	Group      uint32 // ID of the group whose members may attach; zero means root or nobody
}

// A Tap describes a tap device that AddTap creates.
type Tap struct {
	Name       string
	MultiQueue bool    // several programs can attach to the device, and must set IFF_MULTI_QUEUE; otherwise one program, without that flag
	Alias      string  // alias of the device, which is set before the device is persistent, so that a killed ADD leaves no device without it
	Owner      *uint32 // ID of the user who may attach to the device; if it is nil, every user may
	Group      *uint32 // ID of the group whose members may attach to the device; if it is nil, every group may
}

// AddTap creates a persistent tap device in the namespace of the connection, and pushes its removal
// to u. The device is down. If the name exists, the error matches fs.ErrExist. If /dev/net/tun
// cannot be opened, the error has types.CodeIO.
//
// AddTap uses neither rtnetlink, by which the kernel creates no tap device (tun_validate), nor
// package netlink. Package netlink creates the device in the namespace of the thread, accepts an
// existing device, and sets root as the owner instead of none.
func (c *Conn) AddTap(u *undo.Stack, t Tap) (Link, error) {
	tun, err := openTun(c.h)
	if err != nil {
		return Link{}, err
	}
	// Without an attached program, the device has no carrier.
	defer func() { _ = tun.Close() }()
	return c.addBy(u, t.Name, func() error { return t.create(int(tun.Fd()), c.lib) })
}

// AddTapFunc creates a tap device like AddTap, but run creates the device. AddTapFunc calls run in
// the namespace of the connection, as one step. The name must be free, because the undo deletes the
// link with the name even if run fails. run may fail after it has created the device.
func (c *Conn) AddTapFunc(u *undo.Stack, name string, run func() error) (Link, error) {
	err := runIn(c.h, "add link "+name, run)
	u.Push("delete link "+name, func() error { return c.deleteByName(name) })
	if err != nil {
		return Link{}, err
	}
	return c.Link(name)
}

// CheckTun tries to open /dev/net/tun for AddTap. If that fails, the error has types.CodeIO.
func CheckTun(h *ns.Handle) error {
	tun, err := openTun(h)
	if err != nil {
		return err
	}
	return tun.Close()
}

// openTun opens /dev/net/tun in the namespace of h, so that the file creates devices in that
// namespace.
func openTun(h *ns.Handle) (*os.File, error) {
	tun, err := openIn(h, "open "+TunPath, func() (*os.File, error) { return os.OpenFile(TunPath, os.O_RDWR, 0) })
	if err != nil {
		return nil, types.Errorf(types.CodeIO, "%w; taps need this device file and the module tun (CONFIG_TUN)", err)
	}
	return tun, nil
}

// create creates the device with the file descriptor of /dev/net/tun. It sets TUNSETPERSIST last. Until then, the
// kernel deletes the device when the descriptor is closed, so that nothing remains if the kernel refuses a setting.
//
// IFF_NO_PI only determines what `ip -d link` prints. A program that attaches to the device chooses
// IFF_NO_PI and IFF_VNET_HDR itself.
func (t Tap) create(fd int, lib *netlink.Handle) error {
	request, err := unix.NewIfreq(t.Name)
	if err != nil {
		return err
	}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_TUN_EXCL)
	if t.MultiQueue {
		flags |= unix.IFF_MULTI_QUEUE
	}
	request.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		if errors.Is(err, unix.EBUSY) { // IFF_TUN_EXCL: a link with the name exists (tun_set_iff)
			return fmt.Errorf("%w: %w", unix.EEXIST, err)
		}
		return err
	}
	if t.Owner != nil {
		if err := unix.IoctlSetInt(fd, unix.TUNSETOWNER, int(*t.Owner)); err != nil {
			return err
		}
	}
	if t.Group != nil {
		if err := unix.IoctlSetInt(fd, unix.TUNSETGROUP, int(*t.Group)); err != nil {
			return err
		}
	}
	if t.Alias != "" {
		l, err := lib.LinkByName(t.Name)
		if err == nil {
			err = lib.LinkSetAlias(l, t.Alias)
		}
		if err != nil {
			return err
		}
	}
	return unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1)
}
