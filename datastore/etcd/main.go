// cluster-local-etcd is a datastore of cluster-local. It records in etcd which node owns which address of a segment. It
// reads one request from stdin, and prints one answer to stdout. datastore/README.md and package datastore describe
// the requests and answers.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/plumb-cni/plumb/pkg/datastore"
	"github.com/plumb-cni/plumb/pkg/types"
)

// version is set by the linker.
var version = "v2.0.0+dev"

func main() {
	os.Exit(run(os.Stdin, os.Stdout))
}

// run serves the request in stdin, and returns the exit status. If stdin is empty, it prints the version. plumb install
// starts each executable with an empty stdin to check that this machine can run it.
func run(stdin io.Reader, stdout io.Writer) int {
	request, err := io.ReadAll(io.LimitReader(stdin, maxRequest))
	if err == nil && len(request) == 0 {
		_, _ = fmt.Fprintf(stdout, "cluster-local-etcd %s: reads a request as JSON from stdin\n", version)
		return 0
	}
	var answer datastore.Answer
	if err != nil {
		answer.Error = failf(types.CodeIO, datastore.ReasonRequest, "read request: %w", err)
	} else {
		answer = serve(request)
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

// serve returns the answer to a request. It turns errors and panics into an answer.
func serve(text []byte) (answer datastore.Answer) {
	s := &session{registration: -1}
	defer func() {
		if p := recover(); p != nil {
			answer = datastore.Answer{Error: failf(types.CodeInternal, datastore.ReasonInternal, "panic: %v", p)}
		}
	}()
	err := s.serve(text, &answer)
	if err != nil {
		answer = datastore.Answer{Free: answer.Free, Frozen: answer.Frozen, Error: asError(err)}
	}
	answer.Revision, answer.Store = s.revision, s.storeID
	return answer
}

// serve decodes the request, connects to etcd, and runs the verb.
func (s *session) serve(text []byte, answer *datastore.Answer) (err error) {
	if s.request, err = decode(text); err != nil {
		return err
	}
	s.keys = keys{root: s.config.Prefix + "/" + s.Segment + "/"}
	ctx, cancel := context.WithTimeout(context.Background(), s.config.timeout)
	defer cancel()
	defer s.close()
	return verbs[s.Verb](s, ctx, answer)
}

// verbs lists the function of each verb, which fills in the answer.
var verbs = map[string]func(*session, context.Context, *datastore.Answer) error{
	datastore.Claim:      (*session).claim,
	datastore.Release:    (*session).release,
	datastore.Register:   (*session).register,
	datastore.List:       (*session).list,
	datastore.RemoveNode: (*session).removeNode,
	datastore.Status:     (*session).status,
	datastore.Freeze:     (*session).freeze,
	datastore.Thaw:       (*session).thaw,
	datastore.Resync:     (*session).resync,
}

// failf returns an error of an answer. It formats as fmt.Errorf does, but wraps nothing.
func failf(code uint, reason, format string, args ...any) *datastore.Error {
	return &datastore.Error{Code: code, Reason: reason, Msg: fmt.Errorf(format, args...).Error()}
}

// asError returns err as the error of an answer.
func asError(err error) *datastore.Error {
	var e *datastore.Error
	if errors.As(err, &e) {
		return e
	}
	return failf(types.CodeInternal, datastore.ReasonInternal, "%w", err)
}
