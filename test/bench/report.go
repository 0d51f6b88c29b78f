package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// A report contains all results of a run. --json writes it to a file.
type report struct {
	Date       string                        `json:"date"`
	Command    string                        `json:"command"`
	Iterations int                           `json:"iterations"`
	Containers int                           `json:"containers"` // the number of containers in a burst
	Quick      bool                          `json:"quick"`
	Machine    machine                       `json:"machine"`
	Scenarios  []*outcome                    `json:"scenarios"`
	Sizes      map[string]map[string]int64   `json:"sizes"`  // sizes in bytes, by side and executable
	Memory     map[string]map[string]*memory `json:"memory"` // peak memory, by side and executable
}

// conditions prints how and on which machine the figures were measured.
func (r *report) conditions(w io.Writer) {
	m := r.Machine
	fmt.Fprintf(w, "- %s; `%s`: %d iterations after %d to warm up; bursts of containers: %d of %d.\n", r.Date, r.Command, r.Iterations, warmups, rounds(r.Iterations), r.Containers)
	fmt.Fprintf(w, "- %s, %d CPUs, %d MiB; Linux %s; %s; state on %s; load at the start %s.\n", m.CPU, m.CPUs, m.MemoryMiB, m.Kernel, m.Distribution, m.State, m.Load)
	fmt.Fprintf(w, "- plumb: %s, %s.\n- reference: %s; %s.\n", m.Plumb, m.Go, m.Reference, strings.Join(m.Programs, "; "))
	if r.Quick {
		fmt.Fprintf(w, "- **%s**\n", short)
	}
}

const short = "This was a short run (`--quick`), which shows that the script works. Do not rely on its figures."

const columns = "\n| scenario | verb | plumb | reference | ratio | budget |\n|---|---|---|---|---|---|\n"

func (o *outcome) rows(w io.Writer) {
	if o.Error != "" {
		fmt.Fprintf(w, "| %s | | **failed** | | | %s |\n", o.Scenario, oneLine(o.Error))
		return
	}
	if o.Skipped != "" {
		fmt.Fprintf(w, "| %s | | %s | | | |\n", o.Scenario, oneLine(o.Skipped))
		return
	}
	for _, v := range o.Verbs {
		for i, p := range pairs(v.Sides) {
			if len(v.Sides[p[0]].Reason)+v.Sides[p[0]].N == 0 {
				continue
			}
			budget, _ := o.budget(v, i, p)
			fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s |\n", o.title(p), v.Verb,
				v.Sides[p[0]].cell(), v.Sides[p[1]].cell(), ratio(v.Sides[p[0]], v.Sides[p[1]]), budget)
		}
	}
	if o.Others > 0.1 {
		fmt.Fprintf(w, "| %s | | others had %.0f%% of the processors | | | |\n", o.Scenario, 100*o.Others)
	}
}

// title returns the name of the scenario. If the second side is not the reference, the title names it.
func (o *outcome) title(p [2]string) string {
	switch {
	case p[1] == empty:
		return o.Scenario + " (second: plumb with none)"
	case p[1] == withNFTables:
		return o.Scenario + " (second: " + withNFTables + ")"
	case p[1] == withHostLocal:
		return o.Scenario + " (second: plumb's host-local)"
	case p[0] != plumb:
		return o.Scenario + " (first: " + p[0] + ")"
	}
	return o.Scenario
}

func (s summary) cell() string {
	switch {
	case s.N == 0 && s.Reason == "": // there is no such side
		return "–"
	case s.N == 0:
		return "fails: " + oneLine(s.Reason)
	}
	text := fmt.Sprintf("%s ± %s / %s / %s (%s)", figure(s.Median), figure((s.Quartile.Upper-s.Quartile.Lower)/2), figure(s.P99), figure(s.Min), figure(s.CPU))
	if s.Reason != "" {
		text += fmt.Sprintf("; after %d fails: %s", s.N, oneLine(s.Reason))
	}
	return text
}

func ratio(a, b summary) string {
	if a.N == 0 || b.N == 0 {
		return ""
	}
	return figure(a.Median/b.Median) + " (" + figure(a.P99/b.P99) + ")"
}

// budget returns the goal in a pair's row, and whether plumb misses the goal. Row 0 compares plumb with the reference.
func (o *outcome) budget(v verbOutcome, row int, p [2]string) (text string, missed bool) {
	a, b := v.Sides[p[0]], v.Sides[p[1]]
	switch {
	case p[1] == empty && v.Aim.Own > 0:
		return fmt.Sprintf("≤ %v × with none", v.Aim.Own), a.Median > v.Aim.Own*b.Median
	case row > 0:
		return "", false
	case v.Aim.Median > 0:
		return fmt.Sprintf("≤ %v", v.Aim.Median), b.N > 0 && a.Median > v.Aim.Median*b.Median
	case v.Aim.P99 > 0:
		return fmt.Sprintf("p99 ≤ %v", v.Aim.P99), b.N > 0 && a.P99 > v.Aim.P99*b.P99
	case v.Aim.Above > 0:
		more := a.Median - o.Verbs[0].Sides[plumb].Median
		return fmt.Sprintf("≤ VERSION + %v ms: %+.2f", v.Aim.Above, more), more > v.Aim.Above
	}
	return "", false
}

// figure formats a number with three significant digits.
func figure(f float64) string {
	switch {
	case f >= 100:
		return fmt.Sprintf("%.0f", f)
	case f >= 10:
		return fmt.Sprintf("%.1f", f)
	case f >= 0.1 || f == 0:
		return fmt.Sprintf("%.2f", f)
	}
	return fmt.Sprintf("%.4f", f)
}

// oneLine shortens a text, and escapes it for a table cell.
func oneLine(text string) string {
	text = strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", "\\|")
	if r := []rune(text); len(r) > 160 {
		text = string(r[:160]) + "…"
	}
	return text
}

func (r *report) executables(w io.Writer) {
	fmt.Fprint(w, "\n| executable | plumb, MB (goal for a plugin: 5) | reference, MB | plumb, peak memory in MiB (goal: 12) | reference, peak memory in MiB |\n|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(r.Sizes[plumb])) {
		fmt.Fprintf(w, "| `%s` | %s | %s | %s | %s |\n", name,
			mb(r.Sizes[plumb][name]), mb(r.Sizes[reference][name]), r.Memory[plumb][name], r.Memory[reference][name])
	}
}

func mb(bytes int64) string {
	if bytes == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f", float64(bytes)/1e6)
}

func (m *memory) String() string {
	if m == nil {
		return "–"
	}
	return fmt.Sprintf("%.1f", float64(m.KiB)/1024)
}

func (r *report) write(path string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	b = bytes.ReplaceAll(b, []byte(`{"scenario":`), []byte("\n"+`{"scenario":`)) // one line per scenario
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
