package main

import (
	"os"
	"strconv"
	"syscall"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/skel"
)

func TestTuning(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/tuning")
}

// TestMain runs the plugin instead of the tests if one of the two variables is set. The plugin kills
// itself before, or after, the step with that number.
func TestMain(m *testing.M) {
	before, after := os.Getenv("TUNING_TEST_KILL_BEFORE"), os.Getenv("TUNING_TEST_KILL_AFTER")
	if before == "" && after == "" {
		os.Exit(m.Run())
	}
	os.Exit(skel.Run(plugin(), skel.Env{
		Environ: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Before: killAt(before), After: killAt(after),
	}))
}

// killAt returns a function that kills the process in the call with that number.
func killAt(step string) func(string) error {
	left, err := strconv.Atoi(step)
	if err != nil {
		return nil
	}
	return func(string) error {
		if left--; left == 0 {
			_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
			select {} // until the signal arrives
		}
		return nil
	}
}
