package masq_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/plumb-cni/plumb/pkg/masq"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/tables"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
	"github.com/plumb-cni/plumb/test/nstest"
)

// BenchmarkNFTables measures each verb on a host with the elements of other containers. Each
// iteration opens its own socket, as a plugin does.
func BenchmarkNFTables(b *testing.B) {
	for _, others := range []int{0, 5000} {
		host := nstest.NewHost(b)
		keep := types.Set{}
		fill(b, host, others, keep)
		ips := []netip.Prefix{netip.MustParsePrefix("10.88.255.2/16"), netip.MustParsePrefix("fd00:9::2/64")}
		owner := types.Attachment{Network: "net1", ContainerID: fmt.Sprintf("%064x", int64(1)<<40), IfName: "eth0"}
		keep[owner] = true
		run := func(name string, before, f func(masq.Masq) error) {
			b.Run(fmt.Sprintf("%s/others=%d", name, others), func(b *testing.B) {
				for b.Loop() {
					for i, step := range []func(masq.Masq) error{before, f} {
						if i == 0 {
							b.StopTimer()
						}
						h, err := ns.Open(host.Path(), nil)
						if err != nil {
							b.Fatal(err)
						}
						if err := step(masq.Masq{HostNS: h, Owner: owner}); err != nil {
							b.Fatal(err)
						}
						b.StopTimer() // a plugin waits for a grace period of the kernel only once, when it closes
						if err := h.Close(); err != nil {
							b.Fatal(err)
						}
						b.StartTimer()
					}
				}
			})
		}
		add := func(m masq.Masq) error { return masq.Add(new(undo.Stack), m, ips) }
		del := func(m masq.Masq) error { return masq.Del(m, ips) }
		run("Add", del, add)
		run("Check", add, func(m masq.Masq) error { return masq.Check(m, ips) })
		run("Del", add, del)
		run("DelByOwner", add, func(m masq.Masq) error { return masq.Del(m, nil) })
		run("DelOfNothing", del, del)
		run("GC", add, func(m masq.Masq) error { return masq.GC(m.HostNS, "net1", keep) })
	}
}

// fill adds the elements of n other containers.
func fill(b *testing.B, host *nstest.NS, n int, keep types.Set) {
	h, err := ns.Open(host.Path(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	c, err := nft.Open(h)
	if err != nil {
		b.Fatal(err)
	}
	// Add makes the table and the chain of the subnet.
	first := masq.Masq{HostNS: h, Owner: types.Attachment{Network: "net1", ContainerID: "first", IfName: "eth0"}}
	if err := masq.Add(new(undo.Stack), first, []netip.Prefix{netip.MustParsePrefix("10.88.255.254/16")}); err != nil {
		b.Fatal(err)
	}
	table := tables.Inet().Table
	for at := 0; at < n; {
		var tx nft.Tx
		for end := min(at+500, n); at < end; at++ {
			owner := types.Attachment{Network: "net1", ContainerID: fmt.Sprintf("%064x", at), IfName: "eth0"}
			keep[owner] = true
			a := netip.AddrFrom4([4]byte{10, 88, byte(at >> 8), byte(at)})
			tx.AddElement(table, "masq4", nft.Element{Key: nft.AddrKey(a), Jump: "masq/net1/10.88.0.0/16", Comment: nft.Owner(owner)})
		}
		if err := c.Commit("fill", &tx); err != nil {
			b.Fatal(err)
		}
	}
}
