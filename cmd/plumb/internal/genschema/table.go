package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/schema"
)

// A key is one key of a plugin, as its page describes it.
type key struct {
	path     []string // "runtimeConfig", "portMappings", "[]", "hostPort"
	schema   *schema.Schema
	required bool
}

// A page has the keys of a plugin.
type page struct {
	name string
	ipam bool // an IPAM plugin: the keys are in ipam, but for those in args and runtimeConfig
	keys []key
}

// readPage reads the key tables of a page. others are the pages to which the page may refer.
func readPage(file, name string, others map[string]*page) (*page, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	_, rest, _ := strings.Cut(string(text), "\n## Keys\n")
	section, _, _ := strings.Cut(rest, "\n## ")
	p := &page{name: name}
	var problems []error
	for line := range strings.SplitSeq(section, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || !strings.Contains(cells[1], "`") {
			continue
		}
		if err := p.addRow(cells[1:5], others); err != nil {
			problems = append(problems, fmt.Errorf("%s: %s: %w", file, strings.TrimSpace(cells[1]), err))
		}
	}
	return p, errors.Join(problems...)
}

// addRow adds the keys of a row: key, type, default, meaning.
func (p *page) addRow(cells []string, others map[string]*page) error {
	for _, quoted := range quotes(cells[0]) {
		k := key{path: splitPath(quoted)}
		p.ipam = p.ipam || quoted == "type"
		s, err := p.typeOf(strings.TrimSpace(cells[1]), k.path, others)
		if err != nil {
			return err
		}
		k.schema, k.required = s, k.required || strings.TrimSpace(cells[2]) == "required"
		s.Description = describe(cells[3], cells[2], s.Description)
		if s.Type != "" {
			s.Default = defaultOf(strings.TrimSpace(cells[2]))
		}
		p.keys = append(p.keys, k)
	}
	return nil
}

// quotes returns what is in backquotes.
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

// words are the types of the tables, with the type of JSON that each is.
var words = map[string]string{
	"bool": "boolean", "string": "string", "int": "integer", "object": "object",
	"address": "string", "prefix": "string", "path": "string",
	"strings": "string", "addresses": "string", "prefixes": "string", "addresses and prefixes": "string", "objects": "object",
}

// typeOf returns the schema for the text in the column "type".
func (p *page) typeOf(text string, path []string, others map[string]*page) (*schema.Schema, error) {
	if s := words[text]; s != "" {
		return &schema.Schema{Type: s}, nil
	}
	if inner, ok := strings.CutPrefix(text, "list of "); ok {
		return p.listOf(strings.TrimPrefix(inner, "lists of "), inner, path)
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
			return nil, fmt.Errorf("type %q names no page that was read before", text)
		}
		return find(others[other], path)
	case strings.HasPrefix(text, "as `"):
		return find(p, splitPath(quotes(text)[0]))
	case strings.HasPrefix(text, "`"):
		return oneOf(text), nil
	}
	return nil, fmt.Errorf("type %q is not one of those that genschema knows", text)
}

// listOf returns the schema of a list whose items are of the type in word. The text is the same, or the word
// with "lists of " before it.
func (p *page) listOf(word, text string, path []string) (*schema.Schema, error) {
	item := words[word]
	if item == "" {
		return nil, fmt.Errorf("type %q of %v is not one of those that genschema knows", text, path)
	}
	list := &schema.Schema{Type: "array", Items: &schema.Schema{Type: item}}
	if text != word {
		list = &schema.Schema{Type: "array", Items: list}
	}
	return list, nil
}

// integer returns the schema of an integer with the limits "A to B" or "A or more".
func integer(limits string) (*schema.Schema, error) {
	s := &schema.Schema{Type: "integer"}
	low, high, _ := strings.Cut(strings.TrimSuffix(limits, " or more"), " to ")
	lowest, err := strconv.ParseInt(low, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("limits %q: %w", limits, err)
	}
	s.Minimum = &lowest
	if high == "" {
		return s, nil
	}
	highest, err := strconv.ParseInt(high, 10, 64)
	s.Maximum = &highest
	return s, err
}

// oneOf returns the schema of "`a`, `b` or `c`", or of "`a` or another string", which the plugin ignores. The plugins read
// an empty string as if the key were missing.
func oneOf(text string) *schema.Schema {
	values := append(quotes(text), "")
	if strings.HasSuffix(text, "another string") {
		return &schema.Schema{AnyOf: []*schema.Schema{{Enum: values}, {Type: "string", Warning: "The plugin ignores this value."}}}
	}
	return &schema.Schema{Type: "string", Enum: values}
}

// find returns a copy of the schema of a key of the page.
func find(p *page, path []string) (*schema.Schema, error) {
	for _, k := range p.keys {
		if strings.Join(k.path, ".") == strings.Join(path, ".") {
			c := *k.schema
			return &c, nil
		}
	}
	return nil, fmt.Errorf("the table of %s has no key %q before this row", p.name, strings.Join(path, "."))
}

// describe returns the text of the columns "meaning" and "default" without Markdown, or the text of the key that
// the row refers to.
func describe(meaning, fallback, referred string) string {
	link := regexp.MustCompile(`\[([^\]]+)\]\([^)]+\)`)
	plain := strings.TrimSpace(link.ReplaceAllString(strings.ReplaceAll(meaning, "**", ""), "$1"))
	if referred != "" {
		return strings.TrimSpace(referred + " " + plain)
	}
	if fallback = strings.TrimSpace(fallback); fallback != "" && fallback != "required" && fallback != "none" {
		plain += " (default: " + strings.TrimSpace(link.ReplaceAllString(fallback, "$1")) + ")"
	}
	return strings.ReplaceAll(plain, "`", "")
}

// defaultOf returns the default as JSON, if the column begins with a value, and nil otherwise.
func defaultOf(text string) any {
	if q := quotes(text); len(q) == 1 && text == "`"+q[0]+"`" && !strings.Contains(text, "<") {
		return q[0]
	}
	first, _, _ := strings.Cut(text, ":")
	var value any
	if json.Unmarshal([]byte(first), &value) != nil || value == nil {
		return nil
	}
	return value
}
