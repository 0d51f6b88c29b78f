// Package life judges whether the container of an attachment lives. It reads nothing: the package node collects the facts,
// and the operator or the runtimes provide the list of live containers.
package life

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/hostfile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A List says which containers of the host live.
type List struct {
	IDs map[string]bool
	// Created is the earliest possible creation time of the list. The list may lack a container that started later.
	Created time.Time
	// None means that the operator has confirmed that no container with an attachment lives.
	None bool
	// Dead contains the containers that the operator named as dead. If Dead is not nil, all other containers live, and
	// IDs is ignored.
	Dead map[string]bool
	// Networks contains the networks of which the list contains all containers. If it is nil, the list contains the
	// containers of all networks.
	Networks map[string]bool
	// RuntimeNetworks contains those of Networks in which sandboxes of the runtimes have attachments. gc removes their
	// suspect attachments after two runs.
	RuntimeNetworks map[string]bool
}

// Covers reports whether the list contains all containers of the network.
func (l List) Covers(network string) bool { return l.Networks == nil || l.Networks[network] }

// networks returns the networks in which containers of the list have results in libcni's cache.
func (l List) networks(known []Facts) map[string]bool {
	networks := map[string]bool{}
	for _, f := range known {
		if f.HasResult && l.Contains(f.ContainerID) {
			networks[f.Network] = true
		}
	}
	return networks
}

// WithSandboxes returns a list that also contains the pod sandboxes of runtimes that answered after the time at. It covers
// the networks of which containers of either list have results in libcni's cache. l may be the zero List, and may
// contain no container of the host. WithSandboxes returns other errors of Check for either list.
func (l List) WithSandboxes(known []Facts, sandboxes []string, at time.Time) (List, error) {
	both := List{IDs: map[string]bool{}, Created: at}
	for _, id := range sandboxes {
		both.IDs[id] = true
	}
	both.RuntimeNetworks = both.networks(known)
	both.Networks = maps.Clone(both.RuntimeNetworks)
	if err := both.Check(known); err != nil || !l.IsGiven() {
		return both, err
	}
	maps.Copy(both.Networks, l.networks(known))
	maps.Copy(both.IDs, l.IDs)
	if l.Created.Before(at) {
		both.Created = l.Created
	}
	if err := l.Check(known); !errors.Is(err, ErrNoneLive) {
		return both, err
	}
	return both, nil
}

// NewDead returns a list of the time at in which these containers are dead, and all others live.
func NewDead(containerIDs []string, at time.Time) List {
	list := List{Dead: map[string]bool{}, Created: at}
	for _, id := range containerIDs {
		list.Dead[id] = true
	}
	return list
}

// Contains reports whether a container lives according to the list.
func (l List) Contains(containerID string) bool {
	if l.Dead != nil {
		return !l.Dead[containerID]
	}
	return l.IDs[containerID] || l.IDs[RuntimeID(containerID)]
}

// IsGiven reports whether the list says which containers live. It is false for the zero List.
func (l List) IsGiven() bool { return l.IDs != nil || l.Dead != nil || l.None }

// RuntimeID returns the ID that a runtime prints for a container. nerdctl passes the ID <namespace>-<id> to plugins,
// but prints only <id>, which consists of 64 hexadecimal digits.
func RuntimeID(containerID string) string {
	id := containerID[strings.LastIndex(containerID, "-")+1:]
	if _, err := hex.DecodeString(id); err != nil || len(id) != 64 {
		return containerID
	}
	return id
}

// ShortID returns the first 12 characters of a container ID, like the tables of crictl and podman, and keeps nerdctl's
// namespace before them.
func ShortID(containerID string) string {
	namespace := len(containerID) - len(RuntimeID(containerID))
	return containerID[:min(namespace+12, len(containerID))]
}

// A Life says whether a container lives.
type Life string

// These are the values of Life.
const (
	Alive   Life = "alive"
	Suspect Life = "suspect" // nothing proves that the container lives or is dead
	Dead    Life = "dead"
)

// A Namespace says whether the namespace of a container exists.
type Namespace int

// These are the values of Namespace.
const (
	Unknown Namespace = iota
	Exists
	Gone
	Reused // the path is /proc/PID/ns/net, and PID belongs to a process that started after the ADD
)

// Facts contains what the host shows about an attachment and its container.
type Facts struct {
	Network, ContainerID string
	CanDelete            bool      // DEL can be called for the attachment
	HasResult            bool      // libcni's cache contains a result of the attachment
	Path                 string    // the path of the attachment's namespace, from libcni's cache
	Namespace            Namespace // the state of this path

	// The other fields describe the container, through all its attachments.

	NetNS   string // the path of a namespace that exists, or ""
	HostEnd string // the host end of a veth pair, which exists as long as the namespace of the container, or ""
	Process int    // a process in the namespace, or 0
	// Named is a process in whose namespace an interface names the container, or 0. It proves nothing, because any
	// container with CAP_NET_ADMIN can set the alias and the alternative names of its interfaces.
	Named int
}

// Judge returns whether the container of an attachment lives, and the reason. It uses the facts and the list, which may be
// the zero List:
//   - A container lives if the list contains it. The reason is then empty.
//   - A container with a process in its namespace lives, even if the list lacks it. The path in libcni's cache and the host
//     end prove which namespace is the container's. An interface that names the container only makes it suspect.
//   - Without a list, a container with a result in libcni's cache lives, unless the namespace that the result names is gone or
//     belongs to another process.
func Judge(f Facts, l List) (Life, string) {
	switch {
	case l.IsGiven() && l.Contains(f.ContainerID):
		return Alive, ""
	case f.Process != 0:
		return Alive, fmt.Sprintf("process %d runs in its namespace", f.Process)
	case !l.IsGiven() && (f.Namespace == Exists || f.Namespace == Unknown && f.HasResult):
		return Alive, ""
	case f.NetNS != "":
		return Suspect, "its namespace " + f.NetNS + " still exists, but no process runs in it; the runtime must delete the container"
	case f.HostEnd != "" && l.Dead == nil:
		return Suspect, "the container's namespace exists, because " + f.HostEnd + " still exists"
	case f.Named != 0:
		return Suspect, fmt.Sprintf("process %d may run in its namespace, because an interface there names the container; any container with CAP_NET_ADMIN can set such a name", f.Named)
	case l.RuntimeNetworks[f.Network] && f.Namespace != Gone:
		return Suspect, "the runtime does not list the container, but its namespace may exist"
	case l.IsGiven():
		return Dead, "the container is not in the list of live containers"
	case f.Namespace == Reused:
		return Suspect, "the process of " + f.Path + " started after the container's ADD, and probably belongs to another container"
	case f.Namespace == Gone && f.HostEnd == "":
		return Dead, "its namespace " + f.Path + " does not exist"
	}
	return Suspect, "libcni's cache contains no result of its ADD"
}

// ErrNoneLive means that a list contains no container of the host, most often because the program that should print the list
// failed.
var ErrNoneLive = errors.New("no container with an attachment lives")

// Read reads a list of whole container IDs, separated by white space. The creation time of a list in a regular file
// is the file's modification time. A list from a pipe was created after begin.
func Read(file *os.File, begin time.Time) (List, error) {
	list := List{IDs: map[string]bool{}, Created: begin}
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
		list.Created = info.ModTime()
	}
	text, err := hostfile.ReadAll(file, hostfile.MaxSize)
	if err != nil {
		return list, fmt.Errorf("the list of live containers: %w", err)
	}
	for _, id := range strings.Fields(string(text)) {
		if !types.IsID(id) {
			return list, fmt.Errorf("the list of live containers contains %q, which is not a container ID; give IDs only (-q)", id)
		}
		list.IDs[id] = true
	}
	return list, err
}

// FromResults returns the list of the containers with a result in libcni's cache, which was read at the time at.
func FromResults(known []Facts, at time.Time) List {
	list := List{IDs: map[string]bool{}, Created: at}
	for _, f := range known {
		if f.HasResult {
			list.IDs[f.ContainerID] = true
		}
	}
	return list
}

// Check returns an error if the list cannot contain the live containers of this host. An ID may be shortened or differ
// in case, or no ID may belong to a container with an attachment. It returns nil if None is set. If Dead is set, it
// returns an error for a dead container for which the host holds nothing.
func (l List) Check(known []Facts) error {
	if l.None {
		return nil
	}
	if l.Dead != nil {
		return l.checkDead(known)
	}
	if len(l.IDs) == 0 && l.Networks == nil {
		return fmt.Errorf("%w: the list is empty", ErrNoneLive)
	}
	count, matches := 0, 0
	for _, f := range known {
		if !f.CanDelete {
			continue
		}
		count++
		if l.Contains(f.ContainerID) {
			matches++
			continue
		}
		for id := range l.IDs {
			if strings.EqualFold(f.ContainerID, id) {
				return fmt.Errorf("the list contains %s, which differs from the container ID %s only in upper and lower case; "+
					"give the IDs as the runtime prints them", id, f.ContainerID)
			}
			if strings.HasPrefix(f.ContainerID, id) || strings.HasPrefix(RuntimeID(f.ContainerID), id) {
				return fmt.Errorf("the list contains %s, which is the beginning of the container ID %s; give whole IDs (--no-trunc)", id, f.ContainerID)
			}
		}
	}
	switch {
	case count == 0 || matches > 0:
	case l.Networks != nil:
		return fmt.Errorf("%w: none of the %d pod sandboxes of the runtime has an attachment; name the socket of the runtime that "+
			"uses this host's networks (--cri=SOCKET)", ErrNoneLive, len(l.IDs))
	default:
		return fmt.Errorf("%w: none of the %d IDs in the list belongs to an attachment; for Kubernetes, give the IDs of pods "+
			"(crictl pods -q --no-trunc), not of their containers",
			ErrNoneLive, len(l.IDs))
	}
	return nil
}

// checkDead returns an error if the host holds nothing for one of the dead containers.
func (l List) checkDead(known []Facts) error {
	for id := range l.Dead {
		if !slices.ContainsFunc(known, func(f Facts) bool { return f.ContainerID == id && f.CanDelete }) {
			return fmt.Errorf("container %q: this host holds nothing for it; give the whole ID (plumb list --no-trunc)", id)
		}
	}
	return nil
}
