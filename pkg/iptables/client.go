package iptables

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	goiptables "github.com/coreos/go-iptables/iptables"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/sys/unix"
)

// A Part selects the chains of a table whose rules are read.
type Part struct {
	Table  string
	Chains []string
	Prefix string            // also selects the chains whose names start with it, unless it is empty
	Follow func(r Rule) bool // also selects the chains to which rules jump for which it returns true; it may be nil
}

// selects reports whether the part contains the chain without regard to jumps.
func (p Part) selects(chain string) bool {
	return slices.Contains(p.Chains, chain) || p.Prefix != "" && strings.HasPrefix(chain, p.Prefix)
}

// A client runs the program iptables or ip6tables by go-iptables.
type client struct {
	host    Tool
	path    string
	limit   time.Duration // of each call of run
	program *goiptables.IPTables
}

// open finds the program and runs it for its version, on which the options of go-iptables depend.
func (t Tool) open() (c *client, err error) {
	path, err := t.path("")
	if err != nil {
		return nil, err
	}
	proto := goiptables.ProtocolIPv4
	if t.Family == nft.IPv6 {
		proto = goiptables.ProtocolIPv6
	}
	c = &client{host: t, path: path, limit: lockWait + runLimit}
	return c, c.run("read the version", func() (err error) {
		c.program, err = goiptables.New(goiptables.Path(path), goiptables.IPFamily(proto), goiptables.Timeout(int(lockWait.Seconds())))
		return err
	})
}

// Read returns the rules of the part, and the names of all chains of the table, or only of its chain if the part is one
// chain that exists.
func (t Tool) Read(p Part) (Table, error) {
	c, err := t.open()
	if err != nil {
		return Table{}, err
	}
	return c.read(p)
}

// read runs the program for the names of the chains, and then for each selected chain. iptables-nft reports a missing
// chain with the same error as a chain that it cannot read.
func (c *client) read(p Part) (table Table, err error) {
	if len(p.Chains) == 1 && p.Prefix == "" && p.Follow == nil { // saves a process if the chain exists
		if table, err = c.list(p.Table, p.Chains[0]); err == nil {
			table.Chains = p.Chains
			return table, nil
		}
	}
	var names []string
	err = c.run("list the chains of table "+p.Table, func() (err error) {
		names, err = c.program.ListChains(p.Table)
		return err
	})
	table = Table{Chains: names}
	selected := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !p.selects(name) })
	for i := 0; i < len(selected) && err == nil; i++ {
		var listed Table
		listed, err = c.list(p.Table, selected[i])
		for _, r := range listed.Rules {
			if p.Follow != nil && p.Follow(r) && slices.Contains(names, r.Jump) && !slices.Contains(selected, r.Jump) {
				selected = append(selected, r.Jump)
			}
		}
		table.Rules, table.Closed = append(table.Rules, listed.Rules...), append(table.Closed, listed.Closed...)
	}
	return table, err
}

// list returns the rules of one chain.
func (c *client) list(table, chain string) (Table, error) {
	var lines []string
	err := c.run("list chain "+chain+" of table "+table, func() (err error) {
		lines, err = c.program.List(table, chain)
		return err
	})
	return Parse(lines...), err
}

// delete executes a script that deletes one rule or one chain of the table, and nothing else. For any other script, done
// is false.
func (c *client) delete(name string, table Table, script string) (done bool, err error) {
	for _, r := range table.Rules {
		if script == Script(name, r.Deletion()) {
			return true, c.run("delete a rule of chain "+r.Chain, func() error { return c.program.Delete(name, r.Chain, Words(r.Line)[2:]...) })
		}
	}
	for _, chain := range table.Chains {
		if script == Script(name, chainDeletion(chain)...) {
			return true, c.run("delete chain "+chain, func() error { return c.program.ClearAndDeleteChain(name, chain) })
		}
	}
	return false, nil
}

// run calls f, which runs programs by go-iptables, in the namespace. go-iptables cannot limit the time of a program, and
// does not return its process. After the limit, run therefore kills the programs that the thread has started since.
func (c *client) run(description string, f func() error) error {
	step := filepath.Base(c.path) + ": " + description
	var killed atomic.Bool
	err := c.host.HostNS.Step(step, func() error {
		return c.host.HostNS.Do(func() error {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			thread, before := unix.Gettid(), children(unix.Gettid())
			done := make(chan struct{})
			defer close(done)
			go func() {
				for wait := c.limit; ; wait = time.Second { // f may start several programs
					select {
					case <-done:
						return
					case <-time.After(wait):
						for _, pid := range children(thread) {
							if !slices.Contains(before, pid) && unix.Kill(pid, unix.SIGKILL) == nil {
								killed.Store(true)
							}
						}
					}
				}
			}()
			return f()
		})
	})
	if err == nil {
		return nil
	}
	text := strings.Join(strings.Fields(err.Error()), " ")
	if killed.Load() {
		return types.Errorf(types.CodeTryAgain, "%s: the program still ran after %s and was killed: %s", step, c.limit, text)
	}
	if exit, ok := errors.AsType[*goiptables.Error](err); ok {
		return explain(fmt.Errorf("%s: %s", step, text), exit.ExitStatus())
	}
	return fmt.Errorf("%s: %w", step, err)
}

// children returns the processes that the thread has started and that still run.
func children(thread int) (pids []int) {
	list, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", thread))
	for _, text := range strings.Fields(string(list)) {
		if pid, err := strconv.Atoi(text); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
