package main

import (
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

// saved is the state before ADD, which DEL puts back. The reference plugin reads and
// writes a file of the same name and form for the settings of the interface, and ignores
// the other keys, so each plugin can put back what the other saved. Order and names of
// the keys of settings are the reference plugin's.
type saved struct {
	settings
	Sysctl  map[string]string `json:"sysctl,omitempty"` // path below /proc/sys: value
	Network string            `json:"network,omitempty"`
	NetNS   uint64            `json:"netns,omitempty"`   // cookie of the namespace; zero: not known
	IfIndex int               `json:"ifindex,omitempty"` // of the interface; zero: not known
}

// decodeSaved reads the text of a file.
func decodeSaved(text []byte) (*saved, error) {
	s := &saved{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, err
	}
	return s, s.validate()
}

// withOriginals returns s with the values of earlier in place of its own: an earlier ADD saved
// them, so they are the original ones. earlier may be nil.
func (s *saved) withOriginals(earlier *saved) *saved {
	if earlier == nil {
		return s
	}
	original := *s
	if earlier.isOfLink(s.IfIndex) {
		original.settings = earlier.settings.or(s.settings)
		original.IfIndex = max(s.IfIndex, earlier.IfIndex)
	}
	original.Sysctl = maps.Clone(s.Sysctl)
	maps.Copy(original.Sysctl, earlier.Sysctl)
	return &original
}

// isOf reports whether the state was saved in the namespace with that cookie, and not in
// another one that was at the same path.
func (s *saved) isOf(netns uint64) bool { return s.NetNS == 0 || netns == 0 || s.NetNS == netns }

// isOfLink reports whether the state was saved of the interface with that index.
func (s *saved) isOfLink(index int) bool { return s.IfIndex == 0 || index == 0 || s.IfIndex == index }

// validate refuses sysctls that no ADD can have saved: whoever can write to dataDir must
// not be able to have DEL write to other files.
func (s *saved) validate() error {
	for key := range s.Sysctl {
		if paths, err := pathsOf(key, ""); err != nil || paths[0] != key {
			return fmt.Errorf("invalid net sysctl key %q", key)
		}
	}
	return nil
}

// errUnreadable is the error for a file that holds no saved state: it was cut off by a
// crash of the reference plugin, or it is not a regular file.
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

// fileName returns the reference plugin's name for the file. The network is not part of
// it: an interface of a container belongs to one network.
func fileName(a types.Attachment) string { return a.ContainerID + "_" + a.IfName + ".json" }

func (s store) path() string { return filepath.Join(s.dir, fileName(s.owner)) }

// temp returns the path at which the file is written before it is renamed. A killed ADD
// leaves it, and DEL and GC remove it.
func (s store) temp() string { return filepath.Join(s.dir, tempName(s.owner)) }

// tempName returns the name of the temporary file of an attachment. It consists of hashes
// because it has to name the network as well, and must not be longer than a file name may
// be (255 bytes).
func tempName(a types.Attachment) string { return tempPrefix(a.Network) + shortHash(a.String()) }

// tempPrefix returns the beginning of the names of all temporary files of a network.
func tempPrefix(network string) string { return "." + shortHash(network) + "~" }

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:12])
}

// load reads the file. The error matches fs.ErrNotExist if there is none, and
// errUnreadable if it holds no saved state.
func (s store) load() (state *saved, err error) {
	err = s.trace.Do("read saved state "+s.path(), func() error {
		state, err = read(s.path())
		return err
	})
	return state, err
}

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

// readFile reads a regular file. It follows no symbolic link and does not wait at a FIFO.
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

// save writes the file by way of a temporary one, so that it is always complete. It
// replaces what is at the path, and never writes through a link there.
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

// writeTemp makes the temporary file, which only root can read. It makes the folder, if it does
// not exist, and removes the temporary file of an ADD that was killed.
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

// remove removes the file, and the temporary file of a killed ADD.
func (s store) remove() error {
	return errors.Join(remove(s.trace, s.path()), remove(s.trace, s.temp()))
}

// remove removes a file if it exists. It looks first, because removing a file that does
// not exist fails in a read-only folder.
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

// gc removes the saved states of attachments of this network that are not to be kept.
// Their containers are gone, so nothing is put back. The files of the reference plugin do
// not name their network; DEL removes them.
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

// isOfNetwork reports whether the file is the saved state of an attachment of the
// network, or its temporary file.
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
