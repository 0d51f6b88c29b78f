// Package suite contains the cases of cni-conformance, and runs them.
package suite

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"golang.org/x/mod/semver"

	"github.com/plumb-cni/plumb/v2/cmd/cni-conformance/internal/lab"
)

// A Case is one requirement and its check.
type Case struct {
	ID          string `json:"id"` // never changes its meaning
	Profile     string `json:"profile"`
	Section     string `json:"section"` // of the specification, version 1.1.0
	Level       string `json:"level"`   // MUST, SHOULD, or ROBUST for what the specification does not require
	Requirement string `json:"requirement"`

	applies []condition
	check   func(*bench) error
}

// These are the profiles and levels.
const (
	spec   = "spec"
	robust = "robust"

	must   = "MUST"
	should = "SHOULD"
)

// Verdicts of a case.
const (
	Pass          = "pass"
	Fail          = "fail"
	NotApplicable = "not applicable"
	Inconclusive  = "inconclusive"
)

// An Outcome is the verdict on one case, and the evidence.
type Outcome struct {
	Case
	Verdict string      `json:"verdict"`
	Why     string      `json:"why,omitempty"`   // what is wrong, or why the case does not apply
	Calls   []*lab.Call `json:"calls,omitempty"` // unless the verdict is pass
	Seconds float64     `json:"seconds"`
}

// facts describes a network, as far as a case depends on it.
type facts struct {
	creator   int        // the index of the plugin that creates CNI_IFNAME, or -1
	one       bool       // the host supports only one attachment at a time
	supported [][]string // the versions that each plugin lists, without malformed ones
}

// A bench is a host for one case.
type bench struct {
	*lab.Bed
	facts
}

// A condition returns why a case does not apply to a network, or "".
type condition func(*bench) string

// A failure is an error that means that the plugins do not meet the requirement. Other errors mean that a case could not
// find out.
type failure struct{ error }

func failf(format string, args ...any) error { return failure{fmt.Errorf(format, args...)} }

// asFailure turns an error of a call into a failure.
func asFailure(what string, err error) error {
	if err == nil {
		return nil
	}
	return failf("%s: %w", what, err)
}

// All returns the cases of a profile ("spec", "robust" or "all").
func All(profile string) []Case {
	return slices.DeleteFunc(slices.Concat(specCases(), robustCases()), func(c Case) bool { return profile != "all" && profile != c.Profile })
}

// A Suite is a network that can be tested.
type Suite struct {
	network *lab.Network
	facts
	Plugins []About
}

// About describes a plugin of the list.
type About struct {
	Type       string   `json:"type"`
	Executable string   `json:"executable"`
	Version    string   `json:"version,omitempty"` // the first line that it prints without CNI_COMMAND
	Supported  []string `json:"supportedVersions"`
}

// New finds out what the cases need to know about the network. It returns an error if ADD fails, because then no case can
// run. If the network's version is empty, New sets it to the highest version that all plugins support.
func New(n *lab.Network, version string) (*Suite, error) {
	s := &Suite{network: n, facts: facts{creator: -1}}
	b, err := n.NewBed()
	if err != nil {
		return nil, err
	}
	defer b.Close()
	for i := range n.Plugins {
		about := about(b, i)
		s.Plugins = append(s.Plugins, about)
		s.supported = append(s.supported, slices.DeleteFunc(slices.Clone(about.Supported), malformed))
	}
	if n.Version = version; version == "" {
		n.Version = highestCommon(s.supported)
	}
	b.Version = n.Version
	if s.creator, err = probe(b); err != nil {
		return nil, err
	}
	second, err := b.NewContainer()
	if err != nil {
		return nil, err
	}
	s.one = b.Add(second) != nil
	return s, nil
}

// probe attaches a container, and returns the index of the plugin that creates CNI_IFNAME, or -1.
func probe(b *lab.Bed) (creator int, err error) {
	creator = -1
	c, err := b.NewContainer()
	if err != nil {
		return creator, err
	}
	for i := range b.Plugins {
		before := hasLink(c.NS, c.IfName)
		if err := b.AddOne(i, c); err != nil {
			return creator, fmt.Errorf("no case can run before ADD succeeds: %w\n%s", err, b.Calls[len(b.Calls)-1].Shell())
		}
		if !before && hasLink(c.NS, c.IfName) {
			creator = i
		}
	}
	return creator, nil
}

// about calls a plugin without CNI_COMMAND, for which most plugins print their version, and with VERSION.
func about(b *lab.Bed, i int) About {
	a := About{Type: b.Plugins[i].Type, Executable: b.Plugins[i].Executable}
	a.Version, _, _ = strings.Cut(strings.TrimSpace(b.Run(lab.Call{Plugin: a.Executable}).Stderr), "\n")
	a.Supported = versionsOf(b.Run(versionCall(b, i)))
	return a
}

// highestCommon returns the highest version of the protocol that all plugins support and this program knows.
func highestCommon(supported [][]string) string {
	highest := "0.1.0"
	for _, v := range known {
		if !slices.ContainsFunc(supported, func(list []string) bool { return !slices.Contains(list, v) }) {
			highest = v
		}
	}
	return highest
}

// known lists the versions of the protocol with results in the form of lists, the oldest first.
var known = []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// Run runs a case on a new host.
func (s *Suite) Run(c Case) (o Outcome) {
	o = Outcome{Case: c, Verdict: Inconclusive}
	begin := time.Now()
	defer func() { o.Seconds = time.Since(begin).Seconds() }()
	bed, err := s.network.NewBed()
	if err != nil {
		o.Why = err.Error()
		return o
	}
	defer bed.Close()
	b := &bench{Bed: bed, facts: s.facts}
	for _, applies := range c.applies {
		if o.Why = applies(b); o.Why != "" {
			o.Verdict = NotApplicable
			return o
		}
	}
	err = c.check(b)
	o.Calls = b.Calls
	switch reason := notApplicable(""); {
	case err == nil:
		return Outcome{Case: c, Verdict: Pass}
	case errors.As(err, &reason):
		return Outcome{Case: c, Verdict: NotApplicable, Why: string(reason)}
	case errors.As(err, new(failure)):
		o.Verdict = Fail
	}
	o.Why = err.Error()
	return o
}

// notApplicable is the error of a check that finds out only while it runs that the case does not apply.
type notApplicable string

func (n notApplicable) Error() string { return string(n) }

// These are conditions of cases.

func interfacePlugin(b *bench) string {
	if b.creator < 0 {
		return "no plugin of the list creates the interface"
	}
	return ""
}

func twoAttachments(b *bench) string {
	if b.one {
		return "the list allows one attachment at a time on this host"
	}
	return ""
}

func ownInterface(b *bench) string {
	if slices.ContainsFunc(b.Plugins, func(p lab.Plugin) bool { return p.Config["device"] != nil }) {
		return "the kernel deletes the device of this host, which is a veth interface, with the container's namespace"
	}
	return ""
}

func chain(b *bench) string {
	if len(b.Plugins) < 2 {
		return "the list contains one plugin"
	}
	return ""
}

func delegate(b *bench) string {
	if b.delegating() < 0 {
		return "no plugin of the list has an IPAM plugin"
	}
	return ""
}

func since(version string) condition {
	return func(b *bench) string {
		if semver.Compare("v"+b.Version, "v"+version) < 0 {
			return "version " + b.Version + " of the specification does not contain it"
		}
		return ""
	}
}

// under adds a condition to all cases.
func under(c condition, cases []Case) []Case {
	for i := range cases {
		cases[i].applies = append([]condition{c}, cases[i].applies...)
	}
	return cases
}

// delegating returns the index of the first plugin with an IPAM plugin, or -1.
func (b *bench) delegating() int {
	return slices.IndexFunc(b.Plugins, func(p lab.Plugin) bool { return p.Delegate != "" })
}

// spyDir contains a script in place of an IPAM plugin, and what the script recorded.
const spyDir = lab.Scratch + "/spy"

// spy puts a script in the place of the IPAM plugin of plugin i. The script records its calls, then runs the lines of shell
// text, and then the IPAM plugin.
func (b *bench) spy(i int, lines string) error {
	name := b.Plugins[i].Delegate
	target, err := invoke.FindInPath(name, b.Path)
	if err != nil {
		return err
	}
	script := fmt.Sprintf("#!/bin/sh\ncd %[1]s/calls || exit 1\nprintf '%%s\\n' \"$CNI_COMMAND\" >>order\nenv >\"env.$CNI_COMMAND\"\ncat >\"stdin.$CNI_COMMAND\"\n%[2]s\nexec %[3]s <\"stdin.$CNI_COMMAND\"\n",
		spyDir, lines, target)
	b.Path = slices.Concat([]string{spyDir + "/empty", spyDir + "/bin"}, b.Path)
	return errors.Join(os.MkdirAll(spyDir+"/empty", 0o755), os.MkdirAll(spyDir+"/bin", 0o755), os.MkdirAll(spyDir+"/calls", 0o777),
		os.WriteFile(filepath.Join(spyDir, "bin", name), []byte(script), 0o755))
}

// spied returns what the script recorded: "order" for the commands, or "env." or "stdin." and a command.
func spied(name string) string {
	text, _ := os.ReadFile(filepath.Join(spyDir, "calls", name))
	return string(text)
}

// spyFails is a line for spy that fails a command with this code.
func spyFails(command string, code int) string {
	return fmt.Sprintf(`[ "$CNI_COMMAND" != %s ] || { echo '{"cniVersion": "1.0.0", "code": %d, "msg": "this IPAM plugin always fails"}'; exit 1; }`, command, code)
}
