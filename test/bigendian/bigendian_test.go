// Package bigendian runs the tests of encoders and decoders for s390x, the only big-endian
// architecture of a release, in an emulator.
package bigendian

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

const (
	arch     = "s390x"
	emulator = "qemu-s390x-static"
)

// rows lists the tests that run in the emulator. Each row must match at least one test. The
// emulator passes system calls to this machine's kernel, but does not support all of netlink.
// Therefore it skips FuzzCheck, which attaches containers.
var rows = []struct{ packages, tests, what string }{
	{"./pkg/types", ".", "configurations, results, errors"},
	{"./pkg/...", "^(Fuzz.*|Test(Encode|Decode|Reader|CommentOf|Owner|VLANRanges|Requests|Answers))$", "messages to the kernel"},
	{"./pkg/pool", "^(Fuzz|Test(LocalType|UsableAfter|Parse))", "host-local's files"},
	{"./plugins/dhcp/internal/dhcp4", "^(Fuzz|Test(Encode|Decode))", "DHCP and ARP messages"},
	{"./plugins/dhcp/daemon", "^Fuzz", "the DHCP daemon's requests and lease files"},
	{"./plugins/tuning", "^Fuzz", "tuning's state file"},
	{"./plugins/cluster-local", "^(Fuzz|Test(SizeOf|Target|State))", "the addresses that cluster-local owns"},
}

func TestBigEndian(t *testing.T) {
	if runtime.GOARCH == arch {
		t.Skip("this processor is big-endian")
	}
	if testing.Short() { // an ordinary user's go test ./...
		nstest.RequireRoot(t, "because it compiles most packages for another processor, which takes minutes")
	}
	if _, err := exec.LookPath(emulator); err != nil {
		t.Skipf("%v; install qemu-user-static", err)
	}
	for _, row := range rows {
		t.Run(row.what, func(t *testing.T) {
			cmd := exec.Command("go", "test", "-count=1", "-v", "-vet=off", "-trimpath", "-timeout=60m", "-skip=^FuzzCheck$", "-exec="+emulator, "-run="+row.tests, row.packages)
			cmd.Dir, cmd.Env = nstest.Root(t), append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=")
			out, err := cmd.CombinedOutput()
			passed := strings.Count("\n"+string(out), "\n--- PASS: ")
			t.Logf("%d tests", passed)
			if err != nil || passed == 0 {
				t.Errorf("%v: want success with at least one test, got %d tests, %v\n%s", cmd.Args, passed, err, out)
			}
		})
	}
}
