package main

import (
	"encoding/json"
	"reflect"
	"testing"
	"unicode/utf8"

	"github.com/plumb-cni/plumb/v2/pkg/statefile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// FuzzSaved tests that decoding an encoded state returns the same state.
func FuzzSaved(f *testing.F) {
	f.Add("net/a", "1", "net", "02:00:00:00:00:01", uint64(1)<<63, 5, uint8(255))
	f.Add("net/b", "0\t2147483647", "n\x00<\"\xff", "", uint64(0), 0, uint8(0))
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
		text, err := json.MarshalIndent(s, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		readable := utf8.ValidString(key + "|" + value + "|" + network)
		back := &saved{}
		if err := statefile.Decode(text, back); err == nil && readable && !reflect.DeepEqual(back, s) {
			t.Errorf("%s is read as %+v", text, back)
		}
	})
}
