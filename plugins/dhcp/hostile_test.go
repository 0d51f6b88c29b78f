package main

import (
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

// hostile returns n datagrams. Some are random, and most are modified copies of the answer. Ginkgo prints the
// seed of a run, and -ginkgo.seed repeats the run.
func hostile(rng *rand.Rand, answer []byte, n int) [][]byte {
	random := func(length int) []byte {
		data := make([]byte, length)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		return data
	}
	const options = 240 // offset of the options, after the magic cookie
	var all [][]byte
	for range n {
		d := slices.Clone(answer)
		switch rng.IntN(6) {
		case 0:
			d = random(rng.IntN(1400))
		case 1: // truncated
			d = d[:rng.IntN(len(d))]
		case 2: // other bytes anywhere
			for range 1 + rng.IntN(8) {
				d[rng.IntN(len(d))] = byte(rng.Uint32())
			}
		case 3: // other bytes in the options
			for range 1 + rng.IntN(8) {
				d[options+rng.IntN(len(d)-options)] = byte(rng.Uint32())
			}
		case 4: // random options after the first option, which is the message type
			d = append(d[:options+3], random(rng.IntN(1000))...)
		case 5: // one additional option with any code and length
			value := random(rng.IntN(256))
			d = slices.Concat(d[:options+3], []byte{byte(1 + rng.IntN(254)), byte(len(value))}, value, d[options+3:])
		}
		all = append(all, d)
	}
	return all
}

var _ = It("gets, renews and releases its lease among random and modified answers", func() {
	seed := uint64(GinkgoRandomSeed())
	rng := rand.New(rand.NewPCG(seed, seed))
	b := newTestbed()
	short := lease
	short.Duration, short.Renew, short.Rebind = time.Hour, time.Second, 50*time.Minute
	b.server.Lease(short)
	end := b.startDaemon()
	c := b.call(`,"mtu":true`)

	// The server sends other answers before the right one. The client may accept some of them.
	attack := func(_ nstest.DHCPMessage, answer *dhcpv4.DHCPv4) [][]byte {
		return append(hostile(rng, answer.ToBytes(), 50), answer.ToBytes())
	}
	for range nstest.FullOrShort(10, 3) {
		b.server.Next(slices.Repeat([]nstest.DHCPBehaviour{attack}, 4)...)
		Expect(b.Add(c).IPs).To(HaveLen(1))
		b.server.Next()
		b.OK("DEL", c)
		Expect(b.files()).To(BeEmpty())
	}
	// Instead of the answer to a renewal, the server sends answers with another transaction ID and another address. The
	// client must accept none of them.
	Expect(b.address(c)).To(Equal(lease.Address))
	b.server.Next(slices.Repeat([]nstest.DHCPBehaviour{func(_ nstest.DHCPMessage, answer *dhcpv4.DHCPv4) [][]byte {
		answer.TransactionID = dhcpv4.TransactionID{^answer.TransactionID[0], ^answer.TransactionID[1], ^answer.TransactionID[2], ^answer.TransactionID[3]}
		answer.YourIPAddr = []byte{10, 50, 0, 66}
		return hostile(rng, answer.ToBytes(), 200)
	}}, 3)...)
	b.container.MustLine(GinkgoTB(), "ip addr add "+lease.Address+" dev eth0")
	before, _ := b.leaseInFile()
	Eventually(func() time.Duration { start, _ := b.leaseInFile(); return start }).Should(BeNumerically(">", before), "renewed")
	_, ok := b.leaseInFile()
	Expect(ok).To(BeTrue(), "the lease after the renewal: %s", b.record())
	Expect(b.address(c)).To(Equal(lease.Address), "a second ADD")
	b.OK("CHECK", c)
	b.server.Received()
	b.OK("DEL", c)
	b.server.Await(GinkgoTB(), released)
	Expect(end(syscall.SIGTERM)).To(Succeed(), "the first daemon runs until the end")
})
