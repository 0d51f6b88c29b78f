package main

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("plumb list", func() {
	It("shows each attachment with its addresses and what the host holds for it", func() {
		b := newTestbed()
		list := b.network("10-pods.conflist", chain)
		b.add(list, newContainer(id("8c1f0a77e1d2"), 8080, 8443))
		b.add(list, newContainer("default-"+id("b2bf"))) // a container of nerdctl
		Expect(os.WriteFile(filepath.Join(b.path("leases/pods"), "10.1.2.77"), []byte(id("e5")+"\r\neth0"), 0o600)).To(Succeed())
		out := regexp.MustCompile(`veth\w+`).ReplaceAllString(b.plumb("list"), "VETH")
		out = regexp.MustCompile(`\d+s\n`).ReplaceAllString(out, "0s\n")
		Expect(out).To(MatchRegexp(`^` +
			`NETWORK +CONTAINER +IF +ADDRESSES +ON THE HOST +SINCE\n` +
			`pods +8c1f0a77e1d2 +eth0 +10.1.2.2 fd00:1:2::2 +VETH @cni0, masq4, masq6, 2 host ports, tuning record +0s\n` +
			`pods +default-b2bf00000000 +eth0 +10.1.2.3 fd00:1:2::3 +VETH @cni0, masq4, masq6, tuning record +0s\n` +
			`pods +e50000000000 +eth0 +10.1.2.77 +reservation only +0s\n` +
			`1 network, 3 attachments, 1 suspect: plumb doctor\n$`))
	})

	It("says which pool is nearly full", func() {
		b := newTestbed()
		list := b.network("10-small.conflist", `{"cniVersion": "1.1.0", "name": "small", "plugins": [{"type": "bridge", "bridge": "br7", "ipam": {
			"type": "host-local", "dataDir": "DIR/leases", "subnet": "10.9.9.0/30"}}]}`)
		Expect(b.plumb("list")).To(Equal("0 networks, 0 attachments\n"))
		b.add(list, newContainer("c1"))
		Expect(b.plumb("list")).To(HaveSuffix("1 network, 1 attachment\nnetwork small: 0 of 1 addresses are free (10.9.9.1-10.9.9.2)\n"))
		Expect(b.inventory().Networks[0].Pools).To(HaveExactElements(And(HaveField("Size", uint64(1)), HaveField("Reserved", uint64(1)))))
	})

	It("reads the caches of Multus and further directories, including configurations of single plugins", func() {
		b := newTestbed()
		conf, err := libcni.NetworkPluginConfFromBytes([]byte(`{"cniVersion": "1.0.0", "name": "nad", "type": "bridge", "bridge": "br7", "ipam": {
			"type": "host-local", "dataDir": "` + b.path("leases") + `", "subnet": "10.9.9.0/24"}}`))
		Expect(err).NotTo(HaveOccurred())
		b.add(b.network("10-pods.conflist", chain), newContainer("c1"))
		for _, id := range []string{"delegate1", "delegate2"} {
			p, cache := newContainer(id), map[string]string{"delegate1": "cache/multus", "delegate2": "other"}[id]
			b.cni = cnitest.New(b.host, b.path(cache), b.bin)
			_, err = b.cni.AddNetwork(context.Background(), conf, p.RT)
			Expect(err).NotTo(HaveOccurred())
			p.Remove(GinkgoTB())
		}
		Eventually(func() string { return b.host.Must(GinkgoTB(), "ip", "-o", "link", "show", "master", "br7") }).Should(BeEmpty())
		b.age()
		Expect(b.plumb("list", "--cache-dir", b.path("other"))).To(And(
			MatchRegexp(`nad +delegate1 +eth0 +10.9.9.2 +namespace gone +1h0m\n`), MatchRegexp(`nad +delegate2 +eth0 +10.9.9.3 +namespace gone +1h0m\n`)))
		reply := b.gc("c1", "--live", "-", "--cache-dir", b.path("other"))
		Expect(reply.Exit).To(Equal(0), reply.Stderr+reply.Stdout)
		Expect(b.inventory().Attachments).To(HaveLen(1))
		Expect(filepath.Glob(b.path("*/results/nad*"))).To(BeEmpty())
		Expect(b.path("cache/multus/results/nad-delegate1-eth0")).NotTo(BeAnExistingFile())
		Expect(b.path("other/results/nad-delegate2-eth0")).NotTo(BeAnExistingFile())
	})

	It("omits addresses of loopback, and shows each address once", func() {
		b := newTestbed()
		b.add(b.network("10-pods.conflist", chain), newContainer("c1"))
		// The result contains loopback's addresses, and one address twice, as from a plugin that passes the address to
		// a virtual machine.
		text := nstest.ReadFile(GinkgoTB(), b.path("cache/results/pods-c1-eth0"))
		changed := strings.Replace(text, `"ips":[`, `"ips":[{"address":"127.0.0.1/8"},{"address":"::1/128"},{"address":"10.1.2.2/24"},`, 1)
		Expect(changed).NotTo(Equal(text))
		Expect(os.WriteFile(b.path("cache/results/pods-c1-eth0"), []byte(changed), 0o600)).To(Succeed())
		Expect(b.plumb("list")).To(MatchRegexp(`pods +c1 +eth0 +10.1.2.2 fd00:1:2::2 +veth`))
		Expect(b.plumb("explain", "c1")).To(Not(MatchRegexp(`route to (127|::1)`)))
	})

	It("shows an attachment with the interface of a virtual machine, which doctor, explain and repair accept as well", func() {
		nstest.RequireTaps(GinkgoTB())
		b := newTestbed()
		p := newContainer("vm1")
		b.add(b.network("10-pods.conflist", strings.Replace(chain, `{"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400}`, `{"type": "tc-redirect-tap"}`, 1)), p)
		Expect(b.plumb("list")).To(MatchRegexp(`pods +vm1 +eth0 +10.1.2.2 fd00:1:2::2 +veth`))
		Expect(b.plumb("doctor")).To(ContainSubstring("\nnothing found"))
		Expect(b.plumb("explain", "vm1")).To(ContainSubstring("10.1.2.2"))
		p.Must(GinkgoTB(), "tc", "qdisc", "del", "dev", "eth0", "ingress")
		reply := b.run("", append([]string{"doctor"}, b.directories()...)...)
		Expect(reply.Stdout).To(ContainSubstring("interface eth0 has no ingress qdisc"))
		Expect(b.plumb("repair", "--container-side")).To(ContainSubstring("repaired 1, left 0"))
		Expect(b.plumb("doctor")).To(ContainSubstring("\nnothing found"))
	})

	It("hides containerd's network cni-loopback without --all", func() {
		b := newTestbed()
		p := newContainer("c1")
		p.RT.IfName = "lo"
		b.add(b.network("99-lo.conflist", `{"cniVersion": "1.0.0", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}`), p)
		Expect(b.plumb("list")).To(Equal("0 networks, 0 attachments\n"))
		for _, flag := range []string{"--all", "--network=cni-loopback"} {
			Expect(b.plumb("list", flag)).To(HaveSuffix("\n1 network, 1 attachment\n"))
		}
		Expect(b.plumb("repair")).To(Equal("repaired 0, left 0, healthy 0, skipped 0\n"))
		p.IP("link set lo down")
		Expect(b.plumb("repair", "--container-side")).To(HaveSuffix("\nrepaired 1, left 0, healthy 0, skipped 0\n"))
	})

	It("shows that a container's namespace is gone", func() {
		b := newTestbed()
		p := newContainer("removed")
		b.add(b.network("10-pods.conflist", chain), p)
		Expect(b.plumb("list")).NotTo(ContainSubstring("gone"))
		p.Remove(GinkgoTB())
		Expect(b.plumb("list")).To(And(MatchRegexp("tuning record, namespace gone"), HaveSuffix("1 suspect: plumb doctor\n")))
		Eventually(func() string { return b.plumb("list") }).ShouldNot(ContainSubstring("veth"))
		Expect(b.plumb("list")).NotTo(ContainSubstring("in the container"), "the container is gone")
	})

	It("counts remembered addresses, which are not suspect", func() {
		b := newTestbed()
		list := b.network("10-pods.conflist", strings.Replace(chain, `"ranges"`, `"sticky": "pod", "ranges"`, 1))
		for _, id := range []string{"c1", "c2"} {
			p := newContainer(id)
			p.RT.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", id}}
			b.add(list, p)
			Expect(b.cni.DelNetworkList(context.Background(), list, p.RT)).To(Succeed())
			if id == "c2" {
				b.add(list, p)
			}
		}
		Expect(b.plumb("list")).To(HaveSuffix("\n1 network, 1 attachment, 2 addresses remembered\n"))
		Expect(b.inventory().Networks[0].Remembered).To(Equal([]netip.Addr{netip.MustParseAddr("10.1.2.2"), netip.MustParseAddr("fd00:1:2::2")}))
		Expect(b.plumb("doctor")).To(ContainSubstring("\nnothing found "))
	})

	It("shows that the host end of a bridge attachment is missing", func() {
		b := newTestbed()
		b.add(b.network("10-pods.conflist", chain), newContainer("c1"))
		b.host.MustLine(GinkgoTB(), "ip link del "+b.inventory().Attachments[0].Resources[2].Name)
		Expect(b.plumb("list")).To(MatchRegexp(`c1 .* no host end, masq4`))
	})

	It("shows that an attachment lacks a result after its ADD must have ended, if others have one", func() {
		b := newTestbed()
		b.addHalf(newContainer("half"))
		b.age()
		b.network("10-pods.conflist", chain)
		Expect(b.plumb("list")).NotTo(ContainSubstring("no result"), "the runtime may not use libcni's cache")
		b.add(b.network("10-pods.conflist", chain), newContainer("c1"))
		b.addHalf(newContainer("young"))
		Expect(b.plumb("list")).To(And(MatchRegexp(`half .*, no result +1h0m\n`), HaveSuffix(", 1 suspect: plumb doctor\n")))
	})

	It("prints each resource as JSON, with its place and the command that removes it", func() {
		b := newTestbed()
		b.add(b.network("10-pods.conflist", chain), newContainer("c1", 8080))
		inv := b.inventory()
		Expect(inv.Errors).To(BeEmpty())
		Expect(inv.Networks).To(HaveLen(1))
		Expect(inv.Networks[0].Plugins).To(Equal([]string{"bridge", "portmap", "tuning"}))
		Expect(inv.Attachments).To(HaveLen(1))
		a := inv.Attachments[0]
		Expect(a.ID().String()).To(Equal("pods/c1/eth0"))
		Expect(a.Addresses).To(Equal([]string{"10.1.2.2", "fd00:1:2::2"}))
		Expect(a.Resources[len(a.Resources)-1]).To(HaveField("Name", "libcni"), "libcni is the name, not the path")
		removals := map[string]bool{}
		for _, t := range a.Resources {
			removals[t.Remove] = true
			if t.Kind == "reservation" || t.Kind == "record" || t.Kind == "result" {
				Expect(*t.Since).To(BeTemporally("~", time.Now(), time.Hour))
			}
		}
		Expect(removals).To(HaveKey("rm " + b.path("leases/pods/10.1.2.2")))
		Expect(removals).To(HaveKey("rm " + b.path("tuning/c1_eth0.json")))
		Expect(removals).To(HaveKey("nft delete element inet plumb hostport4 '{ tcp . 8080 }'"))
		Expect(removals).To(HaveKey("nft delete element inet plumb masq6 '{ fd00:1:2::2 }'"))
		for remove := range removals {
			b.host.Must(GinkgoTB(), "sh", "-c", remove)
		}
		Expect(b.inventory().Attachments).To(BeEmpty())
	})

	It("combines the resources of an owner whose name is too long for an alias or a comment", func() {
		b := newTestbed()
		long := id("ab") + id("cd")
		b.add(b.network("10-pods.conflist", chain), newContainer(long))
		inv := b.inventory()
		Expect(inv.Attachments).To(HaveLen(1))
		Expect(inv.Attachments[0].ContainerID).To(Equal(long))
		Expect(inv.Attachments[0].Incomplete).To(BeFalse())
		Expect(inv.Attachments[0].Summary()).To(ContainSubstring("@cni0"))
	})

	It("changes nothing on the host, and creates no directory or lock file", func() {
		b := newTestbed()
		Expect(b.plumb("list")).To(Equal("0 networks, 0 attachments\n"))
		Expect(os.ReadDir(b.path("cache"))).To(BeEmpty())
		b.add(b.network("10-pods.conflist", chain), newContainer("c1", 8080))
		Expect(os.Remove(b.path("leases/pods/lock"))).To(Succeed())
		before := nstest.WaitStable(b.state)
		b.plumb("list")
		b.plumb("list", "-o", "json")
		Expect(nstest.Compare(before, b.state())).To(BeEmpty())
	})

	It("selects attachments by network and container ID prefix", func() {
		b := newTestbed()
		list := b.network("10-pods.conflist", chain)
		b.add(list, newContainer("c1"))
		b.add(list, newContainer("e1"))
		Expect(b.plumb("list", "--network", "pods", "--container", "e")).To(And(ContainSubstring("e1"), Not(ContainSubstring("c1"))))
		reply := b.run("", append(b.directories(), "list", "--network", "pod")...)
		Expect(reply.Exit).To(Equal(exitUsage))
		Expect(reply.Stderr).To(ContainSubstring(`network "pod": no such network on this host; its networks are pods`))
	})

	It("fails without root and finds nothing wrong, like all commands that read the host", func() {
		b := newTestbed()
		b.add(b.network("10-pods.conflist", chain), newContainer("c1", 8080))
		// A user other than root may lack access to the directory of the executables under test.
		Expect(os.CopyFS(b.path("bin"), os.DirFS(b.bin))).To(Succeed())
		Expect(errors.Join(os.Chmod(b.dir, 0o755), os.Chmod(b.path("bin"), 0o755))).To(Succeed())
		b.bin = b.path("bin")
		for _, args := range [][]string{
			{"list"}, {"doctor"}, {"explain", "c1"}, {"gc", "--no-live", "--dry-run"}, {"metrics"}, {"repair"},
		} {
			reply := b.runAs(65534, append(args, b.directories()...)...)
			Expect(reply.Exit).To(Equal(exitError), "%q", args)
			Expect(reply.Stdout).To(BeEmpty(), "%q", args)
			Expect(reply.Stderr).To(MatchRegexp(`^plumb: [^\n]*(permission denied|operation not permitted); run plumb as root on the host\n$`), "%q", args)
		}
		Expect(os.RemoveAll(b.path("cache/results"))).To(Succeed())
		reply := b.runAs(65534, append([]string{"list"}, b.directories()...)...)
		Expect(reply.Stderr).To(HavePrefix("plumb: read "+b.path("leases/pods")+": "), "an unreadable reservation seems to lack an owner")
		file := b.path("conf/10-pods.conflist")
		reply = b.runAs(65534, "doctor", "--cni-path", b.bin, file)
		Expect(reply.Stdout).To(MatchRegexp(`^skipped without root: STATUS of bridge: permission denied\n(?s:.*)nothing found `))
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		text := nstest.ReadFile(GinkgoTB(), file)
		Expect(os.WriteFile(file, []byte(strings.Replace(text, `"type"`, `"isGatway": true, "type"`, 1)), 0o644)).To(Succeed())
		reply = b.runAs(65534, "doctor", "--cni-path", b.bin, file)
		Expect(reply.Stdout).To(ContainSubstring("isGatway: unknown key; isGateway was probably meant"))
		Expect(reply.Exit).To(Equal(exitFound), reply.Stderr)
	})

	It("rejects a directory that does not exist, like all commands that read the host", func() {
		b := newTestbed()
		none := b.path("none")
		for _, args := range [][]string{
			{"list", "--conf-dir", none}, {"list", "--cache-dir", none}, {"list", "--data-dir", none}, {"doctor", "--conf-dir", none},
			{"gc", "--no-live", "--conf-dir", none}, {"metrics", "--conf-dir", none}, {"explain", "c1", "--conf-dir", none},
		} {
			reply := b.run("", args...)
			Expect(reply.Exit).To(Equal(exitUsage), "%q", args)
			Expect(reply.Stdout).To(BeEmpty())
			Expect(reply.Stderr).To(HavePrefix("plumb: " + args[len(args)-2] + ": there is no directory " + none + "\n"))
		}
		cmd := exec.Command(filepath.Join(b.bin, "plumb"), "metrics")
		cmd.Env = append(os.Environ(), "NETCONFPATH="+none)
		reply := b.wait(cmd)
		Expect(reply.Exit).To(Equal(exitUsage))
		Expect(reply.Stderr).To(HavePrefix("plumb: $NETCONFPATH: there is no directory " + none + "\n"))
		cmd = exec.Command(filepath.Join(b.bin, "plumb"), append([]string{"list", "--conf-dir", b.path("conf")}, b.directories()...)...)
		cmd.Env = append(os.Environ(), "NETCONFPATH="+none)
		Expect(b.wait(cmd).Exit).To(Equal(0), "the flag overrides the environment")
	})

	DescribeTable("fails if it cannot write to stdout, like other commands", func(args ...string) {
		b := newTestbed()
		b.add(b.network("10-pods.conflist", chain), newContainer("c1"))
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		Expect(err).NotTo(HaveOccurred())
		defer full.Close()
		if args[0] == "list" || args[0] == "gc" {
			args = append(args, b.directories()...)
		}
		cmd := exec.Command(filepath.Join(b.bin, "plumb"), args...)
		cmd.Stdout = full
		reply := b.wait(cmd)
		Expect(reply.Exit).To(Equal(exitError), "%q", args)
		Expect(reply.Stderr).To(HaveSuffix("plumb: write /dev/stdout: no space left on device\n"))
	},
		Entry("list", "list"), Entry("help", "--help"), Entry("help of a command", "gc", "--help"), Entry("version", "--version"),
		Entry("completion", "completion", "bash"), Entry("the names of schemas", "schema", "--list"),
		Entry("gc that changes nothing", "gc", "--no-live", "--dry-run", "--min-age", "0"),
	)

	DescribeTable("does not block, like all commands that read the host, on", func(create string) {
		b := newTestbed()
		b.add(b.network("10-pods.conflist", chain), newContainer("c1"))
		cached := filepath.Join(b.path("cache/results"), "pods-c1-eth0") // libcni opens this file by its name
		b.host.Must(GinkgoTB(), "mv", cached, cached+".bak")
		pipes := []string{b.path("conf/00-x.conflist"), b.path("conf/20-x.conf"), b.path("cache/results/zz"), cached}
		for _, pipe := range pipes {
			b.host.Must(GinkgoTB(), "sh", "-c", create+" "+pipe)
		}
		for _, args := range [][]string{
			{"list"}, {"doctor"}, {"explain", "c1"}, {"metrics"}, {"repair"}, {"gc", "--no-live", "--dry-run"}, {"gc", "--no-live", "--min-age", "0", "--network", "pods"}, {"doctor", pipes[0]},
		} {
			if args[len(args)-1] != pipes[0] {
				args = append(args, b.directories()...)
			}
			cmd := exec.Command("timeout", append([]string{"-s", "KILL", "60", filepath.Join(b.bin, "plumb")}, args...)...)
			reply := b.wait(cmd)
			Expect(reply.Exit).To(BeElementOf(0, exitFound, exitError), "%q", args)
			for _, pipe := range pipes {
				switch {
				case args[0] == "list" || args[0] == "metrics":
					Expect(reply.Stderr).To(ContainSubstring("plumb: cannot read "+pipe+": "), "%q", args)
				case args[0] == "doctor" && pipe == pipes[0]:
					Expect(reply.Stdout+reply.Stderr).To(MatchRegexp("not a regular file|is too large"), "%q", args)
				}
			}
		}
	},
		Entry("named pipes", "mkfifo"), Entry("endless devices", "ln -s /dev/zero"), Entry("large files", "truncate -s 1T"))

	It("names a damaged result, and gc then removes nothing that has no owner", func() {
		b := newTestbed()
		b.add(b.network("10-pods.conflist", chain), newContainer("c1"))
		cached := filepath.Join(b.path("cache/results"), "pods-c1-eth0")
		Expect(os.Truncate(cached, 100)).To(Succeed())
		for args, status := range map[string]int{"list": 0, "repair": exitError, "gc --no-live --min-age 0": exitFound} {
			reply := b.run("", append(strings.Fields(args), b.directories()...)...)
			Expect(reply.Stdout+reply.Stderr).To(ContainSubstring("cannot read "+cached+": the runtime's result of an attachment is damaged"), args)
			Expect(reply.Exit).To(Equal(status), args)
		}
	})

	It("limits the list of live containers", func() {
		b := newTestbed()
		reply := b.run("", append([]string{"gc", "--dry-run", "--live", "/dev/zero"}, b.directories()...)...)
		Expect(reply.Exit).To(Equal(exitError))
		Expect(reply.Stderr).To(ContainSubstring("the list of live containers: the file is too large: want at most "))
	})

	It("names what it cannot read, and shows the rest", func() {
		b := newTestbed()
		b.add(b.network("10-pods.conflist", chain), newContainer("c1"))
		Expect(os.WriteFile(filepath.Join(b.path("conf"), "05-broken.conflist"), []byte("{"), 0o644)).To(Succeed())
		reply := b.run("", append([]string{"list"}, b.directories()...)...)
		Expect(reply.Exit).To(Equal(0))
		Expect(reply.Stdout).To(ContainSubstring("c1"))
		Expect(reply.Stderr).To(ContainSubstring("plumb: cannot read " + b.path("conf/05-broken.conflist") + ": "))
	})
})
