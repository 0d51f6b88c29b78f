package datastore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// A cluster consists of etcd members and a namespace for clients, all connected to one bridge.
type cluster struct {
	*pki
	bridge  *nstest.NS
	clients *nstest.NS
	members []*member
	flags   []string // further flags of each member
}

// A member is an etcd member in its own namespace.
type member struct {
	*cluster
	name, addr string
	ns         *nstest.NS
	dir        string    // the data directory
	log        string    // the path of the log
	cmd        *exec.Cmd // nil if the member does not run
}

func newCluster(size int, flags ...string) *cluster {
	GinkgoHelper()
	tb := GinkgoTB()
	c := &cluster{pki: newPKI(), bridge: nstest.NewHost(tb).Named("bridge"), clients: nstest.NewHost(tb).Named("clients"), flags: flags}
	c.client("node")
	c.client("root")
	c.bridge.MustLine(tb, "ip link add br0 up type bridge")
	c.plug(c.clients, "clients", "10.9.0.100")
	dir := GinkgoT().TempDir()
	for i := range size {
		name := fmt.Sprintf("m%d", i+1)
		m := &member{cluster: c, name: name, addr: fmt.Sprintf("10.9.0.%d", i+1), ns: nstest.NewHost(tb).Named(name),
			dir: filepath.Join(dir, name), log: filepath.Join(dir, name+".log")}
		c.plug(m.ns, name, m.addr)
		c.members = append(c.members, m)
	}
	DeferCleanup(c.stop)
	for _, m := range c.members {
		m.start()
	}
	c.awaitReady()
	return c
}

func (c *cluster) plug(ns *nstest.NS, port, addr string) {
	GinkgoHelper()
	nstest.Join(GinkgoTB(), nstest.End{In: c.bridge, Name: port}, nstest.End{In: ns, Name: "eth0", Addrs: []string{addr + "/24"}})
	c.bridge.MustLine(GinkgoTB(), "ip link set "+port+" master br0")
}

// stop kills all members. If the spec failed, stop adds the last lines of their logs to the report.
func (c *cluster) stop() {
	for _, m := range c.members {
		m.kill()
		if text, err := os.ReadFile(m.log); err == nil && CurrentSpecReport().Failed() {
			lines := strings.Split(string(text), "\n")
			GinkgoWriter.Printf("%s:\n%s\n", m.name, strings.Join(lines[max(0, len(lines)-20):], "\n"))
		}
	}
}

// peers returns the flag --initial-cluster.
func (c *cluster) peers() string {
	var all []string
	for _, m := range c.members {
		all = append(all, m.name+"="+m.peerURL())
	}
	return strings.Join(all, ",")
}

func (m *member) peerURL() string   { return "http://" + m.addr + ":2380" }
func (m *member) clientURL() string { return "https://" + m.addr + ":2379" }

// start starts the member with its existing data. With --unsafe-no-fsync, the kill of a process loses no data, because
// the kernel keeps the written data.
func (m *member) start() {
	GinkgoHelper()
	args := append([]string{
		"--name", m.name, "--data-dir", m.dir, "--initial-cluster", m.peers(), "--initial-cluster-state", "new",
		"--listen-peer-urls", m.peerURL(), "--initial-advertise-peer-urls", m.peerURL(),
		"--listen-client-urls", m.clientURL(), "--advertise-client-urls", m.clientURL(),
		"--client-cert-auth", "--trusted-ca-file", m.certFile("ca"), "--cert-file", m.certFile("server"), "--key-file", m.keyFile("server"),
		"--unsafe-no-fsync", "--log-level", "warn", "--enable-grpc-gateway=false",
	}, m.flags...)
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = log.Close() }()
	m.cmd = exec.Command(etcdPath, args...)
	m.cmd.Stdout, m.cmd.Stderr = log, log
	Expect(m.ns.Start(m.cmd)).To(Succeed())
}

func (m *member) kill() {
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
	m.cmd = nil
}

// tlsConfig returns the configuration of a client with a certificate.
func (c *cluster) tlsConfig(user string) *tls.Config {
	GinkgoHelper()
	ca, err := os.ReadFile(c.certFile("ca"))
	Expect(err).NotTo(HaveOccurred())
	roots := x509.NewCertPool()
	Expect(roots.AppendCertsFromPEM(ca)).To(BeTrue())
	cert, err := tls.LoadX509KeyPair(c.certFile(user), c.keyFile(user))
	Expect(err).NotTo(HaveOccurred())
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}
}

// dial connects to an address from the namespace of the clients.
func (c *cluster) dial(_ context.Context, addr string) (conn net.Conn, err error) {
	err = c.clients.Do(func() error { conn, err = net.DialTimeout("tcp", addr, 5*time.Second); return err })
	return conn, err
}

// connect returns a client of the members, in the namespace of the clients, with a certificate.
func (c *cluster) connect(user string, members ...*member) *clientv3.Client {
	GinkgoHelper()
	var endpoints []string
	for _, m := range members {
		endpoints = append(endpoints, m.clientURL())
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop(), TLS: c.tlsConfig(user),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(c.dial)}})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { _ = client.Close() }) // an error means that the spec has closed the client already
	return client
}

// do calls f with a context that ends after a minute.
func do(f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return f(ctx)
}

// awaitReady waits until each member serves a linearizable read.
func (c *cluster) awaitReady() {
	GinkgoHelper()
	for _, m := range c.members {
		client := c.connect("root", m)
		Eventually(func() error {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			_, err := client.Get(ctx, "ready")
			return err
		}, "2m", "50ms").Should(Succeed(), m.name)
	}
}

// save saves a snapshot of the cluster's data to a file.
func (c *cluster) save(file string) {
	GinkgoHelper()
	m := c.members[0]
	client := c.connect("root", m)
	Expect(do(func(ctx context.Context) error {
		r, err := client.Snapshot(ctx)
		if err != nil {
			return err
		}
		f, err := os.Create(file)
		if err != nil {
			return err
		}
		_, err = f.ReadFrom(r)
		return errors.Join(err, r.Close(), f.Close())
	})).To(Succeed())
}

// restore kills all members, replaces their data with a snapshot, and starts them.
func (c *cluster) restore(file string) {
	GinkgoHelper()
	for _, m := range c.members {
		m.kill()
		Expect(os.RemoveAll(m.dir)).To(Succeed())
		Expect(snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{SnapshotPath: file, Name: m.name, OutputDataDir: m.dir,
			PeerURLs: []string{m.peerURL()}, InitialCluster: c.peers(), InitialClusterToken: "etcd-cluster"})).To(Succeed())
	}
	for _, m := range c.members {
		m.start()
	}
}

// datastoreConfig returns the datastore's configuration with the user's certificate and further keys.
func (c *cluster) datastoreConfig(user string, more map[string]any) json.RawMessage {
	GinkgoHelper()
	conf := map[string]any{"type": "cluster-local-etcd", "caFile": c.certFile("ca"), "certFile": c.certFile(user), "keyFile": c.keyFile(user), "timeout": 30}
	var endpoints []string
	for _, m := range c.members {
		endpoints = append(endpoints, m.clientURL())
	}
	conf["endpoints"] = endpoints
	for k, v := range more {
		conf[k] = v
	}
	text, err := json.Marshal(conf)
	Expect(err).NotTo(HaveOccurred())
	return text
}

func (m *member) signal(s syscall.Signal) {
	GinkgoHelper()
	Expect(m.cmd.Process.Signal(s)).To(Succeed())
}

// leader returns the leader, or nil if no member reports within a second that it is the leader.
func (c *cluster) leader() *member {
	for _, m := range c.members {
		if m.cmd == nil {
			continue
		}
		client := c.connect("root", m)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		status, err := client.Status(ctx, m.clientURL())
		cancel()
		_ = client.Close()
		if err == nil && status.Leader == status.Header.MemberId {
			return m
		}
	}
	return nil
}

// setLink sets the link of a bridge port to "up" or "down".
func (c *cluster) setLink(port, state string) {
	GinkgoHelper()
	c.bridge.MustLine(GinkgoTB(), "ip link set "+port+" "+state)
}

// setPeers disconnects the member from the other members, but not from clients, with "add", and connects it with "del".
func (m *member) setPeers(verb string) {
	GinkgoHelper()
	for _, other := range m.members {
		if other != m {
			m.ns.MustLine(GinkgoTB(), "ip route "+verb+" blackhole "+other.addr)
			other.ns.MustLine(GinkgoTB(), "ip route "+verb+" blackhole "+m.addr)
		}
	}
}
