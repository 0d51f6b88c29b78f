package faults

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/test/faults/inject"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

const (
	dualStackIPAM = `"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`
	bridgeConfig = `"bridge": "br0", "isGateway": true, "ipam": {"type": "static", "addresses": [{"address": "ADDRESS/24"}]}`
)

// pluginConfigs returns one configuration of each plugin, or several if the tests inject all faults.
func pluginConfigs() []pluginConfig {
	some := []pluginConfig{
		{name: "bridge", plugin: "bridge", keys: `"bridge": "br0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables", "macspoofchk": true, ` + dualStackIPAM},
		{name: "ptp", plugin: "ptp", keys: `"ipMasq": true, "ipMasqBackend": "nftables", ` + dualStackIPAM},
		{name: "macvlan", plugin: "macvlan", needsNamespace: true, keys: `"master": "uplink0", "optimisticDAD": true, ` + dualStackIPAM},
		{name: "tap", plugin: "tap", needsNamespace: true, keys: `"mtu": 1400, "mac": "0a:00:00:00:00:01", "owner": 107, ` + dualStackIPAM},
		{name: "tc-redirect-tap", plugin: "tc-redirect-tap", bridgeKeys: bridgeConfig, needsNamespace: true, keys: `"args": {}`},
		{name: "host-device", plugin: "host-device", takesDevice: true, keys: `"device": "DEVICE", "restoreAddresses": true, "optimisticDAD": true, ` + dualStackIPAM},
		{name: "host-device with useInterfaceNetwork", plugin: "host-device", takesDevice: true, keys: `"device": "DEVICE", "useInterfaceNetwork": true, "optimisticDAD": true`},
		{name: "portmap", plugin: "portmap", bridgeKeys: bridgeConfig, keys: `"backend": "nftables", "snat": true, "runtimeConfig": {"portMappings": [
			{"hostPort": PORT, "containerPort": 80, "protocol": "tcp"}, {"hostPort": PORT, "containerPort": 53, "protocol": "udp"}]}`},
		{name: "bandwidth", plugin: "bandwidth", bridgeKeys: bridgeConfig,
			keys: `"ingressRate": 80000000, "ingressBurst": 800000, "egressRate": 40000000, "egressBurst": 400000`},
		{name: "tuning", plugin: "tuning", bridgeKeys: bridgeConfig, needsNamespace: true,
			keys: `"dataDir": "DIR/tuning", "mtu": 1400, "mac": "0a:00:00:00:00:01", "promisc": true, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}`},
		{name: "sbr", plugin: "sbr", bridgeKeys: bridgeConfig, needsNamespace: true, keys: `"keepMain": "subnet"`},
		{name: "firewall", plugin: "firewall", bridgeKeys: bridgeConfig, keys: `"backend": "nftables", "ingressPolicy": "isolated"`},
		{name: "host-access", plugin: "host-access", bridgeKeys: bridgeConfig, needsNamespace: true, keys: `"hostAddresses": ["198.18.0.1"]`},
		{name: "host-local", plugin: "host-local", filesOnly: true, keys: dualStackIPAM},
		{name: "host-local with sticky", plugin: "host-local", filesOnly: true,
			keys: `"runtimeConfig": {"mac": "02:00:00:00:00:05"}, ` + strings.Replace(dualStackIPAM, `"ranges"`, `"sticky": "mac", "ranges"`, 1)},
		{name: "vlan", plugin: "vlan", kind: "vlan id 1", needsNamespace: true, keys: `"master": "uplink0", "vlanId": VLAN, "optimisticDAD": true, ` + dualStackIPAM},
		{name: "ipvlan", plugin: "ipvlan", kind: "ipvlan", needsNamespace: true, keys: `"master": "uplink0", "dataDir": "DIR/ipvlan", "optimisticDAD": true, ` + dualStackIPAM},
		{name: "dummy", plugin: "dummy", kind: "dummy", needsNamespace: true, keys: dualStackIPAM},
		{name: "vrf", plugin: "vrf", kind: "vrf table 9", bridgeKeys: bridgeConfig, needsNamespace: true, keys: `"vrfname": "blue"`},
	}
	if !nstest.AllFaults() {
		return some
	}
	return append(some, pluginConfig{
		name: "bridge with iptables", plugin: "bridge", keys: `"bridge": "br0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "iptables", ` + dualStackIPAM,
	}, pluginConfig{
		name: "portmap with iptables", plugin: "portmap", bridgeKeys: bridgeConfig,
		keys: `"backend": "iptables", "snat": true, "runtimeConfig": {"portMappings": [{"hostPort": PORT, "containerPort": 80, "protocol": "tcp"}]}`,
	}, pluginConfig{
		name: "firewall with iptables", plugin: "firewall", bridgeKeys: bridgeConfig, keys: `"backend": "iptables", "ingressPolicy": "isolated"`,
	}, pluginConfig{
		name: "bandwidth for some subnets", plugin: "bandwidth", bridgeKeys: bridgeConfig,
		keys: `"ingressRate": 80000000, "ingressBurst": 800000, "egressRate": 40000000, "egressBurst": 400000, "unshapedSubnets": ["10.0.0.0/8"]`,
	})
}

var _ = Describe("nothing remains after a fault at any system call", func() {
	for _, config := range pluginConfigs() {
		Describe(config.name, Ordered, func() { // all specs share the host
			var n *testHost
			BeforeAll(func() { n = newTestHost(config) })
			for i, kind := range faultKinds() {
				if labels, ok := config.injects(kind); ok {
					It(kind.name, labels, func() {
						n.replaceContainer()
						injectAtEachCall(n, kind, i)
					})
				}
			}
		})
	}
})

// kindsInVM lists the kinds of faults that the tests inject by default if some kernels lack the plugin's kind
// of link, because the virtual machine of test/vm is too slow for all kinds of faults.
var kindsInVM = []string{"ADD killed, then DEL", "kernel request refused in ADD"}

// injects returns the labels of the spec for this kind of faults, and whether the tests inject such faults into
// the plugin.
func (config pluginConfig) injects(kind faultKind) (Labels, bool) {
	if kind.appliesTo != nil && !kind.appliesTo(config) {
		return nil, false
	}
	return config.labels(), config.kind == "" || nstest.AllFaults() || slices.Contains(kindsInVM, kind.name)
}

// labels returns the label Kernel if some kernels lack the kind of link that the plugin creates.
func (config pluginConfig) labels() Labels {
	if config.kind == "" {
		return nil
	}
	return Label(nstest.Kernel)
}

// A faultKind is a kind of fault in one verb, and the calls that must restore the state
// afterwards.
type faultKind struct {
	name      string
	appliesTo func(pluginConfig) bool // nil for every plugin
	calls     []inject.Syscall
	processes processes
	verdicts  []inject.Verdict
	// ciStep is the distance between the faults that the tests inject by default. For example, 5 means every
	// fifth fault.
	ciStep int
	try    func(*testHost, *fault) error
}

func callsIPAM(config pluginConfig) bool {
	return strings.Contains(config.keys, "host-local") && !config.filesOnly
}

// hasFiles reports whether the plugin, or its IPAM plugin, writes files.
func hasFiles(config pluginConfig) bool { return strings.Contains(config.keys, "DIR/") }

func usesNetlink(config pluginConfig) bool { return !config.filesOnly }

// keepsHost reports whether all of the host's interfaces exist after a container has ended.
func keepsHost(config pluginConfig) bool { return usesNetlink(config) && !config.takesDevice }

func faultKinds() []faultKind {
	killed := []inject.Verdict{inject.Kill()}
	refused := []inject.Verdict{inject.Refuse(unix.ENOBUFS), inject.Refuse(unix.EBUSY), inject.Refuse(unix.ENOMEM), inject.Refuse(unix.EPERM)}
	broken := []inject.Verdict{inject.Refuse(unix.ENOSPC), inject.Refuse(unix.EIO), inject.Refuse(unix.EROFS)}
	fixed, lost := []inject.Verdict{inject.Refuse(unix.EROFS), inject.Refuse(unix.EPERM)}, []inject.Verdict{inject.Refuse(unix.ENOBUFS)}
	mutating, netlink, files := inject.Mutating(), inject.NetlinkRequests(), inject.FileChanges()
	return []faultKind{
		{"ADD killed, then DEL", nil, mutating, pluginOnly, killed, 5, (*testHost).addThenDel},
		{"ADD killed, then DEL while its IPAM plugin runs", callsIPAM, mutating, pluginOnly, killed, 9, (*testHost).addThenDelAtOnce},
		{"ADD killed, then DEL before its IPAM plugin takes its lock", callsIPAM, mutating, pluginOnly, killed, 9, (*testHost).addThenDelBeforeIPAM},
		{"ADD killed, then DEL without namespace", nil, mutating, pluginOnly, killed, 7, (*testHost).addThenDelWithoutNetns},
		{"ADD killed, then DEL after the namespace was removed", keepsHost, mutating, pluginOnly, killed, 9, (*testHost).addThenDelAfterContainer},
		{"ADD killed, then GC", nil, mutating, pluginOnly, killed, 5, (*testHost).addThenGC},
		{"IPAM killed in ADD", callsIPAM, mutating, childrenOnly, killed, 9, (*testHost).addFails},
		{"kernel request refused in ADD", usesNetlink, netlink, pluginAndIPAM, refused, 9, (*testHost).addFails},
		{"write to /proc refused in ADD", usesNetlink, inject.ProcWrites(), pluginAndIPAM, fixed, 3, (*testHost).addFailsOrWarns},
		{"netlink reply lost in ADD, then DEL", usesNetlink, inject.NetlinkReplies(), pluginAndIPAM, lost, 9, (*testHost).addFailsThenDel},
		{"file call refused in ADD", hasFiles, files, pluginAndIPAM, broken, 9, (*testHost).addFails},
		{"file call interrupted in ADD and DEL", func(config pluginConfig) bool { return config.filesOnly }, files, pluginAndIPAM, []inject.Verdict{inject.Refuse(unix.EINTR)}, 3, (*testHost).addAndDel},
		{"write to /proc interrupted in ADD and DEL", func(config pluginConfig) bool { return config.plugin == "bridge" }, inject.ProcWrites(), pluginAndIPAM, []inject.Verdict{inject.Refuse(unix.EINTR)}, 3, (*testHost).addAndDel},
		{"DEL killed, then DEL", nil, mutating, pluginOnly, killed, 5, (*testHost).delTwice},
		{"IPAM killed in DEL, then DEL", callsIPAM, mutating, childrenOnly, killed, 9, (*testHost).delTwice},
		{"kernel request refused in DEL, then DEL", usesNetlink, netlink, pluginAndIPAM, refused, 17, (*testHost).delTwice},
		{"netlink reply lost in DEL, then DEL", usesNetlink, inject.NetlinkReplies(), pluginAndIPAM, lost, 17, (*testHost).delTwice},
		{"file call refused in DEL, then DEL", hasFiles, files, pluginAndIPAM, broken, 9, (*testHost).delTwice},
		{"GC killed, then GC", nil, mutating, pluginAndIPAM, killed, 9, (*testHost).gcTwice},
		{"kernel request refused in GC, then GC", usesNetlink, netlink, pluginAndIPAM, refused, 17, (*testHost).gcTwice},
	}
}

// injectAtEachCall runs kind.try once per system call, and injects the fault at that call. It ends with the
// first run with too few calls for the fault. By default, it injects one verdict at every ciStep-th call, and
// with -short at every fourth one of these calls. offset determines the first call.
func injectAtEachCall(n *testHost, kind faultKind, offset int) {
	GinkgoHelper()
	step := kind.ciStep * nstest.FullOrShort(1, 4)
	if nstest.AllFaults() {
		step = 1
	}
	for at := 1 + offset%step; ; at += step {
		verdicts := kind.verdicts
		if !nstest.AllFaults() {
			verdicts = verdicts[at/step%len(verdicts):][:1]
		}
		for _, v := range verdicts {
			injected := &fault{calls: kind.calls, processes: kind.processes, callNumber: at, verdict: v}
			err := kind.try(n, injected)
			if injected.faultyCall != "" {
				record(n.name+": "+kind.name, err == nil)
			}
			if err != nil {
				Fail(fmt.Sprintf("fault at %s (%s): %v", injected.faultyCall, v, err))
			}
			if injected.faultyCall == "" {
				return
			}
		}
	}
}

// addWithFault runs an ADD with the fault. It returns the result, or "" if the ADD was killed.
func (n *testHost) addWithFault(f *fault) string {
	GinkgoHelper()
	return resultOf(n.runTreeWithFault(n.addCall(), f))
}

// resultOf returns the result of an ADD, or "" if the ADD failed.
func resultOf(r nstest.Reply) string {
	if r.Exit != 0 {
		return ""
	}
	return r.Stdout
}

// addThenDel checks that DEL removes everything that a killed ADD left.
func (n *testHost) addThenDel(f *fault) error {
	if _, err := n.run(n.delCall(n.addWithFault(f))); err != nil {
		return err
	}
	return waitUnchanged(n.before, n.fullState)
}

// addThenDelAtOnce is addThenDel, but runs DEL while the IPAM plugin of the killed ADD may still be running.
func (n *testHost) addThenDelAtOnce(f *fault) error {
	r, tree := n.runWithFault(n.addCall(), f)
	_, err := n.run(n.delCall(resultOf(r)))
	if f.allowLock != nil {
		close(f.allowLock)
	}
	if err := tree.Wait(callTimeout); err != nil {
		Fail(err.Error())
	}
	if err != nil {
		return err
	}
	return waitUnchanged(n.before, n.fullState)
}

// addThenDelBeforeIPAM is addThenDelAtOnce, but the IPAM plugin of the killed ADD takes its lock
// only after the DEL.
func (n *testHost) addThenDelBeforeIPAM(f *fault) error {
	f.allowLock = make(chan struct{})
	return n.addThenDelAtOnce(f)
}

// addThenDelWithoutNetns is addThenDel with a DEL without a namespace. In every other run, if the ADD returned
// no result, DEL also gets no prevResult.
func (n *testHost) addThenDelWithoutNetns(f *fault) error {
	result := n.addWithFault(f)
	c := n.delCall(result)
	if f.callNumber%2 == 0 && result == "" {
		c.Config = n.config(n.plugin, n.keys, "tested", "")
	}
	c.Container = nil
	if _, err := n.run(c); err != nil {
		return err
	}
	return n.checkRestored()
}

// checkRestored returns an error if the state is not as before. For a plugin with needsNamespace, it compares
// only the host's part of the state.
func (n *testHost) checkRestored() error {
	if !n.needsNamespace {
		return waitUnchanged(n.before, n.fullState)
	}
	before := hostPart(n.before)
	err := waitUnchanged(before, func() string { return hostPart(n.state(n.host)) })
	n.replaceContainer()
	return err
}

// addThenDelAfterContainer is addThenDel, but the container's namespace is removed before DEL.
func (n *testHost) addThenDelAfterContainer(f *fault) error {
	c := n.delCall(n.addWithFault(f))
	n.container.Remove(n)
	if _, err := n.run(c); err != nil {
		return err
	}
	err := waitUnchanged(n.hostBefore, n.hostState)
	n.replaceContainer()
	return err
}

// addThenGC checks that GC removes everything that a killed ADD left.
func (n *testHost) addThenGC(f *fault) error {
	n.addWithFault(f)
	if _, err := n.run(n.gcCall()); err != nil {
		return err
	}
	return n.checkRestored()
}

// addFails checks that ADD returns an error that names the cause, and that the state is as before. If ADD
// succeeds although the request was refused, CHECK and DEL must succeed as well.
func (n *testHost) addFails(f *fault) error {
	r := n.runTreeWithFault(n.addCall(), f)
	if r.Exit == 0 {
		return n.checkThenDel(r)
	}
	return n.checkRefused(f, r)
}

// checkRefused checks that the error of an ADD names the cause of the fault, and that the state is as before.
func (n *testHost) checkRefused(f *fault, r nstest.Reply) error {
	if f.faultyCall == "" {
		return fmt.Errorf("ADD failed, but no fault was injected: %s", r.Stdout)
	}
	if cause := f.verdict.Cause(); !strings.Contains(r.Failure(n).String(), cause) {
		return fmt.Errorf("the error does not name its cause: %s", r.Stdout)
	}
	if err := waitUnchanged(n.before, n.fullState); err != nil {
		return fmt.Errorf("%w\noutput of the plugin: %s%s", err, r.Stdout, r.Stderr)
	}
	return nil
}

// addFailsOrWarns is addFails for a refused write of a sysctl. If ADD succeeds nevertheless, it must name the
// setting in a warning, and CHECK may fail because of the setting.
func (n *testHost) addFailsOrWarns(f *fault) error {
	r := n.runTreeWithFault(n.addCall(), f)
	if r.Exit != 0 {
		return n.checkRefused(f, r)
	}
	if check := nstest.Exec(n, n.program(), n.delCall(r.Stdout).With("CHECK")); check.Exit != 0 {
		differs := regexp.MustCompile(`sysctl (\S+) (?:of the container )?is `).FindStringSubmatch(check.Failure(n).String())
		if differs == nil || !strings.Contains(r.Stderr, differs[1]) {
			return fmt.Errorf("CHECK after a refused write: %s\nwarnings of ADD: %s", check.Stdout, r.Stderr)
		}
	}
	if _, err := n.run(n.delCall(r.Stdout)); err != nil {
		return err
	}
	return waitUnchanged(n.before, n.fullState)
}

// addAndDel checks that ADD and DEL succeed, because they must repeat a call that a signal interrupted. The
// fault is at a call of ADD or of DEL.
func (n *testHost) addAndDel(f *fault) error {
	r := n.runTreeWithFault(n.addCall(), f)
	if r.Exit != 0 {
		return fmt.Errorf("ADD failed: %s", r.Stdout)
	}
	if r := n.runTreeWithFault(n.delCall(r.Stdout), f); r.Exit != 0 {
		return fmt.Errorf("DEL failed: %s", r.Stdout)
	}
	return waitUnchanged(n.before, n.fullState)
}

// addFailsThenDel is addFails for a lost netlink reply. The change may remain until the DEL, because the plugin
// does not know that the kernel applied it.
func (n *testHost) addFailsThenDel(f *fault) error {
	r := n.runTreeWithFault(n.addCall(), f)
	if r.Exit == 0 {
		return n.checkThenDel(r)
	}
	if cause := f.verdict.Cause(); !strings.Contains(r.Failure(n).String(), cause) {
		return fmt.Errorf("the error does not name its cause: %s", r.Stdout)
	}
	if _, err := n.run(n.delCall("")); err != nil {
		return err
	}
	return waitUnchanged(n.before, n.fullState)
}

// checkThenDel checks that CHECK and DEL succeed after an ADD, and that DEL removes everything.
func (n *testHost) checkThenDel(r nstest.Reply) error {
	if _, err := n.run(n.delCall(r.Stdout).With("CHECK")); err != nil {
		return err
	}
	if _, err := n.run(n.delCall(r.Stdout)); err != nil {
		return err
	}
	return waitUnchanged(n.before, n.fullState)
}

// delTwice checks that a second DEL completes a DEL with a fault. In every other run, the second DEL gets no
// namespace.
func (n *testHost) delTwice(f *fault) error {
	r, err := n.run(n.addCall())
	if err != nil {
		return err
	}
	c := n.delCall(r.Stdout)
	n.runTreeWithFault(c, f)
	if f.callNumber%2 == 0 && !n.needsNamespace {
		c.Container = nil
	}
	if _, err := n.run(c); err != nil {
		return err
	}
	return waitUnchanged(n.before, n.fullState)
}

// gcTwice checks that a second GC completes a GC with a fault.
func (n *testHost) gcTwice(f *fault) error {
	if _, err := n.run(n.addCall()); err != nil {
		return err
	}
	n.runTreeWithFault(n.gcCall(), f)
	if _, err := n.run(n.gcCall()); err != nil {
		return err
	}
	return n.checkRestored()
}

// hostPart returns a state without the lines of the container.
func hostPart(state string) string {
	var kept []string
	for line := range strings.SplitSeq(state, "\n") {
		if !strings.HasPrefix(line, "container: ") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}
