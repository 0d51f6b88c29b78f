package engine

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// blackhole returns an endpoint, without encryption, that a client can read from, and that loses the
// answer to each change. It stands between the client and the first member, with which it speaks TLS.
func (c *cluster) blackhole() string {
	GinkgoHelper()
	var listener net.Listener
	Expect(c.clients.Do(func() (err error) { listener, err = net.Listen("tcp", "127.0.0.1:0"); return err })).To(Succeed())
	DeferCleanup(listener.Close)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go c.relay(conn)
		}
	}()
	return "http://" + listener.Addr().String()
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
