package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("SCTP", Label(nstest.Kernel), func() {
	mapping := portMapping(8080, 80, `"protocol":"sctp"`)

	DescribeTable("reaches the container, and DEL deletes its connections", func(backend string) {
		fd, err := sctpSocket(unix.AF_INET)
		nstest.RequireFeature(GinkgoTB(), "SCTP", err)
		Expect(unix.Close(fd)).To(Succeed())
		b := newTestbed()
		serveSCTP(b.containers[0], addr4+":80")
		serveSCTP(b.containers[0], "["+addr6+"]:80")
		c := b.call("one", conf(withBackend(backend), mapping))
		b.OK("ADD", c)
		By("from outside, with the source address of that host")
		expectAnswer(dialSCTP, b.Outside, nstest.HostV4+":8080", nstest.OutsideV4)
		expectAnswer(dialSCTP, b.Outside, "["+nstest.HostV6+"]:8080", nstest.OutsideV6)
		By("from another container, and from the host")
		expectAnswer(dialSCTP, b.containers[1], nstest.HostV4+":8080", gateway4)
		expectAnswer(dialSCTP, b.containers[1], "["+gateway6+"]:8080", gateway6)
		expectAnswer(dialSCTP, b.Host, nstest.HostV4+":8080", "")
		expectAnswer(dialSCTP, b.Host, "127.0.0.1:8080", gateway4)
		By("but TCP to the same port does not")
		nstest.MustNotAnswer(GinkgoTB(), b.Outside, nstest.HostV4+":8080")

		udpFlows := func() string {
			GinkgoHelper()
			return b.Host.Must(GinkgoTB(), "conntrack", "-L", "-p", "sctp", "-f", "ipv4") +
				b.Host.Must(GinkgoTB(), "conntrack", "-L", "-p", "sctp", "-f", "ipv6")
		}
		Expect(udpFlows()).To(And(ContainSubstring("dst="+nstest.HostV4), ContainSubstring("dst="+nstest.HostV6), ContainSubstring("dport=8080")))
		b.OK("DEL", c)
		Expect(udpFlows()).NotTo(ContainSubstring("dport=8080"))
		_, err = dialSCTP(b.Outside, nstest.HostV4+":8080")
		Expect(err).To(HaveOccurred())
	}, backends())

	It("onConflict fail finds a server of the host", func() {
		fd, err := sctpSocket(unix.AF_INET)
		nstest.RequireFeature(GinkgoTB(), "SCTP", err)
		Expect(unix.Close(fd)).To(Succeed())
		b := newTestbed()
		serveSCTP(b.Host, "0.0.0.0:8080")
		b.Fails("ADD", b.call("one", conf(`"onConflict":"fail",`, mapping)), types.CodeConfig, "host port 8080/sctp of IP version 4: "+self()+"0.0.0.0:8080")
		b.OK("ADD", b.call("one", conf(`"onConflict":"fail",`, portMapping(8081, 80, `"protocol":"sctp"`))))
	})
})

// sctpSocket returns a one-to-one socket (RFC 6458, section 4), which works like a TCP socket.
func sctpSocket(family int) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return -1, err
	}
	limit := unix.Timeval{Sec: 30} // SCTP sends a lost INIT again only after 3 s (RTO.Initial, RFC 9260, section 16)
	for _, opt := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, opt, &limit); err != nil {
			return -1, err
		}
	}
	return fd, nil
}

// sctpAddr returns the family and the address for a socket call.
func sctpAddr(addr string) (family int, to unix.Sockaddr) {
	a := netip.MustParseAddrPort(addr)
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

// serveSCTP starts a server that answers like nstest.ServeTCP.
func serveSCTP(n *nstest.NS, addr string) {
	GinkgoHelper()
	family, at := sctpAddr(addr)
	var fd int
	Expect(n.Do(func() (err error) {
		if fd, err = sctpSocket(family); err != nil {
			return err
		}
		if err := unix.Bind(fd, at); err != nil {
			return err
		}
		return unix.Listen(fd, 8)
	})).To(Succeed())
	var serving sync.WaitGroup
	done := make(chan struct{})
	serving.Go(func() {
		for {
			c, peer, err := unix.Accept(fd) // returns after three seconds at the latest (SO_RCVTIMEO)
			select {
			case <-done:
				return
			default:
			}
			if err == nil {
				_, _ = unix.Write(c, fmt.Appendf(nil, "peer=%s local=%s", sctpHost(peer), sctpHost(at)))
				_ = unix.Close(c)
			}
		}
	})
	DeferCleanup(func() {
		close(done)
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
		serving.Wait()
		_ = unix.Close(fd)
	})
}

// sctpHost returns the IP address of a socket address.
func sctpHost(a unix.Sockaddr) string {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return net.IP(a.Addr[:]).String()
	case *unix.SockaddrInet6:
		return net.IP(a.Addr[:]).String()
	}
	return ""
}

// dialSCTP is a dialFunc. It tries again if the peer aborts the association. A multihomed client lists all its addresses in
// the INIT (RFC 9260, section 5.1.2), and NAT does not translate them. If the exchange takes longer than the first RTO, for
// example on a busy machine, the server sends a HEARTBEAT or its data to another of these addresses, where no association
// exists. The answer is an ABORT.
//
// Signals of the Go runtime interrupt calls on a socket with a timeout (signal(7)), so it also tries again after EINTR.
func dialSCTP(n *nstest.NS, addr string) (reply string, err error) {
	for range 10 {
		err = types.RetryEINTR(func() (err error) {
			reply, err = dialSCTPOnce(n, addr)
			return err
		})
		aborted := errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.ECONNABORTED) || err == nil && reply == ""
		if !aborted {
			break
		}
	}
	return reply, err
}

func dialSCTPOnce(n *nstest.NS, addr string) (string, error) {
	family, to := sctpAddr(addr)
	var fd int
	err := n.Do(func() (err error) {
		fd, err = sctpSocket(family)
		return err
	})
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Connect(fd, to); err != nil {
		return "", fmt.Errorf("connect to %s: %w", addr, err)
	}
	var buf [256]byte
	read, err := unix.Read(fd, buf[:])
	return strings.TrimSpace(string(buf[:max(read, 0)])), err
}
