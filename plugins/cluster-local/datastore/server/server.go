// Package server contains what the datastores of cluster-local share: how they decode and check a request, print an
// answer, select addresses, and word their errors. A datastore adds a Session, which accesses its store.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

// A Session serves one request.
type Session interface {
	// Config returns a pointer to the configuration. The object "datastore" of the request is decoded into it before Serve.
	Config() Config
	// Serve runs the verb, and fills in the answer. ctx ends at the configuration's deadline. An error that is not a
	// *datastore.Error becomes one with datastore.ReasonInternal.
	Serve(ctx context.Context, r *Request, answer *datastore.Answer) error
	// Seen returns the highest revision of the store and the last store ID that Serve has seen, also after an error.
	Seen() (revision int64, store string)
}

// A Config is the configuration of a datastore.
type Config interface {
	// Check returns an error for each invalid value, and sets the defaults.
	Check() []error
	// Deadline returns how long a call may take.
	Deadline() time.Duration
}

const (
	defaultTimeout = 3  // in seconds
	maxTimeout     = 60 // in seconds
)

// Common contains the keys that each datastore has.
type Common struct {
	Type    string `json:"type"`    // the name of the executable, which only the caller uses
	Timeout *int   `json:"timeout"` // in seconds
}

// Check implements Config.
func (c *Common) Check() (errs []error) {
	reportIf := types.ProblemsInto(&errs)
	if c.Timeout == nil {
		seconds := defaultTimeout
		c.Timeout = &seconds
	}
	reportIf(*c.Timeout < 1 || *c.Timeout > maxTimeout, "ipam.datastore.timeout %d must be between 1 and %d seconds", *c.Timeout, maxTimeout)
	return errs
}

// Deadline implements Config.
func (c *Common) Deadline() time.Duration { return time.Duration(*c.Timeout) * time.Second }

// A Program is the executable of a datastore.
type Program struct {
	Name, Version string
	Window        uint64         // how many addresses a window of the pool contains, which begins at a multiple of it
	Open          func() Session // returns a new session for each request
}

// Run serves the request in stdin, prints the answer to stdout, and returns the exit status. If stdin is empty, it prints
// the version. plumb install starts each executable with an empty stdin to check that this machine can run it.
func (p Program) Run(stdin io.Reader, stdout io.Writer) int {
	request, err := io.ReadAll(io.LimitReader(stdin, maxRequest))
	if err == nil && len(request) == 0 {
		_, _ = fmt.Fprintf(stdout, "%s %s: reads a request as JSON from stdin\n", p.Name, p.Version)
		return 0
	}
	var answer datastore.Answer
	if err != nil {
		answer.Error = Errorf(types.CodeIO, datastore.ReasonRequest, "read request: %w", err)
	} else {
		answer = p.Answer(request)
	}
	text, err := json.Marshal(answer)
	if err == nil {
		_, err = stdout.Write(append(text, '\n'))
	}
	if err != nil || answer.Error != nil {
		return 1
	}
	return 0
}

// Answer returns the answer to a request. It turns errors and panics into an answer.
func (p Program) Answer(request []byte) (answer datastore.Answer) {
	defer func() {
		if v := recover(); v != nil {
			answer = datastore.Answer{Error: Errorf(types.CodeInternal, datastore.ReasonInternal, "panic: %v", v)}
		}
	}()
	s := p.Open()
	err := p.serve(s, request, &answer)
	if err != nil {
		answer = datastore.Answer{Free: answer.Free, Frozen: answer.Frozen, Warnings: answer.Warnings, Error: asError(err)}
	}
	answer.Revision, answer.Store = s.Seen()
	return answer
}

func (p Program) serve(s Session, text []byte, answer *datastore.Answer) error {
	r, err := decode(text, s.Config(), p.Window)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.Config().Deadline())
	defer cancel()
	return s.Serve(ctx, r, answer)
}

// asError returns err as the error of an answer.
func asError(err error) *datastore.Error {
	var e *datastore.Error
	if errors.As(err, &e) {
		return e
	}
	return Errorf(types.CodeInternal, datastore.ReasonInternal, "%w", err)
}
