package main

import (
	"encoding/json"
	"math"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestReadme(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error {
		_, err := parse(r)
		return err
	})
}

func decode(t *testing.T, text string) (*config, error) {
	t.Helper()
	var raw rawConfig
	nstest.Must(t, json.Unmarshal([]byte(text), &raw))
	return raw.toConfig()
}

func TestLimitsOfConfigurationOrRuntime(t *testing.T) {
	both := &config{ingress: limit{8000, 800}, egress: limit{16000, 1600}, latency: defaultLatency}
	in := &config{ingress: limit{8000, 800}, latency: defaultLatency}
	const runtime = `"runtimeConfig": {"bandwidth": {"ingressRate": 8000, "ingressBurst": 800, "egressRate": 16000, "egressBurst": 1600}}`
	for _, c := range []struct {
		name, text string
		want       *config
	}{
		{"no keys", `{}`, &config{latency: defaultLatency}},
		{"null", `{"ingressRate": null, "runtimeConfig": null}`, &config{latency: defaultLatency}},
		{"the configuration's", `{"ingressRate": 8000, "ingressBurst": 800, "egressRate": 16000, "egressBurst": 1600}`, both},
		{"the runtime's", `{` + runtime + `}`, both},
		{"containerd's spelling", `{"runtimeConfig": {"bandwidth": {"IngressRate": 8000, "IngressBurst": 800, "EgressRate": 16000, "EgressBurst": 1600}}}`, both},
		{"one configured limit replaces all of the runtime's limits", `{"ingressRate": 8000, "ingressBurst": 800, ` + runtime + `}`, in},
		{"zero means no limit", `{"ingressRate": 0, "ingressBurst": 0, "egressRate": 0, "egressBurst": 0, ` + runtime + `}`, both},
		{"latency", `{"latency": 100}`, &config{latency: 100 * time.Millisecond}},
		{"the configuration's subnets with the runtime's limits", `{"unshapedSubnets": ["10.1.2.3/8"], ` + runtime + `}`, &config{
			ingress: both.ingress, egress: both.egress, latency: defaultLatency,
			traffic: traffic{shapeExcept, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
		}},
		{"the runtime's subnets", `{"unshapedSubnets": ["10.1.2.3/8"], "runtimeConfig": {"bandwidth": {"shapedSubnets": ["fd00::/8", "::ffff:10.0.0.0/104"]}}}`, &config{
			latency: defaultLatency,
			traffic: traffic{shapeOnly, []netip.Prefix{netip.MustParsePrefix("fd00::/8"), netip.MustParsePrefix("10.0.0.0/8")}},
		}},
	} {
		if got, err := decode(t, c.text); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, %v, want %+v", c.name, got, err, c.want)
		}
	}
}

func TestErrorNamesAllProblems(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`{"ingressRate": 7, "ingressBurst": 8}`, "ingressRate 7 must be between 8 and 2305843009213693951 bit/s"},
		{`{"ingressRate": 9223372036854775808, "ingressBurst": 8}`, "ingressRate 9223372036854775808 must be between 8 and 2305843009213693951 bit/s"},
		{`{"egressRate": 8, "egressBurst": 34359738360}`, "egressBurst 34359738360: burst cannot be more than 4GB"},
		{`{"latency": 60001}`, "latency 60001 must be between"},
		{`{"unshapedSubnets": ["10.0.0.0/8"], "shapedSubnets": ["10.1.0.0/16"]}`, `unshapedSubnets ["10.0.0.0/8"] and shapedSubnets ["10.1.0.0/16"] exclude each other`},
		{`{"unshapedSubnets": ["10.0.0.0/8"], "shapedSubnets": ["broken"]}`, `shapedSubnets[0]: "broken" is not a subnet`},
		{`{"shapedSubnets": ["::ffff:10.0.0.0/64"]}`, `shapedSubnets[0]: "::ffff:10.0.0.0/64" is not a subnet`},
		{`{"unshapedSubnets": ["10.0.0.0", "", "::/129"]}`, `unshapedSubnets[0]: "10.0.0.0" is not a subnet; write it like 10.0.0.0/8 or fd00::/8` + "\n" +
			`unshapedSubnets[1]: "" is not a subnet; write it like 10.0.0.0/8 or fd00::/8` + "\n" + `unshapedSubnets[2]: "::/129" is not a subnet`},
		{`{"ingressRate": 1, "ingressBurst": 99999999999, "egressRate": 9, "shapedSubnets": ["x"], "latency": -1}`,
			"ingressRate 1 must be between 8 and 2305843009213693951 bit/s\ningressBurst 99999999999: burst cannot be more than 4GB\n" +
				"egressBurst is missing; set it together with egressRate\nshapedSubnets[0]: \"x\" is not a subnet; write it like 10.0.0.0/8 or fd00::/8\n" +
				"latency -1 must be between 1 and 60000 milliseconds"},
	} {
		if _, err := decode(t, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got\n%v\nwant\n%s", c.text, err, c.want)
		}
	}
	// CRI-O passes the largest valid burst.
	if _, err := decode(t, `{"egressRate": 8, "egressBurst": 34359738359}`); err != nil {
		t.Error(err)
	}
}

// shaperOf returns a shaper for a rate in bits per second and a burst in bits.
func shaperOf(rate, burst uint64) shaper {
	return shaper{dev: nl.Link{Name: "veth0", MTU: 1500}, rate: rate / 8, burst: burst / 8, latency: defaultLatency}
}

const (
	kubelet    = math.MaxInt32
	containerd = math.MaxUint32
	crio       = 8*math.MaxUint32 - 1
)

func TestBucket(t *testing.T) {
	const kbit, mbit, gbit = 1e3, 1e6, 1e9
	for _, c := range []struct {
		rate, burst, want uint64 // bit/s, bit, byte
	}{
		{mbit, 800 * kbit, 100_000},
		{123, 456, 1518},                     // at least one frame
		{10 * mbit, 2000 * mbit, 250e6},      // a large burst that no runtime passes by default
		{10 * mbit, kubelet, 62_500},         // 50 ms
		{10 * mbit, containerd, 62_500},      //
		{10 * mbit, crio, 62_500},            //
		{mbit, containerd, 15_000},           // ten segments
		{kbit, containerd, 15_000},           //
		{100 * gbit, kubelet, 268_435_455},   // not more than configured
		{100 * gbit, containerd, 536870911},  //
		{400 * gbit, crio, 2_500_000_000},    //
		{10 * gbit, 10 * gbit, 62_500_000},   //
		{10 * gbit, kubelet - 8, 268435454},  //
		{10 * gbit, kubelet + 8, 62_500_000}, //
	} {
		s := shaperOf(c.rate, c.burst)
		if got := s.bucket(); got != c.want {
			t.Errorf("rate %d burst %d: got a bucket of %d bytes, want %d", c.rate, c.burst, got, c.want)
		}
	}
}

// TestNumbersFit tests that a frame passes with the numbers for the kernel, and that these numbers do not
// exceed the configured ones and do not overflow.
func TestNumbersFit(t *testing.T) {
	rates := []uint64{48, 64, 1e3, 56e3, 1e6, 10e6, 1e9, 10e9, 34_359_738_368, 100e9, 400e9, 1e15, math.MaxUint64}
	bursts := []uint64{8, 12_000, 1e6, kubelet, containerd, crio}
	for _, rate := range rates {
		for _, burst := range bursts {
			s := shaperOf(rate, burst)
			if err := s.checkRate(); err != nil {
				t.Errorf("rate %d: %v", rate, err)
			}
			ns := float64(s.buffer()) * nl.TickNanoseconds
			passes := ns * float64(s.rate) / 1e9
			if passes < float64(s.frame()) {
				t.Errorf("rate %d burst %d: %.0f bytes pass in %d ticks, want at least a frame", rate, burst, passes, s.buffer())
			}
			// minTicks adds one tick to the time of a frame.
			if most := float64(max(s.burst, s.frame())) + 2*nl.TickNanoseconds*float64(s.rate)/1e9; passes > most {
				t.Errorf("rate %d burst %d: %.0f bytes pass in %d ticks, want at most %.0f", rate, burst, passes, s.buffer(), most)
			}
			s.latency = maxLatency * time.Millisecond
			if uint64(s.queueLimit()) < min(min(s.rate, 1<<40)*60, max32bits) {
				t.Errorf("rate %d burst %d: got a queue of %d bytes, want at least the bytes of a minute", rate, burst, s.queueLimit())
			}
			s.latency = time.Millisecond
			if uint64(s.queueLimit()) < s.frame() {
				t.Errorf("rate %d burst %d: got a queue of %d bytes, want at least a frame", rate, burst, s.queueLimit())
			}
		}
	}
	if err := shaperOf(40, 8).checkRate(); err == nil || !strings.Contains(err.Error(), "the lowest rate for its MTU is 48 bit/s") {
		t.Errorf("40 bit/s: got %v, want an error with the lowest rate", err)
	}
}

func TestKeys(t *testing.T) {
	for _, c := range []struct {
		subnet string
		side   side
		want   []nl.Key
	}{
		{"0.0.0.0/0", source, nil},
		{"10.0.0.0/8", source, []nl.Key{{Val: 0x0a000000, Mask: 0xff000000, Off: 12}}},
		{"10.1.2.3/32", destination, []nl.Key{{Val: 0x0a010203, Mask: 0xffffffff, Off: 16}}},
		{"::/0", source, nil},
		{"fd00::/8", source, []nl.Key{{Val: 0xfd000000, Mask: 0xff000000, Off: 8}}},
		{"fd00:1::/32", destination, []nl.Key{{Val: 0xfd000001, Mask: 0xffffffff, Off: 24}}},
		{"2001:db8:0:7::/63", destination, []nl.Key{{Val: 0x20010db8, Mask: 0xffffffff, Off: 24}, {Val: 0x6, Mask: 0xfffffffe, Off: 28}}},
		{"::1/128", source, []nl.Key{{Mask: 0xffffffff, Off: 8}, {Mask: 0xffffffff, Off: 12}, {Mask: 0xffffffff, Off: 16}, {Val: 1, Mask: 0xffffffff, Off: 20}}},
	} {
		if got := keys(netip.MustParsePrefix(c.subnet), c.side); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", c.subnet, got, c.want)
		}
	}
}
