package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// listen binds a socket in the namespace. network is as for net.Listen.
func listen(n *nstest.NS, network, addr string) (socket io.Closer) {
	GinkgoHelper()
	Expect(n.Do(func() (err error) {
		if strings.HasPrefix(network, "udp") {
			socket, err = net.ListenPacket(network, addr)
		} else {
			socket, err = net.Listen(network, addr)
		}
		return err
	})).To(Succeed())
	return socket
}

// self names this process, which holds the sockets of the tests.
func self() string {
	GinkgoHelper()
	name := nstest.ReadFile(GinkgoTB(), "/proc/self/comm")
	return fmt.Sprintf("%s (PID %d) listens on ", strings.TrimSpace(name), os.Getpid())
}

// The specs change only the rules and the sysctl that reset resets, so that all can share a host.
var _ = Describe("onConflict", Ordered, ContinueOnFailure, func() {
	var b *testbed
	BeforeAll(func() { b = newTestbed() })
	BeforeEach(func() { b.reset() })
	keys := func(backend, onConflict string) string {
		return withBackend(backend) + fmt.Sprintf(`"onConflict":%q,`, onConflict)
	}
	// peer returns a call for the second container, in network net2.
	peer := func(id, keys string, mappings ...string) nstest.Call {
		return b.Call(id, b.containers[1], confFor(keys+`"name":"net2",`, []string{peer4 + "/24", peer6 + "/64"}, mappings...))
	}

	DescribeTable("fail rejects a host port of another container, and changes nothing", func(holderBackend, backend, owner string) {
		b.serve()
		holder := b.call("one", conf(withBackend(holderBackend), all[0], all[1]))
		b.OK("ADD", holder)
		before := b.sorted()
		b.Fails("ADD", peer("two", keys(backend, failOnConflict), all[0], portMapping(9000, 80, overTCP)), types.CodeConfig,
			"host port 8080/tcp of IP version 4: "+owner, "host port 8080/tcp of IP version 6: "+owner)
		Expect(b.sorted()).To(Equal(before))
		expectAnswer(nstest.Dial, b.Outside, nstest.HostV4+":8080", nstest.OutsideV4)
		expectAnswer(nstest.Dial, b.Outside, "["+nstest.HostV6+"]:8080", nstest.OutsideV6)

		By("accepting the same attachment again, the same container in another network, and a free port")
		b.OK("DEL", holder)
		holder.Config = conf(keys(backend, failOnConflict), all[0])
		b.OK("ADD", holder)
		b.OK("ADD", holder)
		second := peer("one", keys(backend, failOnConflict), all[0])
		second.IfName = "eth1"
		second.Config = strings.ReplaceAll(second.Config, `"interface":1`, `"interface":2`)
		Expect(b.OK("ADD", second).Stderr).To(BeEmpty())
		b.OK("CHECK", holder)
		b.OK("ADD", peer("two", keys(backend, failOnConflict), portMapping(9000, 80, overTCP)))
	},
		Entry(nil, backendNFTables, backendNFTables, "net1/one/eth0 holds it"),
		Entry(nil, backendIPTables, backendIPTables, "net1/one holds it in iptables rules"),
		Entry(nil, backendNFTables, backendIPTables, "net1/one/eth0 holds it"),
		Entry(nil, backendIPTables, backendNFTables, "net1/one holds it in iptables rules"),
	)

	It("fail compares the addresses of the host", func() {
		on := func(hostIP string) string { return portMapping(8080, 80, overTCP+`,"hostIP":"`+hostIP+`"`) }
		for _, addrs := range []struct {
			held, wanted string
			conflict     bool
		}{
			{"", "127.0.0.1", true},
			{"127.0.0.1", "", true},
			{nstest.HostV6, "::", true},
			{nstest.HostV4, nstest.HostV4, true},
			{nstest.HostV4, "127.0.0.1", false},
			{"0.0.0.0", "::", false},
			{nstest.HostV6, nstest.HostV4, false},
		} {
			for _, backend := range []string{backendNFTables, backendIPTables} {
				By(fmt.Sprint(backend, addrs))
				holder, other := b.call("one", conf(withBackend(backend), on(addrs.held))), peer("two", keys(backend, failOnConflict), on(addrs.wanted))
				b.OK("ADD", holder)
				if addrs.conflict {
					b.Fails("ADD", other, types.CodeConfig, "net1/one")
				} else {
					b.OK("ADD", other)
				}
				b.OK("DEL", holder)
				b.OK("DEL", other)
			}
		}
	})

	It("fail finds processes that listen on the host port", func() {
		for _, process := range []struct {
			network, addr, mapping string
			conflict               bool
		}{
			{"tcp4", "0.0.0.0:8080", overTCP, true},
			{"tcp4", "127.0.0.1:8080", overTCP, true},
			{"tcp4", "127.0.0.1:8080", overTCP + `,"hostIP":"` + nstest.HostV4 + `"`, false},
			{"tcp4", "0.0.0.0:8080", overTCP + `,"hostIP":"` + nstest.HostV4 + `"`, true},
			{"tcp4", "0.0.0.0:8081", overTCP, false},
			{"tcp4", "0.0.0.0:8080", overUDP, false},
			{"tcp4", "0.0.0.0:8080", overTCP + `,"hostIP":"::"`, false},
			{"tcp", "[::]:8080", overTCP + `,"hostIP":"` + nstest.HostV4 + `"`, true}, // a socket of both families
			{"tcp6", "[::]:8080", overTCP + `,"hostIP":"` + nstest.HostV4 + `"`, false},
			{"tcp6", "[::]:8080", overTCP, true},
			{"tcp6", "[" + nstest.HostV6 + "]:8080", overTCP + `,"hostIP":"` + nstest.HostV6 + `"`, true},
			{"tcp6", "[" + nstest.HostV6 + "]:8080", overTCP + `,"hostIP":"fd00:9::1"`, false},
			{"udp4", nstest.HostV4 + ":8080", overUDP, true},
			{"udp4", nstest.HostV4 + ":8080", overTCP, false},
			{"udp", "[::]:8080", overUDP + `,"hostIP":"127.0.0.1"`, true},
		} {
			socket := listen(b.Host, process.network, process.addr)
			before := b.sorted()
			for _, backend := range []string{backendNFTables, backendIPTables} {
				By(fmt.Sprint(backend, process))
				c := b.call("one", conf(keys(backend, failOnConflict), portMapping(8080, 80, process.mapping)))
				if process.conflict {
					b.Fails("ADD", c, types.CodeConfig, "host port ", self()+process.addr)
					Expect(b.sorted()).To(Equal(before))
				} else {
					Expect(b.OK("ADD", c).Stderr).To(BeEmpty())
					b.OK("DEL", c)
				}
			}
			Expect(socket.Close()).To(Succeed())
		}
	})

	It("fail ignores a process on ::1 with nftables, which does not forward its packets, and UDP clients", func() {
		nstest.ServeTCP(GinkgoTB(), b.Host, "[::1]:8080")
		client := dialUDP(b.Host, nstest.OutsideV4+":53").LocalAddr().(*net.UDPAddr)
		c := b.call("one", conf(keys(backendNFTables, failOnConflict), all[0], portMapping(client.Port, 80, overUDP)))
		b.OK("ADD", c)
		nstest.MustDial(GinkgoTB(), b.Host, "[::1]:8080", "::1")
		b.OK("DEL", c)
		b.Fails("ADD", b.call("one", conf(keys(backendIPTables, failOnConflict), all[0])), types.CodeConfig, self()+"[::1]:8080")
	})

	It("fail leaves a process its packets, and replace warns of the process", func() {
		nstest.ServeTCP(GinkgoTB(), b.Host, "0.0.0.0:8080")
		b.serve()
		b.Fails("ADD", b.call("one", conf(keys(backendNFTables, failOnConflict), all[0])), types.CodeConfig)
		nstest.MustDial(GinkgoTB(), b.Outside, nstest.HostV4+":8080", nstest.OutsideV4)
		for _, backend := range []string{backendNFTables, backendIPTables} {
			c := b.call("one", conf(keys(backend, replaceOnConflict), all[0]))
			Expect(b.OK("ADD", c).Stderr).To(Equal("portmap: warning: host port 8080/tcp of IP version 4: " + self() +
				"0.0.0.0:8080, and receives no packets to the host port while the container exists\n"))
			expectAnswer(nstest.Dial, b.Outside, nstest.HostV4+":8080", nstest.OutsideV4)
			b.OK("DEL", c)
		}

		By("looking for no process without the key")
		c, steps := b.call("one", conf("", all[0])).RecordSteps()
		Expect(b.OK("ADD", c).Stderr).To(BeEmpty())
		Expect(strings.Join(*steps, "\n")).NotTo(ContainSubstring("listener"))
	})

	It("fail rejects a host port that an element of another program holds", func() {
		b.OK("ADD", b.call("one", conf("", portMapping(9000, 80, overTCP))))
		b.Host.Must(GinkgoTB(), "nft", "add", "element", "inet", "plumb", "hostport4", "{ tcp . 8080 : 10.9.0.3 . 80 }")
		b.Fails("ADD", b.call("one", conf(keys(backendNFTables, failOnConflict), all[0])), types.CodeConfig, "an element of another program in table inet plumb holds it")
	})

	It("fail returns code 11 while the holder is being deleted", func() {
		holder, other := b.call("one", conf("", all[0])), peer("two", keys(backendNFTables, failOnConflict), all[0])
		b.OK("ADD", holder)
		b.Fails("DEL", holder.FailAt("nft", errors.New("injected")), types.CodeInternal, "injected")
		b.Fails("ADD", other, types.CodeTryAgain, "net1/one/eth0 still holds it, and its DEL has begun; ", "try again when the DEL has ended")
		b.OK("DEL", holder)
		b.OK("ADD", other)
	})

	DescribeTable("of two concurrent ADDs with fail, one succeeds", func(backend string, second string) {
		for range 10 {
			one := b.call("one", conf(keys(backend, failOnConflict), all[0]))
			two := peer("two", keys(backend, failOnConflict), portMapping(8080, 80, overTCP+second))
			replies := nstest.RunAll(b.Plugin, "ADD", []nstest.Call{one, two})
			winner, loser := one, two
			if replies[0].Exit != 0 {
				winner, loser = two, one
				replies[0], replies[1] = replies[1], replies[0]
			}
			replies[0].OK(GinkgoTB())
			replies[1].RequireFailure(GinkgoTB(), types.CodeConfig, "holds it")
			b.OK("CHECK", winner)
			b.OK("DEL", loser)
			b.OK("CHECK", winner)
			b.OK("DEL", winner)
			Expect(b.ruleset()).NotTo(ContainSubstring("chain setmark/"))
		}
	},
		Entry(nil, backendNFTables, ""),
		Entry("of overlapping addresses", backendNFTables, `,"hostIP":"`+nstest.HostV4+`"`),
		Entry(nil, backendIPTables, ""),
	)

	It("REPAIR with fail takes no packets from a container with overlapping addresses, and restores the rest", func() {
		specific := portMapping(8080, 80, overTCP+`,"hostIP":"`+nstest.HostV4+`"`)
		older := b.call("one", conf(keys(backendNFTables, failOnConflict), specific, portMapping(9080, 80, overTCP)))
		newer := peer("two", keys(backendNFTables, failOnConflict), all[0])
		b.OK("ADD", older)
		b.Host.Must(GinkgoTB(), "nft", "flush ruleset")
		DeferCleanup(listen(b.Host, "tcp4", "0.0.0.0:9080").Close) // it began when the mapping was lost, which REPAIR restores
		b.OK("ADD", newer)
		b.Fails("REPAIR", older, types.CodeChanged, "not restored: host port "+nstest.HostV4+":8080/tcp: net2/two/eth0 holds it")
		Expect(b.elements()).To(And(ContainSubstring("tcp . 9080"), Not(ContainSubstring(nstest.HostV4+" . tcp . 8080 comment"))))
		b.OK("CHECK", newer)
		b.OK("DEL", newer)
		b.OK("REPAIR", older)
	})
})
