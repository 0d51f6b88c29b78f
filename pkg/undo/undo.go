// Package undo collects the inverse of each change that an ADD makes, so that an ADD that
// fails leaves host and container as they were.
//
// Only changes that belong to one attachment are undone: its link, its lease, its rules.
// What attachments share on the host (a bridge, its gateway address, base chains, IP
// forwarding) is created if it is missing and never undone, because another attachment may
// need it.
package undo

import (
	"errors"
	"fmt"
	"slices"
)

// A Stack holds the inverses of changes. The zero Stack is empty and ready to use. It is
// not safe for concurrent use.
type Stack struct {
	inverses []inverse
}

// An inverse is a function that undoes one change.
type inverse struct {
	what string // what the function does, for errors
	undo func() error
}

// Push adds the inverse of a change that has just been made. what describes the inverse in
// errors: "delete link veth0a1b2c3d". An inverse may wait, for example until a process that is
// part of the change has ended.
func (s *Stack) Push(what string, undo func() error) {
	s.inverses = append(s.inverses, inverse{what, undo})
}

// Rollback runs the inverses, the newest first, and empties the stack. If one fails or
// panics, Rollback still runs the others. It returns all errors, joined.
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

// run runs the inverse, and returns a panic as an error.
func (i inverse) run() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return i.undo()
}

// Commit empties the stack without running the inverses: the changes stay.
func (s *Stack) Commit() { s.inverses = nil }

// Len returns the number of inverses that Rollback would run.
func (s *Stack) Len() int { return len(s.inverses) }
