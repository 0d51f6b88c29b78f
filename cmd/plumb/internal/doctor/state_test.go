package doctor_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/doctor"
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// masqueraded is a network on a bridge with masquerade.
const masqueraded = `{
    "cniVersion": "1.1.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "isGateway": true,
            "ipMasq": true,
            "ipam": {"type": "host-local", "dataDir": "POOLS", "subnet": "10.88.0.0/16"}
        }
    ]
}
`

// A usedHost is a host with containers.
type usedHost struct {
	*testHost
	cni *libcni.CNIConfig
}

// newUsedHost returns a host with the network masqueraded, and the namespace of the container d1 in this network.
func newUsedHost() (n *usedHost, d1 *nstest.NS) {
	GinkgoHelper()
	n = &usedHost{testHost: newTestHost("bridge", "host-local", "portmap", "firewall")}
	n.attachBy(masqueraded)
	return n, n.add("d1")
}

// attachBy writes the configuration with which add attaches containers, and del detaches them.
func (n *usedHost) attachBy(configuration string) {
	GinkgoHelper()
	n.cni = cnitest.New(n.NS, filepath.Join(n.dir, "cache"), n.bin())
	n.write("10-pods.conflist", configuration)
}

func (n *usedHost) list() *libcni.NetworkConfigList {
	GinkgoHelper()
	list, err := libcni.NetworkConfFromFile(filepath.Join(n.confDir(), "10-pods.conflist"))
	Expect(err).NotTo(HaveOccurred())
	return list
}

func runtimeOf(id string, container *nstest.NS) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: id, NetNS: container.Path(), IfName: "eth0"}
}

func (n *usedHost) add(id string) *nstest.NS {
	GinkgoHelper()
	container := nstest.New(GinkgoTB()).Named(id)
	_, err := n.cni.AddNetworkList(context.Background(), n.list(), runtimeOf(id, container))
	Expect(err).NotTo(HaveOccurred())
	return container
}

// result returns the path of a container's file in libcni's cache.
func (n *usedHost) result(id string) string {
	return filepath.Join(n.dir, "cache", "results", "pods-"+id+"-eth0")
}

// age makes all files of the host two hours old.
func (n *usedHost) age() {
	GinkgoHelper()
	n.ageBy(2 * time.Hour)
}

func (n *usedHost) ageBy(d time.Duration) {
	GinkgoHelper()
	old := time.Now().Add(-d)
	Expect(filepath.WalkDir(n.dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chtimes(path, old, old)
	})).To(Succeed())
}

// commandIn returns the command for the case that the runtime no longer has the container.
func commandIn(f doctor.Finding) string {
	GinkgoHelper()
	command, found := strings.CutPrefix(f.Advice, "If the runtime no longer has the container, run this: ")
	Expect(found).To(BeTrue(), f.Advice)
	return command
}

var _ = Describe("plumb doctor on what the host holds", func() {
	It("does not report an attachment whose ADD may be running as a leftover", func() {
		n, _ := newUsedHost()
		n.add("d2")
		Expect(os.Remove(n.result("d2"))).To(Succeed())
		report := n.doctor()
		Expect(report.Findings).To(BeEmpty())
		Expect([]int{report.Skipped, report.WithoutResult}).To(Equal([]int{1, 0}))
	})

	It("counts the attachments that it cannot check because they lack a result", func() {
		n, _ := newUsedHost()
		n.age()
		Expect(os.Remove(n.result("d1"))).To(Succeed())
		report := n.doctor()
		Expect([]int{report.Skipped, report.WithoutResult}).To(Equal([]int{1, 1}))
		out, _ := n.plumb(append([]string{"doctor"}, n.directories()...)...)
		Expect(out).To(ContainSubstring("\n1 attachment skipped: libcni's cache contains no result of ADD\nnothing found ("))
	})

	It("counts the attachments that it skips because their ADD may be running", func() {
		n, _ := newUsedHost()
		report := func() string {
			out, _ := n.plumb(append([]string{"doctor"}, n.directories()...)...)
			return out
		}
		Expect(report()).NotTo(ContainSubstring("skipped"))
		n.add("d2").Remove(GinkgoTB())
		n.ageBy(-time.Hour) // the test may take more than a minute
		const leftOut = "\n1 attachment skipped: younger than a minute (run doctor again in a minute), or of unknown age\nnothing found ("
		Eventually(report).Should(ContainSubstring(leftOut)) // the kernel deletes the host end after the namespace
		list := filepath.Join(n.dir, "live")
		Expect(os.WriteFile(list, []byte("d1\n"), 0o644)).To(Succeed())
		n.args = []string{"--live", list}
		Expect(report()).To(ContainSubstring(leftOut))
		n.age()
		Expect(report()).NotTo(ContainSubstring("skipped"))
	})

	Context("with a container that is gone", func() {
		var n *usedHost
		BeforeEach(func() {
			n, _ = newUsedHost()
		})
		leave := func() {
			n.add("d2").Remove(GinkgoTB())
			Eventually(func() string { return n.sh("ip -o link show type veth | wc -l") }).Should(Equal("1\n"))
			n.age()
		}
		live := func(ids string) string {
			path := filepath.Join(n.dir, "live")
			Expect(os.WriteFile(path, []byte(ids), 0o644)).To(Succeed())
			return path
		}

		It("names the missing namespace, and removes everything", func() {
			leave()
			finding := n.find("leftover", "container d2, interface eth0, network pods, is deleted, but still holds address 10.88.0.3, masq4: its namespace ")
			Expect(finding.What).To(MatchRegexp("its namespace .* does not exist$"))
			n.requireFixed(finding, nil)
			Expect(n.sh("nft list table inet plumb")).NotTo(ContainSubstring("d2"))
		})

		It("names deleted containers before the pool that they fill, and removes all of them with one command", func() {
			n.change("10-pods.conflist", `"subnet"`, `"rangeEnd": "10.88.0.6", "subnet"`)
			for _, id := range []string{"d2", "d3", "d4", "d5"} {
				n.add(id).Remove(GinkgoTB())
			}
			Eventually(func() string { return n.sh("ip -o link show type veth | wc -l") }).Should(Equal("1\n"))
			n.age()
			findings := n.doctor().Findings
			Expect(findings).To(HaveLen(5))
			for _, f := range findings[:4] {
				Expect(f.Check).To(Equal("leftover"))
				Expect(f.Fix).To(HavePrefix("plumb gc --dead d2 --dead d3 --dead d4 --dead d5 --network pods --"))
			}
			Expect(findings[4].What).To(HaveSuffix("all 5 addresses are in use, so that ADD fails; deleted containers hold 4 of them, see above"))
			out, _ := n.plumb(append([]string{"doctor"}, n.directories()...)...)
			Expect(strings.Count(out, "plumb gc")).To(Equal(1))
			n.requireFixed(findings[0], nil)
		})

		// start starts a process in a namespace, and returns the path of the process's namespace.
		start := func(in *nstest.NS) (path string, end func()) {
			cmd := exec.Command("sleep", "infinity")
			Expect(in.Start(cmd)).To(Succeed())
			end = sync.OnceFunc(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
			DeferCleanup(end)
			return fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid), end
		}

		DescribeTable("recognizes a namespace with a path in /proc by its process", func(reuse func() *nstest.NS, what string) {
			if own, err := os.Readlink("/proc/self/ns/pid"); err != nil || own != "pid:[4026531836]" {
				Skip("this is not the first PID namespace, so plumb cannot know whether a process is gone")
			}
			container := nstest.New(GinkgoTB()).Named("d2")
			runtime := runtimeOf("d2", container)
			path, end := start(container)
			runtime.NetNS = path
			n.attach(runtime)
			container.Remove(GinkgoTB())
			Expect(n.doctor().Findings).To(BeEmpty())
			end()
			Eventually(func() string { return n.sh("ip -o link show type veth | wc -l") }).Should(Equal("1\n"))
			if reuse != nil { // as if the PID were used again
				other, _ := start(reuse())
				n.sh(fmt.Sprintf("sed -i s,%s,%s, %s", path, other, n.result("d2")))
			}
			n.age()
			finding := n.find("leftover", "deleted, but still holds address 10.88.0.3")
			Expect(finding.What).To(MatchRegexp(`^container d2, interface eth0, network pods, ` + what))
			if isCommand(finding) {
				n.requireFixed(finding, nil)
			} else {
				n.requireFixed(finding, func() { n.sh(commandIn(finding)) })
			}
		},
			Entry("a process that ended", nil, `is deleted, .*: its namespace /proc/\d+/ns/net does not exist$`),
			Entry("a PID that the host reused", func() *nstest.NS { return n.NS }, `is deleted, .*: its namespace /proc/\d+/ns/net does not exist$`),
			Entry("a PID that another container reused", func() *nstest.NS { return nstest.New(GinkgoTB()) },
				`may be deleted, .*: the process of /proc/\d+/ns/net started after the container's ADD, and probably belongs to another container$`),
		)

		It("names a container whose namespace contains no process, and removes it only with --force", func() {
			n.add("d3")
			n.age()
			n.args = []string{"--live", live("d1\n")}
			finding := n.find("leftover", "container d3, interface eth0, network pods, may be deleted, but still holds address 10.88.0.3, veth")
			Expect(finding.What).To(MatchRegexp(`its namespace \S+ still exists, but no process runs in it; the runtime must delete the container$`))
			n.requireFixed(finding, func() { n.sh(commandIn(finding)) })
		})

		It("does not treat a missing directory of namespaces as evidence", func() {
			d2 := n.add("d2")
			d2.Remove(GinkgoTB())
			Eventually(func() string { return n.sh("ip -o link show type veth | wc -l") }).Should(Equal("1\n"))
			n.age()
			Expect(os.RemoveAll(filepath.Dir(d2.Path()))).To(Succeed())
			Expect(n.doctor().Findings).To(BeEmpty())
		})

		It("does not treat a missing result as evidence in a network without any results", func() {
			Expect(os.Remove(n.result("d1"))).To(Succeed())
			n.age()
			Expect(n.doctor().Findings).To(BeEmpty())
		})

		It("removes only the container that it names, and no other container without a result", func() {
			leave()
			n.add("d3")
			Expect(os.Remove(n.result("d3"))).To(Succeed())
			n.age()
			var named, other doctor.Finding
			for _, f := range n.doctor().Findings {
				if strings.Contains(f.What, "container d2") {
					named = f
				} else {
					other = f
				}
			}
			n.sh(named.Fix)
			Expect(n.sh("ip -o link show master cni0 | wc -l")).To(Equal("2\n"), "the host ends of d1 and d3")
			Expect(filepath.Join(n.pools(), "pods", "10.88.0.4")).To(BeAnExistingFile())
			Expect(other.What).To(ContainSubstring("container d3, interface eth0, network pods, may be deleted, but still holds address 10.88.0.4, veth"))
			Expect(other.What).To(HaveSuffix("libcni's cache has no readable result of it, so its ADD or its DEL failed, or the result was lost; its namespace exists"))
			Expect(isCommand(other)).To(BeFalse(), "%s", other.Lines())
			n.requireFixed(other, func() { n.sh(commandIn(other)) })
		})

		It("removes the resources of a network whose configuration is only in libcni's cache", func() {
			leave()
			n.write("10-pods.conflist", `{"cniVersion": "1.1.0", "name": "other", "plugins": [{"type": "bridge", "bridge": "other"}]}`)
			n.requireFixed(n.find("leftover", "container d2"), nil)
			Expect(n.sh("nft list table inet plumb")).NotTo(ContainSubstring("d2"))
		})
	})

	It("does not check the state if files are given", func() {
		n, _ := newUsedHost()
		n.Must(GinkgoTB(), "nft", "flush", "ruleset")
		Expect(n.doctor(filepath.Join(n.confDir(), "10-pods.conflist")).Checks).NotTo(ContainElement("check"))
	})

	It("finds reservations that name no container", func() {
		n, _ := newUsedHost()
		var want []string
		for _, network := range []string{"pods", "former"} {
			Expect(os.MkdirAll(filepath.Join(n.pools(), network), 0o755)).To(Succeed())
			for name, text := range map[string]string{"10.88.0.98": "", "10.88.0.99": strings.Repeat("? ", 100)} {
				path := filepath.Join(n.pools(), network, name)
				Expect(os.WriteFile(path, []byte(text), 0o644)).To(Succeed())
				want = append(want, fmt.Sprintf("reservation %s in %s names no container, and no DEL removes it", name, path))
			}
		}
		n.age()
		var found []string
		for _, f := range n.doctor().Findings {
			found = append(found, f.What)
			n.sh(f.Fix)
		}
		Expect(found).To(ConsistOf(want))
		Expect(n.doctor().Findings).To(BeEmpty())
		Expect(filepath.Glob(filepath.Join(n.pools(), "*", "10.88.0.9*"))).To(BeEmpty())
	})

	It("finds an element that names no container", func() {
		n, _ := newCompleteHost()
		n.sh("nft add element inet plumb hostport4 '{ tcp . 9090 : 10.88.0.9 . 80 }'")
		n.requireFixed(n.find("orphan", "element tcp . 9090 (10.88.0.9 . 80) in table inet plumb, map hostport4 names no container, and no DEL removes it"), nil)
	})

	It("finds an element of a live container for an address that its ADD did not return", func() {
		n, _ := newUsedHost()
		n.sh("nft add element inet plumb masq4 '{ 10.88.0.9 comment \"pods/d1/eth0\" : jump masq/pods/10.88.0.0/16 }'")
		n.requireFixed(n.find("foreign-target", "element 10.88.0.9 (jump masq/pods/10.88.0.0/16) in table inet plumb, map masq4 belongs to d1, "+
			"whose ADD did not return 10.88.0.9"), nil)
	})

	It("reports an unreadable result", func() {
		n, _ := newUsedHost()
		n.add("d2")
		Expect(os.WriteFile(n.result("d2"), []byte("{garbage"), 0o600)).To(Succeed())
		n.age()
		out, status := n.plumb(append([]string{"doctor"}, n.directories()...)...)
		Expect(out).To(And(ContainSubstring("not examined: "+n.result("d2")+": the runtime's result of an attachment is damaged"),
			ContainSubstring("libcni's cache has no readable result of it")))
		Expect(status).To(Equal(1))
	})

	It("finds a reservation without an interface name whose container is gone", func() {
		n, _ := newUsedHost()
		Expect(os.WriteFile(filepath.Join(n.pools(), "pods", "10.88.0.78"), []byte("deadbeef2"), 0o600)).To(Succeed())
		Expect(n.doctor().Skipped).To(Equal(1))
		n.age()
		finding := n.find("leftover", "container deadbeef2, interface unknown, network pods, may be deleted, but still holds address 10.88.0.78: libcni's cache has no readable result of it")
		n.requireFixed(finding, func() { n.sh(commandIn(finding)) })
	})

	It("finds a directory or a named pipe in place of a file of host-local, of the lock or of the marks", func() {
		n, _ := newUsedHost()
		const run = "/run/cni" // of the sandbox
		pool := filepath.Join(n.pools(), "pods")
		n.sh("cd " + pool + " && mkdir 10.88.0.77 unrelated && mkfifo 10.88.0.78 && rm last_reserved_ip.0 && mkdir last_reserved_ip.0")
		n.sh("cd " + run + " && rm -f plumb.lock plumb.deleted && mkfifo plumb.lock && mkdir plumb.deleted")
		var found []string
		for _, f := range n.doctor().Findings {
			if f.Check == "irregular-file" {
				found = append(found, strings.TrimSuffix(f.What, " is not a regular file, so that the plugins cannot use it"))
				n.sh(f.Fix)
			}
		}
		Expect(found).To(ConsistOf(pool+"/10.88.0.77", pool+"/10.88.0.78", pool+"/last_reserved_ip.0", run+"/plumb.lock", run+"/plumb.deleted"))
		Expect(n.doctor().Findings).To(BeEmpty())
	})

	It("finds a device that host-device has returned with another name", func() {
		n, _ := newUsedHost()
		n.sh("ip link add eth7 type bridge; ip link add hd-0123456789ab type bridge; ip link set hd-0123456789ab up alias eth7; ip link add hd-uplink type bridge")
		finding := n.find("returned-device", "host-device has returned interface eth7 with the name hd-0123456789ab, because another interface had its name")
		Expect(finding.Advice).To(HavePrefix("Rename or delete the other interface, and then run this: "))
		n.sh("ip link delete eth7")
		n.requireFixed(n.find("returned-device", "hd-0123456789ab"), nil)
		Expect(n.sh("ip link show eth7")).To(And(ContainSubstring(",UP"), Not(ContainSubstring("alias"))))
	})

	It("finds a device that GC of host-device restores", func() {
		n, _ := newUsedHost()
		a := types.Attachment{Network: "pods", ContainerID: "d1", IfName: "eth0"}
		record := filepath.Join("/run/cni/host-device", types.ShortHash(a.String())+".json") // in /run of the sandbox
		DeferCleanup(os.Remove, record)
		n.sh("mkdir -p /run/cni/host-device; ip link add " + attach.ReturnName(a) + " type bridge; ip link set " + attach.ReturnName(a) + " alias eth7")
		Expect(os.WriteFile(record, []byte(`{"network":"pods","containerID":"d1","ifName":"eth0","name":"eth7"}`), 0o600)).To(Succeed())
		Expect(n.doctor().Findings).To(BeEmpty(), "the ADD may be running")
		old := time.Now().Add(-2 * time.Hour)
		Expect(os.Chtimes(record, old, old)).To(Succeed())
		n.age()
		Expect(commandIn(n.find("returned-device", attach.ReturnName(a)))).To(HavePrefix("plumb gc --dead d1 --network pods --force "))
	})

	It("finds a reservation outside the ranges for an address that the container does not use", func() {
		n, _ := newUsedHost()
		Expect(os.WriteFile(filepath.Join(n.pools(), "pods", "10.99.0.5"), []byte("d1"), 0o600)).To(Succeed())
		Expect(n.doctor().Findings).To(BeEmpty(), "the reservation is new")
		n.age()
		n.requireFixed(n.find("reservation", "10.99.0.5 is reserved for d1, whose ADD did not return it"), nil)
	})

	DescribeTable("finds rules of iptables that exempt from masquerading, but not from ipMasq with nftables", func(want string, rules ...string) {
		n, _ := newUsedHost()
		for _, rule := range rules {
			n.sh(rule)
		}
		if want == "" {
			Expect(n.doctor().Findings).To(BeEmpty())
			return
		}
		finding := n.find("masq-exemption", "the rule -A "+want+` exempts packets of 10.88.0.0/16 in network "pods" from rules of iptables only`)
		n.requireFixed(finding, func() { n.change("10-pods.conflist", `"ipMasq"`, `"ipMasqBackend": "iptables", "ipMasq"`) })
	},
		Entry("ACCEPT", "POSTROUTING -s 10.0.0.0/8 -d 10.0.0.0/8 … -j ACCEPT of iptables", "iptables -t nat -A POSTROUTING -s 10.0.0.0/8 -d 10.0.0.0/8 -j ACCEPT"),
		Entry("RETURN", "POSTROUTING -d 192.168.0.0/16 … -j RETURN of iptables", "iptables -t nat -A POSTROUTING -d 192.168.0.0/16 -j RETURN"),
		Entry("in another chain", "MINE -s 10.88.0.0/16 … -j ACCEPT of iptables",
			"iptables -t nat -N MINE", "iptables -t nat -A POSTROUTING -m mark --mark 7 -j MINE", "iptables -t nat -A MINE -s 10.88.0.0/16 -j ACCEPT"),
		Entry("in a legacy table", "POSTROUTING -s 10.88.0.0/16 … -j ACCEPT of iptables", "iptables-legacy -t nat -A POSTROUTING -s 10.88.0.0/16 -j ACCEPT"),
		Entry("not another subnet, multicast, the subnet itself or a return to POSTROUTING", "", "iptables -t nat -A POSTROUTING -s 172.16.0.0/12 -j ACCEPT",
			"iptables -t nat -A POSTROUTING -d 224.0.0.0/4 -j ACCEPT", "iptables -t nat -A POSTROUTING -d 10.88.0.0/24 -j RETURN",
			"iptables -t nat -N MINE", "iptables -t nat -A POSTROUTING -j MINE", "iptables -t nat -A MINE -s 10.88.0.0/16 -j RETURN"),
	)

	It("does not find exemptions that ipMasqExcept contains", func() {
		n, _ := newUsedHost()
		n.sh("iptables -t nat -A POSTROUTING -d 192.168.7.0/24 -j ACCEPT")
		n.find("masq-exemption", "192.168.7.0/24")
		out, _ := n.plumb("install", "--from", n.built, "--only", "bridge", "--to", GinkgoT().TempDir(), "--conf-dir", n.confDir())
		Expect(out).To(MatchRegexp(`10-pods.conflist:\d+: the rule .* -d 192.168.7.0/24 … -j ACCEPT of iptables exempts .* Edit \S+/10-pods.conflist: set "ipMasqBackend": "iptables", or .*\. Then replace the running containers\.`))
		n.change("10-pods.conflist", `"ipMasq"`, `"ipMasqExcept": ["192.168.0.0/16"], "ipMasq"`)
		Expect(n.doctor().Findings).To(BeEmpty())
	})

	It("finds a foreign chain that drops what containers send", func() {
		n, d1 := newUsedHost()
		n.Must(GinkgoTB(), "iptables", "-P", "FORWARD", "DROP")
		n.find("forward-drop", "table ip filter, chain FORWARD: its policy is drop")
		n.change("10-pods.conflist", "        }\n    ]", "        },\n        {\"type\": \"firewall\"}\n    ]")
		n.add("d2") // accepted by rules for its address
		old := n.find("forward-drop", "table ip filter, chain FORWARD drops packets of containers of network \"pods\" that were attached before its list contained the plugin firewall")
		Expect(old.Advice).To(HaveSuffix(": d1."))
		n.requireFixed(old, func() { n.replace(runtimeOf("d1", d1)) })
	})

	It("finds that the interface of the default route does not forward", func() {
		n, _ := newUsedHost()
		nstest.Join(GinkgoTB(), nstest.End{In: n.NS, Name: "eth7", Addrs: []string{"192.0.2.2/24"}}, nstest.End{In: nstest.New(GinkgoTB()), Name: "router0"})
		n.IP("route add default via 192.0.2.1")
		Expect(n.doctor().Findings).To(BeEmpty())
		n.SetSysctl(GinkgoTB(), "net/ipv4/conf/eth7/forwarding", "0")
		n.requireFixed(n.find("uplink", "the default route goes through eth7, and net/ipv4/conf/eth7/forwarding is 0"), nil)
	})

	It("finds an interface that will lose what it got from router advertisements, but no static one", func() {
		n, _ := newUsedHost()
		nstest.Join(GinkgoTB(), nstest.End{In: n.NS, Name: "eth7", Addrs: []string{"2001:db8:18::1/64"}}, nstest.End{In: nstest.New(GinkgoTB()), Name: "router0"})
		n.SetSysctl(GinkgoTB(), "net/ipv6/conf/eth7/accept_ra", "1")
		n.SetForwarding(GinkgoTB(), "1")
		Expect(n.doctor().Findings).To(BeEmpty())
		n.IP("address add 2001:db8:50::7/64 dev eth7 valid_lft 900 preferred_lft 900")
		n.requireFixed(n.find("router-advertisements", "interface eth7 will lose the address 2001:db8:50::7/64: sysctl net/ipv6/conf/eth7/accept_ra is 1"), nil)
	})

	It("finds rules and chains of other programs in plumb's tables", func() {
		n, _ := newUsedHost()
		n.sh("nft insert rule inet plumb masq/pods/10.88.0.0/16 accept")
		n.requireFixed(n.find("foreign-rule", "table inet plumb, chain masq/pods/10.88.0.0/16 contains a rule that plumb did not add (handle "), nil)
		n.sh("nft 'add chain inet plumb mine { type filter hook input priority 0; }; add rule inet plumb mine ip saddr 10.88.0.9 drop'")
		n.requireFixed(n.find("foreign-rule", "table inet plumb contains the chain mine, which plumb did not add"), nil)
		n.sh("nft add chain inet plumb mine '{ type filter hook output priority 0; policy drop; }'")
		n.requireFixed(n.find("foreign-rule", "table inet plumb contains the chain mine, which plumb did not add"), nil)
	})

	It("finds a native nftables chain that drops what containers send", func() {
		n, _ := newUsedHost()
		n.sh("nft 'add table inet f; add chain inet f forw { type filter hook forward priority 0; policy drop; }'")
		finding := n.find("forward-drop", `table inet f, chain forw: its policy is drop, and no rule of it names the subnet or the bridge of network "pods"`)
		n.requireFixed(finding, func() { n.sh("nft add rule inet f forw ip saddr 10.88.0.0/16 accept") })
		n = &usedHost{testHost: newTestHost("bridge", "host-local", "firewall")}
		n.attachBy(strings.Replace(masqueraded, "        }\n    ]", "        },\n        {\"type\": \"firewall\"}\n    ]", 1))
		n.sh("nft 'add table inet f; add chain inet f forw { type filter hook forward priority 0; policy drop; }'")
		Expect(n.find("status", "may drop packets of containers").Advice).To(HavePrefix("Let the program that owns the chain accept"))
	})

	It("finds a chain whose last rule rejects what containers send, unless a chain before the rule names the bridge", func() {
		n, _ := newUsedHost()
		n.sh("nft 'add table inet f; add chain inet f forw { type filter hook forward priority 0; }; add chain inet f zones; " +
			"add rule inet f forw jump zones; add rule inet f forw reject with icmpx type admin-prohibited'")
		finding := n.find("forward-drop", `table inet f, chain forw: its last rule drops all packets, and no rule of it names the subnet or the bridge of network "pods"`)
		n.requireFixed(finding, func() { n.sh("nft add rule inet f zones iifname cni0 accept") })
	})

	DescribeTable("finds a rule that drops all packets of a network", func(where string, commands ...string) {
		n, _ := newUsedHost()
		for _, command := range commands {
			n.sh(command)
		}
		n.requireFixed(n.find("forward-drop", where+" contains a rule that drops all packets of network \"pods\": "), nil)
	},
		Entry("by its bridge", "table ip filter, chain FORWARD", "iptables -P FORWARD ACCEPT", "iptables -I FORWARD -i cni0 -j DROP"),
		Entry("by its bridge, as destination", "table ip filter, chain FORWARD", "iptables -I FORWARD -o cni0 -j REJECT"),
		Entry("by its subnet, in a chain to which another jumps", "table inet f, chain user",
			"nft 'add table inet f; add chain inet f user; add chain inet f forw { type filter hook forward priority 0; }'",
			"nft 'add rule inet f forw jump user; add rule inet f user ip saddr 10.0.0.0/8 counter log reject'"),
	)

	It("ignores a rule that drops some packets of a network, or those that an earlier rule does not accept", func() {
		n, _ := newUsedHost()
		for _, rule := range []string{
			"-i cni0 -p tcp --dport 25 -j DROP", "-s 10.88.0.9 -j DROP", "-i cni0 -d 192.168.0.0/16 -j REJECT",
			"-s 10.88.0.0/16 -o up0 -j DROP", "-o cni0 -d 10.88.0.7 -j DROP", "-i cni0 -m conntrack --ctstate INVALID -j DROP", "-i up0 -j DROP",
		} {
			n.sh("iptables -I FORWARD " + rule)
			Expect(n.doctor().Findings).To(BeEmpty(), rule)
			n.sh("iptables -D FORWARD " + rule)
		}
		n.sh("iptables -N STAGE2 && iptables -A STAGE2 -o cni0 -j DROP && iptables -I FORWARD -i cni0 ! -o cni0 -j STAGE2")
		Expect(n.doctor().Findings).To(BeEmpty(), "the isolation of the reference plugin firewall")
		n.sh("iptables -A FORWARD -i cni0 -o up0 -j ACCEPT && iptables -A FORWARD -i cni0 -j DROP")
		Expect(n.doctor().Findings).To(BeEmpty())
	})

	DescribeTable("finds a rule at another hook that drops all packets of a network", func(hook string) {
		n, _ := newUsedHost()
		n.sh("nft 'add table inet f; add chain inet f c { type filter hook " + hook + " priority -300; }; add rule inet f c ip saddr 10.88.0.0/16 drop'")
		n.requireFixed(n.find("forward-drop", "table inet f, chain c contains a rule that drops all packets of network \"pods\": "), nil)
	}, Entry(nil, "prerouting"), Entry(nil, "postrouting"))

	DescribeTable("finds a table that refuses what containers send", func(what string, commands string) {
		n := &usedHost{testHost: newTestHost("bridge", "host-local")}
		n.attachBy(strings.Replace(masqueraded, `"subnet": "10.88.0.0/16"`, `"ranges": [[{"subnet": "10.88.0.0/16"}], [{"subnet": "fd00:88::/64"}]]`, 1))
		n.add("d1")
		n.sh("ip route add blackhole 240.0.0.0/4")
		Expect(n.doctor().Findings).To(BeEmpty())
		n.sh(commands)
		n.requireFixed(n.find("policy-rule", "host: the "+what+` refuses the packets of containers of network "pods"`), nil)
	},
		Entry(nil, "prohibit route 0.0.0.0/0 of table 100", "ip rule add from 10.88.0.0/16 table 100; ip route add prohibit default table 100"),
		Entry(nil, "blackhole route ::/0 of table 101", "ip -6 rule add iif cni0 table 101; ip -6 route add blackhole default metric 7 table 101"),
	)

	DescribeTable("finds a table that sends packets for containers elsewhere", func(commands string) {
		n := &usedHost{testHost: newTestHost("bridge", "host-local")}
		n.attachBy(strings.Replace(masqueraded, `"subnet": "10.88.0.0/16"`, `"ranges": [[{"subnet": "10.88.0.0/16"}], [{"subnet": "fd00:88::/64"}]]`, 1))
		n.add("d1")
		nstest.Join(GinkgoTB(), nstest.End{In: n.NS, Name: "wg0", Addrs: []string{"192.0.2.2/24"}}, nstest.End{In: nstest.New(GinkgoTB()), Name: "peer0"})
		n.sh(commands)
		n.requireFixed(n.find("policy-rule", `host: a policy rule selects another table than main for packets to containers of network "pods", so that they leave through wg0`), nil)
	},
		Entry("as WireGuard's default route", "ip rule add not fwmark 0xca6c table 51820; ip route add default dev wg0 table 51820"),
		Entry("before all other rules", "ip rule add pref 1 table 53; ip route add 10.88.0.0/16 dev wg0 table 53"),
		Entry("as Tailscale's subnet routes", "ip -6 rule add pref 5270 table 52; ip -6 route add fd00::/16 dev wg0 table 52"),
	)

	It("finds a chain that drops what other hosts send to host ports although the list contains firewall", func() {
		n := &usedHost{testHost: newTestHost("bridge", "host-local", "portmap", "firewall")}
		n.attachBy(strings.Replace(masqueraded, "        }\n    ]", "        },\n        {\"type\": \"portmap\", \"capabilities\": {\"portMappings\": true}},\n        {\"type\": \"firewall\"}\n    ]", 1))
		n.sh("ip link add docker0 type bridge; iptables -P FORWARD DROP; iptables -A FORWARD -i docker0 -j ACCEPT; iptables -A FORWARD -o docker0 -j ACCEPT; " +
			"iptables -A FORWARD -p icmp -j ACCEPT; iptables -A FORWARD -p tcp --dport 22 -j ACCEPT; iptables -A FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT; " +
			"ip link add up0 type veth peer name up1; iptables -A FORWARD -i cni0 -j ACCEPT")
		Expect(n.doctor().Findings).To(BeEmpty(), "no container")
		n.add("d1")
		n.requireFixed(n.find("forward-drop", `table ip filter, chain FORWARD drops what other hosts send to host ports of network "pods"`), nil)
		for _, rule := range []string{"-o cni0", "-i up0", "-d 10.88.0.0/16 -p tcp", "-m conntrack --ctstate DNAT"} {
			n.sh("iptables -F CNI-ADMIN; iptables -A CNI-ADMIN " + rule + " -j ACCEPT")
			Expect(n.doctor().Findings).To(BeEmpty(), rule)
		}
	})

	It("finds a chain that drops the frames of a bridge", func() {
		n, _ := newUsedHost()
		n.sh("nft 'add table bridge f; add chain bridge f forw { type filter hook forward priority 0; policy drop; }; add rule bridge f forw iifname cni0 accept'")
		finding := n.find("forward-drop", `table bridge f, chain forw: its policy is drop, and no rule of it names the subnet or the bridge of network "pods"`)
		n.requireFixed(finding, func() { n.sh("nft delete table bridge f") })
		n = &usedHost{testHost: newTestHost("bridge", "host-local", "firewall")}
		n.attachBy(strings.Replace(masqueraded, "        }\n    ]", "        },\n        {\"type\": \"firewall\"}\n    ]", 1))
		n.sh("nft 'add table bridge f; add chain bridge f forw { type filter hook forward priority 0; policy drop; }; add rule bridge f forw ip saddr 10.88.0.0/16 accept'")
		Expect(n.doctor().Findings).To(BeEmpty(), "the list contains firewall")
	})

	It("ignores a chain that drops packets of an IP version that the network does not use", func() {
		n, _ := newUsedHost()
		n.sh("nft 'add table ip6 filter; add chain ip6 filter FORWARD { type filter hook forward priority 0; policy drop; }'")
		Expect(n.doctor().Findings).To(BeEmpty())
	})

	It("finds a host end that another program moved to its bridge, and the flags that it lost there", func() {
		n := &usedHost{testHost: newTestHost("bridge", "host-local")}
		n.attachBy(strings.Replace(masqueraded, `"isGateway"`, `"hairpinMode": true, "isGateway"`, 1))
		n.add("d1")
		n.add("d2")
		n.sh("ip link add br9 type bridge && ip link set br9 up && ip link set $(ip -br link show master cni0 | sed -n 's/@.*//p;q') master br9")
		finding := n.find("check", "is not a port of bridge cni0")
		Expect(finding.Fix).To(MatchRegexp(`^ip link set dev (veth\S+) master cni0 && ip link set dev veth\S+ type bridge_slave hairpin on$`))
		n.requireFixed(finding, nil)
	})

	It("finds an interface with a larger MTU than its host end", func() {
		n, d1 := newUsedHost()
		d1.IP("link set eth0 mtu 1400")
		Expect(n.doctor().Findings).To(BeEmpty())
		d1.IP("link set eth0 mtu 9000")
		n.requireFixed(n.find("mtu", "container d1, interface eth0, network pods has MTU 9000, and its host end "), nil)
	})

	It("finds a host end with another name", func() {
		n, _ := newUsedHost()
		name := strings.TrimSpace(n.sh("ip -o link show type veth | grep -o 'veth[0-9a-f]*' | head -1"))
		n.sh("ip link set " + name + " down; ip link set " + name + " name foo0; ip link set foo0 up")
		n.requireFixed(n.find("host-end", "the host end of container d1, interface eth0, has the name foo0 in place of "+name), nil)
	})

	It("finds an edited configuration that names another bridge than the containers use", func() {
		n, _ := newUsedHost()
		n.change("10-pods.conflist", `"isGateway"`, `"bridge": "cni1", "isGateway"`)
		n.requireFixed(n.find("bridge", `the bridge of network "pods" is cni1, but its containers are on cni0`), func() {
			n.change("10-pods.conflist", `"cni1"`, `"cni0"`)
		})
	})

	It("finds containers whose reservations and results someone deleted, also after the next ADD", func() {
		n, d1 := newUsedHost()
		n.add("d2")
		wipe := func() { n.sh("rm -r " + n.pools() + "/* " + n.dir + "/cache/*") }
		wipe()
		const what = "network pods has no reservations for containers that run, so that new containers can get their addresses: "
		n.find("reservation", what+"container d1 (10.88.0.2); container d2 (10.88.0.3)")
		n.add("d3")
		Expect(n.doctor().Findings).To(BeEmpty(), "the ADDs of d1 and d2 may be running")
		n.age()
		Expect(n.doctor().Findings).To(ContainElement(HaveField("What", what+"container d1 (10.88.0.2, which container d3 also has); container d2 (10.88.0.3)")))
		wipe()
		n.sh("nft flush ruleset")
		Expect(n.doctor().Findings).NotTo(ContainElement(HaveField("Check", "reservation")), "no process runs in the containers")
		sleep := exec.Command("sleep", "1000")
		Expect(d1.Start(sleep)).To(Succeed())
		DeferCleanup(func() { _, _ = sleep.Process.Kill(), sleep.Wait() })
		n.find("reservation", what+"container d1")
	})

	It("finds a datastore of cluster-local that does not answer or is frozen", func() {
		n := newTestHost("bridge", "cluster-local")
		n.write("10-pods.conflist", strings.NewReplacer("host-local", "cluster-local", `"10.88.0.0/16"`, `"10.88.0.0/16", "datastore": {"type": "cluster-local-stub"}`).Replace(masqueraded))
		n.find("executable", `plugins[0].ipam.datastore.type "cluster-local-stub": no executable in `)
		answer := func(text string) { n.writeScript("cluster-local-stub", "cat >/dev/null; echo '"+text+"'") }
		answer(`{"error": {"code": 11, "reason": "unreachable", "msg": "etcd does not answer"}}`)
		n.requireFixed(n.find("datastore", "so that ADD fails when this node has no free one: cluster-local-stub: code 11: etcd does not answer"), func() { answer("{}") })
		answer(`{"frozen": "2026-11-29 by n1"}`)
		n.requireFixed(n.find("datastore", `network "pods" gets no addresses from its datastore, which is frozen since 2026-11-29 by n1`), func() { answer("{}") })
	})

	It("finds a full pool, and nothing after the edit and the next ADD", func() {
		n := &usedHost{testHost: newTestHost("bridge", "host-local")}
		n.attachBy(strings.Replace(masqueraded, "10.88.0.0/16", "10.88.0.12/30", 1))
		n.add("d1")
		finding := n.find("pool", "all 1 addresses are in use, so that ADD fails")
		Expect(finding.Edit).To(HaveSuffix(`write "subnet": "10.88.0.8/29", "gateway": "10.88.0.13" in place of "subnet": "10.88.0.12/30", and add "forceAddress": true to bridge`))
		n.change("10-pods.conflist", `"subnet": "10.88.0.12/30"`, `"subnet": "10.88.0.8/29", "gateway": "10.88.0.13"`)
		n.change("10-pods.conflist", `"isGateway"`, `"forceAddress": true, "isGateway"`)
		n.add("d2")
		Expect(n.doctor().Findings).To(BeEmpty())
	})

	It("finds a deleted container that holds only its result, but not its lo", func() {
		n := &usedHost{testHost: newTestHost("bridge", "loopback")}
		n.write("99-lo.conflist", `{"cniVersion": "1.1.0", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}`)
		lo, err := libcni.NetworkConfFromFile(filepath.Join(n.confDir(), "99-lo.conflist"))
		Expect(err).NotTo(HaveOccurred())
		n.attachBy(`{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "bridge"}]}`)
		d1 := n.add("d1")
		runtime := runtimeOf("d1", d1)
		runtime.IfName = "lo"
		_, err = n.cni.AddNetworkList(context.Background(), lo, runtime)
		Expect(err).NotTo(HaveOccurred())
		d1.Remove(GinkgoTB())
		Eventually(func() string { return n.sh("ip -o link show type veth") }).Should(BeEmpty())
		n.age()
		finding := n.find("leftover", "container d1, interface eth0, network pods, is deleted, but still holds its result in libcni's cache: ")
		Expect(n.doctor().Findings).To(HaveLen(1))
		n.requireFixed(finding, nil)
	})

	It("finds a network that got another name although it has containers", func() {
		n, _ := newUsedHost()
		n.change("10-pods.conflist", `"pods"`, `"pods2"`)
		n.age()
		finding := n.find("no-network", `no file configures network "pods", and new containers in network "pods2" can get the addresses of its containers: container d1 has 10.88.0.2`)
		Expect(finding.Edit).To(HaveSuffix(`/10-pods.conflist: write "name": "pods"`))
		n.requireFixed(finding, func() { n.change("10-pods.conflist", `"pods2"`, `"pods"`) })
	})

	It("ignores a chain that drops packets if one of its rules accepts those of the subnet or the bridge", func() {
		n, _ := newUsedHost()
		n.Must(GinkgoTB(), "iptables", "-P", "FORWARD", "DROP")
		n.Must(GinkgoTB(), "iptables", "-A", "FORWARD", "-s", "10.88.0.200", "-j", "ACCEPT")
		n.find("forward-drop", "FORWARD")
		n.Must(GinkgoTB(), "iptables", "-A", "FORWARD", "-s", "10.88.0.0/16", "-j", "ACCEPT")
		Expect(n.doctor().Findings).To(BeEmpty())
		n.sh("ip link add up0 type veth peer name up1; ip link add docker0 type bridge")
		for _, rule := range []string{"-i cni0", "-i cni+", "", "-o up0", "! -i docker0", "! -o docker0", "-m conntrack --ctstate NEW,RELATED,ESTABLISHED"} {
			n.sh("iptables -F FORWARD")
			n.find("forward-drop", "FORWARD")
			n.sh("iptables -A FORWARD " + rule + " -j ACCEPT")
			Expect(n.doctor().Findings).To(BeEmpty(), rule)
		}
		n.sh("iptables -F FORWARD")
		for _, rule := range []string{"-i docker0", "-o docker0", "! -i cni0", "-p icmp", "-m conntrack --ctstate RELATED,ESTABLISHED", "-d 10.99.0.0/16"} {
			n.sh("iptables -A FORWARD " + rule + " -j ACCEPT")
		}
		n.find("forward-drop", "FORWARD")
	})
})
