package trace

import (
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"time"
)

// Pipe is the path of the named pipe that "plumb trace" creates and reads. While a process reads the pipe,
// each plugin writes its records to it.
const Pipe = "/run/plumb/trace"

// MaxPipeLine is the size in bytes of the longest line that Tracer.Pipe receives. It is PIPE_BUF, because the kernel
// never mixes a write of at most this size with writes of other processes (pipe(7)).
const MaxPipeLine = 4096

// A Call describes the plugin call that a tracer logs. A field that does not apply to the verb is empty.
type Call struct {
	Command     string `json:"command"`
	Plugin      string `json:"plugin"`
	Version     string `json:"-"` // version of the plugin, for OTLP only
	Network     string `json:"network,omitempty"`
	ContainerID string `json:"containerID,omitempty"`
	IfName      string `json:"ifName,omitempty"`
	PID         int    `json:"pid"`
	// ParentPID is the ID of the process that called the plugin. The parent of an IPAM plugin is the interface plugin.
	ParentPID int `json:"parentPID"`
}

// The values of Record.Event.
const (
	EventBegin = "begin" // a call starts
	EventStep  = "step"  // a step has ended
	EventEnd   = "end"   // a call has ended
)

// A Record is one line of CNI_LOG_FILE or Pipe. It records the start of a call, a step that has ended, or the end
// of a call.
type Record struct {
	Time       time.Time `json:"time"` // the time at which the call or the step started
	Event      string    `json:"event"`
	Call       string    `json:"call,omitempty"` // the ID that all records of a call share
	Who        string    `json:"plugin"`         // the plugin and the verb: "bridge ADD"
	Step       string    `json:"step,omitempty"`
	OffsetMS   float64   `json:"offsetMs"`   // milliseconds from the start of the first step to the start of this step
	DurationMS float64   `json:"durationMs"` // duration of a step, or of a call that has ended, in milliseconds
	Error      string    `json:"error,omitempty"`
	Code       uint      `json:"code,omitempty"` // the error code of a call that failed
	Lost       int       `json:"lost,omitempty"` // the number of the call's records that are not in the pipe, in its last record
	// About is the call that starts or ends. It is nil in the record of a step.
	About *Call `json:"about,omitempty"`
}

// logsCall reports whether t logs the start and the end of a call. Text receives only steps.
func (t *Tracer) logsCall() bool {
	return t != nil && (t.JSON != nil || t.Pipe != nil || t.OTLP != nil)
}

// BeginCall logs that a call starts. The caller must call EndCall at its end.
func (t *Tracer) BeginCall(c Call) {
	if !t.logsCall() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.call, t.began, t.id = c, time.Now(), newID(8)
	t.write(Record{Event: EventBegin, Time: t.began.UTC(), Call: t.id, Who: t.Who, About: &t.call})
}

// EndCall logs that the call has ended. err is the error of the call and code its code, or nil and 0 if the call
// succeeded. If BeginCall was not called before, EndCall does nothing.
func (t *Tracer) EndCall(code uint, err error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.id == "" {
		return
	}
	took := time.Since(t.began)
	t.write(Record{
		Event: EventEnd, Time: t.began.UTC(), Call: t.id, Who: t.Who, DurationMS: ms(took),
		Error: text(err), Code: code, Lost: t.lost, About: &t.call,
	})
	if t.OTLP != nil {
		call := newSpan(t.Who, t.began, took, err)
		call.addCallAttributes(t.call, code)
		_, _ = t.OTLP.Write(t.traceLine(call))
	}
	t.id = ""
}

// write writes r to JSON and Pipe. It ignores errors, so that an ADD does not fail if a log cannot be written.
// It counts the records that it could not write to Pipe. The caller must hold t.mu.
func (t *Tracer) write(r Record) {
	if t.JSON == nil && t.Pipe == nil {
		return
	}
	line := r.line()
	if t.JSON != nil {
		_, _ = t.JSON.Write(line)
	}
	if t.Pipe == nil {
		return
	}
	for len(line) > MaxPipeLine && r.shorten() {
		line = r.line()
	}
	if len(line) > MaxPipeLine {
		t.lost++
	} else if _, err := t.Pipe.Write(line); err != nil {
		t.lost++
	}
}

func (r Record) line() []byte {
	b, err := json.Marshal(r)
	if err != nil { // cannot happen, because offsetMs and durationMs are finite numbers, and the year has four digits
		return nil
	}
	return append(b, '\n')
}

// shorten cuts off the second half of Error or of Step, the longer of both. It reports false if both are too
// short to be cut.
func (r *Record) shorten() bool {
	longest := &r.Error
	if len(r.Step) > len(r.Error) {
		longest = &r.Step
	}
	const mark = "…"
	if len(*longest) <= 2*len(mark) {
		return false
	}
	*longest = strings.ToValidUTF8((*longest)[:len(*longest)/2-len(mark)], "") + mark
	return true
}

// newID returns n random bytes in hexadecimal. IDs need not be secret.
func newID(n int) string {
	b := make([]byte, 0, 16)
	for len(b) < n {
		b = append(b, byte(rand.Uint32()))
	}
	return hex.EncodeToString(b)
}
