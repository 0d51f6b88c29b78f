package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/types"
)

// SELinux gives a tap the context of the process that makes it (selinux_tun_dev_alloc_security).
// The plugin cannot change its own context, because it has several threads. So it starts a program
// in that context, which makes the tap: ip, as the reference plugin does.

// execLabelPath is the file with the SELinux context of the program that the calling thread starts
// next.
const execLabelPath = "/proc/thread-self/attr/exec"

// ipLimit is how long ip may run.
const ipLimit = 10 * time.Second

// ipArgs returns the arguments with which ip makes the tap.
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

// runLabelled runs ip in the SELinux context. The calling goroutine must be locked to its thread.
// labelPath is execLabelPath, except in tests.
func runLabelled(labelPath, label string, args []string) (err error) {
	path, err := exec.LookPath("ip")
	if err != nil {
		return types.Errorf(types.CodeConfig, "selinuxContext needs the program ip (iproute2) in PATH: %w", err)
	}
	if err := os.WriteFile(labelPath, []byte(label), 0); err != nil {
		return types.Errorf(types.CodeConfig, "selinuxContext %q: this node has no SELinux, or its policy does not permit the context: %w", label, err)
	}
	// Without this, all later programs of the thread would have the context.
	defer func() { err = errors.Join(err, os.WriteFile(labelPath, nil, 0)) }()
	ctx, cancel := context.WithTimeout(context.Background(), ipLimit)
	defer cancel()
	output, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	if err != nil {
		return types.Errorf(types.CodeConfig, "selinuxContext %q: run ip: %w: %s", label, err, strings.Join(strings.Fields(string(output)), " "))
	}
	return nil
}
