package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/schema"
	"github.com/plumb-cni/plumb/test/nstest"
)

const pluginsDir = "../../../../plugins"

func TestSchemasAreWhatTheGeneratorMakes(t *testing.T) {
	files, err := generate(pluginsDir)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join("..", "schema", name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what genschema makes (%v): run go generate ./cmd/plumb/...", name, err)
		}
	}
	if len(schema.Names()) != len(files) {
		t.Errorf("the folder has schemas of %v, and genschema makes %d", schema.Names(), len(files))
	}
}

func TestIPAMPluginsAreThoseWithKeysInIPAM(t *testing.T) {
	pages, err := readPages(pluginsDir)
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range pages {
		if p.ipam != slices.Contains(ipamPlugins, name) {
			t.Errorf("%s: the page says that this is an IPAM plugin: %v", name, p.ipam)
		}
	}
}

// validate compares a text with a schema by the library.
func validate(t *testing.T, name, text string) error {
	t.Helper()
	raw, err := schema.Text(name)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(baseURL+name+schema.Suffix, doc); err != nil {
		t.Fatal(err)
	}
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

// check compares a text with a schema by package schema, and returns the problems as text.
func check(t *testing.T, name, text string) string {
	t.Helper()
	v, err := schema.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	problems, err := schema.Check(name, v)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, p := range problems {
		lines = append(lines, fmt.Sprintf("%d %s %s: %s", p.Line, p.Kind, p.Path, p.Text))
	}
	return strings.Join(lines, "\n")
}

func TestExamplesOfThePagesMatchTheirSchemas(t *testing.T) {
	pages, _ := filepath.Glob(pluginsDir + "/*/README.md")
	found := 0
	for _, page := range append(pages, "../../../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for i, block := range nstest.JSONBlocks(string(text)) {
			var conf struct {
				Type    string
				Plugins []any
			}
			if err := json.Unmarshal([]byte(block), &conf); err != nil {
				t.Fatal(err)
			}
			name := schema.ConfList
			if conf.Plugins == nil {
				name = conf.Type
			}
			found++
			if err := validate(t, name, block); err != nil {
				t.Errorf("%s: block %d does not match the schema: %v", page, i+1, err)
			}
			if problems := check(t, name, block); problems != "" {
				t.Errorf("%s: block %d: %s", page, i+1, problems)
			}
		}
	}
	if found < 18 {
		t.Errorf("the pages have %d examples", found)
	}
}

func TestSchemasFindMistakes(t *testing.T) {
	conf := func(plugin string) string { return `{"name": "n", "cniVersion": "1.1.0", "plugins": [` + plugin + "]}" }
	for _, c := range []struct {
		name, text string
		valid      bool   // by the library: unknown keys are valid
		want       string // from Check
	}{
		{"bridge", `{"type": "bridge", "isGatway": true}`, true, "1 unknown-key isGatway: unknown key; isGateway was probably meant"},
		{"bridge", "{\"type\": \"bridge\",\n\"colour\": 1}", true, "2 unknown-key colour: unknown key"},
		{"bridge", `{"type": "bridge", "ISGATEWAY": true}`, true, ""},
		{"bridge", `{"type": "bridge", "$schema": "https://example.org/s"}`, true, ""},
		{"bridge", `{"type": "bridge", "mtu": "1500"}`, false, `1 wrong-type mtu: want an integer, have "1500"`},
		{"bridge", `{"type": "bridge", "mtu": 1.5}`, false, `1 wrong-type mtu: want an integer, have 1.5`},
		{"bridge", `{"type": "bridge", "isGateway": "true"}`, false, `want true or false, have "true"`},
		{"bridge", `{"type": "bridge", "ipMasqBackend": "nftable"}`, false, `want "nftables" or "iptables", have "nftable"`},
		{"bridge", `{"type": "bridge", "vlan": 4095}`, false, "4095 is not in the range from 0 to 4094"},
		{"bridge", `{"type": "bridge", "vlanTrunk": [{"id": 5}, {"ID": 6}, {"identity": 7}]}`, true, "vlanTrunk[2].identity: unknown key"},
		{"bridge", `{"type": "ptp"}`, false, `want "bridge", have "ptp"`},
		{"bridge", `{"type": "bridge", "mtu": 1, "MTU": 2}`, true, "repeated-key MTU"},
		{"bridge", `{"type": "bridge", "args": {"cni": {"mac": 5, "other": {}}, "x": 1}}`, false, "args.cni.mac: want a string, have 5"},
		{"bridge", `{"type": "bridge", "ipam": {"type": "host-local", "rangeStrat": "10.0.0.1"}}`, true, "ipam.rangeStrat: unknown key; rangeStart was probably meant"},
		{"bridge", `{"type": "bridge", "ipam": {"type": "another", "whatever": 1}}`, true, ""},
		{"ptp", `{"type": "ptp"}`, false, `missing-key : the key "ipam" is missing`},
		{"portmap", `{"type": "portmap", "runtimeConfig": {"portMappings": [{"hostPort": 80, "protocol": "tcp"}]}}`, false, `runtimeConfig.portMappings[0]: the key "containerPort" is missing`},
		{"firewall", `{"type": "firewall", "backend": "ipset"}`, true, `1 ignored-value backend: "ipset" is ignored: want "iptables" or "firewalld" or "nftables"`},
		{"firewall", `{"type": "firewall", "backend": ""}`, true, ""},
		{"bridge", `{"type": "bridge", "capabilities": {"mac": true, "ips": true, "ipRanges": false}}`, true, ""},
		{"portmap", `{"type": "portmap", "capabilities": {"portMapings": true}}`, true, "1 unknown-key capabilities.portMapings: unknown key; portMappings was probably meant"},
		{"portmap", `{"type": "portmap", "capabilities": {"bandwidth": true}}`, true, "1 unknown-key capabilities.bandwidth: unknown key"},
		{"host-local", `{"type": "anything", "capabilities": {"bandwidth": true}, "ipam": {"type": "host-local"}}`, true, ""},
		{schema.ConfList, conf(`{"type": "portmap", "type": "tuning"}`), true, "1 repeated-key plugins[0].type: the key occurs twice"},
		{schema.ConfList, conf(`{"type": "bridge", "mtu": "x", "mtu": 1500}`), true, "1 repeated-key plugins[0].mtu: the key occurs twice"},
		{schema.ConfList, conf(`{"type": ""}`), false, "plugins[0].type: want a text that is not empty"},
		{schema.ConfList, conf(""), false, "plugins: the list is empty"},
		{"tuning", `{"type": "tuning", "sysctl": {"net.core.somaxconn": 500}}`, false, "sysctl.net.core.somaxconn: want a string, have 500"},
		{"host-local", `{"type": "macvlan", "ipam": {"type": "host-local", "ranges": [{"subnet": "10.0.0.0/8"}]}}`, false, "ipam.ranges[0]: want a list, have an object"},
		{"host-local", `{"type": "macvlan", "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0", "via": "10.0.0.1"}]}}`, true, "ipam.routes[0].via: unknown key"},
		{"cluster-local", `{"type": "macvlan", "ipam": {"type": "cluster-local", "engine": {"type": "e", "endpoints": ["a"], "timeout": 61}}}`, false, "ipam.engine.timeout: 61 is not in the range"},
		{schema.ConfList, conf(`{"type": "bridge", "isGatway": true}`), true, "plugins[0].isGatway: unknown key; isGateway"},
		{schema.ConfList, conf(`{"type": "vendor", "whatever": true}, {"type": "ptp", "ipam": {"type": "static", "address": []}}`), true, "plugins[1].ipam.address: unknown key; addresses"},
		{schema.ConfList, conf(`{"type": "sbr", "table": "100"}`), false, `plugins[0].table: want an integer`},
		{schema.ConfList, conf(`{"name": "x"}`), false, `plugins[0]: the key "type" is missing`},
		{schema.ConfList, `{"name": "n", "$schema": "x", "disableCheck": "true", "plugin": []}`, true, "plugin: unknown key; plugins was probably meant"},
	} {
		t.Run(c.name+c.text, func(t *testing.T) {
			if err := validate(t, c.name, c.text); (err == nil) != c.valid {
				t.Errorf("the library says %v", err)
			}
			got := check(t, c.name, c.text)
			if !strings.Contains(got, c.want) || c.want == "" && got != "" || strings.Count(got, "\n") > 0 {
				t.Errorf("Check says %q, want one problem with %q", got, c.want)
			}
		})
	}
}

func TestGeneratorRefusesAPageThatItCannotRead(t *testing.T) {
	const keys = "# x\n\n## Keys\n\n| key | type | default | meaning |\n|---|---|---|---|\n"
	for _, c := range []struct{ text, want string }{
		{keys + "| `a` | number of things | | text |\n", `type "number of things"`},
		{keys + "| `a` | list of things | | text |\n", `items "things"`},
		{keys + "| `a` | int, 1 to ten | | text |\n", `limits "1 to ten"`},
		{keys + "| `a` | string | | one \\| two |\n", "want 4 cells, have 5"},
		{"# x\n\n## Options\n", "no section Keys"},
	} {
		file := filepath.Join(t.TempDir(), "README.md")
		if err := os.WriteFile(file, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := readPage(file, "x", nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v", c.text, err)
		}
	}
}

func TestDescriptionsHaveNoMarkdown(t *testing.T) {
	files, err := generate(pluginsDir)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, `"description": `) && strings.ContainsAny(line, "`") {
				t.Errorf("%s: %s", name, strings.TrimSpace(line))
			}
		}
	}
}
