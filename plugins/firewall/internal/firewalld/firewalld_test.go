package firewalld

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
	"golang.org/x/sys/unix"
)

var (
	v4 = netip.MustParsePrefix("10.9.0.2/32")
	v6 = netip.MustParsePrefix("fd00::2/128")
)

const (
	hour  = time.Hour // a timeout that no test reaches
	short = 50 * time.Millisecond
)

// start starts firewalld and sets the environment variable with the address of its bus.
func start(t *testing.T) (*nstest.Firewalld, *ns.Handle) {
	t.Helper()
	host := nstest.NewHost(t)
	f := nstest.StartFirewalld(t, host)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", f.Address)
	return f, handle(t, host.Path(), nil)
}

func handle(t *testing.T, path string, tr *trace.Tracer) *ns.Handle {
	t.Helper()
	h, err := ns.Open(path, tr)
	nstest.Must(t, err)
	t.Cleanup(func() { _ = h.Close() })
	return h
}

// dial opens a connection whose calls have the timeout limit.
func dial(t *testing.T, h *ns.Handle, limit time.Duration) *Conn {
	t.Helper()
	c, err := Open(h)
	nstest.Must(t, err)
	c.limit = limit
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestConflictNamesTheZone(t *testing.T) {
	f, h := start(t)
	f.Call(t, "zone.addSource", "internal", v4.String())
	c := dial(t, h, hour)
	added, err := c.AddSource("trusted", v4)
	expectConflict(t, added, err)
	if err := c.RemoveSource("trusted", v4); err != nil {
		t.Errorf("remove from a zone that lacks the source: %v", err)
	}
	if in, err := c.HasSource("internal", v4); !in || err != nil {
		t.Errorf("HasSource after that: got %t, %v, want true", in, err)
	}
	if want := "firewall-cmd --zone=internal --remove-source=10.9.0.2/32"; err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want advice with %q", err, want)
	}
	// Another process adds the source after AddSource has asked for its zone.
	for _, zone := range []string{"internal", "trusted"} {
		f.Call(t, "zone.removeSource", "", v4.String())
		h := handle(t, h.Path(), before("add source", func() { f.Call(t, "zone.addSource", zone, v4.String()) }))
		added, err := dial(t, h, hour).AddSource("trusted", v4)
		if zone == "internal" {
			expectConflict(t, added, err)
		} else if added || err != nil {
			t.Errorf("a source that another process added to the same zone: got %t, %v, want false", added, err)
		}
	}
}

func expectConflict(t *testing.T, added bool, err error) {
	t.Helper()
	if added || err == nil || !strings.Contains(err.Error(), `source 10.9.0.2/32 is in firewalld's zone "internal"`) {
		t.Errorf("got %t, %v, want a conflict with the zone internal", added, err)
	}
	expectCode(t, err, types.CodeConfig)
}

// before returns a tracer that calls f once, before the first step whose description contains the text step.
func before(step string, f func()) *trace.Tracer {
	done := false
	return &trace.Tracer{Before: func(s string) error {
		if !done && strings.Contains(s, step) {
			done = true
			f()
		}
		return nil
	}}
}

func TestInvalidZone(t *testing.T) {
	_, h := start(t)
	c := dial(t, h, hour)
	for _, zone := range []string{"nosuch", ""} {
		added, err := c.AddSource(zone, v4)
		if added {
			t.Errorf("zone %q: got added true, want false", zone)
		}
		expect(t, err, ErrInvalidZone)
		_, err = c.HasSource(zone, v4)
		expect(t, err, ErrInvalidZone)
	}
	if err := c.RemoveSource("nosuch", v4); err != nil {
		t.Errorf("remove from a zone that does not exist: %v", err)
	}
	if added, err := c.AddSource("trusted", v4); !added || err != nil {
		t.Fatal(added, err)
	}
	expect(t, c.RemoveSource("", v4), ErrInvalidZone) // firewalld would remove the source from any zone
	if in, err := c.HasSource("trusted", v4); !in || err != nil {
		t.Errorf("HasSource: got %t, %v, want true", in, err)
	}
}

func TestNotAuthorized(t *testing.T) {
	nstest.RequireRoot(t, "to become another user")
	f, h := start(t)
	t.Run("by firewalld", func(t *testing.T) {
		var c *Conn
		var err error
		asNobody(t, func() { c, err = Open(h) })
		nstest.Must(t, err)
		defer func() { _ = c.Close() }()
		_, err = c.AddSource("trusted", v4)
		expect(t, err, ErrNotAuthorized)
		expect(t, c.RemoveSource("trusted", v4), ErrNotAuthorized)
	})
	t.Run("by the bus", func(t *testing.T) {
		f.Deny(t, "zone.addSource")
		added, err := dial(t, h, hour).AddSource("trusted", v4)
		if added {
			t.Error("got added true, want false")
		}
		expect(t, err, ErrNotAuthorized)
	})
	t.Run("by lockdown", func(t *testing.T) {
		c := dial(t, h, hour)
		f.Call(t, "policies.enableLockdown")
		expect(t, c.RemoveSource("trusted", v6), ErrNotAuthorized)
	})
	t.Run("by the permissions of the socket", func(t *testing.T) {
		nstest.Must(t, os.Chmod(strings.TrimPrefix(strings.Split(f.Address, ",")[0], "unix:path="), 0o600))
		asNobody(t, func() {
			_, err := Open(h)
			expect(t, err, ErrNotAuthorized)
		})
	})
	t.Run("by authentication", func(t *testing.T) {
		address := serve(t, "REJECTED DBUS_COOKIE_SHA1\r\n")
		t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
		_, err := Open(h)
		expect(t, err, ErrNotAuthorized)
	})
}

// asNobody runs f as the user nobody, on a thread that ends afterwards. The bus authenticates the user of
// the thread that connects.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	done := make(chan syscall.Errno)
	go func() {
		runtime.LockOSThread()
		const nobody = 65534
		for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} { // for this thread only
			if _, _, errno := unix.RawSyscall(call, nobody, nobody, nobody); errno != 0 {
				done <- errno
				return
			}
		}
		f()
		done <- 0
	}()
	if errno := <-done; errno != 0 {
		t.Fatalf("become nobody: %v", errno)
	}
}

func TestNotRunning(t *testing.T) {
	h := handle(t, nstest.New(t).Path(), nil)
	bus := nstest.StartBus(t)
	for _, address := range []string{bus.Address, "unix:path=" + t.TempDir() + "/bus", "nonsense", ""} {
		t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
		_, err := Open(h)
		expect(t, err, ErrNotRunning)
	}
}

func TestFirewalldEndsDuringCall(t *testing.T) {
	f, h := start(t)
	asked := f.Await(t, "addSource", "trusted")
	h = handle(t, h.Path(), before("add source", func() { signal(t, f.Daemon, syscall.SIGSTOP) }))
	c := dial(t, h, hour)
	result := make(chan error)
	go func() {
		added, err := c.AddSource("trusted", v4)
		if !added {
			t.Error("added is false, but firewalld may have added the source")
		}
		result <- err
	}()
	asked()
	signal(t, f.Daemon, syscall.SIGKILL)
	expectCode(t, <-result, types.CodeTryAgain)
}

func TestFirewalldEndsBetweenCalls(t *testing.T) {
	f, h := start(t)
	gone := f.Await(t, "NameOwnerChanged", nstest.FirewalldName)
	c := dial(t, h, hour)
	signal(t, f.Daemon, syscall.SIGKILL)
	gone()
	for range 2 {
		added, err := c.AddSource("trusted", v4)
		if added {
			t.Error("got added true, want false")
		}
		expect(t, err, ErrNotRunning)
		f.Activate(t) // from now on, the bus can start firewalld
	}
}

func TestFirewalldHangs(t *testing.T) {
	f, h := start(t)
	nstest.LeakCheck(t)
	c := dial(t, h, hour)
	signal(t, f.Daemon, syscall.SIGSTOP)
	c.limit = short
	added, err := c.AddSource("trusted", v4)
	expectCode(t, err, types.CodeTryAgain)
	if added {
		t.Error("added is true, but firewalld was not asked to add the source")
	}
}

func TestLostAnswerCanBeUndone(t *testing.T) {
	f, h := start(t)
	c := dial(t, handle(t, h.Path(), nil), hour)
	var hanging *Conn
	hanging = dial(t, handle(t, h.Path(), before("add source", func() {
		signal(t, f.Daemon, syscall.SIGSTOP)
		hanging.limit = short
	})), hour)
	added, err := hanging.AddSource("trusted", v4)
	expectCode(t, err, types.CodeTryAgain)
	if !added || err != nil && !strings.Contains(err.Error(), "add source 10.9.0.2/32 to zone trusted") {
		t.Errorf("AddSource: got %t, %v, want true and the step", added, err)
	}
	signal(t, f.Daemon, syscall.SIGCONT)
	hanging.limit = hour
	if err := hanging.RemoveSource("trusted", v4); err != nil {
		t.Error(err)
	}
	if in, err := c.HasSource("trusted", v4); in || err != nil {
		t.Errorf("HasSource: got %t, %v, want false", in, err)
	}
}

func TestBusEnds(t *testing.T) {
	f, h := start(t)
	nstest.LeakCheck(t)
	c := dial(t, h, hour)
	signal(t, f.Daemon, syscall.SIGSTOP)
	result := make(chan error)
	go func() {
		_, err := c.HasSource("trusted", v4)
		result <- err
	}()
	signal(t, f.Bus, syscall.SIGKILL)
	expectCode(t, <-result, types.CodeTryAgain)
	<-f.Bus.Ended
	_, err := c.AddSource("trusted", v4)
	expectCode(t, err, types.CodeTryAgain)
	_, err = Open(h)
	expect(t, err, ErrNotRunning)
}

func TestBusHangs(t *testing.T) {
	f, h := start(t)
	nstest.LeakCheck(t)
	signal(t, f.Bus, syscall.SIGSTOP)
	_, err := open(h, short)
	expectCode(t, err, types.CodeTryAgain)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	signal(t, f.Bus, syscall.SIGCONT)
	dial(t, h, hour)
}

func TestOpenClosesTheConnectionIfItFails(t *testing.T) {
	_, h := start(t)
	nstest.LeakCheck(t) // checks while the bus runs, because the end of the bus would close the connection
	lost := errors.New("lost")
	_, err := Open(handle(t, h.Path(), &trace.Tracer{After: func(string) error { return lost }}))
	if !errors.Is(err, lost) {
		t.Error(err)
	}
}

// TestExplain tests errors that Debian's firewalld and bus do not return in the other tests.
func TestExplain(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       error
		code       uint
	}{
		{"org.fedoraproject.slip.dbus.service.PolKit.NotAuthorizedException.org.fedoraproject.FirewallD1.config", "", ErrNotAuthorized, types.CodeConfig},
		{"org.freedesktop.DBus.Error.ServiceUnknown", "The name is not activatable", ErrNotRunning, types.CodeConfig},
		{"org.freedesktop.DBus.Error.LimitsExceeded", "The maximum number of active connections has been reached", nil, types.CodeTryAgain},
		{"org.fedoraproject.FirewallD1.Exception", "PANIC_MODE", nil, types.CodeInternal},
	} {
		err := explain("add source", dbus.Error{Name: c.name, Body: []any{c.text}})
		if c.want != nil && !errors.Is(err, c.want) || types.AsError(err).Code != c.code || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: got %v, want %v with code %d", c.name, err, c.want, c.code)
		}
	}
}

// serve starts a server that answers the first line of each connection with text, and returns its address.
func serve(t *testing.T, text string) string {
	t.Helper()
	path := t.TempDir() + "/s"
	l, err := net.Listen("unix", path)
	nstest.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if _, err := bufio.NewReader(c).ReadString('\n'); err == nil {
				_, _ = c.Write([]byte(text))
			}
			t.Cleanup(func() { _ = c.Close() })
		}
	}()
	return "unix:path=" + path
}

func signal(t *testing.T, p nstest.Daemon, s os.Signal) {
	t.Helper()
	if err := p.Signal(s); err != nil {
		t.Error(err)
	}
}

// expect tests that err matches want, contains advice, and has types.CodeConfig.
func expect(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) || !strings.Contains(err.Error(), "configure another ") {
		t.Errorf("got %v, want %v with advice", err, want)
	}
	expectCode(t, err, types.CodeConfig)
}

func expectCode(t *testing.T, err error, code uint) {
	t.Helper()
	var coded *types.Error
	if !errors.As(err, &coded) || coded.Code != code {
		t.Errorf("got %v, want an error with code %d", err, code)
	}
}
