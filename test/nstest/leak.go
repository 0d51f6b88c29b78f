package nstest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// LeakCheck fails the test when it ends with file descriptors, goroutines, child
// processes or threads in foreign namespaces that were not there when LeakCheck was
// called. It has to be called before whatever registers a Cleanup, and not in tests
// that run in parallel.
func LeakCheck(tb TB) {
	tb.Helper()
	warmRuntime()
	before := inventory()
	tb.Cleanup(func() {
		tb.Helper()
		deadline := time.Now().Add(patience)
		for {
			leaked := missingIn(before, inventory())
			if len(leaked) == 0 {
				return
			}
			if time.Now().After(deadline) { // goroutines end a little after they are told
				tb.Errorf("leaked:\n%s", strings.Join(leaked, "\n"))
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// warmRuntime makes the runtime open what it keeps for good: its poller.
func warmRuntime() {
	r, w, err := os.Pipe()
	if err == nil {
		_ = r.SetDeadline(time.Now())
		_, _ = r.Close(), w.Close()
	}
}

// inventory maps what may leak to a description of it.
func inventory() map[string]string {
	all := map[string]string{}
	for _, fd := range entries("/proc/self/fd") {
		if target, err := os.Readlink(fd); err == nil { // but for the one that reads the folder
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
		if !slices.ContainsFunc(runtimesOwn, func(f string) bool { return strings.Contains(rest, f) }) {
			all[id] = rest
		}
	}
	return all
}

// runtimesOwn are the goroutines that the standard library keeps, and the one that asks.
var runtimesOwn = []string{"nstest.inventory(", "os/signal.loop", "runtime.ensureSigM", "testing.(*M).startAlarm", "testing.tRunner.func"}

func missingIn(before, after map[string]string) []string {
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
