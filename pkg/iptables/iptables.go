// Package iptables runs the iptables programs, for networks that are configured to use them
// and for kernels without nf_tables. It also deletes rules that these programs made, without a
// program where the rules are in nf_tables (Cleanup).
//
// It runs iptables-restore --noflush: one process makes all changes of a script, or none of
// them. The library coreos/go-iptables has no such call: it starts one process per rule, and
// one more to find out the version.
package iptables

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/plumb-cni/plumb/pkg/nft"
	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
)

// A Family is IPv4 or IPv6.
type Family string

// The families, by the names of their programs.
const (
	V4 Family = "iptables"
	V6 Family = "ip6tables"
)

// FamilyFor returns the family for a family of nftables, which is IPv4 or IPv6.
func FamilyFor(f nft.Family) Family {
	if f == nft.IPv6 {
		return V6
	}
	return V4
}

// A Variant selects one of the iptables programs that a node can have. Since iptables 1.8 a
// node can have rules in nf_tables and in the legacy tables (ip_tables) at the same time, and
// one program for each.
type Variant string

// The variants, by the middle part of the names of their programs.
const (
	Default Variant = ""        // the default of the distribution
	NFT     Variant = "-nft"    // the programs for nf_tables
	Legacy  Variant = "-legacy" // the programs for the legacy tables
)

// A Tool runs the programs of one family and variant in one namespace.
type Tool struct {
	Node    *ns.Handle
	Family  Family
	Variant Variant
	// Wait is how long a program waits for /run/xtables.lock, the lock that all iptables
	// programs share. Fractions of a second are dropped. Zero means ten seconds.
	Wait time.Duration
}

// wait returns Wait or its default.
func (t Tool) wait() time.Duration {
	if t.Wait == 0 {
		return 10 * time.Second
	}
	return t.Wait
}

// runLimit is how long a program may run after it has acquired the lock.
const runLimit = 10 * time.Second

// Restore makes all changes of a script, which has the format of iptables-save, or none of
// them. It flushes the chains that the script declares (":CHAIN -"), and no others. The text
// description names the changes in errors and in the trace.
//
// The error matches ErrRefused if the script does not fit the content of the tables: the
// script adds a chain that exists, or deletes a rule that does not exist. The error has
// types.CodeConfig if the program is missing or does not understand the script, and
// types.CodeTryAgain if the lock was not free in time.
func (t Tool) Restore(description, script string) error {
	program, err := t.program("restore")
	if err != nil {
		return err
	}
	seconds := strconv.Itoa(int(t.wait().Seconds()))
	_, err = t.run(description, script, program, "--noflush", "--wait", seconds)
	return err
}

// Save returns the content of a table in the format of iptables-save.
func (t Tool) Save(table string) (string, error) {
	program, err := t.program("save")
	if err != nil {
		return "", err
	}
	return t.run("list table "+table, "", program, "-t", table)
}

// Find returns an error with types.CodeConfig if iptables-restore is not installed for this
// family and variant.
func (t Tool) Find() error {
	_, err := t.program("restore")
	return err
}

// program returns the path of the program for a verb, "restore" or "save".
func (t Tool) program(verb string) (string, error) {
	name := string(t.Family) + string(t.Variant) + "-" + verb
	path, err := FindProgram(name)
	if err != nil {
		return "", types.Errorf(types.CodeConfig,
			"the iptables backend needs the program %s: install iptables, or use the nftables backend, which needs no program: %w", name, err)
	}
	return path, nil
}

// FindProgram returns the path of a program for the rules of the kernel, such as nft. Besides PATH, it
// searches the folders where distributions install these programs, because a runtime may call
// plugins with any PATH.
func FindProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"} {
		candidate := filepath.Join(dir, name)
		if info, err := os.Stat(candidate); err == nil && info.Mode()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", err
}

// ErrRefused matches the error of a script that does not fit the content of the tables.
var ErrRefused = errors.New("refused")

// run runs a program in the namespace and returns what the program wrote to stdout. A new
// process is in the namespace of the thread that forks it. If the plugin is killed, the kernel
// kills the program too (PR_SET_PDEATHSIG). Otherwise the program could make its changes after
// the DEL that follows, and the changes would remain. The kernel also kills the program when
// the thread that forked it ends, so the goroutine is locked to its thread.
func (t Tool) run(description, stdin, program string, args ...string) (string, error) {
	limit := t.wait() + runLimit
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var out, errOut strings.Builder
	step := filepath.Base(program) + ": " + description
	err := t.Node.Step(step, func() error {
		return t.Node.Do(func() error {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			cmd := exec.CommandContext(ctx, program, args...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			cmd.WaitDelay = runLimit // a busy node needs time to read what the program wrote
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errOut
			return cmd.Run()
		})
	})
	if err == nil {
		return out.String(), nil
	}
	if ctx.Err() != nil {
		return "", types.Errorf(types.CodeTryAgain, "%s: the program still ran after %s and was killed: %w", step, limit, err)
	}
	return "", explain(step, errOut.String(), err)
}

// Exit statuses of the iptables programs (include/xtables.h: xtables_exittype).
const (
	otherProblem     = 1
	parameterProblem = 2
	resourceProblem  = 4
)

// explain returns the error of a program that failed. It adds message, which the program wrote to
// stderr, and the CNI code or ErrRefused according to the exit status.
func explain(step, message string, err error) error {
	if message = strings.Join(strings.Fields(message), " "); message != "" {
		err = fmt.Errorf("%w: %s", err, message)
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return fmt.Errorf("%s: %w", step, err)
	}
	switch exit.ExitCode() {
	case otherProblem:
		return fmt.Errorf("%s: %w: %w", step, ErrRefused, err)
	case parameterProblem: // a chain, a match or an option that does not exist
		return types.Errorf(types.CodeConfig, "%s: %w", step, err)
	case resourceProblem:
		return types.Errorf(types.CodeTryAgain, "%s: the tables are busy (another program holds the lock); try again: %w", step, err)
	}
	return fmt.Errorf("%s: %w", step, err)
}

// InUse reports whether the namespace has the legacy table of that name, such as "nat". Only
// the Legacy programs show legacy tables. InUse runs no program. It returns false if the
// kernel does not support legacy tables.
func InUse(node *ns.Handle, f Family, table string) (bool, error) {
	// /proc/net shows the namespace of the process's main thread, not of this thread.
	path := "/proc/thread-self/net/ip_tables_names"
	if f == V6 {
		path = "/proc/thread-self/net/ip6_tables_names"
	}
	var names []byte
	err := node.Step("read "+path, func() error {
		return node.Do(func() (err error) {
			names, err = os.ReadFile(path)
			return err
		})
	})
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for tables of iptables-legacy: %w", err)
	}
	return slices.Contains(strings.Fields(string(names)), table), nil
}

// EachLegacy calls visit once per family that has the legacy table (see InUse). The arguments
// are the Tool for that table and the content of the table.
// EachLegacy skips a family whose programs are missing: plumb cannot have made rules there.
func EachLegacy(node *ns.Handle, table string, visit func(tool Tool, t Table) error) error {
	var errs []error
	for _, f := range []Family{V4, V6} {
		used, err := InUse(node, f, table)
		errs = append(errs, err)
		if !used {
			continue
		}
		tool := Tool{Node: node, Family: f, Variant: Legacy}
		if tool.Find() != nil { // before version 1.8, iptables had only legacy tables and no variants
			tool.Variant = Default
		}
		if tool.Find() != nil {
			continue
		}
		saved, err := tool.Save(table)
		if err == nil {
			err = visit(tool, Parse(saved))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Quote returns s quoted, so that it is one word of a script.
func Quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// Words splits a line of a script at spaces into its words, and removes the quotes that Quote
// added.
func Words(line string) []string {
	var words []string
	var word strings.Builder
	inWord, quoted, escaped := false, false, false
	for _, ch := range line {
		switch {
		case escaped:
			word.WriteRune(ch)
			escaped = false
		case quoted && ch == '\\':
			escaped = true
		case ch == '"':
			quoted, inWord = !quoted, true
		case ch == ' ' && !quoted:
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteRune(ch)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}
