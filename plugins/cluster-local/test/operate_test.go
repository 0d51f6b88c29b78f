package datastore

import (
	"fmt"
	"net/netip"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

// operate calls a verb of the datastore as an operator does.
func (n *nemesis) operate(verb string, changes ...func(*datastore.Request)) {
	GinkgoHelper()
	request := n.caller.request(verb, changes...)
	request.Node, request.Datastore = "operator", n.operatorDatastore
	Expect(call(n.operator, request).Error).To(BeNil(), verb)
}

// removeNode calls remove-node with the machine and boot that list prints.
func (n *nemesis) removeNode(node string) {
	GinkgoHelper()
	request := n.caller.request(datastore.List, target(node))
	request.Datastore = n.operatorDatastore
	registered := succeed(n.operator, request).Nodes[node]
	n.operate(datastore.RemoveNode, target(node), machine(registered.Machine), boot(registered.Boot))
}

// calmNodes returns two nodes without a warm pool, in a nemesis with etcd and without disturbances.
func calmNodes() *nemesis {
	GinkgoHelper()
	n := newPluginNemesis(2, otherSettings[0])
	n.caller.base.Datastore = n.operatorDatastore
	return n
}

// newNodes returns the two nodes of a nemesis.
func newNodes(open func() *nemesis) (n *nemesis, n1, n2 *executable) {
	GinkgoHelper()
	n = open()
	n.killRate.Store(0.0)
	return n, n.nodes[0].plugin.(*executable), n.nodes[1].plugin.(*executable)
}

func (x *executable) mustAdd(container string) netip.Addr {
	GinkgoHelper()
	addrs, err := x.add(container)
	Expect(err).NotTo(HaveOccurred(), container)
	return addrs[0]
}

// requireFailure calls ADD, which must fail with code 11 and these texts, and then DEL.
func (x *executable) requireFailure(container string, texts ...string) {
	GinkgoHelper()
	_, err := x.add(container)
	Expect(err).To(MatchError(ContainSubstring(`"code": 11`)))
	for _, text := range texts {
		Expect(err).To(MatchError(ContainSubstring(text)))
	}
	Expect(x.del(container)).To(Succeed())
}

var _ = Describe("an operator of cluster-local with etcd", func() { describeOperator(calmNodes) })
var _ = Describe("an operator of cluster-local with Kubernetes", func() { describeOperator(calmKubernetesNodes) })

// describeOperator describes what an operator does, with every store.
func describeOperator(open func() *nemesis) {
	It("freezes a segment, and until thaw, nodes allocate only what they own", func() {
		n, n1, n2 := newNodes(open)
		n1.mustAdd("c1")
		n.operate(datastore.Freeze)
		n1.requireFailure("c2", "segment nemesis has been frozen since ", " by operator", "thaw")
		n2.requireFailure("d1", "frozen") // n2 has never registered
		Expect(n1.del("c1")).To(Succeed())
		n.operate(datastore.Thaw)
		n1.mustAdd("c2")
		n2.mustAdd("d1")
		n.settleNodes()
	})

	It("restores a backup, which a node notices, and ADDs succeed after a resync of each node and a thaw", func() {
		n, n1, n2 := newNodes(open)
		n1.mustAdd("c1")
		moved := n2.mustAdd("d1")
		file := filepath.Join(GinkgoT().TempDir(), "snapshot")
		n.save(file)
		n1.mustAdd("c2")
		Expect(n2.del("d1")).To(Succeed())
		_, err := n1.call("ADD", "c3", "IP="+moved.String())
		Expect(err).NotTo(HaveOccurred())
		n.restoreStore(file)
		n.awaitReady()

		n1.requireFailure("c4", "address "+moved.String()+" of container c3 also belongs to node n2; run cluster-local resync there")
		n2.requireFailure("d2", "frozen since ", " by n1")
		Expect(n2.resync()).To(Succeed())
		Expect(n1.resync()).To(Succeed())
		n1.requireFailure("c4", "frozen")
		n.operate(datastore.Thaw)
		given := map[netip.Addr]bool{moved: true}
		for _, a := range []netip.Addr{n1.mustAdd("c4"), n2.mustAdd("d2")} {
			Expect(given).NotTo(HaveKey(a))
			given[a] = true
		}
		Expect(n1.owned()).To(HaveLen(4))
		n.settleNodes()
	})

	It("renames a node, and its containers keep their addresses", func() {
		n, n1, n2 := newNodes(open)
		a := n1.mustAdd("c1")
		n2.mustAdd("d1")
		n.operate(datastore.Freeze)
		n1.name = "n9"
		n1.requireFailure("c2", "address "+a.String()+" of container c1 also belongs to node n1", "remove that node with remove-node if it is off")
		n.removeNode("n1")
		n1.requireFailure("c2", "frozen") // the runtime continues to call ADD
		Expect(n1.resync()).To(Succeed())
		n.operate(datastore.Thaw)
		Expect(n1.owned()).To(And(HaveLen(1), HaveKey(a)))
		n1.mustAdd("c2")
		n.nodes[0].name = n1.name
		n.settleNodes()
		Expect(n1.del("c1")).To(Succeed())
	})

	It("copies a disk, and the copy works with another identity, but is noticed with the same identity", func() {
		_, n1, n2 := newNodes(open)
		a := n1.mustAdd("c1")
		n2.copyDisk(n1)
		Expect(n2.mustAdd("d1")).NotTo(Equal(a))

		n2.name = n1.name
		n2.setMachine(n1.machine)
		given := map[netip.Addr]bool{n2.mustAdd("d2"): true} // possibly the address of c1, because no node has noticed the copy yet
		for range 2 {
			_, err := n1.add("c2")
			Expect(err).To(MatchError(And(ContainSubstring(`"code": 7`), ContainSubstring("a second machine"))))
			for range 3 {
				next := n2.mustAdd(fmt.Sprint("e", len(given)))
				Expect(given).NotTo(HaveKey(next))
				given[next] = true
			}
		}
		_, err := n1.call("STATUS", "", "")
		Expect(err).To(MatchError(And(ContainSubstring(`"code": 50`), ContainSubstring("a second machine"))))
	})
}
