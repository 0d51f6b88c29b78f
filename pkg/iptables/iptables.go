// Package iptables runs the iptables programs, for networks that are configured to use them
// and for kernels without nftables. It also deletes rules that these programs added (Cleanup). If
// these rules are in nftables, it deletes them without running a program.
//
// It reads tables by coreos/go-iptables. For changes it runs iptables-restore --noflush, so that one process applies
// all changes of a script, or none.
package iptables

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/lock"
	"github.com/plumb-cni/plumb/v2/pkg/nft"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/sys/unix"
)

// A Variant selects one of the iptables programs. Since iptables 1.8 there is one program for rules in
// nftables, and another one for rules in the legacy tables (ip_tables). Both programs can be installed,
// and both kinds of rules can exist at the same time.
type Variant string

// The variants. A value is the middle part of the program names, for example of iptables-nft-save.
const (
	Default Variant = ""        // the default of the distribution
	NFT     Variant = "-nft"    // the programs for nftables
	Legacy  Variant = "-legacy" // the programs for the legacy tables
)

// A Tool runs the programs of one family and variant in one namespace.
type Tool struct {
	HostNS  *ns.Handle
	Family  nft.Family
	Variant Variant
}

// Name returns "iptables" or "ip6tables", for errors.
func (t Tool) Name() string {
	if t.Family == nft.IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

// runLimit is how long a program may run after it has acquired the lock.
const runLimit = 10 * time.Second

// Restore applies all changes of a script, or none. The script is in the format of iptables-save.
// Restore flushes only the chains that the script declares (":CHAIN -"). The parameter description
// describes the changes in errors and in the trace.
//
// The error matches ErrRefused if the script does not fit the content of the tables, because it adds
// an existing chain or deletes a missing rule. Its code is types.CodeConfig if the program is missing or
// does not understand the script, and types.CodeTryAgain if the lock was not free in time.
func (t Tool) Restore(description, script string) error {
	return t.restore(description, script, lockWait)
}

// Change reads the part of a table, calls makeScript with its content, and executes the script that
// makeScript returns. If the script is empty, Change changes nothing. The parameter description describes
// the changes in errors and in the trace.
//
// Change holds the lock of withLock. Programs that do not use that lock can change the table after
// Change has read it. If the script is refused for that reason, Change starts again, up to five times.
// It returns the errors of makeScript, Read, Restore and withLock.
func (t Tool) Change(p Part, description string, makeScript func(Table) (string, error)) error {
	const attempts = 5
	return withLock(t.HostNS, lockWait, func() error {
		c, err := t.open()
		if err != nil {
			return err
		}
		var refused error
		for range attempts {
			clear(c.listed)
			table, err := c.read(p)
			if err != nil {
				return err
			}
			script, err := makeScript(table)
			if err != nil || script == "" {
				return err
			}
			if refused = t.Restore(description, script); !errors.Is(refused, ErrRefused) {
				return refused
			}
		}
		return types.Coded(types.CodeConfig, refused)
	})
}

// lockWait is how long a call waits for other calls and programs that change the rules, and for
// /run/xtables.lock. Calls for the same attachment wait for each other for the same time, because on an
// overloaded host the holder of a lock may not run for many seconds.
const lockWait = time.Minute

// withLock runs f while no other call of withLock runs in the same namespace, so that the tables do not
// change after f has read them and before it changes them. The lock is a flock(2) of the namespace's
// file, so that no lock file is needed. If the lock is not free within limit, withLock returns an error
// with types.CodeTryAgain and does not run f.
func withLock(host *ns.Handle, limit time.Duration, f func() error) error {
	err := host.Step("lock the tables of iptables", func() error { return lock.Flock(host.FD(), limit) })
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return types.Errorf(types.CodeTryAgain, "lock the tables of iptables: other processes held the lock for over %s; try again", limit)
	}
	if err != nil {
		return err
	}
	err = f()
	return errors.Join(err, unix.Flock(host.FD(), unix.LOCK_UN))
}

// restore is Restore with the time for which the program waits for its lock.
func (t Tool) restore(description, script string, wait time.Duration) error {
	path, err := t.path("-restore")
	if err != nil {
		return err
	}
	t.forget()
	p := Program{Path: path, Args: []string{"--noflush", "--wait", strconv.Itoa(int(wait.Seconds()))}, Stdin: script, Limit: wait + runLimit}
	_, err = p.Run(t.HostNS, filepath.Base(path)+": "+description)
	if exit, ok := errors.AsType[*ExitError](err); ok {
		return explain(err, exit.ExitCode())
	}
	return err
}

// Find returns an error with types.CodeConfig if a program for this family and variant is not installed. It runs no program.
func (t Tool) Find() error {
	_, err := t.path("-restore")
	_, readErr := t.path("")
	return cmp.Or(err, readErr)
}

// path returns the path of the program whose name ends in the suffix "-restore" or "".
func (t Tool) path(suffix string) (string, error) {
	name := t.Name() + string(t.Variant) + suffix
	path, err := FindProgram(name)
	if err != nil {
		return "", types.Errorf(types.CodeConfig, "program %s: %w; install iptables", name, err)
	}
	return path, nil
}

// ErrRefused is the error for a script that does not fit the content of the tables.
var ErrRefused = errors.New("refused")

// Exit statuses of the iptables programs (include/xtables.h: xtables_exittype).
const (
	otherProblem     = 1
	parameterProblem = 2
	resourceProblem  = 4
)

// explain adds the CNI code or ErrRefused to the error of a program with the exit status.
func explain(err error, status int) error {
	switch status {
	case otherProblem:
		return fmt.Errorf("%w: %w", err, ErrRefused)
	case parameterProblem: // a chain, a match or an option does not exist
		return types.Coded(types.CodeConfig, err)
	case resourceProblem:
		return types.Errorf(types.CodeTryAgain, "%w; the tables are busy (another program holds the lock), try again", err)
	}
	return err
}

// LegacyTool returns the Tool for the legacy table with the name, such as "nat". It runs no program.
// found is false in each of these cases:
//
//   - The namespace does not contain the table, the kernel does not support legacy tables, or iptables has no such table.
//   - The programs for the table are not installed. Without them, plumb cannot have added rules.
//   - The process may not read the list of tables. If a rootless runtime creates the network namespace
//     before it writes the uid_map, the list belongs to a user who is not mapped (xt_proto_init in the
//     kernel's net/netfilter/x_tables.c).
func LegacyTool(host *ns.Handle, f nft.Family, table string) (t Tool, found bool, err error) {
	if !slices.Contains([]string{NAT, "filter", "raw"}, table) {
		return Tool{}, false, nil
	}
	// /proc/net shows the namespace of the process's main thread, not of this thread.
	path := "/proc/thread-self/net/ip_tables_names"
	if f == nft.IPv6 {
		path = "/proc/thread-self/net/ip6_tables_names"
	}
	var names []byte
	err = host.Step("read "+path, func() error {
		return host.Do(func() (err error) {
			names, err = os.ReadFile(path)
			return err
		})
	})
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission):
		return Tool{}, false, nil
	case err != nil:
		return Tool{}, false, fmt.Errorf("look for tables of iptables-legacy: %w", err)
	}
	for _, v := range []Variant{Legacy, Default} { // before 1.8, iptables supported only legacy tables, without variants
		t = Tool{HostNS: host, Family: f, Variant: v}
		if slices.Contains(strings.Fields(string(names)), table) && t.Find() == nil {
			return t, true, nil
		}
	}
	return Tool{}, false, nil
}

// IsChainName reports whether s can be the name of a chain, without quotes. iptables accepts a slash, but a name with a slash
// is a path by mistake.
func IsChainName(s string) bool {
	isForbidden := func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune("\"'`\\/", c) }
	return s != "" && len(s) <= chainNameLength && !strings.HasPrefix(s, "-") && !strings.HasPrefix(s, "!") && !strings.ContainsFunc(s, isForbidden)
}

// Quote quotes s for use as one word of a script.
func Quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// Words splits a line of iptables -S at spaces into its words, and removes the quotes that Quote added. It does
// not remove quotes after -i and -o, because iptables never quotes the names of interfaces, even if
// they contain quotation marks. It omits a word whose quotes do not end.
func Words(line string) (words []string) {
	var word strings.Builder
	inWord, quoted, escaped, literal := false, false, false, false
	for _, ch := range line + " " {
		switch {
		case ch == ' ' && !inWord:
			continue
		case ch == ' ' && !quoted:
			words = append(words, word.String())
			inWord, literal = false, isInterfaceOption(word.String())
			word.Reset()
			continue
		case escaped:
			word.WriteRune(ch)
			escaped = false
		case quoted && ch == '\\':
			escaped = true
		case ch == '"' && !literal:
			quoted = !quoted
		default:
			word.WriteRune(ch)
		}
		inWord = true
	}
	return words
}

func isInterfaceOption(word string) bool { return word == "-i" || word == "-o" }
