package datastore

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
)

// An interruption calls f when a client first sends data that contains the text, and forwards the data after f has
// returned. If f returns true, the client gets no further answers.
type interruption struct {
	text string
	f    func() (loseAnswer bool)
}

// blackhole drops the answer to each change that writes a node's time.
var blackhole = interruption{"/last/", func() bool { return true }}

// interruptedConfig returns a configuration of the datastore with a proxy for the first member as its endpoint. The
// client connects to the proxy without encryption, and the proxy connects to the member with TLS.
func (c *cluster) interruptedConfig(i interruption) json.RawMessage {
	GinkgoHelper()
	endpoint := "http://" + c.serve("127.0.0.1:0", func(client net.Conn) { c.relay(client, i) })
	return c.datastoreConfig("node", map[string]any{"endpoints": []string{endpoint}})
}

// listen listens in the namespace of the clients.
func (c *cluster) listen(addr string) (listener net.Listener) {
	GinkgoHelper()
	Expect(c.clients.Do(func() (err error) { listener, err = net.Listen("tcp", addr); return err })).To(Succeed())
	DeferCleanup(func() { _ = listener.Close() }) // an error means that the spec has closed the listener already
	return listener
}

// serve listens in the namespace of the clients, and calls f for each connection. It returns the address.
func (c *cluster) serve(addr string, f func(net.Conn)) string {
	GinkgoHelper()
	listener := c.listen(addr)
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

// A fullMember is a member that applies all transactions. For one in oneIn transactions that put a key, it answers that
// its database is full. etcd checks the quota before it proposes a transaction and again when it applies it, and in the
// second case the transaction takes effect (server/etcdserver/apply, quotaApplierV3).
type fullMember struct {
	pb.UnimplementedKVServer
	member pb.KVClient
	oneIn  int
}

func (f fullMember) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	return f.member.Range(ctx, r)
}

func (f fullMember) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	resp, err := f.member.Txn(ctx, r)
	if err == nil && strings.Contains(r.String(), "request_put") && rand.IntN(f.oneIn) == 0 {
		return nil, rpctypes.ErrGRPCNoSpace
	}
	return resp, err
}

// fullEndpoint returns the unencrypted endpoint of a fullMember that forwards the requests to m.
func (m *member) fullEndpoint(oneIn int) string {
	GinkgoHelper()
	server, listener := grpc.NewServer(), m.listen("127.0.0.1:0")
	pb.RegisterKVServer(server, fullMember{member: pb.NewKVClient(m.connect("root", m).ActiveConnection()), oneIn: oneIn})
	DeferCleanup(server.Stop)
	go func() { _ = server.Serve(listener) }()
	return "http://" + listener.Addr().String()
}

// A delay returns how long a proxy waits before it forwards a part of a client's data, and whether it then stops
// forwarding.
type delay func(part []byte) (wait time.Duration, last bool)

// randomDelay delays one in oneIn releases, and one in 25 other parts, by up to 1.5 s. Meanwhile, the client may
// give up or be killed, so that a change with an unknown outcome happens later.
func randomDelay(oneIn int) delay {
	return func(part []byte) (wait time.Duration, last bool) {
		late := isRelease(part) && rand.IntN(oneIn) == 0
		if late || rand.IntN(25) == 0 {
			wait = time.Duration(rand.IntN(1500)) * time.Millisecond
		}
		return wait, late
	}
}

// farAway delays each part by 100 to 250 ms, so that a call of the datastore takes seconds.
func farAway([]byte) (time.Duration, bool) {
	return time.Duration(100+rand.IntN(150)) * time.Millisecond, false
}

// atPart calls f before it forwards the part with this number. The number of the first part is 1.
func atPart(part int, f func()) delay {
	return func([]byte) (time.Duration, bool) {
		defer GinkgoRecover()
		if part--; part == 0 {
			f()
		}
		return 0, false
	}
}

// configAt implements bed.
func (c *cluster) configAt(part int, f func()) json.RawMessage {
	return c.datastoreConfig("node", map[string]any{"endpoints": []string{c.members[0].slowEndpoint(atPart(part, f))}})
}

// slowEndpoint returns an unencrypted endpoint that forwards to the member with a delay.
func (m *member) slowEndpoint(d delay) string {
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
		forwardSlowly(server, client, d)
	})
}

// dialTLS connects to the member with TLS and the client certificate of config.
func (m *member) dialTLS(config *tls.Config) (net.Conn, error) {
	conn, err := m.dial(context.Background(), m.addr+":2379")
	if err != nil {
		return nil, err
	}
	config = config.Clone()
	config.ServerName, config.NextProtos = m.addr, []string{"h2"}
	return tls.Client(conn, config), nil
}

// forwardSlowly copies from the client to the server. It closes the connection to the server some time after the
// client's connection, because a member drops requests that it has not begun when a connection ends. The member also
// drops requests that the client cancels. Therefore a late release is the last part that forwardSlowly forwards.
func forwardSlowly(server, client net.Conn, d delay) {
	buf := make([]byte, 64<<10)
	for last := false; !last; {
		var wait time.Duration
		n, err := client.Read(buf)
		if n > 0 {
			wait, last = d(buf[:n])
			time.Sleep(wait)
		}
		if _, werr := server.Write(buf[:n]); err != nil || werr != nil {
			break
		}
	}
	time.AfterFunc(time.Second, func() { _ = server.Close() })
}

// isRelease reports whether a client sent a transaction that releases addresses. Unlike all other transactions, a
// release neither reads nor compares the registration and the key frozen.
func isRelease(part []byte) bool {
	return bytes.Contains(part, []byte("/a/")) && !bytes.Contains(part, []byte("/node/")) && !bytes.Contains(part, []byte("/frozen"))
}

// relay copies in both directions. If the interruption drops the answer, relay closes the client's connection when the answer comes.
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
