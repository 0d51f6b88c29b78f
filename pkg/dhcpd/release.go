package dhcpd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/plumb-cni/plumb/pkg/dhcp"
	"github.com/plumb-cni/plumb/pkg/types"
)

// Released says what became of leases for which no daemon answered.
type Released struct {
	Sent   int   // leases that are released, and whose files are removed
	Marked int   // leases that the daemon has to release
	Why    error // why the last one of them is only marked
}

// Found reports whether there was any lease.
func (done Released) Found() bool { return done.Sent+done.Marked > 0 }

// Release releases the leases of the attachments that match if no daemon answers. It sends the RELEASE itself,
// and removes the file. If that is not possible, because a daemon that does not answer has the
// directory, or because the interface is gone, it marks the lease.
func (s Store) Release(match func(types.Attachment) bool) (done Released, err error) {
	entries, err := os.ReadDir(s.Dir)
	if types.IgnoreNotExist(err) != nil {
		return done, types.Coded(types.CodeIO, err)
	}
	var errs []error
	for _, e := range entries {
		r, err := s.read(filepath.Join(s.Dir, e.Name()))
		if err == nil && match(r.Attachment) {
			errs = append(errs, s.releaseOrMark(r.Attachment, &done))
		}
	}
	return done, types.Coded(types.CodeIO, errors.Join(errs...))
}

// releaseOrMark counts in done what it does.
func (s Store) releaseOrMark(o types.Attachment, done *Released) error {
	err := done.Why
	if !errors.Is(err, os.ErrDeadlineExceeded) { // a daemon that has the folder keeps it
		err = s.Trace.Do("release the lease of "+s.file(o).Path(), func() error { return s.send(o) })
	}
	if err == nil {
		done.Sent++
		return nil
	}
	done.Why = err
	done.Marked++
	return s.setMark(o)
}

// send releases a lease, and removes its file. No daemon can start meanwhile.
func (s Store) send(o types.Attachment) error {
	unlock, err := lockStore(s, releaseTimeout) // another call of the plugin may have the lock
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("a DHCP daemon that does not answer keeps its leases in %s: %w", s.Dir, err)
	}
	if err != nil {
		return err
	}
	defer unlock()
	r, err := s.read(s.file(o).Path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	boot, err := readBootID()
	if err != nil {
		return err
	}
	if r.mustBeReleased() && r.Boot == boot {
		ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
		defer cancel()
		r.State = releasing
		open := func(r record) (iface, error) { return openLink(r, dhcp.Retry{}) }
		if done := (exchange{record: r}).run(ctx, open); done.err != nil {
			return done.err
		}
	}
	return s.remove(o)
}
