package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/pkg/lock"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// addedNames is the name of the file in a backup that lists the added files.
const addedNames = ".new"

// A directory is a directory in use, with the directory for its backup. backup is empty if there is no backup. With dryRun, its
// methods change nothing, and return what they would do.
type directory struct {
	path, backup string
	dryRun       bool
}

// A source is a file to copy.
type source struct {
	path string
	name string // the file name in the target directory
	mode fs.FileMode
}

// lockWait is how long an installation waits for another one.
const lockWait = time.Minute

// begin waits for other installations and locks the directory. It removes the temporary files for these names that a
// killed installation left there and in the backup. The caller must close the returned file, which ends the lock.
func (f directory) begin(names []string) (io.Closer, error) {
	if f.dryRun {
		return io.NopCloser(nil), nil
	}
	dir, err := os.Open(f.path)
	if err != nil {
		return nil, err
	}
	switch err := lock.Flock(int(dir.Fd()), lockWait); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, errors.Join(fmt.Errorf("another plumb install is using %s; try again later", f.path), dir.Close())
	case err != nil: // the file system does not support locks, so another installation may be using the temporary files
		return dir, nil
	}
	if err := errors.Join(removeTemporary(f.path, names), removeTemporary(f.backup, append(names, addedNames))); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// removeTemporary removes the temporary files and directories for these names. renameio appends a number to ".NAME".
func removeTemporary(dir string, names []string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return types.IgnoreNotExist(err)
	}
	var errs []error
	for _, e := range entries {
		if slices.ContainsFunc(names, func(name string) bool {
			number, ok := strings.CutPrefix(e.Name(), "."+name)
			return ok && number != "" && strings.Trim(number, "0123456789") == ""
		}) {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// install copies the files to the directory under the lock. It backs up all files before it replaces the first one.
func (f directory) install(ctx context.Context, sources []source) ([]File, error) {
	if len(sources) == 0 {
		return []File{}, nil
	}
	var names []string
	for _, s := range sources {
		names = append(names, s.name)
	}
	lock, err := f.begin(names)
	if err != nil {
		return []File{}, err
	}
	defer func() { _ = lock.Close() }()
	return f.replace(ctx, sources)
}

// replace is install without the lock.
func (f directory) replace(ctx context.Context, sources []source) ([]File, error) {
	done := []File{}
	plan, err := f.plan(sources)
	if err != nil || f.dryRun {
		return append(done, plan...), err
	}
	if f.backup != "" {
		if err := f.backUp(plan); err != nil {
			return done, fmt.Errorf("back up: %w", err)
		}
	}
	for i, s := range sources {
		if err := ctx.Err(); err != nil {
			return done, err
		}
		if plan[i].changed() {
			if err := s.copyTo(plan[i].Path); err != nil {
				return done, err
			}
		}
		done = append(done, plan[i])
	}
	return done, syncDirectory(f.path)
}

// plan returns what replace will do with each file.
func (f directory) plan(sources []source) ([]File, error) {
	var all []File
	for _, s := range sources {
		file := File{filepath.Join(f.path, s.name), Replaced}
		info, err := os.Lstat(file.Path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			file.Action = Added
		case err != nil:
			return nil, err
		case info.IsDir():
			return nil, fmt.Errorf("%s is a directory; nothing was replaced", file.Path)
		default:
			equal, err := s.equals(file.Path, info)
			if err != nil {
				return nil, err
			}
			if equal {
				file.Action = Unchanged
			}
		}
		all = append(all, file)
	}
	return all, nil
}

// backUp copies the files that replace will replace to the backup, and lists the files that it will add. It keeps
// existing files of the backup, so that the backup preserves the files from before the first installation.
func (f directory) backUp(plan []File) error {
	if err := os.MkdirAll(f.backup, 0o755); err != nil {
		return err
	}
	files, added, err := f.backedUp()
	if err != nil {
		return err
	}
	for _, file := range plan {
		name := filepath.Base(file.Path)
		if !file.changed() || slices.Contains(files, name) || slices.Contains(added, name) {
			continue
		}
		if file.Action == Added {
			added = append(added, name)
			continue
		}
		s, err := newSource(f.path, name)
		if err != nil {
			return err
		}
		if err := s.copyTo(filepath.Join(f.backup, name)); err != nil {
			return err
		}
	}
	if len(added) > 0 {
		err := renameio.WriteFile(filepath.Join(f.backup, addedNames), []byte(strings.Join(added, "\n")+"\n"), 0o644, renameio.WithTempDir(f.backup))
		if err != nil {
			return err
		}
	}
	return syncDirectory(f.backup)
}

// backedUp returns the names of the files in the backup, and of the files that were added.
func (f directory) backedUp() (files, added []string, err error) {
	entries, err := os.ReadDir(f.backup)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		if !e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			files = append(files, e.Name())
		}
	}
	list, err := node.ReadFile(filepath.Join(f.backup, addedNames))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	return files, strings.Fields(string(list)), nil
}

// restore replaces the files with the files in the backup.
func (f directory) restore(ctx context.Context) ([]File, error) {
	done := []File{}
	names, added, err := f.backedUp()
	if errors.Is(err, fs.ErrNotExist) {
		return done, nil
	}
	if err != nil {
		return done, err
	}
	lock, err := f.begin(slices.Concat(names, added))
	if err != nil {
		return done, err
	}
	defer func() { _ = lock.Close() }()
	var sources []source
	for _, name := range names {
		s, err := newSource(f.backup, name)
		if err != nil {
			return done, err
		}
		sources = append(sources, s)
	}
	done, err = directory{path: f.path, dryRun: f.dryRun}.replace(ctx, sources)
	for i := range done {
		if done[i].changed() {
			done[i].Action = Restored
		}
	}
	for _, name := range added {
		path := filepath.Join(f.path, name)
		if _, missing := os.Lstat(path); missing == nil {
			done = append(done, File{path, Stays})
		}
	}
	return done, err
}

// newSource returns a file as a source that keeps the file's mode.
func newSource(dir, name string) (source, error) {
	path := filepath.Join(dir, name)
	info, err := os.Lstat(path)
	if err != nil {
		return source{}, err
	}
	return source{path, name, info.Mode().Perm()}, nil
}

// equals reports whether copyTo would not change the file at path, which info describes.
func (s source) equals(path string, info fs.FileInfo) (bool, error) {
	if target, err := os.Readlink(s.path); err == nil {
		existing, err := os.Readlink(path)
		return err == nil && existing == target, nil
	}
	if !info.Mode().IsRegular() || info.Mode().Perm() != s.mode {
		return false, nil
	}
	content, err := node.ReadFile(s.path)
	existing, existingErr := node.ReadFile(path)
	return bytes.Equal(content, existing), errors.Join(err, existingErr)
}

// copyTo copies the source, which may be a symbolic link, to path by a rename. It writes the content to the disk before the
// rename, so that the file is complete even after a power failure. The temporary file is in the directory of path, so that
// it gets the security label of files there.
func (s source) copyTo(path string) error {
	if target, err := os.Readlink(s.path); err == nil {
		return renameio.Symlink(target, path)
	}
	content, err := node.Open(s.path)
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }()
	// renameio.WriteFile would keep the mode of the file that it replaces.
	file, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithStaticPermissions(s.mode))
	if err != nil {
		return err
	}
	defer func() { _ = file.Cleanup() }() // does nothing after the rename
	if _, err := io.Copy(file, content); err != nil {
		return err
	}
	return file.CloseAtomicallyReplace()
}

// syncDirectory writes the entries of the directory to the disk.
func syncDirectory(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
