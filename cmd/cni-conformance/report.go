package main

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/plumb-cni/plumb/v2/cmd/cni-conformance/internal/lab"
	"github.com/plumb-cni/plumb/v2/cmd/cni-conformance/internal/suite"
	"github.com/plumb-cni/plumb/v2/pkg/version"
)

// A report is the output of -o json.
type report struct {
	Tool       string          `json:"tool"`
	List       string          `json:"list"`
	CNIVersion string          `json:"cniVersion"`
	Kills      int             `json:"kills"` // at how many system calls of each call a plugin is killed; 0 for all
	Plugins    []suite.About   `json:"plugins"`
	Setup      string          `json:"setup,omitempty"`
	Counts     map[string]int  `json:"counts"`
	Cases      []suite.Outcome `json:"cases"`
	Growth     *suite.Growth   `json:"growth,omitempty"` // with --attachments
}

func newReport(list string, n *lab.Network, s *suite.Suite) *report {
	return &report{Tool: "cni-conformance " + version.String(), List: filepath.Base(list), CNIVersion: n.Version, Kills: n.Kills, Setup: n.Setup, Plugins: s.Plugins, Counts: map[string]int{}}
}

func (r *report) add(o suite.Outcome) {
	r.Cases = append(r.Cases, o)
	r.Counts[o.Verdict]++
}

// A printer prints the outcomes of a report.
type printer interface {
	outcome(suite.Outcome) error // directly after the case
	end() error
}

func (r *report) printer(format string, out io.Writer) printer {
	switch format {
	case "json":
		return jsonPrinter{r, out}
	case "junit":
		return junitPrinter{r, out}
	}
	p := textPrinter{r, out}
	for _, plugin := range r.Plugins {
		_, _ = fmt.Fprintf(out, "%s: %s\n", plugin.Executable, plugin.Version)
	}
	_, _ = fmt.Fprintf(out, "version %s of the protocol\n\n", r.CNIVersion)
	return p
}

type textPrinter struct {
	*report
	out io.Writer
}

func (p textPrinter) outcome(o suite.Outcome) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%-14s %-12s %-6s %s\n", o.Verdict, o.ID, o.Level, o.Requirement)
	if o.Why != "" {
		fmt.Fprintf(&b, "    %s\n", strings.ReplaceAll(o.Why, "\n", "\n    "))
	}
	if o.Verdict != suite.NotApplicable && len(o.Calls) > 0 {
		last := o.Calls[len(o.Calls)-1]
		fmt.Fprintf(&b, "    the last of %d calls (-o json prints all):\n    %s\n", len(o.Calls), strings.ReplaceAll(last.Shell(), "\n", "\n    "))
		fmt.Fprintf(&b, "    exit status %d, stdout %.1000q, stderr %.1000q\n", last.Exit, last.Stdout, last.Stderr)
	}
	_, err := io.WriteString(p.out, b.String())
	return err
}

func (p textPrinter) end() error {
	if g := p.Growth; g != nil && g.Error != "" {
		_, _ = fmt.Fprintf(p.out, "\nbeside %d attachments, ADD and DEL cannot be measured: %s\n", g.Attachments, g.Error)
	} else if g != nil {
		_, _ = fmt.Fprintf(p.out, "\nbeside %d attachments, ADD takes %.1f ms (%.1f without them), and DEL %.1f ms (%.1f)\n",
			g.Attachments, g.Beside.Add, g.Alone.Add, g.Beside.Del, g.Alone.Del)
	}
	_, err := fmt.Fprintf(p.out, "\n%d pass, %d fail, %d inconclusive, %d not applicable\n",
		p.Counts[suite.Pass], p.Counts[suite.Fail], p.Counts[suite.Inconclusive], p.Counts[suite.NotApplicable])
	return err
}

type jsonPrinter struct {
	*report
	out io.Writer
}

func (jsonPrinter) outcome(suite.Outcome) error { return nil }

func (p jsonPrinter) end() error { return printJSON(p.out, p.report) }

func printJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

type junitPrinter struct {
	*report
	out io.Writer
}

func (junitPrinter) outcome(suite.Outcome) error { return nil }

// junitMessage is the content of an element in JUnit's format.
type junitMessage struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Seconds float64       `xml:"time,attr"`
	Failure *junitMessage `xml:"failure,omitempty"`
	Error   *junitMessage `xml:"error,omitempty"`
	Skipped *junitMessage `xml:"skipped,omitempty"`
}

func (p junitPrinter) end() error {
	suiteOf := struct {
		XMLName  xml.Name    `xml:"testsuite"`
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Cases    []junitCase `xml:"testcase"`
	}{Name: p.List, Tests: len(p.Cases), Failures: p.Counts[suite.Fail], Errors: p.Counts[suite.Inconclusive], Skipped: p.Counts[suite.NotApplicable]}
	for _, o := range p.Cases {
		c := junitCase{Class: o.Profile + "." + o.Level, Name: o.ID + " " + o.Requirement, Seconds: o.Seconds}
		message := &junitMessage{Message: o.Why}
		for _, call := range o.Calls {
			message.Text += call.Shell() + "\n"
		}
		switch o.Verdict {
		case suite.Fail:
			c.Failure = message
		case suite.Inconclusive:
			c.Error = message
		case suite.NotApplicable:
			c.Skipped = message
		}
		suiteOf.Cases = append(suiteOf.Cases, c)
	}
	text, err := xml.MarshalIndent(suiteOf, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.out, "%s%s\n", xml.Header, text)
	return err
}

// printCases prints what the cases require.
func printCases(out io.Writer, format string, cases []suite.Case) error {
	if format == "json" {
		return printJSON(out, cases)
	}
	var b strings.Builder
	if format == "markdown" {
		b.WriteString("| case | level | section | requirement |\n|---|---|---|---|\n")
	}
	for _, c := range cases {
		line := "%-12s %-6s section %s: %s\n"
		if format == "markdown" {
			line = "| %s | %s | %s | %s |\n"
		}
		fmt.Fprintf(&b, line, c.ID, c.Level, c.Section, c.Requirement)
	}
	_, err := io.WriteString(out, b.String())
	return err
}
