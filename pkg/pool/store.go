package pool

import (
	"errors"
	"io/fs"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
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
	machine    Machine
	dir        string // <dataDir>/<network>
	privateDir string // <dataDir>/.plumb/<network>
	cooldown   time.Duration
	trace      *trace.Tracer
}

// A Store has the reservations of one network. It is what DEL and GC need of the configuration.
type Store struct{ store }

// NewStore returns the store of the network of the request. It reads only dataDir and cooldown, and
// ignores an invalid cooldown. An error has types.CodeConfig or types.CodeDecode.
func (m Machine) NewStore(r *skel.Request) (Store, error) {
	conf, err := parseStoreConf(r)
	return m.newStore(r, conf), err
}

// newStore returns the store of the network of the request.
func (m Machine) newStore(r *skel.Request, c storeConf) Store {
	return Store{store{
		machine: m, cooldown: c.cooldown, trace: r.Trace,
		dir:        filepath.Join(c.dataDir, r.Conf.Name),
		privateDir: filepath.Join(c.dataDir, ".plumb", r.Conf.Name),
	}}
}

// PrivatePath returns <dataDir>/.plumb/.<name>/<network>, the path of a file in which a plugin keeps what
// it has to know of the network beside the reservations. This package neither makes its folder nor reads
// or removes the file. Change the file only while the network's folder is locked (Lock, Allocate).
func (s Store) PrivatePath(name string) string {
	return filepath.Join(filepath.Dir(s.privateDir), "."+name, filepath.Base(s.privateDir))
}

// Path returns the path of the file with the reservation of an address.
func (s Store) Path(ip netip.Addr) string { return filepath.Join(s.dir, ip.String()) }

// Release removes the reservations of the attachment of the request or, if there are none, the legacy
// reservations of its container. If there is no folder, it does nothing. The result has all addresses whose
// reservations were removed, also if there is an error. Besides those of the attachment, these can be
// incomplete reservations and, at the first call after a reboot, those of earlier boots.
func (s Store) Release(r *skel.Request) (released []netip.Addr, err error) {
	return s.lockAndRelease(func(se *Session) error { return se.releaseAll(ownerOf(r)) })
}

// ReleaseInvalid removes the reservations of attachments that are not valid (GC), and incomplete ones. A
// legacy reservation stays if any interface of its container is valid. Files that are not regular or
// too large stay. Reservations that cannot be read stay, too; ReleaseInvalid returns the first of their
// errors after it has handled all others. The result is that of Release.
func (s Store) ReleaseInvalid(r *skel.Request) (released []netip.Addr, err error) {
	valid := map[owner]bool{}
	for a := range r.Valid() {
		o := owner{a.ContainerID, a.IfName}
		valid[o], valid[o.legacy()] = true, true
	}
	return s.lockAndRelease(func(se *Session) error {
		failed, err := se.readAll(func(res reservation) bool { return valid[res.owner] || res.owner == owner{} })
		return errors.Join(failed, se.readErr, err)
	})
}

// lockAndRelease calls f with the lock, and returns the addresses whose reservations the session removed.
func (s Store) lockAndRelease(f func(*Session) error) (released []netip.Addr, err error) {
	err = s.ignoreNoReservations(s.Lock(func(se *Session) error {
		err := f(se)
		released = se.released
		return err
	}))
	return released, err
}

// Lock calls f while this process holds the lock of the network's folder. If the folder does not exist,
// it does not call f, and the error matches fs.ErrNotExist. An error without a code gets types.CodeIO.
// f must not do anything slow.
func (s Store) Lock(f func(*Session) error) error { return s.withLock(f) }

// createAndLock is withLock for a store whose folder may not exist yet: it makes the folder. All
// containers of the network share the folder, so ADD does not undo this.
func (s store) createAndLock(f func(*Session) error) error {
	err := s.trace.Do("make folder "+s.dir, func() error { return os.MkdirAll(s.dir, 0o755) })
	if err != nil {
		return types.Coded(types.CodeIO, err)
	}
	return s.withLock(f)
}

// withLock is Store.Lock.
func (s store) withLock(f func(*Session) error) error {
	se, err := s.open()
	if err != nil {
		return types.Coded(types.CodeIO, err)
	}
	defer se.close()
	if err := se.prepare(); err != nil {
		return types.Coded(types.CodeIO, err)
	}
	defer se.save()
	return types.Coded(types.CodeIO, f(se))
}

// ignoreNoReservations returns nil instead of an error that means that the network has no
// reservations: its folder does not exist, or cannot exist because the name is too long, or the
// folder is empty and the disk has no space for the lock file. It returns other errors unchanged.
func (s store) ignoreNoReservations(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENAMETOOLONG) {
		return nil
	}
	if isDiskFull(err) {
		if files, readErr := os.ReadDir(s.dir); readErr == nil && len(files) == 0 {
			return nil
		}
	}
	return err
}

// A Session is a store whose lock this process holds. Lock and Allocate pass it to functions; it is not
// valid after they return.
type Session struct {
	store
	folder folder // dir
	lock   int    // the lock file; -1: the folder is read-only, and nothing can change
	inode  uint64 // of the folder
	found  times  // times of the folder when the lock was acquired
	local  bool   // see isLocal
	boot   string // ID of the running boot; empty: not known

	files      folder // the folder of the attachments' files
	filesTimes times  // times of that folder
	// known has the records of the attachments for which a reservation was made or removed, by the
	// name of the attachment's file. If complete is set, it has those of all attachments that hold
	// an address.
	known     map[string][]record
	complete  bool
	readErr   error        // the first error of the last reading of all reservations
	recordErr error        // if set, known is incomplete: an attachment's file could not be read
	changed   bool         // whether the session changed something in folder
	released  []netip.Addr // addresses whose reservations the session removed

	releasesReady bool // see prepareReleases

	// names has the names of the files in folder; nil: free has not listed it yet.
	names map[string]bool
}

// open opens and locks the folder at s.dir. While open waits for the lock, another process may
// remove the folder and make it again. Then open begins again with the new folder.
func (s store) open() (*Session, error) {
	for {
		se := &Session{store: s, folder: noFolder, files: noFolder, lock: -1, known: map[string][]record{}}
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
func (se *Session) openFolder() error {
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
	return se.trace.Do("lock "+se.dir, func() error { return acquireLock(lock, filepath.Join(se.dir, "lock"), se.machine.Wait) })
}

var errNotRegular = errors.New("not a regular file; remove it")

// openLock opens the lock file. It returns an error if the file is not regular; it does not
// block on a named pipe.
func (d folder) openLock(flags int) (int, error) {
	fd, err := d.openFD("lock", flags|unix.O_RDONLY|unix.O_NONBLOCK, 0o750)
	if errors.Is(err, unix.ENXIO) { // a socket
		return -1, d.pathError("open", "lock", errNotRegular)
	}
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, d.pathError("open", "lock", errors.Join(unix.Close(fd), errNotRegular))
	}
	return fd, nil
}

// isLockCurrent reports whether the locked file is still the lock file of the folder: another
// process may have replaced it.
func (se *Session) isLockCurrent() bool {
	if se.lock < 0 {
		return true
	}
	var locked, now unix.Stat_t
	return unix.Fstat(se.lock, &locked) == nil && unix.Fstatat(se.folder.fd, "lock", &now, 0) == nil && locked.Ino == now.Ino
}

// close releases the lock and closes the folders.
func (se *Session) close() {
	se.files.close()
	if se.lock >= 0 {
		_ = unix.Close(se.lock)
	}
	se.folder.close()
}

// prepare removes what a crash of createFile left, and opens the attachments' files. If they are not
// up to date, or if the file system is not local, prepare reads all reservations instead. It then also
// releases the reservations of earlier boots: no container survives a reboot.
func (se *Session) prepare() error {
	_ = workingDir.remove(se.newPath())
	se.boot, se.local = readBootID(se.machine.BootID), se.folder.isLocal()
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

// readAll reads all reservations. It releases those for which keep returns false, and incomplete
// ones. failed joins the errors of the releases. err says that the folder could not be read.
func (se *Session) readAll(keep func(reservation) bool) (failed, err error) {
	se.known, se.complete = map[string][]record{}, true
	se.readErr, se.recordErr = nil, nil
	err = se.trace.Do("read reservations in "+se.dir, func() error {
		names, err := se.folder.names()
		for _, name := range names {
			if ip, ok := parseName(name); ok {
				failed = errors.Join(failed, se.readReservation(ip, keep))
			}
		}
		return err
	})
	if err != nil {
		se.recordErr = err
	}
	return failed, err
}

// readReservation reads one reservation for readAll. It returns the error of its release. A
// reservation that cannot be read counts as taken by an unknown owner.
func (se *Session) readReservation(ip netip.Addr, keep func(reservation) bool) error {
	res, err := se.read(ip)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil && se.readErr == nil { // there may be thousands of such errors: keep the first
		se.readErr = err
	}
	var failed error
	if res.incomplete || !keep(res) {
		if failed = se.remove(res); failed == nil {
			return nil
		}
	}
	if res.owner != (owner{}) {
		name := res.owner.fileName()
		se.known[name] = append(se.known[name], res.record)
	}
	return failed
}

// maxLookups is the number of addresses that free looks up one by one, before it lists the folder.
const maxLookups = 64

// free returns those of the candidates that are neither reserved nor cooling down, in the same order.
// The time to find one depends on how many before it are reserved or cool down, not on the number of
// candidates. If the folder cannot be listed, the error is the last element.
func (se *Session) free(candidates iter.Seq[netip.Addr]) iter.Seq2[netip.Addr, error] {
	return func(yield func(netip.Addr, error) bool) {
		cooling, lookups := se.readCooling(), 0
		for ip := range candidates {
			if _, cools := cooling[ip]; cools {
				continue
			}
			if lookups++; lookups > maxLookups && se.names == nil {
				if err := se.listNames(); err != nil {
					yield(netip.Addr{}, err)
					return
				}
			}
			if !se.isTaken(ip) && !yield(ip, nil) {
				return
			}
		}
	}
}

// Free returns those of the addresses that are neither reserved nor cooling down, in the same order.
func (se *Session) Free(addrs []netip.Addr) ([]netip.Addr, error) {
	var free []netip.Addr
	for ip, err := range se.free(slices.Values(addrs)) {
		if err != nil {
			return nil, err
		}
		free = append(free, ip)
	}
	return free, nil
}

// Boot returns the ID of the running boot, or an empty text if it cannot be read. What a file says of an
// earlier boot may not be true any more.
func (se *Session) Boot() string { return se.boot }

// isTaken reports whether an address has a reservation.
func (se *Session) isTaken(ip netip.Addr) bool {
	if se.names != nil {
		var name [64]byte
		return se.names[string(ip.AppendTo(name[:0]))]
	}
	_, err := se.folder.stat(ip.String())
	return !errors.Is(err, fs.ErrNotExist)
}

// listNames sets names.
func (se *Session) listNames() error {
	return se.trace.Do("list reservations in "+se.dir, func() error {
		list, err := se.folder.names()
		if err != nil {
			return err
		}
		se.names = make(map[string]bool, len(list))
		for _, name := range list {
			se.names[name] = true
		}
		return nil
	})
}

// heldBy returns the reservations of an owner. The attachment's file says which reservations
// to read; heldBy returns those that exist and belong to the owner. If the file does not agree
// with them, heldBy reads all reservations. If it returns an error, the list may be incomplete.
func (se *Session) heldBy(o owner) ([]reservation, error) {
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
	if _, err := se.readAll(func(reservation) bool { return true }); err != nil {
		return nil, err
	}
	return se.heldBy(o)
}

// heldByOrLegacy returns the reservations of an owner or, if there are none, the legacy
// reservations of the same container. If it finds none and a reservation could not be read, it
// returns the error of that reservation, which may belong to the owner.
func (se *Session) heldByOrLegacy(o owner) ([]reservation, error) {
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
func (se *Session) cursor(n int) netip.Addr {
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

// setCursor records the address that was allocated last from range set n. After a crash, the file
// may be missing. That does no harm: it is only where the next search begins.
func (se *Session) setCursor(n int, ip netip.Addr) error {
	return se.trace.Do("advance "+cursorName(n), func() error {
		se.changed = true
		return se.folder.replace(cursorName(n), []byte(ip.String()))
	})
}

// isDiskFull reports whether err says that the disk or the disk quota is full.
func isDiskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
