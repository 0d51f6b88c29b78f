package main

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// The file of releases has a record per release: the address and the time since
// boot. The first record has the hash of the boot that the times are of. A record is
// appended before its reservation is removed, so that no crash makes an address
// free too early.
const (
	releasesName   = "releases"
	releaseSize    = 24
	releaseCompact = 64 << 10 // bytes from which on old records are dropped
)

func (s store) releases() string { return filepath.Join(s.privateDir, releasesName) }

// recordRelease writes down that ip is released now.
func (se *session) recordRelease(ip netip.Addr) error {
	if se.cooldown == 0 {
		return nil
	}
	path := se.releases()
	text, _, err := workingDir.read(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errSpecial) {
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
	f, err := workingDir.open(path, unix.O_WRONLY|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(record, int64(len(text)-len(text)%releaseSize))
	return errors.Join(err, f.Close())
}

// replace puts a whole new file in the place of path.
func replace(path string, content []byte) error {
	err := workingDir.writeNew(path+".new", content)
	if err != nil {
		return err
	}
	if err = os.Rename(path+".new", path); err != nil {
		_ = workingDir.remove(path + ".new") // a disk may be full
	}
	return err
}

func releaseRecord(ip netip.Addr, at time.Duration) []byte {
	addr := ip.As16()
	return binary.LittleEndian.AppendUint64(addr[:], uint64(at))
}

func (se *session) bootRecord() []byte {
	h := fnv.New64a()
	_, _ = h.Write([]byte(se.boot))
	return append(binary.LittleEndian.AppendUint64(nil, h.Sum64()), "plumb releases 1"...)
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
	text, _, _ := workingDir.read(se.releases())
	return se.released(text)
}
