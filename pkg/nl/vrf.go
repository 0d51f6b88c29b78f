package nl

import (
	"github.com/plumb-cni/plumb/pkg/undo"
	"github.com/vishvananda/netlink"
)

// AddVRF makes a VRF with a routing table of its own, and pushes its removal to u. If the name exists, the
// error matches fs.ErrExist. Two VRFs cannot have the same table.
func (c *Conn) AddVRF(u *undo.Stack, name string, table int) (Link, error) {
	return c.add(u, c, &netlink.Vrf{LinkAttrs: linkAttrs(name, 0), Table: uint32(table)})
}
