package plugins

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/plumb-cni/plumb/pkg/types"
)

// Failure returns the error result of a plugin, or an empty one if err contains none.
func Failure(err error) *types.Error {
	failure := new(types.Error)
	_ = errors.As(err, &failure)
	return failure
}

// Edit is the prefix of an advice that is not a command for sh.
const Edit = "edit: "

// Fix returns how to fix an error of CHECK. It returns the commands if the plugin reports one for each problem, and
// an advice otherwise.
func Fix(err error) string {
	var fixes []string
	for _, p := range Failure(err).Problems {
		if p.Fix == "" {
			fixes = nil
			break
		}
		if !slices.Contains(fixes, p.Fix) {
			fixes = append(fixes, p.Fix)
		}
	}
	if fixes == nil {
		return Edit + "follow the text or, if it gives no advice, find out which program changed this, " +
			"then let the runtime replace the container"
	}
	return strings.Join(fixes, " && ")
}

// ErrorText returns the code and the text of a plugin's error.
func ErrorText(err error) string {
	if failure := Failure(err); failure.Code != 0 {
		return fmt.Sprintf("code %d: %s", failure.Code, failure.Error())
	}
	return err.Error()
}
