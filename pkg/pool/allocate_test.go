package pool

import (
	"io/fs"
	"net/netip"
	"os"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
	"golang.org/x/sys/unix"
)

var _ = Describe("Allocate", func() {
	var host *testHost
	allocate := func(choose func(*Session) (Choice, error)) nstest.Reply {
		p := host.Plugin()
		p.Add = func(r *skel.Request) (*types.Result, error) {
			c := Keys{RangeKeys: RangeKeys{Subnet: "10.1.2.0/24"}, DataDir: host.DataDir}
			pool, err := host.machine().NewPool(r, &c, RuntimeKeys{})
			if err != nil {
				return nil, err
			}
			return pool.Allocate(r, choose)
		}
		return nstest.Run(p, host.Call("c1", variant{}).With("ADD"))
	}
	BeforeEach(func() { host = newTestHost() })

	DescribeTable("allocates nothing from a choice without addresses", func(none Choice) {
		f := allocate(func(*Session) (Choice, error) { return none, nil }).Failure(GinkgoTB())
		Expect(f.Code).To(Equal(uint(types.CodeTryAgain)))
		Expect(host.Reserved()).To(BeEmpty())
	},
		Entry("the zero Choice", Choice{}),
		Entry("OnlyAddresses of a nil slice", OnlyAddresses(nil)),
		Entry("OnlyAddresses of the gateway and of addresses in no range", OnlyAddresses([]netip.Addr{ip("10.1.2.1"), ip("10.1.3.5"), ip("fd00::5")})),
	)

	It("returns the error of the function that chooses, with code 5 if it lacks a code, and reserves nothing", func() {
		f := allocate(func(*Session) (Choice, error) { return Choice{all: true}, fs.ErrPermission }).Failure(GinkgoTB())
		Expect(f.Code).To(Equal(uint(types.CodeIO)))
		Expect(f.Msg).To(Equal("permission denied"))
		Expect(host.Reserved()).To(BeEmpty())
	})

	It("calls the function that chooses while it holds the lock", func() {
		var locked error
		allocate(func(se *Session) (Choice, error) {
			lock, err := os.Open(host.Net("lock"))
			Expect(err).NotTo(HaveOccurred())
			locked = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
			Expect(lock.Close()).To(Succeed())
			Expect(se.Boot()).To(Equal("6f1e8a52-0000-4000-8000-000000000001"))
			return All(se)
		}).OK(GinkgoTB())
		Expect(locked).To(MatchError(unix.EWOULDBLOCK))
	})
})

var _ = Describe("a release", func() {
	var host *testHost
	var released []netip.Addr // by the last DEL
	BeforeEach(func() {
		host = newTestHost()
		host.Plugin = func() skel.Plugin {
			p := newPlugin(host.machine())
			p.Del = func(r *skel.Request) error {
				s, err := host.machine().NewStore(r)
				if err == nil {
					released, err = s.Release(r)
				}
				return err
			}
			return p
		}
		for _, id := range []string{"c1", "c2", "c3"} {
			host.Add(id, variant{})
		}
	})

	It("returns the addresses of the attachment, and none for an unknown one", func() {
		host.OK("DEL", "c2", variant{})
		Expect(released).To(Equal([]netip.Addr{ip("10.1.2.3")}))
		host.OK("DEL", "c2", variant{})
		Expect(released).To(BeEmpty())
	})

	It("also returns incomplete reservations and reservations of an earlier boot", func() {
		host.Put("10.1.2.77", "")
		host.OK("DEL", "unknown", variant{})
		Expect(released).To(ConsistOf(ip("10.1.2.77")))
		host.Boot("next")
		host.OK("DEL", "unknown", variant{})
		Expect(released).To(ConsistOf(ip("10.1.2.2"), ip("10.1.2.3"), ip("10.1.2.4")))
	})

	It("frees the address, at once or after a cooldown", func() {
		free := func(cooldown string) (free []netip.Addr) {
			GinkgoHelper()
			p := host.Plugin()
			p.Status = func(r *skel.Request) error {
				s, err := host.machine().NewStore(r)
				Expect(err).NotTo(HaveOccurred())
				return s.Lock(func(se *Session) error {
					free, err = se.Free([]netip.Addr{ip("10.1.2.9"), ip("10.1.2.3"), ip("10.1.2.2")})
					return err
				})
			}
			nstest.Run(p, host.Call("", variant{IPAM: subnet + cooldown}).With("STATUS")).OK(GinkgoTB())
			return free
		}
		Expect(free("")).To(Equal([]netip.Addr{ip("10.1.2.9")}))
		host.OK("DEL", "c2", variant{IPAM: subnet + `, "cooldown": 60`})
		Expect(free(`, "cooldown": 60`)).To(Equal([]netip.Addr{ip("10.1.2.9")}))
		Expect(free("")).To(Equal([]netip.Addr{ip("10.1.2.9"), ip("10.1.2.3")}))
	})
})

var _ = Describe("Lock", func() {
	It("returns an error that matches ErrNotExist, and creates no directory, before the first ADD", func() {
		host := newTestHost()
		err := host.store().Lock(func(*Session) error { panic("called") })
		Expect(err).To(MatchError(fs.ErrNotExist))
		Expect(host.DataDir).NotTo(BeADirectory())
	})
})
