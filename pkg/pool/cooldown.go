package pool

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/statefile"
	"golang.org/x/sys/unix"
)

// The first line of the file of releases is the ID of the running boot. Each other line consists of a released address
// and the time of its release since boot. The line is written before the reservation is removed, so that a crash does
// not shorten a cooldown.
const (
	releasesName    = "releases"
	maxReleasesSize = 64 << 10 // from this size in bytes, recordRelease drops releases whose cooldown has ended
)

func (s Store) releasesPath() string { return filepath.Join(s.privateDir, releasesName) }

// recordRelease writes the release of ip, at the present time, to the file of releases. Without a
// cooldown, it does nothing. It only warns if the file is a directory.
func (se *Session) recordRelease(ip netip.Addr) error {
	if se.store.cooldown == 0 {
		return nil
	}
	return se.ignoreNotRegular("released addresses do not cool down", se.appendRelease(ip))
}

func (se *Session) appendRelease(ip netip.Addr) error {
	if !se.releasesReady {
		if err := se.prepareReleases(); err != nil {
			return err
		}
		se.releasesReady = true
	}
	f, err := workingDir.open(se.store.releasesPath(), unix.O_APPEND)
	if err != nil {
		return err
	}
	_, err = f.WriteString(releaseText(ip, se.store.machine.Now()))
	return errors.Join(err, f.Close())
}

// releaseText returns the line of a release. The newline is at the beginning, so that a line that was
// written in part, because the disk was full, does not damage the next one.
func releaseText(ip netip.Addr, at time.Duration) string { return fmt.Sprintf("\n%s %s", ip, at) }

// prepareReleases writes a file of releases with the addresses that still cool down, if there is none of this boot or if it
// has reached maxReleasesSize.
func (se *Session) prepareReleases() error {
	path := se.store.releasesPath()
	old, _, _ := workingDir.read(path)
	if bytes.HasPrefix(old, []byte(se.boot+"\n")) && len(old) < maxReleasesSize {
		return nil
	}
	text := []byte(se.boot)
	for ip, at := range se.parseReleases(string(old)) {
		text = append(text, releaseText(ip, at)...)
	}
	return statefile.File{Dir: se.store.privateDir, Name: releasesName, Trace: se.store.trace}.Write(text)
}

// readCooling returns the addresses that cool down, each with the time since boot of its last release.
func (se *Session) readCooling() map[netip.Addr]time.Duration {
	if se.store.cooldown == 0 {
		return nil
	}
	// If the file cannot be read, no address cools down, because ADD must not fail for that reason.
	text, _, _ := workingDir.read(se.store.releasesPath())
	return se.parseReleases(string(text))
}

// parseReleases returns the addresses that cool down according to the content of the file of
// releases. It returns none if the file is from another boot.
func (se *Session) parseReleases(text string) map[netip.Addr]time.Duration {
	cooling := map[netip.Addr]time.Duration{}
	lines := strings.Split(text, "\n")
	if lines[0] != se.boot {
		return cooling
	}
	now := se.store.machine.Now()
	for _, line := range lines[1:] {
		name, at, _ := strings.Cut(line, " ")
		ip, ok := parseName(name)
		released, err := time.ParseDuration(at)
		if ok && err == nil && released <= now && now-released < se.store.cooldown {
			cooling[ip] = released
		}
	}
	return cooling
}

// describeCooling returns a text for an error with the number of addresses of the set that cool down, and the time until
// the first of them is free. The text is empty if no address cools down.
func (se *Session) describeCooling(set rangeSet) string {
	n, first := 0, time.Duration(0)
	for ip, releasedAt := range se.readCooling() {
		if set.find(ip) < 0 {
			continue
		}
		if left := releasedAt + se.store.cooldown - se.store.machine.Now(); n == 0 || left < first {
			first = left
		}
		n++
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (released addresses that cool down: %d; the first is free in %s)", n, first.Round(time.Second))
}
