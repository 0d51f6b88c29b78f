// Package e2e calls the built executables with libcni, the library that containerd and CRI-O use.
// The host is a network namespace.
package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestE2E(t *testing.T) {
	nstest.RequireRoot(t, "because runtimes run the executables as root of the host")
	RegisterFailHandler(Fail)
	RunSpecs(t, "test/e2e")
}

// A container is a container with one interface, see cnitest.
type container = cnitest.Container

// A testNetwork is a network whose reservations are in DIR/leases.
type testNetwork struct{ *cnitest.Network }

// hostLocal is an IPAM configuration with the subnets that expectTraffic expects.
const hostLocal = `"ipam": {"type": "host-local", "dataDir": "DIR/leases",
	"ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]],
	"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`

// newNetwork returns a new host with a network of these plugins.
func newNetwork(cniVersion, plugins string) *testNetwork {
	GinkgoHelper()
	network := &testNetwork{cnitest.NewNetwork("e2e", plugins, "bridge", "ptp", "macvlan", "ipvlan", "vlan", "host-device", "loopback", "host-local", "static",
		"portmap", "bandwidth", "tuning", "firewall", "sbr", "route-override", "host-access", "tc-redirect-tap")}
	network.SetList(cniVersion, "e2e", plugins)
	return network
}

// newBridgeNetwork returns a new host with a dual-stack network with a gateway and masquerade.
func newBridgeNetwork(cniVersion, backend string) *testNetwork {
	GinkgoHelper()
	return newNetwork(cniVersion, fmt.Sprintf(`{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "ipMasqBackend": %q, %s}`, backend, hostLocal))
}

// add calls ADD, which must return an IPv4 and an IPv6 address.
func (network *testNetwork) add(p *container) error {
	err := network.Add(p)
	if addrs := p.Addrs(); err == nil && len(addrs) < 2 {
		err = fmt.Errorf("add %s: want an IPv4 and an IPv6 address, got %v", p.RT.ContainerID, addrs)
	}
	return err
}

// addContainer calls ADD for a new container, which must succeed.
func (network *testNetwork) addContainer(id string) *container {
	GinkgoHelper()
	p := cnitest.NewContainer(id)
	Expect(network.add(p)).To(Succeed())
	return p
}

// state returns the state of the host, the reservations and tuning's files.
func (network *testNetwork) state() string {
	return nstest.Snapshot(GinkgoTB(), network.Host) + "\n" + strings.Join(network.reservations(), "\n") + "\n" +
		nstest.SnapshotDir(GinkgoTB(), filepath.Join(network.Dir, "tuning"))
}

// reservations returns a line "lease ADDRESS OWNER" for each reservation.
func (network *testNetwork) reservations() []string {
	files, err := filepath.Glob(filepath.Join(network.Dir, "leases", network.List.Name, "*"))
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

func errorCode(err error) uint {
	var e *cnitypes.Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.Code
}
