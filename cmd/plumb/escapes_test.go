package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("the output of plumb", func() {
	// hostile is a string of a process or a container: it sets the terminal's title, reverses the text, and begins a line.
	const hostile = "x\x1b]0;P\a\x7f\u009b\u202e\r\nFAKE"

	// This takes some seconds, because it runs most commands, and compiles the stubs.
	It("contains no control characters and no lines that others chose", func() {
		b := newStubbed()
		list := `{"cniVersion": "1.1.0", "name": "stubs", "plugins": [{"type": "one"}]}`
		containers := b.attach(`{"type": "one"}`, "one", "rep-a", "rep-b")
		containers[1].Remove(GinkgoTB())
		quoted := fmt.Sprintf("%q", hostile)
		for id, key := range map[string]string{"rep-a": "networkName", "rep-b": "ifName"} {
			b.editResult(id, key, hostile)
		}
		b.write("broken-one-rep-a", `{"code": 100, "msg": `+strings.NewReplacer(`\x1b`, `\u001b`, `\a`, `\u0007`, `\x7f`, "\x7f").Replace(quoted)+`}`)
		b.write("broken-one-rep-b", b.read("broken-one-rep-a"))
		Expect(os.MkdirAll(b.path("data/stubs"), 0o755)).To(Succeed())
		Expect(os.WriteFile(b.path("data/stubs/10.1.2.9"), []byte("y\x1b[31mFAKE\reth0"), 0o644)).To(Succeed())
		Expect(os.WriteFile(filepath.Join(b.path("conf"), "20-\x1b[31m\nFAKE.conflist"), []byte("{"), 0o644)).To(Succeed())
		Expect(os.WriteFile(filepath.Join(b.path("conf"), "30-names.conflist"), []byte(strings.ReplaceAll(list, "stubs",
			strings.NewReplacer("\x1b", `\u001b`, "\a", `\u0007`, "\r", `\r`, "\n", `\n`).Replace(hostile))), 0o644)).To(Succeed())
		containers[0].Batch(GinkgoTB(), "link add name \x1b[31mFAKE type bridge")

		places := append(b.directories(), "--cni-path", b.stubs+":"+b.bin)
		for _, args := range [][]string{
			{"list"}, {"list", "--no-trunc"}, {"list", "-o", "json"}, {"doctor"}, {"doctor", "-o", "json"}, {"explain", "rep-a"}, {"explain", "rep-b", "-o", "json"},
			{"repair"}, {"repair", "--dry-run"}, {"repair", "-o", "json"}, {"gc", "--no-live", "--dry-run", "--min-age", "0"}, {"maintain"}, {"metrics"},
			{"gc", "--dead", hostile}, {"list", "--network", hostile}, {"gc", "--no-live", "--min-age", "0"}, {"list", hostile},
		} {
			reply := b.run("", append(args, places[:len(places)-map[bool]int{true: 0, false: 2}[args[0] != "list" && args[0] != "metrics"]]...)...)
			text := reply.Stdout + reply.Stderr
			Expect(strings.IndexFunc(text, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsGraphic(r) })).To(
				Equal(-1), "%q: %q", args, text)
			Expect(text).NotTo(MatchRegexp(`(?m)^\s*FAKE`), "%q", args)
		}
	})
})
