package datastore

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.yaml.in/yaml/v3"

	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

const (
	manifests  = "../deploy"
	resources  = "/apis/ipam.plumb-cni.github.io/v1alpha1/"
	adminToken = "admin-token"
)

// A kubernetes consists of an API server, an etcd member, and a namespace for clients, all connected to one bridge.
type kubernetes struct {
	*cluster // its members contain the API server's data
	ns       *nstest.NS
	operator *nstest.NS // a namespace that reaches the API server even if the clients do not
	cmd      *exec.Cmd  // nil if the API server does not run
	log      string
	http     *http.Client
	addr     string

	observe func(*http.Response) error // is called with each answer that a proxy forwards, or nil
	files   atomic.Int64               // the number of kubeconfig files
	mu      sync.Mutex
	configs map[string]string // paths of kubeconfig files by node, and "" for the operator
}

// newKubernetes starts an etcd member with these arguments, and an API server with the manifests of cluster-local-kubernetes.
func newKubernetes(args ...string) *kubernetes {
	GinkgoHelper()
	k := &kubernetes{cluster: newCluster(1, args...), ns: nstest.NewHost(GinkgoTB()).Named("apiserver"), addr: "10.9.0.8", configs: map[string]string{}}
	k.plug(k.ns, "apiserver", k.addr)
	k.operator = nstest.NewHost(GinkgoTB()).Named("operator")
	k.plug(k.operator, "operator", "10.9.0.101")
	k.issue("service-accounts", &x509.Certificate{})
	k.log = filepath.Join(k.dir, "apiserver.log")
	Expect(os.WriteFile(filepath.Join(k.dir, "tokens.csv"), []byte(adminToken+",admin,1,system:masters\n"), 0o600)).To(Succeed())
	k.http = &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: k.trust(), DialContext: k.dialAs}}
	DeferCleanup(k.stopServer)
	k.startServer()
	k.applyManifests()
	return k
}

// dialAs connects from the operator's namespace.
func (k *kubernetes) dialAs(_ context.Context, network, addr string) (conn net.Conn, err error) {
	err = k.operator.Do(func() error { conn, err = net.DialTimeout(network, addr, 5*time.Second); return err })
	return conn, err
}

// trust returns a TLS configuration that trusts the authority of the cluster.
func (k *kubernetes) trust() *tls.Config {
	config := k.tlsConfig("root")
	config.Certificates = nil
	return config
}

func (k *kubernetes) url() string { return "https://" + k.addr + ":6443" }

// startServer starts the API server, and waits until it is ready.
func (k *kubernetes) startServer() {
	GinkgoHelper()
	log, err := os.OpenFile(k.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = log.Close() }()
	k.cmd = exec.Command(filepath.Join(nstest.Programs(GinkgoTB(), "kubernetes", "kube-apiserver"), "kube-apiserver"),
		"--etcd-servers="+k.members[0].clientURL(), "--etcd-cafile="+k.certFile("ca"), "--etcd-certfile="+k.certFile("root"), "--etcd-keyfile="+k.keyFile("root"),
		"--bind-address="+k.addr, "--advertise-address="+k.addr, "--secure-port=6443", "--tls-cert-file="+k.certFile("server"), "--tls-private-key-file="+k.keyFile("server"),
		"--cert-dir="+filepath.Join(k.dir, "apiserver"), "--token-auth-file="+filepath.Join(k.dir, "tokens.csv"), "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://plumb.test", "--service-account-key-file="+k.certFile("service-accounts"), "--service-account-signing-key-file="+k.keyFile("service-accounts"))
	k.cmd.Stdout, k.cmd.Stderr = log, log
	Expect(k.ns.Start(k.cmd)).To(Succeed())
	Eventually(func() error { _, err := k.send(adminToken, http.MethodGet, "/readyz", nil); return err }, "3m", "100ms").Should(Succeed())
}

// killServer ends the API server without a shutdown.
func (k *kubernetes) killServer() {
	_ = k.cmd.Process.Kill()
	_ = k.cmd.Wait()
}

func (k *kubernetes) stopServer() {
	k.killServer()
	if text, err := os.ReadFile(k.log); err == nil && CurrentSpecReport().Failed() {
		lines := strings.Split(string(text), "\n")
		GinkgoWriter.Printf("API server:\n%s\n", strings.Join(lines[max(0, len(lines)-20):], "\n"))
	}
}

// A refusal is an answer of the API server with an error.
type refusal struct {
	status  int
	message string
}

func (r *refusal) Error() string { return fmt.Sprintf("status %d: %s", r.status, r.message) }

// send sends a request to the API server, and decodes the answer. An error of the API server is a *refusal.
func (k *kubernetes) send(token, method, path string, body any) (map[string]any, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequest(method, k.url()+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := k.http.Do(req)
	if err != nil {
		return nil, err
	}
	text, err = io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return nil, err
	}
	answer := map[string]any{}
	err = json.Unmarshal(text, &answer)
	switch {
	case resp.StatusCode >= 400:
		message, _ := answer["message"].(string)
		return nil, &refusal{resp.StatusCode, message + string(text[:min(len(text), 100)])}
	case path == "/readyz":
		return nil, nil
	}
	return answer, err
}

// as sends a request that must succeed.
func (k *kubernetes) as(token, method, path string, body any) map[string]any {
	GinkgoHelper()
	answer, err := k.send(token, method, path, body)
	Expect(err).NotTo(HaveOccurred(), "%s %s", method, path)
	return answer
}

// collections maps the kinds of the manifests to paths.
var collections = map[string]string{
	"CustomResourceDefinition":         "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
	"ServiceAccount":                   "/api/v1/namespaces/kube-system/serviceaccounts",
	"ClusterRole":                      "/apis/rbac.authorization.k8s.io/v1/clusterroles",
	"ClusterRoleBinding":               "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
	"ValidatingAdmissionPolicy":        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
	"ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}

// applyManifests creates the objects of the manifests, and waits until the API server serves the custom resources and
// applies the policy.
func (k *kubernetes) applyManifests() {
	GinkgoHelper()
	for _, file := range []string{"crds.yaml", "rbac.yaml", "policy.yaml"} {
		text, err := os.ReadFile(filepath.Join(manifests, file))
		Expect(err).NotTo(HaveOccurred())
		for documents := yaml.NewDecoder(bytes.NewReader(text)); ; {
			var object map[string]any
			if err = documents.Decode(&object); err == io.EOF {
				break
			}
			Expect(err).NotTo(HaveOccurred(), file)
			path := collections[object["kind"].(string)]
			Expect(path).NotTo(BeEmpty(), "%v", object["kind"])
			// The API server creates kube-system some time after it is ready.
			Eventually(func() error { _, err := k.send(adminToken, http.MethodPost, path, object); return err }, "1m", "100ms").Should(Succeed(), "%v", object["metadata"])
		}
	}
	token := k.token("n1")
	for _, plural := range []string{"segments", "segmentnodes", "addresschunks"} {
		Eventually(func() error { _, err := k.send(token, http.MethodGet, resources+plural, nil); return err }, "1m", "100ms").Should(Succeed(), plural)
	}
	frozen := map[string]any{"apiVersion": "ipam.plumb-cni.github.io/v1alpha1", "kind": "Segment", "metadata": map[string]any{"name": "probe"},
		"spec": map[string]any{"segment": "probe", "fence": 0, "frozen": map[string]any{"since": "now"}}}
	Eventually(func() error {
		_, err := k.send(token, http.MethodPost, resources+"segments?dryRun=All", frozen)
		return err
	}, "1m", "100ms").
		Should(MatchError(ContainSubstring("a new segment must not be frozen")))
}

// token returns a token of the service account plumb that names a node, as the token of a pod does. It creates the node.
func (k *kubernetes) token(node string) string {
	GinkgoHelper()
	var uid any
	Eventually(func() error {
		_, _ = k.send(adminToken, http.MethodPost, "/api/v1/nodes", map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": node}})
		object, err := k.send(adminToken, http.MethodGet, "/api/v1/nodes/"+node, nil)
		if err == nil {
			uid = object["metadata"].(map[string]any)["uid"]
		}
		return err
	}, "1m", "100ms").Should(Succeed(), node)
	answer := k.as(adminToken, http.MethodPost, "/api/v1/namespaces/kube-system/serviceaccounts/plumb/token", map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"spec": map[string]any{"expirationSeconds": 3600, "boundObjectRef": map[string]any{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}},
	})
	return answer["status"].(map[string]any)["token"].(string)
}

// kubeconfig returns the path of a kubeconfig file for a node, or for the operator if node is "".
func (k *kubernetes) kubeconfig(node string) string {
	GinkgoHelper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if path := k.configs[node]; path != "" {
		return path
	}
	token := adminToken
	if node != "" {
		token = k.token(node)
	}
	k.configs[node] = k.writeKubeconfig(fmt.Sprintf("node-%s.yaml", node), k.url(), token)
	return k.configs[node]
}

// writeKubeconfig writes a kubeconfig file and a file with the token.
func (k *kubernetes) writeKubeconfig(file, server, token string) string {
	GinkgoHelper()
	path := filepath.Join(k.dir, fmt.Sprint(k.files.Add(1), "-", file))
	Expect(os.WriteFile(path+".token", []byte(token), 0o600)).To(Succeed())
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: plumb\ncontexts:\n- name: plumb\n  context: {cluster: plumb, user: plumb}\n"+
		"clusters:\n- name: plumb\n  cluster: {server: %q, certificate-authority: %q}\nusers:\n- name: plumb\n  user: {tokenFile: %q}\n", server, k.certFile("ca"), filepath.Base(path)+".token")
	Expect(os.WriteFile(path, []byte(text), 0o600)).To(Succeed())
	return path
}

// config returns a configuration of the datastore with a kubeconfig file.
func config(kubeconfig string) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"type": "cluster-local-kubernetes", "kubeconfig": %q, "timeout": 30}`, kubeconfig))
}

// newCaller implements bed. The caller uses the token of its node, and an operator's token for the verbs that only an
// operator can call.
func (k *kubernetes) newCaller(segment, node string, ranges ...string) caller {
	GinkgoHelper()
	c := k.cluster.newCaller(segment, node, ranges...)
	name, _, _ := strings.Cut(node, ":")
	mine, operator := config(k.kubeconfig(name)), config(k.kubeconfig(""))
	c.base.Datastore = mine
	c.configure = func(r *datastore.Request) {
		if bytes.Equal(r.Datastore, mine) && (r.Verb == datastore.Thaw || r.Verb == datastore.RemoveNode) {
			r.Datastore = operator
		}
	}
	return c
}

// chunks returns the AddressChunks of a segment.
func (k *kubernetes) chunks(segment string) (all []map[string]any) {
	GinkgoHelper()
	for _, item := range k.as(adminToken, http.MethodGet, resources+"addresschunks", nil)["items"].([]any) {
		if spec := item.(map[string]any)["spec"].(map[string]any); spec["segment"] == segment {
			all = append(all, item.(map[string]any))
		}
	}
	return all
}

// owners implements bed.
func (k *kubernetes) owners(segment string) map[netip.Addr]string {
	GinkgoHelper()
	all := map[netip.Addr]string{}
	for _, chunk := range k.chunks(segment) {
		spec := chunk["spec"].(map[string]any)
		first := netip.MustParseAddr(spec["first"].(string)).AsSlice()
		for offset, o := range spec["owners"].(map[string]any) {
			n, err := strconv.Atoi(offset)
			Expect(err).NotTo(HaveOccurred())
			b := slices.Clone(first)
			b[len(b)-1] += byte(n)
			a, _ := netip.AddrFromSlice(b)
			owner := o.(map[string]any)
			all[a] = fmt.Sprint(owner["node"], " ", owner["claim"])
		}
	}
	return all
}

// configAt implements bed.
func (k *kubernetes) configAt(part int, f func()) json.RawMessage {
	GinkgoHelper()
	return k.proxyConfig(func(n int, forward func(http.ResponseWriter), w http.ResponseWriter) {
		if n == part {
			f()
		}
		forward(w)
	})
}

// proxyConfig returns the configuration of a client with a proxy and the operator's token. The proxy calls handle with the
// number of each request, beginning with 1. handle forwards the request and its answer, or answers itself.
func (k *kubernetes) proxyConfig(handle func(n int, forward func(http.ResponseWriter), w http.ResponseWriter)) json.RawMessage {
	GinkgoHelper()
	return config(k.writeKubeconfig("proxy.yaml", k.proxy(handle), adminToken))
}

// proxy returns the URL of a proxy for the API server.
func (k *kubernetes) proxy(handle func(n int, forward func(http.ResponseWriter), w http.ResponseWriter)) string {
	GinkgoHelper()
	target, err := url.Parse(k.url())
	Expect(err).NotTo(HaveOccurred())
	transport := &http.Transport{TLSClientConfig: k.trust(), MaxIdleConnsPerHost: 32, DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return k.dial(ctx, addr) }}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: transport, ModifyResponse: k.observe, ErrorLog: log.New(io.Discard, "", 0)}
	var mu sync.Mutex
	n := 0
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer GinkgoRecover()
		mu.Lock()
		n++
		number := n
		mu.Unlock()
		// A request that the client gives up still reaches the API server.
		r = r.WithContext(context.WithoutCancel(r.Context()))
		handle(number, func(w http.ResponseWriter) {
			defer func() {
				if v := recover(); v != nil && v != http.ErrAbortHandler { // the API server ended while it answered
					panic(v)
				}
			}()
			proxy.ServeHTTP(w, r)
		}, w)
	})}
	listener := k.listen("127.0.0.1:0")
	DeferCleanup(server.Close)
	go func() { _ = server.Serve(listener) }()
	return "http://" + listener.Addr().String()
}

// cut ends the connection of a request without an answer.
func cut(w http.ResponseWriter) {
	GinkgoHelper()
	conn, _, err := w.(http.Hijacker).Hijack()
	Expect(err).NotTo(HaveOccurred())
	_ = conn.Close()
}
