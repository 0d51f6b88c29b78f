package runtimes

import (
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// A nerdctl runs the program nerdctl with a containerd on a host.
type nerdctl struct{ *containerd }

// newNerdctl starts containerd, and loads the image into nerdctl's namespace.
func newNerdctl(h *host) *nerdctl {
	GinkgoHelper()
	c := &nerdctl{newContainerd(h, cniConflist)}
	DeferCleanup(func() {
		if all := strings.Fields(c.command("ps", "--all", "--quiet")); len(all) > 0 {
			c.command(append([]string{"rm", "--force"}, all...)...)
		}
	})
	c.command("load", "--input", writeImage(h.dir))
	return c
}

// cniConflist is the network of the CRI, which these specs do not use.
const cniConflist = `{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "loopback"}]}`

func (c *nerdctl) command(args ...string) string {
	GinkgoHelper()
	path := func(name string) string { return filepath.Join(c.dir, name) }
	return strings.TrimSpace(c.Host.Must(GinkgoTB(), os.Getenv("NERDCTL"), append([]string{
		"--address", path("sock"), "--cni-path", c.bin, "--cni-netconfpath", path("nerdctl.d"),
		"--data-root", path("nerdctl"), "--cgroup-manager", "cgroupfs", "--snapshotter", "native"}, args...)...))
}

// run starts a container of the image in the background. options contains options of nerdctl run, and
// args the arguments of the container.
func (c *nerdctl) run(name string, options []string, args ...string) {
	GinkgoHelper()
	all := append([]string{"run", "--detach", "--name", name, "--security-opt", "apparmor=unconfined",
		"--cgroup-parent", "/" + os.Getenv("PLUMB_CGROUP"), "--pull", "never"}, options...)
	c.command(append(append(all, image), args...)...)
}

func (c *nerdctl) address(name string) string {
	GinkgoHelper()
	return c.command("inspect", name, "--format", "{{.NetworkSettings.IPAddress}}")
}

// exec runs the program workload in the container and returns its output.
func (c *nerdctl) exec(name string, args ...string) string {
	GinkgoHelper()
	return c.command(append([]string{"exec", name, "/plumb"}, args...)...)
}

// Debian does not package nerdctl. The specs exist only if NERDCTL contains the path of a nerdctl.
var _ = os.Getenv("NERDCTL") == "" || Describe("nerdctl", func() {
	It("publishes a port in its default network, and leaves no state after the container's removal", func() {
		c := newNerdctl(newHost())
		c.run("existing", []string{"--publish", "8079:80"})
		before := nstest.WaitStable(c.state)

		c.run("web", []string{"--publish", "8080:80"}, "serve", ":80")
		address := c.address("web")
		Eventually(func() error { _, err := nstest.Dial(c.Host, address+":80"); return err }).Should(Succeed())
		nstest.MustDial(GinkgoTB(), c.Outside, nstest.HostV4+":8080", nstest.OutsideV4)
		server := nstest.ServeTCP(GinkgoTB(), c.Outside, nstest.OutsideV4+":0")
		Expect(c.exec("web", "dial", server.String())).To(HavePrefix("peer=" + nstest.HostV4 + " "))

		c.command("restart", "--time", "0", "web")
		Eventually(func() error { _, err := nstest.Dial(c.Outside, nstest.HostV4+":8080"); return err }).Should(Succeed())

		c.command("rm", "--force", "web")
		Expect(nstest.WaitEqual(before, c.state)).To(BeEmpty())
	})

	It("isolates its networks from each other", func() {
		c := newNerdctl(newHost())
		for i, network := range []string{"one", "two"} {
			c.command("network", "create", "--subnet", []string{"10.94.0.0/24", "10.95.0.0/24"}[i], network)
			c.run(network+"-server", []string{"--network", network}, "serve", ":80")
			c.run(network+"-client", []string{"--network", network})
		}
		one, two := c.address("one-server"), c.address("two-server")
		Eventually(func() error { _, err := nstest.Dial(c.Host, two+":80"); return err }).Should(Succeed())
		Expect(c.exec("one-client", "dial", one+":80")).To(HaveSuffix("local=" + one))
		Expect(c.exec("two-client", "dial", two+":80")).To(HaveSuffix("local=" + two))
		_, err := c.Host.Exec(os.Getenv("NERDCTL"), "--address", filepath.Join(c.dir, "sock"), "--data-root", filepath.Join(c.dir, "nerdctl"),
			"exec", "one-client", "/plumb", "dial", two+":80")
		Expect(err).To(MatchError(ContainSubstring("timeout")))
	})
})
