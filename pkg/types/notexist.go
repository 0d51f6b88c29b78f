package types

import (
	"errors"
	"io/fs"
)

// IgnoreNotExist returns nil if err matches fs.ErrNotExist, and otherwise err. Code that deletes something uses it.
func IgnoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
