package nl

import "testing"

// TestVLANRanges: VLANs with consecutive IDs and the same flags are one range, except PVIDs.
func TestVLANRanges(t *testing.T) {
	for _, c := range []struct {
		vlans  []VLAN
		text   string
		ranges int
	}{
		{[]VLAN{{ID: 100, PVID: true, Untagged: true}}, "vlan 100 pvid untagged", 1},
		{[]VLAN{{ID: 1}, {ID: 2}, {ID: 3}, {ID: 7}, {ID: 9}, {ID: 10}}, "vlan 1-3, vlan 7, vlan 9-10", 3},
		{[]VLAN{{ID: 5, PVID: true}, {ID: 6}, {ID: 7, Untagged: true}, {ID: 8, Untagged: true}}, "vlan 5 pvid, vlan 6, vlan 7-8 untagged", 3},
		{[]VLAN{{ID: 4}, {ID: 5, PVID: true}, {ID: 6}}, "vlan 4, vlan 5 pvid, vlan 6", 3},
	} {
		if got := vlanText(c.vlans); got != c.text {
			t.Errorf("text of %v: %q, want %q", c.vlans, got, c.text)
		}
		if got := len(vlanRanges(c.vlans)); got != c.ranges {
			t.Errorf("%s: %d ranges, want %d", c.text, got, c.ranges)
		}
	}
}
