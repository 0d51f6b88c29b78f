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

func (host *testHost) addressFiles() string {
	GinkgoHelper()
	boot, err := os.ReadFile(host.BootID)
	Expect(err).NotTo(HaveOccurred())
	return filepath.Join(host.DataDir, ".plumb", "net", strings.TrimSpace(string(boot)))
}

// addressFilePath returns the path of the address file of an attachment with the interface eth0.
func (host *testHost) addressFilePath(id string) string {
	GinkgoHelper()
	return filepath.Join(host.addressFiles(), owner{id, "eth0"}.addressFileName())
}

// addressFile returns the addresses in the address file of an attachment, one per line.
func (host *testHost) addressFile(id string) (addrs string) {
	GinkgoHelper()
	text, err := os.ReadFile(host.addressFilePath(id))
	Expect(err).NotTo(HaveOccurred())
	for line := range strings.Lines(string(text)) {
		addr, file, _ := strings.Cut(line, " ")
		Expect(file).To(MatchRegexp(`^[0-9]+\n$`))
		addrs += addr + "\n"
	}
	return addrs
}

// fillOther reserves n addresses outside of the subnet for other containers.
func (host *testHost) fillOther(n int) {
	GinkgoHelper()
	for i := range n {
		host.Put(fmt.Sprintf("10.1.%d.%d", 3+i/250, 2+i%250), fmt.Sprint("x", i, "\r\neth0"))
	}
}

var _ = Describe("an address file", func() {
	var host *testHost
	two := variant{IPAM: `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/30"}]]`}
	BeforeEach(func() { host = newTestHost() })

	It("names the addresses of the attachment from ADD to DEL", func() {
		host.Add("c1", two)
		host.Add("c2", variant{})
		Expect(host.addressFile("c1")).To(Equal("10.1.2.2\n10.1.3.2\n"))
		Expect(host.addressFile("c2")).To(Equal("10.1.2.3\n"))
		host.OK("DEL", "c1", two)
		Expect(host.addressFilePath("c1")).NotTo(BeAnExistingFile())
		Expect(host.addressFile("c2")).To(Equal("10.1.2.3\n"))
		host.OK("GC", "", variant{More: `"cni.dev/valid-attachments": []`})
		Expect(host.addressFilePath("c2")).NotTo(BeAnExistingFile())
	})

	It("without a reservation, which a killed ADD can leave, is removed by GC", func() {
		host.Add("c1", variant{})
		Expect(os.Remove(host.Net("10.1.2.2"))).To(Succeed())
		host.OK("GC", "", variant{More: `"cni.dev/valid-attachments": []`})
		Expect(host.addressFilePath("c1")).NotTo(BeAnExistingFile())
	})

	It("does not exist after an ADD that fails", func() {
		host.Add("c1", two)
		host.Fails("ADD", "c2", two)
		Expect(host.addressFilePath("c2")).NotTo(BeAnExistingFile())
		Expect(host.Fails("ADD", "c2", variant{Args: "IP=10.1.2.2"}).Msg).To(ContainSubstring("10.1.2.2 is allocated to c1"))
		Expect(host.addressFilePath("c2")).NotTo(BeAnExistingFile())
		host.OK("CHECK", "c1", two)
		Expect(host.ReadAll()).To(BeFalse())
	})

	It("lets every verb work without reading all reservations, except a second DEL", func() {
		host.Add("c1", variant{})
		host.fillOther(300)
		for _, c := range []string{"STATUS", "ADD", "CHECK", "DEL"} {
			host.OK(c, "c2", variant{})
			Expect(host.ReadAll()).To(BeFalse(), c)
		}
		host.OK("DEL", "c2", variant{})
		Expect(host.ReadAll()).To(BeTrue())
	})

	It("is not needed by a DEL with the prevResult of the attachment", func() {
		prev := variant{More: `"prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "10.1.2.9/24"}]}`}
		host.ReferenceAdd("10.1.2.9", "theirs")
		host.ReferenceAdd("10.1.2.10", "others")
		host.OK("DEL", "theirs", prev)
		Expect(host.ReadAll()).To(BeFalse())
		Expect(host.Reserved()).To(Equal([]string{"10.1.2.10 others/eth0"}))
		host.ReferenceAdd("10.1.2.9", "theirs")
		host.OK("DEL", "others", prev)
		Expect(host.ReadAll()).To(BeTrue(), "prevResult names an address of another attachment")
		Expect(host.Reserved()).To(Equal([]string{"10.1.2.9 theirs/eth0"}))
	})

	It("does not exist for a reservation of the reference plugin or a legacy reservation, so that CHECK and DEL read all reservations", func() {
		host.ReferenceAdd("10.1.2.9", "theirs")
		host.Put("10.1.2.10", "old")
		for _, c := range []string{"CHECK", "DEL"} {
			for _, id := range []string{"theirs", "old"} {
				host.OK(c, id, variant{})
				Expect(host.ReadAll()).To(BeTrue(), c+" "+id)
			}
		}
		Expect(host.Reserved()).To(BeEmpty())
	})

	It("is removed by an ADD after the reference plugin has removed the reservation", func() {
		host.Add("c1", two)
		host.WithReferenceLock(func() {
			Expect(os.Remove(host.Net("10.1.2.2"))).To(Succeed())
			Expect(os.Remove(host.Net("10.1.3.2"))).To(Succeed())
		})
		host.Add("c1", variant{})
		Expect(host.addressFile("c1")).To(Equal("10.1.2.3\n"))
		host.OK("DEL", "c1", variant{})
		Expect(host.ReadAll()).To(BeFalse())
		Expect(host.Reserved()).To(BeEmpty())
	})

	It("does not hide the first reservation of an ADD that was killed before the second", func() {
		host.Add("c1", two)
		Expect(os.Remove(host.Net("10.1.3.2"))).To(Succeed())
		Expect(host.Fails("ADD", "c1", two).Code).To(Equal(uint(CodeDuplicate)))
		host.OK("DEL", "c1", variant{})
		Expect(host.Reserved()).To(BeEmpty())
	})

	DescribeTable("is used only if the reservations name the attachment", func(damage func()) {
		host.Add("c0", variant{})
		host.Add("c1", variant{})
		host.OK("DEL", "c0", variant{})
		damage()
		host.OK("CHECK", "c1", variant{})
		Expect(host.Add("c2", variant{})).To(Equal("10.1.2.4/24"))
		Expect(host.Add("c3", variant{Args: "IP=10.1.2.2"})).To(Equal("10.1.2.2/24"))
		host.OK("CHECK", "c3", variant{})
		Expect(host.ReadAll()).To(BeFalse())
		for _, id := range []string{"c1", "c2", "c3"} {
			host.OK("DEL", id, variant{})
		}
		Expect(host.Reserved()).To(BeEmpty())
	},
		Entry("the directory of all networks was removed", func() { Expect(os.RemoveAll(filepath.Join(host.DataDir, ".plumb"))).To(Succeed()) }),
		Entry("the directory of the network was removed", func() { Expect(os.RemoveAll(filepath.Dir(host.addressFiles()))).To(Succeed()) }),
		Entry("the directory of the boot was removed", func() { Expect(os.RemoveAll(host.addressFiles())).To(Succeed()) }),
		Entry("it was removed", func() { Expect(os.Remove(host.addressFilePath("c1"))).To(Succeed()) }),
		Entry("an address file of an attachment without an address", func() {
			Expect(os.WriteFile(host.addressFilePath("c2"), []byte("10.1.2.3\n"), 0o600)).To(Succeed())
		}),
		Entry("it contains the address of another attachment", func() {
			Expect(os.WriteFile(host.addressFilePath("c1"), []byte("10.1.2.2\n"), 0o600)).To(Succeed())
		}),
		Entry("it is empty", func() { Expect(os.Truncate(host.addressFilePath("c1"), 0)).To(Succeed()) }),
		Entry("it is truncated", func() { Expect(os.Truncate(host.addressFilePath("c1"), 6)).To(Succeed()) }),
		Entry("it contains other text", func() {
			Expect(os.WriteFile(host.addressFilePath("c1"), []byte(strings.Repeat("noise", 3000)), 0o600)).To(Succeed())
		}),
		Entry("a directory in its place", func() {
			Expect(os.Remove(host.addressFilePath("c1"))).To(Succeed())
			Expect(os.MkdirAll(filepath.Join(host.addressFilePath("c1"), "x"), 0o700)).To(Succeed())
		}),
		Entry("a file in the place of the directory", func() {
			Expect(os.RemoveAll(host.addressFiles())).To(Succeed())
			Expect(os.WriteFile(host.addressFiles(), nil, 0o600)).To(Succeed())
		}),
		Entry("a symbolic link in the place of the directory", func() {
			Expect(os.Rename(host.addressFiles(), filepath.Join(host.DataDir, "elsewhere"))).To(Succeed())
			Expect(os.Symlink(filepath.Join(host.DataDir, "elsewhere"), host.addressFiles())).To(Succeed())
		}),
	)

	It("may be removed by a session whose directory was replaced", func() {
		host.Add("c1", variant{})
		Expect(host.store().Lock(func(se *Session) error {
			Expect(os.Rename(host.Net(""), host.Net("../old"))).To(Succeed())
			host.Add("c1", variant{})
			return se.release(ip("10.1.2.2"), owner{"c1", "eth0"})
		})).To(Succeed())
		host.OK("CHECK", "c1", variant{})
		Expect(host.Reserved()).To(Equal([]string{"10.1.2.2 c1/eth0"}))
	})

	It("of an earlier boot is removed with all other files except the releases", func() {
		host.Add("c1", variant{})
		host.OK("DEL", "c1", variant{IPAM: subnet + `, "cooldown": 60`})
		host.Add("c2", variant{})
		Expect(os.WriteFile(host.Net("../.plumb/net/index"), []byte("x"), 0o600)).To(Succeed())
		host.Boot("next")
		host.OK("STATUS", "", variant{})
		Expect(filepath.Glob(host.Net("../.plumb/net/*"))).To(ConsistOf(host.addressFiles(), HaveSuffix("/releases")))
	})
})

var _ = Describe("a free address", func() {
	It("is found after many reserved ones, in a range of any size", func() {
		host := newTestHost()
		wide := variant{IPAM: `"subnet": "fd00::/64", "exclude": ["fd00::/120"], "cooldown": 60`}
		for i := range 2 * maxLookups {
			host.Put(fmt.Sprintf("fd00::%x", 0x100+i), fmt.Sprint("x", i, "\r\neth0"))
		}
		Expect(host.Add("c1", wide)).To(Equal(fmt.Sprintf("fd00::%x/64", 0x100+2*maxLookups)))
		host.OK("DEL", "c1", wide)
		host.Put("last_reserved_ip.0", "fd00::ffff:ffff:ffff:ffff")
		Expect(host.Add("c1", wide)).To(Equal(fmt.Sprintf("fd00::%x/64", 0x100+2*maxLookups+1)), "the released address cools down")
	})

	It("may come from an incomplete reservation, which a DEL that reads all reservations releases", func() {
		host := newTestHost()
		host.Add("c1", variant{})
		host.fillOther(600)
		host.Put("10.1.2.3", "")
		host.OK("DEL", "unknown", variant{})
		Expect(host.Net("10.1.2.3")).NotTo(BeAnExistingFile())
		Expect(host.Add("c2", variant{})).To(Equal("10.1.2.3/24"))
	})
})
