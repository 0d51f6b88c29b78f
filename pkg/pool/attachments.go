package pool

import (
	"bytes"
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

	"github.com/plumb-cni/plumb/pkg/types"
	"golang.org/x/sys/unix"
)

// ADD, CHECK and DEL need the addresses of one attachment. They do not read all reservations
// to find them. Each attachment that holds an address has a file in
//
//	<dataDir>/.plumb/<network>/<boot ID>.<inode of the network's folder>
//
// The name of the file is a hash of the attachment. The file has one line per address. The
// file "complete" in the same folder has the times of both folders (this one and the network's)
// at a moment when every reservation was in such a file. While the times are the same, nobody
// has added or removed a reservation, and an attachment without a file holds no address. If the
// times differ, the next session reads all reservations and corrects the files.
//
// A session writes the files at its end, after the reservations. If it is killed before, the
// times differ. Nothing is synced to disk: after a power loss the boot ID is another one.
const completeName = "complete"

// A record is a reservation in an attachment's file. Inode and modification time distinguish
// it from a later reservation for the same address.
type record struct {
	addr  netip.Addr
	ino   uint64
	mtime int64 // in nanoseconds since 1970
}

var errDamaged = errors.New("an attachment's file does not agree with the reservations")

// fileName returns the name of the attachment's file. It is a hash, because a container ID can be
// longer than a file name.
func (o owner) fileName() string {
	h := fnv.New128a()
	_, _ = h.Write([]byte(o.text()))
	return hex.EncodeToString(h.Sum(nil))
}

// recordsText returns the content of an attachment's file.
func recordsText(records []record) []byte {
	var text []byte
	for _, r := range records {
		text = fmt.Appendf(text, "%s %d %d\n", r.addr, r.ino, r.mtime)
	}
	return text
}

// parseRecords returns the records in the content of an attachment's file. It returns an error
// if there are none.
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

// records returns the records of an owner: those in known or, if the session has not read or
// changed them yet, those in the attachment's file.
func (se *Session) records(o owner) ([]record, error) {
	if known, ok := se.known[o.fileName()]; ok || se.complete {
		return known, nil
	}
	text, _, err := se.files.read(o.fileName())
	if errors.Is(err, fs.ErrNotExist) {
		if now, timesErr := se.files.times(); timesErr == nil && now == se.filesTimes {
			return nil, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return parseRecords(text)
}

// addRecord adds the record of a new reservation to known.
func (se *Session) addRecord(o owner, r record) {
	records, err := se.records(o)
	se.setRecords(o, append(slices.Clone(records), r), err)
}

// removeRecord removes the record of a released reservation from known.
func (se *Session) removeRecord(res reservation) {
	records, err := se.records(res.owner)
	se.setRecords(res.owner, slices.DeleteFunc(slices.Clone(records), func(r record) bool { return r.addr == res.addr }), err)
}

// setRecords sets the records of an owner in known. If err is set, the records are not known;
// setRecords notes the error instead.
func (se *Session) setRecords(o owner, records []record, err error) {
	switch {
	case err != nil:
		se.recordErr = err
	case len(records) == 0 && se.complete:
		delete(se.known, o.fileName())
	default:
		se.known[o.fileName()] = records
	}
}

// filesPath returns the path of the folder of the attachments' files.
func (se *Session) filesPath() string {
	return filepath.Join(se.privateDir, se.boot+"."+strconv.FormatUint(se.inode, 10))
}

// upToDate opens the folder of the attachments' files and reports whether the files have every
// reservation.
func (se *Session) upToDate() bool {
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
	se.filesTimes = now
	return err == nil && string(text) == stateText(se.found, now)
}

// stateText returns the content of the file "complete". It has the same length for all times, so that
// writeState can overwrite an older one.
func stateText(folder, files times) string {
	return fmt.Sprintf("%020d %020d %020d %020d\n", folder.mtime, folder.ctime, files.mtime, files.ctime)
}

// save writes the changes of the session to the attachments' files. It returns no error: if it
// fails, the next session reads all reservations. After a failure it removes the folder of the
// files, because an incomplete folder is of no use and the disk may be full.
func (se *Session) save() {
	switch {
	case se.lock < 0 || !se.local || !se.complete && !se.changed:
		return
	case se.readErr != nil || se.recordErr != nil:
		return // the next session tries again to read all reservations
	}
	err := se.writeFiles()
	if err == nil {
		err = se.writeState()
	}
	if err != nil {
		_ = os.RemoveAll(se.filesPath())
	}
}

// writeFiles writes the files of the attachments in known. If known is complete, it also makes
// their folder, and removes all other files.
func (se *Session) writeFiles() error {
	if se.complete {
		if err := se.makeFilesFolder(); err != nil {
			return err
		}
	}
	for name, records := range se.known {
		if err := se.writeFile(name, records); err != nil {
			return err
		}
	}
	if se.complete {
		return se.removeOtherFiles()
	}
	return nil
}

// writeFile writes the file of one attachment, unless it is the same already. It removes the file
// of an attachment that holds no address.
func (se *Session) writeFile(name string, records []record) error {
	if len(records) == 0 {
		return se.files.remove(name)
	}
	text := recordsText(records)
	if old, _, err := se.files.read(name); err == nil && bytes.Equal(old, text) {
		return nil
	}
	return se.files.replace(name, text)
}

// removeOtherFiles removes the files of attachments that are not in known.
func (se *Session) removeOtherFiles() error {
	names, err := se.files.names()
	for _, name := range names {
		if se.known[name] == nil {
			err = errors.Join(err, se.files.remove(name))
		}
	}
	return err
}

// makeFilesFolder makes the folder of the attachments' files, without the file "complete". It
// removes the folders of earlier boots and of network folders that no longer exist, files that
// a crash left, and the index of earlier versions of this plugin.
func (se *Session) makeFilesFolder() error {
	path := se.filesPath()
	all, err := os.ReadDir(se.privateDir)
	err = types.IgnoreNotExist(err)
	for _, e := range all {
		if e.Name() != releasesName && (e.Name() != filepath.Base(path) || !e.IsDir()) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(se.privateDir, e.Name())))
		}
	}
	if err = errors.Join(err, os.MkdirAll(path, 0o700)); err != nil {
		return err
	}
	se.files.close()
	if se.files, err = openFolder(path, unix.O_NOFOLLOW); err != nil {
		return err
	}
	return se.files.remove(completeName)
}

// writeState writes the times of both folders to the file "complete".
func (se *Session) writeState() error {
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
		_, err = f.WriteString(stateText(folder, files))
	}
	return errors.Join(err, f.Close())
}

// countFiles returns an error if another process has added or removed files since writeFiles.
func (se *Session) countFiles() error {
	names, err := se.files.names()
	if err == nil && len(names) != len(se.known)+1 { // and completeName
		err = errDamaged
	}
	return err
}

// fromEarlierBoots returns the records of reservations that were made in earlier boots. It
// returns none if the ID of the running boot is unknown, or if other machines share the folder.
func (se *Session) fromEarlierBoots() map[record]bool {
	all := map[record]bool{}
	if se.boot == "" || !se.local {
		return all
	}
	folders, _ := os.ReadDir(se.privateDir)
	for _, e := range folders {
		boot, _, ok := strings.Cut(e.Name(), ".")
		if !ok || boot == "" || boot == se.boot {
			continue
		}
		se.addRecordsIn(filepath.Join(se.privateDir, e.Name()), all)
	}
	return all
}

// addRecordsIn adds the records of all files in the folder at path to all.
func (se *Session) addRecordsIn(path string, all map[record]bool) {
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
