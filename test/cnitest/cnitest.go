// Package cnitest calls the built executables with libcni, as containerd and CRI-O do, on a host that is a network
// namespace. It is for Ginkgo suites.
package cnitest

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// onHost starts libcni's plugins on a thread in the namespace of a host.
type onHost struct {
	invoke.RawExec
	version.PluginDecoder
	host   *nstest.NS
	script string // a script to start instead of each plugin, with the plugin's path in PLUGIN; "" for none
}

func (e *onHost) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) (out []byte, err error) {
	if e.script != "" {
		path, environ = e.script, append(environ, "PLUGIN="+path)
	}
	err = e.host.Do(func() (err error) {
		out, err = e.RawExec.ExecPlugin(ctx, path, stdin, environ)
		return err
	})
	return out, err
}

// New returns a libcni with this cache that calls the plugins in the directories of path on the host.
func New(host *nstest.NS, cache string, path ...string) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(path, cache, newExec(host))
}

func newExec(host *nstest.NS) *onHost {
	return &onHost{RawExec: invoke.RawExec{Stderr: ginkgo.GinkgoWriter}, host: host}
}

// ParseList parses a network configuration list.
func ParseList(text string) *libcni.NetworkConfigList {
	ginkgo.GinkgoHelper()
	list, err := libcni.ConfListFromBytes([]byte(text))
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return list
}

// A Network is a network configuration list on the host of a Site, and the libcni that calls its plugins.
type Network struct {
	nstest.Site
	CNI  *libcni.CNIConfig
	List *libcni.NetworkConfigList
	Dir  string // the directory of all files of the plugins
	exec *onHost
}

// NewNetwork returns a network of version 1.1.0 on a new host. plugins is the content of the list's key "plugins", in
// which DIR stands for Dir. executables names all plugins that the calls start.
func NewNetwork(name, plugins string, executables ...string) *Network {
	ginkgo.GinkgoHelper()
	network := &Network{Site: nstest.NewSite(ginkgo.GinkgoTB()), Dir: filepath.Join(ginkgo.GinkgoTB().TempDir(), "state")}
	network.exec = newExec(network.Host)
	network.Use(nstest.Build(ginkgo.GinkgoTB(), executables...), ginkgo.GinkgoTB().TempDir())
	network.SetList("1.1.0", name, plugins)
	gomega.Expect(os.Mkdir(network.Dir, 0o755)).To(gomega.Succeed())
	return network
}

// SetList replaces the list.
func (network *Network) SetList(cniVersion, name, plugins string) {
	ginkgo.GinkgoHelper()
	network.List = ParseList(fmt.Sprintf(`{"cniVersion": %q, "name": %q, "plugins": [%s]}`,
		cniVersion, name, strings.ReplaceAll(plugins, "DIR", network.Dir)))
}

// Use sets CNI to a libcni that calls the plugins in the directory bin on the host of the Site, with this cache.
func (network *Network) Use(bin, cache string) {
	network.exec.host = network.Host
	network.CNI = libcni.NewCNIConfigWithCacheDir([]string{bin}, cache, network.exec)
}

// ClearCache replaces CNI with a libcni whose cache is empty. Otherwise libcni passes prevResult to plugins, and calls
// DEL during GC for the attachments in its cache.
func (network *Network) ClearCache() {
	network.CNI = libcni.NewCNIConfigWithCacheDir(network.CNI.Path, ginkgo.GinkgoTB().TempDir(), network.exec)
}

// WithoutCache calls f with an empty cache.
func (network *Network) WithoutCache(f func() error) error {
	withCache := network.CNI
	defer func() { network.CNI = withCache }()
	network.ClearCache()
	return f()
}

// RunScript configures libcni to start a shell script instead of the plugins. The variable PLUGIN contains the path of the
// plugin.
func (network *Network) RunScript(text string) {
	ginkgo.GinkgoHelper()
	network.exec.script = filepath.Join(ginkgo.GinkgoTB().TempDir(), "script")
	gomega.Expect(os.WriteFile(network.exec.script, []byte("#!/bin/sh -e\n"+text), 0o755)).To(gomega.Succeed())
}

// HidePrograms configures libcni to start the plugins in a mount namespace without iptables, nft and the other programs of
// /usr/sbin.
func (network *Network) HidePrograms() {
	ginkgo.GinkgoHelper()
	network.RunScript(`exec unshare --mount /bin/sh -ec '
	for dir in /usr/sbin /usr/local/sbin; do mount -t tmpfs none $dir; done
	PATH=/nonexistent
	! command -v iptables-save nft
	exec "$PLUGIN"'
`)
}

// A Container is a container with one interface.
type Container struct {
	*nstest.NS
	RT     *libcni.RuntimeConf
	IPs    []netip.Addr // the addresses of the last ADD
	V4, V6 netip.Addr   // the last address of each IP version in IPs, or the zero Addr
}

// NewContainer returns a container that is not attached.
func NewContainer(id string) *Container {
	ginkgo.GinkgoHelper()
	n := nstest.New(ginkgo.GinkgoTB()).Named(id)
	return &Container{NS: n, RT: &libcni.RuntimeConf{ContainerID: id, NetNS: n.Path(), IfName: "eth0"}}
}

// IDOnly returns the container without a namespace, for a runtime that knows only the ID and the interface name.
func (c *Container) IDOnly() *Container {
	return &Container{NS: c.NS, RT: &libcni.RuntimeConf{ContainerID: c.RT.ContainerID, IfName: c.RT.IfName}}
}

// Addrs returns the container's addresses.
func (c *Container) Addrs() (all []string) {
	for _, addr := range c.IPs {
		all = append(all, addr.String())
	}
	return all
}

// Add calls ADD and reads the container's addresses from the result.
func (network *Network) Add(c *Container) error {
	result, err := network.CNI.AddNetworkList(context.Background(), network.List, c.RT)
	if err != nil {
		return fmt.Errorf("add %s: %w", c.RT.ContainerID, err)
	}
	r, err := current.NewResultFromResult(result)
	if err != nil {
		return err
	}
	c.IPs = nil
	for _, ip := range r.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		addr = addr.Unmap()
		c.IPs = append(c.IPs, addr)
		if addr.Is4() {
			c.V4 = addr
		} else {
			c.V6 = addr
		}
	}
	return nil
}

// Check calls CHECK.
func (network *Network) Check(c *Container) error {
	return network.CNI.CheckNetworkList(context.Background(), network.List, c.RT)
}

// Del calls DEL.
func (network *Network) Del(c *Container) error {
	return network.CNI.DelNetworkList(context.Background(), network.List, c.RT)
}

// Status calls STATUS.
func (network *Network) Status() error {
	return network.CNI.GetStatusNetworkList(context.Background(), network.List)
}

// GC calls GC, for which only the attachments of these containers are valid.
func (network *Network) GC(valid ...*Container) error {
	args := &libcni.GCArgs{}
	for _, c := range valid {
		args.ValidAttachments = append(args.ValidAttachments, cnitypes.GCAttachment{ContainerID: c.RT.ContainerID, IfName: c.RT.IfName})
	}
	return network.CNI.GCNetworkList(context.Background(), network.List, args)
}
