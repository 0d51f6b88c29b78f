package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/dhcp/internal/dhcp4"
)

// Released counts the leases that the plugin processed without the daemon.
type Released struct {
	Sent   int   // leases that were released, and whose files were removed
	Marked int   // leases that the daemon must release
	Why    error // why the last marked lease could not be released
}

// Release releases the leases of the attachments when no daemon answers. It sends RELEASE itself, and removes the lease
// file. It only marks a lease if a daemon that does not answer has locked the directory, if the file cannot be read, or
// if the interface is gone.
func (s Store) Release(attachments ...types.Attachment) (done Released, err error) {
	var errs []error
	for _, o := range attachments {
		_, err := os.Lstat(s.file(o).Path())
		if err == nil {
			err = s.releaseOrMark(o, &done)
		}
		errs = append(errs, types.IgnoreNotExist(err))
	}
	return done, types.Coded(types.CodeIO, errors.Join(errs...))
}

// Attachments returns the attachments whose lease files can be read.
func (s Store) Attachments() (all []types.Attachment, err error) {
	entries, err := os.ReadDir(s.Dir)
	for _, e := range entries {
		if r, err := s.read(filepath.Join(s.Dir, e.Name())); err == nil {
			all = append(all, r.Attachment)
		}
	}
	return all, types.Coded(types.CodeIO, types.IgnoreNotExist(err))
}

// releaseOrMark releases or marks a lease, and increments the count in done.
func (s Store) releaseOrMark(o types.Attachment, done *Released) error {
	err := done.Why
	if !errors.Is(err, os.ErrDeadlineExceeded) { // a daemon that has locked the directory keeps the lock
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

// send releases a lease, and removes its file. Meanwhile no daemon can start.
func (s Store) send(o types.Attachment) error {
	unlock, err := lockStore(s, releaseTimeout) // another call of the plugin may hold the lock
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
		open := func(r record) (iface, error) { return openLink(r, dhcp4.Retry{}) }
		if done := (exchange{record: r}).run(ctx, open); done.err != nil {
			return done.err
		}
	}
	return s.remove(o)
}
