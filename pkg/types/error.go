package types

import (
	"errors"
	"fmt"
)

// Error codes of the specification (SPEC, section 5, "Error"), and Internal, which
// runtimes know from the reference plugins as the code of the unforeseen. Codes
// from 100 belong to the single plugin, which documents them in its README.
const (
	CodeVersion      = 1   // incompatible CNI version
	CodeUnsupported  = 2   // unsupported field: names key and value
	CodeUnknown      = 3   // container unknown or gone
	CodeEnvironment  = 4   // CNI_* variables missing or malformed
	CodeIO           = 5   // input or output failed
	CodeDecode       = 6   // not JSON, or not of the right shape
	CodeConfig       = 7   // a configuration that cannot work
	CodeNamespace    = 8   // no such network namespace (ADD, CHECK), or the host's own
	CodeTryAgain     = 11  // may succeed later: pool exhausted, lock not got in time
	CodeNotAvailable = 50  // STATUS: the plugin cannot serve ADD
	CodeLimited      = 51  // STATUS: containers would have limited connectivity
	CodeInternal     = 999 // the unforeseen
)

// An Error is an error with the code that the runtime is told. It wraps its cause.
type Error struct {
	Code    uint
	Msg     string // what happened, and what to do
	Details string // more, for people who look closer
	cause   error
}

func (e *Error) Error() string {
	if e.Details == "" {
		return e.Msg
	}
	return e.Msg + "; " + e.Details
}

func (e *Error) Unwrap() error { return e.cause }

// Errorf makes an error with a code. %w wraps, as in fmt.Errorf.
func Errorf(code uint, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Msg: err.Error(), cause: err}
}

// Coded gives err the code, unless it carries one already.
func Coded(code uint, err error) error {
	var coded *Error
	if err == nil || errors.As(err, &coded) {
		return err
	}
	return &Error{Code: code, Msg: err.Error(), cause: err}
}

// NotAvailable is err as the answer of STATUS, whatever code it has for ADD.
func NotAvailable(err error) error {
	if err == nil {
		return nil
	}
	return Errorf(CodeNotAvailable, "%w", err)
}

// AsError is err in the form for the runtime: with its own code where one is
// wrapped in it, else with CodeInternal. The text is that of err as a whole.
func AsError(err error) *Error {
	var coded *Error
	if !errors.As(err, &coded) {
		return &Error{Code: CodeInternal, Msg: err.Error(), cause: err}
	}
	if error(coded) == err {
		return coded
	}
	return &Error{Code: coded.Code, Msg: err.Error(), cause: err}
}
