package pool

import (
	"fmt"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("reading from outside", func() {
	It("returns the reservations of a network, and changes nothing", func() {
		host := newTestHost()
		host.Add("c2", variant{})
		host.Put("10.1.2.99", "legacy")
		host.Put("10.1.2.100", "")
		Expect(os.Remove(host.Net("lock"))).To(Succeed())
		host.Boot("next") // the next call releases what is there
		before := nstest.SnapshotDir(GinkgoTB(), host.DataDir)
		all, err := Reservations(host.DataDir, "net")
		Expect(err).NotTo(HaveOccurred())
		Expect(nstest.SnapshotDir(GinkgoTB(), host.DataDir)).To(Equal(before))
		var owners []string
		for _, r := range all {
			Expect(r.Path).To(Equal(host.Net(r.Addr.String())))
			Expect(r.Since).To(BeTemporally("~", time.Now(), time.Hour))
			owners = append(owners, r.Addr.String()+" "+r.ContainerID+"/"+r.IfName)
		}
		Expect(owners).To(Equal([]string{"10.1.2.2 c2/eth0", "10.1.2.99 legacy/", "10.1.2.100 /"}))
		Expect(Networks(host.DataDir)).To(Equal([]string{"net"}))
	})

	It("returns nothing if there is no directory, and creates none", func() {
		dir := GinkgoTB().TempDir() + "/none"
		Expect(Networks(dir)).To(BeEmpty())
		Expect(Reservations(dir, "net")).To(BeEmpty())
		Expect(dir).NotTo(BeADirectory())
	})

	It("returns the range sets of a configuration", func() {
		dir, sets, err := ParseIPAM([]byte(`{"type": "host-local", "dataDir": "/x", "ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]}`))
		Expect(err).NotTo(HaveOccurred())
		Expect(dir).To(Equal("/x"))
		Expect(fmt.Sprint(sets)).To(Equal("[{[10.1.2.1-10.1.2.254] [10.1.2.1/32]} {[fd00::1-fd00::ffff:ffff:ffff:ffff] [fd00::1/128]}]"))
	})

	It("returns the problems of invalid ranges", func() {
		_, _, err := ParseIPAM([]byte(`{"subnet": "10.1.2.3/24"}`))
		Expect(err).To(MatchError(ContainSubstring("Network has host bits set")))
		_, _, err = ParseIPAM([]byte(`[]`))
		Expect(err).To(HaveOccurred())
	})
})
