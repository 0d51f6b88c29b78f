// Package bigendian runs tests of encoders and decoders for s390x, the one big-endian
// architecture of a release, under an emulator.
package bigendian

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/test/nstest"
)

const (
	arch     = "s390x"
	emulator = "qemu-s390x-static"
)

// Tests are those that need no kernel: an emulator of a processor hands system calls to
// this machine's, and not all of netlink. So FuzzCheck, which attaches containers, is skipped. Each row has to run one test at least.
var rows = []struct{ packages, tests, what string }{
	{"./pkg/types", ".", "configurations, results, errors"},
	{"./pkg/...", "^(Fuzz.*|Test(Encode|Decode|Reader|CommentOf|Owner|VLANsTravelAsRanges|FlowMatches|Requests|Answers))$", "messages to the kernel"},
	{"./plugins/host-local", "^(Fuzz|Test(LocalType|Spans|Parse))", "the pool's files"},
	{"./plugins/tuning", "^Fuzz", "the file of what was before"},
}

func TestBigEndian(t *testing.T) {
	if runtime.GOARCH == arch {
		t.Skip("every test is one here")
	}
	if _, err := exec.LookPath(emulator); err != nil {
		t.Skipf("%v: install qemu-user-static", err)
	}
	for _, row := range rows {
		t.Run(row.what, func(t *testing.T) {
			cmd := exec.Command("go", "test", "-count=1", "-v", "-timeout=60m", "-skip=^FuzzCheck$", "-exec="+emulator, "-run="+row.tests, row.packages)
			cmd.Dir, cmd.Env = nstest.Root(t), append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=")
			out, err := cmd.CombinedOutput()
			passed := strings.Count("\n"+string(out), "\n--- PASS: ")
			t.Logf("%d tests", passed)
			if err != nil || passed == 0 {
				t.Errorf("%v, %d tests passed: %v\n%s", cmd.Args, passed, err, out)
			}
		})
	}
}
