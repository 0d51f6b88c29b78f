package gc

import (
	"encoding/json"
	"path/filepath"
	"time"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/pkg/statefile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A Suspects contains the attachments that runs of gc found suspect. A file in node.Places.RunDir keeps them between runs.
type Suspects struct {
	file   statefile.File
	before map[types.Attachment]time.Time // when a run first found the attachment suspect
	now    map[types.Attachment]time.Time // the next content of the file
}

const suspectsName = "plumb-suspects.json"

// A suspect is an entry of the file.
type suspect struct {
	types.Attachment
	Since time.Time `json:"since"`
}

// ReadSuspects reads the suspect attachments of earlier runs. It returns none if it cannot read the file, which only
// delays their removal.
func ReadSuspects(p node.Places) *Suspects {
	s := &Suspects{
		file:   statefile.File{Name: suspectsName},
		before: map[types.Attachment]time.Time{}, now: map[types.Attachment]time.Time{},
	}
	path := p.InRun(suspectsName)
	if path == "" {
		return s
	}
	s.file.Dir = filepath.Dir(path)
	text, _ := statefile.Read(path)
	var entries []suspect
	_ = json.Unmarshal(text, &entries)
	for _, e := range entries {
		s.before[e.Attachment] = e.Since
	}
	return s
}

// Save replaces the file. Call it after NewPlan, and before the attachments of the plan are deleted.
func (s *Suspects) Save() error {
	entries := []suspect{}
	for a, since := range s.now {
		entries = append(entries, suspect{a, since})
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return err
	}
	return s.file.Write(text)
}

// keep keeps the entry of an attachment that this run does not judge.
func (s *Suspects) keep(a *node.Attachment) {
	if since, known := s.before[a.ID()]; known {
		s.now[a.ID()] = since
	}
}

// confirm adds an attachment that a run at the time now finds suspect. It reports whether a run at least minAge earlier
// found it suspect as well. The earlier run does not count if the runtime has added the attachment again since then.
func (s *Suspects) confirm(a *node.Attachment, now time.Time, minAge time.Duration) bool {
	since, known := s.before[a.ID()]
	if !known || since.After(now) || a.Youngest().After(since) {
		s.now[a.ID()] = now
		return false
	}
	s.now[a.ID()] = since
	return now.Sub(since) >= minAge
}
