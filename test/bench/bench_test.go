package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSummarize(t *testing.T) {
	var samples []sample
	for i := range 200 { // 1 … 200 ms, unordered
		d := time.Duration((i*77)%200+1) * time.Millisecond
		samples = append(samples, sample{d, d / 2})
	}
	s := summarize(samples)
	if s.N != 200 || s.Median != 100.5 || s.P99 != 198 || s.Min != 1 || s.Max != 200 || s.CPU != 50.25 {
		t.Errorf("unexpected summary %+v", s)
	}
	if s.Quartile.Lower != 50 || s.Quartile.Upper != 150 {
		t.Errorf("want the quartiles 50 and 150, got %+v", s.Quartile)
	}
	if s := summarize(samples[:1]); s.Median != 1 || s.P99 != 1 {
		t.Errorf("unexpected summary of one sample: %+v", s)
	}
	if s := summarize(nil); s.N != 0 || s.Median != 0 {
		t.Errorf("unexpected summary of no samples: %+v", s)
	}
}

// TestOrderFavoursNobody checks that each side gets each position equally often, and runs before another side as often
// as after it.
func TestOrderFavoursNobody(t *testing.T) {
	if a, b := order(2, 0), order(2, 1); !slices.Equal(a, []int{0, 1}) || !slices.Equal(b, []int{1, 0}) {
		t.Errorf("two sides: want [0 1] and [1 0], got %v and %v", a, b)
	}
	for sides := 1; sides <= 4; sides++ {
		seen, before := map[[2]int]int{}, map[[2]int]int{}
		for i := range 4 * sides {
			turns := order(sides, i)
			for place, side := range turns {
				seen[[2]int{place, side}]++
				for _, later := range turns[place+1:] {
					before[[2]int{side, later}]++
				}
			}
		}
		for who, n := range before {
			if n != 2*sides {
				t.Errorf("%d sides: %d precedes %d in %d of %d iterations", sides, who[0], who[1], n, 4*sides)
			}
		}
		for where, n := range seen {
			if n != 4 {
				t.Errorf("%d sides: position %d contains side %d in %d of %d iterations", sides, where[0], where[1], n, 4*sides)
			}
		}
	}
}

func TestChosenScenarios(t *testing.T) {
	names := func(only string, quick bool) (string, error) {
		list, err := options{only: only, quick: quick}.chosen()
		var all []string
		for _, sc := range list {
			all = append(all, sc.name)
		}
		return strings.Join(all, " "), err
	}
	for _, c := range []struct {
		only  string
		quick bool
		want  string
	}{
		{"ptp", false, "ptp/v4 ptp/dual"},
		{"ptp", true, "ptp/v4"},
		{"ptp,ptp/v4", true, "ptp/v4"},
		{"portmap/1", true, "portmap/1"},
		{"ptp/dual,loopback", true, "loopback ptp/dual"},
	} {
		if got, err := names(c.only, c.quick); err != nil || got != c.want {
			t.Errorf("--only %s: want %q, got %q, %v", c.only, c.want, got, err)
		}
	}
	if _, err := names("loopback,bridg", false); err == nil || !strings.Contains(err.Error(), "bridg") {
		t.Errorf("want an error for an unknown scenario, got %v", err)
	}
	seen := map[string]bool{}
	for _, sc := range scenarios() {
		if seen[sc.name] {
			t.Errorf("two scenarios are named %s", sc.name)
		}
		seen[sc.name] = true
	}
}

func TestRulesAreCopied(t *testing.T) {
	const saved = `*nat
:PREROUTING ACCEPT [0:0]
:CNI-DN-0123456789abcdef - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "id: \"foreign-0\"" -m multiport --dports 40000 -j CNI-DN-0123456789abcdef
-A CNI-DN-0123456789abcdef -p tcp -m tcp --dport 40000 -j DNAT --to-destination 10.88.0.2:80
COMMIT
`
	const want = `*nat
:CNI-DN-foreign00001 - [0:0]
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "id: \"foreign-1\"" -m multiport --dports 40001 -j CNI-DN-foreign00001
-A CNI-DN-foreign00001 -p tcp -m tcp --dport 40001 -j DNAT --to-destination 10.88.0.2:80
COMMIT
`
	if got := copies(saved, 2, 1); got != want {
		t.Errorf("want\n%sgot\n%s", want, got)
	}
}

// TestFiguresInTheTable checks each kind of row.
func TestFiguresInTheTable(t *testing.T) {
	ours := summarize([]sample{{2 * time.Millisecond, time.Millisecond}})
	theirs := summarize([]sample{{8 * time.Millisecond, 4 * time.Millisecond}})
	o := &outcome{Scenario: "toy", Verbs: []verbOutcome{
		{Verb: "VERSION", Sides: map[string]summary{plumb: ours, reference: theirs}},
		{Verb: "ADD", Aim: aim{Median: 0.5}, Sides: map[string]summary{plumb: ours, reference: theirs}},
		{Verb: "CHECK", Aim: aim{Above: 4}, Sides: map[string]summary{plumb: theirs, reference: {Reason: "no | chain"}}},
		{Verb: "DEL", Aim: aim{Own: 1.3}, Sides: map[string]summary{plumb: ours, reference: theirs, empty: ours}},
	}}
	var b strings.Builder
	o.rows(&b)
	for _, want := range []string{
		"| toy | ADD | 2.00 ± 0.00 / 2.00 / 2.00 (1.00) | 8.00 ± 0.00 / 8.00 / 8.00 (4.00) | 0.25 (0.25) | ≤ 0.5 |",
		`| fails: no \| chain |  | ≤ VERSION + 4 ms: +6.00 |`,
		"| toy (second: plumb with none) | DEL | 2.00 ± 0.00 / 2.00 / 2.00 (1.00) | 2.00 ± 0.00 / 2.00 / 2.00 (1.00) | 1.00 (1.00) | ≤ 1.3 × with none |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("want %q in\n%s", want, b.String())
		}
	}
}

// TestPagesHaveTheFigures compares the pages with the newest file of docs/benchmarks.
func TestPagesHaveTheFigures(t *testing.T) {
	all, err := pages("../..")
	if err != nil {
		t.Fatal(err)
	}
	for page, want := range all {
		if got, err := os.ReadFile(filepath.Join("../..", page)); err != nil || string(got) != want {
			t.Errorf("%s: figures differ from docs/benchmarks (%v); run go generate ./test/bench", page, err)
		}
	}
	for page, n := range map[string]int{"README.md": 1, "docs/explanation/performance.md": 4} {
		if got := strings.Count(all[page], "<!-- benchmark: "); got != n {
			t.Errorf("%s: want %d tables, got %d", page, n, got)
		}
	}
}

func TestStepsOfALog(t *testing.T) {
	const log = `bridge ADD     0.100ms     0.250ms open netlink socket
bridge ADD     0.350ms     0.500ms open nftables
bridge ADD     0.850ms     1.000ms nft list rules of inet plumb
bridge ADD     1.850ms     0.125ms write sysctls net/ipv4/conf/eth0/arp_notify=1
bridge ADD     1.975ms     0.025ms read /proc/thread-self/net/ip_tables_names
bridge ADD     2.000ms     0.750ms add link veth0
a warning
host-local ADD     0.000ms     9.000ms lock /run/cni/networks/bench
bridge ADD     0.000ms     7.000ms run host-local ADD
`
	want := map[string]time.Duration{rtnetlink: time.Millisecond, nfTables: 1500 * time.Microsecond, sysctls: 125 * time.Microsecond, "": 7025 * time.Microsecond}
	if got := stepsOf("bridge", log); !maps.Equal(got, want) {
		t.Errorf("want %v, got %v", want, got)
	}
}

// TestReportFillsTheREADME checks that --report measures every scenario of the README's table.
func TestReportFillsTheREADME(t *testing.T) {
	list, err := options{report: true, only: reported}.chosen()
	if err != nil {
		t.Fatal(err)
	}
	measured := map[string]bool{}
	for _, sc := range list {
		for _, v := range sc.verbs {
			measured[sc.name+" "+v.name] = true
		}
	}
	for _, row := range rows {
		for _, call := range row[1:] {
			if !measured[call] {
				t.Errorf("--report does not measure %s", call)
			}
		}
	}
}

// TestSizesOfAnotherBuild checks that a release rejects pages with the sizes of another build by the same version of Go.
func TestSizesOfAnotherBuild(t *testing.T) {
	top, built := t.TempDir(), t.TempDir()
	program, err := os.Executable()
	if err == nil {
		err = errors.Join(os.Symlink(program, filepath.Join(built, "bridge")), os.MkdirAll(filepath.Join(top, "docs/benchmarks"), 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	size, toolchain := sizes(built, []string{"bridge"})["bridge"], toolchain(program)
	for _, c := range []struct {
		size   int64
		goName string
		want   string
	}{
		{size, toolchain, ""},
		{size + 40_000, toolchain, ""},
		{size + 200_000, "go1.1 amd64", ""},
		{size + 200_000, toolchain, "bridge: want " + mb(size+200_000) + " MB, got " + mb(size)},
	} {
		r := report{Machine: machine{Go: c.goName}, Sizes: map[string]map[string]int64{plumb: {"bridge": c.size}}}
		if err := r.write(filepath.Join(top, "docs/benchmarks/2026-01-01-abc.json")); err != nil {
			t.Fatal(err)
		}
		if err := checkSizes(top, built); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d bytes by %s: want %q, got %v", c.size, c.goName, c.want, err)
		}
	}
}

// TestWarmUpsAreNotKept checks that the samples do not include the first calls, which fill caches and create shared objects.
func TestWarmUpsAreNotKept(t *testing.T) {
	calls, bin := filepath.Join(t.TempDir(), "calls"), t.TempDir()
	script := "#!/bin/sh\n[ \"$CNI_COMMAND\" != CHECK ] || exit 1\necho \"$CNI_COMMAND $CNI_CONTAINERID\" >>" + calls + "\n"
	if err := os.WriteFile(filepath.Join(bin, "toy"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	b := &bench{bins: bins{plumb: bin, reference: bin}, iterations: 2, memory: map[string]map[string]*memory{}}
	toy := scenario{
		name: "toy", chain: one(func(*side) conf { return conf{"type": "toy"} }),
		verbs: []verb{{name: "ADD"}, {name: "CHECK", fails: true}, {name: "DEL, unknown", command: "DEL", unknown: true}},
	}
	o := b.run(toy)
	if o.Error != "" {
		t.Fatal(o.Error)
	}
	for _, v := range o.Verbs {
		if v.Sides[plumb].N != 2 || v.Sides[reference].N != 2 {
			t.Errorf("%s: want 2 samples per side, got %+v", v.Verb, v.Sides)
		}
	}
	text, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "ADD container-"); n != 2*(2+warmups+1) { // one more iteration measures the memory
		t.Errorf("unexpected number of ADDs: %d", n)
	}
	if n := strings.Count(string(text), "DEL unknown"); n != 2*(2+warmups+1) {
		t.Errorf("unexpected number of DELs of an unknown container: %d", n)
	}
	toy.verbs[1].fails = false
	if o := b.run(toy); !strings.Contains(o.Error, "toy CHECK: exit status 1") {
		t.Errorf("want the error of the failing plugin, got %q", o.Error)
	}
}
