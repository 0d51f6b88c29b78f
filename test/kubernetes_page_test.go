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
	type result struct {
		Kubernetes, Runtime, Proxy, Date, Specs string
		Nodes, Passed                           int
		Skipped                                 map[string]string
	}
	var results []result
	for line := range strings.Lines(read(t, "test/node/results.jsonl")) {
		var r result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		results = append(results, r)
		table += fmt.Sprintf("| %s | %s | %s | %s | %d | %s | %d | %d |\n", r.Date, r.Kubernetes, r.Runtime, r.Proxy, r.Nodes, r.Specs, r.Passed, len(r.Skipped))
	}
	reasons := map[string]string{} // by spec
	for _, r := range results {
		for spec, reason := range r.Skipped {
			ran := func(o result) bool { return o.Nodes > r.Nodes && o.Skipped[spec] == "" } // it runs all specs of fewer nodes
			if !slices.ContainsFunc(results, ran) {
				reasons[spec] = reason
			}
		}
	}
	counts := map[string]int{}
	for _, reason := range reasons {
		counts[reason]++
	}
	if len(counts) > 0 {
		table += "\n| specs that no run executed | reason that the spec prints |\n|---|---|\n"
		for _, reason := range slices.Sorted(maps.Keys(counts)) {
			table += fmt.Sprintf("| %d | %s |\n", counts[reason], strings.ReplaceAll(reason, "|", `\|`))
		}
	}
	requireTable(t, "docs/reference/compatibility.md", "kubernetes", table)
}
