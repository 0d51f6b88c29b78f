package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestHostDevice(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/host-device")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// A testbed is a host with its own directories for state files and for sysfs. newTestbed also creates an outside host, and
// a veth pair between the two.
type testbed struct {
	*nstest.Bed
	machine
	devices int // number of devices that addDevice has created
}

const (
	deviceMAC = "02:00:00:00:00:0d"
	byDevice  = `"device":"hd0"`
	noIPAM    = ""
)

func newTestbed() *testbed {
	tb := GinkgoTB()
	b := newTestbedOn(nstest.NewHost(tb), sysfs(tb.TempDir()))
	b.Outside = nstest.NewHost(tb).Named("outside")
	b.addDevice("hd0", deviceMAC)
	b.Outside.Batch(tb, "addr add 198.18.0.2/24 dev hd0", "addr add 2001:db8:18::2/64 dev hd0 nodad")
	return b
}

// newTestbedOn returns a testbed on that host, without a device and without an outside host.
func newTestbedOn(host *nstest.NS, sys sysfs) *testbed {
	h := machine{sys: sys, states: filepath.Join(GinkgoTB().TempDir(), "states")}
	b := &testbed{Bed: nstest.NewBedOn(GinkgoTB(), h.plugin(), host, "host-local", "static"), machine: h}
	b.Watch, b.Dirs = []*nstest.NS{host}, []string{h.states}
	return b
}

// addDevice creates a veth pair with one end on the host and one on the outside host. Both ends get the same name.
func (b *testbed) addDevice(name, mac string) {
	GinkgoHelper()
	b.devices++
	addDevice(GinkgoTB(), b.Host, b.Outside, fmt.Sprintf("%s address %s index %d", name, mac, 100+b.devices))
}

// addDevice creates a veth interface with the properties, which begin with its name. Its index must differ
// from the other end's index. Otherwise the kernel treats the veth as an interface without a lower
// interface, and reports its carrier up to one second late (linkwatch_urgent_event).
func addDevice(tb nstest.TB, host, outside *nstest.NS, properties string) {
	tb.Helper()
	name, _, _ := strings.Cut(properties, " ")
	host.Batch(tb, fmt.Sprintf("link add %s mtu 1400 type veth peer name %s netns %s", properties, name, outside.Path()), "link set "+name+" up")
	outside.Batch(tb, "link set "+name+" up")
}

func conf(version, keys, ipam string) string { return nstest.Conf("host-device", version, keys, ipam) }

func (b *testbed) stateFiles() []string {
	GinkgoHelper()
	files, err := os.ReadDir(b.states)
	Expect(types.IgnoreNotExist(err)).To(Succeed())
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}
