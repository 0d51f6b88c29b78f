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
	"github.com/plumb-cni/plumb/v2/pkg/ns"
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

// A client runs the program iptables or ip6tables by go-iptables.
type client struct {
	host    *ns.Handle
	family  nft.Family
	path    string
	limit   time.Duration // of each call of run
	program *goiptables.IPTables
	listed  map[string][]string // what the program has printed since the last change, by the step
}

// open finds the program and runs it for its version, on which the options of go-iptables depend. During a call of a
// plugin, it does so once.
func (t Tool) open() (*client, error) {
	path, err := t.path("")
	if err != nil {
		return nil, err
	}
	if c, ok := t.HostNS.Memo[path].(*client); ok {
		return c, nil
	}
	proto := goiptables.ProtocolIPv4
	if t.Family == nft.IPv6 {
		proto = goiptables.ProtocolIPv6
	}
	c := &client{host: t.HostNS, family: t.Family, path: path, limit: lockWait + runLimit, listed: map[string][]string{}}
	err = c.run("read the version", func() (err error) {
		c.program, err = goiptables.New(goiptables.Path(path), goiptables.IPFamily(proto), goiptables.Timeout(int(lockWait.Seconds())))
		return err
	})
	if err == nil && t.HostNS.Memo != nil {
		t.HostNS.Memo[path] = c
	}
	return c, err
}

// forget makes all clients of the family read the rules again, because they may have changed.
func (t Tool) forget() {
	for _, kept := range t.HostNS.Memo {
		if c, ok := kept.(*client); ok && c.family == t.Family {
			clear(c.listed)
		}
	}
}

// Read returns the rules of the part, and the names of all chains of the table, or only of its chain if the part is one
// chain that exists. During a call of a plugin, it runs no program again for what it has read since the last change.
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
	list := func(chain string) ([]string, error) {
		return c.list("list chain "+chain+" of table "+p.Table, func() ([]string, error) { return c.program.List(p.Table, chain) })
	}
	if len(p.Chains) == 1 && p.Prefix == "" && p.Follow == nil { // saves a process if the chain exists
		if lines, err := list(p.Chains[0]); err == nil {
			table = Parse(lines...)
			table.Chains = p.Chains
			return table, nil
		}
	}
	names, err := c.list("list the chains of table "+p.Table, func() ([]string, error) { return c.program.ListChains(p.Table) })
	selected := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return !slices.Contains(p.Chains, name) && (p.Prefix == "" || !strings.HasPrefix(name, p.Prefix))
	})
	var lines []string
	for i := 0; i < len(selected) && err == nil; i++ {
		var more []string
		more, err = list(selected[i])
		lines = append(lines, more...)
		for _, r := range Parse(more...).Rules {
			if p.Follow != nil && p.Follow(r) && slices.Contains(names, r.Jump) && !slices.Contains(selected, r.Jump) {
				selected = append(selected, r.Jump)
			}
		}
	}
	table = Parse(lines...)
	table.Chains = names
	return table, err
}

// list returns the lines that print returns, or has returned in the same step since the last change.
func (c *client) list(step string, print func() ([]string, error)) (lines []string, err error) {
	if lines, known := c.listed[step]; known {
		return lines, nil
	}
	err = c.run(step, func() (err error) {
		lines, err = print()
		return err
	})
	if err == nil {
		c.listed[step] = lines
	}
	return lines, err
}

// run calls f, which runs a program by go-iptables, in the namespace. go-iptables cannot limit the time of a program, and
// does not return its process. After the limit, run therefore kills the program that the thread has started since.
func (c *client) run(description string, f func() error) error {
	step := filepath.Base(c.path) + ": " + description
	var killed atomic.Bool
	err := c.host.Step(step, func() error {
		return c.host.Do(func() error {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			thread, before := unix.Gettid(), children(unix.Gettid())
			done := make(chan struct{})
			defer close(done)
			go func() {
				for wait := c.limit; ; wait = time.Second { // the program may not have started yet
					select {
					case <-done:
						return
					case <-time.After(wait):
						for _, child := range children(thread) {
							pid, err := strconv.Atoi(child)
							if err == nil && !slices.Contains(before, child) && unix.Kill(pid, unix.SIGKILL) == nil {
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

// children returns the IDs of the processes that the thread has started and that still run.
func children(thread int) []string {
	list, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", thread))
	return strings.Fields(string(list))
}
