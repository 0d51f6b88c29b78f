package nl

import (
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A VLAN is the membership of a bridge port in a VLAN.
type VLAN struct {
	ID       int
	PVID     bool // untagged frames that come in belong to it
	Untagged bool // frames go out without a tag
}

func (v VLAN) String() string {
	s := fmt.Sprintf("vlan %d", v.ID)
	if v.PVID {
		s += " pvid"
	}
	if v.Untagged {
		s += " untagged"
	}
	return s
}

const (
	// Flags of struct bridge_vlan_info (linux/if_bridge.h).
	vlanPVID     = 1 << 1
	vlanUntagged = 1 << 2
	// Attributes of IFLA_AF_SPEC for AF_BRIDGE.
	iflaBridgeVLANInfo = 2
	extBridgeVLAN      = 1 << 1 // RTEXT_FILTER_BRVLAN
)

// AddVLANs puts a bridge port in VLANs.
func (l Link) AddVLANs(vlans ...VLAN) Change {
	return l.vlans("add port "+l.Name+" to "+fmt.Sprint(vlans), unix.RTM_SETLINK, vlans)
}

// DelVLAN takes a bridge port out of a VLAN.
func (l Link) DelVLAN(id int) Change {
	return l.vlans(fmt.Sprintf("take port %s out of vlan %d", l.Name, id), unix.RTM_DELLINK, []VLAN{{ID: id}})
}

func (l Link) vlans(step string, kind uint16, vlans []VLAN) Change {
	header := linkHeader(l.Index, 0, 0)
	header[0] = unix.AF_BRIDGE
	body, err := linkBody(header, func(ae *netlink.AttributeEncoder) {
		nest(ae, unix.IFLA_AF_SPEC, func(ae *netlink.AttributeEncoder) {
			for _, v := range vlans {
				ae.Bytes(iflaBridgeVLANInfo, v.encode())
			}
		})
	})
	return change(step, kind, body, err)
}

// encode is struct bridge_vlan_info.
func (v VLAN) encode() []byte {
	var flags uint16
	if v.PVID {
		flags |= vlanPVID
	}
	if v.Untagged {
		flags |= vlanUntagged
	}
	b := binary.NativeEndian.AppendUint16(nil, flags)
	return binary.NativeEndian.AppendUint16(b, uint16(v.ID))
}

// VLANs lists the VLANs of a bridge port. The kernel has no narrower question than
// for all ports, so this is for CHECK, not for ADD.
func (c *Conn) VLANs(l Link) ([]VLAN, error) {
	step := "list VLANs of port " + l.Name
	header := linkHeader(0, 0, 0)
	header[0] = unix.AF_BRIDGE
	body, err := linkBody(header, func(ae *netlink.AttributeEncoder) { ae.Uint32(unix.IFLA_EXT_MASK, extBridgeVLAN) })
	if err != nil {
		return nil, wrap(step, err)
	}
	msgs, err := c.dump(step, unix.RTM_GETLINK, body)
	if err != nil {
		return nil, err
	}
	var vlans []VLAN
	for _, m := range msgs {
		if len(m.Data) < unix.SizeofIfInfomsg || int(int32(binary.NativeEndian.Uint32(m.Data[4:]))) != l.Index {
			continue
		}
		found, err := decodeVLANs(m.Data[unix.SizeofIfInfomsg:])
		if err != nil {
			return nil, wrap(step, err)
		}
		vlans = append(vlans, found...)
	}
	return vlans, nil
}

func decodeVLANs(attrs []byte) ([]VLAN, error) {
	var vlans []VLAN
	ad, err := netlink.NewAttributeDecoder(attrs)
	if err != nil {
		return nil, err
	}
	for ad.Next() {
		if ad.Type() != unix.IFLA_AF_SPEC {
			continue
		}
		ad.Nested(func(ad *netlink.AttributeDecoder) error {
			for ad.Next() {
				if b := ad.Bytes(); ad.Type() == iflaBridgeVLANInfo && len(b) == 4 {
					flags := binary.NativeEndian.Uint16(b)
					vlans = append(vlans, VLAN{
						ID:       int(binary.NativeEndian.Uint16(b[2:])),
						PVID:     flags&vlanPVID != 0,
						Untagged: flags&vlanUntagged != 0,
					})
				}
			}
			return nil
		})
	}
	return vlans, ad.Err()
}
