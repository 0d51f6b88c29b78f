package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/test/nstest"
)

// survives counts a fault in the row of the report: it was survived if f finds
// nothing wrong.
func survives(row string, f func() error) {
	GinkgoHelper()
	err := f()
	tried(row, err == nil)
	Expect(err).NotTo(HaveOccurred(), row)
}

// eachSurvives counts a fault for each of what was done at once.
func eachSurvives(row string, n int, f func(i int) error) {
	GinkgoHelper()
	errs := atOnce(n, f)
	for _, err := range errs {
		tried(row, err == nil)
	}
	Expect(errors.Join(errs...)).NotTo(HaveOccurred(), row)
}

// atOnce calls f n times side by side.
func atOnce(n int, f func(i int) error) []error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			errs[i] = errors.New("the test has failed here")
			defer GinkgoRecover()
			errs[i] = f(i)
		})
	}
	all.Wait()
	return errs
}

// refused: the call has failed with that code, and says these things.
func refused(err error, code uint, says ...string) error {
	var answer *cnitypes.Error
	if !errors.As(err, &answer) {
		return fmt.Errorf("no error of a plugin, and code %d was to come: %w", code, err)
	}
	if answer.Code != code {
		return fmt.Errorf("code %d was to come: code %d: %w", code, answer.Code, err)
	}
	for _, s := range says {
		if !strings.Contains(answer.Msg, s) {
			return fmt.Errorf("the error does not say %q: %w", s, err)
		}
	}
	return nil
}

// asBefore: state is the same as it was, once the kernel has done what it was told.
func asBefore(before string, state func() string) error {
	if diff := nstest.WaitEqual(before, state); diff != "" {
		return fmt.Errorf("not as before:\n%s", diff)
	}
	return nil
}

// A pool is a network of host-local alone: the executable, called as an interface
// plugin calls it.
type pool struct {
	bin     string
	dataDir string
	name    string // of the network
	ipam    string // members of ipam but type and dataDir
}

// newPool is a pool of 13 addresses, or 29.
func newPool() *pool {
	GinkgoHelper()
	return &pool{
		bin:     filepath.Join(nstest.Build(GinkgoTB(), "host-local"), "host-local"),
		dataDir: filepath.Join(GinkgoTB().TempDir(), "networks"), name: "pool",
		ipam: fmt.Sprintf(`"subnet": "10.1.2.0/%d"`, slice(27, 28)),
	}
}

// call calls a verb for a container; more are members of the configuration.
func (p *pool) call(verb, id string, more ...string) nstest.Reply {
	GinkgoHelper()
	return nstest.Exec(GinkgoTB(), p.bin, nstest.Call{
		Command: verb, ContainerID: id, NetNS: "/nowhere",
		Config: fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "type": "bridge", "ipam": {"type": "host-local", "dataDir": %q, %s}%s}`,
			p.name, p.dataDir, p.ipam, strings.Join(append([]string{""}, more...), ", ")),
	})
}

// do is call; the error is that of the plugin.
func (p *pool) do(verb, id string, more ...string) error {
	GinkgoHelper()
	return answered(p.call(verb, id, more...))
}

// answered gives the error of a reply in the form of libcni.
func answered(r nstest.Reply) error {
	if r.Exit == 0 {
		return nil
	}
	e := &cnitypes.Error{}
	if err := json.Unmarshal([]byte(r.Stdout), e); err != nil {
		return fmt.Errorf("no error on stdout: %w\nstdout: %s\nstderr: %s", err, r.Stdout, r.Stderr)
	}
	return e
}

// add gives the address of an ADD.
func (p *pool) add(id string) (netip.Addr, error) {
	GinkgoHelper()
	r := p.call("ADD", id)
	if err := answered(r); err != nil {
		return netip.Addr{}, err
	}
	return r.Result(GinkgoTB()).IPs[0].Address.Addr(), nil
}

// gc keeps these containers.
func (p *pool) gc(valid ...string) error {
	list := []string{}
	for _, id := range valid {
		list = append(list, fmt.Sprintf(`{"containerID": %q, "ifname": "eth0"}`, id))
	}
	return p.do("GC", "", `"cni.dev/valid-attachments": [`+strings.Join(list, ", ")+"]")
}

func (p *pool) folder() string { return filepath.Join(p.dataDir, p.name) }
func (p *pool) side() string   { return filepath.Join(p.dataDir, ".plumb", p.name) }

// taken are the reservations: address, container.
func (p *pool) taken() map[netip.Addr]string {
	return reservations(p.folder())
}

// reservations reads a network's folder, whatever of it there is.
func reservations(folder string) map[netip.Addr]string {
	all := map[netip.Addr]string{}
	files, _ := os.ReadDir(folder)
	for _, f := range files {
		ip, err := netip.ParseAddr(f.Name())
		if err != nil {
			continue
		}
		content, _ := os.ReadFile(filepath.Join(folder, f.Name()))
		id, _, _ := strings.Cut(string(content), "\r\n")
		all[ip] = id
	}
	return all
}

// whole: a fresh series of ADDs, side by side, gets each address of the pool that is
// not of the living, once, and no more; and all that it got is given back.
func (p *pool) whole(living map[string]netip.Addr) error {
	got := map[netip.Addr]string{}
	for id, ip := range living {
		got[ip] = id
	}
	var mu sync.Mutex
	left := slice(29, 13) - len(living)
	errs := atOnce(left, func(i int) error {
		id := fmt.Sprint("fresh", i)
		ip, err := p.add(id)
		if err != nil {
			return fmt.Errorf("an address is lost: %w", err)
		}
		mu.Lock()
		defer mu.Unlock()
		if got[ip] != "" {
			return fmt.Errorf("%s was given to %s, and is %s's", ip, id, got[ip])
		}
		got[ip] = id
		return nil
	})
	if _, err := p.add("one-too-many"); err == nil {
		errs = append(errs, errors.New("the pool is larger than it was"))
	}
	return errors.Join(append(errs, atOnce(left, func(i int) error { return p.do("DEL", fmt.Sprint("fresh", i)) })...)...)
}

// live makes n containers and gives their addresses.
func (p *pool) live(n int) map[string]netip.Addr {
	GinkgoHelper()
	all := map[string]netip.Addr{}
	for i := range n {
		id := fmt.Sprint("live", i)
		ip, err := p.add(id)
		Expect(err).NotTo(HaveOccurred())
		all[id] = ip
	}
	return all
}

// tmpfs mounts a small filesystem at dir, which is made.
func tmpfs(dir, options string) {
	GinkgoHelper()
	Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	Expect(unix.Mount("tmpfs", dir, "tmpfs", 0, options)).To(Succeed())
	DeferCleanup(func() { Expect(unix.Unmount(dir, unix.MNT_DETACH)).To(Succeed()) })
	// A tmpfs of no blocks would be one without a limit.
	Expect(os.WriteFile(filepath.Join(dir, ".used"), []byte("x"), 0o600)).To(Succeed())
}

// remount changes a tmpfs: "ro", or options of its own.
func remount(dir, options string) {
	GinkgoHelper()
	flags := uintptr(unix.MS_REMOUNT)
	if options == "ro" {
		flags, options = flags|unix.MS_RDONLY, ""
	}
	Expect(unix.Mount("tmpfs", dir, "tmpfs", flags, options)).To(Succeed())
}

// A shortage is what a disk can run out of.
type shortage struct {
	what string // option of tmpfs
	used func(unix.Statfs_t) uint64
}

// shortages of blocks and of inodes.
var shortages = map[string]shortage{
	"blocks": {"nr_blocks", func(st unix.Statfs_t) uint64 { return st.Blocks - st.Bfree }},
	"inodes": {"nr_inodes", func(st unix.Statfs_t) uint64 { return st.Files - st.Ffree }},
}

// leave leaves so many of them free on the tmpfs at dir.
func (s shortage) leave(dir string, free int) {
	GinkgoHelper()
	var st unix.Statfs_t
	Expect(unix.Statfs(dir, &st)).To(Succeed())
	remount(dir, fmt.Sprintf("%s=%d", s.what, s.used(st)+uint64(free)))
}

// end ends the shortage.
func (s shortage) end(dir string) {
	GinkgoHelper()
	remount(dir, s.what+"=100000")
}

// byName gives the keys of a map in order: specs are to be the same in each run.
func byName[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// slice is n where every fault is tried, else a part of it.
func slice(n, part int) int {
	if all() {
		return n
	}
	return part
}

// inode of a file.
func inode(info os.FileInfo) uint64 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return st.Ino
}

// A machine is a node as far as its boot goes: its programs see a boot_id of their
// own, in mount namespaces that end with them.
type machine struct {
	dir   string
	boots int
}

func newMachine() *machine {
	GinkgoHelper()
	m := &machine{dir: GinkgoTB().TempDir()}
	m.reboot()
	return m
}

// reboot changes the boot_id, and nothing else: namespaces have to be made anew.
func (m *machine) reboot() {
	GinkgoHelper()
	m.boots++
	id := fmt.Sprintf("6f1e8a52-0000-4000-8000-%012d\n", m.boots)
	Expect(os.WriteFile(filepath.Join(m.dir, "boot_id"), []byte(id), 0o600)).To(Succeed())
}

// program is the path of a plugin that runs on this machine. Its delegates do, too.
func (m *machine) program(plugin string) string {
	GinkgoHelper()
	path := filepath.Join(m.dir, plugin)
	script := fmt.Sprintf("#!/bin/sh\nexec unshare --mount sh -c 'mount --bind %s /proc/sys/kernel/random/boot_id && exec %s'\n",
		filepath.Join(m.dir, "boot_id"), filepath.Join(nstest.Build(GinkgoTB(), plugin), plugin))
	Expect(os.WriteFile(path, []byte(script), 0o700)).To(Succeed())
	return path
}
