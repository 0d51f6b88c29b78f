package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/pool"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var simulate = struct {
	nodes, containers *int
	socket, config    *string
}{
	flag.Int("simulate", 0, "how many nodes to simulate"),
	flag.Int("containers", 100, "how many containers a simulated node runs when the pool is 97 % full"),
	flag.String("datastore-socket", "", "unix socket of a datastore"),
	flag.String("datastore-config", "", "the object datastore of the configuration"),
}

// A simulation consists of nodes that call this plugin in this process. Their datastore listens at a unix socket.
type simulation struct {
	*testing.T
	nodes []*simulatedNode
	last  netip.Addr // the last address of the pool
	size  int        // the number of addresses of the pool
	sync.Mutex
	inUse map[netip.Addr]string // the container of each address in use, as node/container
	row   row
}

// A simulatedNode is used by one goroutine at a time.
type simulatedNode struct {
	*simulation
	plugin     skel.Plugin
	name, dir  string
	calls      int // number of datastore calls
	next       int
	containers []container
}

type container struct {
	id   string
	addr netip.Addr
}

// A row contains the measurements of a phase.
type row struct {
	without, with []time.Duration // durations of ADDs without and with a call of the datastore
	calls         int             // number of datastore calls
	failed        int             // number of failed ADDs
	cause         string          // the reply of the last failed ADD
}

func newSimulation(t *testing.T) *simulation {
	s := &simulation{T: t, inUse: map[netip.Addr]string{}}
	s.size = *simulate.nodes**simulate.containers*100/97 + 1
	s.last = netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 10<<24+uint32(s.size))))
	dir := t.TempDir()
	for i := range *simulate.nodes {
		n := &simulatedNode{simulation: s, name: fmt.Sprintf("n%d", i), dir: filepath.Join(dir, fmt.Sprint(i))}
		n.write("machine-id", n.name)
		n.boot(1)
		machine := pool.ThisMachine()
		machine.BootID, machine.Wait = filepath.Join(n.dir, "boot_id"), 10*time.Minute
		n.plugin = host{machine, []string{filepath.Join(n.dir, "machine-id")}, os.Hostname, n.run}.plugin()
		s.nodes = append(s.nodes, n)
	}
	return s
}

func (n *simulatedNode) write(file, text string) {
	err := os.MkdirAll(n.dir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(n.dir, file), []byte(text), 0o600)
	}
	if err != nil {
		n.Error(err)
	}
}

func (n *simulatedNode) boot(number int) {
	n.write("boot_id", fmt.Sprintf("%s-boot-%d\n", n.name, number))
}

// run is the runProgram of a node.
func (n *simulatedNode) run(_ *skel.Request, _ string, input []byte, _ time.Duration) ([]byte, error) {
	n.calls++
	return callDatastore(input)
}

func callDatastore(input []byte) ([]byte, error) {
	conn, err := net.Dial("unix", *simulate.socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	_, err = conn.Write(input)
	if err == nil {
		err = conn.(*net.UnixConn).CloseWrite()
	}
	if err != nil {
		return nil, err
	}
	return io.ReadAll(conn)
}

func (n *simulatedNode) call(verb, id string) (reply nstest.Reply, calls int, took time.Duration) {
	before, start := n.calls, time.Now()
	reply = nstest.Run(n.plugin, nstest.Call{Command: verb, ContainerID: id, NetNS: "/dev/null", Config: fmt.Sprintf(
		`{"cniVersion": "1.1.0", "name": "net", "type": "macvlan", "ipam": {"type": "cluster-local", "node": %q, "dataDir": %q,
		"subnet": "10.0.0.0/8", "rangeStart": "10.0.0.1", "rangeEnd": %q, "gateway": "10.255.255.254", "datastore": %s}}`,
		n.name, filepath.Join(n.dir, "leases"), n.last, *simulate.config)})
	return reply, n.calls - before, time.Since(start)
}

// add adds a container. If ADD fails, add calls DEL, and reports false.
func (n *simulatedNode) add() bool {
	n.next++
	id := fmt.Sprint("c", n.next)
	reply, calls, took := n.call("ADD", id)
	n.Lock()
	n.row.calls += calls
	if reply.Exit != 0 {
		n.row.failed++
		n.row.cause = reply.Stdout
		n.Unlock()
		n.call("DEL", id)
		return false
	}
	defer n.Unlock()
	if calls > 0 {
		n.row.with = append(n.row.with, took)
	} else {
		n.row.without = append(n.row.without, took)
	}
	addr := reply.Result(n).IPs[0].Address.Addr()
	if other := n.inUse[addr]; other != "" {
		n.Errorf("%v is given to %s/%s while %s uses it", addr, n.name, id, other)
	}
	n.inUse[addr] = n.name + "/" + id
	n.containers = append(n.containers, container{id, addr})
	return true
}

// remove ends a random container without DEL, and returns its ID.
func (n *simulatedNode) remove() string {
	i := rand.IntN(len(n.containers))
	c := n.containers[i]
	n.containers = slices.Delete(n.containers, i, i+1)
	n.Lock()
	defer n.Unlock()
	delete(n.inUse, c.addr)
	return c.id
}

func (n *simulatedNode) del() {
	reply, calls, _ := n.call("DEL", n.remove())
	if reply.Exit != 0 {
		n.Error(reply.Stdout)
	}
	n.Lock()
	defer n.Unlock()
	n.row.calls += calls
}

// resize adds or deletes containers until the node uses that percentage of its share of the pool.
func (n *simulatedNode) resize(percent int) {
	target := n.size * percent / 100 / len(n.nodes)
	for len(n.containers) > target {
		n.del()
	}
	for failed := 0; len(n.containers) < target && failed < 3; {
		if !n.add() {
			failed++
		}
	}
}

// replaceSome deletes containers, and adds others.
func (n *simulatedNode) replaceSome() {
	for range min(10, len(n.containers)) {
		n.del()
		n.add()
	}
}

// restart reboots the node, which ends all containers, and adds the same number again.
func (n *simulatedNode) restart() {
	count := len(n.containers)
	for len(n.containers) > 0 {
		n.remove()
	}
	n.boot(2)
	for range count {
		n.add()
	}
}

// phase runs f on the nodes, 16 at a time in random order, and prints a line of the table.
func (s *simulation) phase(name string, nodes []*simulatedNode, f func(*simulatedNode)) {
	s.row = row{}
	start := time.Now()
	work := make(chan *simulatedNode)
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for n := range work {
				f(n)
			}
		})
	}
	for _, i := range rand.Perm(len(nodes)) {
		work <- nodes[i]
	}
	close(work)
	group.Wait()
	r := s.row
	adds := len(r.with) + len(r.without)
	perAdd := "–"
	if adds > 0 {
		perAdd = fmt.Sprintf("%.2f", float64(r.calls)/float64(adds))
	}
	fmt.Printf("| %s | %d | %.0f s | %d | %s | %s | %s | %d | %.1f %% |\n", name, adds, time.Since(start).Seconds(), r.calls, perAdd,
		quantiles(r.without), quantiles(r.with), r.failed, float64(len(s.inUse))*100/float64(s.size))
	if r.failed > 0 {
		fmt.Printf("last failure: %s\n", strings.Join(strings.Fields(r.cause), " "))
	}
}

// quantiles returns median and p99.
func quantiles(all []time.Duration) string {
	if len(all) == 0 {
		return "–"
	}
	slices.Sort(all)
	ms := func(q float64) float64 { return all[int(q*float64(len(all)-1))].Seconds() * 1000 }
	return fmt.Sprintf("%.2f / %.1f ms", ms(0.5), ms(0.99))
}

// tell prints a word for the process that started this one, and waits for a line of its answer.
func tell(t *testing.T, word string, from *bufio.Reader) {
	fmt.Println("simulation: " + word)
	if _, err := from.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
}

// operate calls a verb of the datastore as an operator.
func (s *simulation) operate(verb string, r datastore.Request) (a datastore.Answer) {
	r.Verb, r.Segment, r.Node, r.Datastore = verb, "net", "operator", json.RawMessage(*simulate.config)
	r.Ranges = []datastore.Range{{First: netip.MustParseAddr("10.0.0.1"), Last: s.last}}
	input, err := json.Marshal(r)
	var output []byte
	if err == nil {
		output, err = callDatastore(input)
	}
	if err == nil {
		err = json.Unmarshal(output, &a)
	}
	if err != nil || a.Error != nil {
		s.Fatalf("%s %s: %v %v", verb, r.Target, err, a.Error)
	}
	return a
}

// TestSimulate runs the simulation. plugins/cluster-local/test starts it with a datastore and etcd.
func TestSimulate(t *testing.T) {
	if *simulate.nodes == 0 {
		t.Skip("-simulate is not set")
	}
	s, stdin := newSimulation(t), bufio.NewReader(os.Stdin)
	tenth := max(1, len(s.nodes)/10)
	fmt.Printf("%d nodes, a pool of %d addresses\n", len(s.nodes), s.size)
	fmt.Println("| phase | ADDs | took | calls of the datastore | per ADD | ADD without datastore, p50 / p99 | ADD with datastore, p50 / p99 | failed ADDs | in use |\n|---|---|---|---|---|---|---|---|---|")
	for _, percent := range []int{50, 70, 90, 95, 97} {
		name := fmt.Sprintf("containers until %d %% of the pool are in use", percent)
		if percent == 50 {
			name = "all nodes boot; " + name
		}
		s.phase(name, s.nodes, func(n *simulatedNode) { n.resize(percent) })
		s.phase(fmt.Sprintf("10 containers of each node replaced at %d %%", percent), s.nodes, (*simulatedNode).replaceSome)
	}
	tell(t, "size", stdin)
	start := time.Now()
	owners := s.operate(datastore.List, datastore.Request{}).Owners
	fmt.Printf("verb list: %d owners in %v\n", len(owners), time.Since(start).Round(time.Millisecond))
	s.phase("back to 70 %", s.nodes, func(n *simulatedNode) { n.resize(70) })
	s.phase("a tenth of the nodes restart", s.nodes[:tenth], (*simulatedNode).restart)
	tell(t, "kill", stdin)
	s.phase("10 containers of each node replaced after an etcd member or the API server was killed", s.nodes, (*simulatedNode).replaceSome)
	gone, rest := s.nodes[:tenth], s.nodes[tenth:]
	s.phase("a tenth of the nodes removed", gone, func(n *simulatedNode) {
		for len(n.containers) > 0 {
			n.remove()
		}
		registered := n.operate(datastore.List, datastore.Request{Target: n.name}).Nodes[n.name]
		n.operate(datastore.RemoveNode, datastore.Request{Target: n.name, Machine: registered.Machine, Boot: registered.Boot})
	})
	s.phase("their containers added on the others", rest, func(n *simulatedNode) { n.resize(70 * len(s.nodes) / len(rest)) })
	free := s.operate(datastore.Status, datastore.Request{}).Free
	fmt.Printf("%d addresses are in use, and %d have no owner, according to the datastore\n", len(s.inUse), free)
}
