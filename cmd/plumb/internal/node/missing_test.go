package node

import "testing"

func TestBridgeNameIsThatOfThePluginBridgeOnly(t *testing.T) {
	for want, c := range map[string]explainedConf{
		"cni0": {Type: "bridge"}, "br1": {Type: "bridge", Bridge: "br1"}, "": {Type: "ptp", Bridge: "br1"},
	} {
		if got := c.bridgeName(); got != want {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	}
}
