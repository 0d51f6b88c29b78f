// Package e2e calls the built executables as a runtime does: with libcni, the library of containerd
// and CRI-O. The node is a network namespace.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

func TestE2E(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "test/e2e")
}

// execOnNode makes libcni start the plugins on a thread in the node's namespace.
type execOnNode struct {
	invoke.RawExec
	version.PluginDecoder
	node *nstest.NS
}

func (e *execOnNode) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) (out []byte, err error) {
	err = e.node.Do(func() (err error) {
		out, err = e.RawExec.ExecPlugin(ctx, path, stdin, environ)
		return err
	})
	return out, err
}

// A testNetwork is a node, a host outside, a network configuration list, and the libcni that runs
// the list.
type testNetwork struct {
	nstest.Site
	cni    *libcni.CNIConfig
	list   *libcni.NetworkConfigList
	leases string // host-local's dataDir
}

// bridgeList is a dual-stack network with a gateway and masquerade.
const bridgeList = `{
	"cniVersion": %q,
	"name": "e2e",
	"plugins": [{
		"type": "bridge",
		"bridge": "cni0",
		"isGateway": true,
		"ipMasq": true,
		"ipMasqBackend": %q,
		"ipam": {
			"type": "host-local",
			"dataDir": %q,
			"ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]],
			"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
		}
	}]
}`

// newBridgeNetwork returns a new node with bridgeList in this version, with this masquerade
// backend.
func newBridgeNetwork(cniVersion, backend string) *testNetwork {
	GinkgoHelper()
	tb := GinkgoTB()
	dir := tb.TempDir()
	network := &testNetwork{Site: nstest.NewSite(tb), leases: filepath.Join(dir, "leases")}
	bin := nstest.Build(tb, "bridge", "host-local", "loopback")
	network.cni = libcni.NewCNIConfigWithCacheDir([]string{bin}, filepath.Join(dir, "cache"),
		&execOnNode{RawExec: invoke.RawExec{Stderr: GinkgoWriter}, node: network.Node})
	network.list = parseList(fmt.Sprintf(bridgeList, cniVersion, backend, network.leases))
	return network
}

// parseList parses a network configuration list.
func parseList(text string) *libcni.NetworkConfigList {
	GinkgoHelper()
	l, err := libcni.ConfListFromBytes([]byte(text))
	Expect(err).NotTo(HaveOccurred())
	return l
}

// A pod is a container with one interface.
type pod struct {
	*nstest.NS
	rt *libcni.RuntimeConf
	v4 netip.Addr
	v6 netip.Addr
}

// newPod returns a new pod that is not attached.
func newPod(id string) *pod {
	GinkgoHelper()
	n := nstest.New(GinkgoTB()).Named(id)
	return &pod{NS: n, rt: &libcni.RuntimeConf{ContainerID: id, NetNS: n.Path(), IfName: "eth0"}}
}

// add calls ADD and reads the pod's addresses from the result.
func (network *testNetwork) add(p *pod) error {
	result, err := network.cni.AddNetworkList(context.Background(), network.list, p.rt)
	if err != nil {
		return fmt.Errorf("add %s: %w", p.rt.ContainerID, err)
	}
	ips, err := p.readAddresses(result)
	if err != nil {
		return err
	}
	if !p.v4.IsValid() || !p.v6.IsValid() {
		return fmt.Errorf("add %s: want an IPv4 and an IPv6 address, got %v", p.rt.ContainerID, ips)
	}
	return nil
}

// readAddresses reads the pod's addresses from the result.
func (p *pod) readAddresses(result cnitypes.Result) ([]*current.IPConfig, error) {
	r, err := current.NewResultFromResult(result)
	if err != nil {
		return nil, err
	}
	for _, ip := range r.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		if addr = addr.Unmap(); addr.Is4() {
			p.v4 = addr
		} else {
			p.v6 = addr
		}
	}
	return r.IPs, nil
}

// addPod returns a new pod after an ADD, which must succeed.
func (network *testNetwork) addPod(id string) *pod {
	GinkgoHelper()
	p := newPod(id)
	Expect(network.add(p)).To(Succeed())
	return p
}

func (network *testNetwork) del(rt *libcni.RuntimeConf) error {
	return network.cni.DelNetworkList(context.Background(), network.list, rt)
}

func (network *testNetwork) check(p *pod) error {
	return network.cni.CheckNetworkList(context.Background(), network.list, p.rt)
}

func (network *testNetwork) gc(valid ...*pod) error {
	args := &libcni.GCArgs{}
	for _, p := range valid {
		args.ValidAttachments = append(args.ValidAttachments, cnitypes.GCAttachment{ContainerID: p.rt.ContainerID, IfName: p.rt.IfName})
	}
	return network.cni.GCNetworkList(context.Background(), network.list, args)
}

// state returns the state of the node, and the reservations.
func (network *testNetwork) state() string {
	return nstest.Snapshot(GinkgoTB(), network.Node) + "\n" + strings.Join(network.reservations(), "\n")
}

// reservations returns "lease ADDRESS OWNER" for each reservation.
func (network *testNetwork) reservations() []string {
	files, err := filepath.Glob(filepath.Join(network.leases, network.list.Name, "*"))
	Expect(err).NotTo(HaveOccurred())
	var all []string
	for _, f := range files {
		if addr, err := netip.ParseAddr(filepath.Base(f)); err == nil {
			owner, err := os.ReadFile(f)
			Expect(err).NotTo(HaveOccurred())
			all = append(all, fmt.Sprintf("lease %s %q", addr, owner))
		}
	}
	slices.Sort(all)
	return all
}

// errorCode returns the code of a plugin's error, or 0.
func errorCode(err error) uint {
	var e *cnitypes.Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.Code
}
