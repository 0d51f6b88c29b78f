package nstest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
)

// These are firewalld's names on the bus.
const (
	FirewalldName = "org.fedoraproject.FirewallD1"
	firewalldPath = "/org/fedoraproject/FirewallD1"
)

// A Firewalld is firewalld on a host, with its own bus and configuration. The configuration is
// empty, and therefore the default zone is public.
type Firewalld struct {
	Address string // the address of the bus, for DBUS_SYSTEM_BUS_ADDRESS
	Bus     Daemon // the program dbus-daemon
	Daemon  Daemon // the program firewalld

	dir  string
	conn *dbus.Conn
}

// A Daemon is a program that ends with the test, or with the test binary.
type Daemon struct {
	*os.Process
	Ended <-chan struct{} // closed when the program has ended
}

// busConfig is the configuration of a bus that permits everything that its policies do not
// deny.
const busConfig = `<busconfig>
  <listen>unix:path=%[1]s/bus</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/> <allow own="*"/> <allow send_destination="*" eavesdrop="false"/> <allow receive_sender="*"/>
  </policy>
  <servicedir>%[1]s/services</servicedir>
  <includedir>%[1]s/policies</includedir>
</busconfig>
`

// StartFirewalld starts a bus, and firewalld on the host, and waits until firewalld answers calls.
// Both end with the test.
func StartFirewalld(tb TB, host *NS) *Firewalld {
	tb.Helper()
	f := StartBus(tb)
	owned := f.watch(tb, "NameOwnerChanged", FirewalldName)
	cmd := exec.Command("firewalld", "--nofork", "--nopid", "--log-target=console", "--system-config="+filepath.Join(f.dir, "etc"))
	cmd.Env = append(os.Environ(), "DBUS_SYSTEM_BUS_ADDRESS="+f.Address, "LC_ALL=C.UTF-8")
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	f.Daemon = startDaemon(tb, cmd, host.Start)
	timer := time.AfterFunc(waitLimit, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	select {
	case <-owned:
		f.Call(tb, "getDefaultZone") // firewalld owns its name before it answers calls
	case <-f.Daemon.Ended:
		tb.Fatalf("start firewalld: it has ended, or was killed after %s\n%s", waitLimit, log.String())
	}
	return f
}

// StartBus starts a bus without firewalld.
func StartBus(tb TB) *Firewalld {
	tb.Helper()
	dir, err := os.MkdirTemp("", "bus") // a short path, because a socket's path is limited to 107 bytes
	Must(tb, err)
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	Must(tb, os.Chmod(dir, 0o755)) // for clients of other users
	for _, sub := range []string{"policies", "services", "etc"} {
		Must(tb, os.Mkdir(filepath.Join(dir, sub), 0o755))
	}
	config := filepath.Join(dir, "bus.conf")
	Must(tb, os.WriteFile(config, fmt.Appendf(nil, busConfig, dir), 0o644))
	r, w, err := os.Pipe()
	Must(tb, err)
	defer func() { _ = r.Close() }()
	cmd := exec.Command("dbus-daemon", "--nofork", "--nopidfile", "--nosyslog", "--config-file="+config, "--print-address=3")
	var log strings.Builder
	cmd.ExtraFiles, cmd.Stderr = []*os.File{w}, &log
	f := &Firewalld{Bus: startDaemon(tb, cmd, (*exec.Cmd).Start), dir: dir}
	_ = w.Close()
	address, err := bufio.NewReader(r).ReadString('\n') // dbus-daemon prints the address when it listens
	if err != nil {
		<-f.Bus.Ended
		tb.Fatalf("start dbus-daemon: %v\n%s", err, log.String())
	}
	f.Address = strings.TrimSpace(address)
	f.conn, err = dbus.Connect(f.Address)
	Must(tb, err)
	tb.Cleanup(func() { _ = f.conn.Close() })
	return f
}

func startDaemon(tb TB, cmd *exec.Cmd, start func(*exec.Cmd) error) Daemon {
	tb.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	Must(tb, start(cmd))
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	return Daemon{Process: cmd.Process, Ended: ended}
}

// Call calls a method of firewalld, such as "reload" or "zone.addSource", and returns the
// first value of the answer.
func (f *Firewalld) Call(tb TB, method string, args ...any) any {
	tb.Helper()
	call := f.conn.Object(FirewalldName, firewalldPath).Call(FirewalldName+"."+method, dbus.FlagNoAutoStart, args...)
	Must(tb, call.Err)
	if len(call.Body) == 0 {
		return nil
	}
	return call.Body[0]
}

// Deny configures the bus to reject calls of a method of firewalld, such as "zone.addSource".
func (f *Firewalld) Deny(tb TB, method string) {
	tb.Helper()
	method = FirewalldName + "." + method
	dot := strings.LastIndex(method, ".")
	policy := fmt.Sprintf(`<busconfig><policy context="mandatory"><deny send_interface="%s" send_member="%s"/></policy></busconfig>`,
		method[:dot], method[dot+1:])
	f.configure(tb, "policies/deny.conf", policy)
}

// Activate configures the bus to start firewalld for clients that permit this, with a program that fails.
func (f *Firewalld) Activate(tb TB) {
	tb.Helper()
	f.configure(tb, "services/firewalld.service", "[D-BUS Service]\nName="+FirewalldName+"\nExec=/bin/false\n")
}

func (f *Firewalld) configure(tb TB, name, text string) {
	tb.Helper()
	Must(tb, os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o644))
	Must(tb, f.conn.BusObject().Call("org.freedesktop.DBus.ReloadConfig", 0).Err)
}

// Await returns a function that waits for a message that passes the bus after the call of Await.
// The message is a call or a signal with this name and this first argument.
func (f *Firewalld) Await(tb TB, member, argument string) (wait func()) {
	tb.Helper()
	seen := f.watch(tb, member, argument)
	return func() {
		tb.Helper()
		select {
		case <-seen:
		case <-time.After(waitLimit):
			tb.Fatalf("no message %s(%s) on the bus", member, argument)
		}
	}
}

// watch returns a channel that is closed when a message that Await describes passes the bus.
func (f *Firewalld) watch(tb TB, member, argument string) <-chan struct{} {
	tb.Helper()
	monitor, err := dbus.Connect(f.Address)
	Must(tb, err)
	rule := fmt.Sprintf("member='%s',arg0='%s'", member, argument)
	Must(tb, monitor.BusObject().Call("org.freedesktop.DBus.Monitoring.BecomeMonitor", 0, []string{rule}, uint32(0)).Err)
	messages, seen, done := make(chan *dbus.Message, 16), make(chan struct{}), make(chan struct{})
	monitor.Eavesdrop(messages)
	go func() {
		for {
			select {
			case m, open := <-messages:
				if !open { // the bus has ended
					return
				}
				if m.Headers[dbus.FieldMember].Value() == member { // ignore the bus's own messages to the monitor
					close(seen)
					return
				}
			case <-done:
				return
			}
		}
	}()
	tb.Cleanup(func() {
		monitor.Eavesdrop(nil) // before Close, which would otherwise close messages while the connection still sends there
		_ = monitor.Close()
		close(done)
	})
	return seen
}

// Must ends the test if there is an error.
func Must(tb TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatalf("%v", err)
	}
}
