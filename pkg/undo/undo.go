// Package undo collects the inverse of each change of an ADD, so that an ADD that fails leaves the
// host and the container unchanged.
//
// Only changes that belong to one attachment are undone, such as its link, its lease and its rules.
// What attachments share on the host (a bridge, its gateway address, base chains, IP forwarding) is
// created if it is missing. It is never undone, because another attachment may need it.
package undo

import (
	"errors"
	"fmt"
	"slices"
)

// A Stack contains the inverses of changes. The zero Stack is empty and ready to use. A Stack is
// not safe for concurrent use.
type Stack struct {
	inverses []inverse
}

// An inverse is a function that undoes one change.
type inverse struct {
	what string // describes undo in errors
	undo func() error
}

// Push adds the inverse of a change that has just been made. what describes the inverse in errors,
// for example "delete link veth0a1b2c3d". An inverse may wait, for example until a process that is
// part of the change has ended.
func (s *Stack) Push(what string, undo func() error) {
	s.inverses = append(s.inverses, inverse{what, undo})
}

// Rollback runs the inverses, the newest first, and empties the stack. If an inverse fails or
// panics, Rollback still runs the others. It joins all errors.
func (s *Stack) Rollback() error {
	var errs []error
	for _, inverse := range slices.Backward(s.inverses) {
		if err := inverse.run(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", inverse.what, err))
		}
	}
	s.inverses = nil
	return errors.Join(errs...)
}

// run runs the inverse, and converts a panic to an error.
func (i inverse) run() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return i.undo()
}

// Commit empties the stack without running the inverses, so that the changes stay.
func (s *Stack) Commit() { s.inverses = nil }

// Len returns the number of inverses that Rollback would run.
func (s *Stack) Len() int { return len(s.inverses) }
