package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/ipam"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/plugins"
	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/schema"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/cluster-local/datastore"
)

// An asker examines the executables of plugins, and calls STATUS and CHECK of the plugins.
type asker struct {
	ctx    context.Context
	caller *plugins.Caller
	report *Report
	Options
}

// findStatus calls STATUS of each plugin that can run.
func (k asker) findStatus(files []*file, add addFunc) {
	if os.Geteuid() != 0 && !k.report.withoutRoot {
		k.report.failed("STATUS of the plugins", errors.New("run plumb as root"))
		return
	}
	runs := func(name string) bool { return name == "" || k.caller.Find(k.ctx, name).Serves != nil }
	for _, f := range files {
		if f.list == nil || f.explained {
			continue
		}
		for _, p := range f.plugins {
			if runs(p.Type) {
				k.status(p, runs(p.IPAMType) && !k.lacksDatastore(p), add)
			}
		}
	}
}

// status calls STATUS of one plugin. For plumb's plugins, the first call has "strict": true, so that the error names
// unknown keys and ignored values. Because this error may hide others, a second call uses the unchanged configuration.
// status omits the second call unless complete is set, which means that the IPAM plugin can run.
func (k asker) status(p plugin, complete bool, add addFunc) {
	var strictErr error
	if k.caller.Find(k.ctx, p.Type).Version != "" {
		strict, err := libcni.InjectConf(p.PluginConfig, map[string]any{"strict": true})
		var warnings []types.Problem
		if err == nil {
			warnings, err = k.caller.Status(k.ctx, p.file.list, strict)
		}
		if strictErr = err; err == nil {
			k.addStatus(p, warnings, nil, add)
			return
		}
	}
	keys := plugins.Failure(strictErr).Problems
	for _, problem := range keys {
		p.addKey(problem, add)
	}
	wrongType := slices.ContainsFunc(keys, func(p types.Problem) bool { return p.Kind == types.ProblemWrongType })
	p.file.explained = p.file.explained || wrongType
	if complete && !wrongType {
		warnings, err := k.caller.Status(k.ctx, p.file.list, p.PluginConfig)
		// With CodeLimited, ADD succeeds with limitations, so that CHECK can find more.
		p.file.explained = p.file.explained || err != nil && plugins.Failure(err).Code != types.CodeLimited
		if err == nil && len(keys) == 0 {
			err = strictErr // strictErr names a value that the plugin ignores
		}
		if err != nil && k.report.withoutRoot && !slices.Contains(ofConfiguration, plugins.Failure(err).Code) {
			k.report.failed("STATUS of "+p.Type, fs.ErrPermission)
			err = nil
		}
		k.addStatus(p, warnings, err, add)
	}
}

// ofConfiguration lists the codes of errors that do not depend on the user who calls STATUS.
var ofConfiguration = []uint{types.CodeUnsupported, types.CodeDecode, types.CodeConfig}

// addStatus adds the findings for the warnings and the error of STATUS.
func (k asker) addStatus(p plugin, warnings []types.Problem, err error, add addFunc) {
	const format = "STATUS of %s in network %q: %s"
	for _, w := range warnings {
		fix := cmp.Or(solutionOf(w), p.seePage())
		finding := add(p.file.path, fix, format, p.Type, p.file.name(), w.Msg)
		finding.table, finding.effect = w.Table, w.Effect
	}
	if err != nil {
		where, fix := k.solve(p, err)
		add(where, fix, format, p.Type, p.file.name(), plugins.ErrorText(err))
	}
}

func solutionOf(p types.Problem) plugins.Solution {
	return plugins.Solution{Fix: p.Fix, Advice: sentence(p.Advice)}
}

// sentence returns the text with a capital letter and a full stop.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

func (p plugin) seePage() plugins.Solution {
	return say("The table \"Errors\" on the page of %s says what to do.", p.Type)
}

// solve returns the place of what STATUS reports, and how to fix it. The error begins with a key if the configuration is the
// reason.
func (k asker) solve(p plugin, err error) (where string, s plugins.Solution) {
	failure := plugins.Failure(err)
	if failure.Code == 0 {
		return p.file.path, k.caller.Find(k.ctx, p.Type).Solution()
	}
	key := regexp.MustCompile(`^(?:IPAM plugin "[^"]*": )?([\w.\[\]]*)`).FindStringSubmatch(failure.Msg)[1]
	if v := p.file.top.Find(p.path(key)); v != nil && key != "" {
		return p.file.where(v), p.file.edit("correct %s", v.Path)
	}
	if slices.Contains(ofConfiguration, failure.Code) {
		return p.file.path, p.file.edit("correct the configuration of %s", p.Type)
	}
	for _, problem := range failure.Problems {
		if problem.Fix != "" || problem.Advice != "" {
			return p.file.path, solutionOf(problem)
		}
	}
	return p.file.path, p.seePage()
}

// path returns the path in the file of a key of the plugin.
func (p plugin) path(key string) string {
	if p.at == nil {
		return key
	}
	return strings.TrimPrefix(p.at.Path+"."+key, ".")
}

// addKey adds the finding for a problem with a key. It ignores unknown keys with a dot, which belong to other programs.
func (p plugin) addKey(problem types.Problem, add addFunc) {
	path := p.path(problem.Object)
	v := p.file.top.Find(path)
	where := p.file.where(v)
	switch {
	case problem.Kind == types.ProblemWrongType:
		add(where, p.file.edit("correct %s", path), "%s: want %s, got %s", path, problem.Want, problem.Got)
	case problem.Kind != types.ProblemUnknownKey || v != nil && strings.Contains(v.Key, "."):
	case problem.Want != "":
		add(where, p.file.edit("write %s in place of %s", problem.Want, path),
			"%s: unknown key; %s was probably meant", path, problem.Want)
	case schema.IsIPAMKey(p.IPAMType, problem.Object):
		add(where, p.file.edit("move %s into ipam, or delete it if containers do not need it", path),
			"%s: unknown key of %s; this key belongs into ipam, where %s reads it", path, p.Type, p.IPAMType)
	default:
		add(where, p.file.edit("delete %s", path), "%s: unknown key", path)
	}
}

// findDatastores finds networks with cluster-local whose datastore does not answer or is frozen. STATUS does not call it, because a
// node with free addresses of its own needs no datastore.
func (k asker) findDatastores(s *state, files []*file, add addFunc) {
	for _, p := range pluginsOf(usable(files)) {
		if p.IPAMType != "cluster-local" {
			continue
		}
		n, err := ipam.Read(s.inventory, k.caller, p.file.path)
		if err != nil {
			k.report.failed("datastore of network "+p.file.name(), err)
			continue
		}
		command := func(verb string) string {
			return types.Command("plumb", "ipam", verb, "--network", p.file.name()) + s.Flags
		}
		n.Warn = func(string) {}
		answer, err := n.Call(k.ctx, datastore.Status, func(*datastore.Request) {})
		switch where := p.where("ipam"); {
		case err != nil:
			add(where, say("Correct what the error names. This command calls the datastore again: %s", command("list")),
				"network %q gets no addresses from its datastore, so that ADD fails when this node has no free one: %v", p.file.name(), err)
		case answer.Frozen != "":
			add(where, say("Finish the steps of the move or of the restore, and then run this: %s", command("thaw")),
				"network %q gets no addresses from its datastore, which is frozen since %s", p.file.name(), answer.Frozen)
		}
	}
}

// findDamaged calls CHECK of the plugins for each attachment, with the configuration and the result of its ADD. It skips
// networks whose files have findings, because these may explain an error of CHECK. It names the containers with the same
// or similar damage in one finding. If the interface of a container is gone, it reports only the first plugin that misses it.
// One finding names all containers that a missing table affects.
func (k asker) findDamaged(attachments []*node.Attachment, files []*file, losses []*loss, add addFunc) {
	skip := map[string]bool{}
	for _, f := range files {
		skip[f.name()] = skip[f.name()] || f.list == nil || f.explained || f.incomplete
	}
	var all []*damage
	for _, a := range attachments {
		if skip[a.Network] {
			continue
		}
		damages, err := k.caller.Check(k.ctx, a) // an attachment without CHECK is not a finding
		if errors.Is(err, plugins.ErrForeign) && !node.IsLoopback(a.Network, a.IfName) {
			k.report.Foreign++
			k.report.Skipped++
		}
		for _, d := range damages {
			skip[a.Network] = skip[a.Network] || errors.Is(d.Err, plugins.ErrNoAnswer)
			text := fmt.Sprintf("network %s: CHECK of %s: %s", a.Network, d.Plugin, plugins.ErrorText(d.Err))
			explaining := lossesOf(d, losses)
			for _, l := range explaining {
				l.add(a, d.Plugin, text)
			}
			if explaining != nil {
				continue
			}
			found := &damage{
				repair: d.RepairCommand(a.Network, k.Flags), kinds: kindsOf(d), solutions: []plugins.Solution{d.Solution()},
				containers: []string{fmt.Sprintf("container %s, interface %s", a.ContainerID, a.IfName)}, texts: []string{text},
			}
			if i := slices.IndexFunc(all, found.isLike); i >= 0 {
				all[i].merge(found)
			} else {
				all = append(all, found)
			}
		}
	}
	for _, l := range losses {
		l.addTo(k.report, k.Flags)
	}
	for _, d := range all {
		d.addTo(add)
	}
}

// A damage is the same error of CHECK, or similar ones, for one or more containers.
type damage struct {
	kinds      string // see kindsOf
	containers []string
	texts      []string           // the error for each container
	solutions  []plugins.Solution // without REPAIR
	repair     string             // the command that calls REPAIR, or "" if it does not help
}

// kindsOf returns the plugin and the kinds of its problems.
func kindsOf(d plugins.Damage) string {
	all := []string{d.Plugin}
	for _, p := range plugins.Failure(d.Err).Problems {
		if !slices.Contains(all[1:], p.Kind) {
			all = append(all, p.Kind)
		}
	}
	return strings.Join(all, " ")
}

// isLike reports whether the error is the same, or similar: of the same plugin, with problems of the same kinds, such as missing
// objects with other addresses, which one plumb repair or, without it, one other command fixes.
func (d *damage) isLike(o *damage) bool {
	sameFix := d.repair != "" || d.solutions[0].Fix != "" && d.solutions[0] == o.solutions[0]
	return d.texts[0] == o.texts[0] || d.repair == o.repair && d.kinds == o.kinds && sameFix
}

func (d *damage) merge(o *damage) {
	d.containers, d.texts = append(d.containers, o.containers...), append(d.texts, o.texts...)
	if !slices.Contains(d.solutions, o.solutions[0]) {
		d.solutions = append(d.solutions, o.solutions[0])
	}
}

// addTo adds the finding for the damage. If the errors differ, it shows the first one, and all in Details.
func (d *damage) addTo(add addFunc) {
	if len(slices.Compact(slices.Clone(d.texts))) == 1 {
		add(onHost, d.solution(), "%s, %s", strings.Join(d.containers, "; "), d.texts[0])
		return
	}
	f := add(onHost, d.solution(), "%s, %s; similar errors for %d more (--verbose)", d.containers[0], d.texts[0], len(d.containers)-1)
	for i, container := range d.containers {
		f.Details = append(f.Details, container+", "+d.texts[i])
	}
}

// solution returns how to fix the damage. This is plumb repair if it helps, and the commands of CHECK in case it fails.
func (d *damage) solution() plugins.Solution {
	var commands []string
	for _, s := range d.solutions {
		if s.Fix != "" {
			commands = append(commands, s.Fix)
		} else if d.repair == "" {
			return s
		}
	}
	joined := strings.Join(commands, " && ")
	switch {
	case d.repair == "":
		return plugins.Solution{Fix: joined}
	case joined == "":
		return plugins.Solution{Fix: d.repair, Advice: "If this fails, delete the pod or the container, and let the runtime create it again."}
	}
	return plugins.Solution{Fix: d.repair, Advice: "If this fails, run this: " + joined}
}
