package runtimes

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

// podmanConfig takes two folders of plugins and that of the networks. The limits are
// below podman's own, which take CAP_SYS_RESOURCE to set.
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
cni_plugin_dirs = ["%s", "%s"]
network_config_dir = "%s"
`

// debianPlugins has the firewall plugin, which the networks that podman makes want and
// this bundle does not have. It is searched last.
const debianPlugins = "/usr/lib/cni"

// bridged is a network as podman would make it, but of both families and without the
// firewall plugin. %[1]s is its name, %[2]d a number.
const bridged = `{
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

// A podman is the program with stores of its own, on a node.
type podman struct{ *node }

// newPodman gives podman the networks "one" and "two", and the image.
func newPodman(n *node) *podman {
	GinkgoHelper()
	networks := filepath.Join(n.dir, "net.d")
	Expect(os.Mkdir(networks, 0o755)).To(Succeed())
	n.write("net.d/one.conflist", fmt.Sprintf(bridged, "one", 91))
	n.write("net.d/two.conflist", fmt.Sprintf(bridged, "two", 92))
	n.write("containers.conf", fmt.Sprintf(podmanConfig, n.bin, debianPlugins, networks))
	p := &podman{n}
	DeferCleanup(func() {
		p.do("rm", "--all", "--force", "--time", "0")
		p.quiet()
	})
	p.do("load", "--input", imageTar(n.dir))
	return p
}

// do runs podman and gives what it prints.
func (p *podman) do(args ...string) string {
	GinkgoHelper()
	d := func(name string) string { return filepath.Join(p.dir, name) }
	return strings.TrimSpace(p.Node.Must(GinkgoTB(), "env", append([]string{"CONTAINERS_CONF=" + d("containers.conf"),
		"podman", "--root", d("root"), "--runroot", d("run"), "--tmpdir", d("tmp"), "--storage-driver", "overlay"}, args...)...))
}

// run makes a container. options are those of podman run.
func (p *podman) run(name string, options []string, args ...string) {
	GinkgoHelper()
	all := append([]string{"run", "--detach", "--name", name, "--cgroup-parent", "/" + os.Getenv("PLUMB_CGROUP")}, options...)
	p.do(append(append(all, image), args...)...)
}

// remove ends the container and removes it.
func (p *podman) remove(name string) {
	GinkgoHelper()
	p.do("rm", "--force", "--time", "0", name)
}

// in runs tenant in the container and gives what it prints.
func (p *podman) in(name string, args ...string) string {
	GinkgoHelper()
	return p.do(append([]string{"exec", name, "/tenant"}, args...)...)
}

// inspect gives one of the container's settings in its network.
func (p *podman) inspect(name, network, setting string) string {
	GinkgoHelper()
	return p.do("inspect", name, "--format", fmt.Sprintf("{{(index .NetworkSettings.Networks %q).%s}}", network, setting))
}

var _ = Describe("podman", func() {
	It("runs a container with a port, an address and a MAC, and removes it without a trace", func() {
		p := newPodman(newNode())
		p.run("stays", []string{"--network", "one", "--publish", "8079:80"})
		before := nstest.Steady(p.state)

		p.run("web", []string{"--network", "one", "--publish", "8080:80", "--ip", "10.91.0.77", "--mac-address", "02:00:00:00:00:77"}, "serve", ":80")
		Expect(p.in("web", "read", "/sys/class/net/eth0/address")).To(Equal("02:00:00:00:00:77"))
		Expect(p.inspect("web", "one", "IPAddress")).To(Equal("10.91.0.77"))
		Expect(p.inspect("web", "one", "MacAddress")).To(Equal("02:00:00:00:00:77"))
		Eventually(func() error { _, err := nstest.Dial(p.Node, "10.91.0.77:80"); return err }).Should(Succeed())
		published(p, "web", "10.91.0.1", "fd00:91::1")

		p.do("restart", "--time", "0", "web")
		Expect(p.in("web", "read", "/sys/class/net/eth0/address")).To(Equal("02:00:00:00:00:77"))
		Eventually(func() error { _, err := nstest.Dial(p.Node, "10.91.0.77:80"); return err }).Should(Succeed())
		published(p, "web", "10.91.0.1", "fd00:91::1")

		p.remove("web")
		Expect(nstest.Settled(before, p.state)).To(BeEmpty())
	})

	It("connects a running container to a second network, and disconnects it", func() {
		p := newPodman(newNode())
		p.run("stays", []string{"--network", "one,two"})
		p.run("moves", []string{"--network", "one"}, "serve", ":80")
		before := nstest.Steady(p.state)

		p.do("network", "connect", "two", "moves")
		second := p.inspect("moves", "two", "IPAddress")
		Expect(p.in("stays", "dial", second+":80")).To(HaveSuffix("local=" + second))
		p.do("network", "disconnect", "two", "moves")
		Expect(nstest.Settled(before, p.state)).To(BeEmpty(), "after network disconnect")
		first := p.inspect("moves", "one", "IPAddress")
		Expect(p.in("stays", "dial", first+":80")).To(HaveSuffix("local=" + first))
	})

	It("runs a container that ends by itself", func() {
		p := newPodman(newNode())
		p.run("stays", []string{"--network", "one"})
		before := nstest.Steady(p.state)
		there := nstest.ServeTCP(GinkgoTB(), p.Outside, nstest.OutsideV4+":0")
		Expect(p.do("run", "--rm", "--network", "one", "--cgroup-parent", "/"+os.Getenv("PLUMB_CGROUP"), image, "dial", there.String())).
			To(HavePrefix("peer=" + nstest.NodeV4 + " "))
		Expect(nstest.Settled(before, p.state)).To(BeEmpty())
	})

	It("makes a bridge network of its own, with Debian's firewall plugin behind ours", func() {
		p := newPodman(newNode())
		p.do("network", "create", "--subnet", "10.93.0.0/24", "--ipv6", "--subnet", "fd00:93::/64", "made")
		p.run("stays", []string{"--network", "made", "--publish", "8079:80"})
		before := nstest.Steady(p.state)

		p.run("web", []string{"--network", "made", "--publish", "8080:80"}, "serve", ":80")
		at := p.inspect("web", "made", "IPAddress")
		Eventually(func() error { _, err := nstest.Dial(p.Node, at+":80"); return err }).Should(Succeed())
		published(p, "web", "10.93.0.1", "fd00:93::1")
		p.remove("web")
		Expect(nstest.Settled(before, p.state)).To(BeEmpty())
	})

	It("makes a macvlan network of its own", func() {
		p := newPodman(newNode())
		before := nstest.Steady(p.state)
		p.do("network", "create", "--driver", "macvlan", "--opt", "parent="+nstest.Uplink,
			"--subnet", "198.18.0.0/24", "--gateway", nstest.OutsideV4, "segment")
		p.run("neighbour", []string{"--network", "segment", "--ip", "198.18.0.77"}, "serve", ":80")
		there := nstest.ServeTCP(GinkgoTB(), p.Outside, nstest.OutsideV4+":0")
		Expect(p.in("neighbour", "dial", there.String())).To(HavePrefix("peer=198.18.0.77 "))
		nstest.MustDial(GinkgoTB(), p.Outside, "198.18.0.77:80", nstest.OutsideV4)
		p.remove("neighbour")
		Expect(nstest.Settled(before, p.state)).To(BeEmpty())
	})
})

// published: port 8080 of the node is port 80 of the container, whoever asks, and the
// container reaches the host outside as the node.
func published(p *podman, name, gatewayV4, gatewayV6 string) {
	GinkgoHelper()
	nstest.MustDial(GinkgoTB(), p.Node, "127.0.0.1:8080", gatewayV4)
	for _, f := range []struct{ node, outside, gateway string }{
		{nstest.NodeV4, nstest.OutsideV4, gatewayV4}, {nstest.NodeV6, nstest.OutsideV6, gatewayV6},
	} {
		nstest.MustDial(GinkgoTB(), p.Outside, net.JoinHostPort(f.node, "8080"), f.outside)
		Expect(p.in(name, "dial", net.JoinHostPort(f.node, "8080"))).To(HavePrefix("peer="+f.gateway+" "), "hairpin")
		there := nstest.ServeTCP(GinkgoTB(), p.Outside, net.JoinHostPort(f.outside, "0"))
		Expect(p.in(name, "dial", there.String())).To(HavePrefix("peer=" + f.node + " "))
	}
}
