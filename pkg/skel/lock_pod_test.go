package skel_test

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/plumb-cni/plumb/pkg/skel"
)

// TestLockPod tests that calls for different interfaces of one container wait for each other if
// they call LockPod, and that calls for another container do not.
func TestLockPod(t *testing.T) {
	s := newTestNode(t)
	call := func(pod, ifName string, before func(string) error, f func()) (code int, out string) {
		var stdout, stderr bytes.Buffer
		code = skel.Run(skel.Plugin{Name: "test", Del: func(r *skel.Request) error {
			err := r.LockPod()
			f()
			return err
		}}, skel.Env{
			Environ: []string{"CNI_COMMAND=DEL", "CNI_CONTAINERID=c1", "CNI_NETNS=" + pod, "CNI_IFNAME=" + ifName, "CNI_PATH=/bin"},
			Stdin:   strings.NewReader(`{"cniVersion":"1.1.0","name":"net","type":"test"}`),
			Stdout:  &stdout, Stderr: &stderr, Lock: s.lock, LockWait: s.wait, Before: before,
		})
		return code, stdout.String() + stderr.String()
	}
	waits, done := make(chan struct{}), make(chan struct{})
	var held atomic.Bool
	code, out := call(s.pod, "eth0", nil, func() {
		held.Store(true)
		if code, out := call(newNS(t), "eth1", nil, func() {}); code != 0 || out != "" {
			t.Errorf("another container: %s", out)
		}
		go func() {
			defer close(done)
			code, out := call(s.pod, "eth1", func(step string) error {
				if strings.HasPrefix(step, "wait for another call for the container of net/c1/eth1") {
					close(waits)
				}
				return nil
			}, func() {
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
	_, _ = call(s.pod, "eth0", nil, func() {
		if code, out := call(s.pod, "eth1", nil, func() {}); code != 0 || !strings.Contains(out, "another call for the container of net/c1/eth1 has run for over 1ms; DEL goes on") {
			t.Errorf("DEL behind a call that does not end: %d, %s", code, out)
		}
	})
}
