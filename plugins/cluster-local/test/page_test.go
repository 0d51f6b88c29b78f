package datastore

import (
	"bytes"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

var _ = Describe("datastore/README.md", func() {
	It("shows the real output of its commands", func() {
		c := newCluster(1)
		page, err := os.ReadFile("../datastore/README.md")
		Expect(err).NotTo(HaveOccurred())
		_, session, found := strings.Cut(string(page), "$ call() { jq -nc ")
		Expect(found).To(BeTrue())
		session, _, found = strings.Cut("$ call() { jq -nc "+session, "$ kill %1\n")
		Expect(found).To(BeTrue())
		script, want := "cd "+GinkgoT().TempDir()+"\n", ""
		for line := range strings.Lines(session) {
			command, isCommand := strings.CutPrefix(line, "$ ")
			if isCommand {
				script += command
			} else {
				want += line
			}
		}
		conf := strings.ReplaceAll(string(c.datastoreConfig("node", nil)), `"`, `\"`)
		script = strings.NewReplacer(`{endpoints: [\"http://127.0.0.1:2379\"]}`, conf, "| cluster-local-etcd", "| "+datastorePath).Replace(script)
		var got bytes.Buffer
		cmd := exec.Command("bash", "-c", script)
		cmd.Stdout, cmd.Stderr = &got, GinkgoWriter
		Expect(c.clients.Start(cmd)).To(Succeed())
		_ = cmd.Wait() // the last call fails
		Expect(withoutRandom(got.String())).To(Equal(withoutRandom(want)))
	})

	It("describes all keys and reasons", func() {
		page, err := os.ReadFile("../datastore/README.md")
		Expect(err).NotTo(HaveOccurred())
		for _, t := range []reflect.Type{reflect.TypeFor[datastore.Request](), reflect.TypeFor[datastore.Answer](), reflect.TypeFor[datastore.Error]()} {
			for i := range t.NumField() {
				key, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
				Expect(strings.Contains(string(page), "`"+key+"`") || strings.Contains(string(page), `"`+key+`"`)).To(BeTrue(), key)
			}
		}
		source, err := os.ReadFile("../datastore/datastore.go")
		Expect(err).NotTo(HaveOccurred())
		for line := range strings.Lines(string(source)) {
			words := strings.Fields(line)
			if len(words) > 2 && words[1] == "=" && strings.HasPrefix(words[0], "Reason") {
				Expect(string(page)).To(ContainSubstring("| `" + strings.Trim(words[2], `"`) + "` |"))
			}
		}
	})
})

// withoutRandom returns answers without times, claims and store IDs, which differ between runs.
func withoutRandom(answers string) string {
	return regexp.MustCompile(`[0-9a-f]{32}|\d{4}-[0-9:T-]+Z`).ReplaceAllString(answers, "…")
}
