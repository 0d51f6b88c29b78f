package nl

import (
	"fmt"
	"testing"
)

// TestVLANRanges checks that VLANs with consecutive IDs and the same flags are one range, except
// PVIDs.
func TestVLANRanges(t *testing.T) {
	for _, c := range []struct {
		vlans []VLAN
		want  string
	}{
		{[]VLAN{{ID: 100, PVID: true, Untagged: true}}, "[vlan 100 pvid untagged]"},
		{[]VLAN{{ID: 1}, {ID: 2}, {ID: 3}, {ID: 7}, {ID: 9}, {ID: 10}}, "[vlan 1-3 vlan 7 vlan 9-10]"},
		{[]VLAN{{ID: 5, PVID: true}, {ID: 6}, {ID: 7, Untagged: true}, {ID: 8, Untagged: true}}, "[vlan 5 pvid vlan 6 vlan 7-8 untagged]"},
		{[]VLAN{{ID: 4}, {ID: 5, PVID: true}, {ID: 6}}, "[vlan 4 vlan 5 pvid vlan 6]"},
	} {
		if got := fmt.Sprint(vlanRanges(c.vlans)); got != c.want {
			t.Errorf("%v: want %s, got %s", c.vlans, c.want, got)
		}
	}
}
