package datastore

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var (
	simulated  = flag.Int("simulate", 20, "how many nodes the simulation contains")
	containers = flag.Int("containers", 100, "how many containers run on each node of the simulation when the pool is 97 % full")
	members    = flag.Int("members", 3, "how many etcd members the simulation contains")
)

// buildTest builds the test binary of a package of a module.
func buildTest(module, pkg, out string) {
	GinkgoHelper()
	cmd := exec.Command("go", "test", "-c", "-o", out, pkg)
	cmd.Dir = module
	text, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(text))
}

// databaseSize returns the size of the first member's database file, and the part of it that is in use, in MB.
func (c *cluster) databaseSize() (file, used float64) {
	GinkgoHelper()
	client := c.connect("root", c.members...)
	defer func() { _ = client.Close() }()
	Expect(do(func(ctx context.Context) error {
		status, err := client.Status(ctx, c.members[0].clientURL())
		if err == nil {
			file, used = float64(status.DbSize)/1e6, float64(status.DbSizeInUse)/1e6
		}
		return err
	})).To(Succeed())
	return file, used
}

var _ = Describe("a simulation", func() {
	It("of many nodes with the code of cluster-local and its datastore never assigns an address twice", func() {
		nodes := *simulated
		if testing.Short() {
			nodes = min(nodes, 10)
		}
		c := newCluster(*members, "--quota-backend-bytes=8589934592")
		dir := GinkgoT().TempDir()
		Expect(os.MkdirAll("/run/simulation", 0o755)).To(Succeed()) // on a tmpfs
		node, datastore, socket := filepath.Join(dir, "node"), filepath.Join(dir, "datastore"), filepath.Join(dir, "socket")
		buildTest("../..", "./plugins/cluster-local", node)
		buildTest("../../datastore/etcd", ".", datastore)

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
			"-datastore-socket="+socket, "-datastore-config="+string(c.datastoreConfig("node", nil)))
		cmd.Env = append(os.Environ(), "TMPDIR=/run/simulation")
		cmd.Stderr = GinkgoWriter
		out, err := cmd.StdoutPipe()
		Expect(err).NotTo(HaveOccurred())
		in, err := cmd.StdinPipe()
		Expect(err).NotTo(HaveOccurred())
		Expect(cmd.Start()).To(Succeed())
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			word, told := strings.CutPrefix(lines.Text(), "simulation: ")
			if !told {
				GinkgoWriter.Println(lines.Text())
				continue
			}
			switch word {
			case "size":
				file, used := c.databaseSize()
				GinkgoWriter.Printf("database: %.1f MB, of which %.1f MB are in use\n", file, used)
			case "kill":
				if len(c.members) > 2 {
					c.leader().kill()
				}
			}
			_, err := fmt.Fprintln(in)
			Expect(err).NotTo(HaveOccurred())
		}
		Expect(cmd.Wait()).To(Succeed())
	})
})
