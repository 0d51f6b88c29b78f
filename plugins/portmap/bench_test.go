package main

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/tables"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

// BenchmarkNFTables measures each verb in process, with and without mappings of other containers on the
// host. It does not measure the close of the socket, which waits for the kernel.
func BenchmarkNFTables(b *testing.B) {
	for _, others := range []int{0, 5000} {
		for _, mappings := range []int{1, 10, 100} {
			benchmark(b, "", others, mappings)
		}
	}
}

// BenchmarkIPTables is BenchmarkNFTables for the iptables backend, without other containers.
func BenchmarkIPTables(b *testing.B) { benchmark(b, withBackend(backendIPTables), 0, 1) }

func benchmark(b *testing.B, keys string, others, mappings int) {
	host, container := nstest.NewHostAndContainer(b)
	addBridge(b, host)
	if others > 0 {
		if err := fill(host, others); err != nil {
			b.Fatal(err)
		}
	}
	var ports []string
	for i := range mappings {
		ports = append(ports, portMapping(30000+i, 80, overTCP))
	}
	c := nstest.Call{Host: host, Container: container, Config: confFor(keys+`"name":"net1",`, []string{addr4 + "/24"}, ports...)}
	minimal, gc := c, c
	minimal.Config = minimalConfig("net1")
	var kept []string
	for i := range others {
		kept = append(kept, attachment(fmt.Sprintf("%064x", i), "eth0"))
	}
	gc.Config = gcConfig("net1", kept...)
	run := func(name string, before, measured nstest.Call) {
		b.Run(fmt.Sprintf("%s/mappings=%d/others=%d", name, mappings, others), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				nstest.Run(plugin(), before).OK(b)
				b.StartTimer()
				nstest.Run(plugin(), measured).OK(b)
			}
		})
	}
	add, del := c.With("ADD"), c.With("DEL")
	run("ADD", del, add)
	run("CHECK", add, c.With("CHECK"))
	run("DEL", add, del)
	run("DEL-by-attachment", add, minimal.With("DEL"))
	run("GC", add, gc.With("GC"))
	run("DEL-of-nothing", del, minimal.With("DEL"))
}

// fill adds one mapping for each of n other containers.
func fill(host *nstest.NS, n int) error {
	h, err := ns.Open(host.Path(), nil)
	if err != nil {
		return err
	}
	c, err := nft.Open(h)
	if err == nil {
		err = c.Ensure(tableLayout().WithChains(snatChain("net1", netip.MustParsePrefix("10.9.0.0/24"), defaultMarkBit)))
	}
	for at := 0; err == nil && at < n; {
		var tx nft.Tx
		for end := min(at+500, n); at < end; at++ {
			owner := types.Attachment{Network: "net1", ContainerID: fmt.Sprintf("%064x", at), IfName: "eth0"}
			to, comment := netip.MustParseAddr(addr4), nft.Owner(owner)
			s := endpoint{nft.IPv4, netip.IPv4Unspecified(), tcp, uint16(10000 + at)}
			target, chain := s.claim().Elements[0], s.claim().Elements[1]
			tx.AddElement(tables.Inet().Table, target.Set, nft.Element{Key: target.Key, Data: nft.Concat(nft.AddrKey(to), nft.PortKey(80)), Comment: comment})
			tx.AddElement(tables.Inet().Table, chain.Set, nft.Element{Key: chain.Key, Jump: "setmark/net1/10.9.0.0/24", Comment: comment})
		}
		err = c.Commit("fill", &tx)
	}
	return errors.Join(err, h.Close())
}
