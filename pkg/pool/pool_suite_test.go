package pool

import (
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestPool(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "pkg/pool")
}

// No call may leave a descriptor, a goroutine, a child process or a thread in another network namespace.
var _ = BeforeEach(func() { nstest.LeakCheck(GinkgoTB()) })

// A testHost is a host with the plugin of newPlugin.
type testHost struct{ *nstest.PoolHost }

type variant = nstest.PoolCall

const subnet = `"subnet": "10.1.2.0/24"`

func newTestHost() *testHost {
	host := &testHost{nstest.NewPoolHost(GinkgoTB())}
	host.Plugin = func() skel.Plugin { return newPlugin(host.machine()) }
	return host
}

// machine returns the host's boot ID, clock and lock limit.
func (host *testHost) machine() Machine {
	return Machine{BootID: host.BootID, Wait: host.Wait, Now: func() time.Duration { return host.Clock }}
}

// store returns the store of the network "net".
func (host *testHost) store() Store {
	return Store{machine: host.machine(), dir: host.Net(""), privateDir: filepath.Join(host.DataDir, ".plumb", "net")}
}

// parse returns the pool of a request, as plugins do.
func parse(m Machine, r *skel.Request) (*Pool, error) {
	var raw struct {
		IPAM *Keys `json:"ipam"`
		RuntimeKeys
	}
	if err := r.Decode(&raw); err != nil {
		return nil, err
	}
	return m.NewPool(r, raw.IPAM, raw.RuntimeKeys)
}

// newPlugin returns a plugin with the verbs of this package. It allocates all addresses.
func newPlugin(m Machine) skel.Plugin {
	release := func(r *skel.Request, f func(Store, *skel.Request) error) error {
		s, err := m.NewStore(r)
		if err == nil {
			err = f(s, r)
		}
		return err
	}
	with := func(f func(*Pool, *skel.Request) error) func(*skel.Request) error {
		return func(r *skel.Request) error {
			p, err := parse(m, r)
			if err != nil {
				return err
			}
			return f(p, r)
		}
	}
	return skel.Plugin{
		Name: "pool", IPAM: true,
		Add: func(r *skel.Request) (*types.Result, error) {
			p, err := parse(m, r)
			if err != nil {
				return nil, err
			}
			return p.Allocate(r, All)
		},
		Del: func(r *skel.Request) error {
			return release(r, func(s Store, r *skel.Request) error { _, err := s.Release(r); return err })
		},
		Check:  with((*Pool).Check),
		Status: with(func(p *Pool, _ *skel.Request) error { return p.Status(All) }),
		GC:     func(r *skel.Request) error { return release(r, Store.ReleaseInvalid) },
	}
}
