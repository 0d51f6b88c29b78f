package test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestKubernetesPage compares the results of Kubernetes' own tests in docs/reference/compatibility.md with test/node/results.jsonl, which
// test/node/nightly.sh writes.
func TestKubernetesPage(t *testing.T) {
	table := "| date | Kubernetes | runtime | kube-proxy | nodes | specs | passed | skipped |\n|---|---|---|---|---|---|---|---|\n"
	reasons := map[string]int{}
	for line := range strings.Lines(read(t, "test/node/results.jsonl")) {
		var r struct {
			Kubernetes, Runtime, Proxy, Date, Specs string
			Nodes, Passed                           int
			Skipped                                 map[string]string
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		table += fmt.Sprintf("| %s | %s | %s | %s | %d | %s | %d | %d |\n", r.Date, r.Kubernetes, r.Runtime, r.Proxy, r.Nodes, r.Specs, r.Passed, len(r.Skipped))
		for _, reason := range r.Skipped {
			reasons[reason]++
		}
	}
	if len(reasons) > 0 {
		table += "\n| skipped specs | reason that the spec prints |\n|---|---|\n"
		for _, reason := range slices.Sorted(maps.Keys(reasons)) {
			table += fmt.Sprintf("| %d | %s |\n", reasons[reason], strings.ReplaceAll(reason, "|", `\|`))
		}
	}
	requireTable(t, "docs/reference/compatibility.md", "kubernetes", table)
}
