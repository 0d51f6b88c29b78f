package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"golang.org/x/sys/unix"
)

func TestLocalType(t *testing.T) {
	for magic, want := range map[uint32]bool{
		unix.EXT4_SUPER_MAGIC: true, unix.TMPFS_MAGIC: true, unix.OVERLAYFS_SUPER_MAGIC: true,
		unix.NFS_SUPER_MAGIC: false, unix.FUSE_SUPER_MAGIC: false, unix.V9FS_MAGIC: false, unix.SMB2_SUPER_MAGIC: false, unix.CEPH_SUPER_MAGIC: false,
	} {
		if got := isLocalType(magic); got != want {
			t.Errorf("%x: %v", magic, got)
		}
	}
}

// records returns the addresses in the file of an attachment, separated by spaces.
func (node *testNode) records(id string) string {
	GinkgoHelper()
	text, err := os.ReadFile(node.fileOf(id))
	Expect(err).NotTo(HaveOccurred())
	var addresses []string
	for line := range strings.Lines(string(text)) {
		addresses = append(addresses, strings.Fields(line)[0])
	}
	return strings.Join(addresses, " ")
}

var _ = Describe("the attachment's file", func() {
	var node *testNode
	two := variant{ipam: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/30"}]]`}
	BeforeEach(func() { node = newTestNode() })

	It("has the addresses of the attachment from ADD to DEL", func() {
		node.add("c1", two)
		node.add("c2", variant{})
		Expect(node.records("c1")).To(Equal("10.1.2.2 10.1.3.2"))
		Expect(node.records("c2")).To(Equal("10.1.2.3"))
		node.ok("DEL", "c1", two)
		Expect(node.fileOf("c1")).NotTo(BeAnExistingFile())
		Expect(node.records("c2")).To(Equal("10.1.2.3"))
	})

	It("does not exist after an ADD that fails", func() {
		node.add("c1", two)
		node.fails("ADD", "c2", two)
		Expect(node.fileOf("c2")).NotTo(BeAnExistingFile())
		node.ok("CHECK", "c1", two)
		Expect(node.readAll()).To(BeFalse())
	})

	It("is made for a reservation of the reference plugin, and for a legacy reservation", func() {
		node.add("c1", variant{})
		node.referenceAdd("10.1.2.9", "theirs")
		node.put("10.1.2.10", "old")
		node.ok("CHECK", "theirs", variant{})
		Expect(node.readAll()).To(BeTrue())
		for _, id := range []string{"theirs", "old", "c1"} {
			node.ok("CHECK", id, variant{})
			Expect(node.readAll()).To(BeFalse(), id)
		}
		Expect(node.records("theirs")).To(Equal("10.1.2.9"))
	})

	It("is removed after the reference plugin removed the reservation", func() {
		node.add("c1", variant{})
		node.withReferenceLock(func() { Expect(os.Remove(node.net("10.1.2.2"))).To(Succeed()) })
		node.ok("STATUS", "", variant{})
		Expect(node.fileOf("c1")).NotTo(BeAnExistingFile())
	})

	It("is not changed by a session whose folder was replaced", func() {
		node.add("c1", variant{})
		privateDir := filepath.Join(node.dataDir, ".plumb", "net")
		st := store{dir: node.net(""), privateDir: privateDir, machine: machine{bootID: node.bootID, wait: node.wait, now: sinceBoot}}
		Expect(st.withLock(func(se *session) error {
			Expect(os.Rename(node.net(""), node.net("../old"))).To(Succeed())
			node.add("c1", variant{})
			return se.releaseAll(owner{"c1", "eth0"})
		})).To(Succeed())
		node.ok("CHECK", "c1", variant{})
		Expect(node.reserved()).To(Equal([]string{"10.1.2.2 c1/eth0"}))
	})

	It("is made when the index of an earlier version is removed, and the file of releases stays", func() {
		node.add("c1", variant{})
		node.ok("DEL", "c1", variant{ipam: subnet + `, "cooldown": 60`})
		privateDir := filepath.Join(node.dataDir, ".plumb", "net")
		for _, name := range []string{"index", "index.new", "new"} {
			Expect(os.WriteFile(filepath.Join(privateDir, name), []byte("plumbhl1"), 0o600)).To(Succeed())
		}
		node.referenceAdd("10.1.2.9", "c9") // any change makes the session read all reservations
		node.ok("CHECK", "c9", variant{})
		left, err := filepath.Glob(filepath.Join(privateDir, "*"))
		Expect(err).NotTo(HaveOccurred())
		Expect(left).To(ConsistOf(node.files(), filepath.Join(privateDir, "releases")))
	})
})

var _ = Describe("a free address", func() {
	It("is found after many reserved ones, in a range of any size", func() {
		node := newTestNode()
		wide := variant{ipam: `"subnet": "fd00::/64", "exclude": ["fd00::/120"], "cooldown": 60`}
		for i := range 2 * maxLookups {
			node.put(fmt.Sprintf("fd00::%x", 0x100+i), fmt.Sprint("x", i, "\r\neth0"))
		}
		Expect(node.add("c1", wide)).To(Equal(fmt.Sprintf("fd00::%x/64", 0x100+2*maxLookups)))
		node.ok("DEL", "c1", wide)
		node.put("last_reserved_ip.0", "fd00::ffff:ffff:ffff:ffff")
		Expect(node.add("c1", wide)).To(Equal(fmt.Sprintf("fd00::%x/64", 0x100+2*maxLookups+1)), "the released address cools down")
	})

	It("may have had an incomplete reservation, which the next call of any verb releases", func() {
		node := newTestNode()
		node.add("c1", variant{})
		for i := range 600 {
			node.put(fmt.Sprintf("10.1.%d.%d", 3+i/250, 2+i%250), fmt.Sprint("x", i, "\r\neth0"))
		}
		node.put("10.1.2.3", "")
		node.ok("STATUS", "", variant{})
		Expect(node.net("10.1.2.3")).NotTo(BeAnExistingFile())
		Expect(node.add("c2", variant{})).To(Equal("10.1.2.3/24"))
		Expect(node.readAll()).To(BeFalse())
		Expect(node.records("c2")).To(Equal("10.1.2.3"))
	})
})
