package main

import (
	"fmt"
	"net"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestHostAccess(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/host-access")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// A testbed is a host whose containers have macvlans on its uplink.
type testbed struct{ *nstest.Bed }

func newTestbed() *testbed {
	GinkgoHelper()
	return &testbed{nstest.NewBed(GinkgoTB(), plugin())}
}

// addMacvlan creates a macvlan in the container with these addresses.
func addMacvlan(host, container *nstest.NS, ifName string, addrs ...string) {
	GinkgoHelper()
	host.Must(GinkgoTB(), "ip", "link", "add", "link", nstest.Uplink, "name", "mv0", "type", "macvlan", "mode", "bridge")
	host.Must(GinkgoTB(), "ip", "link", "set", "mv0", "netns", container.Path(), "name", ifName)
	lines := []string{"link set " + ifName + " up"}
	for _, a := range addrs {
		lines = append(lines, "addr add "+a+" dev "+ifName)
	}
	container.Batch(GinkgoTB(), lines...)
	nstest.End{In: container, Name: ifName, Addrs: addrs}.AwaitAddresses(GinkgoTB())
}

// newContainer returns a container with a macvlan eth0, which has the addresses nstest.ContainerV4 and nstest.ContainerV6.
func (b *testbed) newContainer() *nstest.NS {
	GinkgoHelper()
	container := b.NewContainer()
	addMacvlan(b.Host, container, "eth0", nstest.ContainerV4+"/24", nstest.ContainerV6+"/64")
	return container
}

// conf returns a configuration with the result of macvlan for the interface eth0. keys is JSON text or empty.
func conf(container *nstest.NS, keys string) string {
	return confOf(container, keys, "eth0", nstest.ContainerV4, nstest.ContainerV6)
}

func confOf(container *nstest.NS, keys, ifName string, addrs ...string) string {
	var ips []string
	for _, a := range addrs {
		bits := 24
		if strings.Contains(a, ":") {
			bits = 64
		}
		ips = append(ips, fmt.Sprintf(`{"interface":0,"address":"%s/%d"}`, a, bits))
	}
	return nstest.WithPrevResult(nstest.Conf("host-access", "1.1.0", keys, ""),
		fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":%q,"sandbox":%q}],"ips":[%s]}`, ifName, container.Path(), strings.Join(ips, ",")))
}

// newCall returns a call for a new container.
func (b *testbed) newCall(keys string) nstest.Call {
	GinkgoHelper()
	container := b.newContainer()
	return b.Call("one", container, conf(container, keys))
}

// dial connects in both directions between these addresses of the host and the container.
func (b *testbed) dial(container *nstest.NS, pairs ...[2]string) {
	GinkgoHelper()
	for _, p := range pairs {
		nstest.MustDial(GinkgoTB(), b.Host, nstest.ServeTCP(GinkgoTB(), container, net.JoinHostPort(p[1], "0")).String(), p[0])
		nstest.MustDial(GinkgoTB(), container, nstest.ServeTCP(GinkgoTB(), b.Host, net.JoinHostPort(p[0], "0")).String(), p[1])
	}
}

func (b *testbed) dialBoth(container *nstest.NS) {
	GinkgoHelper()
	b.dial(container, [2]string{nstest.HostV4, nstest.ContainerV4}, [2]string{nstest.HostV6, nstest.ContainerV6})
}

// hostEnd returns the name of the only host end.
func (b *testbed) hostEnd() string {
	GinkgoHelper()
	for line := range strings.Lines(b.Host.IP("-br link show type veth")) {
		if strings.HasPrefix(line, "veth") {
			name, _, _ := strings.Cut(line, "@")
			return name
		}
	}
	Fail("the host has no host end")
	return ""
}

// elements returns the elements of the sets in nftables that belong to an attachment.
func (b *testbed) elements() string {
	GinkgoHelper()
	return nstest.ElementLines(b.Host.Must(GinkgoTB(), "nft", "list", "ruleset"))
}

// expectNothing checks that the host contains no host end and no element.
func (b *testbed) expectNothing() {
	GinkgoHelper()
	Expect(b.Host.IP("-br link show type veth")).NotTo(MatchRegexp(`(?m)^veth`))
	Expect(b.elements()).NotTo(ContainSubstring("net1/"))
}
