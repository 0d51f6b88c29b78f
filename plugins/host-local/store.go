package main

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/pkg/skel"
	"github.com/plumb-cni/plumb/pkg/trace"
	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// A store is the reservations of one network: one file per address, of the same form
// and under the same lock as those of the reference plugin, so that both may work
// on one folder in turns. What is ours alone, the attachments' files and the times of
// releases, is in another folder: the reference reads every file of this one. The name of
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
	return se.do(f)
}

// locked calls f with the store locked. Without a folder the error matches
// fs.ErrNotExist and f is not called. Nothing slow belongs into f.
func (s store) locked(f func(*session) error) error {
	se, err := s.open()
	if err != nil {
		return types.Coded(types.CodeIO, err)
	}
	return se.do(f)
}

// do calls f when the attachments are known, saves what has changed, and ends the session.
func (se *session) do(f func(*session) error) error {
	defer se.close()
	if err := se.prepare(); err != nil {
		return types.Coded(types.CodeIO, err)
	}
	defer se.save()
	return types.Coded(types.CodeIO, f(se))
}

// A session is a store that is locked.
type session struct {
	store
	folder folder // dir
	lock   int    // the lock file; -1: the folder is read-only, and nothing can change
	inode  uint64 // of the folder
	found  times  // of the folder when the lock was got
	local  bool   // see isLocal
	boot   string // ID of the running boot; empty: not known

	files      folder // of the attachments' files
	filesTimes times
	// known has the attachments of which a reservation was made or removed, and when
	// complete is set every one that holds an address.
	known    map[owner][]record
	complete bool
	lastRead time.Duration // since boot, when all reservations were read last
	unread   error         // of the first reservation that could not be read then
	unsure   error         // of an attachment's file
	changed  bool          // something in folder

	// taken has addresses that are known to be taken, and when listed is set every one.
	taken  addressSet
	listed bool
	names  int // in folder, when it was listed
}

// session is one that has no folder yet.
func (s store) session() *session {
	return &session{
		store: s, folder: noFolder, files: noFolder, lock: -1,
		known: map[owner][]record{}, taken: addressSet{},
	}
}

// open takes the lock of the folder that is at s.dir once the lock is got: while
// this process waited, the folder may have been removed and made again.
func (s store) open() (*session, error) {
	for {
		se := s.session()
		if err := se.openFolder(); err != nil {
			se.close()
			return nil, err
		}
		ours, err := se.folder.stat(".")
		if err != nil {
			se.close()
			return nil, err
		}
		var now unix.Stat_t
		err = retry(func() error { return unix.Stat(s.dir, &now) })
		if err == nil && ours.Ino == now.Ino && ours.Dev == now.Dev && se.lockCurrent() {
			se.inode, se.found = ours.Ino, timesOf(ours)
			return se, nil
		}
		se.close()
	}
}

func (se *session) openFolder() error {
	dir, err := openFolder(se.dir, 0)
	if err != nil {
		return err
	}
	se.folder = dir
	lock, err := dir.openLock(unix.O_CREAT | unix.O_NOFOLLOW)
	if errors.Is(err, unix.ELOOP) { // what it leads to may be locked, as the reference does, but is not made
		followed, ferr := dir.openLock(0)
		if !errors.Is(ferr, unix.ENOENT) { // which would read as no folder, and nothing held
			lock, err = followed, ferr
		}
	}
	if errors.Is(err, unix.EROFS) {
		return nil
	}
	if err != nil {
		return err
	}
	se.lock = lock
	return se.trace.Do("lock "+se.dir, func() error { return acquire(lock, filepath.Join(se.dir, "lock"), se.host.wait) })
}

var errNotRegular = errors.New("not a regular file; remove it")

// openLock opens the lock file. A named pipe is not waited for.
func (d folder) openLock(flags int) (int, error) {
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat(d.fd, "lock", flags|unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o750)
		return err
	})
	if errors.Is(err, unix.ENXIO) { // a socket
		err = errNotRegular
	}
	if err != nil {
		return -1, d.error("open", "lock", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, d.error("open", "lock", errors.Join(unix.Close(fd), errNotRegular))
	}
	return fd, nil
}

// lockCurrent reports whether the lock file is still the one in the folder.
func (se *session) lockCurrent() bool {
	if se.lock < 0 {
		return true
	}
	var ours, now unix.Stat_t
	return unix.Fstat(se.lock, &ours) == nil && unix.Fstatat(se.folder.fd, "lock", &now, 0) == nil && ours.Ino == now.Ino
}

// close lets the lock go.
func (se *session) close() {
	se.files.close()
	if se.lock >= 0 {
		_ = unix.Close(se.lock)
	}
	se.folder.close()
}

// prepare makes sure that the addresses of each attachment are known: from the
// attachments' files if those are up to date, else from all reservations. Then those of an
// earlier boot are released: no container outlives a boot.
func (se *session) prepare() error {
	se.boot, se.local = readBoot(se.host.bootID), se.folder.isLocal()
	if se.local && se.upToDate() {
		return nil
	}
	earlier := se.earlier()
	cooldown := se.cooldown
	se.cooldown = 0 // nobody of that boot is left to take the address for another's
	_, err := se.readAll(func(h holding) bool { return !earlier[h.record] })
	se.cooldown = cooldown
	return err
}

// readBoot is the ID of the running boot; empty: not known, and then nothing is of
// an earlier one.
func readBoot(path string) string {
	text, _, err := here.read(path)
	if err != nil {
		return ""
	}
	id := strings.TrimSpace(string(text))
	return id[:min(len(id), 40)]
}

// readAgain reads all reservations in the middle of a session.
func (se *session) readAgain() error {
	_, err := se.readAll(func(holding) bool { return true })
	return err
}

// readAll reads all reservations, and releases those that keep refuses. failed has the
// releases that did not succeed; err says that the reservations could not be read.
func (se *session) readAll(keep func(holding) bool) (failed, err error) {
	se.known, se.taken = map[owner][]record{}, addressSet{}
	se.complete, se.listed = true, true
	se.unread, se.unsure = nil, nil
	se.lastRead = se.host.now()
	err = se.trace.Do("read reservations in "+se.dir, func() error {
		names, err := se.folder.names()
		for _, name := range names {
			if ip, ok := parseName(name); ok {
				failed = errors.Join(failed, se.readOne(ip, keep))
			}
		}
		return err
	})
	if err != nil {
		se.unsure = err
	}
	return failed, err
}

// readOne reads a reservation for readAll. The error is that of its release. One that
// cannot be read takes its address, and its owner is not known.
func (se *session) readOne(ip netip.Addr, keep func(holding) bool) error {
	h, err := se.read(ip)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil && se.unread == nil { // one of thousands says enough
		se.unread = err
	}
	var failed error
	if !keep(h) {
		if failed = se.unlink(h); failed == nil {
			return nil
		}
	}
	if !h.torn {
		se.taken.add(ip)
	}
	if h.owner != (owner{}) {
		se.known[h.owner] = append(se.known[h.owner], h.record)
	}
	return failed
}

// list finds the addresses that are taken by the names of the reservations alone.
func (se *session) list() error {
	return se.trace.Do("list reservations in "+se.dir, func() error {
		names, err := se.folder.names()
		for _, name := range names {
			if ip, ok := parseName(name); ok {
				se.taken.add(ip)
			}
		}
		se.listed, se.names = err == nil, len(names)
		return err
	})
}

// held lists the reservations of an owner. It relies on the attachment's file for where to
// look, and on the reservations for what is there. With an error the list may not be all.
func (se *session) held(o owner) ([]holding, error) {
	records, err := se.records(o)
	var held []holding
	var unread []error
	for _, r := range records {
		h, rerr := se.read(r.addr)
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
	if err == nil || se.complete {
		return held, nil
	}
	if err := se.readAgain(); err != nil {
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

// cursor is the address that set n gave out last; invalid: not known.
func (se *session) cursor(n int) netip.Addr {
	text, _, err := se.folder.read(cursorName(n))
	if err != nil {
		return netip.Addr{}
	}
	ip, err := netip.ParseAddr(strings.TrimSpace(string(text)))
	if err != nil {
		return netip.Addr{}
	}
	return ip.Unmap()
}

func cursorName(n int) string { return "last_reserved_ip." + strconv.Itoa(n) }

// setCursor writes what set n gave out last. The text is written over the old one
// and then cut, so that there always is one. What a crash leaves may be another
// address; it only decides where the next search begins.
func (se *session) setCursor(n int, ip netip.Addr) error {
	name, content := cursorName(n), []byte(ip.String())
	return se.trace.Do("advance "+name, func() error {
		se.changed = true
		f, err := se.folder.open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK)
		if err == nil {
			err = errors.Join(overwrite(f, content), f.Close())
		}
		if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) || errors.Is(err, errSpecial) { // a link, a socket, a named pipe
			err = se.folder.writeNew(name, content)
		}
		return err
	})
}

// overwrite leaves nothing but content in a file that was just opened. It cuts only what
// is longer: to cut costs more than all else here (a transaction of ext4's), also where
// there is nothing to cut.
func overwrite(f *os.File, content []byte) error {
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errSpecial
	}
	if err == nil {
		_, err = f.Write(content)
	}
	if err != nil || info.Size() <= int64(len(content)) {
		return err
	}
	return f.Truncate(int64(len(content)))
}

// isFull: nothing that was asked of the disk is wrong, it only has no room.
func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
