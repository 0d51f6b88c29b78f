package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// SELinux gives a tap the context of the process that creates it (selinux_tun_dev_alloc_security). The plugin
// cannot change its own context, because it has several threads. Therefore it runs ip in the configured
// context to create the tap, as the reference plugin does.

// execContextPath is the file that contains the SELinux context for the next program that the calling thread starts.
const execContextPath = "/proc/thread-self/attr/exec"

// ipLimit is the time after which plumb kills ip.
const ipLimit = 10 * time.Second

// ipArgs returns the arguments with which ip creates the tap.
func ipArgs(t nl.Tap) []string {
	args := []string{"tuntap", "add", "mode", "tap", "name", t.Name}
	if t.MultiQueue {
		args = append(args, "multi_queue")
	}
	if t.Owner != nil {
		args = append(args, "user", strconv.FormatUint(uint64(*t.Owner), 10))
	}
	if t.Group != nil {
		args = append(args, "group", strconv.FormatUint(uint64(*t.Group), 10))
	}
	return args
}

// runInContext runs ip in the SELinux context. The calling goroutine must be locked to its thread.
// contextPath is execContextPath, except in tests.
func runInContext(contextPath, seContext string, args []string) (err error) {
	path, err := exec.LookPath("ip")
	if err != nil {
		return types.Errorf(types.CodeConfig, "selinuxContext needs the program ip (iproute2) in PATH: %w", err)
	}
	if err := os.WriteFile(contextPath, []byte(seContext), 0); err != nil {
		return types.Errorf(types.CodeConfig, "selinuxContext %q: this host has no SELinux, or its policy does not permit the context: %w", seContext, err)
	}
	// Reset the context, because it applies to every program that this thread starts.
	defer func() { err = errors.Join(err, os.WriteFile(contextPath, nil, 0)) }()
	ctx, cancel := context.WithTimeout(context.Background(), ipLimit)
	defer cancel()
	output, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	if err != nil {
		return types.Errorf(types.CodeConfig, "selinuxContext %q: run ip: %w: %s", seContext, err, strings.Join(strings.Fields(string(output)), " "))
	}
	return nil
}
