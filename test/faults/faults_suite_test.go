// Package faults puts the built executables through what goes wrong on a node: death
// at any system call, refused requests, broken disks, reboots, bursts, hostile input.
// All of it is done from outside, to programs that know nothing of it.
//
// What runs in CI is a slice: of each row of faults some, spread evenly. With
// CNI_TEST_FAULTS=all (scripts/test.sh --faults) it is every one.
package faults

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestFaults(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "test/faults")
}

// all is whether every fault is to be tried, and not a slice.
func all() bool { return os.Getenv("CNI_TEST_FAULTS") == "all" }

// A tally is what was tried in one row of the report.
type tally struct {
	what            string
	tried, survived int
}

// report has the tallies in the order in which the rows were first heard of.
var report struct {
	sync.Mutex
	rows []*tally
}

// tried counts a fault in the report's row of that name ("bridge: killed in ADD, then
// DEL"), and whether the promise held.
func tried(what string, survived bool) {
	report.Lock()
	defer report.Unlock()
	for _, row := range report.rows {
		if row.what == what {
			row.add(survived)
			return
		}
	}
	row := &tally{what: what}
	row.add(survived)
	report.rows = append(report.rows, row)
}

func (t *tally) add(survived bool) {
	t.tried++
	if survived {
		t.survived++
	}
}

var _ = ReportAfterSuite("what was tried", func(Report) {
	if len(report.rows) == 0 {
		return
	}
	var text strings.Builder
	total := tally{what: "all"}
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "tried\tsurvived\t\n")
	for _, row := range report.rows {
		fmt.Fprintf(w, "%d\t%d\t  %s\n", row.tried, row.survived, row.what)
		total.tried, total.survived = total.tried+row.tried, total.survived+row.survived
	}
	fmt.Fprintf(w, "%d\t%d\t  %s\n", total.tried, total.survived, total.what)
	_ = w.Flush()
	fmt.Printf("\n%s", &text)
})
