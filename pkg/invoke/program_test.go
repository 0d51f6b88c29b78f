package invoke

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

func (b *testCaller) runProgram(t *testing.T, limit time.Duration) (out []byte, err error) {
	t.Helper()
	b.add(t, func(r *skel.Request) { out, err = RunProgram(r, "fake", []byte("input"), limit) })
	return out, err
}

func TestProgramGetsInputAndNoCNIVariablesButThePath(t *testing.T) {
	b := newTestCaller(t, `cat; echo; env; echo told >&2`)
	out, err := b.runProgram(t, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var cni []string
	for _, l := range lines[1:] {
		if strings.HasPrefix(l, "CNI_") || strings.HasPrefix(l, "PLUMB_") {
			cni = append(cni, l)
		}
	}
	if lines[0] != "input" || !slices.Equal(cni, []string{"CNI_PATH=" + b.dir}) || !slices.Contains(lines, "DIR="+b.dir) || !slices.Contains(lines, "GOMAXPROCS=1") {
		t.Errorf("the program got %q", lines)
	}
	if got := b.stderr.String(); got != "told\n" {
		t.Errorf("stderr is %q", got)
	}
}

func TestProgramThatFailsReturnsItsOutput(t *testing.T) {
	out, err := newTestCaller(t, `cat; exit 1`).runProgram(t, time.Minute)
	if string(out) != "input" || err == nil || err.Error() != "exit status 1" || errors.Is(err, ErrKilled) || errors.Is(err, ErrNotStarted) {
		t.Errorf("output %q, error %v", out, err)
	}
}

func TestProgramIsKilledAfterTheLimit(t *testing.T) {
	out, err := newTestCaller(t, `cat; exec sleep 600`).runProgram(t, time.Second)
	if string(out) != "input" || !errors.Is(err, ErrKilled) || !errors.Is(err, os.ErrDeadlineExceeded) || types.AsError(err).Code != types.CodeTryAgain {
		t.Errorf("output %q, error %v", out, err)
	}
}

func TestProgramThatPrintsTooMuchIsKilled(t *testing.T) {
	_, err := newTestCaller(t, `exec yes`).runProgram(t, time.Minute)
	if !errors.Is(err, ErrKilled) || types.AsError(err).Code != types.CodeDecode {
		t.Errorf("error %v", err)
	}
}

func TestProgramThatHasNotRun(t *testing.T) {
	b := newTestCaller(t, ``)
	b.write(t, "fake", "no program", 0o755)
	if _, err := b.runProgram(t, time.Minute); !errors.Is(err, ErrNotStarted) {
		t.Errorf("a file that cannot be started: error %v", err)
	}
	if err := os.Remove(b.dir + "/fake"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.runProgram(t, time.Minute); !errors.Is(err, ErrNotStarted) || !errors.Is(err, fs.ErrNotExist) || types.AsError(err).Code != types.CodeConfig {
		t.Errorf("no such file: error %v", err)
	}
	b = newTestCaller(t, `echo x > "$DIR/ran"`)
	b.before = func(step string) error {
		if step == "run fake" {
			return fs.ErrInvalid
		}
		return nil
	}
	if _, err := b.runProgram(t, time.Minute); !errors.Is(err, ErrNotStarted) || !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("a step that is refused: error %v", err)
	}
	if _, err := os.Stat(b.dir + "/ran"); err == nil {
		t.Error("the program ran although its step was refused")
	}
}
