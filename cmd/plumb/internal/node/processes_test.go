package node

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/life"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	_ "github.com/plumb-cni/plumb/v2/test/nstest/sandbox"
)

// TestStateIsUnknownInOtherPIDNamespace covers a process of the host's network namespace that has, in another
// PID namespace, the PID of a running container.
func TestStateIsUnknownInOtherPIDNamespace(t *testing.T) {
	if os.Getpid() != 1 {
		out, err := exec.Command("unshare", "--pid", "--fork", "--mount-proc", os.Args[0], "-test.run", "^"+t.Name()+"$").CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	host, err := ns.Self(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	if state := stateOf("/proc/1/ns/net", time.Now(), host); state != life.Unknown {
		t.Errorf("want life.Unknown (%d), got %d", life.Unknown, state)
	}
}
