package pool

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
	"golang.org/x/sys/unix"
)

// A clusterPlugin is an IPAM plugin that allocates only addresses that its node owns. It keeps them in the
// file "owned". If it has none, it gets one from the cluster.
type clusterPlugin struct {
	Machine
	cluster  map[int][]string // the addresses that nobody owns, by range set
	claimed  []string
	released []netip.Addr // by the last DEL
}

// clusterConf has the keys of the configuration.
type clusterConf struct {
	IPAM *struct {
		Keys
		Segment string `json:"segment"`
	} `json:"ipam"`
	RuntimeKeys
}

func (c *clusterPlugin) plugin() skel.Plugin {
	return skel.Plugin{Name: "cluster", IPAM: true, Add: c.add, Del: c.del, Status: c.status, GC: c.gc}
}

func (c *clusterPlugin) parse(r *skel.Request) (*Pool, error) {
	var raw clusterConf
	if err := r.Decode(&raw); err != nil {
		return nil, err
	}
	return c.NewPool(r, &raw.IPAM.Keys, raw.RuntimeKeys)
}

func (c *clusterPlugin) add(r *skel.Request) (*types.Result, error) {
	p, err := c.parse(r)
	if err != nil {
		return nil, err
	}
	for {
		lease, err := p.Allocate(r, chooseOwned(p.Store))
		var none *NoneFreeError
		if !errors.As(err, &none) {
			return lease, err
		}
		if err := errors.Join(r.Undo.Rollback(), c.claim(p, none)); err != nil {
			return nil, err
		}
	}
}

// claim makes an address of the cluster an owned one. It returns none if there is no suitable one.
func (c *clusterPlugin) claim(p *Pool, none *NoneFreeError) error {
	free := c.cluster[none.Set]
	if len(free) == 0 || none.Addr.IsValid() && none.Addr.String() != free[0] {
		return types.Coded(types.CodeTryAgain, none)
	}
	c.cluster[none.Set] = free[1:]
	c.claimed = append(c.claimed, free[0])
	return p.Lock(func(*Session) error { return appendOwned(p.Store, free[0]) })
}

func (c *clusterPlugin) status(r *skel.Request) error {
	p, err := c.parse(r)
	if err != nil {
		return err
	}
	return p.Status(chooseOwned(p.Store))
}

func (c *clusterPlugin) del(r *skel.Request) error {
	s, err := c.NewStore(r)
	if err == nil {
		c.released, err = s.Release(r)
	}
	return err
}

func (c *clusterPlugin) gc(r *skel.Request) error {
	s, err := c.NewStore(r)
	if err == nil {
		err = s.ReleaseInvalid(r)
	}
	return err
}

// chooseOwned returns a function that chooses among the addresses in the file "owned".
func chooseOwned(s Store) func(*Session) (Choice, error) {
	return func(*Session) (Choice, error) {
		text, err := os.ReadFile(s.PrivatePath("owned"))
		var owned []netip.Addr
		for line := range strings.Lines(string(text)) {
			owned = append(owned, netip.MustParseAddr(strings.TrimSpace(line)))
		}
		return Among(owned), types.IgnoreNotExist(err)
	}
}

// appendOwned adds an address to the file "owned".
func appendOwned(s Store, ip string) error {
	path := s.PrivatePath("owned")
	old, err := os.ReadFile(path)
	if err = types.IgnoreNotExist(err); err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = os.WriteFile(path, append(old, ip+"\n"...), 0o600)
	}
	return err
}

var _ = Describe("a plugin that allocates only owned addresses", func() {
	var node *testNode
	var cluster *clusterPlugin
	two := variant{IPAM: `"segment": "lan", "ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]`, More: `"strict": true`}
	BeforeEach(func() {
		node = newTestNode()
		cluster = &clusterPlugin{Machine: node.machine(), cluster: map[int][]string{}}
		node.Plugin = func() skel.Plugin { return cluster.plugin() }
	})
	own := func(ips ...string) {
		GinkgoHelper()
		for _, ip := range ips {
			Expect(appendOwned(node.store(), ip)).To(Succeed())
		}
	}

	It("allocates them in the order of the range, released ones after all others, and then returns code 11", func() {
		own("10.1.2.90", "10.1.2.20", "10.1.2.7")
		Expect(node.Add("c1", variant{})).To(Equal("10.1.2.7/24"))
		Expect(node.Add("c2", variant{})).To(Equal("10.1.2.20/24"))
		node.OK("DEL", "c1", variant{})
		Expect(cluster.released).To(Equal([]netip.Addr{ip("10.1.2.7")}))
		Expect(node.Add("c3", variant{})).To(Equal("10.1.2.90/24"))
		Expect(node.Add("c4", variant{})).To(Equal("10.1.2.7/24"))
		f := node.Fails("ADD", "c5", variant{})
		Expect(f.Code).To(Equal(uint(types.CodeTryAgain)))
		Expect(f.Msg).To(Equal("no IP addresses available in range set: 10.1.2.1-10.1.2.254"))
	})

	It("allocates none of those that are excluded, or in no range", func() {
		own("10.1.2.1", "10.1.2.20", "10.1.3.5", "fd00::5", "::ffff:10.1.2.30")
		Expect(node.Fails("ADD", "c1", variant{IPAM: subnet + `, "exclude": ["10.1.2.20"]`}).Code).To(Equal(uint(types.CodeTryAgain)))
		Expect(node.Reserved()).To(BeEmpty())
	})

	It("gets an address from the cluster for each set that has none, and leaves no reservation of the first attempts", func() {
		own("10.1.2.9")
		cluster.cluster = map[int][]string{0: {"10.1.2.30"}, 1: {"fd00::7", "fd00::8"}}
		Expect(node.Add("c1", two)).To(Equal("10.1.2.9/24 fd00::7/64"))
		Expect(cluster.claimed).To(Equal([]string{"fd00::7"}))
		Expect(node.Add("c2", two)).To(Equal("10.1.2.30/24 fd00::8/64"))
		Expect(cluster.claimed).To(Equal([]string{"fd00::7", "10.1.2.30", "fd00::8"}))
		node.Fails("ADD", "c3", two)
		Expect(node.Reserved()).To(Equal([]string{"10.1.2.30 c2/eth0", "10.1.2.9 c1/eth0", "fd00::7 c1/eth0", "fd00::8 c2/eth0"}))
	})

	It("reserves a requested address only if it is owned, or if the cluster gives it", func() {
		own("10.1.2.9")
		Expect(node.Add("c1", variant{Args: "IP=10.1.2.9"})).To(Equal("10.1.2.9/24"))
		cluster.cluster[0] = []string{"10.1.2.40"}
		Expect(node.Add("c2", variant{Args: "IP=10.1.2.40"})).To(Equal("10.1.2.40/24"))
		f := node.Fails("ADD", "c3", variant{Args: "IP=10.1.2.50"})
		Expect(f.Code).To(Equal(uint(types.CodeTryAgain)))
		Expect(f.Msg).To(Equal("requested IP address 10.1.2.50 is not available in range set 10.1.2.1-10.1.2.254: it is not one of the addresses of this node"))
		Expect(node.Reserved()).To(HaveLen(2))
	})

	It("keeps its own file when the hints are removed, and has one for each network", func() {
		own("10.1.2.9")
		node.Add("c1", variant{})
		Expect(os.RemoveAll(node.Net("../.plumb/net"))).To(Succeed())
		node.Boot("next")
		node.OK("GC", "", variant{More: `"cni.dev/valid-attachments": []`})
		Expect(os.ReadFile(node.store().PrivatePath("owned"))).To(BeEquivalentTo("10.1.2.9\n"))
		Expect(node.Fails("ADD", "c1", variant{Network: "other"}).Code).To(Equal(uint(types.CodeTryAgain)))
	})

	It("has a STATUS that with failStatusWhenFull looks at owned addresses only", func() {
		full := variant{IPAM: subnet + `, "failStatusWhenFull": true`}
		own("10.1.2.9")
		node.OK("STATUS", "", full)
		node.Add("c1", variant{})
		Expect(node.Fails("STATUS", "", full).Code).To(Equal(uint(types.CodeNotAvailable)))
		node.OK("STATUS", "", variant{})
	})

	It("may use its own keys and those of the pool, and no others", func() {
		own("10.1.2.9", "fd00::9")
		node.Add("c1", two)
		unknown := two
		unknown.IPAM += `, "segmnt": "lan"`
		Expect(node.Fails("ADD", "c2", unknown).Msg).To(ContainSubstring("segmnt"))
	})
})

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
		Entry("among a nil slice", Among(nil)),
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
	var cluster *clusterPlugin
	BeforeEach(func() {
		node = newTestNode()
		cluster = &clusterPlugin{Machine: node.machine()}
		for _, id := range []string{"c1", "c2", "c3"} {
			node.Add(id, variant{})
		}
		node.Plugin = func() skel.Plugin { return cluster.plugin() }
	})

	It("returns the addresses of the attachment, and none for an unknown one", func() {
		node.OK("DEL", "c2", variant{})
		Expect(cluster.released).To(Equal([]netip.Addr{ip("10.1.2.3")}))
		node.OK("DEL", "c2", variant{})
		Expect(cluster.released).To(BeEmpty())
	})

	It("returns incomplete reservations, too, and those of an earlier boot", func() {
		node.Put("10.1.2.77", "")
		node.OK("DEL", "unknown", variant{})
		Expect(cluster.released).To(ConsistOf(ip("10.1.2.77")))
		node.Boot("next")
		node.OK("DEL", "unknown", variant{})
		Expect(cluster.released).To(ConsistOf(ip("10.1.2.2"), ip("10.1.2.3"), ip("10.1.2.4")))
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
