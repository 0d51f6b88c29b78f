package node

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/pkg/types"
)

// A LiveList says which containers of the node live.
type LiveList struct {
	IDs map[string]bool
	// Made is when the list was made, at the earliest. A container that began later can be missing.
	Made time.Time
	// None says that an operator has confirmed that no container with an attachment lives.
	None bool
	// Dead are the containers of which an operator has said that they do not live. If it is set, all others live, and
	// IDs has none.
	Dead map[string]bool
}

// NewDead returns the list by which these containers do not live, and all others of the inventory do.
func (inv *Inventory) NewDead(containerIDs []string) LiveList {
	list := LiveList{Dead: map[string]bool{}, Made: inv.Time}
	for _, id := range containerIDs {
		list.Dead[id] = true
	}
	return list
}

// lives reports whether a container lives by the list.
func (l LiveList) lives(containerID string) bool {
	if l.Dead != nil {
		return !l.Dead[containerID]
	}
	return l.IDs[containerID] || l.IDs[runtimeID(containerID)]
}

// isGiven reports whether there is a list.
func (l LiveList) isGiven() bool { return l.IDs != nil || l.Dead != nil || l.None }

// runtimeID returns the ID that a runtime prints for a container. nerdctl gives plugins the ID <namespace>-<id>, where
// <id> has 64 hexadecimal digits, and prints <id>.
func runtimeID(containerID string) string {
	id := containerID[strings.LastIndex(containerID, "-")+1:]
	if _, err := hex.DecodeString(id); err != nil || len(id) != 64 {
		return containerID
	}
	return id
}

// ShortID returns a container ID with 12 characters, as in the tables of crictl and podman, after the namespace of nerdctl.
func ShortID(containerID string) string {
	namespace := len(containerID) - len(runtimeID(containerID))
	return containerID[:min(namespace+12, len(containerID))]
}

// A Life says whether a container lives.
type Life string

// The values of Life.
const (
	Alive   Life = "alive"
	Suspect Life = "suspect" // nothing proves either: gc removes what belongs to the container if it is forced to
	Dead    Life = "dead"
)

// Judge returns whether the container of an attachment lives, by the list and by what the node shows, and the reason if
// that is not the list. Without a list, which is the zero LiveList, a result in libcni's cache counts as an entry of one.
// A process in the namespace of the container counts for more than any list.
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
		return Suspect, "its namespace " + c.netns + ", in which no process runs, exists: the runtime has to delete the container"
	case c.hostEnd != "" && live.Dead == nil:
		return Suspect, c.hostEnd + " is still there, so the container's namespace exists"
	case live.isGiven():
		return Dead, "the container is not in the list of live ones"
	case a.namespaces == namespaceReused:
		return Suspect, "the process of " + a.NetNS + " began after its ADD, and is probably another one"
	case a.namespaces == namespaceGone && c.hostEnd == "":
		return Dead, "its namespace " + a.NetNS + " does not exist"
	}
	return Suspect, "libcni's cache has no result of it"
}

// ErrNoneLive is the error for a list without any container of the node: most often the program that should
// make the list has failed.
var ErrNoneLive = errors.New("no container with an attachment lives")

// ReadLive reads a list of whole container IDs, separated by white space. A file was made when it was written,
// and what comes from a pipe was made after begin.
func ReadLive(file *os.File, begin time.Time) (LiveList, error) {
	list := LiveList{IDs: map[string]bool{}, Made: begin}
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
		list.Made = info.ModTime()
	}
	text, err := io.ReadAll(bufio.NewReader(file))
	for _, id := range strings.Fields(string(text)) {
		if !types.IsID(id) {
			return list, fmt.Errorf("the list of live containers has %q, which is no container ID; give IDs only (-q)", id)
		}
		list.IDs[id] = true
	}
	return list, err
}

// LiveFromResults returns the containers of which libcni's cache has a result.
func (inv *Inventory) LiveFromResults() LiveList {
	list := LiveList{IDs: map[string]bool{}, Made: inv.Time}
	for _, a := range inv.Attachments {
		if a.cached != nil {
			list.IDs[a.ContainerID] = true
		}
	}
	return list
}

// Check returns an error if the list cannot be one of the containers of this node: if it has IDs that are shortened or
// in other case, or if none of them has an attachment, unless the list says so.
func (l LiveList) Check(inv *Inventory) error {
	if l.None {
		return nil
	}
	if l.Dead != nil {
		return l.checkDead(inv)
	}
	if len(l.IDs) == 0 {
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
				return fmt.Errorf("the list has %s, which is the container ID %s in other case: give the IDs as the runtime writes them", id, a.ContainerID)
			}
			if strings.HasPrefix(a.ContainerID, id) || strings.HasPrefix(runtimeID(a.ContainerID), id) {
				return fmt.Errorf("the list has %s, which is the beginning of the container ID %s: give whole IDs (--no-trunc)", id, a.ContainerID)
			}
		}
	}
	if known > 0 && matches == 0 {
		return fmt.Errorf("%w: none of the %d IDs in the list has an attachment; Kubernetes needs the IDs of pods (crictl pods -q --no-trunc), not of their containers",
			ErrNoneLive, len(l.IDs))
	}
	return nil
}

// checkDead returns an error if the node holds nothing for one of the dead containers.
func (l LiveList) checkDead(inv *Inventory) error {
	for id := range l.Dead {
		known := slices.ContainsFunc(inv.Attachments, func(a *Attachment) bool { return a.ContainerID == id && a.CanDelete() })
		if !known {
			return fmt.Errorf("this node holds nothing for a container %q; give its whole ID (plumb list --no-trunc)", id)
		}
	}
	return nil
}
