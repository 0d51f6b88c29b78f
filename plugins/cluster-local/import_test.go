package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/lock"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// importOf calls the command import with "CONTAINER ADDRESS" pairs, and returns the exit status and stderr.
func (n *testNode) importOf(pairs ...string) (int, string) {
	GinkgoHelper()
	var all []string
	for _, pair := range pairs {
		id, ip, _ := strings.Cut(pair, " ")
		all = append(all, fmt.Sprintf(`{"containerID": %q, "ifName": "eth0", "address": %q}`, id, ip))
	}
	var stdout, stderr bytes.Buffer
	call := n.Call("", variant{More: `"import": [` + strings.Join(all, ",") + `]`})
	exit := skel.Run(n.Plugin(), skel.Env{Environ: []string{"CNI_PATH=" + call.Path}, Args: []string{"import"}, Stdin: strings.NewReader(call.Config), Stdout: &stdout, Stderr: &stderr})
	Expect(stdout.String()).To(BeEmpty())
	return exit, stderr.String()
}

var _ = Describe("the command import", func() {
	var n *testNode
	BeforeEach(func() { n = newNode(newCluster(GinkgoTB()), "n1") })
	reserved := func(n *testNode) (all []string) {
		files, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(n.ownedFile()))), "*", "10.*"))
		Expect(err).NotTo(HaveOccurred())
		for _, file := range files {
			all = append(all, filepath.Base(file))
		}
		return all
	}

	It("gives containers on three nodes of a frozen segment the addresses that they use, and DEL frees them", func() {
		nodes := []*testNode{n, n.peer("n2"), n.peer("n3")}
		n.cluster.change(func(st *fakeState) { st.Frozen = "today by hand" })
		for i, node := range nodes {
			exit, text := node.importOf(fmt.Sprintf("w1 10.1.2.%d", 20+i), fmt.Sprintf("w2 10.1.2.%d", 30+i))
			Expect(exit).To(BeZero(), text)
			node.expectAgreement()
			Expect(node.cluster.owned(node.name)).To(HaveLen(2))
			node.inUse[fmt.Sprintf("10.1.2.%d", 20+i)], node.inUse[fmt.Sprintf("10.1.2.%d", 30+i)] = node.name+"/w1", node.name+"/w2"
			node.Run("ADD", "new", variant{}).RequireFailure(GinkgoTB(), types.CodeTryAgain, "frozen")
			exit, text = node.importOf(fmt.Sprintf("w1 10.1.2.%d", 20+i)) // again
			Expect(exit).To(BeZero(), text)
		}
		n.cluster.change(func(st *fakeState) { st.Frozen = "" })
		for _, node := range nodes {
			running := []string{"w2"}
			for i := range 10 { // add fails if a container on any node has the address
				running = append(running, fmt.Sprint("c", i))
				node.add(running[i+1], variant{})
			}
			node.del("w1", variant{})
			node.gc(running...).OK(GinkgoTB())
			node.expectAgreement()
		}
		Expect(n.cluster.owned("n1")).To(HaveKey(netip.MustParseAddr("10.1.2.30")))
	})

	It("imports all addresses but those that another node owns, another container has, or no range contains", func() {
		n.add("c1", variant{Args: "IP=10.1.2.40"})
		n.cluster.give("n7", "10.1.2.50")
		exit, text := n.importOf("w5 ::ffff:10.1.2.3", " 10.1.2.21", "w1 10.1.2.20", "w2 10.1.2.40", "w3 10.1.2.50", "w4 192.168.0.1")
		Expect(exit).To(Equal(1))
		Expect(text).To(And(ContainSubstring("10.1.2.40 of w2/eth0 is reserved for c1/eth0"), ContainSubstring("10.1.2.50 belongs to node n7"),
			ContainSubstring("192.168.0.1 of w4/eth0 is in no range"), ContainSubstring("::ffff:10.1.2.3 of w5/eth0 must contain containerID, ifName and address"),
			ContainSubstring("10.1.2.21 of /eth0 must contain")))
		Expect(reserved(n)).To(ConsistOf("10.1.2.20", "10.1.2.40"))
		n.expectAgreement()
	})

	It("keeps the reservation if the datastore does not answer, and the next session claims it", func() {
		n.cluster.script("register", "refuse unreachable")
		exit, _ := n.importOf("w1 10.1.2.20")
		Expect(exit).To(Equal(1))
		Expect(reserved(n)).To(ConsistOf("10.1.2.20"))
		n.add("c1", variant{})
		n.expectAgreement()
		Expect(n.cluster.owned("n1")).To(HaveKey(netip.MustParseAddr("10.1.2.20")))
	})

	It("keeps the reservation if another process, which may claim it, uses the datastore", func() {
		n.add("c1", variant{})
		key, err := lock.NewKey(filepath.Join(filepath.Dir(filepath.Dir(n.ownedFile())), ".datastore", "net"), "datastore")
		Expect(err).NotTo(HaveOccurred())
		Expect(key.Lock(time.Second)).To(Succeed())
		n.Wait = 10 * time.Millisecond
		n.Plugin = n.host().plugin
		exit, text := n.importOf("w1 10.1.2.20")
		Expect(exit).To(Equal(1))
		Expect(text).To(ContainSubstring("another process has used"))
		Expect(reserved(n)).To(ContainElement("10.1.2.20"))
		Expect(key.Close()).To(Succeed())
		n.Wait = time.Minute
		n.Plugin = n.host().plugin
		exit, text = n.importOf("w1 10.1.2.20")
		Expect(exit).To(BeZero(), text)
		n.expectAgreement()
	})

	It("keeps the reservation if the outcome of the claim is unknown, and succeeds when it is repeated", func() {
		n.add("c1", variant{IPAM: `"subnet": "10.1.2.0/24", "warmPool": 0`})
		for ip, does := range map[string]string{"10.1.2.120": "done, unknown", "10.1.2.121": "done, die"} {
			n.cluster.script("claim", does)
			exit, _ := n.importOf("w1 " + ip)
			Expect(exit).To(Equal(1))
			Expect(reserved(n)).To(ContainElement(ip), does)
			exit, text := n.importOf("w1 " + ip)
			Expect(exit).To(BeZero(), text)
			n.expectAgreement()
		}
	})

	It("releases the reservation of an address that another node owns, also while the segment is frozen", func() {
		n.cluster.give("n7", "10.1.2.50")
		n.cluster.change(func(st *fakeState) { st.Frozen = "today by hand" })
		exit, text := n.importOf("w1 10.1.2.20", "w3 10.1.2.50")
		Expect(exit).To(Equal(1))
		Expect(text).To(ContainSubstring("address 10.1.2.50 of container w3 also belongs to node n7"))
		Expect(reserved(n)).To(ConsistOf("10.1.2.20"))
		exit, text = n.importOf("w1 10.1.2.20")
		Expect(exit).To(BeZero(), text)
		n.expectAgreement()
	})

	It("is completed by GC if it was killed after it reserved an address", func() {
		n.add("c1", variant{})
		path := filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(n.ownedFile()))), "net", "10.1.2.20")
		Expect(os.WriteFile(path, []byte("w1\r\neth0"), 0o600)).To(Succeed())
		n.gc("c1", "w1").OK(GinkgoTB())
		Expect(n.cluster.owned("n1")).To(HaveKey(netip.MustParseAddr("10.1.2.20")))
		n.gc("c1").OK(GinkgoTB())
		n.expectAgreement()
	})
})
