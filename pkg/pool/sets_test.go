package pool

import (
	"fmt"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("a plugin that gets addresses from elsewhere", func() {
	var host *testHost
	// with calls f in the ADD of a plugin with these keys.
	with := func(id, keys string, f func(*skel.Request, *Pool)) {
		GinkgoHelper()
		p := host.Plugin()
		p.Add = func(r *skel.Request) (*types.Result, error) {
			pool, err := parse(host.machine(), r)
			if err == nil {
				f(r, pool)
			}
			return &types.Result{}, err
		}
		call := host.Call(id, variant{IPAM: keys, Args: "IP=10.1.2.9"}).With("ADD")
		nstest.Run(p, call).OK(GinkgoTB())
	}
	BeforeEach(func() { host = newTestHost() })

	It("knows the ranges of each set, the excluded and the requested addresses", func() {
		with("c1", `"ranges": [[{"subnet": "10.1.2.0/24", "rangeEnd": "10.1.2.99"}, {"subnet": "10.1.3.0/24", "gateway": "10.1.2.1"}], [{"subnet": "fd00::/64"}]],
			"exclude": ["10.1.2.7", "10.1.2.64/28", "10.9.0.0/16", "fd00::2"], "failStatusWhenFull": true`, func(_ *skel.Request, p *Pool) {
			sets := p.Sets()
			Expect(fmt.Sprint(sets)).To(Equal("[{ipam.ranges[0] [10.1.2.1-10.1.2.99 10.1.3.1-10.1.3.254] [10.1.2.7/32 10.1.2.64/28 10.1.2.1/32] [10.1.2.1/24 10.1.2.1/24]} " +
				"{ipam.ranges[1] [fd00::1-fd00::ffff:ffff:ffff:ffff] [fd00::2/128 fd00::1/128] [fd00::1/64]}]"))
			Expect(p.Requested).To(Equal([]netip.Addr{ip("10.1.2.9")}))
			Expect(p.FailStatusWhenFull).To(BeTrue())
			for text, want := range map[string]bool{
				"10.1.2.1": false, "10.1.2.2": true, "10.1.2.70": false, "10.1.2.100": false, "10.1.3.254": true, "fd00::3": false, "::ffff:10.1.2.2": false,
			} {
				Expect(sets[0].Contains(ip(text))).To(Equal(want), text)
			}
			Expect(fmt.Sprint(sets[0].Usable())).To(Equal("[10.1.2.2-10.1.2.6 10.1.2.8-10.1.2.63 10.1.2.80-10.1.2.99 10.1.3.1-10.1.3.254]"))
			Expect(fmt.Sprint(sets[1].Usable())).To(Equal("[fd00::3-fd00::ffff:ffff:ffff:ffff]"))
		})
	})

	It("knows the reserved addresses, their containers, and the addresses of the attachment", func() {
		host.Add("c1", variant{})
		host.Add("c2", variant{})
		with("c2", subnet, func(r *skel.Request, p *Pool) {
			Expect(p.Lock(func(se *Session) error {
				Expect(se.Held(r)).To(Equal([]netip.Addr{ip("10.1.2.3")}))
				Expect(se.Reserved()).To(ConsistOf(ip("10.1.2.2"), ip("10.1.2.3")))
				Expect(se.ContainerID(ip("10.1.2.2"))).To(Equal("c1"))
				Expect(se.ContainerID(ip("10.1.2.9"))).To(Equal("an unknown owner"))
				return nil
			})).To(Succeed())
		})
	})

	It("has no sets in GC if only the runtime knows the ranges", func() {
		p := host.Plugin()
		p.GC = func(r *skel.Request) error {
			pool, err := host.machine().NewPool(r, &Keys{}, RuntimeKeys{})
			Expect(err).NotTo(HaveOccurred())
			Expect(pool.Sets()).To(BeEmpty())
			return nil
		}
		nstest.Run(p, host.Call("", variant{More: `"cni.dev/valid-attachments": []`}).With("GC")).OK(GinkgoTB())
	})
})
