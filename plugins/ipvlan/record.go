package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/plumb-cni/plumb/pkg/nl"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/types"
)

// A record is the file of one attachment that says which mode and flag its ipvlan has. All ipvlans of
// a master share one mode and one flag. If a new ipvlan has another mode or flag, the kernel silently
// changes the ones that exist, also in running containers. The records are needed because the kernel
// does not tell the mode of a master, and ipvlans in other namespaces cannot be listed.
type record struct {
	types.Attachment
	Parent string // see parentID
	nl.IPVlanMode
}

// parentID returns a text that identifies a master until the next boot: the cookie of its namespace
// and its index. On kernels without cookies (before Linux 5.14), the path of the container's
// namespace takes the place of the cookie if the master is in the container.
func parentID(r *skel.Request, c *nl.Conn, master nl.Link) string {
	cookie := c.NS().Cookie()
	if cookie == 0 && c.NS().Same(r.Pod) {
		return fmt.Sprintf("%s/%d", r.NetNS, master.Index)
	}
	return fmt.Sprintf("%d/%d", cookie, master.Index)
}

// recordPath returns the path of the attachment's record. The name is a hash, because a container ID
// can be longer than the name of a file.
func recordPath(dir string, a types.Attachment) string {
	sum := sha256.Sum256([]byte(a.String()))
	return filepath.Join(dir, hex.EncodeToString(sum[:16])+".json")
}

// write writes the record, and pushes its removal to r.Undo.
func (rec record) write(r *skel.Request, dir string) error {
	text, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	path := recordPath(dir, rec.Attachment)
	r.Undo.Push("remove "+path, func() error { return removeRecord(r, path) })
	return types.Coded(types.CodeIO, r.Trace.Do("write "+path, func() error {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		return os.WriteFile(path, text, 0o600)
	}))
}

// checkConflict returns an error if another attachment has a record with the same master, and with
// another mode or flag. The caller must have written rec before. Then, if two ADDs run at the same
// time, at least one of them finds the record of the other. A record that cannot be decoded is
// ignored: its ADD is still writing it and checks for conflicts afterwards, or was killed before it
// made an ipvlan.
func (rec record) checkConflict(r *skel.Request, dir string) error {
	others, err := records(r, dir)
	if err != nil {
		return types.Coded(types.CodeIO, err)
	}
	for path, other := range others {
		if other.Parent == rec.Parent && other.IPVlanMode != rec.IPVlanMode {
			return types.Errorf(types.CodeConfig, "the master has %s for the attachment %s; all ipvlans of a master have the same mode and flag, so a new ipvlan with %s would change those of that attachment (if that attachment does not exist any more, remove %s)",
				other.IPVlanMode, other.Attachment, rec.IPVlanMode, path)
		}
	}
	return nil
}

// records returns the records in dir. The keys of the map are the paths of the files.
func records(r *skel.Request, dir string) (map[string]record, error) {
	found := map[string]record{}
	err := r.Trace.Do("read records in "+dir, func() error {
		files, err := os.ReadDir(dir)
		for _, f := range files {
			path := filepath.Join(dir, f.Name())
			text, err := os.ReadFile(path)
			var rec record
			if err == nil && json.Unmarshal(text, &rec) == nil {
				found[path] = rec
			}
		}
		return types.IgnoreNotExist(err)
	})
	return found, err
}

// removeRecord removes the record at the path, if it exists.
func removeRecord(r *skel.Request, path string) error {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return types.Coded(types.CodeIO, r.Trace.Do("remove "+path, func() error {
		return types.IgnoreNotExist(os.Remove(path))
	}))
}

// collectRecords removes the records of the network's attachments that GC need not keep.
func collectRecords(r *skel.Request) error {
	all, err := records(r, dataDir(r))
	errs := []error{types.Coded(types.CodeIO, err)}
	keep := r.Valid()
	for path, rec := range all {
		if rec.Network == r.Conf.Name && !keep[rec.Attachment] {
			errs = append(errs, removeRecord(r, path))
		}
	}
	return errors.Join(errs...)
}
