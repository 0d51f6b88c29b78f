package test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// The lists of both sides.
type sides struct{ Plumb, Reference []string }

// A comparison is what docs/reference/comparison.yaml says about a plugin.
type comparison struct {
	Keys, Backends sides
	GC, Differs    string
}

// notKeys lists the JSON names in the reference's executables that are not keys of a configuration: one of CNI_ARGS, and those
// of the program nft.
var notKeys = strings.Fields(`ignoreunknown
	add addr bytes chain comment counter delete dnat expr family field flags flush goto handle hook index json_schema_version jump
	left masquerade match metainfo nftables op packets payload policy port prio protocol redirect release_name right rule snat target`)

// TestComparison compares docs/reference/comparison.yaml with the executables of plumb and of the reference, and docs/reference/comparison.md with
// docs/reference/comparison.yaml.
func TestComparison(t *testing.T) {
	var all map[string]comparison
	nstest.Must(t, yaml.UnmarshalStrict([]byte(read(t, "docs/reference/comparison.yaml")), &all))
	bin := nstest.Reference(t)
	entries, err := os.ReadDir(bin)
	nstest.Must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := slices.Sorted(maps.Keys(all)); !slices.Equal(names, want) {
		t.Fatalf("the reference has the plugins %q, and comparison.yaml has %q", names, want)
	}
	table := "| plugin | keys that only plumb has | keys that only the reference has | backends of plumb | backends of the reference | GC of the reference removes | other differences |\n|---|---|---|---|---|---|---|\n"
	general, ofEach := keys(t, "loopback"), jsonNames(t, filepath.Join(bin, "loopback"))
	built := nstest.Build(t, names...)
	for _, name := range names {
		c := all[name]
		executable := filepath.Join(bin, name)
		ours, theirs := without(keys(t, name), general), jsonNames(t, executable)
		if diff := cmp.Diff(sides{without(ours, theirs), theirKeys(t, name, theirs, ofEach)}, c.Keys, equateEmpty); diff != "" {
			t.Errorf("keys of %s: from the executables (-), in comparison.yaml (+):\n%s", name, diff)
		}
		checkBackends(t, name, executable, c.Backends)
		if got, want := versions(t, executable), versions(t, filepath.Join(built, name)); len(without(got, want)) > 0 {
			t.Errorf("%s: the reference supports %q, and plumb %q", name, got, want)
		}
		table += fmt.Sprintf("| [%s](../../plugins/%[1]s/README.md) | %s | %s | %s | %s | %s | %s |\n", name, code(c.Keys.Plumb), code(c.Keys.Reference),
			strings.Join(c.Backends.Plumb, ", "), strings.Join(c.Backends.Reference, ", "), c.GC, c.Differs)
	}
	requireTable(t, "docs/reference/comparison.md", "comparison", table)
}

// requireTable requires that a page contains the text between the marks with this name. With the flag -update, it writes the text.
func requireTable(t *testing.T, path, mark, text string) {
	t.Helper()
	page := read(t, path)
	want := regexp.MustCompile(`(?s)(<!-- `+mark+` -->\n).*?(<!-- end)`).ReplaceAllString(page, "${1}"+strings.ReplaceAll(text, "$", "$$")+"${2}")
	switch {
	case page == want:
	case nstest.Updating():
		nstest.Must(t, os.WriteFile("../"+path, []byte(want), 0o644))
	default:
		t.Errorf("the table in %s differs from its source; run go test ./test -run %s -update", path, t.Name())
	}
}

var equateEmpty = cmp.Transformer("sorted", func(list []string) []string { return append([]string{}, slices.Sorted(slices.Values(list))...) })

// keys returns the keys of a plugin's schema, without the keys of its parts. The keys of an IPAM plugin are those of `ipam`.
func keys(t *testing.T, name string) []string {
	type object struct {
		Properties map[string]json.RawMessage
		Defs       map[string]object `json:"$defs"`
	}
	var schema object
	nstest.Must(t, json.Unmarshal([]byte(read(t, "cmd/plumb/internal/schema/"+name+".schema.json")), &schema))
	if ipam, ok := schema.Defs["ipam-"+name]; ok {
		return slices.Sorted(maps.Keys(ipam.Properties))
	}
	return slices.Sorted(maps.Keys(schema.Properties))
}

// jsonNames returns the names in the struct tags of an executable, which are in its data.
func jsonNames(t *testing.T, executable string) []string {
	text, err := os.ReadFile(executable)
	nstest.Must(t, err)
	names := map[string]bool{}
	for _, m := range regexp.MustCompile(`json:"([A-Za-z][\w.-]*)`).FindAllSubmatch(text, -1) {
		names[string(m[1])] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// theirKeys returns the keys in a reference plugin's executable that plumb's plugin does not have anywhere in its schema. Each
// executable of the reference contains the names ofEach.
func theirKeys(t *testing.T, name string, names, ofEach []string) []string {
	schema := read(t, "cmd/plumb/internal/schema/"+name+".schema.json")
	return slices.DeleteFunc(without(names, slices.Concat(ofEach, notKeys)), func(key string) bool {
		return strings.Contains(schema, `"`+key+`": `)
	})
}

// checkBackends checks the names of backends: plumb's in the schema, and the reference's in its executable.
func checkBackends(t *testing.T, name, executable string, backends sides) {
	schema := read(t, "cmd/plumb/internal/schema/"+name+".schema.json")
	for _, b := range backends.Plumb {
		if !strings.Contains(schema, b) {
			t.Errorf("the schema of %s does not name the backend %s", name, b)
		}
	}
	text := nstest.ReadFile(t, executable)
	for _, b := range backends.Reference {
		if !strings.Contains(text, b) {
			t.Errorf("the executable of the reference's %s does not contain the name of the backend %s", name, b)
		}
	}
}

// versions returns the versions that a plugin supports.
func versions(t *testing.T, executable string) []string {
	cmd := exec.Command(executable)
	cmd.Env, cmd.Stdin = []string{"CNI_COMMAND=VERSION"}, strings.NewReader(`{"cniVersion": "1.0.0"}`)
	out, err := cmd.Output()
	var answer struct{ SupportedVersions []string }
	if err == nil {
		err = json.Unmarshal(out, &answer)
	}
	if err != nil {
		t.Fatalf("VERSION of %s: %v", executable, err)
	}
	return answer.SupportedVersions
}

func without(list, others []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(others, s) })
}

// code returns names as Markdown code.
func code(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "`" + strings.Join(names, "`, `") + "`"
}
