package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// The file of releases has one record per release: the address, and the time since boot. The first
// record identifies the boot in which the times were measured, by a hash of its ID. The record of a
// release is written before the reservation is removed, so that no crash ends a cooldown too early.
const (
	releasesName    = "releases"
	releaseSize     = 24       // of a record, in bytes
	maxReleasesSize = 64 << 10 // from this size in bytes, recordRelease drops old records
)

// releasesPath returns the path of the file of releases.
func (s store) releasesPath() string { return filepath.Join(s.privateDir, releasesName) }

// recordRelease writes the release of ip, at the present time, to the file of releases. Without a
// cooldown, it does nothing.
func (se *session) recordRelease(ip netip.Addr) error {
	if se.cooldown == 0 {
		return nil
	}
	path := se.releasesPath()
	text, _, err := workingDir.read(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errSpecial) {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err != nil {
		return err
	}
	record := releaseRecord(ip, se.now())
	if len(text) < releaseSize || string(text[:releaseSize]) != string(se.bootRecord()) {
		return replaceFile(path, append(se.bootRecord(), record...))
	}
	if len(text) >= maxReleasesSize {
		return replaceFile(path, append(se.withoutOldReleases(text), record...))
	}
	f, err := workingDir.open(path, unix.O_WRONLY|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(record, int64(len(text)-len(text)%releaseSize))
	return errors.Join(err, f.Close())
}

// replaceFile writes a new file and renames it to path, so that path never has a part of the content.
func replaceFile(path string, content []byte) error {
	err := workingDir.replace(path+".new", content)
	if err != nil {
		return err
	}
	if err = os.Rename(path+".new", path); err != nil {
		_ = workingDir.remove(path + ".new") // so that it uses no space on a full disk
	}
	return err
}

// releaseRecord returns the record of a release of ip at a time since boot.
func releaseRecord(ip netip.Addr, at time.Duration) []byte {
	addr := ip.As16()
	return binary.LittleEndian.AppendUint64(addr[:], uint64(at))
}

// bootRecord returns the first record of the file of releases.
func (se *session) bootRecord() []byte {
	h := fnv.New64a()
	_, _ = h.Write([]byte(se.boot))
	return append(binary.LittleEndian.AppendUint64(nil, h.Sum64()), "plumb releases 1"...)
}

// withoutOldReleases returns the content of the file of releases without the records of releases whose
// cooldown has ended.
func (se *session) withoutOldReleases(text []byte) []byte {
	kept := se.bootRecord()
	for ip, at := range se.parseReleases(text) {
		kept = append(kept, releaseRecord(ip, at)...)
	}
	return kept
}

// parseReleases returns the addresses that cool down according to the content of the file of
// releases, with the time since boot at which each was released last. It returns none if the file is
// from another boot.
func (se *session) parseReleases(text []byte) map[netip.Addr]time.Duration {
	cooling := map[netip.Addr]time.Duration{}
	if len(text) < releaseSize || string(text[:releaseSize]) != string(se.bootRecord()) {
		return cooling
	}
	now := se.now()
	for text = text[releaseSize:]; len(text) >= releaseSize; text = text[releaseSize:] {
		at := time.Duration(binary.LittleEndian.Uint64(text[16:]))
		if at <= now && now-at < se.cooldown {
			cooling[netip.AddrFrom16([16]byte(text[:16])).Unmap()] = at
		}
	}
	return cooling
}

// readCooling returns the addresses that cool down, with the time since boot at which each was
// released last.
func (se *session) readCooling() map[netip.Addr]time.Duration {
	if se.cooldown == 0 {
		return nil
	}
	// If the file cannot be read, no address cools down: ADD need not fail because of that.
	text, _, _ := workingDir.read(se.releasesPath())
	return se.parseReleases(text)
}

// describeCooling returns a text for an error: how many addresses of the set cool down, and when
// the first of them is free. The text is empty if no address cools down.
func (se *session) describeCooling(set rangeSet) string {
	n, first := 0, time.Duration(0)
	for ip, releasedAt := range se.readCooling() {
		if set.find(ip) < 0 {
			continue
		}
		if left := releasedAt + se.cooldown - se.now(); n == 0 || left < first {
			first = left
		}
		n++
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (released addresses that cool down: %d; the first is free in %s)", n, first.Round(time.Second))
}
