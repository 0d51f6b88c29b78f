package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

var _ = Describe("plumb schema", func() {
	// call calls the command, and returns what it prints and its exit status.
	call := func(args ...string) (stdout string, status int) {
		root := newRoot()
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetArgs(append([]string{"schema"}, args...))
		err := root.Execute()
		return out.String(), exitStatus(newSchema(), err)
	}

	It("lists a schema for each plugin, and conflist", func() {
		want := []string{"conflist"}
		mains, err := filepath.Glob(filepath.Join(nstest.Root(GinkgoTB()), "plugins/*/main.go"))
		Expect(err).NotTo(HaveOccurred())
		for _, main := range mains {
			want = append(want, filepath.Base(filepath.Dir(main)))
		}
		out, status := call("--list")
		Expect(status).To(BeZero())
		Expect(strings.Fields(out)).To(ConsistOf(want))
	})

	It("prints the text of a schema file", func() {
		want, err := os.ReadFile("internal/schema/bridge.schema.json")
		Expect(err).NotTo(HaveOccurred())
		out, status := call("bridge")
		Expect(status).To(BeZero())
		Expect(out).To(Equal(string(want)))
		Expect(out).To(MatchJSON(want))
	})

	DescribeTable("returns the exit status for wrong arguments",
		func(args ...string) {
			_, status := call(args...)
			Expect(status).To(Equal(exitUsage))
		},
		Entry("no name"),
		Entry("an unknown name", "brigde"),
		Entry("two names", "bridge", "ptp"),
		Entry("a name with --list", "--list", "bridge"),
	)
})
