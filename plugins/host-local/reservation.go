package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/plumb-cni/plumb/pkg/undo"
	"golang.org/x/sys/unix"
)

// An owner is whom a reservation belongs to. A legacy one, of the days before
// several interfaces a container, has no IfName.
type owner struct{ containerID, ifName string }

// legacy is the owner under whom old reservations of the same container stand.
func (o owner) legacy() owner { return owner{containerID: o.containerID} }

// text is the content of a reservation file.
func (o owner) text() string {
	if o.ifName == "" {
		return o.containerID
	}
	return o.containerID + "\r\n" + o.ifName
}

// parseOwner reads a reservation file. White space around the content is nothing,
// as in the reference. ok is false for what a crash leaves of a file that was
// created first and written later: nothing, zeros, or no name of an owner.
func parseOwner(content []byte) (o owner, ok bool) {
	id, ifName, two := strings.Cut(strings.TrimSpace(string(content)), "\r\n")
	if !validID(id) || two && !validIfName(ifName) {
		return owner{}, false
	}
	return owner{id, ifName}, true
}

// validID is the specification's rule for container IDs.
func validID(s string) bool {
	for i, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || c != '_' && c != '.' && c != '-') {
			return false
		}
	}
	return s != ""
}

// validIfName is what the kernel takes as the name of an interface.
func validIfName(s string) bool {
	return s != "" && len(s) <= 15 && !strings.ContainsFunc(s, func(c rune) bool {
		return c <= ' ' || c == '/' || c == ':' || c == 0x7f
	})
}

// parseName reads the name of a reservation file. Only the form that the plugins
// write is a reservation: lock and last_reserved_ip.N are not.
func parseName(name string) (netip.Addr, bool) {
	ip, err := netip.ParseAddr(name)
	var text [64]byte
	return ip, err == nil && !ip.Is4In6() && ip.Zone() == "" && string(ip.AppendTo(text[:0])) == name
}

// A holding is what a reservation file says.
type holding struct {
	record
	owner owner
	torn  bool // what a crash left: nobody's
}

func (se *session) path(ip netip.Addr) string { return filepath.Join(se.dir, ip.String()) }

// read reads the reservation of ip. The error matches fs.ErrNotExist when there is
// none; with any other one the address is taken, and it is not known by whom. What is
// no file, or one too large, takes the address, too, but has no owner.
func (se *session) read(ip netip.Addr) (holding, error) {
	h := holding{record: record{addr: ip}}
	content, st, err := se.folder.read(ip.String())
	if errors.Is(err, errSpecial) {
		return h, nil
	}
	if err != nil {
		return h, err
	}
	h.ino, h.mtime = st.Ino, st.Mtim.Nano()
	who, ok := parseOwner(content)
	h.owner, h.torn = who, !ok
	return h, nil
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
		return s.ignoreNoneHeld(s.withLock(func(se *session) error { return se.release(ip, o) }))
	})
	return nil
}

func (se *session) write(ip netip.Addr, o owner) error {
	name, content := ip.String(), []byte(o.text())
	err := se.link(name, content)
	if errors.Is(err, fs.ErrExist) {
		h, rerr := se.read(ip)
		if !errors.Is(rerr, fs.ErrNotExist) && !h.torn {
			return &errTaken{h}
		}
		// Under the lock no honest writer is between making a file and writing it.
		se.changed = true
		if err := se.folder.remove(name); err != nil {
			return &fs.PathError{Op: "reclaim", Path: se.path(ip), Err: cause(err)}
		}
		err = se.link(name, content)
	}
	if err != nil {
		return &fs.PathError{Op: "reserve", Path: se.path(ip), Err: cause(err)}
	}
	se.changed = true
	se.taken.add(ip)
	st, err := se.folder.stat(name)
	if err != nil {
		return err
	}
	se.addRecord(o, record{addr: ip, ino: st.Ino, mtime: st.Mtim.Nano()})
	return nil
}

// link makes the file name, whole or not at all: it gets its name when it has its
// content. Filesystems without nameless files (O_TMPFILE: overlayfs before 6.1,
// NFS) or a system without /proc take a file of our own folder.
func (se *session) link(name string, content []byte) error {
	f, err := se.folder.open(".", unix.O_WRONLY|unix.O_TMPFILE)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EINVAL) {
		return se.linkNamed(name, content)
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Write(content); err != nil {
		return err
	}
	err = se.folder.link(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), name, unix.AT_SYMLINK_FOLLOW)
	if errors.Is(err, fs.ErrNotExist) {
		return se.linkNamed(name, content)
	}
	return err
}

// linkNamed is link by way of a file in our own folder, and where there are no hard
// links either, the way of the reference: create, then write.
func (se *session) linkNamed(name string, content []byte) error {
	if err := os.MkdirAll(se.privateDir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(se.privateDir, "new")
	// What a crash left may be a second name of a live reservation: writeNew does not
	// write to it.
	if err := here.writeNew(path, content); err != nil {
		return err
	}
	err := se.folder.link(path, name, 0)
	_ = here.remove(path)
	if err == nil || errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := se.folder.open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, se.folder.remove(name))
	}
	return nil
}

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
		recorded := se.recordRelease(h.addr)
		if recorded != nil && !errors.Is(recorded, unix.EROFS) && !isDiskFull(recorded) {
			return &fs.PathError{Op: "record release", Path: se.path(h.addr), Err: recorded}
		}
		if err := se.folder.remove(h.addr.String()); err != nil {
			return &fs.PathError{Op: "release", Path: se.path(h.addr), Err: cause(err)}
		}
		if isDiskFull(recorded) {
			// There may be room now. If not, an address that does not cool down is better
			// than a container that cannot be deleted.
			_ = se.recordRelease(h.addr)
		}
		se.changed = true
		se.taken.remove(h.addr)
		if h.owner != (owner{}) {
			se.removeRecord(h)
		}
		return nil
	})
}
