package nl

import (
	"errors"
	"fmt"
	"slices"

	rawnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Move says where MoveLink moves a link, and what the link is called there.
type Move struct {
	To    *Conn
	Name  string
	Alias string // empty: none
}

// MoveLink moves a link into the namespace of m.To and sets its name and its alias there, in one
// request, and returns the link as it is there. The kernel sets the link down, and deletes its
// addresses and routes. The link keeps its MAC, its MTU and its alternative names, but kernels
// without commit 8e15aee62161 (Linux 6.6) do not find it by these there.
//
// If the namespace has a link of that name, the error matches fs.ErrExist, and the link may have
// been moved all the same, under its old name: the kernel first moves it and then renames it. If
// the namespace of c no longer has the link, the error matches fs.ErrNotExist. If the kernel does
// not move links of this kind, the error matches syscall.EINVAL.
//
// The library has one request for each of the three. With these, a link whose name exists in
// the namespace of m.To could not be moved.
func (c *Conn) MoveLink(l Link, m Move) (Link, error) {
	req := rawnl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := rawnl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(l.Index)
	req.AddData(msg)
	req.AddData(rawnl.NewRtAttr(unix.IFLA_NET_NS_FD, rawnl.Uint32Attr(uint32(m.To.h.FD()))))
	req.AddData(rawnl.NewRtAttr(unix.IFLA_IFNAME, rawnl.ZeroTerminated(m.Name)))
	req.AddData(rawnl.NewRtAttr(unix.IFLA_IFALIAS, []byte(m.Alias)))
	err := c.step(fmt.Sprintf("move link %s to %s as %s", l.Name, m.To.h.Path(), m.Name), func() error {
		_, err := c.execute(req, 0)
		return err
	})
	if err != nil {
		return Link{}, err
	}
	return m.To.Link(m.Name)
}

// AddAltName adds an alternative name, of at most 127 bytes, by which Link finds the link (Linux
// 5.5). If a link of the namespace has the name, the error matches fs.ErrExist. If the kernel
// has no alternative names, the error matches errors.ErrUnsupported.
func (c *Conn) AddAltName(l Link, name string) error {
	return c.step("add altname "+name+" to "+l.Name, func() error { return c.lib.LinkAddAltName(l.device(), name) })
}

// DeleteAltName deletes an alternative name of the link. If no link of the namespace has the
// name, the error matches fs.ErrNotExist.
func (c *Conn) DeleteAltName(l Link, name string) error {
	return c.step("delete altname "+name+" from "+l.Name, func() error { return c.lib.LinkDelAltName(l.device(), name) })
}

// RestoreSettings makes l a port of master, unless master is the zero Link, and gives l the MTU, the MAC
// and the state, up or down, of the earlier Link. It tries all of them. The master comes first, because a
// bond accepts no port that is up. refused has the errors of the settings that the kernel or the driver refuses, so that a
// retry would not help; err has the other errors.
func (c *Conn) RestoreSettings(l, earlier, master Link) (refused []error, err error) {
	var errs []error
	setIf := func(differs bool, refusals []error, set func() error) {
		if !differs {
			return
		}
		if err := set(); slices.ContainsFunc(refusals, func(errno error) bool { return errors.Is(err, errno) }) {
			refused = append(refused, err)
		} else {
			errs = append(errs, err)
		}
	}
	setIf(l.Master != master.Index && master.Index != 0, valueRefusals(), func() error { return c.SetMaster(l, master) })
	setIf(l.MTU != earlier.MTU, valueRefusals(), func() error { return c.SetMTU(l, earlier.MTU) })
	setIf(l.MAC != earlier.MAC, valueRefusals(), func() error { return c.SetMAC(l, earlier.MAC) })
	setIf(l.Up && !earlier.Up, nil, func() error { return c.SetDown(l) })
	setIf(!l.Up && earlier.Up, upRefusals, func() error { return c.SetUp(l) })
	return refused, errors.Join(errs...)
}

// upRefusals are the errors with which the kernel or a driver refuses to set a link up.
var upRefusals = []error{unix.EINVAL, unix.ERANGE, unix.EOPNOTSUPP, unix.EADDRINUSE, unix.EADDRNOTAVAIL, unix.EIO}

// valueRefusals returns the errors with which the kernel or a driver refuses an MTU, a MAC or a master. EBUSY and EPERM
// are among them: some drivers have a fixed MAC, and that of a virtual function can be fixed by its host.
func valueRefusals() []error { return append(slices.Clip(upRefusals), unix.EBUSY, unix.EPERM) }

// StaticAddrs returns the addresses of a link that can be restored: those that did not come
// from DHCP or router advertisements, and that the kernel does not make itself.
func (c *Conn) StaticAddrs(l Link) ([]Addr, error) {
	addrs, err := c.Addrs(l)
	return slices.DeleteFunc(addrs, func(a Addr) bool {
		return !a.Permanent || a.Prefix.Addr().Is6() && a.Prefix.Addr().IsLinkLocalUnicast()
	}), err
}

// Links returns all links of the namespace.
func (c *Conn) Links() ([]Link, error) {
	return c.listLinks("list links", nil, func(Link) bool { return true })
}
