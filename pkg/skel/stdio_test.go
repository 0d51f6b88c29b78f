package skel_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// program returns a command that runs the test binary as a plugin, with redirections of the shell. undone
// reports whether the plugin's ADD was undone.
func program(t *testing.T, redirections string, env ...string) (cmd *exec.Cmd, undone func() bool) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "undone")
	self, err := os.Executable()
	nstest.Must(t, err)
	cmd = exec.Command("/bin/sh", "-c", `exec "$0" `+redirections, self)
	cmd.Env = append([]string{"SKEL_TEST_PLUGIN=" + file, "CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_NETNS=" + gone, "CNI_IFNAME=eth0", "CNI_PATH=/bin"}, env...)
	cmd.Stdin = strings.NewReader(plain)
	return cmd, func() bool {
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
		return string(text) == "undone"
	}
}

// TestAddIsUndoneIfItsResultCannotBeWritten also checks that SIGPIPE does not end the plugin before its ADD
// is undone.
func TestAddIsUndoneIfItsResultCannotBeWritten(t *testing.T) {
	exited, in, err := os.Pipe()
	nstest.Must(t, errors.Join(err, exited.Close()))
	defer func() { _ = in.Close() }()
	cmd, undone := program(t, "")
	cmd.Stdout = in
	if err := cmd.Run(); err == nil || !undone() {
		t.Errorf("the runtime has exited: %v, undone: %t", err, undone())
	}
	for redirection, fails := range map[string]bool{">&-": true, "1<>/dev/null": true, ">/dev/null": false, "": false, ">/dev/full": true} {
		var stderr strings.Builder
		cmd, undone := program(t, redirection)
		cmd.Stderr = &stderr
		err := cmd.Run()
		if (err != nil) != fails || undone() != fails {
			t.Errorf("%q: %v, undone: %t, stderr %q", redirection, err, undone(), stderr.String())
		}
		if fails && !strings.Contains(stderr.String(), "test: write result to stdout: ") {
			t.Errorf("%q: stderr %q", redirection, stderr.String())
		}
	}
}

// TestVersionDoesNotWaitForInput checks that a caller of VERSION need not write anything or close the
// stream.
func TestVersionDoesNotWaitForInput(t *testing.T) {
	for input, want := range map[string]string{"": "1.1.0", `{"cniVersion":"0.4.0"}`: "0.4.0"} {
		out, in, err := os.Pipe()
		nstest.Must(t, err)
		if _, err := in.WriteString(input); err != nil {
			t.Fatal(err)
		}
		cmd, _ := program(t, "", "CNI_COMMAND=VERSION")
		cmd.Stdin = out
		answer, err := cmd.Output()
		if err != nil || !strings.HasPrefix(string(answer), `{"cniVersion":"`+want+`",`) {
			t.Errorf("%q: %s, %v", input, answer, err)
		}
		_, _ = out.Close(), in.Close()
	}
	cmd, _ := program(t, "<&-", "CNI_COMMAND=VERSION")
	if answer, err := cmd.Output(); err != nil || !strings.HasPrefix(string(answer), `{"cniVersion":"1.1.0",`) {
		t.Errorf("stdin is closed: %s, %v", answer, err)
	}
}

func TestMonitorThreadWakesUpSeldom(t *testing.T) {
	cmd, _ := program(t, "")
	if answer, err := cmd.Output(); err != nil || !strings.Contains(string(answer), `"domain": "1000000"`) {
		t.Errorf("want a timer slack of 1000000 ns, got %s, %v", answer, err)
	}
}

// TestErrorSaysThatProcIsNotMounted needs a mount namespace of its own.
func TestErrorSaysThatProcIsNotMounted(t *testing.T) {
	nstest.RequireRoot(t, "to unmount /proc")
	self, err := os.Executable()
	nstest.Must(t, err)
	cmd := exec.Command("unshare", "--mount", "sh", "-c", `umount -l /proc && exec "$0"`, self)
	cmd.Env = []string{"SKEL_TEST_PLUGIN=x", "SKEL_TEST_NODE=1", "CNI_COMMAND=STATUS", "CNI_PATH=/bin", "PATH=" + os.Getenv("PATH")}
	cmd.Stdin = strings.NewReader(plain)
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "unshare failed") {
		t.Skip(string(out))
	}
	const want = `"msg": "open own namespace: open netns /proc/thread-self/ns/net: no such file or directory: is /proc mounted?"`
	if err == nil || !strings.Contains(string(out), want) {
		t.Errorf("%v: %s", err, out)
	}
}
