package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// rootlessPlugins contains the plugins of nerdctl's list, with placeholders for the main plugin and
// the backends.
const rootlessPlugins = `
	{"type": "MAIN", "isGateway": true, "ipMasq": true, "ipMasqBackend": "BACKEND",
		"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
	{"type": "portmap", "backend": "BACKEND", "snat": true, "capabilities": {"portMappings": true}},
	{"type": "firewall", FIREWALL}`

// startRootless starts a process as root of a user namespace that maps one user, and returns the
// process ID. Like rootlesskit 1.x and "unshare -Urnm", it creates the process's network and mount
// namespaces in the same step, before it writes the uid_map. It also creates network namespaces for
// the containers existing, a and b.
func startRootless() int {
	GinkgoHelper()
	if uidMap, err := os.ReadFile("/proc/self/uid_map"); err != nil || !strings.HasSuffix(string(uidMap), " 4294967295\n") {
		Skip("the test itself runs in a user namespace")
	}
	cmd := exec.Command("sh", "-ec", `
		! cat /proc/net/ip_tables_names
		mount -t tmpfs none /run
		mount -t tmpfs none /var/lib
		mkdir /var/lib/cni
		ip link set lo up
		for name in existing a b; do ip netns add $name; done
		echo ready
		exec cat`)
	mapping := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1000, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		UidMappings: mapping, GidMappings: mapping,
		Credential: &syscall.Credential{NoSetGroups: true},
	}
	startReady(cmd)
	return cmd.Process.Pid
}

// startReady starts a command that prints "ready" and then runs until the end of its stdin, which is at the end of the spec.
func startReady(cmd *exec.Cmd) {
	GinkgoHelper()
	cmd.Stderr = GinkgoWriter
	stdin, err := cmd.StdinPipe()
	Expect(err).NotTo(HaveOccurred())
	stdout, err := cmd.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(cmd.Start()).To(Succeed())
	DeferCleanup(func() {
		Expect(stdin.Close()).To(Succeed())
		Expect(cmd.Wait()).To(Succeed())
	})
	Expect(bufio.NewReader(stdout).ReadString('\n')).To(Equal("ready\n"))
}

// copyForUsers copies the executables to a new directory that every user can read.
func copyForUsers(plugins ...string) string {
	GinkgoHelper()
	bin, dir := nstest.Build(GinkgoTB(), plugins...), GinkgoTB().TempDir()
	for _, p := range plugins {
		out, err := exec.Command("cp", filepath.Join(bin, p), dir).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
	}
	for d := dir; d != os.TempDir(); d = filepath.Dir(d) {
		Expect(os.Chmod(d, 0o755)).To(Succeed())
	}
	return dir
}

var _ = DescribeTable("in a rootless network namespace older than the uid_map, containers work with", func(main, backend, firewall string) {
	network := newNetwork("1.1.0", strings.NewReplacer("MAIN", main, "BACKEND", backend, "FIREWALL", firewall).Replace(rootlessPlugins))
	enter := fmt.Sprintf("nsenter --target %d --user --mount --net ", startRootless())
	network.RunScript("exec " + enter + `"$PLUGIN"`)
	network.CNI.Path = []string{copyForUsers(main, "host-local", "portmap", "firewall")}
	state := func() string {
		out, err := exec.Command("sh", "-c", enter+"sh -c 'nft -s list ruleset; ip -br address; find /var/lib/cni'").Output()
		Expect(err).NotTo(HaveOccurred())
		return string(out)
	}
	add := func(id string, port int32) *container {
		p := &container{RT: &libcni.RuntimeConf{ContainerID: id, NetNS: "/run/netns/" + id, IfName: "eth0"}}
		p.RT.CapabilityArgs = map[string]any{"portMappings": []portMapping{{port, 80, "tcp", ""}, {port, 80, "udp", ""}}}
		Expect(network.add(p)).To(Succeed())
		Expect(network.Check(p)).To(Succeed())
		return p
	}

	Expect(network.Status()).To(Succeed())
	existing := add("existing", 8000)
	before := nstest.WaitStable(state)
	Expect(network.Del(add("a", 8001))).To(Succeed())
	Expect(nstest.WaitEqual(before, state)).To(BeEmpty(), "objects remain after DEL")
	add("b", 8002)
	network.ClearCache()
	Expect(network.GC(existing)).To(Succeed())
	Expect(nstest.WaitEqual(before, state)).To(BeEmpty(), "objects remain after GC")
},
	Entry("bridge", "bridge", "nftables", `"ingressPolicy": "same-bridge"`),
	Entry("bridge, iptables", "bridge", "iptables", `"backend": "iptables", "ingressPolicy": "same-bridge"`),
	Entry("ptp", "ptp", "nftables", `"ingressPolicy": "open"`),
	Entry("ptp, iptables", "ptp", "iptables", `"backend": "iptables"`),
)

var _ = It("in a rootless network namespace, the list of the page for nerdctl publishes a port", func() {
	network := newNetwork("1.0.0", `{"type": "loopback"}`)
	network.List = cnitest.ParseList(nstest.PageList(GinkgoTB(), "../../docs/get-started/nerdctl.md", "backend"))
	enter := fmt.Sprintf("nsenter --target %d --user --mount --net ", startRootless())
	network.RunScript("exec " + enter + `"$PLUGIN"`)
	network.CNI.Path = []string{copyForUsers("bridge", "host-local", "portmap", "firewall", "tuning")}
	c := &container{RT: &libcni.RuntimeConf{ContainerID: "a", NetNS: "/run/netns/a", IfName: "eth0"}}
	goCNI(c)
	Expect(network.Add(c)).To(Succeed())
	out, err := exec.Command("sh", "-c", enter+`sh -ec '
		ip netns exec a python3 -m http.server --bind 0.0.0.0 --directory /run/netns 80 &
		trap "kill $!" EXIT
		address=$(ip -brief -4 address show br-backend | tr -s " " | cut -d " " -f 3 | cut -d / -f 1)
		curl --silent --show-error --fail --retry 60 --retry-delay 1 --retry-all-errors http://$address:8080/'`).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
	Expect(network.Check(c)).To(Succeed())
	Expect(network.Del(c)).To(Succeed())
})
