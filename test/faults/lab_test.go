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

// A lab is a node, a network of a list of plugins, and the library that runtimes
// drive them with.
type lab struct {
	nstest.Site
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
	dir  string // of all files of the plugins
}

// newLab makes a node with a network of these plugins, as the "plugins" of a list;
// DIR in it is the folder for their files.
func newLab(plugins string) *lab {
	GinkgoHelper()
	tb := GinkgoTB()
	l := &lab{Site: nstest.NewSite(tb), dir: filepath.Join(tb.TempDir(), "state")}
	list, err := libcni.ConfListFromBytes([]byte(`{"cniVersion": "1.1.0", "name": "lab", "plugins": [` +
		strings.ReplaceAll(plugins, "DIR", l.dir) + `]}`))
	Expect(err).NotTo(HaveOccurred())
	l.list = list
	l.forget()
	return l
}

// forget gives the node a runtime that has no results of the past.
func (l *lab) forget() {
	bin := nstest.Build(GinkgoTB(), "bridge", "ptp", "macvlan", "loopback", "host-local", "static", "portmap", "bandwidth", "tuning")
	l.cni = libcni.NewCNIConfigWithCacheDir([]string{bin}, GinkgoTB().TempDir(), &inLab{RawExec: invoke.RawExec{Stderr: GinkgoWriter}, node: l.Node})
}

// inLab is libcni's way of starting a plugin, on a thread in the node.
type inLab struct {
	invoke.RawExec
	version.PluginDecoder
	node *nstest.NS
}

func (e *inLab) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) (out []byte, err error) {
	err = e.node.Do(func() (err error) {
		out, err = e.RawExec.ExecPlugin(ctx, path, stdin, environ)
		return err
	})
	return out, err
}

// strip takes iptables, nft and every other program of /usr/sbin away from the plugins,
// in PATH or out of it.
func (l *lab) strip() {
	GinkgoHelper()
	dir := GinkgoTB().TempDir()
	script := filepath.Join(dir, "stripped")
	Expect(os.WriteFile(script, []byte(`#!/bin/sh -e
exec unshare --mount /bin/sh -ec '
	for dir in /usr/sbin /usr/local/sbin; do mount -t tmpfs none $dir; done
	PATH=/nonexistent
	! command -v iptables-save nft
	exec "$PLUGIN"'
`), 0o755)).To(Succeed())
	l.cni = libcni.NewCNIConfigWithCacheDir(l.cni.Path, filepath.Join(dir, "cache"),
		&stripped{inLab{RawExec: invoke.RawExec{Stderr: GinkgoWriter}, node: l.Node}, script})
}

type stripped struct {
	inLab
	script string
}

func (s *stripped) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	return s.inLab.ExecPlugin(ctx, s.script, stdin, append(environ, "PLUGIN="+path))
}

// A guest is a container of the lab: one interface, and a host port to its port 80
// and limits where the list has plugins for them.
type guest struct {
	*nstest.NS
	rt     *libcni.RuntimeConf
	result *current.Result
}

// guest is a container that is not attached yet.
func (l *lab) guest(id string, port int) *guest {
	GinkgoHelper()
	n := nstest.New(GinkgoTB()).Named(id)
	return &guest{NS: n, rt: &libcni.RuntimeConf{
		ContainerID: id, NetNS: n.Path(), IfName: "eth0",
		CapabilityArgs: map[string]any{
			"portMappings": []map[string]any{{"hostPort": port, "containerPort": 80, "protocol": "tcp"}},
			"bandwidth":    map[string]any{"ingressRate": 80_000_000, "ingressBurst": 800_000, "egressRate": 40_000_000, "egressBurst": 400_000},
		},
	}}
}

func (l *lab) add(g *guest) error {
	result, err := l.cni.AddNetworkList(context.Background(), l.list, g.rt)
	if err != nil {
		return fmt.Errorf("add %s: %w", g.rt.ContainerID, err)
	}
	g.result, err = current.NewResultFromResult(result)
	return err
}

func (l *lab) attached(id string, port int) *guest {
	GinkgoHelper()
	g := l.guest(id, port)
	Expect(l.add(g)).To(Succeed())
	return g
}

func (l *lab) check(g *guest) error {
	return l.cni.CheckNetworkList(context.Background(), l.list, g.rt)
}

func (l *lab) del(g *guest) error {
	return l.cni.DelNetworkList(context.Background(), l.list, g.rt)
}

func (l *lab) status() error {
	return l.cni.GetStatusNetworkList(context.Background(), l.list)
}

// state is the node and the files of the plugins, but for those that only say where
// to look first.
func (l *lab) state() string {
	return nstest.Snapshot(GinkgoTB(), l.Node) + "\n" + strings.Join(l.files(), "\n")
}

// files are the files of the plugins as lines.
func (l *lab) files() []string {
	var lines []string
	for line := range strings.SplitSeq(nstest.SnapshotDir(GinkgoTB(), l.dir), "\n") {
		if line != "" {
			lines = append(lines, "file "+line)
		}
	}
	return lines
}
