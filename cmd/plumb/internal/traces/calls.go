package traces

import (
	"maps"
	"slices"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/trace"
)

// These are the values of Call.Outcome.
const (
	OutcomeOK      = "ok"
	OutcomeFailed  = "failed"
	OutcomeKilled  = "killed"  // the process ended without a record of the call's end
	OutcomeRunning = "running" // the call was still running when the trace ended
)

// A Call is one call of a plugin.
type Call struct {
	Time        time.Time `json:"time"` // the start of the call
	Network     string    `json:"network"`
	ContainerID string    `json:"container"`
	IfName      string    `json:"ifName"`
	Command     string    `json:"command"`
	Plugin      string    `json:"plugin"`
	PID         int       `json:"pid"`
	Outcome     string    `json:"outcome"`
	// DurationMS is the duration in milliseconds, without the start of the process. If the outcome is running, it is
	// the time until the end of the trace. If the outcome is killed, it is 0, because the end is unknown.
	DurationMS float64 `json:"durationMs"`
	Error      *Error  `json:"error,omitempty"` // set if the outcome is failed
	// LostLines is the number of records of the call that were lost because the pipe was full. Steps does not contain
	// the steps in these records.
	LostLines int     `json:"lostLines,omitempty"`
	Steps     []Step  `json:"steps"` // the recorded steps, in the order in which they ended
	Calls     []*Call `json:"calls"` // the calls of IPAM plugins by this plugin

	id         string
	parentPID  int
	caller     *Call // nil if the caller is not a plugin
	pidVisible bool  // a process had this PID when the call began, which means that the call is in this PID namespace
	wasGone    bool  // the process did not exist at the last check
}

// An Error is the error result of a call.
type Error struct {
	Code    uint   `json:"code"`
	Message string `json:"message"`
}

// A Step is one operation of a call that accesses something outside the plugin's process.
type Step struct {
	Step       string  `json:"step"`
	OffsetMS   float64 `json:"offsetMs"`   // the milliseconds from the start of the call to the start of the step
	DurationMS float64 `json:"durationMs"` // the duration in milliseconds
	Error      string  `json:"error,omitempty"`
}

// openCalls contains the calls that have begun, but not ended.
type openCalls struct {
	byID map[string]*Call
	gone func(pid int) bool // reports whether no process has this PID
}

func newOpenCalls(gone func(pid int) bool) *openCalls {
	return &openCalls{byID: map[string]*Call{}, gone: gone}
}

// add adds a record to its call. If the record ends the call, add returns what finish returns.
func (o *openCalls) add(r trace.Record) *Call {
	c := o.byID[r.Call]
	if c == nil && r.About != nil && r.Call != "" {
		c = o.begin(r)
	}
	switch {
	case c == nil: // a step of a call that began before the listener opened the pipe
	case r.Event == trace.EventStep:
		at := r.Time.Sub(c.Time)
		c.Steps = append(c.Steps, Step{Step: r.Step, OffsetMS: ms(at), DurationMS: r.DurationMS, Error: r.Error})
	case r.Event == trace.EventEnd:
		c.DurationMS, c.LostLines, c.Outcome = r.DurationMS, r.Lost, OutcomeOK
		if r.Error != "" || r.Code != 0 {
			c.Outcome, c.Error = OutcomeFailed, &Error{r.Code, r.Error}
		}
		return o.finish(c)
	}
	return nil
}

// begin adds the call of a record. The record's event is begin or, if the record of the begin was lost, end.
func (o *openCalls) begin(r trace.Record) *Call {
	about := r.About
	c := &Call{
		Time: r.Time, Network: about.Network, ContainerID: about.ContainerID, IfName: about.IfName,
		Command: about.Command, Plugin: about.Plugin, PID: about.PID,
		Steps: []Step{}, Calls: []*Call{}, id: r.Call, parentPID: about.ParentPID,
		pidVisible: !o.gone(about.PID),
	}
	for _, other := range o.byID {
		// If the processes of older calls were killed, several calls can have the same PID.
		if other.PID == c.parentPID && (c.caller == nil || other.Time.After(c.caller.Time)) {
			c.caller = other
		}
	}
	o.byID[c.id] = c
	return c
}

// finish removes and returns a call that has ended. If its caller has not ended, finish adds the call to the caller's Calls
// and returns nil instead.
func (o *openCalls) finish(c *Call) *Call {
	delete(o.byID, c.id)
	if c.caller != nil && o.byID[c.caller.id] == c.caller {
		c.caller.Calls = append(c.caller.Calls, c)
		return nil
	}
	return c
}

// removeKilled removes and returns the calls whose processes did not exist at this check and at the previous one. One
// check is not enough, because the last records of a process may still be in the pipe after it has ended.
func (o *openCalls) removeKilled() []*Call {
	return o.remove(OutcomeKilled, func(c *Call) bool {
		before := c.wasGone
		c.wasGone = c.pidVisible && o.gone(c.PID)
		return before && c.wasGone
	})
}

// removeRunning removes and returns all calls, at the end of the trace.
func (o *openCalls) removeRunning(now time.Time) []*Call {
	return o.remove(OutcomeRunning, func(c *Call) bool {
		c.DurationMS = ms(now.Sub(c.Time))
		return true
	})
}

// remove finishes the calls for which ended returns true, with this outcome. It returns what finish returned, in the
// order in which the calls began. It finishes the latest call first, so that the call of an IPAM plugin comes before
// its caller.
func (o *openCalls) remove(outcome string, ended func(*Call) bool) (finished []*Call) {
	calls := slices.SortedFunc(maps.Values(o.byID), func(x, y *Call) int { return y.Time.Compare(x.Time) })
	for _, c := range calls {
		if !ended(c) {
			continue
		}
		c.Outcome = outcome
		if f := o.finish(c); f != nil {
			finished = append(finished, f)
		}
	}
	slices.Reverse(finished)
	return finished
}

// ms returns the duration in milliseconds, with the precision of microseconds.
func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
