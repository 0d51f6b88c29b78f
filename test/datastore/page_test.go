package datastore

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/plumb-cni/plumb/pkg/datastore"
	"github.com/plumb-cni/plumb/test/nstest"
)

var _ = Describe("datastore/README.md", func() {
	It("contains an example that works as described", func() {
		c := newCluster(1)
		page, err := os.ReadFile("../../datastore/README.md")
		Expect(err).NotTo(HaveOccurred())
		claims := map[string]string{} // the claim of each claim on the page
		var got datastore.Answer
		for i, block := range nstest.JSONBlocks(string(page)) {
			if i%2 == 1 {
				answer, err := parse([]byte(block))
				Expect(err).NotTo(HaveOccurred(), block)
				for a, claim := range answer.Addresses {
					claims[claim] = got.Addresses[a]
				}
				Expect(form(got)).To(Equal(form(answer)), block)
				continue
			}
			for old, claim := range claims {
				block = strings.ReplaceAll(block, old, claim)
			}
			var request datastore.Request
			Expect(json.Unmarshal([]byte(block), &request)).To(Succeed(), block)
			request.Datastore = c.datastoreConfig("node", nil)
			got = call(c.clients, request)
		}
	})

	It("describes all keys and reasons", func() {
		page, err := os.ReadFile("../../datastore/README.md")
		Expect(err).NotTo(HaveOccurred())
		for _, t := range []reflect.Type{reflect.TypeFor[datastore.Request](), reflect.TypeFor[datastore.Answer](), reflect.TypeFor[datastore.Error]()} {
			for i := range t.NumField() {
				key, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
				Expect(strings.Contains(string(page), "`"+key+"`") || strings.Contains(string(page), `"`+key+`"`)).To(BeTrue(), key)
			}
		}
		source, err := os.ReadFile("../../pkg/datastore/datastore.go")
		Expect(err).NotTo(HaveOccurred())
		for line := range strings.Lines(string(source)) {
			words := strings.Fields(line)
			if len(words) > 2 && words[1] == "=" && strings.HasPrefix(words[0], "Reason") {
				Expect(string(page)).To(ContainSubstring("| `" + strings.Trim(words[2], `"`) + "` |"))
			}
		}
	})
})

// form returns an answer as text, without the values that differ from run to run.
func form(a datastore.Answer) string {
	GinkgoHelper()
	a.Store = ""
	for addr := range a.Addresses {
		a.Addresses[addr] = ""
	}
	for name, n := range a.Nodes {
		n.LastCall = ""
		a.Nodes[name] = n
	}
	for addr, o := range a.Owners {
		o.Since = ""
		a.Owners[addr] = o
	}
	text, err := json.Marshal(a)
	Expect(err).NotTo(HaveOccurred())
	lines := strings.Split(string(text), ",")
	slices.Sort(lines)
	return strings.Join(lines, ",")
}
