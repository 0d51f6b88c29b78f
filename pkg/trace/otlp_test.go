package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const (
	traceID  = "0af7651916cd43dd8448eb211c80319c"
	parentID = "b7ad6b7169203331"
)

func TestParseTraceParent(t *testing.T) {
	ids := traceID + "-" + parentID
	for text, want := range map[string]SpanContext{
		"00-" + ids + "-01":                                {TraceID: traceID, SpanID: parentID, Sampled: true},
		"00-" + ids + "-00":                                {TraceID: traceID, SpanID: parentID},
		"00-" + ids + "-03":                                {TraceID: traceID, SpanID: parentID, Sampled: true},
		"00-" + ids + "-02":                                {TraceID: traceID, SpanID: parentID},
		"cc-" + ids + "-01":                                {TraceID: traceID, SpanID: parentID, Sampled: true}, // a later version
		"cc-" + ids + "-01-what-comes":                     {TraceID: traceID, SpanID: parentID, Sampled: true},
		"cc-" + ids + "-01.what-comes":                     {},
		"00-" + ids + "-01-x":                              {},
		"ff-" + ids + "-01":                                {},
		"00-" + ids + "-1":                                 {},
		"00-" + ids:                                        {},
		"00-" + strings.ToUpper(ids) + "-01":               {},
		"00-" + ids + "-0x":                                {},
		"0x-" + ids + "-01":                                {},
		"00-" + strings.Repeat("0", 32) + ids[32:] + "-01": {},
		"00-" + ids[:33] + strings.Repeat("0", 16) + "-01": {},
		"00-" + ids[:31] + "-0" + ids[32:] + "-01":         {},
		strings.Repeat("-", 55):                            {},
		"":                                                 {},
		"00":                                               {},
	} {
		got, valid := ParseTraceParent(text)
		if got != want || valid != (want.TraceID != "") {
			t.Errorf("%q: %+v, %t, want %+v", text, got, valid, want)
		}
	}
}

func FuzzTraceParent(f *testing.F) {
	f.Add("00-" + traceID + "-" + parentID + "-01")
	f.Add("cc-" + traceID + "-" + parentID + "-01-more")
	valid := regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}($|-)`)
	f.Fuzz(func(t *testing.T, text string) {
		c, ok := ParseTraceParent(text)
		if ok && (!valid.MatchString(text) || !strings.HasPrefix(text[2:], "-"+c.TraceID+"-"+c.SpanID+"-")) {
			t.Errorf("%q is taken as %+v", text, c)
		}
	})
}

// A request contains the fields of ExportTraceServiceRequest that plugins write, in the types of
// OTLP's JSON encoding. It is decoded without unknown fields.
type request struct {
	ResourceSpans []struct {
		Resource   struct{ Attributes []keyValue }
		ScopeSpans []struct {
			Scope struct{ Name, Version string }
			Spans []decodedSpan
		}
	}
}

type keyValue struct {
	Key   string
	Value struct{ StringValue, IntValue *string }
}

type decodedSpan struct {
	TraceID, SpanID, ParentSpanID, TraceState, Name string
	StartTimeUnixNano, EndTimeUnixNano              string
	Kind, Flags                                     int
	Attributes                                      []keyValue
	Status                                          struct {
		Message string
		Code    int
	}
}

func (s decodedSpan) attributes() map[string]string {
	all := map[string]string{}
	for _, a := range s.Attributes {
		if a.Value.IntValue != nil {
			all[a.Key] = "number " + *a.Value.IntValue
		} else {
			all[a.Key] = *a.Value.StringValue
		}
	}
	return all
}

func TestOTLPLine(t *testing.T) {
	var out bytes.Buffer
	tr := &Tracer{OTLP: &out, Who: "bridge ADD", Parent: SpanContext{TraceID: traceID, SpanID: parentID, Sampled: true, State: "a=b"}}
	tr.BeginCall(Call{Command: "ADD", Plugin: "bridge", Version: "v9", Network: "containers", ContainerID: "c1", IfName: "eth0", PID: 12})
	forDelegate, valid := ParseTraceParent(tr.TraceParent())
	_ = tr.Do("add link x", func() error { return nil })
	_ = tr.Do("set <y>", func() error { return errBoom })
	tr.EndCall(11, errors.New("pool is exhausted"))
	if strings.Count(out.String(), "\n") != 1 {
		t.Fatalf("want one line: %q", out.String())
	}
	var got request
	dec := json.NewDecoder(&out)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&got); err != nil {
		t.Fatal(err)
	}
	scope := got.ResourceSpans[0].ScopeSpans[0]
	if len(got.ResourceSpans) != 1 || len(scope.Spans) != 3 || scope.Scope.Version != "v9" || len(got.ResourceSpans[0].Resource.Attributes) != 2 {
		t.Fatalf("%+v", got)
	}
	root, first, second := scope.Spans[0], scope.Spans[1], scope.Spans[2]
	if root.ParentSpanID != parentID || root.Name != "bridge ADD" || root.Status.Code != 2 || root.Status.Message != "pool is exhausted" {
		t.Errorf("%+v", root)
	}
	if want := map[string]string{
		"cni.command": "ADD", "cni.plugin": "bridge", "cni.network": "containers", "cni.container_id": "c1", "cni.ifname": "eth0",
		"process.pid": "number 12", "cni.error_code": "number 11",
	}; !maps.Equal(root.attributes(), want) {
		t.Errorf("attributes %v, want %v", root.attributes(), want)
	}
	if !valid || forDelegate.TraceID != traceID || forDelegate.SpanID != root.SpanID || !forDelegate.Sampled {
		t.Errorf("a delegate gets %+v as parent, the span is %+v", forDelegate, root)
	}
	if first.Name != "add link x" || first.Status.Code != 0 || second.Name != "set <y>" || second.Status.Code != 2 || second.Status.Message != "boom" {
		t.Errorf("%+v, %+v", first, second)
	}
	seen := map[string]bool{}
	for i, s := range scope.Spans {
		begin, err := strconv.ParseInt(s.StartTimeUnixNano, 10, 64)
		end, err2 := strconv.ParseInt(s.EndTimeUnixNano, 10, 64)
		if err != nil || err2 != nil || begin <= 0 || end < begin {
			t.Errorf("from %q to %q", s.StartTimeUnixNano, s.EndTimeUnixNano)
		}
		if s.TraceID != traceID || !isHex(s.SpanID, 16) || seen[s.SpanID] || s.Kind != 1 || s.Flags != 1 || s.TraceState != "a=b" || i > 0 && s.ParentSpanID != root.SpanID {
			t.Errorf("span %d: %+v", i, s)
		}
		seen[s.SpanID] = true
	}
}
