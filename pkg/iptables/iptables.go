// Package iptables runs the iptables programs, for networks that ask for them and
// for kernels without nf_tables.
//
// It runs iptables-restore itself rather than through coreos/go-iptables, which
// starts a process a rule, and two more to learn the version: with --noflush one
// process makes a whole change, and makes all of it or none.
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

	"github.com/plumb-cni/plumb/pkg/ns"
	"github.com/plumb-cni/plumb/pkg/types"
)

// A Family chooses iptables or ip6tables.
type Family string

// The families, by the names of their programs.
const (
	V4 Family = "iptables"
	V6 Family = "ip6tables"
)

// A Variant chooses the program where a node has several: with iptables 1.8 a node
// can have rules in nf_tables and in the older tables at once.
type Variant string

// The variants, by what their programs have in their names.
const (
	Default Variant = ""        // what the distribution has made the default
	Legacy  Variant = "-legacy" // the tables that were before nf_tables
)

// Tool is the programs of a family and variant, run in a namespace.
type Tool struct {
	Node    *ns.Handle
	Family  Family
	Variant Variant
	// Wait is how long a program may wait for the lock that all of them share
	// (/run/xtables.lock), in whole seconds; zero: ten.
	Wait time.Duration
}

func (t Tool) wait() time.Duration {
	if t.Wait == 0 {
		return 10 * time.Second
	}
	return t.Wait
}

// patience is how long a program may run once it has the lock.
const patience = 10 * time.Second

// Restore makes the changes of a script in the form of iptables-save, all of them or
// none. Chains that the script declares (":CHAIN -") are flushed, others are not.
//
// What the script cannot do in the tables as they are (a chain that exists, a rule
// that does not) is ErrRefused. A missing program has types.CodeConfig, a lock that
// is not got in time types.CodeTryAgain, what the program does not understand
// types.CodeConfig.
func (t Tool) Restore(what, script string) error {
	program, err := t.program("restore")
	if err != nil {
		return err
	}
	seconds := strconv.Itoa(int(t.wait().Seconds()))
	_, err = t.run(what, script, program, "--noflush", "--wait", seconds)
	return err
}

// Save lists a table in the form that Restore reads.
func (t Tool) Save(table string) (string, error) {
	program, err := t.program("save")
	if err != nil {
		return "", err
	}
	return t.run("list table "+table, "", program, "-t", table)
}

// Find is nil if the programs are there; else an error with types.CodeConfig.
func (t Tool) Find() error {
	_, err := t.program("restore")
	return err
}

// program finds iptables-restore or its sisters. A runtime may call plugins with
// any PATH, so the folders where the programs are on every distribution count too.
func (t Tool) program(verb string) (string, error) {
	name := string(t.Family) + string(t.Variant) + "-" + verb
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
	return "", types.Errorf(types.CodeConfig,
		"the iptables backend needs the program %s: install iptables, or use the nftables backend, which needs no program: %w", name, err)
}

// ErrRefused says that a script does not fit the tables as they are.
var ErrRefused = errors.New("refused")

// run runs a program in the namespace: a child belongs to the namespace of the
// thread that forks it. The program dies with a plugin that is killed: what it does is
// done whole or not at all, and done after the DEL that follows, it would stay. Its
// death is bound to the thread, which therefore waits for it.
func (t Tool) run(what, stdin, program string, args ...string) (string, error) {
	limit := t.wait() + patience
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var out, errOut strings.Builder
	step := filepath.Base(program) + ": " + what
	err := t.Node.Step(step, func() error {
		return t.Node.Do(func() error {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			cmd := exec.CommandContext(ctx, program, args...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			cmd.WaitDelay = patience // for what it wrote, on a busy node
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errOut
			return cmd.Run()
		})
	})
	if err == nil {
		return out.String(), nil
	}
	if ctx.Err() != nil {
		return "", types.Errorf(types.CodeTryAgain, "%s: it still ran after %s and was ended: %w", step, limit, err)
	}
	return "", explain(step, errOut.String(), err)
}

// Exit statuses of the iptables programs (include/xtables.h: xtables_exittype).
const (
	otherProblem     = 1
	parameterProblem = 2
	resourceProblem  = 4
)

// explain makes an error of an exit status and of what the program wrote.
func explain(step, wrote string, err error) error {
	if wrote = strings.Join(strings.Fields(wrote), " "); wrote != "" {
		err = fmt.Errorf("%w: %s", err, wrote)
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return fmt.Errorf("%s: %w", step, err)
	}
	switch exit.ExitCode() {
	case otherProblem:
		return fmt.Errorf("%s: %w: %w", step, ErrRefused, err)
	case parameterProblem: // a chain, a match or an option that there is not
		return types.Errorf(types.CodeConfig, "%s: %w", step, err)
	case resourceProblem:
		return types.Errorf(types.CodeTryAgain, "%s: the tables are busy (another program holds the lock); try again: %w", step, err)
	}
	return fmt.Errorf("%s: %w", step, err)
}

// InUse reports whether the namespace has that table in its older form, which only
// the Legacy programs see. No program is run. A kernel without that form has none.
func InUse(node *ns.Handle, f Family, table string) (bool, error) {
	// The net folder of /proc/net is that of the process's first thread.
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

// EachLegacy calls visit for each family with what the table in its older form has,
// and with the programs for it. Only where the namespace has that table is a program
// run. A node without the programs has no rules of ours there.
func EachLegacy(node *ns.Handle, table string, visit func(t Tool, saved string) error) error {
	var errs []error
	for _, f := range []Family{V4, V6} {
		used, err := InUse(node, f, table)
		errs = append(errs, err)
		if !used {
			continue
		}
		tool := Tool{Node: node, Family: f, Variant: Legacy}
		if tool.Find() != nil { // before 1.8 there was one iptables, which is this
			tool.Variant = Default
		}
		if tool.Find() != nil {
			continue
		}
		saved, err := tool.Save(table)
		if err == nil {
			err = visit(tool, saved)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Quote puts a text into the form of a word of a script.
func Quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// Words takes a line of a script apart: the inverse of Quote and spaces.
func Words(line string) []string {
	var words []string
	var word strings.Builder
	open, quoted, escaped := false, false, false
	for _, ch := range line {
		switch {
		case escaped:
			word.WriteRune(ch)
			escaped = false
		case quoted && ch == '\\':
			escaped = true
		case ch == '"':
			quoted, open = !quoted, true
		case ch == ' ' && !quoted:
			if open {
				words = append(words, word.String())
			}
			word.Reset()
			open = false
		default:
			word.WriteRune(ch)
			open = true
		}
	}
	if open {
		words = append(words, word.String())
	}
	return words
}
