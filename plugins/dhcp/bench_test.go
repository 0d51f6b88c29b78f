package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/dhcp/daemon"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// BenchmarkLeases measures a daemon with 500 leases, each in its own namespace, behind a bridge with a server. It
// reports the daemon's memory, and its processor time per lease in user mode and in the kernel. The time in the
// kernel includes the copies of each broadcast to all ports of the bridge.
//
//	go test -exec "$PWD/scripts/sandbox.sh" -run '^$' -bench Leases -benchtime 1x -count 5 ./plugins/dhcp
func BenchmarkLeases(b *testing.B) {
	const n = 500
	for b.Loop() {
		f := newFleet(b, n)
		d := f.start(b)
		report := func(phase string, leases int, begin usage) {
			now := d.usage(b)
			b.ReportMetric(float64((now.user-begin.user).Microseconds())/float64(leases), "µs-user/"+phase)
			b.ReportMetric(float64((now.system-begin.system).Microseconds())/float64(leases), "µs-system/"+phase)
			b.ReportMetric(float64(now.rss)/1024, "MiB-after-"+phase)
		}
		report("start", 1, usage{})
		begin := d.usage(b)
		f.addAll(b)
		report("ADD", n, begin)

		begin = d.usage(b)
		time.Sleep(10 * time.Second)
		report("hold-10s", 1, begin)

		d.stop()
		f.lease(10 * time.Second)
		d = f.start(b)
		f.awaitRequests(b, reboot)
		report("restart", n, usage{})

		begin = d.usage(b)
		report("renewal", f.awaitRequests(b, renewal), begin)
		d.stop()
	}
}

// renewal and reboot report whether a REQUEST renews a lease, or follows a restart (RFC 2131, table 4).
func renewal(m nstest.DHCPMessage) bool { return !m.ClientIPAddr.IsUnspecified() }
func reboot(m nstest.DHCPMessage) bool {
	return m.ClientIPAddr.IsUnspecified() && m.ServerIdentifier() == nil
}

// A fleet is a host with a bridge, a server and containers.
type fleet struct {
	host       *nstest.NS
	containers []*nstest.NS
	server     *nstest.DHCPServer
	socket     string
}

func newFleet(b *testing.B, n int) *fleet {
	b.Helper()
	f := &fleet{host: nstest.NewHost(b), socket: filepath.Join(b.TempDir(), "dhcp.sock")}
	const server = "10.50.0.1/16"
	f.host.Batch(b, "link add br0 up type bridge", "addr add "+server+" dev br0")
	end := nstest.End{In: f.host, Name: "br0", Addrs: []string{server}}
	f.server = nstest.StartDHCPServer(b, end, nstest.DHCPLease{})
	f.lease(30 * time.Minute)
	f.server.Always(func(m nstest.DHCPMessage, answer *dhcpv4.DHCPv4) [][]byte {
		answer.YourIPAddr = address(m.Options.Get(dhcpv4.OptionClientIdentifier))
		return [][]byte{answer.ToBytes()}
	})
	for i := range n {
		container := nstest.New(b)
		name := fmt.Sprint("container", i)
		nstest.Join(b, nstest.End{In: f.host, Name: name}, nstest.End{In: container, Name: "eth0"})
		f.host.Batch(b, "link set "+name+" master br0")
		f.containers = append(f.containers, container)
	}
	return f
}

// lease configures the server for leases that the daemon renews after that time.
func (f *fleet) lease(renew time.Duration) {
	f.server.Received()
	f.server.Lease(nstest.DHCPLease{Address: "10.50.1.0/16", Duration: time.Hour, Renew: renew, Rebind: 50 * time.Minute})
}

// address returns the address of the client with the identifier "123", without the zero byte before it.
func address(id []byte) []byte {
	i, _ := strconv.Atoi(string(id[1:]))
	return []byte{10, 50, byte(1 + i/250), byte(1 + i%250)}
}

// addAll gets a lease for each container, eight at a time, and configures the interfaces.
func (f *fleet) addAll(b *testing.B) {
	b.Helper()
	next := make(chan int)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range next {
				answer, err := daemon.Call(context.Background(), f.socket, daemon.Request{
					Method: daemon.MethodAdd, Attachment: types.Attachment{Network: "d", ContainerID: fmt.Sprint("c", i), IfName: "eth0"},
					NetNS: f.containers[i].Path(), Settings: daemon.Settings{ID: append([]byte{0}, fmt.Sprint(i)...)},
				})
				if err == nil {
					err = answer.Err()
				}
				if err == nil {
					_, err = f.containers[i].Exec("ip", "addr", "add", answer.Lease.Address.String(), "dev", "eth0")
				}
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range f.containers {
		next <- i
	}
	close(next)
	wg.Wait()
}

// awaitRequests waits until each container has sent a REQUEST of a kind, and returns the number of these REQUESTs.
func (f *fleet) awaitRequests(b *testing.B, kind func(nstest.DHCPMessage) bool) (n int) {
	b.Helper()
	seen := map[string]bool{}
	for len(seen) < len(f.containers) {
		if m := f.server.Await(b, dhcpv4.MessageTypeRequest); kind(m) {
			seen[string(m.Options.Get(dhcpv4.OptionClientIdentifier))] = true
			n++
		}
	}
	return n
}

// A daemonProcess is a running daemon.
type daemonProcess struct {
	cmd  *exec.Cmd
	stop func()
}

func (f *fleet) start(b *testing.B) daemonProcess {
	b.Helper()
	d := daemonProcess{cmd: exec.Command(filepath.Join(nstest.Build(b, "dhcp"), "dhcp"), "daemon", "-socketpath", f.socket)}
	nstest.Must(b, f.host.Start(d.cmd))
	d.stop = sync.OnceFunc(func() {
		_ = d.cmd.Process.Signal(syscall.SIGTERM)
		_ = d.cmd.Wait()
	})
	b.Cleanup(d.stop)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		_, err := daemon.Call(context.Background(), f.socket, daemon.Request{Method: daemon.MethodStatus})
		if err == nil {
			return d
		}
		if time.Now().After(deadline) {
			b.Fatal(err)
		}
	}
}

// A usage is the processor time and the memory that a process has used.
type usage struct {
	user, system time.Duration
	rss          int // current, in KiB
}

func (d daemonProcess) usage(b *testing.B) (u usage) {
	b.Helper()
	proc := "/proc/" + strconv.Itoa(d.cmd.Process.Pid)
	stat, err := os.ReadFile(proc + "/stat")
	status, statusErr := os.ReadFile(proc + "/status")
	if err != nil || statusErr != nil {
		b.Fatal(err, statusErr)
	}
	// Fields 14 and 15 of stat are in units of 10 ms (proc(5)). Field 2 is the name in brackets.
	fields := strings.Fields(string(stat[strings.LastIndex(string(stat), ")"):]))
	for i, sum := range []*time.Duration{&u.user, &u.system} {
		ticks, _ := strconv.Atoi(fields[12+i])
		*sum = time.Duration(ticks) * 10 * time.Millisecond
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	_, err = fmt.Sscan(rest, &u.rss)
	nstest.Must(b, err)
	return u
}
