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

// containerdConfig is the format string of containerd's configuration. The arguments are a
// directory for containerd's state, and the directory of the plugins. restrict_oom_score_adj is set
// because runc cannot lower oom_score_adj without CAP_SYS_RESOURCE.
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

// A containerd is a running containerd daemon on a host, with a CRI client.
type containerd struct {
	*host
	cri.RuntimeServiceClient
	daemon *exec.Cmd
	log    *os.File
}

// newContainerd starts containerd on the host, with this network, and loads the image.
func newContainerd(h *host, conflist string) *containerd {
	GinkgoHelper()
	Expect(os.Mkdir(filepath.Join(h.dir, "net.d"), 0o755)).To(Succeed())
	h.write("net.d/10-pods.conflist", conflist)
	h.write("config.toml", fmt.Sprintf(containerdConfig, h.dir, h.bin))
	c := &containerd{host: h}
	var err error
	c.log, err = os.Create(filepath.Join(h.dir, "log"))
	Expect(err).NotTo(HaveOccurred())

	conn, err := grpc.NewClient("unix://"+filepath.Join(h.dir, "sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, MaxDelay: 10 * time.Millisecond}}),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)), grpc.WithUnaryInterceptor(withTimeout))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(conn.Close)
	c.RuntimeServiceClient = cri.NewRuntimeServiceClient(conn)

	DeferCleanup(c.shutDown)
	c.start()
	out, err := exec.Command("ctr", "-a", filepath.Join(h.dir, "sock"), "-n", "k8s.io", "images", "import", writeImage(h.dir)).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
	return c
}

func (h *host) write(name, text string) {
	GinkgoHelper()
	Expect(os.WriteFile(filepath.Join(h.dir, name), []byte(text), 0o644)).To(Succeed())
}

// start starts the daemon, and waits until its status reports that runtime and network are ready.
func (c *containerd) start() {
	GinkgoHelper()
	c.startDaemon(exec.Command("containerd", "-c", filepath.Join(c.dir, "config.toml")))
}

// startDaemon is start for another command that executes containerd.
func (c *containerd) startDaemon(daemon *exec.Cmd) {
	GinkgoHelper()
	c.daemon = daemon
	c.daemon.Stdout, c.daemon.Stderr = c.log, c.log
	Expect(c.Host.Start(c.daemon)).To(Succeed())
	Eventually(func(g Gomega) {
		status, err := c.Status(ctx, &cri.StatusRequest{})
		g.Expect(err).NotTo(HaveOccurred())
		for _, condition := range status.Status.Conditions {
			g.Expect(condition.Status).To(BeTrue(), "%s: %s", condition.Type, condition.Message)
		}
	}).Should(Succeed())
}

// ctx is the context of all calls. withTimeout limits the time of each call.
var ctx = context.Background()

// withTimeout ends a call after 10 minutes, so that a hanging call does not block the spec.
func withTimeout(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	return invoke(ctx, method, req, reply, conn, opts...)
}

// kill kills the daemon, but not its shims and containers.
func (c *containerd) kill() {
	GinkgoHelper()
	Expect(c.daemon.Process.Kill()).To(Succeed())
	_, _ = c.daemon.Process.Wait()
	c.daemon = nil
}

// shutDown removes all pods and stops the daemon. If the spec failed, it adds the daemon's warnings
// to the report.
func (c *containerd) shutDown() {
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
	c.waitForProcesses()
}

// A pod is a pod sandbox with its configuration.
type pod struct {
	*containerd
	name   string
	id     string
	config *cri.PodSandboxConfig
	v4, v6 string
}

func podConfig(name string) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Uid: name + "-uid", Namespace: "default"},
		Hostname: name,
		Linux:    &cri.LinuxPodSandboxConfig{CgroupParent: "/" + os.Getenv("PLUMB_CGROUP")},
	}
}

// run creates the pod, and returns an error unless the pod gets an address of each IP version.
func (c *containerd) run(config *cri.PodSandboxConfig) (*pod, error) {
	p, err := c.create(config)
	if err == nil && p.v6 == "" {
		err = fmt.Errorf("pod %s: want two addresses, got only %s", p.id, p.v4)
	}
	return p, err
}

// create creates the pod and reads its one or two addresses from its status.
func (c *containerd) create(config *cri.PodSandboxConfig) (*pod, error) {
	created, err := c.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		return nil, err
	}
	p := &pod{containerd: c, name: config.Metadata.Name, id: created.PodSandboxId, config: config}
	status, err := c.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: p.id})
	if err != nil {
		return nil, err
	}
	s := status.Status
	if s.State != cri.PodSandboxState_SANDBOX_READY || len(s.Network.AdditionalIps) > 1 {
		return nil, fmt.Errorf("pod %s: state %s, network %v", p.id, s.State, s.Network)
	}
	p.v4 = s.Network.Ip
	for _, ip := range s.Network.AdditionalIps {
		p.v6 = ip.Ip
	}
	return p, nil
}

// pods returns all pods that the daemon knows, in any state.
func (c *containerd) pods() []*pod {
	GinkgoHelper()
	list, err := c.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	Expect(err).NotTo(HaveOccurred())
	var all []*pod
	for _, p := range list.Items {
		all = append(all, &pod{containerd: c, name: p.Metadata.Name, id: p.Id})
	}
	return all
}

// mustRun is run, but fails the spec on an error.
func (c *containerd) mustRun(config *cri.PodSandboxConfig) *pod {
	GinkgoHelper()
	p, err := c.run(config)
	Expect(err).NotTo(HaveOccurred())
	return p
}

// stop calls StopPodSandbox. With it, containerd stops the containers and calls DEL.
func (p *pod) stop() error {
	_, err := p.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.id})
	return err
}

// remove calls RemovePodSandbox. With it, containerd calls DEL again.
func (p *pod) remove() error {
	_, err := p.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.id})
	return err
}

// container starts a container with the program workload in the pod, and returns its ID.
func (p *pod) container(args ...string) string {
	GinkgoHelper()
	created, err := p.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: p.id, SandboxConfig: p.config,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "workload"}, Image: &cri.ImageSpec{Image: image}, Args: args,
			Linux: &cri.LinuxContainerConfig{},
		},
	})
	Expect(err).NotTo(HaveOccurred())
	_, err = p.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: created.ContainerId})
	Expect(err).NotTo(HaveOccurred())
	return created.ContainerId
}

// exec runs the program workload in the container and returns its output.
func (c *containerd) exec(container string, args ...string) string {
	GinkgoHelper()
	done, err := c.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: container, Cmd: append([]string{"/plumb"}, args...), Timeout: 10})
	Expect(err).NotTo(HaveOccurred())
	Expect(done.ExitCode).To(BeZero(), "%s", done.Stderr)
	return string(done.Stdout)
}
