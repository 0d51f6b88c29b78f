package nl

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestListeners(t *testing.T) {
	name, err := os.ReadFile("/proc/self/comm")
	nstest.Must(t, err)
	site := nstest.NewSite(t)
	h := site.Host.Open(t, nil)
	for _, s := range [][2]string{{"tcp4", "127.0.0.1:80"}, {"tcp", "[::]:81"}, {"tcp6", "[::]:82"}, {"tcp6", "[" + nstest.HostV6 + "]:83"}} {
		var l net.Listener
		if err := site.Host.Do(func() (err error) {
			l, err = net.Listen(s[0], s[1])
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}
	nstest.ServeTCP(t, site.Host, nstest.HostV4+":84")
	nstest.ServeUDP(t, site.Host, "0.0.0.0:53")
	for _, client := range []string{"udp", "tcp"} {
		server := nstest.ServeTCP(t, site.Outside, nstest.OutsideV4+":0").String()
		var c net.Conn
		if err := site.Host.Do(func() (err error) {
			c, err = net.Dial(client, server)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}

	for proto, want := range map[uint8][]string{
		unix.IPPROTO_TCP: {"127.0.0.1:80", "[::]:81 4", "[::]:82", "[" + nstest.HostV6 + "]:83", nstest.HostV4 + ":84"},
		unix.IPPROTO_UDP: {"0.0.0.0:53"},
	} {
		listeners, err := Listeners(h, proto)
		nstest.Must(t, err)
		var got []string
		for _, l := range listeners {
			text := l.Local.String()
			if l.DualStack {
				text += " 4"
			}
			got = append(got, text)
			if p := l.Process(h); p.PID != os.Getpid() || p.Name+"\n" != string(name) {
				t.Errorf("process of %s: got %s", l.Local, p)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("protocol %d: want %v, got %v", proto, want, got)
		}
	}
	if _, err := Listeners(h, unix.IPPROTO_ICMP); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("want an error that matches errors.ErrUnsupported, got %v", err)
	}
}

// TestListenerWithoutProcess passes a socket through another socket, so that no process has a descriptor of it.
func TestListenerWithoutProcess(t *testing.T) {
	host := nstest.New(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	nstest.Must(t, err)
	defer func() { _, _ = unix.Close(pair[0]), unix.Close(pair[1]) }()
	if err := host.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Port: 80}), unix.Listen(fd, 1),
				unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(fd), nil, 0), unix.Close(fd))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	h := host.Open(t, nil)
	listeners, err := Listeners(h, unix.IPPROTO_TCP)
	if err != nil || len(listeners) != 1 {
		t.Fatalf("want one listener, got %v, %v", listeners, err)
	}
	if got := listeners[0].Process(h).String(); got != "an unknown process" {
		t.Errorf("want an unknown process, got %s", got)
	}
}

func TestListenerAccepts(t *testing.T) {
	for _, tc := range []struct {
		local     string
		dualStack bool
		addr      string
		want      bool
	}{
		{"0.0.0.0:80", false, "192.0.2.1", true}, {"0.0.0.0:80", false, "0.0.0.0", true}, {"0.0.0.0:80", false, "::", false},
		{"192.0.2.1:80", false, "192.0.2.1", true}, {"192.0.2.1:80", false, "192.0.2.2", false}, {"192.0.2.1:80", false, "0.0.0.0", true},
		{"[::]:80", true, "192.0.2.1", true}, {"[::]:80", false, "192.0.2.1", false}, {"[::]:80", true, "::1", true},
		{"[2001:db8::1]:80", false, "::", true}, {"[2001:db8::1]:80", false, "2001:db8::2", false},
	} {
		l := Listener{Local: netip.MustParseAddrPort(tc.local), DualStack: tc.dualStack}
		if got := l.Accepts(addr(tc.addr)); got != tc.want {
			t.Errorf("%s, both families %t, address %s: want %t, got %t", tc.local, tc.dualStack, tc.addr, tc.want, got)
		}
	}
}
