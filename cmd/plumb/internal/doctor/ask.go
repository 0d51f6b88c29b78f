package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/plumb-cni/plumb/cmd/plumb/internal/inventory"
	"github.com/plumb-cni/plumb/cmd/plumb/internal/plugins"
	"github.com/plumb-cni/plumb/pkg/types"
)

// An asker calls STATUS and CHECK of the plugins.
type asker struct {
	ctx    context.Context
	caller *plugins.Caller
	report *Report
}

func (k asker) checks(files []*file) []check {
	return []check{{"status", func() []Finding { return k.findStatus(files) }}}
}

// findStatus calls STATUS of each plugin that can run.
func (k asker) findStatus(files []*file) (found []Finding) {
	if os.Geteuid() != 0 {
		k.report.failed("STATUS of the plugins", errors.New("run plumb as root"))
		return nil
	}
	runs := func(name string) bool { return name == "" || k.caller.Find(k.ctx, name).Serves != nil }
	for _, f := range files {
		if f.list == nil || f.explained {
			continue
		}
		for _, p := range f.plugins {
			if runs(p.Type) {
				found = append(found, k.status(f, p, runs(p.IPAMType))...)
			}
		}
	}
	return found
}

// status calls STATUS of one plugin. For plumb's plugins, the first call has "strict": true, so that the error names unknown
// keys and ignored values. Because this error may hide others, a second call has the configuration as it is. status omits the
// second call unless complete is set, which means that the IPAM plugin can run.
func (k asker) status(f *file, p plugin, complete bool) (found []Finding) {
	var strictErr error
	if k.caller.Find(k.ctx, p.Type).Version != "" {
		strict, err := libcni.InjectConf(p.PluginConfig, map[string]any{"strict": true})
		var warnings []string
		if err == nil {
			warnings, err = k.caller.Status(k.ctx, f.list, strict)
		}
		if strictErr = err; err == nil {
			return f.statusFindings(p, warnings, nil)
		}
	}
	failure := new(types.Error)
	_ = errors.As(strictErr, &failure) // other errors name no keys
	keys := failure.Problems
	for _, problem := range keys {
		found = append(found, f.keyFinding(p, problem)...)
	}
	wrongType := slices.ContainsFunc(keys, func(p types.Problem) bool { return p.Kind == types.ProblemWrongType })
	f.explained = f.explained || wrongType
	if complete && !wrongType {
		warnings, err := k.caller.Status(k.ctx, f.list, p.PluginConfig)
		// With CodeLimited, ADD succeeds with limitations, so CHECK can say more.
		f.explained = f.explained || err != nil && (!errors.As(err, &failure) || failure.Code != types.CodeLimited)
		if err == nil && len(keys) == 0 {
			err = strictErr // which names a value that the plugin ignores
		}
		found = append(found, f.statusFindings(p, warnings, err)...)
	}
	return found
}

// statusFindings returns the findings for the warnings and the error of STATUS.
func (f *file) statusFindings(p plugin, warnings []string, err error) (found []Finding) {
	add := func(text, fix string) {
		found = append(found, Finding{Where: f.path, What: fmt.Sprintf("STATUS of %s in network %q: %s", p.Type, f.name(), text), Fix: edit + fix})
	}
	for _, warning := range warnings {
		add(warning, "follow the text")
	}
	if err != nil {
		add(errorText(err), "fix the cause that the text names; see the table \"Errors\" on the page of "+p.Type)
	}
	return found
}

// keyFinding returns the finding for a problem with a key. It ignores unknown keys with a dot, which belong to other programs.
func (f *file) keyFinding(p plugin, problem types.Problem) []Finding {
	path := strings.TrimPrefix(p.at.PathOf()+"."+problem.Object, ".")
	v := f.top.Find(path)
	found := Finding{Where: f.where(v), What: path + ": unknown key", Fix: fmt.Sprintf("%sdelete the key from %s", edit, f.path)}
	switch {
	case problem.Kind == types.ProblemWrongType:
		found.What = fmt.Sprintf("%s: want %s, got %s", path, problem.Want, problem.Got)
		found.Fix = fmt.Sprintf("%scorrect the value in %s", edit, f.path)
	case problem.Kind != types.ProblemUnknownKey || v != nil && strings.Contains(v.Key, "."):
		return nil
	case problem.Want != "":
		found.What += "; " + problem.Want + " was probably meant"
		found.Fix = fmt.Sprintf("%swrite %s in its place in %s", edit, problem.Want, f.path)
	}
	return []Finding{found}
}

// findDamaged calls CHECK of the plugins for each attachment, with the configuration and the result of its ADD. It skips
// networks whose files have findings, because these may explain an error of CHECK.
func (k asker) findDamaged(attachments []*inventory.Attachment, files []*file) (found []Finding) {
	skip := map[string]bool{}
	for _, f := range files {
		skip[f.name()] = skip[f.name()] || f.list == nil || f.explained || f.incomplete
	}
	containers := map[string][]string{} // by the text of the damage
	for _, a := range attachments {
		if skip[a.Network] {
			continue
		}
		for _, d := range k.caller.Check(k.ctx, a) {
			skip[a.Network] = skip[a.Network] || errors.Is(d.Err, plugins.ErrNoAnswer)
			what := fmt.Sprintf("network %s: CHECK of %s: %s", a.Network, d.Plugin, errorText(d.Err))
			name := fmt.Sprintf("container %s, interface %s", a.ContainerID, a.IfName)
			fix := fixOf(d.Err)
			i := slices.IndexFunc(found, func(f Finding) bool { return f.What == what })
			switch containers[what] = append(containers[what], name); {
			case i < 0:
				found = append(found, Finding{Where: onHost, What: what, Fix: fix})
			case !strings.Contains(found[i].Fix, fix):
				found[i].Fix += " && " + fix
			}
		}
	}
	for i := range found {
		found[i].What = strings.Join(containers[found[i].What], "; ") + ", " + found[i].What
	}
	return found
}

// fixOf returns how to fix an error of CHECK: the commands, if the plugin reports one for each problem, or else an advice.
func fixOf(err error) string {
	var fixes []string
	failure := new(types.Error)
	_ = errors.As(err, &failure) // an error of another type contains no problems
	for _, p := range failure.Problems {
		if p.Fix == "" {
			fixes = nil
			break
		}
		if !slices.Contains(fixes, p.Fix) {
			fixes = append(fixes, p.Fix)
		}
	}
	if fixes == nil {
		return edit + "follow the text or, if it gives no advice, find out which program changed this, " +
			"then let the runtime replace the container"
	}
	return strings.Join(fixes, " && ")
}

// errorText returns the code and the text of a plugin's error.
func errorText(err error) string {
	if failure := new(types.Error); errors.As(err, &failure) {
		return fmt.Sprintf("code %d: %s", failure.Code, failure.Error())
	}
	return err.Error()
}
