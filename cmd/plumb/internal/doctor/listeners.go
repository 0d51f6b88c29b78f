package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
)

// A hostPort is a port of the host that an attachment's element forwards.
type hostPort struct {
	*node.Attachment
	local netip.AddrPort
}

// hostPorts returns the host ports of all attachments, by protocol.
func (s *state) hostPorts() map[string][]hostPort {
	ports := map[string][]hostPort{}
	for _, a := range s.inventory.Attachments {
		for _, t := range a.Resources {
			if protocol, local, ok := t.HostPort(); ok {
				ports[protocol] = append(ports[protocol], hostPort{a, local})
			}
		}
	}
	return ports
}

// findTakenPorts finds rules of other programs, such as Docker, that forward the host port of a container elsewhere, before plumb's
// rules. It ignores rules for packets from a bridge, or to an address that the host does not have.
func (h host) findTakenPorts(s *state, add addFunc) {
	ports := s.hostPorts()
	if len(ports) == 0 {
		return
	}
	local, err := h.conn.AddrsByLink()
	h.report.failed("addresses of the host", err)
	for _, chain := range h.ruleset().chains {
		if !chain.IsAt(nft.Prerouting) || chain.Table.Name == "plumb" || chain.Priority > nft.PriorityDstNAT {
			continue
		}
		reached := map[string]bool{chain.Name: true}
		for _, r := range h.rulesFrom(chain) {
			if !reached[r.Chain] || r.Iif != "" && !h.isUplink(r.Iif) || !meetsAny(r, local) {
				continue
			}
			reached[r.Jump] = true
			for _, protocol := range slices.Sorted(maps.Keys(ports)) {
				i := slices.IndexFunc(ports[protocol], func(p hostPort) bool { return takes(r, chain.Table.Family, protocol, p) })
				if i >= 0 && (r.Target == "DNAT" || r.Target == "REDIRECT") {
					a := ports[protocol][i]
					add(onHost, say("Let the program that added the rule use another port, or choose another host port and replace the container."),
						"table %s, chain %s contains a rule (handle %d) that forwards host port %s %d of container %s, network %s, elsewhere",
						chain.Table, r.Chain, r.Handle, protocol, r.Dport, a.ContainerID, a.Network)
				}
			}
		}
	}
}

// meetsAny reports whether a rule matches packets to one of the addresses.
func meetsAny(r nft.ListedRule, addrs map[int][]netip.Addr) bool {
	for _, all := range addrs {
		if slices.ContainsFunc(all, r.Daddr.Contains) {
			return true
		}
	}
	return !r.Daddr.IsValid()
}

// takes reports whether a rule in a table of the family matches packets for the host port, and does not contain an address of the
// container, to which the reference plugin forwards them.
func takes(r nft.ListedRule, family nft.Family, protocol string, p hostPort) bool {
	isOther := func(match string) bool {
		return strings.HasPrefix(match, "-p ") && match != "-p "+protocol
	}
	own := slices.ContainsFunc(p.Addresses, func(address string) bool {
		ip, err := netip.ParseAddr(address)
		return err == nil && r.Mentions(ip)
	})
	return r.Dport == p.local.Port() && !own && !slices.ContainsFunc(r.Matches, isOther) && (family == nft.Inet || nft.FamilyOf(p.local.Addr()) == family)
}

// findHiddenListeners finds processes that listen on a host port of a container, so that the container receives the packets.
// It ignores sockets that are bound to ::1, because portmap does not forward their packets.
func (s *state) findHiddenListeners(host *ns.Handle, add addFunc) {
	ports := s.hostPorts()
	numbers := map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}
	for _, protocol := range slices.Sorted(maps.Keys(ports)) {
		listeners, err := nl.Listeners(host, numbers[protocol])
		if !errors.Is(err, errors.ErrUnsupported) {
			s.report.failed("sockets of "+protocol, err)
		}
		seen := map[netip.AddrPort]bool{} // several sockets can share an address and port
		for _, l := range listeners {
			i := slices.IndexFunc(ports[protocol], func(p hostPort) bool { return p.local.Port() == l.Local.Port() && l.Accepts(p.local.Addr()) })
			if i < 0 || l.Local.Addr() == netip.IPv6Loopback() || seen[l.Local] {
				continue
			}
			seen[l.Local] = true
			a := ports[protocol][i]
			if process := l.Process(host); !reserves(process.PID, a.ContainerID) {
				add(onHost, say("Let the process listen on another port, or choose another host port and replace the container."),
					"%s listens on %s (%s), but container %s, network %s, receives the packets to this host port",
					process, l.Local, protocol, a.ContainerID, a.Network)
			}
		}
	}
}

// reserves reports whether a process of the host only keeps a socket on each host port of the container, so that no other
// process uses the ports. It expects no packets. Such processes are podman's monitor conmon and, since nerdctl 2.1.6, the
// process whose PID is in the file port-reserver.pid of the container. Rootless nerdctl starts none, because RootlessKit keeps
// the ports outside of its network namespace.
//
// Only root's processes in the host's mount namespace count, because a process can choose its name, and a container the files
// that its processes execute.
func reserves(pid int, containerID string) bool {
	if pid == 0 || !isRoots(pid) || !isInHostMounts(pid) {
		return false
	}
	executable, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	// An upgrade of the package deletes the file of a running process.
	return filepath.Base(strings.TrimSuffix(executable, " (deleted)")) == "conmon" || pid == nerdctlReserver(containerID) && isSleep(pid)
}

// nerdctlReserver returns the PID in the file of nerdctl's port reserver, or 0 if there is none that root has written.
func nerdctlReserver(containerID string) int {
	i := strings.LastIndexByte(containerID, '-') // see life.RuntimeID
	if i < 0 {
		return 0
	}
	path := filepath.Join("/run/nerdctl", containerID[:i], containerID[i+1:], "port-reserver.pid")
	info, err := os.Lstat(path)
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 || info.Mode().Perm()&0o022 != 0 {
		return 0
	}
	text, _ := node.ReadFile(path)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

// isSleep reports whether the process executes "sleep infinity", as the port reserver does. Another process may have its PID
// after it has ended.
func isSleep(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && string(line) == "sleep\x00infinity\x00"
}

// isRoots reports whether all user IDs of the process are 0 on the host.
func isRoots(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && bytes.Contains(status, []byte("\nUid:\t0\t0\t0\t0\n"))
}

// isInHostMounts reports whether the process is in the mount namespace of this process or, if this process is in a container,
// of process 1.
func isInHostMounts(pid int) bool {
	mounts := func(process string) fs.FileInfo {
		info, _ := os.Stat("/proc/" + process + "/ns/mnt")
		return info
	}
	its := mounts(strconv.Itoa(pid))
	return its != nil && slices.ContainsFunc([]string{"self", "1"}, func(process string) bool {
		host := mounts(process)
		return host != nil && os.SameFile(its, host)
	})
}
