package types

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"
)

func TestRetryEINTR(t *testing.T) {
	interrupted := &fs.PathError{Op: "open", Path: "x", Err: syscall.EINTR}
	other := fmt.Errorf("open: %w", syscall.EAGAIN)
	for _, tc := range []struct {
		why     string
		results []error
	}{
		{"success", []error{nil}},
		{"another error", []error{other}},
		{"success after EINTR", []error{syscall.EINTR, interrupted, nil}},
		{"another error after EINTR", []error{interrupted, other}},
	} {
		calls, last := 0, len(tc.results)-1
		err := RetryEINTR(func() error {
			calls++
			return tc.results[min(calls-1, last)]
		})
		if !errors.Is(err, tc.results[last]) || calls != len(tc.results) {
			t.Errorf("%s: %v after %d calls, want %v after %d", tc.why, err, calls, tc.results[last], len(tc.results))
		}
	}
}
