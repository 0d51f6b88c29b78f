package nstest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// waitLimit is the time limit for an event that must happen. It ends tests that hang, and is long
	// enough for slow machines.
	waitLimit = time.Minute
	// answerLimit is how long Dial and DialUDP wait for an answer. A test that expects no answer calls
	// MustNotAnswer, which may wait for a shorter time.
	answerLimit = 5 * time.Second
)

// ServeTCP serves TCP at addr ("10.0.0.2:80") in the namespace until the end of the test, and returns
// the address. Port 0 selects a free port. To each client, the server writes "peer=IP local=IP" with
// the addresses of the connection on its side.
func ServeTCP(tb TB, n *NS, addr string) netip.AddrPort {
	tb.Helper()
	var l net.Listener
	err := n.Do(func() (err error) {
		l, err = net.Listen(family("tcp", addr), addr)
		return err
	})
	if err != nil {
		tb.Fatalf("serve tcp %s: %v", addr, err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(waitLimit))
			_, _ = io.WriteString(c, answer(c.RemoteAddr(), c.LocalAddr()))
			_ = c.Close()
		}
	})
	tb.Cleanup(func() { _ = l.Close(); serving.Wait() })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// ServeUDP answers each datagram to addr with the text that ServeTCP writes. The local address in the
// text is correct only if addr is not unspecified.
func ServeUDP(tb TB, n *NS, addr string) netip.AddrPort {
	tb.Helper()
	var c net.PacketConn
	err := n.Do(func() (err error) {
		c, err = net.ListenPacket(family("udp", addr), addr)
		return err
	})
	if err != nil {
		tb.Fatalf("serve udp %s: %v", addr, err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		buf := make([]byte, 64)
		for {
			_, peer, err := c.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil { // an error is an ICMP message about an earlier peer
				_, _ = c.WriteTo([]byte(answer(peer, c.LocalAddr())), peer)
			}
		}
	})
	tb.Cleanup(func() { _ = c.Close(); serving.Wait() })
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// answer returns the text that servers send.
func answer(peer, local net.Addr) string {
	return fmt.Sprintf("peer=%s local=%s", host(peer), host(local))
}

// host returns the IP address of a, without the port.
func host(a net.Addr) string {
	return netip.MustParseAddrPort(a.String()).Addr().Unmap().WithZone("").String()
}

// family returns the network with the IP version of addr, for example "tcp4", so that a server for IPv4
// does not listen on mapped IPv6 addresses.
func family(network, addr string) string {
	if strings.HasPrefix(addr, "[") {
		return network + "6"
	}
	return network + "4"
}

// Dial connects from the namespace to the server of ServeTCP and returns its answer. It tries once,
// because what a plugin sets up must work as soon as the plugin has ended.
func Dial(n *NS, addr string) (reply string, err error) { return exchange(n, "tcp", addr, answerLimit) }

// DialUDP sends one datagram from the namespace to the server of ServeUDP and returns its answer.
func DialUDP(n *NS, addr string) (reply string, err error) {
	return exchange(n, "udp", addr, answerLimit)
}

func exchange(n *NS, network, addr string, limit time.Duration) (string, error) {
	var c net.Conn
	err := n.Do(func() (err error) {
		c, err = net.DialTimeout(family(network, addr), addr, limit)
		return err
	})
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(limit))
	if network == "udp" {
		if _, err := c.Write([]byte("?")); err != nil {
			return "", err
		}
	}
	buf := make([]byte, 256)
	read, err := c.Read(buf)
	return string(buf[:read]), err
}

// MustNotAnswer fails the test if Dial gets an answer. It waits for five seconds, or for one second
// with -short, because an answer arrives within milliseconds if the packet passes.
func MustNotAnswer(tb TB, n *NS, addr string) {
	tb.Helper()
	if reply, err := exchange(n, "tcp", addr, time.Duration(FullOrShort(5, 1))*time.Second); err == nil {
		tb.Fatalf("%s: want no answer in %s, got %s", addr, n.name, reply)
	}
}

// MustDial connects as Dial does, and fails the test if there is no answer, or if the client address
// that the server saw differs from peer. An empty peer matches every address.
func MustDial(tb TB, n *NS, addr, peer string) {
	tb.Helper()
	reply, err := Dial(n, addr)
	if err != nil {
		tb.Fatalf("dial %s from %s: %v", addr, n.name, err)
	}
	if peer != "" && !strings.HasPrefix(reply, "peer="+peer+" ") {
		tb.Fatalf("dial %s from %s: want peer %s, got %q from the server", addr, n.name, peer, reply)
	}
}

// A Site is a host and an outside host that is connected to its uplink. The outside host can answer
// containers of the host only if their packets are masqueraded, because it has no route to them.
type Site struct {
	Host    *NS
	Outside *NS
}

// The addresses of a Site are from the ranges that RFCs reserve for documentation and benchmarks.
const (
	HostV4    = "198.18.0.1"
	HostV6    = "2001:db8:18::1"
	OutsideV4 = "198.18.0.2"
	OutsideV6 = "2001:db8:18::2"
	Uplink    = "uplink0" // the name of the host's interface
)

// NewSite creates a Site. The default route of the host is via the outside host. The uplink has the
// alternative name eth0, so that the usual name of a container's interface exists on the host as well.
func NewSite(tb TB) Site {
	tb.Helper()
	s := Site{Host: NewHost(tb), Outside: NewHost(tb).Named("outside")}
	Join(tb, End{s.Host, Uplink, []string{HostV4 + "/24", HostV6 + "/64"}},
		End{s.Outside, Uplink, []string{OutsideV4 + "/24", OutsideV6 + "/64"}})
	s.Host.Batch(tb, "route add default via "+OutsideV4, "route add default via "+OutsideV6, "link property add dev "+Uplink+" altname eth0")
	return s
}

// An End is one end of a veth pair, or another interface.
type End struct {
	In    *NS
	Name  string
	Addrs []string // addresses with prefix lengths
}

// Join connects two namespaces by a veth pair. Both ends are up. All addresses, including link-local
// addresses, are usable when Join returns.
func Join(tb TB, a, b End) {
	tb.Helper()
	a.In.Must(tb, "ip", "link", "add", a.Name, "type", "veth", "peer", "name", b.Name, "netns", b.In.Path())
	for _, e := range []End{a, b} {
		e.In.SetSysctl(tb, "net/ipv6/conf/"+e.Name+"/accept_ra", "0")
		e.In.SetSysctl(tb, "net/ipv6/conf/"+e.Name+"/accept_dad", "0")
		lines := []string{"link set " + e.Name + " up"}
		for _, addr := range e.Addrs {
			lines = append(lines, "addr add "+addr+" dev "+e.Name)
		}
		e.In.Batch(tb, lines...)
	}
	a.AwaitAddresses(tb)
	b.AwaitAddresses(tb)
}

// AwaitAddresses waits until the local routes of the IPv6 addresses and of the link-local address exist. A kernel worker
// adds them some time after the addresses, even without duplicate address detection (addrconf_dad_work).
func (e End) AwaitAddresses(tb TB) {
	tb.Helper()
	wanted := []string{"local fe80:"}
	for _, addr := range e.Addrs {
		if ip, _, _ := strings.Cut(addr, "/"); strings.Contains(ip, ":") {
			wanted = append(wanted, "local "+ip+" ")
		}
	}
	deadline := time.Now().Add(waitLimit)
	for len(wanted) > 0 {
		routes := e.In.Must(tb, "ip", "-6", "route", "show", "table", "local", "dev", e.Name)
		wanted = slices.DeleteFunc(wanted, func(w string) bool { return strings.Contains(routes, w) })
		if time.Now().After(deadline) {
			tb.Fatalf("%s in %s: want the routes %q, which are missing", e.Name, e.In.name, wanted)
		}
	}
}

// SetBridgeNetfilter sets whether netfilter sees the frames that a bridge forwards between its ports.
// It returns an error if the kernel lacks br_netfilter.
func (n *NS) SetBridgeNetfilter(tb TB, value string) error {
	tb.Helper()
	for _, key := range []string{"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"} {
		if _, err := os.Stat("/proc/sys/" + key); err != nil {
			return err
		}
		n.SetSysctl(tb, key, value)
	}
	return nil
}

// ElementLines returns the lines of a ruleset, in the form that nft prints, that contain plumb's
// elements.
func ElementLines(ruleset string) string {
	var lines []string
	for line := range strings.Lines(ruleset) {
		if strings.Contains(line, `comment "`) && !strings.Contains(line, "plumb layout") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, "\n")
}
