package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/plumb-cni/plumb/v2/pkg/invoke"
	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// TestMain runs the fake datastore if FAKE_DATASTORE is set, a plugin that kills itself if KILL_AT_STEP is
// set, and otherwise the tests.
func TestMain(m *testing.M) {
	if dir := os.Getenv("FAKE_DATASTORE"); dir != "" {
		os.Exit(runFakeDatastore(dir))
	}
	if at := os.Getenv("KILL_AT_STEP"); at != "" {
		os.Exit(runKilledPlugin(at))
	}
	status := m.Run()
	if path, err := helper(); err == nil && strings.HasPrefix(path, os.TempDir()+"/cluster-local-helper-") {
		_ = os.Remove(path)
	}
	os.Exit(status)
}

// runKilledPlugin runs the plugin, and kills the process before a step, or after it if the number is negative.
func runKilledPlugin(at string) int {
	left, err := strconv.Atoi(at)
	if err != nil {
		panic(err)
	}
	n := testNode{PoolHost: &nstest.PoolHost{BootID: os.Getenv("BOOT_ID"), Wait: time.Minute, Clock: time.Hour}, name: os.Getenv("NODE")}
	count := func(sign int) func(string) error {
		return func(string) error {
			if left*sign <= 0 {
				return nil
			}
			if left -= sign; left == 0 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
			return nil
		}
	}
	return skel.Run(n.host().plugin(), skel.Env{
		Environ: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Before: count(1), After: count(-1),
	})
}

func TestClusterLocal(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/cluster-local")
}

// No call may leave a descriptor, a goroutine, a child process or a thread in another network namespace.
var _ = BeforeEach(func() { nstest.LeakCheck(GinkgoTB()) })

func TestExamples(t *testing.T) {
	h := thisHost()
	h.hostname = func() (string, error) { return "n1", nil }
	nstest.Examples(t, h.plugin(), func(r *skel.Request) error {
		_, err := h.parse(r)
		return err
	})
}

// host returns a host with the files, the clock and the name of the node.
func (n *testNode) host() host {
	return host{
		pool.Machine{BootID: n.BootID, Wait: n.Wait, Now: func() time.Duration { return n.Clock }},
		[]string{n.identity()},
		func() (string, error) { return n.name, nil },
		invoke.RunProgram,
	}
}

type variant = nstest.PoolCall
