package node

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// A cluster is a control plane, which runs on the first node, and the nodes.
type cluster struct {
	lan
	nodes []*node
	dir   string // the kubeconfig files

	authority string // the certificate with which the API server signed its certificate
}

// A node is a machine with containerd, kubelet and kube-proxy.
type node struct {
	*machine
	cluster        *cluster
	podsV4, podsV6 string // the subnets of its pods
}

// newCluster starts the control plane and these nodes, with the plugins in bin, and waits until the nodes are ready.
func newCluster(nodes int, bin string) *cluster {
	GinkgoHelper()
	c := &cluster{lan: newLAN(), dir: GinkgoT().TempDir()}
	for i := range nodes {
		c.nodes = append(c.nodes, c.newNode(i, bin))
	}
	c.boot()
	return c
}

// newNode switches on a new node with the number i, counted from 0, and installs the plugins in bin.
func (c *cluster) newNode(i int, bin string) *node {
	GinkgoHelper()
	n := &node{machine: c.newMachine(i + 1), cluster: c, podsV4: fmt.Sprintf("10.88.%d.0/24", i), podsV6: fmt.Sprintf("fd00:88:0:%x::/64", i)}
	DeferCleanup(n.logs)
	n.install(bin)
	return n
}

// boot starts all daemons of switched on machines.
func (c *cluster) boot() {
	GinkgoHelper()
	c.addRoutes()
	for _, n := range c.nodes {
		n.startContainerd()
	}
	c.startControlPlane()
	for _, n := range c.nodes {
		n.join()
	}
	Eventually(func() error { _, err := c.tryKubectl("", "get", "serviceaccount", "default"); return err }).Should(Succeed())
}

// addRoutes adds routes to the pods of the other nodes.
func (c *cluster) addRoutes() {
	GinkgoHelper()
	for _, n := range c.nodes {
		for _, other := range c.nodes {
			if n != other {
				n.Batch(GinkgoTB(), "route replace "+other.podsV4+" via "+other.v4, "route replace "+other.podsV6+" via "+other.v6)
			}
		}
	}
}

// join starts kubelet and kube-proxy, and waits until the node is ready.
func (n *node) join() {
	GinkgoHelper()
	n.startKubelet()
	n.startKubeProxy()
	n.cluster.kubectl("wait", "--for=create", "node/"+n.name, "--timeout=600s")
	n.cluster.kubectl("wait", "--for=condition=Ready", "node/"+n.name, "--timeout=600s")
}

// install installs plugins and the configuration of the node.
func (n *node) install(bin string) {
	GinkgoHelper()
	n.mustRun("sh", "-c", `mkdir /opt/plumb && cp "$0" /opt/plumb/`, program("PLUMB_BIN", "plumb"))
	n.installPlugins(bin)
	values := map[string]string{"CNIVersion": cniVersion(), "PodsV4": n.podsV4, "PodsV6": n.podsV6, "Proxy": *proxyMode, "Name": n.name}
	n.writeTemplate("/etc/cni/net.d", "pods.conflist", values)
	n.writeTemplate("/etc/containerd", fmt.Sprintf("containerd%d.toml", *containerd), values)
	n.writeTemplate("/etc/kubernetes", "kubelet.yaml", values)
	n.writeTemplate("/etc/kubernetes", "kube-proxy.yaml", values)
	n.write("/etc/kubernetes/resolv.conf", "nameserver "+nstest.OutsideV4+"\n", nil)
}

// cniVersion returns the highest cniVersion that containerd supports.
func cniVersion() string {
	if *containerd > 1 {
		return "1.1.0"
	}
	return "1.0.0"
}

// installPlugins replaces the plugins of the node with the executables in a directory.
func (n *node) installPlugins(bin string) {
	GinkgoHelper()
	n.mustRun("find", bin, "-maxdepth", "1", "-type", "f", "-exec", "cp", "--remove-destination", "-t", "/opt/cni/bin", "{}", "+")
}

// startContainerd starts containerd, and imports the images that it lacks.
func (n *node) startContainerd() {
	GinkgoHelper()
	program := "/usr/bin/containerd"
	if *containerd > 1 {
		program = os.Getenv("CONTAINERD") + "/containerd"
	}
	n.start("containerd", "env", "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"), program, "-c", fmt.Sprintf("/etc/containerd/containerd%d.toml", *containerd))
	Eventually(func() error { _, err := n.ctr("version"); return err }).Should(Succeed())
	for name, archive := range images() {
		if !strings.Contains(n.mustRun("ctr", "-n", "k8s.io", "images", "list", "-q"), name) {
			n.importImages(archive)
		}
	}
}

// importImages imports the images of an archive, which is not a file of the machine.
func (n *node) importImages(archive string) {
	GinkgoHelper()
	f, err := os.Open(archive)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = f.Close() }()
	cmd := n.command("ctr", "-n", "k8s.io", "images", "import", "-")
	cmd.Stdin = f
	out, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
}

func (n *node) ctr(args ...string) (string, error) {
	return n.run("ctr", append([]string{"-n", "k8s.io"}, args...)...)
}

func (n *node) startKubelet() {
	GinkgoHelper()
	n.start("kubelet", program("KUBERNETES", "kubelet"), "--config=/etc/kubernetes/kubelet.yaml", "--kubeconfig=/etc/kubernetes/kubelet.conf",
		"--hostname-override="+n.name, "--node-ip="+n.v4+","+n.v6, "--volume-plugin-dir=/var/lib/kubelet/volumeplugins")
}

func (n *node) startKubeProxy() {
	GinkgoHelper()
	n.start("kube-proxy", program("KUBERNETES", "kube-proxy"), "--config=/etc/kubernetes/kube-proxy.yaml")
}

// control returns the node of the control plane.
func (c *cluster) control() *node { return c.nodes[0] }

// tokens are the tokens of the cluster's users, with their names and groups.
func (c *cluster) tokens() map[string]string {
	users := map[string]string{"admin": "admin,admin,system:masters", "kube-controller-manager": "system:kube-controller-manager,kcm",
		"kube-scheduler": "system:kube-scheduler,scheduler", "kube-proxy": "system:kube-proxy,proxy"}
	for _, n := range c.nodes {
		users[n.name] = "system:node:" + n.name + "," + n.name + ",system:nodes"
	}
	return users
}

// startControlPlane starts etcd, the API server, the controller manager and the scheduler, and writes the kubeconfig files.
func (c *cluster) startControlPlane() {
	GinkgoHelper()
	n, kubernetes := c.control(), os.Getenv("KUBERNETES")
	const pki, etcd = "/var/lib/kubernetes", "http://127.0.0.1:2379"
	key := pki + "/service-accounts.key"
	if _, err := os.Stat(n.path(key)); err != nil {
		n.write(key, newKey(), nil)
	}
	tokens := ""
	for user, names := range c.tokens() {
		tokens += user + "-token," + names + "\n"
	}
	n.write(pki+"/tokens.csv", tokens, nil)
	n.start("etcd", os.Getenv("ETCD"), "--data-dir=/var/lib/etcd", "--unsafe-no-fsync", "--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls=http://127.0.0.1:2380", "--log-level=warn")
	n.start("kube-apiserver", kubernetes+"/kube-apiserver", "--etcd-servers="+etcd, "--advertise-address="+n.v4, "--secure-port=6443", "--cert-dir="+pki,
		"--service-cluster-ip-range=10.96.0.0/16,fd00:96::/108", "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+key, "--service-account-signing-key-file="+key, "--token-auth-file="+pki+"/tokens.csv",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP")
	// The API server creates its certificate. The file contains the authority's certificate as well, as the last one.
	var certificates []string
	Eventually(func() []string {
		text, _ := os.ReadFile(n.path(pki + "/apiserver.crt"))
		certificates = strings.SplitAfter(string(text), "-----END CERTIFICATE-----\n")
		return certificates
	}).Should(HaveLen(3)) // and an empty text
	c.authority = certificates[1]
	authority := pki + "/ca.crt"
	n.write(authority, c.authority, nil)
	c.writeKubeconfigs()
	Eventually(func() error { _, err := c.tryKubectl("", "get", "--raw", "/readyz"); return err }, "10m").Should(Succeed())

	config := func(name string) []string {
		path := "/etc/kubernetes/" + name + ".conf"
		return []string{kubernetes + "/" + name, "--kubeconfig=" + path, "--authentication-kubeconfig=" + path, "--authorization-kubeconfig=" + path, "--leader-elect=false"}
	}
	n.start("kube-controller-manager", append(config("kube-controller-manager"), "--service-account-private-key-file="+key, "--root-ca-file="+authority,
		"--use-service-account-credentials")...)
	n.start("kube-scheduler", config("kube-scheduler")...)
}

// writeKubeconfigs writes the kubeconfig files of all users.
func (c *cluster) writeKubeconfigs() {
	GinkgoHelper()
	values := map[string]string{"Server": c.control().v4, "CA": base64.StdEncoding.EncodeToString([]byte(c.authority))}
	for _, n := range c.nodes {
		for file, user := range map[string]string{"admin": "admin", "kube-controller-manager": "kube-controller-manager", "kube-scheduler": "kube-scheduler",
			"kube-proxy": "kube-proxy", "kubelet": n.name} {
			if n != c.control() && file != "kube-proxy" && file != "kubelet" {
				continue
			}
			values["Token"] = user + "-token"
			n.writeTemplate("/etc/kubernetes", "kubeconfig", values)
			Expect(os.Rename(n.path("/etc/kubernetes/kubeconfig"), n.path("/etc/kubernetes/"+file+".conf"))).To(Succeed())
		}
	}
}

// newKey returns a private key as PEM.
func newKey() string {
	GinkgoHelper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Expect(err).NotTo(HaveOccurred())
	der, err := x509.MarshalECPrivateKey(key)
	Expect(err).NotTo(HaveOccurred())
	return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
}

// tryKubectl runs kubectl as the administrator, with this standard input.
func (c *cluster) tryKubectl(stdin string, args ...string) (string, error) {
	n := c.control()
	return n.ExecInput(stdin, filepath.Join(os.Getenv("KUBERNETES"), "kubectl"), append([]string{"--kubeconfig", n.path("/etc/kubernetes/admin.conf")}, args...)...)
}

// kubectl is tryKubectl without input, but fails the spec on an error. It tries again if the API server does not answer.
func (c *cluster) kubectl(args ...string) (out string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		var err error
		if out, err = c.tryKubectl("", args...); err != nil && !regexp.MustCompile("nable to connect|refused|etcdserver|timeout").MatchString(err.Error()) {
			StopTrying(err.Error()).Now()
		}
		g.Expect(err).NotTo(HaveOccurred())
	}).Should(Succeed())
	return strings.TrimSpace(out)
}

// apply creates or changes the objects of manifests.
func (c *cluster) apply(manifests ...string) {
	GinkgoHelper()
	_, err := c.tryKubectl(strings.Join(manifests, "\n---\n"), "apply", "-f", "-")
	Expect(err).NotTo(HaveOccurred())
}
