package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/pkg/file"
	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/trace"
	"github.com/plumb-cni/plumb/pkg/types"
	"github.com/plumb-cni/plumb/pkg/undo"
	"golang.org/x/sys/unix"
)

// A store is the reservations of one network: a file an address, of the same form
// and under the same lock as those of the reference plugin, so that both may work
// on one folder in turns. What is ours alone, the index and the times of releases,
// is in another folder: the reference reads every file of this one. The name of
// that folder begins with a dot, which no network's name does.
type store struct {
	host     host
	dir      string // <dataDir>/<network>
	side     string // <dataDir>/.plumb/<network>
	cooldown time.Duration
	trace    *trace.Tracer
}

func (h host) store(r *skel.Request, p place) store {
	return store{
		host: h, cooldown: p.cooldown, trace: r.Trace,
		dir:  filepath.Join(p.dataDir, r.Conf.Name),
		side: filepath.Join(p.dataDir, ".plumb", r.Conf.Name),
	}
}

func (s store) releases() string { return filepath.Join(s.side, "releases") }

// create makes the folder. It is shared, and stays.
func (s store) create() error {
	return s.trace.Do("make folder "+s.dir, func() error { return os.MkdirAll(s.dir, 0o755) })
}

// lockedNew is locked for a store that may have no folder yet.
func (s store) lockedNew(f func(*session) error) error {
	se, err := s.open()
	if errors.Is(err, fs.ErrNotExist) {
		if err = s.create(); err == nil {
			se, err = s.open()
		}
	}
	if err != nil {
		return types.Coded(types.CodeIO, err)
	}
	return se.run(f)
}

// locked runs f with the store locked. Without a folder the error matches
// fs.ErrNotExist and f is not run. Nothing slow belongs into f.
func (s store) locked(f func(*session) error) error {
	se, err := s.open()
	if err != nil {
		return types.Coded(types.CodeIO, err)
	}
	return se.run(f)
}

// run runs f with the index at hand, and ends the session.
func (se *session) run(f func(*session) error) error {
	defer se.close()
	if err := se.openIndex(); err != nil {
		return types.Coded(types.CodeIO, err)
	}
	return types.Coded(types.CodeIO, f(se))
}

// A session is a store that is locked.
type session struct {
	store
	fd      int   // the folder
	lock    int   // the lock file; -1: the folder is read-only, and nothing can change
	found   proof // the state of the folder when the lock was got
	local   bool  // see isLocal
	boot    string
	index   *index
	walked  bool  // in this session, so that the index is beyond doubt
	unread  error // of the first reservation that a walk could not read
	changed bool  // something of folder or index
}

// session is one that has no folder yet.
func (s store) session() *session { return &session{store: s, fd: -1, lock: -1} }

// open takes the lock of the folder that is at s.dir once the lock is got: while
// this process waited, the folder may have been removed and made again.
func (s store) open() (*session, error) {
	for {
		se := s.session()
		if err := se.openFolder(); err != nil {
			se.close()
			return nil, err
		}
		var ours, now unix.Stat_t
		if err := unix.Fstat(se.fd, &ours); err != nil {
			se.close()
			return nil, &fs.PathError{Op: "stat", Path: s.dir, Err: err}
		}
		if err := unix.Stat(s.dir, &now); err == nil && ours.Ino == now.Ino && ours.Dev == now.Dev && se.lockCurrent() {
			se.found = proofOf(&ours)
			return se, nil
		}
		se.close()
	}
}

func (se *session) openFolder() error {
	fd, err := file.Open(file.Here, se.dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	se.fd = fd
	path := filepath.Join(se.dir, "lock")
	lock, err := file.OpenRegular(fd, "lock", unix.O_RDONLY|unix.O_CREAT|unix.O_NOFOLLOW, 0o750)
	if errors.Is(err, unix.ELOOP) { // what it leads to may be locked, as the reference does, but is not made
		followed, ferr := file.OpenRegular(fd, "lock", unix.O_RDONLY, 0)
		if !errors.Is(ferr, unix.ENOENT) { // which would read as no folder, and nothing held
			lock, err = followed, ferr
		}
	}
	switch {
	case errors.Is(err, unix.EROFS):
		return nil
	case errors.Is(err, file.ErrNotRegular):
		return fmt.Errorf("open %s: %w; remove it", path, file.ErrNotRegular)
	case err != nil:
		return &fs.PathError{Op: "open", Path: path, Err: errors.Unwrap(err)}
	}
	se.lock = lock
	return se.trace.Do("lock "+se.dir, func() error { return acquire(lock, path, se.host.wait) })
}

// lockCurrent reports whether the lock file is still the one in the folder.
func (se *session) lockCurrent() bool {
	if se.lock < 0 {
		return true
	}
	var ours, now unix.Stat_t
	return unix.Fstat(se.lock, &ours) == nil && unix.Fstatat(se.fd, "lock", &now, 0) == nil && ours.Ino == now.Ino
}

// close keeps the index and lets the lock go.
func (se *session) close() {
	if se.index != nil && se.changed && se.lock >= 0 {
		se.saveIndex()
	}
	se.index.close()
	for _, fd := range []int{se.lock, se.fd} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// A holding is what a reservation file says.
type holding struct {
	entry
	owner owner
	torn  bool // what a crash left: nobody's
}

// maxReservation is far over the longest container ID that a process can be started
// with (MAX_ARG_STRLEN, 128 KiB). What is larger is not read.
const maxReservation = 1 << 20

// read reads the reservation of ip. The error matches fs.ErrNotExist when there is
// none; with any other one the address is taken, and it is not known by whom. What is
// no file, or one too large, takes the address, too, but has no owner.
func (se *session) read(ip netip.Addr) (holding, error) {
	h := holding{entry: entry{addr: ip}}
	fd, err := file.Open(se.fd, ip.String(), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV): // a link, a socket, a device
		return h, nil
	case err != nil:
		return h, &fs.PathError{Op: "open", Path: se.path(ip), Err: errors.Unwrap(err)}
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return h, &fs.PathError{Op: "stat", Path: se.path(ip), Err: err}
	}
	h.ino, h.mtime = st.Ino, st.Mtim.Nano()
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxReservation {
		return h, nil
	}
	var room [4096]byte
	content := room[:]
	if st.Size > int64(len(room)) {
		content = make([]byte, st.Size)
	}
	content = content[:st.Size]
	if err := file.ReadAt(fd, content, 0); err != nil {
		return h, &fs.PathError{Op: "read", Path: se.path(ip), Err: err}
	}
	who, ok := parseOwner(content)
	if !ok {
		h.torn = true
		return h, nil
	}
	h.owner = who
	h.entry.owner = who.hash()
	return h, nil
}

// held lists the reservations of an owner. It trusts the index to know where to look,
// and the files for what is there. With an error the list may not be all.
func (se *session) held(o owner) ([]holding, error) {
	found, err := se.index.of(o.hash())
	var held []holding
	var unread []error
	for _, ip := range found {
		h, rerr := se.read(ip)
		switch {
		case rerr != nil && !errors.Is(rerr, fs.ErrNotExist):
			unread = append(unread, rerr)
		case rerr != nil || h.owner != o:
			err = errDamaged
		default:
			held = append(held, h)
		}
	}
	if len(unread) > 0 {
		return held, errors.Join(unread...)
	}
	if err == nil || se.walked {
		return held, nil
	}
	if err := se.rebuild(); err != nil {
		return nil, err
	}
	return se.held(o)
}

// heldAtAll lists the reservations of an owner, or when there are none the legacy ones
// of the same container. That there are none either cannot be said when a reservation
// could not be read: then the error names it.
func (se *session) heldAtAll(o owner) ([]holding, error) {
	held, err := se.held(o)
	if err == nil && len(held) == 0 {
		held, err = se.held(o.legacy())
	}
	if err == nil && len(held) == 0 {
		err = se.unread
	}
	return held, err
}

// errTaken says whose an address is.
type errTaken struct{ holding }

func (e *errTaken) Error() string {
	who := e.owner.containerID
	if who == "" {
		who = "nobody that can be made out"
	}
	return e.addr.String() + " is allocated to " + who
}

func (e *errTaken) Is(target error) bool { return target == fs.ErrExist }

// reserve writes the reservation of ip. An address that is taken is an *errTaken.
func (se *session) reserve(u *undo.Stack, ip netip.Addr, o owner) error {
	err := se.trace.Do("reserve "+ip.String(), func() error { return se.write(ip, o) })
	if err != nil {
		return err
	}
	s := se.store
	s.cooldown = 0 // nobody has used it
	u.Push("release "+ip.String(), func() error {
		return s.ignoreNoneHeld(s.locked(func(se *session) error { return se.release(ip, o) }))
	})
	return nil
}

func (se *session) write(ip netip.Addr, o owner) error {
	err := se.link(ip.String(), []byte(o.text()))
	if errors.Is(err, fs.ErrExist) {
		h, rerr := se.read(ip)
		if !errors.Is(rerr, fs.ErrNotExist) && !h.torn {
			return &errTaken{h}
		}
		// Under the lock no honest writer is between making a file and writing it.
		se.changed = true
		if err := file.Unlink(se.fd, ip.String()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &fs.PathError{Op: "reclaim", Path: se.path(ip), Err: err}
		}
		err = se.link(ip.String(), []byte(o.text()))
	}
	if err != nil {
		return &fs.PathError{Op: "reserve", Path: se.path(ip), Err: err}
	}
	se.changed = true
	var st unix.Stat_t
	if err := unix.Fstatat(se.fd, ip.String(), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "reserve", Path: se.path(ip), Err: err}
	}
	se.index.add(entry{owner: o.hash(), addr: ip, ino: st.Ino, mtime: st.Mtim.Nano()})
	return nil
}

func (se *session) path(ip netip.Addr) string { return filepath.Join(se.dir, ip.String()) }

// link makes the file name, whole or not at all: it gets its name when it has its
// content. Filesystems without nameless files (O_TMPFILE: overlayfs before 6.1,
// NFS) or a system without /proc take a file of our own folder.
func (se *session) link(name string, content []byte) error {
	fd, err := file.Open(se.fd, ".", unix.O_WRONLY|unix.O_TMPFILE, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EINVAL) {
		return se.linkNamed(name, content)
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := file.Write(fd, content); err != nil {
		return err
	}
	err = file.Link("/proc/self/fd/"+itoa(fd), se.fd, name, unix.AT_SYMLINK_FOLLOW)
	if errors.Is(err, fs.ErrNotExist) {
		return se.linkNamed(name, content)
	}
	return err
}

// linkNamed is link by way of a file in our own folder, and where there are no hard
// links either, the way of the reference: create, then write.
func (se *session) linkNamed(name string, content []byte) error {
	if err := os.MkdirAll(se.side, 0o700); err != nil {
		return err
	}
	path := filepath.Join(se.side, "new")
	// What a crash left may be a second name of a live reservation: writeNew does not
	// write to it.
	err := writeNew(path, content)
	if err != nil {
		_ = os.Remove(path)
		return err
	}
	err = file.Link(path, se.fd, name, 0)
	_ = os.Remove(path)
	if err == nil || errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	fd, err := file.Open(se.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := file.Write(fd, content); err != nil {
		return errors.Join(err, file.Unlink(se.fd, name))
	}
	return nil
}

// isFull: nothing that was asked of the disk is wrong, it only has no room.
func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// release removes the reservation of ip if it is that of o. One that is gone or
// another's is left as it is.
func (se *session) release(ip netip.Addr, o owner) error {
	h, err := se.read(ip)
	if errors.Is(err, fs.ErrNotExist) || err == nil && h.owner != o {
		return nil
	}
	if err != nil {
		return err
	}
	return se.unlink(h)
}

// unlink removes a reservation that was just read.
func (se *session) unlink(h holding) error {
	return se.trace.Do("release "+h.addr.String(), func() error {
		noted := se.noteRelease(h.addr)
		if noted != nil && !errors.Is(noted, unix.EROFS) && !isFull(noted) {
			return &fs.PathError{Op: "note release", Path: se.path(h.addr), Err: noted}
		}
		err := file.Unlink(se.fd, h.addr.String())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &fs.PathError{Op: "release", Path: se.path(h.addr), Err: err}
		}
		if isFull(noted) {
			// There may be room now. If not, an address that does not cool down is better
			// than a container that cannot be deleted.
			_ = se.noteRelease(h.addr)
		}
		se.changed = true
		if se.index != nil {
			se.index.remove(h.entry.owner, h.addr)
		}
		return nil
	})
}

// cursor is the address that set n gave out last; invalid: not known.
func (se *session) cursor(n int) netip.Addr {
	var room [128]byte
	text, err := file.Head(se.fd, cursorName(n), unix.O_NONBLOCK, room[:])
	if err != nil {
		return netip.Addr{}
	}
	ip, err := netip.ParseAddr(strings.TrimSpace(string(text)))
	if err != nil {
		return netip.Addr{}
	}
	return ip.Unmap()
}

func cursorName(n int) string { return "last_reserved_ip." + itoa(n) }

// setCursor writes what set n gave out last. The text is written over the old one
// and then cut, so that there always is one. What a crash leaves may be another
// address; all that follows is where the next search begins.
func (se *session) setCursor(n int, ip netip.Addr) error {
	path := filepath.Join(se.dir, cursorName(n))
	return se.trace.Do("advance "+cursorName(n), func() error {
		se.changed = true
		fd, err := file.OpenRegular(file.Here, path, unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW, 0o600)
		if errors.Is(err, unix.ELOOP) || errors.Is(err, file.ErrNotRegular) { // a link, to elsewhere; a named pipe, say
			fd, err = createNew(path)
		}
		if err != nil {
			return err
		}
		if err := errors.Join(overwrite(fd, []byte(ip.String())), unix.Close(fd)); err != nil {
			return &fs.PathError{Op: "write", Path: path, Err: err}
		}
		return nil
	})
}

// overwrite leaves nothing but content in a file that was just opened. It cuts only what
// is longer: to cut costs more than all else here (a transaction of ext4's), also where
// there is nothing to cut.
func overwrite(fd int, content []byte) error {
	if err := file.Write(fd, content); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size == int64(len(content)) {
		return err
	}
	return unix.Ftruncate(fd, int64(len(content)))
}

// createNew creates a file in the place of what is there, which a crash may have left;
// never is what a link leads to written.
func createNew(path string) (fd int, err error) {
	const flags = unix.O_RDWR | unix.O_CREAT | unix.O_EXCL
	fd, err = file.Open(file.Here, path, flags, 0o600)
	if !errors.Is(err, fs.ErrExist) {
		return fd, err
	}
	if err := os.Remove(path); err != nil {
		return -1, err
	}
	return file.Open(file.Here, path, flags, 0o600)
}

// writeNew is createNew with a content.
func writeNew(path string, content []byte) error {
	fd, err := createNew(path)
	if err != nil {
		return err
	}
	if err := errors.Join(file.Write(fd, content), unix.Close(fd)); err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}
