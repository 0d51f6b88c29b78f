package runtimes

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// podNetwork is the network of containerd's pods.
const podNetwork = `{
	"cniVersion": "1.0.0",
	"name": "pods",
	"plugins": [{
		"type": "bridge",
		"bridge": "cni0",
		"isDefaultGateway": true,
		"ipMasq": true,
		"hairpinMode": true,
		"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]]}
	}, {
		"type": "portmap",
		"snat": true,
		"capabilities": {"portMappings": true}
	}, {
		"type": "bandwidth",
		"capabilities": {"bandwidth": true}
	}, {
		"type": "tuning",
		"sysctl": {"net.core.somaxconn": "500"},
		"mtu": 1400
	}]
}`

// These are the addresses of the bridge.
const (
	gatewayV4 = "10.88.0.1"
	gatewayV6 = "fd00:88::1"
)

// webPod returns the configuration of a pod with a host port and bandwidth limits.
func webPod(name string, port int32) *cri.PodSandboxConfig {
	config := podConfig(name)
	config.PortMappings = []*cri.PortMapping{{HostPort: port, ContainerPort: 80}}
	config.Annotations = map[string]string{
		"kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "8M",
	}
	return config
}

var _ = Describe("containerd", func() {
	It("runs pods with working traffic, and leaves nothing behind after their removal", func() {
		c := newContainerd(newHost(), podNetwork)
		existing := c.mustRun(webPod("existing", 8079)) // creates the objects that pods share
		client := existing.container()
		before := nstest.WaitStable(c.state)

		p := c.mustRun(webPod("web", 8080))
		server := p.container("serve", ":80")
		Eventually(func() error { _, err := nstest.Dial(c.Host, p.v4+":80"); return err }).Should(Succeed())
		Expect(c.exec(server, "read", "/proc/sys/net/core/somaxconn")).To(Equal("500\n"))
		Expect(c.exec(server, "read", "/sys/class/net/eth0/mtu")).To(Equal("1400\n"))
		shaping := c.Host.Must(GinkgoTB(), "tc", "qdisc", "show")
		Expect(shaping).To(And(ContainSubstring("rate 10Mbit"), ContainSubstring("rate 8Mbit")))

		expectReachable(c, p, client)
		expectConnects(c, p, server)

		Expect(p.stop()).To(Succeed())
		Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty(), "after StopPodSandbox")
		Expect(p.remove()).To(Succeed())
		Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty(), "after RemovePodSandbox")
	})

	It("calls the plugins with the expected parameters", func() {
		c := newContainerd(newHost().withWrappers(), podNetwork)
		p := c.mustRun(webPod("web", 8080))
		Expect(p.stop()).To(Succeed())
		Expect(p.remove()).To(Succeed())

		lo := c.calls("loopback", p.id)
		Expect(lo[0]).To(And(HaveField("Command", "ADD"), HaveField("IfName", "lo"), HaveField("Stdin", ContainSubstring(`"cniVersion":"0.3.1"`))))
		for _, plugin := range []string{"bridge", "host-local", "portmap", "bandwidth", "tuning"} {
			seen := c.calls(plugin, p.id)
			Expect(seen).To(HaveLen(3), plugin)
			Expect(seen[0]).To(And(HaveField("Command", "ADD"), HaveField("IfName", "eth0"), HaveField("NetNS", HavePrefix("/var/run/netns/cni-"))))
			Expect(seen[1]).To(And(HaveField("Command", "DEL"), HaveField("NetNS", seen[0].NetNS), HaveField("Stdin", ContainSubstring(`"prevResult"`))))
			Expect(seen[2]).To(And(HaveField("Command", "DEL"), HaveField("NetNS", ""), HaveField("Stdin", Not(ContainSubstring(`"prevResult"`)))))
		}
		Expect(c.calls("portmap", p.id)[0].Stdin).To(ContainSubstring(`"HostPort":8080`))
		Expect(c.calls("bandwidth", p.id)[0].Stdin).To(ContainSubstring(`"IngressBurst":4294967295`))
	})

	// If the creation of a sandbox was interrupted, the kubelet removes the sandbox, and containerd calls DEL. This DEL
	// gets no prevResult, because libcni caches a result only after the last plugin. test/faults kills the plugins at
	// every call.
	DescribeTable("is killed during an ADD, and after its restart removes the pod completely",
		func(point string, plugins pluginOutcome) {
			c := newContainerd(newHost().withWrappers(), podNetwork)
			c.mustRun(webPod("existing", 8079))
			before := nstest.WaitStable(c.state)

			c.killDuringADD(point, plugins)
			c.start()
			Expect(c.pods()).To(HaveLen(2), "the pods that containerd knows")
			for _, p := range c.pods() {
				if p.name == "web" {
					Expect(p.stop()).To(Succeed())
					Expect(p.remove()).To(Succeed())
				}
			}
			Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty())
			c.mustRun(webPod("web", 8080))
		},
		EntryDescription("%s, and the plugins %s"),
		Entry(nil, "before-host-local", areKilled), // while the plugin bridge runs
		Entry(nil, "after-host-local", runOn),
		Entry(nil, "after-bridge", areKilled),
		Entry(nil, "after-tuning", runOn),
	)

	// After a runtime has lost its record of a pod, it never calls DEL for the pod.
	DescribeTable("does not know a pod whose ADD ended half way, and plumb gc removes everything of the pod",
		func(interrupt func(*containerd)) {
			c := newContainerd(newHost().withWrappers(), podNetwork)
			live := c.mustRun(webPod("live", 8079))
			live.container("serve", ":80")
			before, known := nstest.WaitStable(c.state), namespaces()
			interrupt(c)
			dead := c.forget("web")
			Expect(nstest.Compare(before, nstest.WaitStable(c.state))).NotTo(BeEmpty(), "want objects of the pod, got none")
			Expect(reservations("pods")).To(HaveLen(4))

			Expect(c.gc()).To(And(ContainSubstring("removed pods "+dead+" eth0\n"), Not(ContainSubstring(live.id)),
				HaveSuffix(", kept 0, left 0\n")))
			for _, name := range slices.DeleteFunc(namespaces(), func(name string) bool { return slices.Contains(known, name) }) {
				c.Host.Must(GinkgoTB(), "ip", "netns", "delete", name) // plumb gc keeps the namespaces, which containerd created
			}
			Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty())
			nstest.MustDial(GinkgoTB(), c.Outside, net.JoinHostPort(nstest.HostV4, "8079"), nstest.OutsideV4)
			Expect(c.gc()).To(HavePrefix("removed resources of 0 attachments"))
		},
		Entry("because ADD and DEL of the last plugin failed", func(c *containerd) {
			fail := filepath.Join(c.bin, "fail-tuning")
			Expect(os.WriteFile(fail, nil, 0o600)).To(Succeed())
			_, err := c.run(webPod("web", 8080))
			Expect(err).To(MatchError(ContainSubstring("the test makes this plugin fail")))
			c.kill() // also ends containerd's retries of DEL
			Expect(os.Remove(fail)).To(Succeed())
			c.start()
		}),
		Entry("because containerd was killed during the ADD", func(c *containerd) {
			c.killDuringADD("before-tuning", areKilled)
			c.start()
		}),
	)

	It("does not know a pod whose ADD failed and a pod that was removed while it was down, and plumb gc --cri removes both in two runs", func() {
		c := newContainerd(newHost().withWrappers(), podNetwork)
		live := c.mustRun(webPod("live", 8079))
		live.container("serve", ":80")
		before, known := nstest.WaitStable(c.state), namespaces()
		gone := c.mustRun(webPod("gone", 8081))
		added := slices.DeleteFunc(namespaces(), func(name string) bool { return slices.Contains(known, name) })
		Expect(added).To(HaveLen(1))
		fail := filepath.Join(c.bin, "fail-tuning")
		Expect(os.WriteFile(fail, nil, 0o600)).To(Succeed())
		_, err := c.run(webPod("web", 8080))
		Expect(err).To(MatchError(ContainSubstring("the test makes this plugin fail")))
		c.kill()
		Expect(os.Remove(fail)).To(Succeed())
		for pid := range strings.FieldsSeq(c.Host.Must(GinkgoTB(), "ip", "netns", "pids", added[0])) {
			Expect(signal(pid, syscall.SIGKILL)).To(Succeed())
		}
		Eventually(func() string { return c.Host.Must(GinkgoTB(), "ip", "netns", "pids", added[0]) }).Should(BeEmpty())
		c.Host.Must(GinkgoTB(), "ip", "netns", "delete", added[0])
		c.start()
		dead := c.forget("web")
		Expect(c.forget("gone")).To(Equal(gone.id))

		stop, lost := make(chan struct{}), make(chan error, 1)
		go func() { lost <- connectUntil(stop, c) }()
		Expect(c.gcCRI()).To(And(ContainSubstring("removed pods "+gone.id+" eth0\n"), ContainSubstring("kept pods "+dead+" eth0: "), Not(ContainSubstring(live.id))))
		Expect(c.gcCRI()).To(And(ContainSubstring("removed pods "+dead+" eth0\n"), Not(ContainSubstring(live.id)), HaveSuffix(", kept 0, left 0\n")))
		close(stop)
		Expect(<-lost).NotTo(HaveOccurred(), "connections to the living pod during gc")
		for _, name := range slices.DeleteFunc(namespaces(), func(name string) bool { return slices.Contains(known, name) }) {
			c.Host.Must(GinkgoTB(), "ip", "netns", "delete", name) // plumb gc keeps the namespaces, which containerd created
		}
		Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty())
		Expect(c.gcCRI()).To(HavePrefix("removed resources of 0 attachments, kept 0"))
	})
})

// connectUntil connects to the host port 8079 again and again until stop is closed. It returns the first error.
func connectUntil(stop <-chan struct{}, c *containerd) error {
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for {
		select {
		case <-stop:
			return nil
		case <-pause.C:
			if _, err := nstest.Dial(c.Outside, net.JoinHostPort(nstest.HostV4, "8079")); err != nil {
				return err
			}
		}
	}
}

// A pluginOutcome says what happens to the running plugins of a killed daemon.
type pluginOutcome string

const (
	areKilled pluginOutcome = "are killed"
	runOn     pluginOutcome = "continue" // like KillMode=process in the systemd unit
)

// killDuringADD kills the daemon when the ADD of a pod reaches point, the name of a FIFO of wrapper.sh. It waits until
// the plugins have ended.
func (c *containerd) killDuringADD(point string, plugins pluginOutcome) {
	GinkgoHelper()
	fifo, leave := filepath.Join(c.bin, point), filepath.Join(c.bin, "go")
	Expect(syscall.Mkfifo(fifo, 0o600)).To(Succeed())
	Expect(syscall.Mkfifo(leave, 0o600)).To(Succeed())
	failed := make(chan error, 1)
	go func() {
		_, err := c.run(webPod("web", 8080))
		failed <- err
	}()
	stopped := make(chan string, 1)
	go func() {
		pid, _ := os.ReadFile(fifo)
		stopped <- strings.TrimSpace(string(pid))
	}()
	var plugin string
	select {
	case plugin = <-stopped:
	case err := <-failed:
		Fail(fmt.Sprintf("the pod creation ended (error: %v) without reaching %s", err, point))
	}
	Expect(os.Remove(fifo)).To(Succeed())

	started := descendants(c.daemon.Process.Pid)
	Expect(started).To(ContainElement(plugin))
	c.kill()
	Expect(<-failed).To(HaveOccurred())
	if plugins == runOn {
		Expect(os.WriteFile(leave, nil, 0o600)).To(Succeed())
	}
	for _, pid := range started {
		if plugins == areKilled {
			Expect(signal(pid, syscall.SIGKILL)).To(Or(Succeed(), MatchError(syscall.ESRCH)))
		}
		Eventually(signal).WithArguments(pid, syscall.Signal(0)).Should(MatchError(syscall.ESRCH))
	}
}

func namespaces() (names []string) {
	GinkgoHelper()
	entries, err := os.ReadDir("/run/netns")
	Expect(err).NotTo(HaveOccurred())
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// forget removes a pod from containerd's records, without DEL, and returns its ID.
func (c *containerd) forget(name string) string {
	GinkgoHelper()
	all := c.pods()
	i := slices.IndexFunc(all, func(p *pod) bool { return p.name == name })
	Expect(i).NotTo(Equal(-1), "containerd does not know the pod %s", name)
	id := all[i].id
	out, err := exec.Command("ctr", "-a", filepath.Join(c.dir, "sock"), "-n", "k8s.io", "containers", "rm", id).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
	c.kill()
	c.start()
	Expect(c.pods()).To(HaveLen(len(all)-1), "the pods that containerd knows")
	return id
}

// gc calls plumb gc with the list of all pods that containerd knows, and returns plumb's output.
func (c *containerd) gc() string {
	GinkgoHelper()
	var ids []string
	for _, p := range c.pods() {
		ids = append(ids, p.id)
	}
	c.write("live", strings.Join(ids, "\n"))
	return c.plumbGC("--force", "--live", filepath.Join(c.dir, "live"))
}

// gcCRI calls plumb gc, which asks containerd, and returns plumb's output.
func (c *containerd) gcCRI() string {
	GinkgoHelper()
	return c.plumbGC("--cri=unix://" + filepath.Join(c.dir, "sock"))
}

func (c *containerd) plumbGC(args ...string) string {
	GinkgoHelper()
	return c.Host.Must(GinkgoTB(), filepath.Join(os.Getenv("PLUMB_BIN"), "plumb"),
		append([]string{"gc", "--min-age", "0", "--conf-dir", filepath.Join(c.dir, "net.d"), "--cni-path", c.bin}, args...)...)
}

func signal(pid string, s syscall.Signal) error {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return err
	}
	return syscall.Kill(n, s)
}

// descendants returns the PIDs of all descendants of a process.
func descendants(pid int) []string {
	GinkgoHelper()
	var all []string
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	Expect(err).NotTo(HaveOccurred())
	for _, t := range tasks {
		text, err := os.ReadFile(t)
		Expect(err).To(Or(Not(HaveOccurred()), MatchError(fs.ErrNotExist)))
		for child := range strings.FieldsSeq(string(text)) {
			n, err := strconv.Atoi(child)
			Expect(err).NotTo(HaveOccurred())
			all = append(append(all, child), descendants(n)...)
		}
	}
	return all
}

// expectReachable connects to the pod and to its host port from each kind of client, and checks the addresses of the
// connections.
func expectReachable(c *containerd, p *pod, client string) {
	GinkgoHelper()
	nstest.MustDial(GinkgoTB(), c.Outside, net.JoinHostPort(nstest.HostV4, "8080"), nstest.OutsideV4)
	nstest.MustDial(GinkgoTB(), c.Outside, net.JoinHostPort(nstest.HostV6, "8080"), nstest.OutsideV6)
	nstest.MustDial(GinkgoTB(), c.Host, "127.0.0.1:8080", gatewayV4)
	for _, at := range []string{p.v4, p.v6} {
		Expect(c.exec(client, "dial", net.JoinHostPort(at, "80"))).To(HaveSuffix("local=" + at))
	}
	for _, at := range []string{nstest.HostV4, nstest.HostV6} {
		Expect(c.exec(client, "dial", net.JoinHostPort(at, "8080"))).To(HavePrefix("peer="), "the host port from another pod")
	}
}

// expectConnects connects from the pod to its own host port (hairpin) and to the outside host. The outside host must
// see the host's address, because it has no route to the pod.
func expectConnects(c *containerd, p *pod, server string) {
	GinkgoHelper()
	for _, f := range []struct{ host, outside, gateway string }{
		{nstest.HostV4, nstest.OutsideV4, gatewayV4}, {nstest.HostV6, nstest.OutsideV6, gatewayV6},
	} {
		Expect(c.exec(server, "dial", net.JoinHostPort(f.host, "8080"))).To(HavePrefix("peer="+f.gateway+" "), "hairpin")
		outside := nstest.ServeTCP(GinkgoTB(), c.Outside, net.JoinHostPort(f.outside, "0"))
		Expect(c.exec(server, "dial", outside.String())).To(HavePrefix("peer=" + f.host + " "))
	}
}
