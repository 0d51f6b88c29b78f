package runtimes_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/runtimes"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestRuntimes(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "cmd/plumb/internal/runtimes")
}

// write writes a file below dir.
func write(dir, name, text string) string {
	GinkgoHelper()
	path := filepath.Join(dir, name)
	Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	Expect(os.WriteFile(path, []byte(text), 0o644)).To(Succeed())
	return path
}

var _ = Describe("runtimes.Find", func() {
	find := func(root string) ([]runtimes.Runtime, []error) {
		return runtimes.Search{Root: root}.Find(context.Background())
	}

	It("reads podman's directories if podman uses CNI, and nerdctl's", func() {
		root := GinkgoT().TempDir()
		write(root, "usr/share/containers/containers.conf", "[network]\nnetwork_backend = \"cni\"\ncni_plugin_dirs = [\"/a\", \"/b\"]\n")
		later := write(root, "etc/containers/containers.conf.d/10.conf", "[network]\nnetwork_config_dir = \"/etc/podman\"\n")
		nerdctl := write(root, "etc/nerdctl/nerdctl.toml", "cni_path = \"/c\"\n")
		found, problems := find(root)
		Expect(problems).To(BeEmpty())
		Expect(found).To(Equal([]runtimes.Runtime{
			{Name: "podman", Source: later, ConfDir: "/etc/podman", PluginDirs: []string{"/a", "/b"}},
			{Name: "nerdctl", Source: nerdctl, ConfDir: "/etc/cni/net.d", PluginDirs: []string{"/c"}},
		}))
	})

	It("finds nothing on a host without runtimes, and ignores a podman with netavark and a nerdctl with defaults", func() {
		root := GinkgoT().TempDir()
		write(root, "etc/containers/containers.conf", "[network]\nnetwork_backend = \"netavark\"\n")
		write(root, "etc/nerdctl/nerdctl.toml", "debug = true\n")
		found, problems := find(root)
		Expect(problems).To(BeEmpty())
		Expect(found).To(BeEmpty())
	})

	It("names a configuration file that it cannot read", func() {
		root := GinkgoT().TempDir()
		file := write(root, "etc/nerdctl/nerdctl.toml", "cni_path = 1\n")
		_, problems := find(root)
		Expect(problems).To(ConsistOf(MatchError(And(ContainSubstring(file), ContainSubstring("cni_path")))))
	})

	It("names a runtime that does not answer, after a second", func() { // which is the time limit
		root := GinkgoT().TempDir()
		socket := filepath.Join(root, "run/crio/crio.sock")
		Expect(os.MkdirAll(filepath.Dir(socket), 0o755)).To(Succeed())
		l, err := net.Listen("unix", socket)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(l.Close)
		found, problems := find(root)
		Expect(found).To(BeEmpty())
		Expect(problems).To(ConsistOf(MatchError(socket + " does not answer within 1s")))
	})
})

var _ = It("the table of docs/reference/compatibility.md lists the highest cniVersion of each runtime", func() {
	page := nstest.ReadFile(GinkgoTB(), filepath.Join(nstest.Root(GinkgoTB()), "docs/reference/compatibility.md"))
	rows := regexp.MustCompile(`(?m)^\| (containerd|CRI-O) \| (before|since) (\d+)\.(\d+) \| (\d\.\d\.\d) \|$`).FindAllStringSubmatch(page, -1)
	Expect(rows).To(HaveLen(4))
	for _, row := range rows {
		version := row[3] + "." + row[4] + ".3"
		if row[2] == "before" {
			version = map[string]string{"2.0": "v1.7.23-k3s2", "1.31": "1.30.0"}[row[3]+"."+row[4]]
		}
		Expect(runtimes.HighestCNIVersion(map[string]string{"CRI-O": "cri-o"}[row[1]]+map[string]string{"containerd": "containerd"}[row[1]], version)).
			To(Equal(row[5]), row[0])
	}
	Expect(runtimes.HighestCNIVersion("containerd", "1.6.20~ds1")).To(Equal("1.0.0"))
	Expect(runtimes.HighestCNIVersion("containerd", "unknown")).To(BeEmpty())
	Expect(runtimes.HighestCNIVersion("other", "2.0.0")).To(BeEmpty())
})

var _ = Describe("runtimes.ReadConfig", func() {
	It("reads the keys, and needs none of them", func() {
		dir := GinkgoT().TempDir()
		Expect(runtimes.ReadConfig(filepath.Join(dir, "missing.yaml"))).To(BeZero())
		Expect(runtimes.ReadConfig(write(dir, "empty.yaml", "# nothing\n"))).To(BeZero())
		Expect(runtimes.ReadConfig(write(dir, "all.yaml", "cni-path: [/a, /b]\nconf-dir: /c\ndata-dir: /d\ncri: [\"unix:///e\"]\n"))).
			To(Equal(runtimes.Config{CNIPath: []string{"/a", "/b"}, ConfDir: "/c", DataDir: "/d", CRI: []string{"/e"}}))
	})

	DescribeTable("returns an error that names the file and the key", func(text, key string) {
		path := write(GinkgoT().TempDir(), "plumb.yaml", text)
		_, err := runtimes.ReadConfig(path)
		Expect(err).To(MatchError(And(HavePrefix(path+": "), ContainSubstring(key))))
	},
		Entry("an unknown key", "cni-paht: [/a]\n", "cni-paht"),
		Entry("a wrong type", "conf-dir: [/a]\n", "conf-dir"),
		Entry("a key that occurs twice", "cri: [/a]\ncri: [/b]\n", "cri"),
		Entry("a relative path", "cni-path: [/a, bin]\n", `cni-path[1] must be an absolute path, got "bin"`),
	)
})
