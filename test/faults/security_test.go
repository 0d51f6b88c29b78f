package faults

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// advisories lists security advisories of other CNI plugins. For each advisory, it names the file and a part of the
// name of the test that shows that plumb is not affected.
//
// One advisory affects plumb (cni issue 816, plugins issue 816). Packets of a container that conntrack considers
// invalid are not masqueraded, and contain the container's address.
const advisories = `
CVE-2025-67499 GHSA-jv3w-x3r3-g6rm GO-2025-4222  plugins/portmap/traffic_test.go    that the host forwards is not translated (CVE-2025-67499)
CVE-2019-9946                                    plugins/portmap/traffic_test.go    to a port of a Service goes to the Service (CVE-2019-9946)
CVE-2020-8558                                    plugins/portmap/traffic_test.go    of another container does not reach 127.0.0.1 of the host (CVE-2020-8558)
CVE-2020-10749 GHSA-fx6x-h9g4-56f8 GHSA-pf59-j7c2-rh6x CVE-2020-13401 CVE-2020-13597  test/faults/security_test.go  change no route or address of the host
CVE-2021-20206                                   test/faults/security_test.go        runs no program outside of CNI_PATH
plugins#798                                      plugins/tuning/config_test.go      TestPathsOf
commit-33ccedc6                                  test/faults/security_test.go        cannot be written by other users
plugins#714                                      test/faults/security_test.go        does not change the host's own interfaces
vpc-cni#3634                                     plugins/host-local/verbs_test.go   ends after the configured time, and until then ADD does not allocate the address
vpc-cni#3634                                     pkg/attach/attach_test.go          TestDeleteAddressFlowsDeletesTheFlowsOfTheAddressOnly
k8s#43953                                        plugins/bridge/macspoof_test.go    drops frames with another source MAC on checked ports
CVE-2025-52881 CVE-2024-24790 CVE-2024-34156 CVE-2022-27664  test/arch_test.go      TestExecutablesConsistOf
`

func TestAdvisoriesHaveATest(t *testing.T) {
	for line := range strings.SplitSeq(strings.TrimSpace(advisories), "\n") {
		file, name := "", ""
		for i, word := range strings.Fields(line) {
			if strings.HasSuffix(word, ".go") {
				file, name = word, strings.Join(strings.Fields(line)[i+1:], " ")
				break
			}
		}
		text, err := os.ReadFile(filepath.Join(nstest.Root(t), file))
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
		// In this file, the table above contains the name as well.
		found := strings.Count(string(text), name)
		if found == 0 || strings.HasSuffix(file, "security_test.go") && found < 2 {
			t.Errorf("%s contains no test %q", file, name)
		}
	}
}

// chains returns the plugin lists of the networks to which the malicious container is attached.
func chains() map[string]string {
	return map[string]string{
		"bridge": `{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "macspoofchk": true, ` + dualStack + `}, ` + chainedPlugins,
		"ptp":    `{"type": "ptp", "ipMasq": true, ` + dualStack + `}, ` + chainedPlugins,
		"macvlan": `{"type": "macvlan", "master": "uplink0", "optimisticDAD": true, ` + dualStack + `},
			{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400, "promisc": true}`,
	}
}

const chainedPlugins = `{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
	{"type": "bandwidth", "capabilities": {"bandwidth": true}},
	{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400, "promisc": true, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}`

// attacks returns commands that a container with NET_ADMIN can run on its own interface. The
// key completes the sentence "a container that …".
func attacks() map[string]string {
	return map[string]string{
		"renames its interface":                                      "ip link set eth0 down; ip link set eth0 name evil0; ip link set evil0 up",
		"deletes its interface":                                      "ip link del eth0",
		"moves its interface to another namespace":                   "ip link set eth0 netns $ELSEWHERE",
		"renames its interface and moves it to another namespace":    "ip link set eth0 down; ip link set eth0 name evil0; ip link set evil0 netns $ELSEWHERE",
		"changes the addresses, MAC, MTU and flags of its interface": "ip addr flush dev eth0; ip link set eth0 down address 02:66:66:66:66:66 mtu 1300 promisc off; ip addr add 10.66.6.6/8 dev eth0",
		"adds its neighbor's addresses to its interface":             "ip addr add 10.1.0.2/16 dev eth0; ip addr add fd00:1::2/64 dev eth0; ip link set eth0 up",
		"sets its neighbor's alias on its interface":                 "ip link set eth0 alias plumb:net1/stays/eth0",
		"replaces its interface by a veth":                           "ip link set eth0 down; ip link set eth0 name evil0; ip link add eth0 type veth peer name evil1; ip link set eth0 up",
		"replaces its interface by a veth with its neighbor's alias": "ip link del eth0; ip link add eth0 type veth peer name evil1; ip link set eth0 alias plumb:net1/stays/eth0",
		"replaces the qdiscs of its interface":                       "tc qdisc del dev eth0 root; tc qdisc add dev eth0 root handle 1: tbf rate 1mbit burst 10000 latency 1ms; tc qdisc add dev eth0 ingress",
		"changes its sysctls":                                        "for f in /proc/sys/net/ipv4/conf/*/arp_filter; do echo 0 >$f; done; echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; ip link set lo down",
	}
}

// removals returns the ways in which the runtime removes the malicious container. The functions get this container,
// and another container that remains attached.
func removals() map[string]func(*testNetwork, *cnitest.Container, *cnitest.Container) error {
	return map[string]func(network *testNetwork, evil, stays *cnitest.Container) error{
		"DEL": func(network *testNetwork, evil, _ *cnitest.Container) error { return network.Del(evil) },
		"DEL without a cache": func(network *testNetwork, evil, _ *cnitest.Container) error {
			return network.WithoutCache(func() error { return network.Del(evil.IDOnly()) })
		},
		"DEL without a namespace": func(network *testNetwork, evil, _ *cnitest.Container) error {
			evil.Remove(GinkgoTB())
			return network.Del(evil)
		},
		"GC": func(network *testNetwork, evil, stays *cnitest.Container) error {
			evil.Remove(GinkgoTB())
			return network.WithoutCache(func() error { return network.GC(stays) })
		},
	}
}

// stableState returns the state without the files that each ADD changes.
func (network *testNetwork) stableState() string {
	lines := strings.Split(network.state(), "\n")
	return strings.Join(slices.DeleteFunc(lines, func(line string) bool {
		return strings.HasPrefix(line, "file ") && (strings.Contains(line, "last_reserved_ip") || strings.Contains(line, ".plumb/"))
	}), "\n")
}

var _ = Describe("a container that", func() {
	i := 0
	for _, attack := range sortedKeys(attacks()) {
		for _, chain := range sortedKeys(chains()) {
			for _, removal := range sortedKeys(removals()) {
				if i++; !nstest.AllFaults() && i%5 != 0 {
					continue
				}
				It(fmt.Sprintf("%s leaves nothing on the host: %s, %s", attack, chain, removal), func() {
					network := newTestNetwork(chains()[chain])
					stays := network.addContainer("stays", 8001)
					before := nstest.WaitStable(network.stableState)
					evil, elsewhere := network.addContainer("evil", 8002), nstest.New(GinkgoTB())
					_, err := evil.Exec("sh", "-c", "ELSEWHERE="+elsewhere.Path()+"\n"+attacks()[attack])
					_ = err // commands may fail, because not every network supports them
					wrong := removals()[removal](network, evil, stays)
					if chain == "macvlan" { // the kernel deletes a moved macvlan with its namespace
						evil.Remove(GinkgoTB())
						elsewhere.Remove(GinkgoTB())
					}
					wrong = errors.Join(wrong, waitUnchanged(before, network.stableState))
					if !strings.Contains(attack, "neighbor's addresses") { // CHECK may report the duplicate address
						wrong = errors.Join(wrong, network.Check(stays))
					}
					record("security: a container that "+attack, wrong == nil)
					Expect(wrong).NotTo(HaveOccurred())
				})
			}
		}
	}
})

func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}

// A flood sends router advertisements from an interface of a namespace until end is called. It pauses while the
// interface is missing or down.
type flood struct {
	stop, done chan struct{}
	sent       atomic.Int64
}

// startFlood starts a flood. The advertisements contain a default route and a prefix.
func startFlood(n *nstest.NS, ifName string) *flood {
	f := &flood{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer GinkgoRecover()
		defer close(f.done)
		Expect(n.Do(func() error { return f.run(ifName) })).To(Succeed())
	}()
	DeferCleanup(f.end)
	return f
}

// end stops the flood and waits until it has stopped.
func (f *flood) end() {
	select {
	case <-f.stop:
	default:
		close(f.stop)
	}
	<-f.done
}

// await waits until more than n advertisements were sent.
func (f *flood) await(n int64) {
	GinkgoHelper()
	Eventually(f.sent.Load).Should(BeNumerically(">", n))
}

func (f *flood) run(ifName string) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	frame := advertisement()
	for {
		select {
		case <-f.stop:
			return nil
		default:
		}
		in, err := net.InterfaceByName(ifName)
		if err != nil {
			continue
		}
		copy(frame[6:], in.HardwareAddr)
		to := &unix.SockaddrLinklayer{Ifindex: in.Index, Protocol: htons(unix.ETH_P_IPV6)}
		if unix.Sendto(fd, frame, 0, to) == nil {
			f.sent.Add(1)
		}
	}
}

func htons(n uint16) uint16 { return n<<8 | n>>8 }

// advertisement returns an Ethernet frame with a router advertisement (RFC 4861, section 4.2). It announces a
// default router for half an hour, and a prefix for address autoconfiguration.
func advertisement() []byte {
	from, to := net.ParseIP("fe80::bad"), net.ParseIP("ff02::1")
	ra := []byte{134, 0, 0, 0, 64, 0, 1800 >> 8, 1800 & 0xff, 0, 0, 0, 0, 0, 0, 0, 0}
	prefix := append([]byte{3, 4, 64, 0xc0, 0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff, 0, 0, 0, 0}, net.ParseIP("2001:db8:bad::")...)
	ra = append(ra, prefix...)
	pseudo := append(append(slices.Clone([]byte(from)), to...), 0, 0, 0, byte(len(ra)), 0, 0, 0, 58)
	binary.BigEndian.PutUint16(ra[2:], checksum(append(pseudo, ra...)))
	ip := append([]byte{0x60, 0, 0, 0, 0, byte(len(ra)), 58, 255}, from...)
	ip = append(ip, to...)
	frame := []byte{0x33, 0x33, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x86, 0xdd}
	return append(append(frame, ip...), ra...)
}

// checksum returns the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// learnedFromRA returns the routes and addresses that the namespace learned from router
// advertisements.
func learnedFromRA(n *nstest.NS) string {
	GinkgoHelper()
	routes := n.Must(GinkgoTB(), "ip", "-6", "route", "show", "table", "all", "proto", "ra")
	all := n.Must(GinkgoTB(), "sh", "-c", "ip -6 route show table all; ip -6 addr show")
	if strings.Contains(all, "2001:db8:bad") {
		routes += all
	}
	return routes
}

// acceptRAs configures a host to accept router advertisements on each new interface for which no plugin sets accept_ra. With
// the value 2, the host accepts them even if it forwards.
func acceptRAs(n *nstest.NS) {
	n.SetSysctl(GinkgoTB(), "net/ipv6/conf/default/accept_ra", "2")
	n.SetSysctl(GinkgoTB(), "net/ipv6/conf/all/accept_ra", "2")
}

// A monitor is a running `ip monitor` for IPv6 routes and addresses.
type monitor struct {
	cmd *exec.Cmd
	out strings.Builder
}

func startMonitor(n *nstest.NS) *monitor {
	GinkgoHelper()
	m := &monitor{cmd: exec.Command("ip", "-6", "monitor", "route", "address")}
	m.cmd.Stdout = &m.out
	Expect(n.Start(m.cmd)).To(Succeed())
	DeferCleanup(func() { m.end() })
	return m
}

// end stops `ip monitor` and returns its output.
func (m *monitor) end() string {
	if m.cmd.ProcessState == nil {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
	}
	return m.out.String()
}

var _ = Describe("router advertisements of a container", func() {
	It("are accepted without plumb's settings", func() {
		host, container := nstest.NewHostAndContainer(GinkgoTB())
		acceptRAs(host)
		f := startFlood(container, "eth0")
		host.Must(GinkgoTB(), "sh", "-ec", "ip link add host0 type veth peer name eth0 netns "+container.Path()+" && ip link set host0 up")
		container.Must(GinkgoTB(), "ip", "link", "set", "eth0", "up")
		Eventually(func() string { return learnedFromRA(host) }).Should(ContainSubstring("via fe80::bad"))
		f.end()
	})

	for _, chain := range sortedKeys(chains()) {
		It("change no route or address of the host or of another container that is not on a LAN, before, during and after ADD (CVE-2020-10749): "+chain, func() {
			network := newTestNetwork(chains()[chain])
			acceptRAs(network.Host)
			seen := startMonitor(network.Host)
			early := newContainer("early", 8001)
			first := startFlood(early.NS, "eth0") // sends as soon as ADD has created eth0
			Expect(network.Add(early)).To(Succeed())
			victim := network.addContainer("victim", 8002)
			first.await(200)
			late := network.addContainer("late", 8003)
			second := startFlood(late.NS, "eth0")
			second.await(200)
			wrong := errors.Join(network.Check(victim), network.Del(victim))
			again := network.addContainer("victim", 8002)
			bad := learnedFromRA(network.Host)
			if chain != "macvlan" { // on a LAN, a container accepts them by the kernel's default, as any host there
				bad += learnedFromRA(again.NS)
			}
			first.end()
			second.end()
			if text := seen.end(); strings.Contains(text, "proto ra") || strings.Contains(text, "2001:db8:bad") {
				bad += text
			}
			if bad != "" {
				wrong = errors.Join(wrong, errors.New(bad))
			}
			record("security: router advertisements", wrong == nil)
			Expect(wrong).NotTo(HaveOccurred())
		})
	}
})

// newSmallPool returns a pool for the network net1.
func newSmallPool() *pool {
	GinkgoHelper()
	p := newPool()
	p.name, p.ipam = "net1", `"subnet": "10.1.0.0/28", "cooldown": 1`
	return p
}

var _ = Describe("symbolic links in the directory of reservations", func() {
	// pkg/pool tests that links in the network's directory are not followed.
	It("are followed at the network's directory, but the target directory's files are not overwritten", func() {
		p, foreign := newSmallPool(), GinkgoTB().TempDir()
		Expect(os.MkdirAll(p.dataDir, 0o755)).To(Succeed())
		for _, name := range []string{"10.1.0.2", "10.1.0.3", "passwd", "releases", "new"} {
			Expect(os.WriteFile(filepath.Join(foreign, name), []byte("precious: "+name+"\n"), 0o644)).To(Succeed())
		}
		before := nstest.SnapshotDir(GinkgoTB(), foreign)
		Expect(os.Symlink(foreign, p.reservationDir())).To(Succeed())
		p.call("ADD", "next")
		p.call("DEL", "next")
		var lost []string
		for line := range strings.SplitSeq(nstest.Compare(before, nstest.SnapshotDir(GinkgoTB(), foreign)), "\n") {
			if strings.HasPrefix(line, "- ") && !strings.Contains(line, "- d") && strings.Contains(line, "precious") {
				lost = append(lost, line)
			}
		}
		// host-local may delete a file that is named like an address and names no owner, because the file may be an
		// incomplete reservation from a crash.
		lost = slices.DeleteFunc(lost, func(line string) bool { return strings.Contains(line, " 10.1.0.") })
		record("security: symbolic links", len(lost) == 0)
		Expect(lost).To(BeEmpty())
	})
})

// A badName is an invalid name that a plugin must reject.
type badName struct {
	description string
	set         func(*nstest.Call) // puts the name into the call
	code        uint               // the code of the error
}

// badNames returns names and paths that would point outside of a directory.
func badNames() []badName {
	keys := func(old, new string) func(*nstest.Call) {
		return func(c *nstest.Call) { c.Config = strings.Replace(c.Config, old, new, 1) }
	}
	all := []badName{
		{"ipam.dataDir, relative", keys(`"DIR"`, `"../leases"`), 7},
		{"ipam.type", keys(`"host-local"`, `"../evil"`), 7},
		{"ipam.type, a path", keys(`"host-local"`, `"DIR/evil"`), 7},
		{"ipam.type, the directory above", keys(`"host-local"`, `".."`), 7},
	}
	for _, bad := range []string{"net1/../../net1", ".plumb", `net1\u0000`} { // pkg/skel tests more names
		all = append(all, badName{"name " + bad, keys(`"net1"`, `"`+bad+`"`), 7})
	}
	return append(all,
		badName{"CNI_CONTAINERID", func(c *nstest.Call) { c.ContainerID = "../net1" }, 4},
		badName{"CNI_IFNAME", func(c *nstest.Call) { c.IfName = "../net1" }, 4})
}

var _ = Describe("invalid names and paths", func() {
	for _, plugin := range []string{"bridge", "ptp", "macvlan"} {
		It("are rejected without changes, and the plugin runs no program outside of CNI_PATH (CVE-2021-20206): "+plugin, func() {
			site := nstest.NewSite(GinkgoTB())
			top := GinkgoTB().TempDir()
			dir := filepath.Join(top, "a", "b", "leases")
			bin := filepath.Join(top, "a", "bin")
			Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
			Expect(os.Symlink(nstest.Build(GinkgoTB(), plugin, "host-local"), bin)).To(Succeed())
			for _, at := range []string{filepath.Join(top, "a", "evil"), filepath.Join(dir, "evil"), filepath.Join(filepath.Dir(nstest.Build(GinkgoTB())), "evil")} {
				Expect(os.WriteFile(at, []byte("#!/bin/sh\necho ran >"+filepath.Join(top, "ran")+"\n"), 0o755)).To(Succeed())
				DeferCleanup(os.Remove, at)
			}
			container := nstest.New(GinkgoTB())
			state := func() string {
				return nstest.Snapshot(GinkgoTB(), site.Host, container) + "\n" + nstest.SnapshotDir(GinkgoTB(), top)
			}
			// This container creates the objects that containers share.
			nstest.Exec(GinkgoTB(), filepath.Join(bin, plugin), nstest.Call{Command: "ADD", Host: site.Host, Container: nstest.New(GinkgoTB()), Path: bin, Config: fmt.Sprintf(
				`{"cniVersion": "1.1.0", "name": "earlier", "type": %q, "master": "uplink0", "ipam": {"type": "host-local", "subnet": "10.2.0.0/24", "dataDir": %q}}`, plugin, dir)}).OK(GinkgoTB())
			before := nstest.WaitStable(state)
			for _, n := range badNames() {
				for _, verb := range []string{"ADD", "CHECK", "DEL"} {
					c := nstest.Call{Command: verb, Host: site.Host, Container: container, Path: bin, ContainerID: "c", Config: `{"cniVersion": "1.1.0", "name": "net1", "type": "` + plugin + `",
						"master": "uplink0", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "dataDir": "DIR"}}`}
					n.set(&c)
					c.Config = strings.ReplaceAll(c.Config, "DIR", dir)
					r := nstest.Exec(GinkgoTB(), filepath.Join(bin, plugin), c)
					diff := nstest.WaitEqual(before, state)
					held := diff == "" && (r.Exit != 0 && r.Failure(GinkgoTB()).Code == n.code || verb == "DEL" || verb == "CHECK" && r.Exit != 0)
					record("security: names", held)
					Expect(diff).To(BeEmpty(), "%s of %s", verb, n.description)
					Expect(held).To(BeTrue(), "%s of %s: %s", verb, n.description, r.Stdout)
				}
			}
		})
	}
})

var _ = Describe("reservations", func() {
	It("cannot be written by other users, whatever the umask (commit-33ccedc6)", func() {
		p := newSmallPool()
		wrapper := filepath.Join(GinkgoTB().TempDir(), "umask0")
		Expect(os.WriteFile(wrapper, []byte("#!/bin/sh\numask 0\nexec "+p.bin+"\n"), 0o755)).To(Succeed())
		p.bin = wrapper
		for _, verb := range []string{"ADD", "CHECK", "DEL", "ADD"} {
			p.call(verb, "c").OK(GinkgoTB())
		}
		var wrong []string
		Expect(filepath.Walk(p.dataDir, func(path string, info os.FileInfo, err error) error {
			private := info.Mode().IsRegular() && filepath.Base(path) != "lock"
			if info.Mode().Perm()&0o022 != 0 || private && info.Mode().Perm()&0o077 != 0 {
				wrong = append(wrong, fmt.Sprintf("%s %s", info.Mode(), path))
			}
			return err
		})).To(Succeed())
		record("security: file modes", wrong == nil)
		Expect(wrong).To(BeEmpty())
	})
})

var _ = Describe("a CNI_NETNS that is the host's namespace", func() {
	It("is rejected by ADD and CHECK, and DEL does not change the host's own interfaces (plugins#714)", func() {
		bin := nstest.Build(GinkgoTB(), "bridge", "ptp", "macvlan", "ipvlan", "vlan", "loopback", "host-local", "portmap", "bandwidth", "tuning")
		site := nstest.NewSite(GinkgoTB())
		site.Host.Must(GinkgoTB(), "ip", "link", "add", "link", "uplink0", "name", "mac0", "type", "macvlan")
		before := nstest.WaitStable(func() string { return nstest.Snapshot(GinkgoTB(), site.Host) })
		for _, plugin := range []string{"bridge", "ptp", "macvlan", "ipvlan", "vlan", "loopback", "portmap", "bandwidth", "tuning"} {
			for _, ifName := range []string{"uplink0", "mac0", "lo"} {
				c := nstest.Call{Host: site.Host, Container: site.Host, Path: bin, IfName: ifName, Config: fmt.Sprintf(
					`{"cniVersion": "1.1.0", "name": "net1", "type": %q, "dataDir": "/nonexistent", "mtu": 1400, "master": "uplink0", "prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": %q, "sandbox": %q}]},
					"ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "dataDir": %q}}`, plugin, ifName, site.Host.Path(), GinkgoTB().TempDir())}
				nstest.Exec(GinkgoTB(), filepath.Join(bin, plugin), c.With("DEL"))
				var codes []uint
				for _, verb := range []string{"ADD", "CHECK"} {
					codes = append(codes, nstest.Exec(GinkgoTB(), filepath.Join(bin, plugin), c.With(verb)).Failure(GinkgoTB()).Code)
				}
				diff := nstest.Compare(before, nstest.Snapshot(GinkgoTB(), site.Host))
				refused := slices.Equal(codes, []uint{types.CodeNamespace, types.CodeNamespace})
				record("security: the host's own namespace", diff == "" && refused)
				Expect(diff).To(BeEmpty(), plugin)
				Expect(refused).To(BeTrue(), "%s: codes %v", plugin, codes)
			}
		}
	})
})
