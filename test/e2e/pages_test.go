package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// A recipe is a list of a page for users, and how a test uses the list.
type recipe struct {
	page, name string                         // without a page, the list is in how-to/recipes.md
	needs      string                         // a kernel feature in features, or ""
	prepare    func(*testNetwork)             // changes the host; may be nil
	request    func(*container)               // sets what the runtime passes; may be nil
	traffic    func(*testNetwork, *container) // tests an attached container
}

// run attaches a container to the list, tests it, and detaches it.
func (r recipe) run() {
	GinkgoHelper()
	nstest.LeakCheck(GinkgoTB())
	network := newNetwork("1.1.0", `{"type": "loopback"}`)
	network.requireFeature(r.needs)
	network.List = cnitest.ParseList(r.list(network.Dir))
	network.useDirectory(network.CNI.Path[0])
	if r.prepare != nil {
		r.prepare(network)
	}
	c := cnitest.NewContainer("web")
	if r.request != nil {
		r.request(c)
	}
	Expect(network.Status()).To(Succeed())
	Expect(network.Add(c)).To(Succeed())
	r.traffic(network, c)
	Expect(network.Check(c)).To(Succeed())
	network.expectSound()
	Expect(network.Del(c)).To(Succeed())
	Expect(network.reservations()).To(BeEmpty())
	Expect(nstest.Snapshot(GinkgoTB(), network.Host)).NotTo(ContainSubstring(r.name + "/web/"))
}

// tool returns what a command of plumb prints about the network, whose cache is in Dir.
func (network *testNetwork) tool(command ...string) string {
	GinkgoHelper()
	conf, data := filepath.Join(network.Dir, "net.d"), filepath.Join(network.Dir, "leases")
	Expect(os.MkdirAll(conf, 0o755)).To(Succeed())
	Expect(os.MkdirAll(data, 0o755)).To(Succeed())
	Expect(os.WriteFile(filepath.Join(conf, "10-network.conflist"), network.List.Bytes, 0o644)).To(Succeed())
	out, _ := network.Host.Exec(filepath.Join(nstest.Build(GinkgoTB(), "plumb"), "plumb"), append(command, "--timeout", "10m", "--conf-dir", conf,
		"--cni-path", strings.Join(network.CNI.Path, ":"), "--cache-dir", filepath.Join(network.Dir, "cache"), "--data-dir", data)...)
	return out
}

// expectSound expects that plumb doctor finds nothing, except for files in /run/cni that other specs left of other networks.
func (network *testNetwork) expectSound() {
	GinkgoHelper()
	var report struct {
		Attachments int
		Findings    []struct{ Where, What string }
	}
	Expect(json.Unmarshal([]byte(network.tool("doctor", "-o", "json")), &report)).To(Succeed())
	Expect(report.Attachments).To(BeNumerically(">=", 1))
	named := regexp.MustCompile(`network "?([\w-]+)`)
	for _, f := range report.Findings {
		if m := named.FindStringSubmatch(f.What); m == nil || m[1] == network.List.Name {
			Fail(f.Where + ": " + f.What)
		}
	}
}

// list returns the list of the page, in which host-local stores its reservations in dir.
func (r recipe) list(dir string) string {
	GinkgoHelper()
	var list map[string]any
	Expect(json.Unmarshal([]byte(nstest.PageList(GinkgoTB(), "../../docs/"+r.page, r.name)), &list)).To(Succeed())
	for _, plugin := range list["plugins"].([]any) {
		if ipam, ok := plugin.(map[string]any)["ipam"].(map[string]any); ok && ipam["type"] == "host-local" {
			ipam["dataDir"] = filepath.Join(dir, "leases")
		}
	}
	text, err := json.Marshal(list)
	Expect(err).NotTo(HaveOccurred())
	return string(text)
}

// These are the parameters of runtimes for a container with a host port. containerd, k3s, nerdctl and Nomad use go-cni,
// whose structs have no JSON tags.
func goCNI(c *container) {
	c.RT.CapabilityArgs = map[string]any{"portMappings": []portMapping{{8080, 80, "tcp", ""}}}
}

func containerd(c *container) {
	goCNI(c)
	c.RT.CapabilityArgs["bandwidth"] = bandwidth{80_000_000, 4294967295, 40_000_000, 4294967295}
	kubernetes(c)
}

func kubernetes(c *container) {
	c.RT.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "web"}, {"K8S_POD_INFRA_CONTAINER_ID", c.RT.ContainerID}}
}

func ocicni(c *container) {
	kubernetes(c)
	c.RT.CapabilityArgs = map[string]any{
		"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""}},
		"bandwidth":    map[string]any{"ingressRate": 80_000_000, "ingressBurst": 34359738352, "egressRate": 40_000_000, "egressBurst": 34359738352},
	}
}

// expectPublished connects from the outside host to host port 8080, and from the container to the outside host, with
// each IP version of the container.
func expectPublished(network *testNetwork, c *container) {
	GinkgoHelper()
	tb := GinkgoTB()
	for _, f := range []struct{ addr, host, outside string }{
		{c.V4.String() + ":80", nstest.HostV4 + ":8080", nstest.OutsideV4}, {"[" + c.V6.String() + "]:80", "[" + nstest.HostV6 + "]:8080", nstest.OutsideV6},
	} {
		if strings.HasPrefix(f.addr, "[") && !c.V6.IsValid() {
			continue
		}
		nstest.ServeTCP(tb, c.NS, f.addr)
		nstest.MustDial(tb, network.Outside, f.host, f.outside)
		server := nstest.ServeTCP(tb, network.Outside, withAnyPort(f.outside))
		nstest.MustDial(tb, c.NS, server.String(), map[bool]string{true: nstest.HostV4, false: nstest.HostV6}[f.outside == nstest.OutsideV4])
		c.Must(tb, "ping", "-c", "1", "-W", "60", f.outside)
	}
}

// getStarted contains the lists of docs/get-started.
var getStarted = []recipe{
	{page: "get-started/containerd.md", name: "pods", request: containerd, traffic: expectPublished},
	{page: "get-started/k3s.md", name: "k3s", request: containerd, traffic: expectPublished},
	{page: "get-started/crio.md", name: "crio", request: ocicni, traffic: expectPublished},
	{page: "get-started/nerdctl.md", name: "backend", request: goCNI, traffic: expectPublished},
	{page: "get-started/podman.md", name: "web", request: ocicni, traffic: expectPublished},
	{page: "get-started/nomad.md", name: "web", request: goCNI, traffic: expectPublished},
	{page: "get-started/cnitool.md", name: "by-hand", request: goCNI, traffic: expectPublished},
}

var _ = Describe("the lists of the pages for users", func() {
	recipes := slices.Clone(getStarted)
	for _, r := range howTo {
		r.page = "how-to/recipes.md"
		recipes = append(recipes, r)
	}
	for _, r := range recipes {
		It("work: "+r.name+" of "+r.page, labelsOf(r.needs), r.run)
	}

	It("are all tested", func() {
		var tested, found []string
		for _, r := range recipes {
			tested = append(tested, r.page+" "+r.name)
		}
		for _, shelf := range []string{"get-started", "how-to"} {
			pages, err := filepath.Glob("../../docs/" + shelf + "/*.md")
			Expect(err).NotTo(HaveOccurred())
			for _, page := range pages {
				text := nstest.ReadFile(GinkgoTB(), page)
				for _, block := range nstest.JSONBlocks(text) {
					var list struct{ Name string }
					Expect(json.Unmarshal([]byte(block), &list)).To(Succeed())
					found = append(found, shelf+"/"+filepath.Base(page)+" "+list.Name)
				}
			}
		}
		slices.Sort(tested)
		slices.Sort(found)
		Expect(tested).To(Equal(found))
	})
})

var _ = Describe("the page of cnitool", func() {
	It("shows commands that work", func() {
		nstest.LeakCheck(GinkgoTB())
		const page = "../../docs/get-started/cnitool.md"
		text := nstest.ReadFile(GinkgoTB(), page)
		site, dir := nstest.NewSite(GinkgoTB()), GinkgoTB().TempDir()
		out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "cnitool"), "github.com/containernetworking/cni/cnitool").CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "%s", out)
		Expect(os.WriteFile(filepath.Join(dir, "pods.conflist"), []byte(nstest.PageList(GinkgoTB(), page, "by-hand")), 0o644)).To(Succeed())
		bin := nstest.Build(GinkgoTB(), "bridge", "host-local", "portmap")
		script := fmt.Sprintf(`set -eux
trap 'kill $(jobs -p) 2>/dev/null || :' EXIT
mount -t tmpfs none /var/lib
mount -t tmpfs none /opt
mount -t tmpfs none /run
mkdir -p /opt/cni/bin
cp %s/bridge %[1]s/host-local %[1]s/portmap /opt/cni/bin
cd %s
PATH=$PWD:$PATH
%s
wait
ip -brief link | grep -v lo
find /var/lib/cni/networks/by-hand -name '10*'
`, bin, dir, strings.Join(shellBlocks(text), "\n"))
		shown, err := site.Host.ExecInput(script, "unshare", "--mount", "bash")
		Expect(err).NotTo(HaveOccurred())
		Expect(shown).To(And(ContainSubstring(`"by-hand"`), ContainSubstring(" 0% packet loss"), ContainSubstring("by-hand/cnitool-")))
	})
})

var _ = Describe("the page why.md", func() {
	It("shows the output of scripts/why.sh", func() {
		text, err := os.ReadFile("../../docs/explanation/why.md")
		Expect(err).NotTo(HaveOccurred())
		cmd := exec.Command("bash", "../../scripts/why.sh")
		cmd.Env = append(os.Environ(), "CNI_REFERENCE="+nstest.Reference(GinkgoTB()),
			"PLUMB_BIN="+nstest.Build(GinkgoTB(), "bridge", "host-local", "portmap", "plumb"))
		out, err := cmd.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "%s", out)
		Expect(string(text)).To(ContainSubstring("```text\n" + string(out) + "```"))
	})
})

// shellBlocks returns the ```sh blocks of a Markdown text.
func shellBlocks(markdown string) (all []string) {
	for _, block := range strings.Split(markdown, "```sh\n")[1:] {
		text, _, _ := strings.Cut(block, "```")
		all = append(all, text)
	}
	return all
}
