package main

import (
	"encoding/json"
	"reflect"
	"testing"
	"unicode/utf8"

	"github.com/plumb-cni/plumb/pkg/types"
)

// tagged is a saved state as encoding/json would have it.
type tagged struct {
	MAC      *types.MAC        `json:"mac,omitempty"`
	Promisc  *bool             `json:"promisc,omitempty"`
	MTU      *int              `json:"mtu,omitempty"`
	AllMulti *bool             `json:"allmulti,omitempty"`
	TxQLen   *int              `json:"txQLen,omitempty"`
	Sysctl   map[string]string `json:"sysctl,omitempty"`
	Network  string            `json:"network,omitempty"`
	NetNS    uint64            `json:"netns,omitempty"`
	IfIndex  int               `json:"ifindex,omitempty"`
}

// FuzzEncode: the file is what encoding/json would write, to the byte, and what is
// read of it is what was saved.
func FuzzEncode(f *testing.F) {
	f.Add("net/a", "1", "net", "02:00:00:00:00:01", uint64(1)<<63, 5, uint8(255))
	f.Add("net/b", "0\t2147483647", "n\x00<\"\xff", "", uint64(0), 0, uint8(0))
	f.Add("net/c", "", "", "02:00:00:00:00:01", uint64(7), -1, uint8(0b1010101))
	f.Add("", "", "", "", uint64(0), 0, uint8(0))
	f.Add("net/<", `"\`, "a&b", "", uint64(0), 0, uint8(8))
	f.Fuzz(func(t *testing.T, key, value, network, mac string, netns uint64, n int, which uint8) {
		s := &saved{Network: network, NetNS: netns, IfIndex: n}
		on := which&32 != 0
		if m, err := types.ParseMAC(mac); err == nil && which&1 != 0 {
			s.MAC = &m
		}
		if which&2 != 0 {
			s.Promisc, s.MTU = &on, &n
		}
		if which&4 != 0 {
			s.AllMulti, s.TxQLen = &on, &n
		}
		if which&8 != 0 {
			s.Sysctl = map[string]string{key: value, "net/z": "2", "net/A": ""}
		}
		text := s.encode()
		want, err := json.MarshalIndent(tagged{s.MAC, s.Promisc, s.MTU, s.AllMulti, s.TxQLen, s.Sysctl, s.Network, s.NetNS, s.IfIndex}, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if string(want) == "{}" {
			want = []byte("{\n}")
		}
		if string(text) != string(want) {
			t.Errorf("have %s\nwant %s", text, want)
		}
		readable := utf8.ValidString(key + "|" + value + "|" + network)
		if back, err := decodeSaved(text); err == nil && readable && !reflect.DeepEqual(back, s) {
			t.Errorf("%s is read as %+v", text, back)
		}
	})
}
