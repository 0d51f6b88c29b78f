package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/trace"
	"github.com/plumb-cni/plumb/pkg/types"
)

// saved is the state before ADD, which DEL restores. The reference plugin has a file of the same
// name with the same keys for the settings of the interface, and ignores the other keys. So each of
// the two plugins can restore what the other saved.
type saved struct {
	settings
	Sysctl  map[string]string `json:"sysctl,omitempty"` // path below /proc/sys: value
	Network string            `json:"network,omitempty"`
	NetNS   uint64            `json:"netns,omitempty"`   // cookie of the namespace; zero: not known
	IfIndex int               `json:"ifindex,omitempty"` // of the interface; zero: not known
}

// decodeSaved decodes the content of a file. It refuses sysctls that no ADD can have saved:
// otherwise a user who can write to dataDir could make DEL write to other files.
func decodeSaved(text []byte) (*saved, error) {
	s := &saved{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, err
	}
	for key := range s.Sysctl {
		if paths, err := pathsOf(key, ""); err != nil || paths[0] != key {
			return nil, fmt.Errorf("invalid net sysctl key %q", key)
		}
	}
	return s, nil
}

// withOriginals returns s with the values of earlier, as far as earlier has any: an earlier ADD saved
// them before it changed the settings. earlier may be nil.
func (s *saved) withOriginals(earlier *saved) *saved {
	if earlier == nil {
		return s
	}
	original := *s
	if earlier.isOfLink(s.IfIndex) {
		original.settings = earlier.settings.or(s.settings)
		original.IfIndex = cmp.Or(s.IfIndex, earlier.IfIndex)
	}
	original.Sysctl = maps.Clone(s.Sysctl)
	maps.Copy(original.Sysctl, earlier.Sysctl)
	return &original
}

// isOf reports whether the state was saved in the namespace with that cookie. Another namespace may
// have been at the same path. isOf returns true if one of the cookies is not known.
func (s *saved) isOf(netns uint64) bool { return s.NetNS == 0 || netns == 0 || s.NetNS == netns }

// isOfLink reports whether the saved settings are those of the interface with that index. It
// returns true if one of the indexes is not known.
func (s *saved) isOfLink(index int) bool { return s.IfIndex == 0 || index == 0 || s.IfIndex == index }

// errUnreadable is the error for a file from which no state can be read: the reference plugin was
// killed while it wrote the file, or it is no regular file.
var errUnreadable = errors.New("no saved state can be read from it")

// A store reads and writes the file with the saved state of one attachment.
type store struct {
	dir   string
	owner types.Attachment
	trace *trace.Tracer
}

func newStore(r *skel.Request, dir string) store {
	return store{dir: dir, owner: r.Attachment(), trace: r.Trace}
}

// fileName returns the name of an attachment's file, which is the same as in the reference plugin.
func fileName(a types.Attachment) string { return a.ContainerID + "_" + a.IfName + ".json" }

// path returns the path of the file.
func (s store) path() string { return filepath.Join(s.dir, fileName(s.owner)) }

// temp returns the path of the temporary file, which save renames. An ADD that is killed leaves the
// temporary file; DEL and GC remove it.
func (s store) temp() string { return filepath.Join(s.dir, tempName(s.owner)) }

// tempName returns the name of an attachment's temporary file. GC finds the network of the file by
// its name. The name consists of hashes, because a file name has at most 255 bytes.
func tempName(a types.Attachment) string { return tempPrefix(a.Network) + shortHash(a.String()) }

// tempPrefix returns what the names of all temporary files of a network begin with.
func tempPrefix(network string) string { return "." + shortHash(network) + "~" }

// shortHash returns 24 hexadecimal digits of the SHA-256 hash of s.
func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:12])
}

// load reads the file as one step. The errors are those of read.
func (s store) load() (state *saved, err error) {
	err = s.trace.Do("read saved state "+s.path(), func() error {
		state, err = read(s.path())
		return err
	})
	return state, err
}

// read reads a file with a saved state. The error matches fs.ErrNotExist if the file does not exist,
// and errUnreadable if no state can be read from it.
func read(path string) (*saved, error) {
	text, err := readFile(path)
	switch {
	case errors.Is(err, syscall.ELOOP):
		return nil, fmt.Errorf("%s: %w: it is a symbolic link", path, errUnreadable)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG):
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	case err != nil:
		return nil, err
	}
	state, err := decodeSaved(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, errUnreadable, err)
	}
	return state, nil
}

// readFile returns the content of a regular file. It does not follow a symbolic link, and does not
// wait at a named pipe.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w: it is no regular file", path, errUnreadable)
	}
	return io.ReadAll(f)
}

// save writes a temporary file and renames it, so that the file is always complete. It replaces
// what is at the path, also a symbolic link. Errors have types.CodeIO.
func (s store) save(state *saved) error {
	text, err := json.MarshalIndent(state, "", " ")
	if err != nil {
		return err
	}
	return types.Coded(types.CodeIO, s.trace.Do("save state "+s.path(), func() error {
		err := s.writeTemp(text)
		if err == nil {
			err = os.Rename(s.temp(), s.path())
		}
		if err != nil {
			_ = os.Remove(s.temp())
		}
		return err
	}))
}

// writeTemp makes the temporary file, which only root can read. It makes the folder if it does not
// exist, and removes the temporary file of an ADD that was killed.
func (s store) writeTemp(text []byte) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	if err := os.Remove(s.temp()); types.IgnoreNotExist(err) != nil {
		return err
	}
	f, err := os.OpenFile(s.temp(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// remove removes the file, and the temporary file of an ADD that was killed.
func (s store) remove() error {
	return errors.Join(remove(s.trace, s.path()), remove(s.trace, s.temp()))
}

// remove removes a file if it exists. It looks for the file first: to remove a file that does not
// exist fails if the file system is read-only.
func remove(t *trace.Tracer, path string) error {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENAMETOOLONG) {
		return nil
	}
	return types.Coded(types.CodeIO, t.Do("remove saved state "+path, func() error {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}))
}

// gc removes the saved states of the attachments of this network that are not to be kept. It
// restores nothing, because the containers are gone. It does not remove files that the reference
// plugin wrote, because these do not name their network.
func gc(r *skel.Request) error {
	dir, valid := dataDir(r), r.Valid()
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{types.Coded(types.CodeIO, err)}
	keep := map[string]bool{}
	for a := range valid {
		keep[fileName(a)], keep[tempName(a)] = true, true
	}
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		if !keep[f.Name()] && isOfNetwork(path, r.Conf.Name) {
			errs = append(errs, remove(r.Trace, path))
		}
	}
	return errors.Join(errs...)
}

// isOfNetwork reports whether a file is the saved state of an attachment of the network, or its
// temporary file.
func isOfNetwork(path, network string) bool {
	name := filepath.Base(path)
	if strings.HasPrefix(name, tempPrefix(network)) {
		return true
	}
	if !strings.HasSuffix(name, ".json") {
		return false
	}
	state, err := read(path)
	return err == nil && state.Network == network
}

// checkWritable returns an error if the process cannot make files in dir, or if its file system
// has no free block or no free inode. If dir does not exist, checkWritable tests the nearest
// parent folder that exists.
func checkWritable(dir string) error {
	const writeAndSearch = 2 | 1 // W_OK|X_OK
	// With "/." at its end, the path of a file gives ENOTDIR.
	err := syscall.Access(dir+"/.", writeAndSearch)
	for errors.Is(err, fs.ErrNotExist) && dir != "/" {
		dir = filepath.Dir(dir)
		err = syscall.Access(dir+"/.", writeAndSearch)
	}
	var st syscall.Statfs_t
	if err == nil && syscall.Statfs(dir, &st) == nil && (st.Blocks > 0 && st.Bavail == 0 || st.Files > 0 && st.Ffree == 0) {
		err = syscall.ENOSPC
	}
	if err != nil {
		return &fs.PathError{Op: "save state in", Path: dir, Err: err}
	}
	return nil
}
