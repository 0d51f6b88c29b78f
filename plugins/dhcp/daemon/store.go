package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/plumb-cni/plumb/v2/pkg/statefile"
	"github.com/plumb-cni/plumb/v2/pkg/trace"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/plugins/dhcp/internal/dhcp4"
)

// A record is the content of a lease file.
type record struct {
	types.Attachment
	Settings
	State state  `json:"state"`
	Boot  string `json:"boot"` // ID of the boot, because network namespaces do not survive a reboot

	NetNS     string    `json:"netns"`
	Cookie    uint64    `json:"cookie,omitempty"` // cookie of the namespace (ns.Handle.Cookie)
	Link      int       `json:"link"`             // index of the interface
	MAC       types.MAC `json:"mac"`
	Broadcast bool      `json:"broadcast,omitempty"`

	// Added is true if an ADD has returned a lease, so that the interface uses or used its address. If such an
	// interface loses its lease, the daemon requests another one.
	Added bool          `json:"added"`
	Lease *dhcp4.Lease  `json:"lease,omitempty"` // the lease or, in state requesting, a server's offer
	Start time.Duration `json:"start"`           // the time since boot at which the lease was requested
}

// sameLink reports whether both records belong to the same interface.
func (r record) sameLink(o record) bool { return r.Cookie == o.Cookie && r.Link == o.Link }

// mustBeReleased reports whether a server keeps an address for the lease.
func (r record) mustBeReleased() bool { return r.Lease != nil && (r.State != selecting || !r.Added) }

// Validate returns an error if the daemon could not have written the record.
func (r record) Validate() error {
	switch {
	case r.Network == "" || r.ContainerID == "" || r.IfName == "" || r.NetNS == "" || r.Link <= 0:
		return errors.New("a value is missing")
	case !states[r.State]:
		return fmt.Errorf("unknown state %q", r.State)
	case r.Lease == nil && r.State != selecting:
		return fmt.Errorf("state %s without a lease", r.State)
	case r.Lease == nil:
		return nil
	}
	l := r.Lease
	if !l.Address.IsValid() || !l.Address.Addr().Is4() || r.Start < 0 || r.Start > never/2 ||
		l.RenewAfter < 0 || l.RenewAfter > l.RebindAfter || l.RebindAfter > l.Duration || l.Duration > dhcp4.Infinite {
		return errors.New("the lease is invalid")
	}
	return nil
}

// A Store is the directory of the lease files. It contains one file for each lease. A plugin that wants to release a
// lease while no daemon answers adds a second file, the mark.
type Store struct {
	Dir   string
	Trace *trace.Tracer // logs the steps; may be nil
}

const (
	leaseSuffix = ".lease"
	markSuffix  = ".released"
)

func (s Store) file(o types.Attachment) statefile.File {
	return statefile.File{Dir: s.Dir, Name: types.ShortHash(o.String()) + leaseSuffix, Owner: o, Trace: s.Trace}
}

func (s Store) mark(o types.Attachment) string {
	return strings.TrimSuffix(s.file(o).Path(), leaseSuffix) + markSuffix
}

func (s Store) save(r record) error {
	return s.file(r.Attachment).Save(r)
}

// setMark marks a lease that the plugin has deleted without the daemon. The daemon releases the lease when it starts, or
// instead of renewing it.
func (s Store) setMark(o types.Attachment) error {
	return s.Trace.Do("mark "+s.file(o).Path()+" for release", func() error {
		file, err := os.OpenFile(s.mark(o), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) { // a file of any kind is a mark
			return nil
		}
		if err != nil {
			return err
		}
		return file.Close()
	})
}

// remove removes a lease file and its mark.
func (s Store) remove(o types.Attachment) error {
	return errors.Join(s.file(o).Remove(), statefile.Remove(s.Trace, s.mark(o)))
}

// isMarked reports whether a plugin wants the lease to be released.
func (s Store) isMarked(o types.Attachment) bool {
	_, err := os.Lstat(s.mark(o))
	return err == nil
}

// load reads all lease files. It calls report for each file that has the name of a lease file but not its content, and
// removes the file. It also removes stale marks and temporary files.
func (s Store) load(report func(path string, err error)) ([]record, error) {
	entries, err := os.ReadDir(s.Dir)
	if types.IgnoreNotExist(err) != nil {
		return nil, err
	}
	var all []record
	for _, e := range entries {
		path := filepath.Join(s.Dir, e.Name())
		if !strings.HasSuffix(path, leaseSuffix) {
			continue
		}
		r, err := s.read(path)
		if err != nil {
			report(path, errors.Join(err, os.RemoveAll(path)))
			continue
		}
		all = append(all, r)
	}
	return all, s.removeRest(entries)
}

// removeRest removes marks without a lease, and temporary files of a killed daemon.
func (s Store) removeRest(entries []os.DirEntry) error {
	var errs []error
	for _, e := range entries {
		name, isMark := strings.CutSuffix(e.Name(), markSuffix)
		_, err := os.Lstat(filepath.Join(s.Dir, name+leaseSuffix))
		isTemp := strings.HasPrefix(e.Name(), ".") && strings.Contains(e.Name(), "~")
		if isMark && err != nil || isTemp {
			errs = append(errs, statefile.Remove(s.Trace, filepath.Join(s.Dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

func (s Store) read(path string) (record, error) {
	text, err := statefile.Read(path)
	if err != nil {
		return record{}, err
	}
	var r record
	err = statefile.Decode(text, &r)
	if err == nil && s.file(r.Attachment).Path() != path {
		err = errors.New("the file contains the lease of another attachment")
	}
	return r, err
}
