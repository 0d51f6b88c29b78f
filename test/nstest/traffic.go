package nstest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// patience bounds every wait for something that has to come. It ends what hangs; a
	// slow machine does not reach it.
	patience = time.Minute
	// silence is how long Dial and DialUDP wait for the other side. A test that expects
	// no answer waits as long.
	silence = 5 * time.Second
)

// ServeTCP answers each connection to addr ("10.0.0.2:80"; port 0: a free one) in
// the namespace with "peer=IP local=IP", as seen there, until the end of the test.
// It gives the address it serves.
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
			_ = c.SetDeadline(time.Now().Add(patience))
			_, _ = io.WriteString(c, seen(c.RemoteAddr(), c.LocalAddr()))
			_ = c.Close()
		}
	})
	tb.Cleanup(func() { _ = l.Close(); serving.Wait() })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// ServeUDP answers each datagram to addr as ServeTCP answers connections. addr has
// to be a single address for the local one to be told.
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
			if err == nil { // else a peer that is gone (ICMP): not the next one's trouble
				_, _ = c.WriteTo([]byte(seen(peer, c.LocalAddr())), peer)
			}
		}
	})
	tb.Cleanup(func() { _ = c.Close(); serving.Wait() })
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func seen(peer, local net.Addr) string {
	return fmt.Sprintf("peer=%s local=%s", host(peer), host(local))
}

func host(a net.Addr) string {
	return netip.MustParseAddrPort(a.String()).Addr().Unmap().WithZone("").String()
}

// family is network with the family of addr: a v4 server is not to be a mapped v6
// one.
func family(network, addr string) string {
	if strings.HasPrefix(addr, "[") {
		return network + "6"
	}
	return network + "4"
}

// Dial connects from the namespace to a ServeTCP and gives its answer. It tries
// once: what a plugin set up works at once or not.
func Dial(n *NS, addr string) (reply string, err error) { return ask(n, "tcp", addr) }

// DialUDP sends one datagram to a ServeUDP and gives its answer.
func DialUDP(n *NS, addr string) (reply string, err error) { return ask(n, "udp", addr) }

func ask(n *NS, network, addr string) (string, error) {
	var c net.Conn
	err := n.Do(func() (err error) {
		c, err = net.DialTimeout(family(network, addr), addr, silence)
		return err
	})
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(silence))
	if network == "udp" {
		if _, err := c.Write([]byte("?")); err != nil {
			return "", err
		}
	}
	buf := make([]byte, 256)
	read, err := c.Read(buf)
	return string(buf[:read]), err
}

// MustDial is Dial for what has to work; peer is the address that the server has to
// have seen, empty: any.
func MustDial(tb TB, n *NS, addr, peer string) {
	tb.Helper()
	reply, err := Dial(n, addr)
	if err != nil {
		tb.Fatalf("dial %s from %s: %v", addr, n.name, err)
	}
	if peer != "" && !strings.HasPrefix(reply, "peer="+peer+" ") {
		tb.Fatalf("dial %s from %s: the server saw %q, want peer %s", addr, n.name, reply, peer)
	}
}

// A Site is a node with an outside host on its uplink. The outside host has no route
// to the node's pods: only what is masqueraded gets an answer.
type Site struct {
	Node    *NS
	Outside *NS
}

// Addresses of a Site: documentation and benchmark ranges only.
const (
	NodeV4    = "198.18.0.1"
	NodeV6    = "2001:db8:18::1"
	OutsideV4 = "198.18.0.2"
	OutsideV6 = "2001:db8:18::2"
	Uplink    = "uplink0" // the node's interface
)

// NewSite makes a node with an uplink and a default route, and the host outside.
func NewSite(tb TB) Site {
	tb.Helper()
	s := Site{Node: NewNode(tb), Outside: NewNode(tb).Named("outside")}
	Join(tb, End{s.Node, Uplink, []string{NodeV4 + "/24", NodeV6 + "/64"}},
		End{s.Outside, Uplink, []string{OutsideV4 + "/24", OutsideV6 + "/64"}})
	s.Node.Batch(tb, "route add default via "+OutsideV4, "route add default via "+OutsideV6)
	return s
}

// An End is one end of a cable between namespaces.
type End struct {
	In    *NS
	Name  string
	Addrs []string // prefixes
}

// Join connects two namespaces by a veth pair, both ends up and addressed; the
// addresses are usable when it returns, the link-local ones too.
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
	a.settle(tb)
	b.settle(tb)
}

// settle waits for the kernel's worker that makes IPv6 addresses known to its own
// routing, some time after they are there, without duplicate detection too
// (addrconf_dad_work).
func (e End) settle(tb TB) {
	tb.Helper()
	wanted := []string{"local fe80:"}
	for _, addr := range e.Addrs {
		if ip, _, _ := strings.Cut(addr, "/"); strings.Contains(ip, ":") {
			wanted = append(wanted, "local "+ip+" ")
		}
	}
	deadline := time.Now().Add(patience)
	for len(wanted) > 0 {
		routes := e.In.Must(tb, "ip", "-6", "route", "show", "table", "local", "dev", e.Name)
		wanted = slices.DeleteFunc(wanted, func(w string) bool { return strings.Contains(routes, w) })
		if time.Now().After(deadline) {
			tb.Fatalf("%s in %s never had %q", e.Name, e.In.name, wanted)
		}
	}
}
