package skel_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A testHost contains what calls for an attachment share, which is the lock file and a container.
type testHost struct {
	lock, container string
	wait            time.Duration
}

func newTestHost(t *testing.T) *testHost {
	return &testHost{lock: filepath.Join(t.TempDir(), "locks"), container: newNS(t), wait: time.Minute}
}

// closedAt returns a function for skel.Env.Before that closes the channel when the step begins.
func closedAt(step string, c chan struct{}) func(string) error {
	return func(s string) error {
		if strings.HasPrefix(s, step) {
			close(c)
		}
		return nil
	}
}

// call calls a plugin. The first setting of a variable counts.
func (s *testHost) call(p skel.Plugin, before func(step string) error, env ...string) (code int, stdout, stderr string) {
	var out, log bytes.Buffer
	code = skel.Run(p, skel.Env{
		Environ: append(env, "CNI_CONTAINERID=c1", "CNI_NETNS="+s.container, "CNI_IFNAME=eth0", "CNI_PATH=/bin"),
		Stdin:   strings.NewReader(`{"cniVersion":"1.1.0","name":"net","type":"test","cni.dev/valid-attachments":[]}`),
		Stdout:  &out, Stderr: &log, Lock: s.lock, LockWait: s.wait, Before: before,
	})
	return code, out.String(), log.String()
}

func pluginThatRuns(name string, f func()) skel.Plugin {
	handler := func(*skel.Request) error { f(); return nil }
	return skel.Plugin{Name: name, Del: handler, Check: handler, GC: handler, Status: handler, Add: func(*skel.Request) (*types.Result, error) {
		f()
		return &types.Result{}, nil
	}}
}

// startAdd starts an ADD that runs until the caller calls end. end waits until the ADD has ended.
func (s *testHost) startAdd(t *testing.T, name string) (end func()) {
	t.Helper()
	begun, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		if code, stdout, _ := s.call(pluginThatRuns(name, func() { close(begun); <-goOn }), nil, "CNI_COMMAND=ADD"); code != 0 {
			t.Errorf("ADD: %s", stdout)
		}
	}()
	<-begun
	return func() { close(goOn); <-ended }
}

func TestCallsForOneAttachmentWaitForEachOther(t *testing.T) {
	for _, verb := range []string{"ADD", "CHECK", "DEL"} {
		s := newTestHost(t)
		end := s.startAdd(t, "test")
		var handled atomic.Bool
		waits, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			code, stdout, stderr := s.call(pluginThatRuns("test", func() { handled.Store(true) }),
				closedAt("wait for another call for net/c1/eth0", waits), "CNI_COMMAND="+verb)
			if code != 0 || stderr != "" {
				t.Errorf("%s: %s%s", verb, stdout, stderr)
			}
		}()
		select {
		case <-waits:
		case <-done:
			t.Errorf("%s did not wait for the ADD", verb)
		}
		if handled.Load() {
			t.Errorf("%s was done during the ADD", verb)
		}
		end()
		<-done
		if !handled.Load() {
			t.Errorf("%s was not done after the ADD", verb)
		}
	}
}

// TestOtherCallsDoNotWait checks calls for another attachment, calls of another plugin, calls
// without an attachment, and IPAM plugins, whose caller holds the lock.
func TestOtherCallsDoNotWait(t *testing.T) {
	s := newTestHost(t)
	defer s.startAdd(t, "test")()
	for what, c := range map[string]struct {
		name string
		ipam bool
		env  []string
	}{
		"another interface": {"test", false, []string{"CNI_COMMAND=DEL", "CNI_IFNAME=eth1"}},
		"another container": {"test", false, []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c2"}},
		"another plugin":    {"other", false, []string{"CNI_COMMAND=DEL"}},
		"GC":                {"test", false, []string{"CNI_COMMAND=GC"}},
		"STATUS":            {"test", false, []string{"CNI_COMMAND=STATUS"}},
		"VERSION":           {"test", false, []string{"CNI_COMMAND=VERSION"}},
		"an IPAM plugin":    {"test", true, []string{"CNI_COMMAND=ADD"}},
	} {
		s := *s
		s.wait = time.Nanosecond // fails at once
		p := pluginThatRuns(c.name, func() {})
		p.IPAM = c.ipam
		if code, stdout, stderr := s.call(p, nil, c.env...); code != 0 || stderr != "" {
			t.Errorf("%s: %s%s", what, stdout, stderr)
		}
	}
}

func TestWaitForAnotherCallIsLimited(t *testing.T) {
	s := newTestHost(t)
	defer s.startAdd(t, "test")()
	for verb, finishes := range map[string]bool{"ADD": false, "CHECK": false, "DEL": true} {
		s := *s
		s.wait = time.Millisecond
		called := false
		code, stdout, stderr := s.call(pluginThatRuns("test", func() { called = true }), nil, "CNI_COMMAND="+verb)
		const says = "another call of test for net/c1/eth0 has run for over 1ms"
		switch {
		case called != finishes || (code == 0) != finishes:
			t.Errorf("%s: exit %d, called %t, %s", verb, code, called, stdout)
		case finishes && !strings.Contains(stderr, "test: warning: "+says):
			t.Errorf("%s: stderr %q", verb, stderr)
		case !finishes && (!strings.Contains(stdout, says) || !strings.Contains(stdout, `"code": 11`)):
			t.Errorf("%s: %s", verb, stdout)
		}
	}
}

func TestCallsContinueIfTheLockFileCannotBeCreated(t *testing.T) {
	s := newTestHost(t)
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", unix.MS_RDONLY, ""); err != nil {
		t.Skipf("mount: %v", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	if err := os.WriteFile(s.lock, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	directory, link := t.TempDir(), t.TempDir()+"/link"
	if err := os.Symlink(s.lock, link); err != nil {
		t.Fatal(err)
	}
	for path, why := range map[string]string{
		dir + "/cni/locks": "read-only file system", s.lock + "/x": "not a directory", directory: "not a regular file; remove it", link: "a symbolic link, not a regular file; remove it",
	} {
		s := *s
		s.lock = path
		for _, verb := range []string{"ADD", "CHECK", "DEL"} {
			called := false
			code, stdout, stderr := s.call(pluginThatRuns("test", func() { called = true }), nil, "CNI_COMMAND="+verb)
			if code != 0 || !called || !strings.HasPrefix(stderr, "test: warning: lock the attachment: ") || !strings.Contains(stderr, why) {
				t.Errorf("%s with %s: called %t, %s%s", verb, path, called, stdout, stderr)
			}
		}
	}
}
