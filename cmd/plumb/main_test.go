package main

import (
	"strings"

	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("plumb", func() {
	It("exits with the statuses of its page", func() {
		b := newTestbed()
		none := b.path("none")
		for status, commands := range map[int][][]string{
			0:         {{"list"}, {"metrics"}, {"gc", "--no-live"}, {"schema", "bridge"}},
			exitFound: {{"doctor"}}, // the configuration directory is empty
			exitUsage: {
				{"list", "x"}, {"list", "--container", "x"}, {"metrics", "x"}, {"gc"}, {"gc", "--dead", "x"}, {"doctor", "--timeout", "0"}, {"explain"}, {"explain", "x"},
				{"schema", "x"}, {"install"}, {"install", "--from", b.bin, "--to", none}, {"install", "--from", none, "--to", b.dir},
				{"install", "--restore", none, "--to", b.dir}, {"trace", "--for", "0"}, {"x"},
			},
			exitError: {{"gc", "--live", none}, {"doctor", none}},
		} {
			for _, args := range commands {
				command := args[0]
				if slices.Contains([]string{"list", "metrics", "gc", "doctor", "explain"}, command) {
					args = append(args, b.directories()...)
				}
				reply := b.run("", args...)
				Expect(reply.Exit).To(Equal(status), "%q: %s", args, reply.Stderr)
			}
		}
	})
})

var _ = Describe("plumb", func() {
	It("suggests the most similar command", func() {
		b := newTestbed()
		for command, want := range map[string]string{"lst": `unknown command "lst"; did you mean list?`, "xyz": `unknown command "xyz"; plumb --help lists the commands`} {
			reply := b.run("", command)
			Expect(reply.Exit).To(Equal(exitUsage))
			Expect(reply.Stderr).To(Equal("plumb: " + want + "\nSee plumb --help.\n"))
		}
	})

	It("names the arguments that are missing or not expected", func() {
		b := newTestbed()
		for want, args := range map[string][]string{
			"CONTAINER is missing":       {"explain"},
			`unexpected argument "c"`:    {"explain", "a", "b", "c"},
			"ADDRESS is missing":         {"ipam", "who"},
			"FORMER-NAME is missing":     {"ipam", "rename"},
			"NODE is missing":            {"ipam", "remove-node"},
			"PLUGIN|conflist is missing": {"schema"},
			`unexpected argument "x"`:    {"schema", "--list", "x"},
			`unexpected argument "y"`:    {"list", "y"},
			`unexpected argument "z"`:    {"install", "z"},
			`unknown command "ls"; plumb ipam --help lists the commands`: {"ipam", "ls"},
		} {
			reply := b.run("", args...)
			Expect(reply.Exit).To(Equal(exitUsage), want)
			Expect(reply.Stderr).To(HavePrefix("plumb: " + want + "\nSee plumb " + args[0]))
		}
	})

	It("lists the flags for directories at the end of a help text", func() {
		help := newTestbed().run("", "gc", "--help").Stdout
		work, locations, found := strings.Cut(help, "\n\nFlags for other directories than the runtime's:\n")
		Expect(found).To(BeTrue(), help)
		for _, name := range []string{"--cache-dir", "--cni-path", "--conf-dir", "--data-dir"} {
			Expect(locations).To(ContainSubstring("      " + name + " "))
			Expect(work).NotTo(ContainSubstring("      " + name + " "))
		}
		Expect(work).To(ContainSubstring("--no-live "))
	})

	It("prints its version", func() {
		b := newTestbed()
		Expect(b.run("", "version").Stdout).To(And(HavePrefix("plumb v2."), Equal(b.run("", "--version").Stdout)))
	})
})

var _ = Describe("plumb completion", func() {
	It("rejects an unknown or missing shell", func() {
		b := newTestbed()
		for _, args := range [][]string{{"completion"}, {"completion", "tcsh"}, {"completion", "bash", "more"}} {
			reply := b.run("", args...)
			Expect(reply.Exit).To(Equal(exitUsage), "%q", args)
			Expect(reply.Stdout).To(BeEmpty(), "%q", args)
			Expect(reply.Stderr).To(HaveSuffix("\nSee plumb completion"+map[bool]string{true: " bash"}[len(args) > 2]+" --help.\n"), "%q", args)
		}
		Expect(b.run("", "completion").Stderr).To(HavePrefix("plumb: the shell is required: bash, fish, powershell or zsh\n"))
		Expect(b.run("", "completion", "zsh").Exit).To(Equal(0))
	})

	It("completes formats, containers and interfaces, and file names only where files are allowed", func() {
		b := newTestbed()
		b.add(b.network("10-pods.conflist", chain), newContainer("c1"))
		const noFiles, files = ":4\n", ":0\n"
		for _, c := range []struct {
			args []string
			want string
		}{
			{[]string{"list", "-o", ""}, "text\njson\n" + noFiles},
			{[]string{"install", "-o", ""}, "text\njson\n" + noFiles},
			{[]string{"explain", ""}, "c1\n" + noFiles},
			{[]string{"explain", "x"}, noFiles},
			{[]string{"explain", "c1", ""}, "eth0\n" + noFiles},
			{[]string{"explain", "c1", "eth0", ""}, noFiles},
			{[]string{"list", ""}, noFiles},
			{[]string{"doctor", ""}, files},
			{[]string{"gc", "--live", ""}, files},
		} {
			args := append([]string{"__complete", c.args[0]}, b.directories()...)
			if c.args[0] == "install" {
				args = args[:2]
			}
			reply := b.run("", append(args, c.args[1:]...)...)
			Expect(reply.Stdout).To(Equal(c.want), "%q", c.args)
		}
	})
})
