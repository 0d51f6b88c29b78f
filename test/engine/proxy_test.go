package engine

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// An interruption is what happens before a part of a client's requests reaches etcd: the first part that contains
// text waits for f. If that returns true, the client gets no answer any more.
type interruption struct {
	text string
	f    func() (loseAnswer bool)
}

// blackhole loses the answer to each change that puts the time of a node.
var blackhole = interruption{"/last/", func() bool { return true }}

// interrupted returns a configuration of the engine with an endpoint, without encryption, that stands between the
// client and the first member, with which it speaks TLS.
func (c *cluster) interrupted(i interruption) json.RawMessage {
	GinkgoHelper()
	endpoint := "http://" + c.serve("127.0.0.1:0", func(client net.Conn) { c.relay(client, i) })
	return c.engineConfig("node", map[string]any{"endpoints": []string{endpoint}})
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

// slowEndpoint returns an endpoint of the member, without encryption, that now and then delivers what a client
// sent only after some time, when the client has given up or been killed. It does so to one of so many releases, and
// to one of 25 other parts. So changes of unknown outcome happen late.
func (m *member) slowEndpoint(lateReleases int) string {
	GinkgoHelper()
	config := m.tlsConfig("node")
	return "http://" + m.serve("127.0.0.1:0", func(client net.Conn) {
		server, err := m.dialTLS(config)
		if err != nil {
			_ = client.Close()
			return
		}
		go func() {
			_, _ = io.Copy(client, server)
			_ = client.Close()
		}()
		forwardSlowly(server, client, lateReleases)
	})
}

// dialTLS connects to the member as the client of the configuration does.
func (m *member) dialTLS(config *tls.Config) (net.Conn, error) {
	conn, err := m.dial(context.Background(), m.addr+":2379")
	if err != nil {
		return nil, err
	}
	config = config.Clone()
	config.ServerName, config.NextProtos = m.addr, []string{"h2"}
	return tls.Client(conn, config), nil
}

// forwardSlowly copies from the client to the server. The connection to the server stays for some time after
// that to the client: a member drops what it has not begun when a connection ends. It also drops what the client
// cancels, so a late release is the last part of its connection.
func forwardSlowly(server, client net.Conn, lateReleases int) {
	buf := make([]byte, 64<<10)
	for late := false; !late; {
		n, err := client.Read(buf)
		late = isRelease(buf[:n]) && rand.IntN(lateReleases) == 0
		if late || rand.IntN(25) == 0 {
			time.Sleep(time.Duration(rand.IntN(1500)) * time.Millisecond)
		}
		if _, werr := server.Write(buf[:n]); err != nil || werr != nil {
			break
		}
	}
	time.AfterFunc(time.Second, func() { _ = server.Close() })
}

// isRelease reports whether a client sent a transaction that releases addresses: unlike all others, it reads
// and compares neither the registration nor whether the segment is frozen.
func isRelease(part []byte) bool {
	return bytes.Contains(part, []byte("/a/")) && !bytes.Contains(part, []byte("/node/")) && !bytes.Contains(part, []byte("/frozen"))
}

// relay copies both ways. If the interruption loses the answer, it ends the client's connection when that comes.
func (c *cluster) relay(client net.Conn, i interruption) {
	defer GinkgoRecover()
	server, err := c.members[0].dialTLS(c.tlsConfig("root"))
	if err != nil {
		_ = client.Close()
		return
	}
	lost := make(chan struct{})
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			select {
			case <-lost:
				err = io.EOF
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
		if i.f != nil && bytes.Contains(buf[:n], []byte(i.text)) {
			if i.f() {
				close(lost)
			}
			i.f = nil
		}
		if _, werr := server.Write(buf[:n]); err == io.EOF || werr != nil {
			return
		}
	}
}
