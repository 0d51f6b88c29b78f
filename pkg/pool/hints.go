package pool

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/pkg/statefile"
	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// ADD, CHECK and DEL need the addresses of one attachment, and find them without reading all reservations. Each attachment
// with an address from this plugin has a hint, which is a file with one line per address in
//
//	<dataDir>/.plumb/<network>/<boot ID>
//
// The name of the file is a hash of the attachment. A hint may be missing, outdated or damaged, because the plugin uses it only
// as far as the reservations themselves name the attachment. After a reboot, the plugin uses it only if the reservation's
// file is the one that this plugin wrote, because the reference plugin may have reserved the address for the same attachment
// again. Nothing is synced to disk, because the boot ID is another one after a power loss.

// hintName returns the name of the owner's hint. It is a hash, because a container ID can be longer than a
// file name.
func (o owner) hintName() string { return statefile.ShortHash(o.text()) }

// A hintLine is a line of a hint.
type hintLine struct {
	addr    netip.Addr // invalid: the line is damaged
	written string     // the timestamp of the reservation
}

// timestamp returns the modification time of a reservation in nanoseconds. It distinguishes the file from a later file with
// the same name, even if a clock went back. Unlike the inode number, it is the same in a copy that keeps the times, such as
// a restored backup, whose reservations belong to containers that no longer run.
func timestamp(written time.Time) string { return strconv.FormatInt(written.UnixNano(), 10) }

// hinted returns the addresses that the owner's hint names. An address of a damaged line is invalid.
func (se *Session) hinted(o owner) (addrs []netip.Addr) {
	for _, line := range se.hints.readHint(o.hintName()) {
		addrs = append(addrs, line.addr)
	}
	return slices.Compact(addrs) // an address has two lines if write could not create a hard link
}

// readHint returns the lines of a hint.
func (d directory) readHint(name string) (lines []hintLine) {
	text, _, _ := d.read(name) // a hint that cannot be read counts as missing
	for line := range strings.Lines(string(text)) {
		addr, written, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		ip, ok := parseName(addr)
		if !ok {
			ip = netip.Addr{}
		}
		lines = append(lines, hintLine{ip, written})
	}
	return lines
}

// addHint adds an address, whose reservation was written at that time, to the owner's hint. If that fails, for example
// because the disk is full, the owner gets no hint at all in this session, because DEL would not find an address that is
// missing in a hint.
func (se *Session) addHint(o owner, ip netip.Addr, written time.Time) error {
	f, err := se.hints.open(o.hintName(), unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if err == nil {
		_, err = fmt.Fprintf(f, "%s %s\n", ip, timestamp(written))
		err = errors.Join(err, f.Close())
	}
	if err == nil {
		return nil
	}
	if _, _, err := se.hints.read(o.hintName()); !errors.Is(err, fs.ErrNotExist) {
		if err := se.dropHint(o); err != nil {
			return err
		}
	}
	se.hints.close()
	se.hints = noDirectory
	return nil
}

// dropHintsExcept removes all hints except those of these owners. A killed ADD can leave a hint without a reservation.
func (se *Session) dropHintsExcept(owners map[owner]bool) error {
	if se.hints == noDirectory {
		return nil
	}
	keep := map[string]bool{}
	for o := range owners {
		keep[o.hintName()] = true
	}
	names, err := se.hints.names()
	for _, name := range names {
		if !keep[name] {
			err = cmp.Or(err, se.hints.remove(name))
		}
	}
	return err
}

// dropHint removes the owner's hint, if there is one.
func (se *Session) dropHint(o owner) error {
	if se.hints == noDirectory {
		return nil
	}
	return se.hints.remove(o.hintName())
}

// openHints opens the directory of the hints, and removes the file that a crash of write left. The first session of a boot
// releases the reservations of earlier boots, because no container survives a reboot, and then creates the directory.
func (se *Session) openHints() {
	_ = workingDir.remove(se.store.newPath())
	se.boot = readBootID(se.store.machine.BootID)
	path := filepath.Join(se.store.privateDir, se.boot)
	if se.boot == "" {
		return
	}
	hints, err := openDirectory(path, unix.O_NOFOLLOW)
	if err != nil && se.lock >= 0 && se.dir.isLocal() { // elsewhere, nothing would remove the directory after the next boot
		se.releaseEarlierBoots()
		_ = os.MkdirAll(path, 0o700)
		hints, err = openDirectory(path, unix.O_NOFOLLOW)
	}
	if err == nil {
		se.hints = hints
	}
}

// releaseEarlierBoots releases the reservations that the hints of earlier boots name, and removes these hints.
// It also removes any other file in the place of the directory of the hints. There is no cooldown, because no
// process of an earlier boot is left that could mistake the new owner for the former one.
func (se *Session) releaseEarlierBoots() {
	cooldown := se.store.cooldown
	se.store.cooldown = 0
	entries, _ := os.ReadDir(se.store.privateDir)
	for _, e := range entries {
		if e.Name() == releasesName || e.Name() == se.boot && e.IsDir() {
			continue
		}
		path := filepath.Join(se.store.privateDir, e.Name())
		if hints, err := openDirectory(path, unix.O_NOFOLLOW); err == nil {
			se.releaseHinted(hints)
			hints.close()
		}
		_ = os.RemoveAll(path)
	}
	se.store.cooldown = cooldown
}

// releaseHinted releases the reservations that the hints in a directory name. A reservation with another modification time
// belongs to another boot, even if its owner is the same.
func (se *Session) releaseHinted(hints directory) {
	names, _ := hints.names()
	for _, name := range names {
		for _, line := range hints.readHint(name) {
			res, err := se.dir.reservation(line.addr)
			if err == nil && res.owner.hintName() == name && timestamp(res.written) == line.written {
				_ = se.remove(res) // after an error, GC releases the reservation
			}
		}
	}
}

// isLocal reports whether the directory is on a file system that only this machine can use. On a shared
// file system, a reservation from another boot may belong to a running container of another machine.
func (d directory) isLocal() bool {
	var st unix.Statfs_t
	return types.RetryEINTR(func() error { return unix.Fstatfs(d.fd, &st) }) == nil && isLocalType(uint32(st.Type))
}

// isLocalType reports whether the file systems with this magic number (statfs(2)) are known to be local.
func isLocalType(magic uint32) bool {
	const zfs, bcachefs = 0x2fc12fc1, 0xca451a4e
	switch magic {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.F2FS_SUPER_MAGIC,
		unix.OVERLAYFS_SUPER_MAGIC, unix.RAMFS_MAGIC, zfs, bcachefs:
		return true
	}
	return false
}
