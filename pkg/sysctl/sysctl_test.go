package sysctl_test

import (
	"errors"
	"io/fs"
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
