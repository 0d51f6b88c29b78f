package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// A report is all that a run gave: what is printed, and what --json writes.
type report struct {
	Date       string                        `json:"date"`
	Command    string                        `json:"command"`
	Iterations int                           `json:"iterations"`
	Quick      bool                          `json:"quick"`
	Machine    machine                       `json:"machine"`
	Scenarios  []*outcome                    `json:"scenarios"`
	Sizes      map[string]map[string]int64   `json:"sizes"`  // bytes, by side and executable
	Memory     map[string]map[string]*memory `json:"memory"` // by side and executable
}

func (r *report) head(w io.Writer) {
	m := r.Machine
	fmt.Fprintf(w, "# plumb and the reference plugins, side by side\n\n")
	fmt.Fprintf(w, "- %s; `%s`\n", r.Date, r.Command)
	fmt.Fprintf(w, "- %s, %d CPUs, %d MiB; Linux %s; %s; state on %s; load %s\n", m.CPU, m.CPUs, m.MemoryMiB, m.Kernel, m.Distribution, m.State, m.Load)
	fmt.Fprintf(w, "- plumb: %s\n- reference: %s; %s\n", m.Plumb, m.Reference, strings.Join(m.Programs, "; "))
	fmt.Fprintf(w, "- %d iterations after %d to warm up, the sides in turn, each from fresh copies of its executables. A cell: median ± half the spread of the middle half / p99 / min (CPU), in ms.\n",
		r.Iterations, warmups)
	fmt.Fprintf(w, "- Ratios are of medians, those in brackets of p99. Budgets are told, and judge nothing.\n")
	if r.Quick {
		fmt.Fprintf(w, "- **--quick: that all of it works, and no figures to rely on.**\n")
	}
}

const columns = "\n| scenario | verb | plumb | reference | ratio | budget |\n|---|---|---|---|---|---|\n"

// rows prints a scenario's part of the table.
func (o *outcome) rows(w io.Writer) {
	if o.Error != "" {
		fmt.Fprintf(w, "| %s | | **failed** | | | %s |\n", o.Scenario, oneLine(o.Error))
		return
	}
	for _, v := range o.Verbs {
		for i, p := range pairs(v.Sides) {
			name := o.Scenario
			switch {
			case p[1] == empty:
				name += " (second: plumb with none)"
			case p[1] == withHostLocal:
				name += " (second: plumb's host-local)"
			case p[0] != plumb:
				name += " (first: " + p[0] + ")"
			}
			if len(v.Sides[p[0]].Reason)+v.Sides[p[0]].N == 0 {
				continue
			}
			fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s |\n", name, v.Verb,
				v.Sides[p[0]].cell(), v.Sides[p[1]].cell(), ratio(v.Sides[p[0]], v.Sides[p[1]]), o.budget(v, i, p))
		}
	}
	if o.Others > 0.1 {
		fmt.Fprintf(w, "| %s | | others had %.0f%% of the processors | | | |\n", o.Scenario, 100*o.Others)
	}
}

func (s summary) cell() string {
	if s.N == 0 {
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

// budget tells the aim of the pair's row: the first row is that with the reference.
func (o *outcome) budget(v verbOutcome, row int, p [2]string) string {
	switch {
	case p[1] == empty && v.Aim.Own > 0:
		return fmt.Sprintf("≤ %v × with none", v.Aim.Own)
	case row > 0:
		return ""
	case v.Aim.Median > 0:
		return fmt.Sprintf("≤ %v", v.Aim.Median)
	case v.Aim.P99 > 0:
		return fmt.Sprintf("p99 ≤ %v", v.Aim.P99)
	case v.Aim.Above > 0:
		return fmt.Sprintf("≤ VERSION + %v ms: %+.2f", v.Aim.Above, v.Sides[plumb].Median-o.Verbs[0].Sides[plumb].Median)
	}
	return ""
}

// figure has three digits.
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

// oneLine is a text that a cell can hold.
func oneLine(text string) string {
	text = strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", "\\|")
	if r := []rune(text); len(r) > 160 {
		text = string(r[:160]) + "…"
	}
	return text
}

// executables prints sizes and memory.
func (r *report) executables(w io.Writer, names []string) {
	fmt.Fprintf(w, "\n| executable | plumb KiB | reference KiB | budget | plumb peak KiB | in | reference peak KiB | in | budget |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, name := range names {
		size, memory := "≤ 5 MB", "≤ 12 MiB"
		if name == "plumb" || name == "cluster-local-etcd" { // no plugins
			size, memory = "", ""
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %s |\n", name,
			kib(r.Sizes[plumb][name]), kib(r.Sizes[reference][name]), size, r.Memory[plumb][name], r.Memory[reference][name], memory)
	}
}

func kib(bytes int64) string {
	if bytes == 0 {
		return ""
	}
	return fmt.Sprint(bytes / 1024)
}

func (m *memory) String() string {
	if m == nil {
		return " | "
	}
	return fmt.Sprintf("%d | %s", m.KiB, m.Where)
}

func (r *report) write(path string) error {
	b, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
