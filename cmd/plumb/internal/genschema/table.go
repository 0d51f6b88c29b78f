package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/schema"
)

// A key is one key of a plugin's configuration, as the page of the plugin describes it.
type key struct {
	path     []string // for example "runtimeConfig", "portMappings", "[]", "hostPort"; "[]" stands for each item of a list
	schema   *schema.Schema
	required bool
}

// A page holds the keys from the page of one plugin.
type page struct {
	name string
	ipam bool // an IPAM plugin, whose keys except args and runtimeConfig are in the object ipam; its table lists the key type
	keys []key
}

// readPage reads the tables in the section Keys of a page. others maps the names of plugins to pages to which the tables may
// refer.
func readPage(file, name string, others map[string]*page) (*page, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	_, rest, found := strings.Cut(string(text), "\n## Keys\n")
	if !found {
		return nil, fmt.Errorf("%s: there is no section Keys", file)
	}
	section, _, _ := strings.Cut(rest, "\n## ")
	p := &page{name: name}
	var problems []error
	for line := range strings.SplitSeq(section, "\n") {
		if !strings.HasPrefix(line, "| `") {
			continue // not a row of a key
		}
		if err := p.addRow(line, others); err != nil {
			problems = append(problems, fmt.Errorf("%s: row %q: %w", file, line, err))
		}
	}
	return p, errors.Join(problems...)
}

// addRow adds the keys of a row with the columns key, type, default and meaning.
func (p *page) addRow(line string, others map[string]*page) error {
	cells := strings.Split(line, "|")
	if len(cells) != 6 { // nothing before the first bar, 4 cells, nothing after the last bar
		return fmt.Errorf("want 4 cells, got %d", len(cells)-2)
	}
	keys, typ, fallback, meaning := cells[1], strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3]), cells[4]
	for _, quoted := range quotes(keys) {
		path := splitPath(quoted)
		s, err := p.typeOf(typ, path, others)
		if err != nil {
			return err
		}
		s.Description = describe(meaning, fallback, s.Description)
		if s.Type != "" {
			s.Default = defaultOf(fallback)
		}
		p.ipam = p.ipam || quoted == "type"
		p.keys = append(p.keys, key{path: path, schema: s, required: fallback == "required"})
	}
	return nil
}

// quotes returns the texts in backquotes, without the backquotes.
func quotes(cell string) []string {
	var all []string
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
		all = append(all, m[1])
	}
	return all
}

// splitPath splits "a.b[].c" into "a", "b", "[]", "c".
func splitPath(path string) []string {
	return strings.Split(strings.ReplaceAll(path, "[]", ".[]"), ".")
}

// jsonTypes maps the type names of the tables to JSON types. The plurals are for items of lists.
var jsonTypes = map[string]string{
	"bool": "boolean", "string": "string", "int": "integer", "object": "object",
	"address": "string", "prefix": "string", "path": "string",
	"strings": "string", "addresses": "string", "prefixes": "string", "addresses and prefixes": "string", "objects": "object",
}

// typeOf returns the schema for the key at path whose column "type" contains the text.
func (p *page) typeOf(text string, path []string, others map[string]*page) (*schema.Schema, error) {
	if typ := jsonTypes[text]; typ != "" {
		return &schema.Schema{Type: typ}, nil
	}
	if items, ok := strings.CutPrefix(text, "list of "); ok {
		return listOf(items)
	}
	if limits, ok := strings.CutPrefix(text, "int, "); ok {
		return integer(limits)
	}
	switch {
	case text == "any":
		return &schema.Schema{}, nil
	case text == "object of strings":
		return &schema.Schema{Type: "object", Additional: &schema.Schema{Type: "string"}}, nil
	case text == "as above":
		return find(p, path[len(path)-1:])
	case strings.HasPrefix(text, "as [for "):
		other, _, _ := strings.Cut(strings.TrimPrefix(text, "as [for "), "]")
		if others[other] == nil {
			return nil, fmt.Errorf("type %q must name a page that was read before", text)
		}
		return find(others[other], path)
	case strings.HasPrefix(text, "as `"):
		return find(p, splitPath(quotes(text)[0]))
	case strings.HasPrefix(text, "`"):
		return oneOf(text), nil
	}
	return nil, fmt.Errorf("type %q is not one of those that genschema knows", text)
}

// listOf returns the schema of a list with these items, such as "addresses" or "lists of objects".
func listOf(items string) (*schema.Schema, error) {
	item := &schema.Schema{Type: jsonTypes[items]}
	if inner, ok := strings.CutPrefix(items, "lists of "); ok {
		var err error
		if item, err = listOf(inner); err != nil {
			return nil, err
		}
	}
	if item.Type == "" {
		return nil, fmt.Errorf("type of items %q is not one of those that genschema knows", items)
	}
	return &schema.Schema{Type: "array", Items: item}, nil
}

// integer returns the schema of an integer with the limits "A to B" or "A or more".
func integer(limits string) (*schema.Schema, error) {
	s := &schema.Schema{Type: "integer", Minimum: new(int64)}
	if _, err := fmt.Sscanf(limits, "%d or more", s.Minimum); err == nil {
		return s, nil
	}
	s.Maximum = new(int64)
	if _, err := fmt.Sscanf(limits, "%d to %d", s.Minimum, s.Maximum); err != nil {
		return nil, fmt.Errorf("limits %q: %w", limits, err)
	}
	return s, nil
}

// oneOf returns the schema of "`a`, `b` or `c`", or of "`a` or another string", which the plugin ignores. It accepts the empty
// string, which plugins treat as a missing key.
func oneOf(text string) *schema.Schema {
	values := append(quotes(text), "")
	if strings.HasSuffix(text, "another string") {
		return &schema.Schema{AnyOf: []*schema.Schema{{Enum: values}, {Type: "string", Warning: "The plugin ignores this value."}}}
	}
	return &schema.Schema{Type: "string", Enum: values}
}

// find returns a copy of the schema of a key in an earlier row of the page.
func find(p *page, path []string) (*schema.Schema, error) {
	for _, k := range p.keys {
		if strings.Join(k.path, ".") == strings.Join(path, ".") {
			c := *k.schema
			return &c, nil
		}
	}
	return nil, fmt.Errorf("the table of %s has no key %q before this row", p.name, strings.Join(path, "."))
}

// describe returns the description of a key. It consists of the columns "meaning" and "default" without Markdown. If
// the row refers to another key, it consists of that key's description and the meaning.
func describe(meaning, fallback, referred string) string {
	text := withoutMarkdown(meaning)
	switch {
	case referred != "" && text != "":
		return referred + ". " + text
	case referred != "":
		return referred
	case fallback != "" && fallback != "required" && fallback != "none":
		text += " (default: " + withoutMarkdown(fallback) + ")"
	}
	return text
}

// withoutMarkdown returns the text without links, bold type and backquotes.
func withoutMarkdown(text string) string {
	text = regexp.MustCompile(`\[([^\]]+)\]\([^)]+\)`).ReplaceAllString(text, "$1")
	return strings.TrimSpace(strings.NewReplacer("**", "", "`", "").Replace(text))
}

// defaultOf parses the value at the start of the column "default", which is JSON up to a colon, or a text in backquotes if the
// column contains nothing else. It returns nil if there is no value.
func defaultOf(text string) any {
	if q := quotes(text); len(q) == 1 && text == "`"+q[0]+"`" && !strings.Contains(text, "<") {
		return q[0]
	}
	first, _, _ := strings.Cut(text, ":")
	var value any
	if json.Unmarshal([]byte(first), &value) != nil {
		return nil
	}
	return value
}
