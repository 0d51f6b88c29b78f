package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/pkg/lock"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// gc runs gc with the list of live containers on stdin.
func (b *testbed) gc(live string, args ...string) nstest.Reply {
	GinkgoHelper()
	return b.run(live, append(append([]string{"gc"}, args...), b.directories()...)...)
}

// age sets the times of all files in the testbed to an hour ago.
func (b *testbed) age() { b.ageBy(time.Hour) }

// ageBy sets the times of all files in the testbed to the time that is d ago.
func (b *testbed) ageBy(d time.Duration) {
	GinkgoHelper()
	then := time.Now().Add(-d)
	Expect(filepath.WalkDir(b.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return os.Chtimes(path, then, then)
	})).To(Succeed())
}

// holdings returns the state of the host and of the plugins' files there, without objects that all attachments
// share.
func (b *testbed) holdings() string {
	GinkgoHelper()
	state := nstest.Snapshot(GinkgoTB(), b.host)
	for _, dir := range []string{"leases/pods", "tuning", "cache"} {
		var lines []string
		_ = filepath.WalkDir(b.path(dir), func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && !strings.HasPrefix(d.Name(), "last_reserved_ip") {
				lines = append(lines, path)
			}
			return nil
		})
		state += "\n" + strings.Join(lines, "\n")
	}
	return state
}

// failing is chain with a last plugin that does not exist.
func failing() string {
	return strings.Replace(chain, `"mtu": 1400}`, `"mtu": 1400}, {"type": "fails"}`, 1)
}

// addHalf attaches a container to a network whose chain fails, so that libcni caches no result.
func (b *testbed) addHalf(p *container) {
	GinkgoHelper()
	list, err := libcni.NetworkConfFromBytes([]byte(strings.ReplaceAll(failing(), "DIR", b.dir)))
	Expect(err).NotTo(HaveOccurred())
	_, err = b.cni.AddNetworkList(context.Background(), list, p.RT)
	Expect(err).To(MatchError(ContainSubstring(`failed to find plugin "fails"`)))
}

var _ = Describe("plumb gc", func() {
	var b *testbed
	var list *libcni.NetworkConfigList
	BeforeEach(func() {
		b = newTestbed()
		list = b.network("10-pods.conflist", chain)
	})

	DescribeTable("removes everything that a failed chain left, and does not touch a live container", func(namespace string) {
		b.add(list, newContainer(id("a1"), 8080))
		first := newContainer(id("f0"))
		b.add(list, first) // creates what all attachments of the network share
		Expect(b.cni.DelNetworkList(context.Background(), list, first.RT)).To(Succeed())
		before := nstest.WaitStable(b.holdings)
		dead := newContainer(id("d1"), 9090)
		b.addHalf(dead)
		if namespace == "gone" {
			dead.Remove(GinkgoTB())
		}
		b.age()
		Expect(b.plumb("list")).To(ContainSubstring("d10000000000"))
		reply := b.gc(id("a1")+"\n", "--live", "-", "--force")
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		Expect(reply.Stdout).To(ContainSubstring("removed pods " + id("d1") + " eth0\n"))
		Expect(reply.Stdout).To(MatchRegexp(`  reservation +10.1.2.4 +` + b.path("leases/pods/10.1.2.4")))
		Expect(reply.Stdout).To(MatchRegexp(`  element +tcp . 9090 +table inet plumb, map hostport4\n`))
		Expect(reply.Stdout).NotTo(ContainSubstring(id("a1")))
		Expect(reply.Stderr).To(And(ContainSubstring("network pods: DEL of dead attachments: 1"), ContainSubstring("network pods: GC")))
		Expect(nstest.WaitEqual(before, b.holdings)).To(BeEmpty())
	}, Entry("if the namespace exists", "exists"), Entry("if the namespace is gone", "gone"))

	It("finds nerdctl's containers in a list of IDs without namespaces", func() {
		b.add(list, newContainer("default-"+id("a1")))
		b.add(list, newContainer(id("b1"))) // a container of another runtime
		dead := newContainer("default-" + id("d1"))
		b.add(list, dead)
		dead.Remove(GinkgoTB())
		b.awaitPorts(2)
		b.age()
		reply := b.gc(id("a1")[:12], "--live", "-")
		Expect(reply.Stderr).To(ContainSubstring("give whole IDs (--no-trunc)"))
		reply = b.gc(id("a1")+"\n"+id("b1"), "--live", "-")
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		Expect(reply.Stdout).To(ContainSubstring("removed pods default-" + id("d1") + " eth0\n"))
		Expect(b.inventory().Attachments).To(HaveLen(2))
		Expect(b.check(list, "default-"+id("a1"))).To(Succeed())
	})

	It("does not touch a namespace with a process, and touches a namespace that only a mount keeps only with --force", func() {
		for _, id := range []string{"live", "runs", "lost", "mounted"} {
			p := newContainer(id)
			b.add(list, p)
			if id == "runs" || id == "lost" {
				startProcess(p)
			}
		}
		Expect(os.Remove(b.path("cache/results/pods-lost-eth0"))).To(Succeed())
		b.age()
		reply := b.gc("live", "--live", "-")
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		Expect(reply.Stdout).To(And(
			MatchRegexp(`(?m)^kept pods runs eth0: process \d+ runs in its namespace$`), MatchRegexp(`(?m)^kept pods lost eth0: process \d+ runs in its namespace$`),
			MatchRegexp(`(?m)^kept pods mounted eth0: its namespace /\S+ still exists, but no process runs in it; the runtime must delete the container$`),
			HaveSuffix("kept 3, left 0\nsuspect: 1; if no runtime knows these containers, use --force\n")))
		reply = b.gc("live", "--live", "-", "--force")
		Expect(reply.Stdout).To(And(ContainSubstring("removed pods mounted eth0\n"), HaveSuffix("kept 2, left 0\n")))
		Expect(b.gc("", "--no-live", "--force").Stdout).To(And(ContainSubstring("removed pods live eth0\n"), HaveSuffix("kept 2, left 0\n")))
		Expect(b.gc("", "--dead", "runs,lost", "--force").Stdout).To(HaveSuffix("kept 2, left 0\n"))
		Expect(b.check(list, "runs")).To(Succeed())
	})

	It("finds a process in a namespace that only an interface identifies", func() {
		list := b.network("20-flat.conflist", strings.ReplaceAll(`{"cniVersion": "1.1.0", "name": "flat", "plugins": [{"type": "macvlan", "master": "up0",
			"ipam": {"type": "host-local", "dataDir": "DIR/leases", "subnet": "10.9.9.0/24"}}]}`, "DIR", b.dir))
		b.host.Batch(GinkgoTB(), "link add up0 type veth peer name up1", "link set up0 up")
		b.add(list, newContainer("live"))
		for _, id := range []string{"uncached", "unmounted"} {
			p := newContainer(id)
			b.add(list, p)
			startProcess(p)
			if id == "unmounted" {
				p.Remove(GinkgoTB())
			}
		}
		Expect(os.Remove(b.path("cache/results/flat-uncached-eth0"))).To(Succeed())
		b.age()
		suspect := func(id string) OmegaMatcher {
			return MatchRegexp(`(?m)^kept flat ` + id + ` eth0: process \d+ may run in its namespace, because an interface there names the container;`)
		}
		Expect(b.gc("live", "--live", "-").Stdout).To(And(suspect("uncached"), suspect("unmounted"), ContainSubstring("kept 2, left 0\nsuspect: 2;")))
		Expect(b.gc("live", "--live", "-", "--force").Stdout).To(And(ContainSubstring("removed flat uncached eth0\n"), ContainSubstring("removed flat unmounted eth0\n")))
	})

	It("removes a dead container that an interface of another container names", func() {
		live, dead := newContainer("live"), newContainer("dead", 9090)
		b.add(list, live)
		b.add(list, dead)
		startProcess(live)
		live.Batch(GinkgoTB(), "link add forged type bridge", "link set forged alias plumb:pods/dead/eth0")
		dead.Remove(GinkgoTB())
		hostEnds := func() int { return strings.Count(b.host.IP("-br link show type veth"), "@") }
		Eventually(hostEnds).Should(Equal(1), "the kernel deletes the pair some time after the namespace")
		b.age()
		Expect(b.gc("live", "--live", "-").Stdout).To(ContainSubstring("removed pods dead eth0\n"))
		Expect(b.inventory().Attachments).To(HaveLen(1))
	})

	It("removes dead attachments of a network whose version lacks GC", func() {
		list := b.network("10-pods.conflist", strings.Replace(chain, "1.1.0", "0.4.0", 1))
		b.add(list, newContainer("live"))
		b.add(list, newContainer("dead", 9090))
		b.age()
		reply := b.gc("live", "--live", "-", "--force")
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		Expect(reply.Stderr).NotTo(ContainSubstring("GC"), "doctor says that 0.4.0 does not support it")
		inv := b.inventory()
		Expect(inv.Attachments).To(HaveLen(1))
		Expect(inv.Attachments[0].ContainerID).To(Equal("live"))
		Expect(filepath.Glob(b.path("cache/results/*"))).To(HaveLen(1))
	})

	// After the clock was set, the files of the attachments seem to be older than they are, or to come from the future.
	DescribeTable("keeps living containers if the clock was set, and removes a dead one that is older than the list", func(d time.Duration, verdict string) {
		live, runs, dead := newContainer("live", 8080), newContainer("runs"), newContainer("dead", 9090)
		runs.RT.NetNS = fmt.Sprintf("/proc/%d/ns/net", startProcess(runs))
		for _, p := range []*container{live, runs, dead} {
			b.add(list, p)
		}
		dead.Remove(GinkgoTB())
		b.awaitPorts(2)
		b.ageBy(d)
		reply := b.gc("live", "--live", "-")
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		Expect(reply.Stdout).To(And(MatchRegexp(`kept pods runs eth0: process \d+ runs in its namespace\n`), MatchRegexp(verdict)))
		if d < 0 {
			Expect(b.gc("", "--dead", "dead").Stdout).To(ContainSubstring("removed pods dead eth0\n"))
		}
		next := newContainer("next", 9091)
		b.add(list, next)
		Expect(next.IPs).NotTo(ContainElement(BeElementOf(live.IPs)))
		for _, id := range []string{"live", "runs", "next"} {
			Expect(b.check(list, id)).To(Succeed())
		}
	},
		Entry("forward", 400*24*time.Hour, "removed pods dead eth0\n"),
		Entry("back", -400*24*time.Hour, `kept pods dead eth0: the clock was set back, and its files are from 20\d\d-\S+; --dead deletes it\n`),
	)

	It("removes resources that name no attachment by GC", func() {
		b.add(list, newContainer("live"))
		Expect(os.WriteFile(b.path("leases/pods/10.1.2.99"), nil, 0o600)).To(Succeed())
		b.age()
		reply := b.gc("live", "--live", "-")
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		Expect(reply.Stdout).To(ContainSubstring("removed pods ? ?\n  reservation  10.1.2.99"))
		Expect(b.path("leases/pods/10.1.2.99")).NotTo(BeAnExistingFile())
	})

	It("changes nothing with --dry-run, and prints what it would remove", func() {
		b.add(list, newContainer("live"))
		b.addHalf(newContainer("dead", 9090))
		b.age()
		before := nstest.WaitStable(b.state)
		reply := b.gc("live", "--live", "-", "--force", "--dry-run")
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		Expect(reply.Stdout).To(And(ContainSubstring("would remove pods dead eth0\n"), HaveSuffix("1 attachment would be removed, 0 kept\n")))
		reply = b.gc("live", "--live", "-", "--force", "--dry-run", "-o", "json")
		var plan struct {
			Dead []struct{ Container string }
			Kept []any
		}
		Expect(json.Unmarshal([]byte(reply.Stdout), &plan)).To(Succeed())
		Expect(plan.Dead).To(HaveLen(1))
		Expect(plan.Kept).To(BeEmpty())
		Expect(nstest.Compare(before, b.state())).To(BeEmpty())
	})

	It("rejects a list that cannot contain the host's live containers, and changes nothing", func() {
		b.add(list, newContainer(id("a1")))
		b.addHalf(newContainer(id("d1")))
		b.age()
		before := nstest.WaitStable(b.state)
		for _, c := range []struct {
			live, stderr string
			exit         int
			args         []string
		}{
			{"", "no container with an attachment lives: the list is empty; if no container with an attachment lives, use --no-live\n", exitError, []string{"--live", "-"}},
			{" \n", "the list is empty", exitError, []string{"--live", "-"}},
			{id("a1")[:13], "which is the beginning of the container ID " + id("a1") + "; give whole IDs (--no-trunc)", exitError, []string{"--live", "-"}},
			{id("a1") + "\n" + id("d1")[:12], "give whole IDs", exitError, []string{"--live", "-"}},
			{id("a1") + "\n" + strings.ToUpper(id("d1")), "which differs from the container ID " + id("d1") + " only in upper and lower case", exitError, []string{"--live", "-"}},
			{strings.ToUpper(id("a1")), "which differs from the container ID " + id("a1") + " only in upper and lower case", exitError, []string{"--live", "-"}},
			{id("b1"), "none of the 1 IDs in the list belongs to an attachment; for Kubernetes, give the IDs of pods (crictl pods -q --no-trunc), not of their containers; if no container", exitError, []string{"--live", "-"}},
			{"a1 5/6", `contains "5/6", which is not a container ID`, exitError, []string{"--live", "-"}},
			{"", "no such file", exitError, []string{"--live", b.path("none")}},
			{"", "gc must know which containers live", exitUsage, nil},
			{id("a1"), "give exactly one of", exitUsage, []string{"--live", "-", "--no-live"}},
			{id("a1"), "--min-age must not be negative, got -1s", exitUsage, []string{"--live", "-", "--min-age", "-1s"}},
			{id("a1"), `network "pod": no such network on this host`, exitUsage, []string{"--live", "-", "--network", "pod"}},
		} {
			reply := b.gc(c.live, c.args...)
			Expect(reply.Exit).To(Equal(c.exit), "%v", c)
			Expect(reply.Stderr).To(ContainSubstring(c.stderr))
		}
		Expect(nstest.Compare(before, b.state())).To(BeEmpty())
	})

	It("rejects an empty flag value, as from an unset variable in a script, and changes nothing", func() {
		b.addHalf(newContainer(id("d1")))
		b.age()
		before := nstest.WaitStable(b.state)
		for _, args := range [][]string{
			{"gc", "--no-live", "--network", ""}, {"gc", "--no-live", "--live", ""}, {"gc", "--no-live", "--cni-path", ""},
			{"install", "--to", b.dir, "--only", ""}, {"install", "--to", b.dir, "--only", "bridge,"},
		} {
			if args[0] == "gc" {
				args = append(args, b.directories()...)
			}
			reply := b.run("", args...)
			Expect(reply.Exit).To(Equal(exitUsage), "%q", args)
			Expect(reply.Stderr).To(MatchRegexp(`^plumb: .*--[a-z-]+.*: the value is empty; give one, or leave out the flag\n`), "%q", args)
		}
		Expect(nstest.Compare(before, b.state())).To(BeEmpty())
	})

	It("is not called by the page's command if one of the runtimes does not answer", func() {
		page := nstest.ReadFile(GinkgoTB(), filepath.Join(nstest.Root(GinkgoTB()), "docs/reference/plumb/gc.md"))
		command := regexp.MustCompile("[^`]*\\bcrictl pods -q [^`]*podman ps -aq [^`]*plumb gc --live [^`]*").FindString(page)
		Expect(command).NotTo(BeEmpty())
		programs := b.path("programs")
		Expect(os.Mkdir(programs, 0o755)).To(Succeed())
		script := func(name, text string) {
			Expect(os.WriteFile(filepath.Join(programs, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755)).To(Succeed())
		}
		run := func() error {
			cmd := exec.Command("sh", "-c", strings.ReplaceAll(strings.TrimPrefix(strings.TrimSpace(command), "# "), "/run/", b.dir+"/"))
			cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"))
			return cmd.Run()
		}
		script("plumb", `cat "$3" > `+b.path("called"))
		script("crictl", "echo c1")
		script("podman", "echo c2")
		Expect(run()).To(Succeed())
		Expect(os.ReadFile(b.path("called"))).To(Equal([]byte("c1\nc2\n")))
		for _, fails := range []string{"crictl", "podman"} {
			Expect(os.Remove(b.path("called"))).To(Succeed())
			script(fails, "exit 1")
			Expect(run()).NotTo(Succeed())
			Expect(b.path("called")).NotTo(BeAnExistingFile())
			script(fails, "echo c3")
			Expect(run()).To(Succeed())
		}
	})

	It("with --live-from-cache, keeps containers with a result in the cache and containers whose namespace exists", func() {
		b.add(list, newContainer("a1", 8080))
		b.add(list, newContainer("lost"))
		Expect(os.Remove(b.path("cache/results/pods-lost-eth0"))).To(Succeed())
		dead := newContainer("failed", 9090)
		b.addHalf(dead)
		dead.Remove(GinkgoTB())
		b.awaitPorts(2)
		b.age()
		reply := b.gc("", "--live-from-cache")
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		Expect(reply.Stdout).To(ContainSubstring("removed pods failed eth0\n"))
		Expect(reply.Stdout).To(MatchRegexp(`kept pods lost eth0: the container's namespace exists, because veth\w+ still exists\n(.*\n)*suspect: 1; .* use --force\n`))
		Expect(b.inventory().Attachments).To(HaveLen(2))
		Expect(b.gc("", "--dead", "lost").Stdout).To(ContainSubstring("removed pods lost eth0\n"))
		Expect(b.inventory().Attachments).To(HaveLen(1))
	})

	It("keeps all attachments of a container with --live-from-cache if one of them proves that it lives", func() {
		b.add(list, newContainer("a1"))
		lost := newContainer("lost")
		b.add(list, lost)
		lost.RT.IfName = "net1"
		b.add(b.network("20-flat.conflist", `{"cniVersion": "1.1.0", "name": "flat", "plugins": [
			{"type": "macvlan", "master": "cni0", "ipam": {"type": "host-local", "dataDir": "DIR/leases", "subnet": "10.9.9.0/24"}}]}`), lost)
		for _, name := range []string{"pods-lost-eth0", "flat-lost-net1"} {
			Expect(os.Remove(b.path("cache/results/" + name))).To(Succeed())
		}
		b.age()
		reply := b.gc("", "--live-from-cache")
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		Expect(reply.Stdout).To(MatchRegexp(`^kept flat lost net1: the container's namespace exists, because veth\w+ still exists\nkept pods lost eth0: `))
		Expect(b.path("leases/flat/10.9.9.2")).To(BeAnExistingFile())
		Expect(b.inventory().Attachments).To(HaveLen(3))
	})

	It("removes only the containers that --dead names", func() {
		b.add(list, newContainer("a1", 8080)) // with a port, to create what all attachments share
		before := nstest.WaitStable(b.holdings)
		gone := newContainer("gone", 9090)
		b.add(list, gone)
		b.addHalf(newContainer("half", 9091))
		reply := b.gc("", "--dead", "half")
		Expect(reply.Stdout).To(ContainSubstring("kept pods half eth0: it is younger than 1m0s (--min-age)\n"))
		Expect(reply.Exit).To(Equal(exitFound))
		Expect(b.gc("", "--dead", "half", "--dry-run").Exit).To(Equal(exitFound))
		gone.Remove(GinkgoTB())
		b.awaitPorts(2)
		b.add(list, newContainer("other"))
		Expect(os.Remove(b.path("cache/results/pods-other-eth0"))).To(Succeed())
		b.age()
		reply = b.gc("", "--dead", "go,a1")
		Expect(reply.Exit).To(Equal(exitFound), reply.Stderr)
		Expect(reply.Stdout).To(And(ContainSubstring("removed pods gone eth0\n"), Not(ContainSubstring("removed pods other")),
			MatchRegexp("kept pods a1 eth0: its namespace .* exists, but no process runs in it; the runtime must delete the container\n")))
		Expect(b.check(list, "a1")).To(Succeed())
		for _, id := range []string{"half", "other"} {
			Expect(b.gc("", "--dead", id).Exit).To(Equal(0))
		}
		Expect(nstest.WaitEqual(before, b.holdings)).To(BeEmpty())
		reply = b.gc("", "--dead", "b")
		Expect(reply.Exit).To(Equal(exitUsage))
		Expect(reply.Stderr).To(ContainSubstring(`no container whose ID begins with "b" is attached to a network of this host`))
	})

	DescribeTable("releases a reservation that names no interface only after its container died", func(args ...string) {
		list := b.network("10-pods.conflist", strings.Replace(chain, "1.1.0", "1.0.0", 1)) // without GC
		first := newContainer("a1")
		b.add(list, first)
		first.RT.IfName = "eth1"
		b.add(list, first)
		for address, owner := range map[string]string{"10.1.2.78": "gone", "10.1.2.79": "a1"} {
			Expect(os.WriteFile(b.path("leases/pods/"+address), []byte(owner), 0o600)).To(Succeed())
		}
		b.age()
		reply := b.gc("a1", args...)
		exit := map[bool]int{true: exitFound}[args[0] == "--dead"] // which keeps a1
		Expect(reply.Exit).To(Equal(exit), reply.Stderr)
		Expect(reply.Stdout).To(ContainSubstring("removed pods gone ?\n  reservation  10.1.2.78  "))
		Expect(b.path("leases/pods/10.1.2.78")).NotTo(BeAnExistingFile())
		Expect(b.path("leases/pods/10.1.2.79")).To(BeAnExistingFile())
		Expect(b.check(list, "a1")).To(Succeed())
	}, Entry("with --live", "--live", "-"), Entry("with --dead", "--dead", "gone,a1"), Entry("with --live-from-cache", "--live-from-cache"))

	It("keeps what may be newer than the list", func() {
		b.add(list, newContainer("live"))
		b.age()
		b.addHalf(newContainer("young"))
		reply := b.gc("live", "--live", "-")
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		Expect(reply.Stdout).To(ContainSubstring("kept pods young eth0: it may be newer than the list of live containers (--min-age)\n"))
		Expect(b.inventory().Attachments).To(HaveLen(2))

		b.age()
		file := b.path("live") // in an old list, which keeps attachments newer than the file
		Expect(os.WriteFile(file, []byte("live"), 0o600)).To(Succeed())
		then := time.Now().Add(-2 * time.Hour)
		Expect(os.Chtimes(file, then, then)).To(Succeed())
		Expect(b.gc("", "--live", file, "--min-age", "0").Stdout).To(ContainSubstring("kept pods young"))
		Expect(b.gc("live", "--live", "-", "--min-age", "0", "--force").Stdout).To(ContainSubstring("removed pods young eth0"))
	})

	It("keeps attachments younger than --min-age, even without a list", func() {
		b.addHalf(newContainer("young"))
		reply := b.gc("", "--no-live")
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		Expect(reply.Stdout).To(HavePrefix("kept pods young eth0: it may be newer than the answer that no container lives (--min-age)\n"))
	})

	It("keeps an interface of unknown age unless --min-age is 0", func() {
		list := b.network("20-flat.conflist", `{"cniVersion": "1.1.0", "name": "flat", "plugins": [{"type": "bridge", "bridge": "br7"}]}`)
		b.add(list, newContainer("live"))
		b.add(list, newContainer("old"))
		Expect(os.Remove(b.path("cache/results/flat-old-eth0"))).To(Succeed())
		reply := b.gc("live", "--live", "-")
		Expect(reply.Stdout).To(ContainSubstring("kept flat old eth0: its interface exists, and its age is unknown; --min-age 0 deletes it\n"))
		Expect(b.gc("live", "--live", "-", "--min-age", "0", "--force").Stdout).To(ContainSubstring("removed flat old eth0"))
		Expect(b.inventory().Attachments).To(HaveLen(1))
	})

	It("does not touch a container that is attached after the inventory was read", func() {
		b.add(list, newContainer("live"))
		b.add(list, newContainer("dead"))
		b.age()
		fifo := b.path("fifo")
		b.host.Must(GinkgoTB(), "mkfifo", fifo)
		done := make(chan nstest.Reply, 1)
		go func() {
			defer GinkgoRecover()
			done <- b.gc("", "--live", fifo, "--min-age", "0", "--force")
		}()
		w := openForWriting(fifo) // waits until gc opens it, after it has read the inventory
		b.add(list, newContainer("late", 8081))
		_, err := w.WriteString("live\n")
		Expect(err).NotTo(HaveOccurred())
		Expect(w.Close()).To(Succeed())
		reply := <-done
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		Expect(reply.Stdout).To(ContainSubstring("removed pods dead eth0"))
		Expect(reply.Stdout).NotTo(ContainSubstring("late"))
		Expect(b.check(list, "late")).To(Succeed())
	})

	It("lets the current GC end at SIGTERM, calls no other plugin, and exits with status 3", func() {
		b := newStubbed()
		startProcess(b.attach(`{"type": "one"}, {"type": "two"}`, "one", id("a1"))[0])
		b.write("script", strings.Replace(stubScript, "ADD)", "GC) echo $state >>log; test ! -p hang || cat hang ;;\nADD)", 1))
		Expect(unix.Mkfifo(b.stubs+"/hang", 0o600)).To(Succeed())
		cmd := exec.Command(b.bin+"/plumb", append([]string{"gc", "--live-from-cache", "--cni-path", b.stubs, "--conf-dir", b.path("conf")}, b.directories()...)...)
		out := gbytes.NewBuffer()
		cmd.Stdout, cmd.Stderr = out, out
		Expect(b.host.Start(cmd)).To(Succeed())
		DeferCleanup(func() { _ = cmd.Process.Kill() })
		pipe, err := os.OpenFile(b.stubs+"/hang", os.O_WRONLY, 0) // waits for GC
		Expect(err).NotTo(HaveOccurred())
		Expect(cmd.Process.Signal(unix.SIGTERM)).To(Succeed())
		Eventually(out, "1m").Should(gbytes.Say("ending after the current call of a plugin"))
		Expect(os.Remove(b.stubs + "/hang")).To(Succeed())
		Expect(pipe.Close()).To(Succeed())
		Expect(cmd.Wait()).To(MatchError("exit status 3"))
		Expect(out).To(gbytes.Say("removed resources of 0 attachments(?s:.*)ended by a signal before"))
		Expect(b.read("log")).To(Equal("one-\n"))
	})

	DescribeTable("is ended by a signal, like doctor, while it waits for the list", func(signal os.Signal, args ...string) {
		fifo := b.path("fifo")
		b.host.Must(GinkgoTB(), "mkfifo", fifo)
		cmd := exec.Command(filepath.Join(b.bin, "plumb"), append(append(args, "--live", fifo, "--conf-dir", b.path("conf")), b.directories()...)...)
		Expect(b.host.Start(cmd)).To(Succeed())
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		DeferCleanup(func() { _ = cmd.Process.Kill() })
		list := openForWriting(fifo) // waits until the command opens it
		defer list.Close()
		Expect(cmd.Process.Signal(signal)).To(Succeed())
		Eventually(ended).Should(Receive(MatchError("signal: " + signal.String())))
	},
		Entry("gc", unix.SIGTERM, "gc"), Entry("gc with Ctrl-C", unix.SIGINT, "gc"),
		Entry("doctor", unix.SIGTERM, "doctor"), Entry("doctor with Ctrl-C", unix.SIGINT, "doctor"),
	)

	It("waits for running plugin calls before it calls GC", func() {
		b.add(list, newContainer("live"))
		b.age()
		key, err := lock.NewKey(skel.LockFile, "a call that runs")
		Expect(err).NotTo(HaveOccurred())
		Expect(key.TryLock()).To(BeTrue())
		done := make(chan nstest.Reply, 1)
		go func() {
			defer GinkgoRecover()
			done <- b.gc("live", "--live", "-")
		}()
		awaitWaiterForLock(`0 EOF`)
		b.add(list, newContainer("late"))
		Expect(key.Close()).To(Succeed())
		reply := <-done
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		Expect(b.check(list, "late")).To(Succeed())
	})

	It("blocks plugin calls during GC", func() {
		fifo := b.path("fifo")
		b.host.Must(GinkgoTB(), "mkfifo", fifo)
		dir, _ := nstest.NewScriptPlugin(GinkgoTB(), "slow", `[ "$CNI_COMMAND" != GC ] || cat `+fifo+` >&2`)
		b.network("10-pods.conflist", strings.Replace(chain, `{"type": "bridge"`, `{"type": "slow"}, {"type": "bridge"`, 1))
		b.add(list, newContainer("live"))
		b.age()
		done := make(chan nstest.Reply, 1)
		go func() {
			defer GinkgoRecover()
			done <- b.gc("live", "--live", "-", "--cni-path", dir+":"+b.bin)
		}()
		end := openForWriting(fifo) // waits until the script opens it
		late, added := newContainer("late"), make(chan error, 1)
		go func() {
			_, err := b.cni.AddNetworkList(context.Background(), list, late.RT)
			added <- err
		}()
		awaitWaiterForLock(`\d{9,} \d{9,}`)
		Expect(end.Close()).To(Succeed())
		Expect((<-done).Exit).To(Equal(0))
		Eventually(added).Should(Receive(BeNil()))
		Expect(b.check(list, "late")).To(Succeed())
	})

	It("prints the commands that clean up a network without a configuration", func() {
		b.add(list, newContainer("live"))
		b.addHalf(newContainer("half", 9090))
		b.add(list, newContainer("whole", 9091))
		Expect(os.Remove(b.path("conf/10-pods.conflist"))).To(Succeed())
		b.age()
		Expect(os.Remove(b.path("cache/results/pods-live-eth0"))).To(Succeed())
		reply := b.gc("", "--no-live", "--force")
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		Expect(reply.Stdout).To(And(ContainSubstring("removed pods whole eth0"), ContainSubstring("removed pods half eth0")), "by the configuration in libcni's cache")
		Expect(reply.Stderr).To(ContainSubstring("network pods: DEL of dead attachments: 3\n"))

		b.addHalf(newContainer("half", 9090))
		b.age()
		reply = b.gc("", "--no-live", "--force", "--min-age", "0") // without a configuration, the age is unknown
		Expect(reply.Exit).To(Equal(exitFound))
		Expect(reply.Stdout).To(ContainSubstring("left pods half eth0: network pods has no configuration; run these commands:\n  ip link delete veth"))
		_, commands, _ := strings.Cut(reply.Stdout, "these commands:\n")
		for line := range strings.Lines(commands) {
			if command, ok := strings.CutPrefix(line, "  "); ok && strings.HasPrefix(line, "  ") {
				b.host.Must(GinkgoTB(), "sh", "-c", command)
			}
		}
		Expect(b.inventory().Attachments).To(BeEmpty())
		Expect(b.host.Must(GinkgoTB(), "nft", "list", "table", "inet", "plumb")).To(And(ContainSubstring("chain postrouting"), Not(ContainSubstring("/pods/"))))
	})

	It("says that other plugins have replaced plumb's, and prints the commands that remove what they do not delete", func() {
		dead := newContainer("dead", 9090)
		b.add(list, dead)
		reference := nstest.Reference(GinkgoTB())
		Expect(cnitest.New(b.host, b.path("cache"), reference).DelNetworkList(context.Background(), list, dead.RT)).To(Succeed())
		b.age()
		reply := b.gc("", "--no-live", "--cni-path", reference)
		Expect(reply.Exit).To(Equal(exitFound))
		Expect(reply.Stdout).To(ContainSubstring("left pods dead eth0: bridge, portmap, tuning in " + reference +
			" are not plumb's plugins, and do not delete plumb's nftables elements; run these commands:\n  nft delete element"))
	})

	It("does not touch a network with disableGC", func() {
		b.network("10-pods.conflist", strings.Replace(chain, `"name"`, `"disableGC": true, "name"`, 1))
		b.add(list, newContainer("live"))
		b.addHalf(newContainer("half"))
		b.age()
		reply := b.gc("live", "--live", "-")
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		Expect(reply.Stdout).To(ContainSubstring("kept pods half eth0: disableGC is set in " + b.path("conf/10-pods.conflist") + ", because other nodes or runtimes share the network\n"))
		Expect(b.inventory().Attachments).To(HaveLen(2))
	})

	It("reports a missing plugin, and removes the rest", func() {
		b.network("05-gone.conflist", `{"cniVersion": "1.1.0", "name": "gone", "plugins": [{"type": "gone"}]}`)
		b.add(list, newContainer("live"))
		b.addHalf(newContainer("half"))
		b.age()
		reply := b.gc("live", "--live", "-", "--force")
		Expect(reply.Exit).To(Equal(exitFound))
		Expect(reply.Stderr).To(ContainSubstring(`plumb: network gone: failed to GC plugin gone: failed to find plugin "gone"`))
		Expect(b.inventory().Attachments).To(HaveLen(1))
	})
})

// openForWriting opens a FIFO when another process has opened it for reading.
func openForWriting(fifo string) *os.File {
	GinkgoHelper()
	opened := make(chan *os.File, 1)
	go func() {
		w, _ := os.OpenFile(fifo, os.O_WRONLY, 0)
		opened <- w
	}()
	var w *os.File
	Eventually(opened).Should(Receive(&w))
	return w
}

// awaitWaiterForLock waits until a process waits to lock bytes of the plugins' lock file. The format of bytes is
// "FIRST LAST".
func awaitWaiterForLock(bytes string) {
	GinkgoHelper()
	Eventually(nstest.LockWaiters).WithArguments(skel.LockFile).Should(ContainElement(MatchRegexp(" OFDLCK +ADVISORY +WRITE .* " + bytes + "$")))
}

// awaitPorts waits until the bridge cni0 has n ports, because the kernel deletes the veth pairs of a namespace
// some time after the namespace.
func (b *testbed) awaitPorts(n int) {
	GinkgoHelper()
	Eventually(func() string { return b.host.Must(GinkgoTB(), "ip", "-o", "link", "show", "master", "cni0") }, time.Minute).
		Should(WithTransform(func(s string) int { return strings.Count(s, "\n") }, Equal(n)))
}

func (b *testbed) check(list *libcni.NetworkConfigList, containerID string) error {
	GinkgoHelper()
	_, rt, err := b.cni.GetNetworkListCachedConfig(list, &libcni.RuntimeConf{ContainerID: containerID, IfName: "eth0"})
	Expect(err).NotTo(HaveOccurred())
	var cached struct{ Netns string }
	text := nstest.ReadFile(GinkgoTB(), filepath.Join(b.path("cache/results"), list.Name+"-"+containerID+"-eth0"))
	Expect(json.Unmarshal([]byte(text), &cached)).To(Succeed())
	rt.NetNS = cached.Netns
	return b.cni.CheckNetworkList(context.Background(), list, rt)
}
