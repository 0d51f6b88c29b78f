package nstest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Dnsmasq is a dnsmasq process that serves DHCP on one interface.
type Dnsmasq struct {
	LoggingDaemon
	Leases string // the path of the lease file
}

// StartDnsmasq starts dnsmasq for DHCP on an interface, with further arguments, such as
// "--dhcp-range=10.0.0.2,10.0.0.9,120s". The minimum lease time of dnsmasq is 120 seconds. dnsmasq is
// killed when the test ends.
func StartDnsmasq(tb TB, e End, args ...string) *Dnsmasq {
	tb.Helper()
	RequireRoot(tb, "because dnsmasq changes its group")
	dir := tb.TempDir()
	d := &Dnsmasq{Leases: filepath.Join(dir, "leases")}
	cmd := exec.Command("dnsmasq", append([]string{"--keep-in-foreground", "--conf-file=/dev/null", "--user=root", "--pid-file=" + filepath.Join(dir, "pid"),
		"--log-facility=-", "--log-dhcp", "--port=0", "--no-ping", "--bind-interfaces", "--interface=" + e.Name, "--except-interface=lo",
		"--dhcp-leasefile=" + d.Leases}, args...)...)
	cmd.Stderr = &d.log
	d.Daemon = startDaemon(tb, cmd, e.In.Start)
	d.AwaitLog(tb, "sockets bound exclusively to interface", e.Name)
	return d
}

// HasLease reports whether dnsmasq's lease file contains a lease for the address.
func (d *Dnsmasq) HasLease(addr string) bool {
	text, _ := os.ReadFile(d.Leases)
	return strings.Contains(string(text), " "+addr+" ")
}

// A LoggingDaemon is a Daemon with a log that the test reads.
type LoggingDaemon struct {
	Daemon
	log lineLog
}

type lineLog struct {
	mu   sync.Mutex
	text strings.Builder
	seen int // the number of lines that AwaitLog has returned or passed
}

func (l *lineLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// AwaitLog waits for a log line that contains all texts, and returns it. The test fails if the server ends or waitLimit
// has passed. The next call searches the following lines.
func (d *LoggingDaemon) AwaitLog(tb TB, texts ...string) string {
	tb.Helper()
	deadline := time.Now().Add(waitLimit)
	for {
		lines := d.log.complete()
		for i, line := range lines[d.log.seen:] {
			if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
				d.log.seen += i + 1
				return line
			}
		}
		select {
		case <-d.Ended:
			tb.Fatalf("the server has ended:\n%s", strings.Join(d.log.complete(), "\n"))
		default:
		}
		if time.Now().After(deadline) {
			tb.Fatalf("want the log line %q, got\n%s", texts, strings.Join(lines[d.log.seen:], "\n"))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// complete returns all lines that end with a newline.
func (l *lineLog) complete() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.Split(l.text.String(), "\n")
	return lines[:len(lines)-1]
}
