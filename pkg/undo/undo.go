// Package undo keeps the inverse of each deed of an ADD, so that an ADD that
// fails leaves node and pod as it found them.
//
// Only what belongs to the attachment alone is pushed: its link, its lease, its
// rules. What the node shares (a bridge, its gateway address, base chains, IP
// forwarding) is ensured and never undone: another attachment may stand on it.
package undo

import (
	"errors"
	"fmt"
)

// A Stack holds the inverses of deeds, the newest last. The zero Stack is ready.
// It is not safe for concurrent use.
type Stack struct {
	steps []step
}

type step struct {
	what string
	undo func() error
}

// Push records the inverse of something that has just succeeded. what names the
// inverse for people: "delete link veth0a1b2c3d".
func (s *Stack) Push(what string, undo func() error) {
	s.steps = append(s.steps, step{what, undo})
}

// Rollback runs the inverses, newest first. One that fails or panics does not stop
// the rest; all failures are joined. The stack is empty afterwards.
func (s *Stack) Rollback() error {
	var errs []error
	for i := len(s.steps) - 1; i >= 0; i-- {
		if err := s.steps[i].run(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.steps[i].what, err))
		}
	}
	s.steps = nil
	return errors.Join(errs...)
}

func (s step) run() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return s.undo()
}

// Commit forgets the inverses: what was done stays.
func (s *Stack) Commit() { s.steps = nil }

// Len is the number of inverses that a Rollback would run.
func (s *Stack) Len() int { return len(s.steps) }
