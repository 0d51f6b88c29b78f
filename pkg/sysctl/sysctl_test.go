package sysctl_test

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/sysctl"
	"github.com/plumb-cni/plumb/pkg/trace"
	"github.com/plumb-cni/plumb/test/nstest"
)

func open(t *testing.T) (*nstest.NS, *ns.Handle) {
	t.Helper()
	n := nstest.New(t)
	h, err := ns.Open(n.Path(), &trace.Tracer{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return n, h
}

const forward = "net/ipv4/ip_forward"

func TestSettingsBelongToTheNamespace(t *testing.T) {
	n, h := open(t)
	other, _ := open(t)
	if err := sysctl.Set(h, sysctl.Setting{Key: forward, Value: "1"}, sysctl.Setting{Key: sysctl.IPv4("lo", "arp_notify"), Value: "1"}); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{forward: "1", "net/ipv4/conf/lo/arp_notify": "1"} {
		if got := n.Sysctl(t, key); got != want {
			t.Errorf("%s is %q in the namespace, want %q", key, got, want)
		}
		if got, err := sysctl.Get(h, key); err != nil || got != want {
			t.Errorf("Get %s: %q, %v", key, got, err)
		}
	}
	if got := other.Sysctl(t, forward); got != "0" {
		t.Errorf("the other namespace has %s %q", forward, got)
	}
}

// TestVisit: the methods are the functions, and reach the namespace visited. Each is a
// step.
func TestVisit(t *testing.T) {
	n, h := open(t)
	notify := sysctl.Setting{Key: sysctl.IPv4("lo", "arp_notify"), Value: "1"}
	var steps []string
	h.Trace().Before = func(step string) error { steps = append(steps, step); return nil }
	err := sysctl.Within(h, func(in sysctl.Visit) error {
		before, err := in.Get(notify.Key)
		if err != nil || before != "0" {
			t.Errorf("Get: %q, %v", before, err)
		}
		return errors.Join(in.Set(), in.Set(notify), in.Ensure(notify, sysctl.Setting{Key: forward, Value: "1"}))
	})
	if now := n.Sysctl(t, notify.Key) + n.Sysctl(t, forward); err != nil || now != "11" {
		t.Errorf("%v; now %s", err, now)
	}
	if want := []string{"read sysctl " + notify.Key, "write sysctls " + notify.Key + "=1", "ensure sysctls " + notify.Key + "=1 " + forward + "=1"}; !slices.Equal(steps, want) {
		t.Errorf("steps %q", steps)
	}
	boom := errors.New("boom")
	if err := sysctl.Within(h, func(sysctl.Visit) error { return boom }); err != boom {
		t.Error(err)
	}
}

// TestLongLists: a list of ports is longer than a page, in which the kernel takes and
// gives a part at a time.
func TestLongLists(t *testing.T) {
	_, h := open(t)
	ports := sysctl.Setting{Key: "net/ipv4/ip_local_reserved_ports"}
	for port := 10001; port < 20000; port += 2 {
		ports.Value += fmt.Sprintf(",%d", port)
	}
	ports.Value = ports.Value[1:]
	if err := sysctl.Set(h, ports); err != nil {
		t.Fatal(err)
	}
	if have, err := sysctl.Get(h, ports.Key); err != nil || have != ports.Value {
		t.Errorf("%d bytes of %d, %v", len(have), len(ports.Value), err)
	}
}

func TestMissingKeys(t *testing.T) {
	_, h := open(t)
	missing := sysctl.Setting{Key: "net/ipv6/conf/nope/accept_ra", Value: "0"}
	if err := sysctl.Set(h, missing); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), missing.Key) {
		t.Errorf("have %v", err)
	}
	missing.Optional = true
	if err := errors.Join(sysctl.Set(h, missing), sysctl.Ensure(h, missing), sysctl.Diff(h, missing)); err != nil {
		t.Errorf("optional: %v", err)
	}
}

func TestPathsStayInside(t *testing.T) {
	_, h := open(t)
	for _, key := range []string{"../self/comm", "net/../../self/comm", "net/ipv4/../../../../tmp/x"} {
		err := sysctl.Set(h, sysctl.Setting{Key: key, Value: "1"})
		if err == nil || !strings.Contains(err.Error(), "leads out of /proc/sys/") {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestDiffNamesWhatDiffers(t *testing.T) {
	_, h := open(t)
	err := sysctl.Diff(h, sysctl.Setting{Key: forward, Value: "1"}, sysctl.Setting{Key: sysctl.IPv4("lo", "arp_notify"), Value: "0"})
	if err == nil || err.Error() != `sysctl net/ipv4/ip_forward is "0", not "1"` {
		t.Errorf("have %v", err)
	}
	if err := sysctl.Ensure(h, sysctl.Setting{Key: forward, Value: "1"}); err != nil {
		t.Fatal(err)
	}
	if err := sysctl.Diff(h, sysctl.Setting{Key: forward, Value: "1"}); err != nil {
		t.Error(err)
	}
}

func TestInvalidValueNamesKeyAndValue(t *testing.T) {
	_, h := open(t)
	err := sysctl.Set(h, sysctl.Setting{Key: forward, Value: "many"})
	if err == nil || !strings.Contains(err.Error(), `write sysctl net/ipv4/ip_forward = "many": `) {
		t.Errorf("have %v", err)
	}
}
