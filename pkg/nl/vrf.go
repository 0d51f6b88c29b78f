package nl

import (
	"github.com/plumb-cni/plumb/pkg/undo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AddVRF makes a VRF with a routing table, and pushes its removal to u. If the name exists, the error matches
// fs.ErrExist. Several VRFs can have the same table, unless the sysctl net.vrf.strict_mode is 1 (Linux 5.9).
func (c *Conn) AddVRF(u *undo.Stack, name string, table int) (Link, error) {
	return c.add(u, c, &netlink.Vrf{LinkAttrs: linkAttrs(name, 0), Table: uint32(table)})
}

// MainTable is the number of the routing table "main".
const MainTable = unix.RT_TABLE_MAIN

// TableOf returns the table to which the kernel adds a route with each address of a link: the table
// of its VRF, or the main table.
func (c *Conn) TableOf(l Link) (int, error) {
	if l.Master == 0 {
		return MainTable, nil
	}
	master, err := c.LinkByIndex(l.Master)
	if err != nil || master.Kind != "vrf" {
		return MainTable, err
	}
	return master.VRFTable, nil
}
