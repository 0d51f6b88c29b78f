package pool

import (
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/v2/test/nstest"
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
})
