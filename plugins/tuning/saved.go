package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/plumb-cni/plumb/pkg/file"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/trace"
	"github.com/plumb-cni/plumb/pkg/types"
)

// saved is what was before the ADD, for DEL to put back. The reference plugin reads
// and writes the settings of the interface alone, in a file of the same name and
// form, and passes over the other keys: each can put back what the other saved.
type saved struct {
	settings
	Sysctl  map[string]string // path below /proc/sys: value
	Network string
	NetNS   uint64 // cookie of the namespace; zero: not known
	IfIndex int    // of the interface; zero: not known
}

// A member is one of the keys of the file.
type member struct {
	key    string
	at     any // pointer to the value
	absent bool
}

// members lists the file's keys; name, order and form of the first five are the
// reference plugin's. It stands in for JSON tags because encoding/json takes longer to
// learn of a struct than to read or write all of this.
func (s *saved) members() []member {
	return []member{
		{"mac", &s.MAC, s.MAC == nil},
		{"promisc", &s.Promisc, s.Promisc == nil},
		{"mtu", &s.MTU, s.MTU == nil},
		{"allmulti", &s.AllMulti, s.AllMulti == nil},
		{"txQLen", &s.TxQLen, s.TxQLen == nil},
		{"sysctl", &s.Sysctl, len(s.Sysctl) == 0},
		{"network", &s.Network, s.Network == ""},
		{"netns", &s.NetNS, s.NetNS == 0},
		{"ifindex", &s.IfIndex, s.IfIndex == 0},
	}
}

// encode is the text of the file, as json.MarshalIndent would write it.
func (s *saved) encode() []byte {
	text, before := []byte("{"), "\n \""
	for _, m := range s.members() {
		if !m.absent {
			text = append(append(append(text, before...), m.key...), `": `...)
			text = appendJSON(text, m.at)
			before = ",\n \""
		}
	}
	return append(text, "\n}"...)
}

// appendJSON appends what the pointer leads to. It knows the types of members.
func appendJSON(text []byte, at any) []byte {
	switch v := at.(type) {
	case **types.MAC:
		return appendText(text, (*v).String())
	case **bool:
		return strconv.AppendBool(text, **v)
	case **int:
		return strconv.AppendInt(text, int64(**v), 10)
	case *int:
		return strconv.AppendInt(text, int64(*v), 10)
	case *uint64:
		return strconv.AppendUint(text, *v, 10)
	case *string:
		return appendText(text, *v)
	case *map[string]string:
		before := "{\n  "
		for _, key := range slices.Sorted(maps.Keys(*v)) {
			text = append(appendText(append(text, before...), key), ": "...)
			text = appendText(text, (*v)[key])
			before = ",\n  "
		}
		return append(text, "\n }"...)
	}
	panic(fmt.Sprintf("tuning: a saved state has no %T", at))
}

func appendText(text []byte, s string) []byte {
	if !strings.ContainsFunc(s, isSpecial) {
		return append(append(append(text, '"'), s...), '"')
	}
	quoted, _ := json.Marshal(s) // cannot fail: any string is one of JSON
	return append(text, quoted...)
}

// isSpecial reports what may not stand in a JSON text as it is.
func isSpecial(r rune) bool { return r < ' ' || r > '~' || strings.ContainsRune(`"\<>&`, r) }

// decodeSaved reads what encode wrote, and passes over keys that it does not know.
func decodeSaved(text []byte) (*saved, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil {
		return nil, err
	}
	s := &saved{}
	for _, m := range s.members() {
		if value, ok := object[m.key]; ok {
			if err := json.Unmarshal(value, m.at); err != nil {
				return nil, fmt.Errorf("key %q: %w", m.key, err)
			}
		}
	}
	return s, s.valid()
}

// override takes over what an earlier ADD saved: that was the original.
func (s *saved) override(older *saved) {
	if older.isOfLink(s.IfIndex) {
		s.settings.override(older.settings)
		s.IfIndex = max(s.IfIndex, older.IfIndex)
	}
	for key, value := range older.Sysctl {
		s.Sysctl[key] = value
	}
}

// isOf reports whether it was saved in the namespace with that cookie. In another one
// that has come to the same path it is nobody's original.
func (s *saved) isOf(netns uint64) bool { return s.NetNS == 0 || netns == 0 || s.NetNS == netns }

// isOfLink reports the same of the interface with that index.
func (s *saved) isOfLink(index int) bool { return s.IfIndex == 0 || index == 0 || s.IfIndex == index }

// valid reports whether the sysctls are those that an ADD may have saved: DEL is not
// to write elsewhere for whoever can write to dataDir.
func (s *saved) valid() error {
	for key := range s.Sysctl {
		if paths, err := pathsOf(key, ""); err != nil || paths[0] != key {
			return fmt.Errorf("invalid net sysctl key %q", key)
		}
	}
	return nil
}

// errTorn says that a file is none that holds a saved state: a crash of the reference
// plugin cut it off, or it is a link to elsewhere.
var errTorn = errors.New("no saved state can be read from it")

// A store is the file that holds the saved state of one attachment.
type store struct {
	dir   string
	owner types.Attachment
	trace *trace.Tracer
}

func storeOf(r *skel.Request, dir string) store {
	return store{dir: dir, owner: r.Attachment(), trace: r.Trace}
}

// nameOf is the reference plugin's name for the file. It does not say the network: an
// interface of a container is in one.
func nameOf(a types.Attachment) string { return a.ContainerID + "_" + a.IfName + ".json" }

func (s store) path() string { return filepath.Join(s.dir, nameOf(s.owner)) }

// temp is where the file is written before it gets its name. DEL and GC find there what
// a killed ADD left.
func (s store) temp() string { return filepath.Join(s.dir, tempName(s.owner)) }

// tempName names the temporary file of an attachment: hashes, since with the network in
// it the name would be longer than the file's own, and perhaps longer than the file
// system allows.
func tempName(a types.Attachment) string { return tempPrefix(a.Network) + shortHash(a.String()) }

// tempPrefix is common to the temporary files of a network.
func tempPrefix(network string) string { return "." + shortHash(network) + "~" }

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:12])
}

// load reads the file. The error matches fs.ErrNotExist when there is none, and
// errTorn when there is something else.
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
		return nil, fmt.Errorf("%s: %w: it is a symbolic link", path, errTorn)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG):
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	case err != nil:
		return nil, err
	}
	state, err := decodeSaved(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, errTorn, err)
	}
	return state, nil
}

// save writes the file, whole or not at all, over what is there: never into it or
// through a link.
func (s store) save(state *saved) error {
	text := state.encode()
	return types.Coded(types.CodeIO, s.trace.Do("save state "+s.path(), func() error {
		err := s.writeTemp(text)
		if err == nil {
			err = rename(s.temp(), s.path())
		}
		if err != nil {
			_ = os.Remove(s.temp())
		}
		return err
	}))
}

// writeTemp looks for no obstacle before one is met: most often there is none.
func (s store) writeTemp(text []byte) error {
	err := file.WriteNew(file.Here, s.temp(), text)
	switch {
	case errors.Is(err, fs.ErrNotExist): // there is no folder yet
		err = os.MkdirAll(s.dir, 0o700)
	case errors.Is(err, fs.ErrExist): // a killed ADD left it
		err = os.Remove(s.temp())
	default:
		return err
	}
	if err != nil {
		return err
	}
	return file.WriteNew(file.Here, s.temp(), text)
}

// remove removes the file, and what a killed ADD left of it.
func (s store) remove() error {
	return errors.Join(remove(s.trace, s.path()), remove(s.trace, s.temp()))
}

// remove asks first: a folder that is read-only has nothing to refuse.
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

// gc removes the saved states of this network's attachments that live no more. What
// they were put back on is gone. A file of the reference plugin does not say its
// network; DEL removes it.
func gc(r *skel.Request) error {
	dir, valid := dataDir(r), r.Valid()
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{types.Coded(types.CodeIO, err)}
	keep := map[string]bool{}
	for a := range valid {
		keep[nameOf(a)], keep[tempName(a)] = true, true
	}
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		if !keep[f.Name()] && isOfNetwork(path, r.Conf.Name) {
			errs = append(errs, remove(r.Trace, path))
		}
	}
	return errors.Join(errs...)
}

// isOfNetwork reports whether the file is the saved state of an attachment to the
// network, or one in the making.
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
