package skel

import (
	"encoding/binary"
	"errors"
	"path/filepath"

	"github.com/plumb-cni/plumb/v2/pkg/hostfile"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/sys/unix"
)

// CommandRepair is the value of CNI_COMMAND with which "plumb repair" calls a plugin. It is not part of the CNI
// specification. The environment and the configuration are those of CHECK. REPAIR restores what CHECK reports as
// missing on the host. It changes the container only if ContainerSide is set, and takes nothing from another attachment.
// It returns the error of CHECK after the repair or, if a DEL of the attachment has begun, a types.ProblemDeleted with
// types.CodeTryAgain. A plugin of another project rejects the verb with types.CodeEnvironment.
const CommandRepair = "REPAIR"

// Checked returns a handler that calls parse, which parses and checks the whole configuration, and then handle.
func Checked[C any](parse func(*Request) (C, error), handle func(*Request, C) error) func(*Request) error {
	return func(r *Request) error {
		conf, err := parse(r)
		if err != nil {
			return err
		}
		return handle(r, conf)
	}
}

// repair calls the handler of REPAIR if CHECK fails, and CHECK again afterwards. It keeps what a failed REPAIR has
// restored, because each part belongs to the attachment.
func repair(r *Request) error {
	deleted, err := r.IsDeleted(r.Attachment())
	if err != nil {
		return types.Errorf(types.CodeIO, "read the marks of deleted attachments: %w", err)
	}
	if deleted {
		return types.Coded(types.CodeTryAgain, types.Problem{Kind: types.ProblemDeleted}.Errorf("a DEL of %s has begun; nothing was repaired", r.Attachment()))
	}
	if err := r.requireOwn(); err != nil {
		return err
	}
	err = r.check()
	if err == nil || r.plugin.Repair == nil {
		return err
	}
	repairErr := r.plugin.Repair(r)
	r.Undo.Commit()
	if err = r.check(); err != nil {
		return errors.Join(repairErr, err)
	}
	return nil
}

// check calls the handler of CHECK. If the plugin has no handler of REPAIR, the error says that plumb repair does not help.
func (r *Request) check() error {
	err := r.handle(r.plugin.Check)
	if r.plugin.Repair == nil {
		err = types.WithRepair(types.RepairNever, err)
	}
	return err
}

// The file of marks lies beside the lock file. DEL marks its attachment there, REPAIR does nothing for a marked
// attachment, and ADD deletes the mark. The plugins of a chain have separate locks. Without the marks, a REPAIR
// between two DELs of a chain could map a host port to an address that the next DEL releases.
//
// The file is a table of fixed size, so that marks need no cleanup. The hash of an attachment selects the entry, which
// contains the hash. A newer mark overwrites the mark of another attachment in the same entry.
const (
	MarksName   = "plumb.deleted" // the name of the file of marks
	markSize    = 8               // bytes
	markEntries = 1 << 16
)

// markOf returns the attachment's mark and its offset in the file of marks. A mark is never zero.
func markOf(a types.Attachment) (mark [markSize]byte, offset int64) {
	hash := types.Hash(a.String())
	h := binary.BigEndian.Uint64(hash[:])
	binary.LittleEndian.PutUint64(mark[:], h|1)
	return mark, int64(h>>1%markEntries) * markSize
}

// withMarks calls f with the file of marks. It does nothing if the file does not exist and flags do not create it, or if
// there is no place for the lock file, of which lock has warned.
func (r *Request) withMarks(flags int, f func(fd int) error) error {
	lockPath, err := r.lockPath()
	if err != nil {
		return nil
	}
	fd, err := hostfile.Open(filepath.Join(filepath.Dir(lockPath), MarksName), flags|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return types.IgnoreNotExist(err)
	}
	defer unix.Close(fd)
	return f(fd)
}

// IsDeleted reports whether a DEL of the attachment has begun, and no ADD since then.
func (r *Request) IsDeleted(a types.Attachment) (marked bool, err error) {
	err = r.withMarks(unix.O_RDONLY, func(fd int) error {
		marked = isMarkedIn(fd, a)
		return nil
	})
	return marked, err
}

func isMarkedIn(fd int, a types.Attachment) bool {
	want, offset := markOf(a)
	var got [markSize]byte
	_, _ = unix.Pread(fd, got[:], offset) // the file may end before the entry
	return got == want
}

// writeMark marks the attachment in DEL, and deletes its mark in ADD. The caller holds the attachment's lock.
func (r *Request) writeMark() error {
	mark, offset := markOf(r.Attachment())
	if r.Command == "DEL" {
		return r.withMarks(unix.O_WRONLY|unix.O_CREAT, func(fd int) error {
			_, err := unix.Pwrite(fd, mark[:], offset)
			return err
		})
	}
	return r.withMarks(unix.O_RDWR, func(fd int) error {
		if !isMarkedIn(fd, r.Attachment()) {
			return nil
		}
		_, err := unix.Pwrite(fd, make([]byte, markSize), offset)
		return err
	})
}
