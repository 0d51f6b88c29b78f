package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("plumb maintain", func() {
	live, dead := id("c0ffee01"), id("deadbeef01")

	It("removes what dead containers left, repairs what living ones lost, and writes metrics", func() {
		b := newStubbed()
		containers := b.attach(`{"type": "one"}`, "one", dead, live)
		startProcess(containers[1])
		containers[0].Remove(GinkgoTB())
		Expect(os.WriteFile(b.path("live"), []byte(live), 0o644)).To(Succeed())
		maintain := func(more ...string) []string {
			return append(append([]string{"maintain", "--cni-path", b.stubs}, b.directories()...), more...)
		}

		dry := b.run("", maintain("--live", b.path("live"), "--dry-run")...)
		Expect(dry.Exit).To(Equal(exitFound), dry.Stderr)
		Expect(dry.Stdout).To(And(ContainSubstring("would remove stubs "+dead), ContainSubstring("would repair stubs "+live[:12])))

		reply := b.run("", maintain("--live", b.path("live"), "--metrics", b.path("m.prom"))...)
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		Expect(reply.Stdout).To(And(ContainSubstring("removed stubs "+dead), ContainSubstring("repaired stubs "+live[:12])))
		text := nstest.ReadFile(GinkgoTB(), b.path("m.prom"))
		Expect(text).To(And(ContainSubstring("\nplumb_maintain_removed_total 1\n"), ContainSubstring("\nplumb_maintain_repaired_total 1\n")))

		b.write("broken-one-"+live, broken)
		b.write("fails-one-"+live, broken)
		Expect(b.run("", maintain()...).Exit).To(Equal(exitFound), "without --live and --cri, it only repairs")
	})

	It("does all its work in the next run after it was killed at any time", func() {
		b := newTestbed()
		list := b.network("10-pods.conflist", chain)
		for i := range 3 {
			p := newContainer(id(fmt.Sprint("c0ffee0", i)), 8080+i)
			b.add(list, p)
			startProcess(p)
		}
		index := regexp.MustCompile(`link cni0 ifindex=\d+`) // of the restored bridge
		state := func() string {                             // sorted, because the snapshot lists the links in the order of their indexes
			lines := strings.Split(index.ReplaceAllString(b.holdings(), "link cni0"), "\n")
			slices.Sort(lines)
			return strings.Join(lines, "\n")
		}
		before := nstest.WaitStable(state)
		args := append([]string{"maintain", "--cni-path", b.bin, "--live", b.path("live")}, b.directories()...)
		maintain := func() (run time.Duration) {
			GinkgoHelper()
			begin := time.Now()
			reply := b.run("", args...)
			run = time.Since(begin)
			Expect(reply.Exit).To(Equal(0), reply.Stderr)
			Expect(nstest.WaitEqual(before, state)).To(BeEmpty())
			Expect(b.run("", args...).Stdout).To(HaveSuffix("removed resources of 0 attachments, kept 0, left 0\nrepaired 0, left 0, healthy 3, skipped 0\n"))
			return run
		}
		damage := func() {
			GinkgoHelper()
			for i := range 2 {
				p := newContainer(id(fmt.Sprint("deadbeef1", i)), 9090+i)
				b.add(list, p)
				p.Remove(GinkgoTB())
			}
			Eventually(func() string { return b.host.Must(GinkgoTB(), "ip", "-oneline", "link", "show", "type", "veth") }).
				Should(WithTransform(func(s string) int { return strings.Count(s, "\n") }, Equal(3)), "the kernel has removed the namespaces")
			b.age()
			Expect(os.WriteFile(b.path("live"), []byte(id("c0ffee00")+" "+id("c0ffee01")+" "+id("c0ffee02")), 0o644)).To(Succeed())
			b.host.MustLine(GinkgoTB(), "nft flush chain inet plumb postrouting")
			b.host.MustLine(GinkgoTB(), "nft flush map inet plumb hostport4")
			b.host.Batch(GinkgoTB(), "link del cni0")
		}
		damage()
		run := maintain()
		kills := nstest.FullOrShort(12, 6)
		for i := range kills {
			damage()
			cmd := exec.Command(b.bin+"/plumb", args...)
			Expect(b.host.Start(cmd)).To(Succeed())
			time.Sleep(run * time.Duration(i) / time.Duration(kills)) // wherever maintain is by then
			Expect(errors.Join(cmd.Process.Kill(), ignoreExit(cmd.Wait()))).To(Succeed())
			maintain()
		}
	})

	It("repairs as a service when a table of plumb is deleted, and ends with status 0 after SIGTERM", func() {
		b := newStubbed()
		startProcess(b.attach(`{"type": "one"}`, "one", live)[0])
		args := append([]string{"maintain", "--every", "1h", "--cni-path", b.stubs}, b.directories()...)
		cmd := exec.Command(b.bin+"/plumb", args...)
		cmd.Env = append(os.Environ(), "NETCONFPATH="+b.path("conf"))
		out := gbytes.NewBuffer()
		cmd.Stdout, cmd.Stderr = out, out
		Expect(b.host.Start(cmd)).To(Succeed())
		DeferCleanup(func() { _ = cmd.Process.Kill() })
		Eventually(out, "1m").Should(gbytes.Say("repaired 1, left 0"))

		second := b.run("", args...)
		Expect(second.Exit).To(Equal(exitError))
		Expect(second.Stderr).To(ContainSubstring("another plumb maintain works on this host"))

		b.write("broken-one-"+live, broken)
		b.host.MustLine(GinkgoTB(), "nft add table inet plumb")
		b.host.MustLine(GinkgoTB(), "nft delete table inet plumb")
		Eventually(out, "1m").Should(gbytes.Say("table inet plumb: change detected; repairing(?s:.*)repaired 1, left 0"))
		Expect(cmd.Process.Signal(unix.SIGTERM)).To(Succeed())
		Expect(cmd.Wait()).To(Succeed())
	})

	It("lets the current DEL end at SIGTERM, calls no other one, and exits with status 0", func() {
		b := newStubbed()
		containers := b.attach(`{"type": "one"}`, "one", dead, id("deadbeef02"), live)
		startProcess(containers[2])
		containers[0].Remove(GinkgoTB())
		containers[1].Remove(GinkgoTB())
		Expect(os.WriteFile(b.path("live"), []byte(live), 0o644)).To(Succeed())
		b.write("script", strings.Replace(stubScript, "ADD)", "DEL) cat hang; echo $state >>log ;;\nADD)", 1))
		Expect(unix.Mkfifo(b.stubs+"/hang", 0o600)).To(Succeed())
		cmd := exec.Command(b.bin+"/plumb", append([]string{"maintain", "--live", b.path("live"), "--cni-path", b.stubs}, b.directories()...)...)
		cmd.Env = append(os.Environ(), "NETCONFPATH="+b.path("conf"))
		out := gbytes.NewBuffer()
		cmd.Stdout, cmd.Stderr = out, out
		Expect(b.host.Start(cmd)).To(Succeed())
		DeferCleanup(func() { _ = cmd.Process.Kill() })
		pipe, err := os.OpenFile(b.stubs+"/hang", os.O_WRONLY, 0) // waits for DEL
		Expect(err).NotTo(HaveOccurred())
		Expect(cmd.Process.Signal(unix.SIGTERM)).To(Succeed())
		Eventually(out, "1m").Should(gbytes.Say("ending after the current attachment"))
		Expect(pipe.Close()).To(Succeed())
		Expect(cmd.Wait()).To(Succeed())
		Expect(b.read("log")).To(MatchRegexp(`^one-\w+\n$`))
		Expect(b.read("broken-one-"+live)).NotTo(BeEmpty(), "no REPAIR after the signal")
	})

	It("enters the mount namespace of process 1 with --host only if network and processes are the host's", func() {
		b := newTestbed()
		// In sh, process 1, the container's namespaces begin with unshare. --live=- is an error after plumb has entered.
		script := `
			for container in '' '--mount --net' '--mount --pid --fork' --mount; do
				unshare $container $0 maintain --host --live=- 2>&1
				echo $?
			done`
		out, err := exec.Command("unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script, b.bin+"/plumb").CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "%s", out)
		noPID := "plumb: --host: process 1 must be the host's; set hostPID: true in the pod\n3\n"
		Expect(string(out)).To(HavePrefix(noPID +
			"plumb: --host: the network must be the host's; set hostNetwork: true in the pod\n3\n" + noPID +
			"plumb: --live: the list must be a file\n"))
	})

	It("rejects combinations of flags", func() {
		b := newTestbed()
		for _, args := range [][]string{{"--live", "-"}, {"--dry-run", "--every", "1h"}, {"--dry-run", "--metrics", b.path("m")}} {
			Expect(b.run("", append([]string{"maintain"}, args...)...).Exit).To(Equal(exitUsage), "%q", args)
		}
		for _, wrong := range [][]string{
			{"--every must be at least 1s, got 1ns", "maintain", "--every", "1ns"},
			{"--restore: want a value, got the flag --dry-run", "uninstall", "--to", b.dir, "--restore", "--dry-run"},
			{"--metrics: " + b.dir + " is a directory; give the name of a file", "maintain", "--metrics", b.dir},
			{"--live: " + b.dir + " is a directory; give the name of a file", "gc", "--live", b.dir},
			{"--conf: " + b.dir + " is a directory; give the name of a file", "install", "--to", b.dir, "--conf-dir", b.dir, "--conf", "x", "--conf", b.dir},
			{b.dir + " is a directory; name the files in it, or use --conf-dir " + b.dir, "doctor", "/dev/null", b.dir},
			{`unexpected argument "/run/cri.sock"; to name the socket of the runtime, write --cri=/run/cri.sock`, "maintain", "--cri", "/run/cri.sock"},
			{`unexpected argument "/run/cri.sock"; to name the socket of the runtime, write --cri=/run/cri.sock`, "gc", "--cri", "/run/cri.sock"},
		} {
			reply := b.run("", wrong[1:]...)
			Expect(reply.Exit).To(Equal(exitUsage))
			Expect(reply.Stderr).To(HavePrefix("plumb: " + wrong[0] + "\n"))
		}
	})
})
