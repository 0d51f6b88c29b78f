package pool

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
	two := variant{IPAM: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/30"}]]`}
	BeforeEach(func() { node = newTestNode() })

	It("has the addresses of the attachment from ADD to DEL", func() {
		node.Add("c1", two)
		node.Add("c2", variant{})
		Expect(node.records("c1")).To(Equal("10.1.2.2 10.1.3.2"))
		Expect(node.records("c2")).To(Equal("10.1.2.3"))
		node.OK("DEL", "c1", two)
		Expect(node.fileOf("c1")).NotTo(BeAnExistingFile())
		Expect(node.records("c2")).To(Equal("10.1.2.3"))
	})

	It("does not exist after an ADD that fails", func() {
		node.Add("c1", two)
		node.Fails("ADD", "c2", two)
		Expect(node.fileOf("c2")).NotTo(BeAnExistingFile())
		node.OK("CHECK", "c1", two)
		Expect(node.ReadAll()).To(BeFalse())
	})

	It("is made for a reservation of the reference plugin, and for a legacy reservation", func() {
		node.Add("c1", variant{})
		node.ReferenceAdd("10.1.2.9", "theirs")
		node.Put("10.1.2.10", "old")
		node.OK("CHECK", "theirs", variant{})
		Expect(node.ReadAll()).To(BeTrue())
		for _, id := range []string{"theirs", "old", "c1"} {
			node.OK("CHECK", id, variant{})
			Expect(node.ReadAll()).To(BeFalse(), id)
		}
		Expect(node.records("theirs")).To(Equal("10.1.2.9"))
	})

	It("is removed after the reference plugin removed the reservation", func() {
		node.Add("c1", variant{})
		node.WithReferenceLock(func() { Expect(os.Remove(node.Net("10.1.2.2"))).To(Succeed()) })
		node.OK("STATUS", "", variant{})
		Expect(node.fileOf("c1")).NotTo(BeAnExistingFile())
	})

	It("is not changed by a session whose folder was replaced", func() {
		node.Add("c1", variant{})
		Expect(node.store().Lock(func(se *Session) error {
			Expect(os.Rename(node.Net(""), node.Net("../old"))).To(Succeed())
			node.Add("c1", variant{})
			return se.releaseAll(owner{"c1", "eth0"})
		})).To(Succeed())
		node.OK("CHECK", "c1", variant{})
		Expect(node.Reserved()).To(Equal([]string{"10.1.2.2 c1/eth0"}))
	})

	It("is made when the index of an earlier version is removed, and the file of releases stays", func() {
		node.Add("c1", variant{})
		node.OK("DEL", "c1", variant{IPAM: subnet + `, "cooldown": 60`})
		privateDir := filepath.Join(node.DataDir, ".plumb", "net")
		for _, name := range []string{"index", "index.new", "new"} {
			Expect(os.WriteFile(filepath.Join(privateDir, name), []byte("plumbhl1"), 0o600)).To(Succeed())
		}
		node.ReferenceAdd("10.1.2.9", "c9") // any change makes the session read all reservations
		node.OK("CHECK", "c9", variant{})
		left, err := filepath.Glob(filepath.Join(privateDir, "*"))
		Expect(err).NotTo(HaveOccurred())
		Expect(left).To(ConsistOf(node.files(), filepath.Join(privateDir, "releases")))
	})
})

var _ = Describe("a free address", func() {
	It("is found after many reserved ones, in a range of any size", func() {
		node := newTestNode()
		wide := variant{IPAM: `"subnet": "fd00::/64", "exclude": ["fd00::/120"], "cooldown": 60`}
		for i := range 2 * maxLookups {
			node.Put(fmt.Sprintf("fd00::%x", 0x100+i), fmt.Sprint("x", i, "\r\neth0"))
		}
		Expect(node.Add("c1", wide)).To(Equal(fmt.Sprintf("fd00::%x/64", 0x100+2*maxLookups)))
		node.OK("DEL", "c1", wide)
		node.Put("last_reserved_ip.0", "fd00::ffff:ffff:ffff:ffff")
		Expect(node.Add("c1", wide)).To(Equal(fmt.Sprintf("fd00::%x/64", 0x100+2*maxLookups+1)), "the released address cools down")
	})

	It("may have had an incomplete reservation, which the next call of any verb releases", func() {
		node := newTestNode()
		node.Add("c1", variant{})
		for i := range 600 {
			node.Put(fmt.Sprintf("10.1.%d.%d", 3+i/250, 2+i%250), fmt.Sprint("x", i, "\r\neth0"))
		}
		node.Put("10.1.2.3", "")
		node.OK("STATUS", "", variant{})
		Expect(node.Net("10.1.2.3")).NotTo(BeAnExistingFile())
		Expect(node.Add("c2", variant{})).To(Equal("10.1.2.3/24"))
		Expect(node.ReadAll()).To(BeFalse())
		Expect(node.records("c2")).To(Equal("10.1.2.3"))
	})
})
