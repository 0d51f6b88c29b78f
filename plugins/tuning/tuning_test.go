package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/statefile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// prevResult is the result of the earlier plugins. It lists interfaces of the same name on the host and in another
// container.
const prevResult = `{"cniVersion": "1.1.0", "interfaces": [
	{"name": "eth0", "mac": "02:00:00:00:00:aa", "mtu": 9000},
	{"name": "eth0", "mac": "02:00:00:00:00:01", "mtu": 1500, "sandbox": "SANDBOX"},
	{"name": "eth1", "mac": "02:00:00:00:00:bb", "sandbox": "SANDBOX"},
	{"name": "eth0", "mac": "02:00:00:00:00:cc", "mtu": 8000, "sandbox": "/another"}],
	"ips": [{"interface": 1, "address": "10.1.0.2/24"}], "routes": [{"dst": "0.0.0.0/0"}], "dns": {"domain": "d"}}`

// everything configures every setting, and three sysctls with different separators.
const everything = `"mac": "C2:B0:57:49:47:F1", "mtu": 1454, "promisc": true, "allmulti": true, "txQLen": 20000,
	"sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "1", "net/ipv4/conf/IFNAME/arp_announce": "2", "net.ipv4.ping_group_range": "0 2147483647"}`

// withEth0 returns a function that creates the interface eth0, with a carrier, in a container. It prevents
// link-local addresses, which could appear and disappear during a test.
func withEth0(tb nstest.TB) func(*nstest.NS) {
	return func(container *nstest.NS) {
		tb.Helper()
		container.Batch(tb, "link add eth0 address 02:00:00:00:00:01 type veth peer name far",
			"link set eth0 addrgenmode none", "link set far addrgenmode none", "link set eth0 up", "link set far up")
		nstest.Must(tb, awaitCarrier(container, "eth0", "far"))
	}
}

func awaitCarrier(container *nstest.NS, names ...string) error {
	h, err := ns.Open(container.Path(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = h.Close() }()
	c, err := nl.Open(h)
	for _, name := range names {
		if err != nil {
			return err
		}
		var l nl.Link
		if l, err = c.Link(name); err == nil {
			err = c.AwaitRunning(l, time.Minute)
		}
	}
	return err
}

var _ = Describe("tuning", func() {
	var host, container *nstest.NS
	var call nstest.Call
	var dir, allow string
	var state func() string

	BeforeEach(func() {
		nstest.LeakCheck(GinkgoTB())
		host, container = nstest.NewHostAndContainer(GinkgoTB())
		withEth0(GinkgoTB())(container)
		dir, allow = filepath.Join(GinkgoTB().TempDir(), "state"), filepath.Join(GinkgoTB().TempDir(), "allowlist.conf")
		call = nstest.Call{Host: host, Container: container}
		state = func() string { // without the directory, which attachments share
			files := strings.TrimPrefix(nstest.SnapshotDir(GinkgoTB(), dir), "drwx------ .")
			return nstest.Snapshot(GinkgoTB(), host, container) + files
		}
	})

	// conf returns a configuration with these keys, without prevResult.
	conf := func(keys string) string {
		return strings.ReplaceAll(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "type": "tuning", "dataDir": %q, %s}`, dir, keys), ", }", "}")
	}
	withPrev := func(config string) string {
		return strings.TrimSuffix(config, "}") + `, "prevResult": ` + strings.ReplaceAll(prevResult, "SANDBOX", container.Path()) + "}"
	}
	run := func(command, keys string) nstest.Reply {
		GinkgoHelper()
		if strings.Contains(keys, "ping_group_range") {
			nstest.RequireRoot(GinkgoTB(), "because ping_group_range contains groups of the host")
		}
		c := call.With(command)
		c.Config = withPrev(conf(keys))
		return nstest.Run(machine{allowlist: allow}.plugin(), c)
	}
	file := func() string { return filepath.Join(dir, "test_eth0.json") }
	link := func() string {
		GinkgoHelper()
		return container.IP("-d link show eth0")
	}
	get := func(key string) string { return container.Sysctl(GinkgoTB(), key) }

	Describe("ADD", func() {
		It("configures every setting, and DEL restores it", func() {
			before := nstest.WaitStable(state)
			run("ADD", everything).OK(GinkgoTB())
			Expect(link()).To(And(ContainSubstring("c2:b0:57:49:47:f1"), ContainSubstring("mtu 1454"), ContainSubstring("PROMISC"),
				ContainSubstring("ALLMULTI"), ContainSubstring("qlen 20000")))
			Expect(get("net/ipv4/conf/eth0/arp_notify")).To(Equal("1"))
			Expect(get("net/ipv4/conf/eth0/arp_announce")).To(Equal("2"))
			Expect(get("net/ipv4/ping_group_range")).To(Equal("0\t2147483647"))
			run("CHECK", everything).OK(GinkgoTB())

			Expect(run("DEL", everything).OK(GinkgoTB())).To(Equal(nstest.Reply{}))
			Expect(get("net/ipv4/ping_group_range")).To(Equal("1\t0"))
			Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
			run("DEL", everything).OK(GinkgoTB())
		})

		It("writes the saved state in the reference plugin's form, followed by plumb's own keys", func() {
			run("ADD", everything).OK(GinkgoTB())
			text, err := os.ReadFile(file())
			Expect(err).NotTo(HaveOccurred())
			numbers := regexp.MustCompile(`"(netns|ifindex)": \d+`)
			nstest.Golden(GinkgoTB(), "saved.json", numbers.ReplaceAllString(string(text), `"$1": NUMBER`))
			// The reference plugin wrote this for the same configuration.
			Expect(string(text)).To(HavePrefix("{\n \"mac\": \"02:00:00:00:00:01\",\n \"promisc\": false,\n \"mtu\": 1500,\n \"allmulti\": false,\n \"txQLen\": 1000,\n"))
			info, err := os.Stat(file())
			Expect(err).NotTo(HaveOccurred())
			Expect(info.Mode()).To(Equal(fs.FileMode(0o600)))
			info, err = os.Stat(dir)
			Expect(err).NotTo(HaveOccurred())
			Expect(info.Mode().Perm()).To(Equal(fs.FileMode(0o700)))
		})

		It("saves only what it changes", func() {
			run("ADD", `"mtu": 1400`).OK(GinkgoTB())
			Expect(os.ReadFile(file())).To(MatchRegexp("^\\{\n \"mtu\": 1500,\n \"network\": \"net\",\n \"netns\": \\d+,\n \"ifindex\": \\d+\n\\}$"))
		})

		It("records MAC and MTU in the result only for the container's interface", func() {
			result := run("ADD", everything).Result(GinkgoTB())
			Expect(result.Interfaces[1].MAC).To(Equal("c2:b0:57:49:47:f1"))
			Expect(result.Interfaces[1].MTU).To(Equal(1454))
			Expect(result.Interfaces[0].MAC).To(Equal("02:00:00:00:00:aa"))
			Expect(result.Interfaces[0].MTU).To(Equal(9000))
			Expect(result.Interfaces[2].MAC).To(Equal("02:00:00:00:00:bb"))
			Expect(result.Interfaces[3].MAC).To(Equal("02:00:00:00:00:cc"))
			Expect(result.Interfaces[3].MTU).To(Equal(8000))
			Expect(result.IPs).To(HaveLen(1))
			Expect(result.Routes).To(HaveLen(1))
			Expect(result.DNS.Domain).To(Equal("d"))
		})

		It("does nothing if nothing is configured", func() {
			before := nstest.WaitStable(state)
			var steps *[]string
			call, steps = call.RecordSteps()
			Expect(run("ADD", "").OK(GinkgoTB()).Stdout).To(MatchJSON(strings.ReplaceAll(prevResult, "SANDBOX", container.Path())))
			run("CHECK", "").OK(GinkgoTB())
			Expect(*steps).To(BeEmpty())
			Expect(nstest.Compare(before, state())).To(BeEmpty())
		})

		It("sets sysctls in the container only, even without the interface, and opens no netlink socket for them", func() {
			before := nstest.Snapshot(GinkgoTB(), host)
			var steps *[]string
			call, steps = call.RecordSteps()
			call.IfName = "none"
			keys := `"sysctl": {"net.ipv4.ip_forward": "1", "net.ipv4.conf.all.arp_notify": "1"}`
			run("ADD", keys).OK(GinkgoTB())
			Expect(get("net/ipv4/ip_forward")).To(Equal("1"))
			Expect(nstest.Compare(before, nstest.Snapshot(GinkgoTB(), host))).To(BeEmpty())
			run("CHECK", keys).OK(GinkgoTB())
			run("DEL", "").OK(GinkgoTB())
			Expect(get("net/ipv4/ip_forward")).To(Equal("0"))
			Expect(*steps).To(ContainElement("read sysctl net/ipv4/ip_forward"))
			Expect(*steps).NotTo(ContainElement(ContainSubstring("netlink")))
		})

		DescribeTable("finds the sysctl of an interface with a dot in its name",
			func(ifName, key string) {
				container.IP("link add eth0.100 type veth peer name far.100")
				call.IfName = ifName
				run("ADD", fmt.Sprintf(`"sysctl": {%q: "1"}`, key)).OK(GinkgoTB())
				Expect(get("net/ipv4/conf/eth0.100/arp_notify")).To(Equal("1"))
				run("CHECK", fmt.Sprintf(`"sysctl": {%q: "1"}`, key)).OK(GinkgoTB())
				run("DEL", "").OK(GinkgoTB())
				Expect(get("net/ipv4/conf/eth0.100/arp_notify")).To(Equal("0"))
			},
			Entry(nil, "eth0.100", "net.ipv4.conf.IFNAME.arp_notify"),
			Entry(nil, "eth0.100", "net/ipv4/conf/IFNAME/arp_notify"),
			Entry(nil, "eth0", "net/ipv4/conf/eth0.100/arp_notify"),
			Entry(nil, "eth0", "net.ipv4.conf.eth0/100.arp_notify"),
			Entry("dots and slashes, as in the reference plugin", "eth0.100", "net.ipv4/conf/IFNAME/arp_notify"),
		)

		It("writes the sysctl of an interface after the sysctl of \"all\", which overwrites it", func() {
			keys := `"sysctl": {"net.ipv4.conf.eth0.forwarding": "0", "net.ipv4.conf.all.forwarding": "1"}`
			before := nstest.WaitStable(state)
			run("ADD", keys).OK(GinkgoTB())
			Expect(get("net/ipv4/conf/eth0/forwarding")).To(Equal("0"))
			Expect(get("net/ipv4/conf/far/forwarding")).To(Equal("1"))
			run("DEL", keys).OK(GinkgoTB())
			Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
		})

		It("sets a sysctl that cannot be read, and restores an empty list", func() {
			keys := `"sysctl": {"net.ipv4.route.flush": "1", "net.ipv6.conf.IFNAME.stable_secret": "fd00::1", "net.ipv4.ip_local_reserved_ports": "8080,9000-9010"}`
			run("ADD", keys).OK(GinkgoTB())
			Expect(get("net/ipv4/ip_local_reserved_ports")).To(Equal("8080,9000-9010"))
			run("CHECK", strings.Replace(keys, "fd00::1", "fd00:0000:0000:0000:0000:0000:0000:0001", 1)).OK(GinkgoTB())
			run("DEL", keys).OK(GinkgoTB())
			Expect(get("net/ipv4/ip_local_reserved_ports")).To(BeEmpty())
		})

		It("restores the IPv6 sysctls that a small MTU removes", func() {
			container.SetSysctl(GinkgoTB(), "net/ipv6/conf/eth0/accept_ra", "0")
			keys := `"mtu": 1000, "sysctl": {"net.ipv6.conf.IFNAME.accept_ra": "2"}`
			run("ADD", keys).OK(GinkgoTB())
			run("DEL", keys).OK(GinkgoTB())
			Expect(get("net/ipv6/conf/eth0/accept_ra")).To(Equal("0"))
			Expect(link()).To(ContainSubstring("mtu 1500"))
		})

		It("turns allmulti off, but not promisc, if both are false", func() {
			container.IP("link set eth0 allmulticast on promisc on")
			run("ADD", `"allmulti": false, "promisc": false`).OK(GinkgoTB())
			Expect(link()).To(And(Not(ContainSubstring("ALLMULTI")), ContainSubstring("PROMISC")), "promisc false changes nothing")
			run("DEL", "").OK(GinkgoTB())
			Expect(link()).To(ContainSubstring("ALLMULTI"))
		})

		It("keeps the original state if a chain lists tuning twice", func() {
			before := nstest.WaitStable(state)
			run("ADD", `"mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "1"}`).OK(GinkgoTB())
			run("ADD", `"mtu": 1300, "txQLen": 5, "sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "0", "net.ipv4.ip_forward": "1"}`).OK(GinkgoTB())
			Expect(link()).To(ContainSubstring("mtu 1300"))
			run("DEL", "").OK(GinkgoTB())
			Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
			run("DEL", "").OK(GinkgoTB())
		})

		It("restores the state of the first ADD if a second one fails", func() {
			run("ADD", `"mtu": 1400`).OK(GinkgoTB())
			before := nstest.WaitStable(state)
			run("ADD", `"mtu": 1300, "txQLen": 5, "sysctl": {"net.ipv4.ip_forward": "nonsense"}`).Failure(GinkgoTB())
			Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
		})

		It("restores a list that is longer than a page", func() {
			var ports []string
			for port := 10001; port < 20000; port += 2 {
				ports = append(ports, fmt.Sprint(port))
			}
			long := strings.Join(ports, ",")
			keys := `"sysctl": {"net.ipv4.ip_local_reserved_ports": "8080"}`
			run("ADD", strings.Replace(keys, "8080", long, 1)).OK(GinkgoTB())
			call.ContainerID = "second"
			run("ADD", keys).OK(GinkgoTB())
			Expect(get("net/ipv4/ip_local_reserved_ports")).To(Equal("8080"))
			run("DEL", keys).OK(GinkgoTB())
			call.ContainerID = "test"
			run("CHECK", strings.Replace(keys, "8080", long, 1)).OK(GinkgoTB())
		})

		DescribeTable("ignores a saved state of another namespace at the same path",
			func(keys string) {
				// The container was started again, and DEL was not called, or is called only now.
				first, second := container, nstest.New(GinkgoTB())
				withEth0(GinkgoTB())(second)
				second.Must(GinkgoTB(), "ip", "link", "set", "eth0", "address", "02:00:00:00:00:77")
				second.SetSysctl(GinkgoTB(), "net/ipv4/ip_forward", "1")
				before := nstest.Snapshot(GinkgoTB(), second)
				for _, commands := range [][]string{{"DEL"}, {"ADD", "DEL"}} {
					call.Container = first
					run("ADD", keys).OK(GinkgoTB())
					call.Container = second
					for _, command := range commands {
						run(command, keys).OK(GinkgoTB())
					}
					Expect(nstest.Compare(before, nstest.Snapshot(GinkgoTB(), second))).To(BeEmpty(), "%v", commands)
					Expect(os.ReadDir(dir)).To(BeEmpty())
				}
			},
			Entry("settings of the interface", `"mac": "02:00:00:00:00:02"`),
			Entry("sysctls", `"sysctl": {"net.ipv4.ip_forward": "1"}`),
			Entry("both", `"mac": "02:00:00:00:00:02", "sysctl": {"net.ipv4.ip_forward": "1"}`),
		)

		DescribeTable("returns an error for a sysctl that the allowlist does not allow",
			func(lines, keys string, allowed bool) {
				Expect(os.WriteFile(allow, []byte(lines), 0o600)).To(Succeed())
				before := nstest.WaitStable(state)
				reply := run("ADD", keys)
				if allowed {
					reply.OK(GinkgoTB())
					return
				}
				reply.RequireFailure(GinkgoTB(), types.CodeConfig, allow)
				Expect(nstest.Compare(before, state())).To(BeEmpty())
			},
			Entry("a key that a line matches", "^net.ipv4.ip_forward$\n", `"sysctl": {"net.ipv4.ip_forward": "1"}`, true),
			Entry("a key that no line matches", "^net.ipv4.ip_forward$\n", `"sysctl": {"net.ipv4.conf.all.arp_notify": "1"}`, false),
			Entry("a key from args.cni", "^net.ipv4.ip_forward$\n", `"args": {"cni": {"sysctl": {"net.ipv4.conf.all.arp_notify": "1"}}}`, false),
			Entry("an invalid expression", "(\n", `"sysctl": {"net.ipv4.ip_forward": "1"}`, false),
			Entry("no sysctls: the file is not read", "(\n", `"mtu": 1400`, true),
		)

		DescribeTable("records MAC and MTU in the result if the interface has another sandbox or none",
			func(prev string, want ...int) {
				c := call.With("ADD")
				c.Config = strings.TrimSuffix(conf(`"mac": "02:00:00:00:00:99", "mtu": 1400`), "}") + `, "prevResult": {"cniVersion": "1.1.0", "interfaces": [` + prev + `]}}`
				var changed []int
				for i, in := range nstest.Run(plugin(), c).Result(GinkgoTB()).Interfaces {
					if in.MAC == "02:00:00:00:00:99" && in.MTU == 1400 {
						changed = append(changed, i)
					}
				}
				Expect(changed).To(Equal(want))
			},
			Entry("another path to the namespace", `{"name": "veth1"}, {"name": "eth0", "sandbox": "/proc/1234/ns/net", "mac": "02:00:00:00:00:01"}`, 1),
			Entry("no sandbox", `{"name": "eth0", "mac": "02:00:00:00:00:01"}, {"name": "eth1", "sandbox": "/x"}`, 0),
		)

		DescribeTable("works with a long container ID and a long network name", func(length int) {
			call.ContainerID = strings.Repeat("c", length)
			c := call.With("ADD")
			c.Config = strings.Replace(withPrev(conf(`"mtu": 1400`)), `"name": "net"`, `"name": "`+strings.Repeat("n", 200)+`"`, 1)
			nstest.Run(plugin(), c).OK(GinkgoTB())
			nstest.Run(plugin(), nstest.Call{Command: "DEL", Host: host, Container: container, ContainerID: c.ContainerID, Config: c.Config}).OK(GinkgoTB())
			Expect(link()).To(ContainSubstring("mtu 1500"))
			Expect(os.ReadDir(dir)).To(BeEmpty())
		},
			Entry("the longest ID that fits in the file name", 255-len("_eth0.json")),
			Entry("a longer ID", 300),
		)

		It("says what to do about a read-only /proc/sys, and changes nothing", func() {
			before := nstest.WaitStable(state)
			restore := nstest.ReadOnlySysctls(GinkgoTB())
			f := run("ADD", everything).Failure(GinkgoTB())
			restore()
			Expect(f.Code).To(BeEquivalentTo(types.CodeIO))
			Expect(f.Msg).To(ContainSubstring("mount /proc/sys writable"))
			Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
		})

		DescribeTable("returns the code of an invalid configuration, and changes nothing",
			func(code int, keys string, want string) {
				before := nstest.WaitStable(state)
				run("ADD", keys).RequireFailure(GinkgoTB(), code, want)
				Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
			},
			Entry("a sysctl that does not exist", types.CodeConfig, `"sysctl": {"net.ipv4.conf.nosuch.arp_notify": "1"}`, `sysctl "net.ipv4.conf.nosuch.arp_notify" does not exist in the container`),
			Entry("a sysctl that only the host can set", types.CodeConfig, `"sysctl": {"net.core.rmem_max": "4096"}`, "rmem_max"),
			Entry("a sysctl outside of net.", types.CodeConfig, `"sysctl": {"kernel.nosuch": "1"}`, "invalid net sysctl key"),
			Entry("a value that the kernel rejects, after other changes", types.CodeConfig, everything[:len(everything)-1]+`, "net.ipv4.ip_forward": "nonsense"}`, "invalid argument"),
			Entry("an MTU that the device does not support, after other changes", types.CodeConfig, strings.Replace(everything, "1454", "65536", 1), "mtu"),
			Entry("a dataDir that is a file", types.CodeIO, `"mtu": 1400, "dataDir": "/etc/passwd"`, "/etc/passwd"),
		)

		It("fails if the interface does not exist", func() {
			call.IfName = "eth9"
			Expect(run("ADD", `"mtu": 1400`).Failure(GinkgoTB()).Msg).To(ContainSubstring("find link eth9"))
		})
	})

	It("ADD and CHECK need a prevResult", func() {
		for command, want := range map[string]string{"ADD": "must be called as chained plugin", "CHECK": "CHECK of tuning needs a prevResult"} {
			c := call.With(command)
			c.Config = conf(`"mtu": 1400`)
			nstest.Run(plugin(), c).RequireFailure(GinkgoTB(), types.CodeConfig, want)
		}
	})

	Describe("DEL", func() {
		It("restores what the reference plugin saved", func() {
			Expect(os.Mkdir(dir, 0o600)).To(Succeed())
			Expect(os.WriteFile(file(), []byte("{\n \"mac\": \"02:00:00:00:00:01\",\n \"promisc\": false,\n \"mtu\": 1500,\n \"allmulti\": false,\n \"txQLen\": 1000\n}"), 0o600)).To(Succeed())
			container.Batch(GinkgoTB(), "address add 10.1.0.2/24 dev eth0", "link set eth0 mtu 1454 promisc on allmulticast on txqueuelen 9 address 02:00:00:00:00:99")
			By("but not in the interface of another attachment")
			container.IP("link set eth0 alias plumb:net/other/eth0")
			saved, err := os.ReadFile(file())
			Expect(err).NotTo(HaveOccurred())
			run("DEL", everything).OK(GinkgoTB())
			Expect(link()).To(ContainSubstring("02:00:00:00:00:99"))
			Expect(os.WriteFile(file(), saved, 0o600)).To(Succeed())
			container.IP("link set eth0 alias plumb:net/test/eth0")
			run("DEL", everything).OK(GinkgoTB())
			Expect(link()).To(And(ContainSubstring("02:00:00:00:00:01"), ContainSubstring("mtu 1500"), ContainSubstring("qlen 1000"),
				Not(ContainSubstring("PROMISC")), Not(ContainSubstring("ALLMULTI"))))
			Expect(file()).NotTo(BeAnExistingFile())
		})

		DescribeTable("removes the saved state if the container is gone",
			func(netns func() string) {
				run("ADD", everything).OK(GinkgoTB())
				call.NetNS = netns()
				call.Container = nil
				c := call.With("DEL")
				c.Config = conf("") // without prevResult
				nstest.Run(plugin(), c).OK(GinkgoTB())
				Expect(file()).NotTo(BeAnExistingFile())
			},
			Entry("no CNI_NETNS, as in containerd's second DEL", func() string { return "" }),
			Entry("a path that does not exist", func() string { return "/nonexistent/ns" }),
			Entry("a plain file", func() string { container.Remove(GinkgoTB()); return container.Path() }),
			Entry("the host's own namespace", func() string { return host.Path() }),
		)

		DescribeTable("restores only the sysctls",
			func(changes ...string) {
				run("ADD", everything).OK(GinkgoTB())
				container.Batch(GinkgoTB(), changes...)
				before := nstest.WaitStable(func() string { return container.IP("-d link") }) // the peer of eth0 loses its carrier
				run("DEL", everything).OK(GinkgoTB())
				Expect(container.IP("-d link")).To(Equal(before))
				Expect(get("net/ipv4/ping_group_range")).To(Equal("1\t0"))
				Expect(file()).NotTo(BeAnExistingFile())
			},
			Entry("if the interface is gone", "link del eth0"),
			Entry("if another interface has its name", "link set eth0 down", "link set eth0 name old", "link add eth0 type bridge"),
		)

		It("returns an error for each setting that it cannot restore, restores the others, and keeps the file", func() {
			run("ADD", everything).OK(GinkgoTB())
			call.Before = func(step string) error {
				if strings.Contains(step, "mtu") || strings.Contains(step, "arp_announce") {
					return syscall.EBUSY
				}
				return nil
			}
			f := run("DEL", everything).Failure(GinkgoTB())
			Expect(f.Msg).To(And(ContainSubstring("set link eth0 mtu 1500"), HaveSuffix("; device or resource busy")))
			Expect(link()).To(And(ContainSubstring("02:00:00:00:00:01"), ContainSubstring("mtu 1454")))
			Expect(get("net/ipv4/ping_group_range")).To(Equal("1\t0"))
			call.Before = nil
			run("DEL", everything).OK(GinkgoTB())
			Expect(link()).To(ContainSubstring("mtu 1500"))
		})

		It("succeeds with a warning if the kernel rejects a value because of a change in the container", func() {
			container.Batch(GinkgoTB(), "link add base type veth peer name far2", "link set base up",
				"link add eth5 link base address 02:00:00:00:00:05 type macvlan", "link set eth5 up")
			call.IfName = "eth5"
			run("ADD", `"mac": "02:00:00:00:00:06", "allmulti": true`).OK(GinkgoTB())
			container.Batch(GinkgoTB(), "link add other link base address 02:00:00:00:00:05 type macvlan", "link set other up")
			reply := run("DEL", "").OK(GinkgoTB())
			Expect(reply.Stderr).To(ContainSubstring("address already in use"))
			Expect(container.IP("link show eth5")).NotTo(ContainSubstring("ALLMULTI"))
			Expect(os.ReadDir(dir)).To(BeEmpty())
		})

		It("succeeds with any configuration, CNI_ARGS and prevResult", func() {
			run("ADD", everything).OK(GinkgoTB())
			call.Args = "nonsense"
			c := call.With("DEL")
			c.Config = strings.TrimSuffix(conf(`"mtu": "many", "sysctl": {"kernel.x": 5}, "mac": "no", "strict": true, "foo": 1`), "}") + `, "prevResult": 5}`
			nstest.Run(plugin(), c).OK(GinkgoTB())
			Expect(link()).To(ContainSubstring("mtu 1500"))
			Expect(file()).NotTo(BeAnExistingFile())
		})

		DescribeTable("warns about a file that contains no saved state, and removes it",
			func(writeFile func()) {
				Expect(os.Mkdir(dir, 0o700)).To(Succeed())
				writeFile()
				before := nstest.Snapshot(GinkgoTB(), container)
				Expect(run("DEL", everything).OK(GinkgoTB()).Stderr).To(ContainSubstring("nothing is restored"))
				Expect(nstest.Compare(before, nstest.Snapshot(GinkgoTB(), container))).To(BeEmpty())
				Expect(os.ReadDir(dir)).To(BeEmpty())
			},
			Entry("an incomplete file", func() { Expect(os.WriteFile(file(), []byte("{\n \"mtu\": 15"), 0o600)).To(Succeed()) }),
			Entry("an empty file", func() { Expect(os.WriteFile(file(), nil, 0o600)).To(Succeed()) }),
			Entry("a symbolic link", func() {
				elsewhere := filepath.Join(GinkgoTB().TempDir(), "state.json")
				Expect(os.WriteFile(elsewhere, []byte(`{"mtu": 1400}`), 0o600)).To(Succeed())
				Expect(os.Symlink(elsewhere, file())).To(Succeed())
			}),
			// These sysctls do not exist, so that a broken check does not change the machine.
			Entry("a sysctl outside of net", func() {
				Expect(os.WriteFile(file(), []byte(`{"mtu": 1400, "sysctl": {"kernel/nosuch": "1"}}`), 0o600)).To(Succeed())
			}),
			Entry("a path that leaves /proc/sys", func() {
				Expect(os.WriteFile(file(), []byte(`{"sysctl": {"net/../kernel/nosuch": "1"}}`), 0o600)).To(Succeed())
			}),
			Entry("a path that leaves /proc/sys, with other separators", func() {
				Expect(os.WriteFile(file(), []byte(`{"sysctl": {"net./../kernel/nosuch": "1"}}`), 0o600)).To(Succeed())
			}),
			Entry("an empty directory", func() { Expect(os.Mkdir(file(), 0o700)).To(Succeed()) }),
			Entry("a named pipe", func() { Expect(syscall.Mkfifo(file(), 0o600)).To(Succeed()) }),
		)
	})

	It("DEL warns if a file is in place of the directory", func() {
		Expect(syscall.Mkfifo(dir, 0o600)).To(Succeed())
		Expect(run("DEL", everything).OK(GinkgoTB()).Stderr).To(And(ContainSubstring("nothing is restored"), ContainSubstring("state/test_eth0.json: not a directory")))
	})

	It("ADD and DEL do not write through a symbolic link in the directory", func() {
		Expect(os.Mkdir(dir, 0o777)).To(Succeed())
		target := filepath.Join(GinkgoTB().TempDir(), "target")
		Expect(os.WriteFile(target, []byte("content"), 0o600)).To(Succeed())
		Expect(os.Symlink(target, file())).To(Succeed())
		Expect(os.Symlink(target, filepath.Join(dir, statefile.TempName(types.Attachment{Network: "net", ContainerID: "test", IfName: "eth0"})))).To(Succeed())
		run("ADD", everything).OK(GinkgoTB())
		Expect(os.ReadFile(target)).To(BeEquivalentTo("content"))
		info, err := os.Lstat(file())
		Expect(err).NotTo(HaveOccurred())
		Expect(info.Mode().IsRegular()).To(BeTrue())
		run("DEL", everything).OK(GinkgoTB())
		Expect(os.ReadDir(dir)).To(BeEmpty())
		Expect(os.ReadFile(target)).To(BeEquivalentTo("content"))
	})

	Describe("CHECK", func() {
		DescribeTable("fails if one setting was changed, names it, and REPAIR restores it on the container's side",
			func(change func(), want string) {
				run("ADD", everything).OK(GinkgoTB())
				run("CHECK", everything).OK(GinkgoTB())
				before := nstest.WaitStable(state)
				change()
				changed := nstest.WaitStable(state)
				f := run("CHECK", everything).Failure(GinkgoTB())
				Expect(f.Code).To(BeEquivalentTo(types.CodeChanged))
				Expect(f.Msg).To(ContainSubstring(want))
				Expect(f.Msg).NotTo(ContainSubstring("; "), "names only this setting")
				Expect(run("REPAIR", everything).Failure(GinkgoTB())).To(Equal(f))
				Expect(nstest.WaitEqual(changed, state)).To(BeEmpty())
				call = call.OnContainerSide()
				if strings.Contains(want, "saved state") || strings.Contains(want, "no such file") {
					Expect(run("REPAIR", everything).Failure(GinkgoTB())).To(Equal(f))
					return
				}
				run("REPAIR", everything).OK(GinkgoTB())
				Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
			},
			Entry("mac", func() { container.IP("link set eth0 address 02:00:00:00:00:09") },
				"mac of interface eth0 is 02:00:00:00:00:09, want c2:b0:57:49:47:f1"),
			Entry("mtu", func() { container.IP("link set eth0 mtu 1500") }, "mtu of interface eth0 is 1500, want 1454"),
			Entry("promisc", func() { container.IP("link set eth0 promisc off") }, "promisc of interface eth0 is false, want true"),
			Entry("allmulti", func() { container.IP("link set eth0 allmulticast off") }, "allmulti of interface eth0 is false, want true"),
			Entry("txQLen", func() { container.IP("link set eth0 txqueuelen 7") }, "txQLen of interface eth0 is 7, want 20000"),
			Entry("a sysctl", func() { container.SetSysctl(GinkgoTB(), "net/ipv4/conf/eth0/arp_notify", "0") }, `sysctl net/ipv4/conf/eth0/arp_notify of the container is "0", want "1"`),
			Entry("a list", func() { container.SetSysctl(GinkgoTB(), "net/ipv4/ping_group_range", "0 5") }, `sysctl net/ipv4/ping_group_range of the container is "0\t5"`),
			Entry("the saved state is missing", func() { Expect(os.Remove(file())).To(Succeed()) }, "state/test_eth0.json: no such file"),
			Entry("the saved state is incomplete", func() { Expect(os.Truncate(file(), 9)).To(Succeed()) }, "state/test_eth0.json: no saved state can be read from it"),
		)

		It("REPAIR changes neither another interface with the name nor sysctls that the allowlist forbids", func() {
			run("ADD", everything).OK(GinkgoTB())
			call = call.OnContainerSide()
			container.SetSysctl(GinkgoTB(), "net/ipv4/conf/eth0/arp_notify", "0")
			Expect(os.WriteFile(allow, nil, 0o600)).To(Succeed())
			Expect(run("REPAIR", everything).Failure(GinkgoTB()).Msg).To(ContainSubstring("allowlist"))
			Expect(os.Remove(allow)).To(Succeed())
			container.Batch(GinkgoTB(), "link set eth0 down", "link set eth0 name old", "link add eth0 type bridge")
			run("REPAIR", everything).RequireFailure(GinkgoTB(), types.CodeChanged, "mtu of interface eth0 is 1500")
			Expect(link()).To(ContainSubstring("mtu 1500"))
		})

		DescribeTable("fails if the interface is gone", func(keys, want string) {
			run("ADD", keys).OK(GinkgoTB())
			container.IP("link del eth0")
			run("CHECK", keys).RequireFailure(GinkgoTB(), types.CodeChanged, want)
		},
			Entry("with its settings", `"mtu": 1400`, "find link eth0"),
			Entry("with its sysctls", `"sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "1"}`, "net.ipv4.conf.IFNAME.arp_notify"),
		)

		It("ignores settings that are not configured, white space and case", func() {
			run("ADD", everything).OK(GinkgoTB())
			container.IP("link set eth0 txqueuelen 7 mtu 1333")
			run("CHECK", `"mac": "c2:B0:57:49:47:f1", "sysctl": {"net.ipv4.ping_group_range": " 0   2147483647\n"}`).OK(GinkgoTB())
		})

		It("compares the promiscuous flag and ignores packet sockets", func() {
			run("ADD", `"mtu": 1400`).OK(GinkgoTB())
			run("ADD", `"mtu": 1400, "promisc": true`).OK(GinkgoTB())
			Expect(link()).To(ContainSubstring("promiscuity 1 "))
			stop := listen(container, "eth0")
			Expect(link()).To(ContainSubstring("promiscuity 2 "))
			run("CHECK", `"mtu": 1400, "promisc": true`).OK(GinkgoTB())
			container.IP("link set eth0 promisc off")
			run("CHECK", `"mtu": 1400, "promisc": true`).Failure(GinkgoTB())
			run("CHECK", `"mtu": 1400`).OK(GinkgoTB())
			stop()
		})

		It("succeeds after an ADD of the reference plugin, which saves no sysctls", func() {
			container.SetSysctl(GinkgoTB(), "net/ipv4/conf/eth0/arp_notify", "1")
			keys := `"sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "1"}`
			Expect(run("CHECK", keys).OK(GinkgoTB())).To(Equal(nstest.Reply{}))
			Expect(run("DEL", keys).OK(GinkgoTB()).Stderr).To(ContainSubstring("these sysctls are not restored: net/ipv4/conf/eth0/arp_notify"))
		})
	})

	Describe("GC", func() {
		gc := func(network, valid string) nstest.Reply {
			GinkgoHelper()
			return nstest.Run(plugin(), nstest.Call{Command: "GC", Host: host, Config: fmt.Sprintf(
				`{"cniVersion": "1.1.0", "name": %q, "type": "tuning", "dataDir": %q, "cni.dev/valid-attachments": %s}`, network, dir, valid)}).OK(GinkgoTB())
		}
		names := func() []string {
			GinkgoHelper()
			entries, err := os.ReadDir(dir)
			Expect(err).NotTo(HaveOccurred())
			var all []string
			for _, e := range entries {
				all = append(all, e.Name())
			}
			return all
		}

		It("removes the files of this network's attachments that are not listed", func() {
			for _, id := range []string{"alive", "dead", "incomplete"} {
				call.ContainerID = id
				run("ADD", `"mtu": 1400`).OK(GinkgoTB())
			}
			Expect(os.WriteFile(filepath.Join(dir, "incomplete_eth0.json"), []byte("{"), 0o600)).To(Succeed())
			temp := func(network, id string) string {
				return statefile.TempName(types.Attachment{Network: network, ContainerID: id, IfName: "eth0"})
			}
			for name, text := range map[string]string{
				"other_eth0.json": `{"mtu": 1500, "network": "net2"}`, "reference_eth0.json": `{"mtu": 1500}`, "README": "hello",
				temp("net", "dead"): "{", temp("net", "alive"): "{", temp("net2", "dead"): "{", ".other": "",
			} {
				Expect(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)).To(Succeed())
			}
			gc("net", `[{"containerID": "alive", "ifname": "eth0"}]`)
			Expect(names()).To(ConsistOf("alive_eth0.json", "other_eth0.json", "reference_eth0.json", "incomplete_eth0.json", "README",
				temp("net", "alive"), temp("net2", "dead"), ".other"))
			gc("net", `null`)
			Expect(names()).NotTo(ContainElement("alive_eth0.json"))
			gc("net2", `[]`)
			Expect(names()).To(ConsistOf("reference_eth0.json", "incomplete_eth0.json", "README", ".other"))
		})

		It("succeeds without a directory", func() { gc("net", `[]`) })
	})

	Describe("STATUS", func() {
		status := func(keys string) nstest.Reply {
			c := call.With("STATUS")
			c.Container, c.Config, c.Env = nil, conf(keys), []string{"CNI_IFNAME=", "CNI_CONTAINERID="}
			return nstest.Run(machine{allowlist: allow}.plugin(), c)
		}

		It("succeeds with and without a directory and an allowlist, and changes nothing", func() {
			Expect(status(everything).OK(GinkgoTB())).To(Equal(nstest.Reply{}))
			Expect(dir).NotTo(BeADirectory())
			Expect(os.Mkdir(dir, 0o700)).To(Succeed())
			Expect(os.WriteFile(allow, []byte("^net.ipv4.(conf.IFNAME.|ping)"), 0o600)).To(Succeed())
			status(everything).OK(GinkgoTB())
		})

		DescribeTable("fails if an ADD would fail, and says why",
			func(prepare func(), keys, want string) {
				prepare()
				status(keys).RequireFailure(GinkgoTB(), types.CodeNotAvailable, want)
			},
			Entry("the allowlist is broken", func() { Expect(os.WriteFile(allow, []byte("net.(\n"), 0o600)).To(Succeed()) }, "", "line 1"),
			Entry("the allowlist cannot be read", func() { Expect(os.Mkdir(allow, 0o700)).To(Succeed()) }, "", "not a regular file"),
			Entry("the allowlist does not allow it", func() { Expect(os.WriteFile(allow, []byte("nothing\n"), 0o600)).To(Succeed()) }, everything, "is not allowed"),
			Entry("dataDir is below a file", func() {}, `"dataDir": "/etc/passwd/x"`, "not a directory"),
		)
	})
})

// listen opens a packet socket in promiscuous mode, as tcpdump does. stop closes it.
func listen(container *nstest.NS, ifName string) (stop func()) {
	GinkgoHelper()
	var fd int
	Expect(container.Do(func() (err error) {
		if fd, err = syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return setPromiscuous(fd, ifName)
	})).To(Succeed())
	return func() { Expect(syscall.Close(fd)).To(Succeed()) }
}
