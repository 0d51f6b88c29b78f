package pool

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/skel"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/undo"
	"golang.org/x/sys/unix"
)

// An owner is the attachment that a reservation belongs to. A legacy owner has no ifName, because the reference plugin
// wrote such reservations before it supported several interfaces per container.
type owner struct{ containerID, ifName string }

// ownerOf returns the attachment of the request as an owner.
func ownerOf(r *skel.Request) owner { return owner{r.ContainerID, r.IfName} }

// legacy returns the owner of the container's legacy reservations.
func (o owner) legacy() owner { return owner{containerID: o.containerID} }

// text returns the content of the owner's reservation files.
func (o owner) text() string {
	if o.ifName == "" {
		return o.containerID
	}
	return o.containerID + "\r\n" + o.ifName
}

// parseOwner returns the owner that the content of a reservation file names. It ignores white
// space around the content, as the reference plugin does. ok is false if the content names no
// owner. A crash can leave such a file, for example an empty one or one with zeros, if the file
// was created before it was written.
func parseOwner(content []byte) (o owner, ok bool) {
	id, ifName, hasIfName := strings.Cut(strings.TrimSpace(string(content)), "\r\n")
	if !types.IsID(id) || hasIfName && !validIfName(ifName) {
		return owner{}, false
	}
	return owner{id, ifName}, true
}

// validIfName reports whether s can be the name of an interface, which consists of 1 to 15 bytes without '/', ':',
// white space and control characters.
func validIfName(s string) bool {
	return s != "" && len(s) <= types.MaxIfName && !strings.ContainsFunc(s, func(c rune) bool {
		return c <= ' ' || c == '/' || c == ':' || c == 0x7f
	})
}

// parseName returns the address in the name of a reservation file. ok is false for other files,
// such as lock and last_reserved_ip.N, and for an address that is not written as the plugins
// write it.
func parseName(name string) (ip netip.Addr, ok bool) {
	ip, err := netip.ParseAddr(name)
	var text [64]byte
	return ip, err == nil && !ip.Is4In6() && ip.Zone() == "" && string(ip.AppendTo(text[:0])) == name
}

// A reservation is the content of a reservation file.
type reservation struct {
	addr       netip.Addr
	written    time.Time // modification time of the file
	owner      owner     // owner of the address, or the zero owner if it is unknown
	incomplete bool      // the file names no owner because of a crash, and readAll releases it
	workload   string    // what remember records, or "" if it is in the owner's address file of this boot
}

// reservation reads the reservation of ip. If there is none, the error matches fs.ErrNotExist. After any other error,
// the address counts as reserved by an unknown owner. A file that is not regular or is too large is a reservation of an
// unknown owner as well, without an error.
func (d directory) reservation(ip netip.Addr) (reservation, error) {
	res := reservation{addr: ip}
	content, st, err := d.read(ip.String())
	if errors.Is(err, errUnreadable) {
		return res, nil
	}
	if err != nil {
		return res, err
	}
	o, ok := parseOwner(content)
	res.written, res.owner, res.incomplete = time.Unix(st.Mtim.Unix()), o, !ok
	return res, nil
}

// eachReservation calls f with all reservations in the directory, in no particular order, and with the errors of reservation.
func (d directory) eachReservation(f func(reservation, error)) error {
	names, err := d.names()
	for _, name := range names {
		if ip, ok := parseName(name); ok {
			if res, err := d.reservation(ip); !errors.Is(err, fs.ErrNotExist) { // otherwise it was released meanwhile
				f(res, err)
			}
		}
	}
	return err
}

// reserve writes the reservation of ip and pushes its release to u. If the address already has a
// reservation, the error matches fs.ErrExist.
func (se *Session) reserve(u *undo.Stack, ip netip.Addr, o owner) error {
	err := se.store.trace.Do("reserve "+ip.String(), func() error {
		err := se.write(ip, o)
		if isDiskFull(err) && se.dropRecords() {
			err = se.write(ip, o)
		}
		return err
	})
	if err != nil {
		return err
	}
	s := se.store
	s.cooldown = 0 // the undo needs no cooldown, because no container has used the address
	u.Push("release "+ip.String(), func() error {
		return s.lockIfReserved(func(se *Session) error { return se.release(ip, o) })
	})
	return nil
}

// newPath returns the path at which write writes a file. The next session removes a file that a crash
// left there.
func (s Store) newPath() string { return filepath.Join(s.privateDir, "new") }

// write writes the reservation of ip. It writes a file in privateDir, adds the address to the owner's address file, and
// creates a hard link to the file, so that a crash leaves neither an incomplete reservation nor one that no address
// file names. If that is not possible, write creates the file in the network's directory and then writes it, as the
// reference plugin does. If privateDir is on another file system, the address file already names the address. If write
// cannot create a file in privateDir, it first drops the address file, which would be incomplete after a crash.
func (se *Session) write(ip netip.Addr, o owner) error {
	path, content := se.store.newPath(), []byte(o.text())
	if written, err := workingDir.create(path, content); err == nil {
		if err := se.addAddress(o, ip, written); err != nil {
			return err
		}
		err := se.dir.link(path, ip.String())
		_ = workingDir.remove(path) // before create, because the disk may have space for one file only
		if err == nil || errors.Is(err, fs.ErrExist) {
			return err
		}
	} else if err := se.dropAddressFile(o); err != nil {
		return err
	}
	written, err := se.dir.create(ip.String(), content)
	if err != nil {
		return err
	}
	if err := se.addAddress(o, ip, written); err != nil {
		return errors.Join(err, se.dir.remove(ip.String()))
	}
	return nil
}

// release undoes reserve. It removes the reservation of ip if it belongs to o, and the address file of o. Any other
// reservation of o has its own undo, because an ADD fails for an attachment that already has a reservation.
func (se *Session) release(ip netip.Addr, o owner) error {
	_ = se.removeAddressFile(o)
	res, err := se.dir.reservation(ip)
	if errors.Is(err, fs.ErrNotExist) || err == nil && res.owner != o {
		return nil
	}
	if err != nil {
		return err
	}
	return se.remove(res)
}

// remove removes a reservation that was just read. Before that, it records the workload of the address, and the time of the
// release, so that the cooldown begins.
func (se *Session) remove(res reservation) error {
	err := se.remember(res) // on a full disk, the space that the removal frees is for the next ADD, not for the record
	if err != nil && !se.warnedOfRecord {
		se.store.warn("sticky: address %s is not remembered: %v", res.addr, err)
		se.warnedOfRecord = true
	}
	return se.removeFile(res)
}

func (se *Session) removeFile(res reservation) error {
	return se.store.trace.Do("release "+res.addr.String(), func() error {
		recordErr := se.recordRelease(res.addr)
		if recordErr != nil && !errors.Is(recordErr, unix.EROFS) && !isDiskFull(recordErr) {
			return fmt.Errorf("record the release of %s: %w", res.addr, recordErr)
		}
		if err := se.dir.remove(res.addr.String()); err != nil {
			return err
		}
		if isDiskFull(recordErr) {
			// The removal may have freed space. If not, ignore the error, because an address
			// without a cooldown is better than a container that cannot be deleted.
			_ = se.recordRelease(res.addr)
		}
		delete(se.names, res.addr.String())
		se.released = append(se.released, res.addr)
		return nil
	})
}
