package faults

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// bridgeAndTuning is a chain in which the plugins host-local and tuning write files.
const bridgeAndTuning = `
	{"type": "bridge", "isGateway": true, "ipMasq": true, "ipam": {"type": "host-local", "dataDir": "DIR/leases", "subnet": "10.1.0.0/16"}},
	{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}`

func newContainers(n int) []*cnitest.Container {
	GinkgoHelper()
	all := make([]*cnitest.Container, n)
	for i := range all {
		all[i] = newContainer(fmt.Sprint("g", i), 8000+i)
	}
	return all
}

// concurrentADDs is the number of concurrent ADDs during a fault.
const concurrentADDs = 16

// A fileSystemFault causes an error with the text for all writes to a tmpfs, from begin to end.
type fileSystemFault struct {
	text       string
	begin, end func(dir string)
}

var fileSystemFaults = map[string]fileSystemFault{
	"no free blocks": {"no space left on device", func(dir string) { shortages["blocks"].limit(dir, 0) }, shortages["blocks"].lift},
	"no free inodes": {"no space left on device", func(dir string) { shortages["inodes"].limit(dir, 0) }, shortages["inodes"].lift},
	"read-only":      {"read-only file system", func(dir string) { remount(dir, "ro") }, func(dir string) { remount(dir, "nr_blocks=1000") }},
}

var _ = Describe("on a file system", func() {
	for _, what := range sortedKeys(fileSystemFaults) {
		fault := fileSystemFaults[what]
		It("with "+what+", a failed ADD leaves nothing, CHECK and DEL do all that is possible, and later ADDs succeed", func() {
			network := newTestNetwork(bridgeAndTuning)
			mountLimitedTmpfs(network.Dir, "nr_blocks=1000,nr_inodes=1000")
			existing := network.addContainer("existing", 7000)
			containers := newContainers(concurrentADDs)
			before := nstest.WaitStable(network.stableState)
			fault.begin(network.Dir)
			row := what + ": "
			expectAllOK(row+"bridge ADD, 16 concurrent", concurrentADDs, func(i int) error {
				return checkError(network.Add(containers[i]), types.CodeIO, fault.text, network.Dir+"/leases/net1/")
			})
			expectOK(row+"host and files as before", func() error { return waitUnchanged(before, network.stableState) })
			expectAllOK(row+"bridge DEL after a failed ADD", concurrentADDs, func(i int) error { return network.Del(containers[i]) })
			expectOK(row+"host and files as before", func() error { return waitUnchanged(before, network.stableState) })
			expectOK(row+"CHECK of an attached container", func() error { return network.Check(existing) })
			expectOK(row+"STATUS", func() error { return checkError(network.Status(), types.CodeNotAvailable, fault.text) })
			expectOK(row+"DEL of an attached container, twice", func() error {
				if what == "read-only" {
					return errors.Join(checkError(network.Del(existing), types.CodeIO, fault.text), checkError(network.Del(existing), types.CodeIO, fault.text),
						checkEqual(len(readReservations(network.Dir+"/leases/net1")), 1))
				}
				return errors.Join(network.Del(existing), network.Del(existing))
			})
			fault.end(network.Dir)
			expectOK(row+"DEL afterwards leaves nothing", func() error {
				return errors.Join(network.Del(existing), checkEmpty(network.Dir+"/leases/net1", "lock", "last_reserved_ip.0"), checkEmpty(network.Dir+"/tuning"))
			})
			expectAllOK(row+"bridge ADD afterwards", concurrentADDs, func(i int) error { return network.Add(containers[i]) })
			expectOK(row+"no address is allocated twice", func() error { return checkDistinctAddresses(containers) })
			for _, c := range containers {
				Expect(network.Del(c)).To(Succeed())
			}
		})
	}

	// The first ADD creates the directory, the lock, the reservation, the cursor and the files in .plumb. DEL records the
	// address.
	for _, resource := range sortedKeys(shortages) {
		It("without free "+resource+" during an ADD, the ADD leaves nothing", func() {
			s, p := shortages[resource], newPool()
			p.ipam += `, "cooldown": 30`
			p.makeSticky()
			mountLimitedTmpfs(p.dataDir, "nr_blocks=1000,nr_inodes=1000")
			for free := range 12 {
				Expect(os.RemoveAll(p.reservationDir())).To(Succeed())
				Expect(os.RemoveAll(filepath.Dir(p.plumbDir()))).To(Succeed())
				s.limit(p.dataDir, free)
				expectOK("no free "+resource+": host-local ADD with little space", func() error { return p.addWithLittleSpace(s) })
			}
		})
	}
})

// addWithLittleSpace calls ADD, which may fail, and DEL. It then lifts the limit and calls ADD,
// CHECK and DEL, which must succeed. It checks that each DEL leaves no reservation.
func (p *pool) addWithLittleSpace(s shortage) error {
	_, err := p.add("c1")
	if err != nil {
		err = checkError(err, types.CodeIO, "no space left on device")
		err = errors.Join(err, checkEqual(len(p.reservations()), 0), checkNoTemporaryFiles(p.dataDir))
	}
	err = errors.Join(err, p.do("DEL", "c1"), checkEqual(len(p.reservations()), 0), checkNoTemporaryFiles(p.dataDir))
	s.lift(p.dataDir)
	_, addErr := p.add("c2")
	return errors.Join(err, addErr, p.do("CHECK", "c2"), p.do("DEL", "c2"), checkEqual(len(p.reservations()), 0))
}

// checkNoTemporaryFiles checks that there are no files with temporary names in the directory.
func checkNoTemporaryFiles(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if name := filepath.Base(path); err == nil && (name == "new" || strings.HasSuffix(name, ".new") || strings.Contains(name, "~")) {
			err = fmt.Errorf("temporary file %s was not removed", path)
		}
		return err
	})
}

// checkEmpty checks that the directory contains no files except the named ones.
func checkEmpty(dir string, except ...string) error {
	files, err := os.ReadDir(dir)
	for _, f := range files {
		if !strings.Contains(strings.Join(except, " ")+" ", f.Name()+" ") {
			err = errors.Join(err, fmt.Errorf("%s/%s was not removed", dir, f.Name()))
		}
	}
	return err
}

// checkEqual returns an error if got is not want.
func checkEqual[T comparable](got, want T) error {
	if got != want {
		return fmt.Errorf("want %v, got %v", want, got)
	}
	return nil
}

// checkDistinctAddresses checks that no two containers got the same address.
func checkDistinctAddresses(containers []*cnitest.Container) error {
	var errs []error
	owner := map[string]string{}
	for _, c := range containers {
		for _, addr := range c.Addrs() {
			if owner[addr] != "" {
				errs = append(errs, fmt.Errorf("%s was allocated to %s and %s", addr, owner[addr], c.RT.ContainerID))
			}
			owner[addr] = c.RT.ContainerID
		}
	}
	return errors.Join(errs...)
}

// hostState returns the state of the host, without files.
func (network *testNetwork) hostState() string {
	return emptyFormerSet.ReplaceAllString(nstest.Snapshot(GinkgoTB(), network.Host), "")
}

// emptyFormerSet matches an empty nftables set of former owners, which all attachments share and no
// DEL deletes.
var emptyFormerSet = regexp.MustCompile(`(?m)^.*nft *\n.*nft (map|set) \S+-former \{\n.*nft type .*\n.*nft \}\n`)

var _ = Describe("after the deletion of the directory of reservations", func() {
	It("during 16 concurrent ADDs, DEL restores the host, whether or not ADD succeeded", func() {
		network := newTestNetwork(bridgeAndTuning)
		existing := network.addContainer("existing", 7000)
		Expect(network.Del(existing)).To(Succeed())
		before := nstest.WaitStable(network.hostState)
		for range fullOrCI(10, 1) {
			containers := newContainers(concurrentADDs)
			stop := repeatInBackground(func() { _ = os.RemoveAll(network.Dir + "/leases") })
			expectAllOK("directory deleted: bridge ADD, 16 concurrent", concurrentADDs, func(i int) error {
				err := network.Add(containers[i])
				if err != nil {
					return checkError(err, types.CodeIO, network.Dir+"/leases")
				}
				return nil
			})
			stop()
			expectAllOK("directory deleted: bridge DEL, 16 concurrent", concurrentADDs, func(i int) error { return network.Del(containers[i]) })
			expectOK("directory deleted: host as before, no reservation left", func() error {
				return errors.Join(waitUnchanged(before, network.hostState), checkEqual(len(readReservations(network.Dir+"/leases/net1")), 0))
			})
		}
	})

})

// repeatInBackground calls f repeatedly until stop is called.
func repeatInBackground(f func()) (stop func()) {
	done := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				f()
			}
		}
	})
	return func() { close(done); all.Wait() }
}

// damages maps names to ways to damage a directory of address files in .plumb.
var damages = map[string]func(dir string){
	"deleted":                 func(dir string) { _ = os.RemoveAll(dir) },
	"deleted with its parent": func(dir string) { _ = os.RemoveAll(filepath.Dir(dir)) },
	"empty": func(dir string) {
		eachFile(dir, func(path string) { _ = os.Truncate(path, 0) })
	},
	"corrupted": func(dir string) {
		eachFile(dir, func(path string) {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err == nil {
				_, _ = f.WriteAt([]byte{byte(rand.Uint32()), byte(rand.Uint32())}, rand.Int64N(40))
				_ = f.Close()
			}
		})
	},
	"zeros": func(dir string) {
		eachFile(dir, func(path string) { _ = os.WriteFile(path, make([]byte, 40), 0o600) })
	},
}

func eachFile(dir string, f func(path string)) {
	files, _ := os.ReadDir(dir)
	for _, e := range files {
		f(filepath.Join(dir, e.Name()))
	}
}

var _ = Describe("with address files in .plumb", func() {
	for _, name := range sortedKeys(damages) {
		f := damages[name]
		It(name+" before and during ADDs, each address is allocated once", func() {
			p := newPool()
			Expect(p.add("early")).Error().NotTo(HaveOccurred())
			dirs, err := filepath.Glob(filepath.Join(p.plumbDir(), "*-*"))
			Expect(err).NotTo(HaveOccurred())
			Expect(dirs).To(HaveLen(1))
			dir := dirs[0]
			Expect(p.do("DEL", "early")).To(Succeed())
			existing := p.addContainers(3)
			for range fullOrCI(10, 1) {
				f(dir)
				expectOK("address files "+name+": concurrent ADDs allocate the whole pool", func() error { return p.checkAllocation(existing) })
				stop := repeatInBackground(func() { f(dir) })
				expectOK("address files "+name+" during ADDs: concurrent ADDs allocate the whole pool", func() error { return p.checkAllocation(existing) })
				stop()
				for id := range existing {
					expectOK("address files "+name+": CHECK of an attached container", func() error { return p.do("CHECK", id) })
				}
			}
		})
	}
})

// A restoredState says which reservations and address files exist after a power failure or the
// restore of a backup. The values are "old", "new", "empty" for files without content, and "deleted"
// for no files.
type restoredState struct{ reservations, plumbFiles string }

var _ = Describe("after a power failure or the restore of a backup", func() {
	states := []string{"old", "new", "empty", "deleted"}
	for b, boot := range []string{"the same boot", "another boot"} {
		for i, reservations := range states {
			for j, plumbFiles := range states {
				if !nstest.AllFaults() && (i+j+b)%4 != 1 {
					continue
				}
				It(fmt.Sprintf("with reservations %s and address files %s in %s, each address is allocated once", reservations, plumbFiles, boot), func() {
					p := newPool()
					m := newMachine()
					p.bin = m.program("host-local")
					checkAfterRestore(p, m, restoredState{reservations, plumbFiles}, boot)
				})
			}
		}
	}
})

// checkAfterRestore restores reservations and address files of different times, and checks that each
// address is allocated once. In the same boot, after the restore of a backup, the containers with a
// reservation still run. After another boot, no container runs, and GC releases the reservations
// without an address file.
func checkAfterRestore(p *pool, m *machine, state restoredState, boot string) {
	GinkgoHelper()
	p.addContainers(5)
	old := copyOf(p.dataDir)
	for i := range 3 {
		Expect(p.do("DEL", fmt.Sprint("live", i))).To(Succeed())
		Expect(p.add(fmt.Sprint("later", i))).Error().NotTo(HaveOccurred())
	}
	now := copyOf(p.dataDir)
	restoreDir(p.reservationDir(), state.reservations, filepath.Join(old, p.name), filepath.Join(now, p.name))
	restoreDir(p.plumbDir(), state.plumbFiles, filepath.Join(old, ".plumb", p.name), filepath.Join(now, ".plumb", p.name))
	if boot == "another boot" {
		m.reboot()
		expectOK("power failure: concurrent ADDs after it", func() error { return p.addConcurrently() })
		expectOK("power failure: concurrent ADDs allocate the whole pool after GC", func() error { return errors.Join(p.gc(), p.checkAllocation(nil)) })
		return
	}
	existing := map[string]netip.Addr{}
	for ip, id := range p.reservations() {
		if id != "" {
			existing[id] = ip
		}
	}
	expectOK("older files restored: concurrent ADDs allocate the whole pool", func() error { return p.checkAllocation(existing) })
}

// addConcurrently checks that concurrent ADDs allocate different addresses, and that each
// reservation still exists after the last ADD.
func (p *pool) addConcurrently() error {
	const n = 8
	got := make([]netip.Addr, n)
	errs := concurrently(n, func(i int) (err error) {
		got[i], err = p.add(fmt.Sprint("fresh", i))
		return err
	})
	taken := p.reservations()
	for i, ip := range got {
		errs = append(errs, checkEqual(taken[ip], fmt.Sprint("fresh", i)), p.do("CHECK", fmt.Sprint("fresh", i)))
	}
	return errors.Join(errs...)
}

func copyOf(dir string) string {
	GinkgoHelper()
	to := filepath.Join(GinkgoTB().TempDir(), "copy")
	out, err := exec.Command("cp", "-a", dir, to).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	return to
}

// restoreDir replaces a directory with its old or new copy, empties its files, or deletes it.
func restoreDir(dir, state, old, now string) {
	GinkgoHelper()
	Expect(os.RemoveAll(dir)).To(Succeed())
	if state == "deleted" {
		return
	}
	from := now
	if state == "old" {
		from = old
	}
	out, err := exec.Command("cp", "-a", from, dir).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	if state == "empty" {
		Expect(filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			return os.Truncate(path, 0)
		})).To(Succeed())
	}
}

var _ = Describe("with tuning's state files", func() {
	var (
		network  *testNetwork
		existing *cnitest.Container
		before   string
	)
	BeforeEach(func() {
		network = newTestNetwork(bridgeAndTuning)
		mountLimitedTmpfs(network.Dir+"/tuning", "nr_blocks=1000,nr_inodes=1000")
		existing = network.addContainer("existing", 7000)
		Expect(network.Del(existing)).To(Succeed()) // creates the objects that containers share
		before = nstest.WaitStable(network.hostState)
		existing = network.addContainer("existing", 7000)
	})
	checkClean := func() error {
		return errors.Join(waitUnchanged(before, network.hostState), checkEmpty(network.Dir+"/tuning", ".used"), checkEqual(len(readReservations(network.Dir+"/leases/net1")), 0))
	}

	It("on a full or read-only file system, ADD fails and leaves nothing", func() {
		containers := newContainers(4)
		for _, what := range sortedKeys(fileSystemFaults) { // read-only is the last fault
			fault := fileSystemFaults[what]
			fault.begin(network.Dir + "/tuning")
			expectAllOK("tuning: "+what+": concurrent ADDs", len(containers), func(i int) error {
				return checkError(network.Add(containers[i]), types.CodeIO, network.Dir+"/tuning/", fault.text)
			})
			expectAllOK("tuning: "+what+": DEL after a failed ADD", len(containers), func(i int) error { return network.Del(containers[i]) })
			if what != "read-only" {
				fault.end(network.Dir + "/tuning")
			}
		}
		expectOK("tuning: read-only: CHECK of an attached container", func() error { return network.Check(existing) })
		expectOK("tuning: read-only: DEL of an attached container", func() error { return checkError(network.Del(existing), types.CodeIO, "read-only file system") })
		remount(network.Dir+"/tuning", "nr_blocks=1000")
		expectOK("tuning: read-only: DEL after it is writable, nothing left", func() error { return errors.Join(network.Del(existing), checkClean()) })
	})

	It("on a full file system, DEL restores the settings and deletes the file", func() {
		shortages["blocks"].limit(network.Dir+"/tuning", 0)
		expectOK("tuning: no free blocks: DEL of an attached container", func() error { return errors.Join(network.Del(existing), checkClean()) })
	})
})
