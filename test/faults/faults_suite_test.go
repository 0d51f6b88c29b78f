// Package faults tests the built executables under faults, such as a kill at any system call, refused kernel requests,
// full and damaged file systems, reboots, many concurrent calls and malicious containers. The tests inject all faults
// from outside, because the executables contain no code for them.
//
// By default, the tests inject an evenly spread sample of the faults, and with -short a smaller sample. With
// CNI_TEST_FAULTS=all (scripts/test.sh --nightly), they inject all faults.
package faults

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

func TestFaults(t *testing.T) {
	nstest.RequireRoot(t, "because it limits file systems, memory and processes")
	RegisterFailHandler(Fail)
	RunSpecs(t, "test/faults")
}

// A reportRow counts the faults of one kind, and how many of them led to the expected behaviour.
type reportRow struct {
	name          string
	tried, passed int
}

// report contains the rows in the order in which record added them.
var report struct {
	sync.Mutex
	rows []*reportRow
}

// record counts a fault in the report's row with this name. passed means that the plugins behaved as expected.
func record(name string, passed bool) {
	report.Lock()
	defer report.Unlock()
	for _, row := range report.rows {
		if row.name == name {
			row.count(passed)
			return
		}
	}
	row := &reportRow{name: name}
	row.count(passed)
	report.rows = append(report.rows, row)
}

func (r *reportRow) count(passed bool) {
	r.tried++
	if passed {
		r.passed++
	}
}

var _ = ReportAfterSuite("injected faults", func(Report) {
	if len(report.rows) == 0 {
		return
	}
	var text strings.Builder
	total := reportRow{name: "total"}
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "tried\tpassed\t\n")
	for _, row := range report.rows {
		fmt.Fprintf(w, "%d\t%d\t  %s\n", row.tried, row.passed, row.name)
		total.tried, total.passed = total.tried+row.tried, total.passed+row.passed
	}
	fmt.Fprintf(w, "%d\t%d\t  %s\n", total.tried, total.passed, total.name)
	_ = w.Flush()
	fmt.Printf("\n%s", &text)
})
