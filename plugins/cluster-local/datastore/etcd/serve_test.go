package main

import (
	"flag"
	"testing"

	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore/server/servertest"
)

var socket = flag.String("serve", "", "serve requests on this unix socket, one for each connection, until the process is killed")

// TestServe is the datastore for the simulation of plugins/cluster-local/test. It is one process, so that a simulated
// node need not start a process for each call.
func TestServe(t *testing.T) { servertest.Serve(t, program(), *socket) }
