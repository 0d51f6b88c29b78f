package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// hostPath is the PATH that execOnHost sets, because the PATH of an image need not exist on the host.
const hostPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// execOnHost starts this executable again with the arguments, in the mount namespace of process 1 and in place of this
// process. The container that calls it needs hostPID and hostNetwork, CAP_SYS_PTRACE for /proc/1/ns, and CAP_SYS_ADMIN and
// CAP_SYS_CHROOT for setns(2). The executable need not exist on the host. execOnHost returns only errors.
func execOnHost(args []string) error {
	if err := checkPod(); err != nil {
		return fmt.Errorf("--host: %w", err)
	}
	host, err := os.Open("/proc/1/ns/mnt")
	if err != nil {
		return fmt.Errorf("--host: %w", err)
	}
	defer host.Close()
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("--host: %w", err)
	}
	defer program.Close()
	// A thread enters a mount namespace only if it shares its root directory with no other thread (setns(2)). exec then
	// ends the other threads.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("--host: unshare: %w", err)
	}
	if err := unix.Setns(int(host.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("--host: enter the mount namespace of process 1: %w", err)
	}
	env := slices.DeleteFunc(os.Environ(), func(setting string) bool { return strings.HasPrefix(setting, "PATH=") })
	err = unix.Exec(fmt.Sprintf("/proc/self/fd/%d", program.Fd()), append([]string{"plumb"}, args...), append(env, hostPath))
	return fmt.Errorf("--host: start plumb in the mount namespace of process 1: %w", err)
}

// checkPod returns an error unless process 1 is the host's, and this process uses the host's network.
func checkPod() error {
	const noPID = "process 1 must be the host's; set hostPID: true in the pod"
	for _, c := range []struct {
		namespace string
		shared    bool // whether process 1 must be in the namespace of this process
		problem   string
	}{
		{"mnt", false, noPID},
		{"pid", true, noPID},
		{"net", true, "the network must be the host's; set hostNetwork: true in the pod"},
	} {
		own, err := os.Stat("/proc/self/ns/" + c.namespace)
		if err != nil {
			return err
		}
		first, err := os.Stat("/proc/1/ns/" + c.namespace)
		if err != nil {
			return fmt.Errorf("%w; set privileged: true in the container", err)
		}
		if os.SameFile(own, first) != c.shared {
			return errors.New(c.problem)
		}
	}
	return nil
}
