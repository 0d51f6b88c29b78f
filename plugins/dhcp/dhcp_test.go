package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/dhcp/daemon"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

const (
	discover  = dhcpv4.MessageTypeDiscover
	requested = dhcpv4.MessageTypeRequest
	released  = dhcpv4.MessageTypeRelease
)

func clientID(m nstest.DHCPMessage) string {
	return string(m.Options.Get(dhcpv4.OptionClientIdentifier))
}

var _ = Describe("dhcp", func() {
	var b *testbed
	BeforeEach(func() { b = newTestbed() })

	It("returns the lease in each version's format", func() {
		b.runDaemon()
		for _, version := range types.VersionsSince(types.V010) {
			c := b.call("")
			c.Config = b.conf(version, `,"priority":50`)
			nstest.Golden(GinkgoTB(), "add-"+version, b.OK("ADD", c).Stdout)
			b.OK("DEL", c)
		}
	})

	It("warns that a requested address has no effect", func() {
		b.runDaemon()
		for _, request := range [][2]string{{"IgnoreUnknown=1;IP=10.50.0.9", ""}, {"", `,"runtimeConfig":{"ips":["10.50.0.9/24"]}`}, {"", `,"args":{"cni":{"ips":["10.50.0.9"]}}`}} {
			c := b.call("")
			c.Args, c.Config = request[0], strings.TrimSuffix(c.Config, "}")+request[1]+"}"
			reply := b.OK("ADD", c)
			Expect(reply.Stderr).To(ContainSubstring("a requested address (IP in CNI_ARGS, or ips in runtimeConfig or args.cni) has no effect"))
			Expect(reply.Result(GinkgoTB()).IPs[0].Address.String()).To(Equal("10.50.0.5/24"))
			b.OK("DEL", c)
		}
	})

	It("sends the configured options, and the reference plugin's client identifier", func() {
		b.runDaemon()
		c := b.call(`,"provide":[{"option":"host-name","fromArg":"K8S_POD_NAME"},{"option":"60","value":"k8s"},{"option":"77","fromArg":"NONE"}],"request":[{"option":"42"}]`)
		c.Args = "IgnoreUnknown=1;K8S_POD_NAME=container-1"
		Expect(b.address(c)).To(Equal("10.50.0.5/24"))
		for _, t := range []dhcpv4.MessageType{discover, requested} {
			m := b.server.Await(GinkgoTB(), t)
			Expect(clientID(m)).To(Equal("\x00m1/d/eth0"))
			Expect(m.HostName()).To(Equal("container-1"))
			Expect(m.ClassIdentifier()).To(Equal("k8s"))
			Expect(m.Options.Has(dhcpv4.OptionUserClassInformation)).To(BeFalse())
			Expect(m.Options.Get(dhcpv4.OptionParameterRequestList)).To(Equal([]byte{1, 121, 33, 3, 6, 15, 119, 26, 51, 58, 59, 42}))
			Expect(m.IsBroadcast()).To(BeFalse())
		}
	})

	DescribeTable("uses as client identifier",
		func(key, args, want string) {
			b.runDaemon()
			c := b.call(`,"clientID":"` + key + `"`)
			c.Args = args
			b.address(c)
			Expect(clientID(b.server.Await(GinkgoTB(), discover))).To(Equal(want))
			b.OK("DEL", c)
			Expect(clientID(b.server.Await(GinkgoTB(), released))).To(Equal(want), "in the RELEASE")
		},
		Entry("the name of the pod", "name", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0", "\x00default/web-0"),
		Entry("the container ID without a pod", "name", "", "\x00m1"),
		Entry("the configured text", "kitchen", "", "\x00kitchen"),
	)

	It("releases a lease once, by unicast from its address", func() {
		b.runDaemon()
		c := b.call("")
		Expect(b.address(c)).To(Equal("10.50.0.5/24"))
		b.server.Await(GinkgoTB(), requested)
		Expect(b.address(c)).To(Equal("10.50.0.5/24"), "a second ADD")
		Expect(b.server.Received()).To(BeEmpty(), "messages of the second ADD")
		b.OK("DEL", c)
		m := b.server.Await(GinkgoTB(), released)
		Expect(m.Source.Addr().String() + " " + m.Destination.String()).To(Equal("10.50.0.5 " + serverAddr))
		Expect(b.files()).To(BeEmpty())
		r := b.OK("DEL", c)
		Expect(r.Stderr).To(BeEmpty())
		Expect(b.server.Received()).To(BeEmpty())
	})

	It("sets the interface up, and its MTU", func() {
		b.runDaemon()
		b.container.MustLine(GinkgoTB(), "ip link set eth0 down")
		b.address(b.call(`,"mtu":true`))
		Expect(b.container.MustLine(GinkgoTB(), "ip link show eth0")).To(And(ContainSubstring("mtu 1400"), ContainSubstring("UP")))
	})

	It("releases the lease of an ADD whose caller disconnects", func() {
		b.runDaemon()
		b.server.Always(toRequests(nstest.DHCPSilence))
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		done := make(chan error, 1)
		go func() {
			_, err := daemon.Call(ctx, b.socket, daemon.Request{
				Method: daemon.MethodAdd, Attachment: types.Attachment{Network: "d", ContainerID: "m1", IfName: "eth0"}, NetNS: b.container.Path(),
			})
			done <- err
		}()
		b.server.Await(GinkgoTB(), requested)
		Expect(b.record()).To(ContainSubstring(`"state": "requesting"`))
		cancel()
		Expect(<-done).To(MatchError(context.Canceled))
		b.server.Await(GinkgoTB(), released)
		Eventually(b.files).Should(BeEmpty())
	})

	It("names what a failed ADD waited for, releases its lease, and sets the interface down again", func() {
		b.runDaemon()
		link := func() string { return b.container.MustLine(GinkgoTB(), "ip link show eth0") }
		b.container.MustLine(GinkgoTB(), "ip link set eth0 down")
		b.server.Always(nstest.DHCPSilence)
		b.Fails("ADD", b.call(`,"timeout":1`), types.CodeTryAgain, "no lease from a DHCP server: none within 1s (no answer to DHCPDISCOVER)")
		Expect(b.files()).To(BeEmpty())
		Expect(link()).NotTo(ContainSubstring("UP"))
		b.server.Always(toRequests(nstest.DHCPNAK))
		b.Fails("ADD", b.call(`,"timeout":1`), types.CodeTryAgain, "DHCPNAK")
		b.server.Always(toRequests(nstest.DHCPSilence))
		b.Fails("ADD", b.call(`,"timeout":5`), types.CodeTryAgain)
		b.server.Await(GinkgoTB(), released)
		Expect(link()).NotTo(ContainSubstring("UP"))
	})

	It("declines an address that another host uses", func() {
		b.runDaemon()
		b.Host.MustLine(GinkgoTB(), "ip addr add 10.50.0.5/24 dev lan0")
		second := lease
		second.Address = "10.50.0.6/24"
		done := make(chan nstest.Reply, 1)
		go func() { done <- b.Run("ADD", b.call(`,"probe":true`)) }()
		m := b.server.Await(GinkgoTB(), dhcpv4.MessageTypeDecline)
		Expect(m.Source.Addr().String()).To(Equal("0.0.0.0"))
		Expect(m.RequestedIPAddress().String() + " " + m.ServerIdentifier().String()).To(Equal("10.50.0.5 " + serverAddr))
		b.server.Lease(second)
		Eventually(done).Should(Receive(WithTransform(func(r nstest.Reply) string { return r.Stdout }, ContainSubstring("10.50.0.6/24"))))
	})

	It("CHECK fails without a lease or with another address, and sends nothing", func() {
		b.runDaemon()
		c := b.call("")
		b.Fails("CHECK", c, types.CodeChanged, "d/m1/eth0 has no lease")
		added := b.OK("ADD", c)
		b.server.Await(GinkgoTB(), requested)
		b.OK("CHECK", c)
		config := c.Config
		c.Config = nstest.WithPrevResult(config, added.Stdout)
		b.OK("CHECK", c)
		c.Config = nstest.WithPrevResult(config, strings.ReplaceAll(added.Stdout, "10.50.0.5", "10.50.0.77"))
		b.Fails("CHECK", c, types.CodeChanged, "prevResult lacks the lease's address 10.50.0.5/24")
		Expect(b.server.Received()).To(BeEmpty())
	})

	It("GC releases the network's leases whose attachments are not valid", func() {
		b.runDaemon()
		c := b.call("")
		b.address(c)
		config := c.Config
		gc := func(name, valid string) nstest.Reply {
			c.Config = strings.Replace(strings.TrimSuffix(config, "}")+`,"cni.dev/valid-attachments":[`+valid+`]}`, `"name":"d"`, `"name":"`+name+`"`, 1)
			return b.OK("GC", c)
		}
		gc("d", `{"containerID":"m1","ifname":"eth0"}`)
		gc("other", "")
		Expect(b.files()).To(HaveLen(1))
		gc("d", "")
		Expect(b.files()).To(BeEmpty())
		b.server.Await(GinkgoTB(), released)
	})

	Describe("without a daemon", func() {
		It("ADD, CHECK and STATUS fail, and DEL and GC succeed", func() {
			c := b.call("")
			b.Fails("ADD", c, types.CodeIO, `is "dhcp daemon" running?`, b.socket)
			b.Fails("CHECK", c, types.CodeIO, `is "dhcp daemon" running?`)
			b.Fails("STATUS", c, types.CodeNotAvailable, `is "dhcp daemon" running?`)
			nothing := And(ContainSubstring(b.socket+": connect: no such file"), ContainSubstring("there is no lease file in "+strings.TrimSuffix(b.socket, ".sock")))
			Expect(b.OK("DEL", c).Stderr).To(nothing)
			c.Config = strings.TrimSuffix(c.Config, "}") + `,"cni.dev/valid-attachments":[]}`
			Expect(b.OK("GC", c).Stderr).To(nothing)
		})

		DescribeTable("the plugin itself releases the lease in",
			func(command, rest string) {
				stop := b.runDaemon()
				c := b.call("")
				b.address(c)
				stop()
				c.Config = strings.TrimSuffix(c.Config, "}") + rest + "}"
				Expect(b.OK(command, c).Stderr).To(ContainSubstring("leases that the plugin has released itself: 1"))
				Expect(b.files()).To(BeEmpty())
				m := b.server.Await(GinkgoTB(), released)
				Expect(m.ClientIPAddr.String() + " " + clientID(m)).To(Equal("10.50.0.5 \x00m1/d/eth0"))
			},
			Entry("DEL", "DEL", ""),
			Entry("GC", "GC", `,"cni.dev/valid-attachments":[]`),
		)

		DescribeTable("the next daemon releases the lease if the namespace was not at its path in",
			func(command, rest string) {
				stop := b.runDaemon()
				c := b.call("")
				path := filepath.Join(GinkgoTB().TempDir(), "netns")
				Expect(os.Symlink(b.container.Path(), path)).To(Succeed())
				c.NetNS, c.Container = path, nil
				b.address(c)
				stop()
				Expect(os.Remove(path)).To(Succeed())
				c.Config = strings.TrimSuffix(c.Config, "}") + rest + "}"
				Expect(b.OK(command, c).Stderr).To(ContainSubstring("leases marked for release by the daemon: 1"))
				Expect(b.files()).To(HaveLen(2), "the lease and its mark")
				b.server.Await(GinkgoTB(), requested)
				Expect(b.server.Received()).To(BeEmpty())
				Expect(os.Symlink(b.container.Path(), path)).To(Succeed())
				b.runDaemon()
				b.server.Await(GinkgoTB(), released)
				Eventually(b.files).Should(BeEmpty())
			},
			Entry("DEL", "DEL", ""),
			Entry("GC", "GC", `,"cni.dev/valid-attachments":[]`),
		)

		It("the plugin marks a lease if a daemon that does not answer uses the directory", func() {
			kill := b.startDaemon()
			c := b.call("")
			b.address(c)
			Expect(os.Remove(b.socket)).To(Succeed())
			Expect(b.OK("DEL", c).Stderr).To(ContainSubstring("a DHCP daemon that does not answer keeps its leases in"))
			Expect(b.files()).To(HaveLen(2), "the lease and its mark")
			_ = kill(syscall.SIGTERM)
			b.startDaemon()
			b.server.Await(GinkgoTB(), released)
			Eventually(b.files).Should(BeEmpty())
		})
	})

	It("STATUS succeeds with a daemon, and fails with an invalid configuration", func() {
		b.runDaemon()
		b.OK("STATUS", b.call(""))
		b.Fails("STATUS", b.call(`,"timeout":-1`), types.CodeNotAvailable, "timeout -1")
	})

	Describe("on the interface", func() {
		// addConfigured runs an ADD for a lease that the daemon renews after two seconds, and configures
		// the interface as an interface plugin does.
		addConfigured := func() {
			short := lease
			short.Duration, short.Renew, short.Rebind = 6*time.Second, 2*time.Second, 4*time.Second
			b.server.Lease(short)
			b.address(b.call(`,"priority":9`))
			b.server.Await(GinkgoTB(), requested)
			b.container.Batch(GinkgoTB(), "addr add 10.50.0.5/24 dev eth0", "route add default via 10.50.0.1 metric 9")
		}
		addresses := func() string { return b.container.MustLine(GinkgoTB(), "ip -4 -br addr show eth0") }

		It("restores a lost address and its routes before it renews the lease", func() {
			b.runDaemon()
			addConfigured()
			b.container.MustLine(GinkgoTB(), "ip addr flush dev eth0")
			Expect(b.server.Await(GinkgoTB(), requested).Source.Addr().String()).To(Equal("10.50.0.5"))
			Expect(addresses()).To(ContainSubstring("10.50.0.5/24"))
			Expect(b.container.MustLine(GinkgoTB(), "ip route show default")).To(MatchRegexp(`^default via 10.50.0.1 dev eth0 metric 9\s*$`))
		})

		It("replaces the address and the routes if the server assigns another address", func() {
			b.runDaemon()
			addConfigured()
			other := lease
			other.Address = "10.50.0.6/24"
			other.Options = map[uint8][]byte{3: {10, 50, 0, 2}}
			b.server.Lease(other)
			Eventually(addresses).Should(And(ContainSubstring("10.50.0.6/24"), Not(ContainSubstring("10.50.0.5/24"))))
			Eventually(func() string { return b.container.MustLine(GinkgoTB(), "ip route show default") }).Should(MatchRegexp(`^default via 10.50.0.2 dev eth0 metric 9\s*$`))
		})

		It("removes the address if the server rejects it or the lease expires, and requests another", func() {
			b.runDaemon()
			addConfigured()
			b.server.Always(nstest.DHCPNAK)
			Eventually(addresses).ShouldNot(ContainSubstring("10.50.0.5"))
			b.Fails("CHECK", b.call(""), types.CodeChanged, "has no lease")
			b.server.Always(nil)
			Eventually(addresses).Should(ContainSubstring("10.50.0.5"))
			b.server.Always(nstest.DHCPSilence)
			Eventually(addresses).ShouldNot(ContainSubstring("10.50.0.5"))
			Expect(b.container.MustLine(GinkgoTB(), "ip route show default")).To(BeEmpty())
		})

		It("drops the lease of a namespace that no longer exists", func() {
			b.runDaemon()
			addConfigured()
			b.container.Remove(GinkgoTB())
			Eventually(b.files).Should(BeEmpty())
			c := b.call("")
			b.OK("DEL", c)
			b.Fails("ADD", c, types.CodeNamespace, "container namespace")
		})
	})

	Describe("the executable", func() {
		It("uses systemd's socket, and does not delete it", func() {
			bin := nstest.Build(GinkgoTB(), "dhcp")
			l, err := listenAt(b.socket)
			Expect(err).NotTo(HaveOccurred())
			defer func() { _ = l.Close() }()
			pid := filepath.Join(GinkgoTB().TempDir(), "pid")
			cmd := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" daemon -pidfile "$1"`, filepath.Join(bin, "dhcp"), pid)
			cmd.Stderr, cmd.ExtraFiles = GinkgoWriter, []*os.File{l}
			end := b.start(cmd)
			Expect(pid).To(BeAnExistingFile())
			b.address(b.call(""))
			Expect(b.files()).To(HaveLen(1))
			Expect(end(syscall.SIGINT)).To(Succeed())
			Expect(b.socket).To(BeAnExistingFile())
			Expect(pid).NotTo(BeAnExistingFile())
		})

		It("prints its flags, and rejects invalid arguments", func() {
			bin := filepath.Join(nstest.Build(GinkgoTB(), "dhcp"), "dhcp")
			out, err := exec.Command(bin, "daemon", "-h").CombinedOutput()
			Expect(err).NotTo(HaveOccurred())
			Expect(string(out)).To(And(ContainSubstring("-hostprefix"), ContainSubstring("-resendtimeout")))
			out, err = exec.Command(bin, "daemon", "-pidfile", "x").CombinedOutput()
			Expect(err).To(HaveOccurred())
			Expect(string(out)).To(ContainSubstring(`dhcp daemon: -pidfile "x" is not an absolute path`))
			out, err = exec.Command(bin).CombinedOutput()
			Expect(err).NotTo(HaveOccurred())
			Expect(string(out)).To(HavePrefix("CNI dhcp plugin "))
		})
	})
})

// toRequests returns a behaviour that applies only to REQUESTs, and answers all other messages.
func toRequests(behaviour nstest.DHCPBehaviour) nstest.DHCPBehaviour {
	return func(m nstest.DHCPMessage, answer *dhcpv4.DHCPv4) [][]byte {
		if m.MessageType() == requested {
			return behaviour(m, answer)
		}
		return [][]byte{answer.ToBytes()}
	}
}

// listenAt returns the file of a socket that listens at path.
func listenAt(path string) (*os.File, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err == nil {
		err = syscall.Bind(fd, &syscall.SockaddrUnix{Name: path})
	}
	if err == nil {
		err = syscall.Listen(fd, 8)
	}
	return os.NewFile(uintptr(fd), path), err
}
