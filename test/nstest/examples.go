package nstest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// JSONBlocks returns the ```json blocks of a Markdown text.
func JSONBlocks(markdown string) []string {
	var blocks []string
	var block strings.Builder
	inside := false
	for line := range strings.Lines(markdown) {
		fence := strings.TrimSpace(line)
		switch {
		case !inside && fence == "```json":
			inside = true
			block.Reset()
		case inside && fence == "```":
			inside = false
			blocks = append(blocks, block.String())
		case inside:
			block.WriteString(line)
		}
	}
	return blocks
}

// PageList returns the list with the name in the ```json blocks of a page.
func PageList(tb TB, page, name string) string {
	tb.Helper()
	text, err := os.ReadFile(page)
	Must(tb, err)
	for _, block := range JSONBlocks(string(text)) {
		var list struct{ Name string }
		if Must(tb, json.Unmarshal([]byte(block), &list)); list.Name == name {
			return block
		}
	}
	tb.Fatalf("%s contains no list %q", page, name)
	return ""
}

// Examples checks that parse, the plugin's own parser, accepts each configuration of the plugin in the ```json blocks
// of README.md in the directory of the test, of the project's README.md and of docs/*/*.md. An unknown key is an error.
// Examples creates the plugin's configuration from a list as libcni does. test/docs_test.go checks that every plugin
// has a test that calls Examples.
func Examples(tb TB, p skel.Plugin, parse func(*skel.Request) error) {
	tb.Helper()
	pages, err := filepath.Glob("../../docs/*/*.md")
	if len(pages) == 0 || err != nil {
		tb.Fatalf("no pages in ../../docs: %v", err)
	}
	p.Add = func(r *skel.Request) (*types.Result, error) { return &types.Result{}, parse(r) }
	host, container := NewHostAndContainer(tb)
	for _, page := range append(pages, "../../README.md", "README.md") {
		text, err := os.ReadFile(page)
		Must(tb, err)
		found := 0
		for i, block := range JSONBlocks(string(text)) {
			confs, err := configurations(block, p.Name)
			if err != nil {
				tb.Fatalf("%s: JSON block %d: %v", page, i+1, err)
			}
			for _, conf := range confs {
				found++
				if r := Run(p, Call{Command: "ADD", Host: host, Container: container, Config: conf}); r.Exit != 0 {
					tb.Errorf("%s: JSON block %d is rejected: %s\n%s", page, i+1, r.Stdout, conf)
				}
			}
		}
		if found == 0 && page == "README.md" {
			tb.Errorf("README.md contains no ```json block with a configuration of %s", p.Name)
		}
	}
}

// configurations returns the configurations in a block that use the plugin, directly or for IPAM. The block contains
// one configuration or a list.
func configurations(block, plugin string) ([]string, error) {
	var top map[string]any
	if err := json.Unmarshal([]byte(block), &top); err != nil {
		return nil, err
	}
	entries := []any{top}
	if list, ok := top["plugins"].([]any); ok {
		entries = list
	}
	var all []string
	for _, entry := range entries {
		conf, ok := entry.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("an entry is not an object: %v", entry)
		}
		ipam, _ := conf["ipam"].(map[string]any)
		if conf["type"] != plugin && ipam["type"] != plugin {
			continue
		}
		conf["name"], conf["cniVersion"], conf["strict"] = top["name"], "1.1.0", true
		if v, ok := top["cniVersion"]; ok {
			conf["cniVersion"] = v
		}
		b, err := json.Marshal(conf)
		if err != nil {
			return nil, err
		}
		all = append(all, string(b))
	}
	return all, nil
}

// Listings compares the first blocks of text in a page, a path relative to the test's directory, with golden files in
// testdata. The golden file must contain the lines of its block, in the same order. If edit is not nil, Listings applies
// it to the golden files first.
func Listings(tb TB, path string, edit func(golden string) string, goldens ...string) {
	tb.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		tb.Fatalf("read the page: %v", err)
	}
	blocks := strings.Split(string(page), "```text\n")[1:]
	for i, golden := range goldens {
		content, err := os.ReadFile("testdata/" + golden + ".golden")
		if err != nil {
			tb.Fatalf("read the golden file: %v", err)
		}
		rest := string(content)
		if edit != nil {
			rest = edit(rest)
		}
		listing, _, _ := strings.Cut(blocks[i], "```")
		for line := range strings.Lines(listing) {
			_, after, found := strings.Cut(rest, line)
			if !found {
				tb.Errorf("%s lacks the line, or contains it in another order: %s", golden, line)
				break
			}
			rest = after
		}
	}
}
