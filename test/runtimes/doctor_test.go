package runtimes

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// A report is the part of plumb doctor's JSON that the specs read.
type report struct {
	Runtimes []struct {
		Name, Version, Source, ConfDir, CNIVersion string
		PluginDirs, Networks                       []string
		MaxConfNum                                 int
	}
	Findings []finding
	Errors   []string
}

type finding struct{ Check, Where, What, Fix, Edit string }

// asDefault gives the daemon the default socket of containerd, where plumb finds it.
func (c *containerd) asDefault() *containerd {
	GinkgoHelper()
	Expect(os.MkdirAll("/run/containerd", 0o755)).To(Succeed())
	Expect(os.Symlink(filepath.Join(c.dir, "sock"), "/run/containerd/containerd.sock")).To(Succeed())
	DeferCleanup(os.Remove, "/run/containerd/containerd.sock")
	return c
}

// plumb runs plumb on the host, and returns what it prints. The exit status may be 1.
func (c *containerd) plumb(args ...string) string {
	GinkgoHelper()
	var out strings.Builder
	cmd := exec.Command(filepath.Join(os.Getenv("PLUMB_BIN"), "plumb"), args...)
	cmd.Stdout, cmd.Stderr = &out, GinkgoWriter
	Expect(c.Host.Start(cmd)).To(Succeed())
	_ = cmd.Wait()
	Expect(cmd.ProcessState.ExitCode()).To(BeNumerically("<=", 1), out.String())
	return out.String()
}

// doctor returns the report of plumb doctor. It fails g if containerd did not answer in time.
func (c *containerd) doctor(g Gomega, args ...string) (r report) {
	GinkgoHelper()
	g.Expect(json.Unmarshal([]byte(c.plumb(append([]string{"doctor", "-o", "json"}, args...)...)), &r)).To(Succeed())
	g.Expect(r.Errors).To(BeEmpty())
	return r
}

// expectFinding waits until plumb doctor has only findings of this check, and the first one says what.
func (c *containerd) expectFinding(check, what string, args ...string) (f finding) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		found := c.doctor(g, args...).Findings
		g.Expect(found).NotTo(BeEmpty())
		g.Expect(found).To(HaveEach(HaveField("Check", check)))
		f = found[0]
		g.Expect(f.Where + ": " + f.What).To(ContainSubstring(what))
	}).Should(Succeed())
	return f
}

func (c *containerd) expectHealthy() {
	GinkgoHelper()
	Eventually(func(g Gomega) { g.Expect(c.doctor(g).Findings).To(BeEmpty()) }).Should(Succeed())
}

var _ = Describe("plumb doctor with containerd", func() {
	It("finds nothing on a healthy host, and names the runtime and its directories", func() {
		c := newContainerd(newHost(), podNetwork).asDefault()
		c.mustRun(webPod("web", 8080))
		c.expectHealthy()
		Eventually(func(g Gomega) {
			g.Expect(c.doctor(g).Runtimes).To(HaveExactElements(And(
				HaveField("Name", "containerd"), HaveField("Version", HavePrefix("1.")), HaveField("Source", "/run/containerd/containerd.sock"),
				HaveField("ConfDir", filepath.Join(c.dir, "net.d")), HaveField("PluginDirs", []string{c.bin}), HaveField("Networks", []string{"pods"}),
				HaveField("MaxConfNum", 1), HaveField("CNIVersion", "1.0.0"),
			)))
		}).Should(Succeed())
		Eventually(func() string { return c.plumb("doctor") }).Should(MatchRegexp(`^containerd 1\S+: network pods in `))
		Eventually(func() string { return c.plumb("list", "-o", "json") }).Should(ContainSubstring(filepath.Join(c.dir, "net.d/10-pods.conflist")))
	})

	It("says that containerd executes other plugins than the installed ones (bin_dir)", func() {
		h := newHost().withWrappers()
		c := newContainerd(h, podNetwork).asDefault()
		c.expectHealthy()
		Expect(os.MkdirAll("/opt/cni/bin", 0o755)).To(Succeed())
		DeferCleanup(os.RemoveAll, "/opt/cni")
		c.Host.Must(GinkgoTB(), "sh", "-c", "cp "+os.Getenv("PLUMB_BIN")+"/* /opt/cni/bin")
		f := c.expectFinding("runtime-plugins", "executes plugins from "+h.bin+", and does not execute those in /opt/cni/bin: bridge, host-local, portmap, bandwidth, tuning")
		c.Host.Must(GinkgoTB(), "sh", "-c", "PATH=$PATH:/opt/cni/bin; "+f.Fix)
		c.expectHealthy()
	})

	It("says that containerd executes other plugins than the flags name", func() {
		c := newContainerd(newHost().withWrappers(), podNetwork).asDefault()
		c.expectFinding("runtime-plugins", "does not execute those in "+os.Getenv("PLUMB_BIN")+": bridge, ", "--cni-path", os.Getenv("PLUMB_BIN"))
	})

	It("says that containerd's libcni does not know the cniVersion of the list", func() {
		c := newContainerd(newHost(), strings.Replace(podNetwork, `"1.0.0"`, `"1.1.0"`, 1)).asDefault()
		_, err := c.create(podConfig("web"))
		Expect(err).To(HaveOccurred(), "doctor must not report what containerd can do")
		f := c.expectFinding("runtime-version", `10-pods.conflist:2: cniVersion "1.1.0": containerd 1.`)
		Expect(f.Edit).To(HaveSuffix(`/10-pods.conflist: write "cniVersion": "1.0.0"`))
		c.write("net.d/10-pods.conflist", podNetwork)
		c.expectHealthy()
		Eventually(func() error { _, err := c.create(podConfig("web")); return err }).Should(Succeed())
	})

	It("says that containerd uses another file of the directory", func() {
		c := newContainerd(newHost(), podNetwork).asDefault()
		c.write("net.d/05-other.conflist", strings.NewReplacer(`"pods"`, `"other"`, "cni0", "cni1", "10.88.0", "10.89.0", "fd00:88", "fd00:89").Replace(podNetwork))
		f := c.expectFinding("runtime-network", `does not use network "pods", because it uses only the first 1 of the directory: 05-other.conflist`)
		Expect(f.Where).To(Equal(filepath.Join(c.dir, "net.d/10-pods.conflist")))
		Expect(os.Remove(filepath.Join(c.dir, "net.d/05-other.conflist"))).To(Succeed())
		c.expectHealthy()
	})

	It("says that new pods get another network than the pods that run", func() {
		c := newContainerd(newHost(), podNetwork).asDefault()
		c.mustRun(webPod("web", 8080))
		c.expectHealthy()
		c.write("net.d/05-other.conflist", strings.NewReplacer(`"pods"`, `"other"`, "cni0", "cni1", "10.88.0", "10.89.0", "fd00:88", "fd00:89").Replace(podNetwork))
		f := c.expectFinding("runtime-network", `attaches new containers to network "other", and not to "pods", in which 1 of its containers are`)
		Expect(f.Where).To(Equal(filepath.Join(c.dir, "net.d/05-other.conflist")))
	})

	It("says that containerd has no network", func() {
		c := newContainerd(newHost(), podNetwork).asDefault()
		Expect(os.Remove(filepath.Join(c.dir, "net.d/10-pods.conflist"))).To(Succeed())
		f := c.expectFinding("runtime-network", "cannot attach containers: cni config load failed: no network config found")
		Expect(f.Where).To(Equal(filepath.Join(c.dir, "net.d")))
		c.write("net.d/10-pods.conflist", podNetwork)
		c.expectHealthy()
	})
})
