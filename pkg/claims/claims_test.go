package claims_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/google/nftables"
	"github.com/plumb-cni/plumb/v2/pkg/claims"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestClaims(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "pkg/claims")
}

var (
	table = nft.Table{Family: nft.Inet, Name: "plumb"}
	addr  = netip.MustParseAddr("10.88.0.2")
)

// connect returns a connection into the namespace, which is closed at the end of the test.
func connect(n *nstest.NS, t *trace.Tracer) *nft.Conn {
	GinkgoHelper()
	c, err := nft.Open(n.Open(GinkgoTB(), t))
	Expect(err).NotTo(HaveOccurred())
	return c
}

// portLayout returns a table like the table of port maps. The maps hostport4 and chain4 contain the
// elements of a claim.
func portLayout() nft.Layout {
	port := []nft.Type{nft.InetProto, nft.InetService}
	return nft.Layout{
		Table:   table,
		Version: 1,
		Sets: []nft.Set{
			{Name: "hostport4", Key: port, Data: []nft.Type{nft.IPv4Addr, nft.InetService}},
			{Name: "chain4", Key: port, Data: []nft.Type{nft.Verdict}},
			{Name: "port_index", Key: claims.IndexKey(), Data: port},
		},
		Chains: []nft.Chain{{
			Name: "prerouting",
			Hook: nft.Hook{Type: nft.NAT, At: nft.Prerouting, Priority: nft.PriorityDstNAT},
			Rules: []nft.Rule{
				{nft.VerdictMap("chain4", nft.L4Proto(), nft.Dport())},
				{nft.DNATMap(nft.IPv4, "hostport4", nft.L4Proto(), nft.Dport())},
			},
		}, markChain()},
	}
}

// markChain returns the chain to which the elements of chain4 jump.
func markChain() nft.Chain {
	return nft.Chain{Name: "mark/net", Rules: []nft.Rule{{nft.SaddrIn(netip.MustParsePrefix("10.88.0.0/16")), nft.SetMarkBit(13)}}}
}

// A claimant is an attachment that claims ports, with its connection.
type claimant struct {
	c       *nft.Conn
	owner   types.Attachment
	indexed bool // whether its store has an index
}

func (a claimant) String() string { return nft.Owner(a.owner) }

func portKey(port uint16) nft.Key {
	return nft.Concat(nft.ProtoKey(syscall.IPPROTO_TCP), nft.PortKey(port))
}

// portOf is the inverse of portKey.
func portOf(k nft.Key) uint16 { return uint16(k[4])<<8 | uint16(k[5]) }

// target returns the container's port, which depends on owner and port, so that elements of
// different claims differ. A claim with an odd target has no chain.
func target(owner string, port uint16) uint16 {
	return uint16(len(owner))*100 + uint16(owner[len(owner)-6])%50 + port
}

func hasChain(owner string, port uint16) bool { return target(owner, port)%2 == 0 }

func (a claimant) store(ports ...uint16) *claims.Store {
	s := &claims.Store{
		Conn: a.c, Layout: portLayout(), Groups: []claims.Group{{"hostport4", "chain4"}}, Owner: a.owner, Description: "ports of " + a.String(),
		Ensure: func() error { return a.c.Ensure(portLayout()) },
	}
	if a.indexed {
		s.Index, s.ClaimOf = "port_index", func(entry nft.Key) claims.Claim {
			return claims.Claim{Description: fmt.Sprint("port ", portOf(entry)), Elements: []nft.SetElement{
				{Set: "hostport4", Element: nft.Element{Key: entry}}, {Set: "chain4", Element: nft.Element{Key: entry}},
			}}
		}
	}
	for _, port := range ports {
		key := portKey(port)
		claim := claims.Claim{Entry: key, Description: fmt.Sprint("port ", port), Elements: []nft.SetElement{{Set: "hostport4", Element: nft.Element{
			Key: key, Data: nft.Concat(nft.AddrKey(addr), nft.PortKey(target(a.String(), port))),
		}}}}
		if hasChain(a.String(), port) {
			claim.Elements = append(claim.Elements, nft.SetElement{Set: "chain4", Element: nft.Element{Key: key, Jump: markChain().Name}})
		}
		s.Claims = append(s.Claims, claim)
	}
	return s
}

func (a claimant) add(ports ...uint16) error {
	return a.store(ports...).Add(new(undo.Stack))
}

// del deletes the claims to the ports or, without ports, all claims.
func (a claimant) del(ports ...uint16) error { return a.store(ports...).Remove() }

// A model contains the owners that a correct store contains, by port, and the ports that each owner added. With an index,
// an owner has only the ports that it added last.
type model struct {
	owner, former map[uint16]string
	added         map[string][]uint16
	indexed       bool
}

func (m *model) add(owner string, ports []uint16) {
	if m.indexed {
		m.del(owner, ports...)
		m.added[owner] = nil
	}
	for _, port := range ports {
		if !slices.Contains(m.added[owner], port) {
			m.added[owner] = append(m.added[owner], port)
		}
	}
	for _, port := range ports {
		if other := m.owner[port]; other != "" && other != owner {
			m.former[port] = other
		} else if m.former[port] == owner {
			delete(m.former, port)
		}
		m.owner[port] = owner
	}
}

// del deletes all ports of the owner except the kept ones.
func (m *model) del(owner string, kept ...uint16) {
	delete(m.added, owner)
	for port := range m.owner {
		if slices.Contains(kept, port) {
			continue
		}
		if m.former[port] == owner {
			delete(m.former, port)
		}
		if m.owner[port] == owner {
			m.owner[port] = m.former[port]
			delete(m.former, port)
		}
	}
}

// ports returns the ports of the owner, including those that others took over.
func (m *model) ports(owner string) (all []uint16) {
	for port := range uint16(100) {
		if m.owner[port] == owner || m.former[port] == owner {
			all = append(all, port)
		}
	}
	return all
}

// elements returns the elements of a correct store, as text.
func (m *model) elements() []string {
	var all []string
	for suffix, owners := range map[string]map[uint16]string{"": m.owner, "-former": m.former} {
		for port, owner := range owners {
			if owner == "" {
				continue
			}
			all = append(all, fmt.Sprintf("hostport4%s: %d to %d of %s", suffix, port, target(owner, port), owner))
			if hasChain(owner, port) {
				all = append(all, fmt.Sprintf("chain4%s: %d of %s", suffix, port, owner))
			}
		}
	}
	slices.Sort(all)
	return all
}

// elementsOf returns the elements in the kernel, as text.
func elementsOf(c *nft.Conn) []string {
	GinkgoHelper()
	var all []string
	for _, set := range []string{"hostport4", "chain4", "hostport4-former", "chain4-former"} {
		found, err := c.Elements(table, set)
		if !errors.Is(err, fs.ErrNotExist) {
			Expect(err).NotTo(HaveOccurred())
		}
		for _, e := range found {
			if e.Jump != "" {
				all = append(all, fmt.Sprintf("%s: %d of %s", set, portOf(e.Key), e.Comment))
			} else {
				all = append(all, fmt.Sprintf("%s: %d to %d of %s", set, portOf(e.Key), portOf(e.Data), e.Comment))
			}
		}
	}
	slices.Sort(all)
	return all
}

var _ = Describe("the store of claims", func() {
	var host *nstest.NS
	var c *nft.Conn
	var claimants []claimant

	BeforeEach(func() {
		host = nstest.NewHost(GinkgoTB())
		c = connect(host, nil)
		claimants = nil
		for i := range 5 {
			owner := types.Attachment{Network: fmt.Sprint("net", i/3), ContainerID: strings.Repeat("c", i+1), IfName: "eth0"}
			claimants = append(claimants, claimant{c: c, owner: owner})
		}
	})

	DescribeTable("contains the elements of a model after each of many random operations,", func(indexed bool) {
		random := rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), 0))
		m := &model{map[uint16]string{}, map[uint16]string{}, map[string][]uint16{}, indexed}
		for i := range claimants {
			claimants[i].indexed = indexed
		}
		for step := range 250 {
			a := claimants[random.IntN(len(claimants))]
			ports := slices.DeleteFunc([]uint16{80, 81, 82, 83, 84}, func(uint16) bool { return random.IntN(2) == 0 })
			var did string
			switch random.IntN(8) {
			case 0, 1, 2, 3:
				did = fmt.Sprintf("%s adds %v", a, ports)
				Expect(a.add(ports...)).To(Succeed(), "step %d: %s", step, did)
				m.add(a.String(), ports)
			case 4:
				did = fmt.Sprintf("%s is deleted, with its ports", a)
				Expect(a.del(m.ports(a.String())...)).To(Succeed(), "step %d: %s", step, did)
				m.del(a.String())
			case 5:
				did = fmt.Sprintf("%s is deleted", a)
				Expect(a.del()).To(Succeed(), "step %d: %s", step, did)
				m.del(a.String())
			case 6:
				if !indexed {
					ports = m.ports(a.String()) // without an index, the caller must know the ports
				}
				did = fmt.Sprintf("%s is deleted, with the ports %v", a, ports)
				Expect(a.del(ports...)).To(Succeed(), "step %d: %s", step, did)
				m.del(a.String())
			case 7:
				network, keep := fmt.Sprint("net", random.IntN(2)), types.Set{a.owner: true}
				did = fmt.Sprintf("GC of %s keeps %s", network, a)
				Expect(c.Atomically("GC", func(tx *nft.Tx) error {
					_, err := a.store().GC(tx, network, keep)
					return err
				})).To(Succeed(), "step %d: %s", step, did)
				for _, o := range claimants {
					if o.owner.Network == network && !keep[o.owner] {
						m.del(o.String())
					}
				}
			}
			Expect(elementsOf(c)).To(Equal(m.elements()), "step %d: %s", step, did)
			for _, o := range claimants {
				ports := m.added[o.String()]
				owned := !slices.ContainsFunc(ports, func(p uint16) bool { return m.owner[p] != o.String() })
				Expect(o.store(ports...).Check() == nil).To(Equal(owned), "step %d: CHECK of %s", step, o)
			}
			if len(m.added) == 0 {
				left, err := c.Elements(table, "port_index")
				Expect(types.IgnoreNotExist(err)).To(Succeed()) // the first operations may be deletions
				Expect(left).To(BeEmpty(), "step %d: %s", step, did)
			}
		}
	},
		Entry("with an index", true),
		Entry("without an index", false),
	)

	It("Check compares the index, Restore adds it, and Delete does without it", func() {
		a, b := claimants[0], claimants[1]
		a.indexed, b.indexed = true, true
		Expect(a.add(80, 81)).To(Succeed())
		Expect(b.add(82)).To(Succeed())
		restore := func(s *claims.Store) error {
			s.OnlyFree = true
			return s.Add(new(undo.Stack))
		}
		Expect(a.store(80).Check()).To(MatchError("map port_index of table inet plumb lists port 81, which the configuration does not contain"))
		Expect(restore(a.store(80))).To(Succeed())
		Expect(a.store(80).Check()).To(Succeed())
		Expect(elementsOf(c)).NotTo(ContainElement(ContainSubstring(": 81 ")))

		before, err := c.Elements(table, "port_index")
		Expect(err).NotTo(HaveOccurred())
		Expect(before).To(HaveLen(2))
		host.Must(GinkgoTB(), "nft", "flush map inet plumb port_index")
		Expect(a.store(80).Check()).To(MatchError("map port_index of table inet plumb does not list port 80"))
		for _, s := range []*claims.Store{a.store(80), b.store(82)} {
			Expect(restore(s)).To(Succeed())
		}
		Expect(c.Elements(table, "port_index")).To(ConsistOf(before))

		Expect(a.add(80, 81)).To(Succeed())
		host.Must(GinkgoTB(), "nft", "flush map inet plumb port_index")
		Expect(a.del(80)).To(Succeed())
		Expect(elementsOf(c)).To(HaveEach(HaveSuffix(b.String())))
		Expect(b.del()).To(Succeed())
		Expect(elementsOf(c)).To(BeEmpty())
	})

	It("Check names the owner that took over a claim, and Add warns of it", func() {
		Expect(claimants[0].add(80, 81)).To(Succeed())
		var warnings []string
		s := claimants[3].store(81, 82)
		s.Warn = func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
		Expect(s.Add(new(undo.Stack))).To(Succeed())
		Expect(warnings).To(Equal([]string{"port 81 was held by net0/c/eth0, and is taken over"}))
		Expect(s.Add(new(undo.Stack))).To(Succeed())
		Expect(warnings).To(HaveLen(1), "a repeated Add takes over nothing")
		Expect(claimants[0].store(80, 81).Check()).To(MatchError("port 81 belongs to net1/cccc/eth0 now"))
	})

	It("Add pushes the undo when the outcome of its commit is unknown, and not when the kernel refuses it", func() {
		Expect(claimants[0].add(80)).To(Succeed())
		before := elementsOf(c)
		for _, ports := range [][]uint16{{81}, {80, 81}} { // the second Add takes over port 80
			lost := errors.New("lost")
			a := claimants[1]
			a.c = connect(host, &trace.Tracer{After: func(step string) error {
				if step == "nft add ports of "+a.String() {
					return lost
				}
				return nil
			}})
			var u undo.Stack
			Expect(a.store(ports...).Add(&u)).To(MatchError(lost))
			Expect(elementsOf(c)).NotTo(Equal(before))
			Expect(u.Rollback()).To(Succeed())
			Expect(elementsOf(c)).To(Equal(before))
		}
		s := claimants[1].store(82)
		s.Claims[0].Elements = append(s.Claims[0].Elements[:1], nft.SetElement{Set: "chain4", Element: nft.Element{Key: portKey(82), Jump: "nosuch"}})
		var u undo.Stack
		Expect(s.Add(&u)).To(MatchError(fs.ErrNotExist))
		Expect(u.Len()).To(BeZero())
	})

	It("reads only its own keys and creates no set for former owners if no other owner claims the keys", func() {
		Expect(claimants[0].add(80)).To(Succeed())
		var steps []string
		a := claimants[1]
		a.c = connect(host, &trace.Tracer{Before: func(step string) error { steps = append(steps, step); return nil }})
		steps = nil
		Expect(a.store(81, 82).Add(new(undo.Stack))).To(Succeed())
		lookup := "nft get elements of inet plumb"
		Expect(steps[len(steps)-3:]).To(Equal([]string{"nft get generation", lookup, "nft add ports of " + a.String()}))
		steps = nil
		Expect(a.del(81, 82)).To(Succeed())
		Expect(steps).To(Equal([]string{"nft get generation", lookup,
			"nft get chain mark/net of table inet plumb", "nft list rules of inet plumb mark/net", "nft delete ports of " + a.String()}))
		Expect(host.Must(GinkgoTB(), "nft", "list", "ruleset")).NotTo(ContainSubstring("former"))
	})

	It("Add takes over a claim that is added between its look-up and its commit", func() {
		Expect(claimants[0].add(80)).To(Succeed())
		a, rival := claimants[1], claimants[3]
		rival.c = connect(host, nil)
		commits := 0
		a.c = connect(host, &trace.Tracer{Before: func(step string) error {
			if step == "nft add ports of "+a.String() {
				if commits++; commits == 1 {
					Expect(rival.add(81)).To(Succeed())
				}
			}
			return nil
		}})
		Expect(a.add(81)).To(Succeed())
		Expect(commits).To(Equal(2))
		Expect(rival.store(81).Check()).To(MatchError("port 81 belongs to " + a.String() + " now"))
		Expect(a.del()).To(Succeed())
		Expect(rival.store(81).Check()).To(Succeed())
	})
})

var _ = DescribeTable("Add and Damaged reject a table that another program created, and Delete and GC succeed:", func(code int, text string, script ...string) {
	host := nstest.NewHost(GinkgoTB())
	c := connect(host, nil)
	for _, line := range script {
		host.Must(GinkgoTB(), "nft", line)
	}
	before := host.Must(GinkgoTB(), "nft", "list", "ruleset")
	a := claimant{c: c, owner: types.Attachment{Network: "net0", ContainerID: "c", IfName: "eth0"}}
	var u undo.Stack
	err := a.store(80).Add(&u)
	Expect(err).To(MatchError(And(ContainSubstring(text), ContainSubstring("nft delete table inet plumb"))))
	Expect(types.AsError(err).Code).To(BeEquivalentTo(code))
	Expect(u.Len()).To(BeZero())
	Expect(a.del(80)).To(Succeed(), "such a table contains no elements of plumb")
	Expect(c.Atomically("GC", func(tx *nft.Tx) error {
		_, err := a.store().GC(tx, "net0", nil)
		return err
	})).To(Succeed())
	if !strings.Contains(text, "differs from") {
		_, err = c.DamagedChains(portLayout())
		Expect(err).To(MatchError(ContainSubstring(text)))
		Expect(host.Must(GinkgoTB(), "nft", "list", "ruleset")).To(Equal(before))
	}
},
	Entry("dormant", types.CodeConfig, "table inet plumb is dormant", "add table inet plumb { flags dormant; }"),
	Entry("with a map of other types", types.CodeConfig, "table inet plumb differs from the table that plumb creates", "add table inet plumb", "add map inet plumb hostport4 { type ipv4_addr : ipv4_addr; }"),
	Entry("with a set for a map", types.CodeConfig, "table inet plumb differs from the table that plumb creates", "add table inet plumb", "add set inet plumb chain4 { type ipv4_addr; }"),
	Entry("with a chain at another hook", types.CodeConfig, "table inet plumb differs from the table that plumb creates", "add table inet plumb", "add chain inet plumb prerouting { type filter hook forward priority 0; }"),
)

var _ = It("Add says that the table belongs exclusively to another program", func() {
	host := nstest.NewHost(GinkgoTB())
	var program *nftables.Conn
	Expect(host.Do(func() (err error) {
		program, err = nftables.New(nftables.AsLasting())
		return err
	})).To(Succeed())
	DeferCleanup(func() { Expect(program.CloseLasting()).To(Succeed()) })
	program.AddTable(&nftables.Table{Name: "plumb", Family: nftables.TableFamilyINet, Flags: nftables.TableFlagOwner})
	Expect(program.Flush()).To(Succeed())
	a := claimant{c: connect(host, nil), owner: types.Attachment{Network: "net0", ContainerID: "c", IfName: "eth0"}}
	err := a.add(80)
	Expect(err).To(MatchError(ContainSubstring("table inet plumb belongs exclusively to another program (flag owner")))
	Expect(types.AsError(err).Code).To(BeEquivalentTo(types.CodeConfig))
	Expect(a.del(80)).To(Succeed())
})
