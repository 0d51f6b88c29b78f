// Package doctor finds what is wrong with the container networks of a host. It calls STATUS and CHECK of the plugins, which
// examine their configurations and attachments, and finds what no single plugin can see. It changes nothing.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/life"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/plugins"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/runtimes"
	"github.com/plumb-cni/plumb/v2/pkg/ns"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A Finding is one problem.
type Finding struct {
	Check string `json:"check"` // the name of the check
	Where string `json:"where"` // FILE:LINE, FILE, "host" or "kernel"
	What  string `json:"what"`
	plugins.Solution
	// Details contains the problems of a finding that sums up several problems with one cause.
	Details []string `json:"details,omitempty"`

	table, effect string // see types.Problem
}

// NoGC is the check for networks without GC.
const NoGC = "no-gc"

// These are the values of Finding.Where that are not files.
const (
	onHost   = "host"
	inKernel = "kernel"
)

// Options contains the inputs of an examination.
type Options struct {
	node.Places
	Runtimes []runtimes.Runtime // the runtimes of the host
	Problems []error            // why not all runtimes are known
	// Guessed means that nothing names the directories of a runtime that does not answer. Examine then examines no
	// configurations, because the runtime may use others.
	Guessed bool
	Files   []string // configuration files; empty selects the files of ConfDir
	// Timeout limits the time of one call of a plugin.
	Timeout time.Duration
	// Live returns the list of live containers. Examine calls it once, after it has read the inventory. It is nil if
	// there is no list.
	Live  func(*node.Inventory) (life.List, error)
	Flags string // the flags that select the same Places for plumb gc and plumb repair, each after a space
	// Spare lists the directories from which a missing executable can be copied.
	Spare []string
}

// A Report is the result of an examination.
type Report struct {
	Runtimes   []runtimes.Runtime `json:"runtimes"`   // the runtimes of the host
	ConfDirs   []string           `json:"confDirs"`   // the directories of the configurations that were examined
	PluginDirs []string           `json:"pluginDirs"` // the directories in which the executables were looked for
	Findings   []Finding          `json:"findings"`   // see compareFindings
	// Notes contains what works, but not as an operator may expect. A note does not affect the exit status.
	Notes       []Finding `json:"notes"`
	Files       []string  `json:"files"`       // the configurations that were read
	Executables []string  `json:"executables"` // the executables of the plugins that the files name
	Attachments int       `json:"attachments"` // the number of attachments on the host
	// Skipped is the number of possible leftovers whose ADD may still be running, because they are younger than a
	// minute or of unknown age. It includes WithoutResult and Foreign.
	Skipped       int      `json:"skipped"`
	Foreign       int      `json:"foreign"`       // the number of attachments of networks without a plugin of plumb
	WithoutResult int      `json:"withoutResult"` // the number of older attachments without the result in libcni's cache that CHECK needs
	Checks        []string `json:"checks"`        // the names of the checks that ran
	// Errors says what could not be examined, and why.
	Errors []string `json:"errors"`
	// RootOnly says what another user than root cannot examine if only files are examined.
	RootOnly []string `json:"rootOnly"`

	withoutRoot bool // whether only files are examined, by another user than root
}

// A check finds one kind of problem.
type check struct {
	name string
	find func([]*file, addFunc)
}

// An addFunc adds a Finding, and returns it. It formats the text as fmt.Sprintf does. The pointer is valid until the next call.
type addFunc func(where string, s plugins.Solution, format string, args ...any) *Finding

// run returns the solution to run a command for sh.
func run(words ...string) plugins.Solution { return plugins.Solution{Fix: types.Command(words...)} }

// say returns a solution that consists of a sentence, which it formats as fmt.Sprintf does.
func say(format string, args ...any) plugins.Solution {
	return plugins.Solution{Advice: fmt.Sprintf(format, args...)}
}

// edit returns the solution to edit the file. It formats the text as fmt.Sprintf does.
func (f *file) edit(format string, args ...any) plugins.Solution {
	return plugins.Solution{Edit: f.path + ": " + fmt.Sprintf(format, args...)}
}

// withAdvice returns the solution with a sentence after the command or the edit.
func withAdvice(s plugins.Solution, format string, args ...any) plugins.Solution {
	s.Advice = fmt.Sprintf(format, args...)
	return s
}

// replaceContainers is the sentence after an edit that affects only new containers.
const replaceContainers = "Then replace the running containers."

// addTo returns a function that adds the findings of a check to the list.
func addTo(list *[]Finding, check string) addFunc {
	return func(where string, s plugins.Solution, format string, args ...any) *Finding {
		*list = append(*list, Finding{Check: check, Where: where, What: fmt.Sprintf(format, args...), Solution: s})
		return &(*list)[len(*list)-1]
	}
}

// Examine examines the host of this process. After it has read what the host holds, and before it calls a plugin, it
// replaces ctx by the context that begin returns.
func (o Options) Examine(ctx context.Context, begin func(context.Context) context.Context) (*Report, error) {
	r := &Report{
		Runtimes: append([]runtimes.Runtime{}, o.Runtimes...), ConfDirs: []string{}, PluginDirs: []string{},
		Findings: []Finding{}, Notes: []Finding{}, Files: []string{}, Executables: []string{}, Checks: []string{}, Errors: []string{}, RootOnly: []string{},
		withoutRoot: len(o.Files) > 0 && os.Geteuid() != 0,
	}
	for _, problem := range o.Problems {
		r.failed("runtime", problem)
	}
	if o.Guessed {
		o.ConfDirs = nil
	} else if len(o.Files) == 0 {
		r.ConfDirs, r.PluginDirs = o.ConfDirs, o.PluginPath
	}
	h, err := ns.Self(nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.Close() }()
	host, err := openHost(h, r)
	if err != nil {
		return nil, err
	}
	files, err := o.readFiles()
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		r.Files = append(r.Files, f.path)
	}
	var held *state
	if len(o.Files) == 0 {
		if held, err = o.readState(r); err != nil {
			return nil, err
		}
	}
	ctx = begin(ctx)
	caller := plugins.NewCaller(o.PluginPath, o.Timeout)
	for _, c := range o.checks(asker{ctx, caller, r, o}, host, held) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r.Checks = append(r.Checks, c.name)
		c.find(files, addTo(&r.Findings, c.name))
	}
	if err := ctx.Err(); err != nil { // the context was cancelled during the last check
		return nil, err
	}
	for _, c := range []check{{"hairpin", findHairpins}, {NoGC, o.findWithoutGC}} {
		c.find(files, addTo(&r.Notes, c.name))
	}
	for _, x := range caller.Executables() {
		r.Executables = append(r.Executables, x.Path)
	}
	slices.SortStableFunc(r.Findings, compareFindings)
	return r, nil
}

// checks returns the checks in the order in which they run. held is nil if only files are examined.
func (o Options) checks(a asker, h host, held *state) []check {
	all := []check{{"syntax", findSyntax}}
	if held != nil {
		all = append(all, check{"no-configuration", held.findNone})
	}
	all = append(all, []check{
		{"file-kind", o.findFileKind}, {"duplicate-name", o.findDuplicates}, {"order", o.findOrder}, {"keys", findKeys},
		{"executable", a.findExecutables}, {"versions", a.findVersions}, {"mixed-versions", a.findMixed}, {"status", a.findStatus},
		{"runtime-version", o.findRuntimeVersions}, {"runtime-plugins", a.findRuntimePlugins},
		{"chain", findChains}, {"overlap", findOverlaps}, {"route", h.findRoutes}, {"policy-rule", h.findRefusals}, {"bridge", h.findBridges}, {"gateway", h.findGateways}, {"master", h.findMasters},
		{"link-kind", h.findLinkKinds}, {"sysctl", h.findSysctls}, {"ipv6", findIPv6}, {"unreachable-port", findUnreachablePorts}, {"capability", findCapabilities},
	}...)
	if held == nil {
		return all
	}
	return append(all, []check{
		{"leftover", held.findLeftovers}, {"pool", held.findFullPools}, {"no-network", held.findNoNetworks},
		{"runtime-network", held.findRuntimeNetworks}, {"bridge-netfilter", h.findBridgeNetfilter},
		{"orphan", held.findOrphans}, {"irregular-file", held.findIrregular},
		{"returned-device", func(_ []*file, add addFunc) { held.findReturned(h, add) }},
		{"datastore", func(files []*file, add addFunc) { a.findDatastores(held, files, add) }}, {"reservation", held.findReservations}, {"foreign-target", held.findForeignTargets},
		{"foreign-rule", h.findForeignRules}, {"forward-drop", func(files []*file, add addFunc) { h.findForwardDrop(held, files, add) }},
		{"uplink", h.findUplink}, {"router-advertisements", h.findIgnoredRouters}, {"networkd", h.findNetworkd},
		{"mtu", func(_ []*file, add addFunc) { h.findMTUs(held, add) }}, {"masq-exemption", h.findExemptions},
		{"taken-port", func(_ []*file, add addFunc) { h.findTakenPorts(held, add) }},
		{"hidden-listener", func(_ []*file, add addFunc) { held.findHiddenListeners(h.ns, add) }},
		{"host-end", h.findRenamed}, // it hides what CHECK finds
		{"check", func(files []*file, add addFunc) { a.findDamaged(held.live(), files, h.losses(), add) }},
	}...)
}

// compareFindings compares findings by file, but not by line, to keep the order of the checks. What the kernel lacks comes first,
// because it may explain the other findings. In a file, the first finding is that a runtime uses the file in place of another one,
// because the other findings may be irrelevant then. The findings for full pools follow the leftovers, which may fill them.
func compareFindings(a, b Finding) int {
	rank := func(f Finding) int {
		if f.Check == "runtime-network" {
			return 0
		}
		return 1
	}
	fileOf := func(f Finding) string {
		switch {
		case f.Check == "pool":
			return onHost
		case f.Where == inKernel:
			return ""
		}
		return strings.Split(f.Where, ":")[0]
	}
	return cmp.Or(cmp.Compare(fileOf(a), fileOf(b)), cmp.Compare(rank(a), rank(b)))
}

// failed records the error of a part that could not be examined. It ignores a nil error.
func (r *Report) failed(what string, err error) {
	if err == nil {
		return
	}
	list := &r.Errors
	if r.withoutRoot && errors.Is(err, fs.ErrPermission) {
		list = &r.RootOnly
	}
	if text := fmt.Sprintf("%s: %v", what, err); !slices.Contains(*list, text) {
		*list = append(*list, text)
	}
}
