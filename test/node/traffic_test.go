package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// get returns the answer to a GET request from a namespace.
func get(from *nstest.NS, address string) (string, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(_ context.Context, network, addr string) (conn net.Conn, err error) {
			err = from.Do(func() error { conn, err = net.DialTimeout(network, addr, 5*time.Second); return err })
			return conn, err
		},
	}}
	answer, err := client.Get(address)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, text)
	}
	return string(text), err
}

// clientOf returns the address of the client that the server agnhost at an address sees.
func clientOf(from *nstest.NS, at string) (string, error) {
	text, err := get(from, "http://"+at+"/clientip")
	if err != nil {
		return "", err
	}
	client, err := netip.ParseAddrPort(text)
	return client.Addr().Unmap().String(), err
}

// clientOfPod is clientOf for a request of the pod.
func (p *pod) clientOf(protocol, at string) (string, error) {
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		return "", err
	}
	query := url.Values{"host": {host}, "port": {port}, "protocol": {protocol}, "request": {"clientip"}, "tries": {"1"}}
	text, err := get(p.node.NS, "http://"+net.JoinHostPort(p.v4, "8080")+"/dial?"+query.Encode())
	if err != nil {
		return "", err
	}
	var answer struct{ Responses, Errors []string }
	if err := json.Unmarshal([]byte(text), &answer); err != nil || len(answer.Responses) != 1 {
		return "", fmt.Errorf("pod %s to %s: %s", p.name, at, text)
	}
	client, err := netip.ParseAddrPort(answer.Responses[0])
	return client.Addr().Unmap().String(), err
}

// A pod is a running pod with the server agnhost, which listens on port 8080 (HTTP) and port 8081 (UDP).
type pod struct {
	name   string
	node   *node
	v4, v6 string
}

// manifest returns the manifest of such a pod. ports are the entries of its ports.
func manifest(name, ports string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: %[1]s
  labels: {app: %[1]s}
  annotations: {kubernetes.io/ingress-bandwidth: 100M, kubernetes.io/egress-bandwidth: 100M}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: server
      image: %[2]s
      args: [netexec]
      ports: [%[3]s]
      readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
`, name, agnhost, ports)
}

// hostPorts returns entries of a pod's ports that map ports of the node.
func hostPorts(http, udp int) string {
	return fmt.Sprintf("{containerPort: 8080, hostPort: %d}, {containerPort: 8081, hostPort: %d, protocol: UDP}", http, udp)
}

// ready waits until pods are ready, and returns them.
func (c *cluster) ready(names ...string) (pods []*pod) {
	GinkgoHelper()
	for _, name := range names {
		c.kubectl("wait", "--for=condition=Ready", "pod/"+name, "--timeout=600s")
		f := strings.Fields(c.kubectl("get", "pod", name, "-o", "jsonpath={.spec.nodeName} {.status.podIPs[*].ip}"))
		Expect(f).To(HaveLen(3), "the node and two addresses of the pod %s", name)
		p := &pod{name: name, v4: f[1], v6: f[2]}
		for _, n := range c.nodes {
			if n.name == f[0] {
				p.node = n
			}
		}
		pods = append(pods, p)
	}
	return pods
}

// startPods starts the pods a, with the host ports 18080 and 18081 and a Service, and b, and waits until they are ready.
func (c *cluster) startPods() (a, b *pod) {
	GinkgoHelper()
	c.apply(manifest("a", hostPorts(18080, 18081)), manifest("b", ""), service)
	pods := c.ready("a", "b")
	return pods[0], pods[1]
}

// expectClient expects that a request succeeds soon, and that the server sees this address, or any address if it is "".
func expectClient(request func() (string, error), client, what string, args ...any) {
	GinkgoHelper()
	what = fmt.Sprintf(what, args...)
	Eventually(func(g Gomega) {
		seen, err := request()
		g.Expect(err).NotTo(HaveOccurred(), what)
		if client != "" {
			g.Expect(seen).To(Equal(client), what)
		}
	}).Should(Succeed())
}

// serveOutside starts a server on the outside host, which sees the addresses of its clients, and returns its port.
func (c *cluster) serveOutside() string {
	GinkgoHelper()
	const port = "8090"
	listen := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RemoteAddr) })}
	Expect(c.lan.Do(func() error {
		l, err := net.Listen("tcp", ":"+port)
		if err == nil {
			go func() { _ = listen.Serve(l) }()
		}
		return err
	})).To(Succeed())
	DeferCleanup(listen.Close)
	return port
}
