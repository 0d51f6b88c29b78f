package nl

import (
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
	"github.com/vishvananda/netlink"
)

// A Dummy describes a dummy interface that AddDummy makes.
type Dummy struct {
	Name string
	MAC  types.MAC // zero: random
	MTU  int       // in bytes; zero: the kernel's default
}

// AddDummy makes a dummy interface, which drops all packets that are sent to it, and pushes its
// removal to u. The interface is down. If the name exists, the error matches fs.ErrExist. If the
// kernel has no dummy interfaces, the error matches errors.ErrUnsupported.
func (c *Conn) AddDummy(u *undo.Stack, d Dummy) (Link, error) {
	attrs := linkAttrs(d.Name, d.MTU)
	if d.MAC != "" {
		attrs.HardwareAddr = d.MAC.Bytes()
	}
	return c.add(u, c, &netlink.Dummy{LinkAttrs: attrs})
}
