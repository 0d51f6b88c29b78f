package faults

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/cnitest"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// A testNetwork is the network "net1" on its own host.
type testNetwork struct{ *cnitest.Network }

func newTestNetwork(plugins string) *testNetwork {
	GinkgoHelper()
	return &testNetwork{cnitest.NewNetwork("net1", plugins, "bridge", "ptp", "macvlan", "ipvlan", "vlan", "loopback", "host-local", "static",
		"portmap", "bandwidth", "tuning", "tap", "sbr", "route-override", "host-access", "tc-redirect-tap")}
}

// capabilityArgs returns capability arguments that map a host port to port 80 of the container, and
// limit the container's bandwidth.
func capabilityArgs(port int) map[string]any {
	return map[string]any{
		"portMappings": []map[string]any{{"hostPort": port, "containerPort": 80, "protocol": "tcp"}},
		"bandwidth":    map[string]any{"ingressRate": 80_000_000, "ingressBurst": 800_000, "egressRate": 40_000_000, "egressBurst": 400_000},
	}
}

// newContainer returns a new container that is not attached, with capabilityArgs.
func newContainer(id string, port int) *cnitest.Container {
	GinkgoHelper()
	c := cnitest.NewContainer(id)
	c.RT.CapabilityArgs = capabilityArgs(port)
	return c
}

// addContainer calls ADD for a new container, which must succeed.
func (network *testNetwork) addContainer(id string, port int) *cnitest.Container {
	GinkgoHelper()
	c := newContainer(id, port)
	Expect(network.Add(c)).To(Succeed())
	return c
}

// state returns the state of the host and of the plugins' files.
func (network *testNetwork) state() string {
	return nstest.Snapshot(GinkgoTB(), network.Host) + "\n" + strings.Join(network.files(), "\n")
}

// files returns the plugins' files, one line per file.
func (network *testNetwork) files() []string {
	var lines []string
	for line := range strings.SplitSeq(nstest.SnapshotDir(GinkgoTB(), network.Dir), "\n") {
		if line != "" {
			lines = append(lines, "file "+line)
		}
	}
	return lines
}
