package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/test/nstest"
)

// A testNetwork is a node with a network configuration list, and the libcni that runs the
// list on this node.
type testNetwork struct {
	nstest.Site
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
	dir  string // folder of all files of the plugins
}

// newTestNetwork returns a new node with the network "net1". plugins are the elements of
// the list's "plugins"; DIR in them is replaced by a folder for the files of the plugins.
func newTestNetwork(plugins string) *testNetwork {
	GinkgoHelper()
	tb := GinkgoTB()
	network := &testNetwork{Site: nstest.NewSite(tb), dir: filepath.Join(tb.TempDir(), "state")}
	list, err := libcni.ConfListFromBytes([]byte(`{"cniVersion": "1.1.0", "name": "net1", "plugins": [` +
		strings.ReplaceAll(plugins, "DIR", network.dir) + `]}`))
	Expect(err).NotTo(HaveOccurred())
	network.list = list
	network.clearCache()
	return network
}

// clearCache replaces the libcni by one with an empty cache.
func (network *testNetwork) clearCache() {
	bin := nstest.Build(GinkgoTB(), "bridge", "ptp", "macvlan", "ipvlan", "vlan", "loopback", "host-local", "static", "portmap", "bandwidth", "tuning", "tap", "sbr")
	network.cni = libcni.NewCNIConfigWithCacheDir([]string{bin}, GinkgoTB().TempDir(), &execOnNode{RawExec: invoke.RawExec{Stderr: GinkgoWriter}, node: network.Node})
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

// hidePrograms makes libcni start the plugins in a mount namespace in which iptables, nft and
// all other programs of /usr/sbin do not exist.
func (network *testNetwork) hidePrograms() {
	GinkgoHelper()
	dir := GinkgoTB().TempDir()
	script := filepath.Join(dir, "without-programs")
	Expect(os.WriteFile(script, []byte(`#!/bin/sh -e
exec unshare --mount /bin/sh -ec '
	for dir in /usr/sbin /usr/local/sbin; do mount -t tmpfs none $dir; done
	PATH=/nonexistent
	! command -v iptables-save nft
	exec "$PLUGIN"'
`), 0o755)).To(Succeed())
	network.cni = libcni.NewCNIConfigWithCacheDir(network.cni.Path, filepath.Join(dir, "cache"),
		&execWithoutPrograms{execOnNode{RawExec: invoke.RawExec{Stderr: GinkgoWriter}, node: network.Node}, script})
}

// execWithoutPrograms makes libcni start the plugins with the script of hidePrograms.
type execWithoutPrograms struct {
	execOnNode
	script string
}

func (e *execWithoutPrograms) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	return e.execOnNode.ExecPlugin(ctx, e.script, stdin, append(environ, "PLUGIN="+path))
}

// A container has one interface in a testNetwork. Its capability arguments map a host port to
// its port 80 and limit its bandwidth.
type container struct {
	*nstest.NS
	rt     *libcni.RuntimeConf
	result *current.Result // of the last ADD
}

// newContainer returns a new container that is not attached.
func (network *testNetwork) newContainer(id string, port int) *container {
	GinkgoHelper()
	n := nstest.New(GinkgoTB()).Named(id)
	return &container{NS: n, rt: &libcni.RuntimeConf{
		ContainerID: id, NetNS: n.Path(), IfName: "eth0",
		CapabilityArgs: map[string]any{
			"portMappings": []map[string]any{{"hostPort": port, "containerPort": 80, "protocol": "tcp"}},
			"bandwidth":    map[string]any{"ingressRate": 80_000_000, "ingressBurst": 800_000, "egressRate": 40_000_000, "egressBurst": 400_000},
		},
	}}
}

func (network *testNetwork) add(c *container) error {
	result, err := network.cni.AddNetworkList(context.Background(), network.list, c.rt)
	if err != nil {
		return fmt.Errorf("add %s: %w", c.rt.ContainerID, err)
	}
	c.result, err = current.NewResultFromResult(result)
	return err
}

// addContainer returns a new container after an ADD, which must succeed.
func (network *testNetwork) addContainer(id string, port int) *container {
	GinkgoHelper()
	c := network.newContainer(id, port)
	Expect(network.add(c)).To(Succeed())
	return c
}

func (network *testNetwork) check(c *container) error {
	return network.cni.CheckNetworkList(context.Background(), network.list, c.rt)
}

func (network *testNetwork) del(c *container) error {
	return network.cni.DelNetworkList(context.Background(), network.list, c.rt)
}

func (network *testNetwork) status() error {
	return network.cni.GetStatusNetworkList(context.Background(), network.list)
}

// state returns the state of the node and of the plugins' files.
func (network *testNetwork) state() string {
	return nstest.Snapshot(GinkgoTB(), network.Node) + "\n" + strings.Join(network.files(), "\n")
}

// files returns the plugins' files, one line per file.
func (network *testNetwork) files() []string {
	var lines []string
	for line := range strings.SplitSeq(nstest.SnapshotDir(GinkgoTB(), network.dir), "\n") {
		if line != "" {
			lines = append(lines, "file "+line)
		}
	}
	return lines
}
