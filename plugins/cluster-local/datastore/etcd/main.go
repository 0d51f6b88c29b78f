// cluster-local-etcd is a datastore of cluster-local. It records in etcd which node owns which address of a segment. It
// reads one request from stdin, and prints one answer to stdout. datastore/README.md and package datastore describe
// the requests and answers.
package main

import (
	"context"
	"os"

	"github.com/plumb-cni/plumb/v2/pkg/version"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore/server"
)

func main() {
	os.Exit(program().Run(os.Stdin, os.Stdout))
}

func program() server.Program {
	return server.Program{Name: "cluster-local-etcd", Version: version.String(), Window: 256, Open: func() server.Session { return &session{registration: -1} }}
}

// Config implements server.Session.
func (s *session) Config() server.Config { return &s.config }

// Seen implements server.Session.
func (s *session) Seen() (revision int64, store string) { return s.revision, s.storeID }

// Serve implements server.Session.
func (s *session) Serve(ctx context.Context, r *server.Request, answer *datastore.Answer) error {
	s.Request, s.keys = r, keys{root: s.config.Prefix + "/" + r.Segment + "/"}
	defer s.close()
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
