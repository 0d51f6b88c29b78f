package main

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/doctor"
)

var _ = It("plumb doctor indents the further lines of a finding", func() {
	var out strings.Builder
	Expect(printReport(&out, &doctor.Report{Findings: []doctor.Finding{
		{Where: "host", What: "CHECK fails: one\ntwo", Fix: "true"},
		{Where: "kernel", What: "three", Fix: "edit: four"},
	}})).To(Succeed())
	Expect(out.String()).To(HavePrefix("host: CHECK fails: one\n  two\n    true\nkernel: three\n    edit: four\n2 problems ("))
})
