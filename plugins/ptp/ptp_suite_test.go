package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/test/nstest"
)

func TestPTP(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/ptp")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// A bed is a node with room for pods, a host outside, and a place for leases.
type bed struct {
	node    *nstest.NS
	outside *nstest.NS
	path    string // CNI_PATH with the real IPAM plugins
	leases  string // dataDir
}

func newBed() *bed {
	site := nstest.NewSite(GinkgoTB())
	return &bed{
		node: site.Node, outside: site.Outside,
		path: nstest.Build(GinkgoTB(), "host-local", "static"), leases: GinkgoTB().TempDir(),
	}
}

// Ranges of the IPAM configuration in tests, and the routes that go with them.
const (
	v4range  = `[{"subnet":"10.1.2.0/24"}]`
	v6range  = `[{"subnet":"fd00:1::/64"}]`
	defaults = `,"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]`
)

// conf writes a configuration with host-local: keys is JSON text that ends in a
// comma, or nothing.
func (b *bed) conf(version, keys string, ranges ...string) string {
	routes := ""
	if len(ranges) > 1 {
		routes = defaults
	} else if ranges[0] == v4range {
		routes = `,"routes":[{"dst":"0.0.0.0/0"}]`
	} else if ranges[0] == v6range {
		routes = `,"routes":[{"dst":"::/0"}]`
	}
	ipam := fmt.Sprintf(`"type":"host-local","dataDir":%q,"ranges":[%s]%s`, b.leases, strings.Join(ranges, ","), routes)
	return withIPAM(version, keys, ipam)
}

// static writes a configuration with these addresses, given as in static's, and
// nothing or JSON text that begins with a comma.
func static(addresses, rest string) string {
	return withIPAM("1.1.0", "", `"type":"static","addresses":[`+addresses+`]`+rest)
}

func withIPAM(version, keys, ipam string) string {
	return fmt.Sprintf(`{"cniVersion":%q,"name":"net1","type":"ptp",%s"ipam":{%s}}`, version, keys, ipam)
}

// call is a call for a pod of that container ID.
func (b *bed) call(id string, pod *nstest.NS, conf string) nstest.Call {
	return nstest.Call{ContainerID: id, Node: b.node, Pod: pod, Path: b.path, Config: conf}
}

// snapshot is the node, the pods and who has which address.
func (b *bed) snapshot(pods ...*nstest.NS) func() string {
	return func() string {
		return nstest.Snapshot(GinkgoTB(), append(pods, b.node)...) + "\n" + b.leased()
	}
}

// leased is the reservations, without what host-local keeps beside them: the folder
// itself, its lock, and the cursors of the round robin.
func (b *bed) leased() string {
	lines := strings.Split(nstest.SnapshotDir(GinkgoTB(), filepath.Join(b.leases, "net1")), "\n")
	return strings.Join(slices.DeleteFunc(lines, func(line string) bool {
		return strings.HasPrefix(line, "d") || strings.Contains(line, " lock ") || strings.Contains(line, " last_reserved_ip")
	}), "\n")
}

func run(c nstest.Call, command string) nstest.Reply { return nstest.Run(plugin(), c.With(command)) }

// addOK runs an ADD that has to succeed.
func addOK(c nstest.Call) *types.Result {
	GinkgoHelper()
	return run(c, "ADD").Result(GinkgoTB())
}

// withPrev puts the result of an ADD into the configuration of a later call.
func withPrev(conf string, reply nstest.Reply) string {
	return strings.TrimSuffix(conf, "}") + `,"prevResult":` + reply.Stdout + "}"
}

func newPod() *nstest.NS { return nstest.New(GinkgoTB()) }

// in runs a program in a namespace and gives what it printed.
func in(n *nstest.NS, line string) string {
	GinkgoHelper()
	words := strings.Fields(line)
	return n.Must(GinkgoTB(), words[0], words[1:]...)
}

// sentAgain is how many TCP segments the namespace had to send a second time.
func sentAgain(n *nstest.NS) string {
	GinkgoHelper()
	var names []string
	for line := range strings.Lines(in(n, "cat /proc/net/snmp")) {
		words := strings.Fields(line)
		if words[0] != "Tcp:" {
			continue
		}
		if names != nil {
			return words[slices.Index(names, "RetransSegs")]
		}
		names = words
	}
	return "no counters"
}

// standIn makes an IPAM plugin "stand-in" in a folder of its own, which it gives, of
// shell text a command. It notes each command in the file "calls" of the folder.
func standIn(onADD, onDEL string) string {
	GinkgoHelper()
	dir := GinkgoTB().TempDir()
	script := fmt.Sprintf("#!/bin/sh\ncat >/dev/null\necho $CNI_COMMAND >>%s/calls\ncase $CNI_COMMAND in\nADD) %s ;;\nDEL) %s ;;\nesac\n", dir, onADD, onDEL)
	Expect(os.WriteFile(filepath.Join(dir, "stand-in"), []byte(script), 0o755)).To(Succeed())
	return dir
}

// calls are the commands that a stand-in was given, separated by spaces.
func calls(dir string) string {
	GinkgoHelper()
	b, err := os.ReadFile(filepath.Join(dir, "calls"))
	Expect(err).NotTo(HaveOccurred())
	return strings.Join(strings.Fields(string(b)), " ")
}
