package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

// smallNetwork is a bridge network. BRIDGE and SUBNET are replaced; a /29 has five addresses
// for containers.
const smallNetwork = `{"type": "bridge", "bridge": "BRIDGE", "isGateway": true, "ipMasq": true,
	"ipam": {"type": "host-local", "dataDir": "DIR/leases", "subnet": "SUBNET"}}`

// withNetwork returns a lab for another network on the same node. The networks keep their
// files in the same folder.
func (l *lab) withNetwork(name, plugins string) *lab {
	GinkgoHelper()
	list, err := libcni.ConfListFromBytes([]byte(`{"cniVersion": "1.1.0", "name": "` + name + `", "plugins": [` +
		strings.ReplaceAll(plugins, "DIR", l.dir) + `]}`))
	Expect(err).NotTo(HaveOccurred())
	other := *l
	other.list = list
	return &other
}

// setRuntime replaces the node's runtime by one that uses the plugins in bin and the cached
// results in cache.
func (l *lab) setRuntime(bin, cache string) {
	l.cni = libcni.NewCNIConfigWithCacheDir([]string{bin}, cache, &inLab{RawExec: invoke.RawExec{Stderr: GinkgoWriter}, node: l.Node})
}

// attachAll attaches n new guests concurrently. It fails if two of them get the same address.
func (l *lab) attachAll(row, prefix string, n int) []*guest {
	GinkgoHelper()
	guests := make([]*guest, n)
	for i := range guests {
		guests[i] = l.guest(fmt.Sprint(prefix, i), 8000+i)
	}
	eachSurvives(row, n, func(i int) error { return l.add(guests[i]) })
	survives(row+": no address is allocated twice", func() error { return distinct(guests) })
	return guests
}

var _ = Describe("a reboot", func() {
	It("releases the reservations made before it, one network at a time, and none made after it", func() {
		m := newMachine()
		m.program("host-local")
		one := newLab(strings.NewReplacer("BRIDGE", "cni0", "SUBNET", "10.1.0.0/29").Replace(smallNetwork))
		cache := GinkgoTB().TempDir()
		one.setRuntime(filepath.Dir(m.program("bridge")), cache)
		two := one.withNetwork("two", strings.NewReplacer("BRIDGE", "cni1", "SUBNET", "10.2.0.0/29").Replace(smallNetwork))
		for boot := range slice(10, 1) {
			old := append(one.attachAll("reboot: ADDs before the reboot", fmt.Sprint("one-", boot, "-"), 5), two.attachAll("reboot: ADDs before the reboot", fmt.Sprint("two-", boot, "-"), 4)...)
			// A reservation of the reference plugin that plumb has not read before the reboot.
			theirs := filepath.Join(one.dir, "leases", "two", "10.2.0.6")
			Expect(os.WriteFile(theirs, []byte("theirs\r\neth0"), 0o600)).To(Succeed())

			m.reboot()
			one.Site = nstest.NewSite(GinkgoTB()) // a new node: a reboot removes all interfaces
			one.setRuntime(filepath.Dir(m.program("bridge")), cache)
			two.Site, two.cni = one.Site, one.cni
			for _, g := range old {
				g.Remove(GinkgoTB())
			}
			second := two.attachAll("reboot: ADDs to a pool that was full before", fmt.Sprint("new-two-", boot, "-"), 4)
			first := one.attachAll("reboot: ADDs to a pool that was full before", fmt.Sprint("new-one-", boot, "-"), 5)
			for i, g := range old {
				survives("reboot: late DEL of a container from before it", func() error { return []*lab{one, two}[i/5].del(g) })
			}
			for i, g := range append(first, second...) {
				survives("reboot: CHECK of containers attached after it", func() error { return []*lab{one, two}[i/5].check(g) })
			}
			survives("reboot: a reservation that plumb had not read is kept", func() error {
				return equal(len(reservations(filepath.Dir(theirs))), 5)
			})
			for i, g := range append(first, second...) {
				Expect([]*lab{one, two}[i/5].del(g)).To(Succeed())
			}
			Expect(os.Remove(theirs)).To(Succeed())
		}
	})

	It("is detected by the first call for a network, whatever its verb, and affects no other network", func() {
		for _, verb := range []string{"ADD", "GC", "STATUS", "CHECK", "DEL"}[:slice(5, 2)] {
			m, p := newMachine(), newPool()
			p.bin = m.program("host-local")
			other := *p
			other.name = "other"
			p.live(3)
			other.live(3)
			m.reboot()
			living := other.live(2)
			survives("reboot: first call is "+verb, func() error {
				err := p.do(verb, "live0", `"cni.dev/valid-attachments": [{"containerID": "live1", "ifname": "eth0"}]`)
				left := 0
				switch verb {
				case "ADD":
					left = 1
				case "CHECK":
					err = refused(err, 100, "no address is reserved")
				}
				return errors.Join(err, equal(len(p.taken()), left), equal(len(other.taken()), 2), other.do("CHECK", "live0"))
			})
			survives("reboot: concurrent ADDs allocate the whole pool", func() error {
				return errors.Join(p.do("DEL", "live0"), p.whole(nil), other.whole(living))
			})
		}
	})

	It("frees space on a full disk: each container that is added again gets an address and keeps it", func() {
		for what, s := range shortages {
			m, p := newMachine(), newPool()
			p.bin = m.program("host-local")
			tmpfs(p.dataDir, "nr_blocks=1000,nr_inodes=1000")
			n := slice(29, 13)
			p.live(n)
			s.leave(p.dataDir, 0)
			m.reboot()
			row := "reboot on a full disk (" + what + "): "
			eachSurvives(row+"ADD of the same container", n, func(i int) error {
				_, err := p.add(fmt.Sprint("live", i))
				return err
			})
			eachSurvives(row+"CHECK of the same container", n, func(i int) error { return p.do("CHECK", fmt.Sprint("live", i)) })
			survives(row+"each address is reserved once", func() error { return equal(len(p.taken()), n) })
			eachSurvives(row+"DEL of the same container", n, func(i int) error { return p.do("DEL", fmt.Sprint("live", i)) })
		}
	})

	It("releases no reservation if the boot ID is not known", func() {
		m, p := newMachine(), newPool()
		p.bin = m.program("host-local")
		living := p.live(5)
		Expect(os.WriteFile(filepath.Join(m.dir, "boot_id"), nil, 0o600)).To(Succeed())
		survives("boot_id empty: concurrent ADDs allocate the rest of the pool", func() error { return p.whole(living) })
		m.reboot()
		survives("boot_id restored: concurrent ADDs allocate the rest of the pool", func() error { return p.whole(living) })
	})
})
