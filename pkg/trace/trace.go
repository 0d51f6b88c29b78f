// Package trace logs the steps of a plugin: each netlink request, sysctl write, ruleset
// change and started program.
//
// Users see each step with its time: CNI_LOG_LEVEL=debug writes them to stderr,
// CNI_LOG_FILE as JSON lines to a file. Tests make a chosen step fail.
package trace

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// A Tracer logs steps. A nil *Tracer logs nothing and is ready to use. A Tracer is safe for
// concurrent use.
type Tracer struct {
	// Text receives one line per step; nil: no lines are written.
	Text io.Writer
	// JSON receives one JSON object per step and line; nil: none are written.
	JSON io.Writer
	// Warnings is called with the text of each Warn; nil: warnings are dropped.
	Warnings func(text string)
	// Who is the beginning of each line: "bridge ADD".
	Who string
	// Before is called before each step. If it returns an error, the step is not run and
	// fails with it. For tests only.
	Before func(step string) error
	// After is called after each step that succeeded. If it returns an error, the step
	// fails with it, as if the kernel's answer had been lost. For tests only.
	After func(step string) error

	mu    sync.Mutex
	start time.Time
}

// Do runs one step and returns its error.
func (t *Tracer) Do(step string, f func() error) error {
	if t == nil {
		return f()
	}
	begin := time.Now()
	if err := t.begin(step, begin); err != nil {
		return err
	}
	return t.end(step, begin, f())
}

// Start begins a step that runs beside others. The caller calls the returned function once
// with the step's error when the step has ended, and uses the error that it returns.
func (t *Tracer) Start(step string) (func(error) error, error) {
	if t == nil {
		return func(err error) error { return err }, nil
	}
	begin := time.Now()
	if err := t.begin(step, begin); err != nil {
		return nil, err
	}
	return func(err error) error { return t.end(step, begin, err) }, nil
}

// Warn reports something to the user of the plugin that is no error.
func (t *Tracer) Warn(format string, args ...any) {
	if t != nil && t.Warnings != nil {
		t.Warnings(fmt.Sprintf(format, args...))
	}
}

func (t *Tracer) begin(step string, now time.Time) error {
	t.mu.Lock()
	if t.start.IsZero() {
		t.start = now
	}
	t.mu.Unlock()
	if t.Before == nil {
		return nil
	}
	return t.Before(step)
}

func (t *Tracer) end(step string, begin time.Time, err error) error {
	if t.After != nil && err == nil {
		err = t.After(step)
	}
	if t.Text == nil && t.JSON == nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	took, at := time.Since(begin), begin.Sub(t.start)
	if t.Text != nil {
		outcome := ""
		if err != nil {
			outcome = ": " + strings.ReplaceAll(err.Error(), "\n", "; ") // errors.Join breaks lines
		}
		fmt.Fprintf(t.Text, "%s %9.3fms %9.3fms %s%s\n", t.Who, ms(at), ms(took), step, outcome)
	}
	if t.JSON != nil {
		t.writeLine(record{Time: begin.UTC(), Who: t.Who, Step: step, AtMS: ms(at), TookMS: ms(took), Error: text(err)})
	}
	return err
}

// A record is one line of CNI_LOG_FILE.
type record struct {
	Time   time.Time `json:"time"`
	Who    string    `json:"plugin"`
	Step   string    `json:"step"`
	AtMS   float64   `json:"atMs"`
	TookMS float64   `json:"tookMs"`
	Error  string    `json:"error,omitempty"`
}

// writeLine writes r. It ignores errors, so that a log that cannot be written does not
// fail an ADD.
func (t *Tracer) writeLine(r record) {
	if b, err := json.Marshal(r); err == nil {
		_, _ = t.JSON.Write(append(b, '\n'))
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
