package doctor_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/plugins"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// complete is a network with both IP versions, masquerade and host ports.
const complete = `{
    "cniVersion": "1.1.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge", "isDefaultGateway": true, "ipMasq": true,
            "ipam": {"type": "host-local", "dataDir": "POOLS", "ranges": [[{"subnet": "10.88.0.0/16"}], [{"subnet": "fd00:88::/64"}]]}
        },
        {"type": "portmap", "capabilities": {"portMappings": true}}
    ]
}
`

// onUplink is a macvlan network on up0.
const onUplink = `{
    "cniVersion": "1.1.0",
    "name": "pods",
    "plugins": [{"type": "macvlan", "master": "up0", "ipam": {"type": "host-local", "dataDir": "POOLS", "subnet": "10.88.0.0/16"}}]
}
`

// newCompleteHost returns a host with the network complete and the container d1, which uses the host port
// 8080.
func newCompleteHost() (n *usedHost, runtime *libcni.RuntimeConf) {
	GinkgoHelper()
	n = &usedHost{testHost: newTestHost("bridge", "host-local", "portmap", "macvlan")}
	n.attachBy(complete)
	runtime = runtimeWithPort(runtimeOf("d1", nstest.New(GinkgoTB()).Named("d1")), 8080)
	n.attach(runtime)
	return n, runtime
}

// runtimeWithPort sets the host port of a container.
func runtimeWithPort(runtime *libcni.RuntimeConf, hostPort int) *libcni.RuntimeConf {
	runtime.CapabilityArgs = map[string]any{"portMappings": []map[string]any{{"hostPort": hostPort, "containerPort": 80, "protocol": "tcp"}}}
	return runtime
}

// listen binds a socket on the host until the end of the test, or until stop is called.
func (n *usedHost) listen(network, addr string) (stop func()) {
	GinkgoHelper()
	var socket io.Closer
	Expect(n.Do(func() (err error) {
		if strings.HasPrefix(network, "udp") {
			socket, err = net.ListenPacket(network, addr)
		} else {
			socket, err = net.Listen(network, addr)
		}
		return err
	})).To(Succeed())
	DeferCleanup(func() { _ = socket.Close() })
	return func() { _ = socket.Close() }
}

// A reserver is a process that holds a socket on the host port 8080, and reads nothing from it.
type reserver struct {
	name      string // of its executable
	link      string // of the link by which it is started, after which the kernel names the process; may be empty
	arg0      string // what it calls itself; empty for name
	user      uint32
	unshare   bool                 // whether it is in a mount namespace of its own
	pidFile   func(pid int) string // the content of nerdctl's file
	fileOwner uint32
	reserves  bool // whether doctor must ignore it
}

func (p reserver) start(n *usedHost) *exec.Cmd {
	GinkgoHelper()
	nstest.RequireRoot(GinkgoTB(), "to start processes of other users")
	dir := GinkgoT().TempDir()
	Expect(os.Chmod(dir, 0o755)).To(Succeed())
	program, err := exec.LookPath("sleep")
	Expect(err).NotTo(HaveOccurred())
	content, err := os.ReadFile(program)
	Expect(err).NotTo(HaveOccurred())
	path := filepath.Join(dir, p.name)
	Expect(os.WriteFile(path, content, 0o755)).To(Succeed())
	if p.link != "" {
		Expect(os.Symlink(path, filepath.Join(dir, p.link))).To(Succeed())
		path = filepath.Join(dir, p.link)
	}
	var socket *os.File
	Expect(n.Do(func() error {
		listener, err := net.Listen("tcp4", "0.0.0.0:8080")
		if err != nil {
			return err
		}
		socket, err = listener.(*net.TCPListener).File()
		return errors.Join(err, listener.Close())
	})).To(Succeed())
	cmd := exec.Command(path, "infinity")
	cmd.Args[0] = cmp.Or(p.arg0, p.name)
	cmd.ExtraFiles = []*os.File{socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: p.user, Gid: p.user}}
	if p.unshare {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
	}
	Expect(n.Start(cmd)).To(Succeed())
	Expect(socket.Close()).To(Succeed())
	DeferCleanup(func() {
		Expect(cmd.Process.Kill()).To(Succeed())
		_ = cmd.Wait()
	})
	return cmd
}

func (n *usedHost) attach(runtime *libcni.RuntimeConf) {
	GinkgoHelper()
	_, err := n.cni.AddNetworkList(context.Background(), n.list(), runtime)
	Expect(err).NotTo(HaveOccurred())
}

// replace deletes a container and adds it again.
func (n *usedHost) replace(runtime *libcni.RuntimeConf) {
	GinkgoHelper()
	Expect(n.cni.DelNetworkList(context.Background(), n.list(), runtime)).To(Succeed())
	n.attach(runtime)
}

var _ = Describe("plumb doctor on attachments", func() {
	It("finds two containers with the same host port", func() {
		n, runtime := newCompleteHost()
		second := runtimeOf("d2", nstest.New(GinkgoTB()).Named("d2"))
		second.CapabilityArgs = runtime.CapabilityArgs
		n.attach(second)
		finding := n.find("check", "host port 8080/tcp of IP version 4 belongs to pods/d2/eth0 now")
		Expect(finding.Advice).To(Equal("Delete one of the two pods or containers. plumb repair takes nothing from another container."))
		n.requireFixed(finding, func() { n.replace(runtimeWithPort(runtime, 8081)) })
	})

	DescribeTable("finds a process that listens on the host port of a container", func(network, addr string) {
		n, _ := newCompleteHost()
		stop := n.listen(network, addr)
		finding := n.find("hidden-listener", fmt.Sprintf("(PID %d) listens on %s (tcp), but container d1, network pods, receives the packets", os.Getpid(), addr))
		n.requireFixed(finding, stop)
	},
		Entry(nil, "tcp4", "0.0.0.0:8080"),
		Entry(nil, "tcp4", "127.0.0.1:8080"),
		Entry(nil, "tcp", "[::]:8080"),
	)

	It("ignores listeners whose packets no container receives", func() {
		n, _ := newCompleteHost()
		n.listen("tcp6", "[::1]:8080")
		n.listen("udp4", "0.0.0.0:8080")
		n.listen("tcp4", "0.0.0.0:8081")
		n.listen("tcp4", "127.0.0.2:8082")
		second := runtimeOf("d2", nstest.New(GinkgoTB()).Named("d2"))
		second.CapabilityArgs = map[string]any{"portMappings": []map[string]any{{"hostPort": 8082, "containerPort": 80, "protocol": "tcp", "hostIP": "127.0.0.1"}}}
		n.attach(second)
		Expect(n.doctor().Findings).To(BeEmpty())
	})

	DescribeTable("ignores a process that only reserves a host port, but no process that pretends to", func(p reserver) {
		n := &usedHost{testHost: newTestHost("bridge", "host-local", "portmap")}
		n.attachBy(complete)
		container := "default-" + strings.Repeat("a", 64)
		n.attach(runtimeWithPort(runtimeOf(container, nstest.New(GinkgoTB()).Named("d1")), 8080))
		cmd := p.start(n)
		if p.pidFile != nil {
			dir := "/run/nerdctl/default/" + strings.Repeat("a", 64)
			Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
			DeferCleanup(os.RemoveAll, "/run/nerdctl")
			Expect(os.WriteFile(dir+"/port-reserver.pid", []byte(p.pidFile(cmd.Process.Pid)), 0o644)).To(Succeed())
			Expect(os.Chown(dir+"/port-reserver.pid", int(p.fileOwner), 0)).To(Succeed())
		}
		if p.reserves {
			Expect(n.doctor().Findings).To(BeEmpty())
			return
		}
		n.find("hidden-listener", fmt.Sprintf("(PID %d) listens on 0.0.0.0:8080 (tcp), but container "+container, cmd.Process.Pid))
	},
		Entry("conmon", reserver{name: "conmon", reserves: true}),
		Entry("a process that calls itself conmon", reserver{name: "sleep", link: "conmon", arg0: "conmon"}),
		Entry("a user's conmon", reserver{name: "conmon", user: 65534}),
		Entry("a conmon in another mount namespace", reserver{name: "conmon", unshare: true}),
		Entry("nerdctl's reserver", reserver{name: "sleep", pidFile: strconv.Itoa, reserves: true}),
		Entry("a process without a PID file", reserver{name: "sleep"}),
		Entry("another PID in the file", reserver{name: "sleep", pidFile: func(pid int) string { return strconv.Itoa(pid + 1) }}),
		Entry("an unreadable PID", reserver{name: "sleep", pidFile: func(int) string { return "-1\n" }}),
		Entry("a user's PID file", reserver{name: "sleep", pidFile: strconv.Itoa, fileOwner: 65534}),
		Entry("a user's process", reserver{name: "sleep", pidFile: strconv.Itoa, user: 65534}),
		Entry("another process with a reused PID", reserver{name: "sleep", arg0: "server", pidFile: strconv.Itoa}),
	)

	It("quotes the name of a process, which may contain control characters", func() {
		n, _ := newCompleteHost()
		cmd := reserver{name: "\x1b]0;P\a\nx"}.start(n)
		finding := n.find("hidden-listener", "listens on 0.0.0.0:8080")
		Expect(finding.What).To(HavePrefix(fmt.Sprintf(`"\x1b]0;P\a\nx" (PID %d) listens`, cmd.Process.Pid)))
	})

	It("finds nothing wrong with a container that uses one host port in two networks", func() {
		n, runtime := newCompleteHost()
		second := strings.NewReplacer(`"pods"`, `"more"`, `"type": "bridge"`, `"type": "bridge", "bridge": "cni1"`, "10.88.", "10.89.", "fd00:88:", "fd00:89:").Replace(complete)
		n.write("20-more.conflist", second)
		list, err := libcni.NetworkConfFromFile(n.confDir() + "/20-more.conflist")
		Expect(err).NotTo(HaveOccurred())
		more := *runtime
		more.IfName = "eth1"
		_, err = n.cni.AddNetworkList(context.Background(), list, &more)
		Expect(err).NotTo(HaveOccurred())
		Expect(n.doctor().Findings).To(BeEmpty())
	})

	It("finds nothing wrong with a chain that begins with loopback, such as Nomad's", func() {
		n := &usedHost{testHost: newTestHost("loopback", "bridge", "host-local", "portmap")}
		n.attachBy(strings.Replace(complete, `"plugins": [`, `"plugins": [{"type": "loopback"},`, 1))
		n.add("d1")
		Expect(n.doctor().Findings).To(BeEmpty())
	})

	It("uses the configurations in libcni's cache, and reads the directories of nerdctl's namespaces", func() {
		n, _ := newCompleteHost()
		Expect(os.Remove(n.confDir() + "/10-pods.conflist")).To(Succeed())
		Expect(n.doctor().Findings).To(BeEmpty(), "Nomad writes no file for its networks")
		Expect(os.Mkdir(n.confDir()+"/default", 0o755)).To(Succeed())
		n.write("default/nerdctl-pods.conflist", complete)
		n.write("nerdctl-bridge.conflist", strings.NewReplacer(`[{"subnet": "10.88.0.0/16"}], `, "", "fd00:88:", "fd00:89:").Replace(complete))
		Expect(n.doctor().Findings).To(BeEmpty(), "namespaces may contain networks with the same name")
		n.write("default/nerdctl-pods.conflist", strings.Replace(complete, "ipMasq", "ipMask", 1))
		Expect(isCommand(n.find("status", "default/nerdctl-pods.conflist:6: plugins[0].ipMask: unknown key"))).To(BeFalse())
	})

	DescribeTable("finds missing parts of an attachment by CHECK, and the command that fixes them", func(command, want, fix string) {
		n, runtime := newCompleteHost()
		Expect(n.doctor().Findings).To(BeEmpty())
		host := strings.TrimSpace(n.sh("ip -o link show master cni0 | cut -d: -f2 | cut -d@ -f1"))
		netns := "nsenter --net=" + runtime.NetNS + " "
		n.sh(strings.NewReplacer("HOST", host, "IN ", netns).Replace(command))
		finding := n.find("check", "container d1, interface eth0, network pods: CHECK of ")
		Expect(finding.What).To(ContainSubstring(strings.ReplaceAll(want, "HOST", host)))
		fix = strings.NewReplacer("HOST", host, "IN ", netns).Replace(fix)
		repair := "plumb repair --network pods --cache-dir "
		if strings.HasPrefix(fix, netns) {
			repair = "plumb repair --container-side --network pods --cache-dir "
		}
		Expect(finding.Fix).To(HavePrefix(repair))
		if fix == "" {
			Expect(finding.Advice).To(HavePrefix("If this fails, delete the pod or the container, "), "only repair fixes it")
		} else {
			Expect(finding.Advice).To(Equal("If this fails, run this: " + fix))
		}
		n.requireFixed(finding, nil)
	},
		Entry("an IPv4 host-port element", "nft delete element inet plumb hostport4 '{ tcp . 8080 }'", "hostport4", ""),
		Entry("forwarding", "sysctl -q -w net.ipv4.ip_forward=0", "ip_forward", "sysctl -w net/ipv4/ip_forward=1"),
		Entry("a bridge that is down", "ip link set cni0 down", "cni0", "ip link set dev cni0 up && ip address add fd00:88::1/64 dev cni0 nodad"),
		Entry("the gateway's address", "ip address flush dev cni0 scope global", "cni0",
			"ip address add 10.88.0.1/16 dev cni0 && ip address add fd00:88::1/64 dev cni0 nodad"),
		Entry("the host's route to the containers", "ip route del 10.88.0.0/16 dev cni0", "interface cni0 has no route 10.88.0.0/16: packets for 10.88.0.2 have no other route",
			"ip route prepend 10.88.0.0/16 dev cni0"),
		Entry("a host end without its bridge", "ip link set HOST nomaster", "HOST", "ip link set dev HOST master cni0"),
		Entry("a host end that is down", "ip link set HOST down", "HOST", "ip link set dev HOST up"),
		Entry("a flag of the port", "ip link set HOST type bridge_slave hairpin on", "hairpin", "ip link set dev HOST type bridge_slave hairpin off"),
		Entry("a route of the container", "IN ip route del default", "eth0 has no route", "IN ip route prepend 0.0.0.0/0 via 10.88.0.1 dev eth0"),
		Entry("the IPv6 route of the container", "IN ip -6 route del default", "eth0 has no route", "IN ip route prepend ::/0 via fd00:88::1 dev eth0"),
		Entry("two problems of which a command fixes only one", "ip link set HOST down; nft flush chain inet plumb masq/pods/10.88.0.0/16", "HOST", ""),
	)

	It("finds once that the interface of a container is gone, whatever plugins configured it", func() {
		n := &usedHost{testHost: newTestHost("bridge", "host-local", "portmap", "bandwidth")}
		n.attachBy(strings.Replace(complete, `{"type": "portmap", `, `{"type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 8000000}, {"type": "portmap", `, 1))
		container := n.add("d1")
		container.Batch(GinkgoTB(), "link delete eth0")
		findings := n.doctor().Findings
		Expect(findings).To(HaveLen(1))
		Expect(findings[0]).To(And(HaveField("Check", "check"), HaveField("What", ContainSubstring("CHECK of bridge: code 100: find link eth0: no such device")),
			HaveField("Advice", HavePrefix("Only ADD creates the interface of a container. "))))
	})

	DescribeTable("advises a repair only if it helps, and names --container-side if only that helps", func(chain, damage string, commands ...string) {
		if strings.Contains(chain, "tc-redirect-tap") {
			nstest.RequireTaps(GinkgoTB())
		}
		n := &usedHost{testHost: newTestHost("loopback", "bridge", "host-local", "tuning", "tc-redirect-tap", "bandwidth", "sbr")}
		n.attachBy(strings.Replace(complete, `{"type": "portmap", "capabilities": {"portMappings": true}}`, chain, 1))
		container := n.add("d1")
		container.Batch(GinkgoTB(), damage)
		left, status := n.plumb(append([]string{"repair"}, n.directories()...)...)
		Expect(status).To(Equal(1), "doctor and repair have one opinion of what is wrong: %s", left)
		findings := n.doctor().Findings
		for _, f := range findings {
			Expect(f.Check).To(Equal("check"), f.What)
		}
		if len(commands) == 0 {
			Expect(findings).To(ContainElement(HaveField("Fix", Not(ContainSubstring("plumb repair --")))))
			Expect(left).NotTo(ContainSubstring("plumb repair --"))
			return
		}
		Expect(findings).To(HaveEach(HaveField("Fix", HavePrefix("plumb repair --container-side --network pods "))))
		Expect(left).To(ContainSubstring("\n    plumb repair --container-side --network pods --cache-dir "))
		n.sh(findings[0].Fix)
		Expect(n.doctor().Findings).To(BeEmpty())
	},
		Entry("lo is down", `{"type": "loopback"}`, "link set lo down", "repair"),
		Entry("an address is gone", `{"type": "loopback"}`, "address del 10.88.0.2/16 dev eth0", "repair"),
		Entry("a setting of tuning", `{"type": "tuning", "dataDir": "POOLS/tuning", "mtu": 1400}`, "link set eth0 mtu 1300", "repair"),
		Entry("a tap that is down", `{"type": "tc-redirect-tap"}`, "link set tap0 down", "repair"),
		Entry("a tap that is gone", `{"type": "tc-redirect-tap"}`, "link del tap0"),
		Entry("a rule of sbr, which has no REPAIR", `{"type": "sbr"}`, "rule del from 10.88.0.2"),
	)

	It("does not call CHECK for a network with a missing executable", func() {
		n, _ := newCompleteHost()
		n.sh("rm " + n.bin() + "/portmap; ip link set cni0 down")
		n.sh(n.find("executable", "portmap").Fix)
		n.requireFixed(n.find("check", "cni0"), nil)
	})

	DescribeTable("finds a rule of another program that forwards a host port elsewhere", func(others, rule, undo string) {
		n, _ := newCompleteHost()
		n.sh(others)
		Expect(n.doctor().Findings).To(BeEmpty())
		n.sh(rule)
		n.requireFixed(n.find("taken-port", " that forwards host port tcp 8080 of container d1, network pods, elsewhere"), func() { n.sh(undo) })
	},
		Entry("Docker", "iptables -t nat -N DOCKER; iptables -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER; "+
			"iptables -t nat -A DOCKER -p udp --dport 8080 -j DNAT --to 10.99.0.2:80; iptables -t nat -A DOCKER -p tcp --dport 8080 -j DNAT --to 10.88.0.2:80; "+
			"iptables -t nat -N SVC; iptables -t nat -A PREROUTING -d 10.96.0.0/12 -j SVC; iptables -t nat -A SVC -p tcp --dport 8080 -j DNAT --to 10.99.0.2:80; "+
			"iptables -t nat -A PREROUTING -d 198.51.100.9 -p tcp --dport 8080 -j DNAT --to 10.99.0.2:80; iptables -t nat -A PREROUTING -i cni0 -p tcp --dport 8080 -j DNAT --to 10.99.0.2:80",
			"iptables -t nat -A DOCKER ! -i docker0 -p tcp --dport 8080 -j DNAT --to 10.99.0.2:80", "iptables -t nat -F DOCKER"),
		Entry("nftables", "nft 'add table inet r; add chain inet r pre { type nat hook prerouting priority -110; }; add rule inet r pre tcp dport 1 redirect to :9; "+
			"add chain inet r late { type nat hook prerouting priority -90; }; add rule inet r late tcp dport 8080 redirect to :9'",
			"nft add rule inet r pre tcp dport 8080 redirect to :9999", "nft delete table inet r"),
	)

	It("finds a host end that another program moved to its bridge", func() {
		n, _ := newCompleteHost()
		n.attach(runtimeOf("d2", nstest.New(GinkgoTB()).Named("d2")))
		n.sh("ip link add br9 type bridge && ip link set br9 up && ip link set $(ip -br link show master cni0 | sed -n 's/@.*//p;q') master br9")
		finding := n.find("check", "is not a port of bridge cni0")
		Expect(finding.Fix).To(MatchRegexp(`^ip link set dev veth\S+ master cni0$`))
		n.requireFixed(finding, nil)
	})

	It("finds a bridge whose address prevents that ADD adds the gateway", func() {
		n, _ := newCompleteHost()
		n.change("10-pods.conflist", `"10.88.0.0/16"`, `"10.88.0.0/15"`)
		n.requireFixed(n.find("gateway", "cni0 has the address 10.88.0.1/16, so that ADD cannot add the gateway 10.88.0.1/15 of 10.88.0.0/15"),
			func() { n.change("10-pods.conflist", `"isDefaultGateway"`, `"forceAddress": true, "isDefaultGateway"`) })
		n.change("10-pods.conflist", `"forceAddress": true, `, "")
		n.change("10-pods.conflist", `"10.88.0.0/15"}`, `"10.88.0.0/16"}, {"subnet": "10.99.0.0/16"}`)
		finding := n.find("gateway", "cni0 has the address 10.88.0.1/16, so that ADD cannot add the gateway 10.99.0.1/16 of 10.99.0.0/16")
		Expect(finding.Edit).To(HaveSuffix("use a subnet with the gateway 10.88.0.1"))
		n.change("10-pods.conflist", `, {"subnet": "10.99.0.0/16"}`, "")
		Expect(n.doctor().Findings).To(BeEmpty())
	})

	It("does not offer to delete the route to another network", func() {
		n, _ := newCompleteHost()
		n.write("05-small.conflist", `{"cniVersion": "1.1.0", "name": "small", "plugins": [{"type": "bridge", "bridge": "small0", "isGateway": true, "ipam": {"type": "host-local", "dataDir": "POOLS", "subnet": "10.88.0.0/16"}}]}`)
		Expect(n.doctor().Findings).To(ContainElement(And(HaveField("What", HavePrefix("the host has a route to 10.88.0.0/16 on cni0")), HaveField("Advice", ""))))
	})

	It("counts attachments that it cannot check, because the reference plugins are installed again", func() {
		n, _ := newCompleteHost()
		n.sh("cp " + nstest.Reference(GinkgoTB()) + "/* " + n.bin())
		text, _ := n.plumb(append([]string{"doctor"}, n.directories()...)...)
		Expect(text).To(ContainSubstring("1 attachment skipped: no plugin of their networks is plumb's\n"))
	})

	It("prints the commands for the elements that other plugins do not delete, because they are installed again", func() {
		n, runtime := newCompleteHost()
		n.attach(runtimeWithPort(runtimeOf("d2", nstest.New(GinkgoTB()).Named("d2")), 8081))
		n.sh("cp " + nstest.Reference(GinkgoTB()) + "/* " + n.bin())
		Expect(n.cni.DelNetworkList(GinkgoT().Context(), n.list(), runtime)).To(Succeed())
		n.age()
		finding := n.find("leftover", "container d1, interface eth0, network pods, may be deleted")
		Expect(commandIn(finding)).To(And(HavePrefix("nft delete element inet plumb "), Not(ContainSubstring("plumb gc"))))
		n.requireFixed(finding, func() { n.sh(commandIn(finding)) })
	})

	It("finds the elements of the last container of a network, which other plugins do not delete", func() {
		n, runtime := newCompleteHost()
		n.sh("cp " + nstest.Reference(GinkgoTB()) + "/* " + n.bin())
		Expect(n.cni.DelNetworkList(GinkgoT().Context(), n.list(), runtime)).To(Succeed())
		n.age()
		finding := n.find("leftover", "container d1, interface eth0, network pods, may be deleted, but still holds masq4, masq6, 1 host port: ")
		Expect(finding.What).NotTo(ContainSubstring("address"))
		Expect(commandIn(finding)).To(HavePrefix("nft delete element inet plumb "))
		n.requireFixed(finding, func() { n.sh(commandIn(finding)) })
	})

	It("sums up what containers lack because another program deleted a table", func() {
		n, _ := newCompleteHost()
		n.attach(runtimeWithPort(runtimeOf("d2", nstest.New(GinkgoTB()).Named("d2")), 8081))
		n.sh("nft flush ruleset")
		finding := n.find("check", "host: table inet plumb is missing: 2 containers lack its host ports and masquerade, and other hosts and containers can reach 127.0.0.1 of the host through cni0")
		Expect(n.doctor().Findings).To(HaveLen(1))
		Expect(finding.Details).To(ContainElement(HavePrefix("container d2, interface eth0, network pods: CHECK of portmap: ")))
		verbose, _ := n.plumb(append([]string{"doctor", "-v"}, n.directories()...)...)
		Expect(verbose).To(ContainSubstring("\n  - " + finding.Details[0] + "\n"))
		n.requireFixed(finding, nil)
	})

	It("sums up what a container lacks because another program deleted two tables", func() {
		n := &usedHost{testHost: newTestHost("bridge", "host-local", "portmap", "macvlan")}
		n.attachBy(strings.Replace(complete, `"ipMasq": true`, `"ipMasq": true, "macspoofchk": true`, 1))
		n.attach(runtimeOf("d1", nstest.New(GinkgoTB()).Named("d1")))
		n.sh("nft flush ruleset")
		finding := n.find("check", "host: table bridge plumb is missing: 1 container lacks its macspoofchk")
		n.find("check", "host: table inet plumb is missing: 1 container lacks its masquerade")
		Expect(n.doctor().Findings).To(HaveLen(2))
		n.requireFixed(finding, nil)
	})

	It("prints the advice of a plugin's warning", func() {
		n, _ := newCompleteHost()
		n.sh("nft flush chain inet plumb localnet")
		Expect(n.doctor().Findings).To(ContainElement(And(
			HaveField("What", HavePrefix(`STATUS of portmap in network "pods": chain localnet of table inet plumb is missing or lacks rules: other hosts`)),
			HaveField("Fix", "sysctl -w net/ipv4/conf/cni0/route_localnet=0"),
			HaveField("Advice", "The next ADD with a host port adds the chain; after the command, host ports do not work at 127.0.0.1 until then."))))
	})

	It("names the containers with the same damage in one finding", func() {
		n, _ := newCompleteHost()
		n.add("d2")
		n.sh("sysctl -q -w net.ipv4.ip_forward=0")
		n.requireFixed(n.find("check", "container d1, interface eth0; container d2, interface eth0, network pods: CHECK of "), nil)
	})

	It("sums up similar errors that one plumb repair corrects", func() {
		n, _ := newCompleteHost()
		n.attach(runtimeWithPort(runtimeOf("d2", nstest.New(GinkgoTB()).Named("d2")), 8081))
		n.sh("nft flush map inet plumb hostport4")
		finding := n.find("check", "host: container d1, interface eth0, network pods: CHECK of portmap: ")
		Expect(n.doctor().Findings).To(HaveLen(1))
		Expect(finding.What).To(HaveSuffix("; similar errors for 1 more (--verbose)"))
		Expect(finding.Details).To(ConsistOf(ContainSubstring("8080"), And(HavePrefix("container d2, interface eth0, "), ContainSubstring("8081"))))
		n.requireFixed(finding, nil)
	})

	It("prints once the command that deletes a route that refuses the packets of several containers", func() {
		n, _ := newCompleteHost()
		n.add("d2")
		n.sh("ip route add blackhole 10.88.0.0/25")
		finding := n.find("check", "the host has the blackhole route 10.88.0.0/25, which refuses packets for 10.88.0.2; similar errors for 1 more")
		Expect(finding.Solution).To(Equal(plugins.Solution{Fix: "ip route delete blackhole 10.88.0.0/25"}))
		n.requireFixed(finding, nil)
	})

	It("reports a route into the subnet, and no damage that it explains", func() {
		n, _ := newCompleteHost()
		n.sh("ip link add up7 type veth peer name down7 && ip link set up7 up && ip route replace 10.88.0.0/16 dev up7")
		n.sh(n.find("route", "the host has a route to 10.88.0.0/16 on up7").Fix)
		n.requireFixed(n.find("check", "CHECK of bridge"), nil)
	})

	It("finds that IPv6 is disabled, and not what it explains", func() {
		n, _ := newCompleteHost()
		n.SetSysctl(GinkgoTB(), "net/ipv6/conf/all/disable_ipv6", "1")
		Expect(n.doctor().Findings).To(HaveExactElements(HaveField("What", HavePrefix("IPv6 is disabled, and "))))
		n.sh(n.find("ipv6", "").Fix)
		n.requireFixed(n.find("check", "CHECK of bridge"), nil)
	})

	It("finds the sysctl that disables IPv6 on the bridge, before what it explains", func() {
		n, _ := newCompleteHost()
		n.SetSysctl(GinkgoTB(), "net/ipv6/conf/cni0/disable_ipv6", "1")
		n.sh(n.find("ipv6", "IPv6 is disabled on cni0").Fix)
		n.requireFixed(n.find("check", "CHECK of bridge"), nil)
	})

	It("finds attachments of a network without a configuration in a file or in libcni's cache", func() {
		n, runtime := newCompleteHost()
		other := `{"cniVersion": "1.1.0", "name": "other", "plugins": [{"type": "bridge", "bridge": "other"}]}`
		n.write("10-pods.conflist", other)
		n.age()
		Expect(n.doctor().Findings).To(BeEmpty(), "libcni's cache has the configuration")
		Expect(os.Remove(n.result("d1"))).To(Succeed())
		finding := n.find("no-network", "network pods has no configuration, so that no runtime can call DEL, but the host holds resources for it: container d1, interface eth0")
		_, command, _ := strings.Cut(finding.Advice, "If none of these containers runs, run this, which prints the commands that remove their resources: ")
		Expect(command).To(HavePrefix("plumb gc --no-live --network pods --force "), "the namespace exists")
		n.requireFixed(finding, func() {
			printed := n.sh(command + " || true")
			Expect(printed).To(ContainSubstring("\n  nft delete chain inet plumb masq/pods/10.88.0.0/16"))
			for line := range strings.Lines(printed) {
				if strings.HasPrefix(line, "  ") {
					n.sh(line)
				}
			}
			Expect(n.Must(GinkgoTB(), "nft", "list", "chains", "inet")).NotTo(ContainSubstring("pods"))
		})
		n.write("10-pods.conflist", complete)
		n.replace(runtime)
	})

	It("prints the commands that fix a damaged ptp container", func() {
		n := &usedHost{testHost: newTestHost("ptp", "host-local")}
		n.attachBy(strings.NewReplacer(`"type": "bridge", "isDefaultGateway": true, "ipMasq": true`, `"type": "ptp"`,
			`"ranges"`, `"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}], "ranges"`,
			`{"type": "portmap", "capabilities": {"portMappings": true}}`, "", "        },\n", "        }\n").Replace(complete))
		container := n.add("d1")
		routes := func() string { return container.Must(GinkgoTB(), "ip", "-4", "-br", "route") }
		before := routes()
		n.sh("ip route del 10.88.0.2 && ip link set $(ip -o link show type veth | cut -d: -f2 | cut -d@ -f1) down")
		container.Batch(GinkgoTB(), "address del 10.88.0.2/16 dev eth0")
		for range 5 { // one fix can reveal the next finding
			for _, f := range n.doctor().Findings {
				Expect(isCommand(f)).To(BeTrue(), "%s: %s", f.What, f.Lines())
				n.sh(f.Fix)
			}
		}
		Expect(n.doctor().Findings).To(BeEmpty())
		Expect(strings.Count(routes(), "\n")).To(Equal(strings.Count(before, "\n")), "%s\n%s", before, routes())
	})

	It("finds a macvlan whose master is down", func() {
		n := &usedHost{testHost: newTestHost("macvlan", "host-local")}
		n.Batch(GinkgoTB(), "link add up0 type veth peer name up1", "link set up0 up", "link set up1 up")
		n.attachBy(onUplink)
		n.add("d1")
		Expect(n.doctor().Findings).To(BeEmpty())
		n.Batch(GinkgoTB(), "link set up0 down")
		n.requireFixed(n.find("master", "10-pods.conflist:4: master up0 is down"), nil)
	})
})
