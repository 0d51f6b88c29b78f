package traces

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/trace"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// record returns a record of a call, some milliseconds after noon.
func record(event, call string, at int) trace.Record {
	r := trace.Record{Event: event, Call: call, Time: noon.Add(time.Duration(at) * time.Millisecond)}
	if event == trace.EventStep {
		r.Step = "step of " + call
		return r
	}
	pids := map[string]int{"bridge": 10, "host-local": 11}
	r.About = &trace.Call{Command: "ADD", Plugin: call, Network: "pods", ContainerID: "c1", IfName: "eth0", PID: pids[call], ParentPID: 1}
	if call == "host-local" {
		r.About.ParentPID = pids["bridge"]
	}
	return r
}

func none(int) bool { return false }

// addAll adds records, and returns the calls that end.
func addAll(o *openCalls, records ...trace.Record) (done []*Call) {
	for _, r := range records {
		if c := o.add(r); c != nil {
			done = append(done, c)
		}
	}
	return done
}

func asJSON(t *testing.T, calls []*Call) string {
	t.Helper()
	b, err := json.Marshal(calls)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestCallOfAnIPAMPluginIsWithinThatOfItsCaller(t *testing.T) {
	o := newOpenCalls(none)
	failed := record(trace.EventEnd, "host-local", 2)
	failed.Error, failed.Code, failed.DurationMS = "exhausted", 11, 3
	lost := record(trace.EventEnd, "bridge", 0)
	lost.Lost, lost.DurationMS = 4, 9
	done := addAll(o,
		record(trace.EventBegin, "bridge", 0), record(trace.EventBegin, "host-local", 2), record(trace.EventStep, "host-local", 3),
		record(trace.EventStep, "bridge", 1), record(trace.EventStep, "unknown", 1), failed, lost)
	const want = `[{"time":"2026-01-02T12:00:00Z","network":"pods","container":"c1","ifName":"eth0","command":"ADD","plugin":"bridge","pid":10,` +
		`"outcome":"ok","durationMs":9,"lostLines":4,"steps":[{"step":"step of bridge","offsetMs":1,"durationMs":0}],"calls":[` +
		`{"time":"2026-01-02T12:00:00.002Z","network":"pods","container":"c1","ifName":"eth0","command":"ADD","plugin":"host-local","pid":11,` +
		`"outcome":"failed","durationMs":3,"error":{"code":11,"message":"exhausted"},"steps":[{"step":"step of host-local","offsetMs":1,"durationMs":0}],"calls":[]}]}]`
	if got := asJSON(t, done); got != want {
		t.Errorf("want %s\ngot  %s", want, got)
	}
	if len(o.byID) > 0 {
		t.Errorf("want no open calls, got %v", o.byID)
	}
}

// TestKilledCalls checks that a call counts as killed only when its process was gone at two checks, because the last
// records of the process may be unread at the first one.
func TestKilledCalls(t *testing.T) {
	o := newOpenCalls(none)
	addAll(o, record(trace.EventBegin, "bridge", 0), record(trace.EventBegin, "host-local", 2))
	killed := func(gone ...int) []*Call {
		o.gone = func(pid int) bool { return slices.Contains(gone, pid) }
		return o.removeKilled()
	}
	for i, gone := range [][]int{{}, {11}, {11}} {
		if done := killed(gone...); len(done) > 0 {
			t.Errorf("check %d: want no killed calls, got %s", i, asJSON(t, done))
		}
	}
	if _, open := o.byID["host-local"]; open {
		t.Error("the call of host-local, whose process is gone, is still open")
	}
	if done := killed(10, 11); len(done) > 0 {
		t.Errorf("first check of bridge: want no killed calls, got %s", asJSON(t, done))
	}
	done := killed(10, 11)
	if len(done) != 1 || done[0].Outcome != OutcomeKilled || done[0].DurationMS != 0 || len(done[0].Calls) != 1 || done[0].Calls[0].Outcome != OutcomeKilled {
		t.Errorf("want bridge and host-local as killed, got %s", asJSON(t, done))
	}
}

func TestProcessesOfOtherPIDNamespacesAreNotKilled(t *testing.T) {
	o := newOpenCalls(func(int) bool { return true })
	addAll(o, record(trace.EventBegin, "bridge", 0))
	for range 3 {
		if done := o.removeKilled(); len(done) > 0 {
			t.Errorf("want no killed calls, got %s", asJSON(t, done))
		}
	}
}

func TestEndOfTheTraceReportsRunningCalls(t *testing.T) {
	o := newOpenCalls(none)
	addAll(o, record(trace.EventBegin, "bridge", 0), record(trace.EventBegin, "host-local", 2), record(trace.EventBegin, "loopback", 1))
	done := o.removeRunning(noon.Add(10 * time.Millisecond))
	if len(done) != 2 || done[0].Plugin != "bridge" || done[0].DurationMS != 10 || done[0].Outcome != OutcomeRunning ||
		len(done[0].Calls) != 1 || done[0].Calls[0].DurationMS != 8 || done[1].Plugin != "loopback" {
		t.Errorf("want running calls of bridge and loopback, got %s", asJSON(t, done))
	}
}

// TestCallerIsTheLatestCallOfTheProcess covers a PID that is reused after the process of an earlier call was killed.
func TestCallerIsTheLatestCallOfTheProcess(t *testing.T) {
	for range 50 { // the iteration order of a map is random
		o := newOpenCalls(none)
		killed := record(trace.EventBegin, "bridge", 0)
		killed.Call = "killed"
		addAll(o, killed, record(trace.EventBegin, "bridge", 2), record(trace.EventBegin, "host-local", 3))
		done := addAll(o, record(trace.EventEnd, "host-local", 3), record(trace.EventEnd, "bridge", 2))
		if len(done) != 1 || len(done[0].Calls) != 1 {
			t.Fatalf("want one call with one inner call, got %s", asJSON(t, done))
		}
	}
}

func TestIncompleteLineThatIsTooLongIsDropped(t *testing.T) {
	o := newOpenCalls(none)
	_, rest := o.addLines(bytes.Repeat([]byte("x"), trace.MaxPipeLine+1))
	if len(rest) > 0 {
		t.Errorf("want no rest, got %d bytes", len(rest))
	}
}

func TestSplitAndInvalidLines(t *testing.T) {
	line, err := json.Marshal(record(trace.EventEnd, "bridge", 0))
	if err != nil {
		t.Fatal(err)
	}
	text := "no record\n\n{}\n" + string(line) + "\n"
	for cut := range len(text) {
		o := newOpenCalls(none)
		first, rest := o.addLines([]byte(text[:cut]))
		second, rest := o.addLines(append(rest, text[cut:]...))
		if len(first)+len(second) != 1 || len(rest) > 0 || len(o.byID) > 0 {
			t.Fatalf("cut at %d: want one call, got %s and %s, rest %q, open %v", cut, asJSON(t, first), asJSON(t, second), rest, o.byID)
		}
	}
}

func FuzzLines(f *testing.F) {
	for _, event := range []string{trace.EventBegin, trace.EventStep, trace.EventEnd} {
		line, err := json.Marshal(record(event, "bridge", 0))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(line, '\n'))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		o := newOpenCalls(none)
		done, rest := o.addLines(text)
		if bytes.ContainsRune(rest, '\n') {
			t.Errorf("the rest %q contains a whole line", rest)
		}
		for _, c := range append(done, o.removeRunning(noon)...) {
			if c.Outcome == "" || c.Steps == nil || c.Calls == nil {
				t.Errorf("want an outcome and no nil list, got %+v", c)
			}
		}
	})
}
