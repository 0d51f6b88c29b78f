package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var errBoom = errors.New("boom")

func TestNilTracerRunsTheStep(t *testing.T) {
	var none *Tracer
	ran := false
	if err := none.Do("step", func() error { ran = true; return errBoom }); err != errBoom || !ran {
		t.Errorf("ran %t, %v", ran, err)
	}
}

func TestBeforeRefusesTheStep(t *testing.T) {
	tr := &Tracer{Before: func(step string) error {
		if step == "refused" {
			return errBoom
		}
		return nil
	}}
	if err := tr.Do("refused", func() error { t.Error("the step ran"); return nil }); err != errBoom {
		t.Error(err)
	}
	if err := tr.Do("other", func() error { return nil }); err != nil {
		t.Error(err)
	}
}

func TestAfterFailsTheStepsThatSucceeded(t *testing.T) {
	own := errors.New("own")
	ran := 0
	tr := &Tracer{After: func(string) error { return errBoom }}
	for _, tc := range []struct{ err, want error }{{nil, errBoom}, {own, own}} {
		if err := tr.Do("step", func() error { ran++; return tc.err }); err != tc.want {
			t.Errorf("%v: %v, want %v", tc.err, err, tc.want)
		}
	}
	if ran != 2 {
		t.Errorf("%d steps ran, want 2", ran)
	}
}

func TestLines(t *testing.T) {
	var text, lines bytes.Buffer
	tr := &Tracer{Text: &text, JSON: &lines, Who: "bridge ADD"}
	steps := []func() error{
		func() error {
			for begin := time.Now(); time.Since(begin) < 100*time.Microsecond; { // the next step begins later
			}
			return nil
		},
		func() error { return errors.Join(errBoom, errors.New("bang")) },
	}
	if err := errors.Join(tr.Do("add link x", steps[0]), tr.Do("set <y>", steps[1])); !errors.Is(err, errBoom) {
		t.Error(err)
	}

	const times = `^bridge ADD +\d+\.\d{3}ms +\d+\.\d{3}ms `
	for i, want := range []string{`add link x$`, `set <y>: boom; bang$`} {
		if line := strings.Split(text.String(), "\n")[i]; !regexp.MustCompile(times + want).MatchString(line) {
			t.Errorf("line %d: %q", i, line)
		}
	}
	dec := json.NewDecoder(&lines)
	at := -1.0
	for i, want := range []Record{{Step: "add link x"}, {Step: "set <y>", Error: "boom\nbang"}} {
		var got Record
		if err := dec.Decode(&got); err != nil || got.Event != EventStep || got.Who != "bridge ADD" || got.Step != want.Step || got.Error != want.Error || got.Time.IsZero() || got.DurationMS < 0 || got.OffsetMS <= at {
			t.Errorf("line %d: %v, %+v", i, err, got)
		}
		at = got.OffsetMS
	}
}

// TestConcurrentSteps needs the race detector.
func TestConcurrentSteps(t *testing.T) {
	var text, lines bytes.Buffer
	tr := &Tracer{Text: &text, JSON: &lines, Who: "x"}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { _ = tr.Do("step", func() error { return nil }) })
	}
	all.Wait()
	for name, b := range map[string]*bytes.Buffer{"text": &text, "JSON": &lines} {
		if n := strings.Count(b.String(), "\n"); n != 20 {
			t.Errorf("%s: %d lines", name, n)
		}
	}
}

func TestWarn(t *testing.T) {
	var none *Tracer
	none.Warn("a")
	(&Tracer{}).Warn("a")
	var warned []string
	tr := &Tracer{Warnings: func(text string) { warned = append(warned, text) }}
	tr.Warn("%d of %s", 1, "b")
	if !slices.Equal(warned, []string{"1 of b"}) {
		t.Errorf("%q", warned)
	}
}
