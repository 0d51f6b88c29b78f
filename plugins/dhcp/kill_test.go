package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/faults/inject"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestMain(m *testing.M) {
	inject.Launch()
	os.Exit(m.Run())
}

// A killer kills a daemon at one of its system calls after arm.
type killer struct {
	mu    sync.Mutex
	armed bool
	left  int    // number of calls until the kill
	at    string // the call at which it killed the daemon, or empty
}

func (k *killer) decide(c *inject.Call) inject.Verdict {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.armed || k.at != "" {
		return inject.Pass()
	}
	if k.left--; k.left > 0 {
		return inject.Pass()
	}
	k.at = c.Name
	return inject.Kill()
}

func (k *killer) arm() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.armed = true
}

func (k *killer) killedAt() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.at
}

// A killedDaemon is a daemon that is killed at one of its system calls.
type killedDaemon struct {
	*killer
	cmd   *exec.Cmd
	tree  *inject.ProcessTree
	ended chan struct{}
}

// startKilled starts a daemon that k kills.
func (b *testbed) startKilled(k *killer) *killedDaemon {
	GinkgoHelper()
	cmd := exec.Command(filepath.Join(nstest.Build(GinkgoTB(), "dhcp"), "dhcp"), "daemon", "-socketpath", b.socket, "-resendmax", "200ms")
	cmd.Stderr = GinkgoWriter
	tree, err := inject.Session{Calls: inject.Mutating(), Decide: k.decide, Start: b.Host.Start}.Run(cmd)
	Expect(err).NotTo(HaveOccurred())
	d := &killedDaemon{killer: k, cmd: cmd, tree: tree, ended: make(chan struct{})}
	go func() { _ = cmd.Wait(); close(d.ended) }()
	DeferCleanup(d.end)
	return d
}

// end ends the daemon, and returns the call at which the killer killed it, or "".
func (d *killedDaemon) end() string {
	GinkgoHelper()
	at := d.killedAt()
	_ = d.cmd.Process.Kill()
	<-d.ended
	Expect(d.tree.Wait(time.Minute)).To(Succeed())
	return at
}

// await waits until the condition holds or the daemon has ended.
func (d *killedDaemon) await(condition func() bool) {
	GinkgoHelper()
	Eventually(func() bool {
		select {
		case <-d.ended:
			return true
		default:
			return condition()
		}
	}).Should(BeTrue())
}

// atEachCall calls f with 1, 1 + nstest.SweepStride() and so on, until f returns "". It fails if the last number is
// not above atLeast.
func atEachCall(atLeast int, f func(n int) (killedAt string)) {
	GinkgoHelper()
	for n := 1; ; n += nstest.SweepStride() {
		at := f(n)
		if at == "" {
			AddReportEntry("calls", n-1)
			Expect(n).To(BeNumerically(">", atLeast), "calls")
			return
		}
	}
}

// leaseInFile returns the time at which the lease in the file was requested. ok reports whether the file contains lease.
func (b *testbed) leaseInFile() (start time.Duration, ok bool) {
	var r struct {
		State string
		Lease *struct{ Address string }
		Start time.Duration
	}
	var text []byte
	files, err := filepath.Glob(strings.TrimSuffix(b.socket, ".sock") + "/*.lease")
	if err == nil && len(files) == 1 {
		text, _ = os.ReadFile(files[0])
	}
	err = json.Unmarshal(text, &r)
	return r.Start, err == nil && r.Lease != nil && r.Lease.Address == lease.Address
}

func containsType(messages []nstest.DHCPMessage, t dhcpv4.MessageType) bool {
	return slices.ContainsFunc(messages, func(m nstest.DHCPMessage) bool { return m.MessageType() == t })
}

// requireReleased runs DEL, and waits until the running daemon has deleted its files. messages contains what the server
// has received since the lease was requested. There and after DEL, the server must have received a RELEASE. It must not
// have received a DISCOVER, because that would allocate a second address.
func (b *testbed) requireReleased(c nstest.Call, messages []nstest.DHCPMessage) {
	GinkgoHelper()
	b.OK("DEL", c)
	Eventually(b.files).Should(BeEmpty())
	messages = append(messages, b.server.Received()...)
	if !containsType(messages, released) {
		b.server.Await(GinkgoTB(), released)
	}
	Expect(containsType(messages, discover)).To(BeFalse(), "DISCOVER while the lease is held")
}

var _ = Describe("a daemon that is killed at any system call", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	// hold runs an ADD, and configures the interface as an interface plugin does.
	hold := func(l nstest.DHCPLease) nstest.Call {
		GinkgoHelper()
		b.server.Lease(l)
		c := b.call("")
		b.address(c)
		b.container.MustLine(GinkgoTB(), "ip addr replace "+l.Address+" dev eth0")
		b.server.Await(GinkgoTB(), requested)
		return c
	}

	It("during an ADD leaves no address reserved at the server", func() {
		atEachCall(5, func(n int) string {
			d := b.startKilled(&killer{left: n})
			b.awaitDaemon()
			d.arm()
			c := b.call("")
			r := b.Run("ADD", c)
			at := d.end()
			if at == "" {
				r.OK(GinkgoTB())
			}
			// The runtime calls DEL after a failed ADD, either before or after the daemon is started again.
			if n%2 == 0 {
				b.OK("DEL", c)
			}
			end := b.startDaemon()
			b.OK("DEL", c)
			Eventually(b.files).Should(BeEmpty())
			messages := b.server.Received()
			if containsType(messages, requested) && !containsType(messages, released) {
				b.server.Await(GinkgoTB(), released)
			}
			Expect(end(syscall.SIGTERM)).To(Succeed())
			b.server.Received()
			return at
		})
	})

	DescribeTable("during a DEL or GC leaves no address reserved at the server",
		func(command, rest string) {
			atEachCall(2, func(n int) string {
				d := b.startKilled(&killer{left: n})
				b.awaitDaemon()
				c := hold(lease)
				del := c
				del.Config = c.Config[:len(c.Config)-1] + rest + "}"
				d.arm()
				b.OK(command, del)
				at := d.end()
				messages := b.server.Received()
				if _, ok := b.leaseInFile(); !ok && !containsType(messages, released) {
					messages = append(messages, b.server.Await(GinkgoTB(), released))
				}
				end := b.startDaemon()
				b.OK(command, del)
				b.requireReleased(c, messages)
				b.address(c) // the next attachment with the same name
				b.OK("DEL", c)
				Expect(end(syscall.SIGTERM)).To(Succeed())
				b.server.Await(GinkgoTB(), released)
				return at
			})
		},
		Entry("DEL", "DEL", ""),
		Entry("GC", "GC", `,"cni.dev/valid-attachments":[]`),
	)

	It("during a renewal loses no lease", func() {
		short := lease
		short.Duration, short.Renew, short.Rebind = time.Minute, time.Second, 50*time.Second
		atEachCall(2, func(n int) string {
			d := b.startKilled(&killer{left: n})
			b.awaitDaemon()
			c := hold(short)
			before, _ := b.leaseInFile()
			d.arm()
			d.await(func() bool { now, ok := b.leaseInFile(); return ok && now > before })
			at := d.end()
			b.requireHeld(c)
			return at
		})
	})

	It("during a renewal that the server rejects loses neither address", func() {
		short, other := lease, lease
		short.Duration, short.Renew, short.Rebind = time.Minute, time.Second, 50*time.Second
		other.Address = "10.50.0.6/24"
		addresses := func() string { return b.container.MustLine(GinkgoTB(), "ip -4 -br addr show eth0") }
		atEachCall(5, func(n int) string {
			b.server.Always(nil)
			b.container.MustLine(GinkgoTB(), "ip addr flush dev eth0")
			d := b.startKilled(&killer{left: n})
			b.awaitDaemon()
			c := hold(short)
			b.server.Lease(other)
			var acknowledged atomic.Bool
			b.server.Always(toRequests(func(m nstest.DHCPMessage, answer *dhcpv4.DHCPv4) [][]byte {
				if m.ClientIPAddr.String() != "10.50.0.6" && m.RequestedIPAddress().String() != "10.50.0.6" {
					return nstest.DHCPNAK(m, answer)
				}
				acknowledged.Store(true)
				return [][]byte{answer.ToBytes()}
			}))
			d.arm()
			d.await(func() bool {
				return strings.Contains(b.record(), "10.50.0.6") && strings.Contains(b.record(), `"bound"`)
			})
			at := d.end()
			if n%2 == 0 { // DEL precedes any answer of the server
				b.server.Always(nstest.DHCPSilence)
			}
			end := b.startDaemon()
			if n%2 == 1 {
				Eventually(addresses).Should(And(ContainSubstring("10.50.0.6"), Not(ContainSubstring("10.50.0.5"))))
			}
			b.OK("DEL", c)
			Eventually(b.files).Should(BeEmpty())
			if acknowledged.Load() {
				Expect(b.server.Await(GinkgoTB(), released).ClientIPAddr.String()).To(Equal("10.50.0.6"))
			}
			Expect(end(syscall.SIGTERM)).To(Succeed())
			b.server.Received()
			return at
		})
	})

	It("during its start loses no lease", func() {
		atEachCall(5, func(n int) string {
			end := b.startDaemon()
			c := hold(lease)
			Expect(end(syscall.SIGTERM)).To(Succeed())
			before, _ := b.leaseInFile()
			d := b.startKilled(&killer{left: n, armed: true})
			d.await(func() bool { now, ok := b.leaseInFile(); return ok && now > before })
			at := d.end()
			b.requireHeld(c)
			return at
		})
	})
})

// requireHeld fails unless the lease is in its file, and the next daemon takes it over and releases it.
func (b *testbed) requireHeld(c nstest.Call) {
	GinkgoHelper()
	_, ok := b.leaseInFile()
	Expect(ok).To(BeTrue(), "the lease file")
	messages := b.server.Received()
	end := b.startDaemon()
	b.OK("CHECK", c)
	Expect(b.address(c)).To(Equal(lease.Address), "a second ADD")
	Expect(containsType(messages, released)).To(BeFalse(), "RELEASE before DEL")
	b.requireReleased(c, messages)
	Expect(end(syscall.SIGTERM)).To(Succeed())
	b.server.Received()
}
