package nl

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/plumb-cni/plumb/pkg/netlink"
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

const (
	// Flags of struct bridge_vlan_info (linux/if_bridge.h).
	vlanPVID       = 1 << 1
	vlanUntagged   = 1 << 2
	vlanRangeBegin = 1 << 3
	vlanRangeEnd   = 1 << 4
	// Attributes of IFLA_AF_SPEC for AF_BRIDGE.
	iflaBridgeVLANInfo = 2
	// RTEXT_FILTER_BRVLAN_COMPRESSED: in ranges. One by one, each port of the node that is
	// in all VLANs would add 32 KiB to the dump.
	extBridgeVLANRanges = 1 << 2
)

// AddVLANs puts a bridge port in VLANs.
func (l Link) AddVLANs(vlans ...VLAN) Change {
	return l.vlans("add port "+l.Name+" to "+vlanText(vlans), unix.RTM_SETLINK, vlans)
}

// DelVLAN takes a bridge port out of a VLAN.
func (l Link) DelVLAN(id int) Change {
	return l.vlans(fmt.Sprintf("take port %s out of vlan %d", l.Name, id), unix.RTM_DELLINK, []VLAN{{ID: id}})
}

func (l Link) vlans(step string, kind uint16, vlans []VLAN) Change {
	header := linkHeader(l.Index, 0, 0)
	header[0] = unix.AF_BRIDGE
	body, err := linkBody(header, func(ae *netlink.Encoder) {
		ae.Nested(unix.IFLA_AF_SPEC, func(ae *netlink.Encoder) {
			for _, r := range vlanRanges(vlans) {
				r.encode(ae)
			}
		})
	})
	return change(step, kind, body, err)
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

func (r vlanRange) encode(ae *netlink.Encoder) {
	if r.last == r.ID {
		ae.Bytes(iflaBridgeVLANInfo, r.info(r.ID, 0))
		return
	}
	ae.Bytes(iflaBridgeVLANInfo, r.info(r.ID, vlanRangeBegin))
	ae.Bytes(iflaBridgeVLANInfo, r.info(r.last, vlanRangeEnd))
}

// info is struct bridge_vlan_info, for the VLAN of that number.
func (v VLAN) info(id int, flags uint16) []byte {
	if v.PVID {
		flags |= vlanPVID
	}
	if v.Untagged {
		flags |= vlanUntagged
	}
	b := binary.NativeEndian.AppendUint16(nil, flags)
	return binary.NativeEndian.AppendUint16(b, uint16(id))
}

// VLANs lists the VLANs of a bridge port. The kernel has no narrower question than
// for all ports, so this is for CHECK, not for ADD.
func (c *Conn) VLANs(l Link) ([]VLAN, error) {
	step := "list VLANs of port " + l.Name
	header := linkHeader(0, 0, 0)
	header[0] = unix.AF_BRIDGE
	body, err := linkBody(header, func(ae *netlink.Encoder) { ae.Uint32(unix.IFLA_EXT_MASK, extBridgeVLANRanges) })
	if err != nil {
		return nil, wrap(step, err)
	}
	msgs, err := c.dump(step, unix.RTM_GETLINK, body)
	if err != nil {
		return nil, err
	}
	var vlans []VLAN
	for _, m := range msgs {
		if len(m.Body) < unix.SizeofIfInfomsg || int(int32(binary.NativeEndian.Uint32(m.Body[4:]))) != l.Index {
			continue
		}
		found, err := decodeVLANs(m.Body[unix.SizeofIfInfomsg:])
		if err != nil {
			return nil, wrap(step, err)
		}
		vlans = append(vlans, found...)
	}
	return vlans, nil
}

func decodeVLANs(attrs []byte) ([]VLAN, error) {
	var vlans []VLAN
	ad := netlink.Decode(attrs, binary.NativeEndian)
	for ad.Next() {
		if ad.Kind() != unix.IFLA_AF_SPEC {
			continue
		}
		ad.Nested(func(ad *netlink.Decoder) {
			first := 0
			for ad.Next() {
				b := ad.Bytes()
				if ad.Kind() != iflaBridgeVLANInfo || len(b) != 4 {
					continue
				}
				flags, id := binary.NativeEndian.Uint16(b), int(binary.NativeEndian.Uint16(b[2:]))
				if flags&vlanRangeEnd == 0 {
					first = id
				}
				if flags&vlanRangeBegin != 0 {
					continue
				}
				for ; first <= id; first++ {
					vlans = append(vlans, VLAN{ID: first, PVID: flags&vlanPVID != 0, Untagged: flags&vlanUntagged != 0})
				}
			}
		})
	}
	return vlans, ad.Err()
}
