package datastore

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var (
	simulated  = flag.Int("simulate", 20, "how many nodes the simulation contains")
	containers = flag.Int("containers", 100, "how many containers run on each node of the simulation when the pool is 97 % full")
	members    = flag.Int("members", 3, "how many etcd members the simulation with etcd contains")
)

// buildTest builds the test binary of a package of a module.
func buildTest(module, pkg, out string) {
	GinkgoHelper()
	cmd := exec.Command("go", "test", "-c", "-o", out, pkg)
	cmd.Dir = module
	text, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(text))
}

// printDatabaseSize prints the size of the first member's database file, and the part of it that is in use.
func (c *cluster) printDatabaseSize() {
	GinkgoHelper()
	client := c.connect("root", c.members...)
	defer func() { _ = client.Close() }()
	Expect(do(func(ctx context.Context) error {
		status, err := client.Status(ctx, c.members[0].clientURL())
		if err == nil {
			GinkgoWriter.Printf("database: %.1f MB, of which %.1f MB are in use\n", float64(status.DbSize)/1e6, float64(status.DbSizeInUse)/1e6)
		}
		return err
	})).To(Succeed())
}

// simulate runs the simulation of many nodes with the code of cluster-local and of a datastore. Before it continues after a
// word of the simulation, it calls that function, and after each phase the function phase.
func (c *cluster) simulate(module, pkg string, config json.RawMessage, words map[string]func(), phase func()) {
	GinkgoHelper()
	nodes := *simulated
	if testing.Short() {
		nodes = min(nodes, 10)
	}
	dir := GinkgoT().TempDir()
	Expect(os.MkdirAll("/run/simulation", 0o755)).To(Succeed()) // on a tmpfs
	node, datastore, socket := filepath.Join(dir, "node"), filepath.Join(dir, "datastore"), filepath.Join(dir, "socket")
	buildTest("../../..", "./plugins/cluster-local", node)
	buildTest(module, pkg, datastore)

	server := exec.Command(datastore, "-test.run=TestServe", "-test.timeout=0", "-serve="+socket)
	server.Stdout, server.Stderr = GinkgoWriter, GinkgoWriter
	Expect(c.clients.Start(server)).To(Succeed())
	DeferCleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	Eventually(func() error {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			err = conn.Close()
		}
		return err
	}, "2m", "50ms").Should(Succeed())

	cmd := exec.Command(node, "-test.run=TestSimulate", "-test.timeout=0", fmt.Sprint("-simulate=", nodes), fmt.Sprint("-containers=", *containers),
		"-datastore-socket="+socket, "-datastore-config="+string(config))
	cmd.Env = append(os.Environ(), "TMPDIR=/run/simulation")
	cmd.Stderr = GinkgoWriter
	out, err := cmd.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	in, err := cmd.StdinPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(cmd.Start()).To(Succeed())
	for lines := bufio.NewScanner(out); lines.Scan(); {
		word, told := strings.CutPrefix(lines.Text(), "simulation: ")
		if !told {
			GinkgoWriter.Println(lines.Text())
			if strings.HasPrefix(lines.Text(), "| ") {
				phase()
			}
			continue
		}
		words[word]()
		_, err := fmt.Fprintln(in)
		Expect(err).NotTo(HaveOccurred())
	}
	Expect(cmd.Wait()).To(Succeed())
}

// requestCounts counts the requests of a proxy for the API server.
type requestCounts struct {
	mu               sync.Mutex
	started          time.Time
	kinds            map[string]int // by method and, if it is 400 or higher, status
	sent, received   atomic.Int64   // bytes of the bodies of requests and answers
	inFlight, atMost atomic.Int64   // requests in flight
}

// count counts a request.
func (r *requestCounts) count(resp *http.Response) error {
	kind := resp.Request.Method
	if resp.StatusCode >= 400 {
		kind = fmt.Sprint(kind, " with status ", resp.StatusCode)
	}
	r.mu.Lock()
	r.kinds[kind]++
	r.mu.Unlock()
	r.sent.Add(max(0, resp.Request.ContentLength))
	resp.Body = &countingBody{resp.Body, &r.received}
	return nil
}

// A countingBody adds the bytes that are read to count.
type countingBody struct {
	io.ReadCloser
	count *atomic.Int64
}

func (b *countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.count.Add(int64(n))
	return n, err
}

// handle is the handler of a proxy.
func (r *requestCounts) handle(_ int, forward func(http.ResponseWriter), w http.ResponseWriter) {
	if n := r.inFlight.Add(1); n > r.atMost.Load() {
		r.atMost.Store(n)
	}
	defer r.inFlight.Add(-1)
	forward(w)
}

// print prints the counts of a phase, and begins the next one.
func (r *requestCounts) print() {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := 0
	for _, n := range r.kinds {
		all += n
	}
	GinkgoWriter.Printf("    %d requests, %.0f per second, at most %d at once, %.1f MB sent, %.1f MB received: %v\n", all, float64(all)/time.Since(r.started).Seconds(),
		r.atMost.Swap(0), float64(r.sent.Swap(0))/1e6, float64(r.received.Swap(0))/1e6, r.kinds)
	r.kinds, r.started = map[string]int{}, time.Now()
}

var _ = Describe("a simulation", func() {
	It("of many nodes with the code of cluster-local and of the datastore for etcd never assigns an address twice", func() {
		c := newCluster(*members, "--quota-backend-bytes=8589934592")
		c.simulate("../datastore/etcd", ".", c.datastoreConfig("node", nil), map[string]func(){
			"size": c.printDatabaseSize,
			"kill": func() {
				if len(c.members) > 2 {
					c.leader().kill()
				}
			},
		}, func() {})
	})

	It("of many nodes with the code of cluster-local and of the datastore for Kubernetes never assigns an address twice", func() {
		k := newKubernetes("--quota-backend-bytes=8589934592")
		counts := &requestCounts{kinds: map[string]int{}, started: time.Now()}
		k.observe = counts.count
		k.simulate("../../..", "./plugins/cluster-local/datastore/kubernetes", k.proxyConfig(counts.handle), map[string]func(){
			"size": k.printDatabaseSize,
			"kill": func() { // the API server alone, because etcd has one member here
				k.killServer()
				k.startServer()
			},
		}, counts.print)
	})
})
