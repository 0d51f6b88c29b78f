package main

import (
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestHostLocal(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/host-local")
}

// No call may leave a descriptor, a goroutine, a child process or a thread in another network namespace.
var _ = BeforeEach(func() { nstest.LeakCheck(GinkgoTB()) })

func TestExamples(t *testing.T) {
	h := machine{pool.ThisMachine()}
	nstest.Examples(t, plugin(), func(r *skel.Request) error {
		_, err := h.parse(r)
		return err
	})
}

// newTestHost returns a host. Its plugin uses the host's data directory, boot ID and clock.
func newTestHost() *nstest.PoolHost {
	host := nstest.NewPoolHost(GinkgoTB())
	host.Plugin = func() skel.Plugin {
		return machine{pool.Machine{BootID: host.BootID, Wait: host.Wait, Now: func() time.Duration { return host.Clock }}}.plugin()
	}
	return host
}

type variant = nstest.PoolCall

const subnet = `"subnet": "10.1.2.0/24"`
