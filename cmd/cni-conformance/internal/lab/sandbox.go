// Package lab calls CNI plugins on a host and in containers that are network namespaces, as a container runtime does,
// and compares the state of the namespaces and of the plugins' files before and after the calls.
package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Sandboxed is argv[0] of the process that Enter starts.
const Sandboxed = "cni-conformance-sandboxed"

// Enter runs this program again, with the same arguments, in new network and mount namespaces, and returns its exit
// status. If the user is not root, the program runs as root of a new user namespace.
func Enter() (int, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append([]string{Sandboxed}, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	runtime.LockOSThread() // the kernel sends Pdeathsig when the thread ends
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() >= 0 {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 0, fmt.Errorf("create namespaces: %w; run this program as root, or allow user namespaces", err)
	}
	return 0, nil
}

// HideState mounts an empty tmpfs over each directory, so that the plugins neither see nor change the files of this
// machine. It returns an error if one of the programs is below such a directory.
func HideState(dirs, programs []string) error {
	for _, program := range programs {
		for _, dir := range dirs {
			if at, err := filepath.EvalSymlinks(program); err == nil && strings.HasPrefix(at+"/", dir+"/") {
				return fmt.Errorf("%s is below %s, which this program hides; copy it to another directory", program, dir)
			}
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// Programs find the interfaces of this network namespace in /sys. Without the mount, they find none.
	_ = unix.Mount("sysfs", "/sys", "sysfs", 0, "")
	for _, dir := range dirs {
		for at := dir; !exists(dir); at = filepath.Dir(at) {
			if !exists(at) {
				continue
			}
			if at == "/" {
				return fmt.Errorf("%s: %w; create the directory", dir, os.ErrNotExist)
			}
			if err := mountTmpfs(at); err != nil {
				return err
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		if err := mountTmpfs(dir); err != nil {
			return err
		}
	}
	return nil
}

func mountTmpfs(dir string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, tmpfsOptions); err != nil {
		return fmt.Errorf("mount a tmpfs at %s: %w", dir, err)
	}
	return nil
}

const tmpfsOptions = "mode=755,size=64m"

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// An NS is a network namespace that is mounted at a path.
type NS struct {
	Path string
	fd   int
}

// netnsDir is the directory of the namespaces, as ip-netns(8) uses it.
const netnsDir = "/run/netns"

func newNS(name string) (*NS, error) {
	n := &NS{Path: filepath.Join(netnsDir, name), fd: -1}
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return nil, err
	}
	err := onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("create network namespace: %w", err)
		}
		if n.fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		return n.MountAt(n.Path)
	})
	return n, err
}

// MountAt mounts the namespace at another path as well.
func (n *NS) MountAt(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE, 0o444)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), unix.Mount(fmt.Sprintf("/proc/self/fd/%d", n.fd), path, "", unix.MS_BIND, ""))
}

// Do runs f on a thread in the namespace. A process that f starts runs in the namespace.
func (n *NS) Do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return f()
	})
}

// Unmount removes the namespace's path. The kernel removes the namespace after Close.
func (n *NS) Unmount() error {
	return errors.Join(unix.Unmount(n.Path, unix.MNT_DETACH), os.Remove(n.Path))
}

// Close closes the namespace, which the kernel removes if it is not mounted.
func (n *NS) Close() {
	_ = unix.Close(n.fd)
	n.fd = -1
}

// Remove removes the namespace as a container runtime does when the container has ended.
func (n *NS) Remove() error {
	n.Close()
	return n.Unmount()
}

// onThread runs f on a thread that ends afterwards, because it may be in another namespace.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}
