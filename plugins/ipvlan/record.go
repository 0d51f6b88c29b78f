package main

import (
	"errors"
	"fmt"

	"github.com/plumb-cni/plumb/v2/pkg/nl"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/statefile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// A record is the content of an attachment's file, which contains the mode and flag of the attachment's
// ipvlan. All ipvlans on a master share one mode and one flag. If a new ipvlan has another mode or flag, the
// kernel silently applies it to all existing ones, even in running containers. The records are needed because
// the kernel does not report the mode of a master, and ipvlans in other namespaces cannot be listed.
type record struct {
	types.Attachment
	Parent string `json:"parent"` // see parentID
	Mode   string `json:"mode"`
	Flag   string `json:"flag"`
}

func (rec *record) mode() nl.IPVlanMode { return nl.IPVlanMode{Mode: rec.Mode, Flag: rec.Flag} }

// Validate returns an error if AddIPVlan would not accept the mode or the flag.
func (rec *record) Validate() error {
	if !rec.mode().HasKnownMode() || !rec.mode().HasKnownFlag() {
		return fmt.Errorf("unknown %s", rec.mode())
	}
	return nil
}

// parentID returns a string that identifies a master until the next boot. It consists of the namespace's
// cookie and the master's index. On kernels without cookies (before Linux 5.14), it contains the path of the
// container's namespace instead if the master is in the container.
func parentID(r *skel.Request, c *nl.Conn, master nl.Link) string {
	cookie := c.NS().Cookie()
	if cookie == 0 && c.NS().Same(r.ContainerNS) {
		return fmt.Sprintf("%s/%d", r.NetNS, master.Index)
	}
	return fmt.Sprintf("%d/%d", cookie, master.Index)
}

func recordFile(r *skel.Request, dir string, a types.Attachment) statefile.File {
	return statefile.File{Dir: dir, Name: types.ShortHash(a.String()) + ".json", Owner: a, Trace: r.Trace}
}

// write writes the record, and pushes its removal to r.Undo.
func (rec record) write(r *skel.Request, dir string) error {
	file := recordFile(r, dir, rec.Attachment)
	r.Undo.Push("remove "+file.Path(), file.Remove)
	return file.Save(&rec)
}

// checkConflict returns an error if the record of another attachment contains the same master, but another
// mode or flag. The caller must write rec first, so that at least one of two concurrent ADDs finds the
// other's record.
func (rec record) checkConflict(r *skel.Request, dir string) error {
	others, err := records(r, dir)
	if err != nil {
		return err
	}
	for _, other := range others {
		if other.Parent == rec.Parent && other.mode() != rec.mode() {
			return types.Errorf(types.CodeConfig, "the master has %s for the attachment %s; all ipvlans of a master have the same mode and flag, so a new ipvlan with %s would change those of that attachment; if that attachment no longer exists, remove %s",
				other.mode(), other.Attachment, rec.mode(), recordFile(r, dir, other.Attachment).Path())
		}
	}
	return nil
}

// records returns the records in dir. It skips other files.
func records(r *skel.Request, dir string) (all []record, err error) {
	err = statefile.ReadAll(r.Trace, dir, func(path string, text []byte) {
		var rec record
		if statefile.Decode(text, &rec) == nil && path == recordFile(r, dir, rec.Attachment).Path() {
			all = append(all, rec)
		}
	})
	return all, err
}

// collectRecords removes the records of the network's attachments that are no longer valid.
func collectRecords(r *skel.Request) error {
	dir, keep := r.SavedStateDir(defaultDataDir), r.ValidAttachments()
	all, err := records(r, dir)
	errs := []error{err, statefile.RemoveTemp(r.Trace, dir, r.Conf.Name, keep)}
	for _, rec := range all {
		if rec.Network == r.Conf.Name && !keep[rec.Attachment] {
			errs = append(errs, recordFile(r, dir, rec.Attachment).Remove())
		}
	}
	return errors.Join(errs...)
}
