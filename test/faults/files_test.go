package faults

import (
	"bufio"
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

	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

// bridgeAndTuning is a chain in which two plugins write files: host-local and tuning.
const bridgeAndTuning = `
	{"type": "bridge", "isGateway": true, "ipMasq": true, "ipam": {"type": "host-local", "dataDir": "DIR/leases", "subnet": "10.1.0.0/16"}},
	{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}`

// newContainers returns n new containers that are not attached.
func (network *testNetwork) newContainers(n int) []*container {
	GinkgoHelper()
	all := make([]*container, n)
	for i := range all {
		all[i] = network.newContainer(fmt.Sprint("g", i), 8000+i)
	}
	return all
}

// concurrentADDs is the number of concurrent ADDs during a fault.
const concurrentADDs = 16

var _ = Describe("a full file system", func() {
	for _, resource := range sortedKeys(shortages) {
		s := shortages[resource]
		It("without free "+resource+": ADD fails and leaves nothing, CHECK and DEL work, and ADD works again after it has space", func() {
			network := newTestNetwork(bridgeAndTuning)
			mountLimitedTmpfs(network.dir, "nr_blocks=1000,nr_inodes=1000")
			existing := network.addContainer("existing", 7000)
			containers := network.newContainers(concurrentADDs)
			before := nstest.WaitStable(network.stableState)
			s.limit(network.dir, 0)
			row := "no free " + resource + ": "
			expectAllOK(row+"bridge ADD, 16 concurrent", concurrentADDs, func(i int) error {
				return checkError(network.add(containers[i]), types.CodeIO, "no space left on device", network.dir+"/leases/net1/")
			})
			expectOK(row+"node and files as before", func() error { return waitUnchanged(before, network.stableState) })
			expectAllOK(row+"bridge DEL after a failed ADD", concurrentADDs, func(i int) error { return network.del(containers[i]) })
			expectOK(row+"node and files as before", func() error { return waitUnchanged(before, network.stableState) })
			expectOK(row+"CHECK of an attached container", func() error { return network.check(existing) })
			expectOK(row+"STATUS", func() error { return checkError(network.status(), types.CodeNotAvailable, "no space left on device") })
			expectOK(row+"DEL of an attached container", func() error {
				return errors.Join(network.del(existing), checkEmpty(network.dir+"/leases/net1", "lock", "last_reserved_ip.0"), checkEmpty(network.dir+"/tuning"))
			})
			s.lift(network.dir)
			expectAllOK(row+"bridge ADD after it has space", concurrentADDs, func(i int) error { return network.add(containers[i]) })
			expectOK(row+"no address is allocated twice", func() error { return checkDistinctAddresses(containers) })
			for _, c := range containers {
				Expect(network.del(c)).To(Succeed())
			}
		})

		// The first ADD makes folder, lock, reservation, cursor and the files in .plumb.
		It("that has no more free "+resource+" during an ADD: the ADD leaves nothing", func() {
			p := newPool()
			p.ipam += `, "cooldown": 30`
			mountLimitedTmpfs(p.dataDir, "nr_blocks=1000,nr_inodes=1000")
			for free := range 12 {
				Expect(os.RemoveAll(p.reservationDir())).To(Succeed())
				Expect(os.RemoveAll(filepath.Dir(p.plumbDir()))).To(Succeed())
				s.limit(p.dataDir, free)
				expectOK("no free "+resource+": host-local ADD with little space", func() error { return p.addWithLittleSpace(s) })
			}
		})
	}

	It("does not prevent DEL and GC with cooldown from releasing addresses", func() {
		for resource, s := range shortages {
			p := newPool()
			p.ipam += `, "cooldown": 30`
			mountLimitedTmpfs(p.dataDir, "nr_blocks=1000,nr_inodes=1000")
			p.addContainers(8)
			s.limit(p.dataDir, 0)
			expectAllOK("no free "+resource+": host-local DEL with cooldown", 4, func(i int) error {
				return p.do("DEL", fmt.Sprint("live", i))
			})
			expectOK("no free "+resource+": host-local GC with cooldown", func() error {
				return errors.Join(p.gc("live7"), checkEqual(len(p.reservations()), 1))
			})
		}
	})
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

// checkNoTemporaryFiles checks that there are no files with temporary names in the folder.
func checkNoTemporaryFiles(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if name := filepath.Base(path); err == nil && (name == "new" || strings.HasSuffix(name, ".new") || strings.Contains(name, "~")) {
			err = fmt.Errorf("temporary file %s was not removed", path)
		}
		return err
	})
}

// checkEmpty checks that the folder has no files except those named.
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
		return fmt.Errorf("got %v, want %v", got, want)
	}
	return nil
}

// checkDistinctAddresses checks that no address was allocated to two containers.
func checkDistinctAddresses(containers []*container) error {
	var errs []error
	owner := map[string]string{}
	for _, c := range containers {
		for _, ip := range c.result.IPs {
			addr := ip.Address.IP.String()
			if owner[addr] != "" {
				errs = append(errs, fmt.Errorf("%s was allocated to %s and %s", addr, owner[addr], c.rt.ContainerID))
			}
			owner[addr] = c.rt.ContainerID
		}
	}
	return errors.Join(errs...)
}

var _ = Describe("a read-only file system", func() {
	It("makes ADD fail and leave nothing, and DEL fail until it is writable", func() {
		network := newTestNetwork(bridgeAndTuning)
		mountLimitedTmpfs(network.dir, "nr_blocks=1000")
		existing := network.addContainer("existing", 7000)
		containers := network.newContainers(concurrentADDs)
		before := nstest.WaitStable(network.stableState)
		remount(network.dir, "ro")
		expectAllOK("read-only: bridge ADD, 16 concurrent", concurrentADDs, func(i int) error {
			return checkError(network.add(containers[i]), types.CodeIO, "read-only file system", network.dir+"/leases/net1/")
		})
		expectOK("read-only: node and files as before", func() error { return waitUnchanged(before, network.stableState) })
		expectAllOK("read-only: bridge DEL after a failed ADD", concurrentADDs, func(i int) error { return network.del(containers[i]) })
		expectOK("read-only: node and files as before", func() error { return waitUnchanged(before, network.stableState) })
		expectOK("read-only: CHECK of an attached container", func() error { return network.check(existing) })
		expectOK("read-only: STATUS", func() error { return checkError(network.status(), types.CodeNotAvailable, "read-only file system") })
		expectOK("read-only: DEL of an attached container, twice", func() error {
			return errors.Join(
				checkError(network.del(existing), types.CodeIO, "read-only file system"),
				checkError(network.del(existing), types.CodeIO, "read-only file system"),
				checkEqual(len(readReservations(network.dir+"/leases/net1")), 1))
		})
		remount(network.dir, "nr_blocks=1000")
		expectOK("read-only: DEL after it is writable", func() error {
			return errors.Join(network.del(existing), checkEmpty(network.dir+"/leases/net1", "lock", "last_reserved_ip.0"), checkEmpty(network.dir+"/tuning"))
		})
	})
})

// nodeState returns the state of the node, without files.
func (network *testNetwork) nodeState() string {
	return emptyFormerSet.ReplaceAllString(nstest.Snapshot(GinkgoTB(), network.Node), "")
}

// emptyFormerSet matches an empty nftables set of former owners. All attachments share the
// set, and no DEL deletes it.
var emptyFormerSet = regexp.MustCompile(`(?m)^.*nft *\n.*nft (map|set) \S+-former \{\n.*nft type .*\n.*nft \}\n`)

// A lockHolder is a process that holds a lock.
type lockHolder struct {
	cmd *exec.Cmd
	in  *os.File
}

// holdLock starts a process that locks the file.
func holdLock(path string) *lockHolder {
	GinkgoHelper()
	read, write, err := os.Pipe()
	Expect(err).NotTo(HaveOccurred())
	h := &lockHolder{cmd: exec.Command("flock", path, "sh", "-c", "echo held; read line"), in: write}
	h.cmd.Stdin = read
	out, err := h.cmd.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(h.cmd.Start()).To(Succeed())
	Expect(read.Close()).To(Succeed())
	DeferCleanup(h.release)
	Expect(bufio.NewReader(out).ReadString('\n')).To(Equal("held\n"))
	return h
}

func (h *lockHolder) release() {
	if h.in.Close() == nil {
		_ = h.cmd.Wait()
	}
}

var _ = Describe("a lock that another process does not release", func() {
	It("makes calls fail after a time limit with an error that names the process", func() {
		network := newTestNetwork(bridgeAndTuning)
		existing := network.addContainer("existing", 7000)
		before := nstest.WaitStable(network.nodeState)
		toDelete := network.addContainer("to-delete", 7001)
		h := holdLock(network.dir + "/leases/net1/lock")
		text := fmt.Sprintf("held by process %d (flock)", h.cmd.Process.Pid)
		containers := network.newContainers(4)
		calls := []struct {
			row string
			do  func() error
		}{
			{"bridge CHECK", func() error { return checkError(network.check(existing), types.CodeTryAgain, text) }},
			{"bridge DEL", func() error { return checkError(network.del(toDelete), types.CodeTryAgain, text) }},
			{"STATUS", func() error { return checkError(network.status(), types.CodeNotAvailable, text) }},
		}
		for _, c := range containers {
			calls = append(calls, struct {
				row string
				do  func() error
			}{"bridge ADD", func() error { return checkError(network.add(c), types.CodeTryAgain, text) }})
		}
		errs := concurrently(len(calls), func(i int) error { return calls[i].do() }) // because each call waits until its time limit
		for i, err := range errs {
			expectOK("lock held: "+calls[i].row, func() error { return err })
		}
		h.release()
		expectOK("lock held: DEL after it is released, and node as before", func() error {
			return errors.Join(network.del(toDelete), network.check(existing), waitUnchanged(before, network.nodeState), checkEqual(len(readReservations(network.dir+"/leases/net1")), 1))
		})
	})

	It("is acquired by all waiting processes after its release", func() {
		p := newPool()
		p.addContainers(1)
		h := holdLock(p.reservationDir() + "/lock")
		waiting := make(chan []error)
		go func() {
			waiting <- concurrently(8, func(i int) error {
				_, err := p.add(fmt.Sprint("waits", i))
				return err
			})
		}()
		Eventually(func() int { return lockWaiters(p.reservationDir() + "/lock") }).Should(BeNumerically(">=", 8))
		h.release()
		for _, err := range <-waiting {
			expectOK("lock held: host-local ADD that waits", func() error { return err })
		}
		expectOK("lock held: each address is allocated once", func() error { return checkEqual(len(p.reservations()), 9) })
	})
})

// lockWaiters returns the number of processes that wait for the lock, from /proc/locks.
func lockWaiters(path string) int {
	info, err := os.Stat(path)
	Expect(err).NotTo(HaveOccurred())
	list, err := os.ReadFile("/proc/locks")
	Expect(err).NotTo(HaveOccurred())
	n := 0
	for line := range strings.Lines(string(list)) {
		if strings.Contains(line, "-> FLOCK") && strings.Contains(line, fmt.Sprintf(":%d ", inodeOf(info))) {
			n++
		}
	}
	return n
}

// incompleteReservations are contents that a crash or a power failure can leave in a reservation.
var incompleteReservations = []string{
	"", "\x00", strings.Repeat("\x00", 12), strings.Repeat("\x00", 4096), "\r\n", "live0\r\neth0\x00\x00\x00", "\xff\xfe\x00l", "live0\r\neth0\r\neth1",
}

var _ = Describe("incomplete reservations", func() {
	It("are released, and no others", func() {
		p := newPool()
		existing := p.addContainers(3)
		for i, content := range incompleteReservations {
			name := fmt.Sprint("10.1.2.", 5+i)
			Expect(os.WriteFile(filepath.Join(p.reservationDir(), name), []byte(content), 0o600)).To(Succeed())
			expectOK("reservation incomplete: concurrent ADDs allocate the whole pool", func() error { return p.checkAllocation(existing) })
		}
		for i := range incompleteReservations { // all of them
			Expect(os.WriteFile(filepath.Join(p.reservationDir(), fmt.Sprint("10.1.2.", 5+i)), []byte(incompleteReservations[i]), 0o600)).To(Succeed())
		}
		expectOK("reservation incomplete: concurrent ADDs allocate the whole pool", func() error { return p.checkAllocation(existing) })
	})

	It("of any length are released by DEL and GC", func() {
		p := newPool()
		existing := p.addContainers(3)
		complete := "victim\r\neth0"
		for n := range len(complete) {
			Expect(os.WriteFile(filepath.Join(p.reservationDir(), "10.1.2.12"), []byte(complete[:n]), 0o600)).To(Succeed())
			expectOK("reservation cut off: DEL and GC", func() error {
				return errors.Join(p.do("DEL", "victim"), p.gc(sortedKeys(existing)...), p.checkAllocation(existing))
			})
		}
	})

	It("of attached containers do not affect other containers", func() {
		p := newPool()
		existing := p.addContainers(8)
		for i := range 4 {
			id := fmt.Sprint("live", i)
			Expect(os.Truncate(filepath.Join(p.reservationDir(), existing[id].String()), 0)).To(Succeed())
			expectOK("reservation emptied: CHECK fails, DEL succeeds", func() error {
				return errors.Join(checkError(p.do("CHECK", id), 100, "no address is reserved"), p.do("DEL", id))
			})
			delete(existing, id)
		}
		expectOK("reservation incomplete: concurrent ADDs allocate the whole pool", func() error { return p.checkAllocation(existing) })
	})
})

var _ = Describe("a folder of reservations that is deleted", func() {
	It("during 16 concurrent ADDs: DEL restores the node, whether or not ADD succeeded", func() {
		network := newTestNetwork(bridgeAndTuning)
		existing := network.addContainer("existing", 7000)
		Expect(network.del(existing)).To(Succeed())
		before := nstest.WaitStable(network.nodeState)
		for range fullOrCI(10, 1) {
			containers := network.newContainers(concurrentADDs)
			stop := repeatInBackground(func() { _ = os.RemoveAll(network.dir + "/leases") })
			expectAllOK("folder deleted: bridge ADD, 16 concurrent", concurrentADDs, func(i int) error {
				err := network.add(containers[i])
				if err != nil {
					return checkError(err, types.CodeIO, network.dir+"/leases")
				}
				return nil
			})
			stop()
			expectAllOK("folder deleted: bridge DEL, 16 concurrent", concurrentADDs, func(i int) error { return network.del(containers[i]) })
			expectOK("folder deleted: node as before, no reservation left", func() error {
				return errors.Join(waitUnchanged(before, network.nodeState), checkEqual(len(readReservations(network.dir+"/leases/net1")), 0))
			})
		}
	})

	It("makes CHECK fail, and the whole pool is allocated again", func() {
		for _, what := range []string{"networks", "networks/pool", "networks/.plumb"} {
			p := newPool()
			existing := p.addContainers(5)
			Expect(os.RemoveAll(filepath.Join(filepath.Dir(p.dataDir), what))).To(Succeed())
			if what == "networks/.plumb" { // without .plumb, all reservations still exist
				expectOK("folder deleted: concurrent ADDs allocate the whole pool", func() error { return p.checkAllocation(existing) })
				continue
			}
			expectOK("folder deleted: CHECK and DEL of an attached container", func() error {
				return errors.Join(checkError(p.do("CHECK", "live0"), 100, "no address is reserved"), p.do("DEL", "live0"))
			})
			expectOK("folder deleted: concurrent ADDs allocate the whole pool", func() error { return p.checkAllocation(nil) })
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

// damages are the ways to damage a directory of hints in .plumb.
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

var _ = Describe("damaged hints in .plumb", func() {
	for _, name := range sortedKeys(damages) {
		f := damages[name]
		It(name+", before and during ADDs: each address is allocated once", func() {
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
				expectOK("hints "+name+": concurrent ADDs allocate the whole pool", func() error { return p.checkAllocation(existing) })
				stop := repeatInBackground(func() { f(dir) })
				expectOK("hints "+name+" during ADDs: concurrent ADDs allocate the whole pool", func() error { return p.checkAllocation(existing) })
				stop()
				for id := range existing {
					expectOK("hints "+name+": CHECK of an attached container", func() error { return p.do("CHECK", id) })
				}
			}
		})
	}
})

// A restoredState says which reservations and hints exist after a power failure or
// the restore of a backup: "old", "new", "empty" (files without content) or "deleted" (none).
type restoredState struct{ reservations, plumbFiles string }

var _ = Describe("files after a power failure or the restore of a backup", func() {
	states := []string{"old", "new", "empty", "deleted"}
	for b, boot := range []string{"the same boot", "another boot"} {
		for i, reservations := range states {
			for j, plumbFiles := range states {
				if !allFaults() && (i+j+b)%4 != 1 {
					continue
				}
				It(fmt.Sprintf("reservations %s, hints %s, %s: each address is allocated once", reservations, plumbFiles, boot), func() {
					p := newPool()
					m := newMachine()
					p.bin = m.program("host-local")
					checkAfterRestore(p, m, restoredState{reservations, plumbFiles}, boot)
				})
			}
		}
	}
})

// checkAfterRestore restores reservations and hints of different times, and checks
// that each address is allocated once. In the same boot (a backup was restored), the containers
// with a reservation still run. After another boot, no container runs, and GC releases the
// reservations without a hint.
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
// container still has its reservation after the last ADD.
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

// copyOf returns the path of a copy of the folder.
func copyOf(dir string) string {
	GinkgoHelper()
	to := filepath.Join(GinkgoTB().TempDir(), "copy")
	out, err := exec.Command("cp", "-a", dir, to).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	return to
}

// restoreDir replaces a folder by its old or new copy, with or without content, or deletes it.
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

// damagedStates are contents of a damaged state file of tuning.
var damagedStates = map[string]string{
	"deleted": "", "empty": "", "cut off": `{"mtu": 15`, "zeros": strings.Repeat("\x00", 80), "not an object": "[1]", "with wrong types": `{"mtu": "x", "sysctl": 7}`,
	"with an invalid sysctl": `{"sysctl": {"net/../kernel/hostname": "x"}}`,
}

var _ = Describe("the state files of tuning", func() {
	var (
		network  *testNetwork
		existing *container
		before   string
	)
	BeforeEach(func() {
		network = newTestNetwork(bridgeAndTuning)
		mountLimitedTmpfs(network.dir+"/tuning", "nr_blocks=1000,nr_inodes=1000")
		existing = network.addContainer("existing", 7000)
		Expect(network.del(existing)).To(Succeed()) // the objects that containers share exist from here on
		before = nstest.WaitStable(network.nodeState)
		existing = network.addContainer("existing", 7000)
	})
	checkClean := func() error {
		return errors.Join(waitUnchanged(before, network.nodeState), checkEmpty(network.dir+"/tuning", ".used"), checkEqual(len(readReservations(network.dir+"/leases/net1")), 0))
	}

	It("on a full or read-only file system: ADD fails and leaves nothing", func() {
		containers := network.newContainers(4)
		for resource, s := range shortages {
			s.limit(network.dir+"/tuning", 0)
			expectAllOK("tuning: no free "+resource+": concurrent ADDs", len(containers), func(i int) error {
				return checkError(network.add(containers[i]), types.CodeIO, network.dir+"/tuning/", "no space left on device")
			})
			expectAllOK("tuning: no free "+resource+": DEL after a failed ADD", len(containers), func(i int) error { return network.del(containers[i]) })
			s.lift(network.dir + "/tuning")
		}
		remount(network.dir+"/tuning", "ro")
		expectAllOK("tuning: read-only: concurrent ADDs", len(containers), func(i int) error {
			return checkError(network.add(containers[i]), types.CodeIO, "read-only file system")
		})
		expectAllOK("tuning: read-only: DEL after a failed ADD", len(containers), func(i int) error { return network.del(containers[i]) })
		expectOK("tuning: read-only: CHECK of an attached container", func() error { return network.check(existing) })
		expectOK("tuning: read-only: DEL of an attached container", func() error { return checkError(network.del(existing), types.CodeIO, "read-only file system") })
		remount(network.dir+"/tuning", "nr_blocks=1000")
		expectOK("tuning: read-only: DEL after it is writable, nothing left", func() error { return errors.Join(network.del(existing), checkClean()) })
	})

	It("on a full file system: DEL restores the settings and deletes the file", func() {
		shortages["blocks"].limit(network.dir+"/tuning", 0)
		expectOK("tuning: no free blocks: DEL of an attached container", func() error { return errors.Join(network.del(existing), checkClean()) })
	})

	It("damaged or deleted: CHECK fails, DEL succeeds", func() {
		for what, content := range damagedStates {
			path := network.dir + "/tuning/existing_eth0.json"
			Expect(os.Remove(path)).To(Succeed())
			if what != "deleted" {
				Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
			}
			expectOK("tuning: state file "+what+": CHECK, DEL", func() error {
				return errors.Join(checkError(network.check(existing), 100, "existing_eth0.json"), network.del(existing), checkEmpty(network.dir+"/tuning", ".used"))
			})
			existing = network.addContainer("existing", 7000)
		}
		expectOK("tuning: DEL of the last container, nothing left", func() error { return errors.Join(network.del(existing), checkClean()) })
	})
})
