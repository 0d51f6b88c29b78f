package main

import (
	"encoding/json"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/statefile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// FuzzConfig tests that an accepted configuration is valid, that the parser never panics, and that a
// selector names no file outside sysfs.
func FuzzConfig(f *testing.F) {
	nstest.FuzzConfig(f, parse, func(t *testing.T, r *skel.Request, conf *config) {
		directory := sysfs("/sys").directory(conf.selector)
		switch conf.selector.by {
		case byPath, byPCI, byAuxiliary:
			if !strings.HasPrefix(directory, "/sys/devices/") && filepath.Dir(directory) != "/sys/bus/pci/devices" && filepath.Dir(directory) != "/sys/bus/auxiliary/devices" {
				t.Errorf("%s: accepted with directory %s", r.Stdin, directory)
			}
		case byMAC:
			if mac, err := types.ParseMAC(conf.selector.value); err != nil || mac.String() != conf.selector.value {
				t.Errorf("%s: accepted with MAC %s", r.Stdin, conf.selector.value)
			}
		}
	},
		`{"name": "n", "device": "eth1", "force": true, "restoreAddresses": true, "optimisticDAD": true, "DPDKMode": true}`,
		`{"name": "n", "hwaddr": "02:00:00:00:00:01", "runtimeConfig": {"deviceID": "mlx5_core.sf.4"}}`,
		`{"name": "n", "kernelpath": "/sys/devices/../../etc"}`,
		`{"name": "n", "pciBusID": "0000:00:1f.6", "runtimeConfig": {"deviceID": ".."}}`,
		`{"name": "n", "runtimeConfig": {"deviceID": "a1b2c3d4:00:02.0"}}`,
	)
}

// TestState compares a state file with a golden file, because other versions of the plugin read it.
func TestState(t *testing.T) {
	s := newState(types.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}, nl.Link{
		Index: 7, Name: "eth1", Kind: "veth", MAC: "\x02\x00\x00\x00\x00\x01", PermMAC: "\x02\x00\x00\x00\x00\x02", Parent: "pci/0000:00:02.0",
		MTU: 1400, Alias: "uplink", Up: true, Peer: 8, PeerNS: 3, AltNames: []string{"plumb-0123456789ab", "lan0"}, Group: 7, TxQueue: 1000, Flags: 4096,
	})
	s.Selector, s.Sandbox, s.NetNS, s.Master = "device eth1", "/run/netns/c1", 1<<63, "br0"
	s.Addresses = []address{{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParseAddr("192.0.2.255"), true, true, true}}
	s.Adopted = &nl.LinkConfig{Link: "eth1", Time: time.Unix(0, 0).UTC(), Addrs: [][]byte{{2, 24, 0, 0, 7, 0, 0, 0}}, Routes: [][]byte{make([]byte, 12)}, Rules: [][]byte{make([]byte, 12)}}
	text, err := json.MarshalIndent(s, "", " ")
	nstest.Must(t, err)
	nstest.Golden(t, "state", string(text))
	back := &state{}
	if err := statefile.Decode(text, back); err != nil || !reflect.DeepEqual(back, s) {
		t.Errorf("decoded again: %v, %+v", err, back)
	}
}

// FuzzState tests that Decode rejects a state file, or returns a state that encoding and decoding does
// not change.
func FuzzState(f *testing.F) {
	f.Add(`{"name": "eth1", "mtu": 1500, "up": true, "mac": "02:00:00:00:00:01", "addresses": [{"prefix": "192.0.2.1/24", "nodad": true}]}`)
	f.Add(`{"name": "../x"}`)
	f.Add(`{"name": "eth1", "parent": "pci/0000:00:02.0", "netns": 18446744073709551615}`)
	f.Add(`{"name": "eth1", "adopted": {"link": "eth1", "time": "2026-01-02T03:04:05Z", "rules": ["AAAAAAAAAAAAAAAA"]}}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, text string) {
		s, back := &state{}, &state{}
		if statefile.Decode([]byte(text), s) != nil {
			return
		}
		if s.Adopted != nil {
			_ = s.Adopted.String()
		}
		encoded, err := json.Marshal(s)
		nstest.Must(t, err)
		if err := statefile.Decode(encoded, back); err != nil || !reflect.DeepEqual(back, s) && len(s.Addresses) > 0 {
			t.Errorf("%s: %s is decoded as %+v, %v", text, encoded, back, err)
		}
	})
}

// FuzzCheck tests that CHECK replies as the CNI specification requires, for any prevResult.
func FuzzCheck(f *testing.F) {
	host, container := nstest.NewHostAndContainer(f)
	host.Must(f, "ip", "link", "add", "hd0", "up", "type", "veth", "peer", "name", "other0")
	h := machine{sys: sysfs(f.TempDir()), states: filepath.Join(f.TempDir(), "states")}
	nstest.FuzzCheck(f, h.plugin(), nstest.Call{Host: host, Container: container, Path: nstest.Build(f, "static"),
		Config: conf("1.1.0", byDevice+`,"optimisticDAD":true`, `{"type":"static","addresses":[{"address":"10.9.0.2/24","gateway":"10.9.0.1"},{"address":"fd00::2/64"}],"routes":[{"dst":"0.0.0.0/0"}]}`)})
}
