package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/cnitest"
	"github.com/plumb-cni/plumb/test/nstest"
)

// smallNetwork is a bridge network with placeholders BRIDGE and SUBNET. A /29 contains five
// addresses for containers.
const smallNetwork = `{"type": "bridge", "bridge": "BRIDGE", "isGateway": true, "ipMasq": true,
	"ipam": {"type": "host-local", "dataDir": "DIR/leases", "subnet": "SUBNET"}}`

// withNetwork returns another network on the same host. The networks store their files in the same
// directory.
func (network *testNetwork) withNetwork(name, plugins string) *testNetwork {
	GinkgoHelper()
	other := *network.Network
	other.SetList("1.1.0", name, plugins)
	return &testNetwork{&other}
}

// attachAll adds n new containers concurrently. It fails if two of them get the same address.
func (network *testNetwork) attachAll(row, prefix string, n int) []*cnitest.Container {
	GinkgoHelper()
	containers := make([]*cnitest.Container, n)
	for i := range containers {
		containers[i] = newContainer(fmt.Sprint(prefix, i), 8000+i)
	}
	expectAllOK(row, n, func(i int) error { return network.Add(containers[i]) })
	expectOK(row+": no address is allocated twice", func() error { return checkDistinctAddresses(containers) })
	return containers
}

var _ = Describe("a reboot", func() {
	It("releases earlier reservations, one network at a time, but no later ones", func() {
		m := newMachine()
		m.program("host-local")
		one := newTestNetwork(strings.NewReplacer("BRIDGE", "cni0", "SUBNET", "10.1.0.0/29").Replace(smallNetwork))
		cache := GinkgoTB().TempDir()
		one.Use(filepath.Dir(m.program("bridge")), cache)
		two := one.withNetwork("two", strings.NewReplacer("BRIDGE", "cni1", "SUBNET", "10.2.0.0/29").Replace(smallNetwork))
		for boot := range fullOrCI(10, 1) {
			old := append(one.attachAll("reboot: ADDs before the reboot", fmt.Sprint("one-", boot, "-"), 5), two.attachAll("reboot: ADDs before the reboot", fmt.Sprint("two-", boot, "-"), 4)...)
			// This is a reservation of the reference plugin that plumb has not read before the
			// reboot.
			theirs := filepath.Join(one.Dir, "leases", "two", "10.2.0.6")
			Expect(os.WriteFile(theirs, []byte("theirs\r\neth0"), 0o600)).To(Succeed())

			m.reboot()
			one.Site = nstest.NewSite(GinkgoTB()) // a new host, because a reboot removes all interfaces
			one.Use(filepath.Dir(m.program("bridge")), cache)
			two.Site, two.CNI = one.Site, one.CNI
			for _, c := range old {
				c.Remove(GinkgoTB())
			}
			second := two.attachAll("reboot: ADDs to a pool that was full before", fmt.Sprint("new-two-", boot, "-"), 4)
			first := one.attachAll("reboot: ADDs to a pool that was full before", fmt.Sprint("new-one-", boot, "-"), 5)
			for i, c := range old {
				expectOK("reboot: late DEL of a container from before it", func() error { return []*testNetwork{one, two}[i/5].Del(c) })
			}
			for i, c := range append(first, second...) {
				expectOK("reboot: CHECK of containers attached after it", func() error { return []*testNetwork{one, two}[i/5].Check(c) })
			}
			expectOK("reboot: a reservation that plumb had not read is kept", func() error {
				return checkEqual(len(readReservations(filepath.Dir(theirs))), 5)
			})
			for i, c := range append(first, second...) {
				Expect([]*testNetwork{one, two}[i/5].Del(c)).To(Succeed())
			}
			Expect(os.Remove(theirs)).To(Succeed())
		}
	})

	It("frees space on a full disk, so that each container gets and keeps an address when it is added again", func() {
		for what, s := range shortages {
			m, p := newMachine(), newPool()
			p.bin = m.program("host-local")
			mountLimitedTmpfs(p.dataDir, "nr_blocks=1000,nr_inodes=1000")
			n := fullOrCI(29, 13)
			p.addContainers(n)
			s.limit(p.dataDir, 0)
			m.reboot()
			row := "reboot on a full disk (" + what + "): "
			expectAllOK(row+"ADD of the same container", n, func(i int) error {
				_, err := p.add(fmt.Sprint("live", i))
				return err
			})
			expectAllOK(row+"CHECK of the same container", n, func(i int) error { return p.do("CHECK", fmt.Sprint("live", i)) })
			expectOK(row+"each address is reserved once", func() error { return checkEqual(len(p.reservations()), n) })
			expectAllOK(row+"DEL of the same container", n, func(i int) error { return p.do("DEL", fmt.Sprint("live", i)) })
		}
	})

})
