package test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/plumb-cni/plumb/v2/test/nstest"
)

// headings lists all second-level headings of a plugin's page, in order. A page of a plugin without keys of its own has no
// list with every key, and a page whose plugin behaves like the reference plugin has no differences.
var headings = []string{everyKey, "Keys", behavior, "Objects on the host", "Errors", differences, "Verbs"}

const (
	everyKey    = "With every key"
	behavior    = "How it behaves"
	differences = "Differences from the reference plugin"
)

// plugins returns the names of the directories under plugins/.
func plugins(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob("../plugins/*/main.go")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no plugins: %v", err)
	}
	var names []string
	for _, d := range dirs {
		names = append(names, filepath.Base(filepath.Dir(d)))
	}
	return names
}

func read(t *testing.T, path string) string {
	t.Helper()
	b := nstest.ReadFile(t, filepath.Join("..", path))
	return b
}

func TestPluginPages(t *testing.T) {
	all := plugins(t)
	for _, p := range all {
		t.Run(p, func(t *testing.T) {
			page := read(t, "plugins/"+p+"/README.md")
			for _, problem := range slices.Concat(checkForm(p, page), checkEveryKey(page), checkBlocks(page, all), checkKeys(t, p, page)) {
				t.Error(problem)
			}
			if !callsExamples(p) {
				t.Errorf("no test of plugins/%s calls nstest.Examples, which parses the page's configurations", p)
			}
		})
	}
}

// checkForm checks that a page has the form of a plugin's page: what the plugin does, the smallest list that works, and the
// sections in their order.
func checkForm(plugin, page string) (bad []string) {
	if !regexp.MustCompile(`^# ` + plugin + `\n\n[a-z]`).MatchString(page) {
		bad = append(bad, fmt.Sprintf("the page must begin with %q and a sentence that begins with the plugin's name", "# "+plugin))
	}
	want := slices.Clone(headings)
	got := sections(page)
	for _, optional := range []string{everyKey, differences} {
		if !slices.Contains(got, optional) {
			want = slices.DeleteFunc(want, func(h string) bool { return h == optional })
		}
	}
	if !slices.Equal(got, want) {
		bad = append(bad, fmt.Sprintf("headings: want %q, got %q", headings, got))
	}
	if n := strings.Count(page, "\n"); n > maxPageLines {
		bad = append(bad, fmt.Sprintf("want at most %d lines, got %d; move explanations to docs/explanation", maxPageLines, n))
	}
	before, rest, _ := strings.Cut(page, "\n```json\n")
	first, _, _ := strings.Cut(rest, "\n```\n")
	if n := strings.Count(before+first, "\n") + 4; n > maxFirstList || strings.Contains(before, "\n## ") || !strings.Contains(first, `"plugins"`) {
		bad = append(bad, fmt.Sprintf("want the smallest list that works in the first %d lines, before the first section", maxFirstList))
	}
	for _, line := range prose(page) {
		if strings.HasPrefix(line, "### ") && !strings.HasSuffix(line, "?") {
			bad = append(bad, fmt.Sprintf("heading %q: want a question that a user asks", line))
		}
	}
	for _, verb := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS"} {
		if !regexp.MustCompile(`\n\|[^|\n]*\b` + verb + `\b`).MatchString(section(page, "Verbs")) {
			bad = append(bad, "the table under Verbs lacks "+verb)
		}
	}
	return append(bad, checkConditions(page)...)
}

// checkConditions checks that few sentences of a page begin with a condition, which a reader must keep in mind until the
// sentence says what happens.
func checkConditions(page string) []string {
	var text []string
	for _, line := range prose(page) {
		if !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "#") {
			text = append(text, line)
		}
	}
	all := strings.ReplaceAll(strings.Join(text, "\n"), "\n\n", ".\n\n")
	found := regexp.MustCompile(`(?m)(?:\A|[.:]\s+|^[-\d>]\.? (?:\*\*)?)(?:If|With|Without|Before|After|While)\b`).FindAllString(all, -1)
	if len(found) > maxConditions {
		return []string{fmt.Sprintf("want at most %d sentences that begin with If, With, Without, Before, After or While, got %d", maxConditions, len(found))}
	}
	return nil
}

// checkEveryKey checks that the section with every key contains each key of the table, in the list or, if a key excludes
// another one, in a sentence. The runtime writes the keys in runtimeConfig and args.cni.
func checkEveryKey(page string) (bad []string) {
	list := section(page, everyKey)
	for _, key := range tableKeys(page) {
		if strings.HasPrefix(key, "runtimeConfig.") || strings.HasPrefix(key, "args.cni.") {
			continue
		}
		name := key[strings.LastIndex(key, ".")+1:]
		if !strings.Contains(list, strconv.Quote(name)) && !strings.Contains(list, "`"+name+"`") {
			bad = append(bad, fmt.Sprintf("the section %q lacks the key %q", everyKey, key))
		}
	}
	return bad
}

// section returns the text under a second-level heading.
func section(page, heading string) string {
	_, rest, _ := strings.Cut(page, "\n## "+heading+"\n")
	text, _, _ := strings.Cut(rest, "\n## ")
	return text
}

// sections returns the second-level headings outside of code.
func sections(page string) []string {
	var got []string
	for _, line := range prose(page) {
		if h, ok := strings.CutPrefix(line, "## "); ok {
			got = append(got, h)
		}
	}
	return got
}

// prose returns the lines of a page outside of fenced code.
func prose(page string) []string {
	var lines []string
	code := false
	for line := range strings.SplitSeq(page, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
			continue
		}
		if !code {
			lines = append(lines, line)
		}
	}
	return lines
}

// checkBlocks checks that each ```json block is a valid configuration of existing plugins.
func checkBlocks(page string, plugins []string) (bad []string) {
	blocks := nstest.JSONBlocks(page)
	if len(blocks) == 0 {
		bad = append(bad, "no ```json block")
	}
	for i, block := range blocks {
		var conf struct {
			Type    string
			IPAM    struct{ Type string }
			Plugins []struct {
				Type string
				IPAM struct{ Type string }
			}
		}
		if err := json.Unmarshal([]byte(block), &conf); err != nil {
			bad = append(bad, fmt.Sprintf("JSON block %d: %v", i+1, err))
			continue
		}
		named := []string{conf.Type, conf.IPAM.Type}
		for _, p := range conf.Plugins {
			named = append(named, p.Type, p.IPAM.Type)
		}
		named = slices.DeleteFunc(named, func(n string) bool { return n == "" })
		if len(named) == 0 {
			bad = append(bad, fmt.Sprintf("JSON block %d names no plugin; use ```json only for configurations", i+1))
		}
		for _, n := range named {
			if !slices.Contains(plugins, n) {
				bad = append(bad, fmt.Sprintf("JSON block %d names plugin %q, which does not exist", i+1, n))
			}
		}
	}
	return bad
}

// checkKeys compares the table under "Keys" with the JSON tags in config.go and in the types that all configurations
// share.
func checkKeys(t *testing.T, plugin, page string) (bad []string) {
	t.Helper()
	var tags map[string]bool
	if text, err := os.ReadFile("../plugins/" + plugin + "/config.go"); err == nil {
		tags = jsonTags(t, string(text))
		all := string(text)
		for name, file := range map[string]string{"attach.MACKeys": "attach/keys.go", "attach.QueueKeys": "attach/queues.go", "attach.HostAccessKeys": "attach/hostaccess.go", "attach.DADKeys": "attach/dad.go", "masq.Keys": "masq/keys.go", "pool.Keys": "pool/keys.go"} {
			if usesType(string(text), name) {
				all += read(t, "pkg/"+file)
				maps.Copy(tags, jsonTags(t, read(t, "pkg/"+file)))
			}
		}
		if strings.Contains(all, " []types.RouteText `") {
			maps.Copy(tags, jsonTags(t, read(t, "pkg/types/text.go")))
		}
	}
	shared := jsonTags(t, read(t, "pkg/types/conf.go"))
	shared["args"], shared["cni"], shared["runtimeConfig"], shared["capabilities"] = true, true, true, true
	mentioned := map[string]bool{}
	for _, key := range tableKeys(page) {
		path := strings.Split(strings.NewReplacer("[]", "", "[", "", "]", "").Replace(key), ".")
		for _, part := range path {
			mentioned[part] = true
		}
		if last := path[len(path)-1]; !tags[last] && !shared[last] {
			bad = append(bad, fmt.Sprintf("the table contains the key %q, which config.go does not read", key))
		}
	}
	for _, tag := range slices.Sorted(maps.Keys(tags)) {
		if !mentioned[tag] && !shared[tag] {
			bad = append(bad, fmt.Sprintf("config.go reads the key %q, which the table lacks", tag))
		}
	}
	return bad
}

// usesType reports whether a struct in the text embeds the type, or contains a key that is a pointer to it.
func usesType(text, name string) bool {
	return strings.Contains(text, "\t"+name+"\n") || strings.Contains(text, " *"+name+" `")
}

// tableKeys returns the texts in backquotes in the first column under "Keys".
func tableKeys(page string) []string {
	quoted := regexp.MustCompile("`([^`]+)`")
	var keys []string
	for line := range strings.SplitSeq(section(page, "Keys"), "\n") {
		if cells := strings.Split(line, "|"); len(cells) > 2 && strings.TrimSpace(cells[0]) == "" {
			for _, m := range quoted.FindAllStringSubmatch(cells[1], -1) {
				keys = append(keys, m[1])
			}
		}
	}
	return keys
}

func jsonTags(t *testing.T, text string) map[string]bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "config.go", text, 0)
	nstest.Must(t, err)
	tags := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if field, ok := n.(*ast.Field); ok && field.Tag != nil {
			tag, _ := strconv.Unquote(field.Tag.Value)
			name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
			if name != "" && name != "-" {
				tags[name] = true
			}
		}
		return true
	})
	return tags
}

func callsExamples(plugin string) bool {
	tests, _ := filepath.Glob("../plugins/" + plugin + "/*_test.go")
	return slices.ContainsFunc(tests, func(path string) bool {
		text, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(text), "nstest.Examples(")
	})
}

// TestFrontPage checks that the README names the two commands and every plugin, and that CONTRIBUTING.md lists every
// script.
func TestFrontPage(t *testing.T) {
	page := read(t, "README.md")
	for _, want := range []string{"scripts/quickstart.sh", "scripts/test.sh", "./build_linux.sh", "/opt/cni/bin", "CONTRIBUTING.md"} {
		if !strings.Contains(page, want) {
			t.Errorf("README.md does not mention %s", want)
		}
	}
	for _, p := range plugins(t) {
		if !strings.Contains(page, "](plugins/"+p+"/README.md)") {
			t.Errorf("README.md has no link to plugins/%s/README.md", p)
		}
	}
	scripts, _ := filepath.Glob("../scripts/*.sh")
	for _, script := range scripts {
		if name := "`scripts/" + filepath.Base(script) + "`"; !strings.Contains(read(t, "CONTRIBUTING.md"), name) {
			t.Errorf("CONTRIBUTING.md does not list %s", name)
		}
	}
	if ci := read(t, ".ci/run"); !strings.Contains(ci, "scripts/test.sh") {
		t.Error(".ci/run does not run the README's test command")
	}
}

// TestWorkflows checks that workflows use no actions, that each job gets only the permissions that it lists, and that
// the scripts exist.
func TestWorkflows(t *testing.T) {
	files, err := filepath.Glob("../.github/workflows/*.yml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no workflows: %v", err)
	}
	for _, file := range files {
		for _, problem := range checkWorkflow(read(t, strings.TrimPrefix(file, "../"))) {
			t.Errorf("%s: %s", filepath.Base(file), problem)
		}
	}
}

func checkWorkflow(text string) (bad []string) {
	if strings.Contains(strings.ReplaceAll(text, "uses: ./.github/workflows/", ""), "uses:") {
		bad = append(bad, "uses an action; write a command")
	}
	if !strings.Contains(text, "\npermissions: {}\n") || strings.Contains(text, "write-all") {
		bad = append(bad, "permissions: {} is missing, or a job has all permissions")
	}
	for _, script := range regexp.MustCompile(`(?m)(?:^|\s)((?:scripts|test)/[\w/.-]+\.sh)`).FindAllStringSubmatch(text, -1) {
		if info, err := os.Stat("../" + script[1]); err != nil || info.Mode()&0o111 == 0 {
			bad = append(bad, "calls "+script[1]+", which is not an executable script")
		}
	}
	return bad
}

// TestLinks checks that the files and headings exist to which our pages link within the repository.
func TestLinks(t *testing.T) {
	for _, page := range pages(t) {
		for _, target := range links(read(t, page)) {
			if problem := resolve("../"+page, target); problem != "" {
				t.Errorf("%s links to %s: %s", page, target, problem)
			}
		}
	}
}

func pages(t *testing.T) []string {
	t.Helper()
	var pages []string
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && (d.Name() == ".git" || d.Name() == "bin" || d.Name() == "release") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".md") {
			pages = append(pages, strings.TrimPrefix(path, "../"))
		}
		return err
	})
	nstest.Must(t, err)
	return pages
}

// TestPictures checks that each picture is drawn from the current source, and that a page shows it.
func TestPictures(t *testing.T) {
	sources, err := filepath.Glob("../docs/pictures/*.dot")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no sources: %v", err)
	}
	var text strings.Builder
	for _, page := range pages(t) {
		text.WriteString(read(t, page))
	}
	for _, source := range sources {
		name := filepath.Base(source)
		drawing := strings.TrimSuffix(name, ".dot") + ".svg"
		sum := sha256.Sum256([]byte(read(t, "docs/pictures/"+name)))
		if !strings.Contains(read(t, "docs/pictures/"+drawing), fmt.Sprintf("<!-- %s: %x -->", name, sum)) {
			t.Errorf("docs/pictures/%s does not match %s; run scripts/pictures.sh", drawing, name)
		}
		if !strings.Contains(text.String(), "pictures/"+drawing+")") {
			t.Errorf("no page shows docs/pictures/%s", drawing)
		}
	}
}

// TestErrorIndex checks that each error in the table "By error" is a text of plumb's code, unless it is a runtime's.
func TestErrorIndex(t *testing.T) {
	_, rest, _ := strings.Cut(read(t, "docs/how-to/troubleshooting.md"), "\n## By error\n")
	section, _, _ := strings.Cut(rest, "\n## ")
	errors := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(section, -1)
	if len(errors) == 0 {
		t.Error("the table is empty")
	}
	var code strings.Builder
	for _, s := range slices.Concat(shipped(t), sources(t, "plugins/cluster-local/datastore/*/*.go")) {
		code.WriteString(read(t, s.path))
	}
	for _, e := range errors {
		if !strings.Contains(code.String(), e[1]) {
			t.Errorf("no plugin prints %q", e[1])
		}
	}
}

// TestWording checks that pages use the field's words, and that the cells of tables are short.
func TestWording(t *testing.T) {
	for _, page := range pages(t) {
		for _, problem := range checkWording(read(t, page)) {
			t.Errorf("%s: %s", page, problem)
		}
	}
}

// rejected maps patterns of expressions that pages must not contain to advice.
var rejected = map[string]string{
	`\bfolders?\b`:                "write directory",
	`\b(that|those) of\b`:         "repeat the noun, or use 's",
	`\b(is|are) no\b`:             "write is not a",
	`\balso (if|after)\b`:         "write even if, as well",
	`\bmend(s|ed|ing)?\b`:         "write fix",
	`\b(leads?|led|leading) to\b`: "write forward, map or cause",
	`<<<<<<< |>>>>>>> `:           "resolve the conflict of git",
}

// checkWording checks a page's text outside of code, except generated tables.
func checkWording(page string) (bad []string) {
	page = regexp.MustCompile(`(?s)<!-- benchmark: .*?<!-- end -->`).ReplaceAllString(page, "")
	page = regexp.MustCompile(`\]\([^)\s]+\)`).ReplaceAllString(strings.Join(prose(page), "\n"), "]")
	for line := range strings.SplitSeq(page, "\n") {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		for cell := range strings.SplitSeq(line, "|") {
			if n := len(strings.Fields(cell)); n > maxCell {
				bad = append(bad, fmt.Sprintf("table cell %.60q: want at most %d words, got %d", cell, maxCell, n))
			}
		}
	}
	text := strings.Join(strings.Fields(regexp.MustCompile("`[^`]*`").ReplaceAllString(page, "`")), " ")
	text = regexp.MustCompile(`(?i)\bthere (is|are) no\b|\b(is|are) no (longer|more)\b`).ReplaceAllString(text, "")
	for pattern, advice := range rejected {
		for _, at := range regexp.MustCompile(`(?i)`+pattern).FindAllStringIndex(text, -1) {
			bad = append(bad, fmt.Sprintf("…%s: %s", text[max(0, at[0]-30):at[1]], advice))
		}
	}
	return bad
}

// These are the limits for pages.
const (
	maxCell          = 25  // the number of words in a table cell
	maxPageLines     = 150 // of a plugin's page
	maxFirstList     = 25  // the line of a plugin's page at which the smallest list ends
	maxConditions    = 4   // the number of sentences of a plugin's page that begin with a condition
	maxReadmeLines   = 130
	maxReadmeColumns = 120
	maxReadmeWords   = 1300
)

// TestReadme checks that the README is short, and that the pages of the tool, whose screens a test compares with the
// commands, contain the README's output of the tool.
func TestReadme(t *testing.T) {
	page, reference := read(t, "README.md"), read(t, "docs/reference/plumb.md")
	for _, p := range pages(t) {
		if strings.HasPrefix(p, "docs/reference/plumb/") {
			reference += read(t, p)
		}
	}
	for _, problem := range slices.Concat(checkSize(page), checkOutputs(page, reference)) {
		t.Errorf("README.md: %s", problem)
	}
}

func checkSize(page string) (bad []string) {
	lines := strings.Split(strings.TrimSuffix(page, "\n"), "\n")
	if len(lines) > maxReadmeLines {
		bad = append(bad, fmt.Sprintf("want at most %d lines, got %d", maxReadmeLines, len(lines)))
	}
	if n := len(strings.Fields(page)); n > maxReadmeWords {
		bad = append(bad, fmt.Sprintf("want at most %d words, got %d", maxReadmeWords, n))
	}
	for i, line := range lines {
		if n := utf8.RuneCountInString(line); n > maxReadmeColumns {
			bad = append(bad, fmt.Sprintf("line %d: want at most %d columns, got %d", i+1, maxReadmeColumns, n))
		}
	}
	return bad
}

// checkOutputs checks that reference contains the output on each line `plumb COMMAND  OUTPUT` of a page.
func checkOutputs(page, reference string) (bad []string) {
	screens := strings.Join(strings.Fields(reference), " ")
	found := regexp.MustCompile(`(?m)^plumb [a-z]+ {2,}(.*)$`).FindAllStringSubmatch(page, -1)
	for _, m := range found {
		if output := strings.Join(strings.Fields(m[1]), " "); !strings.Contains(screens, output) {
			bad = append(bad, "the tool's pages do not show this line; if their output changed, edit it by hand: "+output)
		}
	}
	if len(found) == 0 {
		bad = append(bad, "no output of the tool")
	}
	return bad
}

// links returns the targets of a page's links into the repository.
func links(page string) []string {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	var targets []string
	for _, line := range prose(page) {
		for _, m := range link.FindAllStringSubmatch(line, -1) {
			if !strings.Contains(m[1], "://") && !strings.HasPrefix(m[1], "mailto:") {
				targets = append(targets, m[1])
			}
		}
	}
	return targets
}

// resolve returns what is wrong with a link, or "".
func resolve(page, target string) string {
	file, anchor, hasAnchor := strings.Cut(target, "#")
	to := page
	if file != "" {
		to = filepath.Join(filepath.Dir(page), file)
	}
	info, err := os.Stat(to)
	if err != nil {
		return "no such file"
	}
	if !hasAnchor || info.IsDir() {
		return ""
	}
	if line, ok := strings.CutPrefix(anchor, "L"); ok {
		return "a line number (" + line + ") becomes wrong"
	}
	text, err := os.ReadFile(to)
	if err != nil {
		return err.Error()
	}
	for _, line := range prose(string(text)) {
		if strings.HasPrefix(line, "#") && slug(strings.TrimLeft(line, "# ")) == anchor {
			return ""
		}
	}
	return "no such heading"
}

// slug returns the anchor that GitHub assigns to a heading.
func slug(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r > 127:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// toyPage returns a page of the plugin x with text and a number of empty lines under the questions.
func toyPage(text string, lines int) string {
	return "# x\n\nx does it.\n\n```json\n{\"plugins\": [{\"type\": \"x\"}]}\n```\n\n## With every key\n\n## Keys\n\n## How it behaves\n\n### What if?\n" +
		text + strings.Repeat("\n", lines) + "\n## Objects on the host\n\n## Errors\n\n## Verbs\n\n| ADD |\n| DEL |\n| CHECK |\n| GC |\n| STATUS |\n"
}

// TestDocChecksBite checks that each check finds a violation.
func TestDocChecksBite(t *testing.T) {
	const keys = "\n## Keys\n\n| key | type |\n|---|---|\n"
	for _, c := range []struct {
		name string
		got  []string
		want string
	}{
		{"no block", checkBlocks("# x\n", []string{"a"}), "no ```json block"},
		{"not JSON", checkBlocks("```json\n{\n```\n", []string{"a"}), "unexpected end"},
		{"no such plugin", checkBlocks("```json\n{\"type\": \"b\"}\n```\n", []string{"a"}), `plugin "b"`},
		{"no such IPAM plugin", checkBlocks("```json\n{\"plugins\": [{\"type\": \"a\", \"ipam\": {\"type\": \"b\"}}]}\n```\n", []string{"a"}), `plugin "b"`},
		{"no configuration", checkBlocks("```json\n{}\n```\n", []string{"a"}), "names no plugin"},
		{"good", checkBlocks("```json\n{\"type\": \"a\"}\n```\n", []string{"a"}), ""},
		{"a key too many", checkKeys(t, "bridge", keys+"| `nosuch` | string |\n"), `the key "nosuch", which config.go does not read`},
		{"a key too few", checkKeys(t, "bridge", keys+"| `bridge` | string |\n"), `the key "isGateway", which the table lacks`},
		{"an old form", checkForm("x", "# x\n\n## What it does\n\nx does it.\n"), "must begin with"},
		{"old headings", checkForm("x", "# x\n\nx does it.\n\n## What it does\n"), `got ["What it does"]`},
		{"no differences", checkForm("x", toyPage("", 0)), ""},
		{"no list at the top", checkForm("x", strings.Replace(toyPage("", 0), "```json", "```", 1)), "smallest list that works"},
		{"a list too late", checkForm("x", strings.Replace(toyPage("", 0), "\n```json", strings.Repeat("\n", 20)+"```json", 1)), "in the first 25 lines"},
		{"no question", checkForm("x", toyPage("### The host port\n", 0)), "want a question"},
		{"a long page", checkForm("x", toyPage("", 130)), "want at most 150 lines, got 1"},
		{"no verb", checkForm("x", strings.Replace(toyPage("", 0), "| GC", "| gc", 1)), "lacks GC"},
		{"conditions", checkForm("x", toyPage(strings.Repeat("A sentence. If not,\nIf it ends. - With it.\n\n- Without it.\n", 4), 0)), "or While, got 8"},
		{"a key that the list lacks", checkEveryKey("\n## With every key\n\n\"b\"\n" + keys + "| `a[].b` | |\n| `c` | |\n| `args.cni.d` | |\n"), `lacks the key "c"`},
		{"a key in a sentence", checkEveryKey("\n## With every key\n\n`c` excludes it.\n" + keys + "| `c` | string |\n"), ""},
		{"headings", sections("## A\n```\n## B\n```\n## C\n"), "A\nC"},
		{"an action", checkWorkflow("permissions: {}\nuses: actions/checkout@v4\n"), "uses an action"},
		{"no permissions", checkWorkflow("on: push\n"), "permissions: {} is missing"},
		{"no such script", checkWorkflow("\npermissions: {}\nrun: scripts/nosuch.sh --all\n"), "calls scripts/nosuch.sh"},
		{"a workflow", checkWorkflow("\npermissions: {}\nrun: scripts/test.sh\n"), ""},
		{"a word", checkWording("The folder.\n"), "write directory"},
		{"two words on two lines", checkWording("It is that\nof the host.\n"), "repeat the noun"},
		{"is no", checkWording("A tap is no bridge. There is no tap.\n"), "A tap is no: write is not a"},
		{"also if", checkWording("It works also after a reboot.\n"), "write even if"},
		{"mend", checkWording("Mends it.\n"), "write fix"},
		{"lead to", checkWording("A port leads to the container.\n"), "write forward"},
		{"words in code, and there is no", checkWording("`folder` there is no way, it is no longer\n```\nfolder\n```\n"), ""},
		{"a conflict", checkWording("<<<<<<< HEAD\n"), "resolve the conflict"},
		{"a long cell", checkWording("| a | " + strings.Repeat("b ", 26) + "|\n"), "got 26"},
		{"a cell of a program", checkWording("<!-- benchmark: x -->\n| " + strings.Repeat("b ", 26) + "|\n<!-- end -->\n"), ""},
		{"too many lines", checkSize(strings.Repeat("\n", 131)), "got 131"},
		{"too many words", checkSize(strings.Repeat("a\n", 1301)), "got 1301"},
		{"too many columns", checkSize(strings.Repeat("é", 121)), "line 1: want at most 120 columns, got 121"},
		{"a README", checkSize(strings.Repeat("é", 120) + strings.Repeat("\n", 130)), ""},
		{"no such output", checkOutputs("plumb list  a   c\n", "a b c"), "edit it by hand: a c"},
		{"an output", checkOutputs("plumb list  a   b\n", "a  b c"), ""},
		{"no output", checkOutputs("plumb\n", ""), "no output"},
		{"links", links("[a](b.md) [c](https://x.y) `x`\n```\n[d](e)\n```\n"), "b.md"},
	} {
		got := strings.Join(c.got, "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: want %q, got %q", c.name, c.want, got)
		}
	}
	page := filepath.Join(t.TempDir(), "page.md")
	nstest.Must(t, os.WriteFile(page, []byte("## How it is built\n"), 0o644))
	for target, want := range map[string]string{
		"none.md": "no such file", "#how-it-is-built": "", "page.md#no": "no such heading", "page.md#L3": "a line number (3) becomes wrong",
	} {
		if got := resolve(page, target); got != want {
			t.Errorf("link %s: want %q, got %q", target, want, got)
		}
	}
}
