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

	fromResults bool
}

// NewDead returns the list by which these containers do not live, and all others of the inventory do.
func (inv *Inventory) NewDead(containerIDs []string) LiveList {
	list := LiveList{Dead: map[string]bool{}, Made: inv.Taken}
	for _, id := range containerIDs {
		list.Dead[id] = true
	}
	return list
}

// lives reports whether a container lives.
func (l LiveList) lives(containerID string) bool {
	if l.Dead != nil {
		return !l.Dead[containerID]
	}
	return l.IDs[containerID]
}

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
	list := LiveList{IDs: map[string]bool{}, Made: inv.Taken, fromResults: true}
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
		return fmt.Errorf("%w: the list is empty; if that is true: plumb gc --none-live", ErrNoneLive)
	}
	known, matches := 0, 0
	for _, a := range inv.Attachments {
		if !a.CanDelete() {
			continue
		}
		known++
		if l.IDs[a.ContainerID] {
			matches++
			continue
		}
		for id := range l.IDs {
			if strings.EqualFold(a.ContainerID, id) {
				return fmt.Errorf("the list has %s, which is the container ID %s in other case: give the IDs as the runtime writes them", id, a.ContainerID)
			}
			if strings.HasPrefix(a.ContainerID, id) {
				return fmt.Errorf("the list has %s, which is the beginning of the container ID %s: give whole IDs (--no-trunc)", id, a.ContainerID)
			}
		}
	}
	if known > 0 && matches == 0 {
		return fmt.Errorf("%w: none of the %d IDs in the list has an attachment; Kubernetes needs the IDs of pods (crictl pods -q --no-trunc), not of their containers; if none of them has an attachment: plumb gc --none-live",
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
