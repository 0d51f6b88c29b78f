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

// NotExist is the text of an error that matches fs.ErrNotExist.
type NotExist string

func (e NotExist) Error() string { return string(e) }

func (NotExist) Is(target error) bool { return target == fs.ErrNotExist }
