package nl

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestVLANsTravelAsRanges(t *testing.T) {
	for _, c := range []struct {
		vlans []VLAN
		text  string
		infos int // struct bridge_vlan_info on the way
	}{
		{[]VLAN{{ID: 100, PVID: true, Untagged: true}}, "vlan 100 pvid untagged", 1},
		{[]VLAN{{ID: 1}, {ID: 2}, {ID: 3}, {ID: 7}, {ID: 9}, {ID: 10}}, "vlan 1-3, vlan 7, vlan 9-10", 5},
		{[]VLAN{{ID: 5, PVID: true}, {ID: 6}, {ID: 7, Untagged: true}, {ID: 8, Untagged: true}}, "vlan 5 pvid, vlan 6, vlan 7-8 untagged", 4},
		{[]VLAN{{ID: 4}, {ID: 5, PVID: true}, {ID: 6}}, "vlan 4, vlan 5 pvid, vlan 6", 3},
	} {
		if got := vlanText(c.vlans); got != c.text {
			t.Errorf("named %q, want %q", got, c.text)
		}
		ch := Link{Index: 1}.AddVLANs(c.vlans...)
		attrs := ch.body[unix.SizeofIfInfomsg:]
		if got := (len(attrs) - 4) / 8; ch.err != nil || got != c.infos {
			t.Errorf("%s: %d infos, %v; want %d", c.text, got, ch.err, c.infos)
		}
		if back, err := decodeVLANs(attrs); err != nil || !slices.Equal(back, c.vlans) {
			t.Errorf("%s came back as %v, %v", c.text, back, err)
		}
	}
}
