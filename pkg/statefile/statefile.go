// Package statefile reads and writes the files in which a plugin saves the state of an attachment from ADD to DEL. Each
// attachment has its own file. A file is always complete, because it is written under a temporary name and then
// renamed.
package statefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/plumb-cni/plumb/v2/pkg/hostfile"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// ErrUnreadable is the error for a file that is not a regular file, or whose content is not a saved state.
var ErrUnreadable = errors.New("no saved state can be read from it")

// A File is the file of one attachment.
type File struct {
	// Dir is the directory of the file. If it is empty, there is no place for the file, and nothing is saved.
	Dir   string
	Name  string // name of the file in Dir
	Owner types.Attachment
	Trace *trace.Tracer // logs the steps; may be nil
}

// Path returns the path of the file.
func (f File) Path() string { return filepath.Join(f.Dir, f.Name) }

// temp returns the path of the temporary file, which Write renames. If an ADD is killed, the temporary file remains
// until DEL or GC removes it.
func (f File) temp() string { return filepath.Join(f.Dir, TempName(f.Owner)) }

// TempName returns the name of an attachment's temporary file. RemoveTemp recognizes the network by that name. The name
// consists of hashes, because a file name is limited to 255 bytes.
func TempName(a types.Attachment) string { return tempPrefix(a.Network) + types.ShortHash(a.String()) }

// tempPrefix returns the prefix of the names of a network's temporary files.
func tempPrefix(network string) string { return "." + types.ShortHash(network) + "~" }

// TuningName returns the name of an attachment's file of tuning. It is the same as in the reference plugin, unless the
// container ID is too long for a file name. The files of other plugins are named by hashes.
func TuningName(a types.Attachment) string {
	const maxName = 255 // NAME_MAX
	ending := "_" + a.IfName + ".json"
	if len(a.ContainerID)+len(ending) > maxName {
		return types.ShortHash(a.ContainerID) + ending
	}
	return a.ContainerID + ending
}

// A State is what a plugin saves about an attachment, as JSON.
type State interface {
	// Validate returns an error if no plugin can have saved the state.
	Validate() error
}

// Decode decodes the content of a file into s, a pointer, and validates s.
func Decode(text []byte, s State) error {
	if err := json.Unmarshal(text, s); err != nil {
		return err
	}
	return s.Validate()
}

// Load reads the file, as one step, and decodes it into s. It returns the errors of Read, and an error that matches
// ErrUnreadable if the content is not a valid state.
func (f File) Load(s State) error {
	if f.Dir == "" {
		return &fs.PathError{Op: "read saved state", Path: f.Name, Err: fs.ErrNotExist}
	}
	var text []byte
	err := f.Trace.Do("read saved state "+f.Path(), func() (err error) {
		text, err = Read(f.Path())
		return err
	})
	if err != nil {
		return err
	}
	if err := Decode(text, s); err != nil {
		return fmt.Errorf("%s: %w: %w", f.Path(), ErrUnreadable, err)
	}
	return nil
}

// Save writes the state as JSON. It returns the errors of Write.
func (f File) Save(s State) error {
	text, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	return f.Write(text)
}

// Read returns the content of the file at path. It does not follow a symbolic link or wait for a writer of a named
// pipe. The error matches fs.ErrNotExist if the file does not exist, and ErrUnreadable if it is not a regular file, is
// too large, or has a parent that is not a directory.
func Read(path string) ([]byte, error) {
	text, err := hostfile.Read(path, syscall.O_NOFOLLOW)
	switch {
	case errors.Is(err, hostfile.ErrNotRegular), errors.Is(err, hostfile.ErrTooLarge), errors.Is(err, syscall.ENOTDIR):
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	case errors.Is(err, syscall.ENAMETOOLONG):
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return text, err
}

// ReadAll calls use with the path and the content of each file in dir whose name ends in ".json", sorted by name. It
// skips files that cannot be read. A missing directory is not an error. Errors have types.CodeIO.
func ReadAll(t *trace.Tracer, dir string, use func(path string, text []byte)) error {
	return types.Coded(types.CodeIO, t.Do("read saved states in "+dir, func() error {
		files, err := os.ReadDir(dir)
		for _, f := range files {
			path := filepath.Join(dir, f.Name())
			if filepath.Ext(path) != ".json" {
				continue
			}
			if text, err := Read(path); err == nil {
				use(path, text)
			}
		}
		return types.IgnoreNotExist(err)
	}))
}

// Write writes a temporary file and renames it to Path. It replaces any file at that path, including a symbolic link. If a
// directory is at the path, the error matches hostfile.ErrNotRegular. Errors have types.CodeIO.
func (f File) Write(text []byte) error {
	if f.Dir == "" {
		return nil
	}
	return types.Coded(types.CodeIO, f.Trace.Do("save state "+f.Path(), func() error {
		err := f.writeTemp(text)
		if err == nil {
			err = os.Rename(f.temp(), f.Path())
		}
		if err == nil {
			return nil
		}
		_ = os.Remove(f.temp())
		if isDirectory(f.Path()) {
			err = &fs.PathError{Op: "write", Path: f.Path(), Err: hostfile.ErrNotRegular}
		}
		return err
	}))
}

// writeTemp creates the temporary file, which only root can read. It creates the directory if necessary, and removes
// the temporary file of a killed ADD.
func (f File) writeTemp(text []byte) error {
	if err := os.MkdirAll(f.Dir, 0o700); err != nil {
		return err
	}
	if err := os.Remove(f.temp()); types.IgnoreNotExist(err) != nil {
		return err
	}
	file, err := os.OpenFile(f.temp(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	return errors.Join(err, file.Close())
}

// Remove removes the file, and the temporary file of a killed ADD.
func (f File) Remove() error {
	if f.Dir == "" {
		return nil
	}
	return errors.Join(Remove(f.Trace, f.Path()), Remove(f.Trace, f.temp()))
}

// RemoveTemp removes the temporary files of the network's attachments that are not in keep.
func RemoveTemp(t *trace.Tracer, dir, network string, keep types.Set) error {
	files, err := os.ReadDir(dir)
	errs := []error{types.Coded(types.CodeIO, types.IgnoreNotExist(err))}
	keepNames := map[string]bool{}
	for a := range keep {
		keepNames[TempName(a)] = true
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), tempPrefix(network)) && !keepNames[f.Name()] {
			errs = append(errs, Remove(t, filepath.Join(dir, f.Name())))
		}
	}
	return errors.Join(errs...)
}

// Remove removes a file if it exists. It checks that the file exists, because on a read-only file system os.Remove
// fails even for a missing file. A directory with files stays, because it is not a saved state.
func Remove(t *trace.Tracer, path string) error {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENAMETOOLONG) {
		return nil
	}
	return types.Coded(types.CodeIO, t.Do("remove saved state "+path, func() error {
		err := os.Remove(path)
		if errors.Is(err, syscall.ENOTEMPTY) {
			return nil
		}
		return types.IgnoreNotExist(err)
	}))
}

func isDirectory(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

// CheckWritable returns an error if the process cannot create files in dir, or if the file system has no free inode or
// no free block, not even a block that is reserved for root. If dir does not exist, CheckWritable checks the nearest
// existing parent directory. It returns nil for "", the directory in which nothing is saved.
func CheckWritable(dir string) error {
	if dir == "" {
		return nil
	}
	const writeAndSearch = 2 | 1 // W_OK|X_OK
	// With "/." at its end, the path of a regular file causes ENOTDIR.
	err := syscall.Access(dir+"/.", writeAndSearch)
	for errors.Is(err, fs.ErrNotExist) && dir != "/" {
		dir = filepath.Dir(dir)
		err = syscall.Access(dir+"/.", writeAndSearch)
	}
	var st syscall.Statfs_t
	if err == nil && syscall.Statfs(dir, &st) == nil && (st.Blocks > 0 && st.Bfree == 0 || st.Files > 0 && st.Ffree == 0) {
		err = syscall.ENOSPC
	}
	if err == nil {
		return nil
	}
	p := types.Problem{Object: "directory " + dir, Kind: types.ProblemDiffers, Want: "writable", Got: err.Error(),
		Advice: "make the directory writable, or free space on its file system (findmnt, df, df -i)"}
	return p.Errorf("%w", &fs.PathError{Op: "write to", Path: dir, Err: err})
}
