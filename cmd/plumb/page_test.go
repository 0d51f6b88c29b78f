package main

import (
	"context"
	"errors"
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

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// The containers of the page.
const (
	pageLive = "4c1f0a77e1d2"
	pageDead = "e5b0c2a9f410"
)

// pagePods and pageLAN are the networks of the page's host.
const (
	pagePods = `{
    "cniVersion": "1.1.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "isGateway": true,
            "ipMasq": true,
            "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "dataDir": "DIR/data",
                "ranges": [[{"subnet": "10.1.2.0/24"}]],
                "routes": [{"dst": "0.0.0.0/0"}]
            }
        },
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "tuning", "dataDir": "DIR/tuning", "mtu": 1400}
    ]
}
`
	pageLAN = `{
    "cniVersion": "1.1.0",
    "name": "lan",
    "plugins": [
        {
            "type": "macvlan",
            "master": "eth1",
            "ipam": {
                "type": "host-local",
                "dataDir": "DIR/data",
                "ranges": [[{"subnet": "192.168.7.0/24", "rangeStart": "192.168.7.40", "rangeEnd": "192.168.7.49"}]]
            }
        }
    ]
}
`
)

// A pageHost is the host on which the commands of docs/reference/plumb.md and docs/reference/plumb run. It contains the networks pods and
// lan. The container pageLive is on both networks, and the container pageDead, whose namespace is gone, on pods.
type pageHost struct {
	*testbed
	pods    *libcni.NetworkConfigList
	live    *container
	replace map[string]func() string // functions that run instead of a command, and return its output
	actual  *strings.Replacer        // from the directories of a usual host to the testbed's, and from short IDs to whole ones
	usual   *strings.Replacer        // the reverse
}

func newPageTools() *pageHost {
	GinkgoHelper()
	tb := GinkgoTB()
	p := &pageHost{testbed: newTestbed(), replace: map[string]func() string{}}
	flags := " --cache-dir " + p.path("cache") + " --data-dir " + p.path("data")
	there, here := []string{}, []string{flags, ""}
	for _, pair := range [][2]string{
		{"/var/lib/cni/networks", p.path("data")}, {"/run/cni/tuning", p.path("tuning")}, {"/var/lib/cni", p.path("cache")},
		{"/etc/cni/net.d", p.path("conf")}, {"/etc/cni", p.path("etc")}, {"/opt/cni", p.path("opt")}, {"/usr/lib/plumb/cni", p.bin},
		{"/var/lib/node_exporter", p.path("exporter")}, {"/run/containerd/containerd.sock", p.path("cri.sock")},
		{pageLive + "…", id(pageLive)}, {pageDead + "…", id(pageDead)},
	} {
		there, here = append(there, pair[0], pair[1]), append(here, pair[1], pair[0])
	}
	p.actual, p.usual = strings.NewReplacer(there...), strings.NewReplacer(here...)
	p.writeProgram("tools/plumb", `case $1 in install | schema) ;; *) set -- "$@"`+flags+" ;; esac\nexec "+p.bin+`/plumb "$@"`)
	p.writeProgram("tools/podman", "echo "+id(pageLive))
	for _, dir := range []string{"etc", "exporter", "opt/bin"} {
		Expect(os.MkdirAll(p.path(dir), 0o755)).To(Succeed())
	}
	for _, name := range []string{"bridge", "host-local", "portmap", "tuning", "macvlan"} {
		p.host.Must(tb, "install", "-m", "0755", filepath.Join(p.bin, name), p.path("opt/bin"))
	}
	return p
}

func newPageHost() *pageHost {
	GinkgoHelper()
	p, tb := newPageTools(), GinkgoTB()
	p.host.Batch(tb, "link add eth1 type veth peer name switch1", "link set eth1 up", "link set switch1 up")
	p.pods = p.network("10-pods.conflist", pagePods)
	lan := p.network("20-lan.conflist", pageLAN)
	p.live = newContainer(id(pageLive), 8080, 8443)
	p.add(p.pods, p.live)
	onLAN := *p.live.RT
	onLAN.IfName, onLAN.CapabilityArgs = "net1", nil
	p.add(lan, &container{NS: p.live.NS, RT: &onLAN})
	dead := newContainer(id(pageDead), 9090)
	p.add(p.pods, dead)
	dead.Remove(tb)
	Eventually(func() string { return p.host.Must(tb, "ip", "-o", "link", "show", "master", "cni0") }).Should(MatchRegexp(`^[^\n]*\n$`))
	p.ageBy(76*time.Hour + 30*time.Minute)
	return p
}

func (p *pageHost) writeProgram(name, text string) {
	GinkgoHelper()
	Expect(os.MkdirAll(filepath.Dir(p.path(name)), 0o755)).To(Succeed())
	Expect(os.WriteFile(p.path(name), []byte("#!/bin/sh\n"+text+"\n"), 0o755)).To(Succeed())
}

// output runs a command of the page on the host, and returns what it prints, with the directories of a usual host.
func (p *pageHost) output(command string) string {
	GinkgoHelper()
	if f := p.replace[command]; f != nil {
		return p.usual.Replace(f())
	}
	out := ""
	Eventually(func() string { // a runtime gets only a second, also on a slow machine
		out = p.start(command)
		return out
	}).ShouldNot(ContainSubstring("does not answer within"))
	return p.usual.Replace(out)
}

// start runs a command of the page on the host, and returns what it prints.
func (p *pageHost) start(command string) string {
	GinkgoHelper()
	var out strings.Builder
	cmd := exec.Command("sh", "-c", p.actual.Replace(command))
	cmd.Env = append(os.Environ(), "PATH="+p.path("tools")+":"+os.Getenv("PATH"), "NETCONFPATH="+p.path("conf"), "CNI_PATH="+p.path("opt/bin"), "PLUMB_CONFIG="+p.path("plumb.yaml"))
	cmd.Stdout, cmd.Stderr = &out, &out
	Expect(p.host.Start(cmd)).To(Succeed())
	if err := cmd.Wait(); err != nil { // doctor exits with 1 if it found something
		var status *exec.ExitError
		Expect(errors.As(err, &status) && status.ExitCode() == exitFound).To(BeTrue(), "%s: %v\n%s", command, err, &out)
	}
	return out.String()
}

// checkPage runs the commands in the console blocks of a page, after the heading, in their order, and compares the
// output with the page. It returns the blocks. With `go test -update`, it writes the output to the page.
func (p *pageHost) checkPage(name, heading string) (blocks string) {
	GinkgoHelper()
	file := filepath.Join(nstest.Root(GinkgoTB()), name)
	page := nstest.ReadFile(GinkgoTB(), file)
	before, rest, found := strings.Cut(page, "# "+heading+"\n")
	Expect(found).To(BeTrue(), "no section %q", heading)
	section, _, _ := strings.Cut(rest, "\n## ")
	after := rest[len(section):]
	const fence = "```"
	for _, m := range regexp.MustCompile("(?s)\n"+fence+"console\n(.*?\n)"+fence+"\n").FindAllStringSubmatch(section, -1) {
		screen := ""
		for line := range strings.Lines(m[1]) {
			if command, ok := strings.CutPrefix(line, "# "); ok {
				screen += line + p.output(strings.TrimSuffix(command, "\n"))
			}
		}
		switch same := masked(screen) == masked(m[1]); {
		case nstest.Updating() && !same:
			section = strings.Replace(section, m[1], screen, 1)
		case !same:
			Expect(masked(screen)).To(Equal(masked(m[1])), "%s, section %q; as root, go test -exec $PWD/scripts/sandbox.sh ./cmd/plumb -ginkgo.focus docs/reference/plumb.md -update writes it anew\n%s",
				name, heading, nstest.Compare(masked(m[1]), masked(screen)))
		}
		blocks += screen
	}
	Expect(blocks).NotTo(BeEmpty(), "section %q has no console block", heading)
	if nstest.Updating() {
		Expect(os.WriteFile(file, []byte(before+"# "+heading+"\n"+section+after), 0o644)).To(Succeed())
	}
	return blocks
}

// masked replaces what differs between two runs, which is times, durations and the names of host veths.
func masked(screen string) string {
	screen = regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d\.\d{3} `).ReplaceAllString(screen, "00:00:00.000 ")
	screen = regexp.MustCompile(` +\d+\.\dms `).ReplaceAllString(screen, " 0.0ms ")
	return regexp.MustCompile(`\bveth[0-9a-f]{8}\b`).ReplaceAllString(screen, "veth00000000")
}

var _ = Describe("docs/reference/plumb.md", func() {
	It("shows the commands' real output in the tour of a broken host", func() {
		p := newPageHost()
		p.network("10-pods.conflist", strings.Replace(pagePods, "isGateway", "isGatway", 1))
		Expect(os.Remove(p.path("opt/bin/tuning"))).To(Succeed())
		p.host.Must(GinkgoTB(), "nft", "flush", "ruleset")
		screens := p.checkPage("docs/reference/plumb.md", "A tour of a broken host")
		for _, advice := range regexp.MustCompile(`(?m)^ {4}([a-z]+ .*)$`).FindAllStringSubmatch(screens, -1) {
			Expect(screens).To(ContainSubstring("\n# "+advice[1]+"\n"), "the tour must run the commands")
		}
	})

	It("shows the commands' real output in the examples", func() {
		p := newPageHost()
		check := func(command string) { p.checkPage("docs/reference/plumb/"+command+".md", "plumb "+command) }
		for _, command := range []string{"list", "gc", "explain", "metrics", "schema", "repair"} {
			check(command)
		}
		for name, made := range map[string]string{"exporter/plumb.prom": "plumb_attachments", "etc/conflist.schema.json": `"$schema"`} {
			Expect(os.ReadFile(p.path(name))).To(ContainSubstring(made))
		}

		nstest.Build(GinkgoTB(), "dhcp")
		p.output("echo >> /opt/cni/bin/bridge && cp -p /usr/lib/plumb/cni/loopback /opt/cni/bin")
		check("install")

		p.replace["plumb trace"] = func() string {
			small := p.network("30-small.conflist", strings.NewReplacer("10.1.2.0/24", "10.1.3.0/30", `"pods"`, `"small"`,
				`"type": "bridge"`, `"type": "bridge", "bridge": "cni1"`).Replace(pagePods))
			session := p.startTrace()
			p.add(small, newContainer(id(pageLive)))
			p.refuse(small, newContainer(id(pageDead)))
			Eventually(session.Out).Should(gbytes.Say(`DEL +  host-local`))
			return string(session.Err.Contents()) + stopTrace(session)
		}
		check("trace")
	})
})

// refuse adds the container to the network, which must fail, and then deletes it as a runtime does.
func (p *pageHost) refuse(list *libcni.NetworkConfigList, failed *container) {
	GinkgoHelper()
	_, err := p.cni.AddNetworkList(context.Background(), list, failed.RT)
	Expect(err).To(HaveOccurred())
	Expect(p.cni.DelNetworkList(context.Background(), list, failed.RT)).To(Succeed())
}
