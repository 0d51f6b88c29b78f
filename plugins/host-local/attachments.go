package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ADD, CHECK and DEL need the addresses of one attachment, and do not read all reservations
// for them. There is a file per attachment that holds an address, in
//
//	<dataDir>/.plumb/<network>/<boot ID>.<inode of the network's folder>
//
// Its name is a hash of the attachment, and it has a line per address. The file "complete"
// there has the times of both folders when every reservation was in such a file. While they
// are the same, nobody has added or removed a reservation, and an attachment without a file
// holds nothing. Otherwise the reservations are read, and the files made right.
//
// The files are written at the end of a session, after the reservations: a session that is
// killed leaves times that differ. Nothing is synced to disk. After a power loss the boot is
// another one.
const completeName = "complete"

// A record is a reservation as an attachment's file has it. Inode and time of writing
// distinguish a reservation from a later one for the same address.
type record struct {
	addr  netip.Addr
	ino   uint64
	mtime int64
}

var errDamaged = errors.New("an attachment's file does not agree with the reservations")

// fileName is the name of the file with the owner's addresses. It has a length that fits,
// which container IDs need not have.
func (o owner) fileName() string {
	h := fnv.New128a()
	_, _ = h.Write([]byte(o.text()))
	return hex.EncodeToString(h.Sum(nil))
}

func recordsText(records []record) []byte {
	var text []byte
	for _, r := range records {
		text = fmt.Appendf(text, "%s %d %d\n", r.addr, r.ino, r.mtime)
	}
	return text
}

// parseRecords reads what recordsText wrote: at least one record.
func parseRecords(text []byte) ([]record, error) {
	var records []record
	for line := range strings.Lines(string(text)) {
		field := strings.Split(strings.TrimSuffix(line, "\n"), " ")
		if len(field) != 3 {
			return nil, errDamaged
		}
		addr, ok := parseName(field[0])
		ino, inoErr := strconv.ParseUint(field[1], 10, 64)
		mtime, timeErr := strconv.ParseInt(field[2], 10, 64)
		if !ok || inoErr != nil || timeErr != nil {
			return nil, errDamaged
		}
		records = append(records, record{addr, ino, mtime})
	}
	if len(records) == 0 {
		return nil, errDamaged
	}
	return records, nil
}

// records lists the addresses of an owner, as its file or the reading of all reservations
// has them.
func (se *session) records(o owner) ([]record, error) {
	if known, ok := se.known[o]; ok || se.complete {
		return known, nil
	}
	text, _, err := se.files.read(o.fileName())
	if errors.Is(err, fs.ErrNotExist) {
		if now, terr := se.files.times(); terr == nil && now == se.filesTimes {
			return nil, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return parseRecords(text)
}

// remember adds a reservation that was made to those of its owner.
func (se *session) remember(o owner, r record) {
	records, err := se.records(o)
	se.setRecords(o, append(slices.Clone(records), r), err)
}

// forget takes a reservation that was removed from those of its owner.
func (se *session) forget(h holding) {
	records, err := se.records(h.owner)
	se.setRecords(h.owner, slices.DeleteFunc(slices.Clone(records), func(r record) bool { return r.addr == h.addr }), err)
}

func (se *session) setRecords(o owner, records []record, err error) {
	if err != nil {
		se.unsure = err
		return
	}
	se.known[o] = records
}

// filesPath is the folder of the attachments' files.
func (se *session) filesPath() string {
	return filepath.Join(se.side, se.boot+"."+strconv.FormatUint(se.inode, 10))
}

// upToDate reports whether the attachments' files have every reservation.
func (se *session) upToDate() bool {
	files, err := openFolder(se.filesPath(), unix.O_NOFOLLOW)
	if err != nil {
		return false
	}
	se.files = files
	text, _, err := files.read(completeName)
	if err != nil {
		return false
	}
	now, err := files.times()
	state, read, _ := strings.Cut(string(text), "\n")
	last, rerr := strconv.ParseInt(strings.TrimSpace(read), 10, 64)
	se.filesTimes, se.lastRead = now, time.Duration(last)
	return err == nil && rerr == nil && state == stateText(se.found, now)
}

// stateText is of the same length for all times, so that it is written over an older one.
func stateText(folder, files times) string {
	return fmt.Sprintf("%020d %020d %020d %020d", folder.mtime, folder.ctime, files.mtime, files.ctime)
}

// save writes what has changed to the attachments' files. Nothing that goes wrong here is
// an error: the next session then reads the reservations. Files that could not be written
// are removed, for a disk may be full.
func (se *session) save() {
	switch {
	case se.lock < 0 || !se.local || !se.complete && !se.changed:
		return
	case se.unread != nil || se.unsure != nil:
		return // the reservations are read until all of them can be
	}
	err := se.writeFiles()
	if err == nil {
		err = se.writeState()
	}
	if err != nil {
		_ = os.RemoveAll(se.filesPath())
	}
}

func (se *session) writeFiles() error {
	if se.complete {
		return se.writeAll()
	}
	for o := range se.known {
		if err := se.writeFile(o); err != nil {
			return err
		}
	}
	return nil
}

func (se *session) writeFile(o owner) error {
	if len(se.known[o]) == 0 {
		return se.files.remove(o.fileName())
	}
	return se.files.write(o.fileName(), recordsText(se.known[o]))
}

// writeAll makes the folder of the attachments' files, and in it what known says.
func (se *session) writeAll() error {
	if err := se.makeFiles(); err != nil {
		return err
	}
	names, err := se.files.names()
	if err != nil {
		return err
	}
	left := map[string]bool{}
	for _, name := range names {
		left[name] = true
	}
	for o, records := range se.known {
		name := o.fileName()
		if len(records) == 0 {
			continue
		}
		if left[name] {
			delete(left, name)
			if text, _, err := se.files.read(name); err == nil && string(text) == string(recordsText(records)) {
				continue
			}
		}
		if err := se.writeFile(o); err != nil {
			return err
		}
	}
	for name := range left {
		if err := se.files.remove(name); err != nil {
			return err
		}
	}
	return nil
}

// makeFiles makes the folder of the attachments' files, without a claim to be complete. It
// removes those of earlier boots and of folders that are gone, what a crash left, and the
// index of earlier versions of this plugin.
func (se *session) makeFiles() error {
	all, err := os.ReadDir(se.side)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	path := se.filesPath()
	for _, e := range all {
		if e.Name() == releasesName || e.Name() == filepath.Base(path) && e.IsDir() {
			continue
		}
		if err := os.RemoveAll(filepath.Join(se.side, e.Name())); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	se.files.close()
	if se.files, err = openFolder(path, unix.O_NOFOLLOW); err != nil {
		return err
	}
	return se.files.remove(completeName)
}

// writeState writes down the times of both folders, with which the files are complete.
func (se *session) writeState() error {
	f, err := se.files.open(completeName, unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	files, err := se.files.setTime()
	if err == nil && se.complete {
		err = se.countFiles()
	}
	var folder times
	if err == nil {
		folder, err = se.folder.setTime()
	}
	if err == nil {
		_, err = fmt.Fprintf(f, "%s\n%020d\n", stateText(folder, files), se.lastRead)
	}
	return errors.Join(err, f.Close())
}

// countFiles fails when somebody has removed files while they were written.
func (se *session) countFiles() error {
	want := 1 // completeName
	for _, records := range se.known {
		if len(records) > 0 {
			want++
		}
	}
	names, err := se.files.names()
	if err == nil && len(names) != want {
		err = errDamaged
	}
	return err
}

// earlier lists the reservations that were made under an earlier boot. It lists none where
// the ID of a boot is not known, or where other machines may have made them.
func (se *session) earlier() map[record]bool {
	all := map[record]bool{}
	if se.boot == "" || !se.local {
		return all
	}
	folders, _ := os.ReadDir(se.side)
	for _, e := range folders {
		boot, _, ok := strings.Cut(e.Name(), ".")
		if !ok || boot == "" || boot == se.boot {
			continue
		}
		se.addRecords(filepath.Join(se.side, e.Name()), all)
	}
	return all
}

// addRecords adds the records of all files in the folder at path.
func (se *session) addRecords(path string, all map[record]bool) {
	files, err := openFolder(path, unix.O_NOFOLLOW)
	if err != nil {
		return
	}
	defer files.close()
	names, _ := files.names()
	for _, name := range names {
		text, _, err := files.read(name)
		if err != nil {
			continue
		}
		records, _ := parseRecords(text)
		for _, r := range records {
			all[r] = true
		}
	}
}
