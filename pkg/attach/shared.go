package attach

import (
	"errors"
	"io/fs"
)

// MinMTU is the smallest MTU that a configuration may have, in bytes (RFC 791).
const MinMTU = 68

// IgnoreNotExist returns nil if err matches fs.ErrNotExist, and otherwise err.
func IgnoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
