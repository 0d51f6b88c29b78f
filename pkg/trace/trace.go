// Package trace logs a plugin's call and its steps, which are netlink requests, sysctl writes, ruleset changes
// and started programs.
//
// A plugin has four logs. With CNI_LOG_LEVEL=debug, it prints the start and duration of each step to stderr.
// With CNI_LOG_FILE, it appends one line of JSON per step, and one for the start and the end of the call, to a
// file. While "plumb trace" runs, the plugin writes the same lines to Pipe. With CNI_TRACE_FILE, it appends the
// whole call as one line of OTLP to a file, if the runtime records the call in a distributed trace. Tests also
// use the tracer to let a chosen step fail.
//
// Do runs a step. A step that runs in the background begins with Start, which returns a function. When the step
// has ended, the caller calls that function with the error of the step.
package trace

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// A Tracer logs a call and its steps. A nil *Tracer logs nothing and is ready to use. A Tracer is safe
// for concurrent use.
type Tracer struct {
	// Text receives one line per step. If it is nil, no lines are written.
	Text io.Writer
	// JSON receives one Record per line. If it is nil, no records are written.
	JSON io.Writer
	// Pipe receives the same records as JSON, in lines of at most MaxPipeLine bytes. A long Step or Error is
	// shortened. If Pipe is nil, no records are written.
	Pipe io.Writer
	// OTLP receives one line when the call ends. If it is nil, no line is written.
	OTLP io.Writer
	// Parent is the span of the process that called the plugin. Only OTLP needs it.
	Parent SpanContext
	// Warnings is called with the text of each Warn. If it is nil, warnings are dropped.
	Warnings func(text string)
	// Who is the plugin and the verb, for example "bridge ADD". Each line of Text begins with Who.
	Who string
	// Before is called before each step. If it returns an error, the step does not run and fails with that
	// error. For tests only.
	Before func(step string) error
	// After is called after each step that succeeded. If it returns an error, the step fails with that error,
	// as if the kernel's answer had been lost. For tests only.
	After func(step string) error

	mu            sync.Mutex // guards the fields below, and writing to Text, JSON, Pipe and OTLP
	firstStepTime time.Time  // the time at which the first step began
	call          Call       // the call that BeginCall logged
	began         time.Time  // the time at which the call began
	id            string     // the ID of the call, or "" if no call is logged
	spans         []span     // the steps of the call that have ended, for OTLP
	lost          int        // the number of records that could not be written to Pipe
}

// Do runs one step and returns its error.
func (t *Tracer) Do(step string, f func() error) error {
	end, err := t.Start(step)
	if err != nil {
		return err
	}
	return end(f())
}

// Start begins a step that runs in the background. When the step has ended, the caller must call end once with
// the step's error, and use the return value of end instead. If Before returns an error, Start returns that
// error, and the caller must not run the step.
func (t *Tracer) Start(step string) (end func(error) error, err error) {
	if t == nil {
		return func(err error) error { return err }, nil
	}
	begin := time.Now()
	t.mu.Lock()
	if t.firstStepTime.IsZero() {
		t.firstStepTime = begin
	}
	t.mu.Unlock()
	if t.Before != nil {
		if err := t.Before(step); err != nil {
			return nil, err
		}
	}
	return func(err error) error { return t.end(step, begin, err) }, nil
}

// Warn formats a warning as fmt.Sprintf does, and passes it to Warnings.
func (t *Tracer) Warn(format string, args ...any) {
	if t != nil && t.Warnings != nil {
		t.Warnings(fmt.Sprintf(format, args...))
	}
}

// end logs a step that has ended, and returns its error. If the step succeeded, end returns the error of After.
func (t *Tracer) end(step string, begin time.Time, err error) error {
	if t.After != nil && err == nil {
		err = t.After(step)
	}
	if t.Text == nil && !t.logsCall() {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	took, at := time.Since(begin), begin.Sub(t.firstStepTime)
	if t.Text != nil {
		outcome := ""
		if err != nil {
			outcome = ": " + strings.ReplaceAll(err.Error(), "\n", "; ") // errors.Join breaks lines
		}
		fmt.Fprintf(t.Text, "%s %9.3fms %9.3fms %s%s\n", t.Who, ms(at), ms(took), step, outcome)
	}
	r := Record{Event: EventStep, Time: begin.UTC(), Call: t.id, Who: t.Who, Step: step, Error: text(err)}
	r.OffsetMS, r.DurationMS = ms(at), ms(took)
	t.write(r)
	if t.OTLP != nil {
		t.spans = append(t.spans, newSpan(step, begin, took, err))
	}
	return err
}

// ms returns the duration in milliseconds, with the precision of microseconds.
func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// text returns the text of the error, or "" for nil.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
