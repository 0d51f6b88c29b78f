package e2e

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/plumb-cni/plumb/v2/test/cnitest"
)

// A recordedSpan contains the fields that identify an OTLP span and its parent.
type recordedSpan struct {
	TraceID, SpanID, ParentSpanID, Name string
	Status                              struct{ Code int }
}

// recordedSpans returns the spans in the file, by name, and the names of the calls in the order in which they
// ended.
func recordedSpans(file string) (spans map[string]recordedSpan, calls []string) {
	GinkgoHelper()
	text, err := os.ReadFile(file)
	Expect(err).NotTo(HaveOccurred())
	spans = map[string]recordedSpan{}
	for line := range strings.Lines(string(text)) {
		var request struct {
			ResourceSpans []struct {
				ScopeSpans []struct{ Spans []recordedSpan }
			}
		}
		Expect(json.Unmarshal([]byte(line), &request)).To(Succeed(), line)
		call := request.ResourceSpans[0].ScopeSpans[0].Spans
		calls = append(calls, call[0].Name)
		for _, s := range call {
			spans[s.Name] = s
		}
	}
	return spans, calls
}

var _ = Describe("the file CNI_TRACE_FILE", func() {
	It("contains the spans of bridge and host-local, below the span of the runtime", func() {
		network := newBridgeNetwork("1.1.0", "nftables")
		file := filepath.Join(GinkgoTB().TempDir(), "spans")
		GinkgoTB().Setenv("CNI_TRACE_FILE", file)
		runtime := oteltrace.NewSpanContext(oteltrace.SpanContextConfig{
			TraceID: oteltrace.TraceID{1, 2, 3}, SpanID: oteltrace.SpanID{4, 5, 6}, TraceFlags: oteltrace.FlagsSampled,
		})
		p := cnitest.NewContainer("a")
		_, err := network.CNI.AddNetworkList(oteltrace.ContextWithSpanContext(context.Background(), runtime), network.List, p.RT)
		Expect(err).NotTo(HaveOccurred())

		spans, calls := recordedSpans(file)
		Expect(calls).To(Equal([]string{"host-local ADD", "bridge ADD"}))
		outer, inner := spans["bridge ADD"], spans["host-local ADD"]
		Expect(outer.ParentSpanID).To(Equal(runtime.SpanID().String()))
		Expect(inner.ParentSpanID).To(Equal(outer.SpanID))
		Expect(spans["run host-local ADD"].ParentSpanID).To(Equal(outer.SpanID))
		for name, s := range spans {
			Expect(s.TraceID).To(Equal(runtime.TraceID().String()), name)
			Expect([]string{runtime.SpanID().String(), outer.SpanID, inner.SpanID}).To(ContainElement(s.ParentSpanID), name)
		}
		Expect(slices.ContainsFunc(calls, func(name string) bool { return spans[name].Status.Code != 0 })).To(BeFalse())

		By("a call that is not sampled")
		Expect(os.Truncate(file, 0)).To(Succeed())
		Expect(network.CNI.CheckNetworkList(oteltrace.ContextWithSpanContext(context.Background(), runtime.WithTraceFlags(0)), network.List, p.RT)).To(Succeed())
		Expect(os.ReadFile(file)).To(BeEmpty())
	})
})
