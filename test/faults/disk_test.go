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

// tuned is a chain in which two plugins keep files.
const tuned = `
	{"type": "bridge", "isGateway": true, "ipMasq": true, "ipam": {"type": "host-local", "dataDir": "DIR/leases", "subnet": "10.1.0.0/16"}},
	{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}`

// guests are n containers that are not attached yet.
func (l *lab) guests(n int) []*guest {
	GinkgoHelper()
	all := make([]*guest, n)
	for i := range all {
		all[i] = l.guest(fmt.Sprint("g", i), 8000+i)
	}
	return all
}

// burst is how many ADDs meet a fault at once.
const burst = 16

var _ = Describe("a disk that is full", func() {
	for _, what := range byName(shortages) {
		s := shortages[what]
		It("of "+what+": ADDs fail in one piece, all else works, and with room again nothing is amiss", func() {
			l := newLab(tuned)
			tmpfs(l.dir, "nr_blocks=1000,nr_inodes=1000")
			lives := l.attached("lives", 7000)
			guests := l.guests(burst)
			before := nstest.WaitStable(l.attachments)
			s.leave(l.dir, 0)
			row := "disk full (" + what + "): "
			eachSurvives(row+"bridge ADD, 16 at once", burst, func(i int) error {
				return refused(l.add(guests[i]), types.CodeIO, "no space left on device", l.dir+"/leases/lab/")
			})
			survives(row+"node and files as before", func() error { return asBefore(before, l.attachments) })
			eachSurvives(row+"bridge DEL after a failed ADD", burst, func(i int) error { return l.del(guests[i]) })
			survives(row+"node and files as before", func() error { return asBefore(before, l.attachments) })
			survives(row+"CHECK of the living", func() error { return l.check(lives) })
			survives(row+"STATUS", func() error { return refused(l.status(), types.CodeNotAvailable, "no space left on device") })
			survives(row+"DEL of the living", func() error {
				return errors.Join(l.del(lives), empty(l.dir+"/leases/lab", "lock", "last_reserved_ip.0"), empty(l.dir+"/tuning"))
			})
			s.end(l.dir)
			eachSurvives(row+"bridge ADD with room again", burst, func(i int) error { return l.add(guests[i]) })
			survives(row+"no address twice", func() error { return distinct(guests) })
			for _, g := range guests {
				Expect(l.del(g)).To(Succeed())
			}
		})

		// From nothing at all: folder, lock, reservation, cursor, the attachments' files.
		It("of "+what+": wherever in an ADD it becomes so, nothing stays", func() {
			p := newPool()
			p.ipam += `, "cooldown": 30`
			tmpfs(p.dataDir, "nr_blocks=1000,nr_inodes=1000")
			for free := range 12 {
				Expect(os.RemoveAll(p.folder())).To(Succeed())
				Expect(os.RemoveAll(filepath.Dir(p.side()))).To(Succeed())
				s.leave(p.dataDir, free)
				survives("disk full ("+what+"): host-local ADD with a little room", func() error { return p.cramped(s) })
			}
		})
	}

	It("keeps nobody from giving back: DEL and GC, with cooldown too", func() {
		for what, s := range shortages {
			p := newPool()
			p.ipam += `, "cooldown": 30`
			tmpfs(p.dataDir, "nr_blocks=1000,nr_inodes=1000")
			p.live(8)
			s.leave(p.dataDir, 0)
			eachSurvives("disk full ("+what+"): host-local DEL with cooldown", 4, func(i int) error {
				return p.do("DEL", fmt.Sprint("live", i))
			})
			survives("disk full ("+what+"): host-local GC with cooldown", func() error {
				return errors.Join(p.gc("live7"), equal(len(p.taken()), 1))
			})
		}
	})
})

// cramped is an ADD that may fail, its DEL, and the same with room.
func (p *pool) cramped(s shortage) error {
	_, err := p.add("c1")
	if err != nil {
		err = refused(err, types.CodeIO, "no space left on device")
		err = errors.Join(err, equal(len(p.taken()), 0), noScraps(p.dataDir))
	}
	err = errors.Join(err, p.do("DEL", "c1"), equal(len(p.taken()), 0), noScraps(p.dataDir))
	s.end(p.dataDir)
	_, aerr := p.add("c2")
	return errors.Join(err, aerr, p.do("CHECK", "c2"), p.do("DEL", "c2"), equal(len(p.taken()), 0))
}

// noScraps: no file on its way to its name has been left.
func noScraps(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if name := filepath.Base(path); err == nil && (name == "new" || strings.HasSuffix(name, ".new") || strings.Contains(name, "~")) {
			err = fmt.Errorf("left: %s", path)
		}
		return err
	})
}

// empty: the folder has nothing but these.
func empty(dir string, but ...string) error {
	files, err := os.ReadDir(dir)
	for _, f := range files {
		if !strings.Contains(strings.Join(but, " ")+" ", f.Name()+" ") {
			err = errors.Join(err, fmt.Errorf("left: %s/%s", dir, f.Name()))
		}
	}
	return err
}

func equal[T comparable](got, want T) error {
	if got != want {
		return fmt.Errorf("%v, and %v was to be", got, want)
	}
	return nil
}

// distinct: no two guests have an address in common.
func distinct(guests []*guest) error {
	var errs []error
	owner := map[string]string{}
	for _, g := range guests {
		for _, ip := range g.result.IPs {
			addr := ip.Address.IP.String()
			if owner[addr] != "" {
				errs = append(errs, fmt.Errorf("%s was given to %s and %s", addr, owner[addr], g.rt.ContainerID))
			}
			owner[addr] = g.rt.ContainerID
		}
	}
	return errors.Join(errs...)
}

var _ = Describe("a disk that is read-only", func() {
	It("lets ADD fail in one piece, and DEL finish once it can be written", func() {
		l := newLab(tuned)
		tmpfs(l.dir, "nr_blocks=1000")
		lives := l.attached("lives", 7000)
		guests := l.guests(burst)
		before := nstest.WaitStable(l.attachments)
		remount(l.dir, "ro")
		eachSurvives("disk read-only: bridge ADD, 16 at once", burst, func(i int) error {
			return refused(l.add(guests[i]), types.CodeIO, "read-only file system", l.dir+"/leases/lab/")
		})
		survives("disk read-only: node and files as before", func() error { return asBefore(before, l.attachments) })
		eachSurvives("disk read-only: bridge DEL after a failed ADD", burst, func(i int) error { return l.del(guests[i]) })
		survives("disk read-only: node and files as before", func() error { return asBefore(before, l.attachments) })
		survives("disk read-only: CHECK of the living", func() error { return l.check(lives) })
		survives("disk read-only: STATUS", func() error { return refused(l.status(), types.CodeNotAvailable, "read-only file system") })
		survives("disk read-only: DEL of the living, and again", func() error {
			return errors.Join(
				refused(l.del(lives), types.CodeIO, "read-only file system"),
				refused(l.del(lives), types.CodeIO, "read-only file system"),
				equal(len(reservations(l.dir+"/leases/lab")), 1))
		})
		remount(l.dir, "nr_blocks=1000")
		survives("disk read-only: DEL once it can be written", func() error {
			return errors.Join(l.del(lives), empty(l.dir+"/leases/lab", "lock", "last_reserved_ip.0"), empty(l.dir+"/tuning"))
		})
	})
})

// node is the state of the node alone.
func (l *lab) node() string {
	return emptyDisplacedMap.ReplaceAllString(nstest.Snapshot(GinkgoTB(), l.Node), "")
}

// emptyDisplacedMap matches a map of displaced claims without elements. All attachments share
// it: the first take-over makes it, and it stays.
var emptyDisplacedMap = regexp.MustCompile(`(?m)^.*nft *\n.*nft map \S+-displaced \{\n.*nft type .*\n.*nft \}\n`)

// A holder is a process that has a lock and does nothing.
type holder struct {
	cmd *exec.Cmd
	in  *os.File
}

// hold has a process lock a file.
func hold(path string) *holder {
	GinkgoHelper()
	read, write, err := os.Pipe()
	Expect(err).NotTo(HaveOccurred())
	h := &holder{cmd: exec.Command("flock", path, "sh", "-c", "echo held; read line"), in: write}
	h.cmd.Stdin = read
	out, err := h.cmd.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(h.cmd.Start()).To(Succeed())
	Expect(read.Close()).To(Succeed())
	DeferCleanup(h.release)
	Expect(bufio.NewReader(out).ReadString('\n')).To(Equal("held\n"))
	return h
}

func (h *holder) release() {
	if h.in.Close() == nil {
		_ = h.cmd.Wait()
	}
}

var _ = Describe("a lock that a stuck process holds", func() {
	It("is waited for in time, and its holder is named", func() {
		l := newLab(tuned)
		lives := l.attached("lives", 7000)
		before := nstest.WaitStable(l.node)
		dies := l.attached("dies", 7001)
		h := hold(l.dir + "/leases/lab/lock")
		says := fmt.Sprintf("held by process %d (flock)", h.cmd.Process.Pid)
		guests := l.guests(4)
		calls := []struct {
			row string
			do  func() error
		}{
			{"bridge CHECK", func() error { return refused(l.check(lives), types.CodeTryAgain, says) }},
			{"bridge DEL", func() error { return refused(l.del(dies), types.CodeTryAgain, says) }},
			{"STATUS", func() error { return refused(l.status(), types.CodeNotAvailable, says) }},
		}
		for _, g := range guests {
			calls = append(calls, struct {
				row string
				do  func() error
			}{"bridge ADD", func() error { return refused(l.add(g), types.CodeTryAgain, says) }})
		}
		errs := atOnce(len(calls), func(i int) error { return calls[i].do() }) // one wait for all
		for i, err := range errs {
			survives("lock held: "+calls[i].row, func() error { return err })
		}
		h.release()
		survives("lock held: DEL once it is released, and node as before", func() error {
			return errors.Join(l.del(dies), l.check(lives), asBefore(before, l.node), equal(len(reservations(l.dir+"/leases/lab")), 1))
		})
	})

	It("is given in turn to all who wait, once it is free", func() {
		p := newPool()
		p.live(1)
		h := hold(p.folder() + "/lock")
		waiting := make(chan []error)
		go func() {
			waiting <- atOnce(8, func(i int) error {
				_, err := p.add(fmt.Sprint("waits", i))
				return err
			})
		}()
		Eventually(func() int { return waiters(p.folder() + "/lock") }).Should(BeNumerically(">=", 8))
		h.release()
		for _, err := range <-waiting {
			survives("lock held: host-local ADD that waits", func() error { return err })
		}
		survives("lock held: no address twice, none lost", func() error { return equal(len(p.taken()), 9) })
	})
})

// waiters counts who wait for the lock in the kernel: the lines with an arrow.
func waiters(path string) int {
	info, err := os.Stat(path)
	Expect(err).NotTo(HaveOccurred())
	list, err := os.ReadFile("/proc/locks")
	Expect(err).NotTo(HaveOccurred())
	n := 0
	for line := range strings.Lines(string(list)) {
		if strings.Contains(line, "-> FLOCK") && strings.Contains(line, fmt.Sprintf(":%d ", inode(info))) {
			n++
		}
	}
	return n
}

// torn is what crashes and losses of power leave of a reservation, or nobody knows who.
var torn = []string{
	"", "\x00", strings.Repeat("\x00", 12), strings.Repeat("\x00", 4096), "\r\n", "live0\r\neth0\x00\x00\x00", "\xff\xfe\x00l", "live0\r\neth0\r\neth1",
}

var _ = Describe("reservations that are torn", func() {
	It("give their addresses back, and nobody else's", func() {
		p := newPool()
		living := p.live(3)
		for i, content := range torn {
			name := fmt.Sprint("10.1.2.", 5+i)
			Expect(os.WriteFile(filepath.Join(p.folder(), name), []byte(content), 0o600)).To(Succeed())
			survives("reservation torn: whole pool given, side by side", func() error { return p.whole(living) })
		}
		for i := range torn { // all at the same time
			Expect(os.WriteFile(filepath.Join(p.folder(), fmt.Sprint("10.1.2.", 5+i)), []byte(torn[i]), 0o600)).To(Succeed())
		}
		survives("reservation torn: whole pool given, side by side", func() error { return p.whole(living) })
	})

	It("cut anywhere are free after a GC at the latest", func() {
		p := newPool()
		living := p.live(3)
		whole := "victim\r\neth0"
		for n := range len(whole) {
			Expect(os.WriteFile(filepath.Join(p.folder(), "10.1.2.12"), []byte(whole[:n]), 0o600)).To(Succeed())
			survives("reservation cut: DEL and GC", func() error {
				return errors.Join(p.do("DEL", "victim"), p.gc(byName(living)...), p.whole(living))
			})
		}
	})

	It("that were the living's take nothing from the other living", func() {
		p := newPool()
		living := p.live(8)
		for i := range 4 {
			id := fmt.Sprint("live", i)
			Expect(os.Truncate(filepath.Join(p.folder(), living[id].String()), 0)).To(Succeed())
			survives("reservation of the living emptied: CHECK says so, DEL ends", func() error {
				return errors.Join(refused(p.do("CHECK", id), 100, "no address is reserved"), p.do("DEL", id))
			})
			delete(living, id)
		}
		survives("reservation torn: whole pool given, side by side", func() error { return p.whole(living) })
	})
})

var _ = Describe("the folder of reservations, deleted under it", func() {
	It("while 16 ADDs run: each succeeds or fails in one piece, and the node is left clean", func() {
		l := newLab(tuned)
		lives := l.attached("lives", 7000)
		Expect(l.del(lives)).To(Succeed())
		before := nstest.WaitStable(l.node)
		for range slice(10, 1) {
			guests := l.guests(burst)
			stop := meanwhile(func() { _ = os.RemoveAll(l.dir + "/leases") })
			eachSurvives("folder deleted: bridge ADD, 16 at once", burst, func(i int) error {
				err := l.add(guests[i])
				if err != nil {
					return refused(err, types.CodeIO, l.dir+"/leases")
				}
				return nil
			})
			stop()
			eachSurvives("folder deleted: bridge DEL, 16 at once", burst, func(i int) error { return l.del(guests[i]) })
			survives("folder deleted: node as before, no reservation left", func() error {
				return errors.Join(asBefore(before, l.node), equal(len(reservations(l.dir+"/leases/lab")), 0))
			})
		}
	})

	It("says so in CHECK, and the next series is whole", func() {
		for _, what := range []string{"networks", "networks/pool", "networks/.plumb"} {
			p := newPool()
			living := p.live(5)
			Expect(os.RemoveAll(filepath.Join(filepath.Dir(p.dataDir), what))).To(Succeed())
			if what == "networks/.plumb" { // the attachments' files: nothing is lost
				survives("folder deleted: whole pool given, side by side", func() error { return p.whole(living) })
				continue
			}
			survives("folder deleted: CHECK and DEL of the living", func() error {
				return errors.Join(refused(p.do("CHECK", "live0"), 100, "no address is reserved"), p.do("DEL", "live0"))
			})
			survives("folder deleted: whole pool given, side by side", func() error { return p.whole(nil) })
		}
	})
})

// meanwhile does f again and again until stop is called.
func meanwhile(f func()) (stop func()) {
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

// spoil is what may become of the folder of the attachments' files; older is what the file
// that says that they are complete once was.
var spoil = map[string]func(dir string, older []byte){
	"gone":              func(dir string, _ []byte) { _ = os.RemoveAll(dir) },
	"and all else gone": func(dir string, _ []byte) { _ = os.RemoveAll(filepath.Dir(dir)) },
	"not complete":      func(dir string, _ []byte) { _ = os.Remove(filepath.Join(dir, "complete")) },
	"complete as once":  func(dir string, older []byte) { _ = os.WriteFile(filepath.Join(dir, "complete"), older, 0o600) },
	"complete as once, by rename": func(dir string, older []byte) {
		if os.WriteFile(filepath.Join(dir, "old"), older, 0o600) == nil {
			_ = os.Rename(filepath.Join(dir, "old"), filepath.Join(dir, "complete"))
		}
	},
	"empty": func(dir string, _ []byte) {
		eachFile(dir, func(path string) { _ = os.Truncate(path, 0) })
	},
	"corrupted": func(dir string, _ []byte) {
		eachFile(dir, func(path string) {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err == nil {
				_, _ = f.WriteAt([]byte{byte(rand.Uint32()), byte(rand.Uint32())}, rand.Int64N(40))
				_ = f.Close()
			}
		})
	},
	"zeros": func(dir string, _ []byte) {
		eachFile(dir, func(path string) { _ = os.WriteFile(path, make([]byte, 40), 0o600) })
	},
}

func eachFile(dir string, f func(path string)) {
	files, _ := os.ReadDir(dir)
	for _, e := range files {
		f(filepath.Join(dir, e.Name()))
	}
}

var _ = Describe("the attachments' files", func() {
	for _, name := range byName(spoil) {
		f := spoil[name]
		It(name+", before, and again and again while a pool is given out: no address twice, none lost", func() {
			p := newPool()
			Expect(p.add("early")).Error().NotTo(HaveOccurred())
			dirs, err := filepath.Glob(filepath.Join(p.side(), "*.*"))
			Expect(err).NotTo(HaveOccurred())
			Expect(dirs).To(HaveLen(1))
			dir := dirs[0]
			older, err := os.ReadFile(filepath.Join(dir, "complete"))
			Expect(err).NotTo(HaveOccurred())
			Expect(p.do("DEL", "early")).To(Succeed())
			living := p.live(3)
			for range slice(10, 1) {
				f(dir, older)
				survives("attachments' files "+name+": whole pool given, side by side", func() error { return p.whole(living) })
				stop := meanwhile(func() { f(dir, older) })
				survives("attachments' files "+name+" while: whole pool given, side by side", func() error { return p.whole(living) })
				stop()
				for id := range living {
					survives("attachments' files "+name+": CHECK of the living", func() error { return p.do("CHECK", id) })
				}
			}
		})
	}
})

// A loss is how much of the folder and the attachments' files a loss of power, or a backup, brings back.
type loss struct{ folder, side string } // "old", "new", "empty" (files without content), "gone"

var _ = Describe("a loss of what was not synced", func() {
	states := []string{"old", "new", "empty", "gone"}
	for b, boot := range []string{"the same boot", "another boot"} {
		for i, folder := range states {
			for j, side := range states {
				if !all() && (i+j+b)%4 != 1 {
					continue
				}
				It(fmt.Sprintf("folder %s, attachments' files %s, %s: no address twice, none lost", folder, side, boot), func() {
					p := newPool()
					m := newMachine()
					p.bin = m.program("host-local")
					lostPower(p, m, loss{folder, side}, boot)
				})
			}
		}
	}
})

// lostPower brings the folder and the attachments' files back as they were at different times. In the same
// boot (a backup was restored) who has a reservation lives. After another boot nobody
// does, and what those files do not know is free after a GC.
func lostPower(p *pool, m *machine, l loss, boot string) {
	GinkgoHelper()
	p.live(5)
	old := saved(p.dataDir)
	for i := range 3 {
		Expect(p.do("DEL", fmt.Sprint("live", i))).To(Succeed())
		Expect(p.add(fmt.Sprint("later", i))).Error().NotTo(HaveOccurred())
	}
	now := saved(p.dataDir)
	restore(p.folder(), l.folder, filepath.Join(old, p.name), filepath.Join(now, p.name))
	restore(p.side(), l.side, filepath.Join(old, ".plumb", p.name), filepath.Join(now, ".plumb", p.name))
	if boot == "another boot" {
		m.reboot()
		survives("power lost: ADDs after it, side by side", func() error { return p.unshared() })
		survives("power lost: whole pool given after GC", func() error { return errors.Join(p.gc(), p.whole(nil)) })
		return
	}
	living := map[string]netip.Addr{}
	for ip, id := range p.taken() {
		if id != "" {
			living[id] = ip
		}
	}
	survives("older files restored: whole pool given, side by side", func() error { return p.whole(living) })
}

// unshared: a series of ADDs gets addresses that differ, and each is still the
// container's when all are done.
func (p *pool) unshared() error {
	const n = 8
	got := make([]netip.Addr, n)
	errs := atOnce(n, func(i int) (err error) {
		got[i], err = p.add(fmt.Sprint("fresh", i))
		return err
	})
	taken := p.taken()
	for i, ip := range got {
		errs = append(errs, equal(taken[ip], fmt.Sprint("fresh", i)), p.do("CHECK", fmt.Sprint("fresh", i)))
	}
	return errors.Join(errs...)
}

// saved is a copy of a folder, with its times.
func saved(dir string) string {
	GinkgoHelper()
	to := filepath.Join(GinkgoTB().TempDir(), "copy")
	out, err := exec.Command("cp", "-a", dir, to).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	return to
}

// restore makes a folder what a loss leaves of it.
func restore(dir, state, old, now string) {
	GinkgoHelper()
	Expect(os.RemoveAll(dir)).To(Succeed())
	if state == "gone" {
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

// broken is what may become of a state that tuning saved.
var broken = map[string]string{
	"deleted": "", "empty": "", "cut": `{"mtu": 15`, "zeros": strings.Repeat("\x00", 80), "no object": "[1]", "of other types": `{"mtu": "x", "sysctl": 7}`,
	"of elsewhere": `{"sysctl": {"net/../kernel/hostname": "x"}}`,
}

var _ = Describe("the states that tuning saves", func() {
	var (
		l      *lab
		lives  *guest
		before string
	)
	BeforeEach(func() {
		l = newLab(tuned)
		tmpfs(l.dir+"/tuning", "nr_blocks=1000,nr_inodes=1000")
		lives = l.attached("lives", 7000)
		Expect(l.del(lives)).To(Succeed()) // what the node shares stands from here on
		before = nstest.WaitStable(l.node)
		lives = l.attached("lives", 7000)
	})
	over := func() error {
		return errors.Join(asBefore(before, l.node), empty(l.dir+"/tuning", ".used"), equal(len(reservations(l.dir+"/leases/lab")), 0))
	}

	It("on a disk that is full or read-only: ADD fails in one piece", func() {
		guests := l.guests(4)
		for what, s := range shortages {
			s.leave(l.dir+"/tuning", 0)
			eachSurvives("tuning: disk full ("+what+"): ADD, side by side", len(guests), func(i int) error {
				return refused(l.add(guests[i]), types.CodeIO, l.dir+"/tuning/", "no space left on device")
			})
			eachSurvives("tuning: disk full ("+what+"): DEL after it", len(guests), func(i int) error { return l.del(guests[i]) })
			s.end(l.dir + "/tuning")
		}
		remount(l.dir+"/tuning", "ro")
		eachSurvives("tuning: disk read-only: ADD, side by side", len(guests), func(i int) error {
			return refused(l.add(guests[i]), types.CodeIO, "read-only file system")
		})
		eachSurvives("tuning: disk read-only: DEL after it", len(guests), func(i int) error { return l.del(guests[i]) })
		survives("tuning: disk read-only: CHECK of the living", func() error { return l.check(lives) })
		survives("tuning: disk read-only: DEL of the living", func() error { return refused(l.del(lives), types.CodeIO, "read-only file system") })
		remount(l.dir+"/tuning", "nr_blocks=1000")
		survives("tuning: DEL once the disk can be written, nothing left", func() error { return errors.Join(l.del(lives), over()) })
	})

	It("full: DEL puts back and removes", func() {
		shortages["blocks"].leave(l.dir+"/tuning", 0)
		survives("tuning: disk full (blocks): DEL of the living", func() error { return errors.Join(l.del(lives), over()) })
	})

	It("broken or deleted: CHECK says so, DEL ends", func() {
		for what, content := range broken {
			path := l.dir + "/tuning/lives_eth0.json"
			Expect(os.Remove(path)).To(Succeed())
			if what != "deleted" {
				Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
			}
			survives("tuning: state "+what+": CHECK, DEL", func() error {
				return errors.Join(refused(l.check(lives), 100, "lives_eth0.json"), l.del(lives), empty(l.dir+"/tuning", ".used"))
			})
			lives = l.attached("lives", 7000)
		}
		survives("tuning: DEL of the next, nothing left", func() error { return errors.Join(l.del(lives), over()) })
	})
})
