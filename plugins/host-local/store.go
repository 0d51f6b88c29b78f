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

// A store has the reservations of one network: one file per address. The files have the same
// format and the same lock as those of the reference plugin, so that both plugins can use one
// folder in turns. The files that only plumb knows, which are the attachments' files and the
// times of releases, are in another folder: the reference plugin reads every file of dir. The
// path of the other folder contains ".plumb", which cannot be the name of a network, because
// such a name cannot begin with a dot.
type store struct {
	host       host
	dir        string // <dataDir>/<network>
	privateDir string // <dataDir>/.plumb/<network>
	cooldown   time.Duration
	trace      *trace.Tracer
}

// store returns the store of the network of the request.
func (h host) store(r *skel.Request, c storeConf) store {
	return store{
		host: h, cooldown: c.cooldown, trace: r.Trace,
		dir:        filepath.Join(c.dataDir, r.Conf.Name),
		privateDir: filepath.Join(c.dataDir, ".plumb", r.Conf.Name),
	}
}

// create makes dir. All containers of the network share dir, so ADD does not undo this.
func (s store) create() error {
	return s.trace.Do("make folder "+s.dir, func() error { return os.MkdirAll(s.dir, 0o755) })
}

// createAndLock is withLock for a store whose folder may not exist yet: it makes the folder.
func (s store) createAndLock(f func(*session) error) error {
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

// withLock calls f while it holds the lock of the store. If dir does not exist, it does not
// call f, and the error matches fs.ErrNotExist. f must not do anything slow.
func (s store) withLock(f func(*session) error) error {
	se, err := s.open()
	if err != nil {
		return types.Coded(types.CodeIO, err)
	}
	return se.run(f)
}

// run prepares the session, calls f, updates the attachments' files, and closes the session.
func (se *session) run(f func(*session) error) error {
	defer se.close()
	if err := se.prepare(); err != nil {
		return types.Coded(types.CodeIO, err)
	}
	defer se.save()
	return types.Coded(types.CodeIO, f(se))
}

// A session is a store whose lock this process holds.
type session struct {
	store
	folder folder // dir
	lock   int    // the lock file; -1: the folder is read-only, and nothing can change
	inode  uint64 // of the folder
	found  times  // times of the folder when the lock was acquired
	local  bool   // see isLocal
	boot   string // ID of the running boot; empty: not known

	files      folder // the folder of the attachments' files
	filesTimes times  // times of that folder
	// known has the reservations of the attachments for which a reservation was made or
	// removed. If complete is set, it has those of all attachments that hold an address.
	known     map[fileID][]record
	complete  bool
	lastRead  time.Duration // time since boot of the last reading of all reservations
	readErr   error         // the first error of that reading
	recordErr error         // if set, known is incomplete: an attachment's file could not be read
	changed   bool          // whether the session changed something in folder

	// taken has addresses that are known to be reserved. If listed is set, it has all of them.
	taken  addressSet
	listed bool
	names  int // number of files in folder when it was listed
}

// newSession returns a session that has no open folder and no lock.
func (s store) newSession() *session {
	return &session{
		store: s, folder: noFolder, files: noFolder, lock: -1,
		known: map[fileID][]record{}, taken: addressSet{},
	}
}

// open opens and locks the folder at s.dir. While open waits for the lock, another process may
// remove the folder and make it again. Then open begins again with the new folder.
func (s store) open() (*session, error) {
	for {
		se := s.newSession()
		if err := se.openFolder(); err != nil {
			se.close()
			return nil, err
		}
		opened, err := se.folder.stat(".")
		if err != nil {
			se.close()
			return nil, err
		}
		var now unix.Stat_t
		err = types.RetryEINTR(func() error { return unix.Stat(s.dir, &now) })
		if err == nil && opened.Ino == now.Ino && opened.Dev == now.Dev && se.isLockCurrent() {
			se.inode, se.found = opened.Ino, timesOf(opened)
			return se, nil
		}
		se.close()
	}
}

// openFolder opens the folder and locks its lock file. A read-only folder has no lock.
func (se *session) openFolder() error {
	dir, err := openFolder(se.dir, 0)
	if err != nil {
		return err
	}
	se.folder = dir
	lock, err := dir.openLock(unix.O_CREAT | unix.O_NOFOLLOW)
	if errors.Is(err, unix.ELOOP) { // a symbolic link: lock its target, as the reference plugin does, but do not create it
		target, targetErr := dir.openLock(0)
		if !errors.Is(targetErr, unix.ENOENT) { // callers understand ENOENT as: no folder, no reservations
			lock, err = target, targetErr
		}
	}
	if errors.Is(err, unix.EROFS) {
		return nil
	}
	if err != nil {
		return err
	}
	se.lock = lock
	return se.trace.Do("lock "+se.dir, func() error { return acquireLock(lock, filepath.Join(se.dir, "lock"), se.host.wait) })
}

var errNotRegular = errors.New("not a regular file; remove it")

// openLock opens the lock file. It returns an error if the file is not regular; it does not
// block on a named pipe.
func (d folder) openLock(flags int) (int, error) {
	var fd int
	err := types.RetryEINTR(func() (err error) {
		fd, err = unix.Openat(d.fd, "lock", flags|unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o750)
		return err
	})
	if errors.Is(err, unix.ENXIO) { // a socket
		err = errNotRegular
	}
	if err != nil {
		return -1, d.pathError("open", "lock", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, d.pathError("open", "lock", errors.Join(unix.Close(fd), errNotRegular))
	}
	return fd, nil
}

// isLockCurrent reports whether the locked file is still the lock file of the folder: another
// process may have replaced it.
func (se *session) isLockCurrent() bool {
	if se.lock < 0 {
		return true
	}
	var locked, now unix.Stat_t
	return unix.Fstat(se.lock, &locked) == nil && unix.Fstatat(se.folder.fd, "lock", &now, 0) == nil && locked.Ino == now.Ino
}

// close releases the lock and closes the folders.
func (se *session) close() {
	se.files.close()
	if se.lock >= 0 {
		_ = unix.Close(se.lock)
	}
	se.folder.close()
}

// prepare opens the attachments' files. If they are not up to date, or if the file system is
// not local, prepare reads all reservations instead. It then also releases the reservations of
// earlier boots: no container survives a reboot.
func (se *session) prepare() error {
	se.boot, se.local = readBootID(se.host.bootID), se.folder.isLocal()
	if se.local && se.upToDate() {
		return nil
	}
	earlier := se.fromEarlierBoots()
	cooldown := se.cooldown
	se.cooldown = 0 // no process of that boot is left that could mistake the new owner for the former one
	_, err := se.readAll(func(res reservation) bool { return !earlier[res.record] })
	se.cooldown = cooldown
	return err
}

// readBootID returns the ID of the running boot. If it is empty, the boot is unknown, and no
// reservation counts as one of an earlier boot.
func readBootID(path string) string {
	text, _, err := workingDir.read(path)
	if err != nil {
		return ""
	}
	id := strings.TrimSpace(string(text))
	return id[:min(len(id), 40)]
}

// readAndKeepAll reads all reservations and releases none.
func (se *session) readAndKeepAll() error {
	_, err := se.readAll(func(reservation) bool { return true })
	return err
}

// readAll reads all reservations, and releases those for which keep returns false. failed
// joins the errors of the releases. err says that the folder could not be read.
func (se *session) readAll(keep func(reservation) bool) (failed, err error) {
	se.known, se.taken = map[fileID][]record{}, addressSet{}
	se.complete, se.listed = true, true
	se.readErr, se.recordErr = nil, nil
	se.lastRead = se.host.now()
	err = se.trace.Do("read reservations in "+se.dir, func() error {
		for name, err := range se.folder.names() {
			if err != nil {
				return err
			}
			if ip, ok := parseName(name); ok {
				failed = errors.Join(failed, se.readReservation(ip, keep))
			}
		}
		return nil
	})
	if err != nil {
		se.recordErr = err
	}
	return failed, err
}

// readReservation reads one reservation for readAll. It returns the error of its release. A
// reservation that cannot be read counts as taken by an unknown owner.
func (se *session) readReservation(ip netip.Addr, keep func(reservation) bool) error {
	res, err := se.read(ip)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil && se.readErr == nil { // there may be thousands of such errors: keep the first
		se.readErr = err
	}
	var failed error
	if !keep(res) {
		if failed = se.remove(res); failed == nil {
			return nil
		}
	}
	if !res.incomplete {
		se.taken.add(ip)
	}
	if res.owner != (owner{}) {
		id := res.owner.fileID()
		se.known[id] = append(se.known[id], res.record)
	}
	return failed
}

// listTaken finds the addresses that are reserved. It lists the names of the reservations and
// does not read the files.
func (se *session) listTaken() error {
	return se.trace.Do("list reservations in "+se.dir, func() error {
		n := 0
		for name, err := range se.folder.names() {
			if err != nil {
				return err
			}
			if ip, ok := parseName(name); ok {
				se.taken.add(ip)
			}
			n++
		}
		se.listed, se.names = true, n
		return nil
	})
}

// heldBy returns the reservations of an owner. The attachment's file says which reservations
// to read; heldBy returns those that exist and belong to the owner. If the file does not agree
// with them, heldBy reads all reservations. If it returns an error, the list may be incomplete.
func (se *session) heldBy(o owner) ([]reservation, error) {
	records, err := se.records(o)
	var held []reservation
	var failed []error
	for _, r := range records {
		res, readErr := se.read(r.addr)
		switch {
		case readErr != nil && !errors.Is(readErr, fs.ErrNotExist):
			failed = append(failed, readErr)
		case readErr != nil || res.owner != o:
			err = errDamaged
		default:
			held = append(held, res)
		}
	}
	if len(failed) > 0 {
		return held, errors.Join(failed...)
	}
	if err == nil || se.complete {
		return held, nil
	}
	if err := se.readAndKeepAll(); err != nil {
		return nil, err
	}
	return se.heldBy(o)
}

// heldByOrLegacy returns the reservations of an owner or, if there are none, the legacy
// reservations of the same container. If it finds none and a reservation could not be read, it
// returns the error of that reservation, which may belong to the owner.
func (se *session) heldByOrLegacy(o owner) ([]reservation, error) {
	held, err := se.heldBy(o)
	if err == nil && len(held) == 0 {
		held, err = se.heldBy(o.legacy())
	}
	if err == nil && len(held) == 0 {
		err = se.readErr
	}
	return held, err
}

// cursor returns the address that was allocated last from range set n, or an invalid address
// if that is unknown.
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

// setCursor records the address that was allocated last from range set n. It overwrites the
// old text and then truncates the file, so that the file is never empty. After a crash, the
// file may have another address. That does no harm: it is only where the next search begins.
func (se *session) setCursor(n int, ip netip.Addr) error {
	name, content := cursorName(n), []byte(ip.String())
	return se.trace.Do("advance "+name, func() error {
		se.changed = true
		f, err := se.folder.open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK)
		if err == nil {
			err = errors.Join(overwrite(f, content), f.Close())
		}
		if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) || errors.Is(err, errSpecial) { // a symbolic link, a socket, a named pipe
			err = se.folder.writeNew(name, content)
		}
		return err
	})
}

// overwrite replaces the content of a file that was just opened. It truncates the file only if
// the old content was longer: truncation is the slowest step (an ext4 transaction), even if it
// changes nothing.
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

// isDiskFull reports whether err says that the disk or the disk quota is full.
func isDiskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
