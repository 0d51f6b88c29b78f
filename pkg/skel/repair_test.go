package skel_test

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A repairable is the state of a plugin whose CHECK fails until its REPAIR was called.
type repairable struct {
	t               *testing.T
	lock, container string
	broken          bool
	calls           []string
}

func (s *repairable) run(verb, id string) (status int, stdout string) {
	s.t.Helper()
	var out, log bytes.Buffer
	status = skel.Run(skel.Plugin{
		Name: "test",
		Del:  func(*skel.Request) error { s.calls = append(s.calls, "DEL"); return nil },
		Add:  func(*skel.Request) (*types.Result, error) { return &types.Result{}, nil },
		Check: func(*skel.Request) error {
			s.calls = append(s.calls, "CHECK")
			if s.broken {
				return types.Errorf(types.CodeChanged, "a rule is missing")
			}
			return nil
		},
		Repair: func(r *skel.Request) error {
			s.calls = append(s.calls, "REPAIR")
			r.Undo.Push("undo", func() error { s.calls = append(s.calls, "undo"); return nil })
			if id == "refused" {
				return errors.New("the kernel refused the rule")
			}
			s.broken = false
			return nil
		},
	}, skel.Env{
		Environ: []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + id, "CNI_NETNS=" + s.container, "CNI_IFNAME=eth0", "CNI_PATH=/bin"},
		Stdin:   strings.NewReader(plain), Stdout: &out, Stderr: &log, Lock: s.lock, Pipe: gone,
	})
	return status, out.String()
}

// expect runs a verb and compares the handlers that were called.
func (s *repairable) expect(verb, id string, status int, text string, calls ...string) {
	s.t.Helper()
	s.calls = nil
	got, out := s.run(verb, id)
	if got != status || !strings.Contains(out, text) || !slices.Equal(s.calls, calls) {
		s.t.Errorf("%s of %s: status %d, %s, handlers:\n%s", verb, id, got, out, cmp.Diff(calls, s.calls))
	}
}

func TestRepair(t *testing.T) {
	s := &repairable{t: t, lock: filepath.Join(t.TempDir(), "lock"), container: newNS(t)}

	s.expect("REPAIR", "c1", 0, "", "CHECK")
	s.broken = true
	s.expect("REPAIR", "c1", 0, "", "CHECK", "REPAIR", "CHECK")
	s.broken = true
	s.expect("REPAIR", "refused", 1, "the kernel refused the rule; a rule is missing", "CHECK", "REPAIR", "CHECK")

	s.expect("DEL", "c1", 0, "", "DEL")
	s.expect("REPAIR", "c1", 1, "a DEL of net/c1/eth0 has begun")
	s.broken = false
	s.expect("REPAIR", "c2", 0, "", "CHECK")
	s.expect("ADD", "c1", 0, "")
	s.expect("REPAIR", "c1", 0, "", "CHECK")
}
