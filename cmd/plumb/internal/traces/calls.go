package traces

import (
	"slices"
	"time"

	"github.com/plumb-cni/plumb/pkg/trace"
)

// The values of Call.Outcome.
const (
	OutcomeOK      = "ok"
	OutcomeFailed  = "failed"
	OutcomeKilled  = "killed"  // the process ended without an answer
	OutcomeRunning = "running" // the trace ended before the call
)

// A Call is one call of a plugin.
type Call struct {
	Time        time.Time `json:"time"` // when it began
	Network     string    `json:"network"`
	ContainerID string    `json:"container"`
	IfName      string    `json:"ifName"`
	Command     string    `json:"command"`
	Plugin      string    `json:"plugin"`
	PID         int       `json:"pid"`
	Outcome     string    `json:"outcome"`
	// TookMS is the time in milliseconds without the start of the process: until now if the call is under
	// way, and 0 if its process was killed.
	TookMS float64 `json:"tookMs"`
	Error  *Error  `json:"error,omitempty"` // only if the outcome is failed
	// LostLines is how many lines of the call did not fit into the pipe. It has fewer steps then.
	LostLines int     `json:"lostLines,omitempty"`
	Steps     []Step  `json:"steps"` // in the order of their end
	Calls     []*Call `json:"calls"` // of IPAM plugins that the plugin called

	id        string
	parentPID int
	caller    *Call
	visible   bool // the process was there at the begin: it is in this PID namespace
	missed    bool // the process was gone at the last check
}

// An Error is the error result of a call.
type Error struct {
	Code    uint   `json:"code"`
	Message string `json:"message"`
}

// A Step is an operation of a call outside its process.
type Step struct {
	Step   string  `json:"step"`
	AtMS   float64 `json:"atMs"` // from the begin of the call
	TookMS float64 `json:"tookMs"`
	Error  string  `json:"error,omitempty"`
}

// An assembly has the calls that have begun and not ended.
type assembly struct {
	open map[string]*Call   // by ID
	gone func(pid int) bool // reports whether there is no such process
}

func newAssembly(gone func(pid int) bool) *assembly {
	return &assembly{open: map[string]*Call{}, gone: gone}
}

// add adds a record. It returns the call that has ended with it, unless its caller is under way.
func (a *assembly) add(r trace.Record) *Call {
	c := a.open[r.Call]
	if c == nil && r.About != nil && r.Call != "" {
		c = a.begin(r)
	}
	switch {
	case c == nil: // a step of a call that began before the listener
	case r.Event == trace.EventStep:
		at := r.Time.Sub(c.Time)
		c.Steps = append(c.Steps, Step{Step: r.Step, AtMS: ms(at), TookMS: r.TookMS, Error: r.Error})
	case r.Event == trace.EventEnd:
		c.TookMS, c.LostLines, c.Outcome = r.TookMS, r.Lost, OutcomeOK
		if r.Error != "" || r.Code != 0 {
			c.Outcome, c.Error = OutcomeFailed, &Error{r.Code, r.Error}
		}
		return a.finish(c)
	}
	return nil
}

// begin adds the call of a begin, or of an end whose begin is lost.
func (a *assembly) begin(r trace.Record) *Call {
	about := r.About
	c := &Call{
		Time: r.Time, Network: about.Network, ContainerID: about.ContainerID, IfName: about.IfName,
		Command: about.Command, Plugin: about.Plugin, PID: about.PID,
		Steps: []Step{}, Calls: []*Call{}, id: r.Call, parentPID: about.ParentPID,
		visible: !a.gone(about.PID),
	}
	for _, other := range a.open {
		if other.PID == c.parentPID {
			c.caller = other
		}
	}
	a.open[c.id] = c
	return c
}

// finish removes a call that has ended. It returns the call, unless its caller is under way.
func (a *assembly) finish(c *Call) *Call {
	delete(a.open, c.id)
	if c.caller != nil && a.open[c.caller.id] == c.caller {
		c.caller.Calls = append(c.caller.Calls, c)
		return nil
	}
	return c
}

// killed returns the calls whose processes were gone at this check and at the one before: the last lines
// of a process can be in the pipe when it has ended.
func (a *assembly) killed() []*Call {
	var ended []*Call
	for _, c := range a.open {
		isGone := c.visible && a.gone(c.PID)
		if isGone && c.missed {
			c.Outcome = OutcomeKilled
			ended = append(ended, c)
		}
		c.missed = isGone
	}
	return a.finishAll(ended)
}

// unfinished returns all calls that are under way.
func (a *assembly) unfinished(now time.Time) []*Call {
	var all []*Call
	for _, c := range a.open {
		c.Outcome, c.TookMS = OutcomeRunning, ms(now.Sub(c.Time))
		all = append(all, c)
	}
	return a.finishAll(all)
}

// finishAll calls finish for all of the calls, the latest first: an IPAM plugin's before that of its caller.
func (a *assembly) finishAll(calls []*Call) []*Call {
	slices.SortFunc(calls, func(x, y *Call) int { return y.Time.Compare(x.Time) })
	var roots []*Call
	for _, c := range calls {
		if root := a.finish(c); root != nil {
			roots = append(roots, root)
		}
	}
	slices.Reverse(roots)
	return roots
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
