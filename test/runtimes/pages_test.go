package runtimes

import (
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	core "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

const started = "../../docs/get-started/"

// expectPublished connects from the outside host to host port 8080, and with exec from the container to the outside host.
func (h *host) expectPublished(exec func(args ...string) string) {
	GinkgoHelper()
	Eventually(func() error { _, err := nstest.Dial(h.Outside, nstest.HostV4+":8080"); return err }).Should(Succeed())
	nstest.MustDial(GinkgoTB(), h.Outside, nstest.HostV4+":8080", nstest.OutsideV4)
	server := nstest.ServeTCP(GinkgoTB(), h.Outside, nstest.OutsideV4+":0")
	Expect(exec("dial", server.String())).To(HavePrefix("peer=" + nstest.HostV4 + " "))
}

var _ = Describe("the pages for users", func() {
	It("publish the port of web.yaml with containerd", func() {
		c := newContainerd(newHost(), nstest.PageList(GinkgoTB(), started+"containerd.md", "pods"))
		text, err := os.ReadFile(started + "web.yaml")
		Expect(err).NotTo(HaveOccurred())
		var manifest core.Pod
		Expect(yaml.UnmarshalStrict(text, &manifest)).To(Succeed())
		config := podConfig(manifest.Name)
		for _, port := range manifest.Spec.Containers[0].Ports { // as kubelet does
			config.PortMappings = append(config.PortMappings, &cri.PortMapping{HostPort: port.HostPort, ContainerPort: port.ContainerPort})
		}
		p, err := c.create(config)
		Expect(err).NotTo(HaveOccurred())
		container := p.container("serve", ":80")
		c.expectPublished(func(args ...string) string { return c.exec(container, args...) })
	})

	It("publish a port with the list and the command for podman", func() {
		p := newPodman(newHost())
		p.write("net.d/web.conflist", nstest.PageList(GinkgoTB(), started+"podman.md", "web"))
		p.run("web", options(filepath.Join(started, "podman.md")), "serve", ":80")
		p.expectPublished(func(args ...string) string { return p.exec("web", args...) })
		Expect(p.inspect("web", "web", "IPAddress")).To(Equal("10.91.0.77"))
		Expect(p.exec("web", "read", "/sys/class/net/eth0/address")).To(Equal("02:00:00:00:00:77"))
	})
})

// options returns the options of the command "podman run" on the page, from --network on.
func options(page string) []string {
	GinkgoHelper()
	text := nstest.ReadFile(GinkgoTB(), page)
	_, command, found := strings.Cut(strings.ReplaceAll(text, "\\\n", " "), "podman run --detach --name web ")
	Expect(found).To(BeTrue())
	command, _, _ = strings.Cut(command, "\n")
	all := strings.Fields(command)
	return all[:len(all)-1] // without the image
}
