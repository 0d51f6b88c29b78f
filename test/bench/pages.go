package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

//go:generate go -C ../.. run ./test/bench -pages

// newest reads the newest file of docs/benchmarks. The file's name, without .json, is the date and the measured commit.
func newest(top string) (r report, name string, err error) {
	files, _ := filepath.Glob(filepath.Join(top, "docs/benchmarks/*.json"))
	if len(files) == 0 {
		return r, "", errors.New("docs/benchmarks has no file; run scripts/bench.sh --report")
	}
	text, err := os.ReadFile(files[len(files)-1])
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	return r, strings.TrimSuffix(filepath.Base(files[len(files)-1]), ".json"), err
}

// pages returns the pages with their tables, and the plots, from the newest file. The keys are paths below top.
func pages(top string) (map[string]string, error) {
	r, name, err := newest(top)
	if err != nil {
		return nil, err
	}
	tables := map[string]func(io.Writer){
		"summary": func(w io.Writer) { r.summary(w, name) },
		"conditions": func(w io.Writer) {
			fmt.Fprintf(w, "- Commit %s; [%s.json](../benchmarks/%s.json) contains all figures.\n", name[len("2006-01-02-"):], name, name)
			r.conditions(w)
		},
		"results": r.results, "breakdown": r.breakdown, "executables": r.executables,
	}
	all := map[string]string{}
	for file, plot := range r.plots() {
		all["docs/pictures/"+file] = plot
	}
	block := regexp.MustCompile(`(?s)(<!-- benchmark: (\w+) -->\n).*?(<!-- end -->)`)
	for _, page := range []string{"README.md", "docs/explanation/performance.md"} {
		text, err := os.ReadFile(filepath.Join(top, page))
		if err != nil {
			return nil, err
		}
		all[page] = block.ReplaceAllStringFunc(string(text), func(old string) string {
			part := block.FindStringSubmatch(old)
			var b strings.Builder
			if table := tables[part[2]]; table != nil {
				table(&b)
			}
			return part[1] + b.String() + part[3]
		})
	}
	return all, nil
}

func writePages(top string) error {
	all, err := pages(top)
	for page, text := range all {
		err = errors.Join(err, os.WriteFile(filepath.Join(top, page), []byte(text), 0o644))
	}
	return err
}

// rows contains the rows of the README's table. A row is a title, followed by the scenarios and verbs.
var rows = [][]string{
	{"`bridge` with `host-local`: ADD, DEL; the same with `ipMasq`", "bridge/v4 ADD", "bridge/v4 DEL", "bridge/v4/masq ADD", "bridge/v4/masq DEL"},
	{"`ptp` with IPv4 and IPv6: ADD", "ptp/dual ADD"},
	{"`portmap` with 1, 10, 100 host ports: ADD", "portmap/1 ADD", "portmap/10 ADD", "portmap/100 ADD"},
	{"`portmap` with 1 host port, 5,000 host ports of other containers: ADD", "portmap/1/foreign-5000 ADD"},
	{"TCP connection through a host port, 5,000 host ports of other containers", "connect/5000 " + toHostPort},
	{"`host-local` with no, and with 60,000 other reservations: ADD", "host-local/0 ADD", "host-local/60000 ADD"},
	{"`bridge`, `portmap`, `bandwidth` and `tuning`: ADD, DEL", "chain ADD", "chain DEL"},
	{"%d containers with these plugins, 32 at a time: ADD, DEL of all", "burst/chain/x32 ADD", "burst/chain/x32 DEL"},
}

// summary prints the table of the README.
func (r *report) summary(w io.Writer, name string) {
	medians := map[string]string{}
	for _, o := range r.Scenarios {
		for _, v := range o.Verbs {
			for side, s := range v.Sides {
				medians[side+o.Scenario+" "+v.Verb] = s.median(false)
			}
		}
	}
	m := r.Machine
	fmt.Fprintf(w, "Medians in milliseconds. Commit %s of plumb and %s\nran in turns on %s, on a machine with %d CPUs (%s) and Linux %s.\n",
		name[len("2006-01-02-"):], m.Reference, name[:len("2006-01-02")], m.CPUs, m.CPU, m.Kernel)
	if r.Quick {
		fmt.Fprintf(w, "**%s**\n", short)
	}
	fmt.Fprint(w, "\n| | plumb | reference |\n|---|---|---|\n")
	for _, row := range rows {
		fmt.Fprintf(w, "| %s |", strings.ReplaceAll(row[0], "%d", fmt.Sprint(r.Containers)))
		for _, side := range []string{plumb, reference} {
			var cells []string
			for _, call := range row[1:] {
				cells = append(cells, cmp.Or(medians[side+call], "–"))
			}
			fmt.Fprintf(w, " %s |", strings.Join(cells, ", "))
		}
		fmt.Fprintln(w)
	}
}

// results prints a row for each scenario and pair of sides, with the results of its verbs.
func (r *report) results(w io.Writer) {
	fmt.Fprint(w, "\n| scenario | calls | plumb | reference | ratio | goal |\n|---|---|---|---|---|---|\n")
	others := 0.0
	for _, o := range r.Scenarios {
		others = max(others, o.Others)
		for i, p := range pairs(o.Verbs[0].Sides) {
			var cells [5][]string
			for _, v := range o.Verbs {
				a, b := v.Sides[p[0]], v.Sides[p[1]]
				goal, missed := o.budget(v, i, p)
				if missed {
					goal = "**" + goal + "**"
				}
				for k, text := range []string{v.Verb, a.median(true), b.median(true), ratio(a, b), goal} {
					cells[k] = append(cells[k], cmp.Or(text, "–"))
				}
			}
			fmt.Fprintf(w, "| %s |", o.title(p))
			for _, texts := range cells {
				fmt.Fprintf(w, " %s |", strings.Join(texts, " · "))
			}
			fmt.Fprintln(w)
		}
	}
	fmt.Fprintf(w, "\nOther programs used at most %.0f%% of the processors during a scenario.\n", 100*others)
}

// median returns a table cell with the median and, if spread is set, half the distance between the quartiles.
func (s summary) median(spread bool) string {
	switch {
	case s.N == 0:
		return "fails"
	case spread:
		return figure(s.Median) + " ± " + figure((s.Quartile.Upper-s.Quartile.Lower)/2)
	}
	return figure(s.Median)
}

// checkSizes returns an error if the sizes in docs/explanation/performance.md differ from the sizes of the executables in dir. It
// accepts a difference of up to 50 kB, because a few bytes can change the rounded size. It does not compare executables
// that another version of Go built, or executables for another architecture.
func checkSizes(top, dir string) error {
	r, name, err := newest(top)
	if err != nil || toolchain(filepath.Join(dir, "bridge")) != r.Machine.Go {
		return err
	}
	names, err := executables(dir)
	if err != nil {
		return err
	}
	var wrong []string
	built := sizes(dir, names)
	for _, file := range names {
		want, got := r.Sizes[plumb][file], built[file]
		if mb(got) != mb(want) && max(want-got, got-want) > 50_000 {
			wrong = append(wrong, fmt.Sprintf("%s: want %s MB, got %s", file, mb(want), mb(got)))
		}
	}
	if wrong == nil {
		return nil
	}
	return fmt.Errorf("docs/explanation/performance.md: sizes of another build (%s.json): %s; run scripts/bench.sh --report", name, strings.Join(wrong, ", "))
}
