package doctor

import (
	"net/netip"
	"testing"

	"golang.org/x/net/ipv6"

	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// FuzzParseAdvertisement checks that parseAdvertisement either rejects a packet, or returns an IPv6 address and a
// hardware address of 6 bytes.
func FuzzParseAdvertisement(f *testing.F) {
	mac, target := types.MAC("\x02\x00\x00\x00\x00\x99"), netip.MustParseAddr("fd00:88::2")
	solicited := solicitation(mac, target)
	advertisement := append([]byte{}, solicited...)
	advertisement[0], advertisement[headerLen] = byte(ipv6.ICMPTypeNeighborAdvertisement), optionTarget
	f.Add(solicited)
	f.Add(advertisement)
	if addr, got, ok := parseAdvertisement(advertisement); !ok || addr != target || got != mac {
		f.Fatalf("want %v, %q, got %v, %q, %v", target, mac, addr, got, ok)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		if addr, mac, ok := parseAdvertisement(p); ok && (!addr.Is6() || len(mac) != 6) {
			t.Fatalf("want an IPv6 address and 6 bytes, got %v, %q", addr, mac)
		}
	})
}
