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
	dual = `"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`
	wired = `"bridge": "br0", "isGateway": true, "ipam": {"type": "static", "addresses": [{"address": "ADDRESS/24"}]}`
)

// subjects are what is swept: in CI the first of each plugin.
func subjects() []subject {
	some := []subject{
		{name: "bridge", plugin: "bridge", keys: `"bridge": "br0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables", "macspoofchk": true, ` + dual},
		{name: "ptp", plugin: "ptp", keys: `"ipMasq": true, "ipMasqBackend": "nftables", ` + dual},
		{name: "macvlan", plugin: "macvlan", own: true, keys: `"master": "uplink0", "optimisticDAD": true, ` + dual},
		{name: "portmap", plugin: "portmap", below: wired, keys: `"backend": "nftables", "snat": true, "runtimeConfig": {"portMappings": [
			{"hostPort": PORT, "containerPort": 80, "protocol": "tcp"}, {"hostPort": PORT, "containerPort": 53, "protocol": "udp"}]}`},
		{name: "bandwidth", plugin: "bandwidth", below: wired,
			keys: `"ingressRate": 80000000, "ingressBurst": 800000, "egressRate": 40000000, "egressBurst": 400000`},
		{name: "tuning", plugin: "tuning", below: wired, own: true,
			keys: `"dataDir": "DIR/tuning", "mtu": 1400, "mac": "0a:00:00:00:00:01", "promisc": true, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}`},
		{name: "host-local", plugin: "host-local", bare: true, keys: dual},
	}
	if !all() {
		return some
	}
	return append(some, subject{
		name: "bridge with iptables", plugin: "bridge", keys: `"bridge": "br0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "iptables", ` + dual,
	}, subject{
		name: "portmap with iptables", plugin: "portmap", below: wired,
		keys: `"backend": "iptables", "snat": true, "runtimeConfig": {"portMappings": [{"hostPort": PORT, "containerPort": 80, "protocol": "tcp"}]}`,
	}, subject{
		name: "bandwidth for some subnets", plugin: "bandwidth", below: wired,
		keys: `"ingressRate": 80000000, "ingressBurst": 800000, "egressRate": 40000000, "egressBurst": 400000, "unshapedSubnets": ["10.0.0.0/8"]`,
	})
}

var _ = Describe("a fault at any system call", func() {
	for _, s := range subjects() {
		Describe(s.name, func() {
			for i, f := range families() {
				if f.where == nil || f.where(s) {
					It(f.name, func() { sweep(s, f, i) })
				}
			}
		})
	}
})

// A family of faults is a verb that is struck, and how the node gets over it.
type family struct {
	name     string
	where    func(subject) bool // nil: every subject
	calls    []inject.Syscall
	whose    whose
	verdicts []inject.Verdict
	// some is of how many faults CI takes one.
	some int
	try  func(*bed, *strike) error
}

func asksIPAM(s subject) bool   { return strings.Contains(s.keys, "host-local") && !s.bare }
func hasFiles(s subject) bool   { return strings.Contains(s.keys, "DIR/") }
func asksKernel(s subject) bool { return !s.bare }

func families() []family {
	killed := []inject.Verdict{inject.Kill()}
	refused := []inject.Verdict{inject.Refuse(unix.ENOBUFS), inject.Refuse(unix.EBUSY), inject.Refuse(unix.ENOMEM), inject.Refuse(unix.EPERM)}
	broken := []inject.Verdict{inject.Refuse(unix.ENOSPC), inject.Refuse(unix.EIO), inject.Refuse(unix.EROFS)}
	fixed, lost := []inject.Verdict{inject.Refuse(unix.EROFS), inject.Refuse(unix.EPERM)}, []inject.Verdict{inject.Refuse(unix.ENOBUFS)}
	mutating, netlink, files := inject.Mutating(), inject.Netlink(), inject.Files()
	return []family{
		{"ADD killed, then DEL", nil, mutating, itself, killed, 5, (*bed).addThenDel},
		{"ADD killed, then at once DEL", asksIPAM, mutating, itself, killed, 9, (*bed).addThenDelAtOnce},
		{"ADD killed, then DEL before its IPAM plugin", asksIPAM, mutating, itself, killed, 9, (*bed).addThenDelBefore},
		{"ADD killed, then DEL without namespace", nil, mutating, itself, killed, 7, (*bed).addThenDelWithout},
		{"ADD killed, then DEL after the container", asksKernel, mutating, itself, killed, 9, (*bed).addThenDelAfter},
		{"ADD killed, then GC", nil, mutating, itself, killed, 5, (*bed).addThenGC},
		{"IPAM killed in ADD", asksIPAM, mutating, descendants, killed, 9, (*bed).addFails},
		{"request refused in ADD", asksKernel, netlink, ours, refused, 9, (*bed).addFails},
		{"setting refused in ADD", asksKernel, inject.Settings(), ours, fixed, 3, (*bed).addFails},
		{"answer lost in ADD, then DEL", asksKernel, inject.Answers(), ours, lost, 9, (*bed).addFailsThenDel},
		{"file refused in ADD", hasFiles, files, ours, broken, 9, (*bed).addFails},
		{"file call interrupted in ADD and DEL", func(s subject) bool { return s.bare }, files, ours, []inject.Verdict{inject.Refuse(unix.EINTR)}, 3, (*bed).addAndDel},
		{"DEL killed, then DEL", nil, mutating, itself, killed, 5, (*bed).delTwice},
		{"IPAM killed in DEL, then DEL", asksIPAM, mutating, descendants, killed, 9, (*bed).delTwice},
		{"request refused in DEL, then DEL", asksKernel, netlink, ours, refused, 17, (*bed).delTwice},
		{"answer lost in DEL, then DEL", asksKernel, inject.Answers(), ours, lost, 17, (*bed).delTwice},
		{"file refused in DEL, then DEL", hasFiles, files, ours, broken, 9, (*bed).delTwice},
		{"GC killed, then GC", nil, mutating, ours, killed, 9, (*bed).gcTwice},
		{"request refused in GC, then GC", asksKernel, netlink, ours, refused, 17, (*bed).gcTwice},
	}
}

// sweep strikes at one call after the other until there is none left to strike at: the
// last round goes without a fault. The slice of CI begins elsewhere for each family, and
// takes turns at the verdicts.
func sweep(s subject, f family, offset int) {
	GinkgoHelper()
	b := newBed(s)
	step := f.some
	if all() {
		step = 1
	}
	for at := 1 + offset%step; ; at += step {
		verdicts := f.verdicts
		if !all() {
			verdicts = verdicts[at/step%len(verdicts):][:1]
		}
		for _, v := range verdicts {
			strike := &strike{calls: f.calls, whose: f.whose, at: at, verdict: v}
			err := f.try(b, strike)
			if strike.struck != "" {
				tried(s.name+": "+f.name, err == nil)
			}
			if err != nil {
				Fail(fmt.Sprintf("%s (%s): %v", strike.struck, v, err))
			}
			if strike.struck == "" {
				return
			}
		}
	}
}

// killedADD is an ADD under the strike, and the result, should it have come to one.
func (b *bed) killedADD(s *strike) string {
	GinkgoHelper()
	return resultOf(b.execAll(b.add(), s))
}

func resultOf(r nstest.Reply) string {
	if r.Exit != 0 {
		return ""
	}
	return r.Stdout
}

func (b *bed) addThenDel(s *strike) error {
	if _, err := b.run(b.del(b.killedADD(s))); err != nil {
		return err
	}
	return asIs(b.before, b.whole)
}

// addThenDelAtOnce does not wait for the IPAM plugin, which may outlive the ADD.
func (b *bed) addThenDelAtOnce(s *strike) error {
	r, tree := b.exec(b.add(), s)
	_, err := b.run(b.del(resultOf(r)))
	if s.holds != nil {
		close(s.holds)
	}
	if err := tree.Wait(patience); err != nil {
		Fail(err.Error())
	}
	if err != nil {
		return err
	}
	return asIs(b.before, b.whole)
}

// addThenDelBefore has the IPAM plugin get to its lock when the DEL is over.
func (b *bed) addThenDelBefore(s *strike) error {
	s.holds = make(chan struct{})
	return b.addThenDelAtOnce(s)
}

// addThenDelWithout is with the result of the plugins before, and every other time
// without.
func (b *bed) addThenDelWithout(s *strike) error {
	result := b.killedADD(s)
	c := b.del(result)
	if s.at%2 == 0 && result == "" {
		c.Config = b.config(b.plugin, b.keys, "swept", "")
	}
	c.Pod = nil
	if _, err := b.run(c); err != nil {
		return err
	}
	return b.withoutItsOwn()
}

// withoutItsOwn compares what could be taken back from the node.
func (b *bed) withoutItsOwn() error {
	if !b.own {
		return asIs(b.before, b.whole)
	}
	before := nodePart(b.before)
	err := asIs(before, func() string { return nodePart(b.state(b.node)) })
	b.renew()
	return err
}

func (b *bed) addThenDelAfter(s *strike) error {
	c := b.del(b.killedADD(s))
	b.pod.Remove(b)
	if _, err := b.run(c); err != nil {
		return err
	}
	err := asIs(b.without, b.nodeOnly)
	b.renew()
	return err
}

func (b *bed) addThenGC(s *strike) error {
	b.killedADD(s)
	if _, err := b.run(b.gc()); err != nil {
		return err
	}
	return b.withoutItsOwn()
}

// addFails demands an error that says why, and all as before. An ADD that does without
// what was refused has to stand before CHECK.
func (b *bed) addFails(s *strike) error {
	r := b.execAll(b.add(), s)
	if r.Exit == 0 {
		return b.stands(r)
	}
	if s.struck == "" {
		return fmt.Errorf("ADD without a fault: %s", r.Stdout)
	}
	if cause := s.verdict.Cause(); !strings.Contains(r.Failure(b).String(), cause) {
		return fmt.Errorf("the error hides its cause: %s", r.Stdout)
	}
	if err := asIs(b.before, b.whole); err != nil {
		return fmt.Errorf("%w\nthe plugin said: %s%s", err, r.Stdout, r.Stderr)
	}
	return nil
}

// addAndDel demands that nothing fails: a call that a signal interrupted is to be made
// again. The strike is at a call of either.
func (b *bed) addAndDel(s *strike) error {
	r := b.execAll(b.add(), s)
	if r.Exit != 0 {
		return fmt.Errorf("ADD fails: %s", r.Stdout)
	}
	if r := b.execAll(b.del(r.Stdout), s); r.Exit != 0 {
		return fmt.Errorf("DEL fails: %s", r.Stdout)
	}
	return asIs(b.before, b.whole)
}

// addFailsThenDel: what was done and not told may stay until the DEL.
func (b *bed) addFailsThenDel(s *strike) error {
	r := b.execAll(b.add(), s)
	if r.Exit == 0 {
		return b.stands(r)
	}
	if cause := s.verdict.Cause(); !strings.Contains(r.Failure(b).String(), cause) {
		return fmt.Errorf("the error hides its cause: %s", r.Stdout)
	}
	if _, err := b.run(b.del("")); err != nil {
		return err
	}
	return asIs(b.before, b.whole)
}

func (b *bed) stands(r nstest.Reply) error {
	if _, err := b.run(b.del(r.Stdout).With("CHECK")); err != nil {
		return err
	}
	if _, err := b.run(b.del(r.Stdout)); err != nil {
		return err
	}
	return asIs(b.before, b.whole)
}

// delTwice: the second DEL is every other time one without the namespace.
func (b *bed) delTwice(s *strike) error {
	r, err := b.run(b.add())
	if err != nil {
		return err
	}
	c := b.del(r.Stdout)
	b.execAll(c, s)
	if s.at%2 == 0 && !b.own {
		c.Pod = nil
	}
	if _, err := b.run(c); err != nil {
		return err
	}
	return asIs(b.before, b.whole)
}

func (b *bed) gcTwice(s *strike) error {
	if _, err := b.run(b.add()); err != nil {
		return err
	}
	b.execAll(b.gc(), s)
	if _, err := b.run(b.gc()); err != nil {
		return err
	}
	return b.withoutItsOwn()
}

// nodePart is a state without the lines of the container.
func nodePart(state string) string {
	var kept []string
	for line := range strings.SplitSeq(state, "\n") {
		if !strings.HasPrefix(line, "pod: ") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}
