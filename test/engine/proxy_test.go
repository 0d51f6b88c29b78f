package engine

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"math/rand/v2"
	"net"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// blackhole returns an endpoint, without encryption, that a client can read from, and that loses the
// answer to each change. It stands between the client and the first member, with which it speaks TLS.
func (c *cluster) blackhole() string {
	GinkgoHelper()
	return "http://" + c.serve("127.0.0.1:0", c.relay)
}

// serve listens in the namespace of the clients, and calls f for each connection. It returns the address.
func (c *cluster) serve(addr string, f func(net.Conn)) string {
	GinkgoHelper()
	var listener net.Listener
	Expect(c.clients.Do(func() (err error) { listener, err = net.Listen("tcp", addr); return err })).To(Succeed())
	DeferCleanup(listener.Close)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go f(conn)
		}
	}()
	return listener.Addr().String()
}

// slowEndpoint returns an endpoint of the member that now and then delivers what a client sent only after
// some time, when the client may have been killed. So changes of unknown outcome happen late.
func (m *member) slowEndpoint() string {
	GinkgoHelper()
	return "https://" + m.serve("10.9.0.100:0", func(client net.Conn) {
		server, err := m.dial(context.Background(), m.addr+":2379")
		if err != nil {
			_ = client.Close()
			return
		}
		go func() {
			_, _ = io.Copy(client, server)
			_ = client.Close()
		}()
		forwardSlowly(server, client)
	})
}

// forwardSlowly copies from the client to the server. The connection to the server stays for some time after
// that to the client: a member drops what it has not begun when a connection ends.
func forwardSlowly(server, client net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if rand.IntN(25) == 0 {
			time.Sleep(time.Duration(rand.IntN(1500)) * time.Millisecond)
		}
		if _, werr := server.Write(buf[:n]); err != nil || werr != nil {
			break
		}
	}
	time.AfterFunc(time.Second, func() { _ = server.Close() })
}

// relay copies both ways, until the client sends a transaction that puts a key: from then on the client
// gets nothing.
func (c *cluster) relay(client net.Conn) {
	conn, err := c.dial(context.Background(), c.members[0].addr+":2379")
	if err != nil {
		_ = client.Close()
		return
	}
	config := c.tlsConfig("root")
	config.ServerName, config.NextProtos = c.members[0].addr, []string{"h2"}
	server := tls.Client(conn, config)
	lost := make(chan struct{})
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			select {
			case <-lost:
				return
			default:
			}
			if err != nil {
				_ = client.Close()
				return
			}
			_, _ = client.Write(buf[:n])
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if bytes.Contains(buf[:n], []byte("/last/")) {
			close(lost)
		}
		if _, werr := server.Write(buf[:n]); err == io.EOF || werr != nil {
			return
		}
	}
}
