package nl

import (
	"fmt"

	rawnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Move describes where MoveLink moves a link, and the link's name, alias and group there.
type Move struct {
	To    *Conn
	Name  string
	Alias string // the new alias, or "" for no alias
	Group uint32 // the new group
}

// MoveLink moves a link into the namespace of m.To, sets its name, alias and group there, and returns the
// link in its new state. The kernel sets the link down, and deletes its addresses and routes. The
// link keeps its MAC, its MTU and its alternative names. Kernels without commit 8e15aee62161 (Linux
// 6.6) do not find it by its alternative names in the new namespace.
//
// If the new namespace contains a link with the name, the error matches fs.ErrExist. The kernel
// first moves a link and then renames it. Therefore the link may have been moved, under its old
// name, despite the error. If the link is no longer in the namespace of c, the error matches
// fs.ErrNotExist. If the kernel cannot move links of this kind, the error matches syscall.EINVAL.
//
// MoveLink sends one request. Package netlink's three requests for moving, renaming and setting the
// alias cannot move a link whose old name exists in the namespace of m.To.
func (c *Conn) MoveLink(l Link, m Move) (Link, error) {
	req := rawnl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := rawnl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(l.Index)
	req.AddData(msg)
	req.AddData(rawnl.NewRtAttr(unix.IFLA_NET_NS_FD, rawnl.Uint32Attr(uint32(m.To.h.FD()))))
	req.AddData(rawnl.NewRtAttr(unix.IFLA_IFNAME, rawnl.ZeroTerminated(m.Name)))
	req.AddData(rawnl.NewRtAttr(unix.IFLA_IFALIAS, []byte(m.Alias)))
	req.AddData(rawnl.NewRtAttr(unix.IFLA_GROUP, rawnl.Uint32Attr(m.Group)))
	err := c.step(fmt.Sprintf("move link %s to %s as %s", l.Name, m.To.h.Path(), m.Name), func() error {
		_, err := c.execute(req, 0)
		return err
	})
	if err != nil {
		return Link{}, err
	}
	return m.To.Link(m.Name)
}

// AddAltName adds an alternative name of at most 127 bytes, by which LinkByAnyName finds the link (Linux
// 5.5). If another link of the namespace has the name, the error matches fs.ErrExist. If the kernel
// does not support alternative names, the error matches errors.ErrUnsupported.
func (c *Conn) AddAltName(l Link, name string) error {
	return c.step("add altname "+name+" to "+l.Name, func() error { return c.lib.LinkAddAltName(l.device(), name) })
}

// DeleteAltName deletes an alternative name of the link. If no link of the namespace has the name,
// the error matches fs.ErrNotExist.
func (c *Conn) DeleteAltName(l Link, name string) error {
	return c.step("delete altname "+name+" from "+l.Name, func() error { return c.lib.LinkDelAltName(l.device(), name) })
}
