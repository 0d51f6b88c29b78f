// Package servertest serves the requests of a datastore in one process, for the simulation of plugins/cluster-local/test.
package servertest

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore/server"
)

// Serve listens on a unix socket, and serves one request on each connection, until the process is killed. If socket is "", it
// skips the test.
func Serve(t *testing.T, p server.Program, socket string) {
	if socket == "" {
		t.Skip("-serve is not set")
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			request, err := io.ReadAll(conn)
			if err == nil {
				err = json.NewEncoder(conn).Encode(p.Answer(request))
			}
			if err := errors.Join(err, conn.Close()); err != nil {
				t.Log(err)
			}
		}()
	}
}
