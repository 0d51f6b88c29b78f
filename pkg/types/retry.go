package types

import (
	"errors"
	"syscall"
)

// RetryEINTR calls f until its error, which it returns, does not match EINTR. EINTR means that a signal interrupted a system
// call. The Go runtime sends signals to its own threads, and not every system call and file system continues (signal(7)).
func RetryEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
