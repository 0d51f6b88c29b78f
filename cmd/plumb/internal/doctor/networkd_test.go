package doctor_test

import (
	"os"
	"os/exec"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/doctor"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("doctor beside systemd-networkd", func() {
	// networkd starts systemd-networkd on the host until stop is called, and waits until it has decided about the host
	// ends. With a read-only /sys, it does not wait for udev.
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
		// systemd 252 deletes the file of a link that it removed from a bridge. The file returns when the link changes.
		Eventually(func() string {
			return n.sh(`for l in $(ip -o link show type veth | sed 's/^\([0-9]*\): \([^@]*\)@.*/\1:\2/'); do
				grep -Eqs '^ADMIN_STATE=(configur|unmanaged)' /run/systemd/netif/links/${l%:*} || { echo $l; ip link set ${l#*:} down; ip link set ${l#*:} up; }
			done`)
		}).WithPolling(time.Second).Should(BeEmpty())
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
		var findings []doctor.Finding
		Eventually(func() []doctor.Finding {
			findings = n.doctor().Findings
			return findings
		}).Should(HaveExactElements(
			And(HaveField("Check", "networkd"), HaveField("What", MatchRegexp("manages host ends of containers .1, such as veth.*, because /etc/systemd/network/80-dhcp.network matches them"))),
			And(HaveField("Check", "check"), HaveField("What", MatchRegexp("interface veth.* is not a port of bridge cni0"))),
		))
		for _, f := range findings {
			n.sh(f.Fix)
		}
		Expect(n.doctor().Findings).To(BeEmpty())
		stop()
		networkd(n)
		Expect(n.doctor().Findings).To(BeEmpty(), "after a restart of systemd-networkd")
	})
})
