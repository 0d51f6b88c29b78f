package runtimes

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containerdConfig takes the folder of the node's own state, and that of the plugins.
// restrict_oom_score_adj: without CAP_SYS_RESOURCE runc cannot lower it.
const containerdConfig = `
version = 2
root = "%[1]s/root"
state = "%[1]s/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
	"io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
address = "%[1]s/sock"
[ttrpc]
address = "%[1]s/ttrpc"
[plugins."io.containerd.internal.v1.opt"]
path = "%[1]s/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "` + image + `"
disable_apparmor = true
restrict_oom_score_adj = true
disable_tcp_service = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "%[2]s"
conf_dir = "%[1]s/net.d"
`

// A containerd is the daemon on a node, and a client of its CRI, as the kubelet is.
type containerd struct {
	*node
	cri.RuntimeServiceClient
	daemon *exec.Cmd
	log    *os.File
}

// newContainerd starts the daemon on the node, with the network.
func newContainerd(n *node, conflist string) *containerd {
	GinkgoHelper()
	Expect(os.Mkdir(filepath.Join(n.dir, "net.d"), 0o755)).To(Succeed())
	n.write("net.d/10-pods.conflist", conflist)
	n.write("config.toml", fmt.Sprintf(containerdConfig, n.dir, n.bin))
	c := &containerd{node: n}
	var err error
	c.log, err = os.Create(filepath.Join(n.dir, "log"))
	Expect(err).NotTo(HaveOccurred())

	conn, err := grpc.NewClient("unix://"+filepath.Join(n.dir, "sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, MaxDelay: 10 * time.Millisecond}}),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)), grpc.WithUnaryInterceptor(bounded))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(conn.Close)
	c.RuntimeServiceClient = cri.NewRuntimeServiceClient(conn)

	DeferCleanup(c.end)
	c.start()
	out, err := exec.Command("ctr", "-a", filepath.Join(n.dir, "sock"), "-n", "k8s.io", "images", "import", imageTar(n.dir)).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
	return c
}

func (n *node) write(name, text string) {
	GinkgoHelper()
	Expect(os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o644)).To(Succeed())
}

// start starts the daemon and returns when runtime and network are ready.
func (c *containerd) start() {
	GinkgoHelper()
	c.daemon = exec.Command("containerd", "-c", filepath.Join(c.dir, "config.toml"))
	c.daemon.Stdout, c.daemon.Stderr = c.log, c.log
	Expect(c.Node.Start(c.daemon)).To(Succeed())
	Eventually(func(g Gomega) {
		status, err := c.Status(always, &cri.StatusRequest{})
		g.Expect(err).NotTo(HaveOccurred())
		for _, condition := range status.Status.Conditions {
			g.Expect(condition.Status).To(BeTrue(), "%s: %s", condition.Type, condition.Message)
		}
	}).Should(Succeed())
}

// always is the context of all calls; bounded bounds each.
var always = context.Background()

// bounded ends a call that takes too long, so that none hangs a spec.
func bounded(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	return invoke(ctx, method, req, reply, conn, opts...)
}

// kill ends the daemon as a crash does. Its shims and containers go on.
func (c *containerd) kill() {
	GinkgoHelper()
	Expect(c.daemon.Process.Kill()).To(Succeed())
	_, _ = c.daemon.Process.Wait()
	c.daemon = nil
}

// end removes what a failed spec has left, ends the daemon, and shows its warnings
// if something went wrong.
func (c *containerd) end() {
	if CurrentSpecReport().Failed() {
		text, _ := os.ReadFile(c.log.Name())
		for line := range strings.Lines(string(text)) {
			if !strings.Contains(line, "level=info") {
				GinkgoWriter.Print("containerd: " + line)
			}
		}
	}
	_ = c.log.Close()
	if c.daemon == nil {
		return
	}
	for _, p := range c.pods() {
		Expect(p.stop()).To(Succeed())
		Expect(p.remove()).To(Succeed())
	}
	_ = c.daemon.Process.Signal(syscall.SIGTERM)
	_, _ = c.daemon.Process.Wait()
	c.quiet()
}

// A pod is a sandbox of the daemon, with what was asked for it.
type pod struct {
	*containerd
	name   string
	id     string
	config *cri.PodSandboxConfig
	v4, v6 string
}

// sandbox is the request for a pod.
func sandbox(name string) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Uid: name + "-uid", Namespace: "default"},
		Hostname: name,
		Linux:    &cri.LinuxPodSandboxConfig{CgroupParent: "/" + os.Getenv("PLUMB_CGROUP")},
	}
}

// run makes the pod and reads its addresses from its status.
func (c *containerd) run(config *cri.PodSandboxConfig) (*pod, error) {
	made, err := c.RunPodSandbox(always, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		return nil, err
	}
	p := &pod{containerd: c, name: config.Metadata.Name, id: made.PodSandboxId, config: config}
	status, err := c.PodSandboxStatus(always, &cri.PodSandboxStatusRequest{PodSandboxId: p.id})
	if err != nil {
		return nil, err
	}
	if s := status.Status; s.State != cri.PodSandboxState_SANDBOX_READY || len(s.Network.AdditionalIps) != 1 {
		return nil, fmt.Errorf("pod %s is %s with the network %v", p.id, s.State, s.Network)
	}
	p.v4, p.v6 = status.Status.Network.Ip, status.Status.Network.AdditionalIps[0].Ip
	return p, nil
}

// pods are those that the daemon knows, in whatever state.
func (c *containerd) pods() []*pod {
	GinkgoHelper()
	list, err := c.ListPodSandbox(always, &cri.ListPodSandboxRequest{})
	Expect(err).NotTo(HaveOccurred())
	var all []*pod
	for _, p := range list.Items {
		all = append(all, &pod{containerd: c, name: p.Metadata.Name, id: p.Id})
	}
	return all
}

func (c *containerd) running(config *cri.PodSandboxConfig) *pod {
	GinkgoHelper()
	p, err := c.run(config)
	Expect(err).NotTo(HaveOccurred())
	return p
}

// stop ends what runs in the pod, and detaches it from the network.
func (p *pod) stop() error {
	_, err := p.StopPodSandbox(always, &cri.StopPodSandboxRequest{PodSandboxId: p.id})
	return err
}

// remove removes the pod; containerd detaches it from the network once more.
func (p *pod) remove() error {
	_, err := p.RemovePodSandbox(always, &cri.RemovePodSandboxRequest{PodSandboxId: p.id})
	return err
}

// container starts tenant in the pod and gives the container's ID.
func (p *pod) container(args ...string) string {
	GinkgoHelper()
	made, err := p.CreateContainer(always, &cri.CreateContainerRequest{
		PodSandboxId: p.id, SandboxConfig: p.config,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "tenant"}, Image: &cri.ImageSpec{Image: image}, Args: args,
			Linux: &cri.LinuxContainerConfig{},
		},
	})
	Expect(err).NotTo(HaveOccurred())
	_, err = p.StartContainer(always, &cri.StartContainerRequest{ContainerId: made.ContainerId})
	Expect(err).NotTo(HaveOccurred())
	return made.ContainerId
}

// in runs tenant in the container and gives what it prints.
func (c *containerd) in(container string, args ...string) string {
	GinkgoHelper()
	done, err := c.ExecSync(always, &cri.ExecSyncRequest{ContainerId: container, Cmd: append([]string{"/tenant"}, args...), Timeout: 10})
	Expect(err).NotTo(HaveOccurred())
	Expect(done.ExitCode).To(BeZero(), "%s", done.Stderr)
	return string(done.Stdout)
}
