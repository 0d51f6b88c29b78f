package faults

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/libcni"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/test/nstest"
)

// advisories says which test shows that an advisory of the field does not hold here; what
// is not in this file is shown in process, by the test of that name in that file.
//
// Not defended: packets of a container that conntrack calls invalid, which are not
// masqueraded and leak its address (cni issue 816, plugins issue 816).
const advisories = `
CVE-2025-67499 GHSA-jv3w-x3r3-g6rm GO-2025-4222  plugins/portmap/traffic_test.go    that is only passing by is left alone (CVE-2025-67499)
CVE-2019-9946                                    plugins/portmap/traffic_test.go    that a Service claims goes where the Service says (CVE-2019-9946)
CVE-2020-8558                                    plugins/portmap/traffic_test.go    of a neighbour does not reach the node's 127.0.0.1 (CVE-2020-8558)
CVE-2020-10749 GHSA-fx6x-h9g4-56f8 GHSA-pf59-j7c2-rh6x CVE-2020-13401 CVE-2020-13597  test/faults/hostile_test.go  change no route of the node
CVE-2021-20206                                   test/faults/hostile_test.go        runs no program outside of CNI_PATH
plugins#798                                      test/faults/hostile_test.go        sets no sysctl outside of net
commit-33ccedc6                                  test/faults/hostile_test.go        are written by nobody else
plugins#714                                      test/faults/hostile_test.go        leave the node's own interfaces alone
vpc-cni#3634                                     plugins/host-local/verbs_test.go   keeps a released address back
vpc-cni#3634                                     pkg/attach/attach_test.go          TestFlowsOfAnAddressAreForgotten
k8s#43953                                        test/faults/hostile_test.go        drops frames under a foreign MAC
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
		// In this file the name stands in the table, too.
		found := strings.Count(string(text), name)
		if found == 0 || strings.HasSuffix(file, "hostile_test.go") && found < 2 {
			t.Errorf("%s has no test %q", file, name)
		}
	}
}

// chains are the networks that a hostile container is in.
func chains() map[string]string {
	return map[string]string{
		"bridge": `{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "macspoofchk": true, ` + dualStack + `}, ` + beside,
		"ptp":    `{"type": "ptp", "ipMasq": true, ` + dualStack + `}, ` + beside,
		"macvlan": `{"type": "macvlan", "master": "uplink0", "optimisticDAD": true, ` + dualStack + `},
			{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400, "promisc": true}`,
	}
}

const beside = `{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
	{"type": "bandwidth", "capabilities": {"bandwidth": true}},
	{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400, "promisc": true, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}`

// pranks are what a container with NET_ADMIN can do to its own interface.
func pranks() map[string]string {
	return map[string]string{
		"renames it":                         "ip link set eth0 down; ip link set eth0 name evil0; ip link set evil0 up",
		"deletes it":                         "ip link del eth0",
		"moves it away":                      "ip link set eth0 netns $ELSEWHERE",
		"moves it away under another name":   "ip link set eth0 down; ip link set eth0 name evil0; ip link set evil0 netns $ELSEWHERE",
		"changes all of it":                  "ip addr flush dev eth0; ip link set eth0 down address 02:66:66:66:66:66 mtu 1300 promisc off; ip addr add 10.66.6.6/8 dev eth0",
		"gives it its neighbour's addresses": "ip addr add 10.1.0.2/16 dev eth0; ip addr add fd00:1::2/64 dev eth0; ip link set eth0 up",
		"says that it is its neighbour's":    "ip link set eth0 alias plumb:lab/stays/eth0",
		"puts another in its place":          "ip link set eth0 down; ip link set eth0 name evil0; ip link add eth0 type veth peer name evil1; ip link set eth0 up",
		"puts a neighbour's in its place":    "ip link del eth0; ip link add eth0 type veth peer name evil1; ip link set eth0 alias plumb:lab/stays/eth0",
		"shapes it":                          "tc qdisc del dev eth0 root; tc qdisc add dev eth0 root handle 1: tbf rate 1mbit burst 10000 latency 1ms; tc qdisc add dev eth0 ingress",
		"makes its sysctls useless":          "for f in /proc/sys/net/ipv4/conf/*/arp_filter; do echo 0 >$f; done; echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; ip link set lo down",
	}
}

// ends are the ways in which its life ends.
func ends() map[string]func(*lab, *guest, *guest) error {
	return map[string]func(l *lab, evil, stays *guest) error{
		"DEL":              func(l *lab, evil, _ *guest) error { return l.del(evil) },
		"DEL without all":  func(l *lab, evil, _ *guest) error { return l.forgetful(func() error { return l.del(evil.bare()) }) },
		"DEL after its ns": func(l *lab, evil, _ *guest) error { evil.Remove(GinkgoTB()); return l.del(evil) },
		"GC": func(l *lab, evil, stays *guest) error {
			evil.Remove(GinkgoTB())
			return l.forgetful(func() error { return l.gc(stays) })
		},
	}
}

// bare is all that a runtime knows that has lost the rest.
func (g *guest) bare() *guest {
	return &guest{NS: g.NS, rt: &libcni.RuntimeConf{ContainerID: g.rt.ContainerID, IfName: g.rt.IfName}}
}

// forgetful does f with a runtime that has lost its cache: libcni deletes in a GC what
// it knows of.
func (l *lab) forgetful(f func() error) error {
	knowing := l.cni
	defer func() { l.cni = knowing }()
	l.forget()
	return f()
}

func (l *lab) gc(valid ...*guest) error {
	args := &libcni.GCArgs{}
	for _, g := range valid {
		args.ValidAttachments = append(args.ValidAttachments, cnitypes.GCAttachment{ContainerID: g.rt.ContainerID, IfName: g.rt.IfName})
	}
	return l.cni.GCNetworkList(context.Background(), l.list, args)
}

// live is state without what moves on with each ADD.
func (l *lab) live() string {
	lines := strings.Split(l.state(), "\n")
	return strings.Join(slices.DeleteFunc(lines, func(line string) bool {
		return strings.HasPrefix(line, "file ") && (strings.Contains(line, "last_reserved_ip") || strings.Contains(line, ".plumb/"))
	}), "\n")
}

var _ = Describe("a container that", func() {
	i := 0
	for _, prank := range sorted(pranks()) {
		for _, chain := range sorted(chains()) {
			for _, end := range sorted(ends()) {
				if i++; !all() && i%5 != 0 {
					continue
				}
				It(fmt.Sprintf("%s leaves nothing on the node: %s, %s", prank, chain, end), func() {
					l := newLab(chains()[chain])
					stays := l.attached("stays", 8001)
					before := nstest.Steady(l.live)
					evil, elsewhere := l.attached("evil", 8002), nstest.New(GinkgoTB())
					_, err := evil.Exec("sh", "-c", "ELSEWHERE="+elsewhere.Path()+"\n"+pranks()[prank])
					_ = err // some of it may not be possible there
					wrong := ends()[end](l, evil, stays)
					if chain == "macvlan" { // what was hidden in a namespace goes with that
						evil.Remove(GinkgoTB())
						elsewhere.Remove(GinkgoTB())
					}
					wrong = errors.Join(wrong, settled(before, l.live))
					if !strings.Contains(prank, "neighbour's addresses") { // which CHECK may tell
						wrong = errors.Join(wrong, l.check(stays))
					}
					tried("hostile: a container that "+prank, wrong == nil)
					Expect(wrong).NotTo(HaveOccurred())
				})
			}
		}
	}
})

func settled(before string, state func() string) error {
	if diff := nstest.Settled(before, state); diff != "" {
		return fmt.Errorf("not as before:\n%s", diff)
	}
	return nil
}

func sorted[V any](m map[string]V) []string {
	var all []string
	for key := range m {
		all = append(all, key)
	}
	slices.Sort(all)
	return all
}

// A flood sends router advertisements out of eth0 of a namespace, as soon as it has one
// that is up and for as long as it lasts.
type flood struct {
	stop, done chan struct{}
	sent       atomic.Int64
}

// advertise begins a flood; the default route and the prefix are such as no node
// should want.
func advertise(n *nstest.NS, ifName string) *flood {
	f := &flood{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer GinkgoRecover()
		defer close(f.done)
		Expect(n.Do(func() error { return f.run(ifName) })).To(Succeed())
	}()
	DeferCleanup(f.end)
	return f
}

func (f *flood) end() {
	select {
	case <-f.stop:
	default:
		close(f.stop)
	}
	<-f.done
}

// await waits until so many are sent.
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

// advertisement is an Ethernet frame with a router advertisement (RFC 4861, section 4.2):
// a default router for half an hour, and a prefix to make addresses of.
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

// advertised is what of the routes and addresses came by router advertisement.
func advertised(n *nstest.NS) string {
	GinkgoHelper()
	routes := n.Must(GinkgoTB(), "ip", "-6", "route", "show", "table", "all", "proto", "ra")
	prefix := n.Must(GinkgoTB(), "sh", "-c", "ip -6 route show table all; ip -6 addr show")
	if strings.Contains(prefix, "2001:db8:bad") {
		routes += prefix
	}
	return routes
}

// A credulous node takes router advertisements on each interface that has no setting of
// its own, even where it forwards.
func credulous(n *nstest.NS) {
	n.SetSysctl(GinkgoTB(), "net/ipv6/conf/default/accept_ra", "2")
	n.SetSysctl(GinkgoTB(), "net/ipv6/conf/all/accept_ra", "2")
}

// A record is what `ip monitor` said of routes and addresses.
type record struct {
	cmd *exec.Cmd
	out strings.Builder
}

func watch(n *nstest.NS) *record {
	GinkgoHelper()
	r := &record{cmd: exec.Command("ip", "-6", "monitor", "route", "address")}
	r.cmd.Stdout = &r.out
	Expect(n.Start(r.cmd)).To(Succeed())
	DeferCleanup(func() { r.end() })
	return r
}

func (r *record) end() string {
	if r.cmd.ProcessState == nil {
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
	}
	return r.out.String()
}

var _ = Describe("router advertisements of a container", func() {
	It("are such as a node that is not protected takes", func() {
		node, pod := nstest.Pair(GinkgoTB())
		credulous(node)
		f := advertise(pod, "eth0")
		node.Must(GinkgoTB(), "sh", "-ec", "ip link add host0 type veth peer name eth0 netns "+pod.Path()+" && ip link set host0 up")
		pod.Must(GinkgoTB(), "ip", "link", "set", "eth0", "up")
		Eventually(func() string { return advertised(node) }).Should(ContainSubstring("via fe80::bad"))
		f.end()
	})

	for _, chain := range sorted(chains()) {
		It("change no route of the node, nor of a neighbour, before, during and after ADD (CVE-2020-10749): "+chain, func() {
			l := newLab(chains()[chain])
			credulous(l.Node)
			seen := watch(l.Node)
			early := l.guest("early", 8001)
			first := advertise(early.NS, "eth0") // before its own ADD, and then during
			Expect(l.add(early)).To(Succeed())
			victim := l.attached("victim", 8002)
			first.await(200)
			late := l.attached("late", 8003)
			second := advertise(late.NS, "eth0")
			second.await(200)
			wrong := errors.Join(l.check(victim), l.del(victim))
			again := l.attached("victim", 8002)
			bad := advertised(l.Node) + advertised(again.NS)
			first.end()
			second.end()
			if text := seen.end(); strings.Contains(text, "proto ra") || strings.Contains(text, "2001:db8:bad") {
				bad += text
			}
			if bad != "" {
				wrong = errors.Join(wrong, errors.New(bad))
			}
			tried("hostile: router advertisements", wrong == nil)
			Expect(wrong).NotTo(HaveOccurred())
		})
	}
})

var _ = Describe("macspoofchk", func() {
	It("drops frames under a foreign MAC, and no others (k8s#43953)", func() {
		l := newLab(`{"type": "bridge", "bridge": "cni0", "isGateway": true, "macspoofchk": true, "mac": "02:00:00:00:00:07", ` + dualStack + `}`)
		evil := l.attached("evil", 8001)
		reaches := func() error {
			evil.Must(GinkgoTB(), "ip", "neigh", "replace", "10.1.0.1", "lladdr", l.mac("cni0"), "dev", "eth0", "nud", "permanent")
			_, err := evil.Exec("ping", "-c", "1", "-W", "1", "10.1.0.1")
			return err
		}
		Expect(reaches()).To(Succeed())
		evil.Must(GinkgoTB(), "ip", "link", "set", "eth0", "address", "02:00:00:00:00:08")
		wrong := reaches()
		evil.Must(GinkgoTB(), "ip", "link", "set", "eth0", "address", "02:00:00:00:00:07")
		tried("hostile: foreign MAC", wrong != nil)
		Expect(wrong).To(HaveOccurred())
		Expect(reaches()).To(Succeed())
	})
})

// mac is the hardware address of an interface of the node.
func (l *lab) mac(name string) string {
	_, rest, _ := strings.Cut(l.Node.Must(GinkgoTB(), "ip", "-o", "link", "show", name), "link/ether ")
	mac, _, _ := strings.Cut(rest, " ")
	return mac
}

// A leaser is host-local as an interface plugin calls it, for one container.
type leaser struct{ dir, bin string }

func newLeaser() *leaser {
	return &leaser{dir: filepath.Join(GinkgoTB().TempDir(), "leases"), bin: filepath.Join(nstest.Build(GinkgoTB(), "host-local"), "host-local")}
}

func (h *leaser) call(verb, id string) nstest.Reply {
	return nstest.Exec(GinkgoTB(), h.bin, nstest.Call{Command: verb, ContainerID: id, NetNS: "/nowhere", Config: fmt.Sprintf(
		`{"cniVersion": "1.1.0", "name": "lab", "cni.dev/valid-attachments": [], "ipam": {"type": "host-local", "subnet": "10.1.0.0/28", "cooldown": 1, "dataDir": %q}}`, h.dir)})
}

// planted are links to a foreign file, in the folder of reservations and the one beside.
var planted = []string{
	"lab/10.1.0.2", "lab/10.1.0.3", "lab/last_reserved_ip.0", "lab/lock",
	".plumb/lab/new", ".plumb/lab/releases", ".plumb/lab/releases.new",
	".plumb/lab/*.*", ".plumb/lab/*.*/complete", ".plumb/lab/*.*/[0-9a-f]*[0-9a-f]",
}

var _ = Describe("symbolic links in the folder of reservations", func() {
	for _, at := range planted {
		for _, there := range []bool{true, false} {
			It(fmt.Sprintf("lead to no foreign file that is written: %s, a file: %t", at, there), func() {
				h := newLeaser()
				h.call("ADD", "earlier").OK(GinkgoTB())
				foreign := filepath.Join(filepath.Dir(h.dir), "foreign")
				Expect(os.Mkdir(foreign, 0o755)).To(Succeed())
				if there {
					Expect(os.WriteFile(filepath.Join(foreign, "file"), []byte("precious, and no name\n"), 0o644)).To(Succeed())
				}
				before := nstest.SnapshotDir(GinkgoTB(), foreign)
				path := filepath.Join(h.dir, at)
				if found, err := filepath.Glob(path); err == nil && len(found) > 0 {
					path = found[0]
				}
				Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
				Expect(os.RemoveAll(path)).To(Succeed())
				Expect(os.Symlink(filepath.Join(foreign, "file"), path)).To(Succeed())
				var said []string
				for _, verb := range []string{"ADD", "CHECK", "STATUS", "DEL", "ADD", "DEL", "GC"} {
					if r := h.call(verb, "next"); r.Exit != 0 {
						said = append(said, verb+": "+r.Stdout)
					}
				}
				diff := nstest.Compare(before, nstest.SnapshotDir(GinkgoTB(), foreign))
				told := len(said) == 0
				if at == "lab/lock" && !there { // no lock to be had: every verb says so
					told = len(said) == 7 && strings.Count(strings.Join(said, ""), "lab/lock: too many levels of symbolic links") == 7
				}
				tried("hostile: symbolic links", diff == "" && told)
				Expect(diff).To(BeEmpty())
				Expect(told).To(BeTrue(), strings.Join(said, ""))
			})
		}
	}

	It("may be the network's folder itself: no file that is there is written", func() {
		h := newLeaser()
		foreign := filepath.Join(filepath.Dir(h.dir), "foreign")
		Expect(os.MkdirAll(foreign, 0o755)).To(Succeed())
		Expect(os.MkdirAll(h.dir, 0o755)).To(Succeed())
		for _, name := range []string{"10.1.0.2", "10.1.0.3", "passwd", "complete", "releases", "new"} {
			Expect(os.WriteFile(filepath.Join(foreign, name), []byte("precious: "+name+"\n"), 0o644)).To(Succeed())
		}
		before := nstest.SnapshotDir(GinkgoTB(), foreign)
		Expect(os.Symlink(foreign, filepath.Join(h.dir, "lab"))).To(Succeed())
		h.call("ADD", "next")
		h.call("DEL", "next")
		var lost []string
		for line := range strings.SplitSeq(nstest.Compare(before, nstest.SnapshotDir(GinkgoTB(), foreign)), "\n") {
			if strings.HasPrefix(line, "- ") && !strings.Contains(line, "- d") && strings.Contains(line, "precious") {
				lost = append(lost, line)
			}
		}
		// A file of an address's name that is nobody's reservation is what a crash leaves.
		lost = slices.DeleteFunc(lost, func(line string) bool { return strings.Contains(line, " 10.1.0.") })
		tried("hostile: symbolic links", len(lost) == 0)
		Expect(lost).To(BeEmpty())
	})
})

// A name is one that is to be refused, and where it is given.
type name struct {
	what string
	give func(*nstest.Call)
	code uint
}

func names() []name {
	keys := func(old, new string) func(*nstest.Call) {
		return func(c *nstest.Call) { c.Config = strings.Replace(c.Config, old, new, 1) }
	}
	all := []name{
		{"ipam.dataDir, relative", keys(`"DIR"`, `"../leases"`), 7},
		{"ipam.type", keys(`"host-local"`, `"../evil"`), 7},
		{"ipam.type, a path", keys(`"host-local"`, `"DIR/evil"`), 7},
		{"ipam.type, the folder above", keys(`"host-local"`, `".."`), 7},
	}
	for _, bad := range []string{"..", "../lab", "lab/../../lab", "/lab", ".plumb", "-lab", "la b", "lab\u0000"} {
		quoted := strings.ReplaceAll(bad, "\x00", `\u0000`)
		all = append(all, name{fmt.Sprintf("name %q", bad), keys(`"lab"`, `"`+quoted+`"`), 7})
		if strings.Contains(bad, "\x00") { // no environment can hold it
			continue
		}
		all = append(all, name{fmt.Sprintf("CNI_CONTAINERID %q", bad), func(c *nstest.Call) { c.ContainerID = bad }, 4})
		if bad != "-lab" && bad != ".plumb" {
			all = append(all, name{fmt.Sprintf("CNI_IFNAME %q", bad), func(c *nstest.Call) { c.IfName = bad }, 4})
		}
	}
	return all
}

var _ = Describe("names that would lead elsewhere", func() {
	for _, plugin := range []string{"bridge", "ptp", "macvlan"} {
		It("are refused, and nothing is made, nor runs no program outside of CNI_PATH (CVE-2021-20206): "+plugin, func() {
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
			pod := nstest.New(GinkgoTB())
			state := func() string {
				return nstest.Snapshot(GinkgoTB(), site.Node, pod) + "\n" + nstest.SnapshotDir(GinkgoTB(), top)
			}
			// What the node shares is there already.
			nstest.Exec(GinkgoTB(), filepath.Join(bin, plugin), nstest.Call{Command: "ADD", Node: site.Node, Pod: nstest.New(GinkgoTB()), Path: bin, Config: fmt.Sprintf(
				`{"cniVersion": "1.1.0", "name": "earlier", "type": %q, "master": "uplink0", "ipam": {"type": "host-local", "subnet": "10.2.0.0/24", "dataDir": %q}}`, plugin, dir)}).OK(GinkgoTB())
			before := nstest.Steady(state)
			for i, n := range names() {
				for k, verb := range []string{"ADD", "CHECK", "DEL"} {
					if !all() && i%3 != k {
						continue
					}
					c := nstest.Call{Command: verb, Node: site.Node, Pod: pod, Path: bin, ContainerID: "c", Config: `{"cniVersion": "1.1.0", "name": "lab", "type": "` + plugin + `",
						"master": "uplink0", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "dataDir": "DIR"}}`}
					n.give(&c)
					c.Config = strings.ReplaceAll(c.Config, "DIR", dir)
					r := nstest.Exec(GinkgoTB(), filepath.Join(bin, plugin), c)
					diff := nstest.Settled(before, state)
					held := diff == "" && (r.Exit != 0 && r.Failure(GinkgoTB()).Code == n.code || verb == "DEL" || verb == "CHECK" && r.Exit != 0)
					tried("hostile: names", held)
					Expect(diff).To(BeEmpty(), "%s of %s", verb, n.what)
					Expect(held).To(BeTrue(), "%s of %s: %s", verb, n.what, r.Stdout)
				}
			}
		})
	}
})

var _ = Describe("tuning", func() {
	It("sets no sysctl outside of net, however its key is written (plugins#798)", func() {
		node, pod := nstest.Pair(GinkgoTB())
		program := filepath.Join(nstest.Build(GinkgoTB(), "tuning"), "tuning")
		for _, key := range []string{
			"kernel.nosuch", "kernel/nosuch", "net.ipv4/../../kernel/nosuch", "net/ipv4/../../kernel/nosuch", "net/../kernel/nosuch", "net./../kernel/nosuch",
			"net..kernel.nosuch/../../kernel/nosuch", "../proc/sys/net/x", "/net/ipv4/x", "net", "net/", "net/..", ".net.ipv4.x", "NET.ipv4.x", "net/ipv4/conf/IFNAME/../../../../kernel/nosuch",
		} {
			r := nstest.Exec(GinkgoTB(), program, nstest.Call{Command: "ADD", Node: node, Pod: pod, Config: fmt.Sprintf(
				`{"cniVersion": "1.1.0", "name": "lab", "type": "tuning", "dataDir": %q, "sysctl": {%q: "1"}, "prevResult": {"cniVersion": "1.1.0"}}`, GinkgoTB().TempDir(), key)})
			f := r.Failure(GinkgoTB())
			held := f.Code == 7 && (strings.Contains(f.Msg, "invalid net sysctl key") || strings.Contains(f.Msg, "read sysctl net/"))
			tried("hostile: sysctl keys", held)
			Expect(held).To(BeTrue(), "%s: %s", key, f)
		}
	})
})

var _ = Describe("reservations", func() {
	It("are written by nobody else, whatever the umask (commit-33ccedc6)", func() {
		h := newLeaser()
		loose := filepath.Join(GinkgoTB().TempDir(), "loose")
		Expect(os.WriteFile(loose, []byte("#!/bin/sh\numask 0\nexec "+h.bin+"\n"), 0o755)).To(Succeed())
		h.bin = loose
		for _, verb := range []string{"ADD", "CHECK", "DEL", "ADD"} {
			h.call(verb, "c").OK(GinkgoTB())
		}
		var wrong []string
		Expect(filepath.Walk(h.dir, func(path string, info os.FileInfo, err error) error {
			private := info.Mode().IsRegular() && filepath.Base(path) != "lock"
			if info.Mode().Perm()&0o022 != 0 || private && info.Mode().Perm()&0o077 != 0 {
				wrong = append(wrong, fmt.Sprintf("%s %s", info.Mode(), path))
			}
			return err
		})).To(Succeed())
		tried("hostile: file modes", wrong == nil)
		Expect(wrong).To(BeEmpty())
	})
})

var _ = Describe("a CNI_NETNS that is the node's by now", func() {
	It("has DEL leave the node's own interfaces alone, and ADD refuse (plugins#714)", func() {
		bin := nstest.Build(GinkgoTB(), "bridge", "ptp", "macvlan", "loopback", "host-local", "portmap", "bandwidth", "tuning")
		site := nstest.NewSite(GinkgoTB())
		site.Node.Must(GinkgoTB(), "ip", "link", "add", "link", "uplink0", "name", "mac0", "type", "macvlan")
		before := nstest.Steady(func() string { return nstest.Snapshot(GinkgoTB(), site.Node) })
		for _, plugin := range []string{"bridge", "ptp", "macvlan", "loopback", "portmap", "bandwidth", "tuning"} {
			for _, ifName := range []string{"uplink0", "mac0", "lo"} {
				c := nstest.Call{Node: site.Node, Pod: site.Node, Path: bin, IfName: ifName, Config: fmt.Sprintf(
					`{"cniVersion": "1.1.0", "name": "lab", "type": %q, "dataDir": "/nonexistent", "mtu": 1400, "master": "uplink0", "prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": %q, "sandbox": %q}]},
					"ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "dataDir": %q}}`, plugin, ifName, site.Node.Path(), GinkgoTB().TempDir())}
				nstest.Exec(GinkgoTB(), filepath.Join(bin, plugin), c.With("DEL"))
				code := nstest.Exec(GinkgoTB(), filepath.Join(bin, plugin), c.With("ADD")).Failure(GinkgoTB()).Code
				diff := nstest.Compare(before, nstest.Snapshot(GinkgoTB(), site.Node))
				tried("hostile: the node's own namespace", diff == "" && code == 8)
				Expect(diff).To(BeEmpty(), plugin)
				Expect(code).To(BeEquivalentTo(8), plugin)
			}
		}
	})
})
