// Package trace logs the calls of a plugin and their steps: each netlink request, sysctl write, ruleset
// change and started program.
//
// CNI_LOG_LEVEL=debug prints each step with its start and duration to stderr. CNI_LOG_FILE appends the
// same to a file as lines of JSON, with the begin and the end of each call, and Pipe gets these lines
// while "plumb trace" runs. CNI_TRACE_FILE gets each call as one line of OTLP, if the runtime records
// the call in a distributed trace. Tests make a chosen step fail.
//
// A step that runs in the background begins with Start and ends when the caller calls the
// function that Start returned. That function does not wait as a function wait of pkg/ipam or
// pkg/nl does: with it, the code that has awaited the work reports its end to the tracer.
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
	// Text receives one line per step; nil: no lines are written.
	Text io.Writer
	// JSON receives one Record per line; nil: none are written.
	JSON io.Writer
	// Pipe receives the same as JSON, in lines of at most MaxPipeLine bytes; nil: none are written.
	Pipe io.Writer
	// OTLP receives one line when the call ends; nil: none is written.
	OTLP io.Writer
	// Parent is the caller's span, for OTLP.
	Parent SpanContext
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

	mu    sync.Mutex // for all that follows, Text, JSON, Pipe and OTLP
	start time.Time  // when the first step began
	call  Call       // see BeginCall
	began time.Time  // when the call began
	id    string     // the ID of the call; empty: it is not logged
	spans []span     // the steps of the call that have ended, for OTLP
	lost  int        // how many lines the pipe did not take
}

// Do runs one step and returns its error.
func (t *Tracer) Do(step string, f func() error) error {
	end, err := t.Start(step)
	if err != nil {
		return err
	}
	return end(f())
}

// Start begins a step that runs beside others. When the step has ended, the caller must call
// end once with the error of the step, and use the error that end returns. If Before refused
// the step, Start returns its error, and the caller must not run the step.
func (t *Tracer) Start(step string) (end func(error) error, err error) {
	if t == nil {
		return func(err error) error { return err }, nil
	}
	begin := time.Now()
	t.mu.Lock()
	if t.start.IsZero() {
		t.start = begin
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

// end logs a step, and returns its error or that of After.
func (t *Tracer) end(step string, begin time.Time, err error) error {
	if t.After != nil && err == nil {
		err = t.After(step)
	}
	if t.Text == nil && !t.logsCall() {
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
	t.write(Record{Event: EventStep, Time: begin.UTC(), Call: t.id, Who: t.Who, Step: step, AtMS: ms(at), TookMS: ms(took), Error: text(err)})
	if t.OTLP != nil {
		t.spans = append(t.spans, newSpan(step, begin, took, err))
	}
	return err
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
