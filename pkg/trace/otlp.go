package trace

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// A SpanContext identifies a span of a distributed trace (W3C Trace Context).
type SpanContext struct {
	TraceID string // 32 hexadecimal digits
	SpanID  string // 16 hexadecimal digits
	Sampled bool   // the process of the span records the trace
	State   string // the value of tracestate, unchanged
}

// ParseTraceParent parses a traceparent (W3C Trace Context, section 3.2.2), which is
// VERSION-TRACE-PARENT-FLAGS, and reports whether it is valid. Callers must ignore a malformed traceparent. If
// the version is later than 00, ParseTraceParent reads the fields of version 00.
func ParseTraceParent(text string) (SpanContext, bool) {
	const size = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if len(text) < size || len(text) > size && (text[:2] == "00" || text[size] != '-') {
		return SpanContext{}, false
	}
	parts := strings.Split(text[:size], "-")
	if len(parts) != 4 || !isHex(parts[0], 2) || !isHex(parts[1], 32) || !isHex(parts[2], 16) || !isHex(parts[3], 2) ||
		parts[0] == "ff" || strings.Trim(parts[1], "0") == "" || strings.Trim(parts[2], "0") == "" {
		return SpanContext{}, false
	}
	flags, err := strconv.ParseUint(parts[3], 16, 8)
	return SpanContext{TraceID: parts[1], SpanID: parts[2], Sampled: flags&1 != 0}, err == nil
}

// isHex reports whether text consists of n lower-case hexadecimal digits.
func isHex(text string, n int) bool {
	return len(text) == n && strings.Trim(text, "0123456789abcdef") == ""
}

// TraceParent returns the traceparent for the processes that the call starts. It identifies the span of this
// call. TraceParent returns "" if t.OTLP is nil or the call has not begun or has ended.
func (t *Tracer) TraceParent() string {
	if t == nil || t.OTLP == nil {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.id == "" {
		return ""
	}
	return "00-" + t.Parent.TraceID + "-" + t.id + "-01"
}

// The messages of OTLP (opentelemetry-proto, trace/v1), with the fields that a plugin writes. In JSON, IDs are
// hexadecimal, 64-bit numbers are strings and enumerations are numbers (OTLP 1.x, "JSON Protobuf Encoding").
type (
	tracesData struct {
		ResourceSpans []resourceSpans `json:"resourceSpans"`
	}
	resourceSpans struct {
		Resource   resource     `json:"resource"`
		ScopeSpans []scopeSpans `json:"scopeSpans"`
	}
	resource struct {
		Attributes []attribute `json:"attributes"`
	}
	scopeSpans struct {
		Scope scope  `json:"scope"`
		Spans []span `json:"spans"`
	}
	scope struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	span struct {
		TraceID    string      `json:"traceId"`
		SpanID     string      `json:"spanId"`
		TraceState string      `json:"traceState,omitempty"`
		ParentID   string      `json:"parentSpanId"`
		Flags      uint32      `json:"flags"` // flagSampled
		Name       string      `json:"name"`
		Kind       int         `json:"kind"` // kindInternal
		Start      string      `json:"startTimeUnixNano"`
		End        string      `json:"endTimeUnixNano"`
		Attributes []attribute `json:"attributes,omitempty"`
		Status     status      `json:"status"`
	}
	status struct {
		Message string `json:"message,omitempty"`
		Code    int    `json:"code,omitempty"`
	}
	attribute struct {
		Key   string `json:"key"`
		Value value  `json:"value"`
	}
	value struct {
		String *string `json:"stringValue,omitempty"`
		Int    *string `json:"intValue,omitempty"`
	}
)

const (
	kindInternal = 1 // SPAN_KIND_INTERNAL
	statusError  = 2 // STATUS_CODE_ERROR
	flagSampled  = 1 // trace flag of W3C Trace Context, section 3.2.2.5
)

// newSpan returns a span without its IDs and attributes.
func newSpan(name string, begin time.Time, took time.Duration, err error) span {
	nanos := func(at time.Time) string { return strconv.FormatInt(at.UnixNano(), 10) }
	s := span{Name: name, Kind: kindInternal, Flags: flagSampled, Start: nanos(begin), End: nanos(begin.Add(took))}
	if err != nil {
		s.Status = status{Code: statusError, Message: err.Error()}
	}
	return s
}

// addCallAttributes adds the attributes of a call's span. code is the code of the call's error.
func (s *span) addCallAttributes(c Call, code uint) {
	for _, a := range []struct{ key, value string }{
		{"cni.plugin", c.Plugin}, {"cni.command", c.Command}, {"cni.network", c.Network},
		{"cni.container_id", c.ContainerID}, {"cni.ifname", c.IfName},
	} {
		if a.value != "" {
			s.Attributes = append(s.Attributes, textAttribute(a.key, a.value))
		}
	}
	s.Attributes = append(s.Attributes, numberAttribute("process.pid", c.PID))
	if s.Status.Code == statusError {
		s.Attributes = append(s.Attributes, numberAttribute("cni.error_code", int(code)))
	}
}

func textAttribute(key, text string) attribute { return attribute{key, value{String: &text}} }

func numberAttribute(key string, n int) attribute {
	text := strconv.Itoa(n)
	return attribute{key, value{Int: &text}}
}

// traceLine returns the spans of the call and of its steps as one line, which is the message TracesData in
// JSON. The receiver otlpjsonfile of the OpenTelemetry Collector reads it.
func (t *Tracer) traceLine(call span) []byte {
	call.SpanID, call.ParentID = t.id, t.Parent.SpanID
	spans := []span{call}
	for _, step := range t.spans {
		step.SpanID, step.ParentID = newID(8), t.id
		spans = append(spans, step)
	}
	for i := range spans {
		spans[i].TraceID, spans[i].TraceState = t.Parent.TraceID, t.Parent.State
	}
	line, err := json.Marshal(tracesData{[]resourceSpans{{
		Resource:   resource{[]attribute{textAttribute("service.name", "plumb"), textAttribute("service.version", t.call.Version)}},
		ScopeSpans: []scopeSpans{{Scope: scope{"github.com/plumb-cni/plumb/v2/pkg/trace", t.call.Version}, Spans: spans}},
	}}})
	if err != nil { // cannot happen, because all fields are strings and numbers
		return nil
	}
	return append(line, '\n')
}
