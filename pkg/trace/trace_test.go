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

// do runs a step in both ways there are.
func do(t *Tracer, step string, f func() error) []error {
	end, err := t.Start(step)
	if err == nil {
		err = end(f())
	}
	return []error{t.Do(step, f), err}
}

func TestNilTracer(t *testing.T) {
	ran := 0
	for _, err := range do(nil, "step", func() error { ran++; return errBoom }) {
		if err != errBoom {
			t.Error(err)
		}
	}
	if ran != 2 {
		t.Errorf("ran %d times", ran)
	}
}

func TestBeforeRefuses(t *testing.T) {
	tr := &Tracer{Before: func(step string) error {
		if step == "refused" {
			return errBoom
		}
		return nil
	}}
	for _, err := range do(tr, "refused", func() error { t.Error("was done"); return nil }) {
		if err != errBoom {
			t.Error(err)
		}
	}
	for _, err := range do(tr, "other", func() error { return nil }) {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestAfterReplacesTheOutcome(t *testing.T) {
	own := errors.New("own")
	ran := 0
	tr := &Tracer{After: func(string) error { return errBoom }}
	for _, err := range do(tr, "step", func() error { ran++; return nil }) {
		if err != errBoom {
			t.Error(err)
		}
	}
	for _, err := range do(tr, "step", func() error { ran++; return own }) { // lost is only what succeeded
		if err != own {
			t.Error(err)
		}
	}
	if ran != 4 {
		t.Errorf("ran %d times", ran)
	}
}

func TestLines(t *testing.T) {
	var text, lines bytes.Buffer
	tr := &Tracer{Text: &text, JSON: &lines, Who: "bridge ADD"}
	do(tr, "add link x", func() error {
		for begin := time.Now(); time.Since(begin) < 100*time.Microsecond; {
		}
		return nil
	})
	do(tr, "set <y>", func() error { return errors.Join(errBoom, errors.New("bang")) })

	const times = `^bridge ADD +\d+\.\d{3}ms +\d+\.\d{3}ms `
	for i, want := range []string{`add link x$`, `add link x$`, `set <y>: boom; bang$`, `set <y>: boom; bang$`} {
		if line := strings.Split(text.String(), "\n")[i]; !regexp.MustCompile(times + want).MatchString(line) {
			t.Errorf("line %d: %q", i, line)
		}
	}
	dec := json.NewDecoder(&lines)
	at := -1.0
	for i, want := range []record{{Step: "add link x"}, {Step: "add link x"}, {Step: "set <y>", Error: "boom\nbang"}} {
		var got record
		if err := dec.Decode(&got); err != nil || got.Who != "bridge ADD" || got.Step != want.Step || got.Error != want.Error || got.Time.IsZero() || got.TookMS < 0 || got.AtMS <= at {
			t.Errorf("line %d: %v, %+v", i, err, got)
		}
		at = got.AtMS
	}
}

// TestStepsBesideOneAnother is for the race detector.
func TestStepsBesideOneAnother(t *testing.T) {
	var text, lines bytes.Buffer
	tr := &Tracer{Text: &text, JSON: &lines, Who: "x"}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { do(tr, "step", func() error { return nil }) })
	}
	all.Wait()
	for name, b := range map[string]*bytes.Buffer{"text": &text, "JSON": &lines} {
		if n := strings.Count(b.String(), "\n"); n != 40 {
			t.Errorf("%s: %d lines", name, n)
		}
	}
}

func TestWarn(t *testing.T) {
	var none *Tracer
	none.Warn("a")
	(&Tracer{}).Warn("a")
	var told []string
	tr := &Tracer{Warnings: func(text string) { told = append(told, text) }}
	tr.Warn("%d of %s", 1, "b")
	if !slices.Equal(told, []string{"1 of b"}) {
		t.Errorf("%q", told)
	}
}
