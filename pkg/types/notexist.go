package types

import (
	"errors"
	"io/fs"
)

// IgnoreNotExist returns nil if err matches fs.ErrNotExist, and otherwise err. Code that
// deletes something uses it: what is already gone need not be deleted.
func IgnoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
