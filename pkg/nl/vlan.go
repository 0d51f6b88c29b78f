package nl

import (
	"fmt"
	"strconv"
	"strings"

	rawnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A VLAN is the membership of a bridge port in a VLAN.
type VLAN struct {
	ID       int
	PVID     bool // untagged frames that come in belong to it
	Untagged bool // frames go out without a tag
}

func (v VLAN) String() string { return v.text(strconv.Itoa(v.ID)) }

func (v VLAN) text(ids string) string {
	s := "vlan " + ids
	if v.PVID {
		s += " pvid"
	}
	if v.Untagged {
		s += " untagged"
	}
	return s
}

// AddVLANs puts a bridge port in VLANs.
func (l Link) AddVLANs(vlans ...VLAN) Change {
	return change("add port "+l.Name+" to "+vlanText(vlans), func(c *Conn) error {
		for _, r := range vlanRanges(vlans) {
			last := uint16(r.last)
			if r.last == r.ID {
				last = 0 // the library's way to say that it is no range
			}
			if err := c.lib.BridgeVlanAddRange(l.device(), uint16(r.ID), last, r.PVID, r.Untagged, false, false); err != nil {
				return err
			}
		}
		return nil
	})
}

// DelVLAN takes a bridge port out of a VLAN.
func (l Link) DelVLAN(id int) Change {
	return change(fmt.Sprintf("take port %s out of vlan %d", l.Name, id), func(c *Conn) error {
		return c.lib.BridgeVlanDel(l.device(), uint16(id), false, false, false, false)
	})
}

// A vlanRange is a VLAN, or several with consecutive numbers and the same flags.
type vlanRange struct {
	VLAN     // the first
	last int // number of the last
}

// vlanRanges joins neighbours. A PVID stands alone: the kernel takes none in a range.
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

// vlanText names VLANs for people: "vlan 100 pvid untagged, vlan 300-310".
func vlanText(vlans []VLAN) string {
	var text []string
	for _, r := range vlanRanges(vlans) {
		ids := strconv.Itoa(r.ID)
		if r.last != r.ID {
			ids += "-" + strconv.Itoa(r.last)
		}
		text = append(text, r.text(ids))
	}
	return strings.Join(text, ", ")
}

// VLANs lists the VLANs of a bridge port. The kernel has no narrower request than for
// all ports of the namespace, so this is for CHECK, not for ADD.
func (c *Conn) VLANs(l Link) ([]VLAN, error) {
	return query(c, "list VLANs of port "+l.Name, func() (vlans []VLAN, err error) {
		msgs, err := c.execute(vlanList(), unix.RTM_NEWLINK)
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

// vlanList is a request for the VLANs of all ports, as ranges. The library's
// BridgeVlanList asks for each VLAN by itself: a port that is in all of them does not
// fit in a message of 32 KiB, and the list fails.
func vlanList() *rawnl.NetlinkRequest {
	req := rawnl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(rawnl.NewIfInfomsg(unix.AF_BRIDGE))
	req.AddData(rawnl.NewRtAttr(unix.IFLA_EXT_MASK, rawnl.Uint32Attr(rawnl.RTEXT_FILTER_BRVLAN_COMPRESSED)))
	return req
}

// decodeVLANs reads the VLANs in an RTM_NEWLINK of AF_BRIDGE.
func decodeVLANs(m []byte) ([]VLAN, error) {
	attrs, err := attributes(m[unix.SizeofIfInfomsg:])
	if err != nil {
		return nil, err
	}
	infos, err := rawnl.ParseRouteAttr(attrs[unix.IFLA_AF_SPEC])
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
