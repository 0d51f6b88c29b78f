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
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/doctor"
	"github.com/plumb-cni/plumb/test/nstest"
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

// ports is a network with host ports.
const ports = `{
    "cniVersion": "1.1.0",
    "name": "pods",
    "plugins": [
        {"type": "bridge", "isGateway": true, "ipam": {"type": "host-local", "dataDir": "POOLS", "subnet": "10.88.0.0/16"}},
        {"type": "portmap", "capabilities": {"portMappings": true}}
    ]
}
`

// onNode makes libcni start the plugins on a node.
type onNode struct {
	invoke.RawExec
	version.PluginDecoder
	node *nstest.NS
}

func (e *onNode) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) (out []byte, err error) {
	err = e.node.Do(func() (err error) {
		out, err = e.RawExec.ExecPlugin(ctx, path, stdin, environ)
		return err
	})
	return out, err
}

// A usedNode is a node with containers.
type usedNode struct {
	*testNode
	cni *libcni.CNIConfig
}

// newUsedNode returns a node with the network masqueraded and the container c1.
func newUsedNode() (n *usedNode, c1 *nstest.NS) {
	GinkgoHelper()
	n = &usedNode{testNode: newTestNode("bridge", "host-local", "portmap", "firewall")}
	n.attachBy(masqueraded)
	return n, n.add("c1")
}

// attachBy makes the configuration that of the network to which add and del attach containers.
func (n *usedNode) attachBy(configuration string) {
	GinkgoHelper()
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{n.bin()}, filepath.Join(n.dir, "cache"), &onNode{node: n.NS})
	n.write("10-pods.conflist", configuration)
}

func (n *usedNode) list() *libcni.NetworkConfigList {
	GinkgoHelper()
	list, err := libcni.NetworkConfFromFile(filepath.Join(n.confDir(), "10-pods.conflist"))
	Expect(err).NotTo(HaveOccurred())
	return list
}

func runtimeOf(id string, pod *nstest.NS) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: id, NetNS: pod.Path(), IfName: "eth0"}
}

// add adds a container.
func (n *usedNode) add(id string) *nstest.NS {
	GinkgoHelper()
	pod := nstest.New(GinkgoTB()).Named(id)
	_, err := n.cni.AddNetworkList(context.Background(), n.list(), runtimeOf(id, pod))
	Expect(err).NotTo(HaveOccurred())
	return pod
}

func (n *usedNode) del(id string, pod *nstest.NS) {
	GinkgoHelper()
	Expect(n.cni.DelNetworkList(context.Background(), n.list(), runtimeOf(id, pod))).To(Succeed())
}

// result returns the path of a container's file in libcni's cache.
func (n *usedNode) result(id string) string {
	return filepath.Join(n.dir, "cache", "results", "pods-"+id+"-eth0")
}

// age makes all files of the node two hours old.
func (n *usedNode) age() {
	GinkgoHelper()
	n.ageBy(2 * time.Hour)
}

// ageBy sets the age of all files of the node.
func (n *usedNode) ageBy(d time.Duration) {
	GinkgoHelper()
	old := time.Now().Add(-d)
	Expect(filepath.WalkDir(n.dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chtimes(path, old, old)
	})).To(Succeed())
}

// commandIn returns the command that an advice for a person has after a colon.
func commandIn(f doctor.Finding) string {
	GinkgoHelper()
	_, command, found := strings.Cut(f.Mend, "any more: ")
	Expect(found).To(BeTrue(), f.Mend)
	return command
}

var _ = Describe("plumb doctor on what the node holds", func() {
	It("finds nothing on a node with containers", func() {
		n, _ := newUsedNode()
		n.age()
		report := n.doctor()
		Expect(report.Findings).To(BeEmpty())
		Expect(report.Attachments).To(Equal(1))
	})

	It("does not take an attachment that is being made for a leftover", func() {
		n, _ := newUsedNode()
		n.add("c2")
		Expect(os.Remove(n.result("c2"))).To(Succeed())
		Expect(n.doctor().Findings).To(BeEmpty())
	})

	It("says how many attachments it leaves out because their ADD may be under way", func() {
		n, _ := newUsedNode()
		report := func() string {
			out, _ := n.plumb(append([]string{"doctor"}, n.folders()...)...)
			return out
		}
		Expect(report()).NotTo(ContainSubstring("not judged"))
		n.add("c2").Remove(GinkgoTB())
		n.ageBy(-time.Hour) // so that the test can take more than a minute
		const leftOut = "1 attachment not judged: younger than a minute, or of unknown age; run doctor again in a minute\nnothing found ("
		Eventually(report).Should(HavePrefix(leftOut)) // the host end goes after the namespace
		list := filepath.Join(n.dir, "live")
		Expect(os.WriteFile(list, []byte("c1\n"), 0o644)).To(Succeed())
		n.args = []string{"--live", list}
		Expect(report()).To(HavePrefix(leftOut))
		n.age()
		Expect(report()).NotTo(ContainSubstring("not judged"))
	})

	Context("with a container that is gone", func() {
		var n *usedNode
		BeforeEach(func() {
			n, _ = newUsedNode()
		})
		// leave leaves what a node holds for a container c2 whose runtime never called DEL.
		leave := func() {
			n.add("c2").Remove(GinkgoTB())
			Eventually(func() string { return n.sh("ip -o link show type veth | wc -l") }).Should(Equal("1\n"))
			n.age()
		}
		live := func(ids string) string {
			path := filepath.Join(n.dir, "live")
			Expect(os.WriteFile(path, []byte(ids), 0o644)).To(Succeed())
			return path
		}

		It("names the namespace that does not exist, and removes all", func() {
			leave()
			finding := n.find("leftover", "container c2, interface eth0, network pods: reservation 10.88.0.3, result of libcni, nftables elements: 1")
			Expect(finding.What).To(MatchRegexp("its namespace .* does not exist$"))
			n.requireMended(finding, nil)
			Expect(n.sh("nft list table inet plumb")).NotTo(ContainSubstring("c2"))
		})

		// start starts a process in a namespace, and returns the path of the process's namespace.
		start := func(in *nstest.NS) (path string, end func()) {
			cmd := exec.Command("sleep", "infinity")
			Expect(in.Start(cmd)).To(Succeed())
			end = sync.OnceFunc(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
			DeferCleanup(end)
			return fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid), end
		}

		DescribeTable("knows by its process a namespace whose path is in /proc", func(reuse func() *nstest.NS, what string) {
			if own, err := os.Readlink("/proc/self/ns/pid"); err != nil || own != "pid:[4026531836]" {
				Skip("this is not the first PID namespace, so plumb cannot know whether a process is gone")
			}
			pod := nstest.New(GinkgoTB()).Named("c2")
			runtime := runtimeOf("c2", pod)
			path, end := start(pod)
			runtime.NetNS = path
			n.attach(runtime)
			pod.Remove(GinkgoTB())
			Expect(n.doctor().Findings).To(BeEmpty())
			end()
			Eventually(func() string { return n.sh("ip -o link show type veth | wc -l") }).Should(Equal("1\n"))
			if reuse != nil { // as if the number of the process were used again
				other, _ := start(reuse())
				n.sh(fmt.Sprintf("sed -i s,%s,%s, %s", path, other, n.result("c2")))
			}
			n.age()
			finding := n.find("leftover", "container c2, interface eth0, network pods: reservation 10.88.0.3")
			Expect(finding.What).To(MatchRegexp(what))
			if finding.IsCommand() {
				n.requireMended(finding, nil)
			} else {
				n.requireMended(finding, func() { n.sh(commandIn(finding)) })
			}
		},
			Entry("that has ended", nil, `its namespace /proc/\d+/ns/net does not exist$`),
			Entry("whose number a process of the node has", func() *nstest.NS { return n.NS }, `its namespace /proc/\d+/ns/net does not exist$`),
			Entry("whose number a process of another container has", func() *nstest.NS { return nstest.New(GinkgoTB()) },
				`the process of /proc/\d+/ns/net began after its ADD, and is probably another one$`),
		)

		It("names a container whose namespace has no process, and removes it with --force only", func() {
			n.add("c3")
			n.age()
			n.args = []string{"--live", live("c1\n")}
			finding := n.find("leftover", "container c3, interface eth0, network pods: reservation 10.88.0.3, link veth")
			Expect(finding.What).To(MatchRegexp(`its namespace \S+, in which no process runs, exists: the runtime has to delete the container$`))
			n.requireMended(finding, func() { n.sh(commandIn(finding)) })
		})

		It("takes no missing folder of namespaces for evidence", func() {
			c2 := n.add("c2")
			c2.Remove(GinkgoTB())
			Eventually(func() string { return n.sh("ip -o link show type veth | wc -l") }).Should(Equal("1\n"))
			n.age()
			Expect(os.RemoveAll(filepath.Dir(c2.Path()))).To(Succeed())
			Expect(n.doctor().Findings).To(BeEmpty())
		})

		It("takes no missing result for evidence in a network without any result", func() {
			Expect(os.Remove(n.result("c1"))).To(Succeed())
			n.age()
			Expect(n.doctor().Findings).To(BeEmpty())
		})

		It("names the missing result, and removes all", func() {
			leave()
			Expect(os.Remove(n.result("c2"))).To(Succeed())
			finding := n.find("leftover", "libcni's cache has no result of it")
			n.requireMended(finding, func() { n.sh(commandIn(finding)) })
			Expect(filepath.Join(n.pools(), "pods", "10.88.0.3")).NotTo(BeAnExistingFile())
		})

		It("removes the container that it names, and no other one without a result", func() {
			leave()
			n.add("c3")
			Expect(os.Remove(n.result("c3"))).To(Succeed())
			n.age()
			var named, other doctor.Finding
			for _, f := range n.doctor().Findings {
				if strings.Contains(f.What, "container c2") {
					named = f
				} else {
					other = f
				}
			}
			n.sh(named.Mend)
			Expect(n.sh("ip -o link show master cni0 | wc -l")).To(Equal("2\n"), "the host ends of c1 and c3")
			Expect(filepath.Join(n.pools(), "pods", "10.88.0.4")).To(BeAnExistingFile())
			Expect(other.What).To(ContainSubstring("container c3, interface eth0, network pods: reservation 10.88.0.4, link veth"))
			Expect(other.What).To(HaveSuffix("libcni's cache has no result of it, so its ADD failed, or its DEL, or the result was lost; its namespace exists"))
			Expect(other.IsCommand()).To(BeFalse(), other.Mend)
			n.requireMended(other, func() { n.sh(commandIn(other)) })
		})

		It("removes the things of a network of which only libcni's cache has the configuration", func() {
			leave()
			n.write("10-pods.conflist", `{"cniVersion": "1.1.0", "name": "other", "plugins": [{"type": "bridge", "bridge": "other"}]}`)
			n.requireMended(n.find("leftover", "container c2"), nil)
			Expect(n.sh("nft list table inet plumb")).NotTo(ContainSubstring("c2"))
		})

		It("finds a container that is not in the list of live ones", func() {
			leave()
			n.args = []string{"--live", live("c1\n")}
			n.requireMended(n.find("leftover", "container c2, interface eth0, network pods: reservation 10.88.0.3, result of libcni"), nil)
		})

		It("names no file for the list that cannot be read again", func() {
			leave()
			pipe := filepath.Join(n.dir, "pipe")
			out := n.sh("mkfifo " + pipe + "; echo c1 > " + pipe + " & plumb doctor --live " + pipe + " " + strings.Join(n.folders(), " ") + " || true")
			Expect(out).To(MatchRegexp("container c2, .*\n    edit: give the same list to plumb gc --live - "))
		})

		It("refuses a list of shortened IDs", func() {
			cmd := append([]string{"doctor", "--live", live("c\n")}, n.folders()...)
			_, err := n.Exec(filepath.Join(n.built, "plumb"), cmd...)
			Expect(err).To(MatchError(ContainSubstring("give whole IDs (--no-trunc)")))
		})
	})

	It("makes no checks of the state if files are given", func() {
		n, _ := newUsedNode()
		n.Must(GinkgoTB(), "nft", "flush", "ruleset")
		Expect(n.doctor(filepath.Join(n.confDir(), "10-pods.conflist")).Checks).NotTo(ContainElement("elements"))
	})

	It("finds a container that has no address that is reserved for it, and adds the address", func() {
		n, c1 := newUsedNode()
		c1.Must(GinkgoTB(), "ip", "address", "flush", "dev", "eth0")
		n.requireMended(n.find("reservation", "10.88.0.2 is reserved for c1, whose eth0 does not have it"), nil)
		Expect(c1.Must(GinkgoTB(), "ip", "-4", "address", "show", "dev", "eth0")).To(ContainSubstring("10.88.0.2/16"))
	})

	It("finds an address without a reservation, and reserves it", func() {
		n, c1 := newUsedNode()
		file := filepath.Join(n.pools(), "pods", "10.88.0.2")
		before, err := os.ReadFile(file)
		Expect(err).NotTo(HaveOccurred())
		Expect(os.Remove(file)).To(Succeed())
		n.requireMended(n.find("reservation", "10.88.0.2, an address of c1, is not reserved"), nil)
		Expect(os.ReadFile(file)).To(Equal(before))
		info, err := os.Stat(file)
		Expect(err).NotTo(HaveOccurred())
		Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)))
		n.del("c1", c1)
		Expect(file).NotTo(BeAnExistingFile())
	})

	It("does not overwrite a reservation that an ADD has made meanwhile", func() {
		n, _ := newUsedNode()
		file := filepath.Join(n.pools(), "pods", "10.88.0.2")
		Expect(os.Remove(file)).To(Succeed())
		finding := n.find("reservation", "10.88.0.2, an address of c1, is not reserved")
		Expect(os.WriteFile(file, []byte("c9\r\neth0"), 0o600)).To(Succeed())
		n.sh("! " + finding.Mend)
		Expect(os.ReadFile(file)).To(Equal([]byte("c9\r\neth0")))
	})

	It("finds an address that is reserved for another container", func() {
		n, c1 := newUsedNode()
		file := filepath.Join(n.pools(), "pods", "10.88.0.2")
		before, err := os.ReadFile(file)
		Expect(err).NotTo(HaveOccurred())
		Expect(os.WriteFile(file, []byte("c9\r\neth0"), 0o644)).To(Succeed())
		n.requireMended(n.find("reservation", "10.88.0.2, an address of c1, is reserved for c9"), func() {
			Expect(os.WriteFile(file, before, 0o644)).To(Succeed())
			n.del("c1", c1)
			n.add("c1")
		})
	})

	It("finds a reservation that names another container than the one with the address, and corrects it", func() {
		n, _ := newUsedNode()
		n.add("c2")
		file := filepath.Join(n.pools(), "pods", "10.88.0.2")
		Expect(os.WriteFile(file, []byte("c2\r\neth0"), 0o644)).To(Succeed())
		n.requireMended(n.find("reservation", "10.88.0.2, an address of c1, is reserved for c2, which does not have it"), nil)
		Expect(os.ReadFile(file)).To(Equal([]byte("c1\r\neth0")))
	})

	It("finds reservations that name no container", func() {
		n, _ := newUsedNode()
		var want []string
		for _, network := range []string{"pods", "former"} {
			Expect(os.MkdirAll(filepath.Join(n.pools(), network), 0o755)).To(Succeed())
			for name, text := range map[string]string{"10.88.0.98": "", "10.88.0.99": strings.Repeat("? ", 100)} {
				Expect(os.WriteFile(filepath.Join(n.pools(), network, name), []byte(text), 0o644)).To(Succeed())
				want = append(want, name+" is reserved in network "+network+" for no container: the file names none")
			}
		}
		n.age()
		var found []string
		for _, f := range n.doctor().Findings {
			found = append(found, f.What)
			n.sh(f.Mend)
		}
		Expect(found).To(ConsistOf(want))
		Expect(n.doctor().Findings).To(BeEmpty())
		Expect(filepath.Glob(filepath.Join(n.pools(), "*", "10.88.0.9*"))).To(BeEmpty())
	})

	It("names a container without its interface once", func() {
		n, runtime := newCompleteNode()
		n.sh("ip link delete $(ip -o link show master cni0 | cut -d: -f2 | cut -d@ -f1)")
		report := n.doctor()
		Expect(report.Findings).To(HaveLen(1))
		n.requireMended(n.find("reservation", "10.88.0.2, fd00:88::2 are reserved for c1, which has no interface eth0"), func() { n.replace(runtime) })
	})

	It("finds an element without owner, which leads a host port to another container", func() {
		n, _ := newCompleteNode()
		n.sh("nft delete element inet plumb hostport4 '{ tcp . 8080 }'; nft add element inet plumb hostport4 '{ tcp . 8080 : 10.88.0.9 . 80 }'")
		var elements []doctor.Finding
		for _, f := range n.doctor().Findings {
			if f.Check == "elements" {
				elements = append(elements, f)
			} else {
				Expect(f.What).To(ContainSubstring("the element for host port 8080/tcp of IP version 4 has no owner: another program has made it"))
			}
		}
		Expect(elements).To(HaveLen(1))
		Expect(elements[0].What).To(Equal("table inet plumb, hostport4: the element tcp . 8080 leads to 10.88.0.9 . 80 and has no owner: another program has made it, and no DEL deletes it"))
		n.sh(elements[0].Mend)
		Expect(n.find("check", "hostport4").What).To(ContainSubstring("map hostport4 of table inet plumb has no element for host port 8080/tcp"))
	})

	It("does not take port mappings for deleted that portmap was not given", func() {
		n := &usedNode{testNode: newTestNode("bridge", "host-local", "portmap")}
		n.attachBy(strings.Replace(ports, `"capabilities": {"portMappings": true}`, `"mappings": true`, 1))
		runtime := runtimeOf("c1", nstest.New(GinkgoTB()))
		runtime.CapabilityArgs = map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}
		n.attach(runtime)
		for _, f := range n.doctor().Findings {
			Expect(f.Check).To(Equal("keys"), f.What)
		}
		n.change("10-pods.conflist", `"mappings": true`, `"capabilities": {"portMappings": true}`)
		Expect(n.doctor().Findings).To(BeEmpty(), "the configuration of the ADD counts")
	})

	It("finds an address of a container on another one, and removes it there", func() {
		n, c1 := newUsedNode()
		c2 := n.add("c2")
		c2.Batch(GinkgoTB(), "address add 10.88.0.2/16 dev eth0")
		const what = "10.88.0.2, the address of c1, is also on eth0 of c2, whose ADD did not return it"
		n.find("reservation", what)
		n.args = []string{"--wire"}
		n.requireMended(n.find("reservation", what), nil)
		Expect(c1.Must(GinkgoTB(), "ip", "-4", "address", "show", "dev", "eth0")).To(ContainSubstring("10.88.0.2/16"))
		Expect(c2.Must(GinkgoTB(), "ip", "-4", "address", "show", "dev", "eth0")).To(ContainSubstring("10.88.0.3/16"))
	})

	It("does not take an answer of another interface of the same container for another host", func() {
		n, c1 := newUsedNode()
		second := runtimeOf("c1", c1)
		second.IfName = "net1"
		n.attach(second)
		n.args = []string{"--wire"}
		Expect(n.doctor().Findings).To(BeEmpty())
	})

	It("names the container of this node that answers for the address of another one", func() {
		n, _ := newUsedNode()
		c2 := n.add("c2")
		c2.Batch(GinkgoTB(), "link add br7 type bridge", "address add 10.88.0.2/32 dev br7", "link set br7 up")
		n.args = []string{"--wire"}
		finding := n.find("wire", "10.88.0.2, an address of c1 (")
		Expect(finding.What).To(ContainSubstring("is also used by container c2 with hardware address "))
		n.requireMended(finding, func() { c2.Batch(GinkgoTB(), "link delete br7") })
	})

	It("says that a result cannot be read", func() {
		n, _ := newUsedNode()
		n.add("c2")
		Expect(os.WriteFile(n.result("c2"), []byte("{garbage"), 0o600)).To(Succeed())
		n.age()
		Expect(n.find("leftover", "container c2").What).To(ContainSubstring("the result in libcni's cache cannot be read: " + n.result("c2")))
	})

	It("finds a reservation that names no interface, of a container that is gone", func() {
		n, _ := newUsedNode()
		Expect(os.WriteFile(filepath.Join(n.pools(), "pods", "10.88.0.78"), []byte("deadbeef2"), 0o600)).To(Succeed())
		Expect(n.doctor().LeftOut).To(Equal(1))
		n.age()
		finding := n.find("leftover", "container deadbeef2, interface not known, network pods: reservation 10.88.0.78: libcni's cache has no result of it")
		n.requireMended(finding, func() { n.sh(commandIn(finding)) })
	})

	It("finds a reservation of a container for an address outside of the ranges, which the container does not have", func() {
		n, _ := newUsedNode()
		Expect(os.WriteFile(filepath.Join(n.pools(), "pods", "10.99.0.5"), []byte("c1"), 0o600)).To(Succeed())
		Expect(n.doctor().Findings).To(BeEmpty(), "it is new")
		n.age()
		n.requireMended(n.find("reservation", "10.99.0.5, which is in no range of network pods, is reserved for c1, whose eth0 does not have it"), nil)
	})

	It("finds that another program has flushed the ruleset", func() {
		n, c1 := newUsedNode()
		n.Must(GinkgoTB(), "nft", "flush", "ruleset")
		n.requireMended(n.find("elements", "network pods: table inet plumb lacks the elements for masquerade or host ports of c1; another program has probably deleted them"), func() {
			n.del("c1", c1)
			n.add("c1")
		})
	})

	It("finds that another program has deleted the elements of host ports", func() {
		n := &usedNode{testNode: newTestNode("bridge", "host-local", "portmap")}
		n.attachBy(ports)
		pod := nstest.New(GinkgoTB())
		runtime := runtimeOf("c1", pod)
		runtime.CapabilityArgs = map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}
		_, err := n.cni.AddNetworkList(context.Background(), n.list(), runtime)
		Expect(err).NotTo(HaveOccurred())
		Expect(n.doctor().Findings).To(BeEmpty())
		n.Must(GinkgoTB(), "nft", "flush", "ruleset")
		n.Must(GinkgoTB(), "sysctl", "-q", "-w", "net.ipv4.conf.cni0.route_localnet=0")
		n.requireMended(n.find("elements", "lacks the elements for masquerade or host ports of c1"), func() {
			Expect(n.cni.DelNetworkList(context.Background(), n.list(), runtime)).To(Succeed())
			_, err := n.cni.AddNetworkList(context.Background(), n.list(), runtime)
			Expect(err).NotTo(HaveOccurred())
		})
	})

	It("finds that another program has flushed a chain", func() {
		n, _ := newUsedNode()
		n.Must(GinkgoTB(), "nft", "flush", "chain", "inet", "plumb", "postrouting")
		n.requireMended(n.find("chain", "table inet plumb: chain postrouting is missing"), func() { n.add("c2") })
	})

	It("finds a foreign chain that drops what containers send", func() {
		n, _ := newUsedNode()
		n.Must(GinkgoTB(), "iptables", "-P", "FORWARD", "DROP")
		n.requireMended(n.find("forward-drop", "table ip filter, chain FORWARD: its policy is drop"), func() {
			n.change("10-pods.conflist", "        }\n    ]", "        },\n        {\"type\": \"firewall\"}\n    ]")
		})
	})

	It("finds a native chain of nftables that drops what containers send, and adds rules to it", func() {
		n, c1 := newUsedNode()
		outside := nstest.New(GinkgoTB())
		n.Must(GinkgoTB(), "ip", "link", "add", "up0", "type", "veth", "peer", "name", "up1", "netns", outside.Path())
		n.Batch(GinkgoTB(), "link set up0 up", "address add 198.51.100.1/24 dev up0")
		outside.Batch(GinkgoTB(), "link set up1 up", "address add 198.51.100.2/24 dev up1")
		c1.Batch(GinkgoTB(), "route add 198.51.100.0/24 via 10.88.0.1")
		n.sh("nft 'add table inet f; add chain inet f forw { type filter hook forward priority 0; policy drop; }'")
		n.requireMended(n.find("forward-drop", `table inet f, chain forw: its policy is drop, and no rule of it names the subnet or the bridge of network "pods"`), nil)
		c1.Must(GinkgoTB(), "ping", "-c", "1", "-W", "60", "198.51.100.2")
		n.sh("nft flush chain inet f forw")
		n.sh(fmt.Sprintf("install -m 0755 %s/static %s", nstest.Build(GinkgoTB(), "static"), n.bin()))
		n.write("10-pods.conflist", strings.Replace(masqueraded, `"host-local", "dataDir": "POOLS", "subnet": "10.88.0.0/16"`, `"static", "addresses": [{"address": "10.88.0.9/16"}]`, 1))
		finding := n.find("forward-drop", "table inet f, chain forw")
		Expect(finding.Mend).To(ContainSubstring("iifname"))
		n.requireMended(finding, nil)
		c1.Must(GinkgoTB(), "ping", "-c", "1", "-W", "60", "198.51.100.2")
	})

	It("finds no chain that drops packets of an IP version that the network does not have", func() {
		n, _ := newUsedNode()
		n.sh("nft 'add table ip6 filter; add chain ip6 filter FORWARD { type filter hook forward priority 0; policy drop; }'")
		Expect(n.doctor().Findings).To(BeEmpty())
	})

	It("sets the bridge of an edited configuration back to that of the containers", func() {
		n, _ := newUsedNode()
		n.change("10-pods.conflist", `"isGateway"`, `"bridge": "cni1", "isGateway"`)
		finding := n.find("bridge", `the bridge of network "pods" is cni1, and its containers are on cni0`)
		Expect(finding.Mend).To(HavePrefix("sed "))
		n.requireMended(finding, nil)
	})

	It("finds no chain that drops if a rule of it names the subnet or the bridge", func() {
		n, _ := newUsedNode()
		n.Must(GinkgoTB(), "iptables", "-P", "FORWARD", "DROP")
		n.Must(GinkgoTB(), "iptables", "-A", "FORWARD", "-s", "10.88.0.0/16", "-j", "ACCEPT")
		Expect(n.doctor().Findings).To(BeEmpty())
		n.Must(GinkgoTB(), "iptables", "-F", "FORWARD")
		n.find("forward-drop", "FORWARD")
		n.Must(GinkgoTB(), "iptables", "-A", "FORWARD", "-i", "cni0", "-j", "ACCEPT")
		Expect(n.doctor().Findings).To(BeEmpty())
	})

	It("finds route_localnet without a guard", func() {
		n, _ := newUsedNode()
		n.Must(GinkgoTB(), "nft", "delete", "chain", "inet", "plumb", "localnet")
		n.SetSysctl(GinkgoTB(), "net/ipv4/conf/cni0/route_localnet", "1")
		n.requireMended(n.find("route-localnet", "cni0 has route_localnet, and table inet plumb has no chain localnet"), nil)
		Expect(n.Sysctl(GinkgoTB(), "net/ipv4/conf/cni0/route_localnet")).To(Equal("0"))
	})

	DescribeTable("finds another host with the address of a container", func(address string) {
		n, c1 := newUsedNode()
		if address != "10.88.0.2" {
			n.del("c1", c1)
			n.change("10-pods.conflist", `"subnet": "10.88.0.0/16"`, `"ranges": [[{"subnet": "10.88.0.0/16"}], [{"subnet": "fd00:88::/64"}]]`)
			n.add("c2")
		}
		n.args = []string{"--wire"}
		Expect(n.doctor().Findings).To(BeEmpty())
		other := nstest.New(GinkgoTB()).Named("other")
		n.Must(GinkgoTB(), "ip", "link", "add", "v9", "type", "veth", "peer", "name", "eth9", "address", "02:00:00:00:00:99", "netns", other.Path())
		n.Batch(GinkgoTB(), "link set v9 master cni0", "link set v9 up")
		other.Batch(GinkgoTB(), "link set eth9 up", "address add "+address+" dev eth9 nodad")
		var finding doctor.Finding
		Eventually(func() int { // until the bridge forwards on the new port
			found := n.doctor().Findings
			if len(found) > 0 {
				finding = found[0]
			}
			return len(found)
		}).Should(Equal(1))
		Expect(fmt.Sprint(finding.Check, " ", finding.What)).To(HavePrefix("wire " + address + ", an address of c"))
		Expect(finding.What).To(HaveSuffix("is also used by the host with hardware address 02:00:00:00:00:99 on cni0"))
		n.requireMended(finding, func() { other.Batch(GinkgoTB(), "address flush dev eth9") })
	},
		Entry("IPv4", "10.88.0.2"),
		Entry("IPv6", "fd00:88::2"),
	)
})
