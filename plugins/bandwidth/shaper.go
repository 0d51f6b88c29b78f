package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
)

// A shaper limits the packets that a device sends. Without subnets, it is a token bucket filter (tbf)
// with the same parameters as in the reference plugin. With subnets, it is an HTB qdisc with one class,
// and filters that pass packets to the class or directly to the device.
type shaper struct {
	dev     nl.Link
	rate    uint64 // in bytes per second; 0 means no limit
	burst   uint64 // bytes, as configured
	latency time.Duration
	traffic traffic
	remote  side // which address of a packet is not the container's
}

// A side is one of the addresses of a packet.
type side int

const (
	source side = iota
	destination
)

const (
	rootHandle nl.Handle = 0x10000 // 1:
	leafHandle nl.Handle = 0x300000
	leafClass            = 0x30
	kindTBF              = "tbf"
	kindHTB              = "htb"
	directQLen           = 1000     // length of the queue for packets without a class, in packets
	framing              = 14 + 4   // size of an Ethernet header with one VLAN tag, in bytes
	gsoMax               = 64 << 10 // size of the largest segment that TCP passes to a device, in bytes (GSO_LEGACY_MAX_SIZE)
)

// Filter priorities, one per protocol. The priorities of the subnet filters are the same as in version
// 1.5 of the reference plugin.
const (
	ipv6Priority = 15
	ipv4Priority = 16
)

// Runtimes that know a rate but no burst pass a very large burst. kubelet passes 2³¹−1, containerd
// 2³²−1 and CRI-O 8·(2³²−1)−1 bits. With such a burst, hundreds of megabytes pass before the limit
// applies (kubernetes/kubernetes#90838). Therefore the plugin reduces a burst of anyBurst or more to
// the bytes that pass in defaultBurst at the rate, but at least to the ten segments of TCP's initial
// window (RFC 6928).
const (
	anyBurst      = (1<<31 - 1) / 8 // in bytes
	defaultBurst  = 50 * time.Millisecond
	initialWindow = 10 // in segments
)

// shapers returns the shapers on dev for the packets that the container receives (ingress) and
// sends (egress).
func (c *config) shapers(dev nl.Link) (ingress, egress shaper) {
	both := shaper{dev: dev, latency: c.latency, traffic: c.traffic}
	ingress, egress = both, both
	ingress.rate, ingress.burst, ingress.remote = c.ingress.rate/8, c.ingress.burst/8, source
	egress.rate, egress.burst, egress.remote = c.egress.rate/8, c.egress.burst/8, destination
	return ingress, egress
}

func (s shaper) withDevice(dev nl.Link) shaper {
	s.dev = dev
	return s
}

// frame returns the size of the device's largest frame, in bytes.
func (s shaper) frame() uint64 { return uint64(s.dev.MTU) + framing }

// bucket returns the number of bytes that can be sent at once. It is at least one frame, because the
// kernel never sends a frame that is larger than the bucket.
func (s shaper) bucket() uint64 {
	burst := s.burst
	if burst >= anyBurst {
		burst = min(burst, max(bytesIn(defaultBurst, s.rate), initialWindow*uint64(s.dev.MTU)))
	}
	return max(burst, s.frame())
}

// bytesIn returns the number of bytes that pass in d at a rate in bytes per second. d is at most
// maxLatency. bytesIn reduces a rate above 2⁴⁸ to 2⁴⁸, because the product must not overflow 64 bits.
// Such results exceed the kernel's 32-bit numbers anyway.
func bytesIn(d time.Duration, rate uint64) uint64 {
	return min(rate, 1<<48) * uint64(d.Milliseconds()) / 1000
}

// ticks returns the time that n bytes take at a rate in bytes per second, in the kernel's ticks. It
// rounds down to microseconds, as the reference plugin and tc do.
func ticks(n, rate uint64) uint64 { return n * 1_000_000 / rate * 1000 / nl.TickNanoseconds }

// minTicks returns the smallest number of ticks in which n bytes pass at a rate in bytes per second.
func minTicks(n, rate uint64) uint64 { return n*1_000_000_000/rate/nl.TickNanoseconds + 1 }

const (
	maxTicks  = 1<<32 - 1 // 274 s
	max32bits = 1<<32 - 1
)

// buffer returns the time in which the bucket passes at the rate, in ticks. It is at least the time for
// one frame.
func (s shaper) buffer() uint32 {
	return uint32(min(max(ticks(s.bucket(), s.rate), minTicks(s.frame(), s.rate)), maxTicks))
}

// queueLimit returns the length of the queue in bytes. It is the sum of the bucket and of the bytes that
// pass in the latency at the rate.
func (s shaper) queueLimit() uint32 {
	return uint32(min(bytesIn(s.latency, s.rate)+s.bucket(), max32bits))
}

// checkRate returns an error if the time of a frame at the rate is more than maxTicks.
func (s shaper) checkRate() error {
	if s.rate == 0 || minTicks(s.frame(), s.rate) <= maxTicks {
		return nil
	}
	least := s.frame()*1_000_000_000/nl.TickNanoseconds/maxTicks + 1
	return types.Errorf(types.CodeConfig, "a frame of %d bytes does not pass interface %s at %d bit/s: the lowest rate for its MTU is %d bit/s",
		s.frame(), s.dev.Name, s.rate*8, least*8)
}

// qdisc returns the root qdisc of the device.
func (s shaper) qdisc() nl.Qdisc {
	q := nl.Qdisc{Kind: kindTBF, Handle: rootHandle, Parent: nl.Root}
	if s.traffic.scope == shapeAll {
		q.TBF = nl.TBF{Rate: s.rate, Buffer: s.buffer(), Limit: s.queueLimit()}
		return q
	}
	q.Kind, q.HTB = kindHTB, nl.HTB{Direct: directQLen}
	if s.traffic.scope == shapeExcept {
		q.HTB.Default = leafClass
	}
	return q
}

// referenceQdisc returns the token bucket filter that the reference plugin creates for the same
// configuration. The reference plugin does not reduce a large burst, and its 32-bit numbers can
// overflow.
func (s shaper) referenceQdisc() nl.Qdisc {
	q := nl.Qdisc{Kind: kindTBF, Handle: rootHandle, Parent: nl.Root}
	q.TBF = nl.TBF{
		Rate:   s.rate,
		Buffer: uint32(ticks(s.burst, s.rate)),
		Limit:  uint32(bytesIn(defaultLatency, s.rate) + s.burst),
	}
	return q
}

// class returns the HTB class of the limited packets. Its rate is never a multiple of 1<<32, because
// nl.AddClass refuses such a rate.
func (s shaper) class() nl.Class {
	rate := s.rate
	if uint32(rate) == 0 {
		rate++
	}
	return nl.Class{ID: rootHandle.Class(leafClass), Parent: nl.Root, Rate: rate, Buffer: s.buffer(), Quantum: uint32(s.frame())}
}

// leaf returns the qdisc with the class's queue. Unlike a token bucket filter, an HTB qdisc does not
// split the segments that TCP passes to it. Therefore the queue must hold at least one such segment.
func (s shaper) leaf() nl.Qdisc {
	return nl.Qdisc{Kind: "bfifo", Handle: leafHandle, Parent: rootHandle.Class(leafClass), Limit: max(s.queueLimit(), gsoMax+framing)}
}

// filters returns the filters that pass the subnets' packets to the class, or directly to the device
// (class 1:0).
func (s shaper) filters() []nl.Filter {
	to := rootHandle.Class(leafClass)
	if s.traffic.scope == shapeExcept {
		to = rootHandle
	}
	var filters []nl.Filter
	for _, p := range s.traffic.subnets {
		f := nl.Filter{Parent: rootHandle, Priority: ipv6Priority, Protocol: syscall.ETH_P_IPV6, Class: to, Keys: keys(p, s.remote)}
		if p.Addr().Is4() {
			f.Priority, f.Protocol = ipv4Priority, syscall.ETH_P_IP
		}
		filters = append(filters, f)
	}
	return filters
}

// keys returns the u32 keys that match one address of a packet against a subnet. Each key matches 32
// bits.
func keys(p netip.Prefix, s side) []nl.Key {
	offset := int32(8) // offset of the source address in an IPv6 header (RFC 8200, section 3)
	if p.Addr().Is4() {
		offset = 12 // in an IPv4 header (RFC 791, section 3.1)
	}
	addr := p.Addr().AsSlice()
	if s == destination { // the destination follows the source
		offset += int32(len(addr))
	}
	var all []nl.Key
	for i := 0; i < len(addr) && 8*i < p.Bits(); i += 4 {
		mask := ^uint32(0) << (32 - min(32, p.Bits()-8*i))
		all = append(all, nl.Key{Val: binary.BigEndian.Uint32(addr[i:]) & mask, Mask: mask, Off: offset + int32(i)})
	}
	return all
}

// apply adds the qdisc to the device and, with subnets, the class and the filters. Without a limit,
// it changes nothing.
func (s shaper) apply(c *nl.Conn, u *undo.Stack) error {
	if s.rate == 0 {
		return nil
	}
	if err := attach.AddQdisc(c, u, s.dev, s.qdisc()); err != nil || s.traffic.scope == shapeAll {
		return err
	}
	if err := c.AddClass(s.dev, s.class()); err != nil {
		return err
	}
	if err := c.AddQdisc(u, s.dev, s.leaf()); err != nil {
		return err
	}
	for _, f := range s.filters() {
		if err := c.AddFilter(s.dev, f); err != nil {
			return err
		}
	}
	return nil
}

// restore applies the shaper again if the device's shaping differs from it. It keeps another program's qdisc, which
// causes the same error as in ADD.
func (s shaper) restore(c *nl.Conn, u *undo.Stack) error {
	if s.diff(c) == nil {
		return nil
	}
	if err := removeRootQdisc(c, s.dev); err != nil {
		return err
	}
	return s.apply(c, u)
}

// diff returns an error if the device's shaping differs from s. It accepts the qdisc that the
// reference plugin creates for the same configuration. Without a limit, it compares nothing.
func (s shaper) diff(c *nl.Conn) error {
	if s.rate == 0 {
		return nil
	}
	got, err := c.Qdisc(s.dev, nl.Root)
	if err != nil {
		return err
	}
	want := s.qdisc()
	if got != want && (want.Kind != kindTBF || got != s.referenceQdisc()) {
		return fmt.Errorf("interface %s: want %s, got %s", s.dev.Name, describe(want), describe(got))
	}
	if want.Kind == kindTBF {
		return nil
	}
	return errors.Join(s.diffClass(c), s.diffFilters(c))
}

// diffClass returns an error if the class or its queue is missing or has different parameters.
func (s shaper) diffClass(c *nl.Conn) error {
	classes, err := c.Classes(s.dev)
	if err != nil {
		return err
	}
	leaf, err := c.Qdisc(s.dev, s.class().ID)
	switch {
	case err != nil:
		return err
	case !slices.Contains(classes, s.class()):
		return fmt.Errorf("interface %s has no class %s of %d byte/s", s.dev.Name, s.class().ID, s.rate)
	case leaf != s.leaf():
		return fmt.Errorf("interface %s: want %s, got %s", s.dev.Name, describe(s.leaf()), describe(leaf))
	}
	return nil
}

// diffFilters returns an error that names each missing filter.
func (s shaper) diffFilters(c *nl.Conn) error {
	got, err := c.Filters(s.dev, rootHandle)
	if err != nil {
		return err
	}
	var errs []error
	for _, want := range s.filters() {
		if !slices.ContainsFunc(got, want.Same) {
			errs = append(errs, fmt.Errorf("interface %s has no %s", s.dev.Name, want))
		}
	}
	return errors.Join(errs...)
}

// describe returns a description of a qdisc in the kernel's units.
func describe(q nl.Qdisc) string {
	switch q.Kind {
	case "":
		return "no qdisc"
	case kindTBF:
		return fmt.Sprintf("tbf %s at %s with rate %d byte/s, burst %d ticks, limit %d bytes", q.Handle, q.Parent, q.TBF.Rate, q.TBF.Buffer, q.TBF.Limit)
	case kindHTB:
		return fmt.Sprintf("htb %s at %s with default class %x", q.Handle, q.Parent, q.HTB.Default)
	}
	return fmt.Sprintf("%s %s at %s with limit %d", q.Kind, q.Handle, q.Parent, q.Limit)
}
