package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/dhcp/internal/dhcp4"
	"github.com/plumb-cni/plumb/v2/test/nstest"
	"golang.org/x/sys/unix"
)

const limit = time.Minute

// A lockedBuffer is the log of a daemon.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func optionsIn(t *testing.T, args ...string) options {
	t.Helper()
	o, err := parseOptions(append([]string{"-socketpath", filepath.Join(t.TempDir(), "run", "dhcp.sock")}, args...), io.Discard)
	nstest.Must(t, err)
	return o
}

// runDaemon runs a daemon until stop is called, and waits until it answers.
func runDaemon(t *testing.T, o options) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.run(ctx, nil, new(lockedBuffer)) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	for deadline := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		if _, err := ask(t, o, Request{Method: MethodStatus}); err == nil {
			return stop
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func ask(t *testing.T, o options, req Request) (Answer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return Call(ctx, o.socket, req)
}

func wantError(t *testing.T, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want %q", err, text)
		}
	}
}

func TestTheDaemonLeavesOnlyItsLeases(t *testing.T) {
	nstest.LeakCheck(t)
	o := optionsIn(t)
	o.pidFile = filepath.Join(t.TempDir(), "pid")
	stop := runDaemon(t, o)
	if pid, err := os.ReadFile(o.pidFile); err != nil || string(pid) != strconv.Itoa(os.Getpid())+"\n" {
		t.Errorf("pid file %q, %v", pid, err)
	}
	if info, err := os.Stat(o.socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
	idle, err := net.Dial("unix", o.socket)
	nstest.Must(t, err)
	defer func() { _ = idle.Close() }()
	stop()
	for _, path := range []string{o.pidFile, o.socket} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestTheEndOfTheDaemonEndsIdleConnectionsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		client, conn := net.Pipe()
		defer func() { _ = client.Close() }()
		began := time.Now()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			(&server{}).handle(ctx, conn)
		}()
		synctest.Wait() // the connection reads
		cancel()
		<-ended
		if waited := time.Since(began); waited != 0 { // by the bubble's clock
			t.Errorf("the connection has ended after %s", waited)
		}
	})
}

func TestASecondDaemonDoesNotStart(t *testing.T) {
	o := optionsIn(t)
	defer runDaemon(t, o)()
	wantError(t, o.run(t.Context(), nil, io.Discard), "another daemon answers there; stop it first")
	nstest.Must(t, os.Remove(o.socket))
	wantError(t, o.run(t.Context(), nil, io.Discard), "another DHCP daemon keeps its leases in "+strings.TrimSuffix(o.socket, ".sock"))
}

func TestADaemonThatDoesNotStartLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	o := options{socket: filepath.Join(dir, strings.Repeat("x", 107), "dhcp.sock")}
	wantError(t, o.run(t.Context(), nil, io.Discard), "want a path of at most 107 bytes")
	o = options{socket: filepath.Join(dir, "run", "dhcp.sock"), pidFile: filepath.Join(dir, "none", "pid")}
	wantError(t, o.run(t.Context(), nil, io.Discard), "write pid file")
	l, err := net.Listen("unix", filepath.Join(dir, "x.sock")) // like the reference plugin's daemon, which has no directory
	nstest.Must(t, err)
	defer func() { _ = l.Close() }()
	o = options{socket: l.Addr().String()}
	wantError(t, o.run(t.Context(), nil, io.Discard), "another daemon answers there; stop it first")
	o = options{socket: filepath.Join(dir, "file")}
	nstest.Must(t, os.WriteFile(o.socket, []byte("x"), 0o600))
	wantError(t, o.run(t.Context(), nil, io.Discard), "not a socket; remove it")
	if files, err := os.ReadDir(dir); err != nil || len(files) != 2 {
		t.Error(files, err)
	}
}

func TestADaemonThatDoesNotAnswerIsNotAwaitedForEver(t *testing.T) {
	nstest.LeakCheck(t)
	path := filepath.Join(t.TempDir(), "hung.sock")
	l, err := net.Listen("unix", path)
	nstest.Must(t, err)
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = Call(ctx, path, Request{Method: MethodStatus})
	wantError(t, err, "does not answer")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestTheDaemonRefusesRequestsWithAnError(t *testing.T) {
	o := optionsIn(t)
	defer runDaemon(t, o)()
	for _, c := range []struct {
		line string
		code uint
		text string
	}{
		{"{", types.CodeDecode, "decode request"},
		{"null", types.CodeDecode, `unknown method ""`},
		{`{"method": "renew"}`, types.CodeDecode, `unknown method "renew"`},
		{`{"method": "add", "network": "n", "containerID": "c", "ifName": "eth0", "netns": "ns"}`, types.CodeNamespace, `netns "ns" is not an absolute path`},
		{`{"method": "add", "network": "n", "containerID": "c", "ifName": "eth0", "netns": "/nonexistent"}`, types.CodeNamespace, "it must also exist at this path for the DHCP daemon"},
		{`{"method": "add", "network": "n", "containerID": "c", "ifName": "eth9", "netns": "/proc/self/ns/net"}`, types.CodeConfig, "interface eth9 of the container does not exist"},
		{`{"method": "add", "network": "n", "containerID": "c", "ifName": "lo", "netns": "/proc/self/ns/net", "timeout": 1000000000}`, types.CodeConfig, "interface lo of the container does not exist or cannot reach a DHCP server"},
		{`{"method": "check", "network": "n", "containerID": "c", "ifName": "eth0"}`, types.CodeChanged, "n/c/eth0 has no lease"},
		{`{"method": "del", "network": "n", "containerID": "c", "ifName": "eth0", "future": {"key": 1}}`, 0, ""},
		{`{"method": "gc", "network": "n"}`, 0, ""},
		{`{"method": "status"}`, 0, ""},
	} {
		conn, err := net.Dial("unix", o.socket)
		nstest.Must(t, err)
		_, _ = io.WriteString(conn, c.line+"\n")
		text, err := bufio.NewReader(conn).ReadBytes('\n')
		_ = conn.Close()
		var a Answer
		if err := errors.Join(err, json.Unmarshal(text, &a)); err != nil || a.Code != c.code || !strings.Contains(a.Msg, c.text) {
			t.Errorf("%s: answer %s, %v; want code %d: %s", c.line, text, err, c.code, c.text)
		}
	}
}

func TestFlags(t *testing.T) {
	o, err := parseOptions([]string{
		"--pidfile=/run/p", "--hostprefix", "/host", "-socketpath", "/s.sock", "-broadcast", "--timeout", "1s", "-resendmax=2s", "--resendtimeout=3s",
	}, io.Discard)
	want := options{pidFile: "/run/p", hostPrefix: "/host", socket: "/s.sock", broadcast: true, timeout: time.Second, resendMax: 2 * time.Second, addTimeout: 3 * time.Second}
	if err != nil || o != want {
		t.Errorf("%+v, %v", o, err)
	}
	_, err = parseOptions([]string{"-pidfile", "p", "-timeout", "0s", "more"}, io.Discard)
	wantError(t, err, `-pidfile "p" is not an absolute path`, "must be positive", `unexpected argument "more"`)
	_, err = parseOptions([]string{"-socketpath", "run/s", "-hostprefix", "host"}, io.Discard)
	wantError(t, err, `-socketpath "run/s" is not an absolute path`, `-hostprefix "host" is not an absolute path`)
	_, err = parseOptions([]string{"-nosuch"}, io.Discard)
	wantError(t, err, "nosuch")
}

func TestHostPrefixPrecedesThePaths(t *testing.T) {
	root := t.TempDir()
	o := options{hostPrefix: root, socket: "/cni/dhcp.sock", timeout: time.Second, resendMax: time.Second, addTimeout: time.Second}
	at := o
	at.socket = filepath.Join(root, o.socket)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	log := new(lockedBuffer)
	go func() { ended <- o.run(ctx, nil, log) }()
	defer func() { cancel(); <-ended }()
	for {
		a, err := ask(t, at, Request{Method: MethodAdd, Attachment: owner, NetNS: "/netns/none"})
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		wantError(t, a.Err(), root+"/netns/none")
		log.mu.Lock()
		defer log.mu.Unlock()
		wantError(t, errors.New(log.String()), "net1/cid/eth0: ADD failed: container namespace")
		break
	}
}

func TestOneInheritedSocketIsUsed(t *testing.T) {
	pid := "LISTEN_PID=" + strconv.Itoa(os.Getpid())
	for _, environ := range [][]string{nil, {"LISTEN_PID=1", "LISTEN_FDS=1"}, {pid}, {pid, "LISTEN_FDS=0"}} {
		if l, err := inheritedSocket(environ); l != nil || err != nil {
			t.Errorf("%q: %v, %v", environ, l, err)
		}
	}
	_, err := inheritedSocket([]string{pid, "LISTEN_FDS=2"})
	wantError(t, err, "LISTEN_FDS: want 1 socket of systemd, got 2")
}

func TestTheBootClockRings(t *testing.T) {
	nstest.LeakCheck(t)
	c, err := newBootClock()
	nstest.Must(t, err)
	defer c.close()
	for _, at := range []time.Duration{0, c.now(), c.now() + 20*time.Millisecond} {
		c.set(never)
		c.set(at)
		select {
		case <-c.alarm():
		case <-time.After(limit):
			t.Fatalf("the alarm at %s does not ring", at)
		}
		if c.now() < at {
			t.Errorf("the alarm at %s rings at %s", at, c.now())
		}
	}
}

func TestTheStoreKeepsOnlyLeases(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	good := recordOf(owner)
	good.State = selecting
	for _, r := range []record{good, recordOf(attachment("net1", "bad"))} { // the second record lacks a state
		nstest.Must(t, s.save(r))
	}
	for _, name := range []string{"x" + leaseSuffix, "x" + markSuffix, ".0123~4567", "other"} {
		nstest.Must(t, os.WriteFile(filepath.Join(s.Dir, name), nil, 0o600))
	}
	text, err := os.ReadFile(s.file(owner).Path())
	if err == nil { // a lease under the name of another lease
		err = os.WriteFile(filepath.Join(s.Dir, "y"+leaseSuffix), text, 0o600)
	}
	nstest.Must(t, err)
	nstest.Must(t, os.Mkdir(filepath.Join(s.Dir, "dir"+leaseSuffix), 0o700))
	reported := 0
	records, err := s.load(func(path string, err error) { reported++; t.Log(path, err) })
	if err != nil || len(records) != 1 || records[0].Attachment != owner || reported != 4 {
		t.Errorf("%+v, %v, %d reported", records, err, reported)
	}
	files, _ := os.ReadDir(s.Dir)
	if len(files) != 2 {
		t.Errorf("files %v, want the lease and the one that is not the daemon's", files)
	}
}

func TestReleaseWithoutDaemon(t *testing.T) {
	boot, err := readBootID()
	nstest.Must(t, err)
	s := Store{Dir: t.TempDir()}
	if all, err := (Store{Dir: s.Dir + "/none"}).Attachments(); len(all) > 0 || err != nil {
		t.Error(all, err)
	}
	if done, err := s.Release(owner); done != (Released{}) || err != nil {
		t.Error(done, err)
	}
	for _, o := range []types.Attachment{attachment("net1", "a"), attachment("net1", "b"), attachment("net2", "a")} {
		r := recordOf(o)
		r.State, r.Boot, r.Lease, r.NetNS = bound, boot, &dhcp4.Lease{Address: netip.MustParsePrefix("10.0.0.5/24")}, "/nonexistent"
		nstest.Must(t, s.save(r))
	}
	nstest.Must(t, os.WriteFile(s.file(owner).Path(), []byte("damaged"), 0o600))
	if all, err := s.Attachments(); len(all) != 3 || err != nil {
		t.Error(all, err)
	}
	if done, err := s.Release(owner); done.Marked != 1 || err != nil || !s.isMarked(owner) {
		t.Error(done, err)
	}
	n, err := s.Release(attachment("net1", "a"))
	if n.Marked != 1 || n.Sent != 0 || !errors.Is(n.Why, errGone) || err != nil ||
		!s.isMarked(attachment("net1", "a")) || s.isMarked(attachment("net1", "b")) || s.isMarked(attachment("net2", "a")) {
		t.Error(n, err)
	}
}

// TestSocketHasItsModeFromTheStart checks that the mode of the socket does not change after the daemon has created the file.
// Otherwise, other users could connect meanwhile.
func TestSocketHasItsModeFromTheStart(t *testing.T) {
	dir := t.TempDir()
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	nstest.Must(t, err)
	defer func() { _ = unix.Close(watch) }()
	if _, err := unix.InotifyAddWatch(watch, dir, unix.IN_CREATE|unix.IN_ATTRIB); err != nil {
		t.Fatal(err)
	}
	l, err := listen(filepath.Join(dir, "dhcp.sock"))
	nstest.Must(t, err)
	defer func() { _ = l.Close() }()
	if info, err := os.Stat(filepath.Join(dir, "dhcp.sock")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	buffer := make([]byte, 4096)
	n, err := unix.Read(watch, buffer)
	nstest.Must(t, err)
	first := (*unix.InotifyEvent)(unsafe.Pointer(&buffer[0]))
	if size := unix.SizeofInotifyEvent + int(first.Len); first.Mask != unix.IN_CREATE || n != size {
		t.Errorf("want only the creation of the socket, got event %#x and %d bytes more", first.Mask, n-size)
	}
}

// TestMarkBesideAnyFile checks that a plugin does not wait for the reader of a named pipe, and that the daemon starts beside a
// directory with the name of a mark.
func TestMarkBesideAnyFile(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	o := types.Attachment{Network: "net", ContainerID: "c1", IfName: "eth0"}
	nstest.Must(t, unix.Mkfifo(s.mark(o), 0o600))
	if err := s.setMark(o); err != nil || !s.isMarked(o) {
		t.Errorf("a named pipe: %v", err)
	}
	o.IfName = "eth1"
	nstest.Must(t, os.MkdirAll(filepath.Join(s.mark(o), "x"), 0o700))
	if _, err := s.load(func(path string, err error) { t.Error(path, err) }); err != nil {
		t.Errorf("a directory: %v", err)
	}
}
