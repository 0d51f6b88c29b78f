package main

import (
	"fmt"
	"path/filepath"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestIPVlan(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/ipvlan")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// A testbed is a Bed with a directory for records.
type testbed struct {
	*nstest.Bed
	records string // dataDir
}

func newTestbed() *testbed {
	b := &testbed{Bed: nstest.NewBed(GinkgoTB(), plugin()), records: filepath.Join(GinkgoTB().TempDir(), "new")}
	b.Dirs = []string{b.records}
	return b
}

// newIPVlanTestbed returns a testbed, and ends the spec if the kernel does not support ipvlans.
func newIPVlanTestbed() *testbed {
	GinkgoHelper()
	b := newTestbed()
	_, err := b.Outside.Exec("ip", "link", "add", "link", nstest.Uplink, "name", "try0", "type", "ipvlan")
	nstest.RequireFeature(GinkgoTB(), "ipvlan", err)
	b.Outside.IP("link del try0")
	return b
}

const (
	onUplink = `"master":"uplink0"`
	noIPAM   = ""
)

func (b *testbed) conf(version, keys, ipam string) string {
	dir := fmt.Sprintf(`"dataDir":%q`, b.records)
	if keys != "" {
		dir += "," + keys
	}
	return nstest.Conf("ipvlan", version, dir, ipam)
}

func (b *testbed) recordFiles() []string {
	GinkgoHelper()
	files, err := filepath.Glob(filepath.Join(b.records, "*"))
	Expect(err).NotTo(HaveOccurred())
	return files
}
