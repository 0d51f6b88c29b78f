package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// expectOK calls f and records the outcome in the report's row. If f returns an error, expectOK
// fails the test.
func expectOK(row string, f func() error) {
	GinkgoHelper()
	err := f()
	record(row, err == nil)
	Expect(err).NotTo(HaveOccurred(), row)
}

// expectAllOK is expectOK for n concurrent calls of f.
func expectAllOK(row string, n int, f func(i int) error) {
	GinkgoHelper()
	errs := concurrently(n, f)
	for _, err := range errs {
		record(row, err == nil)
	}
	Expect(errors.Join(errs...)).NotTo(HaveOccurred(), row)
}

// concurrently calls f(0) … f(n-1) at the same time, and returns their errors.
func concurrently(n int, f func(i int) error) []error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			errs[i] = errors.New("the test failed in this goroutine")
			defer GinkgoRecover()
			errs[i] = f(i)
		})
	}
	all.Wait()
	return errs
}

// checkError returns nil if err is a plugin's error with this code, and its message contains
// all texts.
func checkError(err error, code uint, texts ...string) error {
	var pluginErr *cnitypes.Error
	if !errors.As(err, &pluginErr) {
		return fmt.Errorf("want a plugin's error with code %d, got %w", code, err)
	}
	if pluginErr.Code != code {
		return fmt.Errorf("want code %d, got code %d: %w", code, pluginErr.Code, err)
	}
	for _, text := range texts {
		if !strings.Contains(pluginErr.Msg, text) {
			return fmt.Errorf("the error does not contain %q: %w", text, err)
		}
	}
	return nil
}

// A pool is the address pool of one network.
type pool struct {
	bin     string
	dataDir string
	name    string // the name of the network
	ipam    string // the keys of ipam except type and dataDir
	args    string // CNI_ARGS
}

// makeSticky sets the key sticky, and lets all containers request the same MAC address.
func (p *pool) makeSticky() {
	p.ipam += `, "sticky": "mac"`
	p.args = "MAC=02:00:00:00:00:05"
}

// newPool returns a pool of 13 addresses, or of 29 with all faults.
func newPool() *pool {
	GinkgoHelper()
	return &pool{
		bin:     filepath.Join(nstest.Build(GinkgoTB(), "host-local"), "host-local"),
		dataDir: filepath.Join(GinkgoTB().TempDir(), "networks"), name: "pool",
		ipam: fmt.Sprintf(`"subnet": "10.1.2.0/%d"`, fullOrCI(27, 28)),
	}
}

// call calls a verb for a container. more contains further keys of the configuration.
func (p *pool) call(verb, id string, more ...string) nstest.Reply {
	GinkgoHelper()
	return nstest.Exec(GinkgoTB(), p.bin, nstest.Call{
		Command: verb, ContainerID: id, NetNS: "/nowhere", Args: p.args,
		Config: fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "type": "bridge", "ipam": {"type": "host-local", "dataDir": %q, %s}%s}`,
			p.name, p.dataDir, p.ipam, strings.Join(append([]string{""}, more...), ", ")),
	})
}

// do calls a verb and returns the plugin's error.
func (p *pool) do(verb, id string, more ...string) error {
	GinkgoHelper()
	return errorOf(p.call(verb, id, more...))
}

// errorOf returns the error of a reply with the type that libcni uses.
func errorOf(r nstest.Reply) error {
	if r.Exit == 0 {
		return nil
	}
	e := &cnitypes.Error{}
	if err := json.Unmarshal([]byte(r.Stdout), e); err != nil {
		return fmt.Errorf("no error on stdout: %w\nstdout: %s\nstderr: %s", err, r.Stdout, r.Stderr)
	}
	return e
}

func (p *pool) add(id string) (netip.Addr, error) {
	GinkgoHelper()
	r := p.call("ADD", id)
	if err := errorOf(r); err != nil {
		return netip.Addr{}, err
	}
	return r.Result(GinkgoTB()).IPs[0].Address.Addr(), nil
}

// gc calls GC, for which only the attachments of these containers are valid.
func (p *pool) gc(valid ...string) error {
	list := []string{}
	for _, id := range valid {
		list = append(list, fmt.Sprintf(`{"containerID": %q, "ifname": "eth0"}`, id))
	}
	return p.do("GC", "", `"cni.dev/valid-attachments": [`+strings.Join(list, ", ")+"]")
}

func (p *pool) reservationDir() string { return filepath.Join(p.dataDir, p.name) }

// plumbDir returns the network's directory in .plumb, which contains the address files.
func (p *pool) plumbDir() string { return filepath.Join(p.dataDir, ".plumb", p.name) }

// reservations returns the container ID of each reserved address.
func (p *pool) reservations() map[netip.Addr]string {
	return readReservations(p.reservationDir())
}

// readReservations returns the container ID of each reserved address. It ignores missing files.
func readReservations(dir string) map[netip.Addr]string {
	all := map[netip.Addr]string{}
	files, _ := os.ReadDir(dir)
	for _, f := range files {
		ip, err := netip.ParseAddr(f.Name())
		if err != nil {
			continue
		}
		content, _ := os.ReadFile(filepath.Join(dir, f.Name()))
		id, _, _ := strings.Cut(string(content), "\r\n")
		all[ip] = id
	}
	return all
}

// checkAllocation checks that concurrent ADDs allocate each free address of the pool exactly once.
// An address is free if no existing container uses it. At the end, checkAllocation releases the
// allocated addresses.
func (p *pool) checkAllocation(existing map[string]netip.Addr) error {
	got := map[netip.Addr]string{}
	for id, ip := range existing {
		got[ip] = id
	}
	var mu sync.Mutex
	left := fullOrCI(29, 13) - len(existing)
	errs := concurrently(left, func(i int) error {
		id := fmt.Sprint("fresh", i)
		ip, err := p.add(id)
		if err != nil {
			return fmt.Errorf("want an address for %s, got %w", id, err)
		}
		mu.Lock()
		defer mu.Unlock()
		if got[ip] != "" {
			return fmt.Errorf("%s was allocated to %s, but belongs to %s", ip, id, got[ip])
		}
		got[ip] = id
		return nil
	})
	if _, err := p.add("one-too-many"); err == nil {
		errs = append(errs, errors.New("more addresses were allocated than the pool contains"))
	}
	return errors.Join(append(errs, concurrently(left, func(i int) error { return p.do("DEL", fmt.Sprint("fresh", i)) })...)...)
}

// addContainers adds the containers live0, live1 … and returns their addresses.
func (p *pool) addContainers(n int) map[string]netip.Addr {
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

// mountLimitedTmpfs creates the directory dir, and mounts a tmpfs with these options at dir.
func mountLimitedTmpfs(dir, options string) {
	GinkgoHelper()
	Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	Expect(unix.Mount("tmpfs", dir, "tmpfs", 0, options)).To(Succeed())
	DeferCleanup(func() { Expect(unix.Unmount(dir, unix.MNT_DETACH)).To(Succeed()) })
	// This file prevents limit from setting nr_blocks to 0, which would mean no limit.
	Expect(os.WriteFile(filepath.Join(dir, ".used"), []byte("x"), 0o600)).To(Succeed())
}

// remount changes the options of a tmpfs, for example to read-only ("ro").
func remount(dir, options string) {
	GinkgoHelper()
	flags := uintptr(unix.MS_REMOUNT)
	if options == "ro" {
		flags, options = flags|unix.MS_RDONLY, ""
	}
	Expect(unix.Mount("tmpfs", dir, "tmpfs", flags, options)).To(Succeed())
}

// A shortage is a resource that a file system can run out of.
type shortage struct {
	option string // the option of tmpfs
	used   func(unix.Statfs_t) uint64
}

// shortages lists the resources that a tmpfs can limit.
var shortages = map[string]shortage{
	"blocks": {"nr_blocks", func(st unix.Statfs_t) uint64 { return st.Blocks - st.Bfree }},
	"inodes": {"nr_inodes", func(st unix.Statfs_t) uint64 { return st.Files - st.Ffree }},
}

// limit leaves this number of units free on the tmpfs at dir.
func (s shortage) limit(dir string, free int) {
	GinkgoHelper()
	var st unix.Statfs_t
	Expect(unix.Statfs(dir, &st)).To(Succeed())
	remount(dir, fmt.Sprintf("%s=%d", s.option, s.used(st)+uint64(free)))
}

// lift raises the limit to 100000.
func (s shortage) lift(dir string) {
	GinkgoHelper()
	remount(dir, s.option+"=100000")
}

// fullOrCI returns full if the tests inject all faults, and ci otherwise.
func fullOrCI(full, ci int) int {
	if nstest.AllFaults() {
		return full
	}
	return ci
}

// A machine simulates a host with its own boot ID. Its programs run in mount namespaces in which
// the file dir/boot_id is mounted at /proc/sys/kernel/random/boot_id.
type machine struct {
	dir   string
	boots int
}

// newMachine returns a machine after its first boot.
func newMachine() *machine {
	GinkgoHelper()
	m := &machine{dir: GinkgoTB().TempDir()}
	m.reboot()
	return m
}

// reboot changes only the boot ID. The test must create new network namespaces.
func (m *machine) reboot() {
	GinkgoHelper()
	m.boots++
	id := fmt.Sprintf("6f1e8a52-0000-4000-8000-%012d\n", m.boots)
	Expect(os.WriteFile(filepath.Join(m.dir, "boot_id"), []byte(id), 0o600)).To(Succeed())
}

// program returns the path of a script. The script runs a plugin, and the plugins that this plugin
// calls, with the machine's boot ID.
func (m *machine) program(plugin string) string {
	GinkgoHelper()
	path := filepath.Join(m.dir, plugin)
	script := fmt.Sprintf("#!/bin/sh\nexec unshare --mount sh -c 'mount --bind %s /proc/sys/kernel/random/boot_id && exec %s'\n",
		filepath.Join(m.dir, "boot_id"), filepath.Join(nstest.Build(GinkgoTB(), plugin), plugin))
	Expect(os.WriteFile(path, []byte(script), 0o700)).To(Succeed())
	return path
}
