package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/life"
	"github.com/plumb-cni/plumb/v2/pkg/attach"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"golang.org/x/sys/unix"
)

// stateOf returns whether the namespace of an ADD at the time added still exists. The state is unknown without a path,
// or if the directory of the path is invisible to this process, for example in a container.
//
// A path below /proc disappears with its process, and another process can get the PID. stateOf recognizes the
// container's process, because this process is not in the host's namespace and started before the ADD. If the clock was
// set forward later, the start of a process seems later than it was.
func stateOf(netns string, added time.Time, host *ns.Handle) life.Namespace {
	if netns == "" {
		return life.Unknown
	}
	pid := pidIn(netns)
	h, err := ns.Open(netns, nil)
	if err == nil {
		defer func() { _ = h.Close() }()
	}
	_, dirErr := os.Stat(filepath.Dir(netns))
	switch {
	case err == nil && pid != 0 && h.Same(host) && seesAllProcesses():
		return life.Gone
	case err == nil && pid != 0 && h.Same(host):
		return life.Unknown
	case err == nil && pid != 0 && startOf(pid).After(added.Add(time.Second)):
		return life.Reused
	case err == nil:
		return life.Exists
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ns.ErrNotNamespace), // a file that is not a namespace remains after an unmount
		pid == 0 && dirErr != nil, pid != 0 && !seesAllProcesses():
		return life.Unknown
	}
	return life.Gone
}

// pidIn returns the PID in a path below /proc, or 0.
func pidIn(path string) int {
	rest, _ := strings.CutPrefix(filepath.Clean(path), "/proc/")
	number, _, _ := strings.Cut(rest, "/")
	pid, _ := strconv.Atoi(number) // pid is 0 for /proc/self
	return pid
}

// seesAllProcesses reports whether this process is in the initial PID namespace, which has the inode number
// PROC_PID_INIT_INO of the kernel. In another PID namespace, for example in a container, /proc lacks processes of the
// host.
func seesAllProcesses() bool {
	own, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && own == "pid:[4026531836]"
}

// startOf returns when a process started, or the zero time if that is unknown.
func startOf(pid int) time.Time {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text[max(strings.LastIndexByte(string(text), ')'), 0):]), ") ")
	fields := strings.Fields(rest) // the fields from the third one on, see proc_pid_stat(5)
	var up unix.Timespec
	if err != nil || len(fields) < 20 || unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return time.Time{}
	}
	ticks, err := strconv.ParseInt(fields[19], 10, 64) // starttime, in units of USER_HZ, which is 100
	if err != nil {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(ticks)*time.Second/100 - time.Duration(up.Nano()))
}

// A container combines what the host shows about a container through all its attachments.
type container struct {
	netns   string // the path of a namespace that exists
	hostEnd string // the host end of a veth pair, which exists as long as the namespace of the container
	process int    // a process in the namespace, or 0
	// hadHostEnd means that libcni's cache lists a host end. If hostEnd is empty, the namespace is gone.
	hadHostEnd bool
	// named is a process in whose namespace an interface names the container, or 0. It proves nothing, because any
	// container with CAP_NET_ADMIN can set the alias and the alternative names of its interfaces.
	named int
}

func (inv *Inventory) findContainers(host *ns.Handle) error {
	all, err := ns.Processes()
	for _, a := range inv.Attachments {
		c := inv.containers[a.ContainerID]
		if a.namespaces == life.Exists {
			id, _ := ns.IDAt(a.NetNS)
			c.netns, c.process = a.NetNS, max(c.process, all[id])
		}
		c.hadHostEnd = c.hadHostEnd || a.cached != nil && slices.ContainsFunc(a.cached.interfaces, cachedInterface.isHostEnd)
		for _, t := range a.ResourcesOf(Link) {
			if t.LinkKind == "veth" {
				c.hostEnd = t.Name
			}
		}
		inv.containers[a.ContainerID] = c
	}
	return errors.Join(err, inv.findByLinks(host, all))
}

// findByLinks sets the processes of containers whose namespace is unknown. Their namespace contains the host end's
// peer. For containers without a host end, it sets named. findByLinks opens each namespace once, and only one at a
// time, because a host may have hundreds of containers.
func (inv *Inventory) findByLinks(host *ns.Handle, processes map[ns.ID]int) error {
	c, err := nl.Open(host)
	if err != nil {
		return err
	}
	byPeerNS := map[int]int{} // the keys are values of nl.Link.PeerNS
	for _, pid := range processes {
		h, err := ns.Open(fmt.Sprintf("/proc/%d/ns/net", pid), nil)
		if err != nil {
			continue // the process has ended
		}
		nsid, err := c.NSID(h)
		if err == nil && nsid >= 0 {
			byPeerNS[1+nsid] = pid
		}
		inv.findByMarks(h, pid)
		_ = h.Close()
	}
	for id, found := range inv.containers {
		if found.netns != "" || found.hostEnd == "" {
			continue
		}
		if l, err := c.Link(found.hostEnd); err == nil {
			found.process = byPeerNS[l.PeerNS]
			inv.containers[id] = found
		}
	}
	return nil
}

// findByMarks sets named of each container whose namespace and host end are unknown to pid, if an interface in the
// process's namespace names the container. It skips a namespace that it cannot read.
func (inv *Inventory) findByMarks(h *ns.Handle, pid int) {
	var links []nl.Link
	for _, a := range inv.Attachments {
		found := inv.containers[a.ContainerID]
		if found.netns != "" || found.hostEnd != "" || found.hadHostEnd || found.named != 0 {
			continue
		}
		if links == nil {
			c, err := nl.Open(h)
			if err != nil {
				return
			}
			links, _ = c.Links()
		}
		marks := func(l nl.Link) bool { return attach.IsOfContainer(l, a.ContainerID) || attach.HasAltName(l, a.ID()) }
		if slices.ContainsFunc(links, marks) {
			found.named = pid
			inv.containers[a.ContainerID] = found
		}
	}
}
