package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"

	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

type object = map[string]any

// A kubeNode is a host on which kube-proxy runs in its mode ipvs. The Service web has the address service4 or service6 with the
// port 8080 and the NodePort 30080, and the same with 8081 and 30081. Its endpoint is port 80 of the container web.
type kubeNode struct {
	*testNetwork
	web, client, mapped *container
}

const service4, service6 = "10.96.0.11", "fd00:96::11"

// newKubeNode returns a host that drops forwarded packets, as Docker does, with the containers web and client.
func newKubeNode() *kubeNode {
	GinkgoHelper()
	n := &kubeNode{testNetwork: newNetwork("1.1.0", `{"type": "bridge", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true, `+hostLocal+`},
		{"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "firewall"}`)}
	n.useDirectory(n.CNI.Path[0])
	n.Host.MustLine(GinkgoTB(), "iptables -P FORWARD DROP")
	n.Host.MustLine(GinkgoTB(), "ip6tables -P FORWARD DROP")
	n.Outside.Batch(GinkgoTB(), "route add 10.96.0.0/16 via "+nstest.HostV4, "route add fd00:96::/112 via "+nstest.HostV6)
	n.web, n.client = n.addContainer("web"), n.addContainer("client")
	for program, subnet := range map[string]string{"iptables": "10.1.0.0/16", "ip6tables": "fd00:1::/64"} { // see plugins/firewall/README.md
		n.Host.MustLine(GinkgoTB(), program+" -A CNI-ADMIN -d "+subnet+" -m conntrack --ctstate DNAT -j ACCEPT")
	}
	serveHostPort(n.web)
	return n
}

// addMapped adds a container with the host port 8080, and with the NodePort 30080 as a host port.
func (n *kubeNode) addMapped() {
	GinkgoHelper()
	n.mapped = cnitest.NewContainer("mapped")
	n.mapped.RT.CapabilityArgs = map[string]any{"portMappings": []portMapping{{8080, 80, "tcp", ""}, {8080, 80, "udp", ""}, {30080, 80, "tcp", ""}}}
	Expect(n.add(n.mapped)).To(Succeed())
	serveHostPort(n.mapped)
}

// objects returns the node, the Service and its endpoints, by resource of Kubernetes.
func (n *kubeNode) objects() map[string][]object {
	metadata := func(name string) object {
		return object{"name": name, "namespace": "default", "resourceVersion": "1", "labels": object{"kubernetes.io/service-name": "web"}}
	}
	slice := func(family, addr string) object {
		return object{"metadata": metadata(strings.ToLower(family)), "addressType": family,
			"ports":     []object{{"name": "a", "port": 80, "protocol": "TCP"}, {"name": "b", "port": 80, "protocol": "TCP"}},
			"endpoints": []object{{"addresses": []string{addr}, "conditions": object{"ready": true}, "nodeName": "node"}}}
	}
	return map[string][]object{
		"nodes": {{"metadata": object{"name": "node", "resourceVersion": "1"}, "status": object{"addresses": []object{
			{"type": "InternalIP", "address": nstest.HostV4}, {"type": "InternalIP", "address": nstest.HostV6}}}}},
		"services": {{"metadata": metadata("web"), "spec": object{"type": "NodePort", "clusterIP": service4, "clusterIPs": []string{service4, service6},
			"ipFamilies": []string{"IPv4", "IPv6"}, "externalTrafficPolicy": "Cluster", "internalTrafficPolicy": "Cluster", "ports": []object{
				{"name": "a", "port": 8080, "nodePort": 30080, "protocol": "TCP"}, {"name": "b", "port": 8081, "nodePort": 30081, "protocol": "TCP"}}}}},
		"endpointslices": {slice("IPv4", n.web.V4.String()), slice("IPv6", n.web.V6.String())},
	}
}

// kinds maps the resources of Kubernetes that kube-proxy reads to the kinds of their objects.
var kinds = map[string]string{"nodes": "Node", "services": "Service", "endpointslices": "EndpointSlice", "servicecidrs": "ServiceCIDR"}

// ServeHTTP answers kube-proxy's requests LIST and WATCH, and accepts its events. The objects do not change.
func (n *kubeNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodPost {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.Copy(w, r.Body)
		return
	}
	dir, resource := path.Split(r.URL.Path) // "/api/v1/" or "/apis/GROUP/VERSION/"
	_, version, _ := strings.Cut(strings.Trim(dir, "/"), "/")
	typed := func(kind string, o object) object {
		o["apiVersion"], o["kind"] = version, kind
		return o
	}
	encoder, query := json.NewEncoder(w), r.URL.Query()
	if query.Get("watch") != "true" {
		_ = encoder.Encode(typed(kinds[resource]+"List", object{"metadata": object{"resourceVersion": "1"}, "items": n.objects()[resource]}))
		return
	}
	if query.Get("sendInitialEvents") == "true" {
		for _, o := range n.objects()[resource] {
			_ = encoder.Encode(object{"type": "ADDED", "object": typed(kinds[resource], o)})
		}
		metadata := object{"resourceVersion": "1", "annotations": object{"k8s.io/initial-events-end": "true"}}
		_ = encoder.Encode(object{"type": "BOOKMARK", "object": typed(kinds[resource], object{"metadata": metadata})})
	}
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// startKubeProxy starts kube-proxy, and waits until it has added its rules.
func (n *kubeNode) startKubeProxy() {
	GinkgoHelper()
	var l net.Listener
	Expect(n.Host.Do(func() (err error) { l, err = net.Listen("tcp", "127.0.0.1:0"); return err })).To(Succeed())
	server := &http.Server{Handler: n}
	go func() { _ = server.Serve(l) }()
	DeferCleanup(server.Close)

	cmd := exec.Command(filepath.Join(os.Getenv("KUBERNETES"), "kube-proxy"), "--proxy-mode=ipvs", "--master=http://"+l.Addr().String(), "--hostname-override=node",
		"--cluster-cidr=10.1.0.0/16,fd00:1::/64", "--kube-api-content-type=application/json", "--conntrack-max-per-core=0", "--conntrack-min=0")
	var session *gexec.Session
	Expect(n.Host.Do(func() (err error) { session, err = gexec.Start(cmd, GinkgoWriter, GinkgoWriter); return err })).To(Succeed())
	DeferCleanup(func() { session.Kill().Wait() })
	Eventually(func() string {
		if session.ExitCode() >= 0 {
			StopTrying("kube-proxy has ended").Now()
		}
		return n.kubeProxyState()
	}).WithTimeout(10 * time.Minute).WithPolling(time.Second).Should(And(
		ContainSubstring("-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT"),
		ContainSubstring("-A KUBE-SERVICES -m set --match-set KUBE-6-CLUSTER-IP dst,dst -j ACCEPT"),
		ContainSubstring("-a -t %s:8080 -r %s:80 -m", service4, n.web.V4), ContainSubstring("-a -t %s:30080 -r %s:80 -m", nstest.HostV4, n.web.V4),
		ContainSubstring("-a -t [%s]:8080 -r [%s]:80 -m", service6, n.web.V6), ContainSubstring("-a -t [%s]:30080 -r [%s]:80 -m", nstest.HostV6, n.web.V6),
		ContainSubstring("add KUBE-CLUSTER-IP %s,tcp:8080", service4), ContainSubstring("add KUBE-6-CLUSTER-IP %s,tcp:8080", service6),
	))
	Expect(n.Host.MustLine(GinkgoTB(), "ip -br addr show dev kube-ipvs0")).To(And(ContainSubstring(service4+"/32"), ContainSubstring(service6+"/128")))
}

// kubeProxyState returns kube-proxy's rules of iptables, its virtual servers of ip_vs and its sets.
func (n *kubeNode) kubeProxyState() string {
	GinkgoHelper()
	var state []string
	for line := range strings.Lines(n.Host.MustLine(GinkgoTB(), "iptables-save") + n.Host.MustLine(GinkgoTB(), "ip6tables-save")) {
		if strings.Contains(line, "KUBE-") {
			state = append(state, regexp.MustCompile(`\[\d+:\d+\]`).ReplaceAllString(line, ""))
		}
	}
	sets := slices.Sorted(strings.Lines(n.Host.MustLine(GinkgoTB(), "ipset save")))
	return strings.Join(append(state, sets...), "") + n.Host.MustLine(GinkgoTB(), "ipvsadm -Sn")
}

// expectReply expects that connections reach the container's port 80 from a client with an address of seen, which may be nil.
func expectReply(dial func(*nstest.NS, string) (string, error), from *nstest.NS, to []string, port int, c *container, seen []string) {
	GinkgoHelper()
	for i, local := range []string{c.V4.String(), c.V6.String()} {
		at := net.JoinHostPort(to[i], fmt.Sprint(port))
		reply, err := dial(from, at)
		Expect(err).NotTo(HaveOccurred(), at)
		Expect(reply).To(HaveSuffix(" local="+local), at)
		if seen != nil {
			Expect(reply).To(HavePrefix("peer="+seen[i]+" "), at)
		}
	}
}

// expectTraffic connects from everywhere to the Service and to the host ports. kube-proxy masquerades the packets to its
// NodePorts, including those that portmap forwards.
func (n *kubeNode) expectTraffic() {
	GinkgoHelper()
	service, host, gateway := []string{service4, service6}, []string{nstest.HostV4, nstest.HostV6}, []string{"10.1.0.1", "fd00:1::1"}
	for _, from := range []*nstest.NS{n.Outside, n.Host, n.client.NS, n.web.NS, n.mapped.NS} {
		var seen []string
		if from == n.Outside {
			seen = []string{nstest.OutsideV4, nstest.OutsideV6}
		}
		expectReply(nstest.Dial, from, service, 8080, n.web, nil)
		expectReply(nstest.Dial, from, host, 30081, n.web, nil)
		expectReply(nstest.Dial, from, host, 8080, n.mapped, seen)
		expectReply(nstest.DialUDP, from, host, 8080, n.mapped, seen)
		expectReply(nstest.Dial, from, host, 30080, n.mapped, gateway)
	}
}

// The virtual machine of test/vm runs these specs, because a kernel without ip_vs cannot.
var _ = Describe("beside kube-proxy in its mode ipvs", Label("ipvs"), func() {
	var n *kubeNode
	BeforeEach(func() {
		if os.Getenv("KUBERNETES") == "" {
			err := errors.New("kube-proxy is not built, or this is not the virtual machine of test/vm: run scripts/programs.sh kubernetes kube-proxy, and test/vm/run.sh")
			if os.Getenv("CNI_TEST_REQUIRE") == "all" {
				Fail(err.Error())
			}
			Skip(err.Error())
		}
		n = newKubeNode()
	})
	// expectDel expects that DEL of mapped deletes all its rules, and that the Service gets the NodePort, with kube-proxy's state before.
	expectDel := func(before string) {
		GinkgoHelper()
		Expect(n.Check(n.mapped)).To(Succeed())
		n.expectSound()
		Expect(n.Del(n.mapped)).To(Succeed())
		Expect(n.kubeProxyState()).To(Equal(before))
		Expect(n.state()).NotTo(Or(ContainSubstring("CNI-DN-"), ContainSubstring("mapped")))
		expectReply(nstest.Dial, n.Outside, []string{nstest.HostV4, nstest.HostV6}, 30080, n.web, nil)
	}

	It("host ports work in iptables, the default, and plumb repair restores them after a flush of table nat", func() {
		n.startKubeProxy()
		before := n.kubeProxyState()
		n.addMapped()
		Expect(n.Host.MustLine(GinkgoTB(), "iptables-save -t nat")).To(ContainSubstring("CNI-DN-"))
		n.expectTraffic()
		n.expectSound()

		n.Host.MustLine(GinkgoTB(), "iptables -t nat -F")
		n.Host.MustLine(GinkgoTB(), "ip6tables -t nat -F")
		_, err := nstest.Dial(n.Outside, nstest.HostV4+":8080")
		Expect(err).To(HaveOccurred(), "a host port without rules")
		Expect(n.tool("doctor")).To(And(ContainSubstring("mapped"), ContainSubstring("plumb repair")))
		Expect(n.tool("repair")).To(ContainSubstring("repaired 1, left 0"))
		Eventually(n.kubeProxyState).WithTimeout(10 * time.Minute).WithPolling(time.Second).Should(Equal(before)) // it restores its rules every 30 seconds
		n.expectTraffic()
		expectDel(before)
	})

	It("host ports in nftables, which were added before kube-proxy started, take the packets to its Services until plumb repair", func() {
		n.addMapped()
		n.startKubeProxy()
		before := n.kubeProxyState()
		expectReply(nstest.Dial, n.client.NS, []string{service4, service6}, 8080, n.mapped, nil)
		Expect(n.Check(n.mapped)).To(MatchError(ContainSubstring("host ports take the packets")))
		Expect(n.tool("doctor")).To(And(ContainSubstring("mapped"), ContainSubstring("plumb repair")))
		Expect(n.tool("repair")).To(ContainSubstring("repaired 1, left 0"))
		n.expectTraffic()
		expectDel(before)
	})
})
