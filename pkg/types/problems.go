package types

import "fmt"

// ProblemsInto returns a function that appends an error, formatted as by fmt.Errorf, to
// errs if something is wrong. With it the check of a configuration, and CHECK, report all
// problems at once.
func ProblemsInto(errs *[]error) func(wrong bool, format string, args ...any) {
	return func(wrong bool, format string, args ...any) {
		if wrong {
			*errs = append(*errs, fmt.Errorf(format, args...))
		}
	}
}
