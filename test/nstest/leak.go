package nstest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// LeakCheck fails the test if the test leaks file descriptors, goroutines, child processes or threads in other
// network namespaces that did not exist at this call. Call it before any function that registers a
// Cleanup, and not in tests that run in parallel.
//
// The garbage collector would hide leaked files, because it closes unreachable ones. Therefore it runs during
// the test only if the heap becomes large.
func LeakCheck(tb TB) {
	tb.Helper()
	warmRuntime()
	percent, limit := debug.SetGCPercent(-1), debug.SetMemoryLimit(1<<30)
	tb.Cleanup(func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	})
	before := inventory()
	tb.Cleanup(func() {
		tb.Helper()
		deadline := time.Now().Add(waitLimit)
		for {
			leaked := added(before, inventory())
			if len(leaked) == 0 {
				return
			}
			if time.Now().After(deadline) { // goroutines may end late
				tb.Errorf("leaked:\n%s", strings.Join(leaked, "\n"))
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// warmRuntime causes the runtime to open the descriptors of its poller, which it never closes.
func warmRuntime() {
	r, w, err := os.Pipe()
	if err == nil {
		_ = r.SetDeadline(time.Now())
		_, _ = r.Close(), w.Close()
	}
}

// inventory returns a map whose keys identify everything that may leak. The values are details.
func inventory() map[string]string {
	all := map[string]string{}
	for _, fd := range entries("/proc/self/fd") {
		if target, err := os.Readlink(fd); err == nil { // the descriptor that read the directory is already closed
			all["fd "+filepath.Base(fd)+" "+target] = ""
		}
	}
	for _, task := range entries("/proc/self/task") {
		children, _ := os.ReadFile(task + "/children")
		for _, pid := range strings.Fields(string(children)) {
			command, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			all["child process "+pid] = strings.ReplaceAll(string(command), "\x00", " ")
		}
		if ns, err := os.Readlink(task + "/ns/net"); err == nil {
			all["thread in "+ns] = ""
		}
	}
	buf := make([]byte, 1<<20)
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		id, rest, _ := strings.Cut(stack, " [")
		if !slices.ContainsFunc(ownGoroutines, func(f string) bool { return strings.Contains(rest, f) }) {
			all[id] = rest
		}
	}
	return all
}

// ownGoroutines lists functions in the stacks of the standard library's goroutines and of the goroutine that
// calls inventory.
var ownGoroutines = []string{"nstest.inventory(", "os/signal.loop", "runtime.ensureSigM", "testing.(*M).startAlarm", "testing.tRunner.func"}

func added(before, after map[string]string) []string {
	var leaked []string
	for what, detail := range after {
		if _, had := before[what]; !had {
			leaked = append(leaked, fmt.Sprintf("%s %s", what, detail))
		}
	}
	slices.Sort(leaked)
	return leaked
}

func entries(dir string) []string {
	list, _ := os.ReadDir(dir)
	var all []string
	for _, e := range list {
		all = append(all, filepath.Join(dir, e.Name()))
	}
	return all
}
