package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/plugins"
)

// setOutput makes the commands write to out and errOut through a filter, and returns the filter of out.
func setOutput(root *cobra.Command, out, errOut io.Writer) *output {
	filtered := &output{Writer: out}
	root.SetOut(filtered)
	root.SetErr(&output{Writer: errOut})
	return filtered
}

// An output is a writer that replaces control characters and invisible characters with "?", except newlines and tabs. It keeps
// the first error, because cobra ignores errors when it writes help texts.
//
// Processes and containers choose many of the strings that plumb prints, for example the names of processes and interfaces. A
// terminal would interpret the control characters in them.
type output struct {
	io.Writer
	err error
}

func (o *output) Write(b []byte) (int, error) {
	_, err := io.WriteString(o.Writer, strings.Map(visible, string(b)))
	o.err = cmp.Or(o.err, err)
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

func visible(r rune) rune {
	if r == '\n' || r == '\t' || unicode.IsGraphic(r) && r != utf8.RuneError {
		return r
	}
	return '?'
}

// printf formats as fmt.Fprintf does, but keeps each argument on one line and in one column.
func printf(w io.Writer, format string, args ...any) {
	for i, a := range args {
		switch a := a.(type) {
		case string:
			args[i] = oneLine(a)
		case error:
			args[i] = oneLine(a.Error())
		case fmt.Stringer:
			args[i] = oneLine(a.String())
		}
	}
	_, _ = fmt.Fprintf(w, format, args...) // main returns the error of stdout
}

// printSolution prints a command, an edit and a sentence, each on its own line.
func printSolution(w io.Writer, s plugins.Solution) {
	for _, line := range s.Lines() {
		printf(w, "    %s\n", line)
	}
}

// oneLine replaces line breaks with "; ", and control characters and invisible characters with "?".
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' {
			return '?'
		}
		return visible(r)
	}, strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "; "))
}
