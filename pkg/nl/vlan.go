package nl

import (
	"fmt"

	rawnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A VLAN is the membership of a bridge port in a VLAN.
type VLAN struct {
	ID       int
	PVID     bool // untagged frames that the port receives belong to this VLAN
	Untagged bool // the port sends frames of this VLAN without a tag
}

func (v VLAN) String() string { return vlanRange{VLAN: v, last: v.ID}.String() }

// AddVLANs adds a bridge port to VLANs. It sends one request for VLANs with consecutive IDs and the
// same flags.
func (c *Conn) AddVLANs(l Link, vlans ...VLAN) error {
	for _, r := range vlanRanges(vlans) {
		last := uint16(r.last)
		if r.last == r.ID {
			last = 0 // otherwise package netlink would send a range
		}
		err := c.step("add port "+l.Name+" to "+r.String(), func() error {
			return c.lib.BridgeVlanAddRange(l.device(), uint16(r.ID), last, r.PVID, r.Untagged, false, false)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// DeleteVLAN removes a bridge port from a VLAN.
func (c *Conn) DeleteVLAN(l Link, id int) error {
	return c.step(fmt.Sprintf("remove port %s from vlan %d", l.Name, id), func() error {
		return c.lib.BridgeVlanDel(l.device(), uint16(id), false, false, false, false)
	})
}

// A vlanRange is one VLAN, or several VLANs with consecutive IDs and the same flags.
type vlanRange struct {
	VLAN     // the first VLAN
	last int // the ID of the last VLAN
}

// String returns the range as text, for example "vlan 100 pvid untagged" or "vlan 300-310".
func (r vlanRange) String() string {
	s := fmt.Sprintf("vlan %d", r.ID)
	if r.last != r.ID {
		s += fmt.Sprintf("-%d", r.last)
	}
	if r.PVID {
		s += " pvid"
	}
	if r.Untagged {
		s += " untagged"
	}
	return s
}

// vlanRanges joins VLANs with consecutive IDs and the same flags. A PVID is not joined, because the
// kernel rejects ranges of PVIDs.
func vlanRanges(vlans []VLAN) []vlanRange {
	var ranges []vlanRange
	for _, v := range vlans {
		if n := len(ranges); n > 0 && !v.PVID {
			r := &ranges[n-1]
			if v.ID == r.last+1 && v.Untagged == r.Untagged && !r.PVID {
				r.last = v.ID
				continue
			}
		}
		ranges = append(ranges, vlanRange{VLAN: v, last: v.ID})
	}
	return ranges
}

// VLANs returns the VLANs of a bridge port. It is for CHECK, not for ADD, because it lists the VLANs
// of all ports of the namespace. Since Linux 5.6, the kernel can list the VLANs of one port
// (RTM_GETVLAN), but package netlink does not support that request.
func (c *Conn) VLANs(l Link) ([]VLAN, error) {
	return query(c, "list VLANs of port "+l.Name, func() (vlans []VLAN, err error) {
		msgs, err := c.execute(listVLANsRequest(), unix.RTM_NEWLINK)
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			if int(rawnl.DeserializeIfInfomsg(m).Index) != l.Index {
				continue
			}
			found, err := decodeVLANs(m)
			if err != nil {
				return nil, err
			}
			vlans = append(vlans, found...)
		}
		return vlans, nil
	})
}

// listVLANsRequest returns a request for the VLANs of all ports, as ranges. netlink.Handle.BridgeVlanList does not
// request ranges. Therefore it fails if a port is in all VLANs, which do not fit in a message of 32 KiB.
func listVLANsRequest() *rawnl.NetlinkRequest {
	req := rawnl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(rawnl.NewIfInfomsg(unix.AF_BRIDGE))
	req.AddData(rawnl.NewRtAttr(unix.IFLA_EXT_MASK, rawnl.Uint32Attr(rawnl.RTEXT_FILTER_BRVLAN_COMPRESSED)))
	return req
}

func decodeVLANs(m []byte) ([]VLAN, error) {
	attrs, err := rawnl.ParseRouteAttrAsMap(m[unix.SizeofIfInfomsg:])
	if err != nil {
		return nil, err
	}
	infos, err := rawnl.ParseRouteAttr(attrs[unix.IFLA_AF_SPEC].Value)
	var vlans []VLAN
	first := 0
	for _, a := range infos {
		if a.Attr.Type != rawnl.IFLA_BRIDGE_VLAN_INFO || len(a.Value) != rawnl.SizeofBridgeVlanInfo {
			continue
		}
		info := rawnl.DeserializeBridgeVlanInfo(a.Value)
		if info.Flags&rawnl.BRIDGE_VLAN_INFO_RANGE_END == 0 {
			first = int(info.Vid)
		}
		if info.Flags&rawnl.BRIDGE_VLAN_INFO_RANGE_BEGIN != 0 {
			continue
		}
		for ; first <= int(info.Vid); first++ {
			vlans = append(vlans, VLAN{ID: first, PVID: info.PortVID(), Untagged: info.EngressUntag()})
		}
	}
	return vlans, err
}
