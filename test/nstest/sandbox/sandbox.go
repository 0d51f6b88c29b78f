// Package sandbox lets ordinary users run the tests of each package that imports it, directly or through nstest. It runs
// them as root of a new user namespace, in new network and mount namespaces (scripts/sandbox.sh).
package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// started is set in the environment of a test binary, so that a test can start the binary again as another user.
const started = "PLUMB_TEST_STARTED"

func init() {
	if !testing.Testing() || os.Getenv(started) != "" {
		return
	}
	_ = os.Setenv(started, "1")
	if os.Geteuid() != 0 {
		enter()
	}
}

// enter starts the test binary again with scripts/sandbox.sh and -short, which the user's -short=false overrides. If the
// system forbids user namespaces, it prints that the tests of the package are skipped, and ends the process with status 0.
func enter() {
	_ = os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin") // an ordinary user's PATH may lack ip and nft
	if out, err := exec.Command("unshare", "--map-root-user", "--mount", "--net", "true").CombinedOutput(); err != nil {
		skipAll(fmt.Sprintf("root, or a system that allows user namespaces: %v: %s", err, strings.TrimSpace(string(out))))
	}
	dir, err := os.Getwd()
	script := filepath.Join(Above(dir, "scripts/sandbox.sh"), "scripts/sandbox.sh")
	if err == nil {
		err = syscall.Exec(script, append([]string{script, os.Args[0], "-test.short"}, os.Args[1:]...), os.Environ())
	}
	fatal(fmt.Errorf("%s: %w", script, err))
}

// RequireRoot skips all tests of a package that need more than root of a user namespace, with the reason, which completes
// "root of the host". Call it from TestMain. nstest.RequireRoot skips a single test.
func RequireRoot(reason string) {
	if !IsRootOfHost() {
		skipAll("root of the host " + reason)
	}
}

// skipAll prints that the tests of the package are skipped, and ends the process with status 0.
func skipAll(need string) {
	text := "all tests of " + filepath.Base(os.Args[0]) + ": " + need
	fmt.Println("SKIP:", text)
	if err := Record("lacks", text); err != nil {
		fatal(err)
	}
	os.Exit(0)
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// IsRootOfHost reports whether this process's user namespace is the first one, or the kernel supports no others.
func IsRootOfHost() bool {
	ids, err := os.ReadFile("/proc/self/uid_map")
	return err != nil || strings.HasSuffix(strings.TrimSpace(string(ids)), " 4294967295")
}

// Above returns the first directory that contains the file, beginning with dir and followed by the directories above it, or "".
func Above(dir, file string) string {
	for ; dir != "" && dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
			return dir
		}
	}
	return ""
}

// Record appends a line, for example "lacks plugins/bridge: <test>: <feature>", to the file that CNI_TEST_NEEDS names. It does
// nothing without the variable.
func Record(verb, text string) error {
	file := os.Getenv("CNI_TEST_NEEDS")
	if file == "" {
		return nil
	}
	dir, err := os.Getwd()
	if err == nil {
		dir, err = filepath.Rel(Above(dir, "go.mod"), dir)
	}
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s %s: %s\n", verb, dir, text)
	return errors.Join(err, f.Close())
}
