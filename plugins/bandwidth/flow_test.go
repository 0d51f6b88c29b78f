package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

// A flow is some TCP connections side by side that send as fast as they may: one
// alone would measure how TCP gets over a loss.
type flow struct {
	from, to *nstest.NS
	src, dst string        // addresses
	lasts    time.Duration // or
	volume   int64         // bytes
}

const connections = 4

// A measure is what came through: in the first second, in bytes, and the rate after
// it (or of all, for a flow of a given volume), in bit/s.
type measure struct {
	first float64
	rate  float64
}

// received is what IP of either version has received in the namespace, in bytes on
// the wire: what is limited is packets, not what TCP makes of them. Of the 1514 bytes
// of a segment IP counts 1500, or, where segments come merged, little more than 1448.
func received(n *nstest.NS) float64 {
	GinkgoHelper()
	var octets float64
	for file, counter := range map[string]string{"netstat": "InOctets", "snmp6": "Ip6InOctets"} {
		text := n.Must(GinkgoTB(), "cat", "/proc/thread-self/net/"+file)
		var names []string
		for line := range strings.Lines(text) {
			fields := strings.Fields(line)
			if i := slices.Index(names, counter); i > 0 && fields[0] == names[0] {
				octets += number(fields[i])
			}
			if fields[0] == counter {
				octets += number(fields[1])
			}
			names = fields
		}
	}
	return octets * 1514 / 1474
}

func number(s string) float64 {
	GinkgoHelper()
	n, err := strconv.ParseFloat(s, 64)
	Expect(err).NotTo(HaveOccurred())
	return n
}

// run measures the flow.
func (f flow) run() measure {
	GinkgoHelper()
	var total atomic.Int64
	var ends []net.Conn
	var busy sync.WaitGroup
	defer func() {
		for _, c := range ends {
			_ = c.Close()
		}
		busy.Wait()
	}()
	begin, before := time.Now(), received(f.to)
	for range connections {
		sender, receiver, err := f.connect()
		Expect(err).NotTo(HaveOccurred(), "%s to %s", f.src, f.dst)
		ends = append(ends, sender, receiver)
		busy.Go(func() { _, _ = io.Copy(sender, zeros{}) })
		busy.Go(func() { _, _ = io.Copy(counter{&total}, receiver) })
	}
	if f.volume > 0 {
		Eventually(total.Load).WithTimeout(20*time.Second).WithPolling(time.Millisecond).Should(BeNumerically(">", f.volume), "bytes of %s to %s", f.src, f.dst)
		return measure{rate: (received(f.to) - before) * 8 / time.Since(begin).Seconds()}
	}
	time.Sleep(time.Second - time.Since(begin)) // what is measured is what comes in a time
	mark, first := time.Now(), received(f.to)
	time.Sleep(f.lasts - time.Second)
	return measure{first: first - before, rate: (received(f.to) - first) * 8 / time.Since(mark).Seconds()}
}

// connect gives the two ends of a connection.
func (f flow) connect() (sender, receiver net.Conn, err error) {
	var l net.Listener
	err = f.to.Do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(f.dst, "0"))
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = l.Close() }()
	err = f.from.Do(func() (err error) {
		d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(f.src), 0))}
		sender, err = d.Dial("tcp", l.Addr().String())
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	receiver, err = l.Accept()
	return sender, receiver, err
}

// A counter counts what is written to it.
type counter struct{ n *atomic.Int64 }

func (c counter) Write(b []byte) (int, error) { c.n.Add(int64(len(b))); return len(b), nil }

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

const mbit = 1e6

// within10 is a rate within 10 % of the one that was asked for.
func within10(rate float64) OmegaMatcher { return BeNumerically("~", rate, rate/10) }

var _ = Describe("a flow", Serial, func() {
	BeforeEach(func() { nstest.LeakCheck(GinkgoTB()) })

	DescribeTable("has the rate asked for in both directions", func(on func() *world, keys string) {
		w := on()
		w.run("ADD", keys).OK(GinkgoTB())
		echo := nstest.ServeUDP(GinkgoTB(), w.node, hostV4+":0")
		idle := roundTrips(w.pod, echo, 20)
		var loaded []time.Duration
		var pinging sync.WaitGroup
		pinging.Go(func() {
			time.Sleep(1500 * time.Millisecond) // in the midst of it; nothing depends on when
			loaded = roundTrips(w.pod, echo, 5)
		})
		m := []measure{
			flow{from: w.node, to: w.pod, src: hostV4, dst: podV4, lasts: 3 * time.Second}.run(),
			flow{from: w.pod, to: w.node, src: podV4, dst: hostV4, lasts: 3 * time.Second}.run(),
		}
		pinging.Wait()
		GinkgoTB().Logf("ingress %.2f Mbit/s (first second %.0f kB), egress %.2f Mbit/s (%.0f kB); round trip idle %s, under load %s",
			m[0].rate/mbit, m[0].first/1e3, m[1].rate/mbit, m[1].first/1e3, median(idle), median(loaded))
		Expect(m[0].rate).To(within10(8 * mbit))
		Expect(m[1].rate).To(within10(16 * mbit))
		// A second's worth, the burst, and what the queue let through.
		Expect(m[0].first).To(BeNumerically("<", 8*mbit/8*1.5))
		Expect(m[1].first).To(BeNumerically("<", 16*mbit/8*1.5))
	},
		Entry("ptp", ptp, rates(8*mbit, 16*mbit, mbit)),
		Entry("bridge", bridge, rates(8*mbit, 16*mbit, mbit)),
		Entry("macvlan", macvlan, rates(8*mbit, 16*mbit, mbit)),
		Entry("any burst, as containerd calls", ptp, `"runtimeConfig": {"bandwidth": {"IngressRate": 8000000, "IngressBurst": 4294967295, "EgressRate": 16000000, "EgressBurst": 4294967295}}`),
		Entry("a burst smaller than a frame", ptp, rates(8*mbit, 16*mbit, 800)),
	)

	DescribeTable("is told from others by its subnet, in both families and directions", func(keys string, shaped, free []string) {
		w := ptp()
		w.node.Batch(GinkgoTB(), "addr add 10.78.0.1/32 dev veth0", "addr add fd78::1/128 dev veth0 nodad")
		w.pod.Batch(GinkgoTB(), "route add 10.78.0.1 dev eth0", "route add fd78::1 dev eth0")
		w.run("ADD", rates(8*mbit, 8*mbit, mbit)+keys).OK(GinkgoTB())
		of := func(host string, f flow) []flow {
			in, out := f, f
			pod := podV4
			if netip.MustParseAddr(host).Is6() {
				pod = podV6
			}
			in.from, in.to, in.src, in.dst = w.node, w.pod, host, pod
			out.from, out.to, out.src, out.dst = w.pod, w.node, pod, host
			return []flow{in, out}
		}
		for _, host := range shaped {
			for i, f := range of(host, flow{lasts: 3 * time.Second}) {
				m := f.run()
				GinkgoTB().Logf("shaped, %s, direction %d: %.2f Mbit/s", host, i, m.rate/mbit)
				Expect(m.rate).To(within10(8*mbit), "%s, direction %d", host, i)
			}
		}
		for _, host := range free {
			for i, f := range of(host, flow{volume: 30e6}) {
				m := f.run()
				GinkgoTB().Logf("unshaped, %s, direction %d: %.0f Mbit/s", host, i, m.rate/mbit)
				Expect(m.rate).To(BeNumerically(">", 5*8*mbit), "%s, direction %d", host, i)
			}
		}
		w.run("CHECK", rates(8*mbit, 8*mbit, mbit)+keys).OK(GinkgoTB())
	},
		Entry("all but some", `, "unshapedSubnets": ["10.78.0.0/16", "fd78::/16"]`, []string{hostV4, hostV6}, []string{"10.78.0.1", "fd78::1"}),
		Entry("only some", `, "shapedSubnets": ["10.78.0.0/16", "fd78::/16"]`, []string{"10.78.0.1", "fd78::1"}, []string{hostV4, hostV6}),
	)
})

// roundTrips are n of them, to a server of UDP datagrams.
func roundTrips(n *nstest.NS, to netip.AddrPort, count int) []time.Duration {
	var all []time.Duration
	for range count {
		begin := time.Now()
		if _, err := nstest.DialUDP(n, to.String()); err == nil {
			all = append(all, time.Since(begin))
		}
	}
	return all
}

func median(d []time.Duration) string {
	if len(d) == 0 {
		return "none answered"
	}
	return fmt.Sprint(d[len(d)/2].Round(10 * time.Microsecond))
}
