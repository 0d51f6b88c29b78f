package runtimes

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func readYAML(path string, v any) {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join("../../deploy", path))
	Expect(err).NotTo(HaveOccurred())
	Expect(yaml.UnmarshalStrict(text, v)).To(Succeed())
}

// rendered returns what Helm renders with testdata/chart/NAME.yaml. test/node checks that, and writes the files *.golden.
func rendered(name string) string {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join("testdata/chart", name+".golden"))
	Expect(err).NotTo(HaveOccurred())
	return string(text)
}

// daemonSet returns the DaemonSet that Helm renders with testdata/chart/NAME.yaml.
func daemonSet(name string) *apps.DaemonSet {
	GinkgoHelper()
	objects := strings.Split(rendered(name), "\n---\n")
	i := slices.IndexFunc(objects, func(o string) bool { return strings.Contains(o, "\nkind: DaemonSet\n") })
	Expect(i).To(BeNumerically(">=", 0))
	return parseDaemonSet(objects[i])
}

// without returns the arguments of a container without a flag.
func without(args []string, flag string) []string {
	return slices.DeleteFunc(args, func(a string) bool { return strings.HasPrefix(a, flag+"=") })
}

// parseDaemonSet parses a DaemonSet. Unknown keys are errors.
func parseDaemonSet(text string) *apps.DaemonSet {
	GinkgoHelper()
	var d apps.DaemonSet
	Expect(yaml.UnmarshalStrict([]byte(text), &d)).To(Succeed())
	Expect(d.Spec.Selector.MatchLabels).To(Equal(d.Spec.Template.Labels))
	return &d
}

// hostDirectories creates the host directories of the pod's volumes below dir, and returns them by volume.
func hostDirectories(d *apps.DaemonSet, dir string) map[string]string {
	GinkgoHelper()
	directories := map[string]string{}
	for _, v := range d.Spec.Template.Spec.Volumes {
		directories[v.Name] = filepath.Join(dir, v.HostPath.Path)
		Expect(os.MkdirAll(directories[v.Name], 0o755)).To(Succeed())
	}
	return directories
}

// start starts a container of the DaemonSet in the pod, with these directories of the host, and returns the
// container's ID. The container writes its log to NAME.log in the runtime's directory.
func (p *pod) start(c core.Container, directories map[string]string) string {
	GinkgoHelper()
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: c.Name}, Image: &cri.ImageSpec{Image: c.Image}, Args: c.Args, LogPath: c.Name + ".log",
		Linux: &cri.LinuxContainerConfig{
			Resources: &cri.LinuxContainerResources{MemoryLimitInBytes: c.Resources.Limits.Memory().Value()},
			SecurityContext: &cri.LinuxContainerSecurityContext{
				Capabilities: &cri.Capability{}, NamespaceOptions: p.config.Linux.SecurityContext.NamespaceOptions,
			},
		},
	}
	if to := config.Linux.SecurityContext; c.SecurityContext.Privileged != nil {
		to.Privileged = *c.SecurityContext.Privileged
	} else {
		to.RunAsUser, to.ReadonlyRootfs = &cri.Int64Value{Value: *c.SecurityContext.RunAsUser}, *c.SecurityContext.ReadOnlyRootFilesystem
		to.NoNewPrivs = !*c.SecurityContext.AllowPrivilegeEscalation
		to.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault} // the pod's
		for _, drop := range c.SecurityContext.Capabilities.Drop {
			to.Capabilities.DropCapabilities = append(to.Capabilities.DropCapabilities, string(drop))
		}
	}
	for _, m := range c.VolumeMounts {
		config.Mounts = append(config.Mounts, &cri.Mount{ContainerPath: m.MountPath, HostPath: directories[m.Name]})
	}
	created, err := p.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: p.id, SandboxConfig: p.config, Config: config})
	Expect(err).NotTo(HaveOccurred())
	_, err = p.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: created.ContainerId})
	Expect(err).NotTo(HaveOccurred())
	return created.ContainerId
}

// waitForExit waits until the container has ended. It fails the spec unless the exit status is 0.
func (p *pod) waitForExit(container, name string) {
	GinkgoHelper()
	var status *cri.ContainerStatus
	Eventually(func(g Gomega) {
		reply, err := p.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: container})
		g.Expect(err).NotTo(HaveOccurred())
		status = reply.Status
		g.Expect(status.State).To(Equal(cri.ContainerState_CONTAINER_EXITED))
	}).Should(Succeed())
	Expect(status.ExitCode).To(BeZero(), p.log(name))
}

func (p *pod) log(name string) string {
	text, _ := os.ReadFile(filepath.Join(p.dir, name+".log"))
	return string(text)
}

// createOnNode creates the sandbox of a pod with the host's network and processes, as spec says, for a privileged
// container.
func (c *containerd) createOnNode(spec core.PodSpec, privileged core.Container) *pod {
	GinkgoHelper()
	config := podConfig(privileged.Name)
	config.LogDirectory, config.Hostname = c.dir, ""
	options := &cri.NamespaceOption{}
	if spec.HostNetwork && spec.HostPID {
		options.Network, options.Pid = cri.NamespaceMode_NODE, cri.NamespaceMode_NODE
	}
	config.Linux.SecurityContext = &cri.LinuxSandboxSecurityContext{Privileged: *privileged.SecurityContext.Privileged, NamespaceOptions: options}
	p, err := c.create(config)
	Expect(err).NotTo(HaveOccurred())
	return p
}

// restartAsInit starts containerd again as process 1 of a new PID namespace, because process 1 of a node is in the
// network namespace that a pod with hostNetwork gets.
func (c *containerd) restartAsInit() {
	GinkgoHelper()
	c.kill()
	daemon := exec.Command("sh", "-c", `mount -t proc proc /proc && exec containerd -c "$0"`, filepath.Join(c.dir, "config.toml"))
	daemon.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	c.startDaemon(daemon)
}

// importRelease creates the image of a release with the executables under test, and imports it.
func (c *containerd) importRelease(image string) {
	GinkgoHelper()
	archive := filepath.Join(c.dir, "plumb.tar")
	Expect(packImage(image, archive, os.Getenv("PLUMB_BIN"))).To(Succeed())
	out, err := exec.Command("ctr", "-a", filepath.Join(c.dir, "sock"), "-n", "k8s.io", "images", "import", archive).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
}

var _ = Describe("the directory deploy", func() {
	It("contains the same DaemonSet as the chart", func() {
		text := nstest.ReadFile(GinkgoTB(), "../../deploy/daemonset.yaml")
		of := daemonSet("default")
		Expect(of.Labels).To(HaveKeyWithValue("helm.sh/chart", HavePrefix("plumb-v2.")))
		of.Labels = of.Spec.Selector.MatchLabels // the other labels describe the release of Helm
		Expect(parseDaemonSet(text)).To(Equal(of))
	})

	It("contains a chart that applies its values to the DaemonSet", func() {
		d := daemonSet("all")
		spec := d.Spec.Template.Spec
		Expect(spec.InitContainers[0].Image).To(Equal("registry.test/plumb:v2.9.0"))
		Expect(spec.InitContainers[0].ImagePullPolicy).To(Equal(core.PullAlways))
		Expect(spec.ImagePullSecrets).To(ConsistOf(HaveField("Name", "registry")))
		Expect(d.Annotations).To(HaveKeyWithValue("c", "d"))
		Expect(d.Spec.Template.Annotations).To(HaveKeyWithValue("a", "b"))
		Expect(spec.Containers[1].Args).To(ContainElement("--metrics=/metrics/plumb.prom"))
		Expect(spec.InitContainers[0].Args).To(ContainElement("--only=bridge,portmap"))
		Expect(spec.Containers[0].Args).To(ContainElement("--restore=/host/backup"))
		Expect(spec.Volumes[0].HostPath.Path).To(Equal("/var/lib/rancher/k3s/data/cni"))
		Expect(spec.HostPID).To(BeTrue())
		Expect(spec.TerminationGracePeriodSeconds).To(HaveValue(BeNumerically(">=", 120)), "maintain finishes calls of plugins, of up to 30 s each")
		Expect(spec.SecurityContext.SELinuxOptions.Type).To(Equal("spc_t"))
		Expect(spec.SecurityContext.SeccompProfile.Type).To(Equal(core.SeccompProfileTypeRuntimeDefault))
	})

	It("contains a chart that installs the manifests and the credentials of cluster-local-kubernetes", func() {
		d := daemonSet("cluster-local")
		spec := d.Spec.Template.Spec
		Expect(spec.InitContainers[0].Image).To(Equal("registry.example/plumb@sha256:" + strings.Repeat("0", 64)))
		Expect(spec.ServiceAccountName).To(Equal("plumb"))
		Expect(spec.Containers[1].Args).To(Equal([]string{"install", "--wait", "--kubeconfig=/host/etc/kubeconfig", "--server=https://10.0.0.9:6443"}))
		Expect(d.Spec.UpdateStrategy.RollingUpdate.MaxSurge.IntValue()).To(Equal(1))
		Expect(d.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue()).To(BeZero())
		mounts := map[string]string{}
		for _, m := range spec.Containers[1].VolumeMounts {
			mounts[m.Name] = m.MountPath
		}
		Expect(mounts).To(Equal(map[string]string{"etc": "/host/etc", "credentials": "/var/run/secrets/plumb"}))
		Expect(spec.Volumes[2].HostPath.Path).To(Equal("/etc/plumb"))
		Expect(strings.Count(rendered("cluster-local"), "\nkind: ")).To(Equal(1 + 3 + 4 + 2))
	})

	It("contains the chart that Helm has rendered", func() {
		digest := sha256.Sum256([]byte(nstest.SnapshotDir(GinkgoTB(), "../../deploy/chart")))
		Expect(strings.TrimSpace(rendered("digest"))).To(Equal(hex.EncodeToString(digest[:])), "the chart has changed; CONTRIBUTING.md says how Helm renders it again")
	})

	It("contains a DaemonSet that restores the former plugins with the patch of docs/how-to/uninstall.md", func() {
		page := nstest.ReadFile(GinkgoTB(), "../../docs/how-to/uninstall.md")
		_, rest, _ := strings.Cut(page, "--type=json -p='")
		text, _, _ := strings.Cut(rest, "'\n")
		var patch []struct {
			Path  string
			Value any
		}
		Expect(yaml.Unmarshal([]byte(text), &patch)).To(Succeed())
		main := daemonSet("all").Spec.Template.Spec.Containers[0]
		want := map[string]any{"args": main.Args, "volumeMounts": main.VolumeMounts}
		Expect(patch).To(HaveLen(len(want)))
		for _, change := range patch {
			got, err := yaml.Marshal(change.Value)
			Expect(err).NotTo(HaveOccurred())
			key, found := strings.CutPrefix(change.Path, "/spec/template/spec/containers/0/")
			Expect(found).To(BeTrue(), change.Path)
			value, err := yaml.Marshal(want[key])
			Expect(err).NotTo(HaveOccurred())
			Expect(got).To(MatchYAML(value))
		}
	})

	It("contains a pod that runs plumb doctor on the node", func() {
		c := newContainerd(newHost(), podNetwork)
		c.mustRun(podConfig("web"))
		c.Host.Must(GinkgoTB(), "nft", "add table inet other; add chain inet other forward { type filter hook forward priority 0; policy drop; }; flush chain inet plumb postrouting")
		onHost := c.Host.Must(GinkgoTB(), "sh", "-c", filepath.Join(os.Getenv("PLUMB_BIN"), "plumb")+" doctor --conf-dir "+filepath.Join(c.dir, "net.d")+
			" --cni-path "+c.bin+" || [ $? = 1 ]")
		Expect(onHost).To(And(ContainSubstring("table inet other"), ContainSubstring("chain postrouting of table inet plumb"), ContainSubstring("2 problems (1 configuration, 6 executables, 1 attachment, ")))
		var d core.Pod
		readYAML("doctor.yaml", &d)
		main, directories := d.Spec.Containers[0], map[string]string{}
		for _, v := range d.Spec.Volumes {
			directories[v.Name] = v.HostPath.Path
		}
		directories["configurations"], directories["plugins"] = c.dir, c.bin // of this containerd
		c.importRelease(main.Image)
		p := c.createOnNode(d.Spec, main)
		p.start(main, directories)
		Eventually(func() string { return regexp.MustCompile(`(?m)^\S+ stdout F `).ReplaceAllString(p.log(main.Name), "") }).
			Should(Equal(strings.NewReplacer(
				" --conf-dir "+filepath.Join(c.dir, "net.d"), "", " --cni-path "+c.bin, "", // in an advice
				c.dir, "/etc/cni", c.bin, "/opt/cni/bin",
			).Replace(onHost)))
	})

	It("contains a DaemonSet that runs plumb maintain on the node", func() {
		c := newContainerd(newHost(), podNetwork)
		c.restartAsInit()
		web := c.mustRun(podConfig("web"))
		spec := daemonSet("all").Spec.Template.Spec
		main := spec.Containers[len(spec.Containers)-1]
		main.Args = append(without(without(main.Args, "--metrics"), "--cni-path"), "--cni-path="+c.bin)
		c.importRelease(main.Image)
		socket := slices.Index(main.Args, "--cri")
		Expect(socket).To(BeNumerically(">", 0))
		main.Args[socket] += "=" + filepath.Join(c.dir, "sock") // of this containerd
		p := c.createOnNode(spec, main)
		p.start(main, nil)
		rules := func() string { return c.Host.Must(GinkgoTB(), "nft", "list", "ruleset") }
		Eventually(func() string { return p.log(main.Name) }).Should(ContainSubstring("repaired 0, left 0, healthy 1, skipped 0"))
		Expect(rules()).To(ContainSubstring(web.id))
		c.Host.Must(GinkgoTB(), "nft", "flush", "ruleset")
		Eventually(rules).Should(ContainSubstring(web.id))
		Eventually(func() string { return p.log(main.Name) }).Should(MatchRegexp(`repaired [1-9]\d*, left 0, healthy 0, skipped 0`))
	})

	It("contains a DaemonSet that installs the plugins in an init container, and restores the former ones at its end", func() {
		c := newContainerd(newHost(), podNetwork)
		d := daemonSet("all")
		spec := d.Spec.Template.Spec
		spec.InitContainers[0].Args = without(spec.InitContainers[0].Args, "--only")
		c.importRelease(spec.InitContainers[0].Image)
		directories := hostDirectories(d, c.dir)
		old := filepath.Join(directories["bin"], "bridge")
		Expect(os.WriteFile(old, []byte("#!/missing/interpreter\n"), 0o755)).To(Succeed())
		config := podConfig("plumb")
		config.LogDirectory = c.dir
		config.Linux.SecurityContext = &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{}}
		if spec.HostNetwork {
			config.Linux.SecurityContext.NamespaceOptions.Network, config.Hostname = cri.NamespaceMode_NODE, ""
		}
		p, err := c.create(config)
		Expect(err).NotTo(HaveOccurred())

		p.waitForExit(p.start(spec.InitContainers[0], directories), spec.InitContainers[0].Name)
		installed := nstest.SnapshotDir(GinkgoTB(), directories["bin"])
		names, err := os.ReadDir(c.bin)
		Expect(err).NotTo(HaveOccurred())
		for _, name := range names {
			if name.Name() != "plumb" {
				Expect(installed).To(ContainSubstring(" " + name.Name() + " "))
			}
		}
		Expect(exec.Command(old).Run()).To(Succeed())

		main := spec.Containers[0]
		id := p.start(main, directories)
		Eventually(func() string { return p.log(main.Name) }).Should(ContainSubstring("waiting for SIGTERM"))
		Expect(nstest.SnapshotDir(GinkgoTB(), directories["bin"])).To(Equal(installed))
		_, err = c.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id, Timeout: 60})
		Expect(err).NotTo(HaveOccurred())
		p.waitForExit(id, main.Name)
		Expect(os.ReadFile(old)).To(BeEquivalentTo("#!/missing/interpreter\n"))
	})
})
