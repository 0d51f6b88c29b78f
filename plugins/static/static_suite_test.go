package main

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/test/nstest"
)

func TestStatic(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/static")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// conf writes a configuration: ipam is what stands in the ipam object behind its
// type, rest what stands beside it.
func conf(version, ipam, rest string) string {
	return fmt.Sprintf(`{"cniVersion":%q,"name":"net1","type":"macvlan"%s,"ipam":{"type":"static"%s}}`, version, rest, ipam)
}

// call is a call on the test's own node: static looks at no namespace.
func call(conf, args string) nstest.Call {
	return nstest.Call{NetNS: "/var/run/netns/none", Config: conf, Args: args}
}

func run(c nstest.Call, command string) nstest.Reply { return nstest.Run(plugin(), c.With(command)) }

// withPrev puts a result into a configuration.
func withPrev(conf, result string) string {
	return strings.TrimSuffix(conf, "}") + `,"prevResult":` + result + "}"
}
