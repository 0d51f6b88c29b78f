package skel_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
)

// TestLockContainer tests that calls for different interfaces of one container wait for each other if
// they call LockContainer, and that calls for another container do not.
func TestLockContainer(t *testing.T) {
	s := newTestHost(t)
	call := func(container, ifName string, before func(string) error, f func()) (code int, out string) {
		code, stdout, stderr := s.call(skel.Plugin{Name: "test", Del: func(r *skel.Request) error {
			err := r.LockContainer()
			f()
			return err
		}}, before, "CNI_COMMAND=DEL", "CNI_NETNS="+container, "CNI_IFNAME="+ifName)
		return code, stdout + stderr
	}
	waits, done := make(chan struct{}), make(chan struct{})
	var held atomic.Bool
	code, out := call(s.container, "eth0", nil, func() {
		held.Store(true)
		if code, out := call(newNS(t), "eth1", nil, func() {}); code != 0 || out != "" {
			t.Errorf("another container: %s", out)
		}
		go func() {
			defer close(done)
			code, out := call(s.container, "eth1", closedAt("wait for another call for the container of net/c1/eth1", waits), func() {
				if held.Load() {
					t.Error("the second call did not wait")
				}
			})
			if code != 0 || out != "" {
				t.Errorf("the second call: %s", out)
			}
		}()
		select {
		case <-waits:
		case <-done:
		}
		held.Store(false)
	})
	<-done
	if code != 0 || out != "" {
		t.Errorf("the first call: %s", out)
	}
	s.wait = time.Millisecond
	_, _ = call(s.container, "eth0", nil, func() {
		if code, out := call(s.container, "eth1", nil, func() {}); code != 0 || !strings.Contains(out, "another call for the container of net/c1/eth1 has run for over 1ms; DEL continues") {
			t.Errorf("DEL behind a call that does not end: %d, %s", code, out)
		}
	})
}
