package main

import (
	"encoding/json"
	"flag"
	"io"
	"net"
	"testing"
)

var socket = flag.String("serve", "", "serve requests on this unix socket, one for each connection, until the process is killed")

// TestServe is the datastore for the simulation of test/datastore. It is one process, so that a simulated
// node need not start a process for each call.
func TestServe(t *testing.T) {
	if *socket == "" {
		t.Skip("-serve is not set")
	}
	listener, err := net.Listen("unix", *socket)
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
				err = json.NewEncoder(conn).Encode(program().Answer(request))
			}
			if err := conn.Close(); err != nil {
				t.Log(err)
			}
			if err != nil {
				t.Log(err)
			}
		}()
	}
}
