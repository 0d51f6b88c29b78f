package pool

import (
	"cmp"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"golang.org/x/sys/unix"
)

// An address file lists the addresses of one attachment, one per line, so that ADD, CHECK and DEL need not read all
// reservations. The plugin writes one for each attachment to which it gives addresses, in
//
//	<dataDir>/.plumb/<network>/<boot ID>
//
// The name of the file is a hash of the attachment. The file may be missing, outdated or damaged. The plugin uses a
// line only if the reservation itself names the attachment. After a reboot, the plugin also compares the time of the
// reservation's file, because the reference plugin may have reserved the address for the same attachment again. Nothing
// is synced to disk, because after a power loss the boot ID differs.

// addressFileName returns the name of the owner's address file. It is a hash, because a container ID can be longer than a
// file name.
func (o owner) addressFileName() string { return types.ShortHash(o.text()) }

// An addressLine is a line of an address file.
type addressLine struct {
	addr     netip.Addr // the address, or the zero Addr if the line is damaged
	written  string     // the timestamp of the reservation
	workload string     // the workload that remember records when the address is released, or ""
}

// timestamp returns the modification time of a reservation in nanoseconds. It distinguishes the file from a later file
// with the same name, even if a clock was set back. Unlike the inode number, it is the same in a copy with the original
// times, such as a restored backup, whose reservations belong to containers that no longer run.
func timestamp(written time.Time) string { return strconv.FormatInt(written.UnixNano(), 10) }

// namedAddrs returns the addresses that the owner's address file names. For a damaged line, it returns the zero Addr.
func (se *Session) namedAddrs(o owner) (addrs []netip.Addr) {
	for _, line := range se.addressFiles.readAddressFile(o.addressFileName()) {
		addrs = append(addrs, line.addr)
	}
	return slices.Compact(addrs) // an address has two lines if write could not create a hard link
}

func (d directory) readAddressFile(name string) []addressLine {
	text, _, _ := d.read(name) // an unreadable address file counts as missing
	return parseAddressFile(string(text))
}

func parseAddressFile(text string) (lines []addressLine) {
	for line := range strings.Lines(text) {
		addr, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		written, workload, _ := strings.Cut(rest, " ")
		ip, ok := parseName(addr)
		if !ok {
			ip = netip.Addr{}
		}
		lines = append(lines, addressLine{ip, written, workload})
	}
	return lines
}

// addAddress adds an address to the owner's address file. written is the time at which its reservation was written. If
// the addition fails, for example because the disk is full, addAddress calls dropAddressFile.
func (se *Session) addAddress(o owner, ip netip.Addr, written time.Time) error {
	f, err := se.addressFiles.open(o.addressFileName(), unix.O_APPEND|unix.O_CREAT)
	if err == nil {
		line := ip.String() + " " + timestamp(written)
		if se.store.sticky.workload != "" {
			line += " " + se.store.sticky.workload
		}
		_, err = f.WriteString(line + "\n")
		err = errors.Join(err, f.Close())
	}
	if err == nil {
		return nil
	}
	return se.dropAddressFile(o)
}

// dropAddressFile removes the owner's address file. The owner gets no other one in this session, because DEL would not find
// an address that is missing in it.
func (se *Session) dropAddressFile(o owner) error {
	if _, _, err := se.addressFiles.read(o.addressFileName()); !errors.Is(err, fs.ErrNotExist) {
		if err := se.removeAddressFile(o); err != nil {
			return err
		}
	}
	se.addressFiles.close()
	se.addressFiles = noDirectory
	return nil
}

// removeAddressFilesExcept removes the address files of all other owners. A killed ADD can leave an address file
// without a reservation.
func (se *Session) removeAddressFilesExcept(owners map[owner]bool) error {
	if se.addressFiles == noDirectory {
		return nil
	}
	keep := map[string]bool{}
	for o := range owners {
		keep[o.addressFileName()] = true
	}
	names, err := se.addressFiles.names()
	for _, name := range names {
		if !keep[name] {
			err = cmp.Or(err, se.ignoreNotRegular("it stays", se.addressFiles.remove(name)))
		}
	}
	return err
}

func (se *Session) removeAddressFile(o owner) error {
	if se.addressFiles == noDirectory {
		return nil
	}
	return se.addressFiles.remove(o.addressFileName())
}

// openAddressFiles opens the directory of the address files, and removes a file that a crash during write left. The
// first session of a boot releases the reservations of earlier boots, because no container survives a reboot, and then
// creates the directory.
func (se *Session) openAddressFiles() {
	_ = workingDir.remove(se.store.newPath())
	se.boot = readBootID(se.store.machine.BootID)
	path := filepath.Join(se.store.privateDir, se.boot)
	if se.boot == "" {
		return
	}
	files, err := openDirectory(path, unix.O_NOFOLLOW)
	if err != nil && se.lock >= 0 && se.dir.isLocal() { // elsewhere, nothing would remove the directory after the next boot
		se.releaseEarlierBoots()
		_ = os.MkdirAll(path, 0o700)
		files, err = openDirectory(path, unix.O_NOFOLLOW)
	}
	if err == nil {
		se.addressFiles = files
	}
}

// releaseEarlierBoots releases the reservations that the address files of earlier boots name, and removes these files
// and any other file beside them. There is no cooldown, because no process of an earlier boot is left that could
// confuse the new owner of an address with the former one.
func (se *Session) releaseEarlierBoots() {
	cooldown := se.store.cooldown
	se.store.cooldown = 0
	entries, _ := os.ReadDir(se.store.privateDir)
	for _, e := range entries {
		if e.Name() == releasesName || e.Name() == se.boot && e.IsDir() {
			continue
		}
		path := filepath.Join(se.store.privateDir, e.Name())
		if files, err := openDirectory(path, unix.O_NOFOLLOW); err == nil {
			se.releaseAddresses(files)
			files.close()
		}
		_ = os.RemoveAll(path)
	}
	se.store.cooldown = cooldown
}

// releaseAddresses releases the reservations that the address files in a directory name. A reservation with another
// modification time belongs to another boot, even if its owner is the same.
func (se *Session) releaseAddresses(files directory) {
	names, _ := files.names()
	for _, name := range names {
		for _, line := range files.readAddressFile(name) {
			res, err := se.dir.reservation(line.addr)
			if err == nil && res.owner.addressFileName() == name && timestamp(res.written) == line.written {
				res.workload = line.workload
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
