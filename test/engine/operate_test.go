package engine

import (
	"net/netip"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/engine"
)

// operate calls a verb of the engine, as an operator does.
func (n *nemesis) operate(verb string, changes ...func(*engine.Request)) {
	GinkgoHelper()
	request := n.caller.request(verb, changes...)
	request.Node, request.Engine = "operator", n.operatorEngine
	Expect(call(n.operator, request).Error).To(BeNil(), verb)
}

// forget calls the verb forget with what the verb list tells of the node.
func (n *nemesis) forget(node string) {
	GinkgoHelper()
	request := n.caller.request(engine.List, target(node))
	request.Engine = n.operatorEngine
	registered := succeed(n.operator, request).Nodes[node]
	n.operate(engine.Forget, target(node), machine(registered.Machine), boot(registered.Boot))
}

// newNodes returns two nodes without a stock, and with nothing that disturbs them.
func newNodes() (n *nemesis, n1, n2 *executable) {
	GinkgoHelper()
	n = newPluginNemesis(2, otherSettings[0])
	n.killRate.Store(0.0)
	n.caller.base.Engine = n.operatorEngine
	return n, n.nodes[0].plugin.(*executable), n.nodes[1].plugin.(*executable)
}

// mustAdd adds a container, and returns its address.
func (x *executable) mustAdd(container string) netip.Addr {
	GinkgoHelper()
	addrs, err := x.add(container)
	Expect(err).NotTo(HaveOccurred(), container)
	return addrs[0]
}

// requireFailure adds a container, which must fail with code 11 and these texts, and deletes it.
func (x *executable) requireFailure(container string, texts ...string) {
	GinkgoHelper()
	_, err := x.add(container)
	Expect(err).To(MatchError(ContainSubstring(`"code": 11`)))
	for _, text := range texts {
		Expect(err).To(MatchError(ContainSubstring(text)))
	}
	Expect(x.del(container)).To(Succeed())
}

var _ = Describe("an operator of cluster-local", func() {
	It("freezes a segment: nodes give what they have, and get nothing until thaw", func() {
		n, n1, n2 := newNodes()
		n1.mustAdd("c1")
		n.operate(engine.Freeze)
		n1.requireFailure("c2", "segment nemesis is frozen since ", " by operator", "thaw")
		n2.requireFailure("d1", "frozen") // which has never been registered
		Expect(n1.del("c1")).To(Succeed())
		n.operate(engine.Thaw)
		n1.mustAdd("c2")
		n2.mustAdd("d1")
		n.settleNodes()
	})

	It("restores a backup: a node notices it, and ADDs succeed after a reassert of each node, and a thaw", func() {
		n, n1, n2 := newNodes()
		n1.mustAdd("c1")
		moved := n2.mustAdd("d1")
		file := filepath.Join(GinkgoT().TempDir(), "snapshot")
		n.save(file)
		n1.mustAdd("c2")
		Expect(n2.del("d1")).To(Succeed())
		_, err := n1.call("ADD", "c3", "IP="+moved.String())
		Expect(err).NotTo(HaveOccurred())
		n.restore(file)
		n.awaitReady()

		n1.requireFailure("c4", "node n2 has address "+moved.String()+" of container c3, too: reassert there")
		n2.requireFailure("d2", "frozen since ", " by n1")
		Expect(n2.reassert()).To(Succeed())
		Expect(n1.reassert()).To(Succeed())
		n1.requireFailure("c4", "frozen")
		n.operate(engine.Thaw)
		given := map[netip.Addr]bool{moved: true}
		for _, a := range []netip.Addr{n1.mustAdd("c4"), n2.mustAdd("d2")} {
			Expect(given).NotTo(HaveKey(a))
			given[a] = true
		}
		Expect(n1.owned()).To(HaveLen(4))
		n.settleNodes()
	})

	It("renames a node: its containers keep their addresses", func() {
		n, n1, n2 := newNodes()
		a := n1.mustAdd("c1")
		n2.mustAdd("d1")
		n.operate(engine.Freeze)
		n1.name = "n9"
		n1.requireFailure("c2", "node n1 has address "+a.String()+" of container c1, too", "forget that node if it is off")
		n.forget("n1")
		n1.requireFailure("c2", "frozen") // the runtime goes on
		Expect(n1.reassert()).To(Succeed())
		n.operate(engine.Thaw)
		Expect(n1.owned()).To(Equal(map[netip.Addr]bool{a: true}))
		n1.mustAdd("c2")
		n.nodes[0].name = n1.name
		n.settleNodes()
		Expect(n1.del("c1")).To(Succeed())
	})
})
