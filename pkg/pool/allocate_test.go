package pool

import (
	"io/fs"
	"net/netip"
	"os"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
	"golang.org/x/sys/unix"
)

var _ = Describe("Allocate", func() {
	var node *testNode
	allocate := func(choose func(*Session) (Choice, error)) nstest.Reply {
		p := node.Plugin()
		p.Add = func(r *skel.Request) (*types.Result, error) {
			c := Keys{Subnet: "10.1.2.0/24", DataDir: node.DataDir}
			pool, err := node.machine().NewPool(r, &c, RuntimeKeys{})
			if err != nil {
				return nil, err
			}
			return pool.Allocate(r, choose)
		}
		return nstest.Run(p, node.Call("c1", variant{}).With("ADD"))
	}
	BeforeEach(func() { node = newTestNode() })

	DescribeTable("allocates nothing from a choice without addresses", func(none Choice) {
		f := allocate(func(*Session) (Choice, error) { return none, nil }).Failure(GinkgoTB())
		Expect(f.Code).To(Equal(uint(types.CodeTryAgain)))
		Expect(node.Reserved()).To(BeEmpty())
	},
		Entry("the zero Choice", Choice{}),
		Entry("among a nil slice", OnlyAddresses(nil)),
		Entry("among the gateway, and addresses in no range", OnlyAddresses([]netip.Addr{ip("10.1.2.1"), ip("10.1.3.5"), ip("fd00::5")})),
	)

	It("returns the error of the function that chooses, with code 5 if it has none, and reserves nothing", func() {
		f := allocate(func(*Session) (Choice, error) { return Choice{all: true}, fs.ErrPermission }).Failure(GinkgoTB())
		Expect(f.Code).To(Equal(uint(types.CodeIO)))
		Expect(f.Msg).To(Equal("permission denied"))
		Expect(node.Reserved()).To(BeEmpty())
	})

	It("calls the function that chooses while it holds the lock", func() {
		var locked error
		allocate(func(se *Session) (Choice, error) {
			lock, err := os.Open(node.Net("lock"))
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
	var node *testNode
	var released []netip.Addr // by the last DEL
	BeforeEach(func() {
		node = newTestNode()
		node.Plugin = func() skel.Plugin {
			p := newPlugin(node.machine())
			p.Del = func(r *skel.Request) error {
				s, err := node.machine().NewStore(r)
				if err == nil {
					released, err = s.Release(r)
				}
				return err
			}
			return p
		}
		for _, id := range []string{"c1", "c2", "c3"} {
			node.Add(id, variant{})
		}
	})

	It("returns the addresses of the attachment, and none for an unknown one", func() {
		node.OK("DEL", "c2", variant{})
		Expect(released).To(Equal([]netip.Addr{ip("10.1.2.3")}))
		node.OK("DEL", "c2", variant{})
		Expect(released).To(BeEmpty())
	})

	It("returns incomplete reservations, too, and those of an earlier boot", func() {
		node.Put("10.1.2.77", "")
		node.OK("DEL", "unknown", variant{})
		Expect(released).To(ConsistOf(ip("10.1.2.77")))
		node.Boot("next")
		node.OK("DEL", "unknown", variant{})
		Expect(released).To(ConsistOf(ip("10.1.2.2"), ip("10.1.2.3"), ip("10.1.2.4")))
	})

	It("makes the address free, or with a cooldown free after it", func() {
		free := func(cooldown string) (free []netip.Addr) {
			GinkgoHelper()
			p := node.Plugin()
			p.Status = func(r *skel.Request) error {
				s, err := node.machine().NewStore(r)
				Expect(err).NotTo(HaveOccurred())
				return s.Lock(func(se *Session) error {
					free, err = se.Free([]netip.Addr{ip("10.1.2.9"), ip("10.1.2.3"), ip("10.1.2.2")})
					return err
				})
			}
			nstest.Run(p, node.Call("", variant{IPAM: subnet + cooldown}).With("STATUS")).OK(GinkgoTB())
			return free
		}
		Expect(free("")).To(Equal([]netip.Addr{ip("10.1.2.9")}))
		node.OK("DEL", "c2", variant{IPAM: subnet + `, "cooldown": 60`})
		Expect(free(`, "cooldown": 60`)).To(Equal([]netip.Addr{ip("10.1.2.9")}))
		Expect(free("")).To(Equal([]netip.Addr{ip("10.1.2.9"), ip("10.1.2.3")}))
	})
})

var _ = Describe("Lock", func() {
	It("returns an error that matches ErrNotExist, and makes no folder, before the first ADD", func() {
		node := newTestNode()
		err := node.store().Lock(func(*Session) error { panic("called") })
		Expect(err).To(MatchError(fs.ErrNotExist))
		Expect(node.DataDir).NotTo(BeADirectory())
	})
})
