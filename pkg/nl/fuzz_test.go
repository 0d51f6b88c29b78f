package nl

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzRoute: a message of any content is a route with a hop, or an error.
func FuzzRoute(f *testing.F) {
	l := Link{Index: 5}
	for _, r := range []Route{
		{Dst: netip.MustParsePrefix("10.0.0.0/8"), GW: netip.MustParseAddr("10.0.0.1"), MTU: 1300, Table: 500},
		{Dst: netip.MustParsePrefix("::/0"), GW: netip.MustParseAddr("fe80::1"), Priority: 5},
	} {
		body, err := l.route(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
		hops := []byte{8, 0, 0, 0, 5, 0, 0, 0}
		multipath := append(binary.NativeEndian.AppendUint16(nil, 4+8), unix.RTA_MULTIPATH, 0)
		f.Add(append(append(body, multipath...), hops...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, hops, err := decodeRoute(b)
		if err == nil && len(hops) == 0 {
			t.Errorf("%x: %s without a hop", b, r)
		}
		_ = r.String()
	})
}
