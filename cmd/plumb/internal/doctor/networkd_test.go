package doctor_test

import (
	"os"
	"os/exec"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("doctor beside systemd-networkd", func() {
	// networkd starts systemd-networkd on the host until stop is called, and waits until it has read a link. With a read-only
	// /sys, it does not wait for udev.
	networkd := func(n *usedHost) (stop func()) {
		GinkgoHelper()
		cmd := exec.Command("unshare", "--mount", "sh", "-c", "rm -rf /run/systemd/netif && mount -t sysfs -o ro none /sys && exec /lib/systemd/systemd-networkd")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		Expect(n.Start(cmd)).To(Succeed())
		stop = func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		DeferCleanup(stop)
		Eventually(func() string { return n.sh("cat /run/systemd/netif/links/* || :") }).Should(ContainSubstring("NETWORK_FILE="))
		return stop
	}

	It("finds host ends that networkd removes from their bridge when it starts", func() {
		nstest.RequireRoot(GinkgoTB(), "because systemd-networkd changes to its user")
		for _, dir := range []string{"/etc/systemd/network", "/run/systemd"} {
			Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
			Expect(unix.Mount("none", dir, "tmpfs", 0, "mode=755")).To(Succeed())
			DeferCleanup(unix.Unmount, dir, unix.MNT_DETACH)
		}
		Expect(os.WriteFile("/etc/systemd/network/80-dhcp.network", []byte("[Match]\nName=*\n[Network]\nDHCP=yes\n"), 0o644)).To(Succeed())
		GinkgoT().Setenv("DBUS_SYSTEM_BUS_ADDRESS", nstest.StartBus(GinkgoTB()).Address)
		n, _ := newCompleteHost()
		stop := networkd(n)
		var checks []string
		for _, f := range n.doctor().Findings {
			checks = append(checks, f.Check+" "+f.What)
			n.sh(f.Fix)
		}
		Expect(checks).To(HaveExactElements(
			And(HavePrefix("networkd systemd-networkd manages host ends of containers (1, such as veth"), ContainSubstring("because /etc/systemd/network/80-dhcp.network matches them")),
			MatchRegexp("^check .*interface veth.* is not a port of bridge cni0"),
		))
		Expect(n.doctor().Findings).To(BeEmpty())
		stop()
		networkd(n)
		Expect(n.doctor().Findings).To(BeEmpty(), "after a restart of systemd-networkd")
	})
})
