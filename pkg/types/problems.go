package types

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ProblemsInto returns a function that appends an error, formatted as by fmt.Errorf, to errs if wrong is true. With it,
// CHECK and the validation of a configuration report all problems at once.
func ProblemsInto(errs *[]error) func(wrong bool, format string, args ...any) {
	return func(wrong bool, format string, args ...any) {
		if wrong {
			*errs = append(*errs, fmt.Errorf(format, args...))
		}
	}
}

// A Problem is an object on the host that differs from what ADD created (CHECK), or an invalid key of the
// configuration. It is an error. The error result lists all problems in its key "problems", for programs.
type Problem struct {
	Object string `json:"object,omitempty"` // "interface eth0", "sysctl net/ipv4/ip_forward", or the path of a key
	Kind   string `json:"kind"`
	Table  string `json:"table,omitempty"` // the nftables table of the object, for example "inet plumb"
	Want   string `json:"want,omitempty"`
	Got    string `json:"got,omitempty"`
	Effect string `json:"effect,omitempty"` // what the host suffers from it, if the containers do not
	Msg    string `json:"msg,omitempty"`    // a text for people, set by Errorf
	// Fix is the command for sh that fixes the problem. It is empty if no single command does.
	Fix string `json:"fix,omitempty"`
	// Advice is a sentence that says what to do if no single command fixes the problem.
	Advice string `json:"advice,omitempty"`
	// Repair says what plumb repair can do about the problem.
	Repair Repair `json:"repair,omitempty"`

	err error
}

// A Repair says what plumb repair can do about a problem that CHECK reports. The zero value means that it restores the object
// on the host.
type Repair string

// The other values of Repair. A later one is stronger (see WithRepair).
const (
	RepairContainerSide Repair = "container-side" // only plumb repair --container-side restores the object
	RepairNever         Repair = "never"          // plumb repair does not restore the object
)

// WithRepair returns an error with the text of err, whose problems have this Repair or a stronger one. It returns nil if err is
// nil.
func WithRepair(repair Repair, err error) error {
	if err == nil {
		return nil
	}
	return &repairError{err, repair}
}

type repairError struct {
	error
	repair Repair
}

func (e *repairError) Unwrap() error { return e.error }

// problems returns the problems of the error. An error without a Problem is a problem of the kind ProblemOther.
func (e *repairError) problems() []Problem {
	all := slices.Clone(problemsIn(e.error))
	for i := range all {
		if e.repair == RepairNever || all[i].Repair == "" {
			all[i].Repair = e.repair
		}
	}
	return all
}

// The values of Problem.Kind.
const (
	ProblemDiffers    = "differs"     // the object has the value Got instead of Want
	ProblemMissing    = "missing"     // the object lacks Want or, if Want is empty, does not exist
	ProblemUnknownKey = "unknown-key" // no plugin reads the key; Want is the key that was probably meant, Got the value
	ProblemWrongType  = "wrong-type"  // the key has a value of another JSON type
	ProblemConflict   = "conflict"    // the object belongs to another attachment or program
	ProblemDeleted    = "deleted"     // a DEL of the attachment has begun (REPAIR)
	ProblemOther      = "other"       // described by Msg
)

// MissingLink returns the problem that a network interface does not exist that ADD created or that the host must have.
func MissingLink(name string) Problem {
	return Problem{Object: "interface " + name, Kind: ProblemMissing, Repair: RepairNever}
}

// Conflict returns the problem that an object belongs to another attachment or program, from which REPAIR does not take it.
func Conflict(object, owner string) Problem {
	return Problem{Object: object, Kind: ProblemConflict, Got: owner, Repair: RepairNever}
}

// Errorf returns the problem as an error. It formats the text as fmt.Errorf does, including %w.
func (p Problem) Errorf(format string, args ...any) *Problem {
	p.err = fmt.Errorf(format, args...)
	p.Msg = p.err.Error()
	return &p
}

func (p *Problem) Error() string { return p.err.Error() }

func (p *Problem) Unwrap() error { return p.err }

// ProblemsIn returns the problems in the tree of err, and a problem of the kind ProblemOther for each other error that
// is joined with a Problem. It returns nil if the tree contains no Problem and no error of WithRepair.
func ProblemsIn(err error) []Problem {
	all := problemsIn(err)
	if !slices.ContainsFunc(all, func(p Problem) bool { return p.Kind != ProblemOther || p.Repair != "" }) {
		return nil
	}
	return all
}

func problemsIn(err error) (all []Problem) {
	switch e := err.(type) {
	case nil:
		return nil
	case *Problem:
		return []Problem{*e}
	case *repairError:
		return e.problems()
	case *Error:
		if e.Problems != nil {
			return e.Problems
		}
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			all = append(all, problemsIn(one)...)
		}
		return all
	}
	if all = ProblemsIn(errors.Unwrap(err)); all == nil {
		all = []Problem{{Kind: ProblemOther, Msg: err.Error()}}
	}
	return all
}

// Command returns the words as a command for sh, quoted where sh needs it.
func Command(words ...string) string {
	var quoted []string
	for _, word := range words {
		plain := func(r rune) bool {
			return strings.ContainsRune("/._-+:,@%=", r) || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		}
		if word == "" || strings.ContainsFunc(word, func(r rune) bool { return !plain(r) }) {
			word = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
		quoted = append(quoted, word)
	}
	return strings.Join(quoted, " ")
}
