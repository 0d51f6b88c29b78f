package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/plugins/dhcp/daemon"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestDHCP(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/dhcp")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

const serverAddr = "10.50.0.1"

// lease is the server's lease, with the options 3 (routers), 6 (DNS servers), 15 (domain) and 26 (MTU).
var lease = nstest.DHCPLease{Address: "10.50.0.5/24", Duration: time.Hour, Options: map[uint8][]byte{
	3: {10, 50, 0, 1}, 6: {10, 50, 0, 1, 10, 50, 0, 2}, 15: []byte("example.org"), 26: {1400 >> 8, 1400 & 0xff},
}}

// A testbed is a Bed with a container on a segment with a DHCP server. The container's eth0 is up.
type testbed struct {
	*nstest.Bed
	container *nstest.NS
	server    *nstest.DHCPServer
	socket    string
}

// newBed returns a testbed without a segment and a server. Its Path contains these executables.
func newBed(executables ...string) *testbed {
	bed := nstest.NewBedOn(GinkgoTB(), plugin(), nstest.NewHost(GinkgoTB()), executables...)
	return &testbed{Bed: bed, container: bed.NewContainer(), socket: filepath.Join(GinkgoTB().TempDir(), "dhcp.sock")}
}

// newSegment returns a testbed with a segment, but without a server and a daemon.
func newSegment() *testbed {
	b := newBed()
	b.join(b.container, "lan0")
	b.Host.MustLine(GinkgoTB(), "ip addr add "+b.end().Addrs[0]+" dev lan0")
	return b
}

// newTestbed returns a testbed without a daemon.
func newTestbed() *testbed {
	b := newSegment()
	b.server = nstest.StartDHCPServer(GinkgoTB(), b.end(), lease)
	return b
}

// end returns the server's interface.
func (b *testbed) end() nstest.End {
	return nstest.End{In: b.Host, Name: "lan0", Addrs: []string{serverAddr + "/24"}}
}

// join connects a container's eth0 with the host's interface name.
func (b *testbed) join(container *nstest.NS, name string) {
	nstest.Join(GinkgoTB(), nstest.End{In: b.Host, Name: name}, nstest.End{In: container, Name: "eth0"})
}

// runDaemon runs a daemon in this process until the end of the test, or until stop is called.
func (b *testbed) runDaemon() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	args := []string{"-socketpath", b.socket, "-resendmax", "200ms"}
	go func() { ended <- daemon.Run(ctx, args, nil, GinkgoWriter) }()
	stopped := false
	stop = func() {
		if cancel(); !stopped {
			stopped = true
			Expect(<-ended).To(Succeed())
		}
	}
	DeferCleanup(func() { stop() })
	b.awaitDaemon()
	return stop
}

func (b *testbed) awaitDaemon() {
	GinkgoHelper()
	Eventually(func() error {
		_, err := daemon.Call(context.Background(), b.socket, daemon.Request{Method: daemon.MethodStatus})
		return err
	}).Should(Succeed())
}

// startDaemon starts the executable, and returns a function that ends it with a signal.
func (b *testbed) startDaemon(args ...string) (end func(syscall.Signal) error) {
	GinkgoHelper()
	cmd := exec.Command(filepath.Join(nstest.Build(GinkgoTB(), "dhcp"), "dhcp"), append([]string{"daemon", "-resendmax", "200ms"}, args...)...)
	cmd.Args = append(cmd.Args, "--socketpath", b.socket)
	cmd.Stderr = GinkgoWriter
	return b.start(cmd)
}

func (b *testbed) start(cmd *exec.Cmd) (end func(syscall.Signal) error) {
	GinkgoHelper()
	Expect(b.Host.Start(cmd)).To(Succeed())
	ended := false
	end = func(s syscall.Signal) error {
		if ended {
			return nil
		}
		ended = true
		_ = cmd.Process.Signal(s)
		return cmd.Wait()
	}
	DeferCleanup(func() { _ = end(syscall.SIGKILL) })
	b.awaitDaemon()
	return end
}

// conf returns a configuration. ipam contains additional keys for the object "ipam". It begins with a
// comma or is empty.
func (b *testbed) conf(version, ipam string) string {
	return fmt.Sprintf(`{"cniVersion":%q,"name":"d","type":"macvlan","ipam":{"type":"dhcp","daemonSocketPath":%q%s}}`, version, b.socket, ipam)
}

func (b *testbed) call(ipam string) nstest.Call {
	return b.Call("m1", b.container, b.conf("1.1.0", ipam))
}

// address runs an ADD and returns its address.
func (b *testbed) address(c nstest.Call) string {
	GinkgoHelper()
	return b.Add(c).IPs[0].Address.String()
}

// files returns the daemon's lease files and marks.
func (b *testbed) files() []string {
	all, _ := filepath.Glob(strings.TrimSuffix(b.socket, ".sock") + "/[^.]*")
	return all
}

// record returns the content of the only lease file.
func (b *testbed) record() string {
	all := b.files()
	if len(all) != 1 {
		return fmt.Sprint(all)
	}
	text, err := os.ReadFile(all[0])
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	return string(text)
}
