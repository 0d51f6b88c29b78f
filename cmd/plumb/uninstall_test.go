package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/tables"
	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("plumb uninstall", func() {
	It("restores the former plugins and removes what plumb added, after install, but not while containers exist", func() {
		b := newTestbed()
		to, backup := b.path("opt"), b.path("before")
		Expect(os.Mkdir(to, 0o755)).To(Succeed())
		Expect(os.WriteFile(filepath.Join(to, "static"), []byte("#!/bin/sh\n"), 0o755)).To(Succeed())
		install := []string{"install", "--to", to, "--backup", backup, "--from", b.bin, "--only", "bridge,static"}
		reply := b.run("", append(install, "--dry-run")...)
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		Expect(reply.Stdout).To(MatchRegexp(`(?s)bridge +added.*static +replaced.*Executables that would be installed in `))
		Expect(backup).NotTo(BeADirectory())
		Expect(filepath.Join(to, "bridge")).NotTo(BeAnExistingFile())
		Expect(b.run("", install...).Exit).To(Equal(0))

		list, p := b.network("10-pods.conflist", chain), newContainer("c1", 8080)
		b.add(list, p)
		uninstall := append([]string{"uninstall", "--to", to, "--restore", backup}, b.directories()...)
		reply = b.run("", uninstall...)
		Expect(reply.Exit).To(Equal(exitError))
		stops := "plumb: nothing was changed, because this host holds resources of 1 attachment; delete the containers with the runtime, and then run plumb gc --no-live; "
		Expect(reply.Stderr).To(Equal(stops + "or run this, which goes back to the former plugins while the containers run: plumb install --to " + to + " --restore " + backup + "\n"))
		dryRun := b.run("", append(uninstall, "--dry-run")...)
		Expect(dryRun.Exit).To(Equal(exitError))
		Expect(dryRun.Stderr).To(Equal("uninstall would do the following if this host held no resources of containers\n" + reply.Stderr))
		Expect(dryRun.Stdout).To(ContainSubstring("would restore " + to + "/static\n"))
		Expect(b.run("", append([]string{"uninstall"}, b.directories()...)...).Stderr).To(Equal(
			stops + "if there is a backup, plumb install --restore goes back to the former plugins while the containers run\n"))
		Expect(b.cni.DelNetworkList(GinkgoT().Context(), list, p.RT)).To(Succeed())
		list = b.network("10-pods.conflist", strings.Replace(chain, `"portmap"`, `"portmap", "backend": "iptables"`, 1))
		b.add(list, p)
		Expect(b.cni.DelNetworkList(GinkgoT().Context(), list, p.RT)).To(Succeed())
		b.host.Must(GinkgoTB(), "iptables", "-t", "raw", "-A", "PREROUTING", "-d", "127.9.0.0/16", "-j", "DROP") // an administrator's
		b.host.Must(GinkgoTB(), "iptables-legacy", "-t", "raw", "-A", "PREROUTING", "-d", "127.0.0.0/8", "-i", "cni9", "-m", "comment", "--comment", tables.GuardComment, "-j", "DROP")

		reply = b.run("", append(uninstall, "--dry-run")...)
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		for _, step := range []string{"restore " + to + "/static", "remove " + to + "/bridge", "set net/ipv4/conf/cni0/route_localnet to 0",
			`delete the rules "CNI portfwd localhost only from this host" of chain PREROUTING in table raw of iptables`, "delete nftables table inet plumb"} {
			Expect(reply.Stdout).To(ContainSubstring("would " + step + "\n"))
		}
		Expect(strings.Count(reply.Stdout, tables.GuardComment)).To(Equal(1), "for nftables and the legacy table")
		Expect(filepath.Join(to, "bridge")).To(BeAnExistingFile())

		withoutBackup := b.run("", append([]string{"uninstall", "--dry-run"}, b.directories()...)...)
		Expect(withoutBackup.Exit).To(Equal(0), withoutBackup.Stderr)
		Expect(withoutBackup.Stdout).To(And(ContainSubstring("would delete nftables table inet plumb\n"), Not(ContainSubstring("remove "+to))))
		Expect(b.run("", "uninstall", "--to", to).Exit).To(Equal(exitUsage))

		reply = b.run("", uninstall...)
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		Expect(reply.Stdout).To(ContainSubstring("done: delete nftables table inet plumb\n"))
		Expect(os.ReadFile(filepath.Join(to, "static"))).To(HaveLen(len("#!/bin/sh\n")))
		Expect(filepath.Join(to, "bridge")).NotTo(BeAnExistingFile())
		Expect(b.host.Sysctl(GinkgoTB(), "net/ipv4/conf/cni0/route_localnet")).To(Equal("0"))
		Expect(b.host.Must(GinkgoTB(), "nft", "list", "tables")).NotTo(ContainSubstring("plumb"))
		Expect(b.host.Must(GinkgoTB(), "iptables", "-t", "raw", "-S", "PREROUTING")).To(Equal("-P PREROUTING ACCEPT\n-A PREROUTING -d 127.9.0.0/16 -j DROP\n"))
		Expect(b.host.Must(GinkgoTB(), "iptables-legacy", "-t", "raw", "-S", "PREROUTING")).To(Equal("-P PREROUTING ACCEPT\n"))
	})
})

var _ = It("plumb uninstall deletes the elements of containers that the former plugins deleted, but keeps those of a live container", func() {
	b := newTestbed()
	list, dead, live := b.network("10-pods.conflist", chain), newContainer("c1", 8080), newContainer("c2")
	b.add(list, dead)
	b.add(list, live)
	reference := cnitest.New(b.host, b.path("cache"), nstest.Reference(GinkgoTB()))
	Expect(reference.DelNetworkList(GinkgoT().Context(), list, dead.RT)).To(Succeed())
	Expect(b.plumb("list")).To(MatchRegexp(`pods +c1 +eth0 .* element`))
	uninstall := append([]string{"uninstall"}, b.directories()...)
	Expect(b.run("", uninstall...).Stderr).To(ContainSubstring("this host holds resources of 1 attachment; "), "of c2")
	Expect(reference.DelNetworkList(GinkgoT().Context(), list, live.RT)).To(Succeed())
	reply := b.run("", uninstall...)
	Expect(reply.Exit).To(Equal(0), reply.Stderr)
	Expect(b.host.Must(GinkgoTB(), "nft", "list", "tables")).NotTo(ContainSubstring("plumb"))
})

var _ = Describe("plumb report", func() {
	It("writes an archive without secrets, and shows what is in it", func() {
		b := newTestbed()
		b.add(b.network("10-pods.conflist", chain), newContainer("c1", 8080))
		b.network("20-etcd.conflist", `{"cniVersion": "1.1.0", "name": "etcd", "plugins": [{"type": "macvlan", "ipam": {"Password" : "hi\"dden", "other": 1}}]}`)
		archive := b.path("report.tar.gz")
		args := append([]string{"report", "--file", archive}, b.directories()...)
		reply := b.run("", args...)
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		Expect(reply.Stdout).To(And(ContainSubstring(" bytes  doctor.txt\n"), HaveSuffix("wrote "+archive+"; read it before you publish it\n")))
		read := func(name string) string {
			GinkgoHelper()
			text, err := exec.Command("tar", "-xzOf", archive, "plumb-report/"+name).Output()
			Expect(err).NotTo(HaveOccurred())
			return string(text)
		}
		Expect(read("conf/20-etcd.conflist")).To(ContainSubstring(`{"Password" : "REDACTED", "other": 1}`))
		Expect(read("nftables.txt")).To(ContainSubstring("table inet plumb"))
		Expect(read("list.json")).To(ContainSubstring(`"container": "c1"`))
		Expect(read("doctor.txt")).To(ContainSubstring(", 1 attachment, "))
		Expect(b.run("", args...).Stderr).To(ContainSubstring("file exists"), "an archive is not overwritten")
	})
})
