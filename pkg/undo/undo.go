// Package undo collects the inverse of each change that an ADD makes, so that an ADD that
// fails leaves node and pod as they were.
//
// Only changes that belong to one attachment are undone: its link, its lease, its rules.
// What attachments share on the node (a bridge, its gateway address, base chains, IP
// forwarding) is made if it is missing and never undone, because another attachment may
// need it.
package undo

import (
	"errors"
	"fmt"
)

// A Stack holds the inverses of changes. The zero Stack is empty and ready to use. It is
// not safe for concurrent use.
type Stack struct {
	steps []step
}

type step struct {
	what string
	undo func() error
}

// Push adds the inverse of a change that has just been made. what names the inverse in
// errors: "delete link veth0a1b2c3d".
func (s *Stack) Push(what string, undo func() error) {
	s.steps = append(s.steps, step{what, undo})
}

// Rollback runs the inverses, the newest first, and empties the stack. If one fails or
// panics, Rollback still runs the others, and joins the errors.
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

// Commit empties the stack without running the inverses: the changes stay.
func (s *Stack) Commit() { s.steps = nil }

// Len returns the number of inverses that Rollback would run.
func (s *Stack) Len() int { return len(s.steps) }
