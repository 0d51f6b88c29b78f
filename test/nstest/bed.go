package nstest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A Bed contains what the specs of an interface plugin share, which is the plugin, a host, the IPAM plugins host-local
// and static, and a directory for the reservations of host-local. Its methods call the plugin in this process.
type Bed struct {
	Plugin  skel.Plugin
	Host    *NS
	Outside *NS      // a host on the uplink's segment, or nil
	Path    string   // CNI_PATH, which contains the IPAM plugins
	DataDir string   // host-local's directory of reservations
	Watch   []*NS    // namespaces, besides the container, that a failed ADD must leave unchanged
	Dirs    []string // directories, besides the reservations, whose files a failed ADD must leave unchanged
	Sorted  bool     // compare states without regard to the order of their lines
	Omit    []string // texts of lines that are not compared
	tb      TB
}

// NewBed returns a bed whose host is connected to an outside host, as in a Site. It calls LeakCheck.
func NewBed(tb TB, p skel.Plugin) *Bed {
	tb.Helper()
	site := NewSite(tb)
	b := NewBedOn(tb, p, site.Host, "host-local", "static")
	b.Outside = site.Outside
	return b
}

// NewBedOn returns a bed with that host and these IPAM plugins, and without an outside host.
func NewBedOn(tb TB, p skel.Plugin, host *NS, ipams ...string) *Bed {
	tb.Helper()
	b := &Bed{Plugin: p, Host: host, Path: Build(tb, ipams...), DataDir: tb.TempDir(), tb: tb}
	LeakCheck(tb)
	return b
}

// NewContainer creates a container in which duplicate address detection ends at once and sends no packet.
func (b *Bed) NewContainer() *NS {
	b.tb.Helper()
	n := New(b.tb).Named("container")
	n.SkipDAD(b.tb)
	return n
}

// Conf returns the configuration of a plugin for the network net1. keys is the JSON text of further keys, and ipam is the
// JSON text of the IPAM configuration. Each may be empty.
func Conf(plugin, version, keys, ipam string) string {
	if keys != "" {
		keys = "," + keys
	}
	if ipam != "" {
		ipam = `,"ipam":` + ipam
	}
	return fmt.Sprintf(`{"cniVersion":%q,"name":"net1","type":%q%s%s}`, version, plugin, keys, ipam)
}

// Addresses and host-local ranges on the segment of a Site, and IPAM configurations of static with these addresses.
const (
	ContainerV4, ContainerV6 = "198.18.0.50", "2001:db8:18::50"
	RangeV4                  = `[{"subnet":"198.18.0.0/24","rangeStart":"198.18.0.100"}]`
	RangeV6                  = `[{"subnet":"2001:db8:18::/64","rangeStart":"2001:db8:18::100"}]`
	StaticV4                 = `{"type":"static","addresses":[{"address":"198.18.0.50/24"}]}`
	StaticDual               = `{"type":"static","addresses":[{"address":"198.18.0.50/24","gateway":"198.18.0.2"},` +
		`{"address":"2001:db8:18::50/64","gateway":"2001:db8:18::2"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}],"dns":{"nameservers":["198.18.0.53"]}}`
)

// Static returns the IPAM configuration of static with these addresses, for example "10.0.0.2/24".
func Static(addresses ...string) string {
	return `{"type":"static","addresses":[{"address":"` + strings.Join(addresses, `"},{"address":"`) + `"}]}`
}

// HostLocal returns the IPAM configuration of host-local with these ranges, or with RangeV4 and RangeV6 if there are none.
func (b *Bed) HostLocal(ranges ...string) string {
	if len(ranges) == 0 {
		ranges = []string{RangeV4, RangeV6}
	}
	return fmt.Sprintf(`{"type":"host-local","dataDir":%q,"ranges":[%s]}`, b.DataDir, strings.Join(ranges, ","))
}

// Call returns a call for the container with this ID.
func (b *Bed) Call(id string, container *NS, conf string) Call {
	return Call{ContainerID: id, Host: b.Host, Container: container, Path: b.Path, Config: conf}
}

// NewCall returns a call for a new container with the ID "one".
func (b *Bed) NewCall(conf string) Call {
	b.tb.Helper()
	return b.Call("one", b.NewContainer(), conf)
}

// RequireTraffic checks that two hosts with these addresses reach each other over TCP, and see each other's address.
func RequireTraffic(tb TB, a, b *NS, addrA, addrB string) {
	tb.Helper()
	from, to := a, b
	for _, addrs := range [][2]string{{addrA, addrB}, {addrB, addrA}} {
		server := ServeTCP(tb, to, net.JoinHostPort(addrs[1], "80"))
		MustDial(tb, from, server.String(), addrs[0])
		from, to = to, from
	}
}

// Run calls the plugin.
func (b *Bed) Run(command string, c Call) Reply { return Run(b.Plugin, c.With(command)) }

// OK calls the plugin, which must succeed.
func (b *Bed) OK(command string, c Call) Reply {
	b.tb.Helper()
	return b.Run(command, c).OK(b.tb)
}

// Fails calls the plugin, which must fail with the code and with all texts in its error.
func (b *Bed) Fails(command string, c Call, code int, texts ...string) {
	b.tb.Helper()
	b.Run(command, c).RequireFailure(b.tb, code, texts...)
}

// Add calls ADD, which must succeed, and returns its result.
func (b *Bed) Add(c Call) *types.Result {
	b.tb.Helper()
	return b.Run("ADD", c).Result(b.tb)
}

// Attach calls ADD, which must succeed, and returns the call with the result as prevResult.
func (b *Bed) Attach(c Call) Call {
	b.tb.Helper()
	c.Config = WithPrevResult(c.Config, b.OK("ADD", c).Stdout)
	return c
}

// Lifecycle calls ADD, the function attached, CHECK and DEL. DEL must restore the container and the reservations.
func (b *Bed) Lifecycle(c Call, attached func()) {
	b.tb.Helper()
	restored := b.Restored(c.Container)
	b.Add(c)
	attached()
	b.OK("CHECK", c)
	b.OK("DEL", c)
	restored()
}

// Refuse calls ADD, which must fail with the code and with all texts in its error. ADD must not change the container,
// the reservations, Watch and Dirs.
func (b *Bed) Refuse(c Call, code int, texts ...string) {
	b.tb.Helper()
	restored := b.Restored(append(b.Watch, c.Container)...)
	b.Fails("ADD", c, code, texts...)
	restored()
}

// Restored returns a function that fails the test if the namespaces, the reservations or Dirs have changed since.
func (b *Bed) Restored(namespaces ...*NS) (restored func()) {
	b.tb.Helper()
	state := func() string { return b.state(namespaces) }
	before := WaitStable(state)
	return func() {
		b.tb.Helper()
		if diff := WaitEqual(before, state); diff != "" {
			b.tb.Fatalf("not as before:\n%s", diff)
		}
	}
}

// RequireRepair calls damage, after which CHECK must fail with the text. REPAIR must restore the host, the container and
// the reservations.
func (b *Bed) RequireRepair(c Call, damage func(), text string) {
	b.tb.Helper()
	b.Sorted, b.Omit = true, append(b.Omit, " ifindex=") // REPAIR may have created the bridge
	restored := b.Restored(b.Host, c.Container)
	damage()
	b.Fails("CHECK", c, types.CodeChanged, text)
	b.OK("REPAIR", c)
	restored()
}

// RequireNoRepair calls damage. REPAIR must fail with CHECK's error, and leave the host, the container and the
// reservations unchanged.
func (b *Bed) RequireNoRepair(c Call, damage func(), text string) {
	b.tb.Helper()
	damage()
	unchanged := b.Restored(b.Host, c.Container)
	b.Fails("CHECK", c, types.CodeChanged, text)
	b.Fails("REPAIR", c, types.CodeChanged, text)
	unchanged()
}

// RequireContainerRepair is RequireRepair for damage that REPAIR restores only with skel.ContainerSide.
func (b *Bed) RequireContainerRepair(c Call, damage func(), text string) {
	b.tb.Helper()
	b.Sorted = true
	restored := b.Restored(b.Host, c.Container)
	b.RequireNoRepair(c, damage, text)
	b.OK("REPAIR", c.OnContainerSide())
	restored()
}

// RequireRepairOf is RequireContainerRepair or RequireRepair for the damage of a command line in the container or on the host.
func (b *Bed) RequireRepairOf(c Call, in *NS, line, text string) {
	b.tb.Helper()
	require := b.RequireRepair
	if in == c.Container {
		require = b.RequireContainerRepair
	}
	require(c, func() { in.MustLine(b.tb, line) }, text)
}

// state returns the state of the namespaces, the reservations and Dirs.
func (b *Bed) state(namespaces []*NS) string {
	b.tb.Helper()
	all := append(strings.Split(Snapshot(b.tb, namespaces...), "\n"), b.Reservations()...)
	for _, dir := range b.Dirs {
		for line := range strings.SplitSeq(SnapshotDir(b.tb, dir), "\n") {
			if line != "" && !strings.HasPrefix(line, "d") { // ADD creates directories
				all = append(all, line)
			}
		}
	}
	all = slices.DeleteFunc(all, func(line string) bool {
		return slices.ContainsFunc(b.Omit, func(text string) bool { return strings.Contains(line, text) })
	})
	if b.Sorted {
		slices.Sort(all)
	}
	return strings.Join(all, "\n")
}

// Reservations returns the addresses that host-local has reserved.
func (b *Bed) Reservations() []string {
	b.tb.Helper()
	return Reservations(b.tb, b.DataDir, "net1")
}

// RequireResults compares the result of ADD in each version with testdata/add-VERSION.golden. The files contain SANDBOX
// instead of the container's path. replace lists further pairs of a text in the result and its replacement in the
// files.
func (b *Bed) RequireResults(conf func(version string) string, replace ...string) {
	b.tb.Helper()
	for _, version := range types.VersionsSince(types.V010) {
		c := b.NewCall(conf(version))
		text := b.OK("ADD", c).Stdout
		Golden(b.tb, "add-"+version, strings.NewReplacer(append(replace, c.Container.Path(), "SANDBOX")...).Replace(text))
		b.OK("DEL", c)
	}
}

// RequireStatus checks that STATUS fails with types.CodeNotAvailable and the text, or succeeds if the text is empty.
func (b *Bed) RequireStatus(conf, text string) {
	b.tb.Helper()
	c := b.Call("", nil, conf)
	if text == "" {
		b.OK("STATUS", c)
		return
	}
	b.Fails("STATUS", c, types.CodeNotAvailable, text)
}

// OnlyTwoValid is a key for GC that makes only the attachment of the container "two" valid.
const OnlyTwoValid = `"cni.dev/valid-attachments":[{"containerID":"two","ifname":"eth0"}]`

// RequireGC checks that GC makes the IPAM plugin release the addresses of all containers except "two". The
// configuration must contain OnlyTwoValid and HostLocal.
func (b *Bed) RequireGC(conf string) {
	b.tb.Helper()
	for _, id := range []string{"one", "two"} {
		Exec(b.tb, b.Path+"/host-local", b.Call(id, b.NewContainer(), conf).With("ADD")).OK(b.tb)
	}
	b.OK("GC", b.Call("", nil, conf))
	if left := b.Reservations(); !slices.Equal(left, []string{"198.18.0.101", "2001:db8:18::101"}) {
		b.tb.Errorf("unexpected reservations after GC: %q", left)
	}
}

// RequireManyAtOnce adds and deletes many containers at the same time, in several rounds. The configuration must
// contain HostLocal. Two containers must never get the same address, and each round must leave the host, Dirs and the
// containers unchanged.
func (b *Bed) RequireManyAtOnce(conf string, containers, rounds int) {
	b.tb.Helper()
	calls, namespaces := make([]Call, containers), []*NS{b.Host}
	for i := range calls {
		calls[i] = b.Call(fmt.Sprint("c", i), b.NewContainer(), conf)
		namespaces = append(namespaces, calls[i].Container)
	}
	restored := b.Restored(namespaces...)
	for range rounds {
		given := map[netip.Prefix]bool{}
		for _, r := range RunAll(b.Plugin, "ADD", calls) {
			for _, ip := range r.Result(b.tb).IPs {
				given[ip.Address] = true
			}
		}
		if len(given) != 2*containers {
			b.tb.Fatalf("want %d addresses, got %d", containers, len(given))
		}
		for _, r := range RunAll(b.Plugin, "DEL", calls) {
			r.OK(b.tb)
		}
		restored()
	}
}

// FaultSweep calls the function FaultSweep for the bed's plugin. It sets s.Plugin, s.Path and s.Dirs.
func (b *Bed) FaultSweep(s Sweep) {
	b.tb.Helper()
	s.Plugin, s.Path, s.Dirs, s.Ignore = b.Plugin, b.Path, append(b.Dirs, b.DataDir), KeptByHostLocal
	FaultSweep(b.tb, s)
}

// ReadFile returns the content of a file.
func ReadFile(tb TB, path string) string {
	tb.Helper()
	text, err := os.ReadFile(path)
	Must(tb, err)
	return string(text)
}

// RequireTryAgain calls ADD with the configuration once for each step of an ADD, and calls vanish before that step, which
// deletes an interface of the host that ADD needs. Each ADD must succeed, return types.CodeTryAgain, or return
// types.CodeConfig because ADD has not found the interface. restore prepares the host for the next ADD.
func (b *Bed) RequireTryAgain(conf string, restore, vanish func()) {
	b.tb.Helper()
	restore()
	c, steps := b.NewCall(conf).RecordSteps()
	b.OK("ADD", c)
	c.Before = nil
	b.OK("DEL", c)
	for i, step := range *steps {
		restore()
		n := -1
		c.Before = func(string) error {
			if n++; n == i {
				vanish()
			}
			return nil
		}
		reply := b.Run("ADD", c)
		c.Before = nil
		if reply.Exit != 0 {
			if code := reply.Failure(b.tb).Code; code != types.CodeTryAgain && code != types.CodeConfig {
				b.tb.Errorf("interface deleted before step %q: got %s", step, reply.Stdout)
			}
		}
		b.OK("DEL", c)
	}
}
