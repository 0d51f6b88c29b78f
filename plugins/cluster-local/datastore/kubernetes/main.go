// cluster-local-kubernetes is a datastore of cluster-local. It records in custom resources of Kubernetes which node owns
// which address of a segment. It reads one request from stdin, and prints one answer to stdout. datastore/README.md and
// package datastore describe the requests and answers, and datastore/kubernetes/README.md the objects and the order of
// the writes.
package main

import (
	"context"
	"os"

	"github.com/plumb-cni/plumb/v2/pkg/version"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore/kubeconfig"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore/server"
)

func main() {
	os.Exit(program().Run(os.Stdin, os.Stdout))
}

func program() server.Program {
	return server.Program{Name: "cluster-local-kubernetes", Version: version.String(), Window: chunkSize, Open: func() server.Session { return &session{} }}
}

// A session is one call.
type session struct {
	config config
	*server.Request
	client   *kubeconfig.Client
	revision int64   // the highest resource version seen in this call
	storeID  string  // the last UID of the Segment seen in this call
	epoch    string  // the epoch of the node's registration that this call first read, or ""
	counted  *sample // the owners in the segment, if this call has counted them
	fences   fences  // the fences of the chunks that the node has seen
	older    bool    // resync has read a chunk with a lower fence than the node has seen
	warnings []string
}

// Config implements server.Session.
func (s *session) Config() server.Config { return &s.config }

// Seen implements server.Session.
func (s *session) Seen() (revision int64, store string) { return s.revision, s.fences.join(s.storeID) }

// Serve implements server.Session.
func (s *session) Serve(ctx context.Context, r *server.Request, answer *datastore.Answer) (err error) {
	s.Request = r
	if err := checkSegment(r.Segment); err != nil {
		return err
	}
	defer func() { answer.Warnings = s.warnings }()
	s.Store, s.fences = splitStore(r.Store)
	if s.client, err = s.config.connect(); err != nil {
		return err
	}
	defer s.client.HTTP.CloseIdleConnections()
	return verbs[r.Verb](s, ctx, answer)
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
