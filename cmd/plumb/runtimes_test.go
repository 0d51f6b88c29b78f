package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/doctor"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// A fakeContainerd answers Version and Status as containerd does. test/runtimes asks the real one.
type fakeContainerd struct {
	fakeRuntime
	version, confDir, binDir string
	networks                 []string
	notReady                 string // why the network is not ready
}

func (r fakeContainerd) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: r.version}, nil
}

func (r fakeContainerd) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	networks := `{"Config": {"Name": "cni-loopback"}, "IFName": "lo"}`
	for _, name := range r.networks {
		networks += fmt.Sprintf(`, {"Config": {"Name": %q}, "IFName": "eth0"}`, name)
	}
	ready := &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: r.notReady == "", Message: r.notReady}
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{ready}}, Info: map[string]string{
		"cniconfig": fmt.Sprintf(`{"PluginDirs": [%q], "PluginConfDir": %q, "PluginMaxConfNum": 1, "Prefix": "eth", "Networks": [%s]}`, r.binDir, r.confDir, networks),
	}}, nil
}

// containerd returns a containerd that reads the testbed's directories and uses the network pods.
func (b *testbed) containerd() fakeContainerd {
	return fakeContainerd{fakeRuntime: lists("live"), version: "2.1.4", confDir: b.path("conf"), binDir: b.bin, networks: []string{"pods"}}
}

// runUnset is run without the variables that name directories, and with this configuration file of plumb.
func (b *testbed) runUnset(config string, args ...string) nstest.Reply {
	GinkgoHelper()
	Expect(os.WriteFile(b.path("plumb.yaml"), []byte(config), 0o644)).To(Succeed())
	if args[0] != "install" {
		args = append(args, b.directories()...)
	}
	cmd := exec.Command(filepath.Join(b.bin, "plumb"), args...)
	for _, setting := range os.Environ() {
		if name, _, _ := strings.Cut(setting, "="); name != "NETCONFPATH" && name != "CNI_PATH" && name != "PLUMB_CONFIG" {
			cmd.Env = append(cmd.Env, setting)
		}
	}
	cmd.Env = append(cmd.Env, "PLUMB_CONFIG="+b.path("plumb.yaml"))
	return b.wait(cmd)
}

// doctorUnset calls doctor until each runtime has answered, because a runtime gets only a second, also on a slow machine.
func (b *testbed) doctorUnset(config string, args ...string) (report doctor.Report, text string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		report = doctor.Report{}
		reply := b.runUnset(config, append([]string{"doctor", "-o", "json"}, args...)...)
		g.Expect(json.Unmarshal([]byte(reply.Stdout), &report)).To(Succeed(), reply.Stderr)
		g.Expect(report.Errors).To(BeEmpty())
		text = b.runUnset(config, append([]string{"doctor"}, args...)...).Stdout
		g.Expect(text).NotTo(ContainSubstring("does not answer"))
	}).Should(Succeed())
	return report, text
}

var _ = Describe("the runtimes of the host", func() {
	var b *testbed
	var config string // names the socket
	BeforeEach(func() {
		b = newTestbed()
		b.network("10-pods.conflist", chain)
		config = "cri: [" + b.path("cri.sock") + "]\n"
	})

	It("are named first by plumb doctor, which examines their directories", func() {
		serve(b.path("cri.sock"), b.containerd())
		report, text := b.doctorUnset(config)
		Expect(text).To(HavePrefix("containerd 2.1.4: network pods in " + b.path("conf") +
			", plugins in " + b.bin + ", cniVersion up to 1.1.0\nnothing found (1 configuration, 4 executables, 0 attachments, "))
		Expect(report.Runtimes).To(HaveExactElements(And(HaveField("Name", "containerd"), HaveField("Networks", []string{"pods"}), HaveField("MaxConfNum", 1))))
		Expect(report.ConfDirs).To(Equal([]string{b.path("conf")}))
		Expect(report.PluginDirs).To(Equal([]string{b.bin}))
	})

	It("determine what the other commands read, and --cri without a value asks them", func() {
		serve(b.path("cri.sock"), b.containerd())
		b.add(b.network("10-pods.conflist", chain), newContainer("live"))
		Eventually(func() string { return b.runUnset(config, "list", "-o", "json").Stdout }).
			Should(ContainSubstring(`"file": "` + b.path("conf/10-pods.conflist") + `"`))
		Eventually(func() string { return b.runUnset(config, "repair").Stdout }).Should(Equal("repaired 0, left 0, healthy 1, skipped 0\n"))
		Expect(b.runUnset(config, "gc", "--cri").Stdout).To(Equal("removed resources of 0 attachments, kept 0, left 0\n"))
	})

	It("list a container whose namespace is gone, and neither plumb list nor doctor calls it a leftover", func() {
		c := newContainer("live")
		b.add(b.network("10-pods.conflist", chain), c)
		c.Remove(GinkgoTB())
		serve(b.path("cri.sock"), b.containerd())
		Eventually(func() string { return b.runUnset(config, "list").Stdout }).Should(HaveSuffix("\n1 network, 1 attachment\n"))
		report, _ := b.doctorUnset(config)
		Expect(report.Findings).To(BeEmpty())
	})

	It("do not count if flags name directories, but doctor says what the runtime uses", func() {
		serve(b.path("cri.sock"), b.containerd())
		other := b.path("other")
		Expect(os.Mkdir(other, 0o755)).To(Succeed())
		Expect(os.Rename(b.path("conf/10-pods.conflist"), filepath.Join(other, "10-pods.conflist"))).To(Succeed())
		report, text := b.doctorUnset(config, "--conf-dir", other)
		Expect(text).To(ContainSubstring("\nexamined instead: configurations in " + other + ", plugins in " + b.bin + "\n"))
		Expect(report.Files).To(Equal([]string{filepath.Join(other, "10-pods.conflist")}))
	})

	It("may use another network than before, which doctor says before it says what this network lacks", func() {
		b.add(b.network("10-pods.conflist", chain), newContainer("live"))
		runtime := b.containerd()
		runtime.networks = []string{"cilium"}
		serve(b.path("cri.sock"), runtime)
		Expect(os.WriteFile(b.path("conf/05-cilium.conflist"), []byte(`{"cniVersion": "1.0.0", "name": "cilium", "plugins": [{"type": "cilium-cni"}]}`), 0o644)).To(Succeed())
		report, _ := b.doctorUnset(config)
		Expect(report.Findings).To(HaveExactElements(
			And(HaveField("Check", "runtime-network"), HaveField("What", ContainSubstring(`attaches new containers to network "cilium", and not to "pods"`))),
			And(HaveField("Check", "executable"), HaveField("What", ContainSubstring("cilium-cni")))))
	})

	It("should not load a file in which the network got another name", func() {
		file := b.path("conf/10-pods.conflist")
		b.add(b.network("10-pods.conflist", chain), newContainer("live"))
		b.age()
		serve(b.path("cri.sock"), b.containerd())
		text, err := os.ReadFile(file)
		Expect(err).NotTo(HaveOccurred())
		Expect(os.WriteFile(file, []byte(strings.Replace(string(text), `"pods"`, `"pods2"`, 1)), 0o644)).To(Succeed())
		report, _ := b.doctorUnset(config)
		Expect(report.Findings).To(HaveExactElements(And(HaveField("Check", "no-network"), HaveField("Edit", file+`: write "name": "pods"`))))
	})

	It("may lack the plugin loopback, which a restart does not bring back", func() {
		dir := GinkgoT().TempDir()
		Expect(os.CopyFS(dir, os.DirFS(b.bin))).To(Succeed())
		Expect(os.Remove(filepath.Join(dir, "loopback"))).To(Succeed())
		runtime := b.containerd()
		runtime.binDir, runtime.networks, runtime.notReady = dir, nil, "Network plugin returns error: cni plugin not initialized"
		serve(b.path("cri.sock"), runtime)
		report, _ := b.doctorUnset(config)
		Expect(report.Findings).To(HaveExactElements(And(HaveField("What", HaveSuffix("because it needs the plugin loopback for each of them, and "+dir+" lacks it")),
			HaveField("Fix", ContainSubstring("/loopback")))))
	})

	It("use the same network as before if the second file is a copy of the first one", func() {
		b.add(b.network("10-pods.conflist", chain), newContainer("live"))
		b.network("zz-pods.conflist", chain)
		serve(b.path("cri.sock"), b.containerd())
		report, _ := b.doctorUnset(config)
		Expect(report.Findings).To(HaveExactElements(HaveField("Check", "duplicate-name")))
	})

	It("are not reported as not ready if an executable is missing, which is the reason", func() {
		b.network("10-pods.conflist", strings.Replace(chain, `"portmap"`, `"missing"`, 1))
		runtime := b.containerd()
		runtime.networks, runtime.notReady = nil, `cni config load failed: failed to find plugin "missing"`
		serve(b.path("cri.sock"), runtime)
		report, _ := b.doctorUnset(config)
		Expect(report.Findings).To(HaveExactElements(HaveField("Check", "executable")))
	})

	It("are all named, and doctor examines the directories of all", func() {
		second := b.containerd()
		second.confDir, second.networks = b.path("second"), []string{"lan"}
		Expect(os.Mkdir(second.confDir, 0o755)).To(Succeed())
		Expect(os.WriteFile(filepath.Join(second.confDir, "20-lan.conflist"), []byte(strings.NewReplacer(`"pods"`, `"lan"`, "cni0", "cni1",
			"10.1.2", "10.1.7", "fd00:1:2", "fd00:1:7", "DIR", b.dir).Replace(chain)), 0o644)).To(Succeed())
		serve(b.path("cri.sock"), b.containerd())
		serve(b.path("second.sock"), second)
		report, text := b.doctorUnset("cri: [" + b.path("cri.sock") + ", unix://" + b.path("second.sock") + "]\n")
		Expect(report.Findings).To(BeEmpty())
		Expect(report.Files).To(HaveLen(2))
		Expect(text).To(And(ContainSubstring("containerd 2.1.4: network pods in "+b.path("conf")+","), ContainSubstring("containerd 2.1.4: network lan in "+second.confDir+",")))
	})

	// The spec takes two seconds, the time limits for the runtime.
	It("are named by doctor if they do not answer, and doctor then examines only what it can see", func() {
		l, err := net.Listen("unix", b.path("cri.sock"))
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(l.Close)
		Expect(os.Remove(b.path("conf/10-pods.conflist"))).To(Succeed())
		reply := b.runUnset(config, "doctor")
		Expect(reply.Stdout).To(And(HavePrefix("not examined: runtime: " + b.path("cri.sock") + " does not answer within 1s\nnothing found (0 configurations, ")))
		Expect(reply.Exit).To(Equal(exitError))
		reply = b.runUnset(config+"conf-dir: "+b.path("conf")+"\ncni-path: ["+b.bin+"]\n", "doctor")
		Expect(reply.Stdout).To(ContainSubstring("no network configuration (*.conflist, *.conf, *.json)"))
	})

	It("need not exist, and plumb then uses its configuration file", func() {
		b.add(b.network("10-pods.conflist", chain), newContainer("live"))
		reply := b.runUnset("conf-dir: "+b.path("conf")+"\ncni-path: ["+b.bin+"]\n", "doctor")
		Expect(reply.Stdout).To(HavePrefix("no runtime found: configurations in " + b.path("conf") + ", plugins in " + b.bin + "\nnothing found (1 configuration, "))
		reply = b.runUnset("cni-paht: [/a]\n", "list")
		Expect(reply.Exit).To(Equal(exitError))
		Expect(reply.Stderr).To(And(HavePrefix("plumb: "+b.path("plumb.yaml")+": "), ContainSubstring("cni-paht")))
	})

	It("are named by plumb install if they do not execute plugins from its directory", func() {
		serve(b.path("cri.sock"), b.containerd())
		to := b.path("opt")
		Eventually(func() string {
			return b.runUnset(config, "install", "--from", b.bin, "--to", to, "--create", "--only", "loopback").Stdout
		}).Should(ContainSubstring("executes plugins from " + b.bin + ", and not from " + to + ". "))
	})
})
