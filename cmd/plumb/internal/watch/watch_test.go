package watch

import (
	"context"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/tables"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// start starts a Watcher on the host, whose attachments use the bridge cni0.
func start(t *testing.T, host *nstest.NS) <-chan []string {
	t.Helper()
	w := Watcher{
		OpenHost:   func() (*ns.Handle, error) { return ns.Open(host.Path(), nil) },
		UsesBridge: func(name string) bool { return name == "cni0" },
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	events, err := w.Start(ctx)
	nstest.Must(t, err)
	return events
}

// expect receives until all of what was reported, and returns everything that was reported.
func expect(t *testing.T, events <-chan []string, what ...string) []string {
	t.Helper()
	var reported []string
	for timeout := time.After(20 * time.Second); ; {
		select {
		case list := <-events:
			reported = append(reported, list...)
		case <-timeout:
			t.Fatalf("want %q, got only %q", what, reported)
		}
		if !slices.ContainsFunc(what, func(w string) bool { return !slices.Contains(reported, w) }) {
			return reported
		}
	}
}

func TestHost(t *testing.T) {
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent")
	host := nstest.NewHost(t)
	events := start(t, host)
	create := func() {
		h := host.Open(t, nil)
		c, err := nft.Open(h)
		if err == nil {
			err = c.Ensure(tables.Inet(tables.MasqueradeSets()...))
		}
		nstest.Must(t, err)
		host.Batch(t, "link add cni0 type bridge", "link set cni0 up", "addr add 10.1.2.1/24 dev cni0")
	}
	create()
	host.Batch(t, "link add docker0 type bridge", "link set docker0 up", "addr add 10.9.9.1/24 dev docker0", "link del docker0",
		"link add host0 type veth peer name host1", "link del host0")
	host.MustLine(t, "nft add table ip foreign")
	host.MustLine(t, "nft delete table ip foreign")

	host.Batch(t, "addr del 10.1.2.1/24 dev cni0")
	if reported := expect(t, events, "bridge cni0"); len(reported) != 1 {
		t.Errorf("want only the bridge and nothing of other programs, got %q", reported)
	}
	host.Batch(t, "link set cni0 down")
	expect(t, events, "bridge cni0")
	host.MustLine(t, "nft flush ruleset")
	host.Batch(t, "link del cni0")
	expect(t, events, "bridge cni0", "table inet plumb")
	create()
	host.MustLine(t, "nft delete table inet plumb")
	expect(t, events, "table inet plumb")
}

// TestServices checks that addresses of Services are reported only while host ports are in nftables.
func TestServices(t *testing.T) {
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent")
	host := nstest.NewHost(t)
	events := start(t, host)
	host.Batch(t, "link add kube-ipvs0 type bridge", "addr add 10.96.0.10/32 dev kube-ipvs0", "link add cni0 type bridge", "link del cni0")
	if reported := expect(t, events, "bridge cni0"); len(reported) != 1 {
		t.Errorf("want only the bridge, got %q", reported)
	}
	host.MustLine(t, "nft add table inet plumb")
	host.MustLine(t, "nft add chain inet plumb "+tables.HostPorts)
	host.Batch(t, "addr add 10.96.0.11/32 dev kube-ipvs0")
	expect(t, events, "addresses of kube-ipvs0")
	host.Batch(t, "addr del 10.96.0.11/32 dev kube-ipvs0")
	expect(t, events, "addresses of kube-ipvs0")
}

func TestFirewalld(t *testing.T) {
	host := nstest.NewHost(t)
	f := nstest.StartFirewalld(t, host)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", f.Address)
	events := start(t, host)
	f.Call(t, "reload")
	expect(t, events, "firewalld")
	_ = f.Bus.Signal(syscall.SIGKILL)
	<-f.Bus.Ended
	address := nstest.StartBus(t).Address
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
	expect(t, events, "lost notifications of D-Bus")
	bus, err := dbus.Connect(address)
	if err == nil {
		_, err = bus.RequestName(nstest.FirewalldName, 0) // as when firewalld starts
	}
	nstest.Must(t, err)
	expect(t, events, "firewalld")
	_ = bus.Close()
}

func TestLimiter(t *testing.T) {
	var l Limiter
	begin := time.Now()
	for _, c := range []struct {
		at                time.Duration // since begin
		changed           string        // names, separated by spaces
		repair, postponed string
	}{
		{0, "a", "a", ""},
		{20 * time.Second, "a b", "a b", ""},
		{40 * time.Second, "a", "a", ""},
		{59 * time.Second, "a b", "b", "a"},
		{3 * time.Minute, "a b", "b", ""}, // postponed until Forget
		{4 * time.Minute, "b", "b", ""},   // three repairs, but not within a minute
		{5 * time.Minute, "b", "b", ""},
	} {
		repair, postponed := l.Allow(strings.Fields(c.changed), begin.Add(c.at))
		if got := [2]string{strings.Join(repair, " "), strings.Join(postponed, " ")}; got != [2]string{c.repair, c.postponed} {
			t.Errorf("after %s: want %q and %q, got %q", c.at, c.repair, c.postponed, got)
		}
	}
	l.Forget()
	if repair, _ := l.Allow([]string{"a"}, begin.Add(6*time.Minute)); len(repair) != 1 {
		t.Error("a is still postponed after Forget")
	}
}
