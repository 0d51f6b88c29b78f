package nl

import (
	"fmt"

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
