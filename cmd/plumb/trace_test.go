package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/traces"
)

// startTrace starts plumb trace and waits until it listens.
func (b *testbed) startTrace(args ...string) *gexec.Session {
	GinkgoHelper()
	session, err := gexec.Start(exec.Command(filepath.Join(b.bin, "plumb"), append([]string{"trace"}, args...)...), GinkgoWriter, GinkgoWriter)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Eventually(session.Kill()).Should(gexec.Exit()) })
	Eventually(session.Err).Should(gbytes.Say("waiting for calls of plugins"))
	return session
}

// stopTrace ends plumb trace as Ctrl-C does, and returns what it printed.
func stopTrace(session *gexec.Session) string {
	GinkgoHelper()
	Eventually(session.Interrupt()).Should(gexec.Exit(0))
	return string(session.Out.Contents())
}

// tracedCalls are calls from plumb trace -o json.
func tracedCalls(out string) (calls []traces.Call) {
	GinkgoHelper()
	for line := range strings.Lines(out) {
		dec := json.NewDecoder(strings.NewReader(line))
		dec.DisallowUnknownFields()
		var c traces.Call
		Expect(dec.Decode(&c)).To(Succeed(), line)
		calls = append(calls, c)
	}
	return calls
}

// small is a network with one free address.
const small = `{
	"cniVersion": "1.1.0", "name": "small", "type": "bridge", "bridge": "cni1", "isGateway": true,
	"ipam": {"type": "host-local", "dataDir": "DIR/leases", "ranges": [[{"subnet": "10.9.0.0/30"}]]}
}`

var _ = Describe("plumb trace", func() {
	It("shows each call as it ends, with the call of the IPAM plugin below it", func() {
		b := newTestbed()
		list := b.network("10-small.conf", small)
		session := b.startTrace()
		b.add(list, newContainer(id("8c1f0a77e1d2")))
		Eventually(session.Out).Should(gbytes.Say(`ADD +bridge .* ok\n`), "before the trace ends")
		Eventually(session.Out).Should(gbytes.Say(`ADD +host-local .* ok\n`))
		_, err := b.cni.AddNetworkList(context.Background(), list, newContainer(id("c2")).RT)
		Expect(err).To(HaveOccurred())
		Eventually(session.Out).Should(gbytes.Say(`  host-local .*\n`))
		const clock, took = `\d\d:\d\d:\d\d\.\d{3}`, ` +\d+\.\dms  `
		Expect(stopTrace(session)).To(MatchRegexp(`^` +
			`TIME +NETWORK +CONTAINER +IF +COMMAND +PLUGIN +DURATION +OUTCOME\n` +
			clock + `  small +8c1f0a77e1d2  eth0 +ADD +bridge` + took + `ok\n` +
			clock + `  small +8c1f0a77e1d2  eth0 +ADD +  host-local` + took + `ok\n` +
			clock + `  small +c20000000000  eth0 +ADD +bridge` + took + `code 11: IPAM plugin "host-local": failed to allocate .*\n` +
			clock + `  small +c20000000000  eth0 +ADD +  host-local` + took + `code 11: failed to allocate .*\n$`))
		Expect("/run/plumb").NotTo(BeADirectory())
	})

	It("shows the steps, or all of it as JSON", func() {
		b := newTestbed()
		list := b.network("10-small.conf", small)
		p := newContainer("c1")
		session := b.startTrace("--steps")
		b.add(list, p)
		Eventually(session.Out).Should(gbytes.Say(`\n +\d+\.\d{3}ms +\d+\.\d{3}ms  run host-local ADD\n`))
		Eventually(session.Out).Should(gbytes.Say(`\n +\d+\.\d{3}ms +\d+\.\d{3}ms  reserve 10.9.0.2\n`))
		stopTrace(session)

		session = b.startTrace("-o", "json")
		Expect(b.cni.DelNetworkList(context.Background(), list, p.RT)).To(Succeed())
		Eventually(session.Out).Should(gbytes.Say("}\n"))
		calls := tracedCalls(stopTrace(session))
		Expect(calls).To(HaveLen(1))
		Expect(calls[0].Time).To(BeTemporally("~", time.Now(), time.Hour))
		Expect(calls[0].Command + " " + calls[0].Plugin + " " + calls[0].Outcome).To(Equal("DEL bridge ok"))
		Expect(calls[0].Steps).NotTo(BeEmpty())
		Expect(calls[0].Calls).To(HaveLen(1))
		Expect(calls[0].Calls[0].Plugin).To(Equal("host-local"))
	})

	It("shows only one network or some containers", func() {
		b := newTestbed()
		pods, other := b.network("10-pods.conflist", chain), b.network("20-small.conf", small)
		byNetwork := b.startTrace("--network", "small", "-o", "json")
		b.add(pods, newContainer("c1"))
		b.add(other, newContainer("c2"))
		Eventually(byNetwork.Out).Should(gbytes.Say("\n"))
		calls := tracedCalls(stopTrace(byNetwork))
		Expect(calls).To(HaveLen(1))
		Expect(calls[0].ContainerID).To(Equal("c2"))

		byContainer := b.startTrace("--container", "ab", "-o", "json")
		b.add(pods, newContainer("c3"))
		b.add(pods, newContainer("abc"))
		Eventually(byContainer.Out).Should(gbytes.Say(`"plugin":"tuning".*\n`))
		for _, c := range tracedCalls(stopTrace(byContainer)) {
			Expect(c.ContainerID).To(Equal("abc"))
		}
	})

	It("hides a STATUS that succeeds, without --all", func() {
		b := newTestbed()
		pods := b.network("10-pods.conflist", chain)
		for args, commands := range map[string][]string{"": {"ADD"}, "--all": {"STATUS", "ADD"}} {
			session := b.startTrace(strings.Fields("-o json " + args)...)
			Expect(b.cni.GetStatusNetworkList(GinkgoT().Context(), pods)).To(Succeed())
			b.add(pods, newContainer("c"+strings.Trim(args, "-")))
			Eventually(session.Out).Should(gbytes.Say(`"plugin":"tuning".*\n`))
			var seen []string
			for _, c := range tracedCalls(stopTrace(session)) {
				if c.Plugin == "bridge" {
					seen = append(seen, c.Command)
				}
			}
			Expect(seen).To(Equal(commands), args)
		}
	})

	It("shows a call whose process is killed", func() {
		b := newTestbed()
		session := b.startTrace()
		silent := filepath.Join(b.dir, "silent") // an IPAM plugin that does not answer
		Expect(os.WriteFile(silent, []byte("#!/bin/sh\n: >$0.called\nexec sleep 600\n"), 0o755)).To(Succeed())
		p := newContainer("c1")
		call := exec.Command(filepath.Join(b.bin, "bridge"))
		call.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=" + p.Path(), "CNI_PATH=" + b.dir}
		call.Stdin = strings.NewReader(`{"cniVersion": "1.1.0", "name": "n", "type": "bridge", "bridge": "cni2", "ipam": {"type": "silent"}}`)
		Expect(b.host.Start(call)).To(Succeed())
		Eventually(silent + ".called").Should(BeAnExistingFile())
		Expect(call.Process.Kill()).To(Succeed())
		Expect(call.Wait()).NotTo(Succeed())
		Eventually(session.Out).Should(gbytes.Say(`n +c1 +eth0 +ADD +bridge +-  killed\n`))
		stopTrace(session)
	})

	It("runs once per host, ends after its time, and takes over from a killed trace", func() {
		b := newTestbed()
		first := b.startTrace()
		second := b.run("", "trace")
		Expect(second.Exit).To(Equal(exitError))
		Expect(second.Stderr).To(Equal("plumb: another plumb trace runs on this host; end it first\n"))
		Eventually(first.Kill()).Should(gexec.Exit())

		b.add(b.network("10-small.conf", small), newContainer("c1")) // no process reads the pipe
		reply := b.run("", "trace", "--for", "1ms")
		Expect(reply.Exit).To(Equal(0))
		Expect("/run/plumb").NotTo(BeADirectory())
	})

	It("reports a network that does not exist, and waits for it", func() {
		b := newTestbed()
		b.network("10-small.conf", small)
		reply := b.run("", "trace", "--for", "1ms", "--network", "smal")
		Expect(reply.Exit).To(Equal(0))
		Expect(reply.Stderr).To(MatchRegexp(`^plumb: network "smal": no such network on this host; its networks are .*small.*; waiting for it\nplumb trace: waiting `))
		Expect(b.run("", "trace", "--for", "1ms", "--network", "small").Stderr).To(HavePrefix("plumb trace: waiting "))
	})

	It("ends, and removes its pipe, when its output has no reader", func() {
		b := newTestbed()
		list := b.network("10-small.conf", small)
		r, w, err := os.Pipe()
		Expect(err).NotTo(HaveOccurred())
		cmd := exec.Command(filepath.Join(b.bin, "plumb"), "trace")
		messages := gbytes.NewBuffer()
		cmd.Stdout, cmd.Stderr = w, messages
		Expect(cmd.Start()).To(Succeed())
		DeferCleanup(func() { _ = cmd.Process.Kill() })
		Expect(w.Close()).To(Succeed())
		Expect(bufio.NewReader(r).ReadString('\n')).To(HavePrefix("TIME"))
		Expect(r.Close()).To(Succeed())
		b.add(list, newContainer("c1"))
		Expect(cmd.Wait()).To(Succeed())
		Expect(string(messages.Contents())).To(Equal("plumb trace: waiting for calls of plugins; Ctrl-C ends it\n"))
		Expect("/run/plumb").NotTo(BeADirectory())
	})

	It("rejects a time that is not positive", func() {
		b := newTestbed()
		for _, limit := range []string{"-1s", "0s"} {
			cmd := exec.Command("timeout", "20", filepath.Join(b.bin, "plumb"), "trace", "--for", limit)
			reply := b.wait(cmd)
			Expect(reply.Exit).To(Equal(exitUsage), limit)
			Expect(reply.Stderr).To(ContainSubstring("--for must be positive, got " + limit))
		}
	})

	DescribeTable("says what to do if the path is not a named pipe", func(occupy func(path string) error) {
		b := newTestbed()
		Expect(os.Mkdir("/run/plumb", 0o755)).To(Succeed())
		DeferCleanup(os.RemoveAll, "/run/plumb")
		Expect(occupy("/run/plumb/trace")).To(Succeed())
		reply := b.run("", "trace", "--for", "1ms")
		Expect(reply.Exit).To(Equal(exitError))
		Expect(reply.Stderr).To(Equal("plumb: create pipe /run/plumb/trace: the file is not a named pipe; remove it\n"))
	},
		Entry("a file", func(path string) error { return os.WriteFile(path, nil, 0o600) }),
		Entry("a symbolic link", func(path string) error { return os.Symlink("/run/elsewhere", path) }),
		Entry("a socket", func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) }),
		Entry("a directory", func(path string) error { return os.Mkdir(path, 0o755) }),
	)
})
