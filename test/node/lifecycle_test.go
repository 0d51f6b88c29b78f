package node

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("a node whose containerd loses its state while pods run", Label("wiped"), func() {
	It("gives the host ports to the new pods at once, and plumb gc --cri removes the objects of the lost pods", func() {
		c := newCluster(1, os.Getenv("PLUMB_BIN"))
		n := c.control()
		before := n.state()
		names := []string{"one", "two", "three"}
		for i, name := range names {
			c.apply(manifest(name, hostPorts(18001+i, 19001+i)))
		}
		c.ready(names...)

		n.stop("KILL", "kubelet", "containerd")
		n.mustRun("sh", "-c", `for p in /proc/[0-9]*; do case $(readlink $p/exe) in *containerd-shim*|/pause|/agnhost) kill -KILL ${p#/proc/};; esac; done`)
		Eventually(func() string { out, _ := n.run("sh", "-c", "readlink /proc/[0-9]*/exe"); return out }).ShouldNot(MatchRegexp("shim|/pause|/agnhost"))
		n.mustRun("sh", "-c", `while read -r _ at _; do case $at in /run/containerd/*) umount -l $at;; esac; done </proc/mounts; rm -rf /var/lib/containerd /run/containerd`)
		n.startContainerd()
		n.startKubelet()
		c.awaitRestarts(3)
		expectHostPorts := func() {
			GinkgoHelper()
			for i, name := range names {
				port := 18001 + i
				Eventually(func() (string, error) { return get(c.NS, hostURL(n.v4, port)) }).Should(Equal(name))
				Eventually(func() (string, error) { return get(c.NS, hostURL(n.v6, port)) }).Should(Equal(name))
			}
		}
		expectHostPorts()

		n.age()
		_, err := n.run("/opt/plumb/plumb", "doctor")
		Expect(err).To(MatchError(And(ContainSubstring("plumb gc --cri"), Not(ContainSubstring("plumb repair")))))
		Expect(n.plumb("list")).To(ContainSubstring("suspect: plumb doctor"))
		Expect(n.plumb("metrics")).To(ContainSubstring(`reason="unknown to the runtime"} 3`))
		Expect(n.plumb("gc", "--cri")).To(MatchRegexp(`removed resources of 0 attachments, kept [36], left 0`))
		n.ageSuspects()
		Expect(n.plumb("gc", "--cri")).To(MatchRegexp(`removed resources of [36] attachments, kept 0, left 0`))
		expectHostPorts()
		Expect(n.attachments()).To(Equal(3))
		Expect(n.plumb("doctor")).To(ContainSubstring("nothing found"))

		c.kubectl("delete", "pod", "--all", "--timeout=300s")
		Eventually(n.attachments).Should(BeZero())
		n.removeNamespaces()
		Expect(nstest.WaitEqual(before, n.state)).To(BeEmpty())
	})
})

var _ = Describe("a node that loses its power", Label("reboot"), func() {
	It("runs all pods again, and keeps nothing of the pods before", func() {
		c := newCluster(1, os.Getenv("PLUMB_BIN"))
		n := c.control()
		c.startPods()
		before := n.state()

		n.switchOff()
		n.switchOn()
		c.boot()
		c.awaitRestarts(2)
		pods := c.ready("a", "b")
		expectTraffic(c, pods[0], pods[1], c.serveOutside())
		Eventually(func() []string { return withoutNames(n.state()) }).Should(Equal(withoutNames(before)), "the objects of two pods")
		Expect(n.plumb("doctor")).To(ContainSubstring("nothing found"))
		Expect(n.attachments()).To(Equal(2))
	})
})

var _ = Describe("a node with the reference plugins", Label("migrate"), func() {
	It("changes to plumb with the DaemonSet while pods run, and keeps nothing after their deletion", func() {
		c := newCluster(1, os.Getenv("REFERENCE"))
		n, outside := c.control(), c.serveOutside()
		a, b := c.startPods()
		expectTraffic(c, a, b, outside)

		c.importPlumb()
		c.apply(nstest.ReadFile(GinkgoTB(), "../../deploy/daemonset.yaml"))
		c.kubectl("-n", "kube-system", "rollout", "status", "daemonset/plumb", "--timeout=300s")
		n.mustRun("cmp", program("PLUMB_BIN", "portmap"), "/opt/cni/bin/portmap")
		expectTraffic(c, a, b, outside)
		c.apply(manifest("new", hostPorts(18082, 18083)))
		fresh := c.ready("new")[0]
		for _, at := range []string{n.v4, n.v6} {
			expectClient(func() (string, error) { return clientOf(c.NS, net.JoinHostPort(at, "18082")) }, "", "outside to the new pod")
			expectClient(func() (string, error) { return b.clientOf("http", net.JoinHostPort(at, "18082")) }, "", "old pod to the new pod's host port")
		}
		expectClient(func() (string, error) { return fresh.clientOf("http", net.JoinHostPort(a.v4, "8080")) }, fresh.v4, "new pod to old pod")
		expectClient(func() (string, error) { return a.clientOf("http", net.JoinHostPort(fresh.v6, "8080")) }, a.v6, "old pod to new pod")
		Expect(n.attachments()).To(Equal(3))

		c.kubectl("delete", "pod", "a", "b", "new", "--timeout=300s")
		Eventually(n.attachments).Should(BeZero())
		Expect(n.state()).NotTo(MatchRegexp(`veth|networks/|results/|run/`))
		Expect(n.plumb("doctor")).To(ContainSubstring("nothing found"))
	})
})

// awaitRestarts waits until this many pods, which are all, have restarted once and are ready.
func (c *cluster) awaitRestarts(pods int) {
	GinkgoHelper()
	Eventually(func() []string {
		return strings.Fields(c.kubectl("get", "pods", "-o", "jsonpath={range .items[*]}{.status.containerStatuses[0].restartCount}{.status.containerStatuses[0].ready} {end}"))
	}, "5m").Should(And(HaveLen(pods), HaveEach("1true")))
}

// removeNamespaces removes the network namespaces that containerd created and lost, because it was killed.
func (n *node) removeNamespaces() {
	GinkgoHelper()
	n.mustRun("sh", "-c", "for f in /run/netns/*; do ! [ -e $f ] || { umount $f; rm $f; } || exit; done")
}

// withoutNames replaces the IDs, names and addresses in a state, and sorts its lines.
func withoutNames(state string) []string {
	all := strings.Split(regexp.MustCompile(`(veth|cni-)?[0-9a-f:._-]*[0-9][0-9a-f:.@_-]*`).ReplaceAllString(state, "X"), "\n")
	slices.Sort(all)
	return all
}

// age makes all files of plugins and of libcni an hour older.
func (n *node) age() {
	GinkgoHelper()
	n.mustRun("find", "/var/lib/cni", "/run/cni", "-type", "f", "-exec", "touch", "-d", "1 hour ago", "{}", "+")
}

// ageSuspects sets the time at which gc --cri found suspect attachments to half an hour ago.
func (n *node) ageSuspects() {
	GinkgoHelper()
	const path = "/run/cni/plumb-suspects.json"
	var entries []map[string]any
	Expect(json.Unmarshal([]byte(nstest.ReadFile(GinkgoTB(), n.path(path))), &entries)).To(Succeed())
	Expect(entries).NotTo(BeEmpty())
	for _, e := range entries {
		e["since"] = time.Now().Add(-30 * time.Minute)
	}
	text, err := json.Marshal(entries)
	Expect(err).NotTo(HaveOccurred())
	Expect(os.WriteFile(n.path(path), text, 0o600)).To(Succeed())
}

// hostURL returns the URL with which the server agnhost returns its host name, which is the name of the pod.
func hostURL(host string, port int) string {
	return "http://" + net.JoinHostPort(host, strconv.Itoa(port)) + "/hostname"
}

// importPlumb imports the image of a release, which scripts/image builds, on all nodes.
func (c *cluster) importPlumb() {
	GinkgoHelper()
	archive := filepath.Join(c.dir, "plumb.tar")
	must("env", "SOURCE_DATE_EPOCH=1700000000", "go", "-C", "../..", "run", "./scripts/image", plumbImage, archive, "amd64="+os.Getenv("PLUMB_BIN"))
	for _, n := range c.nodes {
		n.importImages(archive)
	}
}
