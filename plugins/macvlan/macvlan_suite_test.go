package main

import (
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestMacvlan(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/macvlan")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

const (
	onUplink = `"master":"uplink0"`
	noIPAM   = ""
)

func conf(version, keys, ipam string) string { return nstest.Conf("macvlan", version, keys, ipam) }

func newBed() *nstest.Bed { return nstest.NewBed(GinkgoTB(), plugin()) }

// macOf returns the MAC of a link as ip prints it.
func macOf(n *nstest.NS, link string) string {
	GinkgoHelper()
	_, rest, _ := strings.Cut(n.IP("-o link show "+link), "link/ether ")
	mac, _, _ := strings.Cut(rest, " ")
	return mac
}
