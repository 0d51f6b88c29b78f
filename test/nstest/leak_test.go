package nstest

import (
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestInventorySeesLeaks tests that inventory, which LeakCheck uses, finds each kind of leak.
func TestInventorySeesLeaks(t *testing.T) {
	n := New(t)
	stop := make(chan struct{})
	defer close(stop)
	for _, leak := range []struct {
		want string
		make func() error
	}{
		{"fd ", func() error {
			f, err := os.Open("/dev/null")
			if err == nil {
				t.Cleanup(func() { _ = f.Close() })
			}
			return err
		}},
		{"goroutine ", func() error { go func() { <-stop }(); return nil }},
		{"child process ", func() error {
			cmd := exec.Command("sleep", "60")
			t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
			return cmd.Start()
		}},
		{"thread in net:", func() error {
			in := make(chan error)
			go func() {
				_ = n.Do(func() error {
					in <- unix.Setns(n.FD(), unix.CLONE_NEWNET)
					<-stop
					return nil
				})
			}()
			return <-in
		}},
	} {
		before := inventory()
		Must(t, leak.make())
		if got := strings.Join(added(before, inventory()), "\n"); !strings.Contains(got, leak.want) {
			t.Errorf("%s: not found: %q", leak.want, got)
		}
	}
}

func TestLeakCheckKeepsLeakedFilesOpen(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	t.Run("", func(t *testing.T) {
		LeakCheck(t)
		if percent := debug.SetGCPercent(-1); percent != -1 {
			t.Errorf("want no GC percentage, got %d", percent)
		}
	})
	if percent := debug.SetGCPercent(100); percent != 100 {
		t.Errorf("want the GC percentage 100 after the test, got %d", percent)
	}
}
