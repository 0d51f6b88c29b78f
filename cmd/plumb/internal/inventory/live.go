package inventory

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

// A LiveList says which containers of the host live.
type LiveList struct {
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

// covers reports whether the list contains all containers of the network.
func (l LiveList) covers(network string) bool { return l.Networks == nil || l.Networks[network] }

// networks returns the networks in which containers of the list have results in libcni's cache.
func (l LiveList) networks(inv *Inventory) map[string]bool {
	networks := map[string]bool{}
	for _, a := range inv.Attachments {
		if a.cached != nil && l.lives(a.ContainerID) {
			networks[a.Network] = true
		}
	}
	return networks
}

// WithSandboxes returns a list that also contains the pod sandboxes of runtimes that answered after the time at. It covers
// the networks of which containers of either list have results in libcni's cache. l may be the zero LiveList, and may
// contain no container of the host. WithSandboxes returns other errors of Check for either list.
func (l LiveList) WithSandboxes(inv *Inventory, sandboxes []string, at time.Time) (LiveList, error) {
	both := LiveList{IDs: map[string]bool{}, Created: at}
	for _, id := range sandboxes {
		both.IDs[id] = true
	}
	both.RuntimeNetworks = both.networks(inv)
	both.Networks = maps.Clone(both.RuntimeNetworks)
	if err := both.Check(inv); err != nil || !l.isGiven() {
		return both, err
	}
	maps.Copy(both.Networks, l.networks(inv))
	maps.Copy(both.IDs, l.IDs)
	if l.Created.Before(at) {
		both.Created = l.Created
	}
	if err := l.Check(inv); !errors.Is(err, ErrNoneLive) {
		return both, err
	}
	return both, nil
}

// NewDead returns a list in which these containers are dead, and all other containers of the inventory live.
func (inv *Inventory) NewDead(containerIDs []string) LiveList {
	list := LiveList{Dead: map[string]bool{}, Created: inv.Time}
	for _, id := range containerIDs {
		list.Dead[id] = true
	}
	return list
}

// lives reports whether a container lives according to the list.
func (l LiveList) lives(containerID string) bool {
	if l.Dead != nil {
		return !l.Dead[containerID]
	}
	return l.IDs[containerID] || l.IDs[runtimeID(containerID)]
}

// isGiven reports whether the operator gave a list. It is false for the zero LiveList.
func (l LiveList) isGiven() bool { return l.IDs != nil || l.Dead != nil || l.None }

// runtimeID returns the ID that a runtime prints for a container. nerdctl passes the ID <namespace>-<id> to plugins,
// but prints only <id>, which consists of 64 hexadecimal digits.
func runtimeID(containerID string) string {
	id := containerID[strings.LastIndex(containerID, "-")+1:]
	if _, err := hex.DecodeString(id); err != nil || len(id) != 64 {
		return containerID
	}
	return id
}

// ShortID returns the first 12 characters of a container ID, like the tables of crictl and podman, and keeps nerdctl's
// namespace before them.
func ShortID(containerID string) string {
	namespace := len(containerID) - len(runtimeID(containerID))
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

// Judge returns whether the container of an attachment lives, and the reason. It uses the list and what the host holds:
//   - A container lives if the list contains it. The reason is then empty.
//   - A container with a process in its namespace lives, even if the list lacks it. The path in libcni's cache and the host
//     end prove which namespace is the container's. An interface that names the container only makes it suspect.
//   - Without a list, a container with a result in libcni's cache lives, unless the namespace that the result names is gone or
//     belongs to another process.
func (inv *Inventory) Judge(a *Attachment, live LiveList) (Life, string) {
	c := inv.containers[a.ContainerID]
	switch {
	case live.isGiven() && live.lives(a.ContainerID):
		return Alive, ""
	case c.process != 0:
		return Alive, fmt.Sprintf("process %d runs in its namespace", c.process)
	case !live.isGiven() && (a.namespaces == namespaceExists || a.namespaces == namespaceUnknown && a.cached != nil):
		return Alive, ""
	case c.netns != "":
		return Suspect, "its namespace " + c.netns + " still exists, but no process runs in it; the runtime must delete the container"
	case c.hostEnd != "" && live.Dead == nil:
		return Suspect, "the container's namespace exists, because " + c.hostEnd + " still exists"
	case c.named != 0:
		return Suspect, fmt.Sprintf("process %d may run in its namespace, because an interface there names the container; any container with CAP_NET_ADMIN can set such a name", c.named)
	case live.RuntimeNetworks[a.Network] && a.namespaces != namespaceGone:
		return Suspect, "the runtime does not list the container, but its namespace may exist"
	case live.isGiven():
		return Dead, "the container is not in the list of live containers"
	case a.namespaces == namespaceReused:
		return Suspect, "the process of " + a.NetNS + " started after the container's ADD, and probably belongs to another container"
	case a.namespaces == namespaceGone && c.hostEnd == "":
		return Dead, "its namespace " + a.NetNS + " does not exist"
	}
	return Suspect, "libcni's cache contains no result of its ADD"
}

// ErrNoneLive means that a list contains no container of the host, most often because the program that should print the list
// failed.
var ErrNoneLive = errors.New("no container with an attachment lives")

// ReadLive reads a list of whole container IDs, separated by white space. The creation time of a list in a regular file
// is the file's modification time. A list from a pipe was created after begin.
func ReadLive(file *os.File, begin time.Time) (LiveList, error) {
	list := LiveList{IDs: map[string]bool{}, Created: begin}
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

// LiveFromCache returns the list of the containers with a result in libcni's cache.
func (inv *Inventory) LiveFromCache() LiveList {
	list := LiveList{IDs: map[string]bool{}, Created: inv.Time}
	for _, a := range inv.Attachments {
		if a.cached != nil {
			list.IDs[a.ContainerID] = true
		}
	}
	return list
}

// Check returns an error if the list cannot contain the live containers of this host. An ID may be shortened or differ
// in case, or no ID may belong to a container with an attachment. It returns nil if None is set. If Dead is set, it
// returns an error for a dead container for which the host holds nothing.
func (l LiveList) Check(inv *Inventory) error {
	if l.None {
		return nil
	}
	if l.Dead != nil {
		return l.checkDead(inv)
	}
	if len(l.IDs) == 0 && l.Networks == nil {
		return fmt.Errorf("%w: the list is empty", ErrNoneLive)
	}
	known, matches := 0, 0
	for _, a := range inv.Attachments {
		if !a.CanDelete() {
			continue
		}
		known++
		if l.lives(a.ContainerID) {
			matches++
			continue
		}
		for id := range l.IDs {
			if strings.EqualFold(a.ContainerID, id) {
				return fmt.Errorf("the list contains %s, which differs from the container ID %s only in upper and lower case; "+
					"give the IDs as the runtime prints them", id, a.ContainerID)
			}
			if strings.HasPrefix(a.ContainerID, id) || strings.HasPrefix(runtimeID(a.ContainerID), id) {
				return fmt.Errorf("the list contains %s, which is the beginning of the container ID %s; give whole IDs (--no-trunc)", id, a.ContainerID)
			}
		}
	}
	switch {
	case known == 0 || matches > 0:
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
func (l LiveList) checkDead(inv *Inventory) error {
	for id := range l.Dead {
		known := slices.ContainsFunc(inv.Attachments, func(a *Attachment) bool { return a.ContainerID == id && a.CanDelete() })
		if !known {
			return fmt.Errorf("container %q: this host holds nothing for it; give the whole ID (plumb list --no-trunc)", id)
		}
	}
	return nil
}
