package nstest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
)

// A PoolHost simulates a host for an IPAM plugin that keeps reservations in a directory (pkg/pool). It
// provides a data directory, a boot ID and a clock. Its methods call the plugin in this process.
type PoolHost struct {
	Plugin  func() skel.Plugin // returns the plugin for each call
	DataDir string
	Path    string        // CNI_PATH
	Keys    func() string // returns further members of ipam in each configuration; may be nil
	BootID  string        // the path of the file with the boot ID
	Clock   time.Duration
	Wait    time.Duration // how long the plugin waits for the lock
	Steps   []string      // the steps of the last call
	tb      TB
}

// NewPoolHost creates a host without reservations. The caller sets Plugin.
func NewPoolHost(tb TB) *PoolHost {
	tb.Helper()
	dir := tb.TempDir()
	n := &PoolHost{DataDir: filepath.Join(dir, "networks"), BootID: filepath.Join(dir, "boot_id"), Clock: time.Hour, Wait: time.Minute, tb: tb}
	n.Boot("6f1e8a52-0000-4000-8000-000000000001")
	return n
}

// Boot sets the boot ID as a reboot does.
func (n *PoolHost) Boot(id string) {
	n.tb.Helper()
	Must(n.tb, os.WriteFile(n.BootID, []byte(id+"\n"), 0o600))
}

// A PoolCall lists differences from a call's default configuration and environment.
type PoolCall struct {
	IPAM    string // the members of ipam except type and dataDir; if it is "", the subnet 10.1.2.0/24
	More    string // further members of the configuration, for example `"runtimeConfig": {…}`
	Args    string // CNI_ARGS
	IfName  string
	Version string // if it is "", the call uses 1.1.0
	Network string // if it is "", the call uses net
}

// Config returns the configuration of a call.
func (n *PoolHost) Config(c PoolCall) string {
	if c.More != "" {
		c.More = ", " + c.More
	}
	ipam := cmp.Or(c.IPAM, `"subnet": "10.1.2.0/24"`)
	if n.Keys != nil {
		ipam += ", " + n.Keys()
	}
	return fmt.Sprintf(`{"cniVersion": %q, "name": %q, "type": "bridge"%s, "ipam": {"type": %q, "dataDir": %q, %s}}`,
		cmp.Or(c.Version, "1.1.0"), cmp.Or(c.Network, "net"), c.More, n.Plugin().Name, n.DataDir, ipam)
}

// Call returns a call for a container.
func (n *PoolHost) Call(id string, c PoolCall) Call {
	return Call{ContainerID: id, IfName: c.IfName, NetNS: "/dev/null", Args: c.Args, Path: n.Path, Config: n.Config(c)}
}

// Run calls the plugin and records the steps.
func (n *PoolHost) Run(command, id string, c PoolCall) Reply {
	n.Steps = nil
	call := n.Call(id, c).With(command)
	call.Before = func(step string) error { n.Steps = append(n.Steps, step); return nil }
	return Run(n.Plugin(), call)
}

// Add calls ADD, which must succeed, and returns the addresses, separated by spaces.
func (n *PoolHost) Add(id string, c PoolCall) string {
	n.tb.Helper()
	var ips []string
	for _, ip := range n.Run("ADD", id, c).Result(n.tb).IPs {
		ips = append(ips, ip.Address.String())
	}
	return strings.Join(ips, " ")
}

// OK calls the plugin, which must succeed.
func (n *PoolHost) OK(command, id string, c PoolCall) {
	n.tb.Helper()
	n.Run(command, id, c).OK(n.tb)
}

// Fails calls the plugin, which must fail, and returns its error.
func (n *PoolHost) Fails(command, id string, c PoolCall) Failure {
	n.tb.Helper()
	return n.Run(command, id, c).Failure(n.tb)
}

// Net returns the path of a file in the directory of the network "net".
func (n *PoolHost) Net(name string) string { return filepath.Join(n.DataDir, "net", name) }

// Put writes a file to the network's directory without the plugin.
func (n *PoolHost) Put(name, content string) {
	n.tb.Helper()
	Must(n.tb, os.MkdirAll(n.Net(""), 0o755))
	Must(n.tb, os.WriteFile(n.Net(name), []byte(content), 0o600))
}

// Reserved returns the reservations, for example "10.1.2.2 c1/eth0".
func (n *PoolHost) Reserved() []string {
	n.tb.Helper()
	_, err := os.Stat(n.Net(""))
	Must(n.tb, err)
	all := []string{}
	for _, ip := range Reservations(n.tb, n.DataDir, "net") {
		content, err := os.ReadFile(n.Net(ip))
		Must(n.tb, err)
		all = append(all, ip+" "+strings.Replace(string(content), "\r\n", "/", 1))
	}
	slices.Sort(all)
	return all
}

// WithReferenceLock calls f while it holds the network's lock, as the reference plugin does for changes of
// the directory.
func (n *PoolHost) WithReferenceLock(f func()) {
	n.tb.Helper()
	Must(n.tb, os.MkdirAll(n.Net(""), 0o755))
	lock, err := os.OpenFile(n.Net("lock"), os.O_RDONLY|os.O_CREATE, 0o750)
	Must(n.tb, err)
	defer func() { Must(n.tb, lock.Close()) }()
	Must(n.tb, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	f()
}

// ReferenceAdd reserves ip as the reference plugin does. It first creates the file and then writes to it.
func (n *PoolHost) ReferenceAdd(ip, id string) {
	n.tb.Helper()
	n.WithReferenceLock(func() {
		f, err := os.OpenFile(n.Net(ip), os.O_RDWR|os.O_EXCL|os.O_CREATE, 0o600)
		Must(n.tb, err)
		_, err = f.WriteString(id + "\r\neth0")
		Must(n.tb, errors.Join(err, f.Close()))
		Must(n.tb, os.WriteFile(n.Net("last_reserved_ip.0"), []byte(ip), 0o600))
	})
}

// ReadAll reports whether the last call read all reservations.
func (n *PoolHost) ReadAll() bool {
	return slices.ContainsFunc(n.Steps, func(s string) bool { return strings.HasPrefix(s, "read reservations") })
}
