package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/repair"
	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// stubProgram runs the script beside it. plumb treats it as its own plugin, because its module is below plugins/.
const stubProgram = `package main

import (
	"os"
	"path/filepath"
	"syscall"
)

func main() {
	dir, name := filepath.Split(os.Args[0])
	panic(syscall.Exec("/bin/sh", []string{"sh", dir + "script", name}, os.Environ()))
}
`

// stubScript is a plugin. CHECK fails if the file broken-PLUGIN-CONTAINER exists. REPAIR deletes it or, if the file
// fails-PLUGIN-CONTAINER exists, prints that file as its error.
const stubScript = `
cd ${0%/*}
state=$1-$CNI_CONTAINERID
config=$(cat)
case $CNI_COMMAND in
"") echo "CNI $1 plugin v2.0.0" >&2 ;;
VERSION) echo '{"cniVersion": "1.1.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0", "1.1.0"]}' ;;
ADD) echo '{"cniVersion": "0.3.1", "interfaces": [{"name": "eth0", "sandbox": "'$CNI_NETNS'"}]}' ;;
CHECK) test ! -e broken-$state || { cat broken-$state; exit 1; } ;;
REPAIR)
	echo $state >>log
	echo "$CNI_ARGS $config" >config-$state
	echo "$PLUMB_CONTAINER_SIDE" >side-$state
	test ! -p hang || cat hang
	test ! -e fails-$state || { cat fails-$state; exit 1; }
	rm broken-$state ;;
esac
`

// stub is the path of the executable of stubProgram.
var stub string

var _ = BeforeSuite(func() {
	dir := GinkgoT().TempDir()
	Expect(os.WriteFile(dir+"/go.mod", []byte("module github.com/plumb-cni/plumb/v2/plugins/one\n"), 0o644)).To(Succeed())
	Expect(os.WriteFile(dir+"/main.go", []byte(stubProgram), 0o644)).To(Succeed())
	cmd := exec.Command("go", "build", "-o", "one", ".")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
	stub = dir + "/one"
})

// A stubbed is a testbed with the plugins one and two, which are stubs.
type stubbed struct {
	*testbed
	stubs string // the directory of the stubs
}

func newStubbed() *stubbed {
	GinkgoHelper()
	b := &stubbed{newTestbed(), GinkgoT().TempDir()}
	Expect(errors.Join(os.Link(stub, b.stubs+"/one"), os.Link(stub, b.stubs+"/two"))).To(Succeed())
	b.write("script", stubScript)
	b.cni = cnitest.New(b.host, b.path("cache"), b.stubs, b.bin)
	return b
}

func (b *stubbed) write(name, text string) {
	GinkgoHelper()
	Expect(os.WriteFile(filepath.Join(b.stubs, name), []byte(text), 0o644)).To(Succeed())
}

// answer makes the plugin two execute the commands for a verb.
func (b *stubbed) answer(verb, commands string) {
	GinkgoHelper()
	b.write("script", "test $1.$CNI_COMMAND != two."+verb+" || { "+commands+"; }\n"+stubScript)
}

func (b *stubbed) read(name string) string {
	GinkgoHelper()
	text := nstest.ReadFile(GinkgoTB(), filepath.Join(b.stubs, name))
	return text
}

// broken is the error of a CHECK.
const broken = `{"code": 100, "msg": "element x is missing; link y is down", "problems": [
	{"kind": "missing", "fix": "add x"}, {"kind": "differs", "fix": "set y up"}]}`

// attach attaches containers with these IDs, each a minute after the previous one, and breaks the plugin for each.
func (b *stubbed) attach(chain, plugin string, ids ...string) (all []*container) {
	GinkgoHelper()
	list := b.network("10-stubs.conflist", `{"cniVersion": "1.1.0", "name": "stubs", "plugins": [`+chain+`]}`)
	for i, id := range ids {
		p := newContainer(id, 8080)
		p.RT.Args = [][2]string{{"IgnoreUnknown", "1"}}
		b.add(list, p)
		added := time.Now().Add(time.Duration(i-len(ids)) * time.Minute)
		Expect(os.Chtimes(b.path("cache/results/stubs-"+id+"-eth0"), added, added)).To(Succeed())
		b.write("broken-"+plugin+"-"+id, broken)
		all = append(all, p)
	}
	return all
}

// editResult sets a key of the attachment's file in libcni's cache.
func (b *stubbed) editResult(id, key string, value any) {
	GinkgoHelper()
	path := b.path("cache/results/stubs-" + id + "-eth0")
	text, err := os.ReadFile(path)
	Expect(err).NotTo(HaveOccurred())
	var cached map[string]any
	Expect(json.Unmarshal(text, &cached)).To(Succeed())
	cached[key] = value
	text, err = json.Marshal(cached)
	Expect(err).NotTo(HaveOccurred())
	Expect(os.WriteFile(path, text, 0o600)).To(Succeed())
}

func (b *stubbed) args(args ...string) []string {
	return append(append([]string{"repair", "--cni-path", b.stubs + ":" + b.bin}, args...), b.directories()...)
}

// repair runs repair with -o json, and returns the report and the exit status.
func (b *stubbed) repair(args ...string) (report repair.Report, exit int) {
	GinkgoHelper()
	reply := b.run("", b.args(append(args, "-o", "json")...)...)
	Expect(json.Unmarshal([]byte(reply.Stdout), &report)).To(Succeed(), reply.Stderr)
	return report, reply.Exit
}

const both = `{"type": "one", "capabilities": {"portMappings": true}}, {"type": "two"}`

// ignoreExit returns nil for the error of a process that was killed or failed.
func ignoreExit(err error) error {
	if errors.As(err, new(*exec.ExitError)) {
		return nil
	}
	return err
}

var _ = Describe("plumb repair", func() {
	var b *stubbed
	BeforeEach(func() { b = newStubbed() })

	It("calls REPAIR of each plugin whose CHECK fails, for the latest ADD first, with the arguments of the ADD", func() {
		b.attach(both, "two", "rep-c", "rep-a", "rep-b")
		b.write("broken-one-rep-a", broken)
		reply := b.run("", b.args("--dry-run")...)
		Expect(reply.Exit).To(Equal(exitFound), reply.Stderr)
		Expect(reply.Stdout).To(And(ContainSubstring("would repair stubs rep-a eth0 one: code 100: element x is missing; link y is down\n"),
			HaveSuffix("\nwould repair 3, left 0, healthy 0, skipped 0\n")))
		Expect(filepath.Join(b.stubs, "log")).NotTo(BeAnExistingFile())

		reply = b.run("", b.args()...)
		Expect(reply.Exit).To(Equal(0), reply.Stderr)
		Expect(reply.Stdout).To(And(ContainSubstring("repaired stubs rep-a eth0 one: code 100: element x is missing; link y is down\n"),
			HaveSuffix("repaired 3, left 0, healthy 0, skipped 0\n")))
		Expect(strings.Fields(b.read("log"))).To(Equal([]string{"two-rep-b", "one-rep-a", "two-rep-a", "two-rep-c"}))
		config := b.read("config-one-rep-a")
		for _, part := range []string{"IgnoreUnknown=1 ", `"name":"stubs"`, `"prevResult":{`, `"runtimeConfig":{"portMappings":[{`, `"cniVersion":"1.1.0"`} {
			Expect(config).To(ContainSubstring(part))
		}

		report, exit := b.repair("--network", "stubs")
		Expect(exit).To(Equal(0))
		Expect(report).To(And(HaveField("Counts.Healthy", 3), HaveField("Repaired", BeEmpty()), HaveField("Skipped", BeEmpty())))
		Expect(strings.Fields(b.read("log"))).To(HaveLen(4), "a healthy attachment needs no REPAIR")
	})

	It("calls REPAIR of all plugins if the container's interface is missing, and reports that once", func() {
		const missing = `{"code": 100, "msg": "no eth0", "problems": [{"kind": "missing", "object": "interface eth0", "repair": "never"}]}`
		b.attach(both, "one", "rep-a")
		for _, name := range []string{"broken-one", "fails-one", "broken-two", "fails-two"} {
			b.write(name+"-rep-a", missing)
		}
		report, exit := b.repair()
		Expect(exit).To(Equal(exitFound))
		Expect(strings.Fields(b.read("log"))).To(Equal([]string{"one-rep-a", "two-rep-a"}))
		Expect(report.Left).To(HaveExactElements(And(HaveField("Plugin", "one"), HaveField("Error", "code 100: no eth0"), HaveField("Advice", HavePrefix("Only ADD creates the interface of a container. ")))))
		By("with another error of a later plugin")
		b.write("fails-two-rep-a", `{"code": 5, "msg": "no memory"}`)
		report, _ = b.repair()
		Expect(report.Left).To(HaveExactElements(And(HaveField("Plugin", "one"), HaveField("What", "code 100: no eth0"), HaveField("Error", ContainSubstring("no memory")))))
	})

	It("passes --container-side to REPAIR", func() {
		b.attach(both, "one", "rep-a", "rep-b")
		_, exit := b.repair("--container-side")
		Expect(exit).To(Equal(0))
		Expect(b.read("side-one-rep-a")).To(Equal("1\n"))
		b.write("broken-one-rep-b", broken)
		_, exit = b.repair()
		Expect(exit).To(Equal(0))
		Expect(b.read("side-one-rep-b")).To(Equal("\n"))
	})

	DescribeTable("prints what REPAIR does not restore, and how to fix it", func(failure, want, fix string) {
		b.attach(both, "one", "rep-a")
		b.write("fails-one-rep-a", failure)
		report, exit := b.repair()
		Expect(exit).To(Equal(exitFound))
		Expect(report.Left).To(HaveLen(1))
		Expect(report.Left[0]).To(And(HaveField("What", ContainSubstring("link y is down")), HaveField("Error", want),
			HaveField("Lines()", HaveExactElements(fix))))
		reply := b.run("", b.args()...)
		Expect(reply.Stdout).To(ContainSubstring("  REPAIR: " + want + "\n    " + fix + "\nrepaired 0, left 1, "))
	},
		Entry("with commands", strings.Replace(broken, "element x is missing; ", "", 1), "code 100: link y is down", "add x && set y up"),
		Entry("if the port belongs to another container", `{"code": 100, "msg": "host port 80 belongs to b"}`, "code 100: host port 80 belongs to b",
			"No command restores this. Find out which program changed it, and then delete the pod or the container."),
		Entry("if another variable is wrong", `{"code": 4, "msg": "ARGS: unknown args"}`, "code 4: ARGS: unknown args",
			"No command restores this. Find out which program changed it, and then delete the pod or the container."),
		Entry("if the attachment is locked", `{"code": 11, "msg": "another call"}`, "code 11: another call", "Try again later."),
	)

	It("says what to do if REPAIR does not end in time", func() {
		b.attach(both, "two", "rep-a")
		b.answer("REPAIR", "exec sleep 1000")
		report, exit := b.repair("--timeout", "5s")
		Expect(exit).To(Equal(exitFound))
		Expect(report.Left).To(HaveExactElements(And(HaveField("Error", HaveSuffix("no answer in 5s")),
			HaveField("Lines()", HaveExactElements("Try again with a longer --timeout.")))))
	})

	DescribeTable("leaves an attachment one of whose plugins gives no verdict, and never calls it healthy", func(breakIt func(b *stubbed), what, fix string) {
		b.attach(both, "none", "rep-a", "rep-b")
		breakIt(b)
		expected := HaveEach(And(HaveField("Plugin", "two"), HaveField("What", "no verdict: "+strings.NewReplacer("DIR", b.stubs, "BIN", b.bin).Replace(what)),
			HaveField("Lines()", HaveExactElements(HavePrefix(strings.ReplaceAll(fix, "DIR", b.stubs))))))
		for _, dryRun := range []string{"--dry-run=true", "--dry-run=false"} {
			report, exit := b.repair("--timeout", "1s", dryRun)
			Expect(exit).To(Equal(exitFound))
			Expect(report).To(And(HaveField("Left", And(HaveLen(2), expected)), HaveField("Counts.Healthy", 0),
				HaveField("Repaired", BeEmpty()), HaveField("Damaged", BeEmpty())))
		}
		Expect(filepath.Join(b.stubs, "log")).NotTo(BeAnExistingFile(), "REPAIR needs the verdict of CHECK")
		args := []string{"maintain", "--cni-path", b.stubs + ":" + b.bin, "--timeout", "1s", "--metrics", b.path("m.prom")}
		Expect(b.run("", append(args, b.directories()...)...).Exit).To(Equal(exitFound))
		Expect(os.ReadFile(b.path("m.prom"))).To(ContainSubstring("\nplumb_maintain_left 2\n"))
	},
		Entry("because it is missing", func(b *stubbed) { Expect(os.Remove(b.stubs + "/two")).To(Succeed()) },
			"no executable in DIR:BIN", "Install the plugin two "),
		Entry("because it is a directory", func(b *stubbed) {
			Expect(errors.Join(os.Remove(b.stubs+"/two"), os.Mkdir(b.stubs+"/two", 0o755))).To(Succeed())
		}, "no executable in DIR:BIN", "Install the plugin two "),
		Entry("because it is not executable", func(b *stubbed) {
			Expect(errors.Join(os.Remove(b.stubs+"/two"), os.WriteFile(b.stubs+"/two", nil, 0o644))).To(Succeed())
		}, "DIR/two: not executable (mode 0644)", "chmod 0755 DIR/two"),
		Entry("because it does not answer VERSION", func(b *stubbed) { b.answer("VERSION", "kill -9 $$") },
			"DIR/two: does not answer VERSION: signal: killed", "Replace DIR/two "),
		Entry("because it hangs", func(b *stubbed) { b.answer("CHECK", "exec sleep 1000") },
			"DIR/two: no answer in 1s", "Replace DIR/two "),
		Entry("because it dies", func(b *stubbed) { b.answer("CHECK", "kill -9 $$") },
			"DIR/two: signal: killed", "Replace DIR/two "),
		Entry("because it fails without an error result", func(b *stubbed) { b.answer("CHECK", "echo '{{{{'; exit 1") },
			"DIR/two: exit status 1: {{{{", "Replace DIR/two "),
	)

	It("requires that another project's plugin with a name of plumb's plugins answers, but ignores its error", func() {
		b.write("tuning", "#!/bin/sh\n"+`test ! -e $0.dies || test "$CNI_COMMAND" != CHECK || kill -9 $$
			case $CNI_COMMAND in
			VERSION) echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.1.0"]}' ;;
			CHECK) echo '{"code": 100, "msg": "without a reason"}'; exit 1 ;;
			ADD) echo '{"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "'$CNI_NETNS'"}]}' ;;
			esac`)
		Expect(os.Chmod(b.stubs+"/tuning", 0o755)).To(Succeed())
		b.attach(`{"type": "one"}, {"type": "tuning"}`, "none", "rep-a")
		report, exit := b.repair()
		Expect(exit).To(Equal(0))
		Expect(report.Counts.Healthy).To(Equal(1))
		b.write("tuning.dies", "")
		report, exit = b.repair()
		Expect(exit).To(Equal(exitFound))
		Expect(report.Left).To(ConsistOf(And(HaveField("Plugin", "tuning"), HaveField("What", "no verdict: "+b.stubs+"/tuning: signal: killed"))))
	})

	It("does not judge by the IPAM plugin of another project, whose CHECK may always fail", func() {
		b.write("other", "#!/bin/sh\n"+`case $CNI_COMMAND in
			VERSION) echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.1.0"]}' ;;
			ADD) echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.89.0.2/24"}]}' ;;
			CHECK) echo '{"code": 999, "msg": "CNI CHECK method is not implemented"}'; exit 1 ;;
			esac`)
		Expect(os.Chmod(b.stubs+"/other", 0o755)).To(Succeed())
		b.attach(`{"type": "bridge", "bridge": "cni9", "ipam": {"type": "other"}}`, "none", "rep-a")
		report, exit := b.repair()
		Expect(exit).To(Equal(0))
		Expect(report.Counts.Healthy).To(Equal(1))
		b.host.Batch(GinkgoTB(), "link set cni9 down")
		report, exit = b.repair()
		Expect(exit).To(Equal(0), "%v", report)
		Expect(report.Counts.Repaired).To(Equal(1))
		Expect(os.Remove(b.stubs + "/other")).To(Succeed())
		report, exit = b.repair()
		Expect(exit).To(Equal(exitFound))
		Expect(report.Left).To(HaveExactElements(HaveField("What", ContainSubstring(`failed to find plugin "other"`))))
	})

	It("skips an attachment whose DEL has begun", func() {
		b.attach(both, "one", "rep-a")
		b.write("fails-one-rep-a", `{"code": 11, "msg": "another text", "problems": [{"kind": "deleted"}]}`)
		report, exit := b.repair()
		Expect(exit).To(Equal(0))
		Expect(report.Skipped).To(ConsistOf(HaveField("What", HavePrefix("a DEL of stubs/rep-a/eth0 has begun; if the runtime does not repeat it, run this: plumb gc --dead rep-a --network stubs --force"))))
	})

	It("calls CHECK of at most four plugins at a time", func() {
		b.attach(`{"type": "one"}`, "none", "rep-a", "rep-b", "rep-c", "rep-d", "rep-e", "rep-f", "rep-g", "rep-h")
		b.write("script", strings.Replace(stubScript, "CHECK)", `CHECK) >run-$$; set -- run-*; echo $# >>counts; sleep 0.2; rm run-$$;`, 1))
		reply := b.wait(exec.Command("env", append([]string{"GOMAXPROCS=8", filepath.Join(b.bin, "plumb")}, b.args()...)...))
		Expect(reply.Stdout).To(HaveSuffix("healthy 8, skipped 0\n"), reply.Stderr)
		Expect(strings.Fields(b.read("counts"))).To(And(HaveLen(8), HaveEach(BeElementOf("1", "2", "3", "4"))))
	})

	It("skips a network with disableCheck", func() {
		b.attach(both, "one", "rep-a", "rep-b")
		b.editResult("rep-a", "config", []byte(`{"cniVersion": "1.1.0", "name": "stubs", "disableCheck": true, "plugins": [`+both+`]}`))
		report, exit := b.repair()
		Expect(exit).To(Equal(0))
		Expect(report).To(And(HaveField("Counts.Healthy", 0), HaveField("Repaired", HaveLen(1))))
		Expect(report.Skipped).To(ConsistOf(And(HaveField("ContainerID", "rep-a"), HaveField("What", "its network has disableCheck"))))
	})

	It("uses the configuration of flannel's delegate, and skips a container without it", func() {
		b.write("flannel", "#!/bin/sh\nexec "+b.stubs+"/one")
		Expect(os.Chmod(b.stubs+"/flannel", 0o755)).To(Succeed())
		b.attach(`{"type": "flannel"}`, "one", "rep-a", "rep-b")
		for _, id := range []string{"rep-a", "rep-b"} {
			b.editResult(id, "config", []byte(`{"cniVersion": "0.3.1", "name": "stubs", "plugins": [{"type": "flannel", "dataDir": "`+b.stubs+`"}]}`))
		}
		b.write("rep-a", `{"cniVersion": "0.3.1", "name": "stubs", "type": "one", "key": "value"}`)
		report, exit := b.repair()
		Expect(exit).To(Equal(0))
		Expect(report.Repaired).To(ConsistOf(And(HaveField("Plugin", "one"), HaveField("ContainerID", "rep-a"))))
		Expect(b.read("config-one-rep-a")).To(And(ContainSubstring(`"key":"value"`), ContainSubstring(`"cniVersion":"0.4.0"`)))
		Expect(report.Skipped).To(ConsistOf(And(HaveField("ContainerID", "rep-b"),
			HaveField("What", ContainSubstring("read the configuration of flannel's delegate: open "+b.stubs+"/rep-b: no such file")))))
	})

	It("does not touch dead containers, and names the containers that it cannot check", func() {
		b.write("vendor", "#!/bin/sh\n"+`cat >/dev/null; echo '{"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "'$CNI_NETNS'"}]}'`)
		Expect(os.Chmod(b.stubs+"/vendor", 0o755)).To(Succeed())
		b.attach(`{"type": "one"}`, "one", "rep-dead")[0].Remove(GinkgoTB())
		b.attach(`{"type": "vendor"}`, "vendor", "rep-vendor")
		b.attach(`{"type": "one"}, {"type": "vendor"}`, "vendor", "rep-both")
		report, exit := b.repair()
		Expect(exit).To(Equal(0))
		Expect(report).To(And(HaveField("Counts.Healthy", 1), HaveField("Repaired", BeEmpty()), HaveField("Left", BeEmpty())))
		Expect(report.Skipped).To(ConsistOf(And(HaveField("ContainerID", "rep-vendor"), HaveField("What", HavePrefix("no plugin of the network is plumb's; ")))))
		Expect(filepath.Join(b.stubs, "log")).NotTo(BeAnExistingFile())
	})

	It("names a running container without a result or a configuration", func() {
		list := b.network("20-pods.conflist", chain)
		lost := newContainer("rep-lost")
		b.add(list, lost)
		startProcess(lost)
		Expect(os.Remove(b.path("cache/results/pods-rep-lost-eth0"))).To(Succeed())
		report, _ := b.repair()
		Expect(report.Skipped).To(ConsistOf(HaveField("What", "libcni's cache contains no result of its ADD, which may still be running")))
		b.age()
		b.attach(`{"type": "one"}`, "one", "rep-a")
		b.editResult("rep-a", "config", []byte("{}"))
		report, exit := b.repair()
		Expect(exit).To(Equal(0))
		Expect(report.Skipped).To(ConsistOf(HaveField("What", HavePrefix("libcni's cache contains no result of its ADD; ")),
			HaveField("What", HavePrefix(b.path("cache/results/stubs-rep-a-eth0")+" contains no valid configuration; "))))
	})

	It("restores a deleted bridge, so that containers reach the host and each other again", func() {
		list := b.network("10-pods.conflist", `{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0",
			"isGateway": true, "ipMasq": true, "ipam": {"type": "host-local", "dataDir": "DIR/leases", "subnet": "10.1.2.0/24"}},
			{"type": "portmap", "capabilities": {"portMappings": true}}]}`)
		first, second := newContainer("rep-a", 8080), newContainer("rep-b")
		b.add(list, first)
		b.add(list, second)
		pings := func() {
			GinkgoHelper()
			first.Must(GinkgoTB(), "ping", "-c1", "-W5", "10.1.2.1")
			second.Must(GinkgoTB(), "ping", "-c1", "-W5", "10.1.2.2")
		}
		pings()
		b.host.Batch(GinkgoTB(), "link del cni0")
		report, exit := b.repair()
		Expect(exit).To(Equal(0))
		Expect(report.Repaired).To(ConsistOf(HaveField("Plugin", "bridge"), HaveField("Plugin", "bridge"),
			HaveField("What", ContainSubstring("cni0/route_localnet")))) // which repair sees after it has restored cni0
		Expect(report.Counts).To(Equal(repair.Counts{Repaired: 2}))
		pings()
		report, _ = b.repair()
		Expect(report).To(And(HaveField("Counts.Healthy", 2), HaveField("Repaired", BeEmpty())))

		By("restoring a container's interface only with --container-side")
		first.Batch(GinkgoTB(), "link set eth0 down", "address del 10.1.2.2/24 dev eth0")
		report, exit = b.repair()
		Expect(exit).To(Equal(exitFound))
		Expect(report.Left).To(ConsistOf(HaveField("Plugin", "bridge")))
		Expect(first.IP("address show dev eth0")).To(And(ContainSubstring("state DOWN"), Not(ContainSubstring("10.1.2.2"))))
		report, exit = b.repair("--container-side")
		Expect(exit).To(Equal(0))
		Expect(report.Repaired).To(ConsistOf(HaveField("Plugin", "bridge")))
		pings()
	})

	It("lets the host accept router advertisements through a network card that was added after the last ADD", func() {
		list := b.network("10-pods.conflist", `{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0",
			"isGateway": true, "ipam": {"type": "host-local", "dataDir": "DIR/leases", "subnet": "fd00:1:2::/64"}}]}`)
		b.add(list, newContainer("rep-a"))
		nstest.Join(GinkgoTB(), nstest.End{In: b.host, Name: "eth7"}, nstest.End{In: nstest.New(GinkgoTB()), Name: "router0"})
		const key = "net/ipv6/conf/eth7/accept_ra"
		b.host.SetSysctl(GinkgoTB(), key, "1")
		entry := ConsistOf(And(HaveField("IfName", "eth7"), HaveField("What", ContainSubstring("sysctl "+key+" is 1"))))
		report, exit := b.repair("--dry-run")
		Expect(exit).To(Equal(exitFound))
		Expect(report.Damaged).To(entry)
		Expect(b.host.Sysctl(GinkgoTB(), key)).To(Equal("1"))
		report, exit = b.repair()
		Expect(exit).To(Equal(0))
		Expect(report).To(And(HaveField("Counts.Healthy", 1), HaveField("Repaired", entry)))
		Expect(b.host.Sysctl(GinkgoTB(), key)).To(Equal("2"))
	})

	It("restores everything after it was killed at any time beside an ADD and a DEL, and no more", func() {
		list := b.network("10-pods.conflist", `{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0",
			"isGateway": true, "ipMasq": true, "ipam": {"type": "host-local", "dataDir": "DIR/leases", "subnet": "10.1.2.0/24"}},
			{"type": "portmap", "capabilities": {"portMappings": true}}]}`)
		for i, id := range []string{"rep-a", "rep-b", "rep-c"} {
			b.add(list, newContainer(id, 8080+i))
		}
		other := newContainer("rep-other", 9090)
		rules := func() []string {
			GinkgoHelper()
			lines := strings.Split(b.host.Must(GinkgoTB(), "nft", "-s", "list", "table", "inet", "plumb"), "\n")
			slices.Sort(lines)
			return lines
		}
		before := rules()
		for i := range 8 {
			b.host.Batch(GinkgoTB(), "link del cni0")
			b.host.Must(GinkgoTB(), "nft", "flush", "ruleset")
			cmd := exec.Command(filepath.Join(b.bin, "plumb"), b.args()...)
			Expect(b.host.Do(cmd.Start)).To(Succeed())
			killed := make(chan error)
			go func() {
				time.Sleep(time.Duration(i) * 15 * time.Millisecond) // wherever repair is by then
				killed <- errors.Join(cmd.Process.Kill(), ignoreExit(cmd.Wait()))
			}()
			b.add(list, other)
			Expect(b.cni.DelNetworkList(context.Background(), list, other.RT)).To(Succeed())
			Expect(<-killed).NotTo(HaveOccurred())
			report, exit := b.repair()
			Expect(exit).To(Equal(0))
			Expect(report.Counts.Healthy + report.Counts.Repaired).To(Equal(3))
			Expect(rules()).To(Equal(before))
		}
	})

	It("runs only once at a time, and ends after the current REPAIR at SIGTERM", func() {
		b.attach(both, "one", "rep-a", "rep-b")
		Expect(unix.Mkfifo(b.stubs+"/hang", 0o600)).To(Succeed())
		cmd := exec.Command(filepath.Join(b.bin, "plumb"), b.args()...)
		var session *gexec.Session
		Expect(b.host.Do(func() (err error) {
			session, err = gexec.Start(cmd, GinkgoWriter, GinkgoWriter)
			return err
		})).To(Succeed())
		pipe, err := os.OpenFile(b.stubs+"/hang", os.O_WRONLY, 0) // waits for REPAIR
		Expect(err).NotTo(HaveOccurred())
		reply := b.run("", b.args("--timeout", "10ms")...)
		Expect(reply.Exit).To(Equal(exitError))
		Expect(reply.Stderr).To(ContainSubstring("wait until another plumb repair or plumb gc ends: "))
		session.Terminate()
		Eventually(session.Err, time.Minute).Should(gbytes.Say("ending after the current call of a plugin"))
		Expect(pipe.Close()).To(Succeed())
		Eventually(session, time.Minute).Should(gexec.Exit(exitError))
		Expect(session.Out).To(gbytes.Say("repaired 1, left 0"))
		Expect(session.Err).To(gbytes.Say("plumb: ended by a signal"))
		Expect(b.read("log")).To(Equal("one-rep-b\n"))
	})

	It("prints what is left, even if SIGTERM interrupts a later pass", func() {
		b.attach(both, "one", "rep-a", "rep-b")
		b.write("fails-one-rep-a", broken)
		b.write("script", strings.Replace(stubScript, "CHECK)", "CHECK) test ! -e log || cat pause;", 1))
		Expect(unix.Mkfifo(b.stubs+"/pause", 0o600)).To(Succeed())
		var session *gexec.Session
		Expect(b.host.Do(func() (err error) {
			session, err = gexec.Start(exec.Command(filepath.Join(b.bin, "plumb"), b.args()...), GinkgoWriter, GinkgoWriter)
			return err
		})).To(Succeed())
		pipe, err := os.OpenFile(b.stubs+"/pause", os.O_WRONLY, 0) // waits for CHECK in the second pass
		Expect(err).NotTo(HaveOccurred())
		defer pipe.Close()
		session.Terminate()
		Eventually(session, time.Minute).Should(gexec.Exit(exitError))
		Expect(session.Out).To(gbytes.Say("repaired 1, left 1"))
	})

	It("rejects an unknown network and an unreadable cache", func() {
		b.attach(both, "two", "rep-a")
		Expect(b.run("", b.args("--network", "nets")...).Exit).To(Equal(exitUsage))
		Expect(os.RemoveAll(b.path("cache/results"))).To(Succeed())
		Expect(os.WriteFile(b.path("cache/results"), nil, 0o600)).To(Succeed())
		reply := b.run("", b.args()...)
		Expect(reply.Exit).To(Equal(exitError))
		Expect(reply.Stderr).To(ContainSubstring("cache/results: not a directory"))
	})
})
