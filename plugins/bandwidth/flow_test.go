package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// A flow consists of several TCP connections that send as fast as they can. A single connection would
// measure how TCP recovers from a loss.
type flow struct {
	from, to *nstest.NS
	src, dst string // addresses
	volume   int64  // bytes to be received
}

const connections = 4

// A measure contains the amount of received data, and the time that it took. The tests assert only that a
// flow is not faster than its limit, because a flow is slower on a busy machine.
type measure struct {
	bits float64
	took time.Duration
}

func (m measure) String() string {
	return fmt.Sprintf("%.2f Mbit in %s: %.2f Mbit/s", m.bits/mbit, m.took, m.bits/mbit/m.took.Seconds())
}

// limitedTo asserts that the flow was not faster than the rate. It allows half a second more for burst and
// queue, and 10 % more for headers.
func (m measure) limitedTo(rate float64, what ...any) {
	GinkgoHelper()
	GinkgoTB().Logf("%v %s", what, m)
	Expect(m.bits).To(BeNumerically("<", rate*(1.1*m.took.Seconds()+0.5)), "%v: %s", what, m)
}

// received returns the number of bytes on the wire that IPv4 and IPv6 have received in the namespace. The
// kernel counts 1500 of a segment's 1514 bytes, or little more than 1448 if it has merged segments.
// received assumes 1474.
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

// run sends data until the receiver has got the volume, and measures it.
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
	Eventually(total.Load).WithTimeout(5*time.Minute).WithPolling(time.Millisecond).Should(BeNumerically(">", f.volume), "bytes of %s to %s", f.src, f.dst)
	bits := (received(f.to) - before) * 8
	return measure{bits: bits, took: time.Since(begin)}
}

// connect returns the two ends of a connection.
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
		d := net.Dialer{Timeout: time.Minute, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(f.src), 0))}
		sender, err = d.Dial("tcp", l.Addr().String())
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	receiver, err = l.Accept()
	return sender, receiver, err
}

// A counter counts the bytes that are written to it.
type counter struct{ n *atomic.Int64 }

func (c counter) Write(b []byte) (int, error) { c.n.Add(int64(len(b))); return len(b), nil }

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

const mbit = 1e6

// seconds returns the bytes that pass in n seconds at the rate in bits per second.
func seconds(n, rate float64) int64 { return int64(n * rate / 8) }

var _ = Describe("a flow", Serial, func() {
	BeforeEach(func() {
		if testing.Short() {
			Skip("-short omits flows, because each takes seconds")
		}
		nstest.LeakCheck(GinkgoTB())
	})

	DescribeTable("is limited to the configured rate in both directions", func(newBed func() *testbed, keys string) {
		bed := newBed()
		bed.run("ADD", keys).OK(GinkgoTB())
		flow{from: bed.host, to: bed.container, src: hostV4, dst: containerV4, volume: seconds(3, 8*mbit)}.run().limitedTo(8*mbit, "ingress")
		flow{from: bed.container, to: bed.host, src: containerV4, dst: hostV4, volume: seconds(3, 16*mbit)}.run().limitedTo(16*mbit, "egress")
	},
		Entry("ptp", ptp, rates(8*mbit, 16*mbit, mbit)),
		Entry("bridge", bridge, rates(8*mbit, 16*mbit, mbit)),
		Entry("macvlan", macvlan, rates(8*mbit, 16*mbit, mbit)),
		Entry("the burst that containerd passes", ptp, `"runtimeConfig": {"bandwidth": {"IngressRate": 8000000, "IngressBurst": 4294967295, "EgressRate": 16000000, "EgressBurst": 4294967295}}`),
		Entry("a burst smaller than a frame", ptp, rates(8*mbit, 16*mbit, 800)),
	)

	DescribeTable("is limited or not according to its subnet, in both families and directions", func(keys string, shaped, free []string) {
		bed := ptp()
		bed.host.Batch(GinkgoTB(), "addr add 10.78.0.1/32 dev veth0", "addr add fd78::1/128 dev veth0 nodad")
		bed.container.Batch(GinkgoTB(), "route add 10.78.0.1 dev eth0", "route add fd78::1 dev eth0")
		bed.run("ADD", rates(8*mbit, 8*mbit, mbit)+keys).OK(GinkgoTB())
		flowsWith := func(host string, volume int64) []flow {
			container := containerV4
			if netip.MustParseAddr(host).Is6() {
				container = containerV6
			}
			return []flow{{bed.host, bed.container, host, container, volume}, {bed.container, bed.host, container, host, volume}}
		}
		for _, host := range shaped {
			for i, f := range flowsWith(host, seconds(3, 8*mbit)) {
				before := bed.queued()
				f.run().limitedTo(8*mbit, "shaped", host, "direction", i)
				Expect(bed.queued()-before).To(BeNumerically(">", f.volume/2), "%s, direction %d: bytes that were limited", host, i)
			}
		}
		for _, host := range free {
			for i, f := range flowsWith(host, 30e6) {
				before := bed.queued()
				m := f.run()
				GinkgoTB().Logf("unshaped, %s, direction %d: %s", host, i, m)
				Expect(bed.queued()-before).To(BeNumerically("<", f.volume/100), "%s, direction %d: bytes that were limited", host, i)
			}
		}
		bed.run("CHECK", rates(8*mbit, 8*mbit, mbit)+keys).OK(GinkgoTB())
	},
		Entry("all but some", `, "unshapedSubnets": ["10.78.0.0/16", "fd78::/16"]`, []string{hostV4, hostV6}, []string{"10.78.0.1", "fd78::1"}),
		Entry("only some", `, "shapedSubnets": ["10.78.0.0/16", "fd78::/16"]`, []string{"10.78.0.1", "fd78::1"}, []string{hostV4, hostV6}),
	)
})

// queued returns the number of bytes that have passed the bfifo qdiscs on the host. Only limited packets
// pass these qdiscs.
func (bed *testbed) queued() int64 {
	GinkgoHelper()
	var qdiscs []struct {
		Kind  string
		Bytes int64
	}
	Expect(json.Unmarshal([]byte(bed.call.Host.Must(GinkgoTB(), "tc", "-s", "-j", "qdisc", "show")), &qdiscs)).To(Succeed())
	var total int64
	for _, q := range qdiscs {
		if q.Kind == "bfifo" {
			total += q.Bytes
		}
	}
	return total
}
