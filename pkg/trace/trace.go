// Package trace is the one place that every step of a plugin passes through:
// each netlink request, sysctl write, ruleset change and started program.
//
// It gives a person who runs a plugin by hand the time of each step
// (CNI_LOG_LEVEL=debug on stderr, CNI_LOG_FILE as JSON lines), and it gives tests
// the seam at which any step can be refused.
package trace

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// A Tracer sees every step. A nil *Tracer sees nothing and is ready to use. A
// Tracer is safe for concurrent use.
type Tracer struct {
	// Text receives a line a step; nil: none.
	Text io.Writer
	// JSON receives a JSON object a line; nil: none.
	JSON io.Writer
	// Warnings receives what Warn is told; nil: nobody does.
	Warnings func(text string)
	// Who stands in front of each line: "bridge ADD".
	Who string
	// Before may refuse a step before it is done; tests only.
	Before func(step string) error
	// After may replace the outcome of a step that was done, as a lost
	// acknowledgement does; tests only.
	After func(step string) error

	mu    sync.Mutex
	start time.Time
}

// Do runs one step. The error is the step's own, unless a test's hook put another
// in its place.
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

// Start announces a step that goes on beside others. The caller calls the
// returned function once with the outcome; it returns the outcome to use.
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

// Warn tells the user of the plugin something that is no error.
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
		t.line(record{Time: begin.UTC(), Who: t.Who, Step: step, AtMS: ms(at), TookMS: ms(took), Error: text(err)})
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

// line writes r. A log that cannot be written is no reason to fail an ADD.
func (t *Tracer) line(r record) {
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
