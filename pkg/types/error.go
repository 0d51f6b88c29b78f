package types

import (
	"errors"
	"fmt"
)

// Error codes of the specification (SPEC 1.1.0, section 5, "Error"), which reserves 0 to 99 and leaves all others to the
// plugins. The reference plugins use CodeInternal for each error without another code. The README of a plugin documents its
// own codes, from 101.
const (
	CodeVersion      = 1   // incompatible CNI version
	CodeUnsupported  = 2   // a field that the plugin does not support; the error names key and value
	CodeUnknown      = 3   // container does not exist
	CodeEnvironment  = 4   // CNI_* variables missing or malformed
	CodeIO           = 5   // input or output failed
	CodeDecode       = 6   // not JSON, or a value of the wrong JSON type
	CodeConfig       = 7   // a configuration that cannot work
	CodeNamespace    = 8   // CNI_NETNS does not exist (ADD, CHECK), or is the host's own namespace
	CodeTryAgain     = 11  // may succeed later, for example if the pool is exhausted or a lock was not free in time
	CodeNotAvailable = 50  // ADD cannot succeed (STATUS)
	CodeLimited      = 51  // containers would have limited connectivity (STATUS)
	CodeChanged      = 100 // the state differs from what ADD created (CHECK); all plumb plugins use this code
	CodeInternal     = 999 // any other error
)

// ErrNoIPAM means that the configuration of an IPAM plugin lacks the key ipam. Its cause is a text of the reference plugins.
var ErrNoIPAM = errors.New("ipam: IPAM config missing 'ipam' key")

// An Error is an error with a code for the runtime. It wraps its cause.
type Error struct {
	Code    uint   `json:"code"`
	Msg     string `json:"msg"`               // what is wrong, and what to do
	Details string `json:"details,omitempty"` // a value, a stack, or what a program printed
	// Problems lists the problems that a delegate reported. The plugin's own problems are in the cause (see ProblemsIn).
	Problems []Problem `json:"problems,omitempty"`
	cause    error
}

func (e *Error) Error() string {
	if e.Details == "" {
		return e.Msg
	}
	return e.Msg + "; " + e.Details
}

func (e *Error) Unwrap() error { return e.cause }

// Errorf returns an error with a code. It formats as fmt.Errorf does, including %w.
func Errorf(code uint, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Msg: err.Error(), cause: err}
}

// Coded returns err with the code, or err itself if it is nil or wraps an *Error, which already has a code.
func Coded(code uint, err error) error {
	var coded *Error
	if err == nil || errors.As(err, &coded) {
		return err
	}
	return &Error{Code: code, Msg: err.Error(), cause: err}
}

// NotAvailable returns err with CodeNotAvailable instead of its code, for STATUS. It returns nil if err is nil.
func NotAvailable(err error) error {
	if err == nil {
		return nil
	}
	return Errorf(CodeNotAvailable, "%w", err)
}

// AsError returns err as an *Error, with the code of the *Error that it wraps or else CodeInternal. Msg is the text of err.
func AsError(err error) *Error {
	var coded *Error
	if !errors.As(err, &coded) {
		return &Error{Code: CodeInternal, Msg: err.Error(), cause: err}
	}
	if error(coded) == err {
		return coded
	}
	if coded.Error() == err.Error() { // err adds no text, and may add a Repair
		return &Error{Code: coded.Code, Msg: coded.Msg, Details: coded.Details, cause: err}
	}
	return &Error{Code: coded.Code, Msg: err.Error(), cause: err}
}
