package nl

import (
	"fmt"

	"github.com/plumb-cni/plumb/v2/pkg/undo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// vlanProtocols contains the protocols of a VLAN interface by name, with the EtherType of their tags.
var vlanProtocols = map[string]netlink.VlanProtocol{
	"802.1Q": netlink.VLAN_PROTOCOL_8021Q, "802.1ad": netlink.VLAN_PROTOCOL_8021AD,
}

const MaxVLAN = 4094 // the largest ID of a VLAN, because 4095 is reserved (IEEE 802.1Q, table 9-2)

// IsVLANProtocol reports whether name is a protocol that AddVLANLink accepts: "802.1Q" or "802.1ad".
func IsVLANProtocol(name string) bool { return vlanProtocols[name] != 0 }

// A VLANLink describes a VLAN interface that AddVLANLink creates.
type VLANLink struct {
	NewLink
	ID       int    // VLAN ID from 0 to MaxVLAN
	Protocol string // a protocol that IsVLANProtocol accepts
}

// AddVLANLink creates a VLAN interface and pushes its removal to u. If the parent already has an interface for that
// VLAN, in any namespace, the error also matches fs.ErrExist.
//
// The interface can be up while its parent is down (VLAN_FLAG_LOOSE_BINDING). Otherwise the kernel would set the
// interface down together with its parent, which removes the routes of the interface, and would not restore them when
// the parent comes up (vlan_device_event).
func (c *Conn) AddVLANLink(u *undo.Stack, v VLANLink) (Link, error) {
	loose := true
	return c.add(u, v.NewLink, &netlink.Vlan{VlanId: v.ID, VlanProtocol: vlanProtocols[v.Protocol], LooseBinding: &loose})
}

// FindVLANLink returns the interface for a VLAN of the parent in the namespace of c, which must be the parent's
// namespace. If there is none, the error matches fs.ErrNotExist. The interface may be in another namespace.
func (c *Conn) FindVLANLink(parent Link, protocol string, id int) (Link, error) {
	links, err := c.LinksOfKind("vlan")
	if err != nil {
		return Link{}, err
	}
	for _, l := range links {
		if l.Peer == parent.Index && l.PeerNS == 0 && l.VLANProtocol == protocol && l.VLANID == id {
			return l, nil
		}
	}
	return Link{}, &requestError{step: fmt.Sprintf("find vlan %d of %s", id, parent.Name), err: unix.ENODEV}
}
