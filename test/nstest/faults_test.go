package nstest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// toy returns a plugin with two steps. It adds a veth pair between host and container, and sets an alias.
// forget names what the plugin omits, which is "undo", "error" for returning errors, "del", or "" for
// nothing.
func toy(forget string) skel.Plugin {
	run := func(h *ns.Handle, step string, args ...string) error {
		return h.Step(step, func() error {
			n := &NS{path: h.Path(), fd: h.FD()}
			_, err := n.Exec("ip", args...)
			return err
		})
	}
	add := func(r *skel.Request) (*types.Result, error) {
		name := "t" + r.ContainerID
		if err := run(r.HostNS, "add veth", "link", "add", name, "type", "veth", "peer", "name", r.IfName, "netns", r.NetNS); err != nil {
			return nil, err
		}
		if forget != "undo" {
			r.Undo.Push("delete veth", func() error { return run(r.HostNS, "delete veth", "link", "del", name) })
		}
		err := run(r.HostNS, "set alias", "link", "set", name, "alias", r.ContainerID)
		if forget == "error" {
			err = nil
		}
		return &types.Result{}, err
	}
	del := func(r *skel.Request) error {
		name := "t" + r.ContainerID
		n := &NS{path: r.HostNS.Path(), fd: r.HostNS.FD()}
		if _, err := n.Exec("ip", "link", "show", name); err != nil || forget == "del" {
			return nil
		}
		return run(r.HostNS, "delete veth", "link", "del", name)
	}
	return skel.Plugin{Name: "toy", Add: add, Del: del}
}

const toyConfig = `{"cniVersion": "1.1.0", "name": "n", "type": "toy"}`

// A verdict is a TB that collects errors instead of failing.
type verdict struct {
	*testing.T
	errors []string
}

func (v *verdict) Errorf(format string, args ...any) {
	v.errors = append(v.errors, fmt.Sprintf(format, args...))
}

func TestFaultSweepFindsWhatAPluginForgets(t *testing.T) {
	LeakCheck(t)
	for forget, want := range map[string]string{
		"":      "",
		"undo":  "ADD, step refused: step 2 (set alias): not as before:\n+ container: link eth0 …\n+ host: link tswept ",
		"error": "ADD, step refused: step 2 (set alias): succeeded in spite of the fault",
		"del":   "ADD, outcome lost: step 1 (add veth): not as before:\n+ container: link eth0 …\n+ host: link tswept ",
	} {
		v := &verdict{T: t}
		sweep := Sweep{Plugin: toy(forget), Config: toyConfig, everyStep: true}
		if forget != "" {
			sweep.settleTime = time.Millisecond // leftovers never disappear
		}
		FaultSweep(v, sweep)
		got := strings.Join(v.errors, "\n")
		begin, rest, _ := strings.Cut(want, "…")
		if _, after, found := strings.Cut(got, begin); want == "" && got != "" || !found || !strings.Contains(after, rest) {
			t.Errorf("forgetting %q: want the report %q, got %q", forget, want, got)
		}
	}
}

func TestErrorsOfUnsupportedFeatures(t *testing.T) {
	if !isUnsupported(fmt.Errorf("add vlan: %w", os.ErrNotExist)) || !isUnsupported(errors.New("RTNETLINK answers: Operation not supported")) {
		t.Error("an error of an unsupported feature is not recognized")
	}
	if isUnsupported(os.ErrPermission) {
		t.Error("EPERM is treated as an error of an unsupported feature")
	}
}

func TestRequireFeatureRecordsFeatures(t *testing.T) {
	file := t.TempDir() + "/needs"
	t.Setenv("CNI_TEST_NEEDS", file)
	t.Setenv("CNI_TEST_REQUIRE", "")
	RequireFeature(t, "air", nil)
	t.Run("skipped", func(t *testing.T) { RequireFeature(t, "ether", os.ErrNotExist) })
	want := "has test/nstest: TestRequireFeatureRecordsFeatures: air\nlacks test/nstest: TestRequireFeatureRecordsFeatures/skipped: ether\n"
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("want the record %q, got %q, %v", want, got, err)
	}
}
