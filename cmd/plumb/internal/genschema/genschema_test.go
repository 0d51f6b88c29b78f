package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/schema"
	"github.com/plumb-cni/plumb/v2/test/nstest"
)

const pluginsDir = "../../../../plugins"

func TestSchemasAreWhatTheGeneratorMakes(t *testing.T) {
	files, err := generate(pluginsDir)
	nstest.Must(t, err)
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join("..", "schema", name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s differs from genschema's output (%v); run go generate ./cmd/plumb/...", name, err)
		}
	}
	if len(schema.Names()) != len(files) {
		t.Errorf("want %[2]d schemas, got %[1]v", schema.Names(), len(files))
	}
}

// validate checks a text against a schema with the library.
func validate(t *testing.T, name, text string) error {
	t.Helper()
	raw, err := schema.Text(name)
	nstest.Must(t, err)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	nstest.Must(t, err)
	c := jsonschema.NewCompiler()
	nstest.Must(t, c.AddResource(baseURL+name+schema.Suffix, doc))
	compiled, err := c.Compile(baseURL + name + schema.Suffix)
	if err != nil {
		t.Fatalf("compile schema %s: %v", name, err)
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return compiled.Validate(value)
}

func TestExamplesOfThePagesMatchTheirSchemas(t *testing.T) {
	pages, _ := filepath.Glob(pluginsDir + "/*/README.md")
	guides, _ := filepath.Glob("../../../../docs/*/*.md")
	found := 0
	for _, page := range append(append(pages, guides...), "../../../../README.md") {
		text := nstest.ReadFile(t, page)
		for i, block := range nstest.JSONBlocks(text) {
			var conf struct {
				Type    string
				Plugins []any
			}
			nstest.Must(t, json.Unmarshal([]byte(block), &conf))
			name := schema.ConfList
			if conf.Plugins == nil {
				name = conf.Type
			}
			found++
			if err := validate(t, name, block); err != nil {
				t.Errorf("%s: block %d does not match the schema: %v", page, i+1, err)
			}
		}
	}
	if found < 18 {
		t.Errorf("want at least 18 examples in the pages, got %d", found)
	}
}

func TestSchemasFindMistakes(t *testing.T) {
	conf := func(plugin string) string { return `{"name": "n", "cniVersion": "1.1.0", "plugins": [` + plugin + "]}" }
	for _, c := range []struct {
		name, text string
		valid      bool // unknown keys are valid
	}{
		{"bridge", `{"type": "bridge", "isGatway": true}`, true},
		{"bridge", "{\"type\": \"bridge\",\n\"colour\": 1}", true},
		{"bridge", `{"type": "bridge", "ISGATEWAY": true}`, true},
		{"bridge", `{"type": "bridge", "$schema": "https://example.org/s"}`, true},
		{"bridge", `{"type": "bridge", "mtu": "1500"}`, false},
		{"bridge", `{"type": "bridge", "mtu": 1.5}`, false},
		{"bridge", `{"type": "bridge", "isGateway": "true"}`, false},
		{"bridge", `{"type": "bridge", "ipMasqBackend": "nftable"}`, false},
		{"bridge", `{"type": "bridge", "vlan": 4095}`, false},
		{"bridge", `{"type": "bridge", "vlanTrunk": [{"id": 5}, {"ID": 6}, {"identity": 7}]}`, true},
		{"bridge", `{"type": "ptp"}`, false},
		{"bridge", `{"type": "bridge", "mtu": 1, "MTU": 2}`, true},
		{"bridge", `{"type": "bridge", "args": {"cni": {"mac": 5, "other": {}}, "x": 1}}`, false},
		{"bridge", `{"type": "bridge", "ipam": {"type": "host-local", "rangeStrat": "10.0.0.1"}}`, true},
		{"bridge", `{"type": "bridge", "ipam": {"type": "another", "whatever": 1}}`, true},
		{"ptp", `{"type": "ptp"}`, false},
		{"portmap", `{"type": "portmap", "runtimeConfig": {"portMappings": [{"hostPort": 80, "protocol": "tcp"}]}}`, false},
		{"firewall", `{"type": "firewall", "backend": "ipset"}`, true},
		{"firewall", `{"type": "firewall", "backend": ""}`, true},
		{"bridge", `{"type": "bridge", "capabilities": {"mac": true, "ips": true, "ipRanges": false}}`, true},
		{"portmap", `{"type": "portmap", "capabilities": {"portMapings": true}}`, true},
		{"portmap", `{"type": "portmap", "capabilities": {"bandwidth": true}}`, true},
		{"host-local", `{"type": "anything", "capabilities": {"bandwidth": true}, "ipam": {"type": "host-local"}}`, true},
		{schema.ConfList, conf(`{"type": "portmap", "type": "tuning"}`), true},
		{schema.ConfList, conf(`{"type": "bridge", "mtu": "x", "mtu": 1500}`), true},
		{schema.ConfList, conf(`{"type": ""}`), false},
		{schema.ConfList, conf(""), false},
		{"tuning", `{"type": "tuning", "sysctl": {"net.core.somaxconn": 500}}`, false},
		{"host-local", `{"type": "macvlan", "ipam": {"type": "host-local", "ranges": [{"subnet": "10.0.0.0/8"}]}}`, false},
		{"host-local", `{"type": "macvlan", "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0", "via": "10.0.0.1"}]}}`, true},
		{"cluster-local", `{"type": "macvlan", "ipam": {"type": "cluster-local", "datastore": {"type": "e", "endpoints": ["a"], "timeout": 61}}}`, false},
		{schema.ConfList, conf(`{"type": "bridge", "isGatway": true}`), true},
		{schema.ConfList, conf(`{"type": "vendor", "whatever": true}, {"type": "ptp", "ipam": {"type": "static", "address": []}}`), true},
		{schema.ConfList, conf(`{"type": "sbr", "table": "100"}`), false},
		{schema.ConfList, conf(`{"name": "x"}`), false},
		{schema.ConfList, `{"name": "n", "$schema": "x", "disableCheck": "true", "plugin": []}`, true},
	} {
		t.Run(c.name+c.text, func(t *testing.T) {
			if err := validate(t, c.name, c.text); (err == nil) != c.valid {
				t.Errorf("want valid %v, got the error %v", c.valid, err)
			}
		})
	}
}

func TestReadPageRejectsInvalidPages(t *testing.T) {
	const keys = "# x\n\n## Keys\n\n| key | type | default | meaning |\n|---|---|---|---|\n"
	for _, c := range []struct{ text, want string }{
		{keys + "| `a` | number of things | | text |\n", `type "number of things"`},
		{keys + "| `a` | list of things | | text |\n", `items "things"`},
		{keys + "| `a` | int, 1 to ten | | text |\n", `limits "1 to ten"`},
		{keys + "| `a` | string | | one \\| two |\n", "want 4 cells, got 5"},
		{"# x\n\n## Options\n", "no section Keys"},
	} {
		file := filepath.Join(t.TempDir(), "README.md")
		nstest.Must(t, os.WriteFile(file, []byte(c.text), 0o644))
		if _, err := readPage(file, "x", nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: want the error %s, got %v", c.text, c.want, err)
		}
	}
}

func TestDescriptionsHaveNoMarkdown(t *testing.T) {
	files, err := generate(pluginsDir)
	nstest.Must(t, err)
	for name, text := range files {
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, `"description": `) && strings.ContainsAny(line, "`") {
				t.Errorf("%s: want no Markdown, got %s", name, strings.TrimSpace(line))
			}
		}
	}
}
