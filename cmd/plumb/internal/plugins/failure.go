package plugins

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// Failure returns the error result of a plugin, or an empty one if err contains none.
func Failure(err error) *types.Error {
	failure := new(types.Error)
	_ = errors.As(err, &failure)
	return failure
}

// A Damage is why a plugin of an attachment is not known to be healthy: the error of CHECK or, after a REPAIR, the error of
// REPAIR. With ErrNotChecked, the plugin gave no verdict.
type Damage struct {
	Plugin string
	Err    error

	ifName string
	list   *libcni.NetworkConfigList // contains only the plugin; nil if the plugin gave no verdict
	later  []*libcni.PluginConfig    // plumb's plugins whose CHECK was not called, because the container's interface is missing
	silent Solution                  // how to make the plugin answer; empty if it gave a verdict
}

// After returns the damage that the error of a REPAIR describes.
func (d Damage) After(err error) Damage {
	d.Err = err
	return d
}

// Repair says what plumb repair can do about the damage.
func (d Damage) Repair() types.Repair {
	failure := Failure(d.Err)
	contains := func(r types.Repair) bool {
		return slices.ContainsFunc(failure.Problems, func(p types.Problem) bool { return p.Repair == r })
	}
	switch {
	case failure.Code != types.CodeChanged, d.lacksInterface(), d.HasKind(types.ProblemConflict):
		return types.RepairNever
	case contains(types.RepairContainerSide):
		return types.RepairContainerSide
	case len(failure.Problems) == 0, contains(""):
		return ""
	}
	return types.RepairNever
}

// lacksInterface reports whether the container's interface does not exist, which only an ADD creates.
func (d Damage) lacksInterface() bool {
	return slices.ContainsFunc(Failure(d.Err).Problems, func(p types.Problem) bool {
		return p.Kind == types.ProblemMissing && p.Object == types.MissingLink(d.ifName).Object && p.Want == ""
	})
}

// HasKind reports whether the error lists a problem of this kind.
func (d Damage) HasKind(kind string) bool {
	return slices.ContainsFunc(Failure(d.Err).Problems, func(p types.Problem) bool { return p.Kind == kind })
}

// isTaken reports whether another container has what this one needs. An object of an administrator that is in the way, such as
// a route that refuses packets, has a command that deletes it.
func (d Damage) isTaken() bool {
	return slices.ContainsFunc(Failure(d.Err).Problems, func(p types.Problem) bool { return p.Kind == types.ProblemConflict && p.Fix == "" })
}

// Solution returns how to fix the damage without plumb repair.
func (d Damage) Solution() Solution {
	commands := d.commands()
	switch {
	case d.silent != (Solution{}):
		return d.silent
	case d.lacksInterface():
		return Solution{Advice: "Only ADD creates the interface of a container. Delete the pod or the container, and let the runtime create it again."}
	case d.isTaken():
		return Solution{Advice: "Delete one of the two pods or containers. plumb repair takes nothing from another container."}
	case commands != nil:
		return Solution{Fix: strings.Join(commands, " && ")}
	case Failure(d.Err).Code == types.CodeTryAgain:
		return Solution{Advice: "Try again later."}
	case errors.Is(d.Err, ErrNoAnswer):
		return Solution{Advice: "Try again with a longer --timeout."}
	}
	return Solution{Advice: "No command restores this. Find out which program changed it, and then delete the pod or the container."}
}

// commands returns the plugin's commands that fix the damage. It returns nil if the plugin reports a problem without a
// command, such as a conflict or a missing interface of the container.
func (d Damage) commands() (all []string) {
	for _, p := range Failure(d.Err).Problems {
		if p.Fix == "" {
			return nil
		}
		if !slices.Contains(all, p.Fix) {
			all = append(all, p.Fix)
		}
	}
	return all
}

// RepairCommand returns the command that repairs the damage in a network, with further flags. It returns "" if plumb repair
// does not help.
func (d Damage) RepairCommand(network, flags string) string {
	words := []string{"plumb", "repair", "--network", network}
	switch d.Repair() {
	case types.RepairNever:
		return ""
	case types.RepairContainerSide:
		words = slices.Insert(words, 2, "--container-side")
	}
	return types.Command(words...) + flags
}

// Texts returns a text for each problem, or the text of the error if it lists none.
func (d Damage) Texts() (all []string) {
	for _, p := range Failure(d.Err).Problems {
		all = append(all, p.Msg)
	}
	if all == nil {
		all = []string{d.Err.Error()}
	}
	return all
}

// ErrorText returns the code and the text of a plugin's error.
func ErrorText(err error) string {
	if failure := Failure(err); failure.Code != 0 {
		return fmt.Sprintf("code %d: %s", failure.Code, failure.Error())
	}
	return err.Error()
}
