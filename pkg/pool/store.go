package pool

import (
	"cmp"
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

	"github.com/plumb-cni/plumb/v2/pkg/hostfile"
	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/sys/unix"
)

// A Store contains the reservations of one network, with one file per address. DEL and GC need no other part of the
// configuration. The files have the same format and the same lock as in the reference plugin, so that a node can switch
// between the plugins and keep the directory. The files that only plumb knows, which are the address files and the
// times of releases, are in another directory, because the reference plugin reads every file of dir. The path of that
// directory contains ".plumb", which cannot be the name of a network, because such a name cannot begin with a dot.
type Store struct {
	machine    Machine
	dataDir    string
	dir        string // <dataDir>/<network>
	privateDir string // <dataDir>/.plumb/<network>
	cooldown   time.Duration
	sticky     stickiness
	trace      *trace.Tracer
	warn       func(format string, args ...any)
}

// PrivatePath returns <dataDir>/.plumb/.<name>/<network>, the path of a file in which a plugin stores other data about
// the network. This package neither creates the file's directory nor reads or removes the file. Change the file only
// while the network's directory is locked (Lock, Allocate).
func (s Store) PrivatePath(name string) string {
	return filepath.Join(filepath.Dir(s.privateDir), "."+name, filepath.Base(s.privateDir))
}

// Path returns the path of an address's reservation file.
func (s Store) Path(ip netip.Addr) string { return filepath.Join(s.dir, ip.String()) }

// Release removes the reservations of the request's attachment or, if there are none, the legacy reservations of
// its container. It finds them by the attachment's address file or by prevResult, and otherwise reads all reservations.
// Without a directory, it does nothing. The result lists all addresses whose reservations were removed, even if there
// is an error. Besides the attachment's addresses, these can be addresses of incomplete reservations and, at the first
// call after a reboot, of reservations of earlier boots.
func (s Store) Release(r *skel.Request) (released []netip.Addr, err error) {
	err = s.lockIfReserved(func(se *Session) error {
		held, err := se.held(ownerOf(r), func() []netip.Addr {
			prev, _ := r.Prev() // ignore the error, of which Prev warns, because the reservations are the authority
			return prevAddrs(prev)
		})
		errs := []error{err}
		for _, res := range held {
			errs = append(errs, se.remove(res))
		}
		err = errors.Join(errs...)
		if err == nil {
			_ = se.removeAddressFile(ownerOf(r)) // an outdated address file does no harm
		}
		released = se.released
		return err
	})
	return released, err
}

// ReleaseInvalid removes the reservations of attachments that are not valid (GC), and incomplete reservations. A legacy
// reservation stays if any interface of its container is valid. Files that are not regular or too large stay.
// Reservations that cannot be read stay as well. ReleaseInvalid returns the first error of such a file after it has
// processed all others.
func (s Store) ReleaseInvalid(r *skel.Request) error {
	valid := map[owner]bool{{}: true} // a reservation of an unknown owner stays
	for a := range r.ValidAttachments() {
		o := owner{a.ContainerID, a.IfName}
		valid[o], valid[o.legacy()] = true, true
	}
	return s.lockIfReserved(func(se *Session) error {
		var first error
		err := se.readAll(func(res reservation, err error) {
			if err == nil && !valid[res.owner] {
				err = se.remove(res)
			}
			first = cmp.Or(first, err)
		})
		if se.openRecords() {
			if err := se.prune(nil); err != nil {
				s.warn("sticky: %v", err)
			}
		}
		return cmp.Or(err, first, se.removeAddressFilesExcept(valid))
	})
}

// prevAddrs returns the addresses of prevResult, which may be nil.
func prevAddrs(prev *types.Result) (addrs []netip.Addr) {
	if prev != nil {
		for _, ip := range prev.IPs {
			addrs = append(addrs, ip.Address.Addr())
		}
	}
	return addrs
}

// Lock calls f while this process holds the lock of the network's directory. If the directory does not exist, Lock does
// not call f, and the error matches fs.ErrNotExist. An error without a code gets types.CodeIO. f must return quickly,
// because other calls wait for the lock.
func (s Store) Lock(f func(*Session) error) error {
	se, err := s.open()
	if err != nil {
		return types.Coded(types.CodeIO, err)
	}
	defer se.close()
	se.openAddressFiles()
	return types.Coded(types.CodeIO, f(se))
}

// lockIfReserved calls Lock, but returns nil if the network has no reservations. In that case, its directory does not
// exist, the network's name is too long for a directory, or the directory is empty and the disk has no space for the
// lock file. If another kind of file is in the place of the directory, the reservations are lost, and lockIfReserved warns.
func (s Store) lockIfReserved(f func(*Session) error) error {
	err := s.Lock(f)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENAMETOOLONG) {
		return nil
	}
	if errors.Is(err, unix.ENOTDIR) {
		s.warn("%v; the reservations in it are lost, remove it", err)
		return nil
	}
	if isDiskFull(err) {
		if files, readErr := os.ReadDir(s.dir); readErr == nil && len(files) == 0 {
			return nil
		}
	}
	return err
}

// A Session gives access to a store while this process holds its lock. Lock and Allocate pass it to functions. It is
// not valid after they return.
type Session struct {
	store        Store
	dir          directory // the reservations
	addressFiles directory // the address files of the running boot, or noDirectory if the boot is unknown or the disk is full
	records      directory // the records of released addresses, or noDirectory until openRecords opens it
	lock         int       // descriptor of the lock file, or -1 if the directory is read-only, so that nothing can change
	boot         string    // ID of the running boot, or "" if it is unknown
	released     []netip.Addr

	releasesReady  bool // prepareReleases has run
	warnedOfRecord bool // remove has warned of an address that is not remembered

	// names contains the names of the files in dir. It is nil until free lists them.
	names map[string]bool
}

// open opens and locks the directory at s.dir. While open waits for the lock, another process may
// remove the directory, or its lock file, and create it again. In that case open begins again with the new one.
func (s Store) open() (*Session, error) {
	for {
		se := &Session{store: s, dir: noDirectory, addressFiles: noDirectory, records: noDirectory, lock: -1}
		err := se.openDir()
		if err == nil && se.isLockCurrent() {
			return se, nil
		}
		se.close()
		if err != nil {
			return nil, err
		}
	}
}

// openDir opens the directory and locks its lock file. A read-only directory has no lock.
func (se *Session) openDir() error {
	dir, err := openDirectory(se.store.dir, 0)
	if err != nil {
		return err
	}
	se.dir = dir
	lock, err := dir.openLock(unix.O_CREAT | unix.O_NOFOLLOW)
	if errors.Is(err, hostfile.ErrSymbolicLink) { // lock the target of a symbolic link, as the reference plugin does, but do not create it
		target, targetErr := dir.openLock(0)
		if !errors.Is(targetErr, unix.ENOENT) { // callers take ENOENT for a missing directory
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
	return se.store.trace.Do("lock "+dir.path, func() error {
		return acquireLock(lock, filepath.Join(dir.path, "lock"), se.store.machine.Wait)
	})
}

// openLock opens the lock file. If the file is not regular, the error matches hostfile.ErrNotRegular.
func (d directory) openLock(flags int) (int, error) {
	fd, _, err := hostfile.OpenAt(d.fd, "lock", flags|unix.O_RDONLY, 0o750)
	return fd, d.pathError("open", "lock", err)
}

// isLockCurrent reports whether the locked file is the lock file at the path of the directory, or there is no lock.
func (se *Session) isLockCurrent() bool {
	if se.lock < 0 {
		return true
	}
	var locked, now unix.Stat_t
	err := types.RetryEINTR(func() error { return unix.Stat(filepath.Join(se.dir.path, "lock"), &now) })
	return err == nil && unix.Fstat(se.lock, &locked) == nil && locked.Ino == now.Ino && locked.Dev == now.Dev
}

func (se *Session) close() {
	se.addressFiles.close()
	se.records.close()
	if se.lock >= 0 {
		_ = unix.Close(se.lock)
	}
	se.dir.close()
}

// readBootID returns the ID of the running boot. If it is empty, the boot is unknown, and no
// reservation counts as one of an earlier boot.
func readBootID(path string) string {
	text, _, _ := workingDir.read(path)
	id := strings.TrimSpace(string(text))
	return id[:min(len(id), 40)]
}

// readAll releases incomplete reservations, and calls f with all others. It also calls f, with the error and without an owner,
// for each reservation that it cannot read or release.
func (se *Session) readAll(f func(res reservation, err error)) error {
	return se.store.trace.Do("read reservations in "+se.dir.path, func() error {
		return se.dir.eachReservation(func(res reservation, err error) {
			if res.incomplete {
				err = se.remove(res)
			}
			if !res.incomplete || err != nil {
				f(res, err)
			}
		})
	})
}

// maxLookups is the number of addresses that free looks up one by one, before it lists the directory.
const maxLookups = 64

// free returns the candidates that are neither reserved nor cooling down, in the same order. The time until it finds
// one depends on how many candidates before it are reserved or cool down, not on the number of candidates. If the
// directory cannot be listed, the error is the last element.
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

// Free returns the addresses that are neither reserved nor cooling down, in the same order.
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

// Boot returns the ID of the running boot, or "" if it cannot be read. A file of an earlier boot may be outdated.
func (se *Session) Boot() string { return se.boot }

func (se *Session) isTaken(ip netip.Addr) bool {
	if se.names != nil {
		var name [64]byte
		return se.names[string(ip.AppendTo(name[:0]))]
	}
	_, err := se.dir.stat(ip.String())
	return !errors.Is(err, fs.ErrNotExist)
}

func (se *Session) listNames() error {
	return se.store.trace.Do("list reservations in "+se.dir.path, func() error {
		list, err := se.dir.names()
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

// Held returns the addresses that are reserved for the attachment of the request.
func (se *Session) Held(r *skel.Request) (addrs []netip.Addr, err error) {
	held, err := se.held(ownerOf(r), nil)
	for _, res := range held {
		addrs = append(addrs, res.addr)
	}
	return addrs, err
}

// held returns the reservations of an owner or, if there are none, the legacy reservations of the same container. It
// looks at the addresses in the owner's address file, then at the addresses that prev returns, if prev is not nil, and
// then at all reservations. If it finds none, and a reservation that may belong to the owner could not be read, it
// returns the error of that reservation.
func (se *Session) held(o owner, prev func() []netip.Addr) ([]reservation, error) {
	found, all, err := se.confirm(o, se.namedAddrs(o))
	if !all && err == nil && prev != nil {
		found, all, err = se.confirm(o, prev())
	}
	if all || err != nil {
		return found, err
	}
	var legacy []reservation
	var first error
	found = nil
	err = se.readAll(func(res reservation, err error) {
		first = cmp.Or(first, err)
		switch res.owner {
		case o:
			found = append(found, res)
		case o.legacy():
			legacy = append(legacy, res)
		}
	})
	if len(found) == 0 {
		found = legacy
	}
	if len(found) == 0 {
		err = cmp.Or(err, first)
	}
	return found, err
}

// confirm returns the reservations of the addresses that belong to the owner. all is true if there are addresses and all of
// them belong to the owner.
func (se *Session) confirm(o owner, addrs []netip.Addr) (found []reservation, all bool, err error) {
	for _, ip := range addrs {
		res, err := se.dir.reservation(ip)
		if types.IgnoreNotExist(err) != nil {
			return nil, false, err
		}
		if err == nil && res.owner == o {
			found = append(found, res)
		}
	}
	return found, len(found) > 0 && len(found) == len(addrs), nil
}

// cursor returns the address that was allocated last from range set n, or an invalid address
// if that is unknown.
func (se *Session) cursor(n int) netip.Addr {
	text, _, _ := se.dir.read(cursorName(n))
	ip, _ := netip.ParseAddr(strings.TrimSpace(string(text)))
	return ip.Unmap()
}

func cursorName(n int) string { return cursorPrefix + strconv.Itoa(n) }

const cursorPrefix = "last_reserved_ip."

// setCursor records the address that was allocated last from range set n. After a crash, the file may be missing, which is
// harmless because it only determines where the next search begins. Therefore setCursor only warns if the file is a directory.
func (se *Session) setCursor(n int, ip netip.Addr) error {
	return se.ignoreNotRegular("each search begins at the start of the range", se.store.trace.Do("advance "+cursorName(n), func() error {
		return se.dir.replace(cursorName(n), []byte(ip.String()))
	}))
}

// ignoreNotRegular returns nil, after a warning with the consequence, if err matches hostfile.ErrNotRegular, and otherwise
// err.
func (se *Session) ignoreNotRegular(consequence string, err error) error {
	if errors.Is(err, hostfile.ErrNotRegular) {
		se.store.warn("%v; meanwhile, %s", err, consequence)
		return nil
	}
	return err
}

// isDiskFull reports whether err means that the disk or the disk quota is full.
func isDiskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
