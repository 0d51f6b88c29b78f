// Package e2e drives the built executables as a runtime does: through libcni, the
// library of containerd and CRI-O, on a node that is a network namespace.
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

// onNode is libcni's own way of starting a plugin, on a thread in the node.
type onNode struct {
	invoke.RawExec
	version.PluginDecoder
	node *nstest.NS
}

func (e *onNode) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) (out []byte, err error) {
	err = e.node.Do(func() (err error) {
		out, err = e.RawExec.ExecPlugin(ctx, path, stdin, environ)
		return err
	})
	return out, err
}

// A cluster is one node, a host outside, a network and a runtime.
type cluster struct {
	nstest.Site
	cni    *libcni.CNIConfig
	list   *libcni.NetworkConfigList
	leases string // host-local's dataDir
}

// network is the list that most specs use: dual stack, gateway, masquerade.
const network = `{
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

// newCluster makes a node whose network has that version and masquerade backend.
func newCluster(cniVersion, backend string) *cluster {
	GinkgoHelper()
	tb := GinkgoTB()
	dir := tb.TempDir()
	c := &cluster{Site: nstest.NewSite(tb), leases: filepath.Join(dir, "leases")}
	bin := nstest.Build(tb, "bridge", "host-local", "loopback")
	c.cni = libcni.NewCNIConfigWithCacheDir([]string{bin}, filepath.Join(dir, "cache"),
		&onNode{RawExec: invoke.RawExec{Stderr: GinkgoWriter}, node: c.Node})
	c.list = list(fmt.Sprintf(network, cniVersion, backend, c.leases))
	return c
}

func list(text string) *libcni.NetworkConfigList {
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

func newPod(id string) *pod {
	GinkgoHelper()
	n := nstest.New(GinkgoTB()).Named(id)
	return &pod{NS: n, rt: &libcni.RuntimeConf{ContainerID: id, NetNS: n.Path(), IfName: "eth0"}}
}

// add attaches the pod and reads its addresses from the result.
func (c *cluster) add(p *pod) error {
	result, err := c.cni.AddNetworkList(context.Background(), c.list, p.rt)
	if err != nil {
		return fmt.Errorf("add %s: %w", p.rt.ContainerID, err)
	}
	ips, err := p.read(result)
	if err != nil {
		return err
	}
	if !p.v4.IsValid() || !p.v6.IsValid() {
		return fmt.Errorf("add %s: not both families: %v", p.rt.ContainerID, ips)
	}
	return nil
}

// read takes the pod's addresses from the result.
func (p *pod) read(result cnitypes.Result) ([]*current.IPConfig, error) {
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

func (c *cluster) attached(id string) *pod {
	GinkgoHelper()
	p := newPod(id)
	Expect(c.add(p)).To(Succeed())
	return p
}

func (c *cluster) del(rt *libcni.RuntimeConf) error {
	return c.cni.DelNetworkList(context.Background(), c.list, rt)
}

func (c *cluster) check(p *pod) error {
	return c.cni.CheckNetworkList(context.Background(), c.list, p.rt)
}

func (c *cluster) gc(valid ...*pod) error {
	args := &libcni.GCArgs{}
	for _, p := range valid {
		args.ValidAttachments = append(args.ValidAttachments, cnitypes.GCAttachment{ContainerID: p.rt.ContainerID, IfName: p.rt.IfName})
	}
	return c.cni.GCNetworkList(context.Background(), c.list, args)
}

// state is all that the plugins may have left: the node, and who has which address.
func (c *cluster) state() string {
	return nstest.Snapshot(GinkgoTB(), c.Node) + "\n" + strings.Join(c.reserved(), "\n")
}

// reserved lists "address owner" of each reservation, as the reference's host-local
// would read it.
func (c *cluster) reserved() []string {
	files, err := filepath.Glob(filepath.Join(c.leases, c.list.Name, "*"))
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

// code is the error code that the plugin gave libcni.
func code(err error) uint {
	var e *cnitypes.Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.Code
}
