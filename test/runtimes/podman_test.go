package runtimes

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// podmanConfig is the format string of containers.conf. The arguments are the directory of the plugins
// and the directory of the network configurations. The ulimits are lower than podman's defaults, because podman
// needs CAP_SYS_RESOURCE to set its defaults.
const podmanConfig = `
[containers]
apparmor_profile = ""
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
[network]
network_backend = "cni"
cni_plugin_dirs = ["%s"]
network_config_dir = "%s"
`

// bridgeNetwork is the format string of a network configuration. Unlike podman's configurations, it assigns
// IPv4 and IPv6 addresses, and does not call the plugin firewall. %[1]s is the network's name, and %[2]d is a number for its
// subnets.
const bridgeNetwork = `{
	"cniVersion": "0.4.0",
	"name": "%[1]s",
	"plugins": [{
		"type": "bridge",
		"bridge": "br-%[1]s",
		"isGateway": true,
		"ipMasq": true,
		"hairpinMode": true,
		"ipam": {
			"type": "host-local",
			"ranges": [[{"subnet": "10.%[2]d.0.0/24"}], [{"subnet": "fd00:%[2]d::/64"}]],
			"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
		}
	}, {
		"type": "portmap",
		"capabilities": {"portMappings": true}
	}, {
		"type": "tuning"
	}]
}`

// A podman runs the program podman on a host, with its own storage directories.
type podman struct{ *host }

// newPodman configures podman with the networks "one" and "two", and loads the image.
func newPodman(h *host) *podman {
	GinkgoHelper()
	networks := filepath.Join(h.dir, "net.d")
	Expect(os.Mkdir(networks, 0o755)).To(Succeed())
	h.write("net.d/one.conflist", fmt.Sprintf(bridgeNetwork, "one", 91))
	h.write("net.d/two.conflist", fmt.Sprintf(bridgeNetwork, "two", 92))
	h.write("containers.conf", fmt.Sprintf(podmanConfig, h.bin, networks))
	p := &podman{h}
	DeferCleanup(func() {
		p.command("rm", "--all", "--force", "--time", "0")
		p.waitForProcesses()
		p.unmount()
	})
	p.command("load", "--input", writeImage(h.dir))
	return p
}

// unmount removes the mounts below the directory of podman, which podman can leave if two of its processes end at the same
// time.
func (p *podman) unmount() {
	GinkgoHelper()
	text := nstest.ReadFile(GinkgoTB(), "/proc/self/mountinfo")
	for line := range strings.Lines(text) {
		if path := strings.Fields(line)[4]; strings.HasPrefix(path, p.dir+"/") {
			Expect(unix.Unmount(path, unix.MNT_DETACH)).To(Or(Succeed(), MatchError(unix.EINVAL)), path)
		}
	}
}

func (p *podman) command(args ...string) string {
	GinkgoHelper()
	out, err := p.try(args...)
	Expect(err).NotTo(HaveOccurred())
	return out
}

// try runs podman, which may fail.
func (p *podman) try(args ...string) (string, error) {
	path := func(name string) string { return filepath.Join(p.dir, name) }
	out, err := p.Host.Exec("env", append([]string{"CONTAINERS_CONF=" + path("containers.conf"),
		"podman", "--root", path("root"), "--runroot", path("run"), "--tmpdir", path("tmp"), "--storage-driver", "overlay"}, args...)...)
	return strings.TrimSpace(out), err
}

// run starts a container of the image in the background. options contains options of podman run, and args the
// arguments of the container.
func (p *podman) run(name string, options []string, args ...string) {
	GinkgoHelper()
	all := append([]string{"run", "--detach", "--name", name, "--cgroup-parent", "/" + os.Getenv("PLUMB_CGROUP")}, options...)
	p.command(append(append(all, image), args...)...)
}

func (p *podman) remove(name string) {
	GinkgoHelper()
	p.command("rm", "--force", "--time", "0", name)
}

// exec runs the program workload in the container and returns its output.
func (p *podman) exec(name string, args ...string) string {
	GinkgoHelper()
	return p.command(append([]string{"exec", name, "/plumb"}, args...)...)
}

// inspect returns one of the container's settings in a network, such as "IPAddress".
func (p *podman) inspect(name, network, setting string) string {
	GinkgoHelper()
	return p.command("inspect", name, "--format", fmt.Sprintf("{{(index .NetworkSettings.Networks %q).%s}}", network, setting))
}

var _ = Describe("podman", func() {
	It("runs a container with a published port, an address and a MAC, and leaves no state after its removal", func() {
		p := newPodman(newHost())
		p.run("existing", []string{"--network", "one", "--publish", "8079:80"})
		before := nstest.WaitStable(p.state)

		p.run("web", []string{"--network", "one", "--publish", "8080:80", "--ip", "10.91.0.77", "--mac-address", "02:00:00:00:00:77"}, "serve", ":80")
		Expect(p.exec("web", "read", "/sys/class/net/eth0/address")).To(Equal("02:00:00:00:00:77"))
		Expect(p.inspect("web", "one", "IPAddress")).To(Equal("10.91.0.77"))
		Expect(p.inspect("web", "one", "MacAddress")).To(Equal("02:00:00:00:00:77"))
		Eventually(func() error { _, err := nstest.Dial(p.Host, "10.91.0.77:80"); return err }).Should(Succeed())
		checkPublished(p, "web", "10.91.0.1", "fd00:91::1")

		p.command("restart", "--time", "0", "web")
		Expect(p.exec("web", "read", "/sys/class/net/eth0/address")).To(Equal("02:00:00:00:00:77"))
		Eventually(func() error { _, err := nstest.Dial(p.Host, "10.91.0.77:80"); return err }).Should(Succeed())
		checkPublished(p, "web", "10.91.0.1", "fd00:91::1")

		for _, restore := range []func(){
			func() { p.command("network", "reload", "web") },
			func() {
				p.Host.Must(GinkgoTB(), filepath.Join(os.Getenv("PLUMB_BIN"), "plumb"), "repair",
					"--conf-dir", filepath.Join(p.dir, "net.d"), "--cni-path", p.bin)
			},
		} {
			p.Host.Must(GinkgoTB(), "nft", "flush", "ruleset")
			restore()
			checkPublished(p, "web", "10.91.0.1", "fd00:91::1")
		}

		p.remove("web")
		Expect(nstest.WaitEqual(before, p.state)).To(BeEmpty())
	})

	It("connects a running container to a second network, and disconnects it", func() {
		p := newPodman(newHost())
		p.run("existing", []string{"--network", "one,two"})
		p.run("connected", []string{"--network", "one"}, "serve", ":80")
		before := nstest.WaitStable(p.state)

		p.command("network", "connect", "two", "connected")
		second := p.inspect("connected", "two", "IPAddress")
		Expect(p.exec("existing", "dial", second+":80")).To(HaveSuffix("local=" + second))
		p.command("network", "disconnect", "two", "connected")
		Expect(nstest.WaitEqual(before, p.state)).To(BeEmpty(), "objects remain after network disconnect")
		first := p.inspect("connected", "one", "IPAddress")
		Expect(p.exec("existing", "dial", first+":80")).To(HaveSuffix("local=" + first))
	})

	It("leaves no state after a container exits on its own", func() {
		p := newPodman(newHost())
		p.run("existing", []string{"--network", "one"})
		before := nstest.WaitStable(p.state)
		server := nstest.ServeTCP(GinkgoTB(), p.Outside, nstest.OutsideV4+":0")
		Expect(p.command("run", "--rm", "--network", "one", "--cgroup-parent", "/"+os.Getenv("PLUMB_CGROUP"), image, "dial", server.String())).
			To(HavePrefix("peer=" + nstest.HostV4 + " "))
		Expect(nstest.WaitEqual(before, p.state)).To(BeEmpty())
	})

	It("publishes a port in a bridge network that podman created with the plugin firewall", func() {
		p := newPodman(newHost())
		p.command("network", "create", "--subnet", "10.93.0.0/24", "--ipv6", "--subnet", "fd00:93::/64", "created")
		p.run("existing", []string{"--network", "created", "--publish", "8079:80"})
		before := nstest.WaitStable(p.state)

		p.run("web", []string{"--network", "created", "--publish", "8080:80"}, "serve", ":80")
		address := p.inspect("web", "created", "IPAddress")
		Eventually(func() error { _, err := nstest.Dial(p.Host, address+":80"); return err }).Should(Succeed())
		checkPublished(p, "web", "10.93.0.1", "fd00:93::1")
		p.remove("web")
		Expect(nstest.WaitEqual(before, p.state)).To(BeEmpty())
	})

	It("publishes a free port with onConflict fail, and plumb doctor ignores the sockets with which podman reserves ports", func() {
		p := newPodman(newHost())
		conflist := strings.Replace(fmt.Sprintf(bridgeNetwork, "one", 91), `"type": "portmap",`, `"type": "portmap", "onConflict": "fail",`, 1)
		p.write("net.d/one.conflist", conflist)
		p.run("web", []string{"--network", "one", "--publish", "8080:80"}, "serve", ":80")
		p.command("restart", "--time", "0", "web")
		Expect(p.Host.Must(GinkgoTB(), "ss", "-Hltnp", "sport", "=", ":8080")).To(ContainSubstring("conmon"))
		out, _ := p.Host.Exec(filepath.Join(os.Getenv("PLUMB_BIN"), "plumb"), "doctor", "--conf-dir", filepath.Join(p.dir, "net.d"), "--cni-path", p.bin)
		Expect(out).To(And(ContainSubstring("1 attachment"), Not(ContainSubstring("8080"))))

		nstest.ServeTCP(GinkgoTB(), p.Host, "127.0.0.1:8081")
		_, err := p.try("run", "--rm", "--network", "one", "--publish", "8081:80", "--cgroup-parent", "/"+os.Getenv("PLUMB_CGROUP"), image)
		Expect(err).To(MatchError(ContainSubstring(fmt.Sprintf("(PID %d) listens on 127.0.0.1:8081", os.Getpid()))))
		_, err = p.try("network", "reload", "web")
		Expect(err).To(MatchError(ContainSubstring("conmon")), "podman calls DEL and ADD, and conmon keeps its sockets")
		p.remove("web")
	})

	It("connects a container to other hosts through a macvlan network that podman created", func() {
		p := newPodman(newHost())
		before := nstest.WaitStable(p.state)
		p.command("network", "create", "--driver", "macvlan", "--opt", "parent="+nstest.Uplink,
			"--subnet", "198.18.0.0/24", "--gateway", nstest.OutsideV4, "lan")
		p.run("neighbor", []string{"--network", "lan", "--ip", "198.18.0.77"}, "serve", ":80")
		server := nstest.ServeTCP(GinkgoTB(), p.Outside, nstest.OutsideV4+":0")
		Expect(p.exec("neighbor", "dial", server.String())).To(HavePrefix("peer=198.18.0.77 "))
		nstest.MustDial(GinkgoTB(), p.Outside, "198.18.0.77:80", nstest.OutsideV4)
		p.remove("neighbor")
		Expect(nstest.WaitEqual(before, p.state)).To(BeEmpty())
	})
})

// checkPublished checks that the host, the outside host and the container itself reach the container's port 80
// through the host's port 8080. It also checks that the outside host sees the host's address in connections
// from the container.
func checkPublished(p *podman, name, gatewayV4, gatewayV6 string) {
	GinkgoHelper()
	nstest.MustDial(GinkgoTB(), p.Host, "127.0.0.1:8080", gatewayV4)
	for _, f := range []struct{ host, outside, gateway string }{
		{nstest.HostV4, nstest.OutsideV4, gatewayV4}, {nstest.HostV6, nstest.OutsideV6, gatewayV6},
	} {
		nstest.MustDial(GinkgoTB(), p.Outside, net.JoinHostPort(f.host, "8080"), f.outside)
		Expect(p.exec(name, "dial", net.JoinHostPort(f.host, "8080"))).To(HavePrefix("peer="+f.gateway+" "), "hairpin")
		server := nstest.ServeTCP(GinkgoTB(), p.Outside, net.JoinHostPort(f.outside, "0"))
		Expect(p.exec(name, "dial", server.String())).To(HavePrefix("peer=" + f.host + " "))
	}
}
