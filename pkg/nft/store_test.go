package nft_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/google/nftables"
	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/trace"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
	"github.com/plumb-cni/plumb/test/nstest"
)

// A claimant is an attachment that claims ports, with its connection.
type claimant struct {
	c     *nft.Conn
	owner types.Attachment
}

func (a claimant) String() string { return nft.Owner(a.owner) }

// portKind is like the one of portmap: a primary element and an optional second one.
func portKind() nft.ClaimKind {
	return nft.ClaimKind{
		OwnerMap:    "hostportowner4",
		PrimarySets: []string{"hostport4"},
		OtherSets:   []string{"policy4"},
		ElementRefs: func(name nft.Key) []nft.ElementRef {
			key := portKey(uint16(name[8])<<8 | uint16(name[9]))
			return []nft.ElementRef{{Set: "hostport4", Key: key}, {Set: "policy4", Key: key}}
		},
	}
}

func portKey(port uint16) nft.Key {
	return nft.Concat(nft.ProtoKey(syscall.IPPROTO_TCP), nft.PortKey(port))
}

// target returns the port of the container. It depends on owner and port, so that elements
// of different claims differ. An odd one has no policy.
func target(owner string, port uint16) uint16 {
	return uint16(len(owner))*100 + uint16(owner[len(owner)-6])%50 + port
}

func hasPolicy(owner string, port uint16) bool { return target(owner, port)%2 == 0 }

func (a claimant) store(ports ...uint16) *nft.Store {
	s := &nft.Store{
		Conn: a.c, Layout: portLayout(), Kinds: []nft.ClaimKind{portKind()}, Owner: a.owner, Description: "ports of " + a.String(),
		Ensure: func() error { return a.c.Ensure(portLayout()) },
	}
	for _, port := range ports {
		key, at := portKey(port), nft.AddrKey(addr)
		claim := nft.Claim{
			Description: portName(port),
			OwnerMap:    "hostportowner4",
			OwnerEntry:  nft.Element{Data: nft.Concat(at, nft.ProtoKey(syscall.IPPROTO_TCP), nft.PortKey(port), at)},
			Elements: []nft.SetElement{{Set: "hostport4", Element: nft.Element{
				Key: key, Data: nft.Concat(at, nft.PortKey(target(a.String(), port))), Comment: a.String(),
			}}},
		}
		if hasPolicy(a.String(), port) {
			claim.Elements = append(claim.Elements, nft.SetElement{Set: "policy4", Element: nft.Element{Key: key, Jump: policy().Name, Comment: a.String()}})
		}
		s.Claims = append(s.Claims, claim)
	}
	return s
}

func (a claimant) add(ports ...uint16) error {
	return a.store(ports...).Add(new(undo.Stack), func() error { return nil })
}

func (a claimant) del(hints ...uint16) error {
	return a.c.Atomically("delete", func(tx *nft.Tx) error {
		_, err := a.store(hints...).Delete(tx)
		return err
	})
}

type portName uint16

func (p portName) String() string { return fmt.Sprint("port ", uint16(p)) }

// A model has the claims that a correct store has.
type model struct {
	claims map[string][]uint16 // by owner
	owners map[uint16][]string // by port, the holder last
}

func (m *model) add(owner string, ports []uint16) {
	m.del(owner)
	m.claims[owner] = ports
	for _, port := range ports {
		m.owners[port] = append(m.owners[port], owner)
	}
}

func (m *model) del(owner string) {
	delete(m.claims, owner)
	for port, owners := range m.owners {
		m.owners[port] = slices.DeleteFunc(slices.Clone(owners), func(o string) bool { return o == owner })
	}
}

// elements returns the elements that a correct store has, as text.
func (m *model) elements() []string {
	var all []string
	for port, owners := range m.owners {
		for i, owner := range owners {
			where := ""
			if i < len(owners)-1 {
				where = fmt.Sprintf("-displaced %d", i)
			}
			all = append(all, fmt.Sprintf("hostport4%s: %d to %d of %s", where, port, target(owner, port), owner))
			if hasPolicy(owner, port) {
				all = append(all, fmt.Sprintf("policy4%s: %d of %s", where, port, owner))
			}
		}
	}
	for owner, ports := range m.claims {
		for _, port := range ports {
			all = append(all, fmt.Sprintf("list of %s: %d", owner, port))
		}
	}
	slices.Sort(all)
	return all
}

// elementsOf returns the elements that the kernel has, as text.
func elementsOf(c *nft.Conn) []string {
	GinkgoHelper()
	number := func(k nft.Key, at int) int { return int(k[at])<<8 | int(k[at+1]) }
	var all []string
	for _, set := range []string{"hostport4", "policy4", "hostport4-displaced", "policy4-displaced", "hostportowner4"} {
		found, err := c.Elements(table, set)
		if !errors.Is(err, fs.ErrNotExist) {
			Expect(err).NotTo(HaveOccurred())
		}
		for _, e := range found {
			where := set
			if strings.HasSuffix(set, "-displaced") {
				where = fmt.Sprintf("%s %d", set, number(e.Key, 8))
			}
			switch {
			case set == "hostportowner4":
				all = append(all, fmt.Sprintf("list of %s: %d", e.Comment, number(e.Data, 8)))
			case e.Jump != "":
				all = append(all, fmt.Sprintf("%s: %d of %s", where, number(e.Key, 4), e.Comment))
			default:
				all = append(all, fmt.Sprintf("%s: %d to %d of %s", where, number(e.Key, 4), number(e.Data, 4), e.Comment))
			}
		}
	}
	slices.Sort(all)
	return all
}

var _ = Describe("the store of claims", func() {
	var node *nstest.NS
	var c *nft.Conn
	var claimants []claimant

	BeforeEach(func() {
		node = nstest.NewNode(GinkgoTB())
		c = connect(node, nil)
		claimants = nil
		for i := range 5 {
			claimants = append(claimants, claimant{c, types.Attachment{Network: fmt.Sprint("net", i/3), ContainerID: strings.Repeat("c", i+1), IfName: "eth0"}})
		}
	})

	It("has the elements of a model after each of many random operations", func() {
		random := rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), 0))
		m := &model{map[string][]uint16{}, map[uint16][]string{}}
		for step := range 250 {
			a := claimants[random.IntN(len(claimants))]
			var did string
			switch random.IntN(7) {
			case 0, 1, 2, 3:
				ports := slices.DeleteFunc([]uint16{80, 81, 82, 83, 84}, func(uint16) bool { return random.IntN(2) == 0 })
				did = fmt.Sprintf("%s adds %v", a, ports)
				Expect(a.add(ports...)).To(Succeed(), "step %d: %s", step, did)
				m.add(a.String(), ports)
			case 4:
				ports := m.claims[a.String()]
				did = fmt.Sprintf("%s adds %v again", a, ports)
				Expect(a.add(ports...)).To(Succeed(), "step %d: %s", step, did)
				m.add(a.String(), ports)
			case 5:
				did = fmt.Sprintf("%s is deleted", a)
				Expect(a.del()).To(Succeed(), "step %d: %s", step, did)
				m.del(a.String())
			case 6:
				network, keep := fmt.Sprint("net", random.IntN(2)), types.Set{a.owner: true}
				did = fmt.Sprintf("GC of %s keeps %s", network, a)
				Expect(c.Atomically("GC", func(tx *nft.Tx) error { return a.store().GC(tx, network, keep) })).To(Succeed(), "step %d: %s", step, did)
				for _, o := range claimants {
					if o.owner.Network == network && !keep[o.owner] {
						m.del(o.String())
					}
				}
			}
			Expect(elementsOf(c)).To(Equal(m.elements()), "step %d: %s", step, did)
			for owner, ports := range maps.All(m.claims) {
				holds := !slices.ContainsFunc(ports, func(p uint16) bool { return m.owners[p][len(m.owners[p])-1] != owner })
				i := slices.IndexFunc(claimants, func(a claimant) bool { return a.String() == owner })
				Expect(claimants[i].store(ports...).Check() == nil).To(Equal(holds), "step %d: CHECK of %s", step, owner)
			}
		}
	})

	It("Check names the owner that took over a claim, and Add warns of it", func() {
		Expect(claimants[0].add(80, 81)).To(Succeed())
		var warnings []string
		s := claimants[3].store(81, 82)
		s.Warn = func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
		Expect(s.Add(new(undo.Stack), nil)).To(Succeed())
		Expect(warnings).To(Equal([]string{"port 81 was held by net0/c/eth0, and is taken over"}))
		Expect(s.Add(new(undo.Stack), nil)).To(Succeed())
		Expect(warnings).To(HaveLen(1), "a repeated Add takes over nothing")
		Expect(claimants[0].store(80, 81).Check()).To(MatchError("port 81 belongs to net1/cccc/eth0 now"))
	})

	It("Add pushes the undo when the outcome of its commit is unknown, and not when the kernel refuses it", func() {
		Expect(claimants[0].add(80)).To(Succeed())
		before := elementsOf(c)
		for _, ports := range [][]uint16{{81}, {80, 81}} { // the second Add takes over port 80
			lost := errors.New("lost")
			a := claimants[1]
			a.c = connect(node, &trace.Tracer{After: func(step string) error {
				if step == "nft add ports of "+a.String() {
					return lost
				}
				return nil
			}})
			var u undo.Stack
			Expect(a.store(ports...).Add(&u, func() error { return claimants[1].del() })).To(MatchError(lost))
			Expect(elementsOf(c)).NotTo(Equal(before))
			Expect(u.Rollback()).To(Succeed())
			Expect(elementsOf(c)).To(Equal(before))
		}
		s := claimants[1].store(82)
		s.Claims[0].Elements = append(s.Claims[0].Elements[:1], nft.SetElement{Set: "policy4", Element: nft.Element{Key: portKey(82), Jump: "nosuch"}})
		var u undo.Stack
		Expect(s.Add(&u, nil)).To(MatchError(fs.ErrNotExist))
		Expect(u.Len()).To(BeZero())
	})

	It("deletes a displaced claim whose owner was deleted by a release that does not know such claims", func() {
		Expect(claimants[0].add(80)).To(Succeed())
		Expect(claimants[1].add(80)).To(Succeed())
		var tx nft.Tx
		tx.DelElement(table, "hostportowner4", nft.OwnerKey(claimants[0].owner, 0))
		Expect(c.Commit("delete as an earlier release", &tx)).To(Succeed())
		Expect(claimants[1].del()).To(Succeed())
		Expect(c.Elements(table, "hostport4")).To(BeEmpty())
		Expect(c.Elements(table, "hostport4-displaced")).To(BeEmpty())
	})

	It("reads only its own keys and makes no map for displaced elements when no other owner has the claim", func() {
		Expect(claimants[0].add(80)).To(Succeed())
		var steps []string
		a := claimants[1]
		a.c = connect(node, &trace.Tracer{Before: func(step string) error { steps = append(steps, step); return nil }})
		steps = nil
		Expect(a.store(81, 82).Add(new(undo.Stack), nil)).To(Succeed())
		lookup := "nft get elements of inet plumb"
		Expect(steps[len(steps)-3:]).To(Equal([]string{"nft get generation", lookup, "nft add ports of " + a.String()}))
		steps = nil
		Expect(a.del()).To(Succeed())
		Expect(steps).To(Equal([]string{"nft get generation", lookup, lookup, lookup,
			"nft get chain policy/net of table inet plumb", "nft list rules of inet plumb policy/net", "delete"}))
		Expect(node.Must(GinkgoTB(), "nft", "list", "ruleset")).NotTo(ContainSubstring("displaced"))
	})

	It("Add replaces a claim whose owner has lost the first element of its owner map", func() {
		a := claimants[0]
		Expect(a.add(80, 81)).To(Succeed())
		var tx nft.Tx
		tx.DelElement(table, "hostportowner4", nft.OwnerKey(a.owner, 0))
		Expect(c.Commit("delete by hand", &tx)).To(Succeed())
		Expect(a.add(82, 83)).To(Succeed())
		Expect(a.store(82, 83).Check()).To(Succeed())
		Expect(elementsOf(c)).NotTo(ContainElement(ContainSubstring("81")))
	})

	It("concurrent calls of Add all succeed", func() {
		Expect(claimants[0].c.Ensure(portLayout())).To(Succeed())
		const many, each = 16, 50
		errs := make([]error, many)
		var wg sync.WaitGroup
		for i := range many {
			a := claimant{connect(node, nil), types.Attachment{Network: "net3", ContainerID: fmt.Sprintf("%06d", i), IfName: "eth0"}}
			var ports []uint16
			for n := range each {
				ports = append(ports, uint16(1000+i*each+n))
			}
			wg.Go(func() { errs[i] = a.add(ports...) })
		}
		wg.Wait()
		Expect(errors.Join(errs...)).To(Succeed())
		Expect(c.Elements(table, "hostport4")).To(HaveLen(many * each))
	})

	It("Add takes over a claim that is added between its look-up and its commit", func() {
		Expect(claimants[0].add(80)).To(Succeed())
		a, rival := claimants[1], claimants[3]
		rival.c = connect(node, nil)
		commits := 0
		a.c = connect(node, &trace.Tracer{Before: func(step string) error {
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

	It("keeps 256 displaced claims to one key and deletes older ones", func() {
		for i := range 300 {
			a := claimant{c, types.Attachment{Network: "net2", ContainerID: fmt.Sprintf("%06d", i), IfName: "eth0"}}
			Expect(a.add(80)).To(Succeed())
		}
		Expect(c.Elements(table, "hostport4-displaced")).To(HaveLen(256))
		Expect(claimant{c, types.Attachment{Network: "net2", ContainerID: "000299", IfName: "eth0"}}.del()).To(Succeed())
		holder, err := c.Elements(table, "hostport4")
		Expect(err).NotTo(HaveOccurred())
		Expect(holder[0].Comment).To(Equal("net2/000298/eth0"))
		Expect(c.Elements(table, "hostport4-displaced")).To(HaveLen(255))
	})
})

var _ = DescribeTable("Add and Damaged reject a table that another program made, and Delete and GC succeed:", func(code int, text string, script ...string) {
	node := nstest.NewNode(GinkgoTB())
	c := connect(node, nil)
	for _, line := range script {
		node.Must(GinkgoTB(), "nft", line)
	}
	before := node.Must(GinkgoTB(), "nft", "list", "ruleset")
	a := claimant{c, types.Attachment{Network: "net0", ContainerID: "c", IfName: "eth0"}}
	var u undo.Stack
	err := a.store(80).Add(&u, nil)
	Expect(err).To(MatchError(ContainSubstring(text)))
	Expect(types.AsError(err).Code).To(BeEquivalentTo(code))
	Expect(u.Len()).To(BeZero())
	Expect(a.del(80)).To(Succeed(), "such a table has no elements of plumb")
	Expect(c.Atomically("GC", func(tx *nft.Tx) error { return a.store().GC(tx, "net0", nil) })).To(Succeed())
	if !strings.Contains(text, "not as plumb") {
		_, err = c.DamagedChains(portLayout())
		Expect(err).To(MatchError(ContainSubstring(text)))
		Expect(node.Must(GinkgoTB(), "nft", "list", "ruleset")).To(Equal(before))
	}
},
	Entry("dormant", types.CodeConfig, "table inet plumb is dormant", "add table inet plumb { flags dormant; }"),
	Entry("with a map of other types", types.CodeConfig, "table inet plumb is not as plumb makes it", "add table inet plumb", "add map inet plumb hostport4 { type ipv4_addr : ipv4_addr; }"),
	Entry("with a set for a map", types.CodeConfig, "table inet plumb is not as plumb makes it", "add table inet plumb", "add set inet plumb hostportowner4 { type ipv4_addr; }"),
	Entry("with a chain at another hook", types.CodeConfig, "table inet plumb is not as plumb makes it", "add table inet plumb", "add chain inet plumb prerouting { type filter hook forward priority 0; }"),
)

var _ = It("Add says that the table belongs exclusively to another program", func() {
	node := nstest.NewNode(GinkgoTB())
	var program *nftables.Conn
	Expect(node.Do(func() (err error) {
		program, err = nftables.New(nftables.AsLasting())
		return err
	})).To(Succeed())
	DeferCleanup(func() { Expect(program.CloseLasting()).To(Succeed()) })
	program.AddTable(&nftables.Table{Name: "plumb", Family: nftables.TableFamilyINet, Flags: nftables.TableFlagOwner})
	Expect(program.Flush()).To(Succeed())
	a := claimant{connect(node, nil), types.Attachment{Network: "net0", ContainerID: "c", IfName: "eth0"}}
	err := a.add(80)
	Expect(err).To(MatchError(ContainSubstring("table inet plumb belongs exclusively to another program (flag owner")))
	Expect(types.AsError(err).Code).To(BeEquivalentTo(types.CodeConfig))
	Expect(a.del(80)).To(Succeed())
})
