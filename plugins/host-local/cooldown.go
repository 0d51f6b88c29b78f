package main

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/plumb-cni/plumb/pkg/file"
	"golang.org/x/sys/unix"
)

// The file of releases has a record a release: the address and the time since
// boot. The first record has the hash of the boot that the times are of. It is
// appended to before a reservation is removed, so that no crash makes an address
// free too early.
const (
	releaseSize    = 24
	releaseCompact = 64 << 10 // bytes from which on old records are dropped
)

// noteRelease writes down that ip is released now.
func (se *session) noteRelease(ip netip.Addr) error {
	if se.cooldown == 0 {
		return nil
	}
	path := se.releases()
	text, err := file.Read(file.Here, path, 0)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err != nil {
		return err
	}
	record := releaseRecord(ip, se.host.now())
	if len(text) < releaseSize || string(text[:releaseSize]) != string(se.bootRecord()) {
		return replace(path, append(se.bootRecord(), record...))
	}
	if len(text) >= releaseCompact {
		return replace(path, append(se.compact(text), record...))
	}
	fd, err := file.Open(file.Here, path, unix.O_WRONLY, 0)
	if err != nil {
		return err
	}
	err = file.WriteAt(fd, record, int64(len(text)-len(text)%releaseSize))
	return errors.Join(err, unix.Close(fd))
}

// replace puts a whole new file in the place of path.
func replace(path string, content []byte) error {
	err := writeNew(path+".new", content)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		_ = os.Remove(path + ".new") // a disk may be full
	}
	return err
}

func releaseRecord(ip netip.Addr, at time.Duration) []byte {
	addr := ip.As16()
	return binary.LittleEndian.AppendUint64(addr[:], uint64(at))
}

func (se *session) bootRecord() []byte {
	return append(binary.LittleEndian.AppendUint64(nil, owner{containerID: se.boot}.hash()), "plumb releases 1"...)
}

// compact drops the records that are over.
func (se *session) compact(text []byte) []byte {
	kept := se.bootRecord()
	for ip, at := range se.released(text) {
		kept = append(kept, releaseRecord(ip, at)...)
	}
	return kept
}

// released is what the file says of addresses whose cooldown goes on: when each was
// released last.
func (se *session) released(text []byte) map[netip.Addr]time.Duration {
	cooling := map[netip.Addr]time.Duration{}
	if len(text) < releaseSize || string(text[:releaseSize]) != string(se.bootRecord()) {
		return cooling
	}
	now := se.host.now()
	for text = text[releaseSize:]; len(text) >= releaseSize; text = text[releaseSize:] {
		at := time.Duration(binary.LittleEndian.Uint64(text[16:]))
		if at <= now && now-at < se.cooldown {
			cooling[netip.AddrFrom16([16]byte(text[:16])).Unmap()] = at
		}
	}
	return cooling
}

// cooling reads which addresses must not be given out yet.
func (se *session) cooling() map[netip.Addr]time.Duration {
	if se.cooldown == 0 {
		return nil
	}
	// A file that cannot be read is no reason to give nobody an address.
	text, _ := file.Read(file.Here, se.releases(), 0)
	return se.released(text)
}
