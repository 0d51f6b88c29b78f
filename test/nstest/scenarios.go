package nstest

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// The functions in this file specify behaviour that several plugins share. Each function fails the test if the plugin
// behaves differently.

// NewScriptPlugin writes a shell script as a plugin to a new directory. It returns the directory and the path of a log.
// The script reads its configuration, and then runs body, which may append lines to "$LOG".
func NewScriptPlugin(tb TB, name, body string) (dir, log string) {
	tb.Helper()
	dir = tb.TempDir()
	log = filepath.Join(dir, "log")
	script := "#!/bin/sh\nLOG=" + log + "\ncat >/dev/null\n" + body + "\n"
	Must(tb, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	return dir, log
}

// NewIPAMScript writes a plugin as NewScriptPlugin does, for IPAM. Before body, the script appends a line to the log.
// The line contains the command, and "link" or "no link", which says whether the interface CNI_IFNAME exists.
func NewIPAMScript(tb TB, name, body string) (dir, log string) {
	tb.Helper()
	return NewScriptPlugin(tb, name, "nsenter --net=$CNI_NETNS ip link show $CNI_IFNAME >/dev/null 2>&1 && state=link || state='no link'\n"+
		"echo $CNI_COMMAND: $state >>$LOG\n"+body)
}

// A LinkForIPAM tests when an interface plugin calls an IPAM plugin that works over the link. The container's interface
// must exist with its name and be up, for ADD and for DEL. The type of the IPAM plugin in the configuration must be
// "dhcp". The test's IPAM plugin returns the address 198.18.0.60.
type LinkForIPAM struct {
	Plugin   skel.Plugin
	Call     Call
	HostEnds string // a command that prints one line for each host end on the host, or "" if the plugin creates none
	Want     int    // the number of lines that HostEnds prints while the attachment exists
}

// Require checks the order for ADD, and then for DEL or GC. GC gets CNI_NETNS as well, although a runtime does not pass
// it.
func (l LinkForIPAM) Require(tb TB, command string) {
	tb.Helper()
	c := l.Call
	var log string
	c.Path, log = NewScriptPlugin(tb, "dhcp", fmt.Sprintf(`state=$(nsenter --net="$CNI_NETNS" ip -br link show "$CNI_IFNAME" | grep -o UP,LOWER_UP)
echo "$CNI_COMMAND ${state:-down} $(nsenter --net=%s %s | wc -l)" >>$LOG
[ "$CNI_COMMAND" != ADD ] || echo '{"cniVersion":"1.1.0","ips":[{"address":"198.18.0.60/24","gateway":"198.18.0.2"}]}'`, c.Host.Path(), cmp.Or(l.HostEnds, "true")))
	c.Before = func(step string) error {
		for _, verb := range []string{"add link", "move link", "set link", "delete link"} {
			if strings.HasPrefix(step, verb) {
				time.Sleep(200 * time.Millisecond) // an IPAM plugin that is called too early needs time to log this
			}
		}
		return nil
	}
	Run(l.Plugin, c.With("ADD")).OK(tb)
	if command == "GC" {
		c.Config = strings.TrimSuffix(c.Config, "}") + `,"cni.dev/valid-attachments":[]}`
	}
	Run(l.Plugin, c.With(command)).OK(tb)
	logged, err := os.ReadFile(log)
	if want := fmt.Sprintf("ADD UP,LOWER_UP %d\n%s UP,LOWER_UP %[1]d\n", l.Want, command); err != nil || string(logged) != want {
		tb.Errorf("want the IPAM plugin's log %q, got %q, %v", want, logged, err)
	}
	requireNoInterface(tb, c.Container)
}

// RequireAddOnReadOnlySysctls checks that ADD, CHECK and DEL succeed with a read-only /proc/sys. ADD must warn about
// the sysctls that it could not write, and the warning must contain the texts.
func RequireAddOnReadOnlySysctls(tb TB, p skel.Plugin, c Call, texts ...string) {
	tb.Helper()
	ReadOnlySysctls(tb)
	added := Run(p, c.With("ADD")).OK(tb)
	texts = append(texts, "warning: sysctls that cannot be written keep their values (read-only file system): ")
	for _, text := range texts {
		if !strings.Contains(added.Stderr, text) {
			tb.Errorf("want %q on stderr of ADD, got %q", text, added.Stderr)
		}
	}
	c.Config = WithPrevResult(c.Config, added.Stdout)
	Run(p, c.With("CHECK")).OK(tb)
	Run(p, c.With("DEL")).OK(tb)
}

// RequireRefusalOnReadOnlySysctls checks ADD with a read-only /proc/sys on a host that does not forward. ADD must fail
// with advice, and must leave no interface in the container.
func RequireRefusalOnReadOnlySysctls(tb TB, p skel.Plugin, c Call) {
	tb.Helper()
	c.Host.SetForwarding(tb, "0")
	restore := ReadOnlySysctls(tb)
	f := Run(p, c.With("ADD")).Failure(tb)
	if f.Code != types.CodeIO || !strings.Contains(f.Msg, "forward") || !strings.Contains(f.Msg, "mount /proc/sys writable") {
		tb.Errorf("want code %d with advice, got %s", types.CodeIO, f)
	}
	restore()
	requireNoInterface(tb, c.Container)
}

// RequireRemovedInterfaceInError checks the error of an ADD while the container's interface is removed. The removal
// comes just before each step whose name begins with step.
func RequireRemovedInterfaceInError(tb TB, p skel.Plugin, c Call, step string) {
	tb.Helper()
	c.Before = func(s string) error {
		if strings.HasPrefix(s, step) {
			_, _ = c.Container.Exec("ip", "link", "del", "eth0") // fails the second time
		}
		return nil
	}
	f := Run(p, c.With("ADD")).Failure(tb)
	const want = "interface eth0 was removed during ADD, probably by a DEL of the same attachment"
	if f.Msg != want || f.Code != types.CodeTryAgain {
		tb.Errorf("want code %d: %s, got %s", types.CodeTryAgain, want, f)
	}
}

// RequireDelRestores checks that DEL restores the host, the container and the reservations, and that a second DEL does
// not change them, for each way in which a runtime may call DEL. The host must have served another container before.
func (b *Bed) RequireDelRestores(c Call) {
	b.tb.Helper()
	restored := b.Restored(b.Host, c.Container)
	for _, variant := range delVariants(b.tb) {
		b.tb.Logf("DEL %s", variant.name)
		del := variant.change(c, b.OK("ADD", c))
		b.OK("DEL", del)
		b.OK("DEL", del)
		restored()
	}
}

// A delVariant is one way in which a runtime may call DEL after an ADD that printed added.
type delVariant struct {
	name   string
	change func(c Call, added Reply) Call
}

func delVariants(tb TB) []delVariant {
	tb.Helper()
	regular := filepath.Join(tb.TempDir(), "regular")
	Must(tb, os.WriteFile(regular, nil, 0o600))
	return []delVariant{
		{"with prevResult", func(c Call, added Reply) Call { c.Config = WithPrevResult(c.Config, added.Stdout); return c }},
		{"without prevResult", func(c Call, _ Reply) Call { return c }},
		{"without CNI_NETNS", func(c Call, _ Reply) Call { c.Container = nil; return c }},
		{"with nothing at CNI_NETNS", func(c Call, _ Reply) Call { c.Container, c.NetNS = nil, regular+"x"; return c }},
		{"with a regular file at CNI_NETNS", func(c Call, _ Reply) Call { c.Container, c.NetNS = nil, regular; return c }},
		{"with another namespace at CNI_NETNS", func(c Call, _ Reply) Call { c.Container = New(tb); return c }},
		{"with a configuration that ADD rejects", func(c Call, _ Reply) Call {
			c.Config = strings.Replace(c.Config, `"ipMasq":true,`, `"mtu":-4,"ipMasqBackend":"none",`, 1)
			c.Args = "nonsense"
			return c
		}},
	}
}

// RequireDelOfContainerLink checks that DEL restores the host, the container and the reservations, whatever has changed
// since ADD, and that a second DEL succeeds. It is for plugins whose interface is only in the container. rejected is a
// configuration that ADD rejects.
func (b *Bed) RequireDelOfContainerLink(c Call, rejected string) {
	b.tb.Helper()
	restored := b.Restored(b.Host, c.Container)
	for name, change := range map[string]func(del *Call){
		"with prevResult":                              func(*Call) {},
		"without prevResult":                           func(del *Call) { del.Config = c.Config },
		"with a configuration that ADD rejects":        func(del *Call) { del.Config, del.Args = rejected, "X=1;;Y" },
		"without an alias, as of the reference plugin": func(*Call) { c.Container.Must(b.tb, "ip", "link", "set", "eth0", "alias", "") },
	} {
		b.tb.Logf("DEL %s", name)
		del := b.Attach(c)
		change(&del)
		b.OK("DEL", del)
		restored()
		b.OK("DEL", del)
	}
}

// RequireDelAfterLateAdd checks that DEL restores the host if an ADD of the same attachment adds objects to the host
// just before DEL deletes the link. The function add simulates this ADD.
func (b *Bed) RequireDelAfterLateAdd(c Call, add func(host *ns.Handle) error) {
	b.tb.Helper()
	restored := b.Restored(b.Host)
	b.OK("ADD", c)
	host := b.Host.Open(b.tb, &trace.Tracer{})
	late := errors.New("DEL did not delete the link")
	c.Before = func(step string) error {
		if strings.HasPrefix(step, "delete link") {
			late = add(host)
		}
		return nil
	}
	b.OK("DEL", c)
	if late != nil {
		b.tb.Fatalf("late ADD: %v", late)
	}
	restored()
}

// RequireSwap checks that the plugin can check and delete what the reference plugin with the name added, and vice versa.
// Each DEL must restore the host and the container.
func (b *Bed) RequireSwap(name string, c Call) {
	b.tb.Helper()
	restored := b.Restored(b.Host, c.Container)
	reference := func(command string, c Call) Reply { return ExecReference(b.tb, name, c.With(command)).OK(b.tb) }
	for _, sides := range [][]func(string, Call) Reply{{reference, b.OK}, {b.OK, reference}} {
		added := c
		added.Config = WithPrevResult(c.Config, sides[0]("ADD", c).Stdout)
		sides[1]("CHECK", added)
		sides[1]("DEL", added)
		restored()
	}
}

// RequireMasquerade checks that the host masquerades packets from containers to the outside host, but not packets
// between containers. The DEL of a container that has ended must remove everything with its addresses. one and two are
// the IPv4 and IPv6 addresses that the first two containers get, and delConf is the configuration of DEL.
func (b *Bed) RequireMasquerade(conf, delConf string, one, two [2]string) {
	b.tb.Helper()
	first, second := b.Call("one", New(b.tb), conf), b.Call("two", New(b.tb), conf)
	b.OK("CHECK", b.Attach(first))
	b.Add(second)
	outside, host := [2]string{OutsideV4, OutsideV6}, [2]string{HostV4, HostV6}
	var servers [2]string
	for i := range outside {
		servers[i] = ServeTCP(b.tb, b.Outside, net.JoinHostPort(outside[i], "80")).String()
		MustDial(b.tb, first.Container, servers[i], host[i])
		MustDial(b.tb, first.Container, ServeTCP(b.tb, second.Container, net.JoinHostPort(two[i], "80")).String(), one[i])
	}
	hostContains := func(addr string) bool {
		return regexp.MustCompile(regexp.QuoteMeta(addr) + `\b`).MatchString(Snapshot(b.tb, b.Host))
	}
	if !hostContains(one[0]) || !hostContains(one[1]) {
		b.tb.Errorf("want objects with the addresses %s on the host after ADD, got none", one)
	}
	first.Container.Remove(b.tb)
	first.Container, first.NetNS, first.Config = nil, first.Container.Path(), delConf
	b.OK("DEL", first)
	if hostContains(one[0]) || hostContains(one[1]) {
		b.tb.Errorf("the host still holds objects with the addresses %s after DEL", one)
	}
	MustDial(b.tb, second.Container, servers[0], host[0])
}

// RequireMasqueradeExcept checks that the host does not masquerade packets from a container to the outside host, but to
// another address. keys are those of conf except ipMasqExcept. subnets and container are the subnets of the network, and the
// addresses that the first container gets.
func (b *Bed) RequireMasqueradeExcept(conf func(keys string) string, subnets, container [2]string) {
	b.tb.Helper()
	except := fmt.Sprintf(`"ipMasq":true,"ipMasqExcept":["192.0.2.0/24","%s/32","%s/128"],`, OutsideV4, OutsideV6)
	outside, host, others := [2]string{OutsideV4, OutsideV6}, [2]string{HostV4, HostV6}, [2]string{"203.0.113.9", "2001:db8::9"}
	for i := range outside {
		b.Outside.IP("route add " + subnets[i] + " via " + host[i])
		b.Outside.IP("addr add " + others[i] + " dev lo")
		b.Host.IP("route add " + others[i] + " via " + outside[i])
	}
	c := b.Call("one", New(b.tb), conf(except))
	before := Snapshot(b.tb, b.Host)
	attached := b.Attach(c)
	b.OK("CHECK", attached)
	for i := range outside {
		MustDial(b.tb, c.Container, ServeTCP(b.tb, b.Outside, net.JoinHostPort(outside[i], "80")).String(), container[i])
		MustDial(b.tb, c.Container, ServeTCP(b.tb, b.Outside, net.JoinHostPort(others[i], "80")).String(), host[i])
	}
	attached.Config = strings.Replace(attached.Config, "192.0.2.0/24", "192.0.2.0/25", 1)
	b.Fails("CHECK", attached, types.CodeChanged)
	b.OK("REPAIR", attached)
	b.OK("CHECK", attached)
	c.Config = conf("") // DEL does not need the key
	b.OK("DEL", c)
	if after := Snapshot(b.tb, b.Host); strings.Contains(after, "192.0.2.0") && !strings.Contains(before, "192.0.2.0") {
		b.tb.Errorf("the host still holds the exemption after DEL:\n%s", Compare(before, after))
	}
}

// A Loss is damage on the host that stops packets from the outside host to a container.
type Loss struct {
	Addr string // address and port of a server in the container
	Line string // the command that does the damage
	Text string // CHECK's error contains it
}

// RequireFix checks that CHECK names the loss, and that the commands of its problems restore the packets.
func (b *Bed) RequireFix(c Call, l Loss) {
	b.tb.Helper()
	b.requireRestored(c, l, b.runFixes)
}

// RequireFixOnly is RequireFix for a loss that REPAIR does not restore.
func (b *Bed) RequireFixOnly(c Call, l Loss) {
	b.tb.Helper()
	b.RequireFix(c, l)
	b.RequireNoRepair(c, func() { b.Host.MustLine(b.tb, l.Line) }, l.Text)
	b.runFixes(b.Run("CHECK", c).Failure(b.tb))
	b.OK("CHECK", c)
}

// runFixes runs the commands of the problems on the host.
func (b *Bed) runFixes(f Failure) {
	b.tb.Helper()
	for _, p := range f.Problems {
		b.Host.Must(b.tb, "sh", "-c", p.Fix)
	}
}

// RequireRepairOfLoss checks that CHECK names the loss, and that REPAIR restores the packets.
func (b *Bed) RequireRepairOfLoss(c Call, l Loss) {
	b.tb.Helper()
	b.requireRestored(c, l, func(Failure) { b.OK("REPAIR", c) })
}

func (b *Bed) requireRestored(c Call, l Loss, restore func(Failure)) {
	b.tb.Helper()
	MustDial(b.tb, b.Outside, l.Addr, "")
	b.Host.MustLine(b.tb, l.Line)
	for _, n := range []*NS{c.Container, b.Host} {
		n.IP("neigh flush all") // otherwise both ends know each other's MAC
	}
	MustNotAnswer(b.tb, b.Outside, l.Addr)
	reply := b.Run("CHECK", c)
	reply.RequireFailure(b.tb, types.CodeChanged, l.Text)
	restore(reply.Failure(b.tb))
	b.OK("CHECK", c)
	MustDial(b.tb, b.Outside, l.Addr, "")
}

// RequireGCOfNetwork checks that GC deletes only what belongs to its network, but not to a valid attachment. conf
// contains the network net1 and an IPv4 range, and other contains the network net2 and another range.
func (b *Bed) RequireGCOfNetwork(conf, other string) {
	b.tb.Helper()
	calls := []Call{b.Call("keep", New(b.tb), conf), b.Call("drop", New(b.tb), conf), b.Call("drop", New(b.tb), other)}
	var addrs []string
	for _, c := range calls {
		addrs = append(addrs, b.Add(c).IPs[0].Address.String())
	}
	gc := func(valid string) Call {
		return b.Call("", nil, strings.TrimSuffix(conf, "}")+`,"cni.dev/valid-attachments":[`+valid+`]}`)
	}
	requireKept := func(kept ...bool) {
		for i, c := range calls {
			if got := strings.Contains(c.Container.IP("-br addr"), addrs[i]); got != kept[i] {
				b.tb.Errorf("container %d: want its address to remain: %t, got %t", i, kept[i], got)
			}
		}
	}
	b.OK("GC", gc(`{"containerID":"keep","ifname":"eth0"}`))
	requireKept(true, false, true)
	state := b.state([]*NS{b.Host})
	for text, want := range map[string]bool{"net1/drop": false, strings.TrimSuffix(addrs[1], "/24"): false, "net1/keep": true, "net2/drop": true} {
		if strings.Contains(state, text) != want {
			b.tb.Errorf("objects with %s on the host: want %t, got %t", text, want, !want)
		}
	}
	b.OK("GC", gc(""))
	requireKept(false, false, true)
}

func requireNoInterface(tb TB, container *NS) {
	tb.Helper()
	if links := container.Must(tb, "ip", "-br", "link", "show"); strings.Contains(links, "eth0") {
		tb.Errorf("want no interface eth0, got the links\n%s", links)
	}
}
