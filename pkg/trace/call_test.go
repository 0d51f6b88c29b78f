package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestLongTextsAreCutForThePipeOnly(t *testing.T) {
	var file, pipe bytes.Buffer
	tr := &Tracer{JSON: &file, Pipe: &pipe, Who: "bridge ADD"}
	long := errors.New(strings.Repeat("€\"", 5_000)) // a quote takes two bytes in JSON
	tr.BeginCall(Call{Plugin: "bridge"})
	_ = tr.Do("short", func() error { return long })
	_ = tr.Do(strings.Repeat("s", 5_000), func() error { return nil })
	tr.EndCall(7, long)
	for name, log := range map[string]*bytes.Buffer{"file": &file, "pipe": &pipe} {
		lines := strings.SplitAfter(strings.TrimSuffix(log.String(), "\n"), "\n")
		if len(lines) != 4 {
			t.Fatalf("%s: %d lines", name, len(lines))
		}
		for i, line := range lines {
			var r Record
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Errorf("%s: line %d: %v", name, i, err)
			}
			if name == "pipe" && len(line) > MaxPipeLine {
				t.Errorf("line %d for the pipe has %d bytes", i, len(line))
			}
			failed := i == 1 || i == 3
			switch {
			case failed && name == "file" && r.Error != long.Error():
				t.Errorf("line %d of the file has %d bytes of the error", i, len(r.Error))
			case failed && name == "pipe" && (len(r.Error) < MaxPipeLine/4 || !strings.HasSuffix(r.Error, "…") || strings.Contains(r.Error, "\ufffd")):
				t.Errorf("line %d of the pipe has the error %q", i, r.Error)
			}
		}
	}
}

func TestLineThatCannotBeCutIsCountedAsLost(t *testing.T) {
	var pipe bytes.Buffer
	tr := &Tracer{Pipe: &pipe}
	tr.BeginCall(Call{ContainerID: strings.Repeat("c", 5_000)})
	if pipe.Len() > 0 || tr.lost != 1 {
		t.Errorf("%d bytes, lost %d", pipe.Len(), tr.lost)
	}
}

func TestNilTracerLogsNothing(t *testing.T) {
	var tr *Tracer
	tr.BeginCall(Call{Plugin: "bridge"})
	if err := tr.Do("step", func() error { return nil }); err != nil || tr.TraceParent() != "" {
		t.Errorf("%v, %q", err, tr.TraceParent())
	}
	tr.Warn("text")
	tr.EndCall(0, nil)
}

// TestTraceParentDuringOtherMethods lets the race detector find a TraceParent that reads without the
// lock.
func TestTraceParentDuringOtherMethods(t *testing.T) {
	tr := &Tracer{OTLP: &bytes.Buffer{}}
	done := make(chan string)
	go func() { done <- tr.TraceParent() }()
	tr.BeginCall(Call{Plugin: "bridge"})
	<-done
}

func TestTracerWithoutLogsHasNoCall(t *testing.T) {
	tr := &Tracer{}
	tr.BeginCall(Call{Plugin: "bridge"})
	tr.EndCall(0, nil)
	if tr.id != "" || tr.TraceParent() != "" {
		t.Errorf("%q, %q", tr.id, tr.TraceParent())
	}
}
