package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/statefile"
)

// saved is the state before ADD, which DEL restores. The reference plugin writes a file of the same name with
// the same keys for the interface's settings, and ignores the other keys. Therefore each of the two plugins
// can restore the settings that the other saved.
type saved struct {
	settings
	Sysctl  map[string]string `json:"sysctl,omitempty"` // values by the path below /proc/sys
	Network string            `json:"network,omitempty"`
	NetNS   uint64            `json:"netns,omitempty"`   // cookie of the namespace; it is 0 if it is not known
	IfIndex int               `json:"ifindex,omitempty"` // it is 0 if it is not known
}

// Validate returns an error for a sysctl that no ADD can have saved, because otherwise a user who can write
// to dataDir could cause DEL to write to other files.
func (s *saved) Validate() error {
	for key := range s.Sysctl {
		if paths, err := pathsOf(key, ""); err != nil || paths[0] != key {
			return fmt.Errorf("invalid net sysctl key %q", key)
		}
	}
	return nil
}

// withOriginals returns a copy of s in which the values in earlier replace the values in s. An earlier ADD
// saved them before it changed the settings. earlier may be nil.
func (s *saved) withOriginals(earlier *saved) *saved {
	if earlier == nil {
		return s
	}
	original := *s
	if earlier.isOfLink(s.IfIndex) {
		original.settings = earlier.settings.withDefaults(s.settings)
		original.IfIndex = cmp.Or(s.IfIndex, earlier.IfIndex)
	}
	original.Sysctl = maps.Clone(s.Sysctl)
	maps.Copy(original.Sysctl, earlier.Sysctl)
	return &original
}

// isOfLink reports whether the saved settings belong to the interface with the index. It
// returns true if one of the two indexes is not known.
func (s *saved) isOfLink(index int) bool { return s.IfIndex == 0 || index == 0 || s.IfIndex == index }

func savedFile(r *skel.Request, dir string) statefile.File {
	return statefile.File{Dir: dir, Name: statefile.TuningName(r.Attachment()), Owner: r.Attachment(), Trace: r.Trace}
}

// gc removes the saved states of this network's attachments that are no longer valid. It restores nothing,
// because the containers are gone. It keeps the files that the reference plugin wrote, because these do not
// name their network.
func gc(r *skel.Request) error {
	dir, valid := r.SavedStateDir(defaultDataDir), r.ValidAttachments()
	keep := map[string]bool{}
	for a := range valid {
		keep[filepath.Join(dir, statefile.TuningName(a))] = true
	}
	var stale []string
	err := statefile.ReadAll(r.Trace, dir, func(path string, text []byte) {
		state := &saved{}
		if statefile.Decode(text, state) == nil && state.Network == r.Conf.Name && !keep[path] {
			stale = append(stale, path)
		}
	})
	errs := []error{err, statefile.RemoveTemp(r.Trace, dir, r.Conf.Name, valid)}
	for _, path := range stale {
		errs = append(errs, statefile.Remove(r.Trace, path))
	}
	return errors.Join(errs...)
}
