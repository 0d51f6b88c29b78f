package faults

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/test/faults/inject"
	"github.com/plumb-cni/plumb/test/nstest"
)

const (
	dualStackIPAM = `"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`
	bridgeConfig = `"bridge": "br0", "isGateway": true, "ipam": {"type": "static", "addresses": [{"address": "ADDRESS/24"}]}`
)

// subjects returns the plugins and configurations to test: in CI the first configuration of
// each plugin, else all of them.
func subjects() []subject {
	some := []subject{
		{name: "bridge", plugin: "bridge", keys: `"bridge": "br0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables", "macspoofchk": true, ` + dualStackIPAM},
		{name: "ptp", plugin: "ptp", keys: `"ipMasq": true, "ipMasqBackend": "nftables", ` + dualStackIPAM},
		{name: "macvlan", plugin: "macvlan", needsNamespace: true, keys: `"master": "uplink0", "optimisticDAD": true, ` + dualStackIPAM},
		{name: "portmap", plugin: "portmap", below: bridgeConfig, keys: `"backend": "nftables", "snat": true, "runtimeConfig": {"portMappings": [
			{"hostPort": PORT, "containerPort": 80, "protocol": "tcp"}, {"hostPort": PORT, "containerPort": 53, "protocol": "udp"}]}`},
		{name: "bandwidth", plugin: "bandwidth", below: bridgeConfig,
			keys: `"ingressRate": 80000000, "ingressBurst": 800000, "egressRate": 40000000, "egressBurst": 400000`},
		{name: "tuning", plugin: "tuning", below: bridgeConfig, needsNamespace: true,
			keys: `"dataDir": "DIR/tuning", "mtu": 1400, "mac": "0a:00:00:00:00:01", "promisc": true, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}`},
		{name: "firewall", plugin: "firewall", below: bridgeConfig, keys: `"backend": "nftables", "ingressPolicy": "isolated"`},
		{name: "host-local", plugin: "host-local", filesOnly: true, keys: dualStackIPAM},
	}
	if !all() {
		return some
	}
	return append(some, subject{
		name: "bridge with iptables", plugin: "bridge", keys: `"bridge": "br0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "iptables", ` + dualStackIPAM,
	}, subject{
		name: "portmap with iptables", plugin: "portmap", below: bridgeConfig,
		keys: `"backend": "iptables", "snat": true, "runtimeConfig": {"portMappings": [{"hostPort": PORT, "containerPort": 80, "protocol": "tcp"}]}`,
	}, subject{
		name: "firewall with iptables", plugin: "firewall", below: bridgeConfig, keys: `"backend": "iptables", "ingressPolicy": "same-bridge"`,
	}, subject{
		name: "bandwidth for some subnets", plugin: "bandwidth", below: bridgeConfig,
		keys: `"ingressRate": 80000000, "ingressBurst": 800000, "egressRate": 40000000, "egressBurst": 400000, "unshapedSubnets": ["10.0.0.0/8"]`,
	})
}

var _ = Describe("a fault at any system call is undone or cleaned up", func() {
	for _, s := range subjects() {
		Describe(s.name, func() {
			for i, f := range families() {
				if f.appliesTo == nil || f.appliesTo(s) {
					It(f.name, func() { sweep(s, f, i) })
				}
			}
		})
	}
})

// A family is a kind of fault in one verb, and the calls that must restore the state
// afterwards.
type family struct {
	name      string
	appliesTo func(subject) bool // nil: every subject
	calls     []inject.Syscall
	processes processes
	verdicts  []inject.Verdict
	// ciStep is the distance between the faults that CI tests: 5 means every fifth.
	ciStep int
	try    func(*bed, *fault) error
}

// callsIPAM reports whether the plugin calls host-local.
func callsIPAM(s subject) bool { return strings.Contains(s.keys, "host-local") && !s.filesOnly }

// hasFiles reports whether the plugin, or its IPAM plugin, keeps files.
func hasFiles(s subject) bool { return strings.Contains(s.keys, "DIR/") }

// usesNetlink reports whether the plugin sends netlink requests.
func usesNetlink(s subject) bool { return !s.filesOnly }

// families returns the kinds of faults.
func families() []family {
	killed := []inject.Verdict{inject.Kill()}
	refused := []inject.Verdict{inject.Refuse(unix.ENOBUFS), inject.Refuse(unix.EBUSY), inject.Refuse(unix.ENOMEM), inject.Refuse(unix.EPERM)}
	broken := []inject.Verdict{inject.Refuse(unix.ENOSPC), inject.Refuse(unix.EIO), inject.Refuse(unix.EROFS)}
	fixed, lost := []inject.Verdict{inject.Refuse(unix.EROFS), inject.Refuse(unix.EPERM)}, []inject.Verdict{inject.Refuse(unix.ENOBUFS)}
	mutating, netlink, files := inject.Mutating(), inject.Netlink(), inject.Files()
	return []family{
		{"ADD killed, then DEL", nil, mutating, pluginOnly, killed, 5, (*bed).addThenDel},
		{"ADD killed, then at once DEL", callsIPAM, mutating, pluginOnly, killed, 9, (*bed).addThenDelAtOnce},
		{"ADD killed, then DEL before its IPAM plugin", callsIPAM, mutating, pluginOnly, killed, 9, (*bed).addThenDelBefore},
		{"ADD killed, then DEL without namespace", nil, mutating, pluginOnly, killed, 7, (*bed).addThenDelWithout},
		{"ADD killed, then DEL after the container", usesNetlink, mutating, pluginOnly, killed, 9, (*bed).addThenDelAfter},
		{"ADD killed, then GC", nil, mutating, pluginOnly, killed, 5, (*bed).addThenGC},
		{"IPAM killed in ADD", callsIPAM, mutating, childrenOnly, killed, 9, (*bed).addFails},
		{"request refused in ADD", usesNetlink, netlink, pluginAndIPAM, refused, 9, (*bed).addFails},
		{"setting refused in ADD", usesNetlink, inject.Settings(), pluginAndIPAM, fixed, 3, (*bed).addFails},
		{"answer lost in ADD, then DEL", usesNetlink, inject.Answers(), pluginAndIPAM, lost, 9, (*bed).addFailsThenDel},
		{"file refused in ADD", hasFiles, files, pluginAndIPAM, broken, 9, (*bed).addFails},
		{"file call interrupted in ADD and DEL", func(s subject) bool { return s.filesOnly }, files, pluginAndIPAM, []inject.Verdict{inject.Refuse(unix.EINTR)}, 3, (*bed).addAndDel},
		{"DEL killed, then DEL", nil, mutating, pluginOnly, killed, 5, (*bed).delTwice},
		{"IPAM killed in DEL, then DEL", callsIPAM, mutating, childrenOnly, killed, 9, (*bed).delTwice},
		{"request refused in DEL, then DEL", usesNetlink, netlink, pluginAndIPAM, refused, 17, (*bed).delTwice},
		{"answer lost in DEL, then DEL", usesNetlink, inject.Answers(), pluginAndIPAM, lost, 17, (*bed).delTwice},
		{"file refused in DEL, then DEL", hasFiles, files, pluginAndIPAM, broken, 9, (*bed).delTwice},
		{"GC killed, then GC", nil, mutating, pluginAndIPAM, killed, 9, (*bed).gcTwice},
		{"request refused in GC, then GC", usesNetlink, netlink, pluginAndIPAM, refused, 17, (*bed).gcTwice},
	}
}

// sweep runs f.try once per system call, and injects the fault at that call. It ends with the
// first run that makes fewer calls: no fault was injected in that run. In CI, sweep tests only
// every ciStep-th call, with one verdict per call; offset decides with which call it begins.
func sweep(s subject, f family, offset int) {
	GinkgoHelper()
	b := newBed(s)
	step := f.ciStep
	if all() {
		step = 1
	}
	for at := 1 + offset%step; ; at += step {
		verdicts := f.verdicts
		if !all() {
			verdicts = verdicts[at/step%len(verdicts):][:1]
		}
		for _, v := range verdicts {
			injected := &fault{calls: f.calls, processes: f.processes, at: at, verdict: v}
			err := f.try(b, injected)
			if injected.call != "" {
				tried(s.name+": "+f.name, err == nil)
			}
			if err != nil {
				Fail(fmt.Sprintf("fault at %s (%s): %v", injected.call, v, err))
			}
			if injected.call == "" {
				return
			}
		}
	}
}

// killedADD runs an ADD with the fault. It returns the result, or "" if the ADD was killed.
func (b *bed) killedADD(s *fault) string {
	GinkgoHelper()
	return resultOf(b.execAll(b.add(), s))
}

// resultOf returns the result of an ADD, or "" if the ADD failed.
func resultOf(r nstest.Reply) string {
	if r.Exit != 0 {
		return ""
	}
	return r.Stdout
}

// addThenDel checks that DEL removes what a killed ADD left.
func (b *bed) addThenDel(s *fault) error {
	if _, err := b.run(b.del(b.killedADD(s))); err != nil {
		return err
	}
	return waitUnchanged(b.before, b.fullState)
}

// addThenDelAtOnce is addThenDel, but runs DEL while the IPAM plugin of the killed ADD may
// still run.
func (b *bed) addThenDelAtOnce(s *fault) error {
	r, tree := b.exec(b.add(), s)
	_, err := b.run(b.del(resultOf(r)))
	if s.allowLock != nil {
		close(s.allowLock)
	}
	if err := tree.Wait(patience); err != nil {
		Fail(err.Error())
	}
	if err != nil {
		return err
	}
	return waitUnchanged(b.before, b.fullState)
}

// addThenDelBefore is addThenDelAtOnce, but the IPAM plugin of the killed ADD takes its lock
// only after the DEL.
func (b *bed) addThenDelBefore(s *fault) error {
	s.allowLock = make(chan struct{})
	return b.addThenDelAtOnce(s)
}

// addThenDelWithout is addThenDel, but DEL has no namespace. In every other run, DEL also has
// no prevResult if the ADD returned no result.
func (b *bed) addThenDelWithout(s *fault) error {
	result := b.killedADD(s)
	c := b.del(result)
	if s.at%2 == 0 && result == "" {
		c.Config = b.config(b.plugin, b.keys, "swept", "")
	}
	c.Pod = nil
	if _, err := b.run(c); err != nil {
		return err
	}
	return b.checkRestored()
}

// checkRestored returns an error if the state is not as before. For a plugin that can undo its
// work in the container only with the namespace, it compares the node's part of the state.
func (b *bed) checkRestored() error {
	if !b.needsNamespace {
		return waitUnchanged(b.before, b.fullState)
	}
	before := nodePart(b.before)
	err := waitUnchanged(before, func() string { return nodePart(b.state(b.node)) })
	b.renew()
	return err
}

// addThenDelAfter is addThenDel, but the container's namespace is removed before DEL.
func (b *bed) addThenDelAfter(s *fault) error {
	c := b.del(b.killedADD(s))
	b.pod.Remove(b)
	if _, err := b.run(c); err != nil {
		return err
	}
	err := waitUnchanged(b.without, b.nodeState)
	b.renew()
	return err
}

// addThenGC checks that GC removes what a killed ADD left.
func (b *bed) addThenGC(s *fault) error {
	b.killedADD(s)
	if _, err := b.run(b.gc()); err != nil {
		return err
	}
	return b.checkRestored()
}

// addFails checks that ADD returns an error that names the cause, and that the state is as
// before. If ADD succeeds in spite of the refused request, CHECK and DEL must succeed too.
func (b *bed) addFails(s *fault) error {
	r := b.execAll(b.add(), s)
	if r.Exit == 0 {
		return b.checkThenDel(r)
	}
	if s.call == "" {
		return fmt.Errorf("ADD failed, but no fault was injected: %s", r.Stdout)
	}
	if cause := s.verdict.Cause(); !strings.Contains(r.Failure(b).String(), cause) {
		return fmt.Errorf("the error does not name its cause: %s", r.Stdout)
	}
	if err := waitUnchanged(b.before, b.fullState); err != nil {
		return fmt.Errorf("%w\nthe plugin said: %s%s", err, r.Stdout, r.Stderr)
	}
	return nil
}

// addAndDel checks that ADD and DEL succeed: a call that a signal interrupted must be
// repeated. The fault is at a call of ADD or of DEL.
func (b *bed) addAndDel(s *fault) error {
	r := b.execAll(b.add(), s)
	if r.Exit != 0 {
		return fmt.Errorf("ADD failed: %s", r.Stdout)
	}
	if r := b.execAll(b.del(r.Stdout), s); r.Exit != 0 {
		return fmt.Errorf("DEL failed: %s", r.Stdout)
	}
	return waitUnchanged(b.before, b.fullState)
}

// addFailsThenDel is addFails for a lost answer. The plugin does not know that the kernel made
// the change, so the change may remain until the DEL.
func (b *bed) addFailsThenDel(s *fault) error {
	r := b.execAll(b.add(), s)
	if r.Exit == 0 {
		return b.checkThenDel(r)
	}
	if cause := s.verdict.Cause(); !strings.Contains(r.Failure(b).String(), cause) {
		return fmt.Errorf("the error does not name its cause: %s", r.Stdout)
	}
	if _, err := b.run(b.del("")); err != nil {
		return err
	}
	return waitUnchanged(b.before, b.fullState)
}

// checkThenDel checks that CHECK and DEL succeed after an ADD, and that DEL removes everything.
func (b *bed) checkThenDel(r nstest.Reply) error {
	if _, err := b.run(b.del(r.Stdout).With("CHECK")); err != nil {
		return err
	}
	if _, err := b.run(b.del(r.Stdout)); err != nil {
		return err
	}
	return waitUnchanged(b.before, b.fullState)
}

// delTwice checks that a second DEL completes a DEL with a fault. In every other run, the
// second DEL has no namespace.
func (b *bed) delTwice(s *fault) error {
	r, err := b.run(b.add())
	if err != nil {
		return err
	}
	c := b.del(r.Stdout)
	b.execAll(c, s)
	if s.at%2 == 0 && !b.needsNamespace {
		c.Pod = nil
	}
	if _, err := b.run(c); err != nil {
		return err
	}
	return waitUnchanged(b.before, b.fullState)
}

// gcTwice checks that a second GC completes a GC with a fault.
func (b *bed) gcTwice(s *fault) error {
	if _, err := b.run(b.add()); err != nil {
		return err
	}
	b.execAll(b.gc(), s)
	if _, err := b.run(b.gc()); err != nil {
		return err
	}
	return b.checkRestored()
}

// nodePart returns a state without the lines of the container.
func nodePart(state string) string {
	var kept []string
	for line := range strings.SplitSeq(state, "\n") {
		if !strings.HasPrefix(line, "pod: ") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}
