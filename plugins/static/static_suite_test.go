package main

import (
	"fmt"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestStatic(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/static")
}

func TestREADMEExamples(t *testing.T) {
	nstest.Examples(t, plugin(), func(r *skel.Request) error { _, err := parse(r); return err })
}

// conf returns a configuration with the text ipam in the object "ipam", and the text rest beside it. Both
// begin with a comma or are empty.
func conf(version, ipam, rest string) string {
	return fmt.Sprintf(`{"cniVersion":%q,"name":"net1","type":"macvlan"%s,"ipam":{"type":"static"%s}}`, version, rest, ipam)
}

// call returns a call. It has no network namespaces, because static uses none.
func call(conf, args string) nstest.Call {
	return nstest.Call{NetNS: "/var/run/netns/none", Config: conf, Args: args}
}

func run(c nstest.Call, command string) nstest.Reply { return nstest.Run(plugin(), c.With(command)) }
