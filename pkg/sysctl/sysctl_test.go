package sysctl_test

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/sysctl"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
	"golang.org/x/sys/unix"
)

func open(t *testing.T) (*nstest.NS, *ns.Handle) {
	t.Helper()
	n := nstest.New(t)
	return n, n.Open(t, &trace.Tracer{})
}

const forward = "net/ipv4/ip_forward"

func TestSettingsBelongToTheNamespace(t *testing.T) {
	n, h := open(t)
	other, _ := open(t)
	nstest.Must(t, sysctl.Set(h, sysctl.Setting{Key: forward, Value: "1"}, sysctl.Setting{Key: sysctl.IPv4("lo", "arp_notify"), Value: "1"}))
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

// TestLongLists sets a list that is longer than a page, which the kernel reads and writes in parts.
func TestLongLists(t *testing.T) {
	_, h := open(t)
	ports := sysctl.Setting{Key: "net/ipv4/ip_local_reserved_ports"}
	for port := 10001; port < 20000; port += 2 {
		ports.Value += fmt.Sprintf(",%d", port)
	}
	ports.Value = ports.Value[1:]
	nstest.Must(t, sysctl.Set(h, ports))
	if got, err := sysctl.Get(h, ports.Key); err != nil || got != ports.Value {
		t.Errorf("%d bytes of %d, %v", len(got), len(ports.Value), err)
	}
}

func TestMissingKeys(t *testing.T) {
	_, h := open(t)
	missing := sysctl.Setting{Key: "net/ipv6/conf/nope/accept_ra", Value: "0"}
	if err := sysctl.Set(h, missing); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), missing.Key) {
		t.Error(err)
	}
	missing.Optional = true
	if err := errors.Join(sysctl.Set(h, missing), sysctl.Ensure(h, missing), sysctl.Diff(h, missing)); err != nil {
		t.Errorf("optional: %v", err)
	}
}

func TestKeysCannotLeaveProcSys(t *testing.T) {
	_, h := open(t)
	for _, key := range []string{"../self/comm", "net/../../self/comm", "net/ipv4/../../../../tmp/x"} {
		err := sysctl.Set(h, sysctl.Setting{Key: key, Value: "1"})
		if err == nil || !strings.Contains(err.Error(), "is not below /proc/sys/") {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestDiffNamesWhatDiffers(t *testing.T) {
	_, h := open(t)
	err := sysctl.Diff(h, sysctl.Setting{Key: forward, Value: "1"}, sysctl.Setting{Key: sysctl.IPv4("lo", "arp_notify"), Value: "0"})
	if err == nil || err.Error() != `sysctl net/ipv4/ip_forward is "0", want "1"` {
		t.Error(err)
	}
	nstest.Must(t, sysctl.Ensure(h, sysctl.Setting{Key: forward, Value: "1"}))
	if err := sysctl.Diff(h, sysctl.Setting{Key: forward, Value: "1"}); err != nil {
		t.Error(err)
	}
}

func TestInvalidValueNamesKeyAndValue(t *testing.T) {
	_, h := open(t)
	err := sysctl.Set(h, sysctl.Setting{Key: forward, Value: "many"})
	if err == nil || !strings.Contains(err.Error(), `write sysctl net/ipv4/ip_forward = "many": `) {
		t.Error(err)
	}
}

// TestReadOnly checks that, if /proc/sys cannot be written, an optional setting causes a warning,
// and any other setting an error unless it already has its value.
func TestReadOnly(t *testing.T) {
	_, h := open(t)
	var warned []string
	h.Trace().Warnings = func(text string) { warned = append(warned, text) }
	nstest.ReadOnlySysctls(t)
	optional := sysctl.Setting{Key: sysctl.IPv4("lo", "arp_notify"), Value: "1", Optional: true}
	right := sysctl.Setting{Key: forward, Value: "0"}
	if err := errors.Join(sysctl.Set(h, right, optional), sysctl.Diff(h, right, optional)); err != nil {
		t.Errorf("optional: %v", err)
	}
	want := []string{"sysctls that cannot be written keep their values (read-only file system): net/ipv4/conf/lo/arp_notify=1"}
	if !slices.Equal(warned, want) {
		t.Errorf("warnings %q, want %q", warned, want)
	}
	for name, write := range map[string]func(*ns.Handle, ...sysctl.Setting) error{"Set": sysctl.Set, "Ensure": sysctl.Ensure} {
		err := write(h, sysctl.Setting{Key: forward, Value: "1"})
		if !errors.Is(err, unix.EROFS) || types.AsError(err).Code != types.CodeIO || !strings.Contains(err.Error(), "mount /proc/sys writable") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestKeyThatIsNotPerNamespace sets a key that only the initial namespace can write.
func TestKeyThatIsNotPerNamespace(t *testing.T) {
	_, h := open(t)
	setting := sysctl.Setting{Key: "net/core/rmem_max", Value: "4096"}
	if _, err := sysctl.Get(h, setting.Key); errors.Is(err, fs.ErrNotExist) {
		t.Skip("before kernel 6.1 other namespaces do not have the key")
	}
	err := sysctl.Set(h, setting)
	if types.AsError(err).Code != types.CodeConfig || !strings.HasSuffix(err.Error(), "only the host can set what is not per namespace") {
		t.Errorf("%v", err)
	}
}
