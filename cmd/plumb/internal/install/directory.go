package install

import (
	"context"
	"crypto/sha256"
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

	"github.com/plumb-cni/plumb/cmd/plumb/internal/inventory"
	"github.com/plumb-cni/plumb/pkg/lock"
	"github.com/plumb-cni/plumb/pkg/types"
)

// addedNames is the file in a backup that has the names of the files that were added.
const addedNames = ".new"

// A directory is a directory in use, and the directory of its backup, which may be empty.
type directory struct{ path, backup string }

// A source is a file that is copied.
type source struct {
	path string
	name string // in the directory that it is copied to
	mode fs.FileMode
}

// lockWait is how long an installation waits for another one.
const lockWait = time.Minute

// begin waits until no other installation works in the directory. Then it removes the temporary files for these names that a
// killed installation has left there and in the backup. The caller must close the file that it returns.
func (f directory) begin(names []string) (io.Closer, error) {
	dir, err := os.Open(f.path)
	if err != nil {
		return nil, err
	}
	switch err := lock.Flock(int(dir.Fd()), lockWait); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, errors.Join(fmt.Errorf("another plumb install works in %s; run it again later", f.path), dir.Close())
	case err != nil: // the file system has no locks: the files may be those of another installation
		return dir, nil
	}
	if err := errors.Join(removeTemporary(f.path, names), removeTemporary(f.backup, append(names, addedNames))); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// removeTemporary removes the temporary files and directories for these names from a directory. renameio calls them ".NAME" and a
// number.
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

// install copies the files to the directory, alone. Before it replaces the first one, it backs up all of them.
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
	if err != nil {
		return done, err
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

// plan returns what install is going to do with each file.
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

// backUp copies the files that are to be replaced to the backup, and adds the names of the others to the
// list of added files. It keeps what the backup has already, so that the backup has the files from before
// the first installation.
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

// backedUp returns the names of the files in the backup, and of those that were added.
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
	list, err := inventory.ReadFile(filepath.Join(f.backup, addedNames))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	return files, strings.Fields(string(list)), nil
}

// restore replaces the files by those in the backup.
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
	done, err = directory{path: f.path}.replace(ctx, sources)
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

// newSource returns the file of a directory as a source with its own mode.
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
	one, err := digest(s.path)
	if err != nil {
		return false, err
	}
	other, err := digest(path)
	return one == other, err
}

// digest returns the checksum of a file.
func digest(path string) (sum [sha256.Size]byte, err error) {
	f, err := inventory.Open(path)
	if err != nil {
		return sum, err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return [sha256.Size]byte(h.Sum(nil)), err
}

// copyTo makes the file at path a copy of the source with one rename, also of a symbolic link. The content is
// on the disk before the rename, so that the file is complete after a power failure, too. The temporary file
// is in the directory of path, so that it gets the security label of files there.
func (s source) copyTo(path string) error {
	if target, err := os.Readlink(s.path); err == nil {
		return renameio.Symlink(target, path)
	}
	from, err := inventory.Open(s.path)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	to, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithStaticPermissions(s.mode))
	if err != nil {
		return err
	}
	defer func() { _ = to.Cleanup() }()
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	return to.CloseAtomicallyReplace()
}

// syncDirectory waits until the names in the directory are on the disk.
func syncDirectory(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
