package main

import (
	"syscall"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// FuzzConfig tests that a frame fits into the bucket and the queue with every accepted configuration, and
// that each filter matches a subnet of its family.
func FuzzConfig(f *testing.F) {
	f.Add(`{"name": "n", "ingressRate": 1000000, "ingressBurst": 8000, "latency": 5, "unshapedSubnets": ["10.0.0.0/8", "fd00::/8"]}`, 1500)
	f.Add(`{"name": "n", "runtimeConfig": {"bandwidth": {"egressRate": 18446744073709551615, "egressBurst": 34359738359, "shapedSubnets": ["::ffff:10.0.0.0/104"]}}}`, 65535)
	f.Add(`{"name": "n", "ingressRate": 8, "ingressBurst": 1, "shapedSubnets": ["0.0.0.0/0", "::/0"]}`, 68)
	f.Fuzz(func(t *testing.T, text string, mtu int) {
		r := &skel.Request{Command: "CHECK", Stdin: []byte(text), Version: types.Newest}
		if mtu < 68 || mtu > 65535 || types.Decode(r.Stdin, &r.Conf) != nil {
			return
		}
		conf, err := parse(r)
		if err != nil {
			return
		}
		ingress, egress := conf.shapers(nl.Link{Name: "x", MTU: mtu})
		for _, s := range []shaper{ingress, egress} {
			if s.rate == 0 || s.checkRate() != nil {
				continue
			}
			if s.bucket() < s.frame() || s.buffer() == 0 || uint64(s.queueLimit()) < s.frame() {
				t.Errorf("%s: no frame fits into bucket %d, buffer %d or limit %d", text, s.bucket(), s.buffer(), s.queueLimit())
			}
			_, _, _ = s.qdisc(), s.class(), s.referenceQdisc()
			if filters := s.filters(); len(filters) != len(conf.traffic.subnets) {
				t.Errorf("%s: got %d filters, want one per subnet", text, len(filters))
			}
			for _, filter := range s.filters() {
				if v6 := filter.Protocol == syscall.ETH_P_IPV6; len(filter.Keys) > 4 || !v6 && len(filter.Keys) > 1 {
					t.Errorf("%s: the filter does not match a subnet of its family: %+v", text, filter)
				}
			}
		}
	})
}

// FuzzCheck tests that CHECK replies as the CNI specification requires, for any prevResult.
func FuzzCheck(f *testing.F) {
	nstest.FuzzChainedCheck(f, plugin(), nstest.Call{Config: `{"cniVersion":"1.1.0","name":"net1","type":"bandwidth","ingressRate":1000000,"ingressBurst":1000000,"egressRate":1000000,"egressBurst":1000000}`})
}
